"""Plan mode at the terminal: the proposed plan of a turn, and switching the mode."""

from __future__ import annotations

from uuid import UUID

from rookery.client import AsyncRookery

ON = "Plan mode is on: the agent reads, asks and plans, but changes nothing. /plan turns it off."
OFF = "Plan mode is off: the agent does what you say."
WHAT_NOW = "Reply with changes, or accept it: /plan turns plan mode off, then tell the agent to go ahead."
# More than a planning turn has after the plan: it ends there.
LOOK_BACK = 10


async def switch(client: AsyncRookery, chat_id: UUID) -> bool:
    """Turn plan mode of a chat on or off. Return whether it is on now."""
    wanted = not (await client.chats.get(chat_id)).plan_mode
    await client.chats.update(chat_id, plan_mode=wanted)
    return wanted


async def find(client: AsyncRookery, chat_id: UUID) -> str | None:
    """Return the plan that the newest turn has proposed, as text."""
    page = await client.messages.list(chat_id, limit=LOOK_BACK)
    for message in page.items:
        if message.role == "user":
            break
        for part in message.content:
            if part.type == "tool-result" and part.tool_name == "propose_plan" and not part.is_error:
                file_id = part.result.get("file_id") if isinstance(part.result, dict) else None
                if isinstance(file_id, str):
                    return (await client.files.download(file_id)).decode("utf-8", "replace")
    return None
