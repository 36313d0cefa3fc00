"""The OpenAPI document: paths and parameters from the routes, schemas from the structs of bodies and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Union

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from rookery.api.bodies import Body
from rookery.api.errors import ErrorBody
from rookery.api.routes import DECLARED, Operation
from rookery.stream.events import Event

REF = "#/components/schemas/{model}"
PREFIX = "/api/v1"

SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "An API token, `rk_...`."},
    "session": {"type": "apiKey", "in": "cookie", "name": "__Host-rookery_session"},
}


def document(application: FastAPI) -> dict[str, Any]:
    """The document of an application whose routes were declared through `Routes`."""
    found = dict(operations(application.routes))
    made = get_openapi(
        title=application.title,
        version=application.version,
        openapi_version="3.1.0",
        summary="Durable AI agent chats.",
        routes=application.routes,
    )
    schemas = _schemas(found.values())
    for path in made["paths"].values():
        for method, described in path.items():
            operation = found.get(described.get("operationId", ""))
            if operation is not None:
                path[method] = _described(described, operation, schemas.names)
    made["components"] = {"schemas": dict(sorted(schemas.components.items())), "securitySchemes": SECURITY}
    return msgspec.to_builtins(made)  # type: ignore[no-any-return]


def operations(routes: Iterable[Any]) -> Iterator[tuple[str, Operation]]:
    """What routers have declared, by name."""
    for route in routes:
        if isinstance(route, APIRoute) and (operation := DECLARED.get(route.endpoint)) is not None:
            yield operation.name, operation


class _Schemas(msgspec.Struct):
    components: dict[str, Any]
    names: dict[Any, dict[str, Any]]


def _schemas(found: Iterable[Operation]) -> _Schemas:
    known = list(found)
    events: Any = Union[tuple(Event.__subclasses__())]  # noqa: UP007 -- made from a list
    answers = [ErrorBody, *dict.fromkeys(each.returns for each in known if _is_struct(each.returns)), events]
    schemas, components = msgspec.json.schema_components(answers, ref_template="#/components/schemas/{name}")
    names = dict(zip(answers[:-1], schemas[:-1], strict=True))
    components["StreamEvent"] = schemas[-1]
    bodies: list[type[Body]] = list(dict.fromkeys(each.body for each in known if each.body is not None))
    by_body, defined = models_json_schema([(body, "validation") for body in bodies], ref_template=REF)
    for body in bodies:
        names[body] = by_body[body, "validation"]
    return _Schemas({**components, **defined.get("$defs", {})}, names)


def _is_struct(kind: Any) -> bool:
    return kind is not None and kind is not bytes and kind is not dict


def _described(described: dict[str, Any], operation: Operation, names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    responses: dict[str, Any] = {str(operation.status): _success(operation, names)}
    for status in operation.errors:
        content = {"application/json": {"schema": names[ErrorBody]}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    described["responses"] = responses
    if operation.body is not None:
        content = {"application/json": {"schema": names[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    described["security"] = [] if operation.is_public else [{"token": []}, {"session": []}]
    return described


def _success(operation: Operation, names: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(operation.status).phrase}
    if operation.returns is None:
        return described
    if operation.returns is bytes:
        schema: dict[str, Any] = {"type": "string", "format": "binary"}
    elif operation.returns is dict:
        schema = {"type": "object"}
    else:
        schema = names[operation.returns]
    described["content"] = {operation.media_type: {"schema": schema}}
    return described
