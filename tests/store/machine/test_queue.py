from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import QueueChanged, QueuedMessageNotFound
from rookery.domain.chat.messages import ChatId, Effort, Message, QueuedMessage, QueuedMessageId, Role, Visibility
from rookery.domain.chat.parts import CONTENT_VERSION, File
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import CLIENT_TOOL, Rig, assistant, call, calling, closure_of, text, told, words

rig = shared_rig.rig

BACKLOGS = (State.E1, State.R1, State.I1, State.A1)
NOBODY = QueuedMessageId(2**40)

Operation = Callable[[Tx, QueuedMessageId], Awaitable[object]]
ON_ONE_ROW: dict[str, Operation] = {
    "delete": machine.delete_queued_message,
    "edit": lambda tx, queued_id: machine.edit_queued_message(tx, queued_id, content=text("edited")),
    "promote": machine.promote_queued_message,
}


async def order(rig: Rig, chat_id: ChatId) -> list[str]:
    return [words(row).removeprefix("queued ") for row in await rig.queue(chat_id)]


def versions(chat: Chat) -> tuple[int, int, int]:
    return chat.history_version, chat.retry_state_version, chat.generation_attempt


# Delete, clear


async def test_deleting_takes_one_row_out_and_returns_it(rig: Rig) -> None:
    for state in BACKLOGS:
        chat_id = await rig.chat(state, queued=3)
        target = (await rig.queue(chat_id))[1]
        before = await rig.load(chat_id)

        deleted = await rig.run(chat_id, machine.delete_queued_message, target.id)

        assert deleted == target
        assert await order(rig, chat_id) == ["0", "2"]
        after = await rig.load(chat_id)
        assert (after.state, after.queue_len, after.queue_version) == (state, 2, after.snapshot_version)
        assert versions(after) == versions(before)


async def test_deleting_the_last_row_leaves_an_empty_queue(rig: Rig) -> None:
    for state, target in {State.E1: State.E0, State.R1: State.R0, State.I1: State.I0, State.A1: State.A0}.items():
        chat_id = await rig.chat(state)
        (row,) = await rig.queue(chat_id)

        await rig.run(chat_id, machine.delete_queued_message, row.id)

        assert await rig.state(chat_id) is target


async def test_clearing_returns_all_rows_in_queue_order(rig: Rig) -> None:
    chat_id = await rig.chat(State.E1, queued=3)
    ids = [row.id for row in await rig.queue(chat_id)]
    await rig.run(chat_id, machine.reorder_queue, ids[::-1])

    deleted = await rig.update(chat_id, machine.clear_queue)

    assert [row.id for row in deleted] == ids[::-1]
    assert await rig.queue(chat_id) == []
    chat = await rig.load(chat_id)
    assert (chat.state, chat.queue_len, chat.queue_version) == (State.E0, 0, chat.snapshot_version)


@pytest.mark.parametrize("operation", ON_ONE_ROW.values(), ids=ON_ONE_ROW)
async def test_row_that_is_gone_or_of_another_chat_is_not_found(rig: Rig, operation: Operation) -> None:
    foreign = (await rig.queue(await rig.chat(State.R1)))[0].id
    for state in BACKLOGS:
        chat_id = await rig.chat(state)
        before = await rig.trace(chat_id)

        for queued_id in (NOBODY, foreign):
            with pytest.raises(QueuedMessageNotFound) as refusal:
                await rig.run(chat_id, operation, queued_id)
            assert refusal.value.queued_id == queued_id

        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []


@pytest.mark.parametrize("operation", ON_ONE_ROW.values(), ids=ON_ONE_ROW)
async def test_row_that_was_sent_meanwhile_is_not_found(rig: Rig, operation: Operation) -> None:
    chat_id = await rig.chat(State.R1, queued=2)
    head = (await rig.queue(chat_id))[0].id
    await rig.update(chat_id, machine.finish_turn)

    with pytest.raises(QueuedMessageNotFound):
        await rig.run(chat_id, operation, head)


# Edit


async def test_editing_replaces_only_what_is_given_and_moves_only_the_queue(rig: Rig) -> None:
    model, author = await rig.add_model(), uuid4()
    for state in (State.R1, State.I1, State.A1):
        chat_id = await rig.chat(state)
        sent = await rig.send(
            chat_id, "draft", created_by=author, model_config_id=rig.model, reasoning_effort=Effort.LOW, client_id="c"
        )
        assert sent.queued is not None
        first, before = sent.queued, await rig.load(chat_id)

        edited = await rig.run(chat_id, machine.edit_queued_message, first.id, content=text("better"))
        again = await rig.run(
            chat_id,
            machine.edit_queued_message,
            first.id,
            content=text("best"),
            model_config_id=model,
            reasoning_effort=Effort.HIGH,
        )

        assert words(edited) == "better"
        assert (edited.model_config_id, edited.reasoning_effort) == (rig.model, Effort.LOW)
        assert (again.model_config_id, again.reasoning_effort) == (model, Effort.HIGH)
        kept = ("id", "position", "created_by", "client_id", "created_at", "steer")
        assert [getattr(again, name) for name in kept] == [getattr(first, name) for name in kept]
        assert (await rig.queue(chat_id))[-1] == again
        after = await rig.load(chat_id)
        assert (after.state, after.queue_version) == (state, after.snapshot_version)
        assert versions(after) == versions(before)
        assert (after.last_model_config_id, after.last_reasoning_effort) == (rig.model, None)


async def test_editing_links_the_files_it_names_at_once(rig: Rig) -> None:
    chat_id, file_id = await rig.chat(State.R1), await rig.add_file()
    (row,) = await rig.queue(chat_id)

    await rig.run(chat_id, machine.edit_queued_message, row.id, content=(File("text/plain", file_id=file_id),))

    assert await rig.linked_files(chat_id) == {file_id}


# Reorder


async def test_reordering_gives_the_rows_the_order_asked_for(rig: Rig) -> None:
    for state in BACKLOGS:
        chat_id = await rig.chat(state, queued=3)
        before = await rig.load(chat_id)
        first, second, third = (row.id for row in await rig.queue(chat_id))

        rows = await rig.run(chat_id, machine.reorder_queue, (third, first, second))

        assert rows == await rig.queue(chat_id)
        assert [row.id for row in rows] == [third, first, second]
        assert [row.position for row in rows] == [1, 2, 3]
        after = await rig.load(chat_id)
        assert (after.state, after.queue_version) == (state, after.snapshot_version)
        assert versions(after) == versions(before)


async def test_reordering_into_the_same_order_moves_nothing(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=4)
    # Leaves a gap: it is the order that counts, not the numbers.
    await rig.run(chat_id, machine.delete_queued_message, (await rig.queue(chat_id))[1].id)
    queue, before = await rig.queue(chat_id), await rig.load(chat_id)

    rows = await rig.run(chat_id, machine.reorder_queue, [row.id for row in queue])

    assert rows == queue == await rig.queue(chat_id)
    assert (await rig.load(chat_id)).queue_version == before.queue_version


async def test_new_order_that_does_not_name_exactly_the_queue_is_refused_with_the_queue(rig: Rig) -> None:
    foreign = (await rig.queue(await rig.chat(State.R1)))[0].id
    chat_id = await rig.chat(State.R1, queued=3)
    queue, before = await rig.queue(chat_id), await rig.trace(chat_id)
    first, second, third = (row.id for row in queue)

    for wrong in (
        [],
        [first, second],
        [first, second, third, foreign],
        [first, second, foreign],
        [first, first, second],
        [first, second, third, third],
    ):
        with pytest.raises(QueueChanged) as refusal:
            await rig.run(chat_id, machine.reorder_queue, wrong)
        assert refusal.value.items == tuple(queue)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


# Order


async def test_new_rows_go_last_after_every_kind_of_move(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=3)
    ids = [row.id for row in await rig.queue(chat_id)]
    await rig.run(chat_id, machine.promote_queued_message, ids[2])
    await rig.send(chat_id, "queued 3")
    await rig.run(chat_id, machine.delete_queued_message, ids[1])
    await rig.send(chat_id, "queued 4")

    assert await order(rig, chat_id) == ["2", "0", "3", "4"]


async def test_backlog_is_worked_off_in_the_order_it_shows(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=4)
    ids = [row.id for row in await rig.queue(chat_id)]
    await rig.run(chat_id, machine.promote_queued_message, ids[2])
    await rig.run(chat_id, machine.promote_queued_message, ids[3])
    await rig.update(chat_id, machine.finish_interruption)
    for _ in range(3):
        await rig.update(chat_id, machine.finish_turn)

    assert [words(message) for message in (await rig.history(chat_id))[1:]] == [
        "queued 3",
        "queued 2",
        "queued 0",
        "queued 1",
    ]
    assert await rig.state(chat_id) is State.R0


# Promote


async def test_promoting_while_at_work_moves_the_row_first_and_interrupts(rig: Rig) -> None:
    for state in (State.R1, State.I1):
        chat_id = await rig.chat(state, queued=3)
        last, before = (await rig.queue(chat_id))[-1], await rig.load(chat_id)
        history = await rig.history(chat_id)

        promoted = await rig.run(chat_id, machine.promote_queued_message, last.id)

        assert await order(rig, chat_id) == ["2", "0", "1"]
        assert promoted.queued == (await rig.queue(chat_id))[0]
        assert (promoted.reordered, promoted.inserted) == (True, ())
        assert await rig.history(chat_id) == history
        after = await rig.load(chat_id)
        assert (after.state, after.queue_version) == (State.I1, after.snapshot_version)
        assert versions(after) == versions(before)


async def test_promoting_again_and_again_takes_positions_below_zero(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=3)
    ids = [row.id for row in await rig.queue(chat_id)]

    for queued_id in (ids[1], ids[2], ids[0]):
        await rig.run(chat_id, machine.promote_queued_message, queued_id)

    queue = await rig.queue(chat_id)
    assert [row.id for row in queue] == [ids[0], ids[2], ids[1]]
    assert [row.position for row in queue] == [-2, -1, 0]


async def test_promoting_the_head_while_at_work_interrupts_and_leaves_the_queue_alone(rig: Rig) -> None:
    for state in (State.R1, State.I1):
        chat_id = await rig.chat(state, queued=2)
        queue, before = await rig.queue(chat_id), await rig.load(chat_id)

        promoted = await rig.run(chat_id, machine.promote_queued_message, queue[0].id)

        assert (promoted.queued, promoted.reordered, promoted.inserted) == (queue[0], False, ())
        assert await rig.queue(chat_id) == queue
        after = await rig.load(chat_id)
        assert (after.state, after.queue_version) == (State.I1, before.queue_version)


async def test_promoting_while_nothing_runs_sends_the_row_at_once(rig: Rig) -> None:
    for state in (State.E1, State.A1):
        for queued, target in ((1, State.R0), (3, State.R1)):
            chat_id = await rig.chat(state, queued=queued)
            row = (await rig.queue(chat_id))[-1]

            promoted = await rig.run(chat_id, machine.promote_queued_message, row.id)

            history = await rig.history(chat_id)
            assert told(promoted.inserted) == told(history[-len(promoted.inserted) :])
            assert words(history[-1]) == words(row) == words(promoted.queued)
            assert await order(rig, chat_id) == [str(index) for index in range(queued - 1)]
            chat = await rig.load(chat_id)
            assert (chat.state, chat.last_error, chat.requires_action_deadline_at) == (target, None, None)
            assert chat.history_version == chat.queue_version == chat.snapshot_version


# What becomes of a row on its way into the history

Promotion = Callable[[Rig, ChatId], Awaitable[object]]


async def _promote(rig: Rig, chat_id: ChatId) -> object:
    (row,) = await rig.queue(chat_id)
    return await rig.run(chat_id, machine.promote_queued_message, row.id)


async def _finish_interruption(rig: Rig, chat_id: ChatId) -> object:
    await rig.update(chat_id, machine.interrupt)
    return await rig.update(chat_id, machine.finish_interruption)


async def _interrupt_action(rig: Rig, chat_id: ChatId) -> object:
    await rig.commit(chat_id, calling(call("a", CLIENT_TOOL)))
    await rig.update(chat_id, machine.enter_requires_action)
    return await rig.update(chat_id, machine.interrupt)


async def _fail(rig: Rig, chat_id: ChatId) -> None:
    await rig.run(chat_id, machine.finish_error, machine.turn_transitions.REPAIRED)


async def _promote_failed(rig: Rig, chat_id: ChatId) -> object:
    await _fail(rig, chat_id)
    return await _promote(rig, chat_id)


async def _send_failed(rig: Rig, chat_id: ChatId) -> object:
    await _fail(rig, chat_id)
    await rig.send(chat_id, "go on")
    return await rig.update(chat_id, machine.clear_queue)


async def _steer(rig: Rig, chat_id: ChatId) -> object:
    await rig.update(
        chat_id,
        lambda tx: tx.conn.execute("UPDATE chat_queued_messages SET steer = true WHERE chat_id = $1", tx.chat.id),
    )
    return await rig.commit(chat_id, assistant("on my way"))


PROMOTIONS: dict[str, Promotion] = {
    "finish_turn": lambda rig, chat_id: rig.update(chat_id, machine.finish_turn),
    "finish_interruption": _finish_interruption,
    "interrupt": _interrupt_action,
    "promote": _promote_failed,
    "send": _send_failed,
    "commit_step": _steer,
}


@pytest.mark.parametrize("promotion", PROMOTIONS.values(), ids=PROMOTIONS)
async def test_promoted_row_keeps_everything_but_its_id(rig: Rig, promotion: Promotion) -> None:
    chat_id, model, author = await rig.chat(State.R0), await rig.add_model(), uuid4()
    sent = await rig.send(
        chat_id, "later", created_by=author, model_config_id=model, reasoning_effort=Effort.XHIGH, client_id="c-1"
    )
    assert sent.queued is not None

    await promotion(rig, chat_id)

    message = (await rig.history(chat_id))[-1]
    assert _carried(message) == _carried(sent.queued)
    assert (message.role, message.visibility, message.compressed) == (Role.USER, Visibility.BOTH, False)
    assert await rig.queue(chat_id) == []
    chat = await rig.load(chat_id)
    assert (chat.last_model_config_id, chat.last_reasoning_effort) == (model, "xhigh")


async def test_promoted_row_keeps_a_content_version_that_this_server_does_not_write(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1)
    await rig.update(
        chat_id,
        lambda tx: tx.conn.execute(
            'UPDATE chat_queued_messages SET content = \'[{"type": "hologram"}]\', content_version = $2'
            " WHERE chat_id = $1",
            tx.chat.id,
            CONTENT_VERSION + 1,
        ),
    )

    await rig.update(chat_id, machine.finish_turn)

    message = (await rig.history(chat_id))[-1]
    assert (message.content, message.content_version) == ('[{"type": "hologram"}]', CONTENT_VERSION + 1)


async def test_promoted_row_follows_the_answers_to_what_was_open(rig: Rig) -> None:
    chat_id = await rig.chat(State.A1, queued=2)

    promoted = await rig.update(chat_id, _promote_last)

    assert closure_of(promoted.inserted[0]) == ("call-1", "queued_message")
    assert words(promoted.inserted[1]) == "queued 1"


async def _promote_last(tx: Tx) -> machine.Promoted:
    return await machine.promote_queued_message(tx, (await machine.queue_rows.list_queue(tx))[-1].id)


def _carried(row: Message | QueuedMessage) -> tuple[object, ...]:
    return (
        row.content,
        row.content_version,
        row.created_by,
        row.model_config_id,
        row.reasoning_effort,
        row.client_id,
    )
