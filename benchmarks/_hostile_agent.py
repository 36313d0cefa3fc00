"""A hostile agent for `tools.py`: answers every request with a body in chunks of one byte, as fast as it can.

python benchmarks/_hostile_agent.py SOCKET
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading

CHUNKS = b"1\r\nx\r\n" * 40_000


def answer(connection: socket.socket) -> None:
    with contextlib.suppress(OSError), connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(CHUNKS)


def main(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
