from __future__ import annotations

import asyncio
from itertools import product
from uuid import uuid4

import pytest

from rookery.domain.chat.errors import ChatArchived, QueueFull
from rookery.domain.chat.messages import Effort, Role, Visibility
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import MAX_QUEUE
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import Rig, text, told, words

rig = shared_rig.rig

BUSY = list(BusyBehavior)


# Where a message goes


@pytest.mark.parametrize("state", [State.W, State.E0])
async def test_message_to_an_idle_chat_starts_a_turn_with_any_busy_behavior(rig: Rig, state: State) -> None:
    for busy in BUSY:
        chat_id = await rig.chat(state)

        sent = await rig.send(chat_id, "go on", busy)

        chat, history = await rig.load(chat_id), await rig.history(chat_id)
        assert (chat.state, chat.last_error) == (State.R0, None)
        assert told(sent.inserted) == told(history[-1:])
        assert words(history[-1]) == "go on"
        assert (sent.queued, sent.repeats) == (None, None)
        assert await rig.queue(chat_id) == []


async def test_sent_message_keeps_all_it_carries(rig: Rig) -> None:
    chat_id, model, author = await rig.chat(State.W), await rig.add_model(), uuid4()

    sent = await rig.send(
        chat_id, "go on", created_by=author, model_config_id=model, reasoning_effort=Effort.MAX, client_id="c-1"
    )

    (message,) = sent.inserted
    assert told([message]) == told((await rig.history(chat_id))[-1:])
    assert (message.role, message.visibility, message.compressed) == (Role.USER, Visibility.BOTH, False)
    assert (words(message), message.created_by, message.client_id) == ("go on", author, "c-1")
    assert (message.model_config_id, message.reasoning_effort) == (model, Effort.MAX)
    chat = await rig.load(chat_id)
    assert (chat.last_model_config_id, chat.last_reasoning_effort) == (model, "max")
    assert message.revision == chat.snapshot_version == chat.history_version


async def test_message_to_a_failed_chat_with_a_backlog_lets_the_head_go_first(rig: Rig) -> None:
    for busy in (BusyBehavior.QUEUE, BusyBehavior.STEER):
        chat_id = await rig.chat(State.E1, queued=2)

        sent = await rig.send(chat_id, "go on", busy)

        assert [words(message) for message in sent.inserted] == ["queued 0"]
        assert sent.queued is not None
        assert words(sent.queued) == "go on"
        assert [words(row) for row in await rig.queue(chat_id)] == ["queued 1", "go on"]
        chat = await rig.load(chat_id)
        assert (chat.state, chat.last_error, chat.queue_len) == (State.R1, None, 2)


async def test_message_to_a_failed_chat_with_one_queued_row_takes_its_place(rig: Rig) -> None:
    chat_id = await rig.chat(State.E1, queued=1)

    await rig.send(chat_id, "go on")

    assert [words(row) for row in await rig.queue(chat_id)] == ["go on"]
    assert words((await rig.history(chat_id))[-1]) == "queued 0"
    assert await rig.state(chat_id) is State.R1


@pytest.mark.parametrize(
    ("state", "target"),
    [
        (State.R0, State.R1),
        (State.R1, State.R1),
        (State.I0, State.I1),
        (State.I1, State.I1),
        (State.A0, State.A1),
        (State.A1, State.A1),
    ],
)
async def test_message_to_a_busy_chat_waits_at_the_end_of_the_queue(rig: Rig, state: State, target: State) -> None:
    for busy in (BusyBehavior.QUEUE, BusyBehavior.STEER):
        chat_id = await rig.chat(state)
        history, queue, before = await rig.history(chat_id), await rig.queue(chat_id), await rig.load(chat_id)

        sent = await rig.send(chat_id, "and this", busy)

        after = await rig.load(chat_id)
        assert (sent.inserted, sent.repeats) == ((), None)
        assert await rig.queue(chat_id) == [*queue, sent.queued]
        assert await rig.history(chat_id) == history
        assert after.state is target
        assert after.requires_action_deadline_at == before.requires_action_deadline_at


@pytest.mark.parametrize("state", [State.R0, State.R1, State.I0, State.I1])
async def test_interrupting_message_becomes_the_head_of_the_queue(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state, queued=2) if state.has_queue else await rig.chat(state)
    history, queue = await rig.history(chat_id), await rig.queue(chat_id)

    sent = await rig.send(chat_id, "this first", BusyBehavior.INTERRUPT)

    assert (sent.inserted, sent.repeats) == ((), None)
    assert await rig.queue(chat_id) == [sent.queued, *queue]
    assert await rig.history(chat_id) == history
    assert await rig.state(chat_id) is State.I1


async def test_interrupting_message_runs_right_after_the_stop_and_the_backlog_keeps_its_order(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=3)
    await rig.send(chat_id, "this first", BusyBehavior.INTERRUPT)

    await rig.update(chat_id, machine.finish_interruption)

    assert words((await rig.history(chat_id))[-1]) == "this first"
    assert [words(row) for row in await rig.queue(chat_id)] == ["queued 0", "queued 1", "queued 2"]


async def test_last_of_several_interrupting_messages_runs_first_as_with_promotion(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1)
    for said in ("one", "two"):
        await rig.send(chat_id, said, BusyBehavior.INTERRUPT)

    assert [words(row) for row in await rig.queue(chat_id)] == ["two", "one", "queued 0"]


@pytest.mark.parametrize("state", [State.E1, State.A1])
async def test_interrupting_message_that_runs_at_once_needs_no_room_in_the_queue(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state, queued=20)

    sent = await rig.send(chat_id, "this first", BusyBehavior.INTERRUPT)

    assert words(sent.inserted[-1]) == "this first"
    assert len(await rig.queue(chat_id)) == 20
    assert await rig.state(chat_id) is State.R1


async def test_interrupting_message_goes_before_the_backlog_of_a_chat_that_failed(rig: Rig) -> None:
    chat_id = await rig.chat(State.E1, queued=2)
    queue = await rig.queue(chat_id)

    sent = await rig.send(chat_id, "this first", BusyBehavior.INTERRUPT)

    assert words(sent.inserted[-1]) == "this first"
    assert sent.queued is None
    assert await rig.queue(chat_id) == queue
    chat = await rig.load(chat_id)
    assert (chat.state, chat.last_error) == (State.R1, None)


async def test_interrupting_message_goes_ahead_when_only_a_client_was_waited_for(rig: Rig) -> None:
    chat_id = await rig.chat(State.A0)

    sent = await rig.send(chat_id, "never mind", BusyBehavior.INTERRUPT)

    assert [message.role for message in sent.inserted] == [Role.TOOL, Role.USER]
    assert words(sent.inserted[-1]) == "never mind"
    assert sent.queued is None
    chat = await rig.load(chat_id)
    assert (chat.state, chat.requires_action_deadline_at) == (State.R0, None)


async def test_interrupting_message_goes_before_a_backlog_that_waited_for_a_client(rig: Rig) -> None:
    chat_id = await rig.chat(State.A1, queued=2)
    queue = await rig.queue(chat_id)

    sent = await rig.send(chat_id, "never mind", BusyBehavior.INTERRUPT)

    assert [message.role for message in sent.inserted] == [Role.TOOL, Role.USER]
    assert words(sent.inserted[-1]) == "never mind"
    assert sent.queued is None
    assert await rig.queue(chat_id) == queue
    chat = await rig.load(chat_id)
    assert (chat.state, chat.requires_action_deadline_at) == (State.R1, None)


async def test_only_a_steering_message_that_waits_is_marked_so(rig: Rig) -> None:
    waiting = (State.E1, State.R0, State.R1, State.I0, State.I1, State.A0, State.A1)
    for state, busy in product(waiting, BUSY):
        if busy is BusyBehavior.INTERRUPT and state in (State.E1, State.A0, State.A1):
            continue  # it runs at once
        sent = await rig.send(await rig.chat(state), "and this", busy)
        assert sent.queued is not None
        assert sent.queued.steer is (busy is BusyBehavior.STEER), (state, busy)


async def test_queued_message_keeps_all_it_carries(rig: Rig) -> None:
    chat_id, model, author = await rig.chat(State.R0), await rig.add_model(), uuid4()

    sent = await rig.send(
        chat_id, "later", created_by=author, model_config_id=model, reasoning_effort=Effort.NONE, client_id="c-1"
    )

    queued = sent.queued
    assert queued is not None
    assert [queued] == await rig.queue(chat_id)
    assert (words(queued), queued.created_by, queued.client_id) == ("later", author, "c-1")
    assert (queued.model_config_id, queued.reasoning_effort) == (model, Effort.NONE)
    chat = await rig.load(chat_id)
    assert (chat.last_model_config_id, chat.last_reasoning_effort) == (rig.model, None)


# A full queue


@pytest.mark.parametrize("state", [State.R1, State.I1, State.A1])
async def test_full_queue_refuses_another_message_and_nothing_changes(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state, queued=MAX_QUEUE)
    before = await rig.trace(chat_id)

    # One that interrupts a wait for the client runs at once and needs no room.
    for busy in BUSY[:2] if state is State.A1 else BUSY:
        with pytest.raises(QueueFull) as refusal:
            await rig.send(chat_id, "one too many", busy)
        assert refusal.value.maximum == MAX_QUEUE == 20

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_full_queue_of_a_failed_chat_takes_the_message_that_drains_it(rig: Rig) -> None:
    chat_id = await rig.chat(State.E1, queued=MAX_QUEUE)

    sent = await rig.send(chat_id, "go on")

    assert words(sent.inserted[-1]) == "queued 0"
    queue = await rig.queue(chat_id)
    assert [words(row) for row in queue] == [f"queued {index}" for index in range(1, MAX_QUEUE)] + ["go on"]


# The same message twice


async def test_second_send_with_the_same_client_id_returns_the_first_message(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    first = await rig.send(chat_id, "go on", client_id="c-1")
    before = await rig.load(chat_id)

    for busy in BUSY:
        again = await rig.send(chat_id, "go on", busy, client_id="c-1")
        assert (again.inserted, again.queued, again.repeats) == ((), None, first.inserted[-1].id)

    after = await rig.load(chat_id)
    assert [words(message) for message in await rig.history(chat_id)] == ["hello", "go on"]
    assert await rig.queue(chat_id) == []
    assert after.state is State.R0
    assert after.history_version == before.history_version
    assert after.updated_at == before.updated_at


async def test_second_send_of_a_queued_message_returns_the_queued_row(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    first = await rig.send(chat_id, "later", client_id="c-1")
    before = await rig.load(chat_id)

    again = await rig.send(chat_id, "later", BusyBehavior.INTERRUPT, client_id="c-1")

    assert again == first
    assert await rig.queue(chat_id) == [first.queued]
    after = await rig.load(chat_id)
    assert (after.state, after.queue_version) == (State.R1, before.queue_version)


async def test_second_send_of_a_promoted_message_returns_its_message(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.send(chat_id, "later", client_id="c-1")
    finished = await rig.update(chat_id, machine.finish_turn)

    again = await rig.send(chat_id, "later", client_id="c-1")

    assert finished.promoted is not None
    assert again == machine.Sent(repeats=finished.promoted.id)
    assert [words(message) for message in await rig.history(chat_id)] == ["hello", "later"]
    assert await rig.queue(chat_id) == []


async def test_second_send_is_answered_even_if_the_chat_was_archived_meanwhile(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    first = await rig.send(chat_id, "go on", client_id="c-1")
    await rig.update(chat_id, machine.finish_turn)
    await rig.run(chat_id, machine.set_archived, True)

    again = await rig.send(chat_id, "go on", client_id="c-1")

    assert again.repeats == first.inserted[-1].id
    assert await rig.state(chat_id) is State.XW
    with pytest.raises(ChatArchived):
        await rig.send(chat_id, "go on", client_id="c-2")


async def test_second_send_into_an_archived_backlog_returns_the_queued_row(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    first = await rig.send(chat_id, "later", client_id="c-1")
    await rig.run(chat_id, machine.finish_error, machine.turn_transitions.REPAIRED)
    await rig.run(chat_id, machine.set_archived, True)

    assert await rig.send(chat_id, "later", client_id="c-1") == first
    assert await rig.state(chat_id) is State.XE1


async def test_second_send_is_answered_even_if_the_queue_is_full_now(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    first = await rig.send(chat_id, "later", client_id="c-1")
    for index in range(1, MAX_QUEUE):
        await rig.send(chat_id, f"queued {index}")

    assert await rig.send(chat_id, "later", client_id="c-1") == first


async def test_second_send_of_a_message_that_an_edit_removed_does_not_bring_it_back(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    first = (await rig.history(chat_id))[0].id
    sent = await rig.send(chat_id, "go on", client_id="c-1")
    await rig.run(chat_id, machine.edit_message, first, content=text("hello again"), edited_by=rig.user)

    again = await rig.send(chat_id, "go on", client_id="c-1")

    assert again.repeats == sent.inserted[-1].id
    assert [words(message) for message in await rig.history(chat_id)] == ["hello again"]


async def test_client_ids_of_different_chats_have_nothing_to_do_with_each_other(rig: Rig) -> None:
    one, other = await rig.chat(State.W), await rig.chat(State.W)

    await rig.send(one, "go on", client_id="c-1")
    sent = await rig.send(other, "go on", client_id="c-1")

    assert sent.repeats is None
    assert len(sent.inserted) == 1


async def test_messages_without_a_client_id_are_never_taken_for_each_other(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    await rig.send(chat_id, "again")
    await rig.send(chat_id, "again")

    assert [words(row) for row in await rig.queue(chat_id)] == ["again", "again"]


async def test_client_id_is_recognised_inside_one_bundle(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    message = rig.message("go on", client_id="c-1")

    async def send_twice(tx: machine.Tx) -> machine.Sent:
        await machine.send_message(tx, message, BusyBehavior.QUEUE)
        return await machine.send_message(tx, message, BusyBehavior.QUEUE)

    again = await rig.update(chat_id, send_twice)

    assert again.repeats == await rig.last_id(chat_id)


async def test_one_message_sent_many_times_at_once_is_one_message(rig: Rig) -> None:
    for state in (State.W, State.R0):
        chat_id = await rig.chat(state)

        sent = await asyncio.gather(*(rig.send(chat_id, "go on", client_id="c-1") for _ in range(8)))

        history, queue = await rig.history(chat_id), await rig.queue(chat_id)
        assert [words(row) for row in history[1:]] + [words(row) for row in queue] == ["go on"]
        assert sum(1 for each in sent if each.inserted) == (1 if state is State.W else 0)
