"""A log notice at the start of a server whether this machine confines workspaces, before the first one fails."""

from __future__ import annotations

from collections.abc import Iterable

from rookery.telemetry.log import get_logger
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.protocol import Driver, DriverUnavailable

log = get_logger("workspaces")


async def announce(drivers: Iterable[Driver]) -> None:
    """Check the sandbox of each driver. Problems are warnings: the server runs anyway."""
    for driver in drivers:
        if not isinstance(driver, LocalDriver):
            continue
        try:
            machine = await driver.machine()
        except DriverUnavailable as error:
            log.warning("local_workspaces_unavailable", reason=error.message, fix=error.fix)
        except OSError as error:
            log.exception("local_workspaces_unavailable", error)
        else:
            if machine.bwrap is None:
                log.warning("local_workspaces_unconfined", reason=machine.unconfined_because)
