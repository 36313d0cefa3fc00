"""Runs: inserted from the floor on, linked to the run they continue, ended once, and summed up from their steps."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store.debug import runs
from rookery.store.debug.record_rows import AttemptStatus, RunKind, RunStatus, StepStatus, json_text
from rookery.store.debug.runs import NewRun, RunState
from tests.store.debug.debug_rows import NOON, DebugRows


async def finish(
    rows: DebugRows, run: NewRun, status: RunStatus = RunStatus.COMPLETED, *, sums_up: bool = True
) -> bool:
    async with rows.pool.acquire() as conn:
        return await runs.finish_run(conn, run.id, run.chat_id, status=status, finished_at=NOON, sums_up=sums_up)


async def state_of(rows: DebugRows, run: NewRun, chat_id: ChatId) -> RunState:
    async with rows.pool.acquire() as conn:
        return await runs.find_state(conn, run.id, chat_id)


async def test_run_of_a_takeover_names_the_run_it_continues(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.R0)
    version = (await rows.rig.load(chat_id)).snapshot_version
    first = await rows.run(chat_id)

    second = await rows.run(chat_id, snapshot_version=version + 3, started_at=NOON - timedelta(hours=1))
    third = await rows.run(chat_id, snapshot_version=version + 5)
    late = await rows.run(chat_id, snapshot_version=version + 2, started_at=NOON + timedelta(hours=1))
    other = await rows.run(chat_id, snapshot_version=version + 6, trigger_message_id=1_000_000)
    title = await rows.run(chat_id, snapshot_version=version + 6, kind=RunKind.TITLE_GENERATION)

    assert [(await rows.summary(run)).get("continues") for run in (first, second, third, late, other, title)] == [
        None,
        str(first.id),
        str(second.id),
        str(first.id),  # a displaced replica, whose run was inserted late
        None,
        None,
    ]


async def test_end_of_a_run_is_written_once(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))

    assert await finish(rows, run, RunStatus.ERROR)
    assert not await finish(rows, run, RunStatus.COMPLETED)

    assert (await rows.row("runs", run.id))["status"] == "error"


async def test_run_of_a_deleted_chat_is_not_inserted(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    run = await rows.new_run(chat_id)
    await rows.pool.execute("DELETE FROM chats WHERE id = $1", chat_id)

    assert not await rows.insert(run)


async def test_state_tells_an_ended_run_from_a_deleted_one_and_from_another_chats(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.R0)
    opened, ended, gone = [await rows.run(chat_id) for _ in range(3)]
    await finish(rows, ended)
    await rows.pool.execute("DELETE FROM chat_debug_runs WHERE id = $1", gone.id)

    found = [await state_of(rows, run, chat_id) for run in (opened, ended, gone)]

    assert found == [RunState.OPEN, RunState.FINALIZED, RunState.GONE]
    assert await state_of(rows, opened, ChatId(uuid4())) is RunState.NOT_FOUND


async def test_summary_keeps_its_seed_and_adds_up_the_steps(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0), summary={"first_message": "hello", "step_count": 99})
    first, second = await rows.step(run, 1), await rows.step(run, 2)
    await rows.attempt(first, run, 1, status=AttemptStatus.FAILED, path="/failed")
    await rows.attempt(first, run, 2)
    await rows.attempt(second, run, 1, path="/later")
    usage = {"input_tokens": 10, "output_tokens": 3, "cache_read_tokens": 7}
    await rows.finish(first, epoch=2, usage=json_text(usage), cost_micros=5, ttft_ms=40)
    await rows.finish(second, usage=json_text({"input_tokens": 1, "output_tokens": 2}), cost_micros=6, ttft_ms=7)

    assert await finish(rows, run)

    assert await rows.summary(run) == {
        "first_message": "hello",
        "step_count": 2,
        "attempt_count": 3,
        "total_input_tokens": 11,
        "total_output_tokens": 5,
        "total_cache_read_tokens": 7,
        "retry_count": 1,
        "cost_micros": 11,
        "ttft_ms": 40,
        "endpoint_label": "POST /v1/messages",
    }


@pytest.mark.parametrize(
    ("status", "error", "has_error"),
    [
        (StepStatus.ERROR, '{"message": "no"}', True),
        (StepStatus.COMPLETED, None, False),
        (StepStatus.COMPLETED, '{"message": "odd"}', True),
        (StepStatus.INTERRUPTED, '{"message": "cancelled"}', False),
    ],
)
async def test_summary_has_an_error_if_a_step_has_one_and_was_not_interrupted(
    rows: DebugRows, status: StepStatus, error: str | None, has_error: bool
) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    await rows.finish(await rows.step(run), status, error=error)

    await finish(rows, run)

    assert (await rows.summary(run)).get("has_error", False) is has_error


async def test_usage_that_is_no_number_is_left_out_of_the_summary(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    await rows.finish(await rows.step(run, 1), usage='{"input_tokens": "many", "output_tokens": 2.5}')
    await rows.finish(await rows.step(run, 2), usage='["not", "an", "object"]')
    await rows.finish(await rows.step(run, 3), usage='{"input_tokens": 4}')

    await finish(rows, run)

    summary = await rows.summary(run)
    assert (summary["step_count"], summary["total_input_tokens"]) == (3, 4)


async def test_run_that_cannot_be_summed_up_keeps_its_seed(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0), summary={"first_message": "hello"})
    await rows.finish(await rows.step(run), usage='{"input_tokens": 1e300}')

    with pytest.raises(asyncpg.DataError):
        await finish(rows, run)
    assert await finish(rows, run, sums_up=False)

    assert await rows.summary(run) == {"first_message": "hello"}


async def test_text_that_the_database_cannot_store_is_replaced(rows: DebugRows) -> None:
    label = "a\x00b\\u0000 \ud800c\\\x00"
    run = await rows.run(await rows.rig.chat(State.R0), summary={"first_message": label})

    assert (await rows.summary(run))["first_message"] == "a\ufffdb\\u0000 \ufffdc\\\ufffd"
