from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.errors import ToolResultRejected, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId, NewMessage, Role, Visibility
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import ToolCall, ToolResult
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.machine import Machine
from rookery.testing.clock import FakeClock
from tests.store.machine.machine_rig import Rig, assistant, call, calling, closure_of, result, text, told, words


async def parked(rig: Rig, *calls: ToolCall, timeout_seconds: float = 300) -> ChatId:
    """A chat that waits for its client's results of these calls."""
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(*calls))
    await rig.run(chat_id, machine.enter_requires_action, timeout_seconds=timeout_seconds)
    rig.published.clear()
    return chat_id


# Waiting


async def test_waiting_sets_a_deadline_by_the_clock_of_the_database_and_moves_no_history(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a")))
    before, earliest = await rig.load(chat_id), await rig.value("SELECT clock_timestamp()")

    deadline = await rig.update(chat_id, machine.enter_requires_action)

    latest, after = await rig.value("SELECT clock_timestamp()"), await rig.load(chat_id)
    assert isinstance(earliest, datetime)
    assert isinstance(latest, datetime)
    assert earliest <= deadline - timedelta(seconds=300) <= latest
    assert after.requires_action_deadline_at == deadline
    assert after.state is State.A0
    assert (after.history_version, after.queue_version) == (before.history_version, before.queue_version)


async def test_time_to_answer_can_be_set(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a")))
    now = await rig.value("SELECT clock_timestamp()")
    assert isinstance(now, datetime)

    deadline = await rig.run(chat_id, machine.enter_requires_action, timeout_seconds=7.5)

    assert timedelta(seconds=7.5) <= deadline - now < timedelta(seconds=60)


async def test_waiting_needs_an_open_call_of_a_client_tool(rig: Rig) -> None:
    steps: list[list[NewMessage]] = [
        [assistant("no call at all")],
        [calling(call("a", "run"))],
        [calling(call("a", provider_executed=True))],
        [calling(call("a")), result("a")],
    ]
    for step in steps:
        chat_id = await rig.create()
        await rig.commit(chat_id, *step)
        before = await rig.trace(chat_id)

        with pytest.raises(TransitionNotAllowed) as refusal:
            await rig.update(chat_id, machine.enter_requires_action)

        assert (refusal.value.cause, refusal.value.from_state) == ("no_open_calls", State.R0)
        assert await rig.trace(chat_id) == before


async def test_chat_without_client_tools_never_waits_for_one(rig: Rig) -> None:
    # The last three could not be given today: rows of a restore, or of a version that checks less.
    for declared in (None, "[]", '[{"name": "other"}]', "null", "{}", '["pick_colour"]'):
        chat_id = await rig.create()
        await rig.sql("UPDATE chats SET dynamic_tools = $2 WHERE id = $1", chat_id, declared)
        await rig.commit(chat_id, calling(call("a")))

        with pytest.raises(TransitionNotAllowed) as refusal:
            await rig.update(chat_id, machine.enter_requires_action)

        assert refusal.value.cause == "no_open_calls"


# Results


async def test_results_land_in_the_order_of_the_submission_and_the_turn_goes_on(rig: Rig) -> None:
    chat_id, submitter = await parked(rig, call("a"), call("b"), call("s", "run")), uuid4()
    results = [SubmittedResult("b", '{"colour": 1.50}'), SubmittedResult("a", '"none"', is_error=True)]

    inserted = await rig.run(chat_id, machine.complete_requires_action, results, submitted_by=submitter)

    assert told(inserted) == told((await rig.history(chat_id))[2:])
    found = [message.parts()[0] for message in inserted]
    assert all(isinstance(part, ToolResult) for part in found)
    assert [(p.tool_call_id, p.tool_name, p.is_error) for p in found if isinstance(p, ToolResult)] == [
        ("b", "pick_colour", False),
        ("a", "pick_colour", True),
    ]
    assert [message.role for message in inserted] == [Role.TOOL, Role.TOOL]
    assert {message.created_by for message in inserted} == {submitter}
    assert {message.model_config_id for message in inserted} == {rig.model}
    assert {message.visibility for message in inserted} == {Visibility.BOTH}
    chat = await rig.load(chat_id)
    assert (chat.state, chat.requires_action_deadline_at) == (State.R0, None)
    assert chat.history_version == chat.snapshot_version


async def test_result_keeps_its_json_as_it_was_sent(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"))
    output = '{"n": 1.50, "nul": "\\u0000", "deep": [[], null]}'

    await rig.run(chat_id, machine.complete_requires_action, [SubmittedResult("a", output)], submitted_by=rig.user)

    (part,) = (await rig.history(chat_id))[-1].parts()
    assert isinstance(part, ToolResult)
    assert isinstance(part.result, Raw)
    assert parts.json_value(part.result) == {"n": 1.5, "nul": "\x00", "deep": [[], None]}
    assert b"1.50" in bytes(part.result)


async def test_results_may_name_a_model_and_bring_rows_behind_them(rig: Rig) -> None:
    chat_id, model = await parked(rig, call("a")), await rig.add_model()
    context = NewMessage(role=Role.USER, content=text("context"), visibility=Visibility.MODEL)

    inserted = await rig.run(
        chat_id,
        machine.complete_requires_action,
        [SubmittedResult("a", "{}")],
        submitted_by=rig.user,
        model_config_id=model,
        suffix=[context],
    )

    assert [message.role for message in inserted] == [Role.TOOL, Role.USER]
    assert words(inserted[1]) == "context"
    assert inserted[0].model_config_id == model
    assert (await rig.load(chat_id)).last_model_config_id == model


async def test_results_leave_the_backlog_where_it_is(rig: Rig) -> None:
    chat_id = await rig.chat(State.A1, queued=2)
    queue = await rig.queue(chat_id)

    await rig.run(chat_id, machine.complete_requires_action, [SubmittedResult("call-1", "{}")], submitted_by=rig.user)

    assert await rig.queue(chat_id) == queue
    assert await rig.state(chat_id) is State.R1


async def test_results_that_do_not_fit_are_refused_and_leave_no_trace(rig: Rig) -> None:
    # The first call was answered before, the fourth is the server's to run: neither is pending.
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("old")), result("old"))
    await rig.commit(chat_id, calling(call("a"), call("b"), call("s", "run")))
    await rig.update(chat_id, machine.enter_requires_action)
    before = await rig.trace(chat_id)
    rig.published.clear()
    ok = "{}"

    for given, problem, culprit in (
        ([("a", ok), ("b", ok), ("a", ok)], "duplicate", "a"),
        ([("a", ok), ("b", "{")], "invalid_json", "b"),
        ([("b", ok)], "missing", "a"),
        ([], "missing", "a"),
        ([("a", ok), ("b", ok), ("s", ok)], "unexpected", "s"),
        ([("a", ok), ("b", ok), ("old", ok)], "unexpected", "old"),
        ([("s", ok), ("s", "{")], "duplicate", "s"),
        ([("s", "{"), ("s", ok)], "invalid_json", "s"),
        ([("a", ok), ("s", ok)], "missing", "b"),
    ):
        with pytest.raises(ToolResultRejected) as refusal:
            await rig.run(
                chat_id,
                machine.complete_requires_action,
                [SubmittedResult(*each) for each in given],
                submitted_by=rig.user,
            )
        assert (refusal.value.problem, refusal.value.tool_call_id) == (problem, culprit)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_second_submission_is_refused(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"))
    results = [SubmittedResult("a", "{}")]
    await rig.run(chat_id, machine.complete_requires_action, results, submitted_by=rig.user)
    before = await rig.trace(chat_id)

    with pytest.raises(TransitionNotAllowed) as refusal:
        await rig.run(chat_id, machine.complete_requires_action, results, submitted_by=rig.user)

    assert refusal.value.from_state is State.R0
    assert await rig.trace(chat_id) == before


async def test_user_row_behind_the_results_ends_what_the_server_had_begun(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"), call("s", "run"))
    spoken = NewMessage(role=Role.USER, content=text("and hurry"), created_by=rig.user)
    results = [SubmittedResult("a", "1")]

    inserted = await rig.run(
        chat_id, machine.complete_requires_action, results, submitted_by=rig.user, suffix=[assistant("so"), spoken]
    )

    assert told(inserted) == told((await rig.history(chat_id))[2:])
    assert [message.role for message in inserted] == [Role.TOOL, Role.ASSISTANT, Role.TOOL, Role.USER]
    assert closure_of(inserted[2]) == ("s", "new_user_message")
    assert await rig.update(chat_id, machine.open_calls.turn_calls) == ()


async def test_hidden_row_behind_the_results_leaves_the_servers_calls_open(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"), call("s", "run"))
    hidden = NewMessage(role=Role.USER, content=text("context"), visibility=Visibility.MODEL)
    results = [SubmittedResult("a", "1")]

    inserted = await rig.run(chat_id, machine.complete_requires_action, results, submitted_by=rig.user, suffix=[hidden])

    assert [message.role for message in inserted] == [Role.TOOL, Role.USER]
    assert [each.tool_call_id for each in await rig.update(chat_id, machine.open_calls.turn_calls)] == ["s"]


# The deadline


async def test_deadline_that_passed_answers_the_clients_calls_and_the_turn_goes_on(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"), call("s", "run"), call("b"), timeout_seconds=0)
    await rig.send(chat_id, "later")

    closures = await rig.update(chat_id, machine.cancel_requires_action)

    assert [closure_of(message) for message in closures] == [("a", "action_timed_out"), ("b", "action_timed_out")]
    assert told(closures) == told((await rig.history(chat_id))[-2:])
    chat = await rig.load(chat_id)
    assert (chat.state, chat.requires_action_deadline_at) == (State.R1, None)
    assert chat.history_version == chat.snapshot_version
    assert [each.tool_call_id for each in await rig.update(chat_id, machine.open_calls.turn_calls)] == ["s"]


async def test_client_has_its_time_until_the_deadline(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"))
    before = await rig.trace(chat_id)

    with pytest.raises(TransitionNotAllowed) as refusal:
        await rig.update(chat_id, machine.cancel_requires_action)

    assert refusal.value.cause == "deadline_not_reached"
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


@pytest.mark.parametrize("hours", [-1, 1])
async def test_wall_clock_of_a_worker_decides_nothing_about_the_deadline(rig: Rig, hours: int) -> None:
    clock = FakeClock(start=datetime.now(UTC) + timedelta(hours=hours))
    elsewhere = Machine(rig.pool, rig.published, clock=clock)
    waiting, late = await parked(rig, call("a")), await parked(rig, call("a"), timeout_seconds=0)

    with pytest.raises(TransitionNotAllowed):
        await elsewhere.chat(waiting).update(machine.cancel_requires_action)
    await elsewhere.chat(late).update(machine.cancel_requires_action)

    assert await rig.state(waiting) is State.A0
    assert await rig.state(late) is State.R0


async def test_waiting_without_a_deadline_is_cancelled_with_its_own_reason(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"))
    await rig.force(chat_id, "requires_action_deadline_at = NULL")

    closures = await rig.update(chat_id, machine.cancel_requires_action)

    assert [closure_of(message) for message in closures] == [("a", "action_deadline_missing")]
    assert await rig.state(chat_id) is State.R0


async def test_cancelling_needs_an_open_call_of_a_client_tool(rig: Rig) -> None:
    chat_id = await parked(rig, call("a"), timeout_seconds=0)
    # Only a restore or manual SQL gets a chat here; the server must refuse, not fail.
    await rig.update(chat_id, lambda tx: machine.message_rows.insert(tx, [machine.message_rows.row_of(result("a"))]))
    before = await rig.trace(chat_id)

    with pytest.raises(TransitionNotAllowed) as refusal:
        await rig.update(chat_id, machine.cancel_requires_action)

    assert refusal.value.cause == "no_open_calls"
    assert await rig.trace(chat_id) == before
