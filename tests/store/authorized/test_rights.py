"""Effects of access checks: break-glass reasons, hints, audit entries, and atomic changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from rookery.domain.access.rights import AdminAccess, OwnerActor, Scope, UserActor
from rookery.domain.access.rights import Role as UserRole
from rookery.domain.chat.errors import (
    ChatNotFound,
    ChatNotRoot,
    FileUnavailable,
    InvalidInput,
    QueuedMessageNotFound,
    TransitionNotAllowed,
)
from rookery.domain.chat.messages import ChatId, NewMessage, NewQueuedMessage, QueuedMessageId, Role
from rookery.domain.chat.parts import File, Text
from rookery.domain.chat.states import Status as ChatStatus
from rookery.store.authorized.actor_store import ActorStore, Store
from rookery.store.authorized.chat_changes import Replayed
from rookery.store.authorized.chats import ChatPatch
from rookery.store.authorized.rights import AuthorizedMethods, Grant
from rookery.store.authorized.settings import StaleSetting
from rookery.store.chats import files, shares
from rookery.store.chats import viewer_access as access
from rookery.store.chats.shares import SharePatch
from rookery.store.chats.viewer_access import Viewer, ViewerAccess
from rookery.store.db import idempotency
from rookery.store.db.hints import AccessHint, ConfigHint, Hint, WatchKind
from rookery.store.machine import ChatSpec, Created, Machine
from rookery.store.mcp import servers
from rookery.store.mcp.servers import ServerDraft
from rookery.store.people import audit, sessions, users
from rookery.store.people.audit import BREAK_GLASS, EntryFilter, RequestInfo
from rookery.store.people.errors import (
    ArchiveFirst,
    Disabled,
    FileNotFound,
    Forbidden,
    IdempotencyInProgress,
    InUse,
    LastAdmin,
    NoActor,
    QuotaExceeded,
    ScopeMissing,
)
from rookery.store.people.users import Status, User, UserPatch
from rookery.store.settings import settings
from rookery.store.workspaces.lifecycle_requests import Draft
from rookery.testing import FakeClock
from tests.store.builders import StoreRig, open_store_rig
from tests.store.machine.machine_rig import Recorder
from tests.store.people.account_rows import open_pool, person

REASON = "A user reported abuse."


class RightsRig:
    """Users, a store, and the hints that it has published."""

    def __init__(self, world: StoreRig, pool: asyncpg.Pool, people: dict[str, User]) -> None:
        self.world = world
        self.pool = pool
        self.people = people
        self.published = Recorder()
        self.clock = FakeClock()
        machine = Machine(pool, self.published, clock=self.clock)
        self.store = Store(pool, machine=machine, publisher=self.published, clock=self.clock)

    def by(self, name: str, *, reason: str | None = None) -> ActorStore:
        request = RequestInfo(ip="10.0.0.1", request_id="r-1")
        return self.store.as_actor(self.people[name].actor, request=request, break_glass=reason)

    def id(self, name: str) -> UUID:
        return self.people[name].id

    async def chat(self, owner: str = "ada", **fields: object) -> ChatId:
        return await self.world.chat(self.id(owner), **fields)  # type: ignore[arg-type]

    def spec(self, owner: str = "ada", **fields: object) -> ChatSpec:
        first = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=self.id(owner))
        defaults: dict[str, object] = {
            "owner_id": self.id(owner),
            "title": "t",
            "model_config_id": self.world.model_id,
            "messages": (first,),
        }
        return ChatSpec(**{**defaults, **fields})  # type: ignore[arg-type]

    async def running(self, owner: str = "ada", **fields: object) -> ChatId:
        store = self.store.as_actor(OwnerActor(self.id(owner)))
        created = await store.turns.create(self.spec(owner, **fields))
        assert isinstance(created, Created)
        self.published.clear()
        return created.chat.id

    async def share(self, chat_id: ChatId, *names: str) -> None:
        patch = SharePatch(users={self.id(name): "read" for name in names})
        await self.by("ada").chats.patch_shares(chat_id, patch)
        self.published.clear()

    async def allow_admins(self, access: AdminAccess) -> None:
        await settings.write_setting(self.world.conn, "chats", value={"admin_access": access})

    def told(self, kind: type[Hint]) -> list[Hint]:
        return [hint for hint in self.published.hints if type(hint) is kind]

    async def status(self, chat_id: ChatId) -> str:
        return str(await self.world.conn.fetchval("SELECT status FROM chats WHERE id = $1", chat_id))

    async def queued(self) -> list[ChatId]:
        """Return the chats with queued messages."""
        return [record[0] for record in await self.world.conn.fetch("SELECT chat_id FROM chat_queued_messages")]


@pytest.fixture
async def office(database_url: str) -> AsyncIterator[RightsRig]:
    async with open_store_rig(database_url) as world, open_pool(database_url) as pool:
        roles = {"root": UserRole.ADMIN, "audrey": UserRole.AUDITOR}
        people = {
            name: await person(world.conn, name, role=roles.get(name, UserRole.MEMBER))
            for name in ("ada", "bob", "eve", "root", "audrey")
        }
        yield RightsRig(world, pool, people)


# Break-glass


async def test_administrator_needs_a_reason_which_the_owner_sees(office: RightsRig) -> None:
    chat = await office.chat()

    with pytest.raises(Forbidden):
        await office.by("root").chats.get(chat)
    seen = await office.by("root", reason=REASON).chats.get(chat)

    assert seen.id == chat
    (access,) = (await office.by("ada").chats.list_accesses(chat)).items
    assert access.user is not None
    assert (access.user.id, access.chat_id, access.reason) == (office.id("root"), chat, REASON)
    (entry,) = (await office.by("audrey").installation.audit(EntryFilter(action=BREAK_GLASS))).entries
    assert (entry.actor_id, entry.extra["reason"], entry.request_id) == (office.id("root"), REASON, "r-1")


async def test_owner_sees_at_the_root_who_read_a_child(office: RightsRig) -> None:
    root = await office.running()
    child = await office.running(parent_chat_id=root, root_chat_id=root)

    await office.by("root", reason=REASON).chats.get(child)

    for chat in (root, child):
        (access,) = (await office.by("ada").chats.list_accesses(chat)).items
        assert access.chat_id == child


async def test_owner_and_reader_break_no_glass(office: RightsRig) -> None:
    chat = await office.chat()
    await office.share(chat, "bob")

    for name in ("ada", "bob"):
        await office.by(name, reason=REASON).chats.get(chat)

    assert (await office.by("ada").chats.list_accesses(chat)).items == ()


async def test_reason_opens_reading_and_nothing_else(office: RightsRig) -> None:
    chat = await office.chat()
    root = office.by("root", reason=REASON)

    with pytest.raises(Forbidden):
        await root.chats.mark_read(chat)
    for name in ("bob", "audrey"):
        with pytest.raises(ChatNotFound):
            await office.by(name, reason=REASON).chats.get(chat)


@pytest.mark.parametrize("reason", ["", "too short", " " * 20, "x" * 201])
async def test_reason_has_ten_to_two_hundred_characters(office: RightsRig, reason: str) -> None:
    with pytest.raises(InvalidInput):
        office.by("root", reason=reason)


async def test_setting_decides_what_administrators_read(office: RightsRig) -> None:
    chat = await office.chat()

    await office.allow_admins(AdminAccess.NONE)
    with pytest.raises(ChatNotFound):
        await office.by("root", reason=REASON).chats.get(chat)
    await office.allow_admins(AdminAccess.FULL)
    await office.by("root").chats.get(chat)
    assert (await office.by("ada").chats.list_accesses(chat)).items == ()
    with pytest.raises(ChatNotFound):
        await office.by("audrey").chats.get(chat)


async def test_setting_that_cannot_be_read_gives_no_more_than_the_default(office: RightsRig) -> None:
    chat = await office.chat()
    await settings.write_setting(office.world.conn, "chats", value={"admin_access": "everything"})

    with pytest.raises(Forbidden):
        await office.by("root").chats.get(chat)


async def test_agent_of_an_administrator_is_a_plain_member(office: RightsRig) -> None:
    await office.allow_admins(AdminAccess.FULL)
    agent = office.store.as_actor(OwnerActor(office.id("root")), break_glass=REASON)

    with pytest.raises(ChatNotFound):
        await agent.chats.get(await office.chat())


async def test_file_of_a_foreign_chat_is_read_by_a_reason_too(office: RightsRig) -> None:
    chat = await office.chat()
    file = await office.by("ada").files.create(name="a.txt", mime_type="text/plain", data=b"hello")
    with pytest.raises(FileNotFound):
        await office.by("root", reason=REASON).files.read(file.id)
    await office.world.conn.execute("INSERT INTO chat_file_links VALUES ($1, $2)", chat, file.id)

    with pytest.raises(Forbidden):
        await office.by("root").files.read(file.id)
    assert (await office.by("root", reason=REASON).files.read(file.id)).data == b"hello"

    assert len((await office.by("ada").chats.list_accesses(chat)).items) == 1


async def test_reason_for_a_file_is_listed_for_the_owner_of_the_chat_and_not_for_the_uploader(
    office: RightsRig,
) -> None:
    chat = await office.chat("ada")
    file = await office.by("eve").files.create(name="a.txt", mime_type="text/plain", data=b"hello")
    await office.world.conn.execute("INSERT INTO chat_file_links VALUES ($1, $2)", chat, file.id)

    await office.by("root", reason=REASON).files.read(file.id)

    listed = {name: (await office.by(name).accesses.list(office.id(name))).items for name in ("ada", "eve")}
    assert [access.chat_id for access in listed["ada"]] == [chat]
    assert listed["eve"] == ()


# Changes of a chat


async def test_patch_is_all_or_nothing(office: RightsRig) -> None:
    chat = await office.chat(title="before")
    ada = office.by("ada").chats

    for wrong in (
        ChatPatch(title="after", labels={"bad key": "x"}),
        ChatPatch(title="after", workspace_id=uuid4()),
        ChatPatch(title="after", model_config_id=uuid4()),
        ChatPatch(title="after", pin_order=-1),
        ChatPatch(title="after", archived=False),
        ChatPatch(title=" "),
        ChatPatch(title="x" * 201),
    ):
        with pytest.raises(InvalidInput):
            await ada.patch(chat, wrong)

    assert (await ada.get(chat)).title == "before"
    assert office.published.hints == []


async def test_patch_changes_and_tells_once(office: RightsRig) -> None:
    chat = await office.chat(title="before")
    before = await office.world.versions(chat)

    seen = await office.by("ada").chats.patch(
        chat, ChatPatch(title=" after ", labels={"a": "1"}, plan_mode=True, reasoning_effort=None, pin_order=3)
    )

    assert (seen.title, seen.labels, seen.plan_mode, seen.pin_order) == ("after", {"a": "1"}, True, 1)
    kinds = [hint.kind for hint in office.published.watch()]
    assert kinds == [WatchKind.TITLE_CHANGE, WatchKind.METADATA]
    after = await office.world.versions(chat)
    assert {**after, "meta_version": 0} == {**before, "meta_version": 0}


async def test_labels_are_replaced_as_a_whole(office: RightsRig) -> None:
    chat = await office.chat(labels={"old": "1"})

    seen = await office.by("ada").chats.patch(chat, ChatPatch(labels={"new": "ü \ue000"}))

    assert seen.labels == {"new": "ü \ue000"}
    assert (await office.by("ada").chats.get(chat)).labels == seen.labels


@pytest.mark.parametrize("bad", ["nul\0", "half \ud83d", "", "x" * 257])
async def test_one_bad_label_changes_no_label(office: RightsRig, bad: str) -> None:
    chat = await office.chat(labels={"old": "1"})

    with pytest.raises(InvalidInput):
        await office.by("ada").chats.patch(chat, ChatPatch(labels={"fine": "1", "bad": bad}))

    assert (await office.by("ada").chats.get(chat)).labels == {"old": "1"}


async def test_same_labels_again_change_no_version(office: RightsRig) -> None:
    chat = await office.chat(labels={"a": "1"})
    before = await office.world.versions(chat)

    await office.by("ada").chats.patch(chat, ChatPatch(labels={"a": "1"}))

    assert await office.world.versions(chat) == before
    assert office.published.hints == []


async def test_same_title_again_publishes_no_hint(office: RightsRig) -> None:
    chat = await office.chat(title="same")

    await office.by("ada").chats.patch(chat, ChatPatch(title="same"))

    assert office.published.hints == []


async def test_reader_pins_and_reads_for_themselves_alone(office: RightsRig) -> None:
    chat = await office.chat()
    newest = await office.world.message(chat)
    await office.share(chat, "bob")

    await office.by("bob").chats.patch(chat, ChatPatch(pin_order=1))
    assert await office.by("bob").chats.mark_read(chat) == newest

    assert (await office.by("bob").chats.get(chat)).pin_order == 1
    owners = await office.by("ada").chats.get(chat)
    assert (owners.pin_order, owners.has_unread) == (None, True)
    (hint,) = [hint for hint in office.published.watch() if hint.kind is WatchKind.READ]
    assert hint.users == (office.id("bob"),)


async def test_archive_moves_the_family_and_unpins(office: RightsRig) -> None:
    chat = await office.chat()
    child = await office.chat(parent=chat)
    await office.by("ada").chats.patch(chat, ChatPatch(pin_order=1))

    seen = await office.by("ada").chats.patch(chat, ChatPatch(archived=True))

    assert (seen.archived, seen.pin_order) == (True, None)
    assert await office.world.conn.fetchval("SELECT archived FROM chats WHERE id = $1", child)
    with pytest.raises(InvalidInput) as again:
        await office.by("ada").chats.patch(chat, ChatPatch(archived=True))
    assert again.value.code == "already_archived"
    with pytest.raises(ChatNotRoot):
        await office.by("ada").chats.patch(child, ChatPatch(archived=False))


async def test_administrator_archives_without_reading_and_is_written_down(office: RightsRig) -> None:
    chat = await office.chat(title="A secret plan")

    seen = await office.by("root").chats.patch(chat, ChatPatch(archived=True))

    assert (seen.archived, seen.title) == (True, "")
    entries = (await office.by("root").installation.audit(audit.EntryFilter(action="chat.archive"))).entries
    assert [entry.resource_id for entry in entries] == [str(chat)]


async def test_only_an_archived_family_is_deleted_and_readers_are_told(office: RightsRig) -> None:
    chat = await office.chat()
    child = await office.chat(parent=chat)
    await office.share(chat, "bob", "eve")

    with pytest.raises(ArchiveFirst):
        await office.by("ada").chats.delete(chat)
    with pytest.raises(ChatNotRoot):
        await office.by("ada").chats.delete(child)
    await office.by("ada").chats.patch(chat, ChatPatch(archived=True))
    office.published.clear()
    await office.by("root").chats.delete(chat)

    with pytest.raises(ChatNotFound):
        await office.by("ada").chats.get(chat)
    told = {user for hint in office.published.watch() if hint.kind is WatchKind.DELETED for user in hint.users}
    assert told == {office.id("bob"), office.id("eve")}


# Sharing


async def test_new_readers_hear_of_it_and_those_who_lose_it_lose_streams(office: RightsRig) -> None:
    chat = await office.chat()
    ada = office.by("ada").chats

    await ada.patch_shares(chat, SharePatch(users={office.id("bob"): "read"}))
    shared = office.published.watch()
    await ada.patch_shares(chat, SharePatch(users={office.id("bob"): "read"}))
    assert office.published.watch() == shared, "an unchanged entry notifies nobody"
    await ada.patch_shares(chat, SharePatch(users={office.id("bob"): None}))

    assert [(hint.kind, hint.users) for hint in office.published.watch()] == [
        (WatchKind.SHARED, (office.id("bob"),)),
        (WatchKind.UNSHARED, (office.id("bob"),)),
    ]
    assert office.told(AccessHint) == [AccessHint(kind="chat_acl", id=str(chat))] * 2
    with pytest.raises(ChatNotFound):
        await office.by("bob").chats.get(chat)


async def test_disabled_sharing_refuses_and_hides_at_once(office: RightsRig) -> None:
    chat = await office.chat()
    await office.share(chat, "bob")

    await office.by("root").settings.write(shares.SETTING, {"enabled": False})

    assert AccessHint(kind="sharing") in office.published.hints
    with pytest.raises(ChatNotFound):
        await office.by("bob").chats.get(chat)
    with pytest.raises(Disabled):
        await office.by("ada").chats.patch_shares(chat, SharePatch())


async def test_reader_who_leaves_is_out(office: RightsRig) -> None:
    chat = await office.chat()
    await office.share(chat, "bob")

    await office.by("bob").chats.leave(chat)

    with pytest.raises(ChatNotFound):
        await office.by("bob").chats.get(chat)
    assert office.told(AccessHint) == [AccessHint(kind="chat_acl", id=str(chat))]


# Turns


async def test_user_without_access_does_not_lock_the_chat(office: RightsRig) -> None:
    """Rights are checked before the lock: while another transaction holds the row lock, a user without rights is
    refused immediately.
    """
    chat = await office.chat()
    async with office.world.connection() as other, other.transaction():
        await other.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", chat)
        message = NewQueuedMessage(content=(Text("hi"),), created_by=office.id("eve"))

        with pytest.raises(ChatNotFound):
            async with asyncio.timeout(10):  # who waits for the lock fails instead of hanging
                await office.by("eve").turns.send(chat, message)


async def test_message_is_sent_in_ones_own_name_only(office: RightsRig) -> None:
    chat = await office.chat()
    message = NewQueuedMessage(content=(Text("hi"),), created_by=office.id("eve"))

    with pytest.raises(Forbidden):
        await office.by("ada").turns.send(chat, message)
    with pytest.raises(Forbidden):
        await office.by("ada").turns.create(office.spec("eve"))
    with pytest.raises(InvalidInput):
        await office.by("ada").turns.create(office.spec(parent_chat_id=chat, root_chat_id=chat))


async def mcp_server(office: RightsRig) -> UUID:
    draft = ServerDraft(slug=f"s{uuid4().hex[:20]}", url="https://mcp.example.org/mcp")
    return (await servers.create_server(office.world.conn, draft, ring=None, by=None)).id


async def test_send_changes_the_chat_in_the_same_transaction(office: RightsRig) -> None:
    chat = await office.chat()
    server = await mcp_server(office)
    message = NewQueuedMessage(content=(Text("hi"),), created_by=office.id("ada"), client_id="c-1")

    first = await office.by("ada").turns.send(chat, message, plan_mode=True, mcp_server_ids=[server])
    again = await office.by("ada").turns.send(chat, message, plan_mode=False)

    assert first.chat.status == ChatStatus.RUNNING
    assert again.sent.repeats == first.sent.inserted[-1].id
    seen = await office.by("ada").chats.get(chat)
    assert (seen.plan_mode, seen.mcp_server_ids) == (True, (server,))


async def test_file_of_another_user_is_treated_as_missing(office: RightsRig) -> None:
    chat, theirs = await office.chat(), await office.running("eve")
    file = await office.by("eve").files.create(name="a", mime_type="text/plain", data=b"x")
    part = File(media_type="text/plain", file_id=file.id)
    message = NewQueuedMessage(content=(part,), created_by=office.id("ada"))

    with pytest.raises(FileUnavailable):
        await office.by("ada").turns.send(chat, message)
    assert await office.by("ada").files.find_readable(office.id("ada"), [file.id]) == {}
    await office.world.conn.execute("INSERT INTO chat_file_links VALUES ($1, $2)", theirs, file.id)
    await office.by("eve").chats.patch_shares(theirs, SharePatch(users={office.id("ada"): "read"}))

    assert (await office.by("ada").turns.send(chat, message)).sent.inserted
    with pytest.raises(InUse):
        await office.by("eve").files.delete(file.id)


async def shared_file(office: RightsRig) -> tuple[ChatId, UUID]:
    """A chat of eve that ada may read, and a file in it."""
    theirs = await office.running("eve")
    file = await office.by("eve").files.create(name="a.txt", mime_type="text/plain", data=b"hello")
    await office.world.conn.execute("INSERT INTO chat_file_links VALUES ($1, $2)", theirs, file.id)
    await office.by("eve").chats.patch_shares(theirs, SharePatch(users={office.id("ada"): "read"}))
    return theirs, file.id


def naming(office: RightsRig, file_id: UUID, client_id: str | None = None) -> NewQueuedMessage:
    part = File(media_type="text/plain", file_id=file_id)
    return NewQueuedMessage(content=(part,), created_by=office.id("ada"), client_id=client_id)


async def test_file_of_a_shared_chat_is_copied_for_the_chat_that_it_is_attached_to(office: RightsRig) -> None:
    chat, (theirs, original) = await office.chat(), await shared_file(office)

    sent = await office.by("ada").turns.send(chat, naming(office, original))

    (part,) = sent.sent.inserted[-1].parts()
    assert isinstance(part, File)
    assert part.file_id not in (None, original)
    (copy,) = await office.by("ada").files.list_of_chat(chat)
    assert (copy.id, copy.owner_id, copy.name) == (part.file_id, office.id("ada"), "a.txt")
    (entry,) = (await office.by("audrey").installation.audit(EntryFilter(action="file.copy"))).entries
    assert (entry.actor_id, entry.resource_id) == (office.id("ada"), str(copy.id))
    assert entry.extra == {"original_id": str(original), "chat_id": str(chat)}

    await office.by("eve").chats.patch_shares(theirs, SharePatch(users={office.id("ada"): None}))
    with pytest.raises(FileNotFound):
        await office.by("ada").files.read(original)
    assert (await office.by("ada").files.read(copy.id)).data == b"hello"


async def test_chat_is_made_with_a_copy_of_a_shared_file(office: RightsRig) -> None:
    _, original = await shared_file(office)
    message = NewMessage(role=Role.USER, content=naming(office, original).content, created_by=office.id("ada"))

    made = await office.by("ada").turns.create(office.spec("ada", messages=(message,)))

    assert isinstance(made, Created)
    (copy,) = await office.by("ada").files.list_of_chat(made.chat.id)
    assert (copy.id != original, copy.owner_id) == (True, office.id("ada"))


async def test_message_that_comes_again_copies_nothing(office: RightsRig) -> None:
    chat, (_, original) = await office.chat(), await shared_file(office)
    message = naming(office, original, client_id="once")

    first = await office.by("ada").turns.send(chat, message)
    again = await office.by("ada").turns.send(chat, message)

    assert again.sent.repeats == first.sent.inserted[-1].id
    owned = "SELECT count(*) FROM chat_files WHERE owner_id = $1"
    assert await office.world.conn.fetchval(owned, office.id("ada")) == 1
    assert len((await office.by("audrey").installation.audit(EntryFilter(action="file.copy"))).entries) == 1


async def test_shared_file_is_refused_where_sharing_is_off(office: RightsRig) -> None:
    chat, (_, original) = await office.chat(), await shared_file(office)
    await settings.write_setting(office.world.conn, "sharing", value={"enabled": False})

    with pytest.raises(FileUnavailable):
        await office.by("ada").turns.send(chat, naming(office, original))


async def test_copies_count_against_the_quota_of_who_makes_them(
    office: RightsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, (_, original) = await office.chat(), await shared_file(office)
    monkeypatch.setattr(files, "MAX_UNLINKED_BYTES", 4)

    with pytest.raises(QuotaExceeded):
        await office.by("ada").turns.send(chat, naming(office, original))


async def test_copies_of_shared_files_count_against_the_total_of_a_user(office: RightsRig) -> None:
    """Files that a chat already uses count as well, so a reader cannot exceed the quota by attaching files one by
    one.
    """
    await settings.write_setting(office.world.conn, "chats", value={"max_file_mib_per_user": 1})
    chat, (_, first), (_, second) = await office.chat(), await shared_file(office), await shared_file(office)
    await office.by("ada").files.create(name="b.txt", mime_type="text/plain", data=bytes(1024 * 1024 - 9))
    await office.by("ada").turns.send(chat, naming(office, first))

    with pytest.raises(QuotaExceeded, match="1 MiB"):
        await office.by("ada").turns.send(chat, naming(office, second))
    with pytest.raises(QuotaExceeded, match="1 MiB"):
        await office.by("ada").files.create(name="c.txt", mime_type="text/plain", data=b"hello")

    assert len(await office.by("ada").files.list_of_chat(chat)) == 1
    await settings.write_setting(office.world.conn, "chats", value={"max_file_mib_per_user": 0})
    await office.by("ada").turns.send(chat, naming(office, second))


@pytest.mark.parametrize(("mode", "is_refused"), [("explore", True), (None, False)])
async def test_exploring_subagent_keeps_its_servers_or_fewer(
    office: RightsRig, mode: str | None, is_refused: bool
) -> None:
    given, more = await mcp_server(office), await mcp_server(office)
    root = await office.running()
    child = await office.running(parent_chat_id=root, root_chat_id=root, mode=mode, mcp_server_ids=(given,))
    ada = office.by("ada")
    message = NewQueuedMessage(content=(Text("x"),), created_by=office.id("ada"))

    with pytest.raises(InvalidInput) if is_refused else nullcontext():
        await ada.chats.patch(child, ChatPatch(mcp_server_ids=(given, more)))
    with pytest.raises(InvalidInput) if is_refused else nullcontext():
        await ada.turns.send(child, message, mcp_server_ids=(given, more))

    read = "SELECT mcp_server_ids FROM chats WHERE id = $1"
    assert await office.world.conn.fetchval(read, child) == ([given] if is_refused else [given, more])
    assert await office.queued() == ([] if is_refused else [child])
    await ada.chats.patch(child, ChatPatch(mcp_server_ids=()))
    assert await office.world.conn.fetchval(read, child) == []


async def test_interrupt_reaches_running_children(office: RightsRig) -> None:
    root = await office.running()
    child = await office.running(parent_chat_id=root, root_chat_id=root)
    grandchild = await office.running(parent_chat_id=child, root_chat_id=root)
    idle = await office.chat(parent=root)

    await office.by("root").turns.interrupt(root)

    assert [await office.status(chat) for chat in (root, child, grandchild, idle)] == [
        "interrupting",
        "interrupting",
        "interrupting",
        "waiting",
    ]
    entries = (await office.by("root").installation.audit(audit.EntryFilter(action="chat.interrupt"))).entries
    assert [entry.actor_id for entry in entries] == [office.id("root")]


@pytest.mark.parametrize(("before", "after"), [("running", "interrupting"), ("interrupting", "interrupting")])
async def test_interrupt_deletes_the_queues_of_children_and_keeps_that_of_the_chat(
    office: RightsRig, before: str, after: str
) -> None:
    root = await office.running()
    child = await office.running(parent_chat_id=root, root_chat_id=root)
    ada = office.by("ada").turns
    for chat in (root, child):
        await ada.send(chat, NewQueuedMessage(content=(Text("later"),), created_by=office.id("ada")))
    if before == "interrupting":
        await ada.interrupt(child)
    assert await office.status(child) == before

    await ada.interrupt(root)

    assert await office.status(child) == after
    assert await office.queued() == [root]


async def test_interrupt_of_a_chat_at_rest_deletes_the_queue_of_a_child_that_is_being_stopped(
    office: RightsRig,
) -> None:
    root = await office.chat()
    child = await office.running(parent_chat_id=root, root_chat_id=root)
    ada = office.by("ada").turns
    await ada.send(child, NewQueuedMessage(content=(Text("later"),), created_by=office.id("ada")))
    await ada.interrupt(child)

    await ada.interrupt(root)

    assert await office.queued() == []
    with pytest.raises(TransitionNotAllowed):
        await ada.interrupt(root)


async def test_interrupt_without_cascade_stops_one(office: RightsRig) -> None:
    root = await office.running()
    child = await office.running(parent_chat_id=root, root_chat_id=root)

    await office.by("ada").turns.interrupt(root, cascade=False)

    assert await office.status(child) == "running"


async def test_queued_message_is_moved_before_another_and_to_the_end(office: RightsRig) -> None:
    chat = await office.running()
    ada = office.by("ada")
    ids = []
    for words in ("a", "b", "c"):
        message = NewQueuedMessage(content=(Text(words),), created_by=office.id("ada"))
        queued = (await ada.turns.send(chat, message)).sent.queued
        assert queued is not None
        ids.append(queued.id)
    a, b, c = ids

    moved = await ada.turns.move_queued(chat, c, before=a)
    assert [row.id for row in moved.items] == [c, a, b]
    moved = await ada.turns.move_queued(chat, c, before=None)
    assert [row.id for row in moved.items] == [a, b, c]
    assert (await ada.messages.list_queue(chat)) == moved
    with pytest.raises(QueuedMessageNotFound):
        await ada.turns.move_queued(chat, a, before=QueuedMessageId(999_999))


async def test_repeated_creation_gives_the_first_answer(office: RightsRig) -> None:
    request = idempotency.Request(office.id("ada"), "key-1", "chats.create", b"{}")
    ada = office.by("ada").turns

    created = await ada.create(office.spec(), request=request, encode=lambda made: str(made.chat.id).encode())
    again = await ada.create(office.spec(), request=request, encode=lambda _: b"")

    assert isinstance(created, Created)
    assert again == Replayed(str(created.chat.id).encode())
    assert await office.world.conn.fetchval("SELECT count(*) FROM chats") == 1


async def test_creations_at_once_make_one_chat(office: RightsRig) -> None:
    request = idempotency.Request(office.id("ada"), "key-1", "chats.create", b"{}")

    outcomes = await asyncio.gather(
        *(office.by("ada").turns.create(office.spec(), request=request, encode=lambda _: b"made") for _ in range(5)),
        return_exceptions=True,
    )

    assert sum(isinstance(outcome, Created) for outcome in outcomes) == 1
    assert all(isinstance(outcome, Created | Replayed | IdempotencyInProgress) for outcome in outcomes)
    assert await office.world.conn.fetchval("SELECT count(*) FROM chats") == 1


# People


async def test_new_role_ends_sessions_and_reaches_streams(office: RightsRig) -> None:
    now = office.clock.now()
    await sessions.create_session(office.world.conn, office.id("bob"), now=now)

    await office.by("root").users.update(office.id("bob"), UserPatch(role=UserRole.AUDITOR))

    assert await sessions.list_sessions(office.world.conn, office.id("bob"), now=now) == []
    assert office.told(AccessHint) == [AccessHint(kind="user", id=str(office.id("bob")))]
    (entry,) = (await office.by("root").installation.audit(audit.EntryFilter(action="user.update"))).entries
    assert entry.diff == {"role": ["member", "auditor"]}


async def test_users_cannot_raise_their_own_role(office: RightsRig) -> None:
    for patch in (
        UserPatch(role=UserRole.ADMIN),
        UserPatch(status=Status.DISABLED),
        UserPatch(spend_limit_micros=None),
    ):
        with pytest.raises(Forbidden):
            await office.by("ada").users.update(office.id("ada"), patch)
    by_token = office.store.as_actor(UserActor(office.id("root"), UserRole.ADMIN, frozenset({Scope.CHAT_WRITE})))
    with pytest.raises(ScopeMissing):
        await by_token.users.update(office.id("ada"), UserPatch(role=UserRole.ADMIN))

    assert (await office.by("ada").users.update(office.id("ada"), UserPatch(name="Countess"))).name == "Countess"


async def test_disabling_stops_what_the_users_chats_do(office: RightsRig) -> None:
    root = await office.running("bob")
    child = await office.running("bob", parent_chat_id=root, root_chat_id=root)
    other = await office.running("ada")

    await office.by("root").users.update(office.id("bob"), UserPatch(status=Status.DISABLED))

    assert [await office.status(chat) for chat in (root, child, other)] == ["interrupting", "interrupting", "running"]
    assert {hint.chat_id for hint in office.published.chats()} == {root, child}


async def test_workspace_of_a_disabled_account_is_not_started(office: RightsRig) -> None:
    """A turn that is being stopped could request a start after the account was disabled."""
    await office.by("root").users.update(office.id("bob"), UserPatch(status=Status.DISABLED))
    draft = Draft(
        id=uuid4(),
        owner_id=office.id("bob"),
        name="late",
        template="plain",
        revision="1",
        driver="local",
        node=None,
        parameters={},
        once={},
        idle_stop_after=timedelta(),
    )

    with pytest.raises(Disabled):
        await office.by("bob").workspaces.create(draft)


async def test_two_administrators_who_demote_each_other_leave_one(office: RightsRig) -> None:
    office.people["ruth"] = await person(office.world.conn, "ruth", role=UserRole.ADMIN)
    demote = UserPatch(role=UserRole.MEMBER)

    outcomes = await asyncio.gather(
        office.by("root").users.update(office.id("ruth"), demote),
        office.by("ruth").users.update(office.id("root"), demote),
        return_exceptions=True,
    )

    assert sum(isinstance(outcome, LastAdmin) for outcome in outcomes) == 1


async def test_deleted_user_takes_chats_along(office: RightsRig) -> None:
    chat = await office.chat("bob")
    shared_with_bob = await office.chat()
    await office.share(shared_with_bob, "bob")
    with pytest.raises(InUse):
        await office.by("root").users.delete(office.id("bob"))
    await office.by("root").users.update(office.id("bob"), UserPatch(status=Status.DISABLED))

    await office.by("root").users.delete(office.id("bob"))

    assert await users.find_user(office.world.conn, office.id("bob")) is None
    assert [hint.chat_id for hint in office.published.chats() if hint.gone] == [chat]
    assert await shares.list_shares(office.world.conn, shared_with_bob) == []


async def test_reset_gives_a_link_and_ends_sessions(office: RightsRig) -> None:
    await sessions.create_session(office.world.conn, office.id("bob"), now=office.clock.now())

    link = await office.by("root").users.reset_password(office.id("bob"))

    assert link.expires_at == office.clock.now() + timedelta(hours=24)
    assert await office.world.conn.fetchval("SELECT count(*) FROM sessions") == 0


async def test_deleted_token_reaches_open_streams_and_admin_scope_is_for_admins(office: RightsRig) -> None:
    ada = office.by("ada").tokens
    with pytest.raises(InvalidInput):
        await ada.create(office.id("ada"), name="x", scopes=[Scope.ADMIN])
    made = await ada.create(office.id("ada"), name="ci", scopes=[Scope.CHAT_READ])

    await office.by("root").tokens.delete(made.token.id)

    assert office.told(AccessHint) == [AccessHint(kind="token", id=str(made.token.id))]
    assert made.secret not in str(await office.world.conn.fetch("SELECT a::text FROM audit_log a"))


async def test_ended_sessions_reach_open_streams(office: RightsRig) -> None:
    now = office.clock.now()
    kept, ended = [
        (await sessions.create_session(office.world.conn, office.id("ada"), now=now)).session.id for _ in range(2)
    ]

    assert await office.by("ada").sessions.end_others(office.id("ada"), but=kept) == 1
    await office.by("ada").sessions.end(office.id("ada"), kept)

    assert office.told(AccessHint) == [AccessHint(kind="session", id=str(each)) for each in (ended, kept)]


# Settings


async def test_setting_that_does_not_change_is_neither_told_nor_logged(office: RightsRig) -> None:
    root = office.by("root").settings

    first = await root.write("spend", {"enabled": True})
    second = await root.write("spend", {"enabled": True})

    assert second == first
    assert office.told(ConfigHint) == [ConfigHint(kind="settings", id="spend")]
    (entry,) = (await office.by("audrey").installation.audit(audit.EntryFilter(action="settings"))).entries
    assert entry.diff == {"enabled": audit.CHANGED}


async def test_stale_setting_is_refused(office: RightsRig) -> None:
    root = office.by("root").settings
    await root.write("spend", {"enabled": True})
    seen = (await root.list())["spend"].updated_at

    await root.write("spend", {"enabled": False}, seen=seen)

    with pytest.raises(StaleSetting):
        await root.write("spend", {"enabled": True}, seen=seen)


# Open streams


async def test_standing_follows_login_and_rights(office: RightsRig) -> None:
    conn, now = office.world.conn, office.clock.now()
    chat = await office.chat()
    child = await office.chat(parent=chat)
    await office.share(chat, "bob")
    ids = {name: (await sessions.create_session(conn, office.id(name), now=now)).session.id for name in office.people}

    async def standing(name: str, chat_id: UUID | None, **fields: object) -> ViewerAccess:
        watching = Viewer(user_id=office.id(name), credential_id=ids[name], chat_id=chat_id, **fields)  # type: ignore[arg-type]
        return (await access.check_viewers(conn, [watching], now=now))[0]

    assert await standing("ada", child) is ViewerAccess.KEPT
    assert await standing("bob", child) is ViewerAccess.KEPT
    assert await standing("eve", chat) is ViewerAccess.WITHDRAWN
    assert await standing("eve", None) is ViewerAccess.KEPT
    assert await standing("root", chat) is ViewerAccess.WITHDRAWN
    assert await standing("root", chat, has_reason=True) is ViewerAccess.KEPT
    assert await standing("ada", uuid4()) is ViewerAccess.DELETED

    await office.by("ada").chats.patch_shares(chat, SharePatch(users={office.id("bob"): None}))
    await office.allow_admins(AdminAccess.NONE)
    assert await standing("bob", child) is ViewerAccess.WITHDRAWN
    assert await standing("root", chat, has_reason=True) is ViewerAccess.WITHDRAWN
    ids["eve"] = ids["ada"]
    assert await standing("eve", None) is ViewerAccess.LOGGED_OUT, "somebody else's session"
    later = now + timedelta(days=2)
    watching = [Viewer(user_id=office.id("ada"), credential_id=ids["ada"], chat_id=chat)]
    assert await access.check_viewers(conn, watching, now=later) == [ViewerAccess.LOGGED_OUT]


# The guard itself


def test_method_without_a_rule_cannot_be_imported() -> None:
    with pytest.raises(TypeError, match=r"Leaky\.read_everything"):

        class Leaky(AuthorizedMethods):
            async def read_everything(self, at: Grant) -> None: ...


async def test_call_without_an_actor_is_refused(office: RightsRig) -> None:
    for nobody in (None, "admin", office.id("root")):
        with pytest.raises(NoActor):
            office.store.as_actor(nobody)  # type: ignore[arg-type]


async def test_refusal_changes_and_tells_nothing(office: RightsRig) -> None:
    chat = await office.running()
    before = await office.world.versions(chat)

    for name in ("bob", "audrey"):
        with pytest.raises(ChatNotFound):
            await office.by(name).turns.interrupt(chat)

    assert await office.world.versions(chat) == before
    assert office.published.hints == []
