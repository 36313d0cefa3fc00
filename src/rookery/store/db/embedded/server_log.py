"""The log of the embedded PostgreSQL, and messages for users made from its errors.

The server and initdb run with LC_ALL=C, so that their messages are in English.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 10 * 1024 * 1024
TAIL_BYTES = 64 * 1024
FULL_BELOW_BYTES = 1024 * 1024

# Lines with which initdb reports its progress ("selecting dynamic shared memory implementation ... posix").
_PROGRESS = re.compile(r"^[a-z][^:\n]* \.\.\. ", re.MULTILINE)
_FAILURE = re.compile(r"^.*?(?:PANIC|FATAL|ERROR|error):\s+(?P<text>.+)$")
_BUSY = re.compile(
    r"lock file .+ already exists|lock file .+ is empty|bogus data in lock file|pre-existing shared memory"
)

_DISK_FULL = "There is no space left on the disk that holds {dir}. Free some space, then start again."

# The first match counts; "no space left" may also mean a lack of shared memory. {dir} is the data directory, and {line}
# the message of PostgreSQL.
_CAUSES = (
    (
        _BUSY.pattern,
        "Another PostgreSQL still uses {dir}/postgres ({line}). Stop it, then start again.",
    ),
    (
        r"shared memory|semaphores|Cannot allocate memory|out of memory",
        "PostgreSQL does not get enough memory ({line}). Free some memory, then start again.",
    ),
    (
        r"No space left on device|Disk quota exceeded|Check free disk space|wrote only",
        _DISK_FULL,
    ),
    (r"Read-only file system", "{dir} is on a read-only file system. Choose another directory with --data-dir."),
    (
        r"could not become user",
        "Root may not change to another user here, and PostgreSQL refuses to run as root ({line}). "
        "Run rookery as a normal user, or set database_url to use a PostgreSQL of your own.",
    ),
    (
        r"invalid permissions|wrong ownership|Permission denied|Operation not permitted",
        "PostgreSQL may not use its files in {dir}/postgres ({line}). Restore their owner and mode, then start again.",
    ),
    (
        r"are incompatible with|not compatible with",
        "The database in {dir}/postgres was created by another PostgreSQL ({line}). "
        "Use the version of rookery that created it.",
    ),
    (
        r"checkpoint record|invalid page|incorrect checksum|not a valid data directory|bogus data|"
        r"startup process .* was terminated|could not open file|could not read file",
        "The database in {dir}/postgres is damaged ({line}). Restore a backup; details are in {dir}/postgres.log.",
    ),
)


def open_log(path: Path) -> BinaryIO:
    """Open the log of the server for appending. A long log is renamed first, and replaces the previous one."""
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)


def read_since(path: Path, offset: int) -> str:
    """Return the log after `offset`, or the end of it if it is long."""
    with path.open("rb") as log:
        log.seek(max(offset, path.stat().st_size - TAIL_BYTES))
        return log.read().decode(errors="replace")


def is_busy(output: str) -> bool:
    """Return whether another postmaster, or a worker of a killed one, still uses the cluster.

    That process may end soon.
    """
    return _BUSY.search(output) is not None


def explain(output: str, data_dir: Path) -> str:
    """Return the message for users about the failure of initdb or the server."""
    lines = [line.strip() for line in _PROGRESS.sub("", output).splitlines() if line.strip()]
    for pattern, sentence in _CAUSES:
        for line in lines:
            if re.search(pattern, line):
                return sentence.format(dir=data_dir, line=_without_stamp(line))
    if _free_bytes(data_dir) < FULL_BELOW_BYTES:  # on a full disk, the log may be missing
        return _DISK_FULL.format(dir=data_dir)
    last = next((line for line in reversed(lines) if _FAILURE.search(line)), (lines or ["it left no message"])[-1])
    return f"The embedded PostgreSQL does not start ({_without_stamp(last)}). Details are in {data_dir}/postgres.log."


def _without_stamp(line: str) -> str:
    failure = _FAILURE.search(line)
    return failure["text"] if failure else line


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
