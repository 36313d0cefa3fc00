"""The protocol of all models: a `Call` is sent, and a stream of parts is returned.

The contract of `stream()`:

- The last part is `Finish` or `StreamError`; both are called terminal. No other part is.
- It raises only `CancelledError` and programming errors.
- Every text or reasoning block that was started is ended before `Finish`.
- Closing the generator closes the HTTP response immediately.
- It retries nothing, except for the repairs of the replay ladder.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import Effort
from rookery.domain.chat.model_prompt import Meta, Prompt

Wire: TypeAlias = Literal["anthropic", "responses", "completions", "bridge", "scripted"]

MAX_DETAIL = 500


class Purpose(StrEnum):
    """The purpose of a call, for the usage ledger and the metrics."""

    TURN = "turn"
    COMPACTION = "compaction"
    ADVISOR = "advisor"
    TITLE = "title"
    LABEL = "label"
    SUMMARY = "summary"
    REPLAY = "replay"  # of a recorded step


class FinishReason(StrEnum):
    """The reason why a model stopped. `pause`: the provider paused its own tools and must be called again."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"
    OTHER = "other"


class ErrorKind(StrEnum):
    OVERLOADED = "overloaded"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    STREAM_SILENCE_TIMEOUT = "stream_silence_timeout"
    AUTH = "auth"
    CONFIG = "config"
    USAGE_LIMIT = "usage_limit"
    BUDGET = "budget"  # the budget of a subagent
    MISSING_KEY = "missing_key"
    PROVIDER_DISABLED = "provider_disabled"
    CONTENT_FILTER = "content_filter"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_TOOL_CALL = "invalid_tool_call"
    GENERIC = "generic"


class ReplayFault(StrEnum):
    """A fault that a provider found in the history. The replay ladder has one repair for each.

    `INVALID_CALL` is different: the model's answer had an invalid tool call. The model is called again and shown it.
    """

    STALE_THINKING = "A"
    UNPROVEN_REASONING = "B"
    BROKEN_PAIRS = "C"
    UNKNOWN_ITEM = "D"
    INVALID_CALL = "E"


class ProviderError(msgspec.Struct, frozen=True, kw_only=True):
    """A failed call. `message` is a sentence for users; `detail` is the provider's text, cut to `MAX_DETAIL`."""

    kind: ErrorKind
    message: str
    retryable: bool
    provider: str
    detail: str | None = None
    status: int | None = None
    code: str | None = None
    retry_after: timedelta | None = None
    request_id: str | None = None
    context_used: int | None = None
    context_max: int | None = None
    replay_fault: ReplayFault | None = None
    failed_generation: str | None = None  # the text of an invalid tool call


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens; None means "not reported". `input` excludes cached tokens, `output` includes reasoning.

    A provider may call its model several times for one answer. `context_tokens` is the input of the last of these
    passes; the other numbers are sums.
    """

    input: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None
    output: int | None = None
    reasoning: int | None = None
    total: int | None = None
    web_searches: int | None = None
    context_tokens: int | None = None


# Stream parts


class CallWarning(msgspec.Struct, frozen=True):
    type: Literal["unsupported_setting", "unsupported_tool", "other"]
    setting: str
    message: str


class Warnings(msgspec.Struct, frozen=True):
    """Settings that were not sent. At most one per stream, and always the first part."""

    items: tuple[CallWarning, ...]


class ResponseStarted(msgspec.Struct, frozen=True):
    """The start of a response. `prefix_fp` is the hash of the request's prefix; None if the wire has none."""

    response_id: str | None
    model: str | None
    request_id: str | None
    prefix_fp: bytes | None = None


class TextStart(msgspec.Struct, frozen=True):
    id: str


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    id: str
    text: str


class TextEnd(msgspec.Struct, frozen=True):
    id: str
    meta: Meta | None = None
    refusal: bool = False


class ReasoningStart(msgspec.Struct, frozen=True):
    id: str
    meta: Meta | None = None


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    id: str
    text: str


class ReasoningEnd(msgspec.Struct, frozen=True):
    """The end of a reasoning block, which may have no text. `meta` (a signature) replaces the `meta` of the start."""

    id: str
    meta: Meta | None = None


class ToolInputStart(msgspec.Struct, frozen=True):
    """The start of a call's input, for live display only. The complete call follows as `ToolCall`."""

    id: str
    name: str
    provider_executed: bool = False


class ToolInputDelta(msgspec.Struct, frozen=True, gc=False):
    id: str
    json: str


class ToolInputEnd(msgspec.Struct, frozen=True):
    id: str


class ToolCall(msgspec.Struct, frozen=True):
    """A complete call; it follows its `ToolInputEnd`. `input` is the JSON text that the model wrote."""

    id: str
    name: str
    input: str
    provider_executed: bool = False
    meta: Meta | None = None


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a tool that the provider executed."""

    id: str
    name: str
    output: Raw
    is_error: bool = False
    meta: Meta | None = None


class Source(msgspec.Struct, frozen=True):
    """A source that the answer cites. A step reports each source once."""

    id: str
    kind: Literal["url", "document"]
    url: str
    title: str | None = None


class GeneratedFile(msgspec.Struct, frozen=True):
    id: str
    media_type: str
    data: bytes


class UsageUpdate(msgspec.Struct, frozen=True):
    """The usage so far, so that an interrupted step has usage as well. A wire may send it at any time."""

    usage: Usage


# The value of `Finish.meta["stop_reason"]` if `reason` is `tool_calls` but the output limit was reached.
HIT_LIMIT = "max_tokens"


class Finish(msgspec.Struct, frozen=True):
    """The end of an answer. If the answer has local calls, `reason` is `tool_calls`, unless it is `content_filter`.

    A call whose input was cut off by the output limit or a filter has no `ToolCall`, only parts of its input.
    """

    reason: FinishReason
    usage: Usage
    meta: Meta | None = None
    detail: str | None = None


class StreamError(msgspec.Struct, frozen=True):
    error: ProviderError


StreamPart: TypeAlias = (
    Warnings
    | ResponseStarted
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputStart
    | ToolInputDelta
    | ToolInputEnd
    | ToolCall
    | ToolResult
    | Source
    | GeneratedFile
    | UsageUpdate
    | Finish
    | StreamError
)


# Calls


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a local tool. `input_schema` is the JSON schema of an object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class WebSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the provider's web search. At most one of the domain lists is set."""

    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    max_uses: int | None = None
    user_location: Mapping[str, str] | None = None
    version: str | None = None
    context_size: str | None = None


class JsonFormat(msgspec.Struct, frozen=True):
    """Requests an answer that is one JSON object of this schema."""

    name: str
    schema: Mapping[str, Any]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model. `options` is the options struct of the wire.

    `drop_stale_thinking` and `plain_history` are set by the replay ladder, or by a caller that knows that the prefix
    changed.
    """

    prompt: Prompt
    purpose: Purpose = Purpose.TURN
    tools: tuple[Tool, ...] = ()
    web_search: WebSearch | None = None
    tool_choice: str = "auto"  # auto, none, required, or the name of a tool
    format: JsonFormat | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    effort: Effort | None = None
    options: msgspec.Struct | None = None
    headers: Mapping[str, str] = {}
    chat_id: str | None = None  # the chat whose refused histories are remembered
    cache_key: str | None = None  # the id of the root chat, by which providers choose a cache
    drop_stale_thinking: bool = False
    plain_history: bool = False


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """The forms of thinking that a model accepts, and whether it thinks by default."""

    adaptive: bool = False
    budget: bool = False
    disabled: bool = False
    between_tools: bool = False
    default_on: bool = False
    always_on: bool = False


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The features and limits of a model. The defaults apply to models that are not in the catalog."""

    max_output: int | None = None
    thinking: Thinking = Thinking()
    efforts: tuple[Effort, ...] = ()
    binds_thinking: bool = False
    thinking_family: str | None = None
    forced_tool_choice: bool = False
    sampling: bool = True
    json_schema: bool = False
    reasoning_model: bool = False
    media_types: tuple[str, ...] = ()  # exact types, or `image/*`

    def accepts(self, media_type: str) -> bool:
        """Return whether the model accepts files of this type. Parameters (`; charset=...`) are ignored."""
        plain = media_type.partition(";")[0].strip().lower()
        family = plain.partition("/")[0] + "/*"
        return plain in self.media_types or family in self.media_types or "*/*" in self.media_types


class LanguageModel(Protocol):
    """A model that can be called. A wrapper has the same attributes as the model it wraps."""

    provider_id: UUID
    provider_type: str
    model: str
    wire: Wire
    caps: Capabilities

    def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]: ...
