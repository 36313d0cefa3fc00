"""The connection to one machine through the OpenSSH client. Commands and forwards share it.

The connection ends with this process: its remote command reads from a pipe that the kernel closes when the process
dies. A lost connection is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
from collections import deque
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.driver_interface import DriverError, DriverUnavailable, Ssh

T = TypeVar("T")

CONNECT_SECONDS = 30.0
COMMAND_SECONDS = 120.0
CONTROL_SECONDS = 30.0
MAX_ANSWER_BYTES = 1024 * 1024
MAX_STDERR_BYTES = 64 * 1024
SSH_FAILED = 255  # the exit status of the ssh client if ssh itself fails
# By default sshd allows ten sessions per connection. The connection itself uses one.
SESSIONS = 8
READY = b"rookery-ready\n"
# Names are arguments of ssh, where a leading dash would be an option.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]{0,127}")
_JUMP = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9_][A-Za-z0-9._-]*(?::[0-9]{1,5})?")

# The beginning checks the version, so even Python 2 must be able to parse the program.
_BOOT = (
    "import sys\n"
    "sys.version_info < (3, 9) and sys.exit('rookery-python %d.%d' % sys.version_info[:2])\n"
    "import io, json, types\n"
    "modules = json.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))\n"
    "import importlib.abc, importlib.util\n"
    "class Told(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
    "    def find_spec(self, name, path, target=None):\n"
    "        is_package = not modules.get(name)\n"
    "        return importlib.util.spec_from_loader(name, self, is_package=is_package) if name in modules else None\n"
    "    def exec_module(self, module):\n"
    "        exec(compile(modules[module.__name__], module.__name__, 'exec'), module.__dict__)\n"
    "sys.meta_path.insert(0, Told())\n"
    "from rookery.workspaces.drivers.launcher.remote_actions import main\n"
    "main()\n"
)

_HOST_KEY = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED", "host key is known")
_AUTH = (
    *("Permission denied", "Too many authentication failures", "invalid format", "UNPROTECTED PRIVATE KEY"),
    *("no mutual signature", "incorrect passphrase", "error in libcrypto"),
)


def program() -> bytes:
    """Return the source of the launcher's modules by name, as one JSON object. Packages are empty modules."""
    here = Path(__file__).parent / "launcher"
    package = "rookery.workspaces.drivers.launcher"
    parents = {name: "" for name in ("rookery", "rookery.workspaces", "rookery.workspaces.drivers", package)}
    modules = {f"{package}.{path.stem}": path.read_text() for path in sorted(here.glob("*.py")) if path.stem[0] != "_"}
    return json.dumps({**parents, **modules}).encode()


class _Problem(msgspec.Struct, frozen=True):
    code: str
    message: str


class _Answer(msgspec.Struct, frozen=True):
    error: _Problem | None = None


class Facts(msgspec.Struct, frozen=True):
    """The report of the remote machine. It is untrusted, because workspaces may control the login."""

    root: Annotated[str, msgspec.Meta(pattern=r"\A/[^\x00-\x1f\x7f:]*\Z", max_length=4096)]
    python: str
    python_prefix: str
    bwrap: str | None


class Done(msgspec.Struct, frozen=True):
    """The result of an action that returns no data."""


class Host:
    """A machine that is reached by ssh. `directory` is private and holds sockets, so its path is short."""

    def __init__(self, address: Ssh, directory: Path, *, ssh: str = "ssh") -> None:
        _check(address)
        self._address = address
        self._ssh = ssh
        self._directory = directory
        self._name = name_of(address)
        self._config = directory / f"{self._name}.conf"
        self._control = directory / f"{self._name}.ctl"
        self._master: asyncio.subprocess.Process | None = None
        self._stderr_lines: deque[bytes] = deque(maxlen=50)
        self._stderr_reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._sessions = asyncio.Semaphore(SESSIONS)
        self.facts: Facts | None = None  # set by `get_facts`
        self.epoch = 0  # the number of connections so far; a forward belongs to one connection

    async def connect(self) -> None:
        """Open the connection if it is not open."""
        async with self._connecting:
            if self._master is not None and self._master.returncode is None:
                return
            await self._close()
            self.facts = None
            self._write_files()
            try:
                await self._open()
            finally:
                # The key is needed for the login only. It must not stay on disk.
                self._identity.unlink(missing_ok=True)
            self.epoch += 1

    async def run(self, header: dict[str, Any], *blobs: bytes, kind: type[T]) -> T:
        """Run an action of the launcher's `remote_actions` module on the machine, and return its result."""
        await self.connect()
        modules = program()
        input_bytes = b"%d\n%s%s\n%s" % (len(modules), modules, json.dumps(header).encode(), b"".join(blobs))
        async with self._sessions:
            status, output, errors = await self._session(f"python3 -I -S -c {shlex.quote(_BOOT)}", input_bytes)
        if status == 127 or "rookery-python" in errors:
            found = errors.rpartition("rookery-python ")[2].strip() if "rookery-python" in errors else "none"
            raise DriverError("python_missing", f"{self._address.host} has no Python 3.9 or newer (found: {found}).")
        try:
            answer = msgspec.json.decode(output, type=_Answer)
            if answer.error is not None:
                raise sandboxes.as_driver_error(answer.error.code, f"{self._address.host}: {answer.error.message}")
            return msgspec.json.decode(output, type=kind)
        except msgspec.MsgspecError:
            said = errors or ("its answer cannot be read" if output else f"the command ended with status {status}")
            raise _connection_error(self._address, said) from None

    async def get_facts(self) -> Facts:
        """Return the facts of the machine. They are requested once per connection."""
        await self.connect()
        if self.facts is None:
            self.facts = await self.run({"action": "hello"}, kind=Facts)
        return self.facts

    async def forward(self, local: Path, remote: str) -> None:
        """Forward a local socket to a remote one."""
        await self.connect()
        _remove(local)
        await self._control_command("forward", "-L", f"{local}:{remote}")

    async def cancel(self, local: Path, remote: str) -> None:
        with contextlib.suppress(DriverError):
            await self._control_command("cancel", "-L", f"{local}:{remote}")
        _remove(local)

    async def close(self) -> None:
        async with self._connecting:
            await self._close()

    @property
    def _identity(self) -> Path:
        return self._directory / f"{self._name}.key"

    def _write_files(self) -> None:
        known = self._directory / f"{self._name}.known"
        _write(known, self._address.known_hosts.rstrip("\n") + "\n")
        lines = [
            *("BatchMode yes", "StrictHostKeyChecking yes", f"UserKnownHostsFile {known}"),
            *("GlobalKnownHostsFile /dev/null", "UpdateHostKeys no", "CheckHostIP no"),
            *("ServerAliveInterval 15", "ServerAliveCountMax 3", "ConnectTimeout 15", "LogLevel ERROR"),
            *("ForwardAgent no", "ForwardX11 no", "PermitLocalCommand no", "RequestTTY no"),
            *("ExitOnForwardFailure yes", "StreamLocalBindUnlink yes", "StreamLocalBindMask 0177"),
        ]
        if self._address.identity is not None:
            _write(self._identity, self._address.identity.rstrip("\n") + "\n")
            lines += [f"IdentityFile {self._identity}", "IdentitiesOnly yes", "IdentityAgent none"]
        # A file instead of options, because the ssh client for the jump host reads it too.
        _write(self._config, "\n".join(["Host *", *lines]) + "\n")

    def _arguments(self, *options: str) -> list[str]:
        address = self._address
        arguments = [self._ssh, "-F", str(self._config), "-S", str(self._control), "-p", str(address.port), *options]
        if address.user:
            arguments += ["-l", address.user]
        return arguments

    async def _open(self) -> None:
        try:
            self._master = await asyncio.create_subprocess_exec(
                *self._arguments("-M", "-o", "ControlPersist=no"),
                *(("-J", self._address.jump) if self._address.jump else ()),
                *("--", self._address.host, f"echo {READY.decode().strip()}; exec cat"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            message = "the OpenSSH client (ssh) is not installed on the server."
            raise DriverUnavailable(message, "Install openssh-client.") from error
        assert self._master.stdout is not None
        assert self._master.stderr is not None
        self._stderr_lines.clear()
        self._stderr_reader = asyncio.create_task(self._read_stderr(self._master.stderr))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                line = await self._master.stdout.readline()
        except TimeoutError:
            await self._close()
            raise _connection_error(self._address, f"no answer within {CONNECT_SECONDS:g} s") from None
        except BaseException:
            # For example, the caller was canceled. The connection is incomplete.
            await self._close()
            raise
        if line != READY:
            await self._stderr_reader
            said = b"".join(self._stderr_lines).decode("utf-8", "replace")
            await self._close()
            raise _connection_error(self._address, said or line.decode("utf-8", "replace"))

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self._stderr_lines.append(line[:2000])

    async def _session(self, command: str, input_bytes: bytes) -> tuple[int, bytes, str]:
        process = await asyncio.create_subprocess_exec(
            # If the shared connection is lost, the command must fail and not open its own connection.
            *self._arguments("-o", "ControlMaster=no", "-o", "ProxyCommand=false", "--", self._address.host, command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                output, errors = await _communicate(process, input_bytes)
                status = await process.wait()
        except TimeoutError:
            raise _connection_error(self._address, f"a command took longer than {COMMAND_SECONDS:g} s") from None
        finally:
            await _end(process)
        if len(output) > MAX_ANSWER_BYTES:
            raise _connection_error(self._address, f"a command answered with more than {MAX_ANSWER_BYTES} bytes")
        if status == SSH_FAILED and (self._master is None or self._master.returncode is not None):
            raise _connection_error(self._address, "the connection was lost")
        return status, output, errors.decode("utf-8", "replace")

    async def _control_command(self, command: str, *options: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._arguments("-O", command, *options, "--", self._address.host),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                _, errors = await process.communicate()
        except TimeoutError:
            raise _connection_error(self._address, f"no control response within {CONTROL_SECONDS:g} s") from None
        finally:
            await _end(process)
        if process.returncode != 0:
            raise _connection_error(self._address, errors.decode("utf-8", "replace"))

    async def _close(self) -> None:
        master, self._master = self._master, None
        if master is not None and master.returncode is None:
            if master.stdin is not None:
                master.stdin.close()
            master.terminate()
            try:
                async with asyncio.timeout(2):
                    await master.wait()
            except TimeoutError:
                master.kill()
                await master.wait()
        if self._stderr_reader is not None:
            self._stderr_reader.cancel()
            await asyncio.gather(self._stderr_reader, return_exceptions=True)
            self._stderr_reader = None
        self._control.unlink(missing_ok=True)


async def _communicate(process: asyncio.subprocess.Process, input_bytes: bytes) -> tuple[bytes, bytes]:
    """Send the input. Return the output, cut one byte above its limit, and the end of the error output."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors, _ = await asyncio.gather(
        _first(process.stdout, MAX_ANSWER_BYTES + 1),
        _last(process.stderr, MAX_STDERR_BYTES),
        _feed(process.stdin, input_bytes),
    )
    return output, errors


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _first(stream: asyncio.StreamReader, size: int) -> bytes:
    """Read to the end of the stream, and return the first bytes. The rest is discarded to limit memory."""
    kept = bytearray()
    while chunk := await stream.read(64 * 1024):
        kept += chunk[: size - len(kept)]
    return bytes(kept)


async def _last(stream: asyncio.StreamReader, size: int) -> bytes:
    kept = b""
    while chunk := await stream.read(64 * 1024):
        kept = (kept + chunk)[-size:]
    return kept


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def name_of(address: Ssh) -> str:
    """Return a file name that is unique for the machine, the account and the route."""
    identity = json.dumps(
        [address.host, address.user, address.port, address.jump, address.known_hosts, address.identity]
    )
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def _check(address: Ssh) -> None:
    wrong = [
        *([] if _HOST.fullmatch(address.host) else ["host"]),
        *([] if address.user is None or _USER.fullmatch(address.user) else ["user"]),
        *([] if address.jump is None or _JUMP.fullmatch(address.jump) else ["jump"]),
        *([] if 0 < address.port < 65536 else ["port"]),
    ]
    if wrong:
        raise DriverError("invalid_workspace", f"The template's ssh.{wrong[0]} cannot be used.")
    if not address.known_hosts.strip():
        raise DriverError("ssh_hostkey", "The template's ssh.known_hosts is empty, so the host key cannot be checked.")


def _connection_error(address: Ssh, said: str) -> DriverError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1].rstrip(".") if lines else "the connection ended"
    if any(text in said for text in _HOST_KEY):
        return DriverError("ssh_hostkey", f"{address.host} is not the machine that known_hosts describes: {last}.")
    if any(text in said for text in _AUTH):
        return DriverError("ssh_auth", f"{address.host} refused the login: {last}.")
    return DriverError("ssh_failed", f"{address.host} cannot be reached by ssh: {last}.")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _environment() -> dict[str, str]:
    """Return the variables of the server's environment that ssh needs to find the server's keys."""
    kept = {name: value for name in ("HOME", "SSH_AUTH_SOCK", "USER", "LOGNAME") if (value := os.environ.get(name))}
    return {"PATH": os.defpath if shutil.which("ssh", path=os.defpath) else os.environ.get("PATH", os.defpath), **kept}
