"""The tool ledger: the runs of tools that must not run twice. A row is inserted before a run and gets the run's result.

If a call is repeated after a crash, a takeover or a retry, its row is found by the replay token. A finished run returns
its result again. The outcome of an unfinished run is unknown, unless the tool has kept a state from which it can be
continued. The runner that inserts the row runs the tool.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.chat import open_tool_calls, parts
from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import StaleFence
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.store.db.pool import Connection
from rookery.store.machine.bundle import READ_CHAT

# Chosen: much longer than the time for which the outcome of an open call matters.
RETENTION = timedelta(days=30)

# Checks the fence in the same statement, which saves a round trip.
BEGIN = """
    INSERT INTO chat_tool_runs (token, chat_id, message_id, tool_call_id, tool_name)
    SELECT $1, c.id, $3, $4, $5
      FROM chats c
     WHERE c.id = $2
       AND c.worker_id = $6
       AND c.runner_id = $7
       AND c.status = $8
       AND c.history_version = $9
       AND ($10::bigint IS NULL OR c.generation_attempt = $10)
       AND NOT c.archived
        ON CONFLICT (token) DO NOTHING
    RETURNING token
"""
FIND = "SELECT result, is_error, state, answer FROM chat_tool_runs WHERE token = $1"
KEEP = """
    UPDATE chat_tool_runs
       SET state = $2, question = $3, answer = NULL
     WHERE token = $1
       AND finished_at IS NULL
    RETURNING token
"""
FINISH = """
    UPDATE chat_tool_runs
       SET finished_at = clock_timestamp(), result = $2, is_error = $3, state = NULL, question = NULL, answer = NULL
     WHERE token = $1
       AND finished_at IS NULL
    RETURNING token
"""
# With SKIP LOCKED, a purge does not wait for other replicas or for chats that are being deleted.
PURGE = """
    DELETE FROM chat_tool_runs
     WHERE token IN (SELECT token
                       FROM chat_tool_runs
                      WHERE started_at < clock_timestamp() - $1::interval
                      ORDER BY started_at
                      LIMIT $2
                        FOR UPDATE SKIP LOCKED)
    RETURNING token
"""


class RunStatus(StrEnum):
    STARTED = "started"
    FINISHED = "finished"
    UNFINISHED = "unfinished"


class ToolRun(msgspec.Struct, frozen=True):
    """The result of `begin`. `started`: run the tool. `finished`: use `result` and do not run the tool.

    `unfinished`: an earlier run has begun and its outcome is unknown. Do not run the tool; tell the model to check. If
    it has kept a `state`, the tool may continue it, with the user's `answer` to its question. Both are JSON.
    """

    status: RunStatus
    result: bytes = b""
    is_error: bool = False
    state: str | None = None
    answer: str | None = None


class Call(msgspec.Struct, frozen=True):
    """The identity of a tool call. `tool_call_id` alone is not unique: some providers repeat ids."""

    chat_id: ChatId
    message_id: MessageId
    tool_call_id: str
    tool_name: str

    @property
    def token(self) -> UUID:
        return open_tool_calls.replay_token(self.chat_id, self.message_id, self.tool_call_id)


async def begin(conn: Connection, call: Call, *, fence: Fence) -> ToolRun:
    """Insert the run into the ledger, or return the state of an earlier run. Raises `StaleFence`.

    The fence is checked for a new run only. The result of an earlier run is valid for every caller.
    """
    token = call.token
    inserted = await conn.fetchval(
        BEGIN,
        token,
        call.chat_id,
        call.message_id,
        call.tool_call_id,
        call.tool_name,
        fence.worker_id,
        fence.runner_id,
        fence.status,
        fence.history_version,
        fence.generation_attempt,
    )
    if inserted is not None:
        return ToolRun(RunStatus.STARTED)
    # A separate statement, because the INSERT does not see a row that was committed while it waited.
    record = await conn.fetchrow(FIND, token)
    if record is None:
        raise await _stale(conn, call.chat_id, fence)
    if record["result"] is None:
        state, answer = (None if each is None else parts.unescape(each) for each in (record["state"], record["answer"]))
        return ToolRun(RunStatus.UNFINISHED, state=state, answer=answer)
    return ToolRun(RunStatus.FINISHED, record["result"], record["is_error"])


async def finish(conn: Connection, token: UUID, *, result: bytes, is_error: bool = False) -> bool:
    """Store the result of the run. Returns False if the run already has a result, or the chat is deleted.

    There is no fence: the tool has run, and the current owner of the chat needs its result.
    """
    return await conn.fetchval(FINISH, token, result, is_error) is not None


async def keep(conn: Connection, token: UUID, state: msgspec.Struct, *, question: msgspec.Struct | None = None) -> bool:
    """Store the state with which the unfinished run can be continued, and the question whose answer it needs.

    There is no fence, because the state of a call at a server is valid for every owner of the chat.
    """
    asked = None if question is None else parts.to_jsonb(question)
    return await conn.fetchval(KEEP, token, parts.to_jsonb(state), asked) is not None


async def purge(conn: Connection, *, older_than: timedelta = RETENTION, batch: int = 1000) -> int:
    """Delete at most `batch` old runs. Returns their number; if it is below `batch`, no more are left."""
    return len(await conn.fetch(PURGE, older_than, batch))


async def _stale(conn: Connection, chat_id: ChatId, fence: Fence) -> StaleFence:
    record = await conn.fetchrow(READ_CHAT, chat_id)
    if record is None:
        return StaleFence(chat_id, "chat")
    # If there is no mismatch now, the fence failed when the INSERT ran and has matched again since.
    return StaleFence(chat_id, fence.find_mismatch(Chat(*record)) or "snapshot_version")
