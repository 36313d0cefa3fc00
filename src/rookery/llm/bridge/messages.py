"""The messages of pydantic-ai, made from a prompt.

System texts are first, where every provider accepts them. The library's own conversion of messages is not used, because
it escapes tags in tool results.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.bridge import provider_meta
from rookery.llm.types import Call, CallWarning, Capabilities

Profile: TypeAlias = Mapping[str, Any]

_NOT_SHOWN = "(the tool returned an image; this model cannot see images)"
_PAUSED = "pause"


def history(call: Call, model: Model, *, caps: Capabilities, warnings: list[CallWarning]) -> list[ModelMessage]:
    """Return all messages. Content that the model cannot read is replaced by a text, and reported in `warnings`."""
    return _History(call, model, caps=caps, warnings=warnings).build()


class _History:
    def __init__(self, call: Call, model: Model, *, caps: Capabilities, warnings: list[CallWarning]) -> None:
        self._call = call
        self._model = model
        self._caps = caps
        self._profile = cast(Profile, model.profile)
        self._warnings = warnings
        self._ids = _Ids(self._profile.get("tool_call_id_length"))
        self._built: list[ModelMessage] = []

    def build(self) -> list[ModelMessage]:
        self._add_request(list(_system_parts(self._call.prompt)))
        for message in self._call.prompt.messages:
            match message.role:
                case Role.SYSTEM:
                    continue
                case Role.USER:
                    self._add_request(self._user_parts(message))
                case Role.TOOL:
                    self._add_request([self._result(part) for part in message.parts if isinstance(part, PromptResult)])
                case Role.ASSISTANT:
                    self._add_response(message)
        return self._built

    def _add_request(self, parts: list[ModelRequestPart]) -> None:
        """Add a message. Adjacent messages are merged, because several providers require alternating roles."""
        if not parts:
            return
        if self._built and isinstance(last := self._built[-1], ModelRequest):
            last.parts = [*last.parts, *parts]
            return
        self._built.append(ModelRequest(parts=parts))

    def _add_response(self, message: PromptMessage) -> None:
        parts = self._answer_parts(message)
        if not parts:
            return
        if self._built and isinstance(last := self._built[-1], ModelResponse):
            last.parts = [*last.parts, *parts]
        else:
            last = ModelResponse(
                parts=parts,
                model_name=self._model.model_name,
                # The prompt contains provider data only in messages of this provider.
                provider_name=self._model.system,
                canonical_system=self._model.canonical_system,
            )
            self._built.append(last)
        last.state = "suspended" if message.finish_reason == _PAUSED and message.is_native else "complete"

    # Messages of users and tools

    def _user_parts(self, message: PromptMessage) -> list[ModelRequestPart]:
        content: list[UserContent] = []
        for part in message.parts:
            if isinstance(part, PromptText):
                content.append(part.text)
            elif isinstance(part, PromptFile):
                content.append(self._file(part))
        match content:
            case []:
                return []
            case [str(text)]:
                return [UserPromptPart(content=text)]
        return [UserPromptPart(content=content)]

    def _file(self, part: PromptFile) -> UserContent:
        media_type = _plain_type(part.media_type)
        if self._reads(media_type):
            return BinaryContent(data=part.data, media_type=media_type)
        name = part.name or "without a name"
        text = f"This model cannot read files of type {media_type}; {name} is left out."
        self._warnings.append(CallWarning("other", "files", text))
        return f"(An attachment, {name}, was left out: this model cannot read files of type {media_type}.)"

    def _reads(self, media_type: str) -> bool:
        family = media_type.partition("/")[0]
        flags = {
            "image": "supports_image_input",
            "audio": "supports_audio_file_input",
            "video": "supports_video_input",
        }
        return bool(self._profile.get(flags.get(family, "supports_document_input"), True))

    def _result(self, part: PromptResult) -> ToolReturnPart:
        content: Any = part.text
        if part.media is not None:
            image = self._media(part.media)
            content = [text for text in (part.text,) if text]
            content.append(_NOT_SHOWN if image is None else image)
            if image is None:
                content = "\n\n".join(content)
        return ToolReturnPart(
            tool_name=part.name,
            content=content,
            tool_call_id=self._ids.fit(part.id),
            outcome="failed" if part.is_error else "success",
        )

    def _media(self, media: PromptMedia) -> BinaryContent | None:
        media_type = _plain_type(media.media_type)
        if not (self._caps.accepts(media_type) and self._reads(media_type)):
            return None
        try:
            return BinaryContent(data=base64.b64decode(media.data), media_type=media_type)
        except (binascii.Error, ValueError):
            return None

    # Messages of the model

    def _answer_parts(self, message: PromptMessage) -> list[ModelResponsePart]:
        keeps_meta = message.is_native and not self._call.plain_history
        native = _native_pairs(message) if keeps_meta and message.is_whole else frozenset()
        built: list[ModelResponsePart] = []
        for part in message.parts:
            meta = (part.meta if keeps_meta and not isinstance(part, PromptFile) else None) or {}
            match part:
                case PromptText(text=text) if text.strip():
                    built.append(TextPart(text, **provider_meta.fields_of(meta)))
                case PromptReasoning():
                    if message.is_whole and provider_meta.is_proven(meta):
                        built.append(
                            ThinkingPart(part.text, signature=meta.get("signature"), **provider_meta.fields_of(meta))
                        )
                case PromptCall(provider_executed=False):
                    call_id = self._ids.fit(part.id)
                    built.append(
                        ToolCallPart(part.name, bytes(part.input).decode(), call_id, **provider_meta.fields_of(meta))
                    )
                case PromptCall() if part.id in native:
                    built.append(provider_meta.native_call(part, meta))
                case PromptResult() if part.id in native:
                    built.append(provider_meta.native_return(part, meta))
                case PromptResult(provider_executed=True, text=text) if text.strip():
                    # A result without its call is sent as text.
                    built.append(TextPart(text))
        return built


class _Ids:
    """Converts call ids for models that require a fixed number of letters and digits."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._given: dict[str, str] = {}

    def fit(self, call_id: str) -> str:
        if self._length is None:
            return call_id
        if call_id not in self._given:
            taken = set(self._given.values())
            fitting = call_id if _fits(call_id, self._length) else _hashed(call_id, self._length)
            tries = 0
            while fitting in taken:
                tries += 1
                fitting = _hashed(f"{call_id}#{tries}", self._length)
            self._given[call_id] = fitting
        return self._given[call_id]


def _fits(call_id: str, length: int) -> bool:
    return len(call_id) == length and call_id.isascii() and call_id.isalnum()


def _hashed(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _system_parts(prompt: Prompt) -> Iterable[ModelRequestPart]:
    for message in prompt.messages:
        if message.role is not Role.SYSTEM:
            continue
        text = "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText) and part.text)
        if text:
            yield SystemPromptPart(text)


def _plain_type(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def _native_pairs(message: PromptMessage) -> frozenset[str]:
    """Return the ids of provider-executed calls with a result in this message, if both have their provider data."""
    open_calls: set[str] = set()
    pairs: set[str] = set()
    for part in message.parts:
        if isinstance(part, PromptCall) and part.provider_executed and provider_meta.has_raw(part.meta):
            open_calls.add(part.id)
        elif isinstance(part, PromptResult) and part.id in open_calls and provider_meta.has_raw(part.meta):
            pairs.add(part.id)
    return frozenset(pairs)
