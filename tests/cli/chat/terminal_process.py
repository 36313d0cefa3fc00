"""`rookery chat` as a process on a pseudo terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from pathlib import Path

from tests.cli.serve.server_process import SCRIPT, Served, environment

PASSWORD = "correct horse battery"
STEP_SECONDS = 30.0


class Terminal:
    """A process on its own terminal. `wait_for` reads until a text appears after the last one."""

    def __init__(
        self, *arguments: str, env: dict[str, str], term: str = "dumb", columns: int = 80, cwd: Path | None = None
    ) -> None:
        self._leader, follower = pty.openpty()
        self._set_size(columns)
        self._process = subprocess.Popen(
            [SCRIPT, *arguments],
            env={**env, "TERM": term},
            cwd=cwd,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            # Without a controlling terminal, Ctrl-C would be an ordinary character.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        self.screen = ""
        self._seen = 0

    def wait_for(self, words: str) -> None:
        while (at := self.screen.find(words, self._seen)) < 0:
            assert self._read(), f"It ended without {words!r}: {self.screen}"
        self._seen = at + len(words)

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def paste(self, text: str) -> None:
        """Paste a text of any size. What the process prints meanwhile is read, so that neither side waits."""
        data = memoryview(f"\x1b[200~{text}\x1b[201~".encode())
        os.set_blocking(self._leader, False)
        while data:
            readable, writable, _ = select.select([self._leader], [self._leader], [], STEP_SECONDS)
            assert readable or writable, "The paste was not read."
            if readable:
                self._read()
            if writable:
                data = data[os.write(self._leader, data[:4096]) :]
        os.set_blocking(self._leader, True)

    def resize(self, columns: int) -> None:
        self._set_size(columns)
        os.kill(self._process.pid, signal.SIGWINCH)

    def _set_size(self, columns: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._leader)
        return self._process.wait(STEP_SECONDS)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._leader], [], [], STEP_SECONDS)
        if not ready:
            self._process.kill()
            raise AssertionError(f"Nothing more came: {self.screen}")
        try:
            data = os.read(self._leader, 65_536)
        except OSError:  # Linux reports a closed terminal this way
            return False
        self.screen += data.decode(errors="replace")
        return bool(data)


def log_in(served: Served, home: Path) -> str:
    """Create the first account in the terminal. Return the screen."""
    token = (home / "data" / "setup-token").read_text().strip()
    terminal = Terminal("chat", "login", served.url, env=environment(home))
    terminal.wait_for("Setup token (printed when it started): ")
    terminal.type(f"{token}\n")
    terminal.wait_for("Email address: ")
    terminal.type("ann@example.org\n")
    for question in ("Password: ", "Repeat the password: "):
        terminal.wait_for(question)
        terminal.type(f"{PASSWORD}\n")
    assert terminal.end() == 0, terminal.screen
    return terminal.screen
