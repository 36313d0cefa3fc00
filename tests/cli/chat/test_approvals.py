"""Questions about tool calls at the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from rookery.cli.chat import approval_rules as chat_rules
from rookery.cli.chat import approvals, chat_actions, prompt_loop
from rookery.cli.exit_codes import Exit, Refused
from rookery.client import ApprovalAnswer, DynamicTool
from rookery.client.models import ActionCall, Elicitation, FormField, FormOption, ServerQuestion
from rookery.domain.chat import parts
from rookery.domain.chat.messages import NewMessage, Role
from rookery.llm.scripted import CallTool, Say, Step, Wait, last_user_text
from rookery.llm.types import Call
from rookery.store import machine
from rookery.store.machine import Bundle, ChatSpec, Question
from tests.cli.chat.chat_rig import ChatRig, open_chat_desk, seated
from tests.worker.worker_rig import in_turn

CALL = ActionCall(tool_call_id="1", tool_name="execute", args={"command": "ls"})
PICK = DynamicTool(name="pick", description="Pick one.", input_schema={"type": "object"})


class Typed:
    """A user who types these lines, with the prompts before each."""

    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return next(self._lines)


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
    assert approvals.ask([CALL], lambda _: line) == [answer]


def test_a_line_that_says_neither_is_asked_again_with_an_explanation() -> None:
    person = Typed("", "what?", "y")

    (answer,) = approvals.ask([CALL], person)

    assert answer.decision == "approve"
    assert [approvals.HOW in prompt for prompt in person.prompts] == [False, True, True]


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_no_answer_is_none(end: type[BaseException]) -> None:
    def read_line(_: str) -> str:
        raise end

    with pytest.raises(approvals.Undecided):
        approvals.ask([CALL], read_line)


def test_the_arguments_are_shown_as_they_are_and_hide_nothing() -> None:
    args = {"command": "ls\nrm -rf /", "note": "harm\u202eless\u200b\x1b[2J", "n": [1, {"a": None}]}

    lines = list(approvals.question_lines([{"tool_name": "execute", "args": args}]))

    assert lines == [
        "Asked to run execute:",
        "  command: ls",
        "    rm -rf /",
        "  note: harm\\u202eless\\u200b\\u001b[2J",
        '  n: [1, {"a": null}]',
    ]


def test_the_name_of_a_tool_hides_nothing_either() -> None:
    (line,) = approvals.question_lines([{"tool_name": "ls\x1b[2K", "args": {}}])

    assert line == "Asked to run ls\\u001b[2K:"


ON_HOLD = ActionCall(tool_call_id="1", tool_name="execute", args={}, brake="The agent made the same call 5 times.")


def test_a_call_on_hold_says_why_and_can_be_continued_or_steered_but_not_always() -> None:
    person = Typed("a", "always", "n use make test")

    (answer,) = approvals.ask([ON_HOLD], person)
    lines = list(approvals.subagent_question_lines("A child", [ON_HOLD]))

    assert answer == ApprovalAnswer(tool_call_id="1", decision="deny", reason="use make test")
    assert person.prompts[0] == "Continue with execute? [y/n] "
    assert all(approvals.HOW_ON_HOLD in prompt for prompt in person.prompts[1:])
    assert lines[-1] == "The agent made the same call 5 times."


def test_long_arguments_say_how_much_is_left_out() -> None:
    lines = list(approvals.question_lines([{"tool_name": "execute", "args": {"command": "a\n" * 100}}]))

    assert len(lines) == approvals.MAX_LINES + 2
    assert "61 more lines" in lines[-1]


def roots_script(call: Call) -> Sequence[Step]:
    """Root chats end immediately, or wait forever."""
    return (Say("One moment."), Wait(3600)) if last_user_text(call.prompt) == "wait" else (Say("Good morning."),)


def test_a_question_of_a_subagent_is_asked_at_its_root(database_url: str, tmp_path: Path) -> None:
    person = Typed("n not that one", "/quit")

    with seated(database_url, tmp_path, roots_script) as (rig, runner):
        busy = runner.run(asked_by_a_subagent(rig, "wait"))
        # A client that would follow its root forever is stopped.
        left = runner.run(chat_actions.turn(rig.terminal(), busy, since=0, until_asked=True))
        runner.run(rig.client.chats.interrupt(busy))
        root = runner.run(asked_by_a_subagent(rig, "hello"))
        talk = prompt_loop.PromptLoop(rig.terminal(), runner, new_chat=chat_actions.NewChat(), chat_id=root)
        assert talk.run(person) == Exit.OK
        answered = runner.run(approvals.find_questions(rig.client, root))

    assert left == Exit.OK
    assert person.prompts == ["Run read_file? [y/n/a] ", "> "]
    assert [line for line in rig.notes if "subagent" in line] == ["A subagent (A child) waits for an answer."]
    assert "  path: /red" in rig.notes
    assert answered == []


async def asked_by_a_subagent(rig: ChatRig, words: str) -> UUID:
    """Create a root chat with this message and a subagent with an open question."""
    root = await rig.client.chats.create(words)
    spec = ChatSpec(
        owner_id=rig.person.id,
        title="A child",
        model_config_id=root.last_model_config_id,
        messages=(NewMessage(role=Role.USER, content=(parts.Text("go"),)),),
        parent_chat_id=root.id,
        root_chat_id=root.id,
    )
    call = parts.ToolCall("1", "read_file", args=parts.json_raw({"path": "/red"}))

    async def make(bundle: Bundle) -> None:
        """In one transaction, so that no worker takes the chat."""
        child = await machine.create_chat(bundle, spec)
        tx = await bundle.open(child.chat.id)
        await machine.commit_step(tx, [NewMessage(role=Role.ASSISTANT, content=(call,))])
        await machine.ask_approvals(tx, [Question(each) for each in await machine.open_calls.turn_calls(tx)])

    await rig.rig.replica.machine.bundle(make)
    return root.id


async def test_rules_are_shown_and_replaced(database_url: str, tmp_path: Path) -> None:
    rules = b'[{"tool": "execute", "match": {"command": "git *"}, "action": "ask"}]'
    async with open_chat_desk(database_url, tmp_path) as rig:
        with rig.script((Say("Good morning."),)):
            made = await rig.client.chats.create("hello")
        for whose in ({"reference": None}, {"reference": str(made.id)}):
            await chat_rules.rules(rig.terminal(), **whose, server=False, given=rules)
            assert rig.said.splitlines()[1].split() == ["ask", "execute", "command:", "git", "*"]
            await chat_rules.rules(rig.terminal(), **whose, server=False, given=b"[]")
            assert rig.said == "There are no rules.\n"
        server = b'{"default": "ask", "rules": [{"tool": "rm", "action": "deny"}]}'
        await chat_rules.rules(rig.terminal(), None, server=True, given=server)
        await chat_rules.rules(rig.terminal(), None, server=True, given=None)

        assert rig.said.splitlines()[-1].startswith("Any other call: ask. Questions are open until they are answered")


@pytest.mark.parametrize(
    "given", [b"", b"{}", b'[{"tool": "x"}]', b'[{"tool": "x", "action": "allow", "mach": {"a": "b"}}]', b"\xff"]
)
async def test_rules_that_cannot_be_meant_are_refused_before_they_are_sent(given: bytes) -> None:
    with pytest.raises(Refused, match="not a list of rules"):
        chat_rules._read_rules(given)


def test_a_question_is_asked_at_the_prompt_and_its_answer_moves_the_chat(database_url: str, tmp_path: Path) -> None:
    person = Typed("n not that one", "/quit")
    script = in_turn((CallTool("pick", {"what": "red"}),), (Say("As you wish."),))

    with seated(database_url, tmp_path, script) as (rig, runner):

        async def asked_chat() -> UUID:
            rules = {"rules": [{"tool": "pick", "action": "ask"}]}
            await rig.person.http.put("/api/v1/settings/approvals", json=rules)
            made = await rig.client.chats.create("hello", dynamic_tools=[PICK])
            await rig.client.chats.wait_idle(made.id, made.snapshot_version)
            return made.id

        talk = prompt_loop.PromptLoop(
            rig.terminal(), runner, new_chat=chat_actions.NewChat(), chat_id=runner.run(asked_chat())
        )
        assert talk.run(person) == Exit.OK

    assert person.prompts == ["Run pick? [y/n/a] ", "> "]
    assert not any("rookery chat attach` asks" in note for note in rig.notes)
    assert "As you wish." in rig.said


SEAT = FormField(
    name="seat", kind="choice", title="Seat", required=True, options=(FormOption(value="w", title="Window"),)
)
FORM = ActionCall(
    tool_call_id="1",
    tool_name="trains__book",
    args={},
    elicitation=Elicitation(
        server="Trains",
        questions=(
            ServerQuestion(id="q", message="Where?", fields=(SEAT, FormField(name="meals", kind="integer"))),
            ServerQuestion(id="pay", message="Pay", url="https://pay.example/1"),
        ),
    ),
)


def test_the_form_of_a_server_is_read_field_by_field() -> None:
    lines = iter(["y", "", "no such seat", "1", "two", "2"])

    (answer,) = approvals.ask([FORM], lambda prompt: next(lines))

    assert answer.responses == {"q": {"seat": "w", "meals": 2}}


def test_a_server_is_told_nothing_if_the_user_declines() -> None:
    (answer,) = approvals.ask([FORM], lambda prompt: "n too dear")

    assert (answer.decision, answer.reason, answer.responses) == ("deny", "too dear", None)


def test_the_question_of_a_server_shows_its_address() -> None:
    shown = list(approvals.subagent_question_lines("Child", [FORM]))

    assert "  Trains asks: Where?" in shown
    assert any("https://pay.example/1" in line for line in shown)


def test_a_form_can_be_answered_in_one_line() -> None:
    assert FORM.elicitation is not None
    one = Elicitation(server="Trains", questions=(ServerQuestion(id="q", fields=(SEAT,)),))

    assert approvals.typed_responses(FORM.elicitation, "seat=window; meals = 2") == {"q": {"seat": "w", "meals": 2}}
    assert approvals.typed_responses(one, "Window") == {"q": {"seat": "w"}}
    assert approvals.form_hint(FORM.elicitation) == "y seat=...; meals=..."
