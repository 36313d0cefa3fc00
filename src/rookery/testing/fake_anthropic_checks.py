"""The request rules of `FakeAnthropic`: the mistakes of clients that Anthropic's Messages API refuses.

Each rule returns the error message of the real server, or None. The rules check requests as JSON, and do not depend on
the code that built them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = dict[str, Any]

OLD_VERSION = "2023-06-01"
BINDING_BETA = "thinking-binding-controls-2026-08-01"
MAX_MARKS = 4

_SAMPLING = ("temperature", "top_p", "top_k")
_encoder = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """An issued signature: its thinking, and the number of blocks and the hash of the prefix before it."""

    thinking: str
    blocks: int
    prefix: bytes


def blocks_of(body: Json) -> list[tuple[str, Json]]:
    """Return all content blocks of the request with their roles. A string counts as one text block."""
    return [(message["role"], block) for message in body.get("messages", ()) for block in content_of(message)]


def content_of(message: Json) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def prefix_hash(body: Json, blocks: int) -> bytes:
    """Return the hash to which thinking is bound: of model, system, tools and the first blocks, without cache marks."""
    head = [body.get("model"), body.get("system"), body.get("tools")]
    said = [[role, block] for role, block in blocks_of(body)[:blocks]]
    return hashlib.sha256(_encoder.encode(_unmarked([head, said]))).digest()


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(child) for key, child in value.items() if key != "cache_control"}
    return [_unmarked(child) for child in value] if isinstance(value, list) else value


def find_fault(
    body: Any, headers: Mapping[str, str], *, issued: Mapping[str, Issued], binds_thinking: bool
) -> str | None:
    """Return the error message of the first rule that the request breaks."""
    if not isinstance(body, dict):
        return "The request body is not valid JSON."
    rules = (
        _shape(body, headers),
        _settings(body, headers),
        _texts(body),
        _marks(body),
        _tools(body),
        _server_tools(body),
        _last(body),
        _signatures(body, issued),
        _binding(body, issued) if binds_thinking else iter(()),
    )
    return next((fault for rule in rules for fault in rule), None)


def _shape(body: Json, headers: Mapping[str, str]) -> Iterator[str]:
    if "anthropic-version" not in headers:
        yield "anthropic-version: header is required"
    for key in ("model", "max_tokens", "messages"):
        if key not in body:
            yield f"{key}: Field required"
    if not body.get("messages"):
        yield "messages: at least one message is required"
        return
    for number, message in enumerate(body["messages"]):
        if message.get("role") not in ("user", "assistant"):
            yield f"messages.{number}.role: Input should be 'user' or 'assistant'"
        if not content_of(message):
            yield f"messages.{number}: all messages must have non-empty content"
    if body["messages"][0]["role"] != "user":
        yield 'messages: first message must use the "user" role'


def _settings(body: Json, headers: Mapping[str, str]) -> Iterator[str]:
    if headers["anthropic-version"] != OLD_VERSION:
        yield from (f"{key}: Extra inputs are not permitted" for key in _SAMPLING if key in body)
    thinking = body.get("thinking") or {}
    choice = (body.get("tool_choice") or {}).get("type")
    if thinking.get("type") == "enabled":
        if thinking.get("budget_tokens", 0) < 1024:
            yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        if body["max_tokens"] <= thinking.get("budget_tokens", 0):
            yield "`max_tokens` must be greater than `thinking.budget_tokens`."
        if choice in ("any", "tool"):
            yield "Thinking may not be enabled when tool_choice forces tool use."
    if thinking.get("type") in ("enabled", "adaptive"):
        yield from (f"`{key}` may not be set when thinking is enabled." for key in _SAMPLING if key in body)
    if "block_binding" in thinking and BINDING_BETA not in headers.get("anthropic-beta", "").split(","):
        yield "thinking.adaptive.block_binding: Extra inputs are not permitted"
    if choice and not body.get("tools"):
        yield "tool_choice may only be specified while providing tools."
    names = [tool.get("name") for tool in body.get("tools", ())]
    if len(set(names)) < len(names):
        yield "tools: Tool names must be unique."


def _texts(body: Json) -> Iterator[str]:
    system = body.get("system") or []
    blocks = [*(block for _, block in blocks_of(body)), *(system if isinstance(system, list) else [])]
    for block in blocks:
        if block.get("type") == "text" and not str(block.get("text", "")).strip():
            yield "messages: text content blocks must contain non-whitespace text"


def _marks(body: Json) -> Iterator[str]:
    system = body.get("system")
    everything = [
        *(block for _, block in blocks_of(body)),
        *body.get("tools", ()),
        *(system if isinstance(system, list) else ()),
    ]
    marked = [block for block in everything if block.get("cache_control")]
    if len(marked) > MAX_MARKS:
        yield f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {len(marked)}."
    if any(block.get("type") in ("thinking", "redacted_thinking") for block in marked):
        yield "cache_control: Extra inputs are not permitted on thinking blocks"


def _tools(body: Json) -> Iterator[str]:
    """Check tool calls: ids are unique, and the next message starts with exactly their results."""
    seen: set[str] = set()
    waiting: list[str] = []
    for number, message in enumerate(_joined(body)):
        content = content_of(message)
        if message["role"] == "assistant":
            waiting = [block["id"] for block in content if block["type"] == "tool_use"]
            if len(set(waiting)) < len(waiting) or seen.intersection(waiting):
                yield "messages: `tool_use` ids must be unique"
            seen.update(waiting)
            continue
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if unexpected := [one for one in results if one not in waiting]:
            yield f"messages.{number}: unexpected `tool_use_id` found in `tool_result` blocks: {unexpected[0]}."
        if len(set(results)) < len(results):
            yield f"messages.{number}: each tool_use must have a single result. Found multiple `tool_result` blocks."
        if missing := [one for one in waiting if one not in results]:
            yield _without_results(number, missing)
        if any(block["type"] != "tool_result" for block in content[: len(results)]):
            yield f"messages.{number}: `tool_result` blocks must come before other content."
        waiting = []
    if waiting:
        yield _without_results(len(body["messages"]), waiting)


def _without_results(number: int, ids: Sequence[str]) -> str:
    return (
        f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _joined(body: Json) -> list[Json]:
    """Return the messages with consecutive messages of one role merged, as on the server."""
    joined: list[Json] = []
    for message in body["messages"]:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1]["content"] += content_of(message)
        else:
            joined.append({"role": message["role"], "content": content_of(message)})
    return joined


def _server_tools(body: Json) -> Iterator[str]:
    """Check server tools: each result follows its call. Only a call that the server can still finish may lack one."""
    open_calls: dict[str, str] = {}
    messages = _joined(body)
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    for number, message in enumerate(messages):
        content = content_of(message)
        for block in content:
            if block["type"].endswith("_tool_use"):
                open_calls[block["id"]] = block.get("name", "tool")
            elif block["type"].endswith("_tool_result") and open_calls.pop(block["tool_use_id"], None) is None:
                yield f"messages.{number}: unexpected `tool_use_id` found in `{block['type']}` blocks."
        is_newest = bool(answers) and number == answers[-1]
        goes_on = number == len(messages) - 1 or any(block["type"] == "tool_use" for block in content)
        # A server call next to local calls is finished in the response to their results.
        is_next = number + 2 < len(messages) and any(block["type"] == "tool_use" for block in content)
        if message["role"] == "assistant" and open_calls and not (is_newest and goes_on) and not is_next:
            name, call_id = next((name, call_id) for call_id, name in open_calls.items())
            yield f"`{name}` tool use with id `{call_id}` was found without a corresponding `{name}_tool_result` block"


def _last(body: Json) -> Iterator[str]:
    last = body["messages"][-1]
    if last["role"] == "assistant" and not any("_tool_" in block["type"] for block in content_of(last)):
        yield "This model does not support assistant message prefill. The conversation must end with a user message."


def _signatures(body: Json, issued: Mapping[str, Issued]) -> Iterator[str]:
    for number, message in enumerate(body["messages"]):
        for place, block in enumerate(content_of(message)):
            if block["type"] == "thinking":
                known = issued.get(block.get("signature", ""))
                if known is None or known.thinking != block.get("thinking"):
                    yield f"messages.{number}.content.{place}: Invalid `signature` in `thinking` block"
            elif block["type"] == "redacted_thinking" and block.get("data") not in issued:
                yield f"messages.{number}.content.{place}: Invalid `data` (signature) in `redacted_thinking` block"


def _binding(body: Json, issued: Mapping[str, Issued]) -> Iterator[str]:
    binding = (body.get("thinking") or {}).get("block_binding") or {}
    if binding.get("prefix_mismatch_behavior") == "drop_block":
        return
    blocks = blocks_of(body)
    for place, (_, block) in enumerate(blocks):
        known = issued.get(block.get("signature") or block.get("data") or "")
        if known is None or block["type"] not in ("thinking", "redacted_thinking"):
            continue
        # Between the prefix and the thinking there are only earlier blocks of the same answer.
        is_own = place >= known.blocks and all(role == "assistant" for role, _ in blocks[known.blocks : place])
        if not is_own or prefix_hash(body, known.blocks) != known.prefix:
            yield "A `thinking` block is bound to a different conversation: the content before it was changed."
