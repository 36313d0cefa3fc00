"""Replica slots: the states of the replicas of one parent process, and the file in which it publishes them.

Only the parent process knows that a replica has died, and when the next one starts. Replicas (`/readyz`) and commands
(`rookery admin status`) read this from the file.
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
    PAUSED = "paused"  # its replica has died, and the next one is not started yet


class ReplicaSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One slot. `deaths` counts since the last replica that served for a minute; `restarts` counts all restarts."""

    index: int
    state: SlotState
    deaths: int = 0
    restarts: int = 0
    exit_code: int | None = None
    again_at: datetime | None = None


class SlotFile(msgspec.Struct, frozen=True):
    """The content of the file. `pid` is the process id of the parent, by which the file of a dead parent is ignored."""

    pid: int
    slots: tuple[ReplicaSlot, ...]


def write(data_dir: Path, slots: Sequence[ReplicaSlot]) -> None:
    """Replace the file atomically."""
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
    """Return the slots of the running server; empty if it is a single process, or if no server runs."""
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
