from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from rookery.domain.access.rights import Role, Scope
from tests.api.api_rig import ApiRig, Person
from tests.api.more_servers import credentials, late_body, log_in, open_door
from tests.api.test_auth import closing_code, watch

TOKENS = "/api/v1/tokens"


def body(**changes: Any) -> dict[str, Any]:
    return {"name": "laptop", "scopes": ["chat:write"], **changes}


async def test_new_token_is_shown_once_and_works(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)

    made = await browser.post(TOKENS, json=body(scopes=["chat:write", "usage:read"]))

    assert made.status_code == 201, made.text
    token = made.json()["token"]
    assert token.startswith("rk_")
    listed = (await browser.get(TOKENS)).json()["items"]
    assert set(listed[0]) == {"id", "name", "scopes", "created_at", "expires_at", "last_used_at"}
    assert listed[0] == {name: value for name, value in made.json().items() if name != "token"}
    assert listed[0]["scopes"] == ["chat:write", "usage:read"]
    found = await rig.nobody.get("/api/v1/users/me", headers={"Authorization": f"Bearer {token}"})
    assert found.json()["username"] == "ada"


@pytest.mark.parametrize(("given", "longest", "days"), [({}, 365, 90), ({"expires_in_days": 7}, 365, 7), ({}, 30, 30)])
async def test_token_lasts_as_long_as_asked(
    rig: ApiRig, ada: Person, given: dict[str, int], longest: int, days: int
) -> None:
    async with open_door(rig, token_max_days=longest) as url:
        made = (await ada.http.post(f"{url}{TOKENS}", json=body(**given))).json()

    life = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert life.days == days


BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"name": ""}, "name"),
    ({"name": "x" * 65}, "name"),
    ({"name": " laptop"}, "name"),
    ({"name": "a\0b"}, "name"),
    ({"name": 7}, "name"),
    ({"scopes": []}, "scopes"),
    ({"scopes": ["everything"]}, "scopes[0]"),
    ({"scopes": "all"}, "scopes"),
    ({"scopes": ["admin"]}, "scopes"),
    ({"expires_in_days": 0}, "expires_in_days"),
    ({"expires_in_days": 366}, "expires_in_days"),
    ({"expires_in_days": 10**30}, "expires_in_days"),
    ({"expires_in_days": 1.5}, "expires_in_days"),
    ({"user": "ada"}, "user"),
)


async def test_bad_token_is_refused_by_field(rig: ApiRig, ada: Person) -> None:
    for changes, field in BAD:
        refused = await ada.http.post(TOKENS, json=body(**changes))

        assert (refused.status_code, refused.json()["code"]) == (400, "invalid"), refused.text
        assert [each["field"] for each in refused.json()["fields"]] == [field]
        assert len((await ada.http.get(TOKENS)).json()["items"]) == 1


async def test_two_wrong_members_are_both_named(rig: ApiRig, ada: Person) -> None:
    refused = await ada.http.post(TOKENS, json={"name": "", "scopes": [], "color": "red"})

    assert {each["field"] for each in refused.json()["fields"]} == {"name", "scopes", "color"}


async def test_name_is_taken_once_per_user_and_there_are_fifty_at_most(rig: ApiRig, ada: Person, ben: Person) -> None:
    await ada.http.post(TOKENS, json=body())

    taken = await ada.http.post(TOKENS, json=body())
    bens = await ben.http.post(TOKENS, json=body())
    made = [await ada.http.post(TOKENS, json=body(name=f"n{n}")) for n in range(49)]

    assert (taken.status_code, taken.json()["code"]) == (409, "already_exists")
    assert taken.json()["fields"][0]["field"] == "name"
    assert bens.status_code == 201
    assert [each.status_code for each in made] == [201] * 48 + [409]
    assert made[-1].json()["code"] == "quota_exceeded"


async def test_only_an_administrators_token_has_the_scope_admin(rig: ApiRig) -> None:
    root = await log_in(rig, "root")

    made = await root.post(TOKENS, json=body(scopes=["admin"]))

    assert made.status_code == 201


async def test_expired_token_says_so(rig: ApiRig, ada: Person) -> None:
    await rig.database.api.execute("UPDATE api_tokens SET expires_at = now() - interval '1 second'")

    refused = await ada.http.get("/api/v1/users/me")

    assert (refused.status_code, refused.json()["code"]) == (401, "token_expired")


async def test_token_of_a_disabled_user_is_refused(rig: ApiRig, ada: Person) -> None:
    await rig.database.api.execute("UPDATE users SET status = 'disabled' WHERE username = 'ada'")

    refused = await ada.http.get("/api/v1/users/me")

    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


async def test_deleted_token_ends_at_once_with_its_stream(rig: ApiRig, ada: Person) -> None:
    stream = await watch(rig, Authorization=f"Bearer {ada.token}")
    browser = await log_in(rig, ada)
    token_id = (await browser.get(TOKENS)).json()["items"][0]["id"]

    done = await browser.delete(f"{TOKENS}/{token_id}")

    assert done.status_code == 204
    assert await closing_code(stream) == 4401
    assert (await ada.http.get("/api/v1/users/me")).status_code == 401
    assert (await browser.delete(f"{TOKENS}/{token_id}")).status_code == 404


async def test_tokens_of_others_are_the_administrators_to_see_and_delete(rig: ApiRig, ada: Person, ben: Person) -> None:
    root = await log_in(rig, "root")
    auditor = await rig.add("audrey", role=Role.AUDITOR)

    seen = await root.get(TOKENS, params={"user": str(ada.id)})
    hidden = [await each.http.get(TOKENS, params={"user": str(ada.id)}) for each in (ben, auditor)]
    token_id = seen.json()["items"][0]["id"]
    refused = await ben.http.delete(f"{TOKENS}/{token_id}")
    done = await root.delete(f"{TOKENS}/{token_id}")
    unknown = await root.get(TOKENS, params={"user": str(uuid4())})

    assert [each["name"] for each in seen.json()["items"]] == ["test 1"]
    assert [each.status_code for each in hidden] == [404, 404]
    assert (refused.status_code, done.status_code, unknown.status_code) == (404, 204, 404)


async def test_token_that_may_everything_makes_tokens_and_narrow_ones_do_not(rig: ApiRig, ada: Person) -> None:
    made = await ada.http.post(TOKENS, json=body())
    narrow = rig.client(made.json()["token"])

    refused = [await narrow.post(TOKENS, json=each) for each in (body(name="more"), {"nonsense": True})]

    assert made.status_code == 201
    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "scope")] * 2


async def test_tokens_made_at_once_do_not_pass_the_limit(rig: ApiRig, ada: Person) -> None:
    for n in range(47):
        await ada.http.post(TOKENS, json=body(name=f"n{n}"))

    answered = await asyncio.gather(*(ada.http.post(TOKENS, json=body(name=f"late {n}")) for n in range(6)))

    assert sorted(each.status_code for each in answered) == [201, 201, 409, 409, 409, 409]


IDENTITY = [
    ("GET", "/users/me", set(Scope)),
    ("GET", "/users/directory?q=ad", {Scope.ALL, Scope.CHAT_WRITE, Scope.ADMIN}),
    ("GET", "/users", {Scope.ALL, Scope.ADMIN}),
    ("POST", "/users", {Scope.ALL, Scope.ADMIN}),
    ("GET", "/users/{user}", {Scope.ALL, Scope.ADMIN}),
    ("PATCH", "/users/{user}", {Scope.ALL, Scope.ADMIN}),
    ("POST", "/users/{user}/reset-password", {Scope.ALL, Scope.ADMIN}),
    ("DELETE", "/users/{user}", {Scope.ALL, Scope.ADMIN}),
    ("GET", "/tokens", {Scope.ALL}),
    ("POST", "/tokens", {Scope.ALL}),
    ("DELETE", "/tokens/{user}", {Scope.ALL}),
    ("GET", "/auth/sessions", {Scope.ALL}),
    ("DELETE", "/auth/sessions", {Scope.ALL}),
    ("DELETE", "/auth/sessions/{user}", {Scope.ALL}),
    ("POST", "/auth/password", {Scope.ALL}),
]


@pytest.mark.parametrize("scope", list(Scope))
async def test_each_scope_reaches_what_it_is_for(rig: ApiRig, ada: Person, scope: Scope) -> None:
    bot = await rig.add("bot", role=Role.ADMIN, scopes=frozenset({scope}))

    answered = {
        (method, path): await bot.http.request(
            method, f"/api/v1{path.format(user=ada.id)}", json={} if method in ("POST", "PATCH") else None
        )
        for method, path, _ in IDENTITY
    }

    refused = {key for key, each in answered.items() if each.status_code == 403 and each.json()["code"] == "scope"}
    assert refused == {(method, path) for method, path, scopes in IDENTITY if scope not in scopes}
    assert {each.status_code for key, each in answered.items() if key not in refused} <= {200, 204, 400, 404, 409}


@pytest.mark.parametrize("by", ["session", "token"])
async def test_request_that_a_password_reset_overtakes_makes_no_token(rig: ApiRig, ada: Person, by: str) -> None:
    by_session = credentials(await log_in(rig, ada))
    headers = by_session if by == "session" else {"Authorization": f"Bearer {ada.token}"}
    chief = await rig.add("chief", role=Role.ADMIN)

    async with late_body(rig, "POST", TOKENS, headers=headers, body=body()) as finish:
        reset = await chief.http.post(f"/api/v1/users/{ada.id}/reset-password")
        status = await finish()

    assert (reset.status_code, status) == (200, 401)
    assert (await chief.http.get(TOKENS, params={"user": str(ada.id)})).json()["items"] == []


async def test_request_with_a_late_body_makes_a_token(rig: ApiRig, ada: Person) -> None:
    async with late_body(rig, "POST", TOKENS, headers=credentials(await log_in(rig, ada)), body=body()) as finish:
        assert await finish() == 201
