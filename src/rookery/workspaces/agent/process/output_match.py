"""Waits for a line of process output that matches a regular expression.

The match of an expression can take forever and cannot be interrupted. Therefore a separate program matches it: it reads
the output as it arrives, and is killed at the end of the wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from rookery.workspaces.agent.errors import AgentError, invalid
from rookery.workspaces.agent.process.children import Child, Children, Collector, Pipe, open_writer
from rookery.workspaces.agent.process.processes import Process

MAX_PATTERN_CHARS = 1000
# Chosen: each wait is a Python process.
MAX_AT_ONCE = 8
# At the end of the wait, the program has this much time to match its last input.
RESULT_S = 3.0
# Chosen: enough for minutes of output.
CPU_SECONDS = 60

# Complete lines are matched once. The last line has no ending and is matched whenever it grows. CPU time is limited,
# because a killed agent cannot kill the program. A program that prints nothing has not finished.
_PROGRAM = r"""
import codecs, re, resource, sys
seconds, most = int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_CPU)[1]
if most < 0 or most > seconds:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
try:
    pattern = re.compile(sys.argv[1])
except Exception as error:
    sys.stdout.write("bad " + str(error)[:300])
    sys.exit()
decoder = codecs.getincrementaldecoder("utf-8")("replace")
line = ""
while True:
    data = sys.stdin.buffer.read1(65536)
    line += decoder.decode(data, final=not data)
    *whole, line = line.split("\n")
    for each in (*whole, line):
        if pattern.search(each):
            sys.stdout.buffer.write(("found " + each[:1000]).encode("utf-8", "replace"))
            sys.exit()
    line = line[-8192:]
    if not data:
        break
sys.stdout.write("none")
"""


@dataclass(frozen=True)
class MatchResult:
    """The result of a wait. `line` is the line that matched. With `is_slow` the match took too long."""

    line: str | None = None
    is_slow: bool = False


class OutputWaits:
    """The waits of one agent."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._count = 0

    async def wait(
        self, process: Process, pattern: str, *, since: int, wait_s: float, gone: asyncio.Event
    ) -> MatchResult:
        """Wait until a line after the cursor matches, the process ends, the client disconnects, or the time is over."""
        if not pattern or len(pattern) > MAX_PATTERN_CHARS or "\0" in pattern:
            raise invalid("until", f"must be a regular expression of 1 to {MAX_PATTERN_CHARS} characters")
        if self._count >= MAX_AT_ONCE:
            message = f"{MAX_AT_ONCE} requests are already waiting for output. Try again in a moment."
            raise AgentError(429, "too_many_waits", message)
        self._count += 1
        try:
            return await self._wait(process, pattern, since, wait_s, gone)
        finally:
            self._count -= 1

    async def _wait(
        self, process: Process, pattern: str, since: int, wait_s: float, gone: asyncio.Event
    ) -> MatchResult:
        printed = Collector(64 * 1024)
        stdout_pipe = Pipe(printed.take)
        reader, writer = os.pipe()
        try:
            child = self._start(pattern, stdout_pipe, reader)
        except OSError as error:
            stdout_pipe.close()
            os.close(writer)
            raise AgentError(500, "cannot_match", f"The expression cannot be matched: {error}.") from error
        finally:
            os.close(reader)
        stdout_pipe.start()
        stdin_writer = await open_writer(writer)
        feeding = asyncio.ensure_future(_feed(process, since, stdin_writer))
        leaving, answered = asyncio.ensure_future(gone.wait()), asyncio.shield(stdout_pipe.closed)
        try:
            either: set[asyncio.Future[Any]] = {leaving, answered, feeding}
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            # The program matches all input that it has received, for every reason that ended the wait.
            feeding.cancel()
            if not gone.is_set():
                await asyncio.wait({stdout_pipe.closed}, timeout=RESULT_S)
            is_slow = not stdout_pipe.closed.done()
        finally:
            for each in (feeding, leaving, answered):
                each.cancel()
            stdin_writer.close()  # input that the program has not read is discarded
            child.signal_group(signal.SIGKILL)
            stdout_pipe.close()
        return _parse_result(bytes(printed.data), is_slow)

    def _start(self, pattern: str, stdout_pipe: Pipe, stdin: int) -> Child:
        arguments = [sys.executable, "-I", "-S", "-c", _PROGRAM, pattern, str(CPU_SECONDS)]
        return self._children.spawn(arguments, cwd="/", env={"LANG": "C.UTF-8"}, out=stdout_pipe.writer, stdin=stdin)


def _parse_result(printed: bytes, is_slow: bool) -> MatchResult:
    word, _, rest = printed.decode("utf-8", "replace").partition(" ")
    if word == "bad":
        raise invalid("until", f"is not a regular expression: {rest}")
    return MatchResult(rest) if word == "found" else MatchResult(is_slow=is_slow or word != "none")


async def _feed(process: Process, cursor: int, stdin_writer: asyncio.StreamWriter) -> None:
    """Write the output of the process to the program. Close its input at the end of the process."""
    try:
        while True:
            is_over = not process.running
            piece = process.output.after(cursor, ended=is_over)
            cursor = piece.cursor
            if piece.text:
                stdin_writer.write(piece.text.encode("utf-8", "replace"))
                await stdin_writer.drain()
            elif is_over:
                return
            else:
                await _wait_for_more(process, cursor)
    except ConnectionError:
        pass  # the program has found a match, or could not run
    finally:
        stdin_writer.close()


async def _wait_for_more(process: Process, cursor: int) -> None:
    either = [asyncio.ensure_future(process.wait_for_text(cursor)), asyncio.ensure_future(process.ended.wait())]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in either:
            each.cancel()
