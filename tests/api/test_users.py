from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import Role, Scope
from rookery.domain.chat.messages import ChatId, NewMessage
from rookery.domain.chat.messages import Role as MessageRole
from rookery.domain.chat.parts import Text
from rookery.store import machine
from rookery.store.machine import Bundle, ChatSpec
from tests.api.api_rig import PASSWORD, ApiRig, Person
from tests.api.more_servers import credentials, late_body, log_in
from tests.api.test_auth import closing_code, watch

USERS = "/api/v1/users"
USER_FIELDS = [
    "id", "username", "name", "email", "role", "status", "spend_limit_micros", "created_at", "last_seen_at"
]  # fmt: skip


@pytest.fixture
async def ruth(rig: ApiRig) -> Person:
    """Another administrator."""
    return await rig.add("ruth", role=Role.ADMIN)


@pytest.fixture
async def audrey(rig: ApiRig) -> Person:
    """An auditor."""
    return await rig.add("audrey", role=Role.AUDITOR)


async def running_chat(rig: ApiRig, owner: Person) -> UUID:
    first = NewMessage(role=MessageRole.USER, content=(Text("hello"),), created_by=owner.id)
    spec = ChatSpec(owner_id=owner.id, title="t", model_config_id=await rig.add_model(), messages=(first,))
    return (await rig.replica.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id


async def stop(bundle: Bundle, chat: UUID) -> None:
    """Finish the interrupt of a chat, as a worker does."""
    await machine.finish_interruption(await bundle.open(ChatId(chat)))


async def test_every_user_can_read_their_own_account_and_permissions(rig: ApiRig, ada: Person, ruth: Person) -> None:
    mine = (await ada.http.get(f"{USERS}/me")).json()
    hers = (await ruth.http.get(f"{USERS}/me")).json()

    assert list(mine) == [*USER_FIELDS, "permissions", "access_notice", "warnings"]
    assert (mine["id"], mine["username"], mine["email"], mine["role"]) == (
        str(ada.id),
        "ada",
        "ada@example.test",
        "member",
    )
    assert mine["created_at"].endswith("Z")
    assert "chat:create" in mine["permissions"]
    assert {"user:administer", "settings:administer", "audit:read"} <= set(hers["permissions"])
    assert not {each for each in mine["permissions"] if each.endswith(("administer", "list_all"))}


async def test_permissions_of_a_token_end_with_its_scopes(rig: ApiRig) -> None:
    narrow = await rig.add("bot", role=Role.ADMIN, scopes=frozenset({Scope.USAGE_READ}))

    found = (await narrow.http.get(f"{USERS}/me")).json()

    assert found["permissions"] == ["usage:read", "usage:list_all", "audit:read"]


async def test_administrators_and_auditors_list_all_users(rig: ApiRig, ada: Person, ruth: Person) -> None:
    auditor = await rig.add("audrey", role=Role.AUDITOR)

    pages = [(await each.http.get(USERS)).json() for each in (ruth, auditor)]
    refused = await ada.http.get(USERS)

    assert [each["id"] for each in pages[0]["items"]] == [each["id"] for each in pages[1]["items"]]
    assert pages[0]["next_cursor"] is None
    assert [each["username"] for each in pages[0]["items"]] == ["ada", "audrey", "root", "ruth"]
    assert list(pages[0]["items"][0]) == USER_FIELDS
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_list_is_filtered_and_paged(rig: ApiRig, ada: Person, ben: Person, ruth: Person) -> None:
    await ruth.http.patch(f"{USERS}/{ben.id}", json={"status": "disabled"})

    async def names(**params: Any) -> list[str]:
        found = await ruth.http.get(USERS, params=params)
        assert found.status_code == 200, found.text
        return [each["username"] for each in found.json()["items"]]

    assert await names(q="EXAMPLE.test") == ["ada", "ben", "root", "ruth"]
    assert await names(q="%") == []
    assert await names(q="a\0da") == []
    assert await names(role="admin") == ["root", "ruth"]
    assert await names(status="disabled") == ["ben"]
    first = (await ruth.http.get(USERS, params={"limit": 3})).json()
    rest = (await ruth.http.get(USERS, params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [each["username"] for each in (*first["items"], *rest["items"])] == ["ada", "ben", "root", "ruth"]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({"limit": 0}, ["limit"]),
        ({"limit": 201, "role": "boss"}, ["role", "limit"]),
        ({"cursor": "made-up"}, ["cursor"]),
        ({"status": "gone"}, ["status"]),
        ({"sort": "name"}, ["sort"]),
    ],
)
async def test_bad_query_is_refused_by_name(
    rig: ApiRig, ruth: Person, params: dict[str, Any], fields: list[str]
) -> None:
    refused = await ruth.http.get(USERS, params=params)

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
    assert [each["field"] for each in refused.json()["fields"]] == fields


async def test_account_with_a_password_needs_no_link(rig: ApiRig, ruth: Person) -> None:
    made = await ruth.http.post(
        USERS, json={"email": " Eve@Example.Test ", "name": "Eve", "role": "auditor", "password": PASSWORD}
    )

    assert made.status_code == 201, made.text
    found = made.json()
    assert list(found) == [*USER_FIELDS, "link"]
    assert (found["username"], found["email"], found["role"], found["link"]) == (
        "eve",
        "eve@example.test",
        "auditor",
        None,
    )
    assert made.headers["location"] == f"{USERS}/{found['id']}"
    assert (await ruth.http.get(made.headers["location"])).json()["username"] == "eve"
    await log_in(rig, "eve")


BAD_ACCOUNTS: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({}, {"email"}),
    ({"email": "eve"}, {"email"}),
    ({"email": "eve@example.test", "username": "Eve!", "name": "x" * 201}, {"username", "name"}),
    ({"email": "eve@example.test", "username": "e" * 33}, {"username"}),
    ({"email": "eve@example.test", "name": "a\0b"}, {"name"}),
    ({"email": "eve@example.test", "role": "boss", "password": "short"}, {"role", "password"}),
    ({"email": "eve@example.test", "username": "eve-the-first", "password": "eve-the-first"}, {"password"}),
    ({"email": "eve@example.test", "status": "active"}, {"status"}),
    ({"email": ["eve@example.test"]}, {"email"}),
)


async def test_bad_account_is_refused_by_field(rig: ApiRig, ruth: Person) -> None:
    for body, fields in BAD_ACCOUNTS:
        refused = await ruth.http.post(USERS, json=body)

        assert (refused.status_code, refused.json()["code"]) == (400, "invalid"), refused.text
        assert {each["field"] for each in refused.json()["fields"]} == fields
        assert [each["username"] for each in (await ruth.http.get(USERS)).json()["items"]] == ["root", "ruth"]


async def test_second_account_with_another_spelling_of_an_address_is_refused(rig: ApiRig, ruth: Person) -> None:
    made = await ruth.http.post(USERS, json={"email": "\u00c4da@Stra\u00dfe.test", "password": PASSWORD})

    assert (made.status_code, made.json()["email"]) == (201, "\u00e4da@strasse.test"), made.text
    for spelling in ("\u00e4da@stra\u00dfe.test", "A\u0308DA@STRASSE.TEST", "\u00e4\uff44\uff41\uff20strasse.test"):
        refused = await ruth.http.post(USERS, json={"email": spelling, "username": "other"})
        assert (refused.status_code, refused.json()["code"]) == (409, "already_exists"), refused.text
        await log_in(rig, spelling)


async def test_names_are_taken_without_case(rig: ApiRig, ada: Person, ruth: Person) -> None:
    email = await ruth.http.post(USERS, json={"email": "ADA@example.test"})
    username = await ruth.http.post(USERS, json={"email": "other@example.test", "username": "ada"})
    derived = await ruth.http.post(USERS, json={"email": "ada@elsewhere.test"})

    assert [(each.status_code, each.json()["code"]) for each in (email, username)] == [(409, "already_exists")] * 2
    assert [each.json()["fields"][0]["field"] for each in (email, username)] == ["email", "username"]
    assert derived.json()["username"] == "ada-2"


async def test_caller_who_may_not_create_accounts_learns_nothing_from_a_bad_body(
    rig: ApiRig, ada: Person, audrey: Person
) -> None:
    good = {"email": "eve@example.test", "password": PASSWORD}

    refused = [await each.http.post(USERS, json=body) for each in (ada, audrey) for body in (good, {"nonsense": 1})]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "forbidden")] * 4


async def test_account_is_seen_by_its_user_and_by_those_who_run_the_server(
    rig: ApiRig, ada: Person, ben: Person, ruth: Person, audrey: Person
) -> None:
    seen = [await each.http.get(f"{USERS}/{ada.id}") for each in (ada, ruth, audrey, ben)]
    unknown = [await each.http.get(f"{USERS}/{uuid4()}") for each in (ada, ruth)]
    no_id = await ada.http.get(f"{USERS}/ada")

    assert [each.status_code for each in seen] == [200, 200, 200, 404]
    assert [each.status_code for each in unknown] == [404, 404]
    assert (no_id.status_code, no_id.json()["fields"][0]["field"]) == (400, "user")


async def test_users_change_their_own_names_and_nothing_else(rig: ApiRig, ada: Person, ben: Person) -> None:
    own = f"{USERS}/{ada.id}"

    changed = await ada.http.patch(own, json={"name": "Ada L.", "email": " ada@new.test ", "username": "ada-l"})
    untouched = await ada.http.patch(own, json={})
    cleared = await ada.http.patch(own, json={"name": None})
    refused = [
        await ada.http.patch(own, json=body)
        for body in (
            {"role": "admin"},
            {"status": "disabled"},
            {"spend_limit_micros": None},
            {"name": "x", "role": "admin"},
        )
    ]
    others = await ada.http.patch(f"{USERS}/{ben.id}", json={"name": "Benny"})

    assert (changed.json()["name"], changed.json()["email"], changed.json()["username"]) == (
        "Ada L.",
        "ada@new.test",
        "ada-l",
    )
    assert untouched.json() == changed.json()
    assert cleared.json() == {**changed.json(), "name": ""}
    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "forbidden")] * 4
    assert others.status_code == 404
    assert (await ada.http.get(f"{USERS}/me")).json()["name"] == ""


async def test_null_clears_a_limit_and_is_refused_where_nothing_can_be_cleared(
    rig: ApiRig, ada: Person, ruth: Person
) -> None:
    one = f"{USERS}/{ada.id}"

    set_to = (await ruth.http.patch(one, json={"spend_limit_micros": 5_000_000})).json()
    left = (await ruth.http.patch(one, json={"name": "Ada"})).json()
    cleared = (await ruth.http.patch(one, json={"spend_limit_micros": None})).json()
    refused = await ruth.http.patch(one, json={"email": None, "username": None, "role": None, "status": None})
    bad = await ruth.http.patch(one, json={"spend_limit_micros": 0})

    limits = [each["spend_limit_micros"] for each in (set_to, left, cleared)]
    assert limits == [5_000_000, 5_000_000, None]
    assert {each["field"] for each in refused.json()["fields"]} == {"email", "username", "role", "status"}
    assert (bad.status_code, bad.json()["fields"][0]["field"]) == (400, "spend_limit_micros")


async def test_change_with_one_wrong_member_changes_nothing(rig: ApiRig, ada: Person, ben: Person) -> None:
    one = f"{USERS}/{ada.id}"

    bad = await ada.http.patch(one, json={"name": "Countess", "username": "Not a name"})
    taken = await ada.http.patch(one, json={"name": "Countess", "username": "ben"})

    assert (bad.status_code, taken.status_code, taken.json()["code"]) == (400, 409, "already_exists")
    assert (await ada.http.get(one)).json()["name"] == "Ada"


async def test_new_role_ends_sessions(rig: ApiRig, ada: Person, ruth: Person) -> None:
    browser = await log_in(rig, ada)
    same = await ruth.http.patch(f"{USERS}/{ada.id}", json={"role": "member", "name": "Ada"})
    assert (await browser.get(f"{USERS}/me")).status_code == 200

    changed = await ruth.http.patch(f"{USERS}/{ada.id}", json={"role": "auditor"})

    assert (same.status_code, changed.json()["role"]) == (200, "auditor")
    assert (await browser.get(f"{USERS}/me")).status_code == 401
    assert (await ada.http.get(f"{USERS}/me")).json()["role"] == "auditor"


async def test_disabling_ends_streams_and_stops_running_chats(rig: ApiRig, ada: Person, ruth: Person) -> None:
    chat = await running_chat(rig, ada)
    stream = await watch(rig, Authorization=f"Bearer {ada.token}")

    done = await ruth.http.patch(f"{USERS}/{ada.id}", json={"status": "disabled"})

    assert done.json()["status"] == "disabled"
    assert await closing_code(stream) == 4401
    assert await rig.database.api.fetchval("SELECT status FROM chats WHERE id = $1", chat) == "interrupting"
    assert (await ada.http.get(f"{USERS}/me")).status_code == 401
    refused = await rig.nobody.post("/api/v1/auth/login", json={"login": "ada", "password": PASSWORD})
    assert refused.json()["code"] == "invalid_credentials"


@pytest.mark.parametrize("change", [{"role": "member"}, {"status": "disabled"}])
async def test_last_administrator_stays_one(rig: ApiRig, change: dict[str, str]) -> None:
    root = await log_in(rig, "root")
    me = (await root.get(f"{USERS}/me")).json()["id"]

    refused = await root.patch(f"{USERS}/{me}", json=change)

    assert (refused.status_code, refused.json()["code"]) == (409, "last_admin")
    assert (await root.get(f"{USERS}/me")).json()["role"] == "admin"


async def test_two_administrators_who_demote_each_other_leave_one(rig: ApiRig, ruth: Person) -> None:
    root = await log_in(rig, "root")
    root_id = (await root.get(f"{USERS}/me")).json()["id"]

    answered = await asyncio.gather(
        root.patch(f"{USERS}/{ruth.id}", json={"role": "member"}),
        ruth.http.patch(f"{USERS}/{root_id}", json={"role": "member"}),
    )

    assert sorted(each.status_code for each in answered)[0] == 200
    assert await rig.database.api.fetchval("SELECT count(*) FROM users WHERE role = 'admin'") == 1


async def test_only_a_disabled_user_is_deleted_with_all_that_is_theirs(rig: ApiRig, ada: Person, ruth: Person) -> None:
    chat = await running_chat(rig, ada)
    one = f"{USERS}/{ada.id}"

    active = await ruth.http.delete(one)
    await ruth.http.patch(one, json={"status": "disabled"})
    being_stopped = await ruth.http.delete(one)
    await rig.replica.machine.bundle(lambda bundle: stop(bundle, chat))
    done = await ruth.http.delete(one)
    again = await ruth.http.delete(one)

    assert [(each.status_code, each.json()["code"]) for each in (active, being_stopped)] == [(409, "in_use")] * 2
    assert (done.status_code, again.status_code) == (204, 404)
    assert await rig.database.api.fetchval("SELECT count(*) FROM chats WHERE id = $1", chat) == 0
    assert await rig.database.api.fetchval("SELECT count(*) FROM api_tokens WHERE user_id = $1", ada.id) == 0


async def test_members_may_not_administer(rig: ApiRig, ada: Person, ben: Person, audrey: Person) -> None:
    refused = [
        await who.http.request(method, f"{USERS}/{ben.id}{path}")
        for who in (ada, audrey)
        for method, path in (("POST", "/reset-password"), ("DELETE", ""))
    ]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "forbidden")] * 4


async def test_directory_shows_names_of_active_users_only(rig: ApiRig, ada: Person, ben: Person, ruth: Person) -> None:
    await ruth.http.patch(f"{USERS}/{ben.id}", json={"status": "disabled"})

    found = await ada.http.get(f"{USERS}/directory", params={"q": "RU"})
    gone = await ada.http.get(f"{USERS}/directory", params={"q": "ben"})
    by_email = await ada.http.get(f"{USERS}/directory", params={"q": "example.test"})
    short = [await ada.http.get(f"{USERS}/directory", params=params) for params in ({"q": "r "}, {})]

    assert found.json() == {"items": [{"id": str(ruth.id), "username": "ruth", "name": "Ruth"}]}
    assert (gone.json(), by_email.json()) == ({"items": []}, {"items": []})
    assert [(each.status_code, each.json()["fields"][0]["field"]) for each in short] == [(400, "q")] * 2


@pytest.mark.parametrize("change", ["reset", "demoted"])
async def test_request_that_a_reset_or_a_new_role_overtakes_creates_and_promotes_no_user(
    rig: ApiRig, ada: Person, ruth: Person, change: str
) -> None:
    """A demoted administrator keeps the API tokens, so those are tried then."""
    root = await log_in(rig, "root")
    by_token = {"Authorization": f"Bearer {ruth.token}"}
    headers = by_token if change == "demoted" else credentials(await log_in(rig, ruth))
    spare = {"email": "spare@example.test", "username": "spare", "password": "another-lamp-43", "role": "admin"}

    async with (
        late_body(rig, "POST", USERS, headers=headers, body=spare) as create,
        late_body(rig, "PATCH", f"{USERS}/{ada.id}", headers=headers, body={"role": "admin"}) as promote,
    ):
        if change == "demoted":
            changed = await root.patch(f"{USERS}/{ruth.id}", json={"role": "member"})
        else:
            changed = await root.post(f"{USERS}/{ruth.id}/reset-password")
        assert changed.status_code == 200
        assert (await create(), await promote()) == (401, 401)

    found = {each["username"]: each["role"] for each in (await root.get(USERS)).json()["items"]}
    assert "spare" not in found
    assert found["ada"] == "member"
