"""The pieces of `rookery admin run` that need no database: the request, the screen, and what is told of a step."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from io import BytesIO, TextIOWrapper
from typing import Any
from uuid import uuid4

import pytest

from rookery.cli.admin.input import Refused
from rookery.cli.admin.run import terminal_output as run_screen
from rookery.cli.admin.run.request import MAX_PROMPT_BYTES, Request, read_request
from rookery.cli.admin.run.terminal_output import Screen, Style
from rookery.cli.admin.run.transcript_printer import TranscriptPrinter
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId, Message, MessageId, Role, Visibility
from rookery.domain.chat.parts import File, Part, Reasoning, Source, Text, ToolCall, ToolResult, WorkspaceContext
from rookery.testing import FakeClock
from tests.cli.admin.run.run_rig import Stream

# The request


def asked(prompt: str = "hello", **given: Any) -> Request:
    arguments = {"model": None, "chat": None, "system": None, "timeout": None, "quiet": False, **given}
    return read_request(prompt, **arguments)


def test_request_is_read_from_its_arguments() -> None:
    chat_id = uuid4()

    request = asked("  hello\n", model="m", chat=str(chat_id), timeout="30m", quiet=True)

    assert request == Request(
        prompt="hello", model="m", chat_id=ChatId(chat_id), timeout=timedelta(minutes=30), quiet=True
    )


def test_prompt_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("a long\nprompt: ü\n".encode())))

    assert asked("-").prompt == "a long\nprompt: ü"


@pytest.mark.parametrize(
    ("prompt", "given", "said"),
    [
        (" \n", {}, "The prompt is empty."),
        ("x" * (MAX_PROMPT_BYTES + 1), {}, "longer than 256 KiB"),
        ("hello", {"chat": "7"}, "--chat: 7 is not the id of a chat."),
        ("hello", {"timeout": "soon"}, "--timeout: soon is not a duration"),
        ("hello", {"timeout": "0"}, "--timeout: must be greater"),
        ("hello", {"chat": str(uuid4()), "system": "Be kind."}, "--system is for new chats"),
    ],
)
def test_request_that_makes_no_sense_is_refused(prompt: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(Refused) as refused:
        asked(prompt, **given)

    assert said in str(refused.value)
    assert refused.value.code == Exit.USAGE


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "The prompt is empty."),
        (b"ab\xff", "not UTF-8 text (byte 2)"),
        (b"x" * (MAX_PROMPT_BYTES + 1), "longer than 256 KiB"),
    ],
)
def test_prompt_on_stdin_that_cannot_be_one_is_refused(monkeypatch: pytest.MonkeyPatch, data: bytes, said: str) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data)))

    with pytest.raises(Refused) as refused:
        asked("-")

    assert said in str(refused.value)


# The screen


def test_colour_is_for_terminals_whose_owner_wants_it() -> None:
    assert run_screen.has_colour({"TERM": "xterm"}, is_terminal=True)
    assert run_screen.has_colour({"TERM": "xterm", "NO_COLOR": ""}, is_terminal=True)
    assert not run_screen.has_colour({"TERM": "xterm"}, is_terminal=False)
    assert not run_screen.has_colour({"TERM": "xterm", "NO_COLOR": "1"}, is_terminal=True)
    assert not run_screen.has_colour({"TERM": "dumb"}, is_terminal=True)


def test_notes_are_dim_on_a_terminal_and_one_line_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stderr = Stream(is_terminal=True)
    screen = Screen(Output(Stream(), stderr), environ={"TERM": "xterm"})

    screen.note("one\ntwo\x1b[31m and very much more")

    assert stderr.getvalue() == f"{Style.DIM}one\\ntwo\\u001b[3...{Style.RESET}\n"


def test_piped_text_is_not_changed() -> None:
    stdout = Stream()
    screen = Screen(Output(stdout, Stream()), environ={})

    screen.text("tab\there\x1b[0m\n")
    screen.close()

    assert stdout.getvalue() == "tab\there\x1b[0m\n"


def test_thoughts_end_their_line_before_anything_else_is_shown() -> None:
    terminal: list[str] = []
    screen = Screen(Output(Stream(screen=terminal), Stream(screen=terminal)), environ={"TERM": "dumb"})

    screen.thought("First ")
    screen.thought("this.")
    screen.text("Answer")
    screen.thought("Second.")
    screen.note("tool")
    screen.text("more")
    screen.error("It broke.")
    screen.close()

    assert "".join(terminal) == "First this.\nAnswer\nSecond.\ntool\nmore\nrookery: It broke.\n"


def test_answer_that_an_old_terminal_cannot_show_does_not_end_the_command() -> None:
    raw = BytesIO()
    screen = Screen(Output(TextIOWrapper(raw, encoding="ascii"), Stream()), environ={})

    screen.text("Grüße")

    assert raw.getvalue() == b"Gr??e"


# The printer


class Told:
    """A screen that keeps what it is told, one line for each."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def text(self, piece: str) -> None:
        self.said.append(piece)

    def end_block(self) -> None:
        self.said.append("|")

    def thought(self, piece: str) -> None:
        if piece:
            self.said.append(f"({piece})")

    def end_thought(self) -> None:
        self.said.append(".")

    def note(self, text: str, *, style: Style = Style.DIM) -> None:
        self.said.append(f"# {text}")

    def lines(self, *texts: str) -> None:
        self.said.extend(f"- {text}" for text in texts)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def printer(told: Told) -> TranscriptPrinter:
    return TranscriptPrinter(told, FakeClock())


def committed(role: Role, *content: Part) -> Message:
    return Message(
        id=MessageId(1),
        chat_id=ChatId(uuid4()),
        revision=1,
        role=role,
        visibility=Visibility.BOTH,
        compressed=False,
        deleted=False,
        content=parts.encode(content),
        content_version=parts.CONTENT_VERSION,
        created_by=None,
        model_config_id=None,
        reasoning_effort=None,
        client_id=None,
        created_at=datetime.now(UTC),
    )


def call(name: str = "look", **arguments: object) -> ToolCall:
    return ToolCall("call-1", name, args=parts.json_raw(arguments))


def test_committed_text_is_not_said_twice(printer: TranscriptPrinter, told: Told) -> None:
    printer.print_live(Role.ASSISTANT, Text("Good "))
    printer.print_live(Role.ASSISTANT, Text("morn"))

    printer.print_committed(committed(Role.ASSISTANT, Text("Good morning.")))

    assert told.said == ["|", "Good ", "morn", "ing."]


def test_text_that_nobody_saw_live_is_said_when_it_is_committed(printer: TranscriptPrinter, told: Told) -> None:
    printer.print_committed(committed(Role.ASSISTANT, Text("One."), Text("Two.")))
    printer.print_committed(committed(Role.ASSISTANT, Text("Three.")))

    assert told.said == ["|", "One.", "|", "Two.", "|", "Three."]


def test_committed_text_that_differs_from_the_preview_is_said_in_full(printer: TranscriptPrinter, told: Told) -> None:
    printer.print_live(Role.ASSISTANT, Text("Good morn"))

    printer.print_committed(committed(Role.ASSISTANT, Text("Hello.")))

    assert told.said == ["|", "Good morn", "|", "Hello."]


async def test_call_is_told_once_and_its_result_with_the_time_since_its_commit(told: Told) -> None:
    clock = FakeClock()
    printer = TranscriptPrinter(told, clock)
    printer.print_live(Role.ASSISTANT, ToolCall("call-1", "look", args_delta='{"wh'))
    printer.print_live(Role.ASSISTANT, call(where="here"))
    await clock.advance(5)
    printer.print_committed(committed(Role.ASSISTANT, call(where="here")))
    await clock.advance(2)
    result = ToolResult("call-1", "look", result=parts.json_raw("done"))

    printer.print_live(Role.TOOL, ToolResult("call-1", "look", result_delta="do"))
    printer.print_live(Role.TOOL, result)
    printer.print_committed(committed(Role.TOOL, result))

    assert told.said == ['# look where="here"', "# look done in 2.0 s"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"error": "no such\n  file"}, "no such file"),
        ("plain", "plain"),
        ({"code": 7}, '{"code":7}'),
    ],
)
def test_tool_that_failed_says_why(printer: TranscriptPrinter, told: Told, value: object, reason: str) -> None:
    printer.print_committed(
        committed(Role.TOOL, ToolResult("call-1", "look", result=parts.json_raw(value), is_error=True))
    )

    assert told.said == [f"# look failed: {reason}"]


def test_everything_else_of_a_message_is_told_in_a_line(printer: TranscriptPrinter, told: Told) -> None:
    printer.print_live(Role.ASSISTANT, Reasoning("Hm."))
    printer.print_live(Role.ASSISTANT, Reasoning("", completed_at=datetime.now(UTC)))
    printer.print_committed(
        committed(
            Role.ASSISTANT, Source("https://example.org", title="An example"), File("image/png", "rook.png", uuid4())
        )
    )
    printer.print_committed(committed(Role.SYSTEM, Text("The step limit is reached.\n\nSend a message.")))
    printer.print_committed(committed(Role.SYSTEM, WorkspaceContext(uuid4(), 1, "h")))

    assert told.said == [
        "(Hm.)",
        ".",
        "# source: An example https://example.org",
        "# file: rook.png (image/png)",
        "- The step limit is reached.",
        "- Send a message.",
    ]


@pytest.mark.parametrize("is_error", [False, True])
def test_question_of_a_model_is_told_with_its_choices(printer: TranscriptPrinter, told: Told, is_error: bool) -> None:
    options = [{"label": "Red", "description": "Warm"}, {"label": "Blue", "description": "Cold"}]
    asked = parts.json_raw({"questions": [{"header": "Colour", "question": "Which one?", "options": options}]})

    printer.print_committed(committed(Role.TOOL, ToolResult("c", "ask_user_question", result=asked, is_error=is_error)))

    words = ["- Which one?", "-   - Red: Warm", "-   - Blue: Cold", "- Answer with your next message."]
    assert told.said[1:] == ([] if is_error else words)
