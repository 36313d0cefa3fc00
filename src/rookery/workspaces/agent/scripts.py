"""The scripts of the template: the startup script, once per boot, and the shutdown script.

The server sends the secret parameters. The startup script reads them as shell assignments,
`ROOKERY_SECRET_name='value'`, from a file descriptor whose number is in `ROOKERY_SECRETS_FD`. They are never on disk or
in an environment.

A startup script that fails or takes too long sets the state of the workspace, which can still be used. The run is
recorded before it begins, so an agent that restarts in the same boot does not run the script again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, cast

from rookery.workspaces.agent import config
from rookery.workspaces.agent.config import Script
from rookery.workspaces.agent.errors import AgentError, invalid
from rookery.workspaces.agent.log import Log
from rookery.workspaces.agent.process import processes
from rookery.workspaces.agent.process.processes import Process, Processes, ProcessSpec
from rookery.workspaces.agent.server.http import ChatHeaders, Request, Response

STARTING, READY, FAILED, TIMEOUT = "starting", "ready", "script_failed", "script_timeout"
KILL_AFTER_S = 5.0
MAX_WAIT_S = 60.0
_RECORD = "startup.json"
# Time limit for the secrets, which the server sends as soon as the agent responds.
SECRETS_S = 60.0
# Shorter secrets are not masked in output: they occur in ordinary text, and can be guessed anyway.
MIN_MASKED_BYTES = 4
_MAX_SECRETS_BYTES = 4 * 1024 * 1024


_USER_INFO = re.compile(r"://([^/\s]*)@")
_NONE: Mapping[str, str] = MappingProxyType({})


class Scripts:
    """Runs the scripts, and holds the resulting state of the workspace."""

    def __init__(self, settings: config.Config, run_dir: os.PathLike[str], runner: Processes, log: Log) -> None:
        self._config = settings
        self._record = os.path.join(run_dir, _RECORD)
        self._processes = runner
        self._log = log
        self._running: dict[str, Process] = {}
        self._messages: dict[str, str] = {}
        self.state = STARTING
        self.exit_code: int | None = None
        self.startup_ended = asyncio.Event()
        self._secrets: dict[str, str] | None = None
        self._secrets_given = asyncio.Event()

    async def run_startup(self) -> None:
        """Run the startup script unless it has run in this boot, and set the state."""
        try:
            self.state = await self._startup()
        except Exception as error:
            self.state = FAILED
            self._messages["startup"] = f"The startup script could not be run: {error}"
            self._log(self._messages["startup"])
        self.startup_ended.set()

    async def _startup(self) -> str:
        record = self._read_record()
        if record is not None:
            self.exit_code = record.get("exit_code")
            state = record.get("state")
            return state if state in (READY, FAILED, TIMEOUT) else FAILED
        if self._config.secrets:
            try:
                await asyncio.wait_for(self._secrets_given.wait(), SECRETS_S)
            except asyncio.TimeoutError:
                raise AgentError(409, "no_secrets", "the server did not send the secret parameters") from None
        self._write_record(STARTING)
        secrets, self._secrets = self._secrets or {}, {}
        state = await self._run("startup", self._config.startup, self._config.startup.timeout_s, secrets)
        process = self._running.get("startup")
        self.exit_code = process.exit_code if process is not None else None
        self._write_record(state)
        self._log(f"startup script: {state}")
        return state

    async def run_shutdown(self, grace_s: float) -> None:
        """Run the shutdown script. A failure does not stop the shutdown."""
        script = self._config.shutdown
        try:
            state = await self._run("shutdown", script, min(script.timeout_s, grace_s))
        except (AgentError, OSError) as error:
            state = str(error)
        if script.path is not None:
            self._log(f"shutdown script: {state}")

    async def take_secrets(self, request: Request) -> Response:
        """Accept all secret parameters in one request. They are accepted only once."""
        body = await request.json(_MAX_SECRETS_BYTES)
        given = body.get("secrets")
        if not isinstance(given, dict) or not all(
            isinstance(text, str) and "\0" not in text for text in given.values()
        ):
            raise invalid("secrets", "must map names to texts")
        if sorted(given) != sorted(self._config.secrets):
            raise invalid("secrets", "must be those that the workspace was started with")
        if self._secrets_given.is_set():
            raise AgentError(409, "secrets_given", "The secrets of this start were sent already.")
        self._secrets = given
        self._secrets_given.set()
        return Response.json({"ok": True})

    async def _run(self, name: str, script: Script, timeout_s: float, secrets: Mapping[str, str] = _NONE) -> str:
        if script.path is None:
            return READY
        directory, environment = config.start_directory(self._config), config.environment(self._config)
        with contextlib.ExitStack() as stack:
            descriptors: tuple[int, ...] = ()
            if secrets:
                file = stack.enter_context(_assignments(secrets))
                descriptors = (file.fileno(),)
                environment["ROOKERY_SECRETS_FD"] = str(file.fileno())
            spec = ProcessSpec(
                name,
                _arguments(script.path),
                directory,
                environment,
                ChatHeaders(),
                descriptors=descriptors,
                masked=_masked(secrets.values()),
            )
            process = self._processes.start(spec, processes.new_id(), counted=False)
        self._running[name] = process
        if await _ends_within(process, timeout_s):
            return READY if process.exit_code == 0 else FAILED
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.running:
                processes.send_signal(process, number)
                await _ends_within(process, KILL_AFTER_S)
        self._messages[name] = f"The {name} script was ended after {timeout_s:g} seconds.\n"
        return TIMEOUT

    def _read_record(self) -> dict[str, Any] | None:
        """Return the record that an earlier agent wrote in this boot, or None."""
        try:
            with open(self._record, "rb") as file:
                value = json.loads(file.read(64 * 1024))
        except (OSError, ValueError):
            return None
        if not isinstance(value, dict) or value.get("generation") != self._config.generation:
            return None
        return value

    def _write_record(self, state: str) -> None:
        value = {"generation": self._config.generation, "state": state, "exit_code": self.exit_code}
        with open(self._record + ".new", "w") as file:
            file.write(json.dumps(value) + "\n")
        os.replace(self._record + ".new", self._record)

    async def show_log(self, request: Request) -> Response:
        """Return the output of a script: a view, or with `since` the new output. `wait_s` waits for it."""
        name = request.query.get("name", "startup")
        if name not in ("startup", "shutdown"):
            raise invalid("name", "must be startup or shutdown")
        since = request.optional_number("since")
        process = self._running.get(name)
        wait_s = request.seconds("wait_s", cap=MAX_WAIT_S)
        if process is not None and process.running and wait_s > 0:
            await processes.wait(process, since, wait_s, request.gone)
        answer: dict[str, Any] = {"name": name, "agent_state": self.state, "running": False, "output": "", "cursor": 0}
        if process is not None:
            if since is not None and since > process.output.total:
                raise invalid("since", f"is beyond the {process.output.total} bytes that were printed")
            answer.update(processes.snapshot(process, since))
        if name in self._messages and not answer["running"]:
            answer["error"] = self._messages[name]
        return Response.json(answer)

    async def show_startup(self, request: Request) -> Response:
        """Return the result of the startup script, which the agent runs without a request."""
        return Response.json({"agent_state": self.state, "exit_code": self.exit_code})


def _masked(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """Return the texts that output must not show, longest first: the secrets, and the user info in their URLs."""
    found = set()
    for secret in secrets:
        found.add(secret)
        if user_info := _USER_INFO.findall(secret):
            found |= {piece for each in user_info for piece in (each, each.partition(":")[2])}
    texts = sorted((each.encode() for each in found), key=len, reverse=True)
    return tuple(text for text in texts if len(text) >= MIN_MASKED_BYTES)


def _assignments(secrets: Mapping[str, str]) -> BinaryIO:
    """Return an unnamed file with the secrets as shell assignments."""
    text = "".join(f"ROOKERY_SECRET_{name}={shlex.quote(value)}\n" for name, value in secrets.items())
    file = _unnamed_file()
    file.write(text.encode())
    file.flush()
    file.seek(0)
    return file


def _unnamed_file() -> BinaryIO:
    """Return a file in memory if the system supports it, else a temporary file without a name."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("secrets"), "w+b")
    return cast("BinaryIO", tempfile.TemporaryFile())


async def _ends_within(process: Process, seconds: float) -> bool:
    try:
        await asyncio.wait_for(process.ended.wait(), seconds)
    except asyncio.TimeoutError:
        return False
    return True


def _arguments(path: str) -> list[str]:
    """Return the command line of a script: the interpreter of its first line, or `sh`. It need not be executable."""
    with open(path, "rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"#!"):
        return ["sh", path]
    interpreter = first[2:].decode("utf-8", "replace").strip().split(None, 1)
    return [*interpreter, path] if interpreter else ["sh", path]
