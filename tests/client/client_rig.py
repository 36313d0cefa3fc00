"""Clients of a real server, through a proxy that tests can cut, with a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any
from uuid import uuid4

from rookery.client import AsyncRookery, Change, LiveChat
from rookery.domain.access.rights import Scope, UserActor
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.live.part_buffer import Episode, EpisodeKey
from rookery.store import machine
from rookery.testing import FakeClock
from tests.api.api_rig import ApiRig, Person
from tests.faulty_proxy import FaultyProxy
from tests.store.machine.machine_rig import Rig as MachineRig


class Rig:
    """`client` connects through `proxy` and uses `clock`."""

    def __init__(self, rig: ApiRig, person: Person, chats: MachineRig) -> None:
        self.rig = rig
        self.person = person
        self.chats = chats
        self.clock = FakeClock()
        self.proxy = FaultyProxy(rig.url)
        self.client = AsyncRookery()
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Rig]:
        async with self._stack:
            await self._stack.enter_async_context(self.proxy.laid())
            self.client = await self.connect(self.person.token)
            yield self

    @property
    def actor(self) -> UserActor:
        return UserActor(self.person.id, self.person.user.role, frozenset({Scope.ALL}))

    async def connect(self, token: str | None, **options: Any) -> AsyncRookery:
        client = AsyncRookery(self.proxy.url, token=token, clock=self.clock, rng=Random(1), **options)
        return await self._stack.enter_async_context(client)

    async def chat(self, *said: str) -> ChatId:
        """Create a waiting chat with these messages, alternately of user and assistant."""
        roles = (Role.USER, Role.ASSISTANT)
        rows = [NewMessage(role=roles[i % 2], content=(Text(words),)) for i, words in enumerate(said or ("hello",))]
        chat_id = await self.chats.create(*rows[:1])
        if rows[1:]:
            await self.chats.commit(chat_id, *rows[1:])
        await self.chats.run(chat_id, machine.finish_turn)
        return chat_id

    async def running(self, *said: str) -> tuple[ChatId, Episode]:
        """Create a running chat. Return it with its episode."""
        chat_id = await self.chats.create(NewMessage(role=Role.USER, content=(Text("hello"),)))
        return chat_id, await self.attempt(chat_id)

    async def attempt(self, chat_id: ChatId) -> Episode:
        runner_id = uuid4()
        await self.chats.run(chat_id, machine.acquire, worker_id=self.rig.replica.id, runner_id=runner_id)
        await self.chats.run(chat_id, machine.record_generation_attempt)
        chat = await self.load(chat_id)
        key = EpisodeKey(chat.id, chat.history_version, chat.generation_attempt)
        return self.rig.replica.worker.buffer.create_episode(key)

    async def say(self, chat_id: ChatId, words: str) -> None:
        await self.chats.commit(chat_id, NewMessage(role=Role.ASSISTANT, content=(Text(words),)))

    async def finish(self, chat_id: ChatId) -> None:
        await self.chats.run(chat_id, machine.finish_turn)

    async def load(self, chat_id: ChatId) -> Chat:
        return await self.chats.load(chat_id)


def write(episode: Episode, *pieces: str) -> None:
    """Add live parts, each with its own number."""
    for piece in pieces:
        episode.add_part(Role.ASSISTANT, Text(piece))
        episode.flush()


async def follow(live: LiveChat, enough: Callable[[], bool]) -> list[Change]:
    """Collect changes until a condition is met."""
    changes: list[Change] = []
    async with asyncio.timeout(20):
        while not enough():
            changes.append(await anext(live))
    return changes


def texts(live: LiveChat) -> list[str]:
    return [part.text or "" for message in live.messages for part in message.content]


def preview(live: LiveChat) -> str:
    return "".join(event["part"]["text"] for event in live.state.preview)
