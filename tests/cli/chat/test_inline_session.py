"""The interactive session on a real pseudo terminal: narrow, resized, and with large and quoted input."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rookery.cli.chat.inline_session import COMMANDS, _phase_of
from rookery.client import AsyncRookery
from tests.cli.chat.terminal_process import Terminal, log_in
from tests.cli.serve.server_process import environment, rookery, serving

SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the home directory of a user who is logged in at a running server."""
    home = tmp_path_factory.mktemp("home")
    with serving(home, "--data-dir", str(home / "data")) as served:
        log_in(served, home)
        yield home


def opened(home: Path, *arguments: str, columns: int = 80) -> Terminal:
    terminal = Terminal(
        "chat", *arguments, env=environment(home, NO_COLOR="1"), term="xterm", columns=columns, cwd=home
    )
    terminal.wait_for("/help |")
    return terminal


def left(terminal: Terminal) -> str:
    """Leave the session. Return the id of its chat."""
    terminal.type("\x04")
    terminal.wait_for("Continue with: rookery chat attach ")
    assert terminal.end() == 0, terminal.screen
    return terminal.screen.rsplit("attach ", 1)[1].split()[0]


def shown(terminal: Terminal) -> list[str]:
    return [line.rstrip() for line in SEQUENCE.sub("", terminal.screen).replace("\r", "").split("\n")]


def test_sentences_are_broken_between_words_at_40_columns(home: Path) -> None:
    terminal = opened(home, columns=40)
    terminal.type("/help\r")
    terminal.wait_for("leaves.")
    terminal.type("hello\r")
    terminal.wait_for("tokens in")
    left(terminal)

    lines = shown(terminal)
    assert max(map(len, lines[: lines.index("> hello")])) <= 40
    words = {word for text in COMMANDS.values() for word in text.split()}
    assert words <= {word for line in lines for word in line.split()}
    assert re.findall(r"\x1b\[[34][0-9]m", terminal.screen) == []  # no color


def test_window_is_resized_during_an_answer(home: Path) -> None:
    terminal = opened(home)
    terminal.type("hello\r")
    for columns in (40, 120, 20, 80):
        terminal.wait_for("working")
        terminal.resize(columns)
    terminal.wait_for("tokens in")
    chat = left(terminal)

    said = " ".join(" ".join(shown(terminal)).split())
    assert "provider in the settings." in said
    assert "Traceback" not in said
    assert "I am Rookery's scripted model" in rookery(home, "chat", "export", chat).stdout


def test_paste_of_5_mb_is_attached_and_the_session_goes_on(home: Path) -> None:
    terminal = opened(home)
    terminal.paste("a line of a large paste\n" * 220_000)
    terminal.wait_for("The pasted text (5156 KiB) is attached to your next message as pasted-1.txt.")
    terminal.type("hello\r")
    terminal.wait_for("tokens in")
    chat = left(terminal)

    assert "pasted-1.txt" in rookery(home, "chat", "export", chat).stdout


def test_paste_of_12_mb_is_refused_with_what_to_do(home: Path) -> None:
    terminal = opened(home)
    terminal.paste("x" * (12 << 20))
    terminal.wait_for("larger than 10 MiB and was not used.")
    terminal.type("\x04")

    assert terminal.end() == 0


def test_file_with_a_space_in_its_name_is_completed_and_attached(home: Path) -> None:
    (home / "my notes").mkdir()
    (home / "my notes" / "first draft.txt").write_text("Draft.")
    terminal = opened(home)
    terminal.type("hello @my\t")
    terminal.wait_for("notes/")
    terminal.type("fi\t")
    terminal.wait_for('draft.txt"')
    terminal.type("\r")
    terminal.wait_for("tokens in")
    chat = left(terminal)

    assert "first draft.txt" in rookery(home, "chat", "export", chat).stdout


def test_attached_and_switched_chats_show_their_last_answer_whole(home: Path) -> None:
    chat = json.loads(rookery(home, "chat", "new", "hello", "--json").stdout.splitlines()[0])["chat"]["id"]
    attached = opened(home, "attach", chat)
    attached.wait_for("provider in the settings.")
    switched = opened(home)
    switched.type(f"/switch {chat[:8]}\r")
    switched.wait_for("provider in the settings.")

    assert left(attached) == left(switched) == chat[:8]
    # Printed as a finished block, not only drawn above the input.
    for terminal in (attached, switched):
        text = " ".join(shown(terminal))
        assert text.index("provider in the settings.") < text.index("Continue with:")


def test_mode_is_changed_by_command_and_key_and_always_shown(home: Path) -> None:
    terminal = opened(home)
    terminal.wait_to_show("idle | /help | auto | new chat")
    terminal.type("/mode\r")
    terminal.wait_for("* auto       the approval rules decide")
    terminal.type("/mode free\r")
    terminal.wait_for("The modes are ask, auto, read-only.")
    terminal.type("/mode read-only\r")
    terminal.wait_for("Mode read only: the agent can only read.")
    terminal.wait_to_show("| read only | new chat")
    terminal.type("hello\r")
    terminal.wait_for("tokens in")
    terminal.type("\x1bm")
    terminal.wait_for("Mode ask: every action with an effect asks you first.")
    terminal.wait_to_show("| ask | chat ")
    chat = left(terminal)

    listed = json.loads(rookery(home, "chat", "list", "--json").stdout)["chats"]
    assert [each["permission_mode"] for each in listed if each["id"].startswith(chat)] == ["ask"]


def test_saved_prompt_is_completed_and_inserted_among_very_many(home: Path) -> None:
    saved(home, {f"many-{number:05}": f"Number {number}." for number in range(200)})
    saved(home, {"greet": "hello {{who}}, how are you?"})
    terminal = opened(home)
    terminal.type("/gre\t")
    terminal.wait_for("et")
    terminal.type("\r")
    terminal.wait_for("Replace {{who}} before you send the message.")
    # The cursor is behind the variable.
    terminal.type("\x17Ada\r")
    terminal.wait_for("> hello Ada, how are you?")
    terminal.wait_for("tokens in")
    terminal.type("/no-such-prompt\r")
    terminal.wait_for("There is no command and no saved prompt /no-such-prompt.")
    left(terminal)


def saved(home: Path, prompts: dict[str, str]) -> None:
    login = json.loads((home / ".config" / "rookery" / "credentials.json").read_text())
    (url, stored), *_ = login["servers"].items()

    async def put() -> None:
        async with AsyncRookery(url, token=stored["token"]) as client:
            for name, text in prompts.items():
                await client.saved_prompts.put(name, text)

    # In a thread of its own: tests of the browser leave an event loop running in this one.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: asyncio.run(put())).result()


def test_status_line_says_that_a_question_or_a_plan_waits(home: Path) -> None:
    asked = opened(home, "--plan")
    asked.type("ask me which color to use: red, green or blue\r")
    asked.wait_to_show("a question waits for you")
    asked.type("1\r")
    asked.wait_for("> red")
    asked.wait_to_show("idle | /help")
    left(asked)

    planned = opened(home)
    planned.type("/plan\r")
    planned.wait_to_show("plan mode | new chat")
    planned.type("make a plan to tidy the home directory\r")
    planned.wait_to_show("a plan waits for you")
    chat = left(planned)
    # Also for somebody who comes later.
    again = opened(home, "attach", chat)
    again.wait_to_show("a plan waits for you")
    left(again)


def test_marks_of_stopped_turns_are_part_of_the_transcript(home: Path) -> None:
    terminal = opened(home)
    terminal.type("hello\r")
    terminal.wait_for("I am Rookery's scripted model")
    terminal.type("\x1b")
    terminal.wait_for("Stopped. The answer so far is saved.")
    terminal.type("hello again\r")
    terminal.wait_for("> hello again")
    terminal.wait_for("tokens in")
    chat = left(terminal)

    again = opened(home, "attach", chat)
    again.wait_for("provider in the settings.")
    left(again)
    text = "\n".join(shown(again))
    assert text.index("> hello\n") < text.index("Stopped, 20") < text.index("> hello again")


def part(**fields: Any) -> Any:
    return {"type": "message_part", "part": {"tool_name": "execute", **fields}}


def test_output_of_a_running_tool_does_not_end_its_phase() -> None:
    assert _phase_of(part(type="tool-call", args={})) == "running execute"
    assert _phase_of(part(type="tool-result", result_delta="one line")) is None
    assert _phase_of(part(type="tool-result", result={"output": "one line"})) == "waiting for the model"
