"""A real agent for tests: the zipapp in its own process, called over its Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from rookery.workspaces import agent_bundle
from tests.eventually import until

TOKEN = "t" * 43
PATIENCE_S = 60.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])


class Rig:
    """The directories of one workspace, and the agent that serves them."""

    def __init__(self, root: Path, config: Mapping[str, Any], python: str) -> None:
        self.root = root
        self.run_dir = root / "run"
        self.home = root / "home"
        self.directory = self.home / "project"
        self.config = {"generation": 1, "home": str(self.home), "directory": str(self.directory), **config}
        self.python = python
        self.around: list[str] = []  # a program that runs the agent, for example a sandbox
        self.process: subprocess.Popen[bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        for folder in (self.run_dir, self.home, self.directory):
            folder.mkdir()
        os.chmod(self.run_dir, 0o700)

    @property
    def socket(self) -> str:
        return str(self.run_dir / "agent.sock")

    async def start(self, *, generation: int | None = None, listen: str | None = None) -> None:
        """Start the agent and wait until it listens."""
        if generation is not None:
            self.config["generation"] = generation
        self._write()
        self.process = self._spawn(listen)
        await until(self._answers_or_ended, timeout=PATIENCE_S)
        assert self.process.poll() is None, self.log()

    def record(self) -> Any:
        return json.loads((self.run_dir / "agent.json").read_text())

    def fail_to_start(self, spoil: Mapping[str, str | None]) -> tuple[int, str]:
        """Start with a broken setup; return the exit code and the error output."""
        self._write()
        for name, file in (("config", "config.json"), ("token", "token")):
            text = spoil.get(name, "")
            if text is None:
                (self.run_dir / file).unlink()
            elif text:
                (self.run_dir / file).write_text(text)
        command = self._command(spoil.get("listen"))
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=self.root)
        return ended.returncode, ended.stderr

    def _spawn(self, listen: str | None) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        return subprocess.Popen(
            self._command(listen), env=environment, start_new_session=True, stdin=subprocess.DEVNULL, cwd=self.root
        )

    def _command(self, listen: str | None) -> list[str]:
        zipapp = agent_bundle.build(self.root / "bin")
        command = [*self.around, self.python, "-I", str(zipapp), "--run-dir", str(self.run_dir)]
        return command if listen is None else [*command, "--listen", listen]

    def _write(self) -> None:
        (self.run_dir / "token").write_text(TOKEN + "\n")
        (self.run_dir / "config.json").write_text(json.dumps(self.config))
        (self.run_dir / "agent.json").unlink(missing_ok=True)

    def _answers_or_ended(self) -> bool:
        assert self.process is not None
        return (self.run_dir / "agent.json").exists() or self.process.poll() is not None

    def log(self) -> str:
        path = self.run_dir / "agent.log"
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        """End the agent as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def below(self) -> list[int]:
        """Return the processes that the agent has started or adopted."""
        found = [] if self.process is None else [self.process.pid]
        for parent in found:
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += map(int, task.read_text().split())
        return found[1:]

    async def run(self, command: str, *, chat: str | None = None, key: str | None = None, **body: Any) -> Any:
        """Run a command to its end; return the output as the agent shows it."""
        started = await self.post("/v1/processes", {"command": command, **body}, chat=chat, key=key)
        return await self.output(started["id"], chat=chat)

    async def output(self, process_id: str, *, chat: str | None = None) -> Any:
        """Return the output of a process that ends."""
        shown = await self.get(f"/v1/processes/{process_id}/output?wait_s=50", chat=chat)
        assert not shown["running"], shown
        return shown

    async def ask(
        self,
        method: str,
        path: str,
        *,
        chat: str | None = None,
        ancestors: list[str] | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        port: int | None = None,
        **given: Any,
    ) -> Answer:
        """Send one authenticated request; `headers` add to its headers or replace them."""
        if self._session is None:
            connector = aiohttp.UnixConnector(path=self.socket, limit=120) if port is None else aiohttp.TCPConnector()
            timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        sent = {"authorization": f"Bearer {TOKEN}", "x-rookery-generation": str(self.config["generation"])}
        if chat is not None:
            sent["x-rookery-chat-id"] = chat
        if ancestors is not None:
            sent["x-rookery-ancestor-ids"] = json.dumps(ancestors)
        if key is not None:
            sent["idempotency-key"] = key
        sent.update(headers or {})
        base = "http://agent" if port is None else f"http://127.0.0.1:{port}"
        async with self._session.request(method, f"{base}{path}", headers=sent, **given) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **given: Any) -> Any:
        """Return the JSON of a response that must be a success."""
        answer = await self.ask("GET", path, **given)
        assert answer.status == 200, answer
        return answer.json

    async def post(self, path: str, body: Any, **given: Any) -> Any:
        """Return the JSON of a response that must be a success."""
        answer = await self.ask("POST", path, json=body, **given)
        assert answer.status in (200, 202), answer
        return answer.json

    async def raw(self, data: bytes) -> bytes:
        """Return what the agent sends for these bytes until it closes the connection."""
        reader, writer = await asyncio.open_unix_connection(self.socket)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        finally:
            writer.close()

    async def disconnect(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def close(self) -> None:
        await self.disconnect()
        if self.process is not None:
            left = self.below()
            self.kill()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@cache
def bubblewrap() -> str:
    """Return bubblewrap if it works. If the machine cannot confine, skip the test on a developer's machine and fail in
    CI.
    """
    path = shutil.which("bwrap")
    trial = [path or "bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    if path is not None and subprocess.run(trial, capture_output=True).returncode == 0:
        return path
    if os.environ.get("CI"):
        pytest.fail("bubblewrap is missing or does not work")
    pytest.skip("bubblewrap is missing or does not work")


@contextlib.asynccontextmanager
async def rig(config: Mapping[str, Any] | None = None, *, python: str = sys.executable) -> AsyncIterator[Rig]:
    """Make the directories of a workspace in a short path, because a Unix socket address has 108 bytes at most."""
    root = Path(tempfile.mkdtemp(prefix="rka-"))
    made = Rig(root, config or {}, python)
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(root, ignore_errors=True)
