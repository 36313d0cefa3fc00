"""Chat lists: their order, their pages, and the owners of their chats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat import parts
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.domain.content.search_query import ChatQuery
from rookery.store.chats import pins, shares
from rookery.store.chats.shares import SharingSettings
from rookery.store.db import page_cursors
from rookery.store.people.errors import Forbidden
from rookery.store.settings import settings as stored_settings
from tests.store.chats.chat_lists import NOON, ChatLists, children, open_shelf

NOBODY = UUID(int=7)


@pytest.fixture
async def lists(database_url: str) -> AsyncIterator[ChatLists]:
    async with open_shelf(database_url) as lists:
        yield lists


# Pages


async def test_pages_hold_each_chat_once_newest_first(lists: ChatLists) -> None:
    listed = await lists.chats(7)

    assert await lists.pages(limit=3) == [listed[:3], listed[3:6], listed[6:]]


async def test_a_list_that_fills_its_last_page_ends_there(lists: ChatLists) -> None:
    listed = await lists.chats(4)

    assert await lists.pages(limit=2) == [listed[:2], listed[2:]]


async def test_chats_of_the_same_moment_are_told_apart_by_id(lists: ChatLists) -> None:
    same = [await lists.chat() for _ in range(5)]

    pages = await lists.pages(limit=2)

    assert [chat for page in pages for chat in page] == sorted(same, reverse=True)


async def test_microseconds_survive_the_cursor(lists: ChatLists) -> None:
    listed = [await lists.chat(minutes=n / 60_000_000) for n in range(4)]

    assert await lists.pages(limit=1) == [[chat] for chat in listed]


async def test_pins_come_first_in_their_order_and_on_no_other_page(lists: ChatLists) -> None:
    listed = await lists.chats(6)
    await lists.pin(listed[5], listed[1])

    pages = await lists.pages(limit=3)

    assert pages == [[listed[5], listed[1], listed[0]], [listed[2], listed[3], listed[4]]]


@pytest.mark.parametrize("pinned", [2, 3, 4])
async def test_pins_that_fill_the_first_page_leave_the_rest_to_the_next(lists: ChatLists, pinned: int) -> None:
    listed = await lists.chats(5)
    await lists.pin(*listed[:pinned])

    pages = await lists.pages(limit=2)

    assert pages[0] == listed[:pinned]
    assert [chat for page in pages for chat in page] == listed


async def test_the_cursor_stays_good_when_its_chat_moves_or_goes(lists: ChatLists) -> None:
    listed = await lists.chats(5)
    page = await lists.page(limit=2)
    moved = page.items[-1].id

    await lists.set(moved, "updated_at = $2", NOON + timedelta(days=1))
    after_move = await lists.page(limit=2, cursor=page.next_cursor)
    await lists.world.conn.execute("DELETE FROM chats WHERE id = $1", moved)
    after_deletion = await lists.page(limit=2, cursor=page.next_cursor)

    assert [chat.id for chat in after_move.items] == listed[2:4]
    assert after_deletion == after_move


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "not a cursor!",
        "é" * 34,
        "A" * 10_000,
        page_cursors.encode(None),
        page_cursors.encode([1, NOON, NOBODY]),
        page_cursors.encode([2, "2030-01-01T12:00:00", NOBODY]),
        page_cursors.encode([2, NOON, "x"]),
        page_cursors.encode([2, NOON, NOBODY, 1]),
    ],
)
async def test_a_made_up_cursor_is_refused_by_name(lists: ChatLists, cursor: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await lists.page(cursor=cursor)

    assert caught.value.field == "cursor"


@pytest.mark.parametrize("limit", [-1, 0, 201])
async def test_a_limit_out_of_range_is_refused_by_name(lists: ChatLists, limit: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        await lists.page(limit=limit)

    assert caught.value.field == "limit"


class Crowd:
    """Chats that are changed, created, deleted and pinned between two pages of a list, and chats that are not."""

    def __init__(self, lists: ChatLists, fixed: list[ChatId], moving: list[ChatId]) -> None:
        self.lists = lists
        self.fixed = fixed
        self.moving = moving

    async def stir(self, kind: str, index: int, minutes: int) -> None:
        conn, owner = self.lists.world.conn, self.lists.id("ada")
        if kind == "new" or not self.moving:
            self.moving.append(await self.lists.chat(minutes=minutes))
            return
        chat = self.moving[index % len(self.moving)]
        if kind == "move":
            await self.lists.set(chat, "updated_at = $2", NOON - timedelta(minutes=minutes))
        elif kind == "pin":
            await pins.pin(conn, chat, user_id=owner, position=1)
            await pins.pin(conn, chat, user_id=owner, position=1)
        elif kind == "unpin":
            await pins.unpin(conn, chat, user_id=owner)
        else:
            self.moving.remove(chat)
            await conn.execute("DELETE FROM chats WHERE id = $1", chat)


STIRS = st.lists(
    st.tuples(st.sampled_from(["new", "move", "pin", "unpin", "delete"]), st.integers(0, 9), st.integers(-5, 30)),
    max_size=4,
)


@given(rounds=st.lists(STIRS, min_size=12, max_size=12), limit=st.integers(1, 4), pinned=st.integers(0, 3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_unchanged_chats_are_neither_repeated_nor_skipped_while_others_move(
    lists: ChatLists, rounds: list[list[tuple[str, int, int]]], limit: int, pinned: int
) -> None:
    await lists.world.conn.execute("DELETE FROM chats")
    fixed = [await lists.chat(minutes=2 * n + 0.5) for n in range(8)]
    crowd = Crowd(lists, fixed, [await lists.chat(minutes=3 * n) for n in range(5)])
    await lists.pin(*crowd.moving[:2], *fixed[:pinned])

    seen: list[ChatId] = []
    page = await lists.page(limit=limit)
    first = [chat.pin_order is not None for chat in page.items]
    seen += [chat.id for chat in page.items]
    for stirs in rounds:
        for stir in stirs:
            await crowd.stir(*stir)
        if page.next_cursor is None:
            break
        page = await lists.page(limit=limit, cursor=page.next_cursor)
        assert all(chat.pin_order is None for chat in page.items)
        seen += [chat.id for chat in page.items]
    while page.next_cursor is not None:
        page = await lists.page(limit=limit, cursor=page.next_cursor)
        seen += [chat.id for chat in page.items]

    assert first == sorted(first, reverse=True)
    assert sum(first) == 2 + pinned
    assert [chat for chat in seen if chat in set(fixed)] == fixed


# Whose


async def test_only_the_users_own_roots_are_listed(lists: ChatLists) -> None:
    root = await lists.chat()
    await lists.chat(parent=root)
    await lists.chat("bob")

    for q in ("", "source:created_by_me", "owner:me", "owner:ME", "owner:ada", "owner:Ada", f"owner:{lists.id('ada')}"):
        assert await lists.ids("ada", q) == [root], q


async def test_directly_shared_chats_are_listed_on_request(lists: ChatLists) -> None:
    own = await lists.chat("bob", minutes=1)
    direct, for_all, foreign = await lists.chat(), await lists.chat(), await lists.chat()
    await lists.share(direct, "bob")
    await lists.share(for_all, None)
    await lists.pin(for_all, name="bob")

    assert await lists.ids("bob") == [own]
    assert await lists.ids("bob", "source:shared_with_me") == [direct]
    assert await lists.ids("bob", "source:shared_with_me,created_by_me") == [direct, own]
    assert await lists.ids("bob", "source:shared_with_me owner:me") == []
    await stored_settings.write_setting(lists.world.conn, shares.SETTING, value=SharingSettings(enabled=False))
    assert await lists.ids("bob", "source:shared_with_me,created_by_me") == [own]
    assert foreign not in await lists.ids("ada", "source:shared_with_me")


async def test_pins_of_shared_chats_are_the_readers(lists: ChatLists) -> None:
    shared = await lists.chats(3)
    for chat in shared:
        await lists.share(chat, "bob")
    await lists.pin(shared[2], name="bob")
    await lists.pin(shared[1], name="ada")

    assert await lists.pages("bob", "source:shared_with_me", limit=2) == [[shared[2], shared[0]], [shared[1]]]
    assert await lists.ids("ada") == [shared[1], shared[0], shared[2]]


async def test_pins_and_pages_span_both_sources(lists: ChatLists) -> None:
    mine = [await lists.chat("bob", minutes=2 * n) for n in range(3)]
    theirs = [await lists.chat("ada", minutes=2 * n + 1) for n in range(3)]
    for chat in theirs:
        await lists.share(chat, "bob")
    await lists.pin(theirs[2], mine[2], name="bob")

    pages = await lists.pages("bob", "source:created_by_me,shared_with_me", limit=3)

    assert pages == [[theirs[2], mine[2], mine[0]], [theirs[0], mine[1], theirs[1]]]


@pytest.mark.parametrize("name", ["root", "audrey"])
async def test_staff_see_the_frame_of_other_peoples_chats_and_nothing_in_it(lists: ChatLists, name: str) -> None:
    chat = await lists.chat(title="A secret plan", labels={"client": "x"})
    child = await lists.chat(parent=chat, title="A secret errand")
    await lists.world.message(chat, "secret")
    await lists.set(chat, "status = 'error', last_error = '{\"message\": \"secret\"}', summary = 'secret'")
    await lists.share(chat, "audrey")
    await lists.pin(chat, name="audrey")

    (seen,) = await lists.items(name, "owner:ada")

    assert (seen.id, seen.title, seen.labels, seen.summary, seen.last_error) == (chat, "", {}, None, None)
    assert (seen.pin_order, seen.has_unread, seen.status, seen.owner.username) == (None, False, "error", "ada")
    assert [(each.id, each.title) for each in children(seen)] == [(child, "")]


async def test_staff_page_through_other_peoples_chats(lists: ChatLists) -> None:
    listed = await lists.chats(3)
    await lists.pin(listed[2])

    assert await lists.pages("root", "owner:ada", limit=2) == [listed[:2], listed[2:]]
    for chat in listed:
        await lists.share(chat, "audrey")
        await lists.pin(chat, name="audrey")
    assert await lists.pages("audrey", "owner:ada", limit=1) == [[chat] for chat in listed]
    assert await lists.ids("root", "owner:ada pinned:true") == []
    assert await lists.ids("root", "owner:ada pinned:false has_unread:false") == listed
    assert await lists.ids("root", "owner:ada has_unread:true") == []
    assert await lists.ids("root", f"owner:{lists.id('ada')} status:waiting") == listed


async def test_states_are_found_by_the_words_that_clients_show(lists: ChatLists) -> None:
    idle, working, stopping, failed, asking, calling, parent = await lists.chats(7)
    child = await lists.chat(parent=parent)
    await lists.world.message(asking, role="tool", content=(parts.ToolResult("1", "ask_user_question"),))
    for chat, assignments in {
        working: "status = 'running'",
        stopping: "status = 'interrupting'",
        failed: "status = 'error', last_error = '{}'",
        calling: "status = 'requires_action', requires_action_deadline_at = now()",
        parent: "status = 'running'",
        child: "status = 'requires_action', requires_action_deadline_at = now(), awaits_approval = true",
    }.items():
        await lists.set(chat, assignments)

    assert await lists.ids("ada", "status:idle") == [idle]
    assert await lists.ids("ada", "status:working") == [working, stopping]
    assert await lists.ids("ada", "status:failed") == [failed]
    assert await lists.ids("ada", "status:needs-you") == [asking, calling, parent]
    assert await lists.ids("ada", "status:idle,needs_you,error") == [idle, failed, asking, calling, parent]
    # An administrator sees that a chat waits for tools, and not that it asks a question.
    assert await lists.ids("root", "owner:ada status:needs_you") == [calling]
    assert await lists.ids("root", "owner:ada status:idle") == [idle, asking]


@pytest.mark.parametrize("term", ["fox", "search:fox", "title:fox", "label:a=b", "repo:x", "branch:x"])
async def test_search_reveals_nothing_about_chats_of_other_users(lists: ChatLists, term: str) -> None:
    await lists.chat(title="fox", labels={"a": "b"})

    with pytest.raises(Forbidden):
        await lists.page("root", f"owner:ada {term}")
    with pytest.raises(Forbidden):
        await lists.page("root", "owner:ada", labels=[("a", "b")])


async def test_staff_search_what_one_person_shares_with_them(lists: ChatLists) -> None:
    shared = await lists.chat(title="fox")
    await lists.chat(title="fox")
    await lists.share(shared, "root")
    await lists.share(await lists.chat("bob", title="fox"), "root")

    (seen,) = await lists.items("root", "owner:ada source:shared_with_me fox")

    assert (seen.id, seen.title, seen.my_role) == (shared, "fox", "admin")


@pytest.mark.parametrize("owner", ["bob", "nobody-of-this-name", str(NOBODY)])
async def test_members_learn_nothing_of_other_owners(lists: ChatLists, owner: str) -> None:
    with pytest.raises(Forbidden) as caught:
        await lists.page("ada", f"owner:{owner}")
    with pytest.raises(Forbidden):
        await lists.page("ada", f"owner:{owner} source:shared_with_me")

    assert owner not in str(caught.value)


async def test_agent_of_an_administrator_is_a_member(lists: ChatLists) -> None:
    agent = lists.store.as_actor(OwnerActor(lists.id("root")))

    with pytest.raises(Forbidden):
        await agent.chats.list(lists.id("root"), ChatQuery(owner="ada"))


@pytest.mark.parametrize("owner", ["nobody-of-this-name", str(NOBODY)])
async def test_an_owner_who_does_not_exist_is_refused_by_name(lists: ChatLists, owner: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await lists.page("root", f"owner:{owner}")

    assert caught.value.field == "q"
    assert f"owner:{owner}" in str(caught.value)
