"""The OpenAPI 3.1 document of the gateway, made of the table of routes, the protocol's descriptors and its comments."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorSet

from pilotage_server.rpc.framework.access import REQUIRED_ROLES
from pilotage_server.rpc.gateway.json_form import descriptor_of, method_types
from pilotage_server.rpc.gateway.problems import MEDIA_TYPE
from pilotage_server.rpc.gateway.routes import ROUTES, CallRoute, Exchange

_PACKAGE = "pilotage.v1."
_JSON = "application/json"
_SCALARS: Mapping[int, Mapping[str, str]] = {
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_INT64: {"type": "integer", "format": "int64"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number", "format": "double"},
}
_TIMESTAMP = {"type": "string", "format": "date-time"}

# Numbers of fields in descriptor.proto, of which the paths in SourceCodeInfo are made.
_MESSAGE_OF_FILE, _ENUM_OF_FILE, _SERVICE_OF_FILE = 4, 5, 6
_FIELD_OF_MESSAGE, _MESSAGE_OF_MESSAGE, _ENUM_OF_MESSAGE = 2, 3, 4
_VALUE_OF_ENUM = _METHOD_OF_SERVICE = 2


@lru_cache(maxsize=1)
def comments() -> Mapping[str, str]:
    """Return the comments of the .proto files by full name; those of enum values as ENUM.VALUE."""
    content = (importlib.resources.files("pilotage.v1") / "protocol.binpb").read_bytes()
    found: dict[str, str] = {}
    for file in FileDescriptorSet.FromString(content).file:
        texts = {tuple(each.path): " ".join(each.leading_comments.split()) for each in file.source_code_info.location}
        paths: dict[str, tuple[int, ...]] = {}
        for index, message in enumerate(file.message_type):
            paths |= _message_paths(message, f"{file.package}.", (_MESSAGE_OF_FILE, index))
        for index, enum in enumerate(file.enum_type):
            paths |= _enum_paths(enum, f"{file.package}.", (_ENUM_OF_FILE, index))
        for index, service in enumerate(file.service):
            name, path = f"{file.package}.{service.name}", (_SERVICE_OF_FILE, index)
            paths[name] = path
            paths |= {f"{name}.{each.name}": (*path, _METHOD_OF_SERVICE, i) for i, each in enumerate(service.method)}
        found |= {name: texts[path] for name, path in paths.items() if texts.get(path)}
    return found


def _message_paths(message: DescriptorProto, prefix: str, path: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    name = prefix + message.name
    found = {name: path}
    found |= {f"{name}.{each.name}": (*path, _FIELD_OF_MESSAGE, index) for index, each in enumerate(message.field)}
    for index, inner in enumerate(message.nested_type):
        found |= _message_paths(inner, f"{name}.", (*path, _MESSAGE_OF_MESSAGE, index))
    for index, enum in enumerate(message.enum_type):
        found |= _enum_paths(enum, f"{name}.", (*path, _ENUM_OF_MESSAGE, index))
    return found


def _enum_paths(enum: EnumDescriptorProto, prefix: str, path: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    name = prefix + enum.name
    values = {f"{name}.{each.name}": (*path, _VALUE_OF_ENUM, index) for index, each in enumerate(enum.value)}
    return {name: path, **values}


def description_of(route: CallRoute) -> str:
    """Return what the call of a route does: the comment of the protocol, without the name of the method."""
    text = comments()[f"{_PACKAGE}{route.service}.{route.name}"].removeprefix(route.name).strip()
    return text[:1].upper() + text[1:]


def document() -> dict[str, Any]:
    """Return the document."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, schemas)
    services = sorted({route.service for route in ROUTES})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pilotage",
            "version": version("pilotage"),
            "description": "The calls of users and operators as JSON over HTTP. Names and texts are the protocol's.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "tags": [{"name": name, "description": comments()[_PACKAGE + name]} for name in services],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
            "schemas": dict(sorted({**schemas.found, "Problem": _PROBLEM}.items())),
        },
    }


_PROBLEM = {
    "type": "object",
    "description": "Why a call is refused, as problem details (RFC 9457).",
    "required": ["type", "title", "status", "detail", "reason"],
    "properties": {
        "type": {"type": "string", "const": "about:blank"},
        "title": {"type": "string", "description": "The phrase of the HTTP status."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What is wrong, for people."},
        "reason": {"type": "string", "description": "The kind of the error, for programs, such as NOT_FOUND."},
        "violations": {
            "type": "array",
            "description": "The faults of the request.",
            "items": {
                "type": "object",
                "properties": {
                    "field": {"type": "string", "description": "Path of the field, such as descriptions[0].count."},
                    "description": {"type": "string", "description": "What is wrong with it."},
                },
            },
        },
        "fields": {
            "type": "object",
            "description": "More of the error, for programs.",
            "additionalProperties": {"type": "string"},
        },
        "retry_after_s": {"type": "number", "description": "Seconds after which the call may be repeated."},
    },
}


def _operation(route: CallRoute, schemas: _Schemas) -> dict[str, Any]:
    text, roles = description_of(route), ", ".join(sorted(REQUIRED_ROLES[route.method]))
    request = descriptor_of(method_types(route)[0])
    in_path = {route.fields.get(name, name): name for name in _path_parameters(route)}
    rest = [field for field in request.fields if field.name not in in_path]
    parameters = [_path_parameter(request, field, name, schemas) for field, name in in_path.items()]
    operation: dict[str, Any] = {
        "operationId": route.name.removesuffix("s") if route.only else route.name,
        "tags": [route.service],
        "summary": text.partition(". ")[0].rstrip("."),
        "description": f"{text} Needs one of the roles {roles}.",
    }
    if route.exchange is Exchange.UPLOAD:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif route.has_body:
        operation["requestBody"] = {"content": {_JSON: {"schema": schemas.object_of(rest)}}}
    else:
        parameters += [_query_parameter(field, schemas) for field in rest]
    if route.exchange is Exchange.EVENTS:
        parameters.append(_header("Last-Event-ID", "Id of the last event that the caller has: the stream resumes."))
    if "request_id" in request.fields_by_name:
        parameters.append(_header("Idempotency-Key", "The request_id, if the request has none."))
    problem = {"description": "The call is refused.", "content": {MEDIA_TYPE: {"schema": _reference("Problem")}}}
    return {**operation, "parameters": parameters, "responses": {"200": _answer(route, schemas), "default": problem}}


def _path_parameters(route: CallRoute) -> Iterator[str]:
    for part in route.path.split("/"):
        if part.startswith("{"):
            yield part.strip("{}")


def _path_parameter(kind: Descriptor, field: str, name: str, schemas: _Schemas) -> dict[str, Any]:
    found = kind.fields_by_name[field]
    text = comments().get(found.full_name, "")
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schemas.of_element(found)}


def _query_parameter(field: FieldDescriptor, schemas: _Schemas) -> dict[str, Any]:
    schema = schemas.of(field)
    parameter = {"name": field.name, "in": "query", "description": comments().get(field.full_name, "")}
    if field.message_type is not None and schema != _TIMESTAMP:
        return {**parameter, "content": {_JSON: {"schema": schema}}}
    return {**parameter, "schema": schema}


def _header(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}


def _answer(route: CallRoute, schemas: _Schemas) -> dict[str, Any]:
    response = descriptor_of(method_types(route)[1])
    if route.exchange is Exchange.DOWNLOAD:
        return {"description": "The content of the file.", "content": {"application/octet-stream": {}}}
    schema = schemas.message(response)
    if route.only:
        field = response.fields_by_name[route.only]
        return {"description": "The job.", "content": {_JSON: {"schema": schemas.of_element(field)}}}
    if route.exchange is Exchange.EVENTS:
        name = response.name
        text = f"Events whose data is a {name} as JSON; then `end`, or `error` with a Problem, unless interrupted."
        return {"description": text, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {"description": comments()[response.full_name], "content": {_JSON: {"schema": schema}}}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


class _Schemas:
    """The schemas of messages and enums that something has referred to, by name without package."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def message(self, kind: Descriptor) -> dict[str, Any]:
        """Return a reference to a message."""
        name = kind.full_name.removeprefix(_PACKAGE)
        if name not in self.found:
            self.found[name] = {}  # first: a message may have itself
            text = comments().get(kind.full_name, "")
            self.found[name] = {"description": text, **self.object_of(kind.fields)}
        return _reference(name)

    def object_of(self, fields: Iterable[FieldDescriptor]) -> dict[str, Any]:
        """Return the schema of an object with these fields."""
        properties = {
            field.name: {"description": comments().get(field.full_name, ""), **self.of(field)} for field in fields
        }
        return {"type": "object", "properties": properties}

    def of(self, field: FieldDescriptor) -> dict[str, Any]:
        """Return the schema of a field."""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return {"type": "object", "additionalProperties": self.of(field.message_type.fields_by_name["value"])}
        element = self.of_element(field)
        return {"type": "array", "items": element} if field.is_repeated else element

    def of_element(self, field: FieldDescriptor) -> dict[str, Any]:
        """Return the schema of a field's value, or of one of its values."""
        if field.message_type is not None:
            is_time = field.message_type.full_name == "google.protobuf.Timestamp"
            return dict(_TIMESTAMP) if is_time else self.message(field.message_type)
        if field.enum_type is not None:
            return self._enum(field.enum_type)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "string", "contentEncoding": "base64"}
        return dict(_SCALARS[field.cpp_type])

    def _enum(self, kind: EnumDescriptor) -> dict[str, Any]:
        name = kind.full_name.removeprefix(_PACKAGE)
        values = [each.name for each in kind.values]
        texts = [f"`{each}`: {comments().get(f'{kind.full_name}.{each}', '')}" for each in values]
        text = "\n\n".join((comments().get(kind.full_name, ""), *texts))
        self.found[name] = {"type": "string", "description": text, "enum": values}
        return _reference(name)
