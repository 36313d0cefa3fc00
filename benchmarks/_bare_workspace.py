"""The baseline of `tools.py`: a bare program that does the same operations in the same sandbox.

It is copied into the workspace and imports only the standard library. It reads a line of JSON, does the operation, and
writes a line of JSON, for one client.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

ROOM = 32 * 1024


def read(path: str) -> dict[str, Any]:
    """Return the first lines of a file with their numbers, as many as fit, and the number of all lines."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        lines = file.read().split("\n")
    shown: list[str] = []
    room = ROOM
    for number, line in enumerate(lines, start=1):
        text = f"{number}\t{line}"
        room -= len(text.encode()) + 1
        if room < 0:
            break
        shown.append(text)
    return {"content": "\n".join(shown), "total": len(lines) - 1}


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    """Replace a text that occurs once, with a synced temporary file and a rename."""
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    if text.count(old) != 1:
        raise ValueError(old)
    with open(path + ".new", "w", encoding="utf-8", newline="") as file:
        file.write(text.replace(old, new))
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    return {"ok": True}


def execute(command: str) -> dict[str, Any]:
    done = subprocess.run(["sh", "-c", command], capture_output=True, start_new_session=True)
    return {"exit_code": done.returncode, "output": done.stdout.decode("utf-8", "replace")}


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {"read": read, "edit": edit, "execute": execute}


def main() -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(sys.argv[1])
    listener.listen()
    connection, _ = listener.accept()
    with connection.makefile("rwb") as stream:
        for line in stream:
            name, *arguments = json.loads(line)
            stream.write(json.dumps(OPERATIONS[name](*arguments)).encode() + b"\n")
            stream.flush()


if __name__ == "__main__":
    main()
