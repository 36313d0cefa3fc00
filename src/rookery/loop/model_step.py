"""One model step: sends a call, publishes its stream live, and returns the outcome.

It runs no tools, makes no retries and stores nothing. Every failure of the call raises `CallFailed` with the
`ProviderError` and the usage so far.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, Self
from uuid import UUID, uuid4

import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.parts import Part, Reasoning, Text, ToolCall
from rookery.domain.models.options import ModelOptions
from rookery.llm import errors, keep_alives, model_call_span
from rookery.llm.errors import CallFailed
from rookery.llm.types import (
    Call,
    CallWarning,
    ErrorKind,
    Finish,
    FinishReason,
    GeneratedFile,
    LanguageModel,
    ProviderError,
    StreamError,
    Usage,
)
from rookery.loop.assistant_row import StepDraft, inline_file
from rookery.loop.config import LoopConfig
from rookery.loop.tool import OnProgress, Publish, ToolSet
from rookery.runtime import waits
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.runtime.nudge import Nudge
from rookery.telemetry.log import get_logger

log = get_logger("loop.model_step")

# A stream whose parts are all buffered yields to the event loop after this many parts.
_PARTS_PER_YIELD = 200
# Progress is reported at intervals of this fraction of the silence limit, and not for every token.
_PROGRESS_FRACTION = 0.001
_MAX_CONTEXT = 2**31

# Stores a file that a model generated, and returns its id.
StoreFile = Callable[[GeneratedFile], Awaitable[UUID]]


class StepStats(Protocol):
    """Receives the events of model steps that the metrics count."""

    def step_started(self, model: LanguageModel, *, messages: int, prompt_bytes: int) -> None: ...

    def first_part(self, model: LanguageModel, *, seconds: float) -> None: ...

    def empty_response(self, model: LanguageModel) -> None: ...


class NoStepStats:
    def step_started(self, model: LanguageModel, *, messages: int, prompt_bytes: int) -> None:
        pass

    def first_part(self, model: LanguageModel, *, seconds: float) -> None:
        pass

    def empty_response(self, model: LanguageModel) -> None:
        pass


class StepMeter:
    """The start time and the usage of a running step, for the interrupt task."""

    __slots__ = ("_draft", "invoked_at", "invoked_monotonic")

    def __init__(self) -> None:
        self.invoked_at: datetime | None = None
        self.invoked_monotonic: float | None = None
        self._draft: StepDraft | None = None

    @property
    def usage(self) -> Usage:
        """The provider's latest usage report."""
        return Usage() if self._draft is None else self._draft.usage

    def count_written(self) -> int:
        """Return the number of characters that the model has written so far."""
        return 0 if self._draft is None else self._draft.count_written()

    @property
    def response_id(self) -> str | None:
        return None if self._draft is None else self._draft.started.response_id

    @property
    def request_id(self) -> str | None:
        return None if self._draft is None else self._draft.started.request_id

    def runtime_ms(self, monotonic: float) -> int | None:
        """Return the time since the stream was opened; None before that."""
        return None if self.invoked_monotonic is None else round((monotonic - self.invoked_monotonic) * 1000)

    def start(self, draft: StepDraft, clock: Clock) -> None:
        self._draft = draft
        self.invoked_at = clock.now()
        self.invoked_monotonic = clock.monotonic()


class SilenceLimits(msgspec.Struct, frozen=True):
    """The seconds that a provider may send nothing: before the first byte of an answer, and within it."""

    first_byte_seconds: float
    within_seconds: float

    @classmethod
    def of(cls, options: ModelOptions, config: LoopConfig) -> Self:
        """Return the limits of a model: those of its options, else those of the server."""
        return cls(
            float(options.first_byte_seconds or config.first_byte_seconds),
            float(options.silence_seconds or config.stream_silence_seconds),
        )


@dataclass(slots=True, kw_only=True)
class StepSetup:
    """The input of a step besides its call. `limits` are the silence limits of its model. A nudge ends the call.

    `context_limit` is the limit of the model config. `allow_pause` is False if the provider has paused too often in
    this turn. `on_stream_start` is called when the run time begins. If `publish` raises, the step ends with that error.
    `attempt` is the generation attempt, for traces.
    """

    provider_name: str
    publish: Publish
    clock: Clock
    new_id: Callable[[], UUID] = uuid4
    config: LoopConfig = field(default_factory=LoopConfig)
    tools: ToolSet | None = None
    context_limit: int | None = None
    allow_pause: bool = True
    meter: StepMeter = field(default_factory=StepMeter)
    on_stream_start: Callable[[datetime], None] = lambda at: None
    on_progress: OnProgress = lambda until: None
    store_file: StoreFile | None = None
    stats: StepStats = field(default_factory=NoStepStats)
    attempt: int | None = None
    limits: SilenceLimits | None = None
    nudge: Nudge = field(default_factory=Nudge)

    @property
    def silence(self) -> SilenceLimits:
        config = self.config
        return self.limits or SilenceLimits(config.first_byte_seconds, config.stream_silence_seconds)


class AssistantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A finished answer. Empty content is not an error here, because its meaning depends on the history.

    `cut_calls` are the ids of calls whose arguments the output limit cut off. `model` is the name that the provider
    reported.
    """

    content: tuple[Part, ...]
    finish_reason: FinishReason
    usage: Usage
    context_limit: int | None
    runtime_ms: int
    started_at: datetime
    finished_at: datetime
    cut_calls: frozenset[str] = frozenset()
    response_id: str | None = None
    request_id: str | None = None
    prefix_fp: bytes | None = None
    model: str | None = None
    warnings: tuple[CallWarning, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit. Blank text is not an answer."""
        return all(isinstance(part, Text) and not part.text.strip() for part in self.content)

    @property
    def local_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the worker or the client must answer."""
        return tuple(part for part in self.content if isinstance(part, ToolCall) and not part.provider_executed)


async def generate_assistant(model: LanguageModel, call: Call, setup: StepSetup) -> AssistantOutcome:
    """Call the model once, publish its answer live, and return the outcome. Raise `CallFailed` if the call fails.

    Cancellation closes the connection to the provider. Nothing is committed here.
    """
    with model_call_span.chat_span(model, call, attempt=setup.attempt) as span:
        outcome = await _generate(model, call, setup)
        span.answered(
            outcome.content,
            outcome.finish_reason,
            outcome.usage,
            response_id=outcome.response_id,
            model=outcome.model,
        )
        return outcome


async def _generate(model: LanguageModel, call: Call, setup: StepSetup) -> AssistantOutcome:
    tools = setup.tools or ToolSet(active=())
    draft = StepDraft(
        model,
        call.prompt,
        publish=setup.publish,
        now=setup.clock.now,
        new_id=setup.new_id,
        server_id=tools.server_id,
        shell_commands=tools.shell_commands,
    )
    setup.stats.step_started(model, messages=len(call.prompt.messages), prompt_bytes=call.prompt.size_bytes)
    finish = await _consume(model, call, draft, setup)
    meter = setup.meter
    runtime_ms, finished_at = meter.runtime_ms(setup.clock.monotonic()), setup.clock.now()
    draft.finish(finish)
    await _store_files(draft, setup)
    content = draft.content()
    _raise_if_filtered(content, finish, setup.provider_name, draft.usage)
    assert runtime_ms is not None
    assert meter.invoked_at is not None
    outcome = AssistantOutcome(
        content=content,
        finish_reason=_reason(finish.reason, content, allow_pause=setup.allow_pause),
        usage=draft.usage,
        context_limit=find_context_limit(finish.meta or {}) or setup.context_limit,
        runtime_ms=runtime_ms,
        started_at=meter.invoked_at,
        finished_at=finished_at,
        cut_calls=frozenset(draft.cut_calls),
        response_id=draft.started.response_id,
        request_id=draft.started.request_id,
        prefix_fp=draft.started.prefix_fp,
        model=draft.started.model,
        warnings=draft.warnings,
    )
    if outcome.is_empty:
        setup.stats.empty_response(model)
    return outcome


async def _consume(model: LanguageModel, call: Call, draft: StepDraft, setup: StepSetup) -> Finish:
    """Read the stream to its end. The limit of the first byte also applies to connecting."""
    cancelling = waits.cancelling()
    limits, nudge, has_begun = setup.silence, setup.nudge, False
    seconds = limits.within_seconds
    guard = setup.clock.deadline(limits.first_byte_seconds, "stream-silence")
    nudge.is_pending = False

    def live() -> None:
        """Restart the limit, because a keep-alive has arrived."""
        nonlocal has_begun
        has_begun = True
        guard.reset(seconds)
        on_progress(None)

    def give_up() -> None:
        nudge.is_pending = True
        guard.reset(0)

    add, on_progress, monotonic = draft.add, setup.on_progress, setup.clock.monotonic

    interval, reported_at = seconds * _PROGRESS_FRACTION, -math.inf
    max_parts, ends_at = setup.config.stream_max_parts, monotonic() + setup.config.stream_max_seconds
    max_size = setup.config.stream_max_size
    count = 0
    try:
        async with guard:
            setup.meter.start(draft, setup.clock)
            assert setup.meter.invoked_at is not None
            setup.on_stream_start(setup.meter.invoked_at)
            with keep_alives.heard_by(live), nudge.heard_by(give_up):
                async with aclosing(model.stream(call)) as stream:
                    async for part in stream:
                        if (now := monotonic()) >= reported_at + interval:
                            reported_at, has_begun = now, True
                            guard.reset(seconds)
                            on_progress(None)
                        if type(part) is Finish:
                            return part
                        if type(part) is StreamError:
                            raise CallFailed(part.error, draft.usage)
                        add(part)
                        count += 1
                        if count >= max_parts or reported_at >= ends_at or draft.size > max_size:
                            raise CallFailed(_endless_error(setup.provider_name), draft.usage)
                        if count == 1:
                            _record_first_part(model, setup)
                        elif count % _PARTS_PER_YIELD == 0:
                            await asyncio.sleep(0)
    except DeadlineExceeded:
        if not guard.is_expired:
            raise
        error = _nudged_error(setup.provider_name) if nudge.is_pending else _silence_error(setup, has_begun=has_begun)
        raise CallFailed(error, draft.usage) from None
    except asyncio.CancelledError:
        if waits.cancelling() > cancelling:
            raise
        # A layer below was cancelled and not this step, so the connection is lost.
        raise CallFailed(_cut_error(setup.provider_name, "the request was cancelled on the way"), draft.usage) from None
    raise CallFailed(errors.truncated(setup.provider_name), draft.usage)


def _record_first_part(model: LanguageModel, setup: StepSetup) -> None:
    started = setup.meter.invoked_monotonic
    assert started is not None
    seconds = setup.clock.monotonic() - started
    setup.stats.first_part(model, seconds=seconds)
    model_call_span.first_part(seconds)


async def _store_files(draft: StepDraft, setup: StepSetup) -> None:
    """Store the generated files. This happens after the stream, because the silence limit applies during it."""
    for slot, file in draft.files():
        draft.put_file(slot, await _stored(file, setup))
        setup.on_progress(None)


async def _stored(file: GeneratedFile, setup: StepSetup) -> parts.File:
    if setup.store_file is not None:
        try:
            return parts.File(file.media_type, file_id=await setup.store_file(file))
        except Exception as error:
            # A file that cannot be stored separately is kept inside the message.
            log.exception("generated_file_not_stored", error, media_type=file.media_type, size=len(file.data))
    return await asyncio.to_thread(inline_file, file)


def _reason(reason: FinishReason, content: tuple[Part, ...], *, allow_pause: bool) -> FinishReason:
    """Return why the answer ended. Servers report tool calls inconsistently, so the content decides about them."""
    if reason is FinishReason.CONTENT_FILTER:
        return reason
    if any(isinstance(part, ToolCall) and not part.provider_executed for part in content):
        return FinishReason.TOOL_CALLS
    if reason is FinishReason.TOOL_CALLS or (reason is FinishReason.PAUSE and not allow_pause):
        return FinishReason.STOP
    return reason


def _raise_if_filtered(content: tuple[Part, ...], finish: Finish, provider: str, usage: Usage) -> None:
    """Raise `CallFailed` for a filtered answer without visible content."""
    if finish.reason is not FinishReason.CONTENT_FILTER or any(_is_visible(part) for part in content):
        return
    category = (finish.meta or {}).get("category")
    policy = f" (policy: {category})" if isinstance(category, str) and category else ""
    error = ProviderError(
        kind=ErrorKind.CONTENT_FILTER,
        message=f"{provider} declined to answer{policy}.",
        retryable=False,
        provider=provider,
        detail=finish.detail,
    )
    raise CallFailed(error, usage)


def _is_visible(part: Part) -> bool:
    return not isinstance(part, Reasoning) and not (isinstance(part, Text) and not part.text.strip())


def _silence_error(setup: StepSetup, *, has_begun: bool) -> ProviderError:
    provider, limits = setup.provider_name, setup.silence
    seconds = limits.within_seconds if has_begun else limits.first_byte_seconds
    return ProviderError(
        kind=ErrorKind.STREAM_SILENCE_TIMEOUT,
        message=f"{provider} stopped sending data." if has_begun else f"{provider} did not begin to answer.",
        retryable=True,
        provider=provider,
        detail=f"Nothing arrived for {seconds:g} s.",
    )


def _nudged_error(provider: str) -> ProviderError:
    return ProviderError(
        kind=ErrorKind.STREAM_SILENCE_TIMEOUT,
        message="Tried again at the request of the user.",
        retryable=True,
        provider=provider,
    )


def _endless_error(provider: str) -> ProviderError:
    return ProviderError(
        kind=ErrorKind.TIMEOUT,
        message=f"{provider} did not end its answer, and was stopped.",
        retryable=False,
        provider=provider,
    )


def _cut_error(provider: str, detail: str) -> ProviderError:
    return msgspec.structs.replace(errors.truncated(provider), detail=detail)


# The context limit in a provider's metadata

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_LIMIT_KEYS = frozenset(
    {
        ("context", "limit"),
        ("context", "window"),
        ("context", "length"),
        ("max", "context"),
        ("max", "context", "tokens"),
        ("max", "input", "tokens"),
        ("input", "token", "limit"),
    }
)
_COUNTERS = frozenset({"used", "usage", "remaining", "left", "count", "current"})


def find_context_limit(meta: Mapping[str, Any]) -> int | None:
    """Return the largest number in the metadata whose key means a context window."""
    found = list(_limits(meta, depth=0))
    return max(found, default=None)


def _limits(node: object, *, depth: int) -> list[int]:
    if depth > 8:
        return []
    if isinstance(node, list):
        return [limit for item in node for limit in _limits(item, depth=depth + 1)]
    if not isinstance(node, Mapping):
        return []
    found: list[int] = []
    for key, value in node.items():
        if type(value) is int and 0 < value < _MAX_CONTEXT and _means_window(str(key)):
            found.append(value)
        found += _limits(value, depth=depth + 1)
    return found


def _means_window(key: str) -> bool:
    words = tuple(word.lower() for word in _WORD.findall(key))
    if words in _LIMIT_KEYS:
        return True
    has = frozenset(words)
    if "context" not in has or has & _COUNTERS:
        return False
    return "limit" in has or ("window" in has and bool(has & {"size", "max"})) or {"length", "max"} <= has
