"""The HTTP responses of one exchange, recorded so that the exchange can close them.

Packages for a provider differ in what closing their stream does; the one for Google leaves the connection to the
garbage collector. The library's HTTP clients have a hook for responses, which all requests pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_ai.providers import Provider

_opened: ContextVar[list[Any] | None] = ContextVar("bridge_responses", default=None)


def watch(provider: Provider[Any]) -> None:
    """Record every response of the HTTP client that the library made for the provider. Other clients close
    differently."""
    client = getattr(provider, "_own_http_client", None)
    make: Callable[[], Any] | None = getattr(provider, "_http_client_factory", None)
    if client is None or make is None:
        return
    provider._http_client_factory = lambda: _watched(make())
    _watched(client)


@contextmanager
def noted(responses: list[Any]) -> Iterator[None]:
    """Add the responses to requests of this task inside the block to `responses`."""
    token = _opened.set(responses)
    try:
        yield
    finally:
        _opened.reset(token)


async def close_all(responses: list[Any]) -> None:
    for response in responses:
        if not response.is_closed:
            await response.aclose()


def _watched(client: Any) -> Any:
    hooks = client.event_hooks
    if _note not in hooks["response"]:
        client.event_hooks = {**hooks, "response": [*hooks["response"], _note]}
    return client


async def _note(response: Any) -> None:
    responses = _opened.get()
    if responses is not None:
        responses.append(response)
