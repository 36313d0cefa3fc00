"""The prompt loop of the terminal client finds the plan that a turn proposed."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from rookery.cli.chat import prompt_loop
from rookery.client import AsyncRookery
from rookery.client.models import Message, Part

CHAT = UUID(int=1)
PLAN = Part(type="tool-result", tool_name="propose_plan", result={"file_id": "f"})
FAILED = Part(type="tool-result", tool_name="propose_plan", result={"error": "No plan."}, is_error=True)
OTHER = Part(type="tool-result", tool_name="execute", result={"output": "x"})


def client(*rows: tuple[str, Part]) -> AsyncRookery:
    """Return a client of a chat with these rows, newest first."""

    async def listed(chat_id: UUID, *, limit: int) -> Any:
        now = datetime.now(UTC)
        items = [Message(id=9, chat_id=chat_id, role=role, content=(part,), created_at=now) for role, part in rows]
        return SimpleNamespace(items=items[:limit])

    async def download(file_id: str) -> bytes:
        return f"# Plan {file_id}\n".encode()

    return cast(
        AsyncRookery, SimpleNamespace(messages=SimpleNamespace(list=listed), files=SimpleNamespace(download=download))
    )


@pytest.mark.parametrize(
    ("rows", "plan"),
    [
        ([("tool", PLAN), ("assistant", Part(type="text", text="Here.")), ("user", Part(type="text"))], "# Plan f\n"),
        ([("tool", OTHER), ("tool", PLAN), ("user", Part(type="text"))], "# Plan f\n"),
        ([("tool", FAILED), ("user", Part(type="text"))], None),
        # A plan of an earlier turn was already shown.
        ([("assistant", Part(type="text", text="Done.")), ("user", Part(type="text")), ("tool", PLAN)], None),
    ],
)
async def test_plan_of_the_newest_turn_is_found(rows: list[tuple[str, Part]], plan: str | None) -> None:
    assert await prompt_loop.find_plan(client(*rows), CHAT) == plan
