"""What the wires keep of a chat's last request, so that the next one is written from where it differs.

Only an optimisation, and bounded: what is not here is written anew. A past is taken out while a request is built, so
that no two requests of one chat can use it at the same time; whoever finds none starts with an empty one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from rookery.llm.replay_memory import Key

# Chosen: a dozen chats of 10,000 messages, or very many of a common length.
MAX_CACHE_BYTES = 64 * 1024 * 1024


class Past:
    """What was written, by the variant of the request: plain or faithful, with or without thinking."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        # The types are the wires' own, with their `size_bytes`; each finds here only what it has put here.
        self.written: dict[tuple[bool, ...], Any] = {}

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.written.values())


class Pasts:
    """One per process. Keys are (chat, provider, model); those used last are kept, up to `max_bytes` of them."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Key, tuple[Past, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def take(self, key: Key | None) -> Past:
        """The past of this chat, which is the caller's from now on; an empty one when there is none."""
        if key is None:
            return Past()
        past, size_bytes = self._kept.pop(key, (None, 0))
        self._bytes -= size_bytes
        return past or Past()

    def keep(self, key: Key | None, past: Past) -> None:
        """Keep it for the next request. One that alone is larger than the cache is not kept."""
        if key is None:
            return
        self.take(key)
        size_bytes = past.size_bytes
        if size_bytes > self._max_bytes:
            return
        self._kept[key] = (past, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            self.take(next(iter(self._kept)))
