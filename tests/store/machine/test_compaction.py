from __future__ import annotations

from datetime import datetime

import pytest

from rookery.domain.chat.errors import NothingToCompact, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId, NewMessage, Role, Visibility
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import FAILED, Rig, assistant, call, result, text, words
from tests.store.machine.transition_calls import RETRY

rig = shared_rig.rig

SUMMARY = (
    NewMessage(role=Role.USER, content=text("summary"), visibility=Visibility.MODEL, compressed=True),
    NewMessage(
        role=Role.ASSISTANT, content=(call("sum", "chat_summarized"),), visibility=Visibility.USER, compressed=True
    ),
    NewMessage(role=Role.TOOL, content=result("sum", "chat_summarized").content, compressed=True),
)


async def requested(rig: Rig, state: State) -> ChatId:
    """A chat with a compaction request in this `state`, and an answer to summarize."""
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hi"))
    if state.has_queue:
        await rig.send(chat_id, "queued 0")
    if state is State.W:
        await rig.update(chat_id, machine.finish_turn)
    else:
        await rig.run(chat_id, machine.finish_error, FAILED)
    await rig.update(chat_id, machine.request_compaction)
    rig.published.clear()
    return chat_id


async def compact_and_finish(tx: Tx) -> machine.TurnFinished:
    """Commit the summary and the end of the turn in one bundle, as the worker does for a chat at rest."""
    await machine.commit_step(tx, SUMMARY, consume_compaction=True)
    return await machine.finish_turn(tx)


async def test_request_after_an_exhausted_turn_starts_afresh_and_asks_for_a_worker(rig: Rig) -> None:
    for queued, target in ((0, State.R0), (1, State.R1)):
        chat_id = await rig.chat(State.R1 if queued else State.R0)
        await rig.acquire(chat_id)
        for _ in range(25):
            await rig.update(chat_id, machine.record_generation_attempt)
        await rig.run(chat_id, machine.record_retry_state, RETRY)
        await rig.run(chat_id, machine.finish_error, FAILED)
        failed, history = await rig.load(chat_id), await rig.history(chat_id)
        assert (failed.generation_attempt, failed.retry_state, failed.leased) == (25, None, True)
        earliest = await rig.value("SELECT clock_timestamp()")
        rig.published.clear()

        await rig.update(chat_id, machine.request_compaction)

        chat = await rig.load(chat_id)
        assert (chat.state, chat.last_error) == (target, None)
        assert (chat.generation_attempt, chat.retry_state) == (0, None)
        assert chat.history_version == chat.snapshot_version
        assert chat.queue_version == failed.queue_version
        assert (chat.worker_id, chat.runner_id) == (None, None)
        assert chat.compaction_resume
        assert isinstance(earliest, datetime)
        assert chat.compaction_requested_at is not None
        assert chat.compaction_requested_at >= earliest
        assert await rig.history(chat_id) == history
        assert [hint.chat_id for hint in rig.published.ownership()] == [chat_id]


async def test_request_at_rest_does_not_resume_afterwards(rig: Rig) -> None:
    chat = await rig.load(await requested(rig, State.W))

    assert chat.state is State.R0
    assert chat.compaction_requested_at is not None
    assert not chat.compaction_resume


async def test_second_request_is_refused_and_leaves_no_trace(rig: Rig) -> None:
    for state in (State.W, State.E0, State.E1):
        chat_id = await requested(rig, state)
        before = await rig.trace(chat_id)

        with pytest.raises(TransitionNotAllowed) as refusal:
            await rig.update(chat_id, machine.request_compaction)

        assert refusal.value.from_state in (State.R0, State.R1)
        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []


async def test_summary_uses_the_order_up_and_other_steps_do_not(rig: Rig) -> None:
    for state in (State.W, State.E0):
        chat_id = await requested(rig, state)
        resume = state is State.E0

        await rig.commit(chat_id, assistant("a step before it"))
        ordered = await rig.load(chat_id)
        await rig.run(chat_id, machine.commit_step, SUMMARY, consume_compaction=True)

        assert (ordered.compaction_requested_at is None, ordered.compaction_resume) == (False, resume)
        chat = await rig.load(chat_id)
        assert (chat.state, chat.compaction_requested_at, chat.compaction_resume) == (State.R0, None, False)


async def test_order_survives_what_does_not_end_the_turn(rig: Rig) -> None:
    chat_id = await requested(rig, State.E1)
    ordered = await rig.load(chat_id)

    await rig.acquire(chat_id)
    await rig.update(chat_id, machine.abandon)
    await rig.send(chat_id, "queued 1")
    await rig.send(chat_id, "queued 2", BusyBehavior.STEER)
    await rig.update(chat_id, machine.record_generation_attempt)
    await rig.run(chat_id, machine.record_retry_state, RETRY)
    await rig.commit(chat_id, assistant("step"))
    await rig.update(chat_id, machine.clear_queue)

    chat = await rig.load(chat_id)
    assert chat.compaction_requested_at == ordered.compaction_requested_at
    assert chat.compaction_resume


async def test_order_that_was_never_carried_out_ends_with_the_turn(rig: Rig) -> None:
    chat_id = await requested(rig, State.W)

    await rig.update(chat_id, machine.finish_turn)
    await rig.send(chat_id, "next turn")

    chat = await rig.load(chat_id)
    assert (chat.state, chat.compaction_requested_at, chat.compaction_resume) == (State.R0, None, False)


async def test_summary_of_a_chat_at_rest_ends_at_rest(rig: Rig) -> None:
    chat_id = await requested(rig, State.W)

    finished = await rig.update(chat_id, compact_and_finish)

    assert finished.promoted is None
    chat = await rig.load(chat_id)
    assert (chat.state, chat.compaction_requested_at) == (State.W, None)


@pytest.mark.parametrize("busy", [BusyBehavior.QUEUE, BusyBehavior.STEER])
async def test_message_sent_while_a_chat_at_rest_is_compacted_starts_a_turn_afterwards(
    rig: Rig, busy: BusyBehavior
) -> None:
    chat_id = await requested(rig, State.W)
    await rig.send(chat_id, "meanwhile", busy)

    finished = await rig.update(chat_id, compact_and_finish)

    assert finished.promoted is not None
    assert words(finished.promoted) == "meanwhile"
    assert words((await rig.history(chat_id))[-1]) == "meanwhile"
    assert await rig.state(chat_id) is State.R0


@pytest.mark.parametrize("manual", [True, False])
async def test_message_that_steers_a_turn_is_heard_behind_the_summary_made_on_the_way(rig: Rig, manual: bool) -> None:
    chat_id = await requested(rig, State.E0) if manual else await rig.chat(State.R0)
    await rig.send(chat_id, "meanwhile", BusyBehavior.STEER)

    committed = await rig.run(chat_id, machine.commit_step, SUMMARY, consume_compaction=True)

    assert [words(message) for message in committed.promoted] == ["meanwhile"]
    assert await rig.state(chat_id) is State.R0


# Something to compact


async def request_if_useful(tx: Tx) -> None:
    await machine.request_compaction(tx)
    await machine.require_compactable(tx)


async def test_request_with_nothing_to_compact_is_undone_as_a_whole(rig: Rig) -> None:
    hidden = NewMessage(role=Role.ASSISTANT, content=text("old"), compressed=True)
    for steps in ([], [(assistant("hi"), *SUMMARY)], [(hidden,)]):
        chat_id = await rig.create()
        for step in steps:
            await rig.commit(chat_id, *step)
        await rig.run(chat_id, machine.finish_error, FAILED)
        before = await rig.trace(chat_id)
        rig.published.clear()

        with pytest.raises(NothingToCompact):
            await rig.update(chat_id, request_if_useful)

        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []


async def test_refusal_cannot_be_swallowed_by_the_bundle(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def ignore(tx: Tx) -> None:
        with pytest.raises(NothingToCompact):
            await request_if_useful(tx)

    with pytest.raises(NothingToCompact):
        await rig.update(chat_id, ignore)

    assert await rig.trace(chat_id) == before


async def test_answer_after_the_newest_summary_can_be_compacted(rig: Rig) -> None:
    for steps in ([(assistant("hi"),)], [SUMMARY, (assistant("hi"),)]):
        chat_id = await rig.create()
        for step in steps:
            await rig.commit(chat_id, *step)
        await rig.update(chat_id, machine.finish_turn)

        await rig.update(chat_id, request_if_useful)

        assert (await rig.load(chat_id)).compaction_requested_at is not None


async def test_answer_counts_again_when_an_edit_removes_the_summary_behind_it(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hi"))
    await rig.update(chat_id, machine.finish_turn)
    sent = await rig.send(chat_id, "second")
    await rig.commit(chat_id, *SUMMARY)
    await rig.run(
        chat_id, machine.edit_message, sent.inserted[-1].id, content=text("second, better"), edited_by=rig.user
    )
    await rig.update(chat_id, machine.finish_turn)

    await rig.update(chat_id, request_if_useful)

    assert await rig.state(chat_id) is State.R0
