"""The commands of a workspace: started, followed, signaled, and remembered for a while after their end.

A process belongs to the chat that started it and is independent of the request that did. It counts as running until its
shell has ended and its output is complete, so a response with the state "ended" has the complete output.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.errors import AgentError, invalid
from rookery.workspaces.agent.process.children import Child, Children, Pipe
from rookery.workspaces.agent.process.output import Output, View
from rookery.workspaces.agent.process.spill_file import Spill
from rookery.workspaces.agent.server.http import ChatHeaders

MAX_RUNNING = 64
MAX_ENDED = 256
KEEP_ENDED_S = 60 * 60.0
MAX_HELD_BYTES = 64 * 1024 * 1024
# Children of an ended shell may hold its output open forever.
HELD_PIPE_S = 5.0
SWEEP_S = 30.0
SIGNALS = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


@dataclass(frozen=True)
class Order:
    """A command to run. `arguments` is the whole command line, `command` the text shown to users and models.

    `spill` keeps output beyond what a view shows. The command inherits `descriptors`; `masked` are texts that its
    output must not show.
    """

    command: str
    arguments: Sequence[str]
    workdir: str
    env: Mapping[str, str]
    chat: ChatHeaders
    background: bool = False
    spill: Spill | None = None
    descriptors: Sequence[int] = ()
    masked: Sequence[bytes] = ()


class Process:
    """One command, running or ended."""

    def __init__(self, process_id: str, order: Order, started_at: float) -> None:
        self.id = process_id
        self.order = order
        self.started_at = started_at
        self.exited_at: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.output = Output()
        self.child: Child | None = None
        self.ended = asyncio.Event()
        self._readers: set[asyncio.Future[None]] = set()
        self._recorded: View | None = None
        self._recorded_file: str | None = None

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    def view(self) -> View:
        if self._recorded is not None:
            return self._recorded
        kept = self.order.spill.kept if self.order.spill is not None else None
        return self.output.view(ended=not self.running, kept=kept)

    @property
    def file(self) -> str | None:
        """The path of the complete output, if it is more than a view shows."""
        kept = self.order.spill.kept if self.order.spill is not None else None
        return self._recorded_file if kept is None else kept.path

    def take(self, data: bytes) -> int:
        """Append output; return by how many bytes the held memory has grown."""
        if self.order.spill is not None:
            self.order.spill.take(self.output, data)
        grown = self.output.append(data)
        for text in self.order.masked:
            self.output.mask(text)
        return grown

    def wake_readers(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)
        self._readers.clear()

    async def more(self, since: int) -> None:
        """Return once there is text after the cursor. Cancel it when the process may have ended."""
        while not self.output.has_more(since):
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.add(reader)
            try:
                await reader
            finally:
                self._readers.discard(reader)

    def close(self, code: int, now: float) -> None:
        """Record that the shell has ended and the output is complete."""
        if self.order.spill is not None:
            self.order.spill.finish(self.output)
        self.exit_code = code if code >= 0 else 128 - code
        self.signal = -code if code < 0 else None
        self.exited_at = now
        self.ended.set()
        self.wake_readers()

    def record(self) -> dict[str, Any]:
        """Return the journal record, which is enough to serve the process after a restart of the agent."""
        view = self.view()
        return {
            "id": self.id,
            "command": self.order.command,
            "workdir": self.order.workdir,
            "background": self.order.background,
            "chat_id": self.order.chat.chat_id,
            "started_at": self.started_at,
            "exited_at": self.exited_at,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "total": self.output.total,
            "output": view.text,
            "truncated": view.truncated,
            "file": self.file,
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any]) -> Process:
        """Restore a process that ended before the agent was restarted. Raises ValueError or KeyError for an invalid
        record.
        """
        chat_id = record["chat_id"]
        order = Order(str(record["command"]), (), str(record["workdir"]), {}, ChatHeaders(chat_id))
        process = cls(str(record["id"]), order, float(record["started_at"]))
        process.exit_code = int(record["exit_code"])
        process.signal = int(record["signal"]) if record["signal"] is not None else None
        process.exited_at = float(record["exited_at"])
        process.output.total = int(record["total"])
        truncated = record["truncated"]
        process._recorded = View(str(record["output"]), truncated if isinstance(truncated, dict) else None)
        file = record.get("file")  # journals of older agents have none
        process._recorded_file = file if isinstance(file, str) else None
        process.ended.set()
        return process


class Processes:
    """All processes of the workspace, within their limits."""

    def __init__(self, children: Children, clock: Clock) -> None:
        self._children = children
        self._clock = clock
        self._processes: dict[str, Process] = {}
        self._held = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def start(
        self, order: Order, process_id: str, *, counted: bool = True, on_end: Callable[[Process], None] | None = None
    ) -> Process:
        """Run a command. It is listed as a process unless `counted` is false (a script of the template).

        `on_end` is called when it has ended, before any waiter is woken.
        """
        if self.stopping and counted:
            raise AgentError(409, "stopping", "The workspace is being stopped, so nothing new can be started.")
        if counted and self.count_running() >= MAX_RUNNING:
            message = f"{MAX_RUNNING} processes are running in this workspace. Stop one of them first."
            raise AgentError(429, "too_many_processes", message)
        process = Process(process_id, order, self._clock.now())

        def take(data: bytes) -> None:
            self._held += process.take(data)
            process.wake_readers()
            if self._held > MAX_HELD_BYTES:
                self._make_room()

        pipe = Pipe(take)
        try:
            process.child = self._children.spawn(
                order.arguments, cwd=order.workdir, env=order.env, out=pipe.writer, descriptors=order.descriptors
            )
        except (OSError, ValueError) as error:
            pipe.close()
            raise _cannot_start(error, order) from error
        pipe.start()
        if counted:
            self._processes[process.id] = process
        task = asyncio.ensure_future(self._follow(process, process.child, pipe, on_end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return process

    async def _follow(
        self, process: Process, child: Child, pipe: Pipe, on_end: Callable[[Process], None] | None
    ) -> None:
        code = await child.ended
        if not pipe.closed.done():
            await asyncio.wait({pipe.closed}, timeout=HELD_PIPE_S)
            pipe.drain()
            pipe.close()
        process.close(code, self._clock.now())
        if on_end is not None:
            on_end(process)
        self.sweep()

    def find(self, process_id: str, chat: ChatHeaders) -> Process:
        """Return the process if this chat may access it; the server's own requests may access all."""
        process = self._processes.get(process_id)
        if process is None or chat.chat_id not in (None, process.order.chat.chat_id):
            message = "There is no such process. process_list shows those of this chat."
            raise AgentError(404, "process_not_found", message)
        return process

    def list_of(self, chat: ChatHeaders) -> list[Process]:
        """Return the chat's processes, running ones first, then the newest."""
        own = [item for item in self._processes.values() if chat.chat_id in (None, item.order.chat.chat_id)]
        return sorted(reversed(own), key=lambda item: (not item.running, -item.started_at))

    def count_running(self) -> int:
        return sum(process.running for process in self._processes.values())

    def restore(self, process: Process) -> None:
        self._processes[process.id] = process

    def running(self) -> list[Process]:
        return [process for process in self._processes.values() if process.running]

    def sweep(self) -> None:
        """Forget processes that ended long ago, or that exceed the limit."""
        oldest = self._clock.now() - KEEP_ENDED_S
        ended = self._ended_oldest_first()
        surplus = len(ended) - MAX_ENDED
        for position, process in enumerate(ended):
            if position < surplus or (process.exited_at or 0.0) < oldest:
                del self._processes[process.id]
                self._held -= process.output.held

    def _make_room(self) -> None:
        """Reduce ended processes to their view, oldest first, until all outputs fit together."""
        for process in self._ended_oldest_first():
            if self._held <= MAX_HELD_BYTES:
                return
            self._held -= process.output.shrink()

    def _ended_oldest_first(self) -> list[Process]:
        ended = [process for process in self._processes.values() if not process.running]
        return sorted(ended, key=lambda process: process.exited_at or 0.0)

    async def sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()


def new_id() -> str:
    return secrets.token_hex(8)


def shell(command: str) -> list[str]:
    return ["sh", "-c", command]


def send_signal(process: Process, number: int) -> None:
    """Signal the whole group. Raises 409 when it has ended: its number may belong to another process by now."""
    if not process.running or process.child is None:
        raise AgentError(409, "not_running", "The process is not running any more, so there is nothing to signal.")
    process.child.signal_group(number)


async def wait(process: Process, since: int | None, wait_s: float, gone: asyncio.Event) -> None:
    """Wait until it ended, there is more after the cursor, the client has left, or the time is over."""
    waits: list[Coroutine[Any, Any, Any]] = [process.ended.wait(), gone.wait()]
    if since is not None:
        waits.append(process.more(since))
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    try:
        await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def snapshot(process: Process, since: int | None) -> dict[str, Any]:
    """Return the state, read before the output, so that a snapshot with the state "ended" has the complete output."""
    answer = described(process)
    if since is None:
        view = process.view()
        answer["output"] = view.text
        answer["cursor"] = process.output.total
        if view.truncated is not None:
            answer["truncated"] = view.truncated
    else:
        piece = process.output.after(since, ended=not process.running)
        answer["output"], answer["cursor"] = piece.text, piece.cursor
        if piece.gap:
            answer["gap"] = piece.gap
    if process.file is not None:
        answer["file"] = process.file
    return answer


def described(process: Process) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": process.id,
        "command": process.order.command,
        "workdir": process.order.workdir,
        "background": process.order.background,
        "running": process.running,
        "started_at": process.started_at,
    }
    if not process.running:
        answer["exit_code"] = process.exit_code
        answer["exited_at"] = process.exited_at
        if process.signal is not None:
            answer["signal"] = process.signal
    return answer


def _cannot_start(error: Exception, order: Order) -> AgentError:
    if isinstance(error, OSError) and error.filename == order.workdir:
        return invalid("workdir", f"{order.workdir} cannot be entered: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        program = order.arguments[0]
        message = (
            f"The command could not be started: there is no `{program}` in this workspace. Its image must have one."
        )
        return AgentError(500, "no_shell", message)
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        message = "The command or its environment is too long for the system. Write it into a file and run that."
        return AgentError(400, "command_too_long", message)
    return AgentError(500, "cannot_start", f"The command could not be started: {error}.")
