"""The brake: agents that repeat themselves are told, then the user is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from rookery.domain.chat import approvals
from rookery.domain.chat.approvals import Answer, Asked, Decision
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.model_prompt import PromptText
from rookery.domain.chat.next_action import EMPTY_NOTICE
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.states import Status
from rookery.llm.scripted import CallTool, Say, Step
from rookery.llm.types import Call
from rookery.loop.tool import Replay, ToolCall, ToolContext, ToolOutput
from rookery.store import machine
from rookery.store.chats import stream_reads, subagents
from tests import scripted_tools
from tests.agents.family_rig import open_family
from tests.eventually import until
from tests.scripted_tools import ScriptedTool
from tests.worker.test_approvals import PICK, answer, asked, pass_deadline, until_asked
from tests.worker.worker_rig import WorkerRig, in_turn, open_house

RUN = CallTool("run", {"a": 1})
REPEATS = in_turn((RUN,))


async def questions(rig: WorkerRig, chat_id: ChatId) -> list[Asked]:
    """Return the stored facts of the open questions of a chat."""
    async with rig.database.api.acquire() as conn:
        pending = await stream_reads.list_pending_calls(conn, chat_id)
    return [call.offers for call in pending if call.offers is not None]


async def sentence(rig: WorkerRig, chat_id: ChatId) -> str:
    """Return what the only open question says about the repetition."""
    [question] = await questions(rig, chat_id)
    assert isinstance(question.brake, str)
    return question.brake


def last_words(call: Call) -> str:
    """Return the end of the prompt, where notices are."""
    return "\n".join(part.text for part in call.prompt.messages[-1].parts if isinstance(part, PromptText))


def steer(call_id: str) -> Answer:
    return Answer(tool_call_id=call_id, decision=Decision.DENY, reason="Use the other file.")


def giving_in_turn(name: str, *outputs: ToolOutput) -> ScriptedTool:
    """Return a tool with these outputs, one after the other; the last one is repeated."""
    left = list(outputs)

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        return left.pop(0) if len(left) > 1 else left[0]

    return ScriptedTool(name, behave)


# The five runaways


async def test_the_sixth_equal_call_waits_for_the_user_and_continuing_allows_five_more(database_url: str) -> None:
    tool = scripted_tools.giving(ToolOutput({"error": "no"}), "run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        chat_id = await asked(rig)
        assert len(tool.runs) == 5
        assert (await sentence(rig, chat_id)).startswith("The agent made the same call of run 5 times")

        await answer(rig, chat_id)
        await until_asked(rig, chat_id)
        assert len(tool.runs) == 10


async def test_two_calls_in_turn_wait_for_the_user(database_url: str) -> None:
    def script(call: Call) -> Sequence[Step]:
        return (CallTool("look") if len(rig.calls) % 2 else RUN,)

    look, run = scripted_tools.echo("look"), scripted_tools.echo("run")
    async with open_house(database_url, script=script, tools=[look, run]) as rig:
        chat_id = await asked(rig)

        assert (len(look.runs), len(run.runs)) == (5, 5)
        assert "the same 2 calls (" in await sentence(rig, chat_id)


async def test_growing_arguments_that_fail_in_the_same_way_wait_for_the_user(database_url: str) -> None:
    sizes = count(1)
    tool = scripted_tools.giving(ToolOutput({"error": "too long"}, is_error=True), "run")
    async with open_house(
        database_url, script=lambda call: (CallTool("run", {"a": "x" * next(sizes)}),), tools=[tool]
    ) as rig:
        chat_id = await asked(rig)

        assert len(tool.runs) == 5
        assert "called run 5 times in a row, and it failed with the same error" in await sentence(rig, chat_id)


async def test_growing_arguments_that_succeed_end_at_the_step_limit_with_a_sentence(database_url: str) -> None:
    sizes = count(1)
    tool = scripted_tools.echo("run")
    async with open_house(
        database_url, script=lambda call: (CallTool("run", {"a": "x" * next(sizes)}),), tools=[tool], max_steps=20
    ) as rig:
        chat_id = await rig.ask()
        chat = await rig.rested(chat_id)

        assert (chat.status, len(tool.runs)) == (Status.WAITING, 20)
        limit = "The turn was stopped at its limit of 20 steps. Send a message to continue."
        assert (await rig.story(chat_id))[-1] == ("system", limit)


async def test_an_agent_that_spawns_the_same_subagent_again_and_again_waits_for_the_user(database_url: str) -> None:
    spawn = CallTool("spawn_agent", {"type": "general", "prompt": "work"})
    async with open_family(database_url, parent=lambda call: (spawn,)) as family:
        chat_id = await asked(family.worker)

        assert len(await family.children(chat_id)) == 5
        assert "the same call of spawn_agent 5 times" in await sentence(family.worker, chat_id)


async def test_an_agent_that_spawns_different_subagents_ends_at_their_limit_and_waits_for_the_user(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subagents, "MAX_CHILDREN", 8)
    numbers = count(1)

    def parent(call: Call) -> Sequence[Step]:
        return (CallTool("spawn_agent", {"type": "general", "prompt": f"work {next(numbers)}"}),)

    async with open_family(database_url, parent=parent) as family:
        chat_id = await asked(family.worker)

        assert len(await family.children(chat_id)) == 8
        assert "called spawn_agent 5 times in a row, and it failed" in await sentence(family.worker, chat_id)


async def test_three_empty_answers_end_the_turn_with_a_sentence(database_url: str) -> None:
    async with open_house(database_url, script=(Say("  "),)) as rig:
        chat_id = await rig.ask()
        chat = await rig.rested(chat_id)

        assert (chat.status, len(rig.calls)) == (Status.WAITING, 3)
        assert (await rig.story(chat_id))[1:] == [("system", EMPTY_NOTICE)]


# Calls that do not run


async def test_an_invalid_call_waits_for_the_user_as_well(database_url: str) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tool = scripted_tools.echo("run", input_schema=schema)
    async with open_house(database_url, script=in_turn((CallTool("run", {"Path": "x"}),)), tools=[tool]) as rig:
        chat_id = await asked(rig)

        assert (len(rig.calls), tool.runs) == (6, [])
        await answer(rig, chat_id)
        await until_asked(rig, chat_id)
        assert (len(rig.calls), tool.runs) == (11, [])


async def test_a_call_that_a_rule_denies_waits_for_the_user_and_never_runs(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        await rig.set("approvals", {"rules": [{"tool": "run", "action": "deny"}]})
        chat_id = await asked(rig)
        assert len(rig.calls) == 6

        await answer(rig, chat_id)
        await until_asked(rig, chat_id)
        assert (len(rig.calls), tool.runs) == (11, [])


async def test_a_rejected_batch_with_an_exclusive_call_waits_for_the_user(database_url: str) -> None:
    alone, run = scripted_tools.echo("alone", exclusive=True), scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn((CallTool("alone"), RUN)), tools=[alone, run]) as rig:
        await asked(rig)

        assert (len(rig.calls), alone.runs, run.runs) == (6, [], [])


# Calls that are not held


async def test_a_poll_loop_runs_until_its_process_is_ready(database_url: str) -> None:
    polls = 40
    still = ToolOutput({"success": True, "command": "serve", "cursor": 0, "running": True})
    tool = giving_in_turn("process_output", *[still] * polls, ToolOutput({"success": True, "exit_code": 0}))
    script = in_turn(*[(CallTool("process_output", {"process_id": "p1"}),)] * (polls + 1), (Say("ready"),))
    async with open_house(database_url, script=script, tools=[tool]) as rig:
        chat_id = await rig.ask()
        chat = await rig.rested(chat_id)

        assert (chat.status, len(tool.runs)) == (Status.WAITING, polls + 1)
        assert (await rig.story(chat_id))[-1] == ("assistant", "ready")
        assert not any("Repeating this" in last_words(call) for call in rig.calls)


async def test_no_call_waits_if_the_brake_is_off(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*[(RUN,)] * 30, (Say("done"),)), tools=[tool]) as rig:
        await rig.set("chats", {"repeat_notice_after": 0, "repeat_ask_after": 0})
        chat_id = await rig.ask()
        await rig.rested(chat_id)

        assert len(tool.runs) == 30
        assert not any("Repeating this" in last_words(call) for call in rig.calls)


async def test_the_numbers_are_settings(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        await rig.set("chats", {"repeat_notice_after": 4, "repeat_ask_after": 8})
        await asked(rig)

        assert len(tool.runs) == 7
        assert ["Repeating this" in last_words(call) for call in rig.calls] == [False] * 4 + [True] * 4


# Answers


async def test_the_model_is_told_from_the_third_repeat_on(database_url: str) -> None:
    async with open_house(database_url, script=REPEATS, tools=[scripted_tools.echo("run")]) as rig:
        await asked(rig)

        assert ["Repeating this" in last_words(call) for call in rig.calls] == [False] * 3 + [True] * 3
        assert len({last_words(call) for call in rig.calls[3:]}) == 1


async def test_an_instruction_reaches_the_model_and_the_call_does_not_run(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*[(RUN,)] * 6, (Say("I see"),)), tools=[tool]) as rig:
        chat_id = await asked(rig)

        await answer(rig, chat_id, steer)
        await rig.rested(chat_id)

        assert len(tool.runs) == 5
        told = (await rig.results(chat_id))[-1]
        assert "because it repeats" in told["error"]
        assert told["error"].endswith("The user tells you: Use the other file.")
        assert (told["reason"], told["comment"]) == ("denied_by_user", "Use the other file.")
        assert (await rig.story(chat_id))[-1] == ("assistant", "I see")


async def test_stopping_ends_the_turn(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        chat_id = await asked(rig)

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert (chat.status, len(tool.runs), len(rig.calls)) == (Status.WAITING, 5, 6)


async def test_a_new_message_begins_the_count_again(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        chat_id = await asked(rig)
        await rig.interrupt(chat_id)
        await rig.rested(chat_id)

        await rig.send(chat_id, "try again")
        await until_asked(rig, chat_id)

        assert len(tool.runs) == 10


async def test_a_rule_that_asks_keeps_its_own_question_with_its_offers(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        await rig.set("approvals", {"rules": [{"tool": "run", "action": "ask"}]})
        chat_id = await asked(rig)
        for _ in range(7):
            assert await questions(rig, chat_id) == [approvals.Asked({}, {"a": "1"})]
            await answer(rig, chat_id)
            await until_asked(rig, chat_id)

        assert len(tool.runs) == 7


async def test_an_always_rule_does_not_switch_the_brake_off(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    rules = [{"tool": "run", "action": "ask"}, {"tool": "run", "action": "always"}]
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        await rig.set("approvals", {"rules": rules})
        chat_id = await asked(rig)

        assert len(tool.runs) == 5
        assert "5 times" in await sentence(rig, chat_id)


# Crashes, subagents, API clients


async def test_the_count_survives_crashes(database_url: str) -> None:
    """Each replica dies in the middle of a run, which the next one repeats."""
    runs: list[asyncio.Event] = [asyncio.Event() for _ in range(3)]
    left = list(runs)

    async def behave(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        if left:
            left.pop(0).set()
            await asyncio.Event().wait()
        return ToolOutput("ok")

    tool = ScriptedTool("run", behave, replay=Replay.SAFE)
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        chat_id = await rig.ask()
        for run in runs:
            await run.wait()
            await rig.crash()
            await rig.add_replica()
        await until_asked(rig, chat_id)

        assert [role for role, _ in await rig.story(chat_id)].count("assistant") == 6
        assert "5 times" in await sentence(rig, chat_id)


async def test_a_question_survives_a_crash_and_the_next_count_begins_at_its_answer(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        chat_id = await asked(rig)
        await rig.crash()

        await answer(rig, chat_id)
        await rig.add_replica()
        await until_asked(rig, chat_id)

        assert len(tool.runs) == 10


async def test_a_subagent_that_repeats_itself_waits_for_the_user_too(database_url: str) -> None:
    parent = in_turn((CallTool("spawn_agent", {"type": "general", "prompt": "work"}),), (Say("ok"),))
    tool = scripted_tools.echo("run")
    async with open_family(database_url, parent=parent, child=lambda call: (RUN,), tools=[tool]) as family:  # type: ignore[arg-type]
        chat_id = await family.worker.ask()
        await family.worker.rested(chat_id)
        [child] = await family.children(chat_id)
        await until_asked(family.worker, child)

        assert len(tool.runs) == 5
        assert "the same call of run 5 times" in await sentence(family.worker, child)


async def test_a_tool_of_an_api_client_that_repeats_waits_for_the_user_too(database_url: str) -> None:
    async with open_house(database_url, script=in_turn((CallTool("pick"),))) as rig:
        chat_id = await rig.ask(dynamic_tools=PICK, client_type="api")
        for _ in range(5):
            await rig.until_status(chat_id, Status.REQUIRES_ACTION)
            assert not (await rig.chat(chat_id)).awaits_approval
            await submit_open(rig, chat_id)
        await until_asked(rig, chat_id)

        assert (await rig.chat(chat_id)).awaits_approval
        assert "the same call of pick 5 times" in await sentence(rig, chat_id)


async def submit_open(rig: WorkerRig, chat_id: ChatId) -> None:
    async def run(tx: machine.Tx) -> None:
        [call] = await machine.open_calls.dynamic_calls(tx)
        await machine.complete_requires_action(tx, [SubmittedResult(call.tool_call_id, "{}")], submitted_by=rig.user)

    await rig.machine.chat(chat_id).update(run)


async def test_a_question_without_an_answer_in_time_is_asked_again_at_the_next_repeat(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=REPEATS, tools=[tool]) as rig:
        await rig.set("approvals", {"timeout_seconds": 3600})
        chat_id = await rig.ask()
        for times in range(3):
            await rig.until_status(chat_id, Status.REQUIRES_ACTION)
            assert (len(rig.calls), len(tool.runs)) == (6 + times, 5)
            await pass_deadline(rig, chat_id)
            await rig.add_replica()
            await until(lambda seen=6 + times: len(rig.calls) > seen)  # type: ignore[misc]
