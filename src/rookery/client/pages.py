"""Paginated lists: one page, and iteration over all pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page. `next_cursor` gets the next page; it is None on the last page."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class Items(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list without pages."""

    items: tuple[T, ...]


async def walk(load: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """Iterate over every item of every page, loaded on demand."""
    cursor: str | None = None
    while True:
        page = await load(cursor)
        for item in page.items:
            yield item
        cursor = page.next_cursor
        if cursor is None:
            return
