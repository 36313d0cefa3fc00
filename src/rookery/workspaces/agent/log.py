"""The log of the agent: a file in the run directory. When it is full, it becomes `agent.log.1` and a new one begins."""

from __future__ import annotations

import os
import time
from pathlib import Path

MAX_BYTES = 1024 * 1024


class Log:
    """The log. Call it with one line. Errors are ignored, because a full disk must not stop the agent."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def __call__(self, line: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        data = f"{stamp} {line}\n".encode("utf-8", "replace")[-self._max_bytes :]
        try:
            self._rotate(len(data))
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:
            pass

    def _rotate(self, more: int) -> None:
        try:
            size = os.stat(self._path, follow_symlinks=False).st_size
        except FileNotFoundError:
            return
        if size + more > self._max_bytes:
            os.replace(self._path, self._path.with_name(self._path.name + ".1"))
