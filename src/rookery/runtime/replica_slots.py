"""The replica slots of a parent process, and the file in which it publishes their states.

Only the parent knows that a replica died and when the next one starts. Its replicas (`/readyz`) and commands
(`rookery admin status`) read it from this file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import msgspec

FILE_NAME = "replica-slots.json"


class SlotState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"  # its replica died, and the next one has not been started yet


class ReplicaSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One slot. `deaths` counts those since a replica in it last served for a minute; `restarts` counts all."""

    index: int
    state: SlotState
    deaths: int = 0
    restarts: int = 0
    exit_code: int | None = None
    again_at: datetime | None = None


class SlotFile(msgspec.Struct, frozen=True):
    """`pid` is the parent's, so that the file of a killed parent is ignored."""

    pid: int
    slots: tuple[ReplicaSlot, ...]


def write(data_dir: Path, slots: Sequence[ReplicaSlot]) -> None:
    """Replace the file as a whole: a concurrent reader sees the old one."""
    path = data_dir / FILE_NAME
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(SlotFile(os.getpid(), tuple(slots))))
    new.replace(path)


def remove(data_dir: Path) -> None:
    with suppress(OSError):
        (data_dir / FILE_NAME).unlink()


def read(data_dir: Path) -> tuple[ReplicaSlot, ...]:
    """Return the slots of the server that runs here; empty for a single process, or if no server runs."""
    try:
        found = msgspec.json.decode((data_dir / FILE_NAME).read_bytes(), type=SlotFile)
    except (OSError, msgspec.DecodeError):
        return ()
    return found.slots if _is_alive(found.pid) else ()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's process
    except OSError:
        return False
    return True
