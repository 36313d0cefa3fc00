"""The command `rookery-agent.pyz connect HOST PORT`: connects standard input and output to an outside host.

It is for programs such as ssh that support no proxy, but can use a command as their connection (`ProxyCommand`). The
command connects through the proxy of the workspace, so the same hosts are allowed as for every other program.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

PROXY = ("127.0.0.1", 3128)
# Longer than the timeout of the proxy, whose error states the reason.
ANSWER_S = 60.0
MAX_HEAD_BYTES = 64 * 1024
READ_BYTES = 64 * 1024
USAGE = "usage: rookery-agent.pyz connect HOST PORT"


def main(arguments: Sequence[str] | None = None, proxy: tuple[str, int] = PROXY) -> None:
    given = list(sys.argv[2:] if arguments is None else arguments)
    if len(given) != 2 or not re.fullmatch(r"[0-9]{1,5}", given[1]) or not re.fullmatch(r"[\w.:-]+", given[0]):
        _fail(USAGE, status=2)
    host, port = given
    try:
        connection = socket.create_connection(proxy, ANSWER_S)
        _ask(connection, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except OSError as error:
        _fail(f"connect: the proxy of this workspace cannot be used: {error.strerror or error}")
    connection.settimeout(None)
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    with contextlib.suppress(OSError):  # standard output was closed, or the connection broke
        _receive(connection)
    # Exit immediately, because the other thread may wait for input that never comes.
    os._exit(0)


def _ask(connection: socket.socket, place: str) -> None:
    """Request a tunnel. The head is read byte by byte, because the bytes after it belong to the tunnel."""
    connection.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(head) > MAX_HEAD_BYTES:
            _fail("connect: the proxy of this workspace does not answer")
        head += byte
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        why = connection.recv(READ_BYTES).decode("utf-8", "replace").strip()
        _fail(f"connect: {why or status}")


def _send(connection: socket.socket) -> None:
    try:
        while True:
            data = os.read(0, READ_BYTES)
            if not data:
                break
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other direction notices the end


def _receive(connection: socket.socket) -> None:
    while True:
        data = connection.recv(READ_BYTES)
        if not data:
            return
        while data:
            data = data[os.write(1, data) :]


def _fail(why: str, *, status: int = 1) -> NoReturn:
    print(why, file=sys.stderr)
    sys.exit(status)
