"""Every race of the specification, forced with two connections in both orders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from rookery.domain.chat.errors import (
    FileCapExceeded,
    QueueChanged,
    QueuedMessageNotFound,
    QueueFull,
    StaleFence,
    TransitionNotAllowed,
)
from rookery.domain.chat.messages import ChatId, MessageId, QueuedMessageId, Role
from rookery.domain.chat.open_tool_calls import CloseReason, SubmittedResult
from rookery.domain.chat.parts import File
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine.held_bundles import (
    Action,
    backlog,
    finishing,
    in_order,
    owned,
    sending,
    spoken,
    stepping,
    updating,
)
from tests.store.machine.machine_rig import Rig, assistant, call, calling, closure_of, text

# Sends


async def test_of_two_sends_to_an_idle_chat_the_first_is_heard_and_the_second_waits(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    await in_order(rig, sending(rig, chat_id, "first"), sending(rig, chat_id, "second"))

    assert await rig.state(chat_id) is State.R1
    assert await spoken(rig, chat_id) == ["hello", "first"]
    assert await backlog(rig, chat_id) == ["second"]


async def test_message_sent_before_the_turn_ends_is_promoted_by_its_end(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R0)

    _, finished = await in_order(rig, sending(rig, chat_id, "next"), finishing(rig, chat_id, fence))

    assert isinstance(finished, machine.TurnFinished)
    assert finished.promoted is not None
    assert await rig.state(chat_id) is State.R0
    assert await spoken(rig, chat_id) == ["hello", "next"]
    assert await backlog(rig, chat_id) == []


async def test_message_sent_after_the_turn_ended_is_heard_directly(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R0)

    await in_order(rig, finishing(rig, chat_id, fence), sending(rig, chat_id, "next"))

    assert await rig.state(chat_id) is State.R0
    assert await spoken(rig, chat_id) == ["hello", "next"]
    assert await backlog(rig, chat_id) == []


async def test_send_before_abandon_keeps_the_runner_and_needs_no_hint(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.W)
    abandoning = updating(rig, chat_id, machine.abandon, fence=fence)

    _, refused = await in_order(rig, sending(rig, chat_id, "next"), abandoning)

    assert isinstance(refused, StaleFence)
    chat = await rig.load(chat_id)
    assert (chat.state, chat.runner_id) == (State.R0, fence.runner_id)
    assert rig.published.ownership() == []
    await rig.update(chat_id, machine.record_generation_attempt, fence=rig.fence(chat))


async def test_send_after_abandon_asks_for_an_owner(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.W)
    abandoning = updating(rig, chat_id, machine.abandon, fence=fence)

    await in_order(rig, abandoning, sending(rig, chat_id, "next"))

    chat = await rig.load(chat_id)
    assert (chat.state, chat.runner_id) == (State.R0, None)
    assert [hint.snapshot_version for hint in rig.published.ownership()] == [chat.snapshot_version]


async def test_of_two_appends_to_a_queue_with_one_free_place_one_succeeds(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=19)

    _, refused = await in_order(rig, sending(rig, chat_id, "last"), sending(rig, chat_id, "too many"))

    assert isinstance(refused, QueueFull)
    assert refused.maximum == 20
    assert (await backlog(rig, chat_id))[19:] == ["last"]


async def test_of_two_sends_that_each_bring_the_fiftieth_file_one_is_refused_as_a_whole(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    for file_id in [await rig.add_file() for _ in range(49)]:
        await rig.sql("INSERT INTO chat_file_links VALUES ($1, $2)", chat_id, file_id)
    first, second = await rig.add_file(), await rig.add_file()

    def bringing(file_id: UUID) -> Action[machine.Sent]:
        message = rig.message("", content=(File(media_type="text/plain", file_id=file_id),))
        return updating(rig, chat_id, lambda tx: machine.send_message(tx, message, BusyBehavior.QUEUE))

    _, refused = await in_order(rig, bringing(first), bringing(second))

    assert isinstance(refused, FileCapExceeded)
    assert await rig.value("SELECT count(*) FROM chat_file_links WHERE chat_id = $1", chat_id) == 50
    assert len(await rig.queue(chat_id)) == 1


# Interrupts


async def test_interrupt_before_a_commit_makes_it_stale_and_the_partial_answer_is_saved(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R0)

    _, refused = await in_order(rig, updating(rig, chat_id, machine.interrupt), stepping(rig, chat_id, fence))
    assert isinstance(refused, StaleFence)
    current = rig.fence(await rig.load(chat_id))
    await rig.update(chat_id, lambda tx: machine.finish_interruption(tx, [assistant("par")]), fence=current)

    assert await rig.state(chat_id) is State.W
    assert await spoken(rig, chat_id) == ["hello", "par"]


async def test_interrupt_after_a_commit_keeps_the_step_and_its_open_calls_are_closed(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R0)
    step = updating(rig, chat_id, lambda tx: machine.commit_step(tx, [calling(call("call-1"))]), fence=fence)

    await in_order(rig, step, updating(rig, chat_id, machine.interrupt))
    stopped = await rig.update(chat_id, machine.finish_interruption, fence=rig.fence(await rig.load(chat_id)))

    assert [closure_of(message) for message in stopped.inserted] == [("call-1", CloseReason.INTERRUPTED)]
    assert [m.role for m in await rig.history(chat_id)] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert await rig.state(chat_id) is State.W


async def test_interrupt_after_the_turn_ended_is_refused(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R0)

    _, refused = await in_order(rig, finishing(rig, chat_id, fence), updating(rig, chat_id, machine.interrupt))

    assert isinstance(refused, TransitionNotAllowed)
    assert await rig.state(chat_id) is State.W


async def test_turn_that_ends_after_an_interrupt_is_stale_and_the_chat_rests(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R0)

    _, refused = await in_order(rig, updating(rig, chat_id, machine.interrupt), finishing(rig, chat_id, fence))
    assert isinstance(refused, StaleFence)
    assert await rig.state(chat_id) is State.I0
    await rig.update(chat_id, machine.finish_interruption, fence=rig.fence(await rig.load(chat_id)))

    assert await rig.state(chat_id) is State.W


# Edits against the worker


def worker_writes(rig: Rig) -> dict[State, Callable[[Tx], Awaitable[object]]]:
    return {
        State.R0: lambda tx: machine.commit_step(tx, [assistant("answer")]),
        State.I0: lambda tx: machine.finish_interruption(tx, [assistant("answer")]),
        State.A0: machine.cancel_requires_action,
    }


@pytest.mark.parametrize("state", [State.R0, State.I0, State.A0])
async def test_edit_before_a_write_of_the_worker_makes_it_stale_and_drops_its_output(rig: Rig, state: State) -> None:
    chat_id, fence = await owned(rig, state)
    write = updating(rig, chat_id, worker_writes(rig)[state], fence=fence)

    _, refused = await in_order(rig, _editing(rig, chat_id, await _first(rig, chat_id)), write)

    assert isinstance(refused, StaleFence)
    assert await spoken(rig, chat_id) == ["hello again"]
    assert await rig.state(chat_id) is State.R0


@pytest.mark.parametrize("state", [State.R0, State.I0, State.A0])
async def test_edit_after_a_write_of_the_worker_cuts_its_rows_off(rig: Rig, state: State) -> None:
    chat_id, fence = await owned(rig, state)
    write = updating(rig, chat_id, worker_writes(rig)[state], fence=fence)

    await in_order(rig, write, _editing(rig, chat_id, await _first(rig, chat_id)))

    assert await spoken(rig, chat_id) == ["hello again"]
    cut = [message for message in await rig.history(chat_id, deleted=True) if message.deleted]
    assert [m.role for m in cut][:1] == [Role.USER]
    assert len(cut) >= 2
    assert await rig.state(chat_id) is State.R0


async def _first(rig: Rig, chat_id: ChatId) -> MessageId:
    return (await rig.history(chat_id))[0].id


def _editing(rig: Rig, chat_id: ChatId, message_id: MessageId) -> Action[machine.Edited]:
    content = text("hello again")
    return updating(
        rig,
        chat_id,
        lambda tx: machine.edit_message(tx, message_id, content=content, edited_by=rig.user),
    )


# Client tools


def _answering(rig: Rig, chat_id: ChatId) -> Action[object]:
    results = [SubmittedResult("call-1", '{"output": "red"}')]
    return updating(rig, chat_id, lambda tx: machine.complete_requires_action(tx, results, submitted_by=rig.user))


async def _results_of(rig: Rig, chat_id: ChatId) -> int:
    return len([message for message in await rig.history(chat_id) if message.role == Role.TOOL])


async def test_results_before_the_deadline_make_the_timeout_stale(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.A0)
    expiring = updating(rig, chat_id, machine.cancel_requires_action, fence=fence)

    _, refused = await in_order(rig, _answering(rig, chat_id), expiring)

    assert isinstance(refused, StaleFence)
    assert await _results_of(rig, chat_id) == 1
    assert await rig.state(chat_id) is State.R0


async def test_results_after_the_deadline_are_refused(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.A0)
    expiring = updating(rig, chat_id, machine.cancel_requires_action, fence=fence)

    closures, refused = await in_order(rig, expiring, _answering(rig, chat_id))

    assert [closure_of(message) for message in closures] == [("call-1", CloseReason.ACTION_TIMED_OUT)]
    assert isinstance(refused, TransitionNotAllowed)
    assert await _results_of(rig, chat_id) == 1
    assert await rig.state(chat_id) is State.R0


async def test_of_two_submissions_of_results_the_second_is_refused(rig: Rig) -> None:
    chat_id, _ = await owned(rig, State.A0)

    _, refused = await in_order(rig, _answering(rig, chat_id), _answering(rig, chat_id))

    assert isinstance(refused, TransitionNotAllowed)
    assert await _results_of(rig, chat_id) == 1


# The queue against the end of a turn

QUEUE_OPERATIONS: dict[str, Callable[[Tx, QueuedMessageId], Awaitable[object]]] = {
    "promote": machine.promote_queued_message,
    "edit": lambda tx, queued_id: machine.edit_queued_message(tx, queued_id, content=text("edited")),
    "delete": machine.delete_queued_message,
}


@pytest.mark.parametrize("name", QUEUE_OPERATIONS)
async def test_queue_row_that_the_end_of_the_turn_promoted_is_gone(rig: Rig, name: str) -> None:
    chat_id, fence = await owned(rig, State.R1, queued=2)
    head = (await rig.queue(chat_id))[0]
    touch = updating(rig, chat_id, lambda tx: QUEUE_OPERATIONS[name](tx, head.id))

    _, refused = await in_order(rig, finishing(rig, chat_id, fence), touch)

    assert isinstance(refused, QueuedMessageNotFound)
    assert await spoken(rig, chat_id) == ["hello", "queued 0"]
    assert await backlog(rig, chat_id) == ["queued 1"]
    assert await rig.state(chat_id) is State.R1


async def test_promotion_before_the_turn_ends_interrupts_it(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R1, queued=2)
    last = (await rig.queue(chat_id))[1]
    promote = updating(rig, chat_id, lambda tx: machine.promote_queued_message(tx, last.id))

    _, refused = await in_order(rig, promote, finishing(rig, chat_id, fence))
    assert isinstance(refused, StaleFence)
    assert await rig.state(chat_id) is State.I1
    await rig.update(chat_id, machine.finish_interruption, fence=rig.fence(await rig.load(chat_id)))

    assert await spoken(rig, chat_id) == ["hello", "queued 1"]
    assert await backlog(rig, chat_id) == ["queued 0"]


async def test_edit_of_a_queue_row_before_the_turn_ends_is_what_gets_promoted(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R1)
    head = (await rig.queue(chat_id))[0]
    edit = updating(rig, chat_id, lambda tx: QUEUE_OPERATIONS["edit"](tx, head.id))

    await in_order(rig, edit, finishing(rig, chat_id, fence))

    assert await spoken(rig, chat_id) == ["hello", "edited"]


async def test_deletion_of_the_last_queue_row_before_the_turn_ends_lets_the_chat_rest(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R1)
    head = (await rig.queue(chat_id))[0]
    delete = updating(rig, chat_id, lambda tx: machine.delete_queued_message(tx, head.id))

    await in_order(rig, delete, finishing(rig, chat_id, fence))

    assert await spoken(rig, chat_id) == ["hello"]
    assert await rig.state(chat_id) is State.W


async def test_reorder_of_a_queue_that_changed_meanwhile_is_refused_with_the_queue_as_it_is(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R1, queued=3)
    seen = [row.id for row in await rig.queue(chat_id)]
    reorder = updating(rig, chat_id, lambda tx: machine.reorder_queue(tx, list(reversed(seen))))

    _, refused = await in_order(rig, finishing(rig, chat_id, fence), reorder)

    assert isinstance(refused, QueueChanged)
    assert [row.id for row in refused.items] == seen[1:]
    assert [row.id for row in await rig.queue(chat_id)] == seen[1:]


async def test_reorder_before_the_turn_ends_decides_what_is_promoted(rig: Rig) -> None:
    chat_id, fence = await owned(rig, State.R1, queued=3)
    seen = [row.id for row in await rig.queue(chat_id)]
    reorder = updating(rig, chat_id, lambda tx: machine.reorder_queue(tx, list(reversed(seen))))

    await in_order(rig, reorder, finishing(rig, chat_id, fence))

    assert await spoken(rig, chat_id) == ["hello", "queued 2"]
    assert await backlog(rig, chat_id) == ["queued 1", "queued 0"]
