"""The users of the machine that local workspaces run as.

Kernel limits such as inotify instances count by user. A server that runs as root gives each workspace its own user and
group, from a range reserved for this. The owner of a workspace's directories is the record of it: it is on disk before
anything runs as that user, and goes away with the files.
"""

from __future__ import annotations

import fcntl
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.drivers.workspace_directory import Layout

NOBODY = 65534
# Chosen: no distribution, container engine or systemd assigns these, and they fit a signed integer.
DEFAULT_RANGE = (2_000_000_000, 2_000_999_999)
STATE = "workspace-users.json"


class State(msgspec.Struct):
    """The content of `STATE`: the user for the next workspace, and users that are never reused.

    Those are users of workspaces that could write to shared folders: their files stay when the workspace is deleted.
    """

    next: int = 0
    kept: list[int] = msgspec.field(default_factory=list)


class Users:
    """`shared` is the user of workspaces that may write to shared folders, if the settings name one."""

    def __init__(self, data_dir: Path, uid_range: tuple[int, int], shared: int | None = None) -> None:
        self._data_dir = data_dir
        self._range = uid_range
        self._shared = shared

    @property
    def is_root(self) -> bool:
        return os.geteuid() == 0

    def problem(self) -> str | None:
        """Return why workspaces cannot each have their own user, as a sentence; None when they can, or need not."""
        if not self.is_root:
            return None
        for name in ("uid_map", "gid_map"):
            mapped = _mapped(Path(f"/proc/self/{name}"))
            if not _holds(mapped, self._range):
                known = ", ".join(f"{low}-{high}" for low, high in mapped) or "none"
                return (
                    f"drivers.local.uid_range {self._range[0]}-{self._range[1]} is not within the users that this "
                    f"container has ({known}), so all workspaces share user {self.fallback} and its kernel limits; "
                    "set drivers.local.uid_range to a part of them that nothing else uses."
                )
        return None

    @property
    def fallback(self) -> int:
        """Return the one user of all workspaces, where they cannot each have their own."""
        return NOBODY if self._shared is None else self._shared

    @property
    def tester(self) -> int | None:
        """Return a user for testing a sandbox: the last of the range, which is assigned last."""
        if not self.is_root:
            return None
        return self._range[1] if self.problem() is None else self.fallback

    def choose(self, place: Layout, *, writes_shared: bool) -> int | None:
        """Return the user that this workspace runs as; None for the server's own. Blocks for a moment.

        Call it with the lock of the workspace. A workspace keeps its user until it is deleted, unless the user was
        assigned by an older version, or its template started or stopped sharing folders: then its files are given to a
        new user.
        """
        if not self.is_root:
            return None
        if self.problem() is not None:
            return self.fallback
        if writes_shared and self._shared is not None:
            return self._shared
        owners = (_owner(place.home), _owner(place.run))
        found = next((uid for uid in owners if uid is not None and self._range[0] <= uid <= self._range[1]), None)
        if found is None:
            return self._allocate(place, keep=writes_shared)
        if writes_shared:
            self._keep(found)
        return found

    def accounts(self) -> list[str]:
        """Return accounts of this machine in the range: they could access the files of workspaces."""
        return [each.pw_name for each in pwd.getpwall() if self._range[0] <= each.pw_uid <= self._range[1]]

    def _allocate(self, place: Layout, *, keep: bool) -> int:
        with _locked(self._data_dir / STATE) as file:
            state = _read(file)
            chosen = self._free(state)
            state.next = chosen + 1
            if keep:
                state.kept.append(chosen)
            _write(file, state)
            # Before another process chooses: from here on the owner of this directory marks the user as taken.
            place.run.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chown(place.run, chosen, chosen, follow_symlinks=False)
            return chosen

    def _keep(self, uid: int) -> None:
        with _locked(self._data_dir / STATE) as file:
            state = _read(file)
            if uid not in state.kept:
                state.kept.append(uid)
                _write(file, state)

    def _free(self, state: State) -> int:
        """Return the next user, starting over at the end of the range."""
        low, high = self._range
        used = {*state.kept, *self._in_use()}
        after = max(state.next, low)
        for candidates in (range(after, high + 1), range(low, min(after, high + 1))):
            if (found := next((uid for uid in candidates if uid not in used), None)) is not None:
                return found
        raise DriverError(
            "driver_unavailable",
            f"All {high - low + 1} users of drivers.local.uid_range are in use. Make the range larger.",
        )

    def _in_use(self) -> Iterator[int]:
        """Yield the owners of all workspace directories, including those being deleted."""
        try:
            directories = list((self._data_dir / "workspaces").iterdir())
        except FileNotFoundError:
            return
        for directory in directories:
            for name in ("home", "home.new", "run"):
                try:
                    yield (directory / name).lstat().st_uid
                except OSError:
                    continue


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


class _locked:
    """The open state file, for one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self._file

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _read(file: int) -> State:
    """Read the state. A damaged file counts as missing: users in use are found by their files."""
    try:
        return msgspec.json.decode(os.pread(file, 1 << 24, 0), type=State)
    except msgspec.MsgspecError:
        return State()


def _write(file: int, state: State) -> None:
    content = msgspec.json.encode(state)
    os.pwrite(file, content, 0)
    os.ftruncate(file, len(content))
    # Before any file belongs to that user.
    os.fsync(file)


def _mapped(path: Path) -> list[tuple[int, int]]:
    """Return the users, as ranges, that exist in this process's namespace."""
    try:
        rows = [[int(part) for part in line.split()] for line in path.read_text().splitlines()]
    except OSError:
        return []
    return sorted((inside, inside + count - 1) for inside, _, count in rows)


def _holds(mapped: list[tuple[int, int]], wanted: tuple[int, int]) -> bool:
    """Return whether the whole wanted range is mapped, without a gap."""
    at = wanted[0]
    for low, high in mapped:
        if low <= at <= high:
            at = high + 1
    return at > wanted[1]
