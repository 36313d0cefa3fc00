"""The audit log: entries with actor, action and target, written in the transaction of the change.

Entries have no secrets: `DISPOSITIONS` defines for each column whether its values are logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.access.rights import Actor, OwnerActor, SystemActor, SystemName, UserActor
from rookery.store.chats import chat_rows
from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection

MAX_LIMIT = 200
MAX_ID = 2**63 - 1
RowId = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]
BREAK_GLASS = "chat.break_glass"
RESET_PASSWORD = "user.reset_password"  # noqa: S105 -- the name of an action
CHANGED = "(changed)"

# The fields of `Entry`, in their order.
COLUMNS = (
    "id, at, actor_id, actor_kind, actor_label, ip, user_agent, request_id, action, resource_type, resource_id, "
    "outcome, diff, extra"
)
INSERT = """
    INSERT INTO audit_log (at, actor_id, actor_kind, actor_label, ip, user_agent, request_id, action, resource_type,
                           resource_id, outcome, diff, extra, subject_id)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
    RETURNING id
"""
LIST = f"""
    SELECT {COLUMNS}
      FROM audit_log
     WHERE id < $1
       AND ($2::uuid IS NULL OR actor_id = $2)
       AND ($3::text IS NULL OR action = $3 OR starts_with(action, $3 || '.'))
       AND ($4::text IS NULL OR resource_type = $4)
       AND ($5::text IS NULL OR resource_id = $5)
       AND ($6::timestamptz IS NULL OR at >= $6)
       AND ($7::timestamptz IS NULL OR at < $7)
     ORDER BY id DESC
     LIMIT $8
"""
PURGE = "SELECT purge_audit($1, $2)"


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"


class Disposition(StrEnum):
    """The logging of a changed column: both values (`track`), nothing, or only the fact of the change (`secret`)."""

    TRACK = "track"
    IGNORE = "ignore"
    SECRET = "secret"  # noqa: S105 -- an enum value, not a secret


_T, _I, _S = Disposition.TRACK, Disposition.IGNORE, Disposition.SECRET

# All columns of the tables whose changes are logged by column. A test checks that the list is complete.
DISPOSITIONS: Mapping[str, Mapping[str, Disposition]] = {
    "users": {
        "id": _I,
        "username": _T,
        "email": _T,
        "name": _T,
        "role": _T,
        "status": _T,
        "spend_limit_micros": _T,
        "password_hash": _S,
        "created_at": _I,
        "last_seen_at": _I,
        "accesses_seen": _I,
        "disabled_at": _I,
    },
    "model_providers": {
        "id": _I,
        "type": _T,
        "name": _T,
        "display_name": _T,
        "icon": _T,
        "base_url": _T,
        "enabled": _T,
        "deleted": _T,
        "source": _I,
        "options": _S,  # headers may contain keys
        "send_correlation": _T,
        "api_key_enc": _S,
        "headers_enc": _S,
        "central_key_enabled": _T,
        "allow_user_key": _T,
        "allow_central_fallback": _T,
        "created_at": _I,
        "updated_at": _I,
    },
    "model_configs": {
        "id": _I,
        "provider_id": _T,
        "model": _T,
        "display_name": _T,
        "enabled": _T,
        "is_default": _T,
        "deleted": _T,
        "context_limit": _T,
        "compression_threshold": _T,
        "options": _S,
        "headers_enc": _S,
        "price_input": _T,
        "price_output": _T,
        "price_cache_read": _T,
        "price_cache_write": _T,
        "price_cache_write_1h": _T,
        "created_by": _I,
        "updated_by": _I,
        "created_at": _I,
        "updated_at": _I,
    },
    "mcp_servers": {
        "id": _I,
        "owner_id": _I,
        "workspace_id": _I,
        "entry_hash": _I,
        "slug": _T,
        "display_name": _T,
        "description": _T,
        "icon": _T,
        "url": _T,
        "transport": _T,
        "enabled": _T,
        "availability": _T,
        "auth_type": _T,
        "api_key_header": _T,
        "api_key_enc": _S,
        "header_names": _T,
        "headers_enc": _S,
        "oauth_client_id": _T,
        "oauth_client_secret_enc": _S,
        "oauth_authorization_url": _T,
        "oauth_token_url": _T,
        "oauth_revocation_url": _T,
        "oauth_scopes": _T,
        "allow_in_plan_mode": _T,
        "model_intent": _T,
        "forward_identity": _T,
        "tool_allow_list": _T,
        "tool_deny_list": _T,
        "allowed_users": _T,
        "allowed_roles": _T,
        "call_timeout_seconds": _T,
        "config_version": _I,
        "created_by": _I,
        "created_at": _I,
        "updated_at": _I,
    },
    "templates": {
        "name": _I,
        "revision": _T,
        "enabled": _T,
        "deprecated": _T,
        "agents_allowed": _T,
        "allowed_users": _T,
        "allowed_roles": _T,
        "shipped": _I,
        "created_at": _I,
        "updated_at": _I,
    },
}


class RequestInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a request, for the log."""

    ip: str | None = None
    user_agent: str | None = None
    request_id: str | None = None


NO_REQUEST = RequestInfo()


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event to log. `action` is `<resource>.<verb>`. `subject_id` is the user who is affected, if not the actor."""

    action: str
    resource_type: str
    resource_id: str | None = None
    outcome: Outcome = Outcome.DONE
    diff: Mapping[str, object] = {}
    extra: Mapping[str, object] = {}
    subject_id: UUID | None = None


class Entry(msgspec.Struct, frozen=True):
    """A row of the log. `diff` has the old and new value of each field, or `CHANGED`."""

    id: int
    at: datetime
    actor_id: UUID | None
    actor_kind: str
    actor_label: str
    ip: str | None
    user_agent: str | None
    request_id: str | None
    action: str
    resource_type: str
    resource_id: str | None
    outcome: Outcome
    diff: dict[str, object]
    extra: dict[str, object]


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions on entries.

    `action` is a whole action, or only its part before the dot, for all actions on a resource.
    """

    actor_id: UUID | None = None
    action: str | None = None
    resource_type: str | None = None
    resource_id: str | None = None
    start: datetime | None = None
    end: datetime | None = None


EVERY_ENTRY = EntryFilter()


class EntryPage(msgspec.Struct, frozen=True):
    """A page of entries, newest first."""

    entries: tuple[Entry, ...]
    next_cursor: str | None


def diff(table: str, before: msgspec.Struct | None, after: msgspec.Struct | None) -> dict[str, object]:
    """Return the `diff` of two versions of a row of this table, by `DISPOSITIONS`."""
    changes: dict[str, object] = {}
    for column, disposition in DISPOSITIONS[table].items():
        old, new = getattr(before, column, None), getattr(after, column, None)
        if old == new or disposition is Disposition.IGNORE:
            continue
        changes[column] = CHANGED if disposition is Disposition.SECRET else [old, new]
    return changes


async def record(
    conn: Connection, event: Event, *, actor: Actor | None, now: datetime, request: RequestInfo = NO_REQUEST
) -> int:
    """Write an entry. Call it in the transaction of the change. `actor` is None if the caller is unauthenticated."""
    actor_id, kind, label = _actor_columns(actor)
    entry_id: int = await conn.fetchval(
        INSERT,
        now,
        actor_id,
        kind,
        label,
        request.ip,
        request.user_agent,
        request.request_id,
        event.action,
        event.resource_type,
        event.resource_id,
        event.outcome,
        _json(event.diff),
        _json(event.extra),
        None if event.subject_id == actor_id else event.subject_id,
    )
    return entry_id


async def list_entries(
    conn: Connection, wanted: EntryFilter = EVERY_ENTRY, *, limit: int = 50, cursor: str | None = None
) -> EntryPage:
    page_cursors.check_limit(limit, MAX_LIMIT)
    before = page_cursors.decode(cursor, RowId) if cursor is not None else MAX_ID
    records = await conn.fetch(LIST, before, *msgspec.structs.astuple(wanted), limit + 1)
    found = tuple(map(_entry, records[:limit]))
    return EntryPage(found, page_cursors.encode(found[-1].id) if len(records) > limit else None)


async def purge_audit(conn: Connection, *, before: datetime, batch: int = 1000) -> int:
    """Delete at most `batch` entries from before this time. Returns their number; 0 means that none is left."""
    removed: int = await conn.fetchval(PURGE, before, batch)
    return removed


def _actor_columns(actor: Actor | None) -> tuple[UUID | None, str, str]:
    match actor:
        case None:
            return None, "user", "anonymous"
        case UserActor(id=user_id, role=role):
            return user_id, "user", role
        case OwnerActor(id=user_id):
            return user_id, "system", "owner"
        case SystemActor(name=name):
            return None, "cli" if name is SystemName.CLI else "system", name


def _json(values: Mapping[str, object]) -> str:
    return msgspec.json.encode(_storable(msgspec.to_builtins(values))).decode()


def _storable(value: object) -> object:
    """Return the value with U+FFFD for characters that PostgreSQL cannot store."""
    match value:
        case str():
            return chat_rows.storable(value)
        case dict():
            return {chat_rows.storable(str(key)): _storable(item) for key, item in value.items()}
        case list() | tuple():
            return [_storable(item) for item in value]
        case _:
            return value


def _entry(record: asyncpg.Record) -> Entry:
    values: list[Any] = list(record)
    values[-3] = Outcome(values[-3])
    values[-2], values[-1] = msgspec.json.decode(values[-2]), msgspec.json.decode(values[-1])
    return Entry(*values)
