"""The table that passes a request to the route of its method and path."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message

from rookery.api.errors import ApiError
from rookery.api.handler_parameters import Parameters
from rookery.api.routes import PREFIX, Endpoint, Route, Routes, RouteTable


def route(method: str, path: str) -> Route:
    async def handler() -> Response:
        return PlainTextResponse(path)

    return Route(method=method, path=path, name=path, application=Endpoint(handler, Parameters(path, "", handler)))


async def ask(table: RouteTable, path: str, method: str = "GET", kind: str = "http") -> tuple[list[Message], Any]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": f"{kind}.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Any = {"type": kind, "method": method, "path": path, "query_string": b"", "headers": []}
    await table(scope, receive, send)
    return sent, scope


async def answered_by(table: RouteTable, path: str, method: str = "GET") -> str:
    sent, _ = await ask(table, path, method)
    return b"".join(message.get("body", b"") for message in sent).decode()


async def test_fixed_segment_precedes_a_parameter_in_any_order_of_declaration() -> None:
    table = RouteTable([route("GET", "/chats/{chat}"), route("GET", "/chats/watch")])

    assert await answered_by(table, "/chats/watch") == "/chats/watch"
    assert await answered_by(table, "/chats/other") == "/chats/{chat}"


async def test_parameter_matches_if_the_fixed_segment_has_no_such_method() -> None:
    table = RouteTable([route("GET", "/chats/watch"), route("PATCH", "/chats/{chat}")])

    assert await answered_by(table, "/chats/watch", "PATCH") == "/chats/{chat}"


async def test_route_and_parameters_of_the_path_are_in_the_scope() -> None:
    table = RouteTable([route("GET", "/a/{one}/b/{two}")])

    _, scope = await ask(table, "/a/1/b/x y")

    assert scope["path_params"] == {"one": "1", "two": "x y"}
    assert scope["route"].path == "/a/{one}/b/{two}"


@pytest.mark.parametrize("path", ["/nothing", "/chats/", "/chats", "/chats/1/", "//chats/1", "/chats/1/2", ""])
async def test_address_without_a_route_is_not_found(path: str) -> None:
    table = RouteTable([route("GET", "/chats/{chat}")])

    with pytest.raises(ApiError) as refused:
        await ask(table, path)

    assert (refused.value.status, refused.value.code) == (404, "not_found")


async def test_other_method_is_refused_with_all_methods_of_the_address() -> None:
    table = RouteTable([route("PUT", "/a/{id}"), route("GET", "/a/{id}"), route("WEBSOCKET", "/a/{id}")])

    with pytest.raises(ApiError) as refused:
        await ask(table, "/a/1", "POST")

    assert (refused.value.status, refused.value.headers) == (405, {"Allow": "GET, PUT"})


async def test_websocket_without_a_route_is_closed() -> None:
    table = RouteTable([route("GET", "/a")])

    sent, _ = await ask(table, "/a", kind="websocket")

    assert [message["type"] for message in sent] == ["websocket.close"]


def test_method_and_path_cannot_be_declared_twice() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        RouteTable([route("GET", "/a/{one}"), route("GET", "/a/{other}")])


def test_declared_operation_has_the_prefix_the_tag_and_the_docstring_of_its_handler() -> None:
    routes = Routes("birds")

    @routes.get("/birds", "birds.list")
    async def list_birds() -> Response:
        """List all birds.

        The oldest come first.
        """
        return Response()

    (made,) = routes.all
    assert (made.method, made.path, made.name) == ("GET", f"{PREFIX}/birds", "birds.list")
    assert made.declared is not None
    assert (made.declared.tag, made.declared.description) == ("birds", "List all birds.\n\nThe oldest come first.")
