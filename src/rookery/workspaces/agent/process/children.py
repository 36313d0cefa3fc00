"""Child processes: the only module of the agent that starts programs and waits for them.

As the first process of a sandbox, the agent inherits every orphan and must reap it. It therefore waits for any child,
which takes the exit code of every child. No other code of the agent may wait for a child, neither the subprocesses of
asyncio nor `Popen.wait`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from asyncio.streams import FlowControlMixin
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

READ_BYTES = 256 * 1024
_PIPE_BYTES = 1024 * 1024
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ; the fcntl module has this name only since Python 3.10


class Child:
    """A started program, in its own session and process group."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid
        # The exit code, or the negative number of the signal that ended it.
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int) -> None:
        self._popen.returncode = code  # so that Popen does not try to wait
        if not self.ended.done():
            self.ended.set_result(code)

    def signal_group(self, number: int) -> None:
        """Send a signal to the program's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


@dataclass(frozen=True)
class Completed:
    """The result of a program. `code` is negative if a signal ended it.

    `output` has only the first bytes of a long output. `output_bytes` is the size of the complete output.
    """

    code: int
    output: bytes
    output_bytes: int
    errors: bytes
    truncated: bool
    timed_out: bool


class Children:
    """All running programs that the agent has started."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}

    def watch(self) -> None:
        """Begin to reap children. Call this in the main thread while the event loop runs."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def spawn(
        self,
        arguments: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        out: int,
        err: int | None = None,
        stdin: int = subprocess.DEVNULL,
        descriptors: Sequence[int] = (),
    ) -> Child:
        """Start a program. It inherits `descriptors` with the same numbers, and has no input unless `stdin` is given.

        Raise OSError if it cannot be started.
        """
        popen = subprocess.Popen(  # noqa: S603 - running programs is what a workspace is for
            list(arguments),
            cwd=cwd,
            env=dict(env),
            stdin=stdin,
            stdout=out,
            stderr=out if err is None else err,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
        # Children are reaped in the event loop, so this child is registered before it can be reaped.
        child = Child(popen)
        self._children[child.pid] = child
        return child

    async def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float,
        max_bytes: int = 1024 * 1024,
    ) -> Completed:
        """Run a program to its end. Kill its process group if it takes too long or the caller is canceled."""
        out, err = Collector(max_bytes), Collector(64 * 1024)
        pipes = [Pipe(out.take), Pipe(err.take)]
        timed_out = False
        try:
            child = self.spawn(arguments, cwd=cwd, env=env, out=pipes[0].writer, err=pipes[1].writer)
        except BaseException:
            for pipe in pipes:
                pipe.close()
            raise
        try:
            for pipe in pipes:
                pipe.start()
            waiting = asyncio.gather(asyncio.shield(child.ended), *(asyncio.shield(pipe.closed) for pipe in pipes))
            await asyncio.wait_for(waiting, timeout_s)
        except asyncio.TimeoutError:
            timed_out = True
        finally:
            child.signal_group(signal.SIGKILL)
            for pipe in pipes:
                pipe.close()
        code = await child.ended
        return Completed(code, bytes(out.data), out.size, bytes(err.data), out.truncated or err.truncated, timed_out)

    def alive(self) -> list[Child]:
        return list(self._children.values())

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                child.end(os.waitstatus_to_exitcode(status))


class Collector:
    """Keeps the first bytes of an output, and counts all of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.data = bytearray()
        self.size = 0
        self.truncated = False

    def take(self, data: bytes) -> None:
        room = self._max_bytes - len(self.data)
        self.size += len(data)
        self.truncated = self.truncated or len(data) > room
        self.data += data[: max(room, 0)]


class Pipe:
    """A pipe for the output of a child, which gets `writer`. After `start`, output is passed to `take`."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        # A larger pipe needs fewer reads for a child that prints a lot. The kernel may refuse it.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._reader, _SET_PIPE_SIZE, _PIPE_BYTES)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Close the write end of this process, and read until all other processes have closed theirs."""
        os.close(self.writer)
        self.writer = -1
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._reader, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()

    def drain(self) -> None:
        """Read everything that is in the pipe now, without waiting for more."""
        left = _PIPE_BYTES
        while self._reader >= 0 and left > 0:
            try:
                data = os.read(self._reader, READ_BYTES)
            except OSError:
                return
            if not data:
                return
            self._take(data)
            left -= len(data)

    def close(self) -> None:
        """Close the pipe. Processes that still write to it get a broken pipe."""
        if self._reader >= 0:
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1
        if not self.closed.done():
            self.closed.set_result(None)


async def open_writer(descriptor: int) -> asyncio.StreamWriter:
    """Return a stream with flow control that writes to a pipe."""
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "wb", buffering=0)
    transport, protocol = await loop.connect_write_pipe(lambda: FlowControlMixin(loop), pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


def descendants() -> list[int]:
    """Return all descendants of this process, nearest first, from /proc."""
    parents: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
                    parents.setdefault(parent, []).append(int(name))
    found: list[int] = []
    level = [os.getpid()]
    while level:
        level = [pid for parent in level for pid in parents.get(parent, ())]
        found += level
    return found


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants. Linux only."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    except (ImportError, OSError, AttributeError):
        pass  # without it, a stop of an unconfined workspace does not find its daemons
