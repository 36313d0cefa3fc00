"""Steps: a write is accepted by epoch and priority alone, and only in an open run."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.domain.chat.states import State
from rookery.store.debug import runs, steps
from rookery.store.debug.record_rows import AttemptStatus, RunStatus, StepStatus
from rookery.store.debug.runs import NewRun
from rookery.store.debug.steps import NewStep, StepEnd, StepRequest
from tests.store.debug.debug_rows import NOON, DebugRows
from tests.store.machine.machine_rig import make_rig


def new_step(run: NewRun, number: int, *, key: str | None = None) -> NewStep:
    return NewStep(
        id=uuid4(),
        run_id=run.id,
        chat_id=run.chat_id,
        step_number=number,
        step_key=key,
        epoch=1,
        operation="stream",
        history_tip_message_id=None,
        started_at=NOON,
        request=StepRequest(),
    )


async def insert(rows: DebugRows, step: NewStep) -> int | None:
    async with rows.pool.acquire() as conn:
        return await steps.insert_step(conn, step)


async def begin_again(rows: DebugRows, run: NewRun, step_id: UUID, epoch: int) -> bool:
    async with rows.pool.acquire() as conn:
        return await steps.begin_again(conn, step_id, run.id, run.chat_id, epoch=epoch, request=StepRequest())


async def end_run(rows: DebugRows, run: NewRun) -> None:
    async with rows.pool.acquire() as conn:
        await runs.finish_run(conn, run.id, run.chat_id, status=RunStatus.COMPLETED, finished_at=NOON)


async def test_step_whose_number_is_taken_gets_the_next_free_one(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    await rows.step(run, 1)
    await rows.step(run, 7)

    assert await insert(rows, new_step(run, 7)) == 8
    assert await insert(rows, new_step(run, 2)) == 2


async def test_two_steps_cannot_have_the_same_key(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    await insert(rows, new_step(run, 1, key="h1"))

    with pytest.raises(asyncpg.UniqueViolationError):
        await insert(rows, new_step(run, 2, key="h1"))


async def test_step_of_an_ended_or_another_chats_run_is_not_inserted(rows: DebugRows) -> None:
    chat_id, other_id = await rows.rig.chat(State.R0), await rows.rig.chat(State.R0)
    run = await rows.run(chat_id)
    elsewhere = NewStep(
        **{**{name: getattr(new_step(run, 1), name) for name in NewStep.__struct_fields__}, "chat_id": other_id}
    )

    assert await insert(rows, elsewhere) is None
    await end_run(rows, run)
    assert await insert(rows, new_step(run, 1)) is None


async def test_success_after_a_failure_clears_the_error(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    step_id = await rows.step(run)
    await rows.finish(step_id, StepStatus.ERROR, error='{"message": "no"}', response="{}", finish_reason="x")

    assert await begin_again(rows, run, step_id, 2)
    begun = await rows.row("steps", step_id)
    assert await rows.finish(step_id, StepStatus.COMPLETED, epoch=2, finish_reason="stop")

    assert (begun["status"], begun["finished_at"]) == ("in_progress", None)
    found = await rows.row("steps", step_id)
    assert (found["status"], found["error"], found["normalized_response"]) == ("completed", None, None)


async def test_call_does_not_begin_again_in_an_ended_run(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    step_id = await rows.step(run)
    await rows.finish(step_id, StepStatus.ERROR)
    await end_run(rows, run)

    assert not await begin_again(rows, run, step_id, 2)
    assert (await rows.row("steps", step_id))["status"] == "error"


async def test_planned_retry_is_noted_at_the_last_attempt_until_the_next_call_begins(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    step_id = await rows.step(run)
    await rows.attempt(step_id, run, 1)
    await rows.attempt(step_id, run, 2)
    await rows.finish(step_id, StepStatus.ERROR)
    async with rows.pool.acquire() as conn:
        await steps.plan_retry(conn, step_id, epoch=1, kind="overloaded", delay_ms=250)
        await steps.plan_retry(conn, step_id, epoch=7, kind="late", delay_ms=1)

    kinds = await rows.pool.fetch("SELECT retry_kind, retry_delay_ms FROM chat_debug_attempts ORDER BY number")
    assert [tuple(kind) for kind in kinds] == [(None, None), ("overloaded", 250)]
    assert await rows.value("SELECT metadata ->> 'retrying' FROM chat_debug_steps") is not None

    await begin_again(rows, run, step_id, 2)
    assert await rows.value("SELECT metadata ->> 'retrying' FROM chat_debug_steps") is None


async def test_second_record_of_an_attempt_replaces_the_first_and_keeps_its_request(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    step_id = await rows.step(run)

    await rows.attempt(step_id, run, 1, request_body=b"sent")
    await rows.attempt(step_id, run, 1, request_body=b"sent", status=AttemptStatus.FAILED, error="reset")
    await rows.pool.execute("DELETE FROM chat_debug_runs")

    assert not await rows.attempt(step_id, run, 2)
    assert await rows.value("SELECT count(*) FROM chat_debug_attempts") == 0


# Epochs and priorities against a model

WRITES = st.tuples(
    st.sampled_from(["begin", *(status for status in StepStatus if status is not StepStatus.IN_PROGRESS)]),
    st.integers(1, 4),
)


class ModelStep:
    """The expected step according to the specification."""

    def __init__(self) -> None:
        self.epoch, self.status, self.written_by = 1, StepStatus.IN_PROGRESS, -1

    def write(self, index: int, status: StepStatus, epoch: int) -> bool:
        if (epoch, status.priority) < (self.epoch, self.status.priority):
            return False
        self.epoch, self.status, self.written_by = epoch, status, index
        return True


@given(writes=st.lists(WRITES, max_size=12))
@settings(max_examples=60)
def test_step_holds_the_write_with_the_newest_epoch_and_the_strongest_status(
    shared_database_url: str, writes: list[tuple[Any, int]]
) -> None:
    async def check() -> None:
        async with make_rig(shared_database_url) as rig:
            rows, model = DebugRows(rig), ModelStep()
            run = await rows.run(await rig.chat(State.R0))
            step_id = await rows.step(run)
            for index, (kind, epoch) in enumerate(writes):
                status = StepStatus.IN_PROGRESS if kind == "begin" else StepStatus(kind)
                if kind == "begin":
                    accepted = await begin_again(rows, run, step_id, epoch)
                else:
                    accepted = await rows.finish(step_id, status, epoch, finish_reason=str(index))
                assert accepted == model.write(index, status, epoch), (index, writes)
                found = await rows.row("steps", step_id)
                assert (found["finish_epoch"], found["status"]) == (model.epoch, model.status)
                assert (found["finished_at"] is None) == (model.status is StepStatus.IN_PROGRESS)
                if model.status is not StepStatus.IN_PROGRESS:
                    assert found["finish_reason"] == str(model.written_by)

    asyncio.run(check())


async def test_racing_ends_of_one_call_leave_the_strongest(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    for _ in range(20):
        step_id = await rows.step(run, 1)
        ends = [StepStatus.INTERRUPTED, StepStatus.COMPLETED, StepStatus.ERROR, StepStatus.INTERRUPTED]
        await asyncio.gather(*(rows.finish(step_id, status) for status in ends))

        assert (await rows.row("steps", step_id))["status"] == "completed"
        await rows.pool.execute("DELETE FROM chat_debug_steps")


def test_end_of_a_step_is_counted_in_bytes() -> None:
    assert StepEnd(status=StepStatus.ERROR, finished_at=NOON, error="{}", response="[]").size_bytes == 6
