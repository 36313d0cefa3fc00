"""The approval gate: decides for each open tool call of a step whether it may run, needs approval, or is denied.

Rules and approvals are read from the database for every batch, so a new rule or answer counts immediately, on every
replica.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import asyncpg
from msgspec import UNSET

from rookery.domain.chat import approvals, open_tool_calls, parts, permission_mode, repetition_brake
from rookery.domain.chat.approvals import Asked, Offers, Verdict
from rookery.domain.chat.history import History
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.next_action import OPEN_GATE, Gate
from rookery.domain.chat.open_tool_calls import OpenCall
from rookery.domain.chat.parts import ContentError, ToolCall
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.chat.repetition_brake import NO_LIMITS, Limits
from rookery.loop import step_rows, tool_input
from rookery.loop.tool import ToolSet
from rookery.runtime.time_slices import in_pieces
from rookery.store.chats import approval_rules as stored_approvals
from rookery.store.chats.step_reads import Step
from rookery.tools.step_tools import NeedsUser


@dataclass(frozen=True, slots=True)
class Judged:
    """The decisions on a batch. For each call that needs approval, `offers` describes what "always" would permit."""

    gate: Gate = OPEN_GATE
    offers: Mapping[OpenCall, Offers] = field(default_factory=dict)
    timeout_seconds: float | None = None


async def judge(
    pool: asyncpg.Pool,
    step: Step,
    past: History,
    tools: ToolSet,
    needs_user: NeedsUser | None = None,
    limits: Limits = NO_LIMITS,
) -> Judged:
    """Compare the open calls of a step with the approval rules of its chat, and with the limits of the brake.

    Calls for which `needs_user` returns a question wait for the user as well, even if the rules permit them. So do
    calls whose server has asked the user, even if the user has approved them.
    """
    if not past.open_calls:
        return Judged()
    chat = step.chat
    async with pool.acquire() as conn:
        known = await stored_approvals.read(conn, chat.id, owner_id=chat.owner_id, root_id=chat.root_chat_id or chat.id)
    needing = {} if needs_user is None else await _needing(chat.id, past, tools, needs_user)
    needing |= _elicited(known, chat.id, past)
    mode = PermissionMode(step.meta.permission_mode)
    if known.policy.is_open and not needing and mode is not PermissionMode.ASK:
        judged = Judged(timeout_seconds=known.timeout_seconds)
    else:
        judged = await in_pieces(_judging(known, chat.id, past, tools, needing, mode))
    return _braked(judged, known, chat.id, past, limits)


def _braked(
    judged: Judged, known: stored_approvals.Approvals, chat_id: ChatId, past: History, limits: Limits
) -> Judged:
    """Hold the calls that repeat too often, except calls that the user is asked about anyway or has approved.

    A call that a rule denies is held as well: it would not run, but each denial costs a model call.
    """

    def is_approved(message_id: int, tool_call_id: str) -> bool:
        return open_tool_calls.replay_token(chat_id, message_id, tool_call_id) in known.approved

    recent = repetition_brake.read_recent(past.work, limits, is_approved=is_approved) if limits.ask_after > 0 else ()
    if not recent:
        return judged
    found = repetition_brake.find_held(recent, past.call_parts(past.open_calls), limits)
    braked = {
        call: Asked(brake=repetition_brake.question(found[call.tool_call_id]))
        for call in past.open_calls
        if call.tool_call_id in found
        and call not in judged.gate.held
        and not is_approved(call.message_id, call.tool_call_id)
    }
    if not braked:
        return judged
    refused = {call: why for call, why in judged.gate.refused.items() if call not in braked}
    gate = Gate(judged.gate.held | braked.keys(), refused, frozenset(braked))
    return Judged(gate, {**judged.offers, **braked}, judged.timeout_seconds)


def _elicited(known: stored_approvals.Approvals, chat_id: ChatId, past: History) -> dict[OpenCall, Asked]:
    found = {}
    for call in past.open_calls if known.elicitations else ():
        token = open_tool_calls.replay_token(chat_id, call.message_id, call.tool_call_id)
        if (asked := known.elicitations.get(token)) is not None:
            found[call] = Asked(elicitation=asked)
    return found


async def _needing(chat_id: ChatId, past: History, tools: ToolSet, needs_user: NeedsUser) -> dict[OpenCall, Asked]:
    found = {}
    for call, made in zip(past.open_calls, past.call_parts(past.open_calls), strict=True):
        if _cannot_run(made, tools) or made.args is UNSET:
            continue
        token = open_tool_calls.replay_token(chat_id, call.message_id, call.tool_call_id)
        if await needs_user(tools.canonical(made.tool_name), tool_input.read_stored(made.args).args, token):
            found[call] = Asked()  # "always" cannot give values
    return found


def _judging(
    known: stored_approvals.Approvals,
    chat_id: ChatId,
    past: History,
    tools: ToolSet,
    needing: Mapping[OpenCall, Asked],
    mode: PermissionMode,
) -> Generator[None, None, Judged]:
    """Judge the open calls. A generator, so that `in_pieces` can return to the event loop between two calls."""
    refused: dict[OpenCall, str] = {}
    offers: dict[OpenCall, Offers] = {}
    for call, made in zip(past.open_calls, past.call_parts(past.open_calls), strict=True):
        yield
        if _cannot_run(made, tools):
            continue
        names, args = _names(made, tools), _arguments(made)
        judged = permission_mode.restrict(mode, (yield from approvals.judge_sliced(known.policy, names, args)), names)
        if judged.verdict is Verdict.DENY:
            refused[call] = approvals.denied_by_rule(judged.rule)
            continue
        asked = needing.get(call)
        if asked is not None and asked.elicitation is not UNSET:
            offers[call] = asked
            continue
        # An approval answers only its own question. It does not override a rule that denies the call.
        token = open_tool_calls.replay_token(chat_id, call.message_id, call.tool_call_id)
        if token in known.approved:
            continue
        if asked is not None:
            offers[call] = asked
        elif permission_mode.asks_without_rule(mode, judged):
            offers[call] = Offers()  # the mode asks again, whatever the rules say
        elif judged.verdict is Verdict.ASK:
            offers[call] = yield from approvals.offers_sliced(judged.rule, names, args)
    return Judged(Gate(frozenset(offers), refused), offers, known.timeout_seconds)


def _names(call: ToolCall, tools: ToolSet) -> tuple[str, ...]:
    """Return the names by which rules may refer to the tool.

    For a tool with a rule name, these are the rule name and the current name; for other tools, the name in the call and
    the current name.
    """
    spec = tools.find_spec(call.tool_name)
    if spec is not None and spec.rule_name:
        return spec.rule_name, spec.name
    return call.tool_name, tools.canonical(call.tool_name)


def _cannot_run(call: ToolCall, tools: ToolSet) -> bool:
    """Return whether the call is invalid. The batch answers it with an error, so it needs no approval."""
    spec = tools.find_spec(call.tool_name)
    if spec is None or step_rows.find_problem(call, tools) is not None:
        return True
    return spec.name not in tools.dynamic_names and tools.find_problem(call.tool_name) is not None


def _arguments(call: ToolCall) -> object:
    """Return the arguments that the tool would receive; None if they cannot be decoded."""
    if call.args is UNSET:
        return None
    try:
        return parts.json_value(tool_input.read_stored(call.args).args)
    except ContentError:
        return None
