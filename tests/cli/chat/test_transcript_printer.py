"""The printed transcript of a step, live and committed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from rookery.cli.chat.terminal_screen import Style
from rookery.cli.chat.transcript_printer import EndMark, TranscriptPrinter, end_line, ended_agent
from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import (
    AgentNotice,
    File,
    Part,
    Reasoning,
    Source,
    Text,
    ToolCall,
    ToolResult,
    TurnEnd,
    WorkspaceContext,
)


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

    def user(self, text: str) -> None:
        self.said.append(f"> {text}")

    def result(self, result: ToolResult) -> None:
        """Keep nothing: the lines of the tools are looked at."""

    def output(self, piece: str) -> None:
        self.said.append(f"~ {piece}")

    def lines(self, *texts: str) -> None:
        self.said.extend(f"- {text}" for text in texts)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def printer(told: Told) -> Printer:
    return Printer(told)


class Printer:
    """A printer whose time stands still unless a test moves it."""

    def __init__(self, told: Told) -> None:
        self.inner = self._printer = TranscriptPrinter(told)
        self.at = datetime(2030, 1, 1, tzinfo=UTC)

    def live(self, part: Part) -> None:
        self._printer.print_live(part, at=self.at)

    def committed(self, role: Role, *content: Part, is_interrupted: bool = False) -> None:
        self._printer.print_committed(role, content, at=self.at, is_interrupted=is_interrupted)


def call(name: str = "look", **arguments: object) -> ToolCall:
    return ToolCall("call-1", name, args=parts.json_raw(arguments))


def test_committed_text_is_not_said_twice(printer: Printer, told: Told) -> None:
    printer.live(Text("Good "))
    printer.live(Text("morn"))

    printer.committed(Role.ASSISTANT, Text("Good morning."))

    assert told.said == ["|", "Good ", "morn", "ing."]


def test_text_that_was_not_shown_live_is_printed_when_it_is_committed(printer: Printer, told: Told) -> None:
    printer.committed(Role.ASSISTANT, Text("One."), Text("Two."))
    printer.committed(Role.ASSISTANT, Text("Three."))

    assert told.said == ["|", "One.", "|", "Two.", "|", "Three."]


def test_committed_text_that_differs_from_the_preview_is_said_in_full(printer: Printer, told: Told) -> None:
    printer.live(Text("Good morn"))

    printer.committed(Role.ASSISTANT, Text("Hello."))

    assert told.said == ["|", "Good morn", "|", "Hello."]


def test_call_is_told_once_and_its_result_with_the_time_since_its_commit(printer: Printer, told: Told) -> None:
    printer.live(ToolCall("call-1", "look", args_delta='{"wh'))
    printer.live(call(where="here"))
    printer.at += timedelta(seconds=5)
    printer.committed(Role.ASSISTANT, call(where="here"))
    printer.at += timedelta(seconds=2)
    result = ToolResult("call-1", "look", result=parts.json_raw("done"))

    printer.live(ToolResult("call-1", "look", result_delta="do"))
    printer.live(result)
    printer.committed(Role.TOOL, result)

    assert told.said == ['# look where="here"', "~ do", "# look done in 2.0 s"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"error": "no such\n  file"}, "no such file"),
        ("plain", "plain"),
        ({"code": 7}, '{"code":7}'),
    ],
)
def test_tool_that_failed_says_why(printer: Printer, told: Told, value: object, reason: str) -> None:
    printer.committed(Role.TOOL, ToolResult("call-1", "look", result=parts.json_raw(value), is_error=True))

    assert told.said == [f"# look failed: {reason}"]


def test_everything_else_of_a_message_is_told_in_a_line(printer: Printer, told: Told) -> None:
    printer.live(Reasoning("Hm."))
    printer.live(Reasoning("", completed_at=datetime.now(UTC)))
    printer.committed(
        Role.ASSISTANT, Source("https://example.org", title="An example"), File("image/png", "rook.png", uuid4())
    )
    printer.committed(Role.SYSTEM, Text("The step limit is reached.\n\nSend a message."))
    printer.committed(Role.SYSTEM, WorkspaceContext(uuid4(), 1, "h"))

    assert told.said == [
        "(Hm.)",
        ".",
        "# source: An example https://example.org",
        "# file: rook.png (image/png)",
        "- The step limit is reached.",
        "- Send a message.",
    ]


@pytest.mark.parametrize("is_error", [False, True])
def test_question_of_a_model_is_told_with_its_choices(printer: Printer, told: Told, is_error: bool) -> None:
    options = [{"label": "Red", "description": "Warm"}, {"label": "Blue", "description": "Cold"}]
    asked = parts.json_raw({"questions": [{"header": "Colour", "question": "Which one?", "options": options}]})

    printer.committed(Role.TOOL, ToolResult("c", "ask_user_question", result=asked, is_error=is_error))

    words = ["- Which one?", "-   - Red: Warm", "-   - Blue: Cold", "- Answer with your next message."]
    assert told.said[1:] == ([] if is_error else words)


# Subagents

FIRST, SECOND = "aaaaaaaa-0000-0000-0000-000000000001", "bbbbbbbb-0000-0000-0000-000000000002"


def spawned(call_id: str, chat_id: str, title: str) -> ToolResult:
    value = {"chat_id": chat_id, "title": title, "status": "running", "type": "general"}
    return ToolResult(call_id, "spawn_agent", result=parts.json_raw(value))


def test_subagents_have_one_line_each_and_a_wait_names_them(printer: Printer, told: Told) -> None:
    printer.committed(Role.TOOL, spawned("c1", FIRST, "Docs"), spawned("c2", SECOND, "Tests"))
    printer.committed(Role.ASSISTANT, call("wait_agent", chat_ids=[FIRST, SECOND]))

    assert told.said == [
        "# spawn_agent done",
        "-   agent aaaaaaaa Docs: at work",
        "# spawn_agent done",
        "-   agent bbbbbbbb Tests: at work",
        "# wait_agent Docs, Tests",
    ]


def test_end_of_a_subagent_is_shown_at_once_and_not_again_by_the_wait(printer: Printer, told: Told) -> None:
    printer.committed(Role.TOOL, spawned("c1", FIRST, "Docs"))
    ended = ended_agent(UUID(FIRST), "Docs", "finished")

    printer.inner.tell_agent(ended)
    printer.inner.tell_agent(ended)
    printer.inner.tell_agent(ended_agent(UUID(SECOND), "Of another turn", "finished"))
    value = {"chat_id": FIRST, "title": "Docs", "status": "waiting", "report": "x"}
    printer.committed(Role.TOOL, ToolResult("c2", "wait_agent", result=parts.json_raw(value)))

    assert told.said[1:] == [
        "-   agent aaaaaaaa Docs: at work",
        "-   agent aaaaaaaa Docs: finished",
        "# wait_agent done",
    ]


def test_subagent_that_gets_another_task_is_at_work_again(printer: Printer, told: Told) -> None:
    at_rest = {"chat_id": FIRST, "title": "Docs", "status": "waiting", "report": "x"}
    for number, (name, value) in enumerate(
        [("wait_agent", at_rest), ("message_agent", {**at_rest, "status": "running"}), ("wait_agent", at_rest)]
    ):
        printer.committed(Role.TOOL, ToolResult(f"c{number}", name, result=parts.json_raw(value)))

    states = [line.rpartition(": ")[2] for line in told.said if line.startswith("-")]
    assert states == ["finished", "at work", "finished"]


def test_wait_for_unknown_subagents_shows_their_ids(printer: Printer, told: Told) -> None:
    printer.committed(Role.ASSISTANT, call("wait_agent", chat_id=FIRST))

    assert told.said == [f'# wait_agent chat_id="{FIRST}"']


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"status": "waiting", "report": "x"}, "finished"),
        ({"status": "running", "timed_out": True}, "at work"),
        ({"status": "requires_action", "phase": "approval"}, "at work"),
        ({"status": "error", "last_error": "No\nkey.", "last_error_kind": "auth"}, "failed: No key."),
        ({"status": "waiting", "interrupted": True}, "stopped"),
        ({"status": "waiting", "last_error": "x", "last_error_kind": "deadline"}, "stopped at its time limit"),
    ],
)
def test_result_of_a_wait_says_how_each_subagent_is(
    printer: Printer, told: Told, fields: dict[str, object], state: str
) -> None:
    value = {"agents": [{"chat_id": FIRST, "title": "Docs", "type": "general", **fields}]}

    printer.committed(Role.TOOL, ToolResult("c1", "wait_agent", result=parts.json_raw(value)))

    assert told.said[1:] == [f"-   agent aaaaaaaa Docs: {state}"]


@pytest.mark.parametrize("value", [{"output": "cut"}, {"agents": "many"}, ["x"], {"agents": [{"title": 1}]}])
def test_result_that_cannot_be_read_has_no_lines(printer: Printer, told: Told, value: object) -> None:
    printer.committed(Role.TOOL, ToolResult("c1", "wait_agent", result=parts.json_raw(value)))

    assert told.said == ["# wait_agent done"]


@pytest.mark.parametrize(
    ("outcome", "error", "state"),
    [
        ("finished", None, "finished"),
        ("error", "No key.", "failed: No key."),
        ("interrupted", None, "stopped"),
        ("deadline", None, "stopped at its time limit"),
    ],
)
def test_notice_about_a_subagent_is_one_line(
    printer: Printer, told: Told, outcome: str, error: str | None, state: str
) -> None:
    printer.committed(Role.USER, AgentNotice(UUID(FIRST), "Docs", "general", outcome, error=error))

    assert told.said == [f"-   agent aaaaaaaa Docs: {state}"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"success": True, "exit_code": 0}, "# execute done in 2.0 s"),
        ({"success": False, "exit_code": 3, "output": "x"}, "# execute failed after 2.0 s: exit code 3"),
        (
            {"success": False, "exit_code": -1, "error": "timed out after 5 s"},
            "# execute failed after 2.0 s: timed out after 5 s",
        ),
    ],
)
def test_command_that_failed_is_not_done(told: Told, printer: Printer, value: dict[str, object], line: str) -> None:
    printer.committed(Role.ASSISTANT, call("execute"))
    printer.at += timedelta(seconds=2)
    printer.committed(Role.TOOL, ToolResult("call-1", "execute", result=parts.json_raw(value)))

    assert told.said[-1] == line


def test_time_in_which_the_user_was_asked_is_not_the_tool_s(told: Told, printer: Printer) -> None:
    printer.committed(Role.ASSISTANT, call("execute"))
    printer.inner.wait_for_user("call-1")
    printer.at += timedelta(minutes=9)
    printer.committed(Role.TOOL, ToolResult("call-1", "execute", result=parts.json_raw({"success": True})))

    assert told.said[-1] == "# execute done"


def test_live_output_of_a_tool_is_passed_on(told: Told, printer: Printer) -> None:
    printer.live(ToolResult("call-1", "execute", result_delta="one\n"))

    assert told.said == ["~ one\n"]


STOPPED = parts.json_raw({"error": "Stopped by the user after 2 s.", "reason": "interrupted", "output": "one"})


def test_end_of_a_failed_turn_is_told_before_the_next_one_and_once(printer: Printer, told: Told) -> None:
    printer.committed(Role.SYSTEM, TurnEnd("failed", "auth", "The key is not valid."))
    assert told.said == []
    printer.committed(Role.USER, Text("Again."))
    printer.committed(Role.USER, Text("And again."))

    assert told.said == [f"- {end_line(EndMark(printer.at, 'The key is not valid.'))}"]
    assert "Failed, 20" in told.said[0]


@pytest.mark.parametrize("how", ["mark", "answer", "call"])
def test_end_of_a_stopped_turn_is_told_before_the_next_answer(printer: Printer, told: Told, how: str) -> None:
    if how == "mark":
        printer.committed(Role.SYSTEM, TurnEnd("stopped"))
    elif how == "answer":
        printer.committed(Role.ASSISTANT, Text("Half an"), is_interrupted=True)
    else:
        printer.committed(Role.ASSISTANT, call("execute"))
        printer.at += timedelta(seconds=2)
        printer.committed(Role.TOOL, ToolResult("call-1", "execute", result=STOPPED, is_error=True))
        assert told.said[-1] == "# execute stopped after 2.0 s"
    printer.live(Text("Once more."))

    assert told.said[-3:] == [f"- {end_line(EndMark(printer.at))}", "|", "Once more."]


def test_mark_that_was_taken_is_not_printed(printer: Printer, told: Told) -> None:
    printer.committed(Role.SYSTEM, TurnEnd("stopped"))

    assert printer.inner.take_end() == EndMark(printer.at)
    printer.committed(Role.USER, Text("Go on."))
    assert told.said == []
