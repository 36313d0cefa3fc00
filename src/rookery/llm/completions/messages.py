"""The messages of a Chat Completions request, made from a prompt.

Tool messages must follow the message with their calls directly, and contain only text. Images that tools returned are
therefore sent in a user message after all results of the batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, TypeAlias

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Meta,
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.completions.dialects import Dialect, ReplayReasoning
from rookery.llm.encoded_history import Pieces, last_index
from rookery.llm.types import Call, Capabilities
from rookery.llm.wire import PromptInvalid

Json: TypeAlias = Any

# The value that Google's endpoint accepts for a call without a signature.
SKIP_SIGNATURE = {"google": {"thought_signature": "skip_thought_signature_validator"}}

# Ordered by completeness: details may contain more than the plain text.
REASONING_FIELDS = ("reasoning_details", "reasoning_content", "reasoning")
IN_CONTENT = "content"

_SEE_BELOW = "(see the image below)"
_NOT_SHOWN = "(the tool returned an image; this model cannot see images)"
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def write(call: Call, pieces: Pieces, dialect: Dialect, *, caps: Capabilities, replay: ReplayReasoning) -> None:
    """Encode all messages of a request in order. Raise `PromptInvalid` if they break the rule of this wire."""
    messages = call.prompt.messages
    turn_start, last_answer = last_index(messages, Role.USER), last_index(messages, Role.ASSISTANT)
    start = pieces.resume(messages, turn_start)
    last_system = last_index(messages[start:], Role.SYSTEM)
    if start and last_system >= 0:
        # System messages are always sent first.
        pieces.unmark(len(messages))
        start = pieces.resume(messages, turn_start)
        last_system = last_index(messages, Role.SYSTEM)
    pairs = _Pairs(pieces)
    if not start:
        pairs.add(_system_messages(call.prompt, dialect))
    images: list[Json] = []
    for index in range(start, len(messages)):
        message = messages[index]
        if message.role is Role.SYSTEM:
            continue
        if message.role is Role.TOOL:
            pairs.add(_tool_messages(message, caps, images=images))
            continue
        pairs.add(_image_message(images))
        images = []
        if index in (turn_start, last_answer) and pairs.are_closed and index > last_system:
            pieces.mark(index, turn_start)
        if message.role is Role.USER:
            pairs.add(_user_message(message))
        else:
            is_current = index > turn_start
            keeps_meta = message.is_native and not call.plain_history
            replays = keeps_meta and message.is_whole and _replays(replay, message, is_current=is_current)
            signs = dialect.wants_thought_signatures and is_current
            pairs.add(_assistant_message(message, replays=replays, keeps_meta=keeps_meta, signs=signs))
    pairs.add(_image_message(images))
    pairs.close()


def merge_details(chunks: Iterable[Meta]) -> list[Meta]:
    """Merge the pieces of `reasoning_details` that the server split for streaming.

    Only texts and summaries of the same item are merged, because servers verify the items that they get back.
    """
    merged: list[Meta] = []
    for chunk in chunks:
        last = merged[-1] if merged else None
        if last is None or not _continues(last, chunk):
            merged.append(dict(chunk))
            continue
        for key, value in chunk.items():
            before = last.get(key)
            if key in ("text", "summary") and isinstance(value, str) and isinstance(before, str):
                last[key] = before + value
            elif value is not None:
                last[key] = value
    return merged


def _continues(last: Meta, chunk: Meta) -> bool:
    kind = chunk.get("type")
    if kind not in ("reasoning.text", "reasoning.summary") or last.get("type") != kind:
        return False
    return bool(last.get("index") == chunk.get("index"))


def _replays(replay: ReplayReasoning, message: PromptMessage, *, is_current: bool) -> bool:
    if replay == "auto":
        return is_current and any(isinstance(p, PromptCall) and not p.provider_executed for p in message.parts)
    return replay == "always"


def _system_messages(prompt: Prompt, dialect: Dialect) -> list[Json]:
    texts = [_text_of(message) for message in prompt.messages if message.role is Role.SYSTEM]
    joined = "\n\n".join(text for text in texts if text)
    return [{"role": dialect.system_role, "content": joined}] if joined else []


def _text_of(message: PromptMessage) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText) and part.text)


def _user_message(message: PromptMessage) -> list[Json]:
    said = [part for part in message.parts if isinstance(part, PromptText | PromptFile)]
    match said:
        case []:
            return []
        case [PromptText(text=text)]:
            return [{"role": "user", "content": text}]
    return [{"role": "user", "content": [_content_part(part) for part in said]}]


def _content_part(part: PromptText | PromptFile) -> Json:
    if isinstance(part, PromptText):
        return {"type": "text", "text": part.text}
    media_type = part.media_type.partition(";")[0].strip().lower()
    data = base64.b64encode(part.data).decode()
    if audio_format := _AUDIO_FORMATS.get(media_type):
        return {"type": "input_audio", "input_audio": {"data": data, "format": audio_format}}
    url = f"data:{media_type};base64,{data}"
    if media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    name = part.name or ("document.pdf" if media_type == "application/pdf" else "file")
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def _assistant_message(message: PromptMessage, *, replays: bool, keeps_meta: bool, signs: bool) -> list[Json]:
    texts: list[str] = []
    calls: list[PromptCall] = []
    thoughts: list[PromptReasoning] = []
    for part in message.parts:
        match part:
            case PromptText(text=text) if text:
                texts.append(text)
            case PromptResult(provider_executed=True, text=text) if text:
                texts.append(text)
            case PromptCall(provider_executed=False):
                calls.append(part)
            case PromptReasoning():
                thoughts.append(part)
    if not texts and not calls:
        return []
    content = "\n\n".join(texts) if texts else None
    built: dict[str, Json] = {"role": "assistant", "content": content}
    if replays:
        _echo_reasoning(built, thoughts)
    if calls:
        built["tool_calls"] = [_tool_call(call, keeps_meta=keeps_meta) for call in calls]
        # Google signs only the first call of a step.
        if signs and not any("extra_content" in sent for sent in built["tool_calls"]):
            built["tool_calls"][0]["extra_content"] = SKIP_SIGNATURE
    return [built]


def _echo_reasoning(built: dict[str, Json], thoughts: Iterable[PromptReasoning]) -> None:
    """Add reasoning in the field in which it was received. Reasoning of unknown origin is not sent."""
    by_field: dict[str, list[PromptReasoning]] = {}
    for thought in thoughts:
        by_field.setdefault((thought.meta or {}).get("reasoning_field", ""), []).append(thought)
    for field in REASONING_FIELDS:
        if field not in by_field:
            continue
        if field == "reasoning_details":
            pieces = [piece for t in by_field[field] for piece in (t.meta or {}).get("reasoning_details", ())]
            built[field] = merge_details(pieces)
        else:
            built[field] = "".join(thought.text for thought in by_field[field])
    if tagged := "".join(f"<think>{thought.text}</think>" for thought in by_field.get(IN_CONTENT, ())):
        built["content"] = f"{tagged}\n\n{built['content'] or ''}"


def _tool_call(call: PromptCall, *, keeps_meta: bool) -> dict[str, Json]:
    function = {"name": call.name, "arguments": bytes(call.input).decode()}
    built: dict[str, Json] = {"id": call.id, "type": "function", "function": function}
    if keeps_meta and call.meta and (extra := call.meta.get("extra_content")):
        built["extra_content"] = extra
    return built


def _tool_messages(message: PromptMessage, caps: Capabilities, *, images: list[Json]) -> list[Json]:
    """Return the tool messages of one message. Tool messages cannot contain images, so images are added to `images`."""
    built = []
    for part in message.parts:
        if not isinstance(part, PromptResult) or part.provider_executed:
            continue
        text = part.text
        if part.media is not None:
            shown = caps.accepts(part.media.media_type)
            text = "\n\n".join(filter(None, (text, _SEE_BELOW if shown else _NOT_SHOWN)))
            images += _labelled_image(part, part.media) if shown else ()
        built.append({"role": "tool", "tool_call_id": part.id, "content": text})
    return built


def _labelled_image(result: PromptResult, media: PromptMedia) -> list[Json]:
    url = f"data:{media.media_type};base64,{media.data}"
    return [
        {"type": "text", "text": f"The image returned by {result.name} (call {result.id}):"},
        {"type": "image_url", "image_url": {"url": url}},
    ]


def _image_message(images: list[Json]) -> list[Json]:
    return [{"role": "user", "content": images}] if images else []


class _Pairs:
    """Encodes messages. Raises `PromptInvalid` unless each call has exactly one result directly after its message."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._open: list[str] = []

    @property
    def are_closed(self) -> bool:
        return not self._open

    def add(self, messages: Iterable[Json]) -> None:
        for message in messages:
            if message["role"] == "tool":
                self._answer(message["tool_call_id"])
            else:
                self.close()
                self._open = [call["id"] for call in message.get("tool_calls", ())]
                if len(set(self._open)) < len(self._open):
                    raise PromptInvalid("A message uses one call id twice.")
            self._pieces.add(parts.json_raw(message))

    def close(self) -> None:
        if self._open:
            raise PromptInvalid(f"No result follows the calls {', '.join(self._open)}.")

    def _answer(self, call_id: str) -> None:
        if call_id not in self._open:
            raise PromptInvalid(f"The result of {call_id} does not follow its call.")
        self._open.remove(call_id)
