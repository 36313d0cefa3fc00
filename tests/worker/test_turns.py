"""Whole turns, from a user's message until the chat is at rest."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

import msgspec
import pytest

from rookery.domain.chat.chat import RetryState
from rookery.domain.chat.messages import ChatId, Visibility
from rookery.domain.chat.model_prompt import PromptText
from rookery.domain.chat.parts import Text, ToolCall, TurnEnd
from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import CallTool, Count, Fail, Pause, Say, Step, Think, Truncate, Wait
from rookery.llm.types import Call, ErrorKind, Usage
from rookery.loop.config import LoopConfig
from rookery.loop.tool import Replay, ToolOutput
from rookery.models.model_resolution import FALLBACK_ATTEMPTS
from rookery.store import machine
from rookery.store.db.hints import MiscHint, nudge_topic
from rookery.store.machine import Machine, Tx
from rookery.testing import FakeClock
from tests import scripted_tools
from tests.eventually import until
from tests.worker.worker_rig import BRAKE_OFF, LABEL, STILL, GatedToolbox, WorkerRig, in_turn, open_house

USER = ("user", "hello")
# The mark of a failed turn.
MARK = ("system", "TurnEnd")


async def test_message_is_answered(database_url: str) -> None:
    async with open_house(database_url, script=(Think("Hm."), Say("Good morning."))) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert await rig.story(chat_id) == [USER, ("assistant", "(Hm.) Good morning.")]


@pytest.mark.parametrize(("options", "sent"), [({}, 1_234), ({"max_output_tokens": 5_000}, 5_000)])
async def test_answer_is_as_long_as_the_config_says_or_else_the_setting(
    database_url: str, options: dict[str, object], sent: int
) -> None:
    async with open_house(database_url, script=(Say("hi"),), options=options, max_output_tokens=1_234) as rig:
        await rig.rested(await rig.ask("hello"))

        assert [call.max_output_tokens for call in rig.calls] == [sent]


async def test_effects_of_a_turn_run_although_its_task_has_ended(database_url: str) -> None:
    async with open_house(database_url, script=(Say("Good morning."),)) as rig:
        chat_id = await rig.ask("hello")

        await rig.rested(chat_id)
        await rig.worker.wait_idle()

        assert await rig.sql("SELECT last_turn_summary FROM chats WHERE id = $1", chat_id) == LABEL


async def test_answer_carries_its_figures_and_its_bill(database_url: str) -> None:
    usage = Usage(input=1000, output=50, total=1050, context_tokens=1000)
    async with open_house(database_url, script=(Count(usage), Say("Good morning."))) as rig:
        await rig.sql("UPDATE model_configs SET price_input = 3, price_output = 15 WHERE id = $1", rig.model)
        chat_id = await rig.ask("hello")

        await rig.rested(chat_id)

        figures = await rig.rows(chat_id, "input_tokens, output_tokens, cost_micros, context_limit, finish_reason")
        assert figures[1] == (1000, 50, 3750, 100_000, "stop")
        columns = "purpose, status, cost_micros, message_id IS NOT NULL"
        assert await rig.usage(chat_id, columns) == [("turn", "ok", 3750, True)]


async def test_messages_wait_in_the_queue_and_are_answered_in_order(database_url: str) -> None:
    release = asyncio.Event()
    tool = scripted_tools.ScriptedTool("hold", lambda *_: _after(release))
    script = in_turn((CallTool("hold"),), (Say("one"),), (Say("two"),), (Say("three"),))
    async with open_house(database_url, script=script, tools=[tool]) as rig:
        chat_id = await rig.ask("first")
        await tool.started.wait()
        await rig.send(chat_id, "second")
        await rig.send(chat_id, "third")

        release.set()
        await rig.rested(chat_id)

        said = [words for role, words in await rig.story(chat_id) if role in ("user", "assistant")]
        assert said == ["first", "hold!", "one", "second", "two", "third", "three"]


async def test_steering_message_is_heard_at_the_next_step(database_url: str) -> None:
    release = asyncio.Event()
    tool = scripted_tools.ScriptedTool("hold", lambda *_: _after(release))
    script = in_turn((CallTool("hold"),), (Say("as you wish"),))
    async with open_house(database_url, script=script, tools=[tool]) as rig:
        chat_id = await rig.ask("go on")
        await tool.started.wait()
        await rig.send(chat_id, "but slowly", BusyBehavior.STEER)

        release.set()
        await rig.rested(chat_id)

        assert [words for _, words in await rig.story(chat_id)] == [
            "go on",
            "hold!",
            "hold=ok",
            "but slowly",
            "as you wish",
        ]


async def _after(event: asyncio.Event) -> ToolOutput:
    await event.wait()
    return ToolOutput("held")


# Tools


async def test_parallel_calls_are_answered_once_and_in_their_order(database_url: str) -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def meet(mine: asyncio.Event, other: asyncio.Event) -> ToolOutput:
        mine.set()
        await other.wait()
        return ToolOutput("met")

    tools = [
        scripted_tools.ScriptedTool("left", lambda *_: meet(first, second)),
        scripted_tools.ScriptedTool("right", lambda *_: meet(second, first)),
        scripted_tools.failing(ValueError("broken"), "raise"),
        scripted_tools.echo("serial", serial=True),
    ]
    calls = ("serial", "left", "raise", "nobody", "right")
    script = in_turn(tuple(CallTool(name) for name in calls), (Say("done"),))
    async with open_house(database_url, script=script, tools=tools) as rig:
        chat_id = await rig.ask("hello")

        await rig.rested(chat_id)

        assert (await rig.story(chat_id))[2:] == [
            ("tool", "serial=ok"),
            ("tool", "left=ok"),
            ("tool", "raise=error"),
            ("tool", "nobody=error"),
            ("tool", "right=ok"),
            ("assistant", "done"),
        ]
        # All results of a batch have one revision, because they are one commit.
        revisions = {revision for role, revision in await rig.rows(chat_id, "role, revision") if role == "tool"}
        assert len(revisions) == 1


async def test_exclusive_tool_runs_alone_or_not_at_all(database_url: str) -> None:
    advisor, read = scripted_tools.echo("advisor", exclusive=True), scripted_tools.echo("read")
    script = in_turn((CallTool("advisor"), CallTool("read")), (CallTool("advisor"),), (Say("done"),))
    async with open_house(database_url, script=script, tools=[advisor, read]) as rig:
        chat_id = await rig.ask("hello")

        await rig.rested(chat_id)

        assert (len(advisor.runs), len(read.runs)) == (1, 0)
        results = [words for role, words in await rig.story(chat_id) if role == "tool"]
        assert results == ["advisor=error", "read=error", "advisor=ok"]


BAD_TOOLS = {
    "raises": (scripted_tools.failing(RuntimeError("no way"), "bad"), "no way"),
    "raises what it should not": (scripted_tools.failing(GeneratorExit(), "bad"), "GeneratorExit"),
    "is cancelled by a library": (scripted_tools.failing(asyncio.CancelledError(), "bad"), "cancelled"),
    "gives no UTF-8": (scripted_tools.garbled("bad"), "good"),
    "gives fifty megabytes": (scripted_tools.huge(50_000_000, "bad"), "xxxx"),
}


@pytest.mark.parametrize("kind", BAD_TOOLS)
async def test_turn_goes_on_after_a_tool_that(kind: str, database_url: str) -> None:
    tool, expected = BAD_TOOLS[kind]
    async with open_house(database_url, script=in_turn((CallTool("bad"),), (Say("I see."),)), tools=[tool]) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[-1] == ("assistant", "I see.")
        (result,) = await rig.results(chat_id)
        assert expected in str(result)
        assert len(str(result)) < 110_000  # a third of the window, at three bytes per token


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_tool_that_hangs_is_stopped_at_its_deadline(is_deaf: bool, database_url: str) -> None:
    clock, let_go = FakeClock(), asyncio.Event()
    tool = scripted_tools.deaf(let_go, "bad") if is_deaf else scripted_tools.hanging("bad")
    script = in_turn((CallTool("bad"),), (Say("I see."),))
    async with open_house(database_url, script=script, tools=[tool], clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()

        await clock.fire("tool")
        if is_deaf:
            await clock.fire("tool-cleanup")
        await rig.rested(chat_id)

        assert "did not finish within 10 min" in str(await rig.results(chat_id))
        let_go.set()


async def test_tool_may_be_silent_for_longer_than_a_task(database_url: str) -> None:
    clock = FakeClock()
    tool = scripted_tools.slow(40 * 60, "slow", deadline_seconds=3600)
    script = in_turn((CallTool("slow"),), (Say("at last"),))
    async with open_house(database_url, script=script, tools=[tool], clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("tool-slow")

        await clock.fire("tool-slow")
        await rig.rested(chat_id)

        assert (await rig.story(chat_id))[-1] == ("assistant", "at last")
        assert len(tool.runs) == 1


async def test_ledgered_tool_runs_once_although_its_replica_dies(database_url: str) -> None:
    release = asyncio.Event()
    count = scripted_tools.counting("pay", Replay.LEDGER)
    hold = scripted_tools.ScriptedTool("hold", lambda *_: _after(release))
    script = in_turn((CallTool("pay"), CallTool("hold")), (Say("paid"),))
    async with open_house(database_url, script=script, tools=[count, hold]) as rig:
        chat_id = await rig.ask("hello")
        await until(lambda: rig.sql("SELECT finished_at IS NOT NULL FROM chat_tool_runs"))

        await rig.crash()
        release.set()
        await rig.add_replica()
        await rig.rested(chat_id)

        assert len(count.runs) == 1
        assert (await rig.results(chat_id))[0] == {"times": 1}


async def test_call_ids_that_repeat_are_told_apart(database_url: str) -> None:
    tool = scripted_tools.echo("read")
    script = in_turn((CallTool("read", {"n": 1}),), (CallTool("read", {"n": 2}),), (Say("ok"),))

    async with open_house(database_url, script=script, tools=[tool]) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        ids = [
            part.tool_call_id
            for message in await rig.messages(chat_id)
            for part in message.parts()
            if isinstance(part, ToolCall)
        ]
        assert len(set(ids)) == 2
        assert [result["n"] for result in await rig.results(chat_id)] == [1, 2]


# Retries


async def retry_of(rig: WorkerRig, chat_id: ChatId) -> RetryState:
    await until(lambda: rig.sql("SELECT retry_state IS NOT NULL FROM chats WHERE id = $1", chat_id))
    stored = await rig.sql("SELECT retry_state FROM chats WHERE id = $1", chat_id)
    return msgspec.json.decode(stored, type=RetryState)


async def test_throttled_step_waits_and_is_made_again(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Fail(ErrorKind.RATE_LIMIT, status=429),), (Say("now"),))
    async with open_house(database_url, script=script, clock=clock, retry=RetryPolicy()) as rig:
        chat_id = await rig.ask("hello")

        await clock.until_waiting("generation-retry")
        retry = await retry_of(rig, chat_id)
        await clock.fire("generation-retry")
        await rig.rested(chat_id)

        assert (retry.attempt, retry.kind, retry.status_code) == (1, "rate_limit", 429)
        assert 1000 <= retry.delay_ms <= 1200
        assert await rig.story(chat_id) == [USER, ("assistant", "now")]
        assert (await rig.chat(chat_id)).retry_state is None
        assert await rig.usage(chat_id) == [("turn", "failed"), ("turn", "ok")]


async def test_longer_retry_after_wins(database_url: str) -> None:
    clock = FakeClock()
    fail = Fail(ErrorKind.RATE_LIMIT, retry_after=timedelta(seconds=90))
    async with open_house(database_url, script=(fail,), clock=clock, retry=RetryPolicy()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("generation-retry")

        retry = await retry_of(rig, chat_id)

        assert 90_000 <= retry.delay_ms <= 108_000


async def test_provider_that_wants_to_be_left_alone_for_an_hour_is_not_waited_for(database_url: str) -> None:
    fail = Fail(ErrorKind.RATE_LIMIT, retry_after=timedelta(hours=1))
    async with open_house(database_url, script=(fail,)) as rig:
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert error.kind == "rate_limit"
        assert "Possible again at" in (error.detail or "")
        assert len(rig.calls) == 1


async def test_wait_goes_on_with_another_replica(database_url: str) -> None:
    clock = FakeClock()
    fail = (Fail(ErrorKind.OVERLOADED),)
    async with open_house(
        database_url, script=in_turn(fail, fail, fail, (Say("now"),)), clock=clock, retry=RetryPolicy()
    ) as rig:
        chat_id = await rig.ask("hello")
        await clock.fire("generation-retry")
        await until(lambda: len(rig.calls) == 2)
        await clock.fire("generation-retry")
        await until(lambda: len(rig.calls) == 3)
        await clock.until_waiting("generation-retry")

        await rig.crash()
        await until(lambda: not clock.waiting("generation-retry"))
        await rig.add_replica()
        await clock.until_waiting("generation-retry")
        (timer,) = clock.waiting("generation-retry")
        assert 3.9 <= timer.due - clock.monotonic() <= 4.8
        await clock.fire("generation-retry")
        await rig.rested(chat_id)

        assert len(rig.calls) == 4
        assert await rig.story(chat_id) == [USER, ("assistant", "now")]


async def test_messages_that_wait_stay_in_the_queue_when_the_attempts_are_used(database_url: str) -> None:
    clock = FakeClock()
    policy = RetryPolicy(max_attempts=2)
    async with open_house(database_url, script=(Fail(ErrorKind.OVERLOADED),), clock=clock, retry=policy) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("generation-retry")
        await rig.send(chat_id, "and then")

        await clock.fire("generation-retry")
        await rig.error(chat_id)

        chat = await rig.chat(chat_id)
        assert (chat.state, len(rig.calls)) == (State.E1, 2)


async def test_attempts_come_to_an_end(database_url: str) -> None:
    async with open_house(database_url, script=(Fail(ErrorKind.OVERLOADED),)) as rig:
        chat_id = await rig.ask("hello")
        error = await rig.error(chat_id)

        assert (error.kind, len(rig.calls)) == ("overloaded", 25)

        rig.script = (Say("better"),)
        await rig.send(chat_id, "again")
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, MARK, ("user", "again"), ("assistant", "better")]


async def test_step_that_kills_its_process_ends_in_an_error(database_url: str) -> None:
    kills = 25
    async with open_house(database_url, script=(Say("half"), Wait(3600)), workers=0) as rig:
        chat_id = await rig.ask("hello")
        # The first attempts are set as a crash leaves them; the last ones are real crashes.
        await rig.machine.chat(chat_id).update(partial(_count_attempts, count=kills - 2))
        for call in (1, 2):
            await rig.add_replica()
            await _until_asked(rig, call)
            await rig.crash()

        await rig.add_replica()
        error = await rig.error(chat_id)

        assert "allowed number of attempts" in error.message
        assert len(rig.calls) == 2
        assert await rig.story(chat_id) == [USER, MARK]


async def _until_asked(rig: WorkerRig, times: int) -> None:
    await until(lambda: len(rig.calls) == times)


async def _count_attempts(tx: Tx, count: int) -> None:
    for _ in range(count):
        await machine.record_generation_attempt(tx)


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ((Fail(ErrorKind.AUTH, retryable=False, status=401),), "auth"),
        ((Think("so"), Fail(ErrorKind.CONTENT_FILTER, retryable=False)), "content_filter"),
        ((Say("half of it"), Fail(ErrorKind.USAGE_LIMIT, retryable=False)), "usage_limit"),
    ],
)
async def test_final_failure_leaves_only_a_mark_and_can_be_retried(
    steps: tuple[Step, ...], kind: str, database_url: str
) -> None:
    async with open_house(database_url, script=steps) as rig:
        chat_id = await rig.ask("hello")
        error = await rig.error(chat_id)
        assert error.kind == kind
        assert await rig.story(chat_id) == [USER, MARK]
        (_, mark) = await rig.messages(chat_id)
        assert mark.visibility is Visibility.USER
        assert mark.parts() == (TurnEnd("failed", kind, error.message),)

        rig.script = (Say("now"),)
        await rig.retry(chat_id)
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, MARK, ("assistant", "now")]


async def test_cut_stream_is_tried_again_and_leaves_nothing(database_url: str) -> None:
    async with open_house(database_url, script=in_turn((Say("half"), Truncate()), (Say("whole"),))) as rig:
        chat_id = await rig.ask("hello")

        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, ("assistant", "whole")]


async def test_silent_model_is_given_up_and_asked_again(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Wait(3600),), (Say("half"), Wait(3600)), (Say("whole"),))
    async with open_house(database_url, script=script, clock=clock, retry=RetryPolicy()) as rig:
        chat_id = await rig.ask("hello")

        for _ in range(2):
            await clock.until_waiting("scripted-wait")
            await clock.fire("stream-silence")
            assert (await retry_of(rig, chat_id)).kind == "stream_silence_timeout"
            await clock.fire("generation-retry")
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, ("assistant", "whole")]


async def test_nudge_repeats_a_silent_call_at_once(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Wait(3600),), (Say("whole"),))
    async with open_house(database_url, script=script, clock=clock, retry=RetryPolicy()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")

        await nudge(rig, chat_id)
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, ("assistant", "whole")]
        assert len(rig.calls) == 2


async def test_nudge_ends_a_retry_delay(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Fail(ErrorKind.OVERLOADED),), (Say("whole"),))
    async with open_house(database_url, script=script, clock=clock, retry=RetryPolicy()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("generation-retry")

        await nudge(rig, chat_id)
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, ("assistant", "whole")]


async def nudge(rig: WorkerRig, chat_id: ChatId) -> None:
    chat = await rig.chat(chat_id)
    for replica in rig.replicas:
        replica.bus.dispatch(MiscHint(topic=nudge_topic(chat_id), data={"history_version": chat.history_version}))


async def test_empty_answer_to_a_message_is_a_hiccup_twice(database_url: str) -> None:
    async with open_house(database_url, script=(Say("  "),)) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (len(rig.calls), rig.worker.stats.calls.empty_responses) == (3, 3)
        assert await rig.usage(chat_id) == [("turn", "ok")] * 3


async def test_empty_answer_after_tools_ends_the_turn(database_url: str) -> None:
    script = in_turn((CallTool("read"),), ())
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")]) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert len(rig.calls) == 2


# Pauses and limits


async def test_paused_answer_goes_on_without_the_user(database_url: str) -> None:
    async with open_house(database_url, script=in_turn((Say("searching"), Pause()), (Say("found"),))) as rig:
        chat_id = await rig.ask("hello")

        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, ("assistant", "searching"), ("assistant", "found")]
        assert [reason for (reason,) in await rig.rows(chat_id, "finish_reason")] == [None, "pause", "stop"]


async def test_paused_answer_goes_on_after_a_crash(database_url: str) -> None:
    script = in_turn((Say("searching"), Pause()), (Wait(3600),), (Say("found"),))
    async with open_house(database_url, script=script) as rig:
        chat_id = await rig.ask("hello")
        await until(lambda: len(rig.calls) == 2)

        await rig.crash()
        await rig.add_replica()
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, ("assistant", "searching"), ("assistant", "found")]


async def test_provider_that_pauses_for_ever_is_stopped(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hm"), Pause())) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert len(rig.calls) == 11


async def test_turn_is_told_of_its_limit_and_stops_there_with_a_notice(database_url: str) -> None:
    script = (CallTool("read"),)
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], max_steps=10) as rig:
        await rig.set("chats", BRAKE_OFF)
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert len(rig.calls) == 10
        told = [_last_text(call) for call in rig.calls]
        assert "<notice>" not in told[8]
        assert "Most of the 10 steps" in told[9]
        role, notice = (await rig.story(chat_id))[-1]
        assert role == "system"
        assert "limit of 10 steps" in notice
        await rig.worker.wait_idle()
        label = await rig.sql("SELECT last_turn_summary FROM chats WHERE id = $1", chat_id)
        assert label == "Stopped at step limit"


def _last_text(call: Call) -> str:
    return "".join(part.text for part in call.prompt.messages[-1].parts if isinstance(part, PromptText))


async def test_steering_message_at_the_step_limit_is_answered(database_url: str) -> None:
    toolbox = GatedToolbox(scripted_tools.echo("read"))
    script = in_turn((CallTool("read"),), (Say("go on then"),))
    async with open_house(database_url, script=script, toolbox=toolbox, max_steps=1) as rig:
        chat_id = await rig.ask("hello")
        toolbox.let_go(2)  # the answer and its call
        await until(lambda: rig.sql("SELECT count(*) = 3 FROM chat_messages WHERE chat_id = $1", chat_id))
        await toolbox.waiting.wait()
        # The step that ends the turn has read the history.
        await rig.send(chat_id, "wait", BusyBehavior.STEER)

        toolbox.let_go(9)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert [role for role, _ in (await rig.story(chat_id))[-3:]] == ["system", "user", "assistant"]
        assert (await rig.story(chat_id))[-1] == ("assistant", "go on then")


async def test_spend_limit_stops_a_turn_before_its_next_call(database_url: str) -> None:
    usage = Usage(input=1000, output=1000, total=2000)
    script = (Count(usage), CallTool("read"))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")]) as rig:
        await rig.sql("UPDATE model_configs SET price_input = 1, price_output = 1 WHERE id = $1", rig.model)
        await rig.set("spend", {"enabled": True, "default_limit_micros": 3000, "period": "month"})
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert error.kind == "usage_limit"
        assert len(rig.calls) == 2  # 2000 micros each; the second call exceeded the limit


# Fences


async def test_lost_fence_at_commit_leaves_history_alone_and_is_no_error(database_url: str) -> None:
    release = asyncio.Event()
    tool = scripted_tools.ScriptedTool("hold", lambda *_: _after(release))
    async with open_house(database_url, script=in_turn((CallTool("hold"),), (Say("hi"),)), tools=[tool]) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()
        # Without a hint, so that the runner does not know of the change.
        deaf = Machine(rig.database.api, _Deaf())
        (first, *_) = await rig.messages(chat_id)
        await deaf.chat(chat_id).update(
            lambda tx: machine.edit_message(tx, first.id, content=(Text("other"),), edited_by=rig.user)
        )

        release.set()
        await until(lambda: len(rig.calls) == 2)
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [("user", "other"), ("assistant", "hi")]


class _Deaf:
    def publish(self, hints: object) -> None:
        return


async def test_hanging_task_is_tried_again(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Wait(10_000),), (Say("again"),))
    async with open_house(
        database_url,
        script=script,
        clock=clock,
        config=msgspec.structs.replace(STILL, task_idle_seconds=60.0),
        loop=LoopConfig(first_byte_seconds=9000.0),
    ) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")

        await clock.fire("task-idle-generation")
        await clock.fire("task-retry-generation")
        await rig.rested(chat_id)

        assert await rig.story(chat_id) == [USER, ("assistant", "again")]
        assert (await rig.chat(chat_id)).status == Status.WAITING


async def test_fallback_takes_over_the_turn_and_the_chat_keeps_its_model(database_url: str) -> None:
    fallback = in_turn((CallTool("echo", {"text": "hi"}),), (Say("I stood in."),))
    tools = (scripted_tools.echo(),)
    async with open_house(database_url, script=(Fail(ErrorKind.OVERLOADED),), tools=tools) as rig:
        with rig.scripts.registered("stand-in", fallback):
            await rig.fall_back_to("stand-in")
            chat_id = await rig.ask("hello")

            chat = await rig.rested(chat_id)

        story = await rig.story(chat_id)
        assert (chat.status, chat.last_model_config_id) == (Status.WAITING, rig.model)
        assert [role for role, _ in story] == ["user", "system", "assistant", "tool", "assistant"]
        assert story[1][1] == "test did not answer. This turn continues with stand-in."
        assert story[-1] == ("assistant", "I stood in.")
        assert len(rig.calls) == FALLBACK_ATTEMPTS
