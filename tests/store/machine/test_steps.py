from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat.chat import LastError
from rookery.domain.chat.errors import InvalidInput, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId, Effort, NewMessage, Role, StepFigures
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import FAILED, Rig, assistant, call, calling, closure_of, result, text, told, words
from tests.store.machine.transition_calls import RETRY

rig = shared_rig.rig

FIGURES = StepFigures(
    input_tokens=1,
    output_tokens=2,
    total_tokens=3,
    reasoning_tokens=4,
    cache_read_tokens=5,
    cache_write_tokens=6,
    context_tokens=7,
    context_limit=8,
    cost_micros=9,
    runtime_ms=10,
    finish_reason="stop",
    prefix_fp=b"0123456789abcdef",
    request_id="req-1",
    response_id="resp-1",
)


async def figures_of(rig: Rig, message_id: int) -> dict[str, object]:
    names = ", ".join(StepFigures.__struct_fields__)
    async with rig.pool.acquire() as conn:
        record = await conn.fetchrow(f"SELECT {names} FROM chat_messages WHERE id = $1", message_id)
    assert record is not None
    return dict(record)


async def spoken(rig: Rig, chat_id: ChatId) -> list[str]:
    return [words(message) for message in await rig.history(chat_id)]


# Attempts


async def test_attempts_are_counted_from_one(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    assert [await rig.update(chat_id, machine.record_generation_attempt) for _ in range(3)] == [1, 2, 3]
    await rig.commit(chat_id, assistant("done"))
    assert await rig.update(chat_id, machine.record_generation_attempt) == 1


async def test_attempt_ends_the_wait_for_it(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1)
    await rig.update(chat_id, machine.record_generation_attempt)
    await rig.run(chat_id, machine.record_retry_state, RETRY)
    waiting = await rig.load(chat_id)

    await rig.update(chat_id, machine.record_generation_attempt)

    assert waiting.retry_state is not None
    assert msgspec.json.decode(waiting.retry_state) == msgspec.to_builtins(RETRY)
    assert waiting.generation_attempt == 1
    chat = await rig.load(chat_id)
    assert (chat.retry_state, chat.retry_state_version) == (None, chat.snapshot_version)


# Steps


async def test_step_is_stored_in_input_order_with_ascending_ids_for_any_rows(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    rows = [
        assistant("one", figures=FIGURES),
        calling(call("a")),
        assistant("two", figures=FIGURES),
        assistant("three", figures=FIGURES),
        result("a"),
        NewMessage(role=Role.SYSTEM, content=text("four")),
        assistant("five", figures=FIGURES),
    ]

    committed = await rig.commit(chat_id, *rows)

    ids = [message.id for message in committed.inserted]
    assert ids == sorted(ids)
    assert told(committed.inserted) == told((await rig.history(chat_id))[1:])
    assert [message.role for message in committed.inserted] == [row.role for row in rows]
    assert [words(message) for message in committed.inserted] == ["one", "", "two", "three", "", "four", "five"]
    assert committed.promoted == []
    assert [(await figures_of(rig, message.id))["input_tokens"] for message in committed.inserted] == [
        1,
        None,
        1,
        1,
        None,
        None,
        1,
    ]
    chat = await rig.load(chat_id)
    assert chat.history_version == chat.snapshot_version
    assert {message.revision for message in committed.inserted} == {chat.snapshot_version}


async def test_step_keeps_what_it_cost(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    committed = await rig.commit(chat_id, assistant("done", figures=FIGURES))

    assert told(committed.inserted) == told((await rig.history(chat_id))[1:])
    assert await figures_of(rig, committed.inserted[0].id) == msgspec.structs.asdict(FIGURES)


async def test_unknown_and_zero_figures_are_stored_as_null_but_no_cost_is_a_price(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    zero = StepFigures(
        **{name: 0 for name in StepFigures.__struct_fields__ if name.endswith(("_tokens", "_limit", "_micros", "_ms"))},
        finish_reason="",
        request_id="",
        response_id="",
        prefix_fp=b"",
    )

    alone = await rig.commit(chat_id, assistant("free", figures=zero))
    others = await rig.commit(
        chat_id, assistant("free", figures=zero), assistant("unknown", figures=StepFigures()), assistant("none")
    )

    stored = [await figures_of(rig, message.id) for message in (*alone.inserted, *others.inserted)]
    assert [figures.pop("cost_micros") for figures in stored] == [0, 0, None, None]
    assert all(set(figures.values()) == {None} for figures in stored)


async def test_step_without_messages_is_refused(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, steer=True)
    before = await rig.trace(chat_id)

    with pytest.raises(InvalidInput) as refusal:
        await rig.commit(chat_id)

    assert refusal.value.field == "messages"
    assert await rig.trace(chat_id) == before


@pytest.mark.parametrize("state", [State.R0, State.R1])
async def test_model_and_effort_of_a_chat_are_the_last_ones_named(rig: Rig, state: State) -> None:
    other = await rig.add_model()
    chat_id = await rig.chat(state)
    seen: list[tuple[UUID, str | None]] = []

    for step in (
        [assistant("a", model_config_id=other, reasoning_effort=Effort.HIGH), assistant("b")],
        [assistant("c", reasoning_effort=Effort.LOW)],
        [assistant("d", model_config_id=rig.model), assistant("e", model_config_id=other), assistant("f")],
        [assistant("g", model_config_id=rig.model)],
        [assistant("h", model_config_id=other), assistant("i", model_config_id=rig.model)],
        [assistant("j")],
    ):
        await rig.commit(chat_id, *step)
        chat = await rig.load(chat_id)
        seen.append((chat.last_model_config_id, chat.last_reasoning_effort))

    assert seen == [
        (other, "high"),
        (other, "low"),
        (other, "low"),
        (rig.model, "low"),
        (rig.model, "low"),
        (rig.model, "low"),
    ]


# Steering


async def test_steering_message_is_heard_after_the_results_of_the_batch_it_came_into(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.commit(chat_id, calling(call("a", "run"), call("b", "run")))
    await rig.send(chat_id, "use the other file", BusyBehavior.STEER)

    half = await rig.commit(chat_id, result("a", "run"))
    whole = await rig.commit(chat_id, result("b", "run"))

    assert half.promoted == []
    assert [words(message) for message in whole.promoted] == ["use the other file"]
    history = await rig.history(chat_id)
    assert told(history[-2:]) == told([*whole.inserted, *whole.promoted])
    chat = await rig.load(chat_id)
    assert chat.state is State.R0
    assert chat.history_version == chat.queue_version == chat.snapshot_version


async def test_all_steering_messages_go_in_queue_order_and_the_others_stay(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    for index, busy in enumerate((BusyBehavior.STEER, BusyBehavior.QUEUE, BusyBehavior.STEER, BusyBehavior.STEER)):
        await rig.send(chat_id, f"queued {index}", busy)
    first, second, third, fourth = (row.id for row in await rig.queue(chat_id))
    await rig.run(chat_id, machine.reorder_queue, [fourth, second, first, third])

    committed = await rig.commit(chat_id, assistant("step"))

    assert [words(message) for message in committed.promoted] == ["queued 3", "queued 0", "queued 2"]
    assert [words(row) for row in await rig.queue(chat_id)] == ["queued 1"]
    assert await rig.state(chat_id) is State.R1


async def test_steering_message_waits_for_the_answer_to_an_open_client_call(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.send(chat_id, "steer", BusyBehavior.STEER)

    asked = await rig.commit(chat_id, calling(call("a")))
    await rig.update(chat_id, machine.enter_requires_action)
    await rig.run(chat_id, machine.complete_requires_action, [SubmittedResult("a", "{}")], submitted_by=rig.user)
    assert [words(row) for row in await rig.queue(chat_id)] == ["steer"]
    answered = await rig.commit(chat_id, assistant("next step"))

    assert asked.promoted == []
    assert [words(message) for message in answered.promoted] == ["steer"]


async def test_step_leaves_an_ordinary_backlog_alone(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1)
    before = await rig.load(chat_id)

    committed = await rig.commit(chat_id, assistant("step"))

    assert committed.promoted == []
    after = await rig.load(chat_id)
    assert (after.state, after.queue_version) == (State.R1, before.queue_version)


async def test_model_of_a_steering_message_counts_after_that_of_the_step(rig: Rig) -> None:
    other = await rig.add_model()
    chat_id = await rig.chat(State.R0)
    await rig.send(chat_id, "steer", BusyBehavior.STEER, model_config_id=other)

    await rig.commit(chat_id, assistant("step", model_config_id=rig.model, reasoning_effort=Effort.LOW))

    chat = await rig.load(chat_id)
    assert (chat.last_model_config_id, chat.last_reasoning_effort) == (other, "low")


# The end of a turn


async def test_finished_turn_rests(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.commit(chat_id, assistant("done"))
    before = await rig.load(chat_id)

    finished = await rig.update(chat_id, machine.finish_turn)

    after = await rig.load(chat_id)
    assert finished == machine.TurnFinished()
    assert (after.state, after.runnable_since) == (State.W, None)
    assert (after.history_version, after.queue_version) == (before.history_version, before.queue_version)


async def test_finished_turn_with_a_backlog_goes_on_with_its_head(rig: Rig) -> None:
    for queued, target in ((1, State.R0), (2, State.R1)):
        chat_id = await rig.chat(State.R1, queued=queued)
        await rig.commit(chat_id, calling(call("a"), call("b", "run")))

        finished = await rig.update(chat_id, machine.finish_turn)

        assert [closure_of(message) for message in finished.closures] == [
            ("a", "queued_message"),
            ("b", "queued_message"),
        ]
        assert finished.promoted is not None
        assert words(finished.promoted) == "queued 0"
        history = await rig.history(chat_id)
        assert told(history[-3:]) == told([*finished.closures, finished.promoted])
        chat = await rig.load(chat_id)
        assert chat.state is target
        assert chat.history_version == chat.queue_version == chat.snapshot_version


async def test_finished_turn_keeps_its_runner(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    fence = await rig.acquire(chat_id)

    await rig.run(chat_id, machine.finish_turn)

    assert (await rig.load(chat_id)).runner_id == fence.runner_id


@pytest.mark.parametrize(("state", "target"), [(State.W, State.E0), (State.R0, State.E0), (State.R1, State.E1)])
async def test_error_stops_the_chat_and_leaves_history_queue_and_open_calls(
    rig: Rig, state: State, target: State
) -> None:
    chat_id = await rig.chat(state)
    if state is not State.W:
        await rig.commit(chat_id, calling(call("a", "run")))
    before = await rig.load(chat_id)
    history, queue = await rig.history(chat_id), await rig.queue(chat_id)

    await rig.run(chat_id, machine.finish_error, FAILED)

    after = await rig.load(chat_id)
    assert after.state is target
    assert after.last_error is not None
    assert msgspec.json.decode(after.last_error, type=LastError) == FAILED
    assert (await rig.history(chat_id), await rig.queue(chat_id)) == (history, queue)
    assert (after.history_version, after.queue_version) == (before.history_version, before.queue_version)


async def test_error_with_text_that_jsonb_refuses_is_stored(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    odd = LastError(message="broken\x00 and \ud800 torn", retryable=False)

    await rig.run(chat_id, machine.finish_error, odd)

    assert await rig.state(chat_id) is State.E0


@pytest.mark.parametrize("message", ["", "  "])
def test_error_without_a_message_cannot_be_made(message: str) -> None:
    with pytest.raises(ValueError, match="needs a message"):
        LastError(message=message, retryable=False)


# Retrying a turn


async def test_retry_of_an_exhausted_turn_starts_afresh_and_asks_for_a_worker(rig: Rig) -> None:
    for state, target in ((State.E0, State.R0), (State.E1, State.R1)):
        chat_id = await exhausted(rig, state)
        history, queue = await rig.history(chat_id), await rig.queue(chat_id)
        rig.published.clear()

        await rig.update(chat_id, machine.retry_turn)

        chat = await rig.load(chat_id)
        assert (chat.state, chat.last_error) == (target, None)
        assert (chat.generation_attempt, chat.retry_state) == (0, None)
        assert chat.history_version == chat.snapshot_version
        assert (chat.worker_id, chat.runner_id) == (None, None)
        assert (chat.compaction_requested_at, chat.compaction_resume) == (None, False)
        assert (await rig.history(chat_id), await rig.queue(chat_id)) == (history, queue)
        assert [hint.chat_id for hint in rig.published.ownership()] == [chat_id]


async def test_retry_at_rest_needs_a_row_that_waits_for_an_answer(rig: Rig) -> None:
    for unanswered in ([], [calling(call("a", "run")), result("a", "run")]):
        chat_id = await rig.create()
        if unanswered:
            await rig.commit(chat_id, *unanswered)
        await rig.update(chat_id, machine.finish_turn)

        await rig.update(chat_id, machine.retry_turn)

        assert await rig.state(chat_id) is State.R0


async def test_notice_neither_asks_nor_answers_for_a_retry(rig: Rig) -> None:
    notice = NewMessage(role=Role.SYSTEM, content=text("The workspace was started."))
    unanswered, answered = await rig.create(), await rig.create()
    await rig.commit(unanswered, calling(call("a", "run")), result("a", "run"), notice, notice)
    await rig.commit(answered, assistant("done"), notice)
    for chat_id in (unanswered, answered):
        await rig.update(chat_id, machine.finish_turn)

    await rig.update(unanswered, machine.retry_turn)
    with pytest.raises(TransitionNotAllowed) as refusal:
        await rig.update(answered, machine.retry_turn)

    assert await rig.state(unanswered) is State.R0
    assert refusal.value.cause == "complete"


async def test_retry_after_a_finished_answer_is_refused(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("done"))
    # A summary is no answer and no question: the row before it decides.
    await rig.commit(chat_id, NewMessage(role=Role.TOOL, content=text("summary"), compressed=True))
    await rig.update(chat_id, machine.finish_turn)
    before = await rig.trace(chat_id)
    rig.published.clear()

    with pytest.raises(TransitionNotAllowed) as refusal:
        await rig.update(chat_id, machine.retry_turn)

    assert (refusal.value.from_state, refusal.value.cause) == (State.W, "complete")
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_retry_state_that_is_given_again_moves_nothing(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.run(chat_id, machine.record_retry_state, RETRY)
    before = await rig.load(chat_id)

    await rig.run(chat_id, machine.record_retry_state, RETRY)
    same = await rig.load(chat_id)
    later = msgspec.structs.replace(RETRY, retrying_at=RETRY.retrying_at + timedelta(seconds=1))
    await rig.run(chat_id, machine.record_retry_state, later)
    other = await rig.load(chat_id)

    assert before.retry_state_version == before.snapshot_version
    assert same.retry_state_version == before.retry_state_version
    assert other.retry_state_version == other.snapshot_version
    assert same.history_version == other.history_version == before.history_version


async def exhausted(rig: Rig, state: State) -> ChatId:
    """A chat that failed after its last attempt and still has an owner. It waits for nothing."""
    chat_id = await rig.chat(State.R1 if state is State.E1 else State.R0)
    await rig.acquire(chat_id)

    async def try_often(tx: machine.Tx) -> None:
        for _ in range(25):
            await machine.record_generation_attempt(tx)
        await machine.record_retry_state(tx, RETRY)
        await machine.finish_error(tx, FAILED)

    await rig.update(chat_id, try_often)
    chat = await rig.load(chat_id)
    assert (chat.state, chat.generation_attempt, chat.retry_state) == (state, 25, None)
    return chat_id


async def test_chat_that_is_stopped_while_it_waits_for_an_attempt_has_no_attempt_to_wait_for(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.update(chat_id, machine.record_generation_attempt)
    await rig.update(chat_id, lambda tx: machine.record_retry_state(tx, RETRY))
    await rig.update(chat_id, machine.interrupt)

    await rig.update(chat_id, machine.finish_interruption)

    chat = await rig.load(chat_id)
    assert (chat.state, chat.retry_state) == (State.W, None)
    assert chat.retry_state_version == chat.snapshot_version


async def test_step_of_a_stand_in_leaves_the_chat_its_model(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    other = await rig.add_model()
    step = assistant("Someone else answered.", model_config_id=other)

    done = await rig.update(chat_id, lambda tx: machine.commit_step(tx, [step], keep_model=True))

    assert done.inserted[0].model_config_id == other
    assert (await rig.load(chat_id)).last_model_config_id == rig.model
