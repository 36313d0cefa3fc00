"""Changes that increment no version, and the version that each other change increments. `test_transition_table` has all
transitions.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import Rig, assistant, text
from tests.store.machine.transition_calls import RETRY

rig = shared_rig.rig


def versions(chat: Chat) -> tuple[int, int, int]:
    return chat.history_version, chat.queue_version, chat.retry_state_version


async def busy_chat(rig: Rig) -> UUID:
    """A running chat with a queue, an attempt and a retry state: every version has been incremented once."""
    chat_id = await rig.chat(State.R1, queued=2)
    await rig.update(chat_id, machine.record_generation_attempt)
    await rig.run(chat_id, machine.record_retry_state, RETRY)
    return chat_id


async def test_empty_bundle_moves_the_snapshot_only(rig: Rig) -> None:
    chat_id = await busy_chat(rig)
    before = await rig.columns(chat_id)

    async def nothing(tx: Tx) -> None:
        pass

    await rig.update(chat_id, nothing)

    after = await rig.columns(chat_id)
    assert {name for name in before if before[name] != after[name]} == {"snapshot_version"}


async def test_deleting_deleted_rows_again_moves_nothing(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hi"))
    await rig.run(
        chat_id, machine.edit_message, (await rig.history(chat_id))[0].id, content=text("new"), edited_by=rig.user
    )
    await rig.update(chat_id, machine.record_generation_attempt)
    before, rows = await rig.load(chat_id), await rig.history(chat_id, deleted=True)

    await rig.update(
        chat_id,
        lambda tx: tx.conn.execute(
            "UPDATE chat_messages SET deleted = true WHERE chat_id = $1 AND deleted", tx.chat.id
        ),
    )

    after = await rig.load(chat_id)
    assert versions(after) == versions(before)
    assert after.generation_attempt == 1
    assert await rig.history(chat_id, deleted=True) == rows


async def test_equal_retry_state_promoted_head_same_order_and_same_text_move_nothing(rig: Rig) -> None:
    chat_id = await busy_chat(rig)
    before, queue = await rig.load(chat_id), await rig.queue(chat_id)

    await rig.run(chat_id, machine.record_retry_state, msgspec.structs.replace(RETRY))
    await rig.run(chat_id, machine.reorder_queue, [row.id for row in queue])
    await rig.run(chat_id, machine.edit_queued_message, queue[1].id, content=queue[1].parts())
    await rig.run(chat_id, machine.promote_queued_message, queue[0].id)
    await rig.run(chat_id, machine.promote_queued_message, queue[0].id)

    after = await rig.load(chat_id)
    assert versions(after) == versions(before)
    assert after.snapshot_version == before.snapshot_version + 5
    assert await rig.queue(chat_id) == queue


async def test_history_change_starts_attempts_over_and_clears_the_retry_state(rig: Rig) -> None:
    chat_id = await busy_chat(rig)

    await rig.commit(chat_id, assistant("step"))

    chat = await rig.load(chat_id)
    assert (chat.generation_attempt, chat.retry_state) == (0, None)
    assert chat.history_version == chat.retry_state_version == chat.snapshot_version


async def test_attempt_moves_the_retry_version_only_if_there_was_a_retry_state(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    before = await rig.load(chat_id)

    await rig.update(chat_id, machine.record_generation_attempt)
    first = await rig.load(chat_id)
    await rig.run(chat_id, machine.record_retry_state, RETRY)
    await rig.update(chat_id, machine.record_generation_attempt)
    second = await rig.load(chat_id)

    assert versions(first) == versions(before)
    assert second.retry_state_version == second.snapshot_version
    assert second.history_version == before.history_version


async def test_history_change_without_a_retry_state_leaves_its_version_alone(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    await rig.commit(chat_id, assistant("step"))

    assert (await rig.load(chat_id)).retry_state_version == 0


async def test_all_rows_of_one_bundle_share_the_version_of_the_bundle(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1)

    async def step_and_finish(tx: Tx) -> None:
        await machine.commit_step(tx, [assistant("one"), assistant("two")])
        await machine.finish_turn(tx)
        await machine.commit_step(tx, [assistant("three")])

    await rig.update(chat_id, step_and_finish)

    chat = await rig.load(chat_id)
    assert {message.revision for message in (await rig.history(chat_id))[1:]} == {chat.snapshot_version}
    assert (chat.history_version, chat.queue_version) == (chat.snapshot_version, chat.snapshot_version)


async def test_cut_rows_take_the_version_of_the_edit_and_earlier_rows_keep_theirs(rig: Rig) -> None:
    first = NewMessage(role=Role.USER, content=text("first"))
    chat_id = await rig.create(first, NewMessage(role=Role.USER, content=text("second")))
    await rig.commit(chat_id, assistant("answer"))
    kept, *cut = await rig.history(chat_id)

    await rig.run(chat_id, machine.edit_message, cut[0].id, content=text("better"), edited_by=rig.user)

    now = (await rig.load(chat_id)).snapshot_version
    revisions = {message.id: message.revision for message in await rig.history(chat_id, deleted=True)}
    assert revisions[kept.id] == 1
    assert [revisions[message.id] for message in cut] == [now, now]


async def test_metadata_moves_its_own_counter_and_no_version(rig: Rig) -> None:
    chat_id = await busy_chat(rig)
    before = await rig.columns(chat_id)
    changes = (
        "title = 'Plans'",
        """labels = '{"team": "blue"}'""",
        "plan_mode = true",
        "mode = 'explore'",
        "summary = 'so far'",
        "last_turn_summary = 'done'",
        "mcp_server_ids = ARRAY[gen_random_uuid()]",
        "last_reasoning_effort = 'max'",
    )

    for change in changes:
        await rig.sql(f"UPDATE chats SET {change} WHERE id = $1", chat_id)
    await rig.sql("UPDATE chats SET title = title, plan_mode = plan_mode WHERE id = $1", chat_id)

    after = await rig.columns(chat_id)
    assert after["meta_version"] == before["meta_version"] + len(changes)
    moved = {name for name in before if before[name] != after[name] and name.endswith("_version")}
    assert moved == {"meta_version"}
    assert after["updated_at"] == before["updated_at"]


async def test_cursors_pins_heartbeats_and_search_move_no_version(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before, last = await rig.columns(chat_id), await rig.last_id(chat_id)

    await rig.sql("INSERT INTO chat_read_cursors VALUES ($1, $2, $3)", chat_id, rig.user, last)
    await rig.sql("INSERT INTO chat_pins VALUES ($1, $2, 1)", chat_id, rig.user)
    await rig.sql("INSERT INTO chat_heartbeats VALUES ($1, gen_random_uuid(), clock_timestamp())", chat_id)
    await rig.sql("UPDATE chat_message_search SET tsv = to_tsvector('simple', 'hello') WHERE chat_id = $1", chat_id)

    assert await rig.columns(chat_id) == before


async def test_message_ids_and_revisions_sort_the_same_way(rig: Rig) -> None:
    chat_id = await rig.create()
    for index in range(4):
        await rig.commit(chat_id, assistant(f"a{index}"), assistant(f"b{index}"))

    history = await rig.history(chat_id)
    assert [message.revision for message in history] == sorted(message.revision for message in history)
    assert [message.id for message in history] == sorted(message.id for message in history)
