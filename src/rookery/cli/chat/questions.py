"""Open questions of a chat and its subagents."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from rookery.client import AsyncRookery, Chat, RookeryError
from rookery.client.models import ActionCall

APPROVAL = "approval"


class Asked(msgspec.Struct, frozen=True):
    """The open questions of one chat. `title` is set for a subagent, whose questions were not shown yet."""

    chat_id: UUID
    calls: tuple[ActionCall, ...]
    title: str | None = None


async def find(client: AsyncRookery, chat_id: UUID) -> list[Asked]:
    """Return the questions of the chat and of its subagents."""
    root = await client.chats.get(chat_id)
    own = [Asked(root.id, root.action.tool_calls)] if root.action and root.action.kind == APPROVAL else []
    return [*own, *await _of_children(client, root.children)]


async def until_a_subagent_asks(client: AsyncRookery, chat_id: UUID) -> list[Asked]:
    """Wait for questions of subagents. Return none if the list of chats cannot be watched: the turn is still shown."""
    try:
        async with client.chats.watch() as watch:
            async for event in watch:
                is_about_us = event.chat is None or (
                    event.chat.root_chat_id == chat_id and event.chat.needs_user == APPROVAL
                )
                if is_about_us and event.type != "disconnected":
                    found = await _of_children(client, (await client.chats.get(chat_id)).children)
                    if found:
                        return found
    except RookeryError:
        pass
    return []


async def _of_children(client: AsyncRookery, children: Sequence[Chat]) -> list[Asked]:
    found = []
    for child in children:
        if child.needs_user == APPROVAL:
            action = (await client.chats.get(child.id)).action
            # It may have been answered between the two reads.
            if action is not None and action.kind == APPROVAL:
                found.append(Asked(child.id, action.tool_calls, child.title))
    return found
