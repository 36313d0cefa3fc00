"""`rookery chat` as a process: with a server, a terminal, pipes, and exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import socket
import subprocess
import termios
from pathlib import Path

import pytest

from tests.cli.serve.server_process import SCRIPT, Served, environment, rookery, serving

PASSWORD = "correct horse battery"
STEP_SECONDS = 30.0


class Terminal:
    """A process on its own terminal. `wait_for` reads until a text appears after the last one."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        self._leader, follower = pty.openpty()
        self._process = subprocess.Popen(
            [SCRIPT, *arguments],
            env={**env, "TERM": "dumb"},
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


def test_newcomer_logs_in_talks_stops_an_answer_and_leaves(tmp_path: Path) -> None:
    with serving(tmp_path, "--data-dir", str(tmp_path / "data")) as served:
        first = rookery(tmp_path, "chat", "list", "--url", served.url)
        shy = Terminal("chat", "login", served.url, env=environment(tmp_path))
        shy.wait_for("Setup token (printed when it started): ")
        shy.type("\x04")
        shy_code = shy.end()
        screen = log_in(served, tmp_path)
        credentials = tmp_path / ".config" / "rookery" / "credentials.json"
        kept = credentials.read_text()

        terminal = Terminal("chat", env=environment(tmp_path))
        terminal.wait_for("> ")
        terminal.type("hello\n")
        terminal.wait_for("I am Rookery's scripted model")
        terminal.type("\x03")
        terminal.wait_for("Interrupted. The answer so far is saved.")
        terminal.wait_for("> ")
        terminal.type("hello again\n")
        terminal.wait_for("in the settings.")
        terminal.wait_for("> ")
        terminal.type("\x04")
        code = terminal.end()

        piped = rookery(tmp_path, "chat", "new", "hello", "--json")
        listed = json.loads(rookery(tmp_path, "chat", "list", "--json").stdout)["chats"]
        out = rookery(tmp_path, "chat", "logout")
        after = rookery(tmp_path, "chat", "list", "--url", served.url)

    assert (first.returncode, "has no account yet" in first.stderr) == (5, True)
    assert (shy_code, shy.screen.splitlines()[-1]) == (2, "rookery: Nothing was typed.")
    assert PASSWORD not in screen
    assert (credentials.stat().st_mode & 0o777, PASSWORD in kept) == (0o600, False)
    assert code == 0, terminal.screen
    assert "in the settings" not in terminal.screen[: terminal.screen.index("Interrupted.")]
    assert (piped.returncode, piped.stderr) == (0, "")
    assert [json.loads(line)["type"] for line in piped.stdout.splitlines()][:2] == ["chat", "hello"]
    assert [chat["title"] for chat in listed] == ["Hello", "Hello"]
    assert (out.returncode, out.stdout, out.stderr) == (0, f"Logged out at {served.url}.\n", "")
    assert (after.returncode, after.stderr) == (
        5,
        f"rookery: You are not logged in at {served.url}. Run `rookery chat login {served.url}`.\n",
    )


@pytest.mark.parametrize("command", [["list"], ["new", "hello"], ["login", "--token-stdin"]])
def test_server_that_is_not_there_is_said_with_how_to_start_it(tmp_path: Path, command: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = rookery(tmp_path, "chat", *command, ROOKERY_URL=f"http://{address}", ROOKERY_TOKEN="rk_x")

    said = f"rookery: Nothing answers at http://{address}. Start it with `rookery serve --listen {address}`.\n"
    assert (done.returncode, done.stdout, done.stderr) == (4, "", said)


def test_interactive_mode_without_a_terminal_is_refused(tmp_path: Path) -> None:
    done = rookery(tmp_path, "chat")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rookery: There is no terminal. Use `rookery chat new PROMPT`.\n"


def test_settings_of_a_server_are_nothing_to_a_client(tmp_path: Path) -> None:
    done = rookery(tmp_path, "chat", "list", "--url", "http://127.0.0.1:1", ROOKERY_LISTEN="nonsense")

    assert done.returncode == 4
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("task", ["new", "send", "attach", "list", "models", "interrupt", "export", "login", "logout"])
def test_every_command_has_help_and_json(tmp_path: Path, task: str) -> None:
    done = rookery(tmp_path, "chat", task, "--help")

    assert done.returncode == 0
    assert "--json" in done.stdout
    assert "--url" in done.stdout


def test_address_may_stand_before_or_behind_the_command(tmp_path: Path) -> None:
    before = rookery(tmp_path, "chat", "--url", "http://127.0.0.1:1", "list")
    behind = rookery(tmp_path, "chat", "list", "--url", "http://127.0.0.1:1")

    assert before.stderr == behind.stderr
    assert "http://127.0.0.1:1." in before.stderr
