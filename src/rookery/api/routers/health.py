"""The liveness and readiness endpoints. Their responses contain no host names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rookery.api.routes import Route
from rookery.runtime.clock import Clock

CACHE_SECONDS = 2.0
NO_STORE = {"Cache-Control": "no-store"}


class Health(Protocol):
    """The state of the process."""

    @property
    def stopping(self) -> bool:
        """Whether the process is stopping.

        It is read for every request, because a load balancer must see it immediately.
        """
        ...

    async def checks(self) -> Mapping[str, str]:
        """Return `ok` or the problem for each component. The checks may take a moment, so they are not called often."""
        ...

    async def slots(self) -> Sequence[Mapping[str, object]]:
        """Return the slots of the replicas that share this port; empty for a single process."""
        ...


def routes(health: Health, clock: Clock) -> list[Route]:
    known: tuple[float, Mapping[str, str]] | None = None
    slots: Sequence[Mapping[str, object]] = ()

    async def alive() -> JSONResponse:
        """Return 200 while the event loop runs. Does no I/O."""
        return JSONResponse({"status": "ok"}, headers=NO_STORE)

    async def ready() -> JSONResponse:
        """Return 200 when requests can be served, else 503. Components are checked at most every two seconds."""
        nonlocal known, slots
        now = clock.monotonic()
        if known is None or now - known[0] >= CACHE_SECONDS:
            known = (now, await health.checks())
            slots = await health.slots()
        checks = {**known[1], **({"stopping": "the process is stopping"} if health.stopping else {})}
        is_ready = all(found == "ok" for found in checks.values())
        body: dict[str, object] = {"status": "ready" if is_ready else "not_ready", "checks": checks}
        if slots:
            # For information only. Failed neighbors do not make this replica unready.
            body["replicas"] = slots
        return JSONResponse(body, status_code=200 if is_ready else 503, headers=NO_STORE)

    return [
        Route(method="GET", path="/healthz", name="health.alive", application=_answering(alive)),
        Route(method="GET", path="/readyz", name="health.ready", application=_answering(ready)),
    ]


def _answering(handler: Callable[[], Awaitable[JSONResponse]]) -> ASGIApp:
    """Return the application of a handler. It ignores the query, because load balancers may add parameters."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handler()
        await response(scope, receive, send)

    return application
