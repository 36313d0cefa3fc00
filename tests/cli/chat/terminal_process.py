"""`rookery chat` as a process on a pseudo terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from pathlib import Path

from tests.cli.serve.server_process import SCRIPT, Served, environment

PASSWORD = "correct horse battery"
STEP_SECONDS = 30.0


_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>78]|\x1b\][^\x07]*\x07|([\r\n\b])|([^\x1b\r\n\b]+)|\x1b")


class Grid:
    """What a terminal shows after an output, line by line. A program that redraws writes only what has changed."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, output: str) -> None:
        for token in _TOKEN.finditer(output):
            numbers, command, control, text = token.groups()
            if text:
                self._write(text)
            elif control == "\r":
                self._column = 0
            elif control == "\n":
                self._row += 1
            elif control == "\b":
                self._column = max(self._column - 1, 0)
            elif command:
                self._run(command, int(numbers) if numbers.isdigit() else None)

    def _write(self, text: str) -> None:
        while len(self.lines) <= self._row:
            self.lines.append([])
        line = self.lines[self._row]
        line.extend(" " * (self._column + len(text) - len(line)))
        line[self._column : self._column + len(text)] = text
        self._column += len(text)

    def _run(self, command: str, number: int | None) -> None:
        match command:
            case "A":
                self._row = max(self._row - (number or 1), 0)
            case "B":
                self._row += number or 1
            case "C":
                self._column += number or 1
            case "D":
                self._column = max(self._column - (number or 1), 0)
            case "K":
                self.lines[self._row : self._row + 1] = [line[: self._column] for line in self.lines[self._row :][:1]]
            case "J":
                del self.lines[self._row + 1 :]
                self._run("K", None)


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
        self._grid, self._fed = Grid(), 0

    def wait_for(self, words: str) -> None:
        while (at := self.screen.find(words, self._seen)) < 0:
            assert self._read(), f"It ended without {words!r}: {self.screen}"
        self._seen = at + len(words)

    def wait_to_show(self, words: str) -> None:
        """Wait until the terminal shows this in one line, however it was drawn."""
        while not any(words in line for line in self.shown()):
            assert self._read(), f"It ended without {words!r}: {self.shown()}"

    def shown(self) -> list[str]:
        """Return the lines that the terminal shows."""
        self._grid.feed(self.screen[self._fed :])
        self._fed = len(self.screen)
        return ["".join(line).rstrip() for line in self._grid.lines]

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
