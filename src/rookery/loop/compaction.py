"""The summary call: asks a model to sum the chat up, and makes the three rows that take the conversation's place.

The request is the generation's own with an instruction at its end. A summariser that cannot take all of it is asked
again with less, twice at most; everything else that goes wrong is the caller's to retry or to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from rookery.chat import compaction, summarising
from rookery.chat.compaction import Assessment, Source
from rookery.chat.messages import NewMessage, Role
from rookery.chat.parts import Part, Text
from rookery.chat.prompt_parts import Prompt
from rookery.chat.summarising import SummaryFailed
from rookery.clock import DeadlineExceeded
from rookery.llm.errors import CallFailed
from rookery.llm.generate import add_usage
from rookery.llm.types import Call, ErrorKind, LanguageModel, ProviderError, Purpose, Usage
from rookery.loop import assistant
from rookery.loop.assistant import AssistantOutcome, StepSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSetup:
    """What is summarised, and why. `step` is set up for the summarising model.

    `is_other_provider`: the summariser is not of the provider that the chat talks to, and gets a translated copy.
    `turn_parts` is what the user said to begin the running turn; `hint` is added to the instruction.
    """

    step: StepSetup
    source: Source
    assessment: Assessment
    turn_parts: Sequence[Part]
    model_config_id: UUID
    is_other_provider: bool = False
    hint: str = ""


class CompactionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to commit together, and what making them cost. `tries`: how often the summariser was asked."""

    rows: tuple[NewMessage, ...]
    summary: str
    usage: Usage
    runtime_ms: int
    tries: int


async def summarise(model: LanguageModel, call: Call, setup: CompactionSetup) -> CompactionOutcome:
    """Summarise the prompt of `call`, which is the call of the next generation with the summariser's own options.

    Shown live as a call of `chat_summarized`. Raises `CallFailed` with the usage of all tries; then the result that
    was shown is the error, and nothing is left to commit.
    """
    step = setup.step
    call_id = compaction.tool_call_id(step.new_id())
    shown = compaction.call_part(call_id, source=setup.source, assessment=setup.assessment, at=step.clock.now())
    step.publish(Role.ASSISTANT, shown)
    try:
        outcome, summary, usage, tries = await _within_limit(model, call, setup)
    except CallFailed as error:
        step.publish(Role.TOOL, compaction.error_part(call_id, error.error.message, at=step.clock.now()))
        raise
    at = step.clock.now()
    result = compaction.result_part(call_id, summary, source=setup.source, assessment=setup.assessment, at=at)
    step.publish(Role.TOOL, result)
    rows = compaction.new_rows(
        summary,
        source=setup.source,
        assessment=setup.assessment,
        turn_parts=setup.turn_parts,
        tool_call_id=call_id,
        model_config_id=setup.model_config_id,
        runtime_ms=outcome.runtime_ms,
        at=at,
    )
    return CompactionOutcome(rows=rows, summary=summary, usage=usage, runtime_ms=outcome.runtime_ms, tries=tries)


async def _within_limit(
    model: LanguageModel, call: Call, setup: CompactionSetup
) -> tuple[AssistantOutcome, str, Usage, int]:
    limit = setup.step.config.compaction_seconds
    spent = _Spent()
    deadline = setup.step.clock.deadline(limit, "compaction")
    try:
        async with deadline:
            outcome = await _ask(model, call, setup, spent=spent)
    except DeadlineExceeded:
        if not deadline.is_expired:
            raise
        usage = add_usage(spent.usage, setup.step.meter.usage)
        raise CallFailed(_too_slow(setup.step.provider_name, limit), usage) from None
    texts = (part.text for part in outcome.content if isinstance(part, Text))
    try:
        summary = summarising.read_summary(texts, finish_reason=str(outcome.finish_reason))
    except SummaryFailed as error:
        raise CallFailed(_unusable(setup.step.provider_name, str(error)), spent.usage) from error
    return outcome, summary, spent.usage, spent.tries


class _Spent:
    """What all tries together have used."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.tries = 0

    def add(self, usage: Usage) -> None:
        self.usage = add_usage(self.usage, usage)


async def _ask(model: LanguageModel, call: Call, setup: CompactionSetup, *, spent: _Spent) -> AssistantOutcome:
    """Ask with ever less until the summariser can take it."""
    refused: CallFailed | None = None
    for prompt in _prompts(model, call.prompt, setup):
        spent.tries += 1
        try:
            outcome = await assistant.generate_assistant(model, _request(call, prompt), _quiet(setup.step))
        except CallFailed as error:
            spent.add(error.usage)
            if error.error.kind is not ErrorKind.CONTEXT_OVERFLOW:
                raise CallFailed(error.error, spent.usage) from error
            refused = error
            continue
        spent.add(outcome.usage)
        return outcome
    assert refused is not None, "there is always a first prompt"
    raise CallFailed(refused.error, spent.usage) from refused


def _prompts(model: LanguageModel, prompt: Prompt, setup: CompactionSetup) -> Iterator[Prompt]:
    """The prompt, then without bulk, then without its oldest turns. Made one by one: the first mostly does."""
    if setup.is_other_provider:
        prompt = summarising.for_other_provider(prompt, accepts=model.caps.accepts)
    prompt = summarising.ask(prompt, hint=setup.hint)
    yield prompt
    prompt = summarising.without_bulk(prompt)
    yield prompt
    limit = setup.step.context_limit or setup.assessment.limit_tokens
    if limit is not None and (shorter := summarising.without_oldest(prompt, limit_tokens=limit)) is not None:
        yield shorter


def _request(call: Call, prompt: Prompt) -> Call:
    """Same system, tools and messages as the generation, so that the provider's cache holds; but no calls."""
    return msgspec.structs.replace(call, prompt=prompt, purpose=Purpose.COMPACTION, tool_choice="none", format=None)


def _quiet(step: StepSetup) -> StepSetup:
    """The same step with nothing shown: a summary is shown when it is whole."""
    return replace(step, publish=lambda role, part: None, allow_pause=False, store_file=None)


def _too_slow(provider: str, seconds: float) -> ProviderError:
    return ProviderError(
        kind=ErrorKind.TIMEOUT,
        message="The request took too long and was stopped.",
        retryable=False,
        provider=provider,
        detail=f"The summary of this chat was not done after {seconds:g} s.",
    )


def _unusable(provider: str, message: str) -> ProviderError:
    return ProviderError(kind=ErrorKind.GENERIC, message=message, retryable=False, provider=provider)
