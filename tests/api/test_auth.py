from __future__ import annotations

import asyncio
from datetime import datetime

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from rookery.api.host_and_origin import Origins
from rookery.domain.access.rights import Role, Scope
from tests.api.api_rig import PASSWORD, ApiRig, Person
from tests.api.more_servers import credentials, log_in, open_door, session_cookie

LOGIN = "/api/v1/auth/login"
LOGOUT = "/api/v1/auth/logout"
SESSIONS = "/api/v1/auth/sessions"
NEW_PASSWORD = "another lamp of brass"


async def watch(rig: ApiRig, **headers: str) -> ClientConnection:
    """Open a watch stream and wait for its first event."""
    url = f"{rig.url.replace('http', 'ws', 1)}/api/v1/chats/watch"
    stream = await connect(url, additional_headers=headers, proxy=None)
    await asyncio.wait_for(stream.recv(), 10)
    return stream


async def closing_code(stream: ClientConnection) -> int | None:
    async with asyncio.timeout(10):
        try:
            while True:
                await stream.recv()
        except ConnectionClosed:
            return stream.close_code


@pytest.mark.parametrize("login", ["ada", "ADA", "ada@example.test", " Ada@Example.Test "])
async def test_login_by_username_or_email_answers_with_the_user_and_a_cookie(
    rig: ApiRig, ada: Person, login: str
) -> None:
    done = await rig.nobody.post(LOGIN, json={"login": login, "password": PASSWORD})

    assert done.status_code == 200, done.text
    assert list(done.json()) == [
        "id", "username", "name", "email", "role", "status", "spend_limit_micros", "created_at", "last_seen_at",
        "session_key",
    ]  # fmt: skip
    assert done.json()["id"] == str(ada.id)
    assert done.headers["set-cookie"].endswith("; Path=/; Max-Age=86400; HttpOnly; SameSite=Lax")
    assert done.headers["set-cookie"].startswith("rookery_session=rk_s_")
    assert done.json()["session_key"].startswith("rk_k_")


async def test_over_https_the_cookie_is_bound_to_the_host(rig: ApiRig, ada: Person) -> None:
    async with open_door(rig, origins=Origins(external_url="https://rookery.example")) as url:
        done = await rig.nobody.post(f"{url}{LOGIN}", json={"login": "ada", "password": PASSWORD})

        assert done.headers["set-cookie"].startswith("__Host-rookery_session=rk_s_")
        assert done.headers["set-cookie"].endswith("; HttpOnly; SameSite=Lax; Secure")


async def test_every_failed_login_has_the_same_answer(rig: ApiRig, ada: Person) -> None:
    await rig.database.api.execute("UPDATE users SET status = 'disabled' WHERE username = 'ada'")
    tries = [("ada", PASSWORD), ("root", "wrong password"), ("nobody", PASSWORD), ("", ""), ("a\0b", "\0")]

    answered = [await rig.nobody.post(LOGIN, json={"login": login, "password": password}) for login, password in tries]

    bodies = [{**each.json(), "request_id": ""} for each in answered]
    assert {each.status_code for each in answered} == {401}
    assert all(body == bodies[0] for body in bodies)
    assert bodies[0]["code"] == "invalid_credentials"
    assert not any("set-cookie" in each.headers for each in answered)


async def test_sixth_failure_has_to_wait(rig: ApiRig, ada: Person) -> None:
    wrong = {"login": "ada", "password": "not the password"}
    failed = [(await rig.nobody.post(LOGIN, json=wrong)).status_code for _ in range(5)]

    waits = await rig.nobody.post(LOGIN, json={"login": "ada", "password": PASSWORD})

    assert failed == [401] * 5
    assert (waits.status_code, waits.json()["code"]) == (429, "rate_limited")
    assert int(waits.headers["retry-after"]) >= 1


async def test_logout_ends_the_session_takes_the_cookie_and_closes_its_streams(rig: ApiRig, ada: Person) -> None:
    browser, other = await log_in(rig, ada), await log_in(rig, ada)
    stream = await watch(rig, **credentials(browser), Origin=rig.url)
    kept = credentials(browser)

    done = await browser.post(LOGOUT)

    assert (done.status_code, done.content) == (204, b"")
    assert "Max-Age=0" in done.headers["set-cookie"]
    assert await closing_code(stream) == 4401
    after = await rig.nobody.get("/api/v1/users/me", headers=kept)
    assert (after.status_code, after.json()["code"]) == (401, "session_expired")
    assert (await other.get("/api/v1/users/me")).status_code == 200


async def test_token_has_no_session_to_end(rig: ApiRig, ada: Person) -> None:
    refused = await ada.http.post(LOGOUT)

    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await ada.http.get("/api/v1/users/me")).status_code == 200


async def test_sessions_are_listed_with_the_current_one_marked(rig: ApiRig, ada: Person, ben: Person) -> None:
    first, second = await log_in(rig, ada), await log_in(rig, ada)
    await log_in(rig, ben)

    found = (await second.get(SESSIONS)).json()["items"]

    assert [each["current"] for each in found] == [True, False]
    assert set(found[0]) == {"id", "created_at", "last_seen_at", "expires_at", "ip", "user_agent", "current"}
    assert found[0]["ip"] == "127.0.0.1"
    assert found[0]["user_agent"].startswith("python-httpx2")
    assert [each["current"] for each in (await first.get(SESSIONS)).json()["items"]] == [False, True]
    assert [each["current"] for each in (await ada.http.get(SESSIONS)).json()["items"]] == [False, False]


async def test_one_session_is_ended_from_another(rig: ApiRig, ada: Person) -> None:
    lost, mine = await log_in(rig, ada), await log_in(rig, ada)
    listed = (await mine.get(SESSIONS)).json()["items"]
    lost_id = next(each["id"] for each in listed if not each["current"])

    done = await mine.delete(f"{SESSIONS}/{lost_id}")
    again = await mine.delete(f"{SESSIONS}/{lost_id}")

    assert (done.status_code, again.status_code, again.json()["code"]) == (204, 404, "not_found")
    assert "set-cookie" not in done.headers
    assert (await lost.get(SESSIONS)).status_code == 401


async def test_ending_the_own_session_takes_the_cookie(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    mine = (await browser.get(SESSIONS)).json()["items"][0]["id"]

    done = await browser.delete(f"{SESSIONS}/{mine}")

    assert done.status_code == 204
    assert "Max-Age=0" in done.headers["set-cookie"]


async def test_session_of_another_user_is_not_found(rig: ApiRig, ada: Person, ben: Person) -> None:
    theirs = await log_in(rig, ada)
    session = (await theirs.get(SESSIONS)).json()["items"][0]["id"]
    root = await log_in(rig, "root")

    refused = [await each.delete(f"{SESSIONS}/{session}") for each in (ben.http, root)]

    assert [each.status_code for each in refused] == [404, 404]
    assert (await theirs.get(SESSIONS)).status_code == 200


async def test_all_other_sessions_end_at_once(rig: ApiRig, ada: Person, ben: Person) -> None:
    others = [await log_in(rig, ada) for _ in range(2)]
    mine, bens = await log_in(rig, ada), await log_in(rig, ben)

    done = await mine.delete(SESSIONS)

    assert done.status_code == 204
    assert [(await each.get(SESSIONS)).status_code for each in (*others, mine, bens)] == [401, 401, 200, 200]


async def test_new_password_ends_the_other_sessions_and_their_streams(rig: ApiRig, ada: Person) -> None:
    mine, other = await log_in(rig, ada), await log_in(rig, ada)
    stream = await watch(rig, **credentials(other), Origin=rig.url)

    body = {"current_password": PASSWORD, "new_password": NEW_PASSWORD, "revoke_tokens": False}
    done = await mine.post("/api/v1/auth/password", json=body)

    assert done.status_code == 204, done.text
    assert (await ada.http.get("/api/v1/users/me")).status_code == 200
    assert await closing_code(stream) == 4401
    assert (await mine.get(SESSIONS)).status_code == 200
    assert (await other.get(SESSIONS)).status_code == 401
    old = await rig.nobody.post(LOGIN, json={"login": "ada", "password": PASSWORD})
    assert old.status_code == 401
    await log_in(rig, ada, password=NEW_PASSWORD)


async def test_new_password_ends_tokens_and_their_streams_when_asked_to_and_has_to_say_so(
    rig: ApiRig, ada: Person
) -> None:
    mine = await log_in(rig, ada)
    stream = await watch(rig, Authorization=f"Bearer {ada.token}")
    body = {"current_password": PASSWORD, "new_password": NEW_PASSWORD}

    unsaid = await mine.post("/api/v1/auth/password", json=body)
    done = await mine.post("/api/v1/auth/password", json={**body, "revoke_tokens": True})

    assert unsaid.json()["fields"] == [{"field": "revoke_tokens", "message": "This is required."}]
    assert done.status_code == 204, done.text
    assert await closing_code(stream) == 4401
    assert (await ada.http.get("/api/v1/users/me")).status_code == 401
    assert (await mine.get(SESSIONS)).status_code == 200


async def test_token_that_changes_the_password_outlives_the_others(rig: ApiRig, ada: Person) -> None:
    other = rig.client(await rig.token_of(ada.user))
    body = {"current_password": PASSWORD, "new_password": NEW_PASSWORD, "revoke_tokens": True}

    assert (await ada.http.post("/api/v1/auth/password", json=body)).status_code == 204

    answered = [(await each.get("/api/v1/users/me")).status_code for each in (ada.http, other)]
    assert answered == [200, 401]


async def test_password_is_not_changed_without_the_current_one_or_against_the_rules(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)

    async def change(current: str, new: str) -> httpx2.Response:
        body = {"current_password": current, "new_password": new, "revoke_tokens": True}
        return await browser.post("/api/v1/auth/password", json=body)

    wrong = await change("not the password", NEW_PASSWORD)
    bad = [await change(PASSWORD, new) for new in ("short", "ada@example.test", "password123")]

    assert (wrong.status_code, wrong.json()["code"]) == (401, "invalid_credentials")
    assert [each.status_code for each in bad] == [400] * 3
    assert [each.json()["fields"][0]["field"] for each in bad] == ["new_password"] * 3
    await log_in(rig, ada)


async def test_guessing_the_current_password_has_to_wait(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    body = {"current_password": "not the password", "new_password": NEW_PASSWORD, "revoke_tokens": False}

    answered = [(await browser.post("/api/v1/auth/password", json=body)).status_code for _ in range(6)]

    assert answered == [401] * 5 + [429]


@pytest.mark.parametrize("path", [SESSIONS, "/api/v1/tokens"])
async def test_narrow_token_sees_nothing_of_the_account(rig: ApiRig, path: str) -> None:
    narrow = await rig.add("bot", role=Role.ADMIN, scopes=frozenset(Scope) - {Scope.ALL})

    refused = await narrow.http.get(path)

    assert (refused.status_code, refused.json()["code"]) == (403, "scope")


async def test_narrow_token_cannot_change_the_password_and_learns_nothing_from_a_bad_body(rig: ApiRig) -> None:
    narrow = await rig.add("bot", scopes=frozenset({Scope.CHAT_WRITE}))
    good = {"current_password": PASSWORD, "new_password": NEW_PASSWORD, "revoke_tokens": False}

    refused = [await narrow.http.post("/api/v1/auth/password", json=body) for body in (good, {"nonsense": 1})]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(403, "scope")] * 2


async def test_session_in_its_second_half_is_renewed_and_the_cookie_sent_again(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    fresh = await browser.get("/api/v1/users/me")
    await rig.database.api.execute("UPDATE sessions SET expires_at = now() + interval '11 hours'")

    renewed = await browser.get("/api/v1/users/me")

    assert "set-cookie" not in fresh.headers
    assert f"rookery_session={session_cookie(browser)};" in renewed.headers["set-cookie"]
    assert "Max-Age=86" in renewed.headers["set-cookie"]
    ends = (await browser.get(SESSIONS)).json()["items"][0]["expires_at"]
    assert (datetime.fromisoformat(ends) - rig.clock.now()).total_seconds() > 23 * 3600


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("UPDATE sessions SET expires_at = now() - interval '1 second'", "session_expired"),
        ("DELETE FROM sessions", "session_expired"),
        ("UPDATE users SET status = 'disabled' WHERE username = 'ada'", "session_expired"),
        ("UPDATE sessions SET secret_hash = sha256('else')", "unauthenticated"),
        ("UPDATE sessions SET key_hash = sha256('else')", "session_key_required"),
        ("UPDATE sessions SET key_hash = NULL", "session_expired"),
    ],
)
async def test_session_that_is_over_says_so(rig: ApiRig, ada: Person, change: str, code: str) -> None:
    browser = await log_in(rig, ada)
    await rig.database.api.execute(change)

    refused = await browser.get("/api/v1/users/me")

    assert (refused.status_code, refused.json()["code"]) == (401, code)


async def test_bearer_counts_alone_beside_a_cookie(rig: ApiRig, ada: Person, ben: Person) -> None:
    browser = await log_in(rig, ada)

    as_ben = await browser.get("/api/v1/users/me", headers={"Authorization": f"Bearer {ben.token}"})
    garbage = await browser.get("/api/v1/users/me", headers={"Authorization": "Bearer rk_garbage"})
    basic = await browser.get("/api/v1/users/me", headers={"Authorization": "Basic YWRhOmFkYQ=="})

    assert as_ben.json()["username"] == "ben"
    assert [each.status_code for each in (garbage, basic)] == [401, 401]


async def test_other_cookies_of_the_host_do_no_harm(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    cookie = f'odd="a{{b; c"; x y=[1]; rookery_session={session_cookie(browser)}; theme=dark'

    found = await rig.nobody.get("/api/v1/users/me", headers={**credentials(browser), "Cookie": cookie})

    assert found.json()["username"] == "ada"
