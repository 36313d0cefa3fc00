"""Chats over HTTP for tests. The tests do the worker's part: an `ApiRig` runs no worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import httpx2

from rookery.domain.chat import parts
from rookery.domain.chat.chat import LastError
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.parts import Text, ToolCall
from rookery.store import machine
from rookery.store.machine import Bundle, Tx
from tests.api.api_rig import ApiRig, Person

CHATS = "/api/v1/chats"
TOOL = {"name": "lookup", "description": "Looks things up.", "input_schema": {"type": "object"}}
CALL_ID = "call-1"

Json = dict[str, Any]


def text(words: str) -> list[Json]:
    return [{"type": "text", "text": words}]


def said(message: Json) -> str:
    return "".join(part.get("text", "") for part in message["content"])


class ChatRig:
    """The chats of one user."""

    def __init__(self, rig: ApiRig, person: Person) -> None:
        self.rig = rig
        self.person = person
        self.http = person.http

    async def create(self, words: str = "Say hello", **members: object) -> str:
        made = await self.http.post(CHATS, json={"content": text(words), **members})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def create_with(self, file_id: str) -> str:
        """Create a chat whose first message has a file and no text."""
        made = await self.http.post(CHATS, json={"content": [{"type": "file", "file_id": file_id}]})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def send(self, chat: str, words: str, **members: object) -> httpx2.Response:
        return await self.http.post(f"{CHATS}/{chat}/messages", json={"content": text(words), **members})

    async def queue(self, chat: str, *words: str) -> list[int]:
        """Queue messages in a busy chat."""
        ids = []
        for each in words:
            sent = await self.send(chat, each)
            assert sent.json()["queued"] is True, sent.text
            ids.append(sent.json()["queued_message"]["id"])
        return ids

    async def get(self, chat: str) -> Json:
        found: Json = (await self.http.get(f"{CHATS}/{chat}")).json()
        return found

    async def messages(self, chat: str) -> list[str]:
        """Return the texts of the history, oldest first."""
        page = (await self.http.get(f"{CHATS}/{chat}/messages", params={"after_id": 0, "limit": 200})).json()
        return [said(message) for message in page["items"]]

    async def queued(self, chat: str) -> list[str]:
        return [said(row) for row in (await self.http.get(f"{CHATS}/{chat}/queue")).json()["items"]]

    # The worker's part

    async def act(self, chat: str, *steps: Callable[[Tx], Awaitable[object]]) -> None:
        async def run(bundle: Bundle) -> None:
            tx = await bundle.open(UUID(chat))
            for step in steps:
                await step(tx)

        await self.rig.replica.machine.bundle(run)

    async def say(self, chat: str, words: str = "Hello.") -> None:
        """Commit one step of the model."""
        answer = NewMessage(role=Role.ASSISTANT, content=(Text(words),))
        await self.act(chat, lambda tx: machine.commit_step(tx, [answer]))

    async def rest(self, chat: str, words: str = "Hello.") -> None:
        """Commit an answer and end the turn."""
        await self.say(chat, words)
        await self.act(chat, machine.finish_turn)

    async def fail(self, chat: str) -> None:
        await self.act(chat, lambda tx: machine.finish_error(tx, LastError(message="It broke.", retryable=True)))

    async def call_tool(self, chat: str) -> None:
        """Commit a call of the client's tool, so that the chat waits for its result."""
        call = ToolCall(tool_call_id=CALL_ID, tool_name="lookup", args=parts.json_raw({"what": "x"}))
        step = NewMessage(role=Role.ASSISTANT, content=(call,))
        await self.act(chat, lambda tx: machine.commit_step(tx, [step]), machine.enter_requires_action)

    async def waiting(self) -> str:
        chat = await self.create()
        await self.rest(chat)
        return chat

    async def failed(self, *queued: str) -> str:
        chat = await self.create()
        await self.queue(chat, *queued)
        await self.fail(chat)
        return chat

    async def asking(self, *queued: str) -> str:
        """Create a chat that waits for the result of its client's tool."""
        chat = await self.create(dynamic_tools=[TOOL])
        await self.call_tool(chat)
        await self.queue(chat, *queued)
        return chat

    async def archived(self) -> str:
        chat = await self.waiting()
        assert (await self.http.patch(f"{CHATS}/{chat}", json={"archived": True})).status_code == 200
        return chat

    async def count(self, table: str) -> int:
        async with self.rig.database.api.acquire() as conn:
            found: int = await conn.fetchval(f"SELECT count(*) FROM {table}")
        return found

    async def share(self, chat: str, *people: Person) -> None:
        users = {str(person.id): "read" for person in people}
        done = await self.http.patch(f"{CHATS}/{chat}/acl", json={"users": users})
        assert done.status_code == 204, done.text


def fields(answer: httpx2.Response) -> dict[str, str]:
    """Return the errors of a request by field."""
    assert answer.status_code == 400, answer.text
    return {each["field"]: each["message"] for each in answer.json()["fields"]}
