"""What a data directory keeps for the relay: the id of its host, and a key for replicas that have no key ring.

Random and made once. A name of the machine would not do: two containers may have the same, and the sockets of one
cannot be opened in the other.
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
    """The same for all processes that share this directory, and so its sockets; different for all others."""
    return _read_or_make(data_dir / HOST_FILE)[:32]


def key(data_dir: Path) -> bytes:
    """The key of replicas that share this directory. Those of other machines need a key ring in common."""
    return bytes.fromhex(_read_or_make(data_dir / KEY_FILE))


def _read_or_make(path: Path) -> str:
    """Written aside and linked: a file under the final name is always complete, and the first one wins."""
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
