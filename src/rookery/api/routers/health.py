"""Is the process alive, and should it get requests? Neither answer names a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from rookery.runtime.clock import Clock

CACHE_SECONDS = 2.0
NO_STORE = {"Cache-Control": "no-store"}


class Health(Protocol):
    """What the process knows about itself."""

    @property
    def stopping(self) -> bool:
        """Asked at every request: a load balancer must see the end coming at once."""
        ...

    async def checks(self) -> Mapping[str, str]:
        """By part: `ok`, or what is wrong with it. May take a moment, and is not asked too often."""
        ...

    async def slots(self) -> Sequence[Mapping[str, object]]:
        """The places of the replicas that serve here together; none where one process serves alone."""
        ...


def router(health: Health, clock: Clock) -> APIRouter:
    routes = APIRouter()
    known: tuple[float, Mapping[str, str]] | None = None
    slots: Sequence[Mapping[str, object]] = ()

    @routes.get("/healthz", operation_id="health.alive")
    async def alive() -> JSONResponse:
        """200 while the event loop turns; no I/O."""
        return JSONResponse({"status": "ok"}, headers=NO_STORE)

    @routes.get("/readyz", operation_id="health.ready")
    async def ready() -> JSONResponse:
        """200 when requests can be served, else 503; parts are looked at every two seconds at most."""
        nonlocal known, slots
        now = clock.monotonic()
        if known is None or now - known[0] >= CACHE_SECONDS:
            known = (now, await health.checks())
            slots = await health.slots()
        checks = {**known[1], **({"stopping": "the process is stopping"} if health.stopping else {})}
        is_ready = all(found == "ok" for found in checks.values())
        body: dict[str, object] = {"status": "ready" if is_ready else "not_ready", "checks": checks}
        if slots:
            # Told, and no reason to say no: this one serves.
            body["replicas"] = slots
        return JSONResponse(body, status_code=200 if is_ready else 503, headers=NO_STORE)

    return routes
