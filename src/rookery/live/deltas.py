"""Deltas: decides which live parts are merged, merges them, and encodes the JSON that clients receive.

Merging must not change the rows that `domain.chat.interrupted_step` makes from the parts. A part that contains anything
besides its text (a signature of the provider, an end time, a whole result) is never merged with others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Part, Reasoning, Text, ToolCall, ToolResult

# The sequence number of the last merged part, the number of merged parts, and the bytes of the `message_part` event.
PartEvent: TypeAlias = tuple[int, int, bytes]


class MessagePart(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="message_part", gc=False):
    """The `message_part` event of a stream: `n` adjacent parts merged into one; `seq` is the number of the last."""

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
        # The part ends or begins with half a surrogate pair, because some servers split characters. It is shown as it
        # will be stored.
        (mended,) = parts.decode(parts.encode((part,)))
        return _encoder.encode(MessagePart(seq, role, mended, n))


def decode(data: bytes) -> MessagePart:
    """Decode an event from its bytes."""
    return _decoder.decode(data)


def piece(part: Part) -> str | None:
    """Return the text of a part that may be merged with its neighbors; None if it may not."""
    # Text is checked first, because this runs for every token.
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


def continues(first: Part, part: Part) -> bool:
    """Return whether a piece can be merged into the group that begins with `first`.

    The caller has checked that both have the same role. Reasoning pieces belong to one block if their start times are
    equal.
    """
    if isinstance(first, Text):
        return isinstance(part, Text) and first.refusal is part.refusal
    if isinstance(first, Reasoning):
        return isinstance(part, Reasoning) and first.created_at == part.created_at
    if isinstance(first, ToolCall):
        return isinstance(part, ToolCall) and first.tool_call_id == part.tool_call_id
    if isinstance(first, ToolResult):
        return isinstance(part, ToolResult) and first.tool_call_id == part.tool_call_id
    return False


def joined(first: Part, text: str) -> Part:
    """Return the first of several pieces with the joined text of all."""
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
            raise TypeError(f"A {type(first).__name__} cannot be merged.")


def merged(events: Iterable[PartEvent]) -> list[PartEvent]:
    """Merge neighboring encoded events where possible. The other events keep their bytes."""
    result: list[PartEvent] = []
    run: _MergedRun | None = None
    for event in events:
        message = _decoder.decode(event[2])
        text = piece(message.part)
        if run is not None and text is not None and run.takes(message):
            run.add(event, text)
            continue
        if run is not None:
            result.append(run.event())
        run = None if text is None else _MergedRun(event, message, text)
        if run is None:
            result.append(event)
    if run is not None:
        result.append(run.event())
    return result


class _MergedRun:
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
