"""The encoded history of a request, cached between the requests of a chat, and a running hash over it.

Providers cache by prefix, and some bind thinking to it. An answer stores the hash of its request's prefix as
`prefix_fp`. The hash grows with each piece, so a later request with the same beginning passes through the hash of the
earlier one. Most of a request was already encoded for the request before it; encoding continues at a mark of that
request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage
from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.types import Call, CallWarning

FP_BYTES = 16
# The hash of the newest answer is searched among this many last hashes first.
_RECENT = 200
# The estimated memory of a piece besides its bytes, and of a mark with its hash.
_OBJECT_BYTES = 200
_MARK_BYTES = 700


class _Mark(NamedTuple):
    """A position at which encoding can continue: the numbers of messages, pieces, ids and notes, and the hash there."""

    messages: int
    turn_start: int
    pieces: int
    ids: int
    notes: int
    size_bytes: int
    hash: Any


class Pieces:
    """The encoded pieces of a history, in order.

    `seed` is the content before all messages. `key` holds all settings that the bytes of messages depend on.
    """

    __slots__ = ("_bytes", "_digests", "_hash", "_ids", "_key", "_marks", "_messages", "_seeded", "notes", "sent")

    def __init__(self, seed: bytes, key: object = None) -> None:
        # Stored as a hash, because the seed contains all tools and would be larger than a short chat.
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

    def matches(self, seed: bytes, key: object) -> bool:
        seeded = hashlib.blake2b(seed, digest_size=FP_BYTES)
        return self._seeded.digest() == seeded.digest() and self._key == key

    def resume(self, messages: tuple[PromptMessage, ...], turn_start: int = 0) -> int:
        """Go back to the last mark before which these messages are the same. Return the number of encoded messages.

        `turn_start` is the start of the current turn, for wires that encode its messages differently.
        """
        known, self._messages = self._messages, messages
        while self._marks:
            mark = self._marks[-1]
            count = mark.messages
            # This is fast, because the prompts of a chat share their message objects.
            if mark.turn_start == min(turn_start, count) and known[: count + 1] == messages[: count + 1]:
                self._rewind(mark)
                return count
            self._marks.pop()
        self._rewind(_Mark(0, 0, 0, 0, 0, 0, self._seeded))
        return 0

    def mark(self, messages: int, turn_start: int = 0) -> None:
        """Set a mark before the message with this number. The pieces before the mark must not depend on messages after
        it."""
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

    def broken_prefix(self, prompt: Prompt) -> bytes | None:
        """Return the prefix hash of the newest answer if this request has a different prefix.

        Call it after the last piece.
        """
        newest = newest_fp(prompt)
        # The hash is near the end, unless the prefix is broken.
        if newest is None or newest in self._digests[-_RECENT:] or newest in self._digests:
            return None
        return newest

    def _rewind(self, mark: _Mark) -> None:
        del self.sent[mark.pieces :], self._digests[mark.pieces :], self.notes[mark.notes :]
        while len(self._ids) > mark.ids:
            self._ids.popitem()
        self._bytes = mark.size_bytes
        self._hash = mark.hash.copy()


def pieces_of(previous: EncodedRequest, call: Call, seed: bytes, *, key: object) -> Pieces:
    """Return the pieces of the previous request if they can be continued, else new ones. Store them in `previous`."""
    variant = (call.plain_history,)
    pieces: Pieces | None = previous.written.pop(variant, None)
    if pieces is None or not pieces.matches(seed, key):
        pieces = Pieces(seed, key)
    previous.written = {variant: pieces}
    return pieces


def newest_fp(prompt: Prompt) -> bytes | None:
    """Return the prefix hash of the newest answer; None if it is from another provider."""
    index = last_index(prompt.messages, Role.ASSISTANT)
    if index < 0 or not prompt.messages[index].is_native:
        return None
    return prompt.messages[index].prefix_fp


def last_index(messages: Sequence[PromptMessage], role: Role) -> int:
    """Return the index of the last message of this role; -1 if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role is role:
            return index
    return -1
