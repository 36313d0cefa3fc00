"""The processes of a workspace: starts, signals and output. Ended processes are kept for a while.

A process belongs to the chat that started it, and outlives the request. It counts as running until its shell has ended
and its output was read completely. The output of an ended process is therefore complete.
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
from rookery.workspaces.agent.process.spill_file import SpillFile
from rookery.workspaces.agent.server.http import ChatHeaders

MAX_RUNNING = 64
MAX_ENDED = 256
KEEP_ENDED_S = 60 * 60.0
MAX_HELD_BYTES = 64 * 1024 * 1024
# After the shell has ended, its children may keep the pipe open. It is read for this long.
HELD_PIPE_S = 5.0
SWEEP_S = 30.0
SIGNALS = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


@dataclass(frozen=True)
class ProcessSpec:
    """A process to start. `arguments` is the command line. `command` is the text that users and models see.

    `spill` stores output that does not fit a view. The process inherits `descriptors`. Texts in `masked` are replaced
    in its output.
    """

    command: str
    arguments: Sequence[str]
    workdir: str
    env: Mapping[str, str]
    chat: ChatHeaders
    background: bool = False
    spill: SpillFile | None = None
    descriptors: Sequence[int] = ()
    masked: Sequence[bytes] = ()


class Process:
    """One process, running or ended."""

    def __init__(self, process_id: str, spec: ProcessSpec, started_at: float) -> None:
        self.id = process_id
        self.spec = spec
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
        spilled = self.spec.spill.spilled if self.spec.spill is not None else None
        return self.output.view(ended=not self.running, spilled=spilled)

    @property
    def file(self) -> str | None:
        """The path of the file with the complete output, if it does not fit a view."""
        spilled = self.spec.spill.spilled if self.spec.spill is not None else None
        return self._recorded_file if spilled is None else spilled.path

    def append(self, data: bytes) -> int:
        """Append output. Return by how many bytes the used memory has grown."""
        if self.spec.spill is not None:
            self.spec.spill.take(self.output, data)
        grown = self.output.append(data)
        for text in self.spec.masked:
            self.output.mask(text)
        return grown

    def wake_readers(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)
        self._readers.clear()

    async def wait_for_text(self, since: int) -> None:
        """Wait until there is text after the cursor. The end of the process does not end this wait."""
        while not self.output.has_more(since):
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.add(reader)
            try:
                await reader
            finally:
                self._readers.discard(reader)

    def close(self, code: int, now: float) -> None:
        """Set the exit code: the shell has ended and the output is complete."""
        if self.spec.spill is not None:
            self.spec.spill.finish(self.output)
        self.exit_code = code if code >= 0 else 128 - code
        self.signal = -code if code < 0 else None
        self.exited_at = now
        self.ended.set()
        self.wake_readers()

    def record(self) -> dict[str, Any]:
        """Return the journal record, from which `restored` creates the process again after a restart of the agent."""
        view = self.view()
        return {
            "id": self.id,
            "command": self.spec.command,
            "workdir": self.spec.workdir,
            "background": self.spec.background,
            "chat_id": self.spec.chat.chat_id,
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
        """Return the ended process of a journal record. Raise ValueError or KeyError if the record is invalid."""
        chat_id = record["chat_id"]
        spec = ProcessSpec(str(record["command"]), (), str(record["workdir"]), {}, ChatHeaders(chat_id))
        process = cls(str(record["id"]), spec, float(record["started_at"]))
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
    """All processes of the workspace, with limits on their number and memory."""

    def __init__(self, children: Children, clock: Clock) -> None:
        self._children = children
        self._clock = clock
        self._processes: dict[str, Process] = {}
        self._held = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def start(
        self,
        spec: ProcessSpec,
        process_id: str,
        *,
        counted: bool = True,
        on_end: Callable[[Process], None] | None = None,
    ) -> Process:
        """Start a process. With `counted` false, for scripts of the template, it is not listed and has no limit.

        `on_end` is called when it has ended, before waiters continue.
        """
        if self.stopping and counted:
            raise AgentError(409, "stopping", "The workspace is being stopped, so no process can be started.")
        if counted and self.count_running() >= MAX_RUNNING:
            message = f"{MAX_RUNNING} processes are running in this workspace. Stop one of them first."
            raise AgentError(429, "too_many_processes", message)
        process = Process(process_id, spec, self._clock.now())

        def append(data: bytes) -> None:
            self._held += process.append(data)
            process.wake_readers()
            if self._held > MAX_HELD_BYTES:
                self._shrink_ended()

        pipe = Pipe(append)
        try:
            process.child = self._children.spawn(
                spec.arguments, cwd=spec.workdir, env=spec.env, out=pipe.writer, descriptors=spec.descriptors
            )
        except (OSError, ValueError) as error:
            pipe.close()
            raise _cannot_start(error, spec) from error
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
        """Return a process of this chat. Requests without a chat may access all processes."""
        process = self._processes.get(process_id)
        if process is None or chat.chat_id not in (None, process.spec.chat.chat_id):
            message = "There is no such process. process_list shows those of this chat."
            raise AgentError(404, "process_not_found", message)
        return process

    def list_of(self, chat: ChatHeaders) -> list[Process]:
        """Return the processes of the chat: running ones first, each group with the newest first."""
        own = [item for item in self._processes.values() if chat.chat_id in (None, item.spec.chat.chat_id)]
        return sorted(reversed(own), key=lambda item: (not item.running, -item.started_at))

    def count_running(self) -> int:
        return sum(process.running for process in self._processes.values())

    def restore(self, process: Process) -> None:
        self._processes[process.id] = process

    def running(self) -> list[Process]:
        return [process for process in self._processes.values() if process.running]

    def sweep(self) -> None:
        """Delete processes that ended long ago, and the oldest ones beyond the limit."""
        oldest = self._clock.now() - KEEP_ENDED_S
        ended = self._ended_oldest_first()
        surplus = len(ended) - MAX_ENDED
        for position, process in enumerate(ended):
            if position < surplus or (process.exited_at or 0.0) < oldest:
                del self._processes[process.id]
                self._held -= process.output.held

    def _shrink_ended(self) -> None:
        """Shrink the output of ended processes, oldest first, until all outputs together fit the limit."""
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
    """Signal the process group. Raise 409 if the process has ended, because its id may be reused."""
    if not process.running or process.child is None:
        raise AgentError(409, "not_running", "The process has already ended.")
    process.child.signal_group(number)


async def wait(process: Process, since: int | None, wait_s: float, gone: asyncio.Event) -> None:
    """Wait until the process ends, there is text after the cursor, the client disconnects, or the time is over."""
    waits: list[Coroutine[Any, Any, Any]] = [process.ended.wait(), gone.wait()]
    if since is not None:
        waits.append(process.wait_for_text(since))
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    try:
        await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def snapshot(process: Process, since: int | None) -> dict[str, Any]:
    """Return the state and the output. The state is read first, so the output of an ended process is complete."""
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
        "command": process.spec.command,
        "workdir": process.spec.workdir,
        "background": process.spec.background,
        "running": process.running,
        "started_at": process.started_at,
    }
    if not process.running:
        answer["exit_code"] = process.exit_code
        answer["exited_at"] = process.exited_at
        if process.signal is not None:
            answer["signal"] = process.signal
    return answer


def _cannot_start(error: Exception, spec: ProcessSpec) -> AgentError:
    if isinstance(error, OSError) and error.filename == spec.workdir:
        return invalid("workdir", f"{spec.workdir} cannot be entered: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        program = spec.arguments[0]
        message = f"The command could not be started: this workspace has no `{program}`. Its template must provide it."
        return AgentError(500, "no_shell", message)
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        message = "The command or its environment is too long for the system. Write it into a file and run that."
        return AgentError(400, "command_too_long", message)
    return AgentError(500, "cannot_start", f"The command could not be started: {error}.")
