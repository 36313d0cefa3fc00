"""Prompts and answers as attributes of spans, if the operator exports them. They are redacted like debug records, and
bounded.

The code runs in the thread of the exporter. The format follows the conventions in `telemetry/tracing/names`: a JSON
list of messages, each with a role and parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from rookery.debug.normalization import NormalizedPart, normalize_message
from rookery.debug.redaction import Redactor
from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import PromptCall, PromptMessage, PromptPart, PromptReasoning, PromptText
from rookery.domain.chat.parts import Part, Reasoning, Text, ToolCall
from rookery.llm.types import Call, FinishReason
from rookery.telemetry.redaction import SecretRegistry
from rookery.telemetry.tracing import names
from rookery.telemetry.tracing.spans import Attributes

# Limits of the texts of one attribute, in characters. A single text has at most `normalization.MAX_TEXT_CHARS`.
MAX_MESSAGES_CHARS = 64_000
MAX_SYSTEM_CHARS = 16_000

_NO_ARGUMENTS = msgspec.Raw(b"{}")


class TraceContent:
    """Renders the prompt of a call and its answer. The answer of a failed call is empty."""

    def __init__(self, secrets: SecretRegistry) -> None:
        self._redactor = Redactor(secrets)

    def __call__(self, call: Call, answer: Sequence[Part], reason: FinishReason | None) -> Attributes:
        messages = call.prompt.messages
        system = [part for message in messages if message.role is Role.SYSTEM for part in self._parts(message)]
        shown, omitted = self._newest(message for message in reversed(messages) if message.role is not Role.SYSTEM)
        said = self._parts(PromptMessage(role=Role.ASSISTANT, parts=tuple(_prompt_parts(answer))))
        output = [{"role": "assistant", "parts": _bounded(said, MAX_MESSAGES_CHARS), "finish_reason": reason}]
        return {
            names.SYSTEM_INSTRUCTIONS: _encoded(_bounded(system, MAX_SYSTEM_CHARS)) if system else None,
            names.INPUT_MESSAGES: _encoded(shown),
            names.OMITTED_MESSAGES: omitted or None,
            names.OUTPUT_MESSAGES: _encoded(output) if said else None,
        }

    def _newest(self, newest_first: Iterable[PromptMessage]) -> tuple[list[dict[str, Any]], int]:
        """Return the newest messages that fit, in order, and the number of omitted messages."""
        shown: list[dict[str, Any]] = []
        left, omitted = MAX_MESSAGES_CHARS, 0
        for message in newest_first:
            if left <= 0:
                omitted += 1
                continue
            found = self._parts(message)
            shown.insert(0, {"role": str(message.role), "parts": _bounded(found, left)})
            left -= sum(map(_size, found))
        return shown, omitted

    def _parts(self, message: PromptMessage) -> list[dict[str, Any]]:
        return [_part(part) for part in normalize_message(message, self._redactor).parts]


def _prompt_parts(answer: Sequence[Part]) -> Iterable[PromptPart]:
    for part in answer:
        match part:
            case Text():
                yield PromptText(part.text)
            case Reasoning():
                yield PromptReasoning(part.text)
            case ToolCall():
                given = part.args if part.args is not UNSET else _NO_ARGUMENTS
                yield PromptCall(part.tool_call_id, part.tool_name, msgspec.Raw(bytes(given)))
            case _:
                yield PromptText(f"[{parts.kind(part)}]")


def _part(part: NormalizedPart) -> dict[str, Any]:
    match part.type:
        case "text" | "reasoning":
            return {"type": part.type, "content": part.text}
        case "tool-call":
            return {
                "type": "tool_call",
                "id": part.tool_call_id,
                "name": part.tool_name,
                "arguments": _json_value(part.arguments or ""),
            }
        case "tool-result":
            return {"type": "tool_call_response", "id": part.tool_call_id, "response": part.result}
    return {"type": "file", "mime_type": part.media_type, "filename": part.filename, "size": part.size}


def _json_value(text: str) -> Any:
    """Return arguments as a JSON value; as text if they were cut."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _bounded(found: Sequence[dict[str, Any]], max_chars: int) -> list[dict[str, Any]]:
    """Return the first parts that fit. A marker contains the number of omitted parts."""
    kept: list[dict[str, Any]] = []
    left = max_chars
    for part in found:
        left -= _size(part)
        if left < 0:
            kept.append({"type": "text", "content": f"[{len(found) - len(kept)} parts left out]"})
            break
        kept.append(part)
    return kept


def _size(part: dict[str, Any]) -> int:
    return len(msgspec.json.encode(part))


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()
