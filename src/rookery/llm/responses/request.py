"""The body of an OpenAI Responses request: settings, tools, and the history as input items.

The API refuses a reasoning item without the item that followed it, and an item without the reasoning before it. An
assistant message is therefore replayed with all its ids ("faithful") or with none ("plain").

Every request contains the whole history. Requests are not chained with `previous_response_id`, because that needs
responses stored at the provider, which expire, may be forbidden, and become invalid when a message is edited.

The field `input` is last, so that two requests of a chat have the same bytes up to the first new item.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import (
    Meta,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm import reasoning_effort
from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.encoded_history import Pieces, last_index, pieces_of
from rookery.llm.types import Call, CallWarning, Capabilities, Tool, WebSearch
from rookery.llm.wire import PromptInvalid, Request

Item: TypeAlias = dict[str, Any]

PATH = "/responses"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
SEARCH_SOURCES = "web_search_call.action.sources"
LOGPROBS = "message.output_text.logprobs"

# The API refuses lower values.
MIN_OUTPUT_TOKENS = 16

_NO_SAMPLING = "This model does not accept sampling settings at this effort; they were left out."
_NOT_ON_THIS_WIRE = "The Responses API has no such setting; it was left out."

_encoder = msgspec.json.Encoder(decimal_format="number")


class ResponsesOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of this wire. A field with None is not sent.

    `store` makes responses visible in the dashboard of the provider. They are never read back.
    """

    store: bool = False
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = "auto"
    reasoning_context: Literal["auto", "current_turn", "all_turns"] | None = None
    text_verbosity: Literal["low", "medium", "high"] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    metadata: Mapping[str, str] | None = None
    strict_json_schema: bool = False
    top_logprobs: int | None = None


def build(
    model: str, caps: Capabilities, call: Call, *, headers: Mapping[str, str], previous: EncodedRequest
) -> Request:
    """Build the request. The bytes depend on the call alone; `previous` only saves work.

    Raise `PromptInvalid` if the prompt has a call without output or an output without call.
    """
    fields, warnings = _settings(model, caps, call)
    seed = _encoder.encode([model, fields.get("tools")])
    pieces = pieces_of(previous, call, seed, key=caps.reasoning_model)
    _write(call, caps, pieces)
    return Request(
        path=PATH,
        body={**fields, "input": list(pieces.sent)},
        headers=headers,
        warnings=(*warnings, *pieces.notes),
        prefix_fp=pieces.digest(),
        broken_prefix=pieces.broken_prefix(call.prompt),
    )


def _settings(model: str, caps: Capabilities, call: Call) -> tuple[dict[str, Any], list[CallWarning]]:
    """Return all fields but the history, and warnings about settings that cannot be sent."""
    options = call.options if isinstance(call.options, ResponsesOptions) else ResponsesOptions()
    warnings: list[CallWarning] = []
    effort = chosen_effort(call.effort, caps)
    fields: dict[str, Any] = {
        "model": model,
        "stream": True,
        "store": options.store,
        "truncation": "disabled",
        "include": _include(call, caps, options) or None,
        "max_output_tokens": _max_output(call, caps),
        **_sampling(call, caps, effort=effort, warnings=warnings),
        "reasoning": _reasoning(call, caps, options=options, effort=effort, warnings=warnings),
        "text": _text(call, options) or None,
        "top_logprobs": options.top_logprobs,
        "max_tool_calls": options.max_tool_calls,
        "prompt_cache_key": options.prompt_cache_key or call.cache_key,
        "safety_identifier": options.safety_identifier,
        "service_tier": options.service_tier,
        "metadata": dict(options.metadata) if options.metadata else None,
        **_tool_fields(call, options, warnings),
    }
    return {name: value for name, value in fields.items() if value is not None}, warnings


def chosen_effort(asked: Effort | None, caps: Capabilities) -> Effort | None:
    """Return the effort to send; None for the model's default.

    If the supported efforts are unknown, `asked` is sent.
    """
    if asked is None or not caps.reasoning_model:
        return None
    return reasoning_effort.nearest_supported(asked, caps.efforts) or asked


# Settings


def _include(call: Call, caps: Capabilities, options: ResponsesOptions) -> list[str]:
    included = []
    if caps.reasoning_model:
        included.append(ENCRYPTED_REASONING)
    if call.web_search is not None:
        included.append(SEARCH_SOURCES)
    if options.top_logprobs is not None:
        included.append(LOGPROBS)
    return included


def _max_output(call: Call, caps: Capabilities) -> int | None:
    if call.max_output_tokens is None:
        return None
    limit = call.max_output_tokens if caps.max_output is None else min(call.max_output_tokens, caps.max_output)
    return max(limit, MIN_OUTPUT_TOKENS)


def _sampling(
    call: Call, caps: Capabilities, *, effort: Effort | None, warnings: list[CallWarning]
) -> dict[str, float | None]:
    """Return temperature and top_p. A reasoning model accepts them only if reasoning is off."""
    warnings.extend(
        CallWarning("unsupported_setting", setting, _NOT_ON_THIS_WIRE)
        for setting in ("top_k", "presence_penalty", "frequency_penalty")
        if getattr(call, setting) is not None
    )
    asked = {"temperature": call.temperature, "top_p": call.top_p}
    if caps.sampling and (not caps.reasoning_model or effort is Effort.NONE):
        return asked
    for setting, value in asked.items():
        if value is not None:
            warnings.append(CallWarning("unsupported_setting", setting, _NO_SAMPLING))
    return {}


def _reasoning(
    call: Call, caps: Capabilities, *, options: ResponsesOptions, effort: Effort | None, warnings: list[CallWarning]
) -> dict[str, str] | None:
    if not caps.reasoning_model:
        if call.effort not in (None, Effort.NONE):
            message = "This model does not reason; the effort was left out."
            warnings.append(CallWarning("unsupported_setting", "effort", message))
        return None
    settings = {"effort": effort, "summary": options.reasoning_summary, "context": options.reasoning_context}
    return {name: str(value) for name, value in settings.items() if value is not None} or None


def _text(call: Call, options: ResponsesOptions) -> dict[str, Any]:
    text: dict[str, Any] = {}
    if options.text_verbosity is not None:
        text["verbosity"] = options.text_verbosity
    if call.format is not None:
        text["format"] = {
            "type": "json_schema",
            "name": call.format.name,
            "schema": dict(call.format.schema),
            "strict": options.strict_json_schema,
        }
    return text


# Tools


def _tool_fields(call: Call, options: ResponsesOptions, warnings: list[CallWarning]) -> dict[str, Any]:
    """Return the local tools sorted by name, then the provider's. The order of registration must not matter."""
    tools: list[Item] = [
        _function(tool, strict=options.strict_json_schema) for tool in sorted(call.tools, key=lambda tool: tool.name)
    ]
    if call.web_search is not None:
        tools.append(_web_search(call.web_search, warnings))
    if not tools:
        return {}
    return {
        "tools": tools,
        "tool_choice": _tool_choice(call, warnings),
        "parallel_tool_calls": options.parallel_tool_calls,
    }


def _function(tool: Tool, *, strict: bool) -> Item:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.input_schema),
        "strict": strict,
    }


def _web_search(search: WebSearch, warnings: list[CallWarning]) -> Item:
    tool: Item = {"type": "web_search"}
    if search.allowed_domains:
        tool["filters"] = {"allowed_domains": list(search.allowed_domains)}
    if search.context_size is not None:
        tool["search_context_size"] = search.context_size
    if search.user_location is not None:
        tool["user_location"] = {"type": "approximate"} | dict(search.user_location)
    if search.blocked_domains:
        message = "OpenAI's web search cannot block domains; all domains are searched."
        warnings.append(CallWarning("unsupported_tool", "web_search.blocked_domains", message))
    if search.version is not None:
        message = "OpenAI's web search has one version only; it was used."
        warnings.append(CallWarning("unsupported_tool", "web_search.version", message))
    if search.max_uses is not None:
        message = "OpenAI's web search has no limit of its own; set max_tool_calls instead."
        warnings.append(CallWarning("unsupported_tool", "web_search.max_uses", message))
    return tool


def _tool_choice(call: Call, warnings: list[CallWarning]) -> str | Item:
    if call.tool_choice in ("auto", "none", "required"):
        return call.tool_choice
    if any(tool.name == call.tool_choice for tool in call.tools):
        return {"type": "function", "name": call.tool_choice}
    message = f"There is no tool named {call.tool_choice} to force; the model chooses itself."
    warnings.append(CallWarning("unsupported_tool", "tool_choice", message))
    return "auto"


# Input items


def _write(call: Call, caps: Capabilities, pieces: Pieces) -> None:
    """Encode the prompt as items. Raise `PromptInvalid` unless ids are unique and each call has one output after it."""
    messages = call.prompt.messages
    last_answer = last_index(messages, Role.ASSISTANT)
    open_calls: set[str] = set()
    for index in range(pieces.resume(messages), len(messages)):
        if index == last_answer and not open_calls:
            pieces.mark(index)
        for item in _items(messages[index], caps, pieces.notes, plain=call.plain_history):
            _pair(item, open_calls, pieces)
            pieces.add(Raw(_encoder.encode(item)))
    if open_calls:
        raise PromptInvalid(f"No output follows the calls {', '.join(sorted(open_calls))}.")


def _pair(item: Item, open_calls: set[str], pieces: Pieces) -> None:
    if item["type"] == "function_call":
        if not pieces.is_new_id(item["call_id"]):
            raise PromptInvalid(f"The call id {item['call_id']} is used twice.")
        open_calls.add(item["call_id"])
    elif item["type"] == "function_call_output":
        if item["call_id"] not in open_calls:
            raise PromptInvalid(f"The output of {item['call_id']} has no open call before it.")
        open_calls.discard(item["call_id"])


def _items(message: PromptMessage, caps: Capabilities, warnings: list[CallWarning], *, plain: bool) -> Iterable[Item]:
    match message.role:
        case Role.SYSTEM:
            return _system_items(message, "developer" if caps.reasoning_model else "system")
        case Role.USER:
            return _user_items(message, warnings)
        case Role.ASSISTANT if not plain and is_faithful(message):
            return _faithful_items(message.parts)
        case Role.ASSISTANT:
            return _plain_items(message.parts)
        case Role.TOOL:
            return (_output(part) for part in message.parts if isinstance(part, PromptResult))


def is_faithful(message: PromptMessage) -> bool:
    """Return whether this assistant message can be sent back with all its ids, in the original order.

    The API refuses an id without its reasoning, and reasoning without the item after it. A message that has lost either
    (interrupted, from another provider, filtered) is sent without ids.
    """
    if not (message.is_native and message.is_whole):
        return False
    sent = _sendable(message.parts)
    if any(not _meta(part).get("item_id") for part in sent):
        return False
    if any(not _meta(part).get("encrypted_content") for part in sent if isinstance(part, PromptReasoning)):
        return False
    return not sent or not isinstance(sent[-1], PromptReasoning)


def _sendable(parts: Sequence[PromptPart]) -> list[PromptPart]:
    """Return the parts that become items. A search is left out unless it directly follows reasoning."""
    kept: list[PromptPart] = []
    for part in parts:
        match part:
            case PromptFile() | PromptResult(provider_executed=True):
                continue
            case PromptCall(provider_executed=True) if not (kept and isinstance(kept[-1], PromptReasoning)):
                continue
        kept.append(part)
    return kept


def _faithful_items(parts: Sequence[PromptPart]) -> Iterator[Item]:
    open_message: Item | None = None
    for part in _sendable(parts):
        if isinstance(part, PromptText) and open_message is not None and open_message["id"] == _meta(part)["item_id"]:
            open_message["content"].append(_content(part))
            continue
        if open_message is not None:
            yield open_message
            open_message = None
        match part:
            case PromptText():
                open_message = _message(part)
            case PromptReasoning():
                yield _reasoning_item(_meta(part))
            case PromptCall(provider_executed=True):
                yield _without_sources(_meta(part)["raw"])
            case PromptCall():
                yield _call(part, item_id=_meta(part)["item_id"])
            case PromptResult():
                yield _output(part)
    if open_message is not None:
        yield open_message


def _without_sources(item: Item) -> Item:
    """Return a web search without its sources, which the API does not accept back."""
    action = item.get("action")
    if not isinstance(action, dict) or "sources" not in action:
        return item
    return {**item, "action": {name: value for name, value in action.items() if name != "sources"}}


def _plain_items(parts: Sequence[PromptPart]) -> Iterator[Item]:
    """Yield the messages, tool calls and tool outputs of an assistant message as items of a request.

    Ids, reasoning and parts that the provider executed are left out. Several texts of one item are yielded as one
    message.
    """
    open_message: Item | None = None
    open_id: str | None = None
    for part in parts:
        if isinstance(part, PromptText) and open_message is not None and _meta(part).get("item_id") == open_id:
            open_message["content"] += part.text
            continue
        if open_message is not None:
            yield open_message
            open_message = open_id = None
        match part:
            case PromptText():
                item: Item = {"type": "message", "role": "assistant", "content": part.text}
                if open_id := _meta(part).get("item_id"):
                    open_message = _with_phase(item, part)
                else:
                    yield _with_phase(item, part)
            case PromptCall(provider_executed=False):
                yield _call(part)
            case PromptResult(provider_executed=False):
                yield _output(part)
    if open_message is not None:
        yield open_message


def _system_items(message: PromptMessage, role: str) -> Iterator[Item]:
    for part in message.parts:
        if isinstance(part, PromptText):
            yield {"type": "message", "role": role, "content": [{"type": "input_text", "text": part.text}]}


def _user_items(message: PromptMessage, warnings: list[CallWarning]) -> Iterator[Item]:
    content = [_user_content(part, warnings) for part in message.parts if isinstance(part, PromptText | PromptFile)]
    if content:
        yield {"type": "message", "role": "user", "content": content}


def _user_content(part: PromptText | PromptFile, warnings: list[CallWarning]) -> Item:
    if isinstance(part, PromptText):
        return {"type": "input_text", "text": part.text}
    plain_type = part.media_type.partition(";")[0].strip().lower()
    if plain_type.startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": _data_url(plain_type, part.data)}
    if plain_type == "application/pdf":
        data = _data_url(plain_type, part.data)
        return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": data}
    message = f"The Responses API does not accept files of type {plain_type}; the model was told that one is missing."
    warnings.append(CallWarning("other", "file", message))
    return {"type": "input_text", "text": f"(an attached file of type {plain_type} could not be shown)"}


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _message(part: PromptText) -> Item:
    item: Item = {
        "type": "message",
        "id": _meta(part)["item_id"],
        "role": "assistant",
        "status": "completed",
        "content": [_content(part)],
    }
    return _with_phase(item, part)


def _content(part: PromptText) -> Item:
    if _meta(part).get("refusal"):
        return {"type": "refusal", "refusal": part.text}
    return {"type": "output_text", "text": part.text, "annotations": []}


def _with_phase(item: Item, part: PromptText) -> Item:
    # Models that label their messages give worse answers if the label is not sent back.
    if phase := _meta(part).get("phase"):
        item["phase"] = phase
    return item


def _reasoning_item(meta: Meta) -> Item:
    return {
        "type": "reasoning",
        "id": meta["item_id"],
        "summary": meta.get("summary") or [],
        "encrypted_content": meta["encrypted_content"],
    }


def _call(part: PromptCall, *, item_id: str | None = None) -> Item:
    item: Item = {"type": "function_call"}
    if item_id is not None:
        item["id"] = item_id
    # Arguments are sent as a string, so that the model sees its own JSON unchanged.
    return item | {"call_id": part.id, "name": part.name, "arguments": bytes(part.input).decode()}


def _output(part: PromptResult) -> Item:
    output: str | list[Item] = part.text
    if part.media is not None:
        output = [{"type": "input_text", "text": part.text}] if part.text else []
        url = f"data:{part.media.media_type};base64,{part.media.data}"
        output.append({"type": "input_image", "detail": "auto", "image_url": url})
    return {"type": "function_call_output", "call_id": part.id, "output": output}


def _meta(part: PromptPart) -> Meta:
    return {} if isinstance(part, PromptFile) or part.meta is None else part.meta
