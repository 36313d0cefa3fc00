"""The terminal client: CPU per streamed token, time to the prompt, and memory of a long session.

The client is `rookery chat`, a process on a pseudo terminal of 80 columns, with a real replica and a fake provider that
sends 100 tokens a second. The baseline is the same command with `--json`, which decodes the stream and renders nothing.
The baseline of the start is an interpreter that imports the commands and ends.

    python benchmarks/terminal.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._replica_rig import ReplicaRig, open_rig
from benchmarks._worker_rig import serving
from benchmarks.token_decode import PACE, WORD

from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.pool import DatabaseConfig

TOKEN_BUDGET_MS, START_BUDGET_MS, GROWTH_BUDGET_MIB = 0.2, 400.0, 8.0
COLUMNS, ROWS = 80, 24
LINES = 10_000
TURNS = 10
WORDS_PER_PACKET = 100
STEP_SECONDS = 60.0
READY, TURN_ENDED = b"| /help |", b" tokens in, "

Claims = dict[str, dict[str, Any]]


class Client:
    """`rookery chat` on a pseudo terminal. What it draws is read, and only searched."""

    def __init__(self, rig: ReplicaRig, home: Path, *arguments: str, number: int) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        token = rig.people[number][1]
        variables = {"HOME": str(home), "ROOKERY_URL": rig.url, "ROOKERY_TOKEN": token, "TERM": "xterm-256color"}
        self.started_at = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rookery.cli.main", "chat", *arguments],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables},
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        self._changed = asyncio.Event()
        self._drawn = b""
        self.size = 0
        asyncio.get_running_loop().add_reader(self._leader, self._read)

    def _read(self) -> None:
        data = b""
        with suppress(OSError):  # Linux reports a closed terminal this way
            data = os.read(self._leader, 1 << 16)
        if not data:
            asyncio.get_running_loop().remove_reader(self._leader)
        self._drawn += data
        self.size += len(data)
        self._changed.set()

    async def wait_for(self, text: bytes) -> None:
        """Wait until this text is drawn. What was drawn before its end is not searched again."""
        async with asyncio.timeout(STEP_SECONDS):
            while (at := self._drawn.find(text)) < 0:
                self._drawn = self._drawn[-len(text) :]
                self._changed.clear()
                await self._changed.wait()
        self._drawn = self._drawn[at + len(text) :]

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def cpu_ms(self) -> float:
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e6

    def resident_mib(self) -> float:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * 4 / 1024

    def end(self) -> None:
        with suppress(ValueError):
            asyncio.get_running_loop().remove_reader(self._leader)
        self._process.kill()
        self._process.wait()
        os.close(self._leader)


@contextmanager
def client(rig: ReplicaRig, home: Path, *arguments: str, number: int) -> Iterator[Client]:
    opened = Client(rig, home, *arguments, number=number)
    try:
        yield opened
    finally:
        opened.end()


async def per_token(rig: ReplicaRig, home: Path, *arguments: str, seconds: float) -> float:
    """Return the CPU milliseconds of the client per token of a running answer."""
    model = await rig.model("completions", int((seconds + 10) * PACE), pace=PACE)
    (chat,) = await rig.start(model, 1)
    try:
        with client(rig, home, "attach", str(chat), *arguments, number=rig.owners[chat]) as shown:
            await shown.wait_for(WORD.strip().encode())
            await asyncio.sleep(1)  # the start is over: rich is imported, and the tail is shown
            before, began, drawn = shown.cpu_ms(), time.perf_counter(), shown.size
            await asyncio.sleep(seconds)
            spent = shown.cpu_ms() - before
            assert shown.size > drawn, "nothing was drawn"
            return spent / ((time.perf_counter() - began) * PACE)
    finally:
        await rig.stop([chat])


async def start_ms(rig: ReplicaRig, home: Path) -> float:
    """Return the time from the command to its prompt."""
    with client(rig, home, number=0) as shown:
        await shown.wait_for(READY)
        return (time.perf_counter() - shown.started_at) * 1000


async def import_ms() -> float:
    """Return the time of an interpreter that imports the commands and ends."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import rookery.cli.chat.commands")
    assert await process.wait() == 0
    return (time.perf_counter() - began) * 1000


async def growth_mib(rig: ReplicaRig, home: Path, *, lines: int) -> tuple[float, float]:
    """Return the memory of a client after the first turn, and how much it has grown after all turns."""
    packets = lines * COLUMNS // len(WORD) // WORDS_PER_PACKET // TURNS
    model: UUID = await rig.model("completions", packets, pace=0, words=WORDS_PER_PACKET)
    (chat,) = await rig.start(model, 1)
    await rig.rest([chat])
    with client(rig, home, "attach", str(chat), number=rig.owners[chat]) as shown:
        await shown.wait_for(READY)
        sizes = []
        for _ in range(TURNS):
            shown.type("go on\r")
            await shown.wait_for(TURN_ENDED)
            await shown.wait_for(READY)
            sizes.append(shown.resident_mib())
        assert shown.size > lines * COLUMNS, "not everything was drawn"
        return sizes[0], sizes[-1] - sizes[0]


async def measure(rig: ReplicaRig, home: Path, claims: Claims, *, quick: bool) -> None:
    seconds, rounds = (4.0, 1) if quick else (10.0, 3)
    pairs = []
    for _ in range(rounds):
        least = await per_token(rig, home, "--json", seconds=seconds)
        pairs.append((least, await per_token(rig, home, seconds=seconds)))
    shown = ", ".join(f"{least:.3f} -> {ours:.3f}" for least, ours in pairs)
    ratio = median(ours / least for least, ours in pairs)
    print(f"CPU per token: {ratio:.1f}x the stream alone  (ms, --json -> inline: {shown})")
    claims["CPU per token, ms"] = claim(median(ours for _, ours in pairs), TOKEN_BUDGET_MS)
    starts = [(await import_ms(), await start_ms(rig, home)) for _ in range(3 if quick else 7)]
    shown = ", ".join(f"{least:.0f} -> {ours:.0f}" for least, ours in starts)
    ratio = median(ours / least for least, ours in starts)
    print(f"start to prompt: {ratio:.1f}x the imports alone  (ms, imports -> prompt: {shown})")
    # The least disturbed start, because this is a time and not CPU time.
    claims["start to prompt, ms"] = claim(min(ours for _, ours in starts), START_BUDGET_MS)
    first, grown = await growth_mib(rig, home, lines=LINES)
    print(f"{LINES} lines: {first:.1f} MiB after the first tenth, {grown:+.1f} MiB at the end")
    claims[f"memory growth over {LINES} lines, MiB"] = claim(grown, GROWTH_BUDGET_MIB)


def claim(value: float, budget: float) -> dict[str, Any]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


async def run(*, quick: bool) -> int:
    claims: Claims = {}
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            await migrate.migrate(DatabaseConfig(server.url))
            async with serving() as base, open_rig(Path(folder), server.url, base) as rig:
                await measure(rig, home, claims, quick=quick)
        finally:
            await server.stop()
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of the terminal client.")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds, under 40 seconds")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
