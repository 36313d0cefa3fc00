"""The scripted model: streams the answers of a script, without a network. The same script always gives the same
answers.

New users get it before they have set a key; tests and benchmarks use it as well. The model id is the name of the
script: `guide` (answers plain requests and calls real tools, see `rookery.demo`), `tour`, `echo`, or a registered
script.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptMessage, PromptPart, PromptResult, PromptText
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    ProviderError,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
    UsageUpdate,
    Wire,
)
from rookery.runtime.clock import Clock, SystemClock

# About the speed of reading. 0 disables the delay.
TOKENS_PER_SECOND = 60.0
BYTES_PER_TOKEN = 4
# A token is a word with the space before it.
_TOKEN = re.compile(r"\s*\S+|\s+")


class Say(msgspec.Struct, frozen=True):
    text: str


class Think(msgspec.Struct, frozen=True):
    text: str


class CallTool(msgspec.Struct, frozen=True):
    """Call a tool. Adjacent calls are the parallel calls of one answer."""

    name: str
    args: Mapping[str, Any] = {}


class Wait(msgspec.Struct, frozen=True):
    """Send nothing for this time. If it exceeds the silence limit, the attempt fails."""

    seconds: float


class Fail(msgspec.Struct, frozen=True):
    """End the answer with an error."""

    kind: ErrorKind
    message: str = "The scripted model was told to fail."
    retryable: bool = True
    retry_after: timedelta | None = None
    status: int | None = None


class Count(msgspec.Struct, frozen=True):
    """Report this usage instead of the estimate."""

    usage: Usage


class Pause(msgspec.Struct, frozen=True):
    """Stop like a provider that pauses and must be called again."""


class Truncate(msgspec.Struct, frozen=True):
    """End the answer like a lost connection."""


class When(msgspec.Struct, frozen=True):
    """Steps that depend on the conversation. Both patterns must be found, if both are given."""

    steps: tuple[Step, ...]
    last_user: str | None = None
    tool_result: str | None = None
    otherwise: tuple[Step, ...] = ()


Step: TypeAlias = Say | Think | CallTool | Wait | Fail | Count | Pause | Truncate | When
# A list of steps, or a function that builds one from the call.
Script: TypeAlias = Sequence[Step] | Callable[[Call], Sequence[Step]]


def echo(call: Call) -> Sequence[Step]:
    """Repeat the text of the last user message."""
    return (Say(last_user_text(call.prompt) or "You said nothing."),)


class Scripts:
    """Scripts by model id. Tests can register more; an id can be registered only once."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = dict(scripts)

    def find(self, model: str) -> Script | None:
        return self._scripts.get(model)

    @contextmanager
    def registered(self, model: str, script: Script) -> Iterator[None]:
        if model in self._scripts:
            raise ValueError(f"The script {model!r} already exists.")
        self._scripts[model] = script
        try:
            yield
        finally:
            del self._scripts[model]


class ScriptedModel:
    """A language model with scripted answers. `calls` holds every call that it received."""

    wire: Wire = "scripted"
    provider_type = "scripted"

    def __init__(
        self,
        model: str,
        scripts: Scripts,
        *,
        provider_id: UUID,
        tokens_per_second: float = TOKENS_PER_SECOND,
        clock: Clock | None = None,
    ) -> None:
        self.model = model
        self.provider_id = provider_id
        self.caps = Capabilities(forced_tool_choice=True, json_schema=True, media_types=("*/*",))
        self.calls: list[Call] = []
        self._scripts = scripts
        self._seconds_per_token = 1 / tokens_per_second if tokens_per_second > 0 else 0.0
        self._clock = clock or SystemClock()

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        self.calls.append(call)
        script = self._scripts.find(self.model)
        if script is None:
            message = f"There is no script {self.model!r}. The scripted provider has `guide`, `tour` and `echo`."
            yield _error(ErrorKind.CONFIG, message, retryable=False)
            return
        yield ResponseStarted(f"scripted-{len(self.calls)}", self.model, None)
        steps = list(_flat(script(call) if callable(script) else script, call.prompt))
        playback = _Playback(call, steps)
        for part in playback.parts():
            if isinstance(part, Wait):
                await self._clock.sleep(part.seconds, "scripted-wait")
                continue
            if isinstance(part, TextDelta | ReasoningDelta | ToolInputDelta) and self._seconds_per_token:
                await self._clock.sleep(self._seconds_per_token, "scripted-token")
            yield part


class _Playback:
    """Converts the steps of one answer to parts, and counts the tokens."""

    def __init__(self, call: Call, steps: Sequence[Step]) -> None:
        self._call = call
        self._steps = steps
        self._said = 0
        self._blocks = 0
        self._calls = sum(isinstance(part, PromptCall) for part in all_parts(call.prompt))
        self._usage: Usage | None = None

    def parts(self) -> Iterator[StreamPart | Wait]:
        reason = FinishReason.STOP
        for step in self._steps:
            match step:
                case Say(text):
                    yield from self._text(text)
                case Think(text):
                    yield from self._reasoning(text)
                case CallTool():
                    yield from self._call_tool(step)
                    reason = FinishReason.TOOL_CALLS
                case Count(usage):
                    self._usage = usage
                    yield UsageUpdate(usage)
                case Wait():
                    yield step
                case Pause():
                    yield Finish(FinishReason.PAUSE, self._count())
                    return
                case Truncate():
                    text = "The stream closed before the response was complete."
                    yield _error(ErrorKind.TIMEOUT, text, retryable=True)
                    return
                case Fail():
                    error = _error(step.kind, step.message, retryable=step.retryable)
                    changed = {"retry_after": step.retry_after, "status": step.status}
                    yield StreamError(msgspec.structs.replace(error.error, **changed))
                    return
                case When():
                    raise AssertionError("conditions are resolved before the answer begins")
        yield Finish(reason, self._count())

    def _text(self, text: str) -> Iterator[StreamPart]:
        block = self._next_block("text")
        yield TextStart(block)
        for token in self._tokens(text):
            yield TextDelta(block, token)
        yield TextEnd(block)

    def _reasoning(self, text: str) -> Iterator[StreamPart]:
        block = self._next_block("reasoning")
        yield ReasoningStart(block)
        for token in self._tokens(text):
            yield ReasoningDelta(block, token)
        yield ReasoningEnd(block)

    def _call_tool(self, step: CallTool) -> Iterator[StreamPart]:
        self._calls += 1
        call_id = f"call_{self._calls}"
        args = msgspec.json.encode(step.args).decode()
        yield ToolInputStart(call_id, step.name)
        for token in self._tokens(args):
            yield ToolInputDelta(call_id, token)
        yield ToolInputEnd(call_id)
        yield ToolCall(call_id, step.name, args)

    def _tokens(self, text: str) -> list[str]:
        self._said += len(text.encode(errors="replace"))
        return _TOKEN.findall(text)

    def _next_block(self, kind: str) -> str:
        self._blocks += 1
        return f"{kind}-{self._blocks}"

    def _count(self) -> Usage:
        if self._usage is not None:
            return self._usage
        read = sum(_size(part) for part in all_parts(self._call.prompt)) // BYTES_PER_TOKEN
        said = self._said // BYTES_PER_TOKEN
        return Usage(input=read, output=said, total=read + said, context_tokens=read)


def all_parts(prompt: Prompt) -> Iterator[PromptPart]:
    for message in prompt.messages:
        yield from message.parts


def last_user_text(prompt: Prompt) -> str:
    """Return the text of the newest user message."""
    for message in reversed(prompt.messages):
        if message.role is Role.USER:
            return text_of(message)
    return ""


def text_of(message: PromptMessage) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, PromptText))


def results_since_user(prompt: Prompt) -> list[PromptResult]:
    """Return the tool results of the current turn, oldest first."""
    found: list[PromptResult] = []
    for message in reversed(prompt.messages):
        if message.role is Role.USER:
            break
        found.extend(part for part in reversed(message.parts) if isinstance(part, PromptResult))
    return found[::-1]


def _flat(steps: Sequence[Step], prompt: Prompt) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, When):
            yield from _flat(step.steps if _holds(step, prompt) else step.otherwise, prompt)
        else:
            yield step


def _holds(when: When, prompt: Prompt) -> bool:
    if when.last_user is not None and not re.search(when.last_user, last_user_text(prompt)):
        return False
    if when.tool_result is None:
        return True
    return any(re.search(when.tool_result, result.text) for result in results_since_user(prompt))


def _size(part: PromptPart) -> int:
    match part:
        case PromptCall():
            return len(bytes(part.input))
        case _:
            return len(getattr(part, "text", ""))


def _error(kind: ErrorKind, message: str, *, retryable: bool) -> StreamError:
    return StreamError(ProviderError(kind=kind, message=message, retryable=retryable, provider="scripted"))
