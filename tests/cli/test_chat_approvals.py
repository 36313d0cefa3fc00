"""Questions about tool calls at the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from rookery.cli import chat_approvals, chat_talk
from rookery.cli.exits import Exit
from rookery.client import ApprovalAnswer, DynamicTool
from rookery.client.models import ActionCall
from rookery.llm.scripted import CallTool, Say
from tests.cli.chat_desk import open_chat_desk
from tests.worker.house import in_turn

CALL = ActionCall(tool_call_id="1", tool_name="execute", args={"command": "ls"})
PICK = DynamicTool(name="pick", description="Pick one.", input_schema={"type": "object"})


def typed(*lines: str) -> Iterator[str]:
    yield from lines


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("y", ApprovalAnswer(tool_call_id="1", decision="approve")),
        ("Yes", ApprovalAnswer(tool_call_id="1", decision="approve")),
        ("n", ApprovalAnswer(tool_call_id="1", decision="deny")),
        ("n  not today ", ApprovalAnswer(tool_call_id="1", decision="deny", reason="not today")),
        ("always", ApprovalAnswer(tool_call_id="1", decision="approve", always="chat")),
    ],
)
def test_a_line_becomes_an_answer(line: str, answer: ApprovalAnswer) -> None:
    assert chat_approvals.ask([CALL], lambda _: line) == [answer]


def test_a_line_that_says_neither_is_asked_again_with_an_explanation() -> None:
    lines, prompts = typed("", "what?", "y"), []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    (answer,) = chat_approvals.ask([CALL], read_line)

    assert answer.decision == "approve"
    assert [chat_approvals.HOW in prompt for prompt in prompts] == [False, True, True]


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_no_answer_is_none(end: type[BaseException]) -> None:
    def read_line(_: str) -> str:
        raise end

    with pytest.raises(chat_approvals.Undecided):
        chat_approvals.ask([CALL], read_line)


def test_the_arguments_are_shown_as_they_are_and_hide_nothing() -> None:
    args = {"command": "ls\nrm -rf /", "note": "harm\u202eless\u200b\x1b[2J", "n": [1, {"a": None}]}

    lines = list(chat_approvals.told([{"tool_name": "execute", "args": args}]))

    assert lines == [
        "Asked to run execute:",
        "  command: ls",
        "    rm -rf /",
        "  note: harm\\u202eless\\u200b\\u001b[2J",
        '  n: [1, {"a": null}]',
    ]


def test_long_arguments_say_how_much_is_left_out() -> None:
    lines = list(chat_approvals.told([{"tool_name": "execute", "args": {"command": "a\n" * 100}}]))

    assert len(lines) == chat_approvals.MAX_LINES + 2
    assert "61 more lines" in lines[-1]


def test_a_question_is_asked_at_the_prompt_and_its_answer_moves_the_chat(database_url: str, tmp_path: Path) -> None:
    lines, prompts = typed("n not that one", "/quit"), []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    with asyncio.Runner() as runner:
        opened = open_chat_desk(database_url, tmp_path)
        desk = runner.run(opened.__aenter__())
        try:
            with desk.script(in_turn((CallTool("pick", {"what": "red"}),), (Say("As you wish."),))):

                async def asked_chat() -> UUID:
                    rules = {"rules": [{"tool": "pick", "action": "ask"}]}
                    await desk.person.http.put("/api/v1/settings/approvals", json=rules)
                    made = await desk.client.chats.create("hello", dynamic_tools=[PICK])
                    await desk.client.chats.wait_idle(made.id, made.snapshot_version)
                    return made.id

                chat_id = runner.run(asked_chat())
                talk = chat_talk.Talk(desk.terminal(), runner, model=None, chat_id=chat_id)
                assert talk.run(read_line) == Exit.OK
        finally:
            runner.run(opened.__aexit__(None, None, None))

    assert prompts == ["Run pick? [y/n/a] ", "> "]
    assert "As you wish." in desk.said
