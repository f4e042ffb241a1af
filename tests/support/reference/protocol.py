"""The page of the protocol, made from the descriptors and the comments of the .proto files."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, MethodDescriptor

from pilotage_server.rpc.framework.access import REQUIRED_ROLES
from pilotage_server.rpc.gateway.openapi import comments
from pilotage_server.rpc.gateway.routes import ROUTES
from support.reference.markdown import prose, table

_PACKAGE = "pilotage.v1"
_FOLDER = Path(__file__).parents[3] / "proto" / "pilotage" / "v1"

_HEAD = """# The protocol

With this page you can call any method over gRPC, and you know the fields of a request [over HTTP](http.md). The package
is `pilotage.v1`, and servers have gRPC reflection. `make reference` writes the page from the `.proto` files in
`proto/pilotage/v1`.

- The *roles* are those of which a token needs one. A call without a route has none over HTTP.
- The metadata `authorization` has `Bearer TOKEN`.
- A call that changes something has a `request_id`. Repeated with the same id, it has one effect and the same answer.
- Times are `Timestamp` in UTC. Fields are only added; none gets another number.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    for name in sorted(path.stem for path in _FOLDER.glob("*.proto")):
        file: FileDescriptor = importlib.import_module(f"{_PACKAGE}.{name}_pb2").DESCRIPTOR
        lines += [f"## {name}.proto", ""]
        for service in file.services_by_name.values():
            rows = [_call(method) for method in service.methods]
            lines += [prose(_comment(service.full_name)), ""]
            lines += table(("call", "request → response", "over HTTP", "roles", "what it does"), rows)
        for message in file.message_types_by_name.values():
            lines += _message(message)
        for enum in file.enum_types_by_name.values():
            lines += _enum(enum)
    return "\n".join(lines)


def _call(method: MethodDescriptor) -> tuple[str, ...]:
    path = f"/{method.containing_service.full_name}/{method.name}"
    over_http = [f"`{route.verb} {route.path}`" for route in ROUTES if route.method == path]
    sends = "stream of " if method.client_streaming else ""
    gets = "stream of " if method.server_streaming else ""
    types = f"{sends}{_link(method.input_type)} → {gets}{_link(method.output_type)}"
    roles = ", ".join(sorted(REQUIRED_ROLES[path]))
    return f"`{method.name}`", types, "<br>".join(over_http), roles, prose(_comment(method.full_name))


def _message(message: Descriptor) -> Iterator[str]:
    """Yield the lines of a message and of those inside it, except those that stand for maps."""
    yield from (f"### {_name(message)}", "", prose(_comment(message.full_name)), "")
    if message.fields:
        rows = [
            (f"`{each.name}`", _type(each), str(each.number), prose(_comment(each.full_name)))
            for each in message.fields
        ]
        yield from table(("field", "type", "no.", "means"), rows)
    for inner in message.nested_types:
        if not inner.GetOptions().map_entry:
            yield from _message(inner)
    for enum in message.enum_types:
        yield from _enum(enum)


def _enum(enum: EnumDescriptor) -> list[str]:
    rows = [
        (f"`{each.name}`", str(each.number), prose(_comment(f"{enum.full_name}.{each.name}"))) for each in enum.values
    ]
    return [f"### {_name(enum)}", "", prose(_comment(enum.full_name)), "", *table(("value", "no.", "means"), rows)]


def _type(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map of {_type(key)} to {_type(value)}"
    described = field.message_type or field.enum_type
    text = _SCALARS[field.type] if described is None else _link(described)
    if field.is_repeated:
        return f"list of {text}"
    return f"{text}, optional" if field.has_presence and field.message_type is None else text


_COMPOUND = {FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_GROUP, FieldDescriptor.TYPE_MESSAGE}
_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and number not in _COMPOUND
}


def _link(described: Descriptor | EnumDescriptor) -> str:
    """Return the name of a type, which leads to its section if it is of this package."""
    if described.file.package != _PACKAGE:
        return described.name
    return f"[{_name(described)}](#{_name(described).lower().replace('.', '')})"


def _name(described: Descriptor | EnumDescriptor) -> str:
    return described.full_name.removeprefix(f"{_PACKAGE}.")


def _comment(full_name: str) -> str:
    return comments().get(full_name, "")
