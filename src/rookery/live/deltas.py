"""Deltas: which live parts belong together, how they are joined, and the JSON that clients receive.

Two facts the code does not show: joining must not change what `domain.chat.interrupted_step` makes of the parts, and a
part that carries anything besides its text (a provider's signature, an end time, a whole result) is never joined to
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Part, Reasoning, Text, ToolCall, ToolResult

# Sequence number of the last part inside, number of parts inside, and the bytes of the `message_part` event.
PartEvent: TypeAlias = tuple[int, int, bytes]


class MessagePart(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="message_part", gc=False):
    """The stream's `message_part` event: `n` adjacent parts, of which `seq` is the last, sent as one."""

    seq: int
    role: Role
    part: Part
    n: int = 1


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(MessagePart)


def encode(seq: int, role: Role, part: Part, *, n: int = 1) -> bytes:
    """Encode the event to the bytes that viewers and other replicas receive unchanged."""
    try:
        return _encoder.encode(MessagePart(seq, role, part, n))
    except UnicodeEncodeError:
        # Half a character, as some servers split them. Storing repairs it, and the preview shows what will be stored.
        (mended,) = parts.decode(parts.encode((part,)))
        return _encoder.encode(MessagePart(seq, role, mended, n))


def decode(data: bytes) -> MessagePart:
    """Decode an event from its bytes."""
    return _decoder.decode(data)


def piece(part: Part) -> str | None:
    """Return the text this part adds to the stretch it belongs to; None if it stands alone."""
    # In this order: it runs for every token, and most are text.
    if isinstance(part, Text):
        return part.text if part.provider_meta is None else None
    if isinstance(part, Reasoning):
        return part.text if part.provider_meta is None and part.completed_at is None else None
    if isinstance(part, ToolCall):
        return part.args_delta if part.args is UNSET and part.provider_meta is None else None
    if isinstance(part, ToolResult):
        is_piece = part.result is UNSET and not part.result_reset and part.provider_meta is None
        return part.result_delta if is_piece else None
    return None


def continues(stretch: Part, part: Part) -> bool:
    """Return whether two pieces of one role belong together. A reasoning block is identified by its start time."""
    if isinstance(stretch, Text):
        return isinstance(part, Text) and stretch.refusal is part.refusal
    if isinstance(stretch, Reasoning):
        return isinstance(part, Reasoning) and stretch.created_at == part.created_at
    if isinstance(stretch, ToolCall):
        return isinstance(part, ToolCall) and stretch.tool_call_id == part.tool_call_id
    if isinstance(stretch, ToolResult):
        return isinstance(part, ToolResult) and stretch.tool_call_id == part.tool_call_id
    return False


def joined(first: Part, text: str) -> Part:
    """Return the first of several pieces that continue each other, with the text of all."""
    match first:
        case Text():
            return Text(text, first.refusal)
        case Reasoning():
            return Reasoning(text, first.created_at)
        case ToolCall():
            return msgspec.structs.replace(first, args_delta=text)
        case ToolResult():
            return msgspec.structs.replace(first, result_delta=text)
        case _:
            raise TypeError(f"A {type(first).__name__} is not a piece of anything.")


def merged(events: Iterable[PartEvent]) -> list[PartEvent]:
    """Merge neighboring events that continue each other. Works from the bytes, for any holder of them.

    Events without such a neighbor keep their bytes.
    """
    result: list[PartEvent] = []
    stretch: _Stretch | None = None
    for event in events:
        message = _decoder.decode(event[2])
        text = piece(message.part)
        if stretch is not None and text is not None and stretch.takes(message):
            stretch.add(event, text)
            continue
        if stretch is not None:
            result.append(stretch.event())
        stretch = None if text is None else _Stretch(event, message, text)
        if stretch is None:
            result.append(event)
    if stretch is not None:
        result.append(stretch.event())
    return result


class _Stretch:
    __slots__ = ("_first", "_last", "_message", "_n", "_pieces")

    def __init__(self, event: PartEvent, message: MessagePart, text: str) -> None:
        self._first = self._last = event
        self._message = message
        self._n = event[1]
        self._pieces = [text]

    def takes(self, message: MessagePart) -> bool:
        return message.role is self._message.role and continues(self._message.part, message.part)

    def add(self, event: PartEvent, text: str) -> None:
        self._last = event
        self._n += event[1]
        self._pieces.append(text)

    def event(self) -> PartEvent:
        if self._last is self._first:
            return self._first
        seq = self._last[0]
        part = joined(self._message.part, "".join(self._pieces))
        return seq, self._n, encode(seq, self._message.role, part, n=self._n)
