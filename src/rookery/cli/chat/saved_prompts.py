"""Saved prompts at the terminal: `/name` inserts the text of one.

The server searches them, because there may be many.
"""

from __future__ import annotations

from contextlib import suppress

from rookery.client import AsyncRookery, Invalid, NotFound, RookeryError
from rookery.client.models import SavedPrompt

# Chosen: more would not fit above the input.
MAX_FOUND = 20


async def find(client: AsyncRookery, prefix: str) -> list[tuple[str, str]]:
    """Return the names that begin with a prefix, each once, with the beginnings of the texts.

    Return none if the server does not answer, because this only completes what the user types.
    """
    with suppress(RookeryError):
        page = await client.saved_prompts.list(prefix, limit=MAX_FOUND)
        found: dict[str, str] = {}
        for each in page.items:
            if each.name.startswith(prefix):
                found.setdefault(each.name, each.summary)
        return list(found.items())
    return []


async def get(client: AsyncRookery, name: str) -> SavedPrompt | None:
    """Return the user's own prompt with this name, or else the one that is shared with everyone."""
    with suppress(NotFound, Invalid):
        return await client.saved_prompts.get(name)
    with suppress(NotFound, Invalid):
        return await client.saved_prompts.get(name, scope="deployment")
    return None


def cursor_of(text: str) -> int:
    """Return where to start typing: behind the first variable, so that it can be deleted as a word; else the end."""
    start = text.find("{{")
    end = text.find("}}", start)
    return len(text) if start < 0 or end < 0 else end + 2
