"""The body of a Chat Completions request.

Settings are first and messages last, so that the next request of the chat begins with the same bytes. Messages and
tools are encoded once; their hash is stored with the answer, and the driver copies the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Effort
from rookery.llm import reasoning_effort
from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.completions import messages
from rookery.llm.completions.dialects import CompletionsOptions, Dialect
from rookery.llm.encoded_history import pieces_of
from rookery.llm.types import Call, CallWarning, Capabilities, Tool
from rookery.llm.wire import Request

Json: TypeAlias = Any

PATH = "/chat/completions"


def build(
    call: Call,
    dialect: Dialect,
    *,
    model: str,
    caps: Capabilities,
    options: CompletionsOptions,
    headers: Mapping[str, str],
    previous: EncodedRequest | None = None,
) -> Request:
    """Build the request. The bytes depend on the call alone; `previous` only saves work."""
    warnings: list[CallWarning] = []
    tools = _tools(call.tools, dialect, options=options)
    replay = options.replay_reasoning
    pieces = pieces_of(previous or EncodedRequest(), call, _seed(model, tools), key=(dialect, caps, replay))
    messages.write(call, pieces, dialect, caps=caps, replay=replay)
    body: dict[str, Json] = {"model": model, "stream": True}
    if options.include_usage:
        body["stream_options"] = {"include_usage": True}
    body |= _limits(call, dialect, caps=caps, options=options)
    effort = _effort(call, caps, warnings=warnings)
    body |= _sampling(call, dialect, caps=caps, effort=effort, warnings=warnings)
    body |= effort
    body |= _optional(call, dialect, options=options)
    body |= _format(call, dialect, caps=caps, options=options, warnings=warnings)
    if tools is not None:
        body["tools"] = tools
        body |= _tool_use(call, options)
    if call.web_search is not None:
        warnings.append(CallWarning("unsupported_tool", "web_search", "This endpoint has no web search of its own."))
    # Merged before the messages are added, which must be last for a stable prefix.
    body |= options.extra_body
    body.setdefault("messages", list(pieces.sent))
    return Request(
        path=PATH,
        body=body,
        headers=headers,
        warnings=tuple(warnings),
        prefix_fp=pieces.digest(),
        broken_prefix=pieces.broken_prefix(call.prompt),
    )


def _limits(call: Call, dialect: Dialect, *, caps: Capabilities, options: CompletionsOptions) -> dict[str, Json]:
    if call.max_output_tokens is None:
        return {}
    limit = min(call.max_output_tokens, caps.max_output or call.max_output_tokens)
    return {options.max_tokens_field or dialect.max_tokens_field: limit}


def _sampling(
    call: Call, dialect: Dialect, *, caps: Capabilities, effort: Mapping[str, Json], warnings: list[CallWarning]
) -> dict[str, float | int]:
    """Return temperature and similar settings. OpenAI's own models accept them only if reasoning is off."""
    reasons = caps.reasoning_model and effort.get("reasoning_effort") != Effort.NONE
    takes = caps.sampling and (dialect.samples_while_reasoning or not reasons)
    asked = {
        "temperature": call.temperature,
        "top_p": call.top_p,
        "top_k": call.top_k,
        "presence_penalty": call.presence_penalty,
        "frequency_penalty": call.frequency_penalty,
    }
    sent: dict[str, float | int] = {}
    for name, value in asked.items():
        if value is None:
            continue
        if takes and (name != "top_k" or dialect.takes_top_k):
            sent[name] = value
        else:
            warnings.append(
                CallWarning("unsupported_setting", name, f"This model does not accept {name}; it was left out.")
            )
    return sent


def _effort(call: Call, caps: Capabilities, *, warnings: list[CallWarning]) -> dict[str, Json]:
    """Return the field with the nearest effort that the model supports."""
    if call.effort is None:
        return {}
    nearest = reasoning_effort.nearest_supported(call.effort, caps.efforts)
    if nearest is None:
        if call.effort is not Effort.NONE:
            warnings.append(CallWarning("unsupported_setting", "effort", "This model has no reasoning effort to set."))
        return {}
    return {"reasoning_effort": nearest.value}


def _optional(call: Call, dialect: Dialect, *, options: CompletionsOptions) -> dict[str, Json]:
    cache_key = options.prompt_cache_key or (call.cache_key if dialect.takes_cache_key else None)
    fields = {
        "verbosity": options.text_verbosity,
        "store": options.store,
        "metadata": options.metadata,
        "prompt_cache_key": cache_key,
        "service_tier": options.service_tier,
        "user": options.user,
        "logit_bias": options.logit_bias,
        "logprobs": None if options.top_logprobs is None else True,
        "top_logprobs": options.top_logprobs,
        "prediction": options.prediction,
        "seed": options.seed,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _format(
    call: Call, dialect: Dialect, *, caps: Capabilities, options: CompletionsOptions, warnings: list[CallWarning]
) -> dict[str, Json]:
    if call.format is None:
        return {}
    if not caps.json_schema:
        warnings.append(
            CallWarning("unsupported_setting", "format", "This model accepts no JSON schema; it was left out.")
        )
        return {}
    schema: dict[str, Json] = {"name": call.format.name, "schema": call.format.schema}
    if dialect.takes_strict and options.strict_json_schema is not None:
        schema["strict"] = options.strict_json_schema
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _tools(tools: tuple[Tool, ...], dialect: Dialect, *, options: CompletionsOptions) -> Raw | None:
    if not tools:
        return None
    built = []
    for tool in sorted(tools, key=lambda tool: tool.name):
        function: dict[str, Json] = {"name": tool.name, "description": tool.description}
        function["parameters"] = _parameters(tool.input_schema)
        if dialect.takes_strict and options.strict_json_schema is not None:
            function["strict"] = options.strict_json_schema
        built.append({"type": "function", "function": function})
    return parts.json_raw(built)


def _parameters(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schema, with an empty `properties` added if it has none.

    Several servers refuse an object schema without that key.
    """
    if schema.get("type") == "object" and schema.get("properties") is None:
        return {**schema, "properties": {}}
    return dict(schema)


def _tool_use(call: Call, options: CompletionsOptions) -> dict[str, Json]:
    built: dict[str, Json] = {}
    if options.parallel_tool_calls is not None:
        built["parallel_tool_calls"] = options.parallel_tool_calls
    match call.tool_choice:
        case "auto":
            pass
        case "none" | "required":
            built["tool_choice"] = call.tool_choice
        case _ if len(call.tools) == 1:
            # Equivalent for one tool. Some compatible servers refuse the form with a name.
            built["tool_choice"] = "required"
        case name:
            built["tool_choice"] = {"type": "function", "function": {"name": name}}
    return built


def _seed(model: str, tools: Raw | None) -> bytes:
    return len(model).to_bytes(8, "big") + model.encode() + bytes(tools or b"")
