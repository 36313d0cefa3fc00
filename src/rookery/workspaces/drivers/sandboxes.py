"""Sandboxes of this machine: asynchronous functions that start, find and kill them through the launcher."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, get_args

import rookery
from rookery.workspaces.drivers.driver_interface import DriverError, DriverUnavailable, ErrorCode
from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError, Plan
from rookery.workspaces.drivers.launcher.sandbox_processes import Running

P = ParamSpec("P")
T = TypeVar("T")

SOURCE = str(Path(rookery.__file__).parents[1])
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from rookery.workspaces.drivers.launcher.run import main; main()"
)
LAUNCH_SECONDS = 60.0


async def launch(plan: Plan) -> dict[str, Any]:
    """Start the sandbox of the plan. Return the launcher's response.

    A cancellation takes effect when the launcher has ended, so that a later stop finds the sandbox.
    """
    launching = asyncio.ensure_future(_launch(plan))
    try:
        return await asyncio.shield(launching)
    except asyncio.CancelledError:
        await asyncio.wait([launching])
        raise


async def _launch(plan: Plan) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", "-c", BOOT, SOURCE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # The environment of the server may contain keys, so the launcher does not inherit it.
        env={"PATH": os.defpath},
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(LAUNCH_SECONDS):
            answer, stderr = await process.communicate(json.dumps(asdict(plan)).encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise DriverError("sandbox_failed", f"The sandbox did not start within {LAUNCH_SECONDS:g} s.") from None
    return _parse_answer(answer, stderr)


def _parse_answer(answer: bytes, stderr: bytes) -> dict[str, Any]:
    """Return the launcher's response, or raise the error it reports."""
    try:
        told: dict[str, Any] = json.loads(answer)
    except ValueError:
        why = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise DriverError("sandbox_failed", f"The launcher ended without a response: {why or 'no reason'}") from None
    if "error" in told:
        code, message = str(told["error"]["code"]), str(told["error"]["message"])
        if code == "driver_unavailable":
            raise DriverUnavailable(f"the sandbox cannot start: {message}")
        raise as_driver_error(code, f"the sandbox did not start: {message}")
    return told


async def find(directory: Path) -> list[Running]:
    return await asyncio.to_thread(sandbox_processes.find, directory)


async def find_all(workspaces: Path) -> list[Running]:
    return await asyncio.to_thread(sandbox_processes.find_all, workspaces)


async def kill(one: Running) -> None:
    await in_thread(sandbox_processes.kill, one)


async def wait_until_gone(one: Running, seconds: float) -> bool:
    """Wait at most this long for the end of the sandbox. Return whether it has ended."""
    deadline = time.monotonic() + seconds
    while one.is_running:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(min(sandbox_processes.POLL_SECONDS, seconds))
    return True


async def in_thread(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run a function of the launcher in a thread, and convert its errors to driver errors.

    A cancellation takes effect when the function has returned, because it must not overlap the next action on the
    workspace.
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
def os_errors_as(code: ErrorCode) -> Iterator[None]:
    """Convert OSError, such as that of a full disk, to a driver error. Operations with other errors are retried."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        raise as_driver_error(code, f"{where}{error.strerror or error}") from error


def as_driver_error(code: str, message: str) -> DriverError:
    known = cast("ErrorCode", code if code in get_args(ErrorCode) else "sandbox_failed")
    return DriverError(known, f"{message[:1].upper()}{message[1:].rstrip('.')}.")
