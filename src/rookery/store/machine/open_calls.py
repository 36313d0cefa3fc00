"""Queries for the open tool calls of the current turn."""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat import open_tool_calls
from rookery.domain.chat.messages import CONTENT_VERSION
from rookery.domain.chat.open_tool_calls import CallRow, OpenCall
from rookery.store.machine.bundle import Tx
from rookery.telemetry import log

_log = log.get_logger("store.machine")

# The rows of the turn: live rows after the last live visible user row. The chat is given as a range and in the order,
# so that the planner does not scan the primary key backward through the rows of all users (explained in
# store/chats/messages.py). Roles are excluded, not listed, so that it uses the index messages_live, not messages_role.
_IN_TURN = """
           m.chat_id >= $1 AND m.chat_id <= $1
       AND NOT m.deleted
       AND NOT m.compressed
       AND m.role <> 'user' AND m.role <> 'system'
       AND (m.chat_id, m.id) > ($1, coalesce((
           SELECT u.id
             FROM chat_messages u
            WHERE u.chat_id >= $1 AND u.chat_id <= $1
              AND u.role = 'user'
              AND NOT u.deleted
              AND NOT u.compressed
              AND u.visibility <> 'model'
            ORDER BY u.chat_id, u.role, u.id DESC
            LIMIT 1), 0))
"""

# Returns only the fields of calls and results that are compared: a turn may have a thousand steps with large results.
TURN_CALLS = f"""
    SELECT m.id, m.role, coalesce(c.parts, '[]'), m.content_version
      FROM chat_messages m
     CROSS JOIN LATERAL (
           SELECT jsonb_agg(jsonb_build_object(
                    'type', p.part -> 'type', 'tool_call_id', p.part -> 'tool_call_id',
                    'tool_name', p.part -> 'tool_name',
                    'provider_executed', coalesce(p.part -> 'provider_executed', 'false'))) AS parts
             FROM jsonb_array_elements(m.content) AS p (part)
            WHERE p.part ->> 'type' IN ('tool-call', 'tool-result')) c
     WHERE {_IN_TURN}
     ORDER BY m.chat_id, m.id
"""

# True only if `open_tool_calls.open_calls` finds no open call. This saves a round trip in the common case. It is also
# false for calls that the provider executes and for unreadable rows; then the caller checks each call.
NOTHING_OPEN = f"""
    NOT EXISTS (
      WITH turn AS (
           SELECT m.id, m.role, p.part ->> 'type' AS type, p.part -> 'tool_call_id' AS tool_call_id,
                  m.content_version = {CONTENT_VERSION}
                  AND jsonb_typeof(p.part -> 'tool_call_id') IS NOT DISTINCT FROM 'string'
                  AND jsonb_typeof(p.part -> 'tool_name') IS NOT DISTINCT FROM 'string'
                  AND coalesce(jsonb_typeof(p.part -> 'provider_executed'), 'boolean') = 'boolean' AS is_readable
             FROM chat_messages m
            CROSS JOIN LATERAL jsonb_array_elements(m.content) AS p (part)
            WHERE {_IN_TURN}
              AND p.part ->> 'type' IN ('tool-call', 'tool-result')
            ORDER BY m.chat_id, m.id)
      SELECT FROM turn c
       WHERE NOT c.is_readable
          OR (c.type = 'tool-call'
              AND NOT EXISTS (
                  SELECT FROM turn r
                   WHERE r.type = 'tool-result'
                     AND r.tool_call_id = c.tool_call_id
                     AND (r.id = c.id OR (r.id > c.id AND r.role = 'tool')))))
"""

_DYNAMIC_TOOLS = """
    SELECT t.tool ->> 'name'
      FROM chats c
     CROSS JOIN LATERAL jsonb_array_elements(c.dynamic_tools) AS t (tool)
     WHERE c.id = $1 AND jsonb_typeof(c.dynamic_tools) = 'array'
"""


_ASKED = "SELECT token FROM chat_approvals WHERE chat_id = $1 AND approved_at IS NULL"
_BRAKED = f"{_ASKED} AND offers ? 'brake'"


async def turn_calls(tx: Tx) -> tuple[OpenCall, ...]:
    """Return all open calls of the current turn."""
    records = await tx.conn.fetch(TURN_CALLS, tx.chat.id)
    return open_tool_calls.open_calls(
        (CallRow(*record) for record in records),
        on_unreadable=lambda message_id: _log.warning("message_unreadable", chat_id=tx.chat.id, message_id=message_id),
    )


async def dynamic_calls(tx: Tx) -> tuple[OpenCall, ...]:
    """Return the open calls that a client executes."""
    calls = await turn_calls(tx)
    if not calls:
        return ()
    names = {record[0] for record in await tx.conn.fetch(_DYNAMIC_TOOLS, tx.chat.id)}
    return open_tool_calls.select_dynamic(calls, names)


async def asked_calls(tx: Tx) -> tuple[OpenCall, ...]:
    """Return the open calls that wait for a user's approval."""
    asked = {record[0] for record in await tx.conn.fetch(_ASKED, tx.chat.id)}
    return open_tool_calls.select_by_token(await turn_calls(tx), asked, chat_id=tx.chat.id) if asked else ()


async def braked_tokens(tx: Tx) -> frozenset[UUID]:
    """Return the replay tokens of the calls that wait for a user because they repeat."""
    return frozenset(record[0] for record in await tx.conn.fetch(_BRAKED, tx.chat.id))
