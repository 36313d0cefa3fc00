"""The host id of a data directory, and a relay key for replicas without a key ring.

Both are random and created once. The host name would not do: two containers may have the same one, and the sockets of
one cannot be opened in the other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

HOST_FILE = "host-id"
KEY_FILE = "relay.key"
_BYTES = 32


def host_id(data_dir: Path) -> str:
    """Return an id that is the same for all processes that share this directory and its sockets, and differs
    elsewhere.
    """
    return _read_or_make(data_dir / HOST_FILE)[:32]


def key(data_dir: Path) -> bytes:
    """Return the key of replicas that share this directory. Replicas on other machines need a common key ring."""
    return bytes.fromhex(_read_or_make(data_dir / KEY_FILE))


def _read_or_make(path: Path) -> str:
    """Read the file, or create it: written aside and linked, so that it is always complete and the first writer
    wins.
    """
    with contextlib.suppress(FileNotFoundError):
        return path.read_text("ascii").strip()
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_BYTES) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return path.read_text("ascii").strip()
