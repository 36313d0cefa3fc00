"""The zipapp of the workspace agent: one file with the package `agent/`.

Its bytes depend only on the source of the package, and their hash is in the file name. Therefore all servers of a
release build the same file, a new agent does not overwrite the file of a running one, and a copy can be verified.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

PACKAGE = "rookery.workspaces.agent"
# The earliest time that a zip file can store.
_EPOCH = (1980, 1, 1, 0, 0, 0)
# `connect` runs for every ssh connection, so it does not load the other modules of the agent.
_MAIN = b"""import sys

if sys.argv[1:2] == ["connect"]:
    from rookery.workspaces.agent.connect_command import main
else:
    from rookery.workspaces.agent.main import main
main()
"""
_EMPTY_PACKAGES = ("rookery/__init__.py", "rookery/workspaces/__init__.py")


def build(target_dir: Path) -> Path:
    """Write the zipapp into the directory if it is missing, and return its path. Safe for concurrent processes."""
    data, digest = _archive()
    target = target_dir / f"rookery-agent-{digest[:16]}.pyz"
    if _holds(target, data):
        return target
    target_dir.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".rookery-agent-", dir=target_dir)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o755)  # noqa: S103 - read and run by the unprivileged user of a sandbox
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return target


def archive() -> bytes:
    """Return the bytes of the zipapp."""
    return _archive()[0]


@cache
def _archive() -> tuple[bytes, str]:
    files = {name: b"" for name in _EMPTY_PACKAGES}
    files["__main__.py"] = _MAIN
    root = PACKAGE.replace(".", "/")
    files.update(_sources(resources.files(PACKAGE), root))
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    # Not compressed, because versions of zlib compress the same bytes differently.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as zipped:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            zipped.writestr(entry, files[name])
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def _sources(folder: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        name = f"{prefix}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            found.update(_sources(entry, name))
        elif entry.name.endswith(".py"):
            found[name] = entry.read_bytes()
    return found


def _holds(target: Path, data: bytes) -> bool:
    """Return whether the file exists with this content."""
    try:
        return target.read_bytes() == data
    except OSError:
        return False
