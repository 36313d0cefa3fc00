"""Chat lists with filters: the chats that each query finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.store.chats.chat_views import SearchMatch
from tests.store.chats.chat_lists import ChatLists, children, open_shelf


@pytest.fixture
async def lists(database_url: str) -> AsyncIterator[ChatLists]:
    async with open_shelf(database_url) as lists:
        yield lists


async def test_archive_states_are_apart_unless_any_is_wanted(lists: ChatLists) -> None:
    active, shelved = await lists.chat(minutes=1), await lists.chat(archived=True)
    kept = await lists.chat(parent=active)
    await lists.chat(parent=active, archived=True)
    gone = await lists.chat(parent=shelved, archived=True)

    async def listed(q: str) -> list[tuple[ChatId, int]]:
        return [(chat.id, len(children(chat))) for chat in await lists.items("ada", q)]

    assert await listed("") == await listed("archived:false") == [(active, 1)]
    assert [children(chat)[0].id for chat in await lists.items()] == [kept]
    assert await listed("archived:true") == [(shelved, 1)]
    assert [children(chat)[0].id for chat in await lists.items("ada", "archived:true")] == [gone]
    assert await listed("archived:any") == [(shelved, 1), (active, 2)]
    assert await lists.pages("ada", "archived:any", limit=1) == [[shelved], [active]]


async def test_unread_chats_are_those_with_an_answer_after_the_cursor(lists: ChatLists) -> None:
    unread, read, empty = await lists.chats(3)
    for chat in (unread, read):
        await lists.world.message(chat)
    await lists.by("ada").chats.mark_read(read)
    await lists.share(read, "bob")

    assert await lists.ids("ada", "has_unread:true") == [unread]
    assert await lists.ids("ada", "has_unread:false") == [read, empty]
    assert await lists.ids("bob", "has_unread:true source:shared_with_me") == [read]
    assert [chat.has_unread for chat in await lists.items()] == [True, False, False]


async def test_pinned_chats_are_the_viewers(lists: ChatLists) -> None:
    listed = await lists.chats(3)
    await lists.pin(listed[2], listed[0])

    assert await lists.pages("ada", "pinned:true", limit=1) == [[listed[2], listed[0]]]
    assert await lists.ids("ada", "pinned:false") == [listed[1]]


async def test_statuses_are_joined_by_or(lists: ChatLists) -> None:
    waiting, running, failed = await lists.chats(3)
    await lists.set(running, "status = 'running'")
    await lists.set(failed, "status = 'error', last_error = '{}'")

    assert await lists.ids("ada", "status:running,error") == [running, failed]
    assert await lists.ids("ada", "status:waiting") == [waiting]
    assert await lists.ids("ada", "status:interrupting") == []


async def test_labels_of_query_and_parameter_must_all_be_there(lists: ChatLists) -> None:
    both = await lists.chat(labels={"team": "a", "env": "x", "more": "1"})
    await lists.chat(labels={"team": "a"})
    await lists.chat(labels={"team": "b", "env": "x"})
    pinned = await lists.chat(labels={"team": "a", "env": "x"}, minutes=1)
    await lists.pin(await lists.chat(), pinned)

    assert await lists.ids("ada", "label:team=a label:env=x") == [pinned, both]
    assert await lists.ids("ada", "label:team=a", labels=[("env", "x")]) == [pinned, both]
    assert await lists.ids("ada", labels=[("team", "a"), ("env", "x")], limit=1) == [pinned]
    assert await lists.ids("ada", "label:team=a label:team=b") == []
    assert await lists.ids("ada", "label:team=b label:team=b label:env=x") != []


async def test_workspaces_are_named_by_id_or_name(lists: ChatLists) -> None:
    workspace = UUID(
        str(
            await lists.world.conn.fetchval(
                "INSERT INTO workspaces (owner_id, name) VALUES ($1, 'my-place') RETURNING id", lists.id("ada")
            )
        )
    )
    inside, outside = await lists.chats(2)
    await lists.set(inside, "workspace_id = $2", workspace)

    for q in (f"workspace:{workspace}", "workspace:My-Place"):
        assert await lists.ids("ada", q) == [inside], q
    assert await lists.ids("ada", workspace_id=workspace) == [inside]
    assert await lists.ids("ada", f"workspace:{outside}") == []
    assert await lists.ids("ada", "workspace:other", workspace_id=workspace) == []


async def test_models_are_named_by_id_name_or_display_name(lists: ChatLists) -> None:
    conn = lists.world.conn
    other = await conn.fetchval(
        "INSERT INTO model_configs (provider_id, model, display_name, context_limit)"
        " SELECT provider_id, 'x/Large', 'The Large One', 9 FROM model_configs RETURNING id"
    )
    plain, large = await lists.chats(2)
    await conn.execute("UPDATE chats SET last_model_config_id = $2 WHERE id = $1", large, other)

    for q in (f"model:{other}", "model:X/LARGE", 'model:"the large one"'):
        assert await lists.ids("ada", q) == [large], q
    assert await lists.ids("ada", "model:m") == [plain]
    assert await lists.ids("ada", "model:none") == []


async def test_clients_are_told_apart(lists: ChatLists) -> None:
    by_api, by_ui = await lists.chats(2)
    await lists.world.conn.execute("UPDATE chats SET client_type = 'ui' WHERE id = $1", by_ui)

    assert await lists.ids("ada", "client:ui") == [by_ui]
    assert await lists.ids("ada", "client:api") == [by_api]
    assert await lists.ids("ada", "client:cli") == []


@pytest.mark.parametrize(
    ("q", "found"),
    [
        ("title:plan", ["A Plan", "planet"]),
        ("title:PLAN title:net", ["planet"]),
        ("title:100%", ["100% sure"]),
        ("title:a_b", ["a_b"]),
        ("title:%", ["100% sure"]),
        ('title:"Ä Ü"', ["Ä ÜBER"]),
        ('title:"\\"x\\""', ['say "x"']),
        ("title:\\", ["back\\slash"]),
        ("title:absent", []),
    ],
)
async def test_titles_are_searched_literally_and_without_case(lists: ChatLists, q: str, found: list[str]) -> None:
    titles = ["A Plan", "planet", "100% sure", "1000 sure", "a_b", "axb", "Ä ÜBER", 'say "x"', "back\\slash"]
    for n, title in enumerate(titles):
        await lists.chat(title=title, minutes=n)

    assert [chat.title for chat in await lists.items("ada", q)] == found


async def test_a_date_starts_with_its_first_moment(lists: ChatLists) -> None:
    after, at, before = [await lists.chat(minutes=12 * 60 + n) for n in (-1, 0, 1)]

    assert await lists.ids("ada", "active_after:2030-01-01") == [after, at]
    assert await lists.ids("ada", "active_before:2030-01-01") == [before]
    assert await lists.ids("ada", 'active_after:"2029-12-31T23:59:00Z" active_before:2030-01-01') == [before]


@pytest.mark.parametrize("term", ["repo:x", "branch:main"])
async def test_no_chat_has_a_repository_yet(lists: ChatLists, term: str) -> None:
    await lists.chats(2)

    assert await lists.ids("ada", term) == []


async def test_search_combines_with_source_archive_state_labels_and_pins(lists: ChatLists) -> None:
    first = await lists.chat(title="fox", minutes=3, labels={"a": "b"})
    second = await lists.chat(title="fox", minutes=2)
    archived = await lists.chat(title="fox", minutes=1, archived=True)
    shared = await lists.chat("bob", title="fox")
    await lists.share(shared, "ada")
    await lists.chat("bob", title="fox")
    await lists.chat(title="cat")
    await lists.pin(first)

    assert await lists.ids("ada", "fox") == [first, second]
    assert await lists.ids("ada", "fox archived:any") == [first, archived, second]
    assert await lists.ids("ada", "fox label:a=b") == [first]
    assert await lists.ids("ada", "fox source:shared_with_me") == [shared]
    assert await lists.ids("ada", "fox source:shared_with_me,created_by_me") == [first, shared, second]
    assert await lists.pages("ada", "fox archived:any", limit=1) == [[first], [archived], [second]]
    assert await lists.ids("ada", "...") == []


async def test_every_search_of_a_query_must_hold(lists: ChatLists) -> None:
    both = await lists.chat(title="quick brown fox")
    await lists.chat(title="quick cat")

    assert await lists.ids("ada", 'quick search:"fox OR dog"') == [both]
    assert await lists.ids("ada", "search:quick search:cow") == []


async def test_search_says_where_the_hit_is(lists: ChatLists) -> None:
    root = await lists.chat(title="Errands")
    child = await lists.chat(parent=root)
    await lists.world.message(root, "Buy honey.", role="user")
    newest = await lists.world.message(child, "hay " * 100 + "The Honey\0 is sweet. " + "straw " * 100)
    by_title = await lists.chat(title="honey", minutes=1)
    await lists.sweep()

    found = await lists.items("ada", "honey -wax")

    assert [chat.id for chat in found] == [root, by_title]
    match = found[0].match
    assert match is not None
    assert (match.chat_id, match.message_id) == (child, newest)
    assert "The Honey is sweet." in (match.snippet or "")
    assert (found[1].match, [chat.match for chat in await lists.items()]) == (
        SearchMatch(),
        [None, None],
    )
