"""Replicas as processes: start, kill, suspend, and restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from uuid import UUID

import msgspec

from tests.chaos.replica import Doing, Orders

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0  # long, because a busy machine is slow


class ReplicaProcess:
    """One slot of the deployment: a process and its successors, which log to one file."""

    def __init__(self, orders: Orders, log: Path) -> None:
        self._orders = orders
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self.id: UUID | None = None
        self.up = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None and self.id is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start a process and wait until it serves.

        Restart it for a while if it ends, for example without the database.
        """
        try:
            async with asyncio.timeout(START_SECONDS), self._starting:
                while not self.is_up:
                    await self._try_start()
        except TimeoutError:
            end = self._log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"Not up after {START_SECONDS:g} s. The end of {self._log.name}:\n{end}") from None

    async def _try_start(self) -> None:
        await self.end()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.chaos.replica",
                msgspec.json.encode(self._orders).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                process_group=0,
            )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        if line and self._process.returncode is None:
            self.id = UUID(line)
            self.up.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process, if it still exists."""
        if self._process is not None and self._process.returncode is None:
            # It may have ended without this process knowing.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.id = None
        self.up.clear()
        self.send(signal.SIGKILL)

    async def ended(self) -> None:
        if self._process is not None:
            await self._process.wait()

    async def end(self) -> None:
        """Kill the process if it lives, and reap it."""
        self.kill()
        await self.ended()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def ask(self) -> Doing:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        await process.stdin.drain()
        return msgspec.json.decode(await process.stdout.readline(), type=Doing)
