"""Waiting for a line of process output that matches the caller's regular expression.

An expression can run forever on thirty characters and cannot be interrupted from within. So it is matched in a separate
program, which reads the output as it arrives and is killed when the wait is over. The agent stays responsive meanwhile.
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
# Chosen: each is a separate interpreter.
MAX_AT_ONCE = 8
# Time for the program to judge its last input at the end of the wait.
VERDICT_S = 3.0
# Chosen: enough for minutes of output; ends an expression that never finishes.
CPU_SECONDS = 60

# Complete lines are matched once, the last one whenever it grows: a prompt has no line ending. CPU time is limited,
# because a killed agent cannot end the program. A program that prints nothing at the end did not finish.
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
class Verdict:
    """`line` matched. With `is_slow` the expression took too long, and the result is unknown."""

    line: str | None = None
    is_slow: bool = False


class OutputWaits:
    """The waits of one agent."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._count = 0

    async def wait(self, process: Process, pattern: str, *, since: int, wait_s: float, gone: asyncio.Event) -> Verdict:
        """Wait until a line after the cursor matches, the process has ended, the client has left, or the time is
        over.
        """
        if not pattern or len(pattern) > MAX_PATTERN_CHARS or "\0" in pattern:
            raise invalid("until", f"must be a regular expression of 1 to {MAX_PATTERN_CHARS} characters")
        if self._count >= MAX_AT_ONCE:
            message = f"The output of {MAX_AT_ONCE} processes is waited for already. Try again in a moment."
            raise AgentError(429, "too_many_waits", message)
        self._count += 1
        try:
            return await self._wait(process, pattern, since, wait_s, gone)
        finally:
            self._count -= 1

    async def _wait(self, process: Process, pattern: str, since: int, wait_s: float, gone: asyncio.Event) -> Verdict:
        said = Collector(64 * 1024)
        answer = Pipe(said.take)
        reader, writer = os.pipe()
        try:
            child = self._start(pattern, answer, reader)
        except OSError as error:
            answer.close()
            os.close(writer)
            raise AgentError(500, "cannot_match", f"The expression cannot be matched: {error}.") from error
        finally:
            os.close(reader)
        answer.start()
        into = await open_writer(writer)
        feeding = asyncio.ensure_future(_feed(process, since, into))
        leaving, answered = asyncio.ensure_future(gone.wait()), asyncio.shield(answer.closed)
        try:
            either: set[asyncio.Future[Any]] = {leaving, answered, feeding}
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            # The input received so far is judged completely, whatever ended the wait.
            feeding.cancel()
            if not gone.is_set():
                await asyncio.wait({answer.closed}, timeout=VERDICT_S)
            is_slow = not answer.closed.done()
        finally:
            for each in (feeding, leaving, answered):
                each.cancel()
            into.close()  # unread input is discarded with the program
            child.signal_group(signal.SIGKILL)
            answer.close()
        return _verdict(bytes(said.data), is_slow)

    def _start(self, pattern: str, answer: Pipe, stdin: int) -> Child:
        arguments = [sys.executable, "-I", "-S", "-c", _PROGRAM, pattern, str(CPU_SECONDS)]
        return self._children.spawn(arguments, cwd="/", env={"LANG": "C.UTF-8"}, out=answer.writer, stdin=stdin)


def _verdict(said: bytes, is_slow: bool) -> Verdict:
    word, _, rest = said.decode("utf-8", "replace").partition(" ")
    if word == "bad":
        raise invalid("until", f"is not a regular expression: {rest}")
    return Verdict(rest) if word == "found" else Verdict(is_slow=is_slow or word != "none")


async def _feed(process: Process, cursor: int, into: asyncio.StreamWriter) -> None:
    """Feed the program with the output of the process. At the end, close its input once it has read everything."""
    try:
        while True:
            is_over = not process.running
            piece = process.output.after(cursor, ended=is_over)
            cursor = piece.cursor
            if piece.text:
                into.write(piece.text.encode("utf-8", "replace"))
                await into.drain()
            elif is_over:
                return
            else:
                await _more(process, cursor)
    except ConnectionError:
        pass  # it has found a match, or cannot run
    finally:
        into.close()


async def _more(process: Process, cursor: int) -> None:
    either = [asyncio.ensure_future(process.more(cursor)), asyncio.ensure_future(process.ended.wait())]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in either:
            each.cancel()
