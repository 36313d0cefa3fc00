"""Users with chats, and the chat list of each user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
from msgspec import UNSET

from rookery.domain.access.rights import Role
from rookery.domain.chat.messages import ChatId
from rookery.domain.content import search_query
from rookery.store.authorized.actor_store import ActorStore, Store
from rookery.store.chats import pins, search
from rookery.store.chats.chat_views import ChatListPage, ChatView
from rookery.store.machine import Machine
from rookery.store.people.users import User
from rookery.testing import FakeClock
from tests.store.builders import OPEN, StoreRig, open_store_rig
from tests.store.machine.machine_rig import Recorder
from tests.store.people.account_rows import open_pool, person

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class ChatLists:
    """Users and their chats: ada and bob are members, root is an administrator, audrey is an auditor."""

    def __init__(self, world: StoreRig, pool: asyncpg.Pool, people: Mapping[str, User]) -> None:
        self.world = world
        self.pool = pool
        self.people = people
        self.published = Recorder()
        clock = FakeClock()
        machine = Machine(pool, self.published, clock=clock)
        self.store = Store(pool, machine=machine, publisher=self.published, clock=clock)

    def by(self, name: str, *, reason: str | None = None) -> ActorStore:
        return self.store.as_actor(self.people[name].actor, break_glass=reason)

    def id(self, name: str) -> UUID:
        return self.people[name].id

    async def chat(self, owner: str = "ada", *, minutes: float = 0, **fields: object) -> ChatId:
        """Create a chat whose last activity was this many minutes before noon."""
        at = NOON - timedelta(minutes=minutes)
        return await self.world.chat(self.id(owner), updated_at=at, **fields)  # type: ignore[arg-type]

    async def chats(self, count: int, owner: str = "ada") -> list[ChatId]:
        """Create chats, and return them newest first, as in a list."""
        return [await self.chat(owner, minutes=n) for n in range(count)]

    async def share(self, chat_id: ChatId, name: str | None) -> None:
        user_id = None if name is None else self.id(name)
        await self.world.conn.execute("INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", chat_id, user_id)

    async def pin(self, *chats: ChatId, name: str = "ada") -> None:
        for chat in chats:
            await pins.pin(self.world.conn, chat, user_id=self.id(name))

    async def set(self, chat_id: ChatId, assignments: str, *values: object) -> None:
        """Set columns of a chat, within a transition."""
        async with self.world.conn.transaction():
            await self.world.conn.execute(OPEN, chat_id)
            await self.world.conn.execute(f"UPDATE chats SET {assignments} WHERE id = $1", chat_id, *values)

    async def sweep(self) -> None:
        while await search.sweep(self.world.conn):
            pass

    async def page(self, name: str = "ada", q: str = "", **options: object) -> ChatListPage:
        query = search_query.parse(q)
        return await self.by(name).chats.list(self.id(name), query, **options)  # type: ignore[arg-type]

    async def items(self, name: str = "ada", q: str = "", **options: object) -> tuple[ChatView, ...]:
        return (await self.page(name, q, **options)).items

    async def ids(self, name: str = "ada", q: str = "", **options: object) -> list[ChatId]:
        return [chat.id for chat in await self.items(name, q, **options)]

    async def pages(self, name: str = "ada", q: str = "", *, limit: int) -> list[list[ChatId]]:
        found = []
        cursor: str | None = None
        while True:
            page = await self.page(name, q, limit=limit, cursor=cursor)
            found.append([chat.id for chat in page.items])
            if (cursor := page.next_cursor) is None:
                return found


def children(chat: ChatView) -> tuple[ChatView, ...]:
    assert chat.children is not UNSET, "only events leave them out"
    return chat.children


@asynccontextmanager
async def open_shelf(url: str) -> AsyncIterator[ChatLists]:
    async with open_store_rig(url) as world, open_pool(url) as pool:
        roles = {"root": Role.ADMIN, "audrey": Role.AUDITOR}
        people = {
            name: await person(world.conn, name, role=roles.get(name, Role.MEMBER))
            for name in ("ada", "bob", "root", "audrey")
        }
        yield ChatLists(world, pool, people)
