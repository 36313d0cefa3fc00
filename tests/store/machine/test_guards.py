"""Guards of the database: it refuses changes that bypass the machine, and impossible states."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.chat.errors import InvariantViolation
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.states import State
from rookery.store import machine
from tests.store.machine.held_bundles import held, updating
from tests.store.machine.machine_rig import Conn, Rig, assistant, call, calling, result

BUMP = "UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1"
INSERT_MESSAGE = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    VALUES ($1, 'user', 'both', '[]', 1)
"""
INSERT_QUEUED = """
    INSERT INTO chat_queued_messages (chat_id, position, content, content_version, created_by)
    VALUES ($1, 100, '[]', 1, gen_random_uuid())
"""

# Each in a state where it would be a real change.
UNVERSIONED = {
    "insert a message": (State.R0, INSERT_MESSAGE),
    "delete a message": (State.R0, "UPDATE chat_messages SET deleted = true WHERE chat_id = $1"),
    "queue a message": (State.R0, INSERT_QUEUED),
    "edit a queued message": (State.R1, "UPDATE chat_queued_messages SET content = '[1]' WHERE chat_id = $1"),
    "move a queued message": (State.R1, "UPDATE chat_queued_messages SET position = 50 WHERE chat_id = $1"),
    "mark a queued message": (State.R1, "UPDATE chat_queued_messages SET steer = NOT steer WHERE chat_id = $1"),
    "unqueue a message": (State.R1, "DELETE FROM chat_queued_messages WHERE chat_id = $1"),
    "exchange a queued message": (
        State.R1,
        f"WITH gone AS (DELETE FROM chat_queued_messages WHERE chat_id = $1) {INSERT_QUEUED}",
    ),
    "change the status": (State.R0, "UPDATE chats SET status = 'interrupting' WHERE id = $1"),
    "archive": (State.W, "UPDATE chats SET archived = true, archived_at = now() WHERE id = $1"),
    "take the chat": (
        State.R0,
        "UPDATE chats SET worker_id = gen_random_uuid(), runner_id = gen_random_uuid() WHERE id = $1",
    ),
    "replace the error": (State.E0, """UPDATE chats SET last_error = '{"message": "y"}' WHERE id = $1"""),
    "say that it retries": (State.R0, """UPDATE chats SET retry_state = '{"attempt": 1}' WHERE id = $1"""),
    "move the deadline": (State.A0, "UPDATE chats SET requires_action_deadline_at = now() WHERE id = $1"),
    "order a compaction": (State.R0, "UPDATE chats SET compaction_requested_at = now() WHERE id = $1"),
    "count an attempt": (State.R0, "UPDATE chats SET generation_attempt = generation_attempt + 1 WHERE id = $1"),
    "move the history version": (State.R0, "UPDATE chats SET history_version = 0 WHERE id = $1"),
    "move the queue version": (State.R1, "UPDATE chats SET queue_version = 0 WHERE id = $1"),
    "count the queue": (State.R0, "UPDATE chats SET queue_len = 1 WHERE id = $1"),
}

FORBIDDEN = {
    "another id": "UPDATE chats SET id = gen_random_uuid() WHERE id = $1",
    "another owner": "UPDATE chats SET owner_id = gen_random_uuid() WHERE id = $1",
    "another family": "UPDATE chats SET parent_chat_id = id, root_chat_id = id WHERE id = $1",
    "two versions at once": "UPDATE chats SET snapshot_version = snapshot_version + 2 WHERE id = $1",
    "a version back": "UPDATE chats SET snapshot_version = snapshot_version - 1 WHERE id = $1",
    "a second version": BUMP,
    "retry_state_version": "UPDATE chats SET retry_state_version = snapshot_version WHERE id = $1",
    "meta_version": "UPDATE chats SET meta_version = 7 WHERE id = $1",
    "a message's content": "UPDATE chat_messages SET content = '[1]' WHERE chat_id = $1",
    "a message's chat": "UPDATE chat_messages SET chat_id = gen_random_uuid() WHERE chat_id = $1",
    "a message's revision": "UPDATE chat_messages SET revision = revision + 1 WHERE chat_id = $1",
    "a message's role": "UPDATE chat_messages SET role = 'assistant' WHERE chat_id = $1",
    "a message's visibility": "UPDATE chat_messages SET visibility = 'model' WHERE chat_id = $1",
    "a message's place in a summary": "UPDATE chat_messages SET compressed = true WHERE chat_id = $1",
    "a message's author": "UPDATE chat_messages SET created_by = gen_random_uuid() WHERE chat_id = $1",
    "a message's cost": "UPDATE chat_messages SET cost_micros = 1 WHERE chat_id = $1",
    "a message's date": "UPDATE chat_messages SET created_at = now() WHERE chat_id = $1",
    "a message that is gone for good": "DELETE FROM chat_messages WHERE chat_id = $1",
    "a message with a revision of its own": """
        INSERT INTO chat_messages (chat_id, revision, role, visibility, content, content_version)
        VALUES ($1, 1, 'user', 'both', '[]', 1)
    """,
    "a queued message that changes its chat": """
        UPDATE chat_queued_messages SET chat_id = (SELECT id FROM chats WHERE id <> $1 LIMIT 1) WHERE chat_id = $1
    """,
}

CONSTRAINTS = {
    "chats_status": (State.W, "status = 'asleep'"),
    "chats_archived_idle": (State.R0, "archived = true, archived_at = now()"),
    "chats_archived_at": (State.W, "archived = true"),
    "chats_waiting_no_queue": (State.R1, "status = 'waiting'"),
    "chats_error_payload": (State.R0, "status = 'error'"),
    "chats_deadline": (State.R0, "requires_action_deadline_at = now()"),
    "chats_compaction": (State.W, "compaction_requested_at = now()"),
    "chats_owner_pair": (State.W, "worker_id = gen_random_uuid()"),
    "chats_versions": (State.W, "history_version = snapshot_version + 1"),
    "chats_family": (State.W, None),
    "chats_labels": (State.W, "labels = '[]'"),
    "chats_effort": (State.W, "last_reasoning_effort = 'heroic'"),
    "chats_permission_mode": (State.W, "permission_mode = 'never'"),
    "chats_refused_tokens_check": (State.W, "refused_tokens = 0"),
    "chats_queue_cap": (State.R1, None),
    "chats_runnable": (State.W, None),
}


async def in_one_transaction(conn: Conn, chat_id: ChatId, *statements: str) -> None:
    async with conn.transaction():
        for statement in statements:
            await conn.execute(statement, *([chat_id] if "$1" in statement else []))


async def refused_with(rig: Rig, chat_id: ChatId, sqlstate: str, *statements: str) -> asyncpg.PostgresError:
    """Run the statements in a separate transaction. The last one must be refused, and nothing is stored."""
    before = await rig.trace(chat_id)
    async with rig.pool.acquire() as conn:
        with pytest.raises(asyncpg.PostgresError) as refusal:
            await in_one_transaction(conn, chat_id, *statements)
    assert refusal.value.sqlstate == sqlstate, refusal.value
    assert await rig.trace(chat_id) == before
    return refusal.value


# Without a version


@pytest.mark.parametrize("name", UNVERSIONED)
async def test_change_of_execution_state_without_a_version_is_refused(rig: Rig, name: str) -> None:
    state, statement = UNVERSIONED[name]
    chat_id = await rig.chat(state)

    await refused_with(rig, chat_id, "RK001", statement)

    async with rig.pool.acquire() as conn:
        await in_one_transaction(conn, chat_id, BUMP, statement)


async def test_version_of_one_chat_does_not_open_another(rig: Rig) -> None:
    chat_id, other = await rig.chat(State.R0), await rig.chat(State.R0)

    await refused_with(rig, chat_id, "RK001", BUMP.replace("$1", f"'{other}'"), INSERT_MESSAGE)


async def test_version_given_in_one_transaction_does_not_count_in_the_next_on_that_connection(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    async with rig.pool.acquire() as conn:
        await conn.execute(BUMP, chat_id)
        with pytest.raises(asyncpg.PostgresError) as refusal:
            await conn.execute(INSERT_MESSAGE, chat_id)

    assert refusal.value.sqlstate == "RK001"


async def test_savepoint_that_is_rolled_back_takes_its_version_along(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    start = (await rig.load(chat_id)).snapshot_version
    undone = ("SAVEPOINT here", BUMP, INSERT_MESSAGE, "ROLLBACK TO here")

    await refused_with(rig, chat_id, "RK001", *undone, INSERT_MESSAGE)
    async with rig.pool.acquire() as conn:
        await in_one_transaction(conn, chat_id, *undone, BUMP, INSERT_MESSAGE)

    assert (await rig.load(chat_id)).snapshot_version == start + 1
    assert [m.revision for m in await rig.history(chat_id)][1:] == [start + 1]


async def test_savepoint_that_is_rolled_back_leaves_an_earlier_version_open(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    async with rig.pool.acquire() as conn:
        await in_one_transaction(
            conn, chat_id, BUMP, "SAVEPOINT here", INSERT_MESSAGE, "ROLLBACK TO here", INSERT_MESSAGE
        )

    assert len(await rig.history(chat_id)) == 2


# A chat that exists already, inserted once more. The row it offers is that of the chat, but for what `excluded` gives.
INSERT_AGAIN = """
    INSERT INTO chats (id, owner_id, status, title, last_model_config_id)
    SELECT id, owner_id, 'interrupting', 'again', last_model_config_id FROM chats WHERE id = $1
"""


async def test_insert_that_is_discarded_opens_nothing(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    discarded = f"{INSERT_AGAIN} ON CONFLICT (id) DO NOTHING"

    for state, statement in UNVERSIONED.values():
        if state is State.R0:
            await refused_with(rig, chat_id, "RK001", discarded, statement)


async def test_insert_that_becomes_an_update_opens_nothing(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    renamed = f"{INSERT_AGAIN} ON CONFLICT (id) DO UPDATE SET title = excluded.title"

    await refused_with(rig, chat_id, "RK001", f"{INSERT_AGAIN} ON CONFLICT (id) DO UPDATE SET status = excluded.status")
    await refused_with(rig, chat_id, "RK001", renamed, INSERT_MESSAGE)
    await rig.sql(renamed, chat_id)

    assert await rig.value("SELECT title FROM chats WHERE id = $1", chat_id) == "again"


async def test_chat_that_is_really_inserted_is_open_for_its_transaction(rig: Rig) -> None:
    other, chat_id = await rig.chat(State.W), ChatId(uuid4())
    insert = INSERT_AGAIN.replace("SELECT id", f"SELECT '{chat_id}'::uuid").replace("$1", f"'{other}'")

    async with rig.pool.acquire() as conn:
        await in_one_transaction(conn, chat_id, f"{insert} ON CONFLICT (id) DO NOTHING", INSERT_MESSAGE)

    assert [message.revision for message in await rig.history(chat_id)] == [1]


# Never


@pytest.mark.parametrize("name", FORBIDDEN)
async def test_change_that_is_never_allowed_is_refused_inside_a_bundle_too(rig: Rig, name: str) -> None:
    chat_id = await rig.chat(State.R1)
    await rig.chat(State.R1)

    await refused_with(rig, chat_id, "RK002", BUMP, FORBIDDEN[name])


async def test_deleted_message_stays_deleted(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute(BUMP, chat_id)
        await conn.execute("UPDATE chat_messages SET deleted = true WHERE chat_id = $1", chat_id)

    await refused_with(rig, chat_id, "RK002", BUMP, "UPDATE chat_messages SET deleted = false WHERE chat_id = $1")


async def test_write_that_changes_nothing_moves_nothing_and_needs_no_version(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1)
    before = await rig.trace(chat_id)

    await rig.sql("UPDATE chat_messages SET content = content, deleted = deleted WHERE chat_id = $1", chat_id)
    await rig.sql("UPDATE chat_queued_messages SET content = content WHERE chat_id = $1", chat_id)
    await rig.sql("UPDATE chats SET status = status, title = title WHERE id = $1", chat_id)

    assert await rig.trace(chat_id) == before


async def test_deleting_deleted_rows_again_leaves_the_history_version_alone(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.update(chat_id, lambda tx: tx.conn.execute("UPDATE chat_messages SET deleted = true"))
    before = await rig.load(chat_id)

    await rig.update(chat_id, lambda tx: tx.conn.execute("UPDATE chat_messages SET deleted = true"))

    after = await rig.load(chat_id)
    assert after.snapshot_version == before.snapshot_version + 1
    assert after.history_version == before.history_version
    assert {m.revision for m in await rig.history(chat_id, deleted=True)} == {before.history_version}


# One result of a call


async def test_second_result_of_a_call_is_refused_until_the_call_is_made_again(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a", "run"), call("b", "run")))
    await rig.commit(chat_id, result("a", "run"))

    with pytest.raises(InvariantViolation, match=r"call a of chat .* has a result"):
        await rig.commit(chat_id, result("b", "run"), result("a", "run"))
    await rig.commit(chat_id, result("b", "run"))
    # Some servers repeat call ids.
    await rig.commit(chat_id, calling(call("a", "run")))
    await rig.commit(chat_id, result("a", "run"))

    with pytest.raises(InvariantViolation):
        await rig.commit(chat_id, result("a", "run"))


async def test_two_results_of_a_call_in_one_statement_are_refused(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a", "run")))

    await refused_with(
        rig,
        chat_id,
        "RK002",
        BUMP,
        """
        INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
        SELECT $1, 'tool', 'both', '[{"type": "tool-result", "tool_call_id": "a", "tool_name": "run"}]', 1
          FROM generate_series(1, 2)
        """,
    )


async def test_deleted_result_and_one_of_another_chat_do_not_count(rig: Rig) -> None:
    chat_id, other = await rig.create(), await rig.create()
    await rig.commit(other, calling(call("a", "run")))
    await rig.commit(other, result("a", "run"))
    await rig.commit(chat_id, calling(call("a", "run")))
    deleted = (await rig.commit(chat_id, result("a", "run"))).inserted[0].id
    await rig.update(
        chat_id, lambda tx: tx.conn.execute("UPDATE chat_messages SET deleted = true WHERE id = $1", deleted)
    )

    await rig.commit(chat_id, result("a", "run"))


# States that must not exist


@pytest.mark.parametrize("name", [name for name, (_, assignment) in CONSTRAINTS.items() if assignment])
async def test_row_that_must_not_exist_violates_a_named_constraint(rig: Rig, name: str) -> None:
    state, assignment = CONSTRAINTS[name]
    chat_id = await rig.chat(state)

    error = await refused_with(rig, chat_id, "23514", BUMP, f"UPDATE chats SET {assignment} WHERE id = $1")

    assert getattr(error, "constraint_name", None) == name


async def test_twenty_first_queued_message_violates_the_cap(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=20)

    error = await refused_with(rig, chat_id, "23514", BUMP, INSERT_QUEUED)

    assert getattr(error, "constraint_name", None) == "chats_queue_cap"


async def test_backlog_of_a_waiting_chat_violates_a_constraint(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    error = await refused_with(rig, chat_id, "23514", BUMP, INSERT_QUEUED)

    assert getattr(error, "constraint_name", None) == "chats_waiting_no_queue"


async def test_parent_without_a_root_violates_a_constraint(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)

    error = await refused_with(
        rig,
        chat_id,
        "23514",
        """
        INSERT INTO chats (owner_id, status, title, last_model_config_id, parent_chat_id)
        SELECT owner_id, 'waiting', 'x', last_model_config_id, id FROM chats WHERE id = $1
        """,
    )

    assert getattr(error, "constraint_name", None) == "chats_family"


async def test_every_named_constraint_of_chats_is_one_of_these(rig: Rig) -> None:
    async with rig.pool.acquire() as conn:
        found = await conn.fetch(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'chats'::regclass AND contype = 'c'"
        )

    assert {record["conname"] for record in found} == set(CONSTRAINTS)


async def test_age_of_work_is_set_by_the_database_and_cannot_be_assigned(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    since = (await rig.load(chat_id)).runnable_since

    await rig.sql("UPDATE chats SET runnable_since = NULL WHERE id = $1", chat_id)
    await rig.sql("UPDATE chats SET runnable_since = now() WHERE id = $1", chat_id)

    assert (await rig.load(chat_id)).runnable_since == since is not None


# Metadata, leases and reads


async def test_metadata_changes_freely_and_moves_nothing_but_its_own_version(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    workspace = await rig.value("INSERT INTO workspaces (owner_id, name) VALUES ($1, 'w') RETURNING id", rig.user)
    before = await rig.load(chat_id)
    assignments = (
        "title = 'another'",
        """labels = '{"a": "b"}'""",
        f"workspace_id = '{workspace}'",
        "last_reasoning_effort = 'high'",
        "mode = 'code'",
        "plan_mode = true",
        "mcp_server_ids = ARRAY[gen_random_uuid()]",
        "dynamic_tools = '[]'",
        "client_type = 'web'",
        "summary = 's'",
        "summary_generated_at = now()",
        "last_turn_summary = 't'",
        "workspace_generation = 3",
        "context_hash = 'h'",
        "context_dirty_since = now()",
        "context_workspace_id = gen_random_uuid(), context_generation = 2, context_error = 'e'",
    )

    for count, assignment in enumerate(assignments, 1):
        await rig.sql(f"UPDATE chats SET {assignment} WHERE id = $1", chat_id)
        assert await rig.value("SELECT meta_version FROM chats WHERE id = $1", chat_id) == count, assignment

    after = await rig.load(chat_id)
    assert after.last_reasoning_effort == "high"
    assert after.snapshot_version == before.snapshot_version
    assert (after.history_version, after.queue_version, after.updated_at) == (
        before.history_version,
        before.queue_version,
        before.updated_at,
    )
    assert rig.published.hints == []


async def test_transition_moves_the_version_of_metadata_only_with_the_model_choice(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    await rig.update(chat_id, lambda tx: machine.commit_step(tx, [assistant("done")]))

    assert await rig.value("SELECT meta_version FROM chats WHERE id = $1", chat_id) == 0


async def test_heartbeat_file_link_and_pin_do_not_wait_for_an_open_transition(rig: Rig) -> None:
    chat_id, file_id = await rig.chat(State.R0), await rig.add_file()

    async with held(updating(rig, chat_id, lambda tx: machine.commit_step(tx, [assistant("done")]))) as step:
        async with asyncio.timeout(5):
            await rig.sql("INSERT INTO chat_heartbeats VALUES ($1, $2, now())", chat_id, uuid4())
            await rig.sql("INSERT INTO chat_file_links VALUES ($1, $2)", chat_id, file_id)
            await rig.sql("INSERT INTO chat_pins VALUES ($1, $2, 1)", chat_id, rig.user)
            await rig.sql("INSERT INTO chat_read_cursors VALUES ($1, $2, 1)", chat_id, rig.user)
        assert not step.task.done()
        version = (await step.finish()).inserted[0].revision

    assert (await rig.load(chat_id)).snapshot_version == version


async def test_transition_does_not_wait_for_an_open_heartbeat(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)

    async with rig.pool.acquire() as conn, conn.transaction():
        await conn.execute("INSERT INTO chat_heartbeats VALUES ($1, $2, now())", chat_id, uuid4())
        async with asyncio.timeout(5):
            await rig.update(chat_id, machine.finish_turn)


# Deletes elsewhere


async def test_deleting_a_workspace_unbinds_its_chats_and_breaks_nothing(rig: Rig) -> None:
    workspace = await rig.value("INSERT INTO workspaces (owner_id, name) VALUES ($1, 'w') RETURNING id", rig.user)
    chat_id = await rig.create(workspace_id=workspace)
    fence = await rig.acquire(chat_id)

    await rig.sql("DELETE FROM workspaces")

    assert await rig.value("SELECT workspace_id FROM chats WHERE id = $1", chat_id) is None
    assert await rig.value("SELECT meta_version FROM chats WHERE id = $1", chat_id) == 1
    await rig.update(chat_id, machine.finish_turn, fence=fence)


async def test_deleting_a_user_takes_chats_with_backlogs_and_children_along(rig: Rig) -> None:
    workspace = await rig.value("INSERT INTO workspaces (owner_id, name) VALUES ($1, 'w') RETURNING id", rig.user)
    root = await rig.create(workspace_id=workspace)
    await rig.send(root, "queued")
    child = await rig.child(root)
    await rig.send(child, "queued too")
    await rig.acquire(child)

    await rig.sql("DELETE FROM users WHERE id = $1", rig.user)

    for table in ("chats", "chat_messages", "chat_queued_messages", "chat_heartbeats", "chat_message_search"):
        assert await rig.value(f"SELECT count(*) FROM {table}") == 0, table


async def test_deleting_an_author_leaves_the_history_of_others_alone(rig: Rig) -> None:
    guest = await rig.value("INSERT INTO users (username) VALUES ('guest') RETURNING id")
    assert isinstance(guest, UUID)
    chat_id = await rig.chat(State.W)
    await rig.send(chat_id, "from the guest", created_by=guest)
    before = await rig.trace(chat_id)

    await rig.sql("DELETE FROM users WHERE id = $1", guest)

    assert await rig.trace(chat_id) == before
