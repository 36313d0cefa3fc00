"""Applies the options of a model config to a call, in the form of the call's wire.

`NOT_SENT` lists the options that a wire ignores. A test checks that every other option changes the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rookery.domain.models.options import ModelOptions
from rookery.llm.anthropic.request import AnthropicOptions
from rookery.llm.completions.dialects import CompletionsOptions
from rookery.llm.responses.request import ResponsesOptions
from rookery.llm.types import Call, WebSearch, Wire

# Options that are used before the call is made: the wire, the effort, the fallbacks, and the capabilities.
DECIDED_BEFORE = frozenset(
    {"reasoning_effort", "fallbacks", "capabilities", "use_responses_api", "first_byte_seconds", "silence_seconds"}
)
WEB_SEARCH = frozenset(
    {
        "web_search_enabled",
        "web_search_version",
        "web_search_max_uses",
        "web_search_user_location",
        "web_search_context_size",
        "allowed_domains",
        "blocked_domains",
    }
)
_ON_COMPLETIONS_ONLY = frozenset({"logit_bias", "prediction"})
_COMPAT = frozenset({"max_tokens_field", "include_usage", "replay_reasoning", "think_tags", "extra_body", "headers"})

NOT_SENT: Mapping[Wire, frozenset[str]] = {
    "anthropic": frozenset(),
    "responses": _ON_COMPLETIONS_ONLY | _COMPAT,
    "completions": frozenset({"reasoning_summary", "max_tool_calls"}) | WEB_SEARCH,
    "bridge": frozenset(),
    "scripted": frozenset(),
}
_STRUCTS: Mapping[Wire, type[msgspec.Struct]] = {
    "anthropic": AnthropicOptions,
    "responses": ResponsesOptions,
    "completions": CompletionsOptions,
}
_USER_FIELDS: Mapping[Wire, str] = {
    "anthropic": "user_hash",
    "responses": "safety_identifier",
    "completions": "user",
}
_STORAGE = ("store", "prompt_cache_key")
_CALL_FIELDS = ("max_output_tokens", "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")


def with_options(call: Call, options: ModelOptions, *, wire: Wire) -> Call:
    """Return the call with the config's options. Values that the call already has are kept."""
    given: dict[str, Any] = {name: getattr(options, name) for name in _CALL_FIELDS if getattr(call, name) is None}
    if call.options is None:
        given["options"] = wire_options(options, wire)
    if wire != "completions" and call.web_search is None:
        given["web_search"] = web_search(options)
    return msgspec.structs.replace(call, **given)


def wire_options(options: ModelOptions, wire: Wire) -> msgspec.Struct | None:
    """Return the options struct of the wire; None for wires without one. Unset options keep the wire's defaults."""
    struct = _STRUCTS.get(wire)
    if struct is None:
        return None
    given: dict[str, Any] = {name: getattr(options, name, None) for name in struct.__struct_fields__}
    if options.thinking is not None and wire == "anthropic":
        given["budget_tokens"] = options.thinking.budget_tokens
    return struct(**{name: value for name, value in given.items() if value is not None})


def without_storage(call: Call) -> Call:
    """Return the call without the options by which the provider stores it, or shares a cache between calls."""
    if call.options is None:
        return call
    usual = type(call.options)()
    named = {name: getattr(usual, name) for name in _STORAGE if hasattr(usual, name)}
    return msgspec.structs.replace(call, options=msgspec.structs.replace(call.options, **named))


def with_user(call: Call, user_hash: str | None, *, wire: Wire) -> Call:
    """Return the call with the hash of its user if the wire has a field for it."""
    field = _USER_FIELDS.get(wire)
    if user_hash is None or field is None:
        return call
    options = _STRUCTS[wire]() if call.options is None else call.options
    return msgspec.structs.replace(call, options=msgspec.structs.replace(options, **{field: user_hash}))


def web_search(options: ModelOptions) -> WebSearch | None:
    """Return the settings of the provider's web search; None if the config does not enable it."""
    if not options.web_search_enabled:
        return None
    return WebSearch(
        allowed_domains=options.allowed_domains,
        blocked_domains=options.blocked_domains,
        max_uses=options.web_search_max_uses,
        user_location=options.web_search_user_location,
        version=options.web_search_version,
        context_size=options.web_search_context_size,
    )
