"""What this process remembers of a chat's earlier requests, so that a known trouble is not met twice.

Kept in memory and bounded: what is forgotten costs one refused request, which the replay ladder repairs. A chat has an
entry for each model it talks to, because what one model refuses another may not even understand.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias
from uuid import UUID

# Chosen: an entry is a few hundred bytes, and only chats that had a trouble have one.
MAX_CHATS = 10_000

Key: TypeAlias = tuple[str, UUID, str]


class ReplayMemory:
    """Keys are (chat, provider, model). The least recently used are forgotten first."""

    def __init__(self, *, max_chats: int = MAX_CHATS) -> None:
        self._max_chats = max_chats
        self._stale: OrderedDict[Key, None] = OrderedDict()
        # The last broken prefix that was reported.
        self._broken: OrderedDict[Key, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stale.keys() | self._broken.keys())

    def has_stale_thinking(self, key: Key) -> bool:
        """Whether a prefix of this chat changed under its thinking: that thinking stays in the history."""
        if key not in self._stale:
            return False
        self._stale.move_to_end(key)
        return True

    def remember_stale_thinking(self, key: Key) -> None:
        self._stale[key] = None
        self._stale.move_to_end(key)
        self._forget(self._stale)

    def is_new_break(self, key: Key, broken_prefix: bytes) -> bool:
        """Whether this break was not reported yet; asking reports it. A request that is tried again has the same."""
        is_new = self._broken.get(key) != broken_prefix
        self._broken[key] = broken_prefix
        self._broken.move_to_end(key)
        self._forget(self._broken)
        return is_new

    def _forget(self, known: OrderedDict[Key, None] | OrderedDict[Key, bytes]) -> None:
        while len(known) > self._max_chats:
            known.popitem(last=False)
