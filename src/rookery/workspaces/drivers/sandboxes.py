"""Asynchronous access to the launcher's records of running sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar, cast, get_args

from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.launcher.plan import LaunchError
from rookery.workspaces.drivers.launcher.sandbox_processes import Running
from rookery.workspaces.drivers.protocol import DriverError, ErrorCode

P = ParamSpec("P")
T = TypeVar("T")


async def find(directory: Path) -> list[Running]:
    return await asyncio.to_thread(sandbox_processes.find, directory)


async def find_all(workspaces: Path) -> list[Running]:
    return await asyncio.to_thread(sandbox_processes.find_all, workspaces)


async def kill(one: Running) -> None:
    await in_thread(sandbox_processes.kill, one)


async def wait_until_gone(one: Running, seconds: float) -> bool:
    """Return whether the sandbox ended without a kill within this time."""
    deadline = time.monotonic() + seconds
    while one.is_there:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(min(sandbox_processes.POLL_SECONDS, seconds))
    return True


async def in_thread(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run a launcher function in a thread and convert its errors to driver errors.

    Cancellation takes effect only when it is done: a thread cannot be stopped, and must not overlap the next action on
    the workspace.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(act, *arguments, **named))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise
    except LaunchError as error:
        raise as_driver_error(error.code, str(error)) from error


@contextlib.contextmanager
def told_as(code: ErrorCode) -> Iterator[None]:
    """Convert system errors, such as a full disk, to driver errors: an operation that raises other errors is retried
    forever.
    """
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        raise as_driver_error(code, f"{where}{error.strerror or error}") from error


def as_driver_error(code: str, message: str) -> DriverError:
    known = cast("ErrorCode", code if code in get_args(ErrorCode) else "sandbox_failed")
    return DriverError(known, f"{message[:1].upper()}{message[1:].rstrip('.')}.")
