"""Dialects of Chat Completions servers, and the options of the wire. The options have the names of a model config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from rookery.llm.types import Capabilities

MaxTokensField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]
ReplayReasoning: TypeAlias = Literal["auto", "always", "never"]

_GOOGLE_HOST = "generativelanguage.googleapis.com"


class CompletionsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of this wire. A field with None is left out of the request.

    The last six are for compatible servers. `replay_reasoning` controls when reasoning is sent back; `auto` means
    within a turn, with the answers that called tools. `think_tags` means that reasoning is inside the text as
    `<think>...</think>`. `extra_body` is merged over the finished request.
    """

    store: bool | None = None
    text_verbosity: str | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Mapping[str, str] | None = None
    user: str | None = None
    logit_bias: Mapping[str, int] | None = None
    top_logprobs: int | None = None
    prediction: Mapping[str, Any] | None = None
    seed: int | None = None
    strict_json_schema: bool | None = None
    max_tokens_field: MaxTokensField | None = None
    include_usage: bool = True
    replay_reasoning: ReplayReasoning = "auto"
    think_tags: bool = False
    extra_body: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of one kind of server from the others."""

    max_tokens_field: MaxTokensField = "max_tokens"
    system_role: Literal["system", "developer"] = "system"
    takes_strict: bool = False
    takes_cache_key: bool = False
    takes_top_k: bool = False
    samples_while_reasoning: bool = True
    wants_thought_signatures: bool = False


def dialect_of(provider_type: str, caps: Capabilities, *, base_url: str = "") -> Dialect:
    """Return the dialect of a provider. Google's endpoint is also recognized by its host name."""
    if provider_type == "openai":
        return Dialect(
            max_tokens_field="max_completion_tokens",
            system_role="developer" if caps.reasoning_model else "system",
            takes_strict=True,
            takes_cache_key=True,
            samples_while_reasoning=False,
        )
    if provider_type == "azure_openai":
        # Its reasoning models refuse `max_tokens`, like those of OpenAI.
        field: MaxTokensField = "max_completion_tokens" if caps.reasoning_model else "max_tokens"
        return Dialect(max_tokens_field=field, takes_cache_key=True, samples_while_reasoning=False)
    if provider_type == "google" or urlsplit(base_url).hostname == _GOOGLE_HOST:
        return Dialect(wants_thought_signatures=True)
    return Dialect(takes_top_k=True)
