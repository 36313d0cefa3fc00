"""Content blocks of the Messages API, made from the parts of a prompt message."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Meta,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)

Json: TypeAlias = dict[str, Any]

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DOCUMENT_TITLE = re.compile(r"[^A-Za-z0-9\-()\[\]]+")

# Used for blocks from the database, which does not keep the order of keys.
_sorted_encoder = msgspec.json.Encoder(decimal_format="number", order="sorted")

Kind: TypeAlias = Literal["plain", "thinking", "call", "result", "server_call", "server_result", "unknown"]


class Block(msgspec.Struct, frozen=True):
    """One content block. `id` links a call and its result. `text` replaces a result that has no call."""

    kind: Kind
    json: Json
    id: str = ""
    text: str = ""

    def is_markable(self) -> bool:
        if self.kind in ("thinking", "unknown"):
            return False
        return self.kind != "result" or bool(self.json["content"])


def blocks_of(message: PromptMessage, *, plain: bool, keep_thinking: bool) -> Iterator[Block]:
    # The provider accepts its executed calls from any of its models, but other native parts only from the same family.
    is_faithful = message.is_native and not plain
    for part in message.parts:
        match part:
            case PromptText() | PromptReasoning() if (raw := _raw(part.meta)) is not None:
                if is_faithful:
                    yield Block("unknown", _stable(raw))
            case PromptText():
                if part.text.strip():
                    yield Block("plain", {"type": "text", "text": part.text})
            case PromptReasoning():
                if is_faithful and message.is_whole and keep_thinking:
                    yield from _thinking(part)
            case PromptFile():
                if message.role is not Role.ASSISTANT:
                    yield Block("plain", _file(part))
            case PromptCall() | PromptResult() if part.provider_executed:
                if not plain:
                    yield from _server_block(part)
            case PromptCall():
                block = {"type": "tool_use", "id": part.id, "name": part.name, "input": part.input}
                yield Block("call", block, part.id)
            case PromptResult():
                yield Block("result", _result(part), part.id)


def _raw(meta: Meta | None) -> Json | None:
    raw = (meta or {}).get("raw")
    return raw if isinstance(raw, dict) and isinstance(raw.get("type"), str) else None


def _stable(raw: Json) -> Json:
    """Return a stored block with sorted keys at every level, so that its encoding is always the same.

    Nested values are encoded here. The block itself stays a dict, because a cache mark may be added to it.
    """
    return {
        key: raw[key] if isinstance(raw[key], str) else Raw(_sorted_encoder.encode(raw[key])) for key in sorted(raw)
    }


def _thinking(part: PromptReasoning) -> Iterator[Block]:
    meta = part.meta or {}
    if signature := meta.get("signature"):
        yield Block("thinking", {"type": "thinking", "thinking": part.text, "signature": signature})
    elif data := meta.get("redacted_data"):
        yield Block("thinking", {"type": "redacted_thinking", "data": data})


def _server_block(part: PromptCall | PromptResult) -> Iterator[Block]:
    """Yield the stored block of a provider-executed call or result.

    A result without a stored block has no id and matches no call, so the repair of pairs replaces it by its text.
    """
    raw = _raw(part.meta) or {}
    kind = str(raw.get("type"))
    if isinstance(part, PromptResult):
        call_id = raw.get("tool_use_id") if kind.endswith("_tool_result") else None
        yield Block("server_result", _stable(raw), str(call_id or ""), part.text)
    elif kind.endswith("_tool_use") and isinstance(raw.get("input"), dict) and raw.get("id"):
        yield Block("server_call", _stable(raw), str(raw["id"]))


def _file(file: PromptFile) -> Json:
    media_type = file.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    if media_type in IMAGE_TYPES:
        return _image(media_type, _base64(file.data))
    title = _DOCUMENT_TITLE.sub(" ", file.name or "").strip() or "Document"
    if media_type == "application/pdf":
        source = {"type": "base64", "media_type": media_type, "data": _base64(file.data)}
        return {"type": "document", "source": source, "title": title}
    if media_type.startswith("text/"):
        text = file.data.decode("utf-8", "replace")
        return {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": text},
            "title": title,
        }
    return {"type": "text", "text": f'<attachment-omitted name="{title}" type="{media_type}"/>'}


def _image(media_type: str, data: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _result(part: PromptResult) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": part.id, "content": _result_content(part)}
    if part.is_error:
        block["is_error"] = True
    return block


def _result_content(part: PromptResult) -> str | list[Json]:
    if not isinstance(part.media, PromptMedia) or part.media.media_type not in IMAGE_TYPES:
        return part.text
    image = _image(part.media.media_type, part.media.data)
    return [image, {"type": "text", "text": part.text}] if part.text.strip() else [image]
