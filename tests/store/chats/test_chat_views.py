"""A chat as one user sees it: in reads, lists and answers to changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec
import pytest
from msgspec import UNSET

from rookery.domain.access.rights import Action, SystemActor, SystemName
from rookery.domain.chat import parts
from rookery.domain.chat.errors import ChatNotRoot, InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.chats import ChatPatch
from rookery.store.chats import chat_view_reads, pins, repository_states
from rookery.store.chats.chat_views import ChatErrorView, ChatFile, ChatView, ContextState, ContextUsage
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.chats.shares import SharePatch
from rookery.store.people.users import PublicUser
from rookery.store.settings import settings
from rookery.store.workspaces import context
from tests.store.builders import OPEN
from tests.store.chats.chat_lists import NOON, ChatLists, children, open_shelf

REASON = "A user reported abuse."


@pytest.fixture
async def lists(database_url: str) -> AsyncIterator[ChatLists]:
    async with open_shelf(database_url) as lists:
        yield lists


async def get(lists: ChatLists, chat_id: ChatId, name: str = "ada") -> ChatView:
    return await lists.by(name).chats.get(chat_id)


async def test_a_new_chat_is_shown_with_every_member_of_the_api(lists: ChatLists) -> None:
    chat = await lists.chat(title="A plan", labels={"a": "b"})

    shown = msgspec.json.decode(msgspec.json.encode(await get(lists, chat)))

    at = "2030-01-01T12:00:00Z"
    created = shown.pop("created_at")
    assert created.endswith("Z")
    assert shown == {
        "id": str(chat),
        "owner": {"id": str(lists.id("ada")), "username": "ada", "name": "Ada"},
        "my_role": "owner",
        "parent_chat_id": None,
        "root_chat_id": str(chat),
        "mode": None,
        "title": "A plan",
        "status": "waiting",
        "archived": False,
        "archived_at": None,
        "plan_mode": False,
        "permission_mode": "auto",
        "last_error": None,
        "last_model_config_id": str(lists.world.model_id),
        "last_reasoning_effort": None,
        "workspace_id": None,
        "mcp_server_ids": [],
        "labels": {"a": "b"},
        "pin_order": None,
        "folder_id": None,
        "client_type": "api",
        "last_turn_summary": None,
        "summary": None,
        "has_unread": False,
        "shared": False,
        "queue_len": 0,
        "requires_action_deadline_at": None,
        "needs_user": None,
        "context": None,
        "git": None,
        "usage": {"context_tokens": None, "context_limit": None},
        "updated_at": at,
        "last_activity_at": at,
        "snapshot_version": 1,
        "history_version": 0,
        "meta_version": 0,
        "children": [],
        "match": None,
        "files": [],
        "dynamic_tools": [],
        "queued_for_capacity": False,
        "warnings": [],
        "action": None,
    }


async def test_lists_leave_out_what_only_a_single_read_has(lists: ChatLists) -> None:
    chat = await lists.chat()
    await lists.chat(parent=chat)

    (listed,) = await lists.items()
    single = await get(lists, chat)

    absent = dict.fromkeys(("files", "dynamic_tools", "queued_for_capacity", "warnings", "action"), UNSET)
    assert listed == msgspec.structs.replace(single, **absent)
    assert absent.keys().isdisjoint(msgspec.to_builtins(listed))


async def test_children_come_oldest_first_in_the_parents_archive_state(lists: ChatLists) -> None:
    root = await lists.chat()
    young = [await lists.chat(parent=root, minutes=n) for n in range(3)]
    archived = await lists.chat(parent=root, archived=True)

    seen = await get(lists, root)
    child = await get(lists, young[0])

    assert [each.id for each in children(seen)] == young
    assert (child.parent_chat_id, child.root_chat_id, child.children) == (root, root, ())
    await lists.set(root, "archived = true, archived_at = now()")
    assert [each.id for each in children(await get(lists, root))] == [archived]


async def test_role_pin_and_unread_mark_are_the_viewers(lists: ChatLists) -> None:
    chat = await lists.chat()
    child = await lists.chat(parent=chat)
    await lists.world.message(chat)
    await lists.share(chat, "bob")
    await lists.pin(chat, name="bob")
    await lists.by("bob").chats.mark_read(chat)

    seen = {
        name: await lists.by(name, reason=REASON).chats.get(chat)
        for name in ("ada", "bob", "root")  # an administrator who gave a reason
    }

    assert {name: (each.my_role, each.pin_order, each.has_unread) for name, each in seen.items()} == {
        "ada": ("owner", None, True),
        "bob": ("reader", 1, False),
        "root": ("admin", None, False),
    }
    assert all(each.shared and each.title == "A chat" for each in seen.values())
    assert (await get(lists, child, "bob")).my_role == "reader"
    assert (await get(lists, child)).shared


async def test_a_part_of_rookery_sees_a_chat_without_pins_and_marks(lists: ChatLists) -> None:
    chat = await lists.chat()
    await lists.world.message(chat)
    await lists.pin(chat)

    seen = await lists.store.as_actor(SystemActor(SystemName.WORKER)).chats.get(chat)

    assert (seen.my_role, seen.pin_order, seen.has_unread) == ("system", None, False)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (
            '{"message": "No key.", "kind": "auth", "provider": "x", "retryable": false, "status_code": 401}',
            ChatErrorView("No key.", None, "auth", "x", False, 401),
        ),
        ('{"message": "nul \ue000\ue001", "retryable": true}', ChatErrorView("nul \0", retryable=True)),
        ('{"message": " "}', ChatErrorView()),
        ('{"message": 1}', ChatErrorView(kind="generic")),
        ("[]", ChatErrorView(kind="generic")),
    ],
)
async def test_an_error_is_shown_however_it_was_stored(lists: ChatLists, stored: str, shown: ChatErrorView) -> None:
    chat = await lists.chat()
    await lists.set(chat, "status = 'error', last_error = $2", stored)

    assert (await get(lists, chat)).last_error == shown


async def test_usage_is_that_of_the_newest_answer(lists: ChatLists) -> None:
    chat = await lists.chat()
    async with lists.world.conn.transaction():
        await lists.world.conn.execute(OPEN, chat)
        for tokens in (10, 20):
            await lists.world.conn.execute(
                "INSERT INTO chat_messages (chat_id, role, visibility, content, content_version, context_tokens,"
                " context_limit) VALUES ($1, 'assistant', 'both', '[]', 1, $2, 100)",
                chat,
                tokens,
            )
    await lists.world.message(chat, role="user")

    assert (await get(lists, chat)).usage == ContextUsage(20, 100)


def asking(tool: str, *, is_error: bool = False) -> tuple[parts.Part, ...]:
    return (parts.ToolResult("1", "read_file"), parts.ToolResult("2", tool, is_error=is_error), parts.Text("x"))


@pytest.mark.parametrize(
    ("content", "needs"),
    [
        (asking("ask_user_question"), "question"),
        (asking("propose_plan"), "plan"),
        (asking("propose_plan", is_error=True), None),
        (asking("execute"), None),
    ],
)
async def test_a_chat_that_rests_on_a_question_needs_the_user(
    lists: ChatLists, content: tuple[parts.Part, ...], needs: str | None
) -> None:
    chat, answered, archived = await lists.chats(3)
    for each in (chat, answered, archived):
        await lists.world.message(each, role="tool", content=content)
        await lists.world.message(each, role="system", visibility="model")
    await lists.world.message(answered, role="user")
    await lists.set(archived, "archived = true, archived_at = now()")

    assert (await get(lists, chat)).needs_user == needs
    assert (await get(lists, answered)).needs_user is None
    assert (await get(lists, archived)).needs_user is None
    await lists.set(chat, "status = 'running'")
    assert (await get(lists, chat)).needs_user is None


async def test_a_chat_that_waits_for_tool_results_needs_the_user(lists: ChatLists) -> None:
    chat = await lists.chat()
    deadline = NOON + timedelta(minutes=5)
    await lists.set(chat, "status = 'requires_action', requires_action_deadline_at = $2", deadline)

    seen = await get(lists, chat)

    assert (seen.needs_user, seen.requires_action_deadline_at) == ("tools", deadline)


async def test_a_single_read_names_files_and_declared_tools(lists: ChatLists) -> None:
    chat = await lists.chat()
    file = await lists.by("ada").files.create(name="a.txt", mime_type="text/plain", data=b"abc")
    await lists.world.conn.execute("INSERT INTO chat_file_links VALUES ($1, $2)", chat, file.id)
    await lists.world.conn.execute(
        """UPDATE chats SET dynamic_tools = '[{"name": "b"}, {"name": "a"}]' WHERE id = $1""", chat
    )

    seen = await get(lists, chat)

    assert seen.files == (ChatFile(file.id, "a.txt", "text/plain", 3, file.created_at),)
    assert seen.dynamic_tools == ("b", "a")


async def test_a_running_chat_tells_whether_it_waits_for_a_slot(lists: ChatLists) -> None:
    waits, works = await lists.chats(2)
    for chat in (waits, works):
        await lists.set(chat, "status = 'running'")
    worker, runner = uuid4(), uuid4()
    conn = lists.world.conn
    await conn.execute(
        "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version) VALUES ($1, 'h', 'h', 1, 'v', 1)",
        worker,
    )
    await lists.set(works, "worker_id = $2, runner_id = $3", worker, runner)
    await conn.execute("INSERT INTO chat_heartbeats VALUES ($1, $2, clock_timestamp())", works, runner)
    assert not (await get(lists, waits)).queued_for_capacity

    await settings.write_setting(conn, "chats", value={"running_roots": 1})
    assert (await get(lists, waits)).queued_for_capacity
    assert not (await get(lists, works)).queued_for_capacity

    await settings.write_setting(conn, "chats", value={"running_roots": "many"})
    assert (await get(lists, waits)).queued_for_capacity is False


# Changes


async def test_patch_answers_with_the_chat_as_it_is_now(lists: ChatLists) -> None:
    chat = await lists.chat(title="before")
    child = await lists.chat(parent=chat)

    seen = await lists.by("ada").chats.patch(chat, ChatPatch(title="after", pin_order=1))

    assert (seen.title, seen.pin_order, seen.my_role) == ("after", 1, "owner")
    assert [each.id for each in children(seen)] == [child]
    assert (await lists.items())[0] == seen


async def test_administrator_who_archives_sees_the_frame_only(lists: ChatLists) -> None:
    chat = await lists.chat(title="secret")
    child = await lists.chat(parent=chat, title="secret")

    seen = await lists.by("root").chats.patch(chat, ChatPatch(archived=True))

    assert (seen.archived, seen.title, seen.my_role) == (True, "", "admin")
    assert [(each.id, each.title) for each in children(seen)] == [(child, "")]


def repository(root: str, *, changed_files: int) -> DiffStatus:
    return DiffStatus(root, "main", None, 3, 1, changed_files, NOON)


async def with_workspace(lists: ChatLists) -> tuple[ChatId, UUID]:
    """A chat with a reported workspace context and the state of two repositories."""
    chat, workspace, conn = await lists.chat(), uuid4(), lists.world.conn
    await conn.execute("INSERT INTO workspaces (id, owner_id, name) VALUES ($1, $2, 'w')", workspace, lists.id("ada"))
    await context.bind(conn, chat, workspace)
    await context.write_snapshot(conn, context.Snapshot(workspace, 1, 1, "h1", "One file is unreadable.", (), NOON))
    assert await context.capture(conn, chat) is not None
    found = [repository("/a", changed_files=1), repository("/b", changed_files=2)]
    assert await repository_states.write_diffs(conn, chat, found=found)
    return chat, workspace


async def test_context_and_the_repository_with_most_changes_are_shown(lists: ChatLists) -> None:
    chat, workspace = await with_workspace(lists)
    child = await lists.chat(parent=chat)

    (listed,) = await lists.items()
    assert (listed.context, listed.git) == (
        ContextState(False, None, "One file is unreadable."),
        repository("/b", changed_files=2),
    )
    assert [(each.id, each.context, each.git) for each in children(listed)] == [(child, None, None)]

    await context.mark_dirty(lists.world.conn, workspace, context_hash="h2", now=NOON)
    await lists.share(chat, "bob")
    for name in ("ada", "bob"):
        seen = await get(lists, chat, name)
        assert seen.context == ContextState(True, NOON, "One file is unreadable.")
        assert seen.git == listed.git


async def test_viewer_who_may_only_list_a_chat_sees_nothing_of_the_workspace(lists: ChatLists) -> None:
    chat, _ = await with_workspace(lists)

    seen = await lists.by("root").chats.patch(chat, ChatPatch(archived=True))

    assert (seen.context, seen.git) == (None, None)


async def test_administrator_with_whom_it_is_shared_sees_all_of_it(lists: ChatLists) -> None:
    chat = await lists.chat(title="shared")
    await lists.share(chat, "root")

    assert (await lists.by("root").chats.patch(chat, ChatPatch(archived=True))).title == "shared"


async def test_renaming_pinning_and_labelling_move_nothing_in_the_list(lists: ChatLists) -> None:
    listed = await lists.chats(2)
    chats = lists.by("ada").chats

    await chats.patch(listed[1], ChatPatch(title="new", labels={"a": "b"}, pin_order=1))
    await chats.patch(listed[1], ChatPatch(pin_order=0))

    assert await lists.ids() == listed


async def test_pin_pin_move_and_unpin_keep_the_numbers_whole(lists: ChatLists) -> None:
    a, b, c = await lists.chats(3)
    chats = lists.by("ada").chats

    placed = [
        (await chats.patch(chat, ChatPatch(pin_order=place))).pin_order
        for chat, place in ((a, 7), (b, 1), (c, 1), (c, 1), (a, 99), (b, 0))
    ]

    assert placed == [1, 2, 3, 1, 3, None]
    assert [(chat.id, chat.pin_order) for chat in await lists.items()] == [(c, 1), (a, 2), (b, None)]


async def test_pins_that_race_never_share_a_number(lists: ChatLists) -> None:
    listed = await lists.chats(6)

    await asyncio.gather(*(lists.by("ada").chats.patch(chat, ChatPatch(pin_order=1)) for chat in listed))

    assert sorted(chat.pin_order or 0 for chat in await lists.items()) == list(range(1, 7))


@pytest.mark.parametrize("pin_order", [0, 1])
async def test_children_have_no_pins(lists: ChatLists, pin_order: int) -> None:
    child = await lists.chat(parent=await lists.chat())

    with pytest.raises(ChatNotRoot):
        await lists.by("ada").chats.patch(child, ChatPatch(pin_order=pin_order))


async def test_archived_chats_can_only_be_unpinned(lists: ChatLists) -> None:
    chat = await lists.chat(archived=True)
    chats = lists.by("ada").chats

    with pytest.raises(InvalidInput) as caught:
        await chats.patch(chat, ChatPatch(pin_order=1))

    assert caught.value.field == "pin_order"
    assert (await chats.patch(chat, ChatPatch(pin_order=0))).pin_order is None


async def test_user_who_loses_access_to_a_chat_loses_the_pin(lists: ChatLists) -> None:
    lost, kept, left = await lists.chats(3)
    for chat in (lost, kept, left):
        await lists.share(chat, "bob")
        await lists.share(chat, "audrey")
        await lists.pin(chat, name="bob")
        await lists.pin(chat, name="audrey")
    await lists.pin(lost)
    await lists.share(kept, None)

    gone = SharePatch(users={lists.id("bob"): None})
    await lists.by("ada").chats.patch_shares(lost, gone)
    await lists.by("ada").chats.patch_shares(kept, gone)
    await lists.by("bob").chats.leave(left)

    async def pinned(name: str) -> list[pins.Pin]:
        return await pins.list_pins(lists.world.conn, lists.id(name))

    assert await pinned("bob") == [pins.Pin(kept, 1)]  # still shared with everyone
    assert [pin.chat_id for pin in await pinned("audrey")] == [lost, kept, left]
    assert await pinned("ada") == [pins.Pin(lost, 1)]
    await lists.by("ada").chats.patch_shares(kept, SharePatch(everyone=None))
    assert await pinned("bob") == []


async def test_requiring_a_right_changes_nothing(lists: ChatLists) -> None:
    chat = await lists.chat()
    child = await lists.chat(parent=chat)
    before = await lists.world.versions(chat)

    for action in (Action.READ, Action.DRIVE, Action.PATCH, Action.INTERRUPT, Action.ARCHIVE, Action.DELETE):
        assert await lists.by("ada").chats.require(child, action) == chat

    assert await lists.world.versions(chat) == before
    assert lists.published.hints == []


async def test_a_chat_that_is_gone_is_not_found(lists: ChatLists) -> None:
    assert await chat_view_reads.find_chat(lists.world.conn, ChatId(uuid4()), actor=lists.people["ada"].actor) is None


async def test_the_owner_is_shown_by_name(lists: ChatLists) -> None:
    chat = await lists.chat("bob")
    await lists.share(chat, "ada")

    (seen,) = await lists.items("ada", "source:shared_with_me")

    assert seen.owner == PublicUser(lists.id("bob"), "bob", "Bob")
