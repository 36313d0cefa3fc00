"""Heartbeats keep runs open; the cleanup ends silent runs and runs of dead replicas; neither waits for the other."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.debug.recording_service import BEAT_SECONDS
from rookery.domain.chat.states import State
from rookery.store.debug import recording_state, run_cleanup
from rookery.store.debug.record_rows import StepStatus, json_text
from rookery.store.debug.runs import NewRun
from rookery.worker.config import WorkerConfig
from rookery.worker.housekeeping import JITTER
from tests.store.debug.debug_rows import DebugRows
from tests.store.machine.machine_rig import make_rig

SILENCE = timedelta(seconds=121)


async def fall_silent(rows: DebugRows, for_: timedelta = SILENCE) -> None:
    for table in ("runs", "steps"):
        await rows.pool.execute(f"UPDATE chat_debug_{table} SET updated_at = updated_at - $1::interval", for_)


async def end_stale(rows: DebugRows) -> set[UUID]:
    async with rows.pool.acquire() as conn:
        return {run.id for run in await run_cleanup.end_stale(conn)}


async def beat(rows: DebugRows, *runs: NewRun) -> None:
    async with rows.pool.acquire() as conn:
        await run_cleanup.beat(conn, [run.id for run in runs])


async def test_silent_run_is_ended_with_its_steps_and_a_summary(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0), summary={"first_message": "hello"})
    done, left = await rows.step(run, 1), await rows.step(run, 2)
    await rows.finish(done, usage=json_text({"input_tokens": 5, "output_tokens": 1}))
    assert await end_stale(rows) == set()
    await fall_silent(rows)

    assert await end_stale(rows) == {run.id}

    assert [(await rows.row("steps", step))["status"] for step in (done, left)] == ["completed", "interrupted"]
    found = await rows.row("runs", run.id)
    assert found["status"] == "interrupted"
    assert found["finished_at"] < found["updated_at"] - timedelta(seconds=60), "ended when it was last heard of"
    summary = await rows.summary(run)
    assert (summary["first_message"], summary["step_count"], summary["total_input_tokens"]) == ("hello", 2, 5)
    assert await end_stale(rows) == set()


async def test_run_of_a_replica_that_is_gone_is_ended_at_once(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.R0)
    living, orphan = await rows.run(chat_id), await rows.run(chat_id, replica_id=uuid4())

    assert await end_stale(rows) == {orphan.id}
    assert (await rows.row("runs", living.id))["finished_at"] is None


async def test_beat_keeps_runs_open_and_leaves_ended_ones_alone(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.R0)
    beaten, silent, ended = [await rows.run(chat_id) for _ in range(3)]
    step = await rows.step(beaten)
    await fall_silent(rows)
    await rows.pool.execute(
        "UPDATE chat_debug_runs SET status = 'completed', finished_at = started_at WHERE id = $1", ended.id
    )
    old = (await rows.row("runs", ended.id))["updated_at"]

    await beat(rows, beaten, ended)

    assert await end_stale(rows) == {silent.id}
    assert (await rows.row("runs", ended.id))["updated_at"] == old
    found = await rows.row("steps", step)
    assert found["finished_at"] is None
    assert found["updated_at"] > old


async def test_step_that_was_left_open_in_an_ended_run_is_ended(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.R0))
    step = await rows.step(run)
    await rows.pool.execute("UPDATE chat_debug_runs SET status = 'completed', finished_at = started_at")

    await end_stale(rows)

    assert (await rows.row("steps", step))["status"] == "interrupted"
    assert (await rows.summary(run))["step_count"] == 1


async def test_beats_sweeps_ends_and_deletions_never_deadlock(rows: DebugRows) -> None:
    rig = rows.rig
    chats = [await rig.chat(State.W) for _ in range(5)]
    for _ in range(15):
        runs = [await rows.run(chat_id) for chat_id in chats for _ in range(4)]
        steps = [await rows.step(run) for run in runs]
        await fall_silent(rows)

        async def delete() -> None:
            async with rows.pool.acquire() as conn:
                for chat_id in chats[:2]:
                    async with conn.transaction():
                        await recording_state.delete_all(conn, chat_id)

        await asyncio.gather(
            end_stale(rows),
            beat(rows, *runs),
            beat(rows, *reversed(runs)),
            end_stale(rows),
            delete(),
            *(rows.finish(step, StepStatus.COMPLETED) for step in steps[::2]),
        )

        assert await rows.value("SELECT count(*) FROM chat_debug_runs WHERE finished_at IS NULL") in range(21)
        await end_stale(rows)
        await rows.pool.execute("DELETE FROM chat_debug_runs")


async def test_retention_deletes_the_oldest_runs_in_batches(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.R0)
    old = [await rows.run(chat_id) for _ in range(3)]
    await fall_silent(rows, timedelta(days=31))
    new = await rows.run(chat_id)
    async with rows.pool.acquire() as conn:
        deleted = [await run_cleanup.purge(conn, older_than=timedelta(days=30), batch=2) for _ in range(3)]

    assert deleted == [2, 1, 0]
    assert await rows.runs(chat_id) == {new.id}
    assert len(old) == 3


# Random kills, over virtual time

BEAT = int(BEAT_SECONDS)
# The longest pause between two sweeps, in steps of virtual time.
SWEEP = 30
MAX_OPEN = 150


class Life(msgspec.Struct, frozen=True):
    """The life of a replica: the start of its run, the phase of its heartbeats, and the time and kind of its death.
    `None` means that it lives.

    A replica that hangs keeps its row, so only its missing heartbeats show that it is dead.
    """

    begins: int
    phase: int
    dies: int | None
    hangs: bool


LIVES = st.lists(
    st.builds(
        Life,
        begins=st.integers(0, 60),
        phase=st.integers(0, BEAT - 1),
        dies=st.none() | st.integers(0, 200),
        hangs=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def test_sweeps_are_frequent_enough_for_dead_and_silent_runs() -> None:
    pause = WorkerConfig().debug_sweep_interval_seconds * (1 + JITTER)

    assert pause < SWEEP
    assert run_cleanup.SILENT_AFTER.total_seconds() + pause < MAX_OPEN
    assert run_cleanup.SILENT_AFTER.total_seconds() > 3 * BEAT, (
        "a run of a living replica does not end because of lost beats"
    )


@given(lives=LIVES, sweep_phase=st.integers(0, SWEEP - 1))
@settings(max_examples=25)
def test_runs_of_dead_replicas_end_in_time_and_those_of_living_ones_stay(
    shared_database_url: str, lives: list[Life], sweep_phase: int
) -> None:
    async def check() -> None:
        async with make_rig(shared_database_url) as rig:
            rows, chat_id = DebugRows(rig), await rig.chat(State.R0)
            replicas = [uuid4() for _ in lives]
            runs: dict[int, NewRun] = {}
            ended: dict[int, int] = {}
            for replica in replicas:
                await rig.pool.execute(
                    "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version)"
                    " VALUES ($1, 'test', 'test', 1, 'test', 1)",
                    replica,
                )
            for now in range(0, 400, 10):
                await rig.pool.execute(
                    "UPDATE chat_debug_runs SET updated_at = updated_at - interval '10 seconds' WHERE chat_id = $1",
                    chat_id,
                )
                for index, life in enumerate(lives):
                    is_alive = life.dies is None or now < life.dies
                    if index not in runs and now >= life.begins and is_alive:
                        runs[index] = await rows.run(chat_id, replica_id=replicas[index])
                    if is_alive and index in runs and (now - life.phase) % BEAT < 10:
                        await beat(rows, runs[index])
                    if not is_alive and not life.hangs:
                        await rig.pool.execute("DELETE FROM replicas WHERE id = $1", replicas[index])
                if (now - sweep_phase) % SWEEP < 10:
                    found = await end_stale(rows)
                    ended |= {index: now for index, run in runs.items() if run.id in found}
            for index, life in enumerate(lives):
                if index not in runs:
                    continue
                if life.dies is None:
                    assert index not in ended, "the run of a living replica was ended"
                else:
                    limit = MAX_OPEN if life.hangs else SWEEP
                    assert ended[index] - life.dies <= limit + 10, "virtual time passes in steps of 10 s"
                    assert ended[index] >= life.dies
            await rig.pool.execute("DELETE FROM replicas WHERE id = ANY ($1::uuid[])", replicas)

    asyncio.run(check())
