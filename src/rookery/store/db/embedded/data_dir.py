"""The data directory: checked before use, locked while in use, and the private directory of the database's socket.

Refusals are one sentence that says what to do, and nothing is half-created when one is raised.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import shlex
import stat
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from rookery.store.db.embedded import account as accounts
from rookery.store.db.embedded.account import Account
from rookery.store.db.errors import DataDirInUse, EmbeddedServerError

SOCKET_NAME = ".s.PGSQL.5432"
# sun_path with its closing zero: 108 bytes on Linux, 104 on the BSDs and macOS.
MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


def prepare_data_dir(path: Path, *, may_create: bool = True) -> Path:
    """Create the directory, private to this user, or refuse one that is not. Returns it as an absolute path.

    Without `may_create`, a missing directory raises NoDatabase.
    """
    path = Path(os.path.abspath(path))
    if not str(path).isprintable():
        raise EmbeddedServerError(f"{str(path)!r} contains unprintable characters. Choose another data directory.")
    try:
        if not path.exists():
            if not may_create:
                raise NoDatabase(path)
            _make(path)
        _check(path)
    except OSError as error:
        raise EmbeddedServerError(explain_os_error(error, path)) from error
    return path


def explain_os_error(error: OSError, path: Path) -> str:
    """Return one sentence for a failed file operation on, or below, `path`."""
    where = error.filename or path
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"There is no space left on the disk that holds {path}. Free some space, then start again."
        case errno.EROFS:
            return f"{path} is on a read-only file system. Choose another directory with --data-dir."
        case errno.EACCES | errno.EPERM:
            return f"This user may not use {where} ({error.strerror}). Give it access, or choose another --data-dir."
        case errno.ENOTDIR | errno.EEXIST:
            return f"{where} is not a directory. Move it away, or choose another directory with --data-dir."
    return f"{where} cannot be used: {error.strerror or error}. Choose another directory with --data-dir."


def _make(path: Path) -> None:
    """Create the directory with its parents; if that fails midway, remove the parents created so far."""
    missing = [folder for folder in path.parents if not folder.exists()]
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            folder.mkdir()
            made.append(folder)
        path.mkdir(mode=0o700)
    except OSError:
        for folder in reversed(made):
            folder.rmdir()
        raise
    path.chmod(0o700)  # the umask may have removed too many bits


def _check(path: Path) -> None:
    found = path.stat()
    quoted = shlex.quote(str(path))
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedServerError(f"{path} is not a directory. Choose another directory with --data-dir.")
    if found.st_uid != os.geteuid():
        raise EmbeddedServerError(
            f"{path} belongs to {_user_name(found.st_uid)}. Run rookery as that user, or choose another --data-dir."
        )
    if found.st_mode & 0o077:
        raise EmbeddedServerError(f"Other users can get into {path}. Close it with: chmod 700 {quoted}")
    if found.st_mode & 0o700 != 0o700:
        raise EmbeddedServerError(f"{path} is not writable. Open it with: chmod 700 {quoted}")
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"


class NoDatabase(EmbeddedServerError):
    """Raised if there is no database yet."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(f"There is no database in {data_dir} yet. `rookery serve` makes one.")


def require_database(data_dir: Path) -> None:
    """Raise NoDatabase where a start would create one, for read-only commands."""
    cluster = data_dir / "postgres"
    if not cluster.exists() or not any(cluster.iterdir()):
        raise NoDatabase(data_dir)


class Use(StrEnum):
    """The use of a data directory. A process that finds it locked decides by this whether waiting makes sense."""

    STARTING = "starting"  # a server that does not answer yet
    SERVING = "serving"
    VISITING = "visiting"  # a short command


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a data directory, as far as the file says; it is empty while the holder changes."""

    pid: int | None
    use: Use | None


class DataDirLock:
    """A lock that allows one process per data directory. The kernel drops it when the process ends, however it ends.

    The file names the holder and its use, as in `1234 serving`. The descriptor is not inherited by programs this
    process starts; a plain fork would share the lock.
    """

    def __init__(self, data_dir: Path, use: Use = Use.SERVING) -> None:
        self.data_dir = data_dir
        self._use = use
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock. Raises DataDirInUse with the process that has it."""
        if self.held:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EmbeddedServerError(explain_os_error(error, self.data_dir)) from error
        try:
            self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def change_use(self, use: Use) -> None:
        """Record a new use of the directory."""
        self._use = use
        if self._fd is not None:
            self._write(self._fd)

    def holder(self) -> Holder:
        """Return the holder of the lock, for processes that were refused it."""
        try:
            words = self._path.read_text(errors="replace").split()
        except FileNotFoundError:
            words = []
        pid = int(words[0]) if words and words[0].isdecimal() else None
        return Holder(pid, next((use for use in Use if use in words[1:]), None))

    @property
    def _path(self) -> Path:
        return self.data_dir / "rookery.lock"

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two processes lock two different files."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        os.ftruncate(fd, 0)
        os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(fd)
        except BlockingIOError:
            raise DataDirInUse(self.data_dir, self.holder().pid) from None
        except OSError as error:
            raise EmbeddedServerError(explain_os_error(error, self.data_dir)) from error

    def _write(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {self._use}\n".encode(), 0)

    def __enter__(self) -> DataDirLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def make_socket_dir(data_dir: Path, account: Account | None) -> Path:
    """Return the directory of the database's socket. Its parent stays ours: it holds other sockets of rookery.

    Access to it means superuser access to the database, so it is private at every level.
    """
    parent = data_dir / "run"
    if not _fits(parent):
        parent = _short_parent(data_dir)
    _make_private(parent)
    sockets = parent / "pg"
    sockets.mkdir(mode=0o700, exist_ok=True)
    sockets.chmod(0o700)
    accounts.hand_over(sockets, account)
    return sockets


def remove_socket_dir(data_dir: Path, sockets: Path) -> None:
    """Remove it after the server has stopped, so that nothing is left outside the data directory."""
    if sockets.is_relative_to(data_dir):
        return
    for folder in (sockets, sockets.parent):
        try:
            folder.rmdir()
        except OSError:  # not empty or gone: harmless, and found again by its name at the next start
            return


def _fits(parent: Path) -> bool:
    """Return whether the path can be used. A comma would read as a list, in PostgreSQL and in connection strings."""
    path = parent / "pg" / SOCKET_NAME
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and "," not in str(path)


def _is_safe_base(base: Path) -> bool:
    """Return whether we can write and no other user can rename our entries: not open to others, or sticky like /tmp."""
    if not os.access(base, os.W_OK | os.X_OK):
        return False
    found = base.stat()
    closed = not found.st_mode & 0o022 or found.st_mode & stat.S_ISVTX
    return bool(closed) and found.st_uid in (0, os.geteuid())


def _short_parent(data_dir: Path) -> Path:
    name = f"rookery-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - checked below
        parent = Path(base) / name
        if parent.is_absolute() and _fits(parent) and _is_safe_base(Path(base)):
            return parent
    raise EmbeddedServerError(f"The path {data_dir} is too long for a socket. Choose a shorter --data-dir.")


def _make_private(folder: Path) -> None:
    """Create it, or use an existing one only if no other user can have planted it."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise EmbeddedServerError(f"{folder} belongs to somebody else. Remove it, then start again.") from None
    folder.chmod(0o700)
