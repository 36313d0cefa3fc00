"""Whole turns with debug records: the run and step of each call, and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import CallTool, Count, Fail, Say, Step, Wait
from rookery.llm.types import Call, ErrorKind, Purpose, Usage
from rookery.loop.config import LoopConfig
from rookery.loop.tool import ToolCall as Called
from rookery.loop.tool import ToolContext, ToolOutput
from rookery.store import machine
from rookery.store.debug import run_cleanup
from rookery.testing import FakeClock
from rookery.testing.fake_completions import Answer, FakeCompletions
from rookery.testing.fake_server import failure
from tests import scripted_tools
from tests.agents.family_rig import open_family
from tests.agents.test_subagent_operations import steps as family_steps
from tests.debug import stored_records
from tests.eventually import until
from tests.worker.worker_rig import Records, WorkerRig, in_turn, open_house

USAGE = Usage(input=700, output=3, cache_read=100, reasoning=1, total=804, context_tokens=800)
HANG = Wait(3600)


async def after(release: asyncio.Event) -> ToolOutput:
    await release.wait()
    return ToolOutput({})


def holding(release: asyncio.Event) -> scripted_tools.ScriptedTool:
    async def behave(ctx: ToolContext, call: Called) -> ToolOutput:
        return await after(release)

    return scripted_tools.ScriptedTool("hold", behave)


async def test_turn_is_recorded_with_its_step_and_attempt(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(Answer(text="Here I am."))
    async with fake.listening() as url, open_house(database_url, server=url, records=Records()) as rig:
        chat_id = await rig.ask("hello   there")
        await rig.rested(chat_id)
        (run,) = await stored_records.ended(rig, chat_id)
        (step,) = await stored_records.steps(rig, run)
        (attempt,) = await stored_records.attempts(rig, step)
        asked, answered = await rig.messages(chat_id)

    assert (run["status"], run["provider"], run["model"]) == ("completed", "openai_compat", "test")
    assert run["summary"]["first_message"] == "hello there"
    assert (run["trigger_message_id"], run["history_tip_message_id"]) == (asked.id, asked.id)
    assert (run["summary"]["step_count"], run["summary"]["endpoint_label"]) == (1, "POST /v1/chat/completions")
    assert (step["status"], step["error"], step["finish_reason"]) == ("completed", None, "stop")
    assert step["normalized_request"]["messages"][-1]["parts"][0]["text"] == "hello   there"
    assert step["normalized_response"]["content"][0]["text"] == "Here I am."
    assert step["assistant_message_id"] == answered.id
    assert (attempt["status"], attempt["response_status"], attempt["path"]) == (
        "completed",
        200,
        "/v1/chat/completions",
    )


async def test_retry_continues_the_step_and_its_success_clears_the_error(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(failure(529, "Overloaded.", code="overloaded_error"), Answer(text="Here I am."))
    async with fake.listening() as url, open_house(database_url, server=url, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        (run,) = await stored_records.ended(rig, chat_id)
        (step,) = await stored_records.steps(rig, run)
        first, second = await stored_records.attempts(rig, step)

    assert (step["status"], step["error"], step["finish_epoch"]) == ("completed", None, 2)
    (prior,) = step["metadata"]["prior_errors"]
    assert (prior["kind"], prior["generation_attempt"]) == ("overloaded", 1)
    assert "retrying" not in step["metadata"]
    assert (first["retry_kind"], first["response_status"]) == ("overloaded", 529)
    assert (second["retry_kind"], second["response_status"]) == (None, 200)
    assert (first["generation_attempt"], second["generation_attempt"]) == (1, 2)
    assert (run["status"], run["summary"].get("has_error"), run["summary"]["retry_count"]) == ("completed", None, 1)


async def test_step_that_waits_for_its_retry_says_so(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Fail(ErrorKind.OVERLOADED, "Overloaded."),), (Say("now"),))
    async with open_house(database_url, script=script, clock=clock, retry=RetryPolicy(), records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("generation-retry")
        await stored_records.written(rig)
        (run,) = await stored_records.runs(rig, chat_id)
        (waiting,) = await stored_records.steps(rig, run)
        await clock.fire("generation-retry")
        await rig.rested(chat_id)
        await stored_records.ended(rig, chat_id)
        (step,) = await stored_records.steps(rig, run)

    assert (run["status"], waiting["status"]) == ("in_progress", "error")
    assert waiting["ttft_ms"] is None, "an error is no token"
    assert waiting["metadata"]["retrying"]["kind"] == "overloaded"
    assert waiting["metadata"]["retrying"]["delay_ms"] > 0
    assert (step["status"], "retrying" in step["metadata"]) == ("completed", False)


async def test_interrupt_during_the_second_try_is_not_hidden_behind_the_error_of_the_first(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Fail(ErrorKind.OVERLOADED),), (Say("half a"), HANG))
    async with open_house(database_url, script=script, clock=clock, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await clock.fire("generation-retry")
        await clock.until_waiting("scripted-wait")
        await rig.interrupt(chat_id)
        await rig.rested(chat_id)
        (run,) = await stored_records.ended(rig, chat_id)
        (step,) = await stored_records.steps(rig, run)

    assert (run["status"], step["status"], step["error"], step["finish_epoch"]) == (
        "interrupted",
        "interrupted",
        None,
        2,
    )
    assert step["normalized_response"]["content"][0]["text"] == "half a"
    assert len(step["metadata"]["prior_errors"]) == 1
    assert "has_error" not in run["summary"]


async def test_silence_of_the_provider_is_an_error_and_no_interruption(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Say("half a"), HANG), (Say("now"),))
    loop = LoopConfig(stream_silence_seconds=30.0)
    async with open_house(database_url, script=script, clock=clock, loop=loop, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        await stored_records.written(rig)  # the writer has time limits of its own
        await clock.fire("stream-silence")
        await clock.until_waiting("generation-retry")
        await stored_records.written(rig)
        (run,) = await stored_records.runs(rig, chat_id)
        (failed,) = await stored_records.steps(rig, run)
        await clock.fire("generation-retry")
        await rig.rested(chat_id)
        await stored_records.ended(rig, chat_id)
        (step,) = await stored_records.steps(rig, run)

    assert (failed["status"], failed["error"]["kind"]) == ("error", "stream_silence_timeout")
    assert (step["status"], step["metadata"]["prior_errors"][0]["kind"]) == ("completed", "stream_silence_timeout")


async def test_steps_of_a_turn_share_the_beginning_of_their_prompts(database_url: str) -> None:
    script = in_turn((Count(USAGE), CallTool("echo")), (Count(USAGE), CallTool("echo")), (Count(USAGE), Say("done")))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo()], records=Records()) as rig:
        await rig.sql("UPDATE model_configs SET price_input = 3, price_output = 15 WHERE id = $1", rig.model)
        rig.forget()
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        (run,) = await stored_records.ended(rig, chat_id)
        first, second, third = await stored_records.steps(rig, run)

    assert [step["step_number"] for step in (first, second, third)] == [1, 2, 3]
    assert (first["shared_messages"], second["shared_messages"]) == (0, first["message_count"])
    assert third["shared_messages"] == second["message_count"] == second["shared_messages"] + 2
    assert third["normalized_request"]["prefix_from"] == 2
    assert len(third["normalized_request"]["messages"]) == 2
    assert third["normalized_request"]["has_same_tools"] is True
    assert (first["cache"]["reason"], first["tool_count"]) == ("first_step", 1)
    summary = run["summary"]
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (2100, 9)
    assert (summary["total_cache_read_tokens"], summary["total_reasoning_tokens"]) == (300, 3)
    assert summary["cost_micros"] == sum(step["cost_micros"] for step in (first, second, third)) > 0
    assert summary["ttft_ms"] == first["ttft_ms"]


async def test_queued_messages_under_one_runner_have_runs_of_their_own(database_url: str) -> None:
    release = asyncio.Event()
    tool = holding(release)
    script = in_turn((CallTool("hold"),), (Say("one"),), (Say("two"),), (Say("three"),))
    async with open_house(database_url, script=script, tools=[tool], records=Records()) as rig:
        chat_id = await rig.ask("first")
        await tool.started.wait()
        await rig.send(chat_id, "second")
        await rig.send(chat_id, "third")
        release.set()
        await rig.rested(chat_id)
        runs = await stored_records.ended(rig, chat_id, count=3)
        counts = [len(await stored_records.steps(rig, run)) for run in runs]
        asked = [message.id for message in await rig.messages(chat_id) if message.role == "user"]

    assert [run["summary"]["first_message"] for run in runs] == ["first", "second", "third"]
    assert [run["trigger_message_id"] for run in runs] == asked
    assert [run["status"] for run in runs] == ["completed"] * 3
    assert counts == [2, 1, 1]


async def test_steering_message_has_a_run_of_its_own(database_url: str) -> None:
    release = asyncio.Event()
    tool = holding(release)
    script = in_turn((CallTool("hold"),), (Say("steered"),))
    async with open_house(database_url, script=script, tools=[tool], records=Records()) as rig:
        chat_id = await rig.ask("first")
        await tool.started.wait()
        await rig.send(chat_id, "rather this", BusyBehavior.STEER)
        release.set()
        await rig.rested(chat_id)
        runs = await stored_records.ended(rig, chat_id, count=2)

    assert [run["summary"]["first_message"] for run in runs] == ["first", "rather this"]
    assert [run["status"] for run in runs] == ["completed", "completed"]


async def test_takeover_continues_in_a_run_of_the_other_replica(database_url: str) -> None:
    release = asyncio.Event()
    tool = holding(release)
    script = in_turn((CallTool("hold"),), (Say("done"),))
    async with open_house(database_url, script=script, tools=[tool], records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()
        await rig.crash()
        release.set()
        await rig.add_replica()
        await rig.rested(chat_id)
        first, second = await stored_records.ended(rig, chat_id, count=2)

    assert (first["status"], second["status"]) == ("interrupted", "completed")
    assert second["summary"]["continues"] == str(first["id"])
    assert "continues" not in first["summary"]
    assert first["replica_id"] != second["replica_id"]
    assert first["trigger_message_id"] == second["trigger_message_id"]


async def test_turn_that_fails_ends_its_run_with_an_error(database_url: str) -> None:
    script = (Fail(ErrorKind.AUTH, "Bad key.", retryable=False),)
    async with open_house(database_url, script=script, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await rig.error(chat_id)
        (failed,) = await stored_records.ended(rig, chat_id)
        (step,) = await stored_records.steps(rig, failed)
        rig.script = (Say("now"),)
        await rig.retry(chat_id)
        await rig.rested(chat_id)
        _, again = await stored_records.ended(rig, chat_id, count=2)

    assert (failed["status"], failed["summary"]["has_error"]) == ("error", True)
    assert (step["status"], step["error"]["kind"], step["error"]["retryable"]) == ("error", "auth", False)
    assert (again["status"], again["summary"]["continues"]) == ("completed", str(failed["id"]))


async def test_parked_turn_is_completed_and_continued_after_the_answer(database_url: str) -> None:
    script = in_turn((CallTool("write"),), (Say("written"),))
    rules = {"rules": [{"tool": "write", "action": "ask"}]}
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("write")], records=Records()) as rig:
        await rig.set("approvals", rules)
        chat_id = await rig.ask("hello")
        await rig.until_status(chat_id, Status.REQUIRES_ACTION)
        (asked,) = await stored_records.ended(rig, chat_id)
        await rig.interrupt(chat_id)
        await rig.rested(chat_id)

    assert asked["status"] == "completed"


# Edits, archives and deletions while a worker is at work


async def test_edit_leaves_no_run_of_the_displaced_turn_and_keeps_the_new_one(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Say("half a"), HANG), (Say("better"),))
    async with open_house(database_url, script=script, clock=clock, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        await stored_records.written(rig)
        (displaced,) = await stored_records.runs(rig, chat_id)
        (first, *_) = await rig.messages(chat_id)
        await rig.edit(chat_id, first, "hello again")
        await rig.rested(chat_id)
        await until(lambda: is_gone(rig, displaced))
        (run,) = await stored_records.ended(rig, chat_id)

    assert (run["summary"]["first_message"], run["status"]) == ("hello again", "completed")


async def is_gone(rig: WorkerRig, run: dict[str, Any]) -> bool:
    return await rig.sql("SELECT id FROM chat_debug_runs WHERE id = $1", run["id"]) is None


async def test_edit_that_the_worker_does_not_hear_of_leaves_no_run_either(database_url: str) -> None:
    release = asyncio.Event()
    tool = holding(release)
    script = in_turn((CallTool("hold"),), (Say("hi"),))
    async with open_house(database_url, script=script, tools=[tool], records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await tool.started.wait()
        (first, *_) = await rig.messages(chat_id)
        # Without a hint, so that the runner does not know of the change, and the records are left to the sweep.
        deaf = machine.Machine(rig.database.api, _Deaf())
        await deaf.chat(chat_id).update(
            lambda tx: machine.edit_message(tx, first.id, content=first.parts(), edited_by=rig.user)
        )
        release.set()
        await rig.rested(chat_id)
        await stored_records.settled(rig)
        job = next(job for job in rig.worker.housekeeping.jobs if job.name == "debug_sweep")
        assert await rig.worker.housekeeping.run_once(job)
        (run,) = await stored_records.ended(rig, chat_id)

    assert run["status"] == "completed"
    assert run["trigger_message_id"] > first.id


class _Deaf:
    def publish(self, hints: object) -> None:
        return


async def test_archive_deletes_the_records_and_late_writes_find_nothing(database_url: str) -> None:
    async with open_house(database_url, script=(Say("done"),), records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        (run,) = await stored_records.ended(rig, chat_id)
        await rig.machine.bundle(lambda bundle: machine.set_family_archived(bundle, chat_id, archived=True))
        await until(lambda: is_gone(rig, run))
        await stored_records.settled(rig)

        assert await stored_records.runs(rig, chat_id, kind=None) == []
        assert await rig.sql("SELECT count(*) FROM chat_debug_steps") == 0


async def test_deleted_chat_takes_its_records_along(database_url: str) -> None:
    async with open_house(database_url, script=(Say("done"),), records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await stored_records.ended(rig, chat_id)
        await rig.machine.bundle(lambda bundle: machine.delete_family(bundle, chat_id))
        await stored_records.settled(rig)

        for table in ("runs", "steps", "attempts", "state"):
            assert await rig.sql(f"SELECT count(*) FROM chat_debug_{table}") == 0


# Runs of other kinds


async def test_title_and_label_are_runs_of_their_own(database_url: str) -> None:
    async with open_house(database_url, script=(Say("All tests pass now."),), records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await stored_records.settled(rig)
        (turn,) = await stored_records.ended(rig, chat_id)
        (label,) = await stored_records.runs(rig, chat_id, kind="quickgen")
        (step,) = await stored_records.steps(rig, label)
        chat = await rig.chat(chat_id)

        found = await rig.worker.effects.texts.title(chat, "Fix the login test")
        await stored_records.settled(rig)
        (title,) = await stored_records.runs(rig, chat_id, kind="title_generation")
        tries = await stored_records.steps(rig, title)

    assert (label["summary"]["first_message"], label["status"], label["parent_run_id"]) == (
        "Turn status label",
        "completed",
        None,
    )
    assert label["trigger_message_id"] == turn["trigger_message_id"]
    assert label["history_tip_message_id"] >= label["trigger_message_id"]
    assert (label["model"], turn["model"], step["operation"]) == ("quick", "test", "generate")
    # The model answers with labels only. Each answer is complete, but none is a title.
    assert found is None
    assert (title["summary"]["first_message"], title["status"]) == ("Fix the login test", "error")
    assert [each["status"] for each in tries] == ["completed", "completed"]


async def test_compaction_is_a_run_below_that_of_the_turn(database_url: str) -> None:
    def script(call: Call) -> Sequence[Step]:
        return (Say("They said hello."),) if call.purpose is Purpose.COMPACTION else (Say("hi"),)

    async with open_house(database_url, script=script, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await rig.compact(chat_id)
        await until(lambda: has_runs(rig, chat_id, "compaction"))
        await rig.rested(chat_id)
        await stored_records.settled(rig)
        (summary,) = await stored_records.runs(rig, chat_id, kind="compaction")
        turns = await stored_records.runs(rig, chat_id)
        (step,) = await stored_records.steps(rig, summary)

    assert (summary["status"], summary["summary"]["first_message"]) == ("completed", "Compaction")
    assert summary["parent_run_id"] == turns[-1]["id"]
    assert summary["trigger_message_id"] == turns[-1]["trigger_message_id"]
    assert (step["status"], step["step_key"]) == ("completed", None)


async def has_runs(rig: WorkerRig, chat_id: ChatId, kind: str) -> bool:
    return bool(await stored_records.runs(rig, chat_id, kind=kind))


async def test_advisor_is_a_run_below_that_of_the_turn(database_url: str) -> None:
    ask = CallTool("advisor", {"question": "Rewrite or patch?"})
    parent = family_steps((ask,), (Say("I patch it."),))
    async with open_family(database_url, parent=parent, records=Records()) as family:
        rig = family.worker
        await rig.set("advisor", {"enabled": True})
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        (turn,) = await stored_records.ended(rig, chat_id)
        (advice,) = await stored_records.runs(rig, chat_id, kind="advisor")
        (step,) = await stored_records.steps(rig, advice)
        counts = len(await stored_records.steps(rig, turn))

    assert (advice["status"], advice["summary"]["first_message"]) == ("completed", "Rewrite or patch?")
    assert (advice["parent_run_id"], counts) == (turn["id"], 2)
    assert step["normalized_response"]["content"][0]["text"] == "Do it."


async def test_subagent_has_runs_in_its_own_chat(database_url: str) -> None:
    spawn = CallTool("spawn_agent", {"type": "general", "prompt": "Look around."})
    parent = family_steps((spawn,), (Say("Spawned."),))
    async with open_family(database_url, parent=parent, records=Records()) as family:
        rig = family.worker
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        (child,) = await family.children(chat_id)
        (run,) = await stored_records.ended(rig, child)

    assert (run["root_chat_id"], run["parent_chat_id"], run["kind"]) == (chat_id, chat_id, "chat_turn")


# Which chats are recorded

CHOICES: dict[str, tuple[dict[str, Any], str | None, bool | None, int]] = {
    "nothing is allowed": ({}, "on", True, 0),
    "nobody asks for it": ({"allow_users": True}, None, None, 0),
    "its owner wants it": ({"allow_users": True}, None, True, 1),
    "its owner does not want it": ({"allow_users": True}, None, False, 0),
    "the chat is switched on": ({"allow_users": True}, "on", None, 1),
    "the chat is switched off": ({"allow_users": True}, "off", True, 0),
    "the setting is unreadable": ({"allow_users": "perhaps"}, "on", True, 0),
}


@pytest.mark.parametrize("what", CHOICES)
async def test_turn_is_recorded_or_not_if(what: str, database_url: str) -> None:
    setting, mode, preference, count = CHOICES[what]
    async with open_house(database_url, script=(Say("done"),), records=Records(is_forced=False)) as rig:
        await rig.set("debug", setting)
        chat_id = await rig.ask("first")
        await rig.rested(chat_id)
        if mode is not None:
            await rig.sql(
                "INSERT INTO chat_debug_state (chat_id, mode) VALUES ($1, $2)"
                " ON CONFLICT (chat_id) DO UPDATE SET mode = excluded.mode",
                chat_id,
                mode,
            )
        if preference is not None:
            await rig.sql(
                "INSERT INTO user_settings (user_id, key, value) VALUES ($1, 'debug', $2)",
                rig.user,
                "true" if preference else "false",
            )
        rig.forget()
        await rig.send(chat_id, "second")
        await rig.rested(chat_id)
        await stored_records.settled(rig)
        runs = await stored_records.runs(rig, chat_id)

    assert len(runs) == count


async def test_forced_recording_ignores_what_users_and_administrators_say(database_url: str) -> None:
    async with open_house(database_url, script=(Say("done"),), records=Records(is_forced=True)) as rig:
        await rig.set("debug", {"allow_users": False, "record_on_error": False})
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        assert len(await stored_records.ended(rig, chat_id)) == 1


async def test_model_is_not_wrapped_if_the_turn_is_not_recorded(database_url: str) -> None:
    async with open_house(database_url, script=(Say("done"),), records=Records(is_forced=False)) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await stored_records.settled(rig)
        debug = rig.replicas[0].debug
        assert debug is not None

        assert not any(debug.stats.operations.values())
        assert await rig.sql("SELECT count(*) FROM chat_debug_runs") == 0


# Record on error


async def test_turn_that_is_not_recorded_is_stored_if_it_ends_with_an_error(database_url: str) -> None:
    script = in_turn(
        (Count(USAGE), CallTool("echo")),
        (Fail(ErrorKind.OVERLOADED),),
        (Say("half"), Fail(ErrorKind.AUTH, "Bad key.", retryable=False)),
    )
    tools = [scripted_tools.echo()]
    async with open_house(database_url, script=script, tools=tools, records=Records(is_forced=False)) as rig:
        chat_id = await rig.ask("hello")
        await rig.error(chat_id)
        (run,) = await stored_records.ended(rig, chat_id)
        first, second = await stored_records.steps(rig, run)
        answered = (await rig.messages(chat_id))[1]

    assert (run["status"], run["summary"]["recorded_on_error"]) == ("error", True)
    assert (first["status"], second["status"], second["finish_epoch"]) == ("completed", "error", 2)
    assert first["normalized_response"]["content"][0]["tool_name"] == "echo"
    assert (first["usage"]["input_tokens"], first["assistant_message_id"]) == (700, answered.id)
    assert (second["error"]["kind"], second["metadata"]["transport"]) == ("auth", "unobserved")
    assert second["metadata"]["prior_errors"][0]["kind"] == "overloaded"
    assert second["shared_messages"] == first["message_count"]


async def test_turn_that_ends_well_or_is_interrupted_is_not_stored(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Say("done"),), (Say("half"), HANG))
    async with open_house(database_url, script=script, clock=clock, records=Records(is_forced=False)) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await rig.send(chat_id, "and on")
        await clock.until_waiting("scripted-wait")
        await rig.interrupt(chat_id)
        await rig.rested(chat_id)
        await stored_records.settled(rig)
        debug = rig.replicas[0].debug
        assert debug is not None

        assert await stored_records.runs(rig, chat_id, kind=None) == []
        assert debug.recordings.kept.size_bytes == 0


async def test_deployment_may_forbid_records_of_errors(database_url: str) -> None:
    script = (Fail(ErrorKind.AUTH, "Bad key.", retryable=False),)
    async with open_house(database_url, script=script, records=Records(is_forced=False)) as rig:
        await rig.set("debug", {"record_on_error": False})
        chat_id = await rig.ask("hello")
        await rig.error(chat_id)
        await stored_records.settled(rig)

        assert await stored_records.runs(rig, chat_id, kind=None) == []


async def test_failed_turn_of_a_chat_that_is_never_recorded_is_not_stored(database_url: str) -> None:
    script = in_turn((Say("done"),), (Fail(ErrorKind.AUTH, "Bad key.", retryable=False),))
    async with open_house(database_url, script=script, records=Records(is_forced=False)) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await rig.sql("INSERT INTO chat_debug_state (chat_id, mode) VALUES ($1, 'off')", chat_id)
        await rig.send(chat_id, "and on")
        await rig.error(chat_id)
        await stored_records.settled(rig)

        assert await stored_records.runs(rig, chat_id, kind=None) == []


# Replicas that die


async def test_runs_of_a_killed_replica_are_interrupted_with_their_summary(database_url: str) -> None:
    clock = FakeClock()
    script = in_turn((Count(USAGE), CallTool("echo")), (Say("half"), HANG))
    tools = [scripted_tools.echo()]
    async with open_house(database_url, script=script, tools=tools, clock=clock, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        await stored_records.written(rig)
        await rig.sql("DELETE FROM replicas")
        async with rig.database.api.acquire() as conn:
            ended = await run_cleanup.end_stale(conn)
        (run,) = await stored_records.runs(rig, chat_id)
        steps = await stored_records.steps(rig, run)

        assert [each.id for each in ended] == [run["id"]]
        assert (run["status"], run["summary"]["step_count"]) == ("interrupted", 2)
        assert run["summary"]["total_input_tokens"] == 700
        assert [step["status"] for step in steps] == ["completed", "interrupted"]
        assert run["finished_at"] - run["started_at"] < timedelta(minutes=1)


async def test_beat_of_a_living_replica_keeps_its_runs_open(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=(Say("half"), HANG), clock=clock, records=Records()) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        await stored_records.written(rig)
        # Less than four beats, because the sweep may run before the beat.
        for table in ("runs", "steps"):
            await rig.sql(f"UPDATE chat_debug_{table} SET updated_at = updated_at - interval '100 seconds'")
        await clock.fire("debug-beat")
        debug = rig.replicas[0].debug
        assert debug is not None
        await until(lambda: any(name == "beat" for name, _ in debug.stats.operations))
        (run,) = await stored_records.runs(rig, chat_id)
        (step,) = await stored_records.steps(rig, run)
        now = await rig.sql("SELECT clock_timestamp()")

        assert (run["status"], step["status"]) == ("in_progress", "in_progress")
        assert now - run["updated_at"] < timedelta(seconds=60)
        assert now - step["updated_at"] < timedelta(seconds=60)
