"""The comparison of two runs of a chat: tokens, cost and time, and the first difference of their prompts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.debug import record_views
from rookery.debug.normalization import NormalizedMessage, NormalizedUsage
from rookery.debug.record_views import RunView
from rookery.store.authorized.debug import RunPair
from rookery.store.debug.record_rows import StepStatus, StepSummaryRow
from rookery.store.debug.run_comparison import ComparedRun, Prompt, count_same


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a run's steps so far. `duration_ms` is null while the run is open, `cost_micros` if none is known."""

    step_count: int
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cache_read_tokens: int
    cache_creation_tokens: int
    cost_micros: int | None
    ttft_ms: int | None
    duration_ms: int | None


class ComparedRunView(msgspec.Struct, frozen=True, kw_only=True):
    run: RunView
    figures: RunFigures


class ComparedStepView(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    status: StepStatus
    model: str | None
    message_count: int
    usage: NormalizedUsage | None
    cost_micros: int | None
    ttft_ms: int | None
    duration_ms: int | None


class StepPair(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of both runs with the same number. A shorter run has no step for the last ones.

    `same_messages` is the number of messages at the beginning that are the same in both prompts. `changed` are the
    names of settings that differ: `model`, `tools`, `effort`, or others. Both are null if a prompt is not recorded, and
    `has_same_answer` is null if an answer is not.
    """

    number: int
    one: ComparedStepView | None
    other: ComparedStepView | None
    same_messages: int | None = None
    changed: tuple[str, ...] | None = None
    has_same_answer: bool | None = None


class MessageDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first message that differs: the number of the step, and the index in its prompt.

    A message is null if the prompt of its run ends before it.
    """

    number: int
    index: int
    one: NormalizedMessage | None
    other: NormalizedMessage | None


class ToolDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that differ in the step with this number, which is the first with a difference."""

    number: int
    only_one: tuple[str, ...]
    only_other: tuple[str, ...]
    changed: tuple[str, ...]


class ComparisonView(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs, their steps in pairs, and the first differences of their prompts.

    Messages are compared as they are recorded, without the ids of tool calls.
    """

    one: ComparedRunView
    other: ComparedRunView
    steps: tuple[StepPair, ...]
    message: MessageDifference | None
    tools: ToolDifference | None


def compare(pair: RunPair) -> ComparisonView:
    one, other, first = pair.one, pair.other, pair.difference
    return ComparisonView(
        one=_run(one),
        other=_run(other),
        steps=tuple(_pairs(one, other)),
        message=None
        if first is None
        else MessageDifference(
            number=first.number,
            index=first.index,
            one=record_views.read(first.one, NormalizedMessage),
            other=record_views.read(first.other, NormalizedMessage),
        ),
        tools=_tool_difference(one.prompts, other.prompts),
    )


def _run(compared: ComparedRun) -> ComparedRunView:
    usages = [usage for usage in map(record_views.usage_of, compared.steps) if usage is not None]
    costs = [step.cost_micros for step in compared.steps if step.cost_micros is not None]
    figures = RunFigures(
        step_count=len(compared.steps),
        input_tokens=sum(usage.input_tokens or 0 for usage in usages),
        output_tokens=sum(usage.output_tokens or 0 for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens or 0 for usage in usages),
        cache_read_tokens=sum(usage.cache_read_tokens or 0 for usage in usages),
        cache_creation_tokens=sum(usage.cache_creation_tokens or 0 for usage in usages),
        cost_micros=sum(costs) if costs else None,
        ttft_ms=compared.steps[0].ttft_ms if compared.steps else None,
        duration_ms=_duration_ms(compared.run.started_at, compared.run.finished_at),
    )
    return ComparedRunView(run=record_views.run(compared.run), figures=figures)


def _pairs(one: ComparedRun, other: ComparedRun) -> Iterable[StepPair]:
    left, right = _by_number(one.steps), _by_number(other.steps)
    for number in sorted(left.keys() | right.keys()):
        pair = StepPair(number=number, one=_step(left.get(number)), other=_step(right.get(number)))
        first, second = one.prompts.get(number), other.prompts.get(number)
        if pair.one is None or pair.other is None or first is None or second is None:
            yield pair
            continue
        has_other_model = _model(left[number]) != _model(right[number])
        has_answers = left[number].finish_reason is not None and right[number].finish_reason is not None
        yield msgspec.structs.replace(
            pair,
            same_messages=count_same(first.messages, second.messages),
            changed=(*(("model",) if has_other_model else ()), *_changed(first, second)),
            has_same_answer=first.answer == second.answer if has_answers else None,
        )


def _by_number(steps: Sequence[StepSummaryRow]) -> dict[int, StepSummaryRow]:
    return {step.step_number: step for step in steps}


def _step(row: StepSummaryRow | None) -> ComparedStepView | None:
    if row is None:
        return None
    return ComparedStepView(
        id=row.id,
        status=row.status,
        model=row.model,
        message_count=row.message_count,
        usage=record_views.usage_of(row),
        cost_micros=row.cost_micros,
        ttft_ms=row.ttft_ms,
        duration_ms=_duration_ms(row.started_at, row.finished_at),
    )


def _model(row: StepSummaryRow) -> tuple[str | None, str | None]:
    return row.provider, row.model


def _changed(one: Prompt, other: Prompt) -> Iterable[str]:
    if one.tools != other.tools:
        yield "tools"
    left, right = _flat(one.settings), _flat(other.settings)
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            yield name


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings as one dict: the options on the same level as the other settings."""
    options = settings.get("options")
    others = {name: value for name, value in settings.items() if name != "options"}
    return {**others, **options} if isinstance(options, dict) else others


def _tool_difference(one: Mapping[int, Prompt], other: Mapping[int, Prompt]) -> ToolDifference | None:
    for number in sorted(one.keys() & other.keys()):
        left, right = one[number].tools, other[number].tools
        if left != right:
            return ToolDifference(
                number=number,
                only_one=tuple(sorted(left.keys() - right.keys())),
                only_other=tuple(sorted(right.keys() - left.keys())),
                changed=tuple(sorted(name for name in left.keys() & right.keys() if left[name] != right[name])),
            )
    return None


def _duration_ms(started_at: datetime, finished_at: datetime | None) -> int | None:
    return None if finished_at is None else round((finished_at - started_at).total_seconds() * 1000)
