"""The recording state of chats: the mode of recording, and the records of removed history that must be deleted.

An edit or an archive only marks the records, in its transaction: `mark_removed` raises the floor. `delete_removed`
deletes them afterwards, and reads leave them out meanwhile (`IS_KEPT`). The comparison uses versions and not clocks, so
a worker that has lost its chat cannot keep a record of removed history.
"""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.messages import ChatId
from rookery.store.db.hints import MiscHint
from rookery.store.db.pool import Connection
from rookery.store.debug.record_rows import DebugMode

# Published when an edit, an archive or a user has removed records of a chat.
REMOVED_TOPIC = "debug_removed"

# A condition on the run `r`: an edit or an archive has not removed its history.
IS_KEPT = """NOT EXISTS (
         SELECT FROM chat_debug_state d
          WHERE d.chat_id = r.chat_id
            AND d.delete_from IS NOT NULL
            AND r.snapshot_version < d.floor
            AND (r.trigger_message_id >= d.delete_from
                 OR r.history_tip_message_id >= d.delete_from
                 OR d.delete_from = 0
                 OR EXISTS (SELECT FROM chat_debug_steps s
                             WHERE s.run_id = r.id
                               AND (s.history_tip_message_id >= d.delete_from
                                    OR s.assistant_message_id >= d.delete_from))))"""

# True if the family of a chat, or else its owner, wants to be recorded. False if the family must never be recorded.
# NULL if neither has chosen. For a statement over `chats`.
WANTS_DEBUG = """
    CASE (SELECT d.mode FROM chat_debug_state d WHERE d.chat_id = coalesce(chats.root_chat_id, chats.id))
    WHEN 'on' THEN true
    WHEN 'off' THEN false
    ELSE (SELECT true
            FROM user_settings p
           WHERE p.user_id = chats.owner_id AND p.key = 'debug' AND p.value = 'true')
    END"""
READ_WANTS_DEBUG = f"SELECT {WANTS_DEBUG} FROM chats WHERE id = $1"
FIND_MODE = "SELECT mode FROM chat_debug_state WHERE chat_id = $1"
SET_MODE = """
    INSERT INTO chat_debug_state (chat_id, mode)
    VALUES ($1, $2)
    ON CONFLICT (chat_id) DO UPDATE SET mode = excluded.mode
     WHERE chat_debug_state.mode <> excluded.mode
    RETURNING chat_id
"""
# The row is inserted even if nothing was ever recorded. The transaction of the first run may insert it as well, and
# this statement must wait for it.
MARK_REMOVED = """
    INSERT INTO chat_debug_state (chat_id, floor, delete_from)
    VALUES ($1, $2, $3)
    ON CONFLICT (chat_id) DO UPDATE
       SET floor = greatest(chat_debug_state.floor, excluded.floor),
           delete_from = least(chat_debug_state.delete_from, excluded.delete_from)
    RETURNING EXISTS (SELECT FROM chat_debug_runs r WHERE r.chat_id = $1)
"""
LIST_MARKED = "SELECT chat_id, floor FROM chat_debug_state WHERE delete_from IS NOT NULL LIMIT $1"
# With SKIP LOCKED, a deletion never waits for a writer while it holds other rows. The next run deletes the rest.
DELETE_REMOVED = f"""
    WITH found AS MATERIALIZED (
         SELECT r.id
           FROM chat_debug_runs r
          WHERE r.chat_id = $1
            AND NOT ({IS_KEPT})
          LIMIT $2
            FOR UPDATE OF r SKIP LOCKED)
    DELETE FROM chat_debug_runs WHERE id IN (SELECT id FROM found)
    RETURNING id
"""
# Does nothing if a run is left, or if a later edit has raised the floor.
CLEAR_MARK = f"""
    UPDATE chat_debug_state c
       SET delete_from = NULL
     WHERE c.chat_id = $1
       AND c.floor = $2
       AND NOT EXISTS (SELECT FROM chat_debug_runs r WHERE r.chat_id = $1 AND NOT ({IS_KEPT}))
"""
READ_FLOOR = "SELECT floor FROM chat_debug_state WHERE chat_id = $1 AND delete_from IS NOT NULL"
# Waits for runs that are being inserted. The chat is locked first, as by an insert.
HOLD = """
    WITH chat AS MATERIALIZED (SELECT id FROM chats WHERE id = $1 FOR KEY SHARE)
    INSERT INTO chat_debug_state (chat_id) SELECT id FROM chat
    ON CONFLICT (chat_id) DO UPDATE SET floor = chat_debug_state.floor
"""
DELETE_ALL = "DELETE FROM chat_debug_runs WHERE chat_id = $1 RETURNING id"


def updates_topic(chat_id: UUID) -> str:
    """Return the topic of changes of a chat's records. Data: `kind` (run, step, finalize or delete) and `run_id`."""
    return f"debug:{chat_id}"


def update_hint(chat_id: UUID, kind: str, run_id: UUID | None) -> MiscHint:
    return MiscHint(
        topic=updates_topic(chat_id), data={"kind": kind, "run_id": None if run_id is None else str(run_id)}
    )


def removed_hints(chat_id: UUID) -> list[MiscHint]:
    """Return the hints to publish after a transaction that has removed records."""
    return [
        MiscHint(topic=REMOVED_TOPIC, data={"chat_id": str(chat_id)}),
        update_hint(chat_id, "delete", None),
    ]


async def find_mode(conn: Connection, root_id: UUID) -> DebugMode:
    """Return the mode of a family. `root_id` is its root chat."""
    found = await conn.fetchval(FIND_MODE, root_id)
    return DebugMode.INHERIT if found is None else DebugMode(found)


async def wants_debug(conn: Connection, chat_id: UUID) -> bool:
    """Return whether the family of a chat, or else its owner, wants to be recorded."""
    return bool(await conn.fetchval(READ_WANTS_DEBUG, chat_id))


async def set_mode(conn: Connection, root_id: UUID, mode: DebugMode) -> bool:
    """Set the mode of a family. Return False if it did not change."""
    if mode is DebugMode.INHERIT and await conn.fetchval(FIND_MODE, root_id) is None:
        return False
    return await conn.fetchval(SET_MODE, root_id, mode) is not None


async def mark_removed(conn: Connection, chat_id: UUID, *, floor: int, delete_from: int) -> bool:
    """Mark the records of messages from `delete_from` on as removed; 0 means all records.

    `floor` is the version of the chat after the change. Call it in the transaction of the change. Returns whether the
    chat has records.
    """
    return bool(await conn.fetchval(MARK_REMOVED, chat_id, floor, delete_from))


async def delete_removed(conn: Connection, chat_id: UUID, *, batch: int = 100) -> int:
    """Delete the records that are marked as removed. Return the number of deleted runs."""
    floor = await conn.fetchval(READ_FLOOR, chat_id)
    if floor is None:
        return 0
    total = 0
    while deleted := len(await conn.fetch(DELETE_REMOVED, chat_id, batch)):
        total += deleted
        if deleted < batch:
            break
    await conn.execute(CLEAR_MARK, chat_id, floor)
    return total


async def list_marked(conn: Connection, *, limit: int = 1000) -> list[ChatId]:
    """Return chats with records that are marked as removed."""
    return [ChatId(record["chat_id"]) for record in await conn.fetch(LIST_MARKED, limit)]


async def delete_all(conn: Connection, chat_id: UUID) -> int:
    """Delete all records of a chat, for its owner. Return the number of runs. Call it in a transaction."""
    await conn.execute(HOLD, chat_id)
    return len(await conn.fetch(DELETE_ALL, chat_id))
