"""The permission modes of chats in the terminal: their names, what they mean, and their order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rookery.client.content import PermissionMode
from rookery.client.models import Chat

# The words of the page, in the order in which a key goes through them.
WORDS: Mapping[PermissionMode, str] = {"ask": "ask", "auto": "auto", "read_only": "read only"}
MEANINGS: Mapping[PermissionMode, str] = {
    "ask": "every action with an effect asks you first",
    "auto": "the approval rules decide",
    "read_only": "the agent can only read",
}
# As options of commands, which have no spaces.
NAMES: Mapping[str, PermissionMode] = {mode.replace("_", "-"): mode for mode in WORDS}
CHOICES = f"The modes are {', '.join(NAMES)}."


def named(text: str) -> PermissionMode | None:
    """Return the mode that a user has typed."""
    return NAMES.get("-".join(text.lower().replace("_", " ").replace("-", " ").split()))


def stored(chat: Chat) -> PermissionMode:
    """Return the mode of a chat. A mode of a newer server is shown as the strictest one that asks."""
    return next((mode for mode in WORDS if mode == chat.permission_mode), "ask")


def following(mode: PermissionMode) -> PermissionMode:
    """Return the next mode, for a key that goes through all of them."""
    order = list(WORDS)
    return order[(order.index(mode) + 1) % len(order)]


def line(mode: PermissionMode) -> str:
    return f"Mode {WORDS[mode]}: {MEANINGS[mode]}."


def lines(current: PermissionMode) -> Iterator[str]:
    """Yield all modes, the current one marked."""
    for name, mode in NAMES.items():
        yield f"{'*' if mode == current else ' '} {name:<10} {MEANINGS[mode]}"
