"""Declaration of operations: path, stable name, parameters, response and possible errors.

Requests are pydantic models, for their error reports; responses are msgspec structs, for their speed. The OpenAPI
document is made from the same declarations, so code and documentation cannot differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from rookery.api.errors import BadFields, FieldError
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


# Operations by handler. Routers are made once per application, so entries disappear with their handlers.
DECLARED: WeakKeyDictionary[Callable[..., Any], Operation] = WeakKeyDictionary()

_encode = msgspec.json.Encoder().encode


def answer(value: object, status: int = 200, **headers: str) -> Response:
    """Return a JSON response. Header names are written with underscores."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(_encode(value), status, named, media_type="application/json")


def nothing(**headers: str) -> Response:
    return Response(status_code=204, headers={name.replace("_", "-"): text for name, text in headers.items()})


class Routes:
    """A router under construction. `tag` is its tag in the OpenAPI document."""

    def __init__(self, tag: str) -> None:
        self.router = APIRouter(prefix=PREFIX, tags=[tag], dependencies=[Depends(_refuse_unknown_parameters)])

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
    ) -> Callable[[Handler], Handler]:
        """Declare an operation.

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
            self.router.add_api_route(
                path,
                handler,
                methods=[method],
                operation_id=name,
                status_code=operation.status,
                response_model=None,
                response_class=Response,
            )
            DECLARED[handler] = operation
            return handler

        return decorate


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown query parameters, so that a typo does not pass silently.

    `async`, like every dependency here: FastAPI runs plain functions in a thread, which takes longer in a busy process
    than the rest of the request.
    """
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise BadFields([FieldError(name, "There is no such parameter.") for name in unknown])
