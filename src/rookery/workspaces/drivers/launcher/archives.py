"""Functions that unpack the files of a template into a new home, and that remove directory trees.

Both handle untrusted content: links that leave the archive, directories without permissions, and trees that are deeper
than the limit of open files.
"""

from __future__ import annotations

import io
import os
import secrets
import stat
import tarfile
from pathlib import Path

from rookery.workspaces.drivers.launcher.plan import LaunchError

MAX_ENTRIES = 20_000
MAX_BYTES = 1024**3
MAX_RATIO = 100
RATIO_COUNTS_FROM = 1024 * 1024
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(archive: bytes, target: Path, *, owner: int | None) -> None:
    """Unpack a tar archive into an empty directory. Raise `LaunchError` for devices and for links that leave it."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            _unpack_all(tar, target.resolve(), packed=len(archive))
    except (tarfile.TarError, EOFError, FileExistsError, NotADirectoryError) as error:
        raise _refused(f"cannot be unpacked: {error}") from error
    if owner is not None:
        for folder, folders, files in os.walk(target):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), owner, owner, follow_symlinks=False)


def _unpack_all(tar: tarfile.TarFile, target: Path, *, packed: int) -> None:
    total = 0
    for count, member in enumerate(tar, start=1):
        total += member.size
        if count > MAX_ENTRIES:
            raise _refused(f"have more than {MAX_ENTRIES} entries")
        if total > MAX_BYTES or total > max(RATIO_COUNTS_FROM, packed * MAX_RATIO):
            raise _refused("are far larger than their archive")
        path = target / _inside(member.name)
        if path == target:
            continue
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # An earlier link of the archive must not redirect this entry.
        if os.path.realpath(path.parent) != str(path.parent) or path.is_symlink():
            raise _refused(f"hold {member.name!r:.80} behind a link")
        if member.isdir():
            path.mkdir(mode=0o755, exist_ok=True)
        elif member.isreg():
            _unpack_file(tar, member, path)
        elif member.issym():
            _inside(os.path.join(os.path.dirname(member.name), member.linkname))
            path.symlink_to(member.linkname)
        else:
            raise _refused(f"hold {member.name!r:.80}, which is neither a file, a directory nor a link")


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None
    with path.open("xb") as file:
        while chunk := content.read(1024 * 1024):
            file.write(chunk)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _inside(name: str) -> str:
    parts = os.path.normpath(name)
    if name.startswith("/") or parts == ".." or parts.startswith("../"):
        raise _refused(f"hold {name!r:.80}, which leads out of them")
    return parts


def _refused(why: str) -> LaunchError:
    return LaunchError(f"the files of the template {why}", "invalid_workspace")


def discard(path: Path) -> None:
    """Remove a file or a tree, if it exists. Links are removed, not followed."""
    try:
        parent = os.open(path.parent, _OPEN_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        discard_at(parent, path.name)
    finally:
        os.close(parent)


def discard_at(parent: int, name: str) -> None:
    """Remove an entry of an open directory.

    Nested directories are first moved up to the top level. Therefore a deep tree needs neither recursion nor many open
    files.
    """
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    top = _enter(parent, name, found)
    try:
        while _empty_one_level(top, found.st_dev):
            pass
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty_one_level(top: int, device: int) -> bool:
    """Remove the files in `top`, and move the content of its directories up. Return False if it was empty."""
    names = os.listdir(top)
    for name in names:
        found = os.stat(name, dir_fd=top, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=top)
            continue
        if found.st_dev != device:
            raise OSError(18, "another filesystem is mounted there", name)
        inner = _enter(top, name, found)
        try:
            for below in os.listdir(inner):
                if stat.S_ISDIR((below_is := os.stat(below, dir_fd=inner, follow_symlinks=False)).st_mode):
                    os.close(_enter(inner, below, below_is))
                    # A random name, which no other entry can have.
                    os.rename(below, f".{secrets.token_hex(16)}", src_dir_fd=inner, dst_dir_fd=top)
                else:
                    os.unlink(below, dir_fd=inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
    return bool(names)


def _enter(parent: int, name: str, found: os.stat_result) -> int:
    """Open a directory. Restore the permissions of its owner if they are missing."""
    if found.st_mode & 0o700 != 0o700:
        # No process of the workspace is running, so the directory cannot be replaced meanwhile.
        os.chmod(f"/proc/self/fd/{parent}/{name}", 0o700)
    return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
