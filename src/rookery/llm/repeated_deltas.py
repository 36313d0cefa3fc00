"""Repeated deltas: reads several events that differ only in their text, without decoding each of them.

While a model writes, most servers send the same bytes again and again, with another text in between. The first such
event is decoded as usual, and the bytes before and after its text are kept. If a block of bytes consists only of such
events, their texts are all that is new: a JSON string that contains no quote cannot change the meaning of the bytes
around it. All other blocks are decoded as usual. See benchmarks/token_decode.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rookery.llm.types import ReasoningDelta, StreamPart, TextDelta

# Some servers put a random or counted value into each event. Then no two of them have the same bytes.
_MAX_TRIALS = 4
# A longer block is rare, and is not a few words.
_MAX_BYTES = 65_536
_decode = msgspec.json.Decoder(str).decode


class RepeatedDeltas:
    """The pattern of one answer: what surrounds the text of its events. It is forgotten when anything else arrives."""

    __slots__ = ("_after", "_before", "_between", "_id", "_kind", "_trials")

    def __init__(self) -> None:
        self._id: str | None = None
        self._kind: type[TextDelta] | type[ReasoningDelta] = TextDelta
        self._before = self._after = self._between = b""
        self._trials = 0

    def read(self, block: bytes) -> StreamPart | None:
        """Return the delta with the text of all events; None if the block does not consist of such events."""
        before, after = self._before, self._after
        if not before or len(block) > _MAX_BYTES or not block.startswith(before) or not block.endswith(after):
            return None
        pieces = block[len(before) : -len(after)].split(self._between)
        text = b"".join(pieces)
        if not text or b'"' in text:
            return None
        if b"\\" in text and (b"\\u" in text or any(piece.endswith(b"\\") for piece in pieces)):
            # The piece could continue with the bytes behind it, or be half of a pair.
            return None
        try:
            return self._kind(self._id or "", _decode(b'"' + text + b'"'))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def learn(self, block: bytes, parts: Sequence[StreamPart]) -> None:
        """Learn the pattern of the last event of a block that was decoded to these parts.

        The block begins and ends between two events.
        """
        last = parts[-1] if parts else None
        if not isinstance(last, TextDelta | ReasoningDelta) or not _are_one_text(parts, last):
            self._id, self._before = None, b""
            return
        if (last.id, type(last)) != (self._id, self._kind):
            self._id, self._kind, self._trials = last.id, type(last), 0
            self._before = b""
        if self._trials == _MAX_TRIALS or len(block) > _MAX_BYTES:
            return
        end_of_previous = block.rfind(b"\n\n", 0, -2)
        event = block if end_of_previous < 0 else block[end_of_previous + 2 :]
        text = msgspec.json.encode(last.text) if _is_plain(last.text) else b""
        if not text or event.count(text) != 1 or b"\r" in event:
            return
        self._trials += 1
        at = event.index(text) + 1
        self._before, self._after = event[:at], event[at + len(text) - 2 :]
        self._between = self._after + self._before


def _are_one_text(parts: Sequence[StreamPart], last: TextDelta | ReasoningDelta) -> bool:
    return all(type(part) is type(last) and part.id == last.id for part in parts)


def _is_plain(text: str) -> bool:
    """Return whether servers spell this text in only one way."""
    return text.isascii() and text.isprintable() and not any(character in text for character in '"\\/')
