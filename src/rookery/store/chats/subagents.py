"""Subagents: the child chats of a chat, the ends of their turns, and their reports.

Triggers write the ends and the deadlines (migration 0021), so that every path of a child's turn records them. An end is
*told* when the parent's history contains it. A transaction that tells an end holds the parent's row lock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.chat import agent_reports, parts
from rookery.domain.chat.agent_reports import AgentOutcome
from rookery.domain.chat.chat import LastError
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import AgentNotice, ContentError, Part, Text, ToolCall
from rookery.store.db.pool import Connection

# The limit of unarchived subagents of a root.
MAX_CHILDREN = 50

# Serializes concurrent spawns of one parent, so that they cannot exceed the limit together.
LOCK_CHILDREN = "SELECT pg_advisory_xact_lock(hashtextextended('subagents:' || $1::text, 0))"
COUNT_CHILDREN = "SELECT count(*) FROM chats WHERE root_chat_id = $1 AND NOT archived"
INSERT = """
    INSERT INTO subagents
           (chat_id, parent_chat_id, tool_call_id, kind, kind_source, tools, max_minutes, budget_micros, deadline_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp() + make_interval(mins => $7))
"""

# The fields of `Subagent`, in their order. A child that runs without a valid lease waits for a slot or for a replica.
_COLUMNS = """
    c.id, s.parent_chat_id, c.title, s.kind, s.kind_source, c.status, c.last_error, c.awaits_approval,
    c.last_model_config_id, c.last_reasoning_effort, s.tool_call_id, s.max_minutes, s.budget_micros, s.deadline_at,
    s.stopped_by, c.created_at, c.updated_at, c.runnable_since,
    c.runner_id IS NOT NULL AND h.heartbeat_at > clock_timestamp() - r.lease_ttl,
    h.phase, greatest(c.updated_at, h.progress_at),
    (SELECT max(e.id) FROM subagent_ends e WHERE e.chat_id = c.id),
    (SELECT e.outcome FROM subagent_ends e WHERE e.chat_id = c.id ORDER BY e.id DESC LIMIT 1),
    clock_timestamp()
"""
_FROM = """
      FROM subagents s
      JOIN chats c ON c.id = s.chat_id
      LEFT JOIN chat_heartbeats h ON h.chat_id = c.id AND h.runner_id = c.runner_id
      LEFT JOIN replicas r ON r.id = c.worker_id
"""
FIND_MANY = f"SELECT {_COLUMNS} {_FROM} WHERE s.chat_id = ANY ($1::uuid[]) AND c.root_chat_id = $2"
# Subagents are archived together with their root, and an archived chat still shows them.
LIST_CHILDREN = f"""
    SELECT {_COLUMNS} {_FROM}
      JOIN chats p ON p.id = s.parent_chat_id
     WHERE s.parent_chat_id = $1 AND c.archived = p.archived
     ORDER BY c.updated_at DESC, c.id
     LIMIT $2 OFFSET $3
"""

REPORTS = """
    SELECT c.id, m.content, m.content_version
      FROM unnest($1::uuid[]) AS c (id)
     CROSS JOIN LATERAL (
           SELECT content, content_version
             FROM chat_messages
            WHERE chat_id >= c.id AND chat_id <= c.id
              AND role = 'assistant'
              AND NOT deleted
              AND NOT compressed
              AND visibility <> 'model'
            ORDER BY chat_id, role, id DESC
            LIMIT 1) m
"""

UNTOLD = """
    SELECT e.id, e.chat_id, c.title, coalesce(s.kind, 'general'), e.outcome, c.last_error
      FROM subagent_ends e
      JOIN chats c ON c.id = e.chat_id
      LEFT JOIN subagents s ON s.chat_id = e.chat_id
     WHERE e.parent_chat_id = $1 AND e.told_at IS NULL
     ORDER BY e.id
     LIMIT $2
"""
# A report also covers the earlier ends of the same child.
TELL_BY_WAIT = """
    UPDATE subagent_ends e
       SET told_at = clock_timestamp(), told_by = 'wait'
      FROM subagent_ends told
     WHERE told.id = ANY ($2::bigint[])
       AND e.chat_id = told.chat_id
       AND e.id <= told.id
       AND e.parent_chat_id = $1
       AND e.told_at IS NULL
"""
TELL_BY_NOTICE = """
    UPDATE subagent_ends
       SET told_at = clock_timestamp(), told_by = 'notice', notice_id = $2, woke_parent = $3
     WHERE id = ANY ($1::bigint[])
"""
# An end that was requested wakes no parent: the user or the parent itself stopped the child. Neither does an end that
# was set aside. The index `subagent_ends_waking` has exactly the others, so that the search does not grow with chats
# that stay at rest.
TO_WAKE = """
    SELECT DISTINCT e.parent_chat_id
      FROM subagent_ends e
      JOIN chats p ON p.id = e.parent_chat_id
      JOIN users u ON u.id = p.owner_id AND u.status = 'active'
     WHERE e.told_at IS NULL
       AND NOT e.is_set_aside
       AND e.outcome <> 'interrupted'
       AND p.status = 'waiting'
       AND NOT p.archived
       AND NOT p.wake_held
       AND NOT p.plan_mode
     LIMIT $1
"""
MAY_WAKE = """
    SELECT EXISTS (
           SELECT FROM chats p
            WHERE p.id = $1 AND p.status = 'waiting' AND NOT p.archived AND NOT p.wake_held AND NOT p.plan_mode
              AND EXISTS (SELECT FROM subagent_ends e
                           WHERE e.parent_chat_id = p.id AND e.told_at IS NULL AND NOT e.is_set_aside
                             AND e.outcome <> 'interrupted'))
"""
SET_ASIDE = """
    UPDATE subagent_ends SET is_set_aside = true WHERE parent_chat_id = $1 AND told_at IS NULL AND NOT is_set_aside
"""
HOLD_WAKE = "UPDATE chats SET wake_held = true WHERE id = $1"
# Returns whether the chat may be resumed and one of its untold ends is a reason for it, and the number of resumptions
# since the user's last message. A chat in plan mode waits for the user's decision about the plan. Messages of users
# have an author; notices have none.
WAKE_STATE = """
    SELECT NOT (p.wake_held OR p.plan_mode) AND u.status = 'active'
           AND EXISTS (SELECT FROM subagent_ends e
                        WHERE e.parent_chat_id = p.id AND e.told_at IS NULL AND NOT e.is_set_aside
                          AND e.outcome <> 'interrupted'),
           (SELECT count(DISTINCT e.notice_id)
              FROM subagent_ends e
             WHERE e.parent_chat_id = p.id
               AND e.woke_parent
               AND e.notice_id > coalesce((
                   SELECT m.id
                     FROM chat_messages m
                    WHERE m.chat_id >= p.id AND m.chat_id <= p.id
                      AND m.role = 'user'
                      AND NOT m.deleted
                      AND m.created_by IS NOT NULL
                    ORDER BY m.chat_id, m.role, m.id DESC
                    LIMIT 1), 0))
      FROM chats p
      JOIN users u ON u.id = p.owner_id
     WHERE p.id = $1
"""

OVERDUE = """
    SELECT s.chat_id
      FROM subagents s
      JOIN chats c ON c.id = s.chat_id
     WHERE s.deadline_at <= clock_timestamp()
       AND c.status IN ('running', 'requires_action')
     ORDER BY s.deadline_at
     LIMIT $1
"""
UNLOCKED = "SELECT id FROM chats WHERE id = ANY ($1::uuid[]) FOR NO KEY UPDATE SKIP LOCKED"
STOP_AT_DEADLINE = """
    UPDATE subagents SET stopped_by = 'deadline' WHERE chat_id = $1 AND deadline_at <= clock_timestamp()
    RETURNING true
"""

# The newest visible answer of each child, and whether results of its calls are stored.
LAST_ANSWERS = """
    SELECT c.id, m.content, m.content_version,
           EXISTS (SELECT FROM chat_messages r
                    WHERE r.chat_id = c.id AND r.role = 'tool' AND NOT r.deleted AND r.id > m.id) AS has_results
      FROM unnest($1::uuid[]) AS c (id)
     CROSS JOIN LATERAL (
           SELECT id, content, content_version
             FROM chat_messages
            WHERE chat_id = c.id AND role = 'assistant' AND NOT deleted AND NOT compressed AND visibility <> 'model'
            ORDER BY chat_id, role, id DESC
            LIMIT 1) m
"""
FIGURES = """
    SELECT chat_id, count(*) FILTER (WHERE purpose = 'turn' AND status = 'ok'),
           coalesce(sum(coalesce(input_tokens, 0) + coalesce(cache_read_tokens, 0) + coalesce(cache_write_tokens, 0)
                        + coalesce(output_tokens, 0)), 0)::bigint,
           coalesce(sum(cost_micros), 0)::bigint,
           count(*) FILTER (WHERE cost_micros IS NULL)
      FROM model_usage
     WHERE chat_id = ANY ($1::uuid[])
     GROUP BY chat_id
"""

RENEW_DEADLINE = """
    UPDATE subagents
       SET deadline_at = clock_timestamp() + make_interval(mins => max_minutes), stopped_by = NULL
     WHERE chat_id = $1
"""

# An exploring subagent keeps the MCP servers of the turn that spawned it, or some of them.
HAS_SERVERS = "SELECT mode IS DISTINCT FROM 'explore' OR $2::uuid[] <@ mcp_server_ids FROM chats WHERE id = $1"

SPENT = "SELECT coalesce(sum(cost_micros), 0) FROM model_usage WHERE chat_id = $1"

MAX_ACTIVITY_CHARS = 200
_WORD = re.compile(r"\w")

# The limit of notices in one step. Further ends are told in the next step.
MAX_NOTICES = 20


class KindSource(StrEnum):
    """The place where a kind of subagent is defined."""

    BUILTIN = "builtin"
    DEPLOYMENT = "deployment"
    USER = "user"
    WORKSPACE = "workspace"


class Phase(StrEnum):
    """The activity of a running subagent. `queued`: it waits for a slot. `approval`: it waits for a user."""

    MODEL = "model"
    TOOL = "tool"
    APPROVAL = "approval"
    QUEUED = "queued"


class NewSubagent(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a child chat. `tools` is an allow list; None allows all tools of subagents."""

    chat_id: ChatId
    parent_chat_id: ChatId
    tool_call_id: str
    kind: str
    kind_source: KindSource
    tools: tuple[str, ...] | None
    max_minutes: int
    budget_micros: int | None = None


class Activity(msgspec.Struct, frozen=True):
    """The last answer of a child in one line, and whether calls of it have no results yet."""

    line: str = ""
    has_open_calls: bool = False


class Subagent(msgspec.Struct, frozen=True):
    """A child chat as its parent and the user see it. `end_id` is the newest end of a turn, if there was one.

    `progress_at` is the time of the last progress: a commit, a streamed part, or output of a tool. `now` is the
    database's clock.
    """

    chat_id: ChatId
    parent_chat_id: ChatId
    title: str
    kind: str
    kind_source: str
    status: str
    last_error: str | None
    awaits_approval: bool
    model_config_id: UUID
    reasoning_effort: str | None
    tool_call_id: str
    max_minutes: int
    budget_micros: int | None
    deadline_at: datetime | None
    stopped_by: str | None
    created_at: datetime
    updated_at: datetime
    running_since: datetime | None
    is_leased: bool | None
    worker_phase: str | None
    progress_at: datetime
    end_id: int | None
    outcome: str | None
    now: datetime

    @property
    def is_at_rest(self) -> bool:
        return self.status in ("waiting", "error")

    @property
    def phase(self) -> Phase | None:
        """Return the activity of a running child; None if it is at rest, or if the activity is unknown."""
        if self.is_at_rest:
            return None
        if self.status == "requires_action":
            return Phase.APPROVAL
        if not self.is_leased:
            return Phase.QUEUED
        return Phase(self.worker_phase) if self.worker_phase in tuple(Phase) else None

    def phase_in(self, activity: Activity) -> Phase | None:
        """Return the phase according to the stored history, which is newer than the worker's last heartbeat."""
        if self.status != "running" or self.phase not in (None, Phase.MODEL, Phase.TOOL):
            return self.phase
        return Phase.TOOL if activity.has_open_calls else Phase.MODEL

    def is_stalled(self, after: timedelta) -> bool:
        """Return whether the child is working and has made no progress for this long."""
        return not self.is_at_rest and self.now - self.progress_at >= after

    @property
    def error(self) -> LastError | None:
        """Return the error with which the child stopped."""
        if self.last_error is None:
            return None
        try:
            return msgspec.json.decode(parts.unescape(self.last_error), type=LastError)
        except msgspec.DecodeError:
            return None


class AgentFigures(msgspec.Struct, frozen=True):
    """The usage of a child so far: its finished model calls, their tokens and cost, and the calls without a price."""

    steps: int = 0
    tokens: int = 0
    cost_micros: int = 0
    unpriced: int = 0


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """A subagent as users see it.

    `phase` is the activity of a running subagent: `model`, `tool`, `approval` (it waits for a user) or `queued` (it
    waits for a slot). `silent_seconds` is the time since its last progress; after a long time it is `stalled`.
    `activity` is its last line of text or its last tool call. `outcome` is the outcome of its last turn: `finished`,
    `error`, `interrupted` or `deadline`. `tool_call_id` is the call of the parent that started it. `budget_micros` is
    null if it has no budget of its own.
    """

    chat_id: ChatId
    parent_chat_id: ChatId
    tool_call_id: str
    title: str
    kind: str
    kind_source: str
    status: str
    phase: str | None
    stalled: bool
    silent_seconds: int | None
    activity: str
    outcome: str | None
    model_config_id: UUID
    reasoning_effort: str | None
    created_at: datetime
    updated_at: datetime
    running_since: datetime | None
    deadline_at: datetime | None
    steps: int
    tokens: int
    cost_micros: int
    unpriced_request_count: int
    budget_micros: int | None


class AgentList(msgspec.Struct, frozen=True):
    """The subagents of a chat, the most recently updated first."""

    agents: tuple[AgentView, ...]


class UntoldEnd(msgspec.Struct, frozen=True):
    """An end that is not in the parent's history yet."""

    id: int
    chat_id: ChatId
    title: str
    kind: str
    outcome: str
    last_error: str | None


async def lock_children(conn: Connection, root_id: UUID) -> None:
    """Serialize the spawns of one family until the transaction ends."""
    await conn.execute(LOCK_CHILDREN, str(root_id))


async def count_children(conn: Connection, root_id: UUID) -> int:
    """Return the number of unarchived children of the root."""
    count: int = await conn.fetchval(COUNT_CHILDREN, root_id)
    return count


async def insert(conn: Connection, new: NewSubagent) -> None:
    """Store the terms of a child, in the transaction that creates its chat."""
    await conn.execute(
        INSERT,
        new.chat_id,
        new.parent_chat_id,
        new.tool_call_id,
        new.kind,
        new.kind_source,
        None if new.tools is None else list(new.tools),
        new.max_minutes,
        new.budget_micros,
    )


async def find_subagents(conn: Connection, chat_ids: Collection[UUID], *, root_id: UUID) -> dict[UUID, Subagent]:
    """Return the chats that are subagents of this root."""
    records = await conn.fetch(FIND_MANY, list(chat_ids), root_id)
    return {record[0]: Subagent(*record) for record in records}


async def list_children(conn: Connection, parent_id: UUID, *, limit: int, offset: int = 0) -> list[Subagent]:
    """Return the children in the archive state of their parent, the most recently updated first."""
    return [Subagent(*record) for record in await conn.fetch(LIST_CHILDREN, parent_id, limit, offset)]


async def list_views(conn: Connection, root_id: UUID, *, stall_after: timedelta) -> AgentList:
    """Return the subagents of a root for users, with their figures and last activity."""
    children = await list_children(conn, root_id, limit=MAX_CHILDREN)
    if not children:
        return AgentList(())
    ids = [child.chat_id for child in children]
    answers = {
        record[0]: _activity(record["content"], record["content_version"], has_results=record["has_results"])
        for record in await conn.fetch(LAST_ANSWERS, ids)
    }
    figures = {record[0]: AgentFigures(*record[1:]) for record in await conn.fetch(FIGURES, ids)}
    return AgentList(
        tuple(
            _view(
                child,
                figures.get(child.chat_id, AgentFigures()),
                answers.get(child.chat_id, Activity()),
                is_stalled=child.is_stalled(stall_after),
            )
            for child in children
        )
    )


def _view(child: Subagent, figures: AgentFigures, activity: Activity, *, is_stalled: bool) -> AgentView:
    silent = None if child.is_at_rest else max(round((child.now - child.progress_at).total_seconds()), 0)
    return AgentView(
        chat_id=child.chat_id,
        parent_chat_id=child.parent_chat_id,
        tool_call_id=child.tool_call_id,
        title=child.title,
        kind=child.kind,
        kind_source=child.kind_source,
        status=child.status,
        phase=child.phase_in(activity),
        stalled=is_stalled,
        silent_seconds=silent,
        activity=activity.line,
        outcome=child.outcome if child.is_at_rest else None,
        model_config_id=child.model_config_id,
        reasoning_effort=child.reasoning_effort,
        created_at=child.created_at,
        updated_at=child.updated_at,
        running_since=child.running_since,
        deadline_at=child.deadline_at,
        steps=figures.steps,
        tokens=figures.tokens,
        cost_micros=figures.cost_micros,
        unpriced_request_count=figures.unpriced,
        budget_micros=child.budget_micros,
    )


def _activity(content: str, version: int, *, has_results: bool) -> Activity:
    try:
        said = parts.decode(content, version=version)
    except ContentError:
        return Activity()
    has_calls = any(isinstance(part, ToolCall) and not part.provider_executed for part in said)
    return Activity(_last_line(said)[:MAX_ACTIVITY_CHARS], has_open_calls=has_calls and not has_results)


def _last_line(said: Sequence[Part]) -> str:
    """Return one line about an answer: its last tool call, or its last line of text."""
    for part in reversed(said):
        if isinstance(part, ToolCall):
            commands = ", ".join(" ".join(command) for command in part.parsed_commands or ())
            return f"{part.tool_name} {commands}".strip()
        # The last line may be the end of a code block.
        if isinstance(part, Text) and (lines := [line for line in part.text.splitlines() if _WORD.search(line)]):
            return lines[-1].strip()
    return ""


async def read_reports(conn: Connection, chat_ids: Collection[UUID]) -> dict[UUID, str]:
    """Return the text of the newest visible answer of each child that has one, in one round trip.

    An answer that cannot be read is an empty report.
    """
    records = await conn.fetch(REPORTS, list(chat_ids))
    return {record["id"]: _report(record["content"], record["content_version"]) for record in records}


def _report(content: str, version: int) -> str:
    try:
        said = parts.decode(content, version=version)
    except ContentError:
        return ""
    return "\n\n".join(part.text.strip() for part in said if isinstance(part, Text) and part.text.strip())


async def list_untold(conn: Connection, parent_id: UUID, *, limit: int = MAX_NOTICES) -> list[UntoldEnd]:
    """Return the ends of this parent's children that are not in its history yet, in order."""
    return [UntoldEnd(*record) for record in await conn.fetch(UNTOLD, parent_id, limit)]


async def notices(conn: Connection, ends: Sequence[UntoldEnd]) -> tuple[AgentNotice, ...]:
    """Return the notices about these ends. If a child has ended twice, only its newest end is reported."""
    newest = {end.chat_id: end for end in ends}
    found = await read_reports(conn, newest)
    reports = [found.get(chat_id, "") for chat_id in newest]
    cut = agent_reports.cut_reports(reports)
    return tuple(
        AgentNotice(
            chat_id=end.chat_id,
            title=end.title,
            kind=end.kind,
            outcome=end.outcome,
            report=beginning,
            report_bytes=len(report.encode("utf-8", "replace")),
            error=_error_text(end) if end.outcome == AgentOutcome.ERROR else None,
        )
        for end, report, beginning in zip(newest.values(), reports, cut, strict=True)
    )


def _error_text(end: UntoldEnd) -> str | None:
    if end.last_error is None:
        return None
    try:
        error = msgspec.json.decode(parts.unescape(end.last_error), type=LastError)
    except msgspec.DecodeError:
        return None
    return error.detail or error.message


async def tell_by_wait(conn: Connection, parent_id: UUID, end_ids: Sequence[int]) -> None:
    """Mark ends as told by results of `wait_agent`, in the transaction that stores these results."""
    if end_ids:
        await conn.execute(TELL_BY_WAIT, parent_id, list(end_ids))


async def tell_by_notice(conn: Connection, ends: Sequence[UntoldEnd], *, notice_id: int, woke_parent: bool) -> None:
    """Mark ends as told by a notice, in the transaction that inserts it."""
    await conn.execute(TELL_BY_NOTICE, [end.id for end in ends], notice_id, woke_parent)


async def list_to_wake(conn: Connection, *, limit: int) -> list[UUID]:
    """Return chats at rest that may be resumed and have untold ends of children."""
    return [record[0] for record in await conn.fetch(TO_WAKE, limit)]


async def may_wake(conn: Connection, parent_id: UUID) -> bool:
    """Return whether a chat is at rest and has an untold end of a child.

    The caller checks again under the chat's lock.
    """
    return bool(await conn.fetchval(MAY_WAKE, parent_id))


async def set_aside(conn: Connection, parent_id: UUID) -> None:
    """Prevent untold ends of this parent's children from resuming the parent. The next turn tells its model about
    them.
    """
    await conn.execute(SET_ASIDE, parent_id)


async def hold_wake(conn: Connection, parent_id: UUID) -> None:
    """Prevent children from resuming this chat before its next turn."""
    await conn.execute(HOLD_WAKE, parent_id)


class WakeState(msgspec.Struct, frozen=True):
    """Whether a child that ended may resume the chat, and how often children have resumed it.

    Only the times since the user's last message are counted.
    """

    is_due: bool
    wakes: int


async def read_wake_state(conn: Connection, parent_id: UUID) -> WakeState:
    record = await conn.fetchrow(WAKE_STATE, parent_id)
    return WakeState(False, 0) if record is None else WakeState(*record)


async def list_overdue(conn: Connection, *, limit: int) -> list[UUID]:
    """Return running children whose deadline has passed, the longest overdue first."""
    return [record[0] for record in await conn.fetch(OVERDUE, limit)]


async def find_unlocked(conn: Connection, chat_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of these chats that no other transaction has locked at this moment."""
    return {record[0] for record in await conn.fetch(UNLOCKED, chat_ids)}


async def stop_at_deadline(conn: Connection, chat_id: UUID) -> bool:
    """Record that the child is stopped by its deadline. Return False if the deadline has changed."""
    return bool(await conn.fetchval(STOP_AT_DEADLINE, chat_id))


async def renew_deadline(conn: Connection, chat_id: UUID) -> None:
    """Restart the deadline of a subagent whose next turn starts with a queued message.

    The status does not change then, so no trigger restarts it.
    """
    await conn.execute(RENEW_DEADLINE, chat_id)


async def check_servers(conn: Connection, chat_id: UUID, server_ids: Sequence[UUID]) -> None:
    """Raise `InvalidInput` if an exploring subagent would get MCP servers besides those that it was given."""
    if await conn.fetchval(HAS_SERVERS, chat_id, list(server_ids)) is False:
        raise InvalidInput("mcp_server_ids", "A subagent that explores cannot be given more MCP servers.")


async def spent_micros(conn: Connection, chat_id: UUID) -> int:
    """Return the cost of the calls of this chat so far. Calls without a price count as zero."""
    spent: int = await conn.fetchval(SPENT, chat_id)
    return spent
