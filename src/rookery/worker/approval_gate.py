"""The approval gate: decides for each open tool call of a step whether it may run, needs approval, or is denied.

Rules and approvals are read from the database for every batch, so a new rule or answer counts immediately, on every
replica.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import asyncpg
from msgspec import UNSET

from rookery.domain.chat import approvals, parts, tool_calls
from rookery.domain.chat.approvals import Offers, Verdict
from rookery.domain.chat.decision import OPEN_GATE, Gate
from rookery.domain.chat.history import History
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import ContentError, ToolCall
from rookery.domain.chat.tool_calls import OpenCall
from rookery.loop import step_rows, tool_input
from rookery.loop.tool import ToolSet
from rookery.runtime.time_slices import in_pieces
from rookery.store.chats import approval_rules as stored_approvals
from rookery.store.chats.step_reads import Step


@dataclass(frozen=True, slots=True)
class Judged:
    """The decisions on a batch. For each call that needs approval, `offers` describes what "always" would permit."""

    gate: Gate = OPEN_GATE
    offers: Mapping[OpenCall, Offers] = field(default_factory=dict)
    timeout_seconds: float | None = None


async def judge(pool: asyncpg.Pool, step: Step, past: History, tools: ToolSet) -> Judged:
    """Compare the open calls of a step with the approval rules of its chat."""
    if not past.open_calls:
        return Judged()
    chat = step.chat
    async with pool.acquire() as conn:
        known = await stored_approvals.read(conn, chat.id, owner_id=chat.owner_id, root_id=chat.root_chat_id or chat.id)
    if known.policy.is_open:
        return Judged()
    return await in_pieces(_judging(known, chat.id, past, tools))


def _judging(
    known: stored_approvals.Approvals, chat_id: ChatId, past: History, tools: ToolSet
) -> Generator[None, None, Judged]:
    """Judge the open calls. A generator, so that `in_pieces` can return to the event loop between two calls."""
    refused: dict[OpenCall, str] = {}
    offers: dict[OpenCall, Offers] = {}
    for call, made in zip(past.open_calls, past.call_parts(past.open_calls), strict=True):
        yield
        if _cannot_run(made, tools):
            continue
        names, args = _names(made, tools), _arguments(made)
        judged = yield from approvals.judge_sliced(known.policy, names, args)
        if judged.verdict is Verdict.DENY:
            refused[call] = approvals.denied_by_rule(judged.rule)
        elif judged.verdict is Verdict.ASK:
            # An approval answers only its own question. It does not override a rule that denies the call.
            token = tool_calls.replay_token(chat_id, call.message_id, call.tool_call_id)
            if token not in known.approved:
                offers[call] = yield from approvals.offers_sliced(judged.rule, names, args)
    return Judged(Gate(frozenset(offers), refused), offers, known.timeout_seconds)


def _names(call: ToolCall, tools: ToolSet) -> tuple[str, ...]:
    """Return the names by which rules may refer to the tool.

    These are the rule name and the current name if the tool has a rule name, else the called and the current name.
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
