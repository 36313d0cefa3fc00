"""The routes of processes: `/v1/processes`, `/v1/processes/{id}/output|signal`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rookery.workspaces.agent import config
from rookery.workspaces.agent.disk_limit import Disk
from rookery.workspaces.agent.errors import AgentError, invalid
from rookery.workspaces.agent.journal import Attempt, hash_of
from rookery.workspaces.agent.process import processes, readonly_view
from rookery.workspaces.agent.process.output_match import OutputWaits
from rookery.workspaces.agent.process.processes import Process, ProcessSpec
from rookery.workspaces.agent.process.spill_file import SpillFile, is_name
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import Agent

MAX_WAIT_S = 300.0
MAX_LISTED = 10
KIND = "process"
# The header with the name of the spill file: an opaque id that the server chooses.
RESULT_HEADER = "x-rookery-result"
_FIELDS = ("command", "workdir", "env", "background", "read_only")


class ProcessRoutes:
    def __init__(self, agent: Agent, disk: Disk) -> None:
        self._agent = agent
        self._disk = disk
        self._processes = agent.processes
        self._output_waits = OutputWaits(agent.children)
        self._lost: dict[str, str | None] = {}  # process id to chat id, for processes that a restart of the agent ended
        self._restore()

    def _restore(self) -> None:
        """Restore the processes of earlier runs of the agent from the journal."""
        for record in self._agent.journal.finished(KIND):
            process = self._recorded(record)
            if process is not None:
                self._processes.restore(process)
        for note in self._agent.journal.interrupted(KIND):
            self._lost[str(note.get("id"))] = note.get("chat_id")
        self._processes.sweep()

    def _recorded(self, record: Mapping[str, Any]) -> Process | None:
        try:
            return Process.restored(record)
        except (ValueError, KeyError, TypeError) as error:
            self._agent.log(f"journal: invalid record of a process: {error!r}")
            return None

    async def start(self, request: Request) -> Response:
        body = await request.json()
        _check(body)

        async def run(attempt: Attempt) -> Response:
            spec = await self._process_spec(body, request)
            process_id = processes.new_id()
            attempt.note({"id": process_id, "chat_id": request.chat.chat_id})
            process = self._processes.start(spec, process_id, on_end=lambda ended: self._ended(ended, attempt.key))
            attempt.defer()
            return Response.json({"id": process.id})

        body_hash = hash_of(json.dumps(body, sort_keys=True))
        return await self._agent.journal.once(request.idempotency_key, KIND, body_hash, run, lost=_lost)

    async def _process_spec(self, body: Mapping[str, Any], request: Request) -> ProcessSpec:
        chat = request.chat
        workdir = self._workdir(body.get("workdir"))
        env = {**config.environment(self._agent.config), **(body.get("env") or {})}
        if chat.chat_id is not None:
            env["ROOKERY_CHAT_ID"] = chat.chat_id
        arguments = processes.shell(body["command"])
        if body.get("read_only"):
            arguments = await readonly_view.wrap(self._agent, arguments, workdir=workdir)
        spill = self._spill(request.headers.get(RESULT_HEADER, ""))
        return ProcessSpec(body["command"], arguments, workdir, env, chat, bool(body.get("background")), spill)

    def _spill(self, name: str) -> SpillFile | None:
        """Return the spill file; None without a valid name."""
        return SpillFile(self._agent.config.home, name, self._disk.claim) if is_name(name) else None

    def _workdir(self, wanted: str | None) -> str:
        if wanted:
            path = self._agent.config.home + wanted[1:] if wanted == "~" or wanted.startswith("~/") else wanted
            if not os.path.isabs(path):
                raise invalid("workdir", "must be an absolute path")
            if not os.path.isdir(path):
                raise invalid("workdir", f"{wanted} is not a directory that exists")
            if not os.access(path, os.X_OK):
                raise invalid("workdir", f"{wanted} may not be entered")
            return path
        return config.start_directory(self._agent.config)

    def _ended(self, process: Process, key: str | None) -> None:
        # Written before clients see the end, so that they find the process again after a restart.
        if key is not None:
            self._agent.journal.finish(key, process.record())
        self._agent.touched.record(process.spec.chat, process.spec.workdir)

    async def list(self, request: Request) -> Response:
        found = self._processes.list_of(request.chat)[:MAX_LISTED]
        return Response.json({"processes": [processes.described(process) for process in found]})

    async def output(self, request: Request) -> Response:
        process = self._find(request)
        since = request.optional_number("since")
        wait_s = request.seconds("wait_s", cap=MAX_WAIT_S)
        if since is not None and since > process.output.total:
            raise invalid("since", f"is beyond the {process.output.total} bytes that were printed")
        pattern = request.query.get("until")
        if pattern is not None:
            found = await self._output_waits.wait(process, pattern, since=since or 0, wait_s=wait_s, gone=request.gone)
            answer = processes.snapshot(process, since)
            answer.update({"matched": found.line is not None, "match": found.line, "match_slow": found.is_slow})
            return Response.json(answer)
        if wait_s > 0 and process.running:
            await processes.wait(process, since, wait_s, request.gone)
        return Response.json(processes.snapshot(process, since))

    async def signal(self, request: Request) -> Response:
        process = self._find(request)
        body = await request.json()
        name = body.get("signal")
        if not isinstance(name, str) or name not in processes.SIGNALS:
            raise invalid("signal", "must be terminate or kill")
        processes.send_signal(process, processes.SIGNALS[name])
        return Response.json({"id": process.id, "signal": name})

    def _find(self, request: Request) -> Process:
        process_id = request.params["id"]
        if process_id in self._lost and request.chat.chat_id in (None, self._lost[process_id]):
            raise _lost()
        try:
            return self._processes.find(process_id, request.chat)
        except AgentError:
            # The process was deleted, but the journal may still have its record.
            record = next((item for item in self._agent.journal.finished(KIND) if item.get("id") == process_id), None)
            process = self._recorded(record) if record is not None else None
            if process is None or request.chat.chat_id not in (None, process.spec.chat.chat_id):
                raise
            return process


def _lost() -> AgentError:
    message = (
        "The workspace was restarted while this command ran, so its outcome is unknown. "
        "Check what it did before you run it again."
    )
    return AgentError(410, "process_lost", message)


def _check(body: Mapping[str, Any]) -> None:
    """Check the body of a start request. Raise one error with all problems."""
    wrong = [(name[:100], "is not known here") for name in body if name not in _FIELDS]
    command = body.get("command")
    if not isinstance(command, str) or not command.strip():
        wrong.append(("command", "must be text that is not empty"))
    elif not _is_plain(command):
        wrong.append(("command", "has a NUL character or is not valid Unicode"))
    workdir = body.get("workdir")
    if workdir is not None and not (isinstance(workdir, str) and _is_plain(workdir)):
        wrong.append(("workdir", "must be the path of a directory"))
    env = body.get("env")
    if env is not None and not _is_environment(env):
        wrong.append(("env", "must map names to text, without = in names and without NUL"))
    wrong += [
        (name, "must be true or false")
        for name in ("background", "read_only")
        if body.get(name) is not None and not isinstance(body[name], bool)
    ]
    if wrong:
        problems = "; ".join(f"`{field}` {detail}" for field, detail in wrong[:10])
        raise AgentError(400, "invalid", f"The process cannot be started: {problems}.", fields=wrong[:10])


def _is_environment(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    names_are_good = all(name and "=" not in name and _is_plain(name) for name in value)
    return names_are_good and all(isinstance(text, str) and _is_plain(text) for text in value.values())


def _is_plain(text: str) -> bool:
    """Return whether the text is valid for system calls: no NUL, and no half of a surrogate pair."""
    return "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def register(router: Router, agent: Agent, disk: Disk) -> None:
    routes = ProcessRoutes(agent, disk)
    router.add("POST", "/v1/processes", routes.start)
    router.add("GET", "/v1/processes", routes.list)
    router.add("GET", "/v1/processes/{id}/output", routes.output, query=("wait_s", "since", "until"))
    router.add("POST", "/v1/processes/{id}/signal", routes.signal)
