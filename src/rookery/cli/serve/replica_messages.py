"""The messages between a parent process and its replicas: the orders at the start, and the request to end.

The orders are sent through the child's stdin, because they contain secrets, and other users can read command lines and
environments. The pipe stays open while the parent runs, so its end shows the child that the parent has ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from rookery.settings.settings import Settings

STOP, HURRY = "stop", "hurry"
MODULE = "rookery.cli.serve.replica"


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a replica. `descriptor` is the listening socket that it inherits."""

    index: int
    settings: Settings
    database_url: str
    descriptor: int

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=_encode_path)

    @staticmethod
    def decode(data: bytes) -> Orders:
        return msgspec.json.decode(data, type=Orders, dec_hook=_decode_path)


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The only answer of a replica, sent when it serves.

    `internal` is the socket for requests about the replica itself.
    """

    replica_id: UUID
    internal: str | None


class Child:
    """A replica's process as its parent sees it. `ready` is None until the replica serves."""

    def __init__(self, index: int, process: Process) -> None:
        self.index = index
        self.ready: Ready | None = None
        self._process = process

    @classmethod
    async def start(cls, orders: Orders, listening: socket.socket) -> Child:
        """Start the child in its own session. Ctrl-C then reaches only the parent, which forwards it in order."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # do not import from the current directory
            "-m",
            MODULE,
            str(orders.index),  # shown in the process list
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=(listening.fileno(),),
            start_new_session=True,
        )
        child = cls(orders.index, process)
        child._write(orders.encode())
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_ready(self) -> bool:
        """Return whether the child became ready; False if it ended before."""
        assert self._process.stdout is not None
        try:
            self.ready = msgspec.json.decode(await self._process.stdout.readline(), type=Ready)
        except msgspec.DecodeError:
            return False
        return True

    async def wait(self) -> int:
        """Return the exit code of the child. It is negative for a signal."""
        return await self._process.wait()

    def tell(self, word: str) -> None:
        self._write(word.encode())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line + b"\n")


def read_line(descriptor: int) -> bytes | None:
    """Return one line from the parent; None if the parent has ended. Blocks."""
    line = b""
    while not line.endswith(b"\n"):
        # Read byte by byte, because the bytes after the line belong to the next reader. The line is short.
        piece = os.read(descriptor, 1)
        if not piece:
            return None
        line += piece
    return line[:-1]


def _encode_path(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))  # tells msgspec that the hook does not know this type


def _decode_path(kind: type, value: Any) -> Any:
    if kind is Path or issubclass(kind, Path):
        return Path(value)
    raise NotImplementedError(kind)  # tells msgspec that the hook does not know this type
