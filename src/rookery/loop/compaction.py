"""The summary of a chat: calls a model to summarize it, and makes the three rows that replace the conversation.

The request is the request of the next generation, followed by an instruction. If it is too long for the summarizing
model, the overflow rungs shorten it (`domain.chat.context_overflow`). The caller handles every other failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from rookery.domain.chat import compaction, context_overflow, summary_prompt
from rookery.domain.chat.compaction import Assessment, Source, Steps
from rookery.domain.chat.context_overflow import Budget, Rung
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.parts import Part, Text, ToolResult
from rookery.domain.chat.summary_prompt import SummaryFailed
from rookery.domain.chat.truncation import BYTES_PER_TOKEN
from rookery.llm.complete_answers import add_usage
from rookery.llm.errors import CallFailed
from rookery.llm.types import Call, ErrorKind, LanguageModel, ProviderError, Purpose, Tool, Usage
from rookery.loop import model_step
from rookery.loop.model_step import StepSetup
from rookery.runtime.clock import DeadlineExceeded
from rookery.telemetry.log import get_logger

log = get_logger("loop.compaction")

T = TypeVar("T")

# Longer prompts are cut and measured in a thread.
_BYTES_ON_LOOP = 512 * 1024


class Carried(msgspec.Struct, frozen=True):
    """The user's message that follows the summary, and its parts that were stored in the workspace."""

    parts: tuple[Part, ...] = ()
    spilled: tuple[compaction.Spilled, ...] = ()


class RungStats(Protocol):
    def rung_taken(self, model: LanguageModel, rung: str, *, result: str) -> None: ...


class NoRungStats:
    def rung_taken(self, model: LanguageModel, rung: str, *, result: str) -> None:
        pass


async def _no_refusal(error: ProviderError, call: Call, estimated_tokens: int) -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSetup:
    """The input of a compaction.

    - `step`: the setup of a step with the summarizing model.
    - `carry`: returns the message that follows the summary.
    - `budget`: the size of requests that the summarizing model accepts, as far as known.
    - `on_refusal`: called for every request that was too long. Returns the new estimate of the model's window.
    - `kept_summary`: an existing summary to use without a model call, because only the user's message follows it.
    - `is_other_provider`: the summarizing model belongs to another provider than the chat's model, and gets a converted
      copy of the prompt.
    """

    step: StepSetup
    source: Source
    assessment: Assessment
    model_config_id: UUID
    carry: Callable[[str], Awaitable[Carried]]
    budget: Budget
    on_refusal: Callable[[ProviderError, Call, int], Awaitable[int | None]] = _no_refusal
    stats: RungStats = field(default_factory=NoRungStats)
    kept_summary: str | None = None
    is_other_provider: bool = False
    hint: str = ""


class CompactionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to commit together, and the usage of all model calls. `tries` is the number of these calls."""

    rows: tuple[NewMessage, ...]
    call_id: str
    summary: str
    usage: Usage
    runtime_ms: int
    tries: int


async def summarize(model: LanguageModel, call: Call, setup: CompactionSetup) -> CompactionOutcome:
    """Summarize the prompt of `call`, which is the call of the next generation with the summarizing model's options.

    The summary is shown live as a call of the tool `chat_summarized`. Raise `CallFailed` with the usage of all tries;
    the live result is then the error.
    """
    step = setup.step
    call_id = compaction.tool_call_id(step.new_id())
    shown = compaction.call_part(call_id, source=setup.source, assessment=setup.assessment, at=step.clock.now())
    step.publish(Role.ASSISTANT, shown)
    ladder = _OverflowLadder(model, call, setup, call_id)
    try:
        summary = await ladder.summary() if setup.kept_summary is None else setup.kept_summary
        carried = await setup.carry(summary)
    except CallFailed as error:
        show_failure(setup.step, call_id, error.error.message)
        raise
    if carried.spilled:
        ladder.record_rung(Rung.SPILLED, parts_kept=len(carried.spilled))
    steps = Steps(rungs=tuple(ladder.rungs), calls=ladder.calls, spilled=carried.spilled)
    rows = compaction.new_rows(
        summary,
        source=setup.source,
        assessment=setup.assessment,
        carried=carried.parts,
        tool_call_id=call_id,
        model_config_id=setup.model_config_id,
        runtime_ms=ladder.runtime_ms,
        at=step.clock.now(),
        steps=steps,
    )
    return CompactionOutcome(
        rows=rows,
        call_id=call_id,
        summary=summary,
        usage=ladder.usage,
        runtime_ms=ladder.runtime_ms,
        tries=ladder.calls,
    )


def show_failure(step: StepSetup, call_id: str, message: str) -> None:
    """Show an error as the live result of the summary."""
    step.publish(Role.TOOL, compaction.error_part(call_id, message, at=step.clock.now()))


class _OverflowLadder:
    """Tries the overflow rungs in order until one gives a summary. Adds up the usage of all requests."""

    def __init__(self, model: LanguageModel, call: Call, setup: CompactionSetup, call_id: str) -> None:
        self._model = model
        self._call = call
        self._setup = setup
        self._call_id = call_id
        self._budget = setup.budget
        self._refused: Prompt | None = None
        self.rungs: list[str] = []
        self.calls = 0
        self.usage = Usage()
        self.runtime_ms = 0

    def record_rung(self, rung: Rung, **facts: object) -> None:
        """Record a rung that succeeded, in the result, the metrics and the log."""
        if not self.rungs or self.rungs[-1] != str(rung):
            self.rungs.append(str(rung))
            self._setup.stats.rung_taken(self._model, str(rung), result="success")
        log.info("overflow_rung", rung=rung, source=self._setup.source, calls=self.calls, **self._figures(), **facts)

    async def summary(self) -> str:
        seconds = self._setup.step.config.compaction_seconds
        deadline = self._setup.step.clock.deadline(seconds, "compaction")
        try:
            async with deadline:
                return await self._try_rungs()
        except DeadlineExceeded:
            if not deadline.is_expired:
                raise
            usage = add_usage(self.usage, self._setup.step.meter.usage)
            raise CallFailed(_timeout_error(self._setup.step.provider_name, seconds), usage) from None
        except SummaryFailed as error:
            raise CallFailed(_summary_error(self._setup.step.provider_name, str(error)), self.usage) from error

    async def _try_rungs(self) -> str:
        prompt = self._call.prompt
        if self._setup.is_other_provider:
            prompt = summary_prompt.for_other_provider(prompt, accepts=self._model.caps.accepts)
        whole = summary_prompt.summary_request(prompt, hint=self._setup.hint)
        if (said := await self._try(Rung.WHOLE, whole)) is not None:
            return said
        shorter = await self._run_large_in_thread(
            lambda: context_overflow.trimmed(whole, max_bytes=self._room()), whole
        )
        if (said := await self._try(Rung.TRIMMED, shorter)) is not None:
            return said
        return await self._in_pieces(prompt)

    def _room(self) -> int | None:
        allowed = self._budget.allowed_tokens
        return None if allowed is None else allowed * BYTES_PER_TOKEN - tools_bytes(self._call.tools)

    async def _try(self, rung: Rung, prompt: Prompt) -> str | None:
        """Make one request with this prompt. Return None if it is too long, or is known to be too long."""
        tokens = await self._run_large_in_thread(
            lambda: context_overflow.estimate_tokens(prompt.messages, tools_bytes=tools_bytes(self._call.tools)), prompt
        )
        # A prompt that could not be cut further is not sent a second time.
        if prompt == self._refused or not self._budget.fits(tokens):
            log.info("overflow_rung_skipped", rung=rung, tokens=tokens, **self._figures())
            return None
        said = await self._ask(rung, _request(self._call, prompt, self._budget), tokens)
        if said is None:
            self._refused = prompt
        else:
            self.record_rung(rung, tokens=tokens)
        return said

    async def _in_pieces(self, prompt: Prompt) -> str:
        """Summarize the chat in pieces, oldest first, and then the summaries, until one summary is left."""
        entries = await self._run_large_in_thread(lambda: context_overflow.transcript(prompt.messages), prompt)
        is_merge = False
        while True:
            summaries = await self._round(entries, is_merge=is_merge)
            if len(summaries) == 1:
                self.record_rung(Rung.PIECES)
                return summaries[0]
            if is_merge and len(summaries) >= len(entries):
                # Merging no longer reduces their number, so the beginning and the end of the summaries are kept.
                self.record_rung(Rung.PIECES)
                room = max(context_overflow.piece_bytes(self._budget), context_overflow.MIN_PIECE_BYTES)
                return "\n\n".join(context_overflow.shortened(summaries, max_bytes=room))
            entries, is_merge = summaries, True

    async def _round(self, entries: Sequence[str], *, is_merge: bool) -> list[str]:
        left, summaries = list(entries), list[str]()
        while left:
            room = context_overflow.piece_bytes(self._budget)
            if room < context_overflow.MIN_PIECE_BYTES or self.calls >= context_overflow.MAX_CALLS:
                raise CallFailed(_window_error(self._setup.step.provider_name), self.usage)
            most = (context_overflow.MAX_PIECES - len(summaries)) * room
            left = await asyncio.to_thread(context_overflow.shortened, left, max_bytes=max(most, room))
            text, rest = context_overflow.next_piece(left, max_bytes=room)
            prompt = context_overflow.piece_prompt(text, number=len(summaries) + 1, is_merge=is_merge)
            tokens = context_overflow.estimate_tokens(prompt.messages)
            said = await self._ask(Rung.PIECES, _piece(self._call, prompt, self._budget), tokens)
            if said is None:
                continue  # the refusal has reduced the budget, so the next piece is smaller
            summaries.append(said)
            left = rest
            self._show(f"Part {len(summaries)} is summarized.\n" if not is_merge else "Summaries are joined.\n")
        return summaries

    async def _ask(self, rung: Rung, call: Call, tokens: int) -> str | None:
        """Return the summary in the model's answer. Record a refusal of a too long request, and return None."""
        self.calls += 1
        try:
            outcome = await model_step.generate_assistant(self._model, call, _without_live_parts(self._setup.step))
        except CallFailed as error:
            self.usage = add_usage(self.usage, error.usage)
            if error.error.kind is not ErrorKind.CONTEXT_OVERFLOW:
                raise CallFailed(error.error, self.usage) from error
            window = await self._setup.on_refusal(error.error, call, tokens)
            self._budget = self._budget.refuse(tokens, window_tokens=window or self._budget.window_tokens)
            self._setup.stats.rung_taken(self._model, str(rung), result="too_long")
            log.info("overflow_rung_refused", rung=rung, tokens=tokens, **self._figures())
            return None
        self.usage = add_usage(self.usage, outcome.usage)
        self.runtime_ms += outcome.runtime_ms
        texts = (part.text for part in outcome.content if isinstance(part, Text))
        return summary_prompt.read_summary(texts, finish_reason=str(outcome.finish_reason))

    def _show(self, text: str) -> None:
        step = self._setup.step
        step.on_progress(None)
        step.publish(Role.TOOL, ToolResult(self._call_id, compaction.TOOL_NAME, result_delta=text))

    def _figures(self) -> dict[str, object]:
        return {
            "limit_tokens": self._budget.window_tokens,
            "allowed_tokens": self._budget.allowed_tokens,
            "context_tokens": self._setup.assessment.tokens,
        }

    async def _run_large_in_thread(self, work: Callable[[], T], prompt: Prompt) -> T:
        return await asyncio.to_thread(work) if prompt.size_bytes > _BYTES_ON_LOOP else work()


def tools_bytes(tools: Sequence[Tool]) -> int:
    """Return the approximate size of the tool declarations in a request."""
    return sum(len(tool.name) + len(tool.description) + len(msgspec.json.encode(tool.input_schema)) for tool in tools)


def _request(call: Call, prompt: Prompt, budget: Budget) -> Call:
    """Return a request with the generation's system blocks, tools and messages, which the provider has cached.

    The model may not call tools.
    """
    return msgspec.structs.replace(
        call,
        prompt=prompt,
        purpose=Purpose.COMPACTION,
        tool_choice="none",
        format=None,
        max_output_tokens=_output_limit(call, budget),
    )


def _piece(call: Call, prompt: Prompt, budget: Budget) -> Call:
    """Return the request that summarizes one piece. Unlike `_request`, it has no tools, web search or cache key."""
    return msgspec.structs.replace(
        _request(call, prompt, budget), tools=(), tool_choice="auto", web_search=None, chat_id=None, cache_key=None
    )


def _output_limit(call: Call, budget: Budget) -> int | None:
    if call.max_output_tokens is None or not budget.window_tokens:
        return call.max_output_tokens
    return min(call.max_output_tokens, budget.output_tokens)


def _without_live_parts(step: StepSetup) -> StepSetup:
    """Return the same step without live parts, because a summary is shown only when it is complete."""
    return replace(step, publish=lambda role, part: None, allow_pause=False, store_file=None)


def _timeout_error(provider: str, seconds: float) -> ProviderError:
    return ProviderError(
        kind=ErrorKind.TIMEOUT,
        message="The request took too long and was stopped.",
        retryable=False,
        provider=provider,
        detail=f"The summary of this chat was not done after {seconds:g} s.",
    )


def _window_error(provider: str) -> ProviderError:
    return ProviderError(
        kind=ErrorKind.CONTEXT_OVERFLOW,
        message="The model cannot read enough at once to summarize this chat. Use a model with a larger window.",
        retryable=False,
        provider=provider,
    )


def _summary_error(provider: str, message: str) -> ProviderError:
    return ProviderError(kind=ErrorKind.GENERIC, message=message, retryable=False, provider=provider)
