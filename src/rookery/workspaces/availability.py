"""The check whether this server can start workspaces. If it cannot, chats get no workspace tools."""

from __future__ import annotations

from collections.abc import Iterable

from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.models.errors import KeysMissing
from rookery.store.workspaces import templates
from rookery.telemetry.log import get_logger
from rookery.workspaces.drivers.driver_interface import Driver, DriverUnavailable
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.shared_services import WorkspaceServices

log = get_logger("workspaces.availability")
# The logger for notices at the start of a server.
_startup_log = get_logger("workspaces")

FRESH_SECONDS = 30.0
NO_KEYS = "Workspaces cannot be started: this server has no keys to encrypt their tokens. Set secret_keys."


class Availability:
    """The availability of workspaces in this process. Results are cached for 30 s."""

    def __init__(self, parts: WorkspaceServices) -> None:
        self._parts = parts
        self._known: tuple[float, bool] | None = None

    async def can_make(self) -> bool:
        now = self._parts.clock.monotonic()
        if self._known is not None and now - self._known[0] < FRESH_SECONDS:
            return self._known[1]
        found = await self._check()
        self._known = (now, found)
        return found

    async def problems(self) -> dict[str, str]:
        """Return why workspaces cannot start here, and the fix, by the name of the driver.

        A driver without an entry has passed the checks that are possible without a workspace.
        """
        try:
            self._parts.specs.check_ring()
        except KeysMissing:
            return dict.fromkeys(self._parts.drivers, NO_KEYS)
        local = self._parts.drivers.get("local")
        if not isinstance(local, LocalDriver):
            return {}
        try:
            await local.machine()
        except DriverUnavailable as error:
            log.info("no_sandbox", reason=error.message)
            return {"local": error.advice}
        except OSError as error:
            log.warning("availability_unknown", error=str(error))
            return {"local": f"A sandbox cannot be started here: {error.strerror or error}."}
        return {}

    async def _check(self) -> bool:
        problems = await self.problems()
        if "local" in self._parts.drivers and "local" not in problems:
            return True
        usable = self._parts.drivers.keys() - problems.keys()
        if not usable:
            return False
        try:
            async with self._parts.pool.acquire() as conn:
                offered = await templates.list_templates(conn)
        except DATABASE_ERRORS as error:
            log.warning("availability_unknown", error=str(error) or type(error).__name__)
            return False
        return any(each.enabled and each.manifest.get("driver", "local") in usable for each in offered)


async def log_problems(drivers: Iterable[Driver]) -> None:
    """Run the sandbox check of each local driver, and log problems. Call this at the start of a server."""
    for driver in drivers:
        if not isinstance(driver, LocalDriver):
            continue
        try:
            machine = await driver.machine()
        except DriverUnavailable as error:
            _startup_log.warning("local_workspaces_unavailable", reason=error.message, fix=error.fix)
        except OSError as error:
            _startup_log.exception("local_workspaces_unavailable", error)
        else:
            if machine.bwrap is None:
                _startup_log.warning("local_workspaces_unconfined", reason=machine.unconfined_because)
            elif machine.notes:
                _startup_log.info("local_workspaces_checked", notes="; ".join(machine.notes))
