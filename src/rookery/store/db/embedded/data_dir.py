"""The data directory: its checks, its lock, and the private directory of the database's socket.

Error messages say what to do. After an error, no partial directory is left.
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

from rookery.store.db.embedded import os_account as accounts
from rookery.store.db.embedded.os_account import Account
from rookery.store.db.errors import DataDirInUse, EmbeddedServerError

SOCKET_NAME = ".s.PGSQL.5432"
# sun_path with its closing zero: 108 bytes on Linux, 104 on the BSDs and macOS.
MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103


def prepare_data_dir(path: Path, *, may_create: bool = True) -> Path:
    """Create the directory, or check that it is private to this user. Returns its absolute path.

    Without `may_create`, a missing directory raises `NoDatabase`.
    """
    path = Path(os.path.abspath(path))
    if not str(path).isprintable():
        raise EmbeddedServerError(f"{str(path)!r} has unprintable characters. Choose another data directory.")
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
    """Return the message for a failed file operation on or below `path`."""
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
    """Create the directory with its parents. If that fails, remove the parents that were created."""
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
        raise EmbeddedServerError(f"Other users have access to {path}. Remove it with: chmod 700 {quoted}")
    if found.st_mode & 0o700 != 0o700:
        raise EmbeddedServerError(f"{path} is not writable. Correct it with: chmod 700 {quoted}")
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"


class NoDatabase(EmbeddedServerError):
    """Raised if the data directory has no database."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(f"There is no database in {data_dir} yet. `rookery serve` creates it.")


def require_database(data_dir: Path) -> None:
    """Raise `NoDatabase` if there is none. For commands that must not create one."""
    cluster = data_dir / "postgres"
    if not cluster.exists() or not any(cluster.iterdir()):
        raise NoDatabase(data_dir)


class Use(StrEnum):
    """The use of a data directory. A process that finds the directory locked decides by it whether to wait."""

    STARTING = "starting"  # a server that does not answer yet
    SERVING = "serving"
    VISITING = "visiting"  # a short command


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a data directory, as the lock file names it. The file is empty while it changes."""

    pid: int | None
    use: Use | None


class DataDirLock:
    """The lock of a data directory, for one process at a time. The kernel releases it when the process ends.

    The file contains the holder's pid and its use, as in `1234 serving`. Programs that this process starts do not
    inherit the descriptor. A fork without exec would share the lock.
    """

    def __init__(self, data_dir: Path, use: Use = Use.SERVING) -> None:
        self.data_dir = data_dir
        self._use = use
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock. Raises `DataDirInUse`, which names the process that holds it."""
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
        """Return the holder of the lock."""
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
        """Release the lock. The file stays: without it, two processes could lock two different files."""
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
    """Create the directory of the database's socket and return it.

    Only the directory itself is given to the account; its parent has other sockets. Both are private, because a process
    that can open the socket is a superuser of the database.
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
    """Remove a socket directory outside of the data directory. Call it after the server has stopped."""
    if sockets.is_relative_to(data_dir):
        return
    for folder in (sockets, sockets.parent):
        try:
            folder.rmdir()
        except OSError:  # not empty, or removed already; the next start uses the same name
            return


def _fits(parent: Path) -> bool:
    """Return whether the path is short enough and has no comma, which PostgreSQL would read as a list."""
    path = parent / "pg" / SOCKET_NAME
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and "," not in str(path)


def _is_safe_base(base: Path) -> bool:
    """Return whether this user can write there and other users cannot rename entries.

    That is a private directory, or a sticky one like /tmp.
    """
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
    """Create the directory, or check that an existing one belongs to this user."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise EmbeddedServerError(f"{folder} belongs to another user. Remove it, then start again.") from None
    folder.chmod(0o700)
