"""Removed history: an edit, an archive and the owner delete records, in any order with a worker that still writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.db.hints import MiscHint
from rookery.store.debug import record_reads, recording_state, runs
from rookery.store.debug.record_rows import DebugMode
from rookery.store.debug.runs import NewRun
from tests.eventually import until
from tests.store.debug.debug_rows import DebugRows
from tests.store.machine.machine_rig import Rig, text

Change = Callable[[machine.Tx], Awaitable[Any]]


async def edit(rig: Rig, chat_id: ChatId) -> Change:
    last = (await rig.history(chat_id))[-1]
    return lambda tx: machine.edit_message(tx, last.id, content=text("better"), edited_by=rig.user)


async def shown(rows: DebugRows, chat_id: ChatId) -> set[Any]:
    async with rows.pool.acquire() as conn:
        return {run.id for run in (await record_reads.list_runs(conn, chat_id)).runs}


async def delete_removed(rows: DebugRows, chat_id: ChatId) -> int:
    async with rows.pool.acquire() as conn:
        return await recording_state.delete_removed(conn, chat_id)


async def is_marked(rows: DebugRows, chat_id: ChatId) -> bool:
    return bool(await rows.value("SELECT delete_from IS NOT NULL FROM chat_debug_state WHERE chat_id = $1", chat_id))


async def test_edit_removes_the_runs_of_the_message_and_of_later_ones(rows: DebugRows) -> None:
    rig = rows.rig
    chat_id = await rig.chat(State.W)
    before = await rows.run(chat_id)
    await rig.send(chat_id, "second")
    of_message = await rows.run(chat_id)

    await rig.update(chat_id, await edit(rig, chat_id))
    hidden = await shown(rows, chat_id)
    deleted = await delete_removed(rows, chat_id)
    after = await rows.run(chat_id)

    assert hidden == {before.id}
    assert deleted == 1
    assert await rows.runs(chat_id) == {before.id, after.id}
    assert of_message.id not in await shown(rows, chat_id)
    assert not await is_marked(rows, chat_id)


async def test_edit_removes_a_run_by_the_messages_of_its_steps(rows: DebugRows) -> None:
    rig = rows.rig
    chat_id = await rig.chat(State.W)
    first = await rig.last_id(chat_id)
    by_tip, by_answer, kept = [await rows.run(chat_id) for _ in range(3)]
    await rig.send(chat_id, "second")
    last = await rig.last_id(chat_id)
    await rows.step(by_tip, history_tip_message_id=last)
    await rows.finish(await rows.step(by_answer, history_tip_message_id=first), assistant_message_id=last)
    await rows.step(kept, history_tip_message_id=first)

    await rig.update(chat_id, await edit(rig, chat_id))
    seen = await shown(rows, chat_id)
    await delete_removed(rows, chat_id)

    assert seen == await rows.runs(chat_id) == {kept.id}


async def test_archive_removes_all_runs_of_the_family(rows: DebugRows) -> None:
    rig = rows.rig
    root = await rig.chat(State.W)
    child = await rig.child(root)
    await rig.update(child, machine.finish_turn)
    await rows.run(root)
    await rows.run(child, trigger_message_id=None, history_tip_message_id=None)

    await rig.machine.bundle(lambda bundle: machine.set_family_archived(bundle, root, archived=True))

    assert (await shown(rows, root), await shown(rows, child)) == (set(), set())
    assert (await delete_removed(rows, root), await delete_removed(rows, child)) == (1, 1)


async def test_displaced_worker_that_inserts_after_the_edit_inserts_nothing(rows: DebugRows) -> None:
    rig = rows.rig
    chat_id = await rig.chat(State.R0)
    late = await rows.new_run(chat_id)

    await rig.update(chat_id, await edit(rig, chat_id))

    assert not await rows.insert(late)
    assert await rows.insert(await rows.new_run(chat_id))


async def insert_during(rows: DebugRows, chat_id: ChatId, late: NewRun, change: Change) -> bool:
    """Insert a run while a change is not committed. Return whether it was inserted."""
    is_marked, may_commit = asyncio.Event(), asyncio.Event()

    async def held(tx: machine.Tx) -> None:
        await change(tx)
        is_marked.set()
        await may_commit.wait()

    changing = asyncio.create_task(rows.rig.update(chat_id, held))
    await is_marked.wait()
    inserting = asyncio.create_task(rows.insert(late))
    await until(rows.is_waiting)
    may_commit.set()
    await changing
    return await inserting


async def test_displaced_worker_that_inserts_during_the_edit_waits_and_inserts_nothing(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.R0)
    late = await rows.new_run(chat_id)

    assert not await insert_during(rows, chat_id, late, await edit(rows.rig, chat_id))
    assert await rows.runs(chat_id) == set()


async def test_displaced_worker_that_inserts_during_the_archive_waits_and_inserts_nothing(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    await rows.run(chat_id)  # the state exists already
    late = await rows.new_run(chat_id)

    assert not await insert_during(rows, chat_id, late, archive)
    await delete_removed(rows, chat_id)
    assert await rows.runs(chat_id) == set()


async def archive(tx: machine.Tx) -> None:
    await machine.set_archived(tx, True)


@pytest.mark.parametrize("change", ["edit", "archive"])
async def test_change_waits_for_a_worker_that_is_inserting_and_removes_its_run(rows: DebugRows, change: str) -> None:
    chat_id = await rows.rig.chat(State.R0 if change == "edit" else State.W)
    late = await rows.new_run(chat_id)
    wanted = await edit(rows.rig, chat_id) if change == "edit" else archive
    async with rows.pool.acquire() as conn, conn.transaction():
        # The INSERT of the displaced worker holds the lock of the state until it commits.
        await conn.execute("INSERT INTO chat_debug_state (chat_id) VALUES ($1)", chat_id)
        assert await runs.insert_run(conn, late)
        changing = asyncio.create_task(rows.rig.update(chat_id, wanted))
        await until(rows.is_waiting)

    await changing
    assert await shown(rows, chat_id) == set()
    await delete_removed(rows, chat_id)
    assert await rows.runs(chat_id) == set()


async def delete_all(rows: DebugRows, chat_id: ChatId) -> int:
    async with rows.pool.acquire() as conn, conn.transaction():
        return await recording_state.delete_all(conn, chat_id)


@pytest.mark.parametrize("has_state", [False, True], ids=["first run", "later run"])
async def test_deletion_by_the_owner_waits_for_a_run_that_is_being_inserted(rows: DebugRows, has_state: bool) -> None:
    chat_id = await rows.rig.chat(State.W)
    if has_state:
        await rows.run(chat_id)
    async with rows.pool.acquire() as conn, conn.transaction():
        assert await runs.insert_run(conn, await rows.new_run(chat_id))
        deleting = asyncio.create_task(delete_all(rows, chat_id))
        await until(rows.is_waiting)

    assert await deleting == 1 + has_state
    assert await rows.runs(chat_id) == set()


async def test_run_that_is_inserted_during_a_deletion_by_the_owner_is_new_and_stays(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    old, new = await rows.run(chat_id), await rows.new_run(chat_id)
    step_id = await rows.step(old)
    async with rows.pool.acquire() as conn, conn.transaction():
        assert await recording_state.delete_all(conn, chat_id) == 1
        inserting = asyncio.create_task(rows.insert(new))
        await until(rows.is_waiting)

    assert await inserting
    assert await rows.runs(chat_id) == {new.id}
    assert not await rows.finish(step_id)
    assert not await rows.attempt(step_id, old)


async def test_steps_of_a_displaced_worker_find_no_run(rows: DebugRows) -> None:
    rig = rows.rig
    chat_id = await rig.chat(State.R0)
    run = await rows.run(chat_id)
    step_id = await rows.step(run)
    await rig.update(chat_id, await edit(rig, chat_id))
    await delete_removed(rows, chat_id)

    assert not await rows.finish(step_id)
    assert not await rows.attempt(step_id, run)
    assert await rows.value("SELECT count(*) FROM chat_debug_steps") == 0


async def test_locked_run_is_deleted_by_the_next_try(rows: DebugRows) -> None:
    rig = rows.rig
    chat_id = await rig.chat(State.R0)
    run = await rows.run(chat_id)
    await rig.update(chat_id, await edit(rig, chat_id))
    async with rows.pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM chat_debug_runs WHERE id = $1 FOR UPDATE", run.id)
        assert await delete_removed(rows, chat_id) == 0
        assert await is_marked(rows, chat_id)

    assert await delete_removed(rows, chat_id) == 1
    assert not await is_marked(rows, chat_id)


async def test_deleting_a_chat_while_a_run_is_inserted_does_not_deadlock(rows: DebugRows) -> None:
    rig = rows.rig
    for _ in range(20):
        chat_id = await rig.chat(State.W)
        run = await rows.run(chat_id)
        more = [await rows.new_run(chat_id) for _ in range(4)]
        await asyncio.gather(
            rig.machine.bundle(lambda bundle, chat_id=chat_id: machine.delete_family(bundle, chat_id)),  # type: ignore[misc]
            *(rows.insert(each) for each in more),
        )

        assert await rows.runs(run.chat_id) == set()


async def test_change_of_a_chat_with_records_is_announced(rows: DebugRows) -> None:
    rig = rows.rig
    chat_id = await rig.chat(State.W)
    await rig.update(chat_id, await edit(rig, chat_id))
    quiet = [hint for hint in rig.published.hints if isinstance(hint, MiscHint)]
    await rows.run(chat_id)

    await rig.update(chat_id, await edit(rig, chat_id))

    topics = [hint.topic for hint in rig.published.hints if isinstance(hint, MiscHint)]
    assert quiet == []
    assert topics == [recording_state.REMOVED_TOPIC, recording_state.updates_topic(chat_id)]


async def test_mode_of_a_family_is_kept_and_inherited_by_default(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    async with rows.pool.acquire() as conn:
        found = [await recording_state.find_mode(conn, chat_id)]
        assert not await recording_state.set_mode(conn, chat_id, DebugMode.INHERIT)
        assert await recording_state.set_mode(conn, chat_id, DebugMode.ON)
        assert not await recording_state.set_mode(conn, chat_id, DebugMode.ON)
        found.append(await recording_state.find_mode(conn, chat_id))
        assert await recording_state.set_mode(conn, chat_id, DebugMode.INHERIT)
        found.append(await recording_state.find_mode(conn, chat_id))

    assert found == [DebugMode.INHERIT, DebugMode.ON, DebugMode.INHERIT]


async def test_owner_deletes_all_records_of_a_chat(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    run, other = await rows.run(chat_id), await rows.run(await rows.rig.chat(State.W))
    await rows.attempt(await rows.step(run), run)
    assert await delete_all(rows, chat_id) == 1

    assert await rows.value("SELECT count(*) FROM chat_debug_attempts") == 0
    assert await rows.runs(other.chat_id) == {other.id}
