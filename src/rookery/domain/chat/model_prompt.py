"""`Prompt`: the content of a request to a model, independent of the wire.

`prompt` builds it from committed rows, and the wires in `llm/` convert it to requests. It includes media and opaque
provider data (`meta`). Each wire decides which of these data it can return to its provider.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import Role

Meta: TypeAlias = dict[str, Any]


class PromptText(msgspec.Struct, frozen=True, gc=False):
    text: str
    meta: Meta | None = None


class PromptReasoning(msgspec.Struct, frozen=True, gc=False):
    """Reasoning of a model. Each wire decides whether it is sent back to the provider.

    The completions wire sends the text in the field in which it was received, which `meta` names. The other wires send
    only reasoning that has a signature or encrypted content of the provider in `meta`.
    """

    text: str
    meta: Meta | None = None


class PromptFile(msgspec.Struct, frozen=True, gc=False):
    media_type: str
    data: bytes
    name: str | None = None


class PromptCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call. `input` is the JSON text of an object. `meta` of a provider-executed call has its raw block."""

    id: str
    name: str
    input: Raw
    provider_executed: bool = False
    meta: Meta | None = None


class PromptMedia(msgspec.Struct, frozen=True, gc=False):
    """An image that a tool returned."""

    media_type: str
    data: str  # base64, as stored


class PromptResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a call: text, and an image, which wires that support it send before the text."""

    id: str
    name: str
    text: str
    is_error: bool = False
    media: PromptMedia | None = None
    provider_executed: bool = False
    meta: Meta | None = None


PromptPart: TypeAlias = PromptText | PromptReasoning | PromptFile | PromptCall | PromptResult


def size(part: PromptPart) -> int:
    """Return the approximate size of the part in a request, in bytes."""
    if isinstance(part, PromptCall):
        return len(bytes(part.input))
    if isinstance(part, PromptFile):
        return len(part.data)
    if isinstance(part, PromptResult) and part.media is not None:
        return len(part.text) + len(part.media.data)
    return len(part.text)


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message. The last four fields are for answers of a model; wires use them to decide what to send back.

    `is_native`: the provider and the thinking family of the target model wrote the answer. `is_whole`: the answer was
    not interrupted. `prefix_fp`: the hash of the prompt that the answer belongs to.
    """

    role: Role
    parts: tuple[PromptPart, ...]
    is_native: bool = True
    is_whole: bool = True
    finish_reason: str | None = None
    prefix_fp: bytes | None = None


class Prompt(msgspec.Struct, frozen=True, dict=True):
    """A prompt. `size_bytes` and `call_ids` are computed when they are needed, unless `with_figures` has set them."""

    messages: tuple[PromptMessage, ...]

    @cached_property
    def size_bytes(self) -> int:
        """Return the approximate size in a request."""
        return sum_sizes(self.messages)

    @cached_property
    def call_ids(self) -> frozenset[str]:
        """Return the ids of all calls."""
        return frozenset(part.id for message in self.messages for part in message.parts if isinstance(part, PromptCall))


def with_figures(prompt: Prompt, *, size_bytes: int, call_ids: frozenset[str]) -> Prompt:
    """Set the figures of the prompt and return it. Code that extends a prompt need not compute them again."""
    vars(prompt).update(size_bytes=size_bytes, call_ids=call_ids)
    return prompt


def sum_sizes(messages: Iterable[PromptMessage]) -> int:
    return sum(size(part) for message in messages for part in message.parts)
