from __future__ import annotations

import asyncio
from typing import Any

from rookery.store.people.one_time_links import LIFETIME
from tests.api.api_rig import PASSWORD, ApiRig, Person
from tests.api.more_servers import KEY, log_in
from tests.api.test_auth import closing_code, watch

LINK = "/api/v1/auth/link"
NEW_PASSWORD = "another lamp of brass"


async def invite(rig: ApiRig, **body: Any) -> dict[str, Any]:
    """Create an account without a password, as an administrator."""
    root = await log_in(rig, "root")
    made = await root.post("/api/v1/users", json={"email": "eve@example.test", **body})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


async def test_invited_user_chooses_a_password_and_is_logged_in(rig: ApiRig) -> None:
    made = await invite(rig, name="Eve")
    token = made["link"]["token"]
    assert made["link"]["url"].endswith(f"/link#{token}")
    browser = rig.client(None, Origin=rig.url)

    looked = await browser.get(LINK, headers={"Authorization": f"Bearer {token}"})
    used = await browser.post(LINK, json={"token": token, "password": NEW_PASSWORD})

    assert looked.status_code == 200, looked.text
    assert looked.json() == {
        "kind": "invite",
        "username": "eve",
        "name": "Eve",
        "email": "eve@example.test",
        "expires_at": made["link"]["expires_at"],
    }
    assert (used.status_code, used.json()["id"]) == (200, made["id"])
    browser.headers[KEY] = used.json()["session_key"]
    assert (await browser.get("/api/v1/users/me")).json()["username"] == "eve"
    await log_in(rig, "eve", password=NEW_PASSWORD)


async def test_link_works_once_also_when_it_is_used_twice_at_once(rig: ApiRig) -> None:
    token = (await invite(rig))["link"]["token"]

    answered = await asyncio.gather(
        *(rig.nobody.post(LINK, json={"token": token, "password": f"{NEW_PASSWORD} {n}"}) for n in range(2))
    )
    late = await rig.nobody.get(LINK, headers={"Authorization": f"Bearer {token}"})

    assert sorted(each.status_code for each in answered) == [200, 401]
    assert (late.status_code, late.json()["code"]) == (401, "invalid_credentials")


async def test_password_against_the_rules_leaves_the_link_good(rig: ApiRig) -> None:
    token = (await invite(rig))["link"]["token"]

    bad = [
        await rig.nobody.post(LINK, json={"token": token, "password": each})
        for each in ("short", "eve@example.test", "password123")
    ]
    good = await rig.nobody.post(LINK, json={"token": token, "password": NEW_PASSWORD})

    assert [(each.status_code, each.json()["fields"][0]["field"]) for each in bad] == [(400, "password")] * 3
    assert good.status_code == 200


async def test_reset_ends_sessions_and_its_link_forgets_the_failures(rig: ApiRig, ada: Person) -> None:
    browser, root = await log_in(rig, ada), await log_in(rig, "root")
    for _ in range(5):
        await rig.nobody.post("/api/v1/auth/login", json={"login": "ada", "password": "not the password"})

    reset = await root.post(f"/api/v1/users/{ada.id}/reset-password")
    used = await rig.nobody.post(LINK, json={"token": reset.json()["token"], "password": NEW_PASSWORD})

    assert reset.status_code == 200, reset.text
    assert (await browser.get("/api/v1/users/me")).status_code == 401
    assert used.status_code == 200
    await log_in(rig, ada, password=NEW_PASSWORD)


async def test_reset_by_an_administrator_ends_tokens_and_their_streams_at_once(rig: ApiRig, ada: Person) -> None:
    root = await log_in(rig, "root")
    stream = await watch(rig, Authorization=f"Bearer {ada.token}")

    await root.post(f"/api/v1/users/{ada.id}/reset-password")

    assert await closing_code(stream) == 4401
    assert (await ada.http.get("/api/v1/users/me")).status_code == 401
    (entry,) = (await root.get("/api/v1/audit", params={"action": "user.reset_password"})).json()["items"]
    assert entry["extra"] == {"sessions_ended": 0, "tokens_deleted": 1}


async def test_using_a_reset_link_ends_tokens_that_were_made_since(rig: ApiRig, ada: Person) -> None:
    root = await log_in(rig, "root")
    link = (await root.post(f"/api/v1/users/{ada.id}/reset-password")).json()["token"]
    since = rig.client(await rig.token_of(ada.user))
    assert (await since.get("/api/v1/users/me")).status_code == 200

    await rig.nobody.post(LINK, json={"token": link, "password": NEW_PASSWORD})

    assert (await since.get("/api/v1/users/me")).status_code == 401


async def test_using_a_link_ends_sessions_that_were_opened_since(rig: ApiRig, ada: Person) -> None:
    root = await log_in(rig, "root")
    token = (await root.post(f"/api/v1/users/{ada.id}/reset-password")).json()["token"]
    meanwhile = await log_in(rig, ada, password=PASSWORD)

    await rig.nobody.post(LINK, json={"token": token, "password": NEW_PASSWORD})

    assert (await meanwhile.get("/api/v1/users/me")).status_code == 401


async def test_link_ends_with_its_day_the_next_link_and_the_account(rig: ApiRig) -> None:
    made = await invite(rig)
    root = await log_in(rig, "root")

    async def works(token: str) -> bool:
        return (await rig.nobody.get(LINK, headers={"Authorization": f"Bearer {token}"})).status_code == 200

    first, second = made["link"]["token"], ""
    assert await works(first)
    second = (await root.post(f"/api/v1/users/{made['id']}/reset-password")).json()["token"]
    assert [await works(first), await works(second)] == [False, True]
    await root.patch(f"/api/v1/users/{made['id']}", json={"status": "disabled"})
    assert not await works(second)
    refused = await rig.nobody.post(LINK, json={"token": second, "password": NEW_PASSWORD})
    assert refused.status_code == 401
    await root.patch(f"/api/v1/users/{made['id']}", json={"status": "active"})
    await rig.database.api.execute("UPDATE one_time_links SET expires_at = expires_at - $1::interval", LIFETIME)
    assert not await works(second)


async def test_invalid_link_token_is_refused_and_never_read_from_the_url(rig: ApiRig, ada: Person) -> None:
    token = (await invite(rig))["link"]["token"]

    none = await rig.nobody.get(LINK)
    of_api = await rig.nobody.get(LINK, headers={"Authorization": f"Bearer {ada.token}"})
    in_url = await rig.nobody.get(LINK, params={"token": token})
    as_bearer = await rig.nobody.get("/api/v1/users/me", headers={"Authorization": f"Bearer {token}"})

    assert [each.status_code for each in (none, of_api, in_url, as_bearer)] == [401, 401, 400, 401]
