"""The encoded history of a request, cached between the requests of a chat, and the running hash over it.

Providers cache by prefix, and some bind thinking to it; an answer stores the hash of the prefix it was given for as
`prefix_fp`. The hash grows piece by piece, so the fingerprint of an earlier request is an intermediate state of any
later one with the same beginning. Most of a request was therefore encoded for the one before it: writing continues at a
mark of that request, and costs only what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.prompt_parts import Prompt, PromptMessage
from rookery.llm.encoded_requests import EncodedRequest
from rookery.llm.types import Call, CallWarning

FP_BYTES = 16
# The end of the newest answer's request is searched here first.
_RECENT = 200
# Chosen: the memory of a piece besides its bytes, and of a mark with its hash.
_OBJECT_BYTES = 200
_MARK_BYTES = 700


class _Mark(NamedTuple):
    """A point where writing can continue: after this many messages, pieces, ids and notes, with the hash at that
    point."""

    messages: int
    turn_start: int
    pieces: int
    ids: int
    notes: int
    size_bytes: int
    hash: Any


class Pieces:
    """The pieces one wire has written, in order. `seed` is the content before all messages; `key` is everything else
    that the bytes of a message depend on besides the message itself."""

    __slots__ = ("_bytes", "_digests", "_hash", "_ids", "_key", "_marks", "_messages", "_seeded", "notes", "sent")

    def __init__(self, seed: bytes, key: object = None) -> None:
        # As a hash: the seed holds all tools, and would be most of what a short chat keeps in memory.
        self._seeded = hashlib.blake2b(seed, digest_size=FP_BYTES)
        self._key = key
        self._messages: tuple[PromptMessage, ...] = ()
        self._marks: list[_Mark] = []
        self.sent: list[Raw] = []
        self.notes: list[CallWarning] = []
        self._bytes = 0
        # The hash before each piece.
        self._digests: list[bytes] = []
        self._ids: dict[str, None] = {}
        self._hash = self._seeded.copy()

    @property
    def size_bytes(self) -> int:
        """The approximate memory in bytes."""
        return self._bytes + len(self._marks) * _MARK_BYTES

    def is_for(self, seed: bytes, key: object) -> bool:
        seeded = hashlib.blake2b(seed, digest_size=FP_BYTES)
        return self._seeded.digest() == seeded.digest() and self._key == key

    def resume(self, messages: tuple[PromptMessage, ...], turn_start: int = 0) -> int:
        """Go back to the last mark that these messages also pass. Return how many of them are already written.

        `turn_start` is the start of the current turn, for wires that write its messages differently.
        """
        known, self._messages = self._messages, messages
        while self._marks:
            mark = self._marks[-1]
            count = mark.messages
            # The prompts of a chat share their messages, so this compares identities.
            if mark.turn_start == min(turn_start, count) and known[: count + 1] == messages[: count + 1]:
                self._rewind(mark)
                return count
            self._marks.pop()
        self._rewind(_Mark(0, 0, 0, 0, 0, 0, self._seeded))
        return 0

    def mark(self, messages: int, turn_start: int = 0) -> None:
        """Allow writing to continue here, before the message with this number. Of all that follows, only that
        message may have influenced what was written."""
        if self._marks and self._marks[-1].messages == messages:
            return
        counts = (len(self.sent), len(self._ids), len(self.notes), self._bytes)
        self._marks.append(_Mark(messages, min(turn_start, messages), *counts, self._hash.copy()))

    def unmark(self, messages: int) -> None:
        """Remove the marks up to this message."""
        self._marks = [mark for mark in self._marks if mark.messages > messages]

    def add(self, piece: Raw) -> None:
        data = bytes(piece)
        self._digests.append(self._hash.digest())
        self._hash.update(data)
        self.sent.append(piece)
        self._bytes += len(data) + _OBJECT_BYTES

    def is_new_id(self, call_id: str) -> bool:
        """Record the call id. Return whether it is new."""
        if call_id in self._ids:
            return False
        self._ids[call_id] = None
        return True

    def digest(self) -> bytes:
        return self._hash.digest()

    def broken(self, prompt: Prompt) -> bytes | None:
        """Return the fingerprint of the newest answer if this request did not pass through it. Call it after the
        last piece."""
        newest = newest_fp(prompt)
        # From the end: the fingerprint is there in all but broken requests.
        if newest is None or newest in self._digests[-_RECENT:] or newest in self._digests:
            return None
        return newest

    def _rewind(self, mark: _Mark) -> None:
        del self.sent[mark.pieces :], self._digests[mark.pieces :], self.notes[mark.notes :]
        while len(self._ids) > mark.ids:
            self._ids.popitem()
        self._bytes = mark.size_bytes
        self._hash = mark.hash.copy()


def pieces_of(past: EncodedRequest, call: Call, seed: bytes, *, key: object) -> Pieces:
    """Return the pieces written for the last request if they can be continued, and store them in the past again."""
    variant = (call.plain_history,)
    pieces: Pieces | None = past.written.pop(variant, None)
    if pieces is None or not pieces.is_for(seed, key):
        pieces = Pieces(seed, key)
    past.written = {variant: pieces}
    return pieces


def newest_fp(prompt: Prompt) -> bytes | None:
    """Return the fingerprint of the newest answer by the provider of this call. Answers of other providers prove
    nothing."""
    place = last_of(prompt.messages, Role.ASSISTANT)
    if place < 0 or not prompt.messages[place].is_native:
        return None
    return prompt.messages[place].prefix_fp


def last_of(messages: Sequence[PromptMessage], role: Role) -> int:
    """Return the index of the last message of this role; -1 if there is none."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role is role:
            return place
    return -1
