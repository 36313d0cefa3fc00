"""The body of an Anthropic Messages request: settings, thinking and tools. `messages` encodes the history.

A field that the newest version of the API has removed, or that the model refuses, is left out with a warning. The field
`messages` is last, so that two requests of a chat have the same bytes up to the first new block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from rookery.domain.chat.messages import Effort
from rookery.llm import reasoning_effort
from rookery.llm.anthropic import messages
from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.types import Call, CallWarning, Capabilities, Tool, WebSearch
from rookery.llm.wire import Request

Json: TypeAlias = dict[str, Any]

OLD_VERSION = "2023-06-01"
NEW_VERSION = "2026-10-21"

DEFAULT_MAX_TOKENS = 32_000
MIN_BUDGET = 1024
# The number of tokens for the answer, in addition to the thinking budget.
BUDGET_ROOM = 4096
BUDGETS: Mapping[Effort, int] = {
    Effort.MINIMAL: 1024,
    Effort.LOW: 4096,
    Effort.MEDIUM: 8192,
    Effort.HIGH: 16384,
    Effort.XHIGH: 32000,
    Effort.MAX: 32000,
}
_SENT_EFFORTS = (Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH, Effort.MAX)

FIRST_WEB_SEARCH = "web_search_20250305"
CONTEXT_1M_BETA = "context-1m-2025-08-07"
BINDING_BETA = "thinking-binding-controls-2026-08-01"


class AnthropicOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of this wire. `user_hash` is a pseudonym of the chat's owner and must not identify a person."""

    send_reasoning: bool = True
    budget_tokens: int | None = None
    thinking_display: Literal["summarized", "omitted"] | None = None
    disable_parallel_tool_use: bool = False
    cache_ttl: Literal["5m", "1h"] | None = None
    context_1m: bool = False
    user_hash: str | None = None


def build(model: str, caps: Capabilities, call: Call, *, version: str, path: str, previous: EncodedRequest) -> Request:
    """Build the request. The bytes depend on the call alone; `previous` only saves work.

    Raise `PromptInvalid` if the prompt breaks the rules of this wire.
    """
    options = call.options if isinstance(call.options, AnthropicOptions) else AnthropicOptions()
    notes = _Notes()
    thinking, effort = choose_thinking(call.effort, caps, options, notes)
    tools = _tools(call, notes)
    sent, thinking, drops = _messages(
        model, caps, call, options=options, tools=tools, thinking=thinking, notes=notes, previous=previous
    )
    max_tokens, thinking = _limits(call, caps, thinking)
    if tools:
        tools[-1] = {**tools[-1], "cache_control": _mark(options)}
    body = {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        "thinking": thinking,
        "output_config": _output_config(call, effort),
        "tool_choice": _tool_choice(call, caps, options, thinking=thinking, notes=notes),
        **_sampling(call, caps, version=version, thinking=thinking, notes=notes),
        "metadata": {"user_id": options.user_hash} if options.user_hash else None,
        "tools": tools,
        "system": sent.system,
        "messages": sent.messages,
    }
    binds = thinking is not None and "block_binding" in thinking
    betas = {CONTEXT_1M_BETA: options.context_1m, BINDING_BETA: binds}
    headers = {"anthropic-version": version}
    if named := sorted(name for name, is_on in betas.items() if is_on):
        headers["anthropic-beta"] = ",".join(named)
    return Request(
        path=path,
        body={key: value for key, value in body.items() if value not in (None, [], {})},
        headers=headers,
        warnings=tuple(notes.items),
        prefix_fp=sent.prefix_fp,
        broken_prefix=sent.broken_prefix,
        drops_stale_thinking=drops,
    )


class _Notes:
    """Warnings about settings of the call that cannot be sent."""

    def __init__(self) -> None:
        self.items: list[CallWarning] = []

    def setting(self, name: str, message: str) -> None:
        self.items.append(CallWarning("unsupported_setting", name, message))

    def other(self, name: str, message: str) -> None:
        self.items.append(CallWarning("other", name, message))


# Thinking


def choose_thinking(
    effort: Effort | None, caps: Capabilities, options: AnthropicOptions, notes: _Notes
) -> tuple[Json | None, Effort | None]:
    """Return the `thinking` field and the effort to send."""
    thinking_caps = caps.thinking
    if not (thinking_caps.adaptive or thinking_caps.budget):
        if (effort or Effort.NONE) is not Effort.NONE or options.budget_tokens is not None:
            notes.setting("effort", "This model does not think before it answers; the effort was left out.")
        return None, None
    if effort is None:
        return _default_thinking(caps, options), None
    if effort is Effort.NONE:
        return _thinking_off(caps, notes)
    if not thinking_caps.adaptive:
        return _budget(BUDGETS[effort], options), None
    sent = _sent_effort(effort, caps)
    if sent is None:
        notes.setting("effort", "This model is not known to accept an effort; it decides how long it thinks.")
    return _adaptive(options), sent


def _sent_effort(effort: Effort, caps: Capabilities) -> Effort | None:
    return reasoning_effort.nearest_supported(effort, [one for one in caps.efforts if one in _SENT_EFFORTS])


def _default_thinking(caps: Capabilities, options: AnthropicOptions) -> Json | None:
    if caps.thinking.adaptive:
        asked = options.budget_tokens is not None or caps.thinking.default_on or caps.thinking.always_on
        return _adaptive(options) if asked else None
    return None if options.budget_tokens is None else _budget(options.budget_tokens, options)


def _thinking_off(caps: Capabilities, notes: _Notes) -> tuple[Json | None, Effort | None]:
    thinking_caps = caps.thinking
    if thinking_caps.disabled or not thinking_caps.adaptive:
        return {"type": "disabled"}, None
    if thinking_caps.between_tools:
        return {"type": "between_tools"}, None
    notes.setting("effort", "This model always thinks; it was asked for its lowest effort.")
    return None, _sent_effort(Effort.LOW, caps)


def _adaptive(options: AnthropicOptions) -> Json:
    # Set explicitly, because newer models leave out the text by default.
    return {"type": "adaptive", "display": options.thinking_display or "summarized"}


def _budget(tokens: int, options: AnthropicOptions) -> Json:
    # Models with budgets show their thinking by default, and older gateways do not support `display`.
    shown = {"display": options.thinking_display} if options.thinking_display else {}
    return {"type": "enabled", "budget_tokens": max(tokens, MIN_BUDGET), **shown}


def _messages(
    model: str,
    caps: Capabilities,
    call: Call,
    *,
    options: AnthropicOptions,
    tools: list[Json],
    thinking: Json | None,
    notes: _Notes,
    previous: EncodedRequest,
) -> tuple[messages.Sent, Json | None, bool]:
    """Return the messages, the `thinking` field, and whether stale thinking is dropped.

    A model that binds thinking to its prefix refuses a request with a changed prefix, unless the request tells it to
    drop stale thinking. The thinking modes `disabled` and `between_tools` have no such field, so the messages are sent
    without thinking.
    """

    def build_messages(keep_thinking: bool) -> messages.Sent:
        return messages.build(
            call.prompt,
            seed=[model, tools],
            mark=_mark(options),
            plain=call.plain_history,
            keep_thinking=keep_thinking,
            previous=previous,
        )

    sent = build_messages(options.send_reasoning)
    broke = caps.binds_thinking and sent.breaks > 0
    if not (call.drop_stale_thinking or broke):
        return sent, thinking, False
    if broke and not call.drop_stale_thinking:
        notes.other("thinking", "The history before earlier thinking has changed; the provider may drop that thinking.")
    kind = thinking["type"] if thinking else "adaptive" if caps.thinking.adaptive else "disabled"
    if kind not in ("adaptive", "enabled"):
        return (build_messages(False) if sent.has_thinking else sent), thinking, True
    binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    return sent, {**(thinking or _adaptive(options)), **binding}, True


def _limits(call: Call, caps: Capabilities, thinking: Json | None) -> tuple[int, Json | None]:
    """Return `max_tokens`, which includes the budget, and `thinking`. The model's maximum may reduce the budget."""
    most = caps.max_output
    wanted = call.max_output_tokens or DEFAULT_MAX_TOKENS
    limit = wanted if most is None else min(wanted, most)
    if thinking is None or thinking["type"] != "enabled":
        return limit, thinking
    limit = max(limit, thinking["budget_tokens"] + BUDGET_ROOM)
    if most is None or limit <= most:
        return limit, thinking
    return most, {**thinking, "budget_tokens": max(most - BUDGET_ROOM, MIN_BUDGET)}


def _output_config(call: Call, effort: Effort | None) -> Json:
    config: Json = {}
    if effort is not None:
        config["effort"] = effort.value
    if call.format is not None:
        config["format"] = {"type": "json_schema", "schema": call.format.schema}
    return config


def _sampling(call: Call, caps: Capabilities, *, version: str, thinking: Json | None, notes: _Notes) -> Json:
    given = {"temperature": call.temperature, "top_p": call.top_p, "top_k": call.top_k}
    wanted = {name: value for name, value in given.items() if value is not None}
    for name, value in (("presence_penalty", call.presence_penalty), ("frequency_penalty", call.frequency_penalty)):
        if value is not None:
            notes.setting(name, "Anthropic has no such setting; it was left out.")
    thinks = caps.thinking.default_on or caps.thinking.always_on if thinking is None else thinking["type"] != "disabled"
    if version == OLD_VERSION and caps.sampling and not thinks:
        return wanted
    for name in wanted:
        notes.setting(name, "This model or version of the API does not accept it; it was left out.")
    return {}


# Tools


def _mark(options: AnthropicOptions) -> Mapping[str, str]:
    return {"type": "ephemeral", **({"ttl": options.cache_ttl} if options.cache_ttl else {})}


def _tools(call: Call, notes: _Notes) -> list[Json]:
    """Return the local tools sorted by name, then the provider's. The order of registration must not matter."""
    tools = [_tool(tool) for tool in sorted(call.tools, key=lambda tool: tool.name)]
    return [*tools, _web_search(call.web_search, notes)] if call.web_search is not None else tools


def _tool(tool: Tool) -> Json:
    given = dict(tool.input_schema)
    required = given.pop("required", None)
    schema = {**given, "type": "object", "properties": given.get("properties") or {}}
    if required:
        schema["required"] = required
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _web_search(search: WebSearch, notes: _Notes) -> Json:
    version = search.version or FIRST_WEB_SEARCH
    tool: Json = {"type": version, "name": "web_search"}
    if version != FIRST_WEB_SEARCH:
        # The newer types can also be called by code that the provider runs, which is not enabled here.
        tool["allowed_callers"] = ["direct"]
    if search.allowed_domains:
        tool["allowed_domains"] = list(search.allowed_domains)
    elif search.blocked_domains:
        tool["blocked_domains"] = list(search.blocked_domains)
    if search.allowed_domains and search.blocked_domains:
        notes.setting("blocked_domains", "Only one list of domains can be sent; the allowed domains were sent.")
    if search.max_uses is not None:
        tool["max_uses"] = search.max_uses
    if search.user_location:
        tool["user_location"] = {"type": "approximate", **search.user_location}
    return tool


def _tool_choice(
    call: Call, caps: Capabilities, options: AnthropicOptions, *, thinking: Json | None, notes: _Notes
) -> Json | None:
    names = {tool.name for tool in call.tools}
    if not (names or call.web_search):
        return None
    if call.tool_choice == "none":
        return {"type": "none"}
    choice: Json = {"type": "auto"}
    if call.tool_choice != "auto":
        has_budget = thinking is not None and thinking["type"] == "enabled"
        if not caps.forced_tool_choice or has_budget:
            notes.setting("tool_choice", "This model cannot be forced to use a tool while it thinks; it may choose.")
        elif call.tool_choice == "required":
            choice = {"type": "any"}
        elif call.tool_choice in names:
            choice = {"type": "tool", "name": call.tool_choice}
        else:
            notes.setting("tool_choice", f"There is no tool {call.tool_choice}; the choice was left to the model.")
    if options.disable_parallel_tool_use:
        choice["disable_parallel_tool_use"] = True
    return choice
