"""Runs the launcher on this machine and parses its response."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rookery
from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.launcher.plan import Plan
from rookery.workspaces.drivers.protocol import DriverError, DriverUnavailable

SOURCE = str(Path(rookery.__file__).parents[1])
# The same code starts it from a zipapp on another machine.
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from rookery.workspaces.drivers.launcher.run import main; main()"
)
LAUNCH_SECONDS = 60.0


async def launch(plan: Plan) -> dict[str, Any]:
    """Start the sandbox of the plan. Cancellation takes effect only when the launcher is done, so that a later stop
    finds what was started.
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
        # The server's environment contains keys; nothing of it may reach what the launcher starts.
        env={"PATH": os.defpath},
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(LAUNCH_SECONDS):
            answer, complaints = await process.communicate(json.dumps(asdict(plan)).encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise DriverError("sandbox_failed", f"The sandbox did not start within {LAUNCH_SECONDS:g} s.") from None
    return understood(answer, complaints)


def understood(answer: bytes, complaints: bytes) -> dict[str, Any]:
    """Return the launcher's response, or raise the error it reports."""
    try:
        told: dict[str, Any] = json.loads(answer)
    except ValueError:
        why = complaints.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise DriverError("sandbox_failed", f"The launcher ended without an answer: {why or 'no reason'}") from None
    if "error" in told:
        code, message = str(told["error"]["code"]), str(told["error"]["message"])
        if code == "driver_unavailable":
            raise DriverUnavailable(f"the sandbox cannot start: {message}")
        raise sandboxes.as_driver_error(code, f"the sandbox did not start: {message}")
    return told
