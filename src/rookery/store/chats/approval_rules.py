"""Approval rules, approved calls and open questions of chats. `machine.approvals` has the transitions.

If a stored rule cannot be read, every call needs an approval, because the rule might deny calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from rookery.domain.chat import open_tool_calls, parts
from rookery.domain.chat.approvals import MAX_RULES, UNREADABLE, Asked, Default, Policy, Rule, Rules, find_problem
from rookery.domain.chat.elicitation import Elicitation
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.open_tool_calls import OpenCall
from rookery.store.chats import chat_rows
from rookery.store.db.pool import Connection
from rookery.store.settings import settings
from rookery.telemetry.log import get_logger

log = get_logger("store.chats.approval_rules")

SETTING = "approvals"
OF_USER = "approval_rules"

# One round trip. The rules of a root apply to its whole family.
READ = f"""
    SELECT (SELECT value FROM settings WHERE key = '{SETTING}'),
           (SELECT value FROM user_settings WHERE user_id = $2 AND key = '{OF_USER}'),
           (SELECT rules FROM chat_approval_rules WHERE chat_id = $3),
           ARRAY (SELECT token FROM chat_approvals WHERE chat_id = $1 AND approved_at IS NOT NULL),
           (SELECT jsonb_object_agg(token, question) FROM chat_tool_runs WHERE chat_id = $1 AND question IS NOT NULL)
"""
READ_RULES = "SELECT rules FROM chat_approval_rules WHERE chat_id = $1"
WRITE_RULES = """
    INSERT INTO chat_approval_rules (chat_id, rules)
    VALUES ($1, $2)
        ON CONFLICT (chat_id) DO UPDATE SET rules = excluded.rules, updated_at = clock_timestamp()
     WHERE chat_approval_rules.rules <> excluded.rules
    RETURNING chat_id
"""
BEGIN_RULES = "INSERT INTO chat_approval_rules (chat_id, rules) VALUES ($1, '[]') ON CONFLICT DO NOTHING"
# The query starts from the waiting chats, which have an index. Approved rows are kept, so there may be many of them.
OPEN = """
    SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(a.asked_at)), 0)::float8
      FROM chats c
      JOIN chat_approvals a ON a.chat_id = c.id AND a.approved_at IS NULL
     WHERE c.status = 'requires_action'
       AND c.awaits_approval
"""
QUESTIONS = "SELECT token, offers FROM chat_approvals WHERE chat_id = $1 AND approved_at IS NULL"


class ApprovalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The group `approvals`: rules for tool calls. With a timeout of 0 seconds, questions have no deadline.

    Without `allow_always`, earlier answers do not count, and users are asked each time.
    """

    default: Default = Default.ALLOW
    rules: Rules = ()
    allow_always: bool = True
    timeout_seconds: Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400)] = 0


class Approvals(msgspec.Struct, frozen=True):
    """The policy of a chat, and the replay tokens of its approved calls.

    `elicitations` are the open questions of tools' servers, by the replay tokens of the calls.
    """

    policy: Policy
    approved: frozenset[UUID]
    timeout_seconds: float | None = None
    elicitations: Mapping[UUID, Elicitation] = {}


class OpenQuestions(msgspec.Struct, frozen=True):
    """The number of open questions in the deployment, and the age of the oldest; 0 if there is none."""

    count: int
    oldest_seconds: float


async def count_open(conn: Connection) -> OpenQuestions:
    record = await conn.fetchrow(OPEN)
    assert record is not None
    return OpenQuestions(record[0], max(0.0, record[1]))


async def read(conn: Connection, chat_id: ChatId, *, owner_id: UUID, root_id: UUID) -> Approvals:
    record = await conn.fetchrow(READ, chat_id, owner_id, root_id)
    assert record is not None
    approved = frozenset(record[3])
    asked = {} if record[4] is None else _elicitations.decode(parts.unescape(record[4]))
    try:
        group = ApprovalSettings() if record[0] is None else _settings.decode(record[0])
        own, of_chat = (() if text is None else _rules.decode(text) for text in (record[1], record[2]))
    except msgspec.DecodeError as error:
        log.warning("approval_rules_unreadable", chat_id=chat_id, error=str(error))
        return Approvals(UNREADABLE, approved, elicitations=asked)
    policy = Policy(rules=(*group.rules, *own, *of_chat), default=group.default, may_remember=group.allow_always)
    return Approvals(policy, approved, group.timeout_seconds or None, asked)


async def read_settings(conn: Connection) -> ApprovalSettings:
    """Return the settings. Raises `msgspec.ValidationError` if they cannot be read."""
    stored = await settings.find_setting(conn, SETTING)
    return ApprovalSettings() if stored is None else msgspec.convert(stored, ApprovalSettings)


async def list_rules(conn: Connection, root_id: UUID) -> tuple[Rule, ...]:
    """Return the rules of a root chat. Raises `msgspec.ValidationError` if they cannot be read."""
    stored = await conn.fetchval(READ_RULES, root_id)
    return () if stored is None else _rules.decode(stored)


async def write_rules(conn: Connection, root_id: UUID, rules: Iterable[Rule]) -> bool:
    """Replace the rules. Returns False if they did not change."""
    return await _write(conn, root_id, checked(rules))


async def _write(conn: Connection, root_id: UUID, kept: Sequence[Rule]) -> bool:
    return await conn.fetchval(WRITE_RULES, root_id, msgspec.json.encode(kept).decode()) is not None


async def add_rule(conn: Connection, root_id: UUID, rule: Rule) -> None:
    """Add a rule to a root chat.

    Concurrent additions are serialized, because questions of several subagents may be answered at the same time.
    """
    await conn.execute(BEGIN_RULES, root_id)
    known = _rules.decode(await conn.fetchval(f"{READ_RULES} FOR UPDATE", root_id))
    if rule not in known:
        await _write(conn, root_id, checked((*known, rule), known=known))


async def add_user_rule(conn: Connection, user_id: UUID, rule: Rule) -> None:
    """Add a rule of a user. The caller holds the user's lock."""
    stored = await settings.find_user_setting(conn, user_id, key=OF_USER)
    known = () if stored is None else msgspec.convert(stored, Rules)
    if rule not in known:
        await settings.write_user_setting(conn, user_id, key=OF_USER, value=checked((*known, rule), known=known))


def checked(rules: Iterable[Rule], *, field: str = "rules", known: Collection[Rule] = ()) -> tuple[Rule, ...]:
    """Return the rules in stored form, without characters that jsonb refuses. Raises `InvalidInput`.

    Rules in `known` are stored already and are not checked again.
    """
    kept = tuple(_storable(rule) for rule in rules)
    if len(kept) > MAX_RULES:
        raise InvalidInput(field, f"There can be at most {MAX_RULES} rules. Remove some first.")
    for place, rule in enumerate(kept):
        if rule not in known and (problem := find_problem(rule)) is not None:
            raise InvalidInput(f"{field}[{place}].{problem[0]}", problem[1])
    return kept


def _storable(rule: Rule) -> Rule:
    match = {chat_rows.storable(path): chat_rows.storable(pattern) for path, pattern in rule.match.items()}
    return Rule(
        tool=chat_rows.storable(rule.tool), action=rule.action, match=match, reason=chat_rows.storable(rule.reason)
    )


async def list_offers(conn: Connection, chat_id: ChatId) -> dict[UUID, Asked]:
    """Return the open questions of a chat, by the replay tokens of their calls."""
    return {record[0]: _asked(record[1]) for record in await conn.fetch(QUESTIONS, chat_id)}


def select_asked(calls: Iterable[OpenCall], offers: dict[UUID, Asked], *, chat_id: ChatId) -> dict[OpenCall, Asked]:
    found = {}
    for call in calls:
        token = open_tool_calls.replay_token(chat_id, call.message_id, call.tool_call_id)
        if token in offers:
            found[call] = offers[token]
    return found


def _asked(stored: str) -> Asked:
    try:
        return msgspec.json.decode(parts.unescape(stored), type=Asked)
    except msgspec.DecodeError:
        return Asked()


_settings = msgspec.json.Decoder(ApprovalSettings)
_rules = msgspec.json.Decoder(Rules)
_elicitations = msgspec.json.Decoder(dict[UUID, Elicitation])
