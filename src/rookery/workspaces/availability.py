"""Whether this server could start a workspace at all. Where it cannot, chats are not offered what they cannot use."""

from __future__ import annotations

import asyncpg

from rookery.log import get_logger
from rookery.store import templates
from rookery.store.errors import StoreError
from rookery.store.model_errors import KeysMissing
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.protocol import DriverUnavailable
from rookery.workspaces.parts import WorkspaceParts

log = get_logger("workspaces.availability")

FRESH_SECONDS = 30.0


class Availability:
    """One per process. The answer is remembered for a while."""

    def __init__(self, parts: WorkspaceParts) -> None:
        self._parts = parts
        self._known: tuple[float, bool] | None = None

    async def can_make(self) -> bool:
        now = self._parts.clock.monotonic()
        if self._known is not None and now - self._known[0] < FRESH_SECONDS:
            return self._known[1]
        found = await self._look()
        self._known = (now, found)
        return found

    async def _look(self) -> bool:
        try:
            self._parts.specs.check_ring()
            if await self._has_sandbox():
                return True
            async with self._parts.pool.acquire() as conn:
                offered = await templates.list_templates(conn)
        except KeysMissing:
            return False
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, StoreError) as error:
            log.warning("availability_unknown", error=str(error) or type(error).__name__)
            return False
        usable = self._parts.drivers.keys() - {"local"}
        return any(each.enabled and each.manifest.get("driver", "local") in usable for each in offered)

    async def _has_sandbox(self) -> bool:
        local = self._parts.drivers.get("local")
        if not isinstance(local, LocalDriver):
            return local is not None
        try:
            await local.machine()
        except DriverUnavailable as error:
            log.info("no_sandbox", reason=error.message)
            return False
        return True
