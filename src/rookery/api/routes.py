"""Declaration of operations (path, stable name, parameters, response, errors), and the table that routes requests.

Requests are pydantic models, for their error reports; responses are msgspec structs, for their speed. The OpenAPI
document is made from the same declarations, so code and documentation cannot differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from rookery.api.errors import ApiError, explain
from rookery.api.handler_parameters import Parameters
from rookery.api.headers import Header
from rookery.api.request_bodies import Body

T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])

PREFIX = "/api/v1"

# Errors of every operation: a bad parameter, the rate limit, a bug, no database.
ALWAYS = (400, 429, 500, 503)
# Errors of operations with a login: not logged in, no right.
WITH_LOGIN = (401, 403)
WITH_BODY = (408, 413, 415)


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; `next_cursor` is null on the last page."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class Items(msgspec.Struct, Generic[T], frozen=True):
    """A list without pages."""

    items: tuple[T, ...]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one operation, besides its path and parameters.

    `also` are further success statuses; `takes` and `gives` are headers of the request and of the response.
    """

    name: str
    returns: Any
    status: int
    also: tuple[int, ...]
    body: type[Body] | None
    needs_body: bool
    raw_body: str | None
    takes: tuple[Header, ...]
    gives: tuple[Header, ...]
    errors: tuple[int, ...]
    media_type: str
    is_public: bool


_encode = msgspec.json.Encoder().encode


def answer(value: object, status: int = 200, **headers: str) -> Response:
    """Return a JSON response. Header names are written with underscores."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(_encode(value), status, named, media_type="application/json")


def nothing(**headers: str) -> Response:
    return Response(status_code=204, headers={name.replace("_", "-"): text for name, text in headers.items()})


class Declared(msgspec.Struct, frozen=True):
    """The description of a route for the OpenAPI document. `tag` is its subject."""

    tag: str
    description: str
    operation: Operation
    parameters: Parameters


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A method and a path, and the ASGI application behind them. The method of a WebSocket is `WEBSOCKET`.

    `name` is the stable name of the operation; None for a stream. `declared` is None for routes that the OpenAPI
    document does not describe in this way.
    """

    method: str
    path: str
    application: ASGIApp
    name: str | None = None
    declared: Declared | None = None

    def values(self, path: Sequence[str]) -> dict[str, str]:
        """Return the parameters in the segments of a path that matches."""
        segments = zip(self.path.split("/"), path, strict=True)
        return {name[1:-1]: value for name, value in segments if name.startswith("{")}


class Routes:
    """The routes of one subject. `tag` is its tag in the OpenAPI document."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.all: list[Route] = []

    def get(self, path: str, name: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._add("GET", path, name, **options)

    def post(self, path: str, name: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._add("POST", path, name, **options)

    def put(self, path: str, name: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._add("PUT", path, name, **options)

    def patch(self, path: str, name: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._add("PATCH", path, name, **options)

    def delete(self, path: str, name: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._add("DELETE", path, name, **options)

    def _add(
        self,
        method: str,
        path: str,
        name: str,
        *,
        returns: Any = None,
        status: int | None = None,
        also: Sequence[int] = (),
        body: type[Body] | None = None,
        needs_body: bool = True,
        raw_body: str | None = None,
        takes: Sequence[Header] = (),
        gives: Sequence[Header] = (),
        errors: Sequence[int] = (),
        media_type: str = "application/json",
        is_public: bool = False,
        allows_unknown: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare an operation. With `allows_unknown`, unknown query parameters are ignored.

        `returns` is a msgspec struct, or None for a response without content. `errors` are the error statuses besides
        the usual ones. `raw_body` is the media type of a body that is read unparsed.
        """
        operation = Operation(
            name=name,
            returns=returns,
            status=status or (204 if returns is None else 200),
            also=tuple(also),
            body=body,
            needs_body=needs_body,
            raw_body=raw_body,
            takes=tuple(takes),
            gives=tuple(gives),
            errors=tuple(sorted({*ALWAYS, *(() if is_public else WITH_LOGIN), *(WITH_BODY if body else ()), *errors})),
            media_type=media_type,
            is_public=is_public,
        )

        def decorate(handler: Handler) -> Handler:
            parameters = Parameters(name, path, handler, allows_unknown=allows_unknown)
            self.all.append(
                Route(
                    method=method,
                    path=PREFIX + path,
                    application=Endpoint(handler, parameters),
                    name=name,
                    declared=Declared(self.tag, inspect.getdoc(handler) or "", operation, parameters),
                )
            )
            return handler

        return decorate


class Endpoint:
    """The ASGI application of a handler."""

    def __init__(self, handler: Callable[..., Awaitable[Response]], parameters: Parameters) -> None:
        self.handler = handler
        self._parameters = parameters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self.handler(**self._parameters.read(request, scope["path_params"]))
        except Exception as error:
            # The middleware reports all other errors. It cannot wait for a client that is still sending.
            explained = explain(error)
            if explained is None:
                raise
            scope["rookery.error"] = explained.code
            response = explained.response(scope.get("rookery.request_id", ""))
        await response(scope, receive, send)


class _Node:
    """A segment of paths. `routes` are those that end here, by method. `values` is the node of a parameter."""

    __slots__ = ("routes", "segments", "values")

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.segments: dict[str, _Node] = {}
        self.values: _Node | None = None

    def find(self, path: Sequence[str], start: int = 0) -> Iterator[dict[str, Route]]:
        """Yield the routes of each match of the path, by method. Fixed segments come before parameters."""
        if start == len(path):
            if self.routes:
                yield self.routes
            return
        fixed = self.segments.get(path[start])
        if fixed is not None:
            yield from fixed.find(path, start + 1)
        if self.values is not None and path[start]:
            yield from self.values.find(path, start + 1)


class RouteTable:
    """The ASGI application that passes a request to the route of its method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in self.routes:
            node = self._root
            for segment in route.path.split("/"):
                if segment.startswith("{"):
                    node.values = node = node.values or _Node()
                else:
                    node = node.segments.setdefault(segment, _Node())
            assert route.method not in node.routes, f"{route.method} {route.path} is declared twice"
            node.routes[route.method] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "WEBSOCKET" if scope["type"] == "websocket" else scope["method"]
        path = scope["path"].split("/")
        matches = list(self._root.find(path))
        for routes in matches:
            if route := routes.get(method):
                scope["app"] = self
                scope["route"] = route
                scope["path_params"] = route.values(path)
                await route.application(scope, receive, send)
                return
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        elif matches:
            allowed = ", ".join(sorted({each for routes in matches for each in routes if each != "WEBSOCKET"}))
            scope["route"] = next(iter(matches[0].values()))
            raise ApiError(405, "not_allowed", "This method is not allowed here.", headers={"Allow": allowed})
        else:
            raise ApiError(404, "not_found", "There is nothing at this address.")
