"""A real `rookery serve` process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any

SCRIPT = str(Path(sys.executable).parent / "rookery")
START_SECONDS = 60.0
READY = re.compile(r"is ready at (https?://\S+)")


class Served:
    """The process, its output and its port."""

    def __init__(self, *arguments: str, env: dict[str, str], command: Sequence[str] = (SCRIPT,)) -> None:
        self.process = subprocess.Popen(
            [*command, "serve", "--listen", "127.0.0.1:0", *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._lines: Queue[str | None] = Queue()
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.said: list[str] = []
        self.url = self.wait_for_line(READY)[1]

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.errors.extend(stream)

    def wait_for_line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait for the next line on stdout that matches."""
        while (line := self._lines.get(timeout=START_SECONDS)) is not None:
            self.said.append(line)
            if found := pattern.search(line):
                return found
        self.wait()
        raise AssertionError(f"serve ended with {self.process.returncode}: {''.join(self.errors)}")

    def rest(self) -> list[str]:
        """Return the remaining output on stdout, after the process has ended."""
        return list(iter(lambda: self._lines.get(timeout=START_SECONDS), None))

    def log(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of one event so far."""
        lines = [json.loads(line) for line in tuple(self.errors) if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def readiness(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/readyz")[1])
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code after all output was read."""
        code = self.process.wait(60)
        for reader in self._readers:
            reader.join(10)
        return code


@contextmanager
def serving(home: Path, *arguments: str, command: Sequence[str] = (SCRIPT,), **variables: str) -> Iterator[Served]:
    served = Served(*arguments, env=environment(home, **variables), command=command)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.stop()
        served.wait()


def environment(home: Path, **variables: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.environ["PATH"], **variables}


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        state = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def thread_heaps(pid: int) -> list[str]:
    """Return the heaps that glibc created for threads: aligned mappings of 64 MiB with a writable first part."""
    size, found = 64 << 20, []
    lines = [line.split() for line in Path("/proc", str(pid), "maps").read_text().splitlines()]
    for heap, rest in pairwise(lines):
        start, middle = (int(bound, 16) for bound in heap[0].split("-"))
        following, end = (int(bound, 16) for bound in rest[0].split("-"))
        are_anonymous = len(heap) == len(rest) == 5
        if are_anonymous and start % size == 0 and middle == following and end == start + size and rest[1] == "---p":
            found.append(heap[0])
    return found


def rookery(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run another command to its end."""
    return subprocess.run(
        [SCRIPT, *arguments],
        env=environment(home, **variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def servers_of(data_dir: Path) -> list[int]:
    """Return the pids of processes whose command line contains this data directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(data_dir / "postgres").encode() in command:
                found.append(int(entry.name))
    return found
