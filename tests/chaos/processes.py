"""Replicas as processes: started, killed, suspended, and started again when they end."""

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
START_SECONDS = 180.0  # a busy machine is slow, not wrong


class ReplicaProcess:
    """One place in the deployment: a process, and its successors. What they log goes to one file."""

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
        """Return when it serves. One that ends instead, because the database is away, is started again, for a while."""
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
        """To this process alone, if it is still there."""
        if self._process is not None and self._process.returncode is None:
            # It may be gone already, with its end not yet told to this process.
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
        """Kill it, if it lives, and leave no zombie."""
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
