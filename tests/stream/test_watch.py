"""The events of the watch stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from rookery.domain.access.rights import Role, UserActor
from rookery.domain.chat.messages import ChatId
from rookery.domain.content import search_query
from rookery.runtime.clock import SystemClock
from rookery.store import machine
from rookery.store.authorized.actor_store import Store
from rookery.store.chats import chat_rows, chat_view_reads, pins
from rookery.store.chats.repository_states import DiffStatus
from rookery.store.db.hints import Hint, WatchHint, WatchKind
from rookery.stream.watch import MAX_PENDING, WatchHub
from tests.eventually import until
from tests.store.machine.machine_rig import assistant, call, calling
from tests.stream.stream_rig import Rig, open_rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with open_rig(database_url) as opened:
        yield opened


async def test_new_chat_is_seen_after_ready(rig: Rig) -> None:
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")

    chat_id = await rig.chats.create(title="About birds")
    event = await watcher.until("chat")

    assert watcher.types()[0] == "ready"
    assert event["kinds"] == ["created"]
    shown = event["chat"]
    assert (shown["id"], shown["title"], shown["status"]) == (str(chat_id), "About birds", "running")
    assert (shown["my_role"], shown["shared"], shown["has_unread"]) == ("owner", False, False)
    assert shown["owner"]["username"].startswith("ada")
    assert (shown["root_chat_id"], shown["snapshot_version"]) == (str(chat_id), 1)


async def test_chat_made_before_the_greeting_was_sent_is_seen_behind_it(rig: Rig) -> None:
    """At any moment, a list that is loaded after `ready` contains the chat, or its event follows."""
    watcher = rig.site.watch(rig.chats.user)
    watcher.transport.gate.clear()
    chat_id = await rig.chats.create()
    await until(lambda: rig.site.streams.watch.stats.sent == 1)

    watcher.transport.gate.set()
    event = await watcher.until("chat")

    assert watcher.types() == ["ready", "chat"]
    assert (event["kinds"], event["chat"]["id"]) == (["created"], str(chat_id))


async def test_unread_answer_is_told(rig: Rig) -> None:
    watcher = rig.site.watch(rig.chats.user)
    chat_id = await rig.chats.create()
    await rig.chats.commit(chat_id, assistant("an answer"))
    await rig.chats.run(chat_id, machine.finish_turn)

    await until(lambda: watcher.of("chat") and watcher.of("chat")[-1]["chat"]["status"] == "waiting")

    assert watcher.of("chat")[-1]["chat"]["has_unread"] is True


async def test_counts_of_repositories_are_told_once_they_change(rig: Rig) -> None:
    chat_id = await rig.chat("one")
    store = Store(rig.pool, machine=rig.chats.machine, publisher=rig.wire, clock=SystemClock())
    owner = store.as_actor(UserActor(rig.chats.user, Role.MEMBER))
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")

    at = datetime(2030, 1, 1, tzinfo=UTC)
    for additions in (1, 1, 2):
        await owner.contexts.write_diffs(chat_id, [DiffStatus("/a", "main", None, additions, 0, 1, at)])
    await until(lambda: watcher.of("chat") and watcher.of("chat")[-1]["chat"]["git"]["additions"] == 2)

    assert len(watcher.of("chat")) <= 2
    assert all(event["kinds"] == ["git"] for event in watcher.of("chat"))


async def test_quick_changes_come_as_one_event_with_the_final_status(rig: Rig) -> None:
    chat_id = await rig.chats.create()
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")
    rig.wire.keeps = True
    for _ in range(5):
        await rig.fail(chat_id)
        await rig.chats.run(chat_id, machine.retry_turn)
    await rig.fail(chat_id)

    rig.wire.deliver(rig.wire.kept)
    await watcher.until("chat")

    assert len(watcher.of("chat")) <= 2
    assert watcher.of("chat")[-1]["chat"]["status"] == "error"
    assert watcher.of("chat")[-1]["chat"]["last_error"]["message"] == "It broke."
    assert watcher.of("chat")[-1]["kinds"] == ["status_change"]


async def test_family_is_archived_and_unarchived_member_by_member(rig: Rig) -> None:
    root = await rig.chat("one")
    children = [await idle_child(rig, root) for _ in range(2)]
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")

    for archived in (True, False):
        await rig.chats.machine.bundle(
            lambda bundle, archived=archived: machine.set_family_archived(bundle, root, archived=archived)  # type: ignore[misc]
        )
        await watcher.until("chat", 3 if archived else 6)

    events = watcher.of("chat")
    assert [event["kinds"] for event in events] == [["archived"]] * 3 + [["unarchived"]] * 3
    assert {event["chat"]["id"] for event in events[:3]} == {str(each) for each in (root, *children)}


async def test_deleted_chat_is_gone_for_owner_and_readers(rig: Rig) -> None:
    chat_id = await rig.chat("one")
    reader = await add_user(rig, "grace")
    watchers = [rig.site.watch(rig.chats.user), rig.site.watch(reader), rig.site.watch(await add_user(rig, "eve"))]
    rig.wire.keeps = True
    await rig.chats.machine.bundle(lambda bundle: machine.delete_family(bundle, chat_id))

    rig.wire.deliver([with_users(hint, reader) for hint in rig.wire.kept])
    await watchers[0].until("chat_gone")
    await watchers[1].until("chat_gone")

    expected = {"type": "chat_gone", "chat_id": str(chat_id), "kind": "deleted"}
    assert [watcher.of("chat_gone") for watcher in watchers] == [[expected], [expected], []]


async def test_reader_of_the_root_hears_of_its_children(rig: Rig) -> None:
    root = await rig.chat("one")
    reader = await add_user(rig, "grace")
    await share(rig, root, reader)
    watcher = rig.site.watch(reader)
    await watcher.until("ready")

    child = await rig.chats.child(root)
    event = await watcher.until("chat")

    assert (event["chat"]["id"], event["chat"]["my_role"], event["chat"]["shared"]) == (str(child), "reader", True)


async def test_event_has_the_chat_as_the_list_of_its_viewer_shows_it(rig: Rig) -> None:
    chat_id = await rig.chats.create(title="About birds")
    await rig.chats.commit(chat_id, calling(call("call-1")))
    await rig.chats.run(chat_id, machine.enter_requires_action, timeout_seconds=60)
    people = {
        rig.chats.user: Role.MEMBER,
        await add_user(rig, "grace"): Role.MEMBER,
        await add_user(rig, "root", "admin"): Role.ADMIN,
    }
    owner, reader, admin = people
    for user_id in (reader, admin):
        await share(rig, chat_id, user_id)
    async with rig.pool.acquire() as conn:
        await pins.pin(conn, chat_id, user_id=reader)
    watchers = {user_id: rig.site.watch(user_id) for user_id in people}
    for watcher in watchers.values():
        await watcher.until("ready")

    tell(rig, chat_id)

    shown = {user_id: (await watcher.until("chat"))["chat"] for user_id, watcher in watchers.items()}
    for user_id, role in people.items():
        assert {**shown[user_id], "children": []} == await listed(rig, UserActor(user_id, role))
        assert "children" not in shown[user_id]
    assert [shown[each]["my_role"] for each in (owner, reader, admin)] == ["owner", "reader", "admin"]
    assert [shown[each]["pin_order"] for each in (owner, reader, admin)] == [None, 1, None]
    assert {(each["needs_user"], each["shared"], each["has_unread"]) for each in shown.values()} == {
        ("tools", True, True)
    }


async def test_many_changes_are_read_with_as_many_statements_as_one(rig: Rig, database_url: str) -> None:
    reader = await add_user(rig, "grace")
    ids = [await rig.chat("one") for _ in range(5)]
    for chat_id in ids:
        await share(rig, chat_id, reader)
    ran: list[str] = []

    async def listen(conn: asyncpg.Connection) -> None:
        conn.add_query_logger(lambda query: ran.append(query.query))

    counts = []
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1, init=listen) as pool:
        hub = WatchHub(pool, rig.site.bus, clock=SystemClock())
        for user_id in (rig.chats.user, reader):
            hub.join(user_id)
        serving = asyncio.create_task(hub.run())
        sent = 0
        for changed in (ids[:1], ids[:1], ids):
            ran.clear()
            tell(rig, *changed)
            sent += 2 * len(changed)
            await has_sent(hub, sent)
            counts.append(len(ran))
        hub.close()
        serving.cancel()
        await asyncio.wait([serving])

    # The first query of a connection also loads type information.
    assert counts[1] == counts[2] > 0


async def test_user_without_access_gets_no_event(rig: Rig) -> None:
    stranger, owner = rig.site.watch(await add_user(rig, "eve")), rig.site.watch(rig.chats.user)

    await rig.chats.create()
    await owner.until("chat")

    assert stranger.types() == ["ready"]


async def test_required_action_brings_its_calls(rig: Rig) -> None:
    chat_id = await rig.chats.create()
    watcher = rig.site.watch(rig.chats.user)
    await rig.chats.commit(chat_id, calling(call("call-1")))
    await rig.chats.run(chat_id, machine.enter_requires_action, timeout_seconds=60)

    await until(lambda: any("action_required" in event["kinds"] for event in watcher.of("chat")))

    event = watcher.of("chat")[-1]
    assert event["tool_calls"] == [{"tool_call_id": "call-1", "tool_name": "pick_colour", "args": {}}]


async def test_title_of_a_chat_with_many_labels_is_told(rig: Rig) -> None:
    chat_id = await rig.chat("one")
    async with rig.pool.acquire() as conn:
        labels = chat_rows.encode_labels({f"key{n:02}".ljust(64, "k"): "v" * 256 for n in range(50)})
        await conn.execute("UPDATE chats SET labels = $2 WHERE id = $1", chat_id, labels)
        await chat_rows.write_title(conn, chat_id, title="New")
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")

    tell(rig, chat_id)
    event = await watcher.until("chat")

    assert (event["kinds"], event["chat"]["title"], len(event["chat"]["labels"])) == (["title_change"], "New", 50)


async def test_lost_listener_yields_resync(rig: Rig) -> None:
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")

    rig.site.bus.resync()
    await watcher.until("resync")

    assert watcher.types() == ["ready", "resync"]


async def test_resync_before_the_greeting_was_sent_comes_after_it(rig: Rig) -> None:
    watcher = rig.site.watch(rig.chats.user)
    rig.site.bus.resync()

    await watcher.until("resync")

    assert watcher.types() == ["ready", "resync"]


async def test_slow_watcher_is_told_to_load_the_list_again(rig: Rig) -> None:
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")
    watcher.transport.gate.clear()
    ids = [await rig.chats.create() for _ in range(2)]
    await until(lambda: rig.site.streams.watch.stats.sent >= 2)
    source = next(iter(rig.site.streams.watch._watchers[rig.chats.user]))

    for n in range(MAX_PENDING + 1):
        source.tell_gone(UUID(int=n), "deleted")
    watcher.transport.gate.set()
    await watcher.until("resync")

    # Only events after the queue was full, because the two chats may still have been in it.
    assert len(watcher.of("chat_gone")) <= len(ids)


async def test_database_that_fails_yields_resync(rig: Rig) -> None:
    chat_id = await rig.chat("one")
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")
    await rig.chats.sql("ALTER TABLE chats RENAME TO elsewhere")

    tell(rig, chat_id)
    await watcher.until("resync")

    await rig.chats.sql("ALTER TABLE elsewhere RENAME TO chats")
    assert rig.site.streams.watch.stats.failed == 1


async def test_invalid_row_does_not_affect_other_chats(rig: Rig) -> None:
    bad, good = await rig.chat("one"), await rig.chat("two")
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")
    await rig.chats.force(bad, "labels = '{\"a\": 1}'")

    tell(rig, bad, good)
    await watcher.until("chat")

    assert [event["chat"]["id"] for event in watcher.of("chat")] == [str(good)]


async def test_chat_that_cannot_be_shown_does_not_end_the_hub(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the hub ends, the process ends."""
    chat_id = await rig.chat("one")
    watcher = rig.site.watch(rig.chats.user)
    await watcher.until("ready")

    async def broken(*_: object) -> None:
        raise TypeError("a view that cannot be made")

    with monkeypatch.context() as patched:
        patched.setattr(chat_view_reads, "list_for_viewers", broken)
        tell(rig, chat_id)
        await watcher.until("resync")
    tell(rig, chat_id)

    await watcher.until("chat")


async def test_watcher_that_left_is_forgotten(rig: Rig) -> None:
    watcher = rig.site.watch(rig.chats.user)

    await watcher.close()

    assert len(rig.site.streams.watch) == 0


async def has_sent(hub: WatchHub, count: int) -> None:
    await until(lambda: hub.stats.sent == count)


def tell(rig: Rig, *chat_ids: ChatId, kind: WatchKind = WatchKind.TITLE_CHANGE) -> None:
    rig.wire.deliver(
        [WatchHint(user_id=rig.chats.user, kind=kind, chat_id=chat_id, snapshot_version=1) for chat_id in chat_ids]
    )


async def listed(rig: Rig, actor: UserActor) -> Any:
    """Return the only chat of a user's list, as in the API."""
    store = Store(rig.pool, machine=rig.chats.machine, publisher=rig.wire, clock=SystemClock())
    query = search_query.parse("source:created_by_me,shared_with_me")
    (chat,) = (await store.as_actor(actor).chats.list(actor.id, query)).items
    return msgspec.json.decode(msgspec.json.encode(chat))


def with_users(hint: Hint, *users: UUID) -> Hint:
    if not isinstance(hint, WatchHint):
        return hint
    return WatchHint(
        user_id=hint.user_id,
        kind=hint.kind,
        chat_id=hint.chat_id,
        snapshot_version=hint.snapshot_version,
        users=users,
    )


async def idle_child(rig: Rig, root: ChatId) -> ChatId:
    child = await rig.chats.child(root)
    await rig.chats.run(child, machine.finish_turn)
    return child


async def add_user(rig: Rig, name: str, role: str = "member") -> UUID:
    found = await rig.chats.value("INSERT INTO users (username, role) VALUES ($1, $2) RETURNING id", name, role)
    assert isinstance(found, UUID)
    return found


async def share(rig: Rig, chat_id: ChatId, user_id: UUID | None) -> None:
    await rig.chats.sql("INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", chat_id, user_id)


async def test_cursor_that_moved_is_told_to_its_owner_only(rig: Rig) -> None:
    chat_id = await rig.chat("one", "two")
    reader = await add_user(rig, "grace")
    await share(rig, chat_id, reader)
    owners, readers = rig.site.watch(rig.chats.user), rig.site.watch(reader)
    await readers.until("ready")

    rig.wire.deliver([watch_hint(chat_id, reader, "read")])
    event = await readers.until("chat")

    assert event["kinds"] == ["read"]
    assert owners.of("chat") == []


async def test_chat_that_is_no_longer_shared_is_gone_for_who_lost_it(rig: Rig) -> None:
    chat_id = await rig.chat("one")
    lost, kept = await add_user(rig, "grace"), await add_user(rig, "eve")
    await share(rig, chat_id, kept)
    watchers = [rig.site.watch(user) for user in (lost, kept)]
    await watchers[1].until("ready")

    rig.wire.deliver([watch_hint(chat_id, rig.chats.user, "unshared", lost)])
    gone = await watchers[0].until("chat_gone")
    tell(rig, chat_id)
    await watchers[1].until("chat")

    assert (gone["chat_id"], gone["kind"]) == (str(chat_id), "unshared")
    assert watchers[1].of("chat_gone") == []
    assert watchers[1].of("chat")[0]["kinds"] == ["title_change"]
    assert watchers[0].of("chat") == []


def watch_hint(chat_id: ChatId, user: UUID, kind: str, *users: UUID) -> WatchHint:
    """Return a hint of an unknown kind."""
    return WatchHint(user_id=user, kind=kind, chat_id=chat_id, snapshot_version=1, users=users)  # type: ignore[arg-type]
