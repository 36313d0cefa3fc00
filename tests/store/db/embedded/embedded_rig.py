"""Helpers for tests of the embedded server: a prepared data directory, owners in other processes, and a list of the
machine's processes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import asyncpg
import pytest

from rookery.store.db.embedded.server import EmbeddedServer

UNSAFE_BUT_FAST = {"fsync": "off"}

REMEMBER = ("CREATE TABLE memory (word text)", "INSERT INTO memory VALUES ('kept')")
RECALL = "SELECT word FROM memory"

# Starts the server, says its pid, and waits to be killed.
OWNER = """
import asyncio, sys
from pathlib import Path
from rookery.store.db.embedded.server import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]), options={"fsync": "off"})
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Rig:
    """Data directories and servers of one test; `clear` stops and removes all of them."""

    def __init__(self, folder: Path, seed: Path) -> None:
        self._folder = folder
        self._seed = seed
        self._servers: list[EmbeddedServer] = []
        self._data_dirs: list[Path] = []

    def new_data_dir(self, name: str = "data") -> Path:
        """Return the path of a data directory that does not exist yet."""
        data_dir = self._folder / name
        self._data_dirs.append(data_dir)
        return data_dir

    def made_data_dir(self, name: str = "data") -> Path:
        """Return a copy of an initialized data directory, which is three times faster than creating one."""
        data_dir = self.new_data_dir(name)
        data_dir.mkdir(mode=0o700, parents=True)
        shutil.copytree(self._seed / "postgres", data_dir / "postgres")
        return data_dir

    def server(
        self,
        data_dir: Path,
        *,
        options: Mapping[str, str] = UNSAFE_BUT_FAST,
        on_progress: Callable[[str], None] | None = None,
        start_timeout_s: float = 60,
    ) -> EmbeddedServer:
        server = EmbeddedServer(data_dir, options=options, on_progress=on_progress, start_timeout_s=start_timeout_s)
        self._servers.append(server)
        return server

    async def started(self, data_dir: Path) -> EmbeddedServer:
        server = self.server(data_dir)
        await server.start()
        return server

    async def clear(self) -> None:
        for server in self._servers:
            await server.stop()
        left = [pid for data_dir in self._data_dirs for pid in processes_of(data_dir)]
        for data_dir in self._data_dirs:
            shutil.rmtree(data_dir, ignore_errors=True)
        assert not left, f"processes {left} are still running"


@pytest.fixture(scope="session")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with an initialised database and no server; tests work on copies."""
    return _make_seed(tmp_path_factory.getbasetemp() / "embedded-seed")


@cache  # pytest keeps one `seed` per module that imports it
def _make_seed(data_dir: Path) -> Path:
    async def make() -> None:
        server = EmbeddedServer(data_dir, options=UNSAFE_BUT_FAST)
        await server.start()
        await server.stop()

    asyncio.run(make())
    return data_dir


@pytest.fixture(scope="session")
def running(seed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server for all tests that only read."""
    rig = Rig(tmp_path_factory.mktemp("running"), seed)
    server = rig.server(rig.made_data_dir())
    asyncio.run(server.start())
    yield server
    asyncio.run(rig.clear())


@pytest.fixture
async def rig(tmp_path: Path, seed: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, seed)
    yield rig
    await rig.clear()


@contextmanager
def owner_process(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another rookery process that starts the server in this data directory. It is killed with SIGKILL at the
    end.
    """
    with subprocess.Popen([sys.executable, "-c", OWNER, str(data_dir)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            yield owner
        finally:
            owner.kill()


def kill_owner_when_started(data_dir: Path) -> int:
    """Start the server in another process and kill that process. Return the remaining postmaster."""
    with owner_process(data_dir) as owner:
        assert owner.stdout is not None
        return int(owner.stdout.readline())


@contextmanager
def stranger_process(uid: int | None) -> Iterator[subprocess.Popen[bytes]]:
    """Start an unrelated process, which is ended after the test."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=uid) as stranger:
        yield stranger


def run_python(
    script: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [sys.executable, "-c", script, *map(str, arguments)]
    environment = None if env is None else {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)


def processes_of(data_dir: Path) -> list[int]:
    """Return all processes that use the data directory: the server, its workers, initdb."""
    mark = os.fsencode(data_dir)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            busy = mark in process.joinpath("cmdline").read_bytes()
            busy = busy or process.joinpath("cwd").readlink().is_relative_to(data_dir)
        except OSError:  # gone meanwhile, or somebody else's
            continue
        if busy and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def is_running(pid: int) -> bool:
    """Return whether the process exists. Zombies count, because the process that stops a server must reap it."""
    return Path("/proc", str(pid)).exists()


async def until(condition: Callable[[], object], *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def fetch(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()
