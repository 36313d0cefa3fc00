"""The worker's next action for a chat. Pure: the same rows and rules give the same decision.

A decision leads to at most one commit, and the next decision is made from the committed state. No state is kept in
memory between steps, so any replica can continue after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from rookery.domain.chat import compaction, open_tool_calls, repetition_brake
from rookery.domain.chat.chat import Chat, LastError
from rookery.domain.chat.compaction import Assessment
from rookery.domain.chat.history import History
from rookery.domain.chat.open_tool_calls import OpenCall
from rookery.domain.chat.repetition_brake import NO_LIMITS, Limits
from rookery.domain.chat.system_blocks import Mode

MAX_STEPS = 1200
# The number of times that one turn is shortened after a provider refused it as too long. Each time halves the size
# limit.
MAX_RUNGS = 8
TOO_LONG = LastError(
    kind="context_overflow",
    message="The chat is too long for this model and could not be shortened. Use a model with a larger window, or "
    "start a new chat.",
    retryable=False,
)
# The limit of paused answers in one turn. A provider pauses an answer between its own tool calls.
MAX_PAUSES = 10
# Chosen: 120 of 1200 steps are enough for the model to finish its work.
NOTICE_PERCENT = 90
# The number of times that an empty answer to a user message counts as a failed attempt. The next one is final.
EMPTY_RETRIES = 2
EMPTY_NOTICE = (
    f"The model returned an empty answer {EMPTY_RETRIES + 1} times. "
    "Send a message to try again, or choose another model."
)
_NOT_ASKED = "Not run: this call needs the user's approval, which cannot be asked for in this batch. Call it alone."


class TurnEnd(StrEnum):
    """The reason why a turn ended."""

    COMPLETE = "complete"
    STOP_AFTER_TOOL = "stop_after_tool"
    MAX_STEPS = "max_steps"


class ExecuteTools(msgspec.Struct, frozen=True):
    """Run these calls as one batch, in this order, and commit all results together.

    `refused` maps the ids of calls that must not run to the text that the model gets instead of a result.
    """

    calls: tuple[OpenCall, ...]
    refused: Mapping[str, str] = {}


class AskApproval(msgspec.Struct, frozen=True):
    """Wait until a user has approved or denied these calls."""

    calls: tuple[OpenCall, ...]


class EnterRequiresAction(msgspec.Struct, frozen=True):
    """Wait until the client has executed these calls."""

    calls: tuple[OpenCall, ...]


class Compact(msgspec.Struct, frozen=True):
    """Summarize the history. Without `resume`, the turn ends with the summary, because the chat was at rest before."""

    source: compaction.Source
    resume: bool = True


class FinishTurn(msgspec.Struct, frozen=True):
    reason: TurnEnd


class FailTurn(msgspec.Struct, frozen=True):
    """End the turn with an error, because a compaction did not make enough room."""

    error: LastError


class TellEnds(msgspec.Struct, frozen=True):
    """Add notices about subagents that have ended to the history, so that the next model call sees them."""


class Generate(msgspec.Struct, frozen=True):
    """Call the model. `notice` is added to the end of this request and is not stored."""

    notice: str | None = None


Decision: TypeAlias = (
    ExecuteTools | AskApproval | EnterRequiresAction | Compact | FinishTurn | FailTurn | TellEnds | Generate
)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The tools and limits of a step that the decision depends on. `max_steps` 0 means no limit."""

    dynamic_tools: frozenset[str] = frozenset()
    exclusive_tools: frozenset[str] = frozenset()
    stop_after_tools: frozenset[str] = frozenset()
    max_steps: int = MAX_STEPS


class Gate(msgspec.Struct, frozen=True):
    """The verdicts on open calls. `held` calls wait for an approval. `refused` calls do not run; each has a reason.

    `braked` are those of the held calls that repeat too often.
    """

    held: frozenset[OpenCall] = frozenset()
    refused: Mapping[OpenCall, str] = {}
    braked: frozenset[OpenCall] = frozenset()


OPEN_GATE = Gate()


def decide(
    chat: Chat,
    history: History,
    *,
    rules: Rules,
    assessment: Assessment,
    gate: Gate = OPEN_GATE,
    is_refused: bool = False,
    has_untold_ends: bool = False,
    limits: Limits = NO_LIMITS,
) -> Decision:
    """Return the next action: that of the first row that applies.

    `is_refused`: a provider refused this history as too long. `has_untold_ends`: subagents have ended, and the model
    has not been told. `limits` are those of the brake, which adds a notice about repeated calls to the request.

    | # | When | Then |
    | - | ---- | ---- |
    | 1 | one of several open calls is exclusive | execute all, so that all are rejected; ask if the brake holds one |
    | 1 | local calls may run, or calls are refused | execute them |
    | 2 | calls are held | ask the user |
    | 2 | dynamic calls are open | wait for the client |
    | 3 | a summary was requested, and there is an answer after the newest one | compact, whatever the threshold |
    | 4 | a tool that ends turns has succeeded in this turn | finish |
    | 5 | the newest row is an answer, and the provider did not pause it, or paused too often | finish |
    | 6 | the turn has reached its step limit | finish |
    | 7 | the provider refused this request as too long | compact, up to a limit per turn; then fail |
    | 8 | the context has reached its threshold | compact |
    | 9 | the last summary did not make room | fail, because another one would not either |
    | 10 | subagents have ended, and the model was not told | tell |
    | 11 | otherwise | generate |

    Open calls come first, because providers refuse a prompt that has a call without a result. Row 5 does not check the
    calls of the answer: if one were open, row 1 or 2 would apply. The threshold comes after row 5: a finished turn is
    compacted only on request.
    """
    if (called := _with_calls(history.open_calls, rules, gate)) is not None:
        return called
    if chat.compaction_requested_at is not None and history.has_compactable:
        return Compact(compaction.Source.MANUAL, resume=chat.compaction_resume)
    if history.has_result_of(rules.stop_after_tools):
        return FinishTurn(TurnEnd.STOP_AFTER_TOOL)
    if history.ends_in_answer and not (history.ends_in_pause and history.pauses <= MAX_PAUSES):
        return FinishTurn(TurnEnd.COMPLETE)
    if 0 < rules.max_steps <= history.steps:
        return FinishTurn(TurnEnd.MAX_STEPS)
    if is_refused:
        return Compact(compaction.Source.OVERFLOW) if can_make_room(history) else FailTurn(TOO_LONG)
    match assessment.status:
        case compaction.Status.NEEDED:
            return Compact(compaction.Source.AUTOMATIC)
        case compaction.Status.STILL_OVER_LIMIT:
            return FailTurn(LastError(kind="config", message=compaction.STILL_OVER_LIMIT, retryable=False))
        case compaction.Status.AFTER_COMPACTION | compaction.Status.NOT_NEEDED | compaction.Status.TIGHT:
            return TellEnds() if has_untold_ends else Generate(_notice(history, rules, limits))


def _notice(history: History, rules: Rules, limits: Limits) -> str | None:
    """Return the notices of the request: about the step limit, and about calls that repeat."""
    repeated = (
        repetition_brake.notice(repetition_brake.read_recent(history.work, limits), limits)
        if limits.notice_after
        else None
    )
    found = [text for text in (step_notice(history.steps, rules.max_steps), repeated) if text is not None]
    return "\n\n".join(found) or None


def _with_calls(calls: tuple[OpenCall, ...], rules: Rules, gate: Gate) -> Decision | None:
    """Return the action for open calls; None if there are none.

    If a batch is rejected as a whole, its held calls are refused as well, so that they cannot run. If the batch repeats
    too often, the user is asked before it is rejected again.
    """
    refused = {call.tool_call_id: why for call, why in gate.refused.items()}
    local = [call for call in calls if call.tool_name not in rules.dynamic_tools]
    if len(calls) > 1 and any(call.tool_name in rules.exclusive_tools for call in local):
        if braked := tuple(call for call in calls if call in gate.braked):
            return AskApproval(braked)
        return ExecuteTools(calls, {**{call.tool_call_id: _NOT_ASKED for call in gate.held}, **refused})
    if now := tuple(call for call in calls if call in gate.refused or (call in local and call not in gate.held)):
        return ExecuteTools(now, refused)
    if held := tuple(call for call in calls if call in gate.held):
        return AskApproval(held)
    dynamic = open_tool_calls.select_dynamic(calls, rules.dynamic_tools)
    return EnterRequiresAction(dynamic) if dynamic else None


def stop_after_tools(mode: Mode, *, is_root: bool) -> frozenset[str]:
    """Return the tools whose success ends a turn, because the user has to answer them."""
    if mode is Mode.READ_ONLY and is_root:
        return frozenset({"ask_user_question"})
    if mode is not Mode.PLAN:
        return frozenset()
    return frozenset({"propose_plan", "ask_user_question"}) if is_root else frozenset({"propose_plan"})


def step_notice(steps: int, max_steps: int) -> str | None:
    """Return the notice for the last steps of a turn.

    Its text is the same for each step, so that provider caches stay valid.
    """
    if max_steps <= 0 or steps * 100 < max_steps * NOTICE_PERCENT:
        return None
    return (
        f"Most of the {max_steps} steps that this turn may have are used. Bring the work to a state that can be left, "
        "and tell the user what is done and what remains."
    )


def step_limit_notice(max_steps: int) -> str:
    """Return the notice for users that the turn ended at its limit."""
    return f"The turn was stopped at its limit of {max_steps} steps. Send a message to continue."


def can_make_room(history: History) -> bool:
    """Return whether a turn that is too long for its model may be shortened once more."""
    return history.compactions.count(compaction.Source.OVERFLOW) < MAX_RUNGS


def is_empty_answer_final(history: History, attempt: int) -> bool:
    """Return whether an answer without content ends the turn. If not, it is a failed attempt and is repeated.

    After tool results, or after a notice about a subagent, a model may have nothing to add. An empty answer to a user
    message is a failed attempt, up to `EMPTY_RETRIES` times.
    """
    return not history.ends_in_user_message or history.begins_with_notice or attempt > EMPTY_RETRIES
