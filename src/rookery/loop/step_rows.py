"""The rows of a step: the model's answer, the results of tools, and their figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.domain.chat.chat import LastError
from rookery.domain.chat.messages import Effort, NewMessage, Role, StepFigures, Visibility
from rookery.domain.chat.parts import File, Part, Text, ToolCall, TurnEnd
from rookery.domain.chat.truncation import budget_bytes
from rookery.llm.types import Usage
from rookery.loop import tool_input, tool_results
from rookery.loop.model_step import AssistantOutcome, StepMeter
from rookery.loop.tool import ToolSet, ToolSource
from rookery.loop.tool_results import CallName, CallResult

_MAX_NAME = 200


def assistant_rows(
    outcome: AssistantOutcome,
    *,
    tools: ToolSet,
    model_config_id: UUID,
    at: datetime,
    reasoning_effort: Effort | None = None,
    cost_micros: int | None = None,
    left_open: Collection[str] = (),
) -> tuple[NewMessage, ...]:
    """Return the assistant row, and an error result for each call with invalid arguments. Empty content has no rows.

    The next step executes the calls that have no result here. Calls in `left_open` get none, so that it can hold them,
    unless they could run then: the next step does not know that the output limit cut off arguments.
    """
    if outcome.is_empty:
        return ()
    answer = NewMessage(
        role=Role.ASSISTANT,
        content=outcome.content,
        model_config_id=model_config_id,
        reasoning_effort=reasoning_effort,
        figures=step_figures(outcome, cost_micros=cost_micros),
    )
    held = {
        call.tool_call_id
        for call in outcome.local_calls
        if call.tool_call_id in left_open and find_problem(call, tools) is not None
    }
    rejected = [each for each in rejected_calls(outcome, tools=tools, at=at) if each.result.tool_call_id not in held]
    return (answer, *tool_rows(rejected, model_config_id=model_config_id))


def rejected_calls(outcome: AssistantOutcome, *, tools: ToolSet, at: datetime) -> tuple[CallResult, ...]:
    """Return error results for the calls whose arguments are invalid, in call order.

    Return no results if an exclusive tool was called together with others. The next step then rejects all these calls.
    If some of them already had a result, it would run the others.
    """
    calls = outcome.local_calls
    if is_exclusive_violation([call.tool_name for call in calls], tools):
        return ()
    found = ((call, find_problem(call, tools, is_cut=call.tool_call_id in outcome.cut_calls)) for call in calls)
    max_bytes = budget_bytes(outcome.context_limit)
    return tuple(
        tool_results.error_result(name_of(call, tools), problem, at=at, max_bytes=max_bytes)
        for call, problem in found
        if problem is not None
    )


def is_exclusive_violation(names: Sequence[str], tools: ToolSet) -> bool:
    return len(names) > 1 and any(tools.is_exclusive(name) for name in names)


def find_problem(call: ToolCall, tools: ToolSet, *, is_cut: bool = False) -> str | None:
    """Return why a call cannot run with its arguments; None if it can."""
    if is_cut:
        return tool_input.CUT_OFF
    if call.args is UNSET:
        return tool_input.NOT_AN_OBJECT
    arguments = tool_input.read_stored(call.args)
    if not arguments.is_object:
        return tool_input.NOT_AN_OBJECT
    spec = tools.find_spec(call.tool_name)
    if spec is None or spec.source is not ToolSource.BUILTIN:
        return None
    return tool_input.find_ambiguity(arguments.args, spec.input_schema)


def name_of(call: ToolCall, tools: ToolSet) -> CallName:
    return CallName(call.tool_call_id, call.tool_name, tools.server_id(call.tool_name))


def tool_rows(done: Iterable[CallResult], *, model_config_id: UUID) -> tuple[NewMessage, ...]:
    """Return one row per result, with the tool's attachments after the result."""
    return tuple(
        NewMessage(role=Role.TOOL, content=(each.result, *each.files), model_config_id=model_config_id) for each in done
    )


def notice_row(part: Part) -> NewMessage:
    """Return a notice for users, which the model does not see."""
    return NewMessage(role=Role.SYSTEM, visibility=Visibility.USER, content=(part,))


def stopped_row() -> NewMessage:
    """Return the mark for a stopped turn that has no other row which shows that it was stopped."""
    return notice_row(TurnEnd("stopped"))


def failed_row(error: LastError) -> NewMessage:
    """Return the mark of a turn that has failed."""
    return notice_row(TurnEnd("failed", error.kind, error.message))


def without_files(row: NewMessage, reason: str) -> NewMessage:
    """Return the row without its stored files, which the chat cannot link. An answer gets a note instead."""
    if not any(isinstance(part, File) and part.file_id is not None for part in row.content):
        return row
    note = (Text(f"[A file was left out. {reason}]"),) if row.role is Role.ASSISTANT else ()
    kept = tuple(part for part in row.content if not isinstance(part, File) or part.file_id is None)
    return msgspec.structs.replace(row, content=(*kept, *note))


def step_figures(outcome: AssistantOutcome, *, cost_micros: int | None = None) -> StepFigures:
    return _figures(
        outcome.usage,
        context_limit=outcome.context_limit,
        cost_micros=cost_micros,
        runtime_ms=outcome.runtime_ms,
        finish_reason=str(outcome.finish_reason),
        prefix_fp=outcome.prefix_fp,
        request_id=outcome.request_id,
        response_id=outcome.response_id,
    )


def interrupted_figures(
    meter: StepMeter,
    *,
    monotonic: float,
    context_limit: int | None = None,
    cost_micros: int | None = None,
    usage: Usage | None = None,
) -> StepFigures:
    """Return the figures of an unfinished step, for `interrupted_step.rows`. `usage` replaces the reported usage."""
    return _figures(
        meter.usage if usage is None else usage,
        context_limit=context_limit,
        cost_micros=cost_micros,
        runtime_ms=meter.runtime_ms(monotonic),
        request_id=meter.request_id,
        response_id=meter.response_id,
    )


def _figures(
    usage: Usage,
    *,
    context_limit: int | None,
    cost_micros: int | None,
    runtime_ms: int | None,
    finish_reason: str | None = None,
    prefix_fp: bytes | None = None,
    request_id: str | None = None,
    response_id: str | None = None,
) -> StepFigures:
    return StepFigures(
        input_tokens=usage.input,
        output_tokens=usage.output,
        total_tokens=usage.total,
        reasoning_tokens=usage.reasoning,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        context_tokens=usage.context_tokens,
        context_limit=context_limit,
        cost_micros=cost_micros,
        runtime_ms=runtime_ms,
        finish_reason=finish_reason,
        prefix_fp=prefix_fp,
        request_id=_name(request_id),
        response_id=_name(response_id),
    )


def _name(text: str | None) -> str | None:
    """Return a provider's id, cleaned and cut to fit the column."""
    return None if text is None else tool_results.clean_text(text[:_MAX_NAME])
