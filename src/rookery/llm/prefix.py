"""The running hash over what a request says before its answer; an answer keeps it as `prefix_fp`.

Providers cache by prefix, and some bind thinking to it. The hash grows piece by piece, so the fingerprint of an
earlier request is a state on the way to that of any later one with the same beginning.
"""

from __future__ import annotations

import hashlib

from rookery.chat.messages import Role
from rookery.chat.prompt_parts import Prompt

FP_BYTES = 16


class Prefix:
    """Fed with the pieces of one request in order. `seed` is what stands before all messages: model and tools."""

    __slots__ = ("_hash", "_is_met", "_newest")

    def __init__(self, seed: bytes, prompt: Prompt) -> None:
        self._hash = hashlib.blake2b(seed, digest_size=FP_BYTES)
        self._newest = newest_fp(prompt)
        self._is_met = False

    def add(self, piece: bytes) -> None:
        if not self._is_met and self._newest is not None:
            self._is_met = self._hash.digest() == self._newest
        self._hash.update(piece)

    def digest(self) -> bytes:
        return self._hash.digest()

    @property
    def broken(self) -> bytes | None:
        """The fingerprint of the newest answer, if this request did not pass through it. Asked after the last piece."""
        return None if self._is_met else self._newest


def newest_fp(prompt: Prompt) -> bytes | None:
    """What the newest answer of the provider that is asked now was given for. Others' answers prove nothing."""
    for message in reversed(prompt.messages):
        if message.role is Role.ASSISTANT:
            return message.prefix_fp if message.is_native else None
    return None
