"""The processes of a measurement: each ends with the block that started it, or with this process if that is killed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rookery.cli.exit_codes import Refused

START_SECONDS = 60.0
# `rookery serve` lets running work reach a safe point.
STOP_SECONDS = 15.0
SHOWN_LINES = 5

_PR_SET_PDEATHSIG = 1
_URL = re.compile(rb"https?://\S+")
_libc = ctypes.CDLL(None)


class Child:
    """A started process that has printed its address."""

    def __init__(self, process: Process, url: str) -> None:
        self._process = process
        self.url = url

    @property
    def pid(self) -> int:
        return self._process.pid


@asynccontextmanager
async def running(name: str, *command: str, environ: Mapping[str, str], folder: Path) -> AsyncIterator[Child]:
    """Run Python with this command until the block ends. The first line of its output must have its address."""
    log = folder / f"{name.replace(' ', '-')}.log"
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # do not import from the current directory
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=dict(environ),
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends its children in order
            preexec_fn=_end_with_parent,
        )
    try:
        yield Child(process, await _address(name, process, log))
    finally:
        await _end(process)


def clean_environment(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment without the user's settings, keys and proxies."""
    kept = {key: value for key in ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "TMPDIR") if (value := os.environ.get(key))}
    return {**kept, "HOME": str(home), "PYTHONUNBUFFERED": "1", **variables}


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _address(name: str, process: Process, log: Path) -> str:
    assert process.stdout is not None
    found = None
    with suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while line := await process.stdout.readline():
                if found := _URL.search(line):
                    break
    if found is None:
        last = await asyncio.to_thread(_last_lines, log)
        raise Refused(f"The {name} did not start. {last}".strip())
    return found[0].decode()


def _last_lines(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])


async def _end(process: Process) -> None:
    """End the process, even if the caller is canceled meanwhile."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    waiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([waiting], timeout=STOP_SECONDS)
    finally:
        if not waiting.done():
            with suppress(ProcessLookupError):
                process.kill()
    await waiting
