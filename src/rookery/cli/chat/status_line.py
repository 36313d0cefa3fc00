"""The status line of the interactive session: what the chat does, and whom it waits for. Pure."""

from __future__ import annotations

import msgspec

from rookery.client.models import Chat
from rookery.client.reducer import View

# What a chat at rest waits for.
_NEEDS = {"plan": "a plan waits for you", "question": "a question waits for you"}


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What the status line depends on.

    `chat` is the newest view from the list of chats; it may be older than the view of the stream. `turn_seconds` is the
    age of the running turn, `phase` its current phase and the age of that. `starting` names what runs before there is a
    chat.
    """

    view: View
    chat: Chat | None = None
    has_chat: bool = False
    is_synced: bool = False
    is_lost: bool = False
    is_stopping: bool = False
    is_asked: bool = False
    turn_seconds: float | None = None
    phase: tuple[str, float] | None = None
    starting: str = ""


def state_words(shown: Shown) -> list[str]:
    """Return what the chat does, in one or two pieces. The first thing that is true is said."""
    view, chat = shown.view, shown.chat
    age = "" if shown.turn_seconds is None else f" {shown.turn_seconds:.0f} s"
    if shown.is_asked:
        return ["needs you"]
    if shown.starting:
        return [shown.starting]
    if not shown.has_chat:
        return ["idle"]
    if shown.is_lost:
        return ["reconnecting"]
    if not shown.is_synced:
        return ["loading"]
    if view.status == "interrupting" or (shown.is_stopping and view.status == "running"):
        return [f"stopping{age}"]
    if view.status == "running":
        if chat is not None and chat.status == "running" and chat.queued_for_capacity:
            return [f"waiting for a free slot{age}"]
        phase = [] if shown.phase is None else [f"{shown.phase[0]} {shown.phase[1]:.0f} s"]
        return [f"working{age}", *phase]
    if view.status == "requires_action":
        is_approval = (view.action or {}).get("kind") == "approval"
        return ["needs you" if is_approval else "waits for tools of its client"]
    if view.status == "error":
        return ["failed"]
    if view.archived:
        return ["archived"]
    # An older view of the list may name a plan that the user has answered since.
    if chat is not None and chat.snapshot_version >= view.snapshot_version and chat.needs_user is not None:
        return [_NEEDS.get(chat.needs_user, "needs you")]
    return ["idle"]
