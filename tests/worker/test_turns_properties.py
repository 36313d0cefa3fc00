"""For any behavior of models, tools and users, chats come to rest with a history that can continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery.domain.chat import compaction
from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import ChatId, Message, Role
from rookery.domain.chat.parts import ToolCall, ToolResult
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import CallTool, Fail, Pause, Say, Step, Think, Truncate
from rookery.llm.types import Call, ErrorKind, Purpose
from rookery.loop.tool import Replay, ToolOutput
from tests import scripted_tools
from tests.eventually import until
from tests.worker.worker_rig import WorkerRig, open_house

Answer: TypeAlias = tuple[Step, ...]

CALLS = st.lists(st.sampled_from(["ok", "broken", "nobody", "once"]), min_size=1, max_size=3)
ANSWERS: st.SearchStrategy[Answer] = st.one_of(
    st.just((Think("hm"), Say("words"))),
    CALLS.map(lambda names: (Say("look"), *(CallTool(name) for name in names))),
    CALLS.map(lambda names: tuple(CallTool(name) for name in names)),
    st.sampled_from(
        [
            (Say("half"), Truncate()),
            (Fail(ErrorKind.OVERLOADED),),
            (Say("wait"), Pause()),
            (Fail(ErrorKind.AUTH, retryable=False),),
            (Say("half"), Fail(ErrorKind.CONTEXT_OVERFLOW, retryable=False)),
            (),
        ]
    ),
)
DEEDS = st.sampled_from(["queue", "steer", "interrupting", "interrupt", "edit", "compact", "retry", "nothing"])
# Outcomes that leave a message without an answer.
DISTURBING = frozenset({"interrupting", "interrupt", "edit"})


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[WorkerRig]:
    """One rig for all examples, because an example needs only a separate chat."""
    tools = [
        scripted_tools.echo("ok"),
        scripted_tools.ScriptedTool("broken", _break),
        scripted_tools.counting("once", Replay.LEDGER),
    ]
    async with open_house(database_url, tools=tools) as opened:
        yield opened


async def _break(*_: object) -> ToolOutput:
    raise ValueError("no")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    answers=st.lists(ANSWERS, max_size=8),
    deeds=st.lists(st.tuples(DEEDS, st.integers(0, 40)), max_size=6),
)
async def test_chat_comes_to_rest_with_a_history_that_can_go_on(
    rig: WorkerRig, answers: list[Answer], deeds: list[tuple[str, int]]
) -> None:
    left = list(answers)

    def script(call: Call) -> Sequence[Step]:
        if call.purpose is Purpose.COMPACTION:
            return (Say("In short."),)
        return left.pop(0) if left else (Say("the end"),)

    rig.script = script
    chat_id = await rig.ask("first")
    done = [deed for deed, turns in deeds if await _do(rig, chat_id, deed, turns)]
    await rig.rested(chat_id)
    left.clear()
    await rig.send(chat_id, "last")
    await until(lambda: _is_over(rig, chat_id))

    rows = await rig.messages(chat_id)
    _check_pairs(rows)
    assert [row.id for row in rows] == sorted({row.id for row in rows})
    assert (await rig.story(chat_id))[-1] == ("assistant", "the end")
    if not DISTURBING & set(done) and not any(_is_final(answer) for answer in answers):
        _check_answered(rows)
    await until(lambda: len(rig.worker.manager) == 0)
    assert (await rig.chat(chat_id)).worker_id is None


async def _do(rig: WorkerRig, chat_id: ChatId, deed: str, turns: int) -> bool:
    """Do the action after this many passes of the event loop. Return whether the chat allowed it."""
    for _ in range(turns):
        await asyncio.sleep(0)
    try:
        match deed:
            case "queue":
                await rig.send(chat_id, "more")
            case "steer":
                await rig.send(chat_id, "this way", BusyBehavior.STEER)
            case "interrupting":
                await rig.send(chat_id, "no", BusyBehavior.INTERRUPT)
            case "interrupt":
                await rig.interrupt(chat_id)
            case "edit":
                said = [row for row in await rig.messages(chat_id) if row.role is Role.USER]
                await rig.edit(chat_id, said[-1], "rather")
            case "compact":
                await rig.compact(chat_id)
            case "retry":
                await rig.retry(chat_id)
    except ChatError:
        return False
    return True


async def _is_over(rig: WorkerRig, chat_id: ChatId) -> bool:
    """Return whether the turn is over. A chat in an error processes its queue only after a new message."""
    chat = await rig.chat(chat_id)
    if chat.status == Status.ERROR:
        await rig.send(chat_id, "last")
    return chat.status == Status.WAITING


def _is_final(answer: Answer) -> bool:
    return any(isinstance(step, Fail) and not step.retryable for step in answer) or answer == ()


def _check_pairs(rows: Sequence[Message]) -> None:
    """Check that every call has one result after it and before the next user message, and that no result is without a
    call.

    Ids are unique since the newest summary, because no request contains older messages.
    """
    open_calls: set[str] = set()
    made: set[str] = set()
    for row in rows:
        if row.role is Role.USER:
            assert not open_calls
        for part in row.parts():
            if isinstance(part, ToolCall):
                made = set() if part.tool_name == compaction.TOOL_NAME else made
                assert part.tool_call_id not in made
                made.add(part.tool_call_id)
                open_calls.add(part.tool_call_id)
            elif isinstance(part, ToolResult):
                open_calls.remove(part.tool_call_id)
    assert not open_calls


def _check_answered(rows: Sequence[Message]) -> None:
    """Check that the model answers each message, or each group of messages that it received together."""
    roles = [row.role for row in rows if row.role is not Role.SYSTEM and not row.compressed]
    for place, role in enumerate(roles):
        if role is Role.USER:
            after = next((other for other in roles[place:] if other is not Role.USER), None)
            assert after is Role.ASSISTANT


@pytest.mark.parametrize("rows", [[(Role.ASSISTANT, "c")], [(Role.TOOL, "c")]])
def test_pairs_that_are_none_are_found(rows: list[tuple[Role, str]]) -> None:
    class Row:
        def __init__(self, role: Role, call_id: str) -> None:
            self.role = role
            self._part = ToolCall(call_id, "t") if role is Role.ASSISTANT else ToolResult(call_id, "t")

        def parts(self) -> tuple[ToolCall | ToolResult, ...]:
            return (self._part,)

    with pytest.raises((AssertionError, KeyError)):
        _check_pairs([Row(*row) for row in rows])  # type: ignore[misc]
