"""Accounts: names in any case, the last administrator, and pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.access.rights import Role
from rookery.domain.chat.errors import InvalidInput
from rookery.store.db import migrate
from rookery.store.people import users
from rookery.store.people.errors import AlreadyExists, InUse, LastAdmin, UserNotFound
from rookery.store.people.users import Status, UserDraft, UserPatch
from tests.database import Server, fresh_database
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import person


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def test_new_user_is_an_active_member_without_a_password(world: StoreRig) -> None:
    user = await users.create_user(world.conn, UserDraft(email="Ada@Example.org", username="ada", name="Ada"))

    assert (user.role, user.status, user.last_seen_at) == (Role.MEMBER, Status.ACTIVE, None)
    assert await users.find_password_hash(world.conn, user.id) is None
    assert await users.get_user(world.conn, user.id) == user


async def test_names_are_unique_without_case(world: StoreRig) -> None:
    await users.create_user(world.conn, UserDraft(email="ada@example.org", username="ada"))

    with pytest.raises(AlreadyExists) as email:
        await users.create_user(world.conn, UserDraft(email="ADA@example.ORG", username="other"))
    await world.conn.execute("UPDATE users SET username = 'Ada'")
    with pytest.raises(AlreadyExists) as username:
        await users.create_user(world.conn, UserDraft(email="b@example.org", username="ada"))

    assert (email.value.field, username.value.field) == ("email", "username")


async def test_username_is_made_of_the_email_address(world: StoreRig) -> None:
    made = [
        (await users.create_user(world.conn, UserDraft(email=address))).username
        for address in ("Ada.Lovelace+x@a.org", "ada-lovelace-x@b.org", "ada lovelace-x"[:3] + "@c.org", "___@d.org")
    ]

    assert made == ["ada-lovelace-x", "ada-lovelace-x-2", "ada", "user"]
    assert all(users.USERNAME.fullmatch(name) for name in made)


async def test_tenth_user_of_one_address_still_gets_a_username(world: StoreRig) -> None:
    made = [(await users.create_user(world.conn, UserDraft(email=f"info@{n}.org"))).username for n in range(10)]

    assert len(set(made)) == 10


@pytest.mark.parametrize(
    ("field", "draft"),
    [
        ("email", UserDraft(email="no address")),
        ("email", UserDraft(email="a@" + "b" * 300)),
        ("username", UserDraft(email="a@b.org", username="Ada")),
        ("username", UserDraft(email="a@b.org", username="a--b")),
        ("username", UserDraft(email="a@b.org", username="a" * 33)),
        ("name", UserDraft(email="a@b.org", name="bell\x07")),
        ("name", UserDraft(email="a@b.org", name="x" * 201)),
    ],
)
async def test_bad_draft_is_refused_by_field(world: StoreRig, field: str, draft: UserDraft) -> None:
    with pytest.raises(InvalidInput) as refused:
        await users.create_user(world.conn, draft)

    assert refused.value.field == field
    assert not (await users.list_users(world.conn, limit=10)).users


@pytest.mark.parametrize("login", ["ada", "ADA", "ada@example.org", " Ada@Example.Org "])
async def test_user_is_found_by_either_name(world: StoreRig, login: str) -> None:
    ada = await person(world.conn, "ada")

    found = await users.find_by_login(world.conn, login)

    assert found is not None
    assert found[0] == ada


@pytest.mark.parametrize("login", ["", "bob", "example.org", "ada\0", "%", "\ud800"])
async def test_unknown_login_finds_no_user(world: StoreRig, login: str) -> None:
    await person(world.conn, "ada")

    assert await users.find_by_login(world.conn, login) is None


async def test_patch_changes_what_is_given_and_nothing_else(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")

    change = await users.update_user(world.conn, ada.id, patch=UserPatch(name="Countess", spend_limit_micros=5))

    assert (change.after.name, change.after.spend_limit_micros, change.after.email) == ("Countess", 5, ada.email)
    assert not change.changes_access
    with pytest.raises(InvalidInput):
        await users.update_user(world.conn, ada.id, patch=UserPatch(spend_limit_micros=0))
    with pytest.raises(UserNotFound):
        await users.update_user(world.conn, uuid4(), patch=UserPatch(name="x"))


async def test_refused_patch_changes_nothing(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    await person(world.conn, "bob")

    with pytest.raises(AlreadyExists):
        await users.update_user(world.conn, ada.id, patch=UserPatch(name="X", username="bob"))

    assert await users.get_user(world.conn, ada.id) == ada


@pytest.mark.parametrize("patch", [UserPatch(role=Role.MEMBER), UserPatch(status=Status.DISABLED)])
async def test_last_active_admin_stays_one(world: StoreRig, patch: UserPatch) -> None:
    admin = await person(world.conn, role=Role.ADMIN)

    with pytest.raises(LastAdmin):
        await users.update_user(world.conn, admin.id, patch=patch)

    second = await person(world.conn, role=Role.ADMIN)
    assert (await users.update_user(world.conn, admin.id, patch=patch)).changes_access
    with pytest.raises(LastAdmin):
        await users.update_user(world.conn, second.id, patch=patch)


async def test_two_admins_who_demote_each_other_leave_one(world: StoreRig) -> None:
    one, two = [await person(world.conn, role=Role.ADMIN) for _ in range(2)]

    async def demote(conn: asyncpg.Connection, user: users.User) -> object:
        return await users.update_user(conn, user.id, patch=UserPatch(role=Role.MEMBER))

    async with world.connection() as first, world.connection() as second:
        outcomes = await asyncio.gather(demote(first, one), demote(second, two), return_exceptions=True)

    assert sum(isinstance(outcome, LastAdmin) for outcome in outcomes) == 1
    assert await world.conn.fetchval("SELECT count(*) FROM users WHERE role = 'admin'") == 1


async def test_only_disabled_user_without_workspaces_is_deleted(world: StoreRig) -> None:
    await person(world.conn, role=Role.ADMIN)
    ada = await person(world.conn, "ada")
    with pytest.raises(InUse):
        await users.delete_user(world.conn, ada.id)
    await users.update_user(world.conn, ada.id, patch=UserPatch(status=Status.DISABLED))
    await world.conn.execute("INSERT INTO workspaces (owner_id, name) VALUES ($1, 'w')", ada.id)
    with pytest.raises(InUse):
        await users.delete_user(world.conn, ada.id)
    await world.conn.execute("UPDATE workspaces SET deleted_at = now(), status = 'deleted'")

    await users.delete_user(world.conn, ada.id)

    assert await users.find_user(world.conn, ada.id) is None


async def test_pages_of_users_neither_repeat_nor_skip(world: StoreRig) -> None:
    names = [f"user-{number:02}" for number in range(7)]
    for name in names:
        await person(world.conn, name)

    seen: list[str] = []
    cursor = None
    while True:
        page = await users.list_users(world.conn, limit=3, cursor=cursor)
        seen += [user.username for user in page.users]
        if (cursor := page.next_cursor) is None:
            break

    assert seen == names


async def test_list_is_filtered_by_text_role_and_status(world: StoreRig) -> None:
    admin = await person(world.conn, "zoe", role=Role.ADMIN)
    bob = await person(world.conn, "bob", disabled=True)
    await person(world.conn, "ada")

    async def listed(**wanted: object) -> list[str]:
        return [user.username for user in (await users.list_users(world.conn, **wanted)).users]  # type: ignore[arg-type]

    assert await listed(q="ZO") == [admin.username]
    assert await listed(q="%") == []
    assert await listed(role=Role.ADMIN) == [admin.username]
    assert await listed(status=Status.DISABLED) == [bob.username]


@pytest.mark.parametrize("cursor", ["!", "", "AAAA", "wA"])
async def test_foreign_cursor_is_refused(world: StoreRig, cursor: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await users.list_users(world.conn, cursor=cursor)

    assert refused.value.field == "cursor"


async def test_directory_shows_active_users_and_no_addresses(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    await person(world.conn, "adam", disabled=True)

    assert [user.id for user in await users.search_directory(world.conn, "AD")] == [ada.id]
    assert await users.search_directory(world.conn, "example") == []
    assert [user.id for user in await users.search_directory(world.conn, f" {(ada.email or '').upper()} ")] == [ada.id]
    assert await users.search_directory(world.conn, (ada.email or "")[:-1]) == []
    with pytest.raises(InvalidInput):
        await users.search_directory(world.conn, " a ")


async def test_role_of_a_newer_version_has_the_least_rights(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    await world.conn.execute("ALTER TABLE users DROP CONSTRAINT users_role, DROP CONSTRAINT users_status")
    await world.conn.execute("UPDATE users SET role = 'emperor', status = 'asleep'")

    found = await users.get_user(world.conn, ada.id)

    assert (found.role, found.is_active) == (Role.MEMBER, False)


async def test_names_are_stored_and_found_in_one_normal_form(world: StoreRig) -> None:
    made = await users.create_user(world.conn, UserDraft(email="  \uff21d\u00c4@Stra\u00dfe.example ", username="ada"))

    assert made.email == "ad\u00e4@strasse.example"
    for typed in (
        "AD\u00c4@STRASSE.EXAMPLE",
        "ada\u0308@strasse.example",
        "ad\u00e4@stra\u00dfe.example",
        "\uff21\uff24\uff21",
    ):
        found = await users.find_by_login(world.conn, typed)
        assert found is not None, typed
        assert found[0].id == made.id
    with pytest.raises(AlreadyExists):
        await users.create_user(world.conn, UserDraft(email="AD\u00c4@strasse.example"))


async def test_names_are_compared_by_their_normal_form_where_the_database_folds_case(database_server: Server) -> None:
    # The databases of other tests fold ASCII only. The embedded database of an installation folds all letters.
    async with fresh_database(database_server, template="template0", locale="C.UTF-8") as url:
        conn = await asyncpg.connect(url)
        try:
            await migrate.migrate(conn)
            ida = await person(conn, "ida")
            cherokee = await users.create_user(conn, UserDraft(email="\uab70\uab71@example.org"))
            assert cherokee.email == "\u13a0\u13a1@example.org"
            assert await conn.fetchval("SELECT lower($1)", "\u0130da\u13a0") == "ida\uab70"

            for typed, owner in (
                ("\u0130da", None),
                ("\u0130DA@example.org", None),
                ("IDA@example.org", ida),
                ("\uab70\uab71@example.org", cherokee),
                ("\u13a0\uab71@EXAMPLE.org", cherokee),
            ):
                found = await users.find_by_login(conn, typed)
                assert (found and found[0]) == owner, ascii(typed)
        finally:
            await conn.close()


@pytest.mark.parametrize(
    "email",
    ["a\uff20b@example.org", "a\u00a8b@example.org", "\ufdfa" * 20 + "@example.org", "\u0300" * 100_000 + "@b.org"],
    ids=["second at sign", "space", "grows", "long"],
)
async def test_address_is_judged_by_its_normal_form(world: StoreRig, email: str) -> None:
    ada = await person(world.conn, "ada")

    with pytest.raises(InvalidInput) as created:
        await users.create_user(world.conn, UserDraft(email=email))
    with pytest.raises(InvalidInput) as changed:
        await users.update_user(world.conn, ada.id, patch=UserPatch(email=email))

    assert (created.value.field, changed.value.field) == ("email", "email")


async def test_address_is_changed_to_its_normal_form_and_not_to_a_spelling_of_anothers(world: StoreRig) -> None:
    ada, bob = await person(world.conn, "ada"), await person(world.conn, "bob")

    change = await users.update_user(world.conn, ada.id, patch=UserPatch(email="\uff21D\u00c4@Stra\u00dfe.example"))
    with pytest.raises(AlreadyExists):
        await users.update_user(world.conn, bob.id, patch=UserPatch(email="ada\u0308@STRASSE.example"))

    assert change.after.email == "ad\u00e4@strasse.example"


async def test_address_of_an_older_version_is_still_found_as_it_was_typed(world: StoreRig) -> None:
    old = await users.create_user(world.conn, UserDraft(email="old@example.org"))
    await world.conn.execute("UPDATE users SET email = $2 WHERE id = $1", old.id, "old@Stra\u00dfe.example")
    new = await users.create_user(world.conn, UserDraft(email="old@strasse.example"))

    for typed, owner in (("old@Stra\u00dfe.example", old), ("old@strasse.example", new), ("OLD@STRASSE.example", new)):
        found = await users.find_by_login(world.conn, typed)
        assert found is not None
        assert found[0].id == owner.id, typed
