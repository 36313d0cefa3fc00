"""The archive with the files of a template: functions that unpack it into a new home.

An archive is untrusted: its links may lead out of it, and its content may be far larger than the archive.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from rookery.workspaces.drivers.launcher.launch_plan import LaunchError

MAX_ENTRIES = 20_000
MAX_BYTES = 1024**3
MAX_RATIO = 100
RATIO_COUNTS_FROM = 1024 * 1024


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
