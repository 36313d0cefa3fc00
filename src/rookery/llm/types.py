"""The protocol of all models: a `Call` in, a stream of parts out, exactly one of them terminal.

Contract of `stream()`: one terminal part (`Finish` or `StreamError`), then the generator ends; it raises only
`CancelledError` and programming errors; every started text or reasoning block is ended before `Finish`; closing the
generator closes the HTTP response immediately; nothing is retried inside except the replay ladder.
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
from rookery.domain.chat.prompt_parts import Meta, Prompt

Wire: TypeAlias = Literal["anthropic", "responses", "completions", "bridge", "scripted"]

MAX_DETAIL = 500


class Purpose(StrEnum):
    """The purpose of a call, which the ledger and the metrics distinguish."""

    TURN = "turn"
    COMPACTION = "compaction"
    ADVISOR = "advisor"
    TITLE = "title"
    LABEL = "label"
    SUMMARY = "summary"


class FinishReason(StrEnum):
    """The reason a model stopped. `pause`: the provider paused a server-tool loop and wants to be asked again."""

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
    MISSING_KEY = "missing_key"
    PROVIDER_DISABLED = "provider_disabled"
    CONTENT_FILTER = "content_filter"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_TOOL_CALL = "invalid_tool_call"
    GENERIC = "generic"


class ReplayFault(StrEnum):
    """A fault that a provider reported in the history it was sent. The replay ladder has one repair for each.

    `INVALID_CALL` is different: the model's answer had an invalid tool call. The model is asked once more and shown it.
    """

    STALE_THINKING = "A"
    UNPROVEN_REASONING = "B"
    BROKEN_PAIRS = "C"
    UNKNOWN_ITEM = "D"
    INVALID_CALL = "E"


class ProviderError(msgspec.Struct, frozen=True, kw_only=True):
    """A failed call, as a value. `message` is a sentence for users, `detail` the provider's text, bounded."""

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
    failed_generation: str | None = None  # an invalid tool call, as the model wrote it


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counted tokens; None means "not reported". `input` excludes cached tokens, `output` includes reasoning.

    `context_tokens` is the input of the last sampling pass; the billed numbers may be the sum of several passes.
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
    """At most one per stream, and always the first part."""

    items: tuple[CallWarning, ...]


class ResponseStarted(msgspec.Struct, frozen=True):
    """`prefix_fp` is the hash of the request's prefix, to be stored with the answer; None if the wire has none."""

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
    """`meta` (signature, encrypted content) replaces that of the start. Reasoning without text is legal."""

    id: str
    meta: Meta | None = None


class ToolInputStart(msgspec.Struct, frozen=True):
    """For live display only; `ToolCall` is authoritative."""

    id: str
    name: str
    provider_executed: bool = False


class ToolInputDelta(msgspec.Struct, frozen=True, gc=False):
    id: str
    json: str


class ToolInputEnd(msgspec.Struct, frozen=True):
    id: str


class ToolCall(msgspec.Struct, frozen=True):
    """The authoritative call; always follows its `ToolInputEnd`. `input` is JSON text as the model wrote it."""

    id: str
    name: str
    input: str
    provider_executed: bool = False
    meta: Meta | None = None


class ToolResult(msgspec.Struct, frozen=True):
    """A result of a provider-executed tool."""

    id: str
    name: str
    output: Raw
    is_error: bool = False
    meta: Meta | None = None


class Source(msgspec.Struct, frozen=True):
    """A source that the answer cites. Sources of a step differ in kind, url or title."""

    id: str
    kind: Literal["url", "document"]
    url: str
    title: str | None = None


class GeneratedFile(msgspec.Struct, frozen=True):
    id: str
    media_type: str
    data: bytes


class UsageUpdate(msgspec.Struct, frozen=True):
    """A cumulative snapshot, sent at any time, so that an interrupted step still has usage."""

    usage: Usage


# The value of `Finish.meta["stop_reason"]` on every wire when `reason` is `tool_calls` but the output limit was hit.
HIT_LIMIT = "max_tokens"


class Finish(msgspec.Struct, frozen=True):
    """The end of an answer. If it has local calls, `reason` is `tool_calls` whatever the wire reported, except for
    `content_filter`.

    A call whose input was cut off by the output limit or a filter has no `ToolCall`; only its input parts were sent.
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
    """A tool that Rookery runs. `input_schema` is a JSON schema of an object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class WebSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's own web search. At most one of the domain lists is set."""

    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    max_uses: int | None = None
    user_location: Mapping[str, str] | None = None
    version: str | None = None
    context_size: str | None = None


class JsonFormat(msgspec.Struct, frozen=True):
    """Request an answer that is one JSON object of this schema."""

    name: str
    schema: Mapping[str, Any]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model. `options` are those of the wire (its module has the struct).

    `drop_stale_thinking` and `plain_history` are set by the replay ladder, or by a caller that knows of a changed
    prefix.
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
    chat_id: str | None = None  # the chat of this history: its refusals are remembered, and not repeated
    cache_key: str | None = None  # the root chat's id: providers that shard caches keep one chat together
    drop_stale_thinking: bool = False
    plain_history: bool = False


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """The forms of thinking a model accepts, and whether it thinks by default."""

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
        """Return whether a file of this type can be sent as it is. Parameters (`; charset=...`) are ignored."""
        plain = media_type.partition(";")[0].strip().lower()
        family = plain.partition("/")[0] + "/*"
        return plain in self.media_types or family in self.media_types or "*/*" in self.media_types


class LanguageModel(Protocol):
    """A model that can be called. A wrapper (debug recorder, spend meter) keeps all of these attributes; the wire is
    fixed at construction."""

    provider_id: UUID
    provider_type: str
    model: str
    wire: Wire
    caps: Capabilities

    def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]: ...
