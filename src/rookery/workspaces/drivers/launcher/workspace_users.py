"""The users that workspaces run as, if the launcher runs as root.

Each workspace has its own user and group from a reserved range, because kernel limits, such as inotify instances, are
per user. The owner of a workspace's directories is the record of its user: it is set before any process runs as that
user, and is removed with the files.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rookery.workspaces.drivers.launcher.launch_plan import LaunchError

NOBODY = 65534
# Chosen: no distribution, container engine or systemd assigns these, and they fit a signed integer.
DEFAULT_RANGE = (2_000_000_000, 2_000_999_999)
# The range on machines that are reached by ssh. It is another one, because a server may run on such a machine.
SSH_RANGE = (2_001_000_000, 2_001_999_999)
STATE = "workspace-users.json"


@dataclass
class State:
    """The content of `STATE`: the user for the next workspace, and users that are never reused.

    Users are not reused if their workspace could write to shared folders, because their files there are not deleted.
    """

    next: int = 0
    kept: list[int] = field(default_factory=list)


class Users:
    """The users of the workspaces in `data_dir`.

    `shared` is the user of workspaces that may write to shared folders, if there is one. `range_name` names the range
    in messages.
    """

    def __init__(
        self,
        data_dir: Path,
        uid_range: tuple[int, int],
        shared: int | None = None,
        *,
        range_name: str = "drivers.local.uid_range",
    ) -> None:
        self._data_dir = data_dir
        self._range = uid_range
        self._shared = shared
        self._range_name = range_name

    @property
    def is_root(self) -> bool:
        return os.geteuid() == 0

    def problem(self) -> str | None:
        """Return why workspaces cannot each have their own user, as a sentence; None if they can, or need not."""
        if not self.is_root:
            return None
        for name in ("uid_map", "gid_map"):
            mapped = _mapped(Path(f"/proc/self/{name}"))
            if not _holds(mapped, self._range):
                known = ", ".join(f"{low}-{high}" for low, high in mapped) or "none"
                return (
                    f"{self._range_name} {self._range[0]}-{self._range[1]} is not within the users that this "
                    f"container has ({known}), so all workspaces share user {self.fallback} and its kernel limits; "
                    f"set {self._range_name} to a part of them that nothing else uses."
                )
        return None

    @property
    def fallback(self) -> int:
        """Return the user of all workspaces, if they cannot each have their own."""
        return NOBODY if self._shared is None else self._shared

    @property
    def check_uid(self) -> int | None:
        """Return the user for the sandbox check: the last of the range; None for the caller's own."""
        if not self.is_root:
            return None
        return self._range[1] if self.problem() is None else self.fallback

    def choose(self, directory: Path, *, writes_shared: bool) -> int | None:
        """Return the user of the workspace with this directory; None for the caller's own. Blocks.

        The caller holds the lock of the workspace. A workspace keeps its user until it is deleted. It gets a new user
        only if an older version assigned the user, or if its template begins or stops to share folders.
        """
        if not self.is_root:
            return None
        if self.problem() is not None:
            return self.fallback
        if writes_shared and self._shared is not None:
            return self._shared
        owners = (_owner(directory / "home"), _owner(directory / "run"))
        found = next((uid for uid in owners if uid is not None and self._range[0] <= uid <= self._range[1]), None)
        if found is None:
            return self._allocate(directory / "run", keep=writes_shared)
        if writes_shared:
            self._keep(found)
        return found

    def accounts(self) -> list[str]:
        """Return the accounts of this machine in the range. They could access the files of workspaces."""
        return [each.pw_name for each in pwd.getpwall() if self._range[0] <= each.pw_uid <= self._range[1]]

    def _allocate(self, run: Path, *, keep: bool) -> int:
        with _locked(self._data_dir / STATE) as file:
            state = _read(file)
            chosen = self._free(state)
            state.next = chosen + 1
            if keep:
                state.kept.append(chosen)
            _write(file, state)
            # This is done under the lock. The owner of this directory shows other processes that the user is in use.
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chown(run, chosen, chosen, follow_symlinks=False)
            return chosen

    def _keep(self, uid: int) -> None:
        with _locked(self._data_dir / STATE) as file:
            state = _read(file)
            if uid not in state.kept:
                state.kept.append(uid)
                _write(file, state)

    def _free(self, state: State) -> int:
        """Return the next unused user. After the end of the range, continue at its beginning."""
        low, high = self._range
        used = {*state.kept, *self._in_use()}
        after = max(state.next, low)
        for candidates in (range(after, high + 1), range(low, min(after, high + 1))):
            if (found := next((uid for uid in candidates if uid not in used), None)) is not None:
                return found
        raise LaunchError(
            f"All {high - low + 1} users of {self._range_name} are in use. Make the range larger.", "driver_unavailable"
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
                except OSError:  # noqa: PERF203 - any of them may be missing
                    continue


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


class _locked:
    """A context manager that opens and locks the state file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self._file

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _read(file: int) -> State:
    """Read the state. An invalid file counts as empty, because directories show which users are in use."""
    try:
        stored = json.loads(os.pread(file, 1 << 24, 0))
        return State(int(stored["next"]), [int(uid) for uid in stored["kept"]])
    except (ValueError, TypeError, KeyError):
        return State()


def _write(file: int, state: State) -> None:
    content = json.dumps(asdict(state)).encode()
    os.pwrite(file, content, 0)
    os.ftruncate(file, len(content))
    # Stored before any file belongs to the user.
    os.fsync(file)


def _mapped(path: Path) -> list[tuple[int, int]]:
    """Return the ranges of users that exist in the namespace of this process."""
    try:
        rows = [[int(part) for part in line.split()] for line in path.read_text().splitlines()]
    except OSError:
        return []
    return sorted((inside, inside + count - 1) for inside, _, count in rows)


def _holds(mapped: list[tuple[int, int]], wanted: tuple[int, int]) -> bool:
    """Return whether the wanted range is mapped completely."""
    at = wanted[0]
    for low, high in mapped:
        if low <= at <= high:
            at = high + 1
    return at > wanted[1]
