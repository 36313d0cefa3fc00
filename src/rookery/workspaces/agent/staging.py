"""Files replaced as a whole or not at all: written beside their target, flushed, then renamed over it.

Several files are replaced together: if one rename fails, those before it get their originals back. All of this blocks
and runs in a thread; the caller holds the locks of the paths.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rookery.workspaces.agent import paths
from rookery.workspaces.agent.errors import AgentError

NEW_FILE_MODE = 0o644
NEW_DIRECTORY_MODE = 0o755
_NAME_BYTES = 200

Rename = Callable[[str, str], None]


class Version(NamedTuple):
    """Which content of a file was read: another writer shows in at least one of these."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class Staged(NamedTuple):
    """New content that waits beside its target. `version` is None for a file that was not read before."""

    target: str
    temporary: str
    version: Version | None


def version_of(status: os.stat_result) -> Version:
    return Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def target_mode(target: str) -> int | None:
    """The mode of the file to be replaced, None if there is none. Refuses what may not be written."""
    try:
        status = os.stat(target)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise paths.refusal(error, target) from error
    paths.require_regular(status.st_mode, target)
    # A rename asks only for the right to change the directory; a file marked read-only is to stay as it is.
    if not os.access(target, os.W_OK):
        raise AgentError(403, "forbidden", f"{target} cannot be written: permission denied.")
    return stat.S_IMODE(status.st_mode)


def stage(target: str, data: bytes, *, version: Version | None = None) -> Staged:
    """Write the content beside its target, with the target's mode, and flush it. Makes missing parents."""
    mode = target_mode(target)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, _temporary_name(name))
    try:
        if mode is None:
            os.makedirs(folder, NEW_DIRECTORY_MODE, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o600)
    except OSError as error:
        raise paths.refusal(error, target) from error
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
            os.fchmod(descriptor, NEW_FILE_MODE if mode is None else mode)
            os.fsync(descriptor)
    except OSError as error:
        discard([temporary])
        raise paths.refusal(error, target) from error
    return Staged(target, temporary, version)


def check_unchanged(staged: Sequence[Staged]) -> None:
    """409 if a file is not the one that was read."""
    for one in staged:
        if one.version is None:
            continue
        try:
            now: Version | None = version_of(os.stat(one.target))
        except OSError:
            now = None
        if now != one.version:
            message = f"{one.target} changed on disk while it was edited. Nothing was changed; read it and try again."
            raise AgentError(409, "changed_on_disk", message)


def commit(staged: Sequence[Staged], *, rename: Rename = os.replace) -> None:
    """Rename all of them over their targets, or none: a failure restores the originals."""
    kept: list[tuple[str, str]] = []
    lost: list[tuple[str, str]] = []
    done = 0
    try:
        # One rename happens or does not; only several need a way back.
        for one in staged if len(staged) > 1 else ():
            kept.append((one.target, _keep(one.target)))  # noqa: PERF401 - those made before a failure are to be removed
        for one in staged:
            rename(one.temporary, one.target)
            done += 1
    except OSError as error:
        lost = [pair for pair in kept[:done] if not _restored(*pair)]
        raise _not_committed(error, staged[done].target, lost) from error
    finally:
        discard([one.temporary for one in staged[done:]])
        discard([original for target, original in kept if (target, original) not in lost])


def _not_committed(error: OSError, failing: str, lost: Sequence[tuple[str, str]]) -> AgentError:
    refused = paths.refusal(error, failing)
    if lost:
        places = ", ".join(f"{target} (its original is {original})" for target, original in lost)
        return AgentError(500, "half_written", f"{refused.message} Not restored: {places}.")
    return AgentError(refused.status, refused.code, f"{refused.message} Nothing was changed.")


def discard(temporaries: Sequence[str]) -> None:
    for temporary in temporaries:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _keep(target: str) -> str:
    """A second name for the original, so that it outlives the rename. A copy where names cannot be shared."""
    folder, name = os.path.split(target)
    original = os.path.join(folder, _temporary_name(name))
    try:
        os.link(target, original, follow_symlinks=False)
    except OSError:
        shutil.copy2(target, original)
    return original


def _restored(target: str, original: str) -> bool:
    """Put an original back. If that fails, its second name is to stay."""
    try:
        os.replace(original, target)
    except OSError:
        return False
    return True


def _temporary_name(name: str) -> str:
    # Cut by bytes: a name may have 255 of them, and this one is longer than the target's.
    shown = os.fsdecode(os.fsencode(name)[:_NAME_BYTES])
    return f".{shown}.rookery-{secrets.token_hex(6)}"
