"""`rookery chat` as a process: with a server, a terminal, pipes, and exit codes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.chat.terminal_process import PASSWORD, Terminal, log_in
from tests.cli.serve.server_process import SCRIPT, environment, rookery, serving


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


def test_inline_session_shows_answers_stops_with_escape_and_takes_a_long_paste(tmp_path: Path) -> None:
    with serving(tmp_path, "--data-dir", str(tmp_path / "data")) as served:
        log_in(served, tmp_path)
        terminal = Terminal("chat", env=environment(tmp_path, NO_COLOR="1"), term="xterm")
        terminal.wait_for("| new chat")
        terminal.type("/help\r")
        terminal.wait_for("Alt-Enter steers.")
        terminal.type("hello\r")
        terminal.wait_for("> hello")
        terminal.wait_for("I am Rookery's scripted model")
        terminal.type("\x1b")
        terminal.wait_for("Stopped. The answer so far is saved.")
        terminal.type("\x1b[200~" + "long paste " * 4000 + "\x1b[201~")
        terminal.wait_for("is attached to your next message as pasted-1.txt.")
        terminal.type("hello again\r")
        terminal.wait_for("in the settings.")
        terminal.wait_for("idle")
        terminal.type("\x04")
        terminal.wait_for("Continue with: rookery chat attach ")
        code = terminal.end()
        listed = rookery(tmp_path, "chat", "list")

    assert code == 0, terminal.screen
    assert "\x1b[?1049h" not in terminal.screen  # the alternate screen
    assert "idle" in listed.stdout


def test_piped_data_is_part_of_the_message_and_a_silent_pipe_does_not_hang(tmp_path: Path) -> None:
    with serving(tmp_path, "--data-dir", str(tmp_path / "data")) as served:
        log_in(served, tmp_path)

        def new(stdin: bytes | int) -> str:
            given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
            made = subprocess.run(
                [SCRIPT, "chat", "new", "review this", "--no-wait"],
                env=environment(tmp_path),
                capture_output=True,
                timeout=60,
                check=False,
                **given,
            )
            exported = rookery(tmp_path, "chat", "export", made.stdout.decode().strip()).stdout
            return f"{made.stderr.decode()}{exported}"

        text, binary, long = new(b"+ one line\n"), new(b"\xff\x00\xfe" * 9), new(b"line\n" * 100_000)
        never_closed, writer = os.pipe()
        silent = new(never_closed)
        os.close(writer)
        os.close(never_closed)

    assert "review this\n\n+ one line" in text
    assert "stdin.txt" in long
    assert binary.startswith("rookery: file: Files of this type are not accepted.")
    assert silent.startswith("Nothing arrived on stdin within 3 s")


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
