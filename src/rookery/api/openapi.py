"""The OpenAPI document: paths and parameters from the routes, schemas from the structs of bodies and responses.

Two libraries provide the schemas (pydantic those of parameters and bodies, msgspec those of responses and events), and
each chooses its own names. This module merges them into one document in which each name has one meaning.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Set
from http import HTTPStatus
from typing import Any, Union

import msgspec
from pydantic.json_schema import models_json_schema

from rookery import __version__
from rookery.api import headers
from rookery.api.errors import ErrorBody
from rookery.api.handler_parameters import Parameters
from rookery.api.headers import Header
from rookery.api.request_bodies import Body
from rookery.api.routes import PREFIX, Declared, Operation, RouteTable
from rookery.live.deltas import MessagePart
from rookery.stream.events import Event
from rookery.stream.query_parameters import MAX_TAIL, StreamParams

REF = "#/components/schemas/"
CSV = "text/csv"
ANY_TYPE = "*/*"
_OCTETS = "application/octet-stream"

DESCRIPTION = (
    "Errors that occur before the operation is known are not repeated for each operation: 404 and 405 for an "
    "unknown path or method, 400 for a `Host` that is not accepted or a malformed request, 408 for a request "
    "that does not arrive in time, 414 and 431 for a URL or headers that are too long. They have the same "
    "body as all other errors."
)

SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "An API token, `rk_...`."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-rookery_session",
        "description": (
            "The cookie of a login, called `rookery_session` over plain http. It is valid only together with the "
            "session key."
        ),
    },
    "session_key": {
        "type": "apiKey",
        "in": "header",
        "name": "Rookery-Session-Key",
        "description": (
            "The `session_key` from the response to the login. A browser's WebSocket offers it as the subprotocol "
            "`rookery.session.KEY` beside `rookery.v1`."
        ),
    },
}
_STREAM_ERRORS = {400, 401, 403, 429, 500, 503}
# Responses after which a client may try again.
_PASSING = frozenset({429, 503})
_BYTES = {"type": "string", "format": "binary"}
_LOGGED_IN: list[dict[str, list[str]]] = [{"token": []}, {"session": [], "session_key": []}]
_NAME = re.compile(r"[A-Za-z0-9_]+")
# Structs that share a name in two modules. Those with the same meaning become one schema.
_NAMED = {
    "rookery.domain.access.rights.Role": "UserRole",
    "rookery.domain.chat.messages.Role": "MessageRole",
    "Role": "UserRole",  # in bodies and parameters
}


def document(table: RouteTable) -> dict[str, Any]:
    """Return the document of all declared operations."""
    found = dict(operations(table))
    schemas = _Schemas(found.values())
    parameters = _describe_parameters(found.values(), schemas)
    paths: dict[str, Any] = {}
    for route in table.routes:
        if route.declared is None:
            continue
        operation, method = route.declared.operation, route.method.lower()
        described = _described(route.declared, parameters[operation.name], schemas.names)
        paths.setdefault(route.path, {})[method] = described
        if method == "patch" and operation.body is not None:
            schemas.drop_defaults(operation.body)
    statuses = {status for each in found.values() for status in each.operation.errors} | _STREAM_ERRORS
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Rookery",
            "summary": "Durable AI agent chats.",
            "description": DESCRIPTION,
            "version": __version__,
        },
        "paths": {**paths, **_streams()},
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "responses": {f"Error{status}": _explained(status, schemas.names) for status in sorted(statuses)},
            "securitySchemes": SECURITY,
        },
        "servers": [{"url": "/"}],
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(_without_titles(made)))
    return plain


def operations(table: RouteTable) -> Iterator[tuple[str, Declared]]:
    """Return the declared operations by name."""
    for route in table.routes:
        if route.declared is not None:
            yield route.declared.operation.name, route.declared


def chapters(table: RouteTable) -> tuple[str, ...]:
    """Return the tags of all operations, sorted by name."""
    return tuple(sorted({declared.tag for _, declared in operations(table)}))


def _describe_parameters(found: Iterable[Declared], schemas: _Schemas) -> dict[str, list[dict[str, Any]]]:
    """Return the parameters of each operation, and add the schemas that they refer to."""
    all_parameters = {each.operation.name: each.parameters for each in found}
    references, defined = models_json_schema(
        [(each.model, "validation") for each in all_parameters.values()], ref_template=f"{REF}{{model}}"
    )
    definitions = defined.get("$defs", {})
    by_name = {
        name: definitions.pop(references[each.model, "validation"]["$ref"].removeprefix(REF))
        for name, each in all_parameters.items()
    }
    schemas.add(definitions)
    return {name: _parameters(each, _renamed(by_name[name])) for name, each in all_parameters.items()}


def _parameters(parameters: Parameters, schema: dict[str, Any]) -> list[dict[str, Any]]:
    described = []
    for each in parameters.all:
        member = schema["properties"][each.sent_as]
        if member.get("default", "") is None:
            del member["default"]
        is_required = each.sent_as in schema.get("required", ())
        text = {"description": member["description"]} if "description" in member else {}
        described.append({"name": each.sent_as, "in": each.place, "required": is_required, "schema": member, **text})
    return described


class _Schemas:
    """All schemas by name, and the reference of each body and response."""

    def __init__(self, found: Iterable[Declared]) -> None:
        self.components: dict[str, Any] = {}
        self.names: dict[Any, dict[str, Any]] = {}
        known = [each.operation for each in found]
        self._add_answers([each.returns for each in known if _is_struct(each.returns)])
        self._add_bodies([each.body for each in known if each.body is not None])

    def add(self, schemas: dict[str, Any]) -> None:
        """Add schemas under their names. A name that stands for two schemas is a bug."""
        for given, described in schemas.items():
            name, schema = _NAMED.get(given, given), _renamed(described)
            if "description" in schema:
                schema["description"] = inspect.cleandoc(schema["description"])
            assert _NAME.fullmatch(name), f"{name} cannot name a schema: two structs have this name"
            known = self.components.setdefault(name, schema)
            assert _same(known, schema), f"two schemas are named {name}"

    def drop_defaults(self, body: type[Body]) -> None:
        """Drop the defaults of a PATCH body.

        An absent field keeps its stored value; the default in the code does not apply.
        """
        name = self.names[body]["$ref"].removeprefix(REF)
        for member in self.components[name]["properties"].values():
            member.pop("default", None)

    def _add_answers(self, returned: Iterable[Any]) -> None:
        events: Any = Union[(*Event.__subclasses__(), MessagePart)]
        answers = [ErrorBody, *dict.fromkeys(returned), events]
        schemas, components = msgspec.json.schema_components(
            answers, ref_template=f"{REF}{{name}}", schema_hook=_any_value
        )
        self.add(components)
        self.add({"StreamEvent": schemas[-1]})
        self.names.update(zip(answers[:-1], map(_renamed, schemas[:-1]), strict=True))

    def _add_bodies(self, sent: Iterable[type[Body]]) -> None:
        bodies = list(dict.fromkeys(sent))
        by_body, defined = models_json_schema([(body, "validation") for body in bodies], ref_template=f"{REF}{{model}}")
        self.add({name: _without_void_defaults(schema) for name, schema in defined.get("$defs", {}).items()})
        self.names.update((body, by_body[body, "validation"]) for body in bodies)


def _renamed(value: Any) -> Any:
    """Return the value with all references changed to the names of this document."""
    match value:
        case str() if value.startswith(REF):
            name = value.removeprefix(REF)
            return REF + _NAMED.get(name, name)
        case dict():
            return {key: _renamed(each) for key, each in value.items()}
        case list():
            return [_renamed(each) for each in value]
        case _:
            return value


def _any_value(kind: type) -> dict[str, Any]:
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError  # tells msgspec that the hook does not know the type


def _is_struct(kind: Any) -> bool:
    return kind is not None and kind is not bytes and kind is not dict


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two schemas are equal. The libraries list enums in different orders, with or without a type."""
    if "enum" in one and "enum" in other:
        return sorted(one["enum"]) == sorted(other["enum"])
    return one == other


def _described(
    declared: Declared, parameters: list[dict[str, Any]], names: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    operation = declared.operation
    described: dict[str, Any] = {
        "tags": [declared.tag],
        "summary": declared.description.split("\n")[0].split(". ")[0].rstrip("."),
        "description": declared.description,
        "operationId": operation.name,
    }
    if parameters or operation.takes:
        described["parameters"] = [*parameters, *map(_header, operation.takes)]
    responses: dict[str, Any] = {str(operation.status): _success(described, operation, names)}
    for status in operation.also:
        responses[str(status)] = _further(status, responses[str(operation.status)])
    for status in operation.errors:
        responses[str(status)] = _error(status)
    described["responses"] = responses
    if operation.body is not None:
        content = {"application/json": {"schema": names[operation.body]}}
        described["requestBody"] = {"required": operation.needs_body, "content": content}
    elif operation.raw_body is not None:
        described["requestBody"] = {"required": True, "content": {operation.raw_body: {"schema": _BYTES}}}
    described["security"] = [] if operation.is_public else _LOGGED_IN
    return described


def _success(described: dict[str, Any], operation: Operation, names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    answered: dict[str, Any] = {"description": HTTPStatus(operation.status).phrase}
    if operation.gives:
        answered["headers"] = _given(operation.gives)
    if operation.returns is None:
        return answered
    if operation.returns is bytes:
        schema: dict[str, Any] = _BYTES
    elif operation.returns is dict:
        schema = {"type": "object"}
    else:
        schema = names[operation.returns]
    # Bytes without a fixed type have the type of the file.
    media_type = ANY_TYPE if operation.media_type == _OCTETS else operation.media_type
    answered["content"] = {media_type: {"schema": schema}}
    if any(parameter["name"] == "format" for parameter in described.get("parameters", ())):
        answered["content"][CSV] = {"schema": {"type": "string"}}
    return answered


def _further(status: int, usual: dict[str, Any]) -> dict[str, Any]:
    """Describe another success status, with the same content. A status that cannot have content gets none."""
    answered = {**usual, "description": HTTPStatus(status).phrase}
    if status == HTTPStatus.NOT_MODIFIED:
        del answered["content"]
    if status == HTTPStatus.PARTIAL_CONTENT:
        answered["headers"] = {**usual.get("headers", {}), **_given([headers.CONTENT_RANGE])}
    return answered


def _header(header: Header) -> dict[str, Any]:
    return {
        "name": header.name,
        "in": "header",
        "required": False,
        "description": header.description,
        "schema": header.schema,
    }


def _given(given: Iterable[Header]) -> dict[str, Any]:
    return {each.name: {"description": each.description, "schema": each.schema} for each in given}


def _error(status: int) -> dict[str, Any]:
    return {"$ref": f"#/components/responses/Error{status}"}


def _explained(status: int, names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    explained = {
        "description": HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": names[ErrorBody]}},
    }
    return {**explained, "headers": _given([headers.RETRY_AFTER])} if status in _PASSING else explained


def _streams() -> dict[str, Any]:
    """Describe the live endpoints, which no router declares."""
    limits = {"after_id": {"minimum": 0}, "tail": {"minimum": 0, "maximum": MAX_TAIL}}
    wanted = [
        _parameter(
            name,
            type="boolean" if isinstance(default, bool) else "integer",
            default=default,
            **limits.get(name, {}),
        )
        for name, default in msgspec.structs.asdict(StreamParams()).items()
    ]
    chat = {**_parameter("chat", type="string", format="uuid"), "in": "path", "required": True}
    told = [_header(headers.LAST_EVENT_ID), _header(headers.BREAK_GLASS)]
    return {
        f"{PREFIX}/chats/{{chat}}/git": {
            "get": _stream("chats.git", "Follow the repositories that a chat works in", [chat], errors={404, 409})
        },
        f"{PREFIX}/chats/watch": {"get": _stream("chats.watch", "Follow the list of your chats", [])},
        f"{PREFIX}/chats/{{chat}}/stream": {
            "get": _stream("chats.stream", "Follow one chat", [chat, *wanted, *told], errors={404})
        },
    }


def _parameter(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _stream(
    name: str, summary: str, parameters: list[dict[str, Any]], *, errors: Set[int] = frozenset()
) -> dict[str, Any]:
    events = {"text/event-stream": {"schema": {"$ref": f"{REF}StreamEvent"}}}
    return {
        "tags": ["streams"],
        "summary": summary,
        "description": "Server-sent events. After an upgrade to a WebSocket, the same events as frames of JSON arrays.",
        "operationId": name,
        "parameters": parameters,
        "responses": {
            "101": {"description": "Switching Protocols"},
            "200": {"description": "OK", "content": events},
            **{str(status): _error(status) for status in sorted(_STREAM_ERRORS | errors)},
        },
        "security": _LOGGED_IN,
    }


def _without_void_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop defaults that the field's type forbids. A null default only means that the field may be absent."""
    for member in schema.get("properties", {}).values():
        nullable = {"type": "null"} in member.get("anyOf", ()) or member.get("type") == "null"
        if "default" in member and member["default"] is None and not nullable:
            del member["default"]
    return schema


def _without_titles(value: Any, *, is_named: bool = False) -> Any:
    """Drop titles that only repeat the name of a field. `is_named`: the keys of this object are field names."""
    if isinstance(value, list):
        return [_without_titles(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_titles(each, is_named=key == "properties" and not is_named)
        for key, each in value.items()
        if is_named or key != "title" or not isinstance(each, str) or "version" in value
    }
