"""A real sshd on the loopback, with its own keys and home, as the user that runs the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from rookery.workspaces.drivers.driver_interface import Ssh

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def require_sshd() -> str:
    if SSHD is not None and shutil.which("ssh"):
        return SSHD
    if os.environ.get("CI"):
        raise AssertionError("openssh-server and openssh-client are needed")
    pytest.skip("openssh-server and openssh-client are not installed")


class Sshd:
    """One server. `home` is the home of users who log in here."""

    def __init__(self, directory: Path) -> None:
        self._sshd = require_sshd()
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir(parents=True)
        self.host_key = self._make_key("host")
        self.user_key = self._make_key("user")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        (directory / "authorized").write_text((directory / "user.pub").read_text())
        self._config = directory / "sshd_config"
        self.configure()
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, *more: str, path: str | None = None) -> None:
        """Write the configuration. `more` are additional lines; `path` is the PATH of users who log in."""
        lines = [
            f"ListenAddress 127.0.0.1:{self.port}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self.directory / 'authorized'}",
            *("StrictModes no", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no"),
            *("PermitRootLogin yes", "PidFile none", "LogLevel ERROR", "MaxSessions 10"),
            f"SetEnv HOME={self.home}" + ("" if path is None else f" PATH={path}"),
            *more,
        ]
        self._config.write_text("\n".join(lines) + "\n")

    def start(self, *wrapper: str) -> None:
        """Start the server. `wrapper` is a command that runs the command given to it."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            # Not the tests' own output: its children may outlive the tests, and a reader of that output would wait for
            # them.
            self._process = subprocess.Popen(
                [*wrapper, self._sshd, "-D", "-e", "-f", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                return
            except OSError:
                assert self._process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop the listener and every connection that it made."""
        if self._process is None:
            return
        children = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=False)
        self._process.kill()
        self._process.wait()
        for pid in children.stdout.split():
            subprocess.run(["kill", "-9", pid], check=False, stderr=subprocess.DEVNULL)
        self._process = None

    def place(self, **changed: object) -> Ssh:
        host_key = " ".join((self.directory / "host.pub").read_text().split()[:2])
        parts: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "known_hosts": f"[127.0.0.1]:{self.port} {host_key}",
            "identity": self.user_key.read_text(),
            **changed,
        }
        return Ssh(**parts)  # type: ignore[arg-type]

    def another_key(self) -> str:
        return self._make_key("another").read_text()

    def _make_key(self, name: str) -> Path:
        path = self.directory / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        return path
