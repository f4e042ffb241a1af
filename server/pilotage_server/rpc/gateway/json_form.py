"""Messages of the protocol ↔ JSON: protobuf's JSON mapping with two differences.

The names of fields are those of the protocol (`job_id`, not `jobId`), and 64-bit integers are numbers, not strings.
Strings are accepted too. No id, size or count of Pilotage reaches 2^53, beyond which JavaScript rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pilotage.errors import InvalidInputError, Violation
from pilotage_server.rpc.gateway.routes import CallRoute

_WIDE = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})
_WELL_KNOWN = "google.protobuf."
_FLAGS = {"true": True, "false": False}


def method_types(route: CallRoute) -> tuple[type[Message], type[Message]]:
    """Return the classes of the route's request and response."""
    module = import_module(f"pilotage.v1.{route.service.removesuffix('Service').lower()}_service_pb2")
    method = module.DESCRIPTOR.services_by_name[route.service].methods_by_name[route.name]
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)


def descriptor_of(kind: type[Message] | Message) -> Descriptor:
    """Return the descriptor of a message, of which the type stubs know two classes."""
    return cast(Descriptor, kind.DESCRIPTOR)


def to_json(message: Message) -> Any:
    """Return the message as a value for `json.dumps`. Fields without presence are there with their defaults."""
    found = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _restore_integers(found, descriptor_of(message))
    return found


def _restore_integers(found: dict[str, Any], kind: Descriptor) -> None:
    """Replace the strings of 64-bit integers by numbers, in place."""
    for name, inner in _wide_fields(kind):
        value = found.get(name)
        if value is None:
            continue
        if inner is None:
            found[name] = [int(each) for each in value] if isinstance(value, list) else int(value)
        elif inner.GetOptions().map_entry:
            entry = inner.fields_by_name["value"]
            if entry.message_type is None:
                found[name] = {key: int(each) for key, each in value.items()}
            else:
                for each in value.values():
                    _restore_integers(each, entry.message_type)
        else:
            for each in value if isinstance(value, list) else (value,):
                _restore_integers(each, inner)


@cache
def _wide_fields(kind: Descriptor) -> tuple[tuple[str, Descriptor | None], ...]:
    """Return the fields to look at, and the type of those that are messages."""
    found: list[tuple[str, Descriptor | None]] = []
    for field in kind.fields:
        inner = field.message_type
        if inner is None and field.cpp_type in _WIDE:
            found.append((field.name, None))
        elif inner is not None and not inner.full_name.startswith(_WELL_KNOWN) and _may_be_wide(inner):
            found.append((field.name, inner))
    return tuple(found)


def _may_be_wide(inner: Descriptor) -> bool:
    if not inner.GetOptions().map_entry:
        return True
    value = inner.fields_by_name["value"]
    return value.message_type is not None or value.cpp_type in _WIDE


def read_body(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; an empty body is an empty object. Raises InvalidInputError."""
    try:
        found = json.loads(content) if content else {}
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(Violation("", f"the body is not JSON: {error}")) from error
    if not isinstance(found, dict):
        raise InvalidInputError(Violation("", "the body is JSON, but no object"))
    return found


def read_query(route: CallRoute, request: type[Message], items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the fields in a query: `states=A&states=B`, `queue.site=X`; a field of messages holds JSON.

    Raises InvalidInputError.
    """
    found: dict[str, Any] = {}
    for name, text in items:
        *outer, last = name.split(".")
        inside, kind = found, descriptor_of(request)
        for step in outer:
            field = _field(kind, step, name)
            if field.message_type is None or field.is_repeated:
                raise InvalidInputError(Violation(name, f"{step} has no fields"))
            inside, kind = inside.setdefault(step, {}), field.message_type
        field = _field(kind, last, name)
        value = _query_value(field, name, text)
        if field.is_repeated:
            inside.setdefault(last, []).extend(value if isinstance(value, list) else [value])
        elif last in inside:
            raise InvalidInputError(Violation(name, "is there twice, and takes one value"))
        else:
            inside[last] = value
    if route.has_body and found:
        raise InvalidInputError(Violation(next(iter(found)), f"belongs in the body of {route.verb}, not in the query"))
    return found


def _field(kind: Descriptor, name: str, where: str) -> FieldDescriptor:
    field = kind.fields_by_name.get(name)
    if field is None:
        known = ", ".join(each.name for each in kind.fields) or "none"
        raise InvalidInputError(Violation(where, f"is no parameter of this call; there are {known}"))
    return field


def _query_value(field: FieldDescriptor, where: str, text: str) -> Any:
    if field.message_type is not None and not field.message_type.full_name.startswith(_WELL_KNOWN):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(Violation(where, f"holds a {field.message_type.name} as JSON: {error}")) from error
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if text not in _FLAGS:
            raise InvalidInputError(Violation(where, "is true or false"))
        return _FLAGS[text]
    return text


def bind_path(
    route: CallRoute, request: type[Message], found: dict[str, Any], parameters: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields with those of the path. Raises InvalidInputError if the others have one of them too."""
    for parameter, text in parameters.items():
        name = route.fields.get(parameter, parameter)
        if name in found:
            raise InvalidInputError(Violation(name, "is in the path, and must not be given again"))
        found[name] = [text] if descriptor_of(request).fields_by_name[name].is_repeated else text
    return found


def to_message(request: type[Message], found: dict[str, Any]) -> Message:
    """Return the message with these fields; raises InvalidInputError, with the path of the field that is at fault."""
    try:
        return json_format.ParseDict(found, request())
    except _UNREADABLE as error:  # json_format names the place of some faults only
        raise InvalidInputError(_fault(descriptor_of(request), found, "")) from error


_UNREADABLE = (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError)
"""What json_format raises for values of the wrong kind."""


def _fault(kind: Descriptor, found: Mapping[str, Any], path: str) -> Violation:
    """Return the place of the first field that cannot be read, and what it takes."""
    for name, value in found.items():
        field = kind.fields_by_name.get(name) or kind.fields_by_camelcase_name.get(name)
        if field is None:
            known = ", ".join(each.name for each in kind.fields) or "none"
            return Violation(path + name, f"is no field of {kind.name}; there are {known}")
        if _is_readable(kind, {name: value}):
            continue
        for key, each, alone in _parts(field, value):
            if not _is_readable(kind, {name: alone}):
                value_kind = _element(field).message_type
                if isinstance(each, dict) and value_kind is not None:
                    return _fault(value_kind, each, f"{path}{name}{key}.")
                return Violation(f"{path}{name}{key}", _expected(field))
        return Violation(path + name, f"takes {'an object' if _is_map(field) else 'a list'}")
    return Violation(path.rstrip("."), f"the fields of this {kind.name} do not go together, or are too deep")


def _is_readable(kind: Descriptor, found: dict[str, Any]) -> bool:
    try:
        json_format.ParseDict(found, GetMessageClass(kind)())
    except _UNREADABLE:
        return False
    return True


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _element(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field of the values of a map, else the field itself."""
    inner = field.message_type
    return field if inner is None or not inner.GetOptions().map_entry else inner.fields_by_name["value"]


def _parts(field: FieldDescriptor, value: Any) -> Iterable[tuple[str, Any, Any]]:
    """Yield the parts of a field's value: the end of its path, the part, and a value of the field with it alone."""
    if not field.is_repeated:
        yield "", value, value
    elif _is_map(field):
        if isinstance(value, dict):
            yield from ((f"[{key}]", each, {key: each}) for key, each in value.items())
    elif isinstance(value, list):
        yield from ((f"[{index}]", each, [each]) for index, each in enumerate(value))


_EXPECTED: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "a text",
    FieldDescriptor.CPPTYPE_INT32: "an integer of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "an integer of 64 bits",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
}


def _expected(field: FieldDescriptor) -> str:
    """Return what a field takes, or each element of it."""
    field = _element(field)
    if field.enum_type is not None:
        return f"takes one of {', '.join(each.name for each in field.enum_type.values)}"
    if field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp":
        return "takes a time such as 2026-11-27T12:00:00Z"
    if field.message_type is not None:
        return f"takes an object with the fields of {field.message_type.name}"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "takes bytes as base64"
    return f"takes {_EXPECTED[field.cpp_type]}"
