from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rookery.store.people import first_admin
from tests.api.api_rig import PASSWORD, ApiRig, open_house
from tests.api.more_servers import KEY, open_door
from tests.eventually import until

SETUP = "/api/v1/setup"


class NewHouse:
    """A server that is not set up, and its setup token."""

    def __init__(self, rig: ApiRig, token: str, data_dir: Path) -> None:
        self.rig = rig
        self.token = token
        self.file = data_dir / first_admin.TOKEN_FILE

    def body(self, **changes: Any) -> dict[str, Any]:
        return {"token": self.token, "email": "root@example.test", "password": PASSWORD, **changes}


@pytest.fixture
async def new(database_url: str, tmp_path: Path) -> AsyncIterator[NewHouse]:
    async with open_house(database_url, tmp_path) as rig:
        data_dir = tmp_path / "data"
        async with rig.database.api.acquire() as conn:
            token = await first_admin.ensure_token(conn, data_dir, now=rig.clock.now())
        assert token is not None
        yield NewHouse(rig, token, data_dir)


async def test_user_with_the_setup_token_becomes_administrator_and_is_logged_in(new: NewHouse) -> None:
    browser = new.rig.client(None, Origin=new.rig.url)
    before = await browser.get(SETUP)

    made = await browser.post(SETUP, json=new.body(name="Root"))

    assert before.json() == {"needed": True}
    assert made.status_code == 201, made.text
    assert (made.json()["username"], made.json()["role"], made.json()["name"]) == ("root", "admin", "Root")
    browser.headers[KEY] = made.json()["session_key"]
    assert (await browser.get("/api/v1/users/me")).json()["id"] == made.json()["id"]
    assert (await browser.get(SETUP)).json() == {"needed": False}


async def test_token_is_gone_once_it_was_used(new: NewHouse) -> None:
    assert new.file.exists()

    first = await new.rig.nobody.post(SETUP, json=new.body())
    second = await new.rig.nobody.post(SETUP, json=new.body(email="other@example.test"))

    assert (first.status_code, second.status_code, second.json()["code"]) == (201, 410, "set_up")
    assert not new.file.exists()


async def test_of_two_who_set_up_at_once_one_is_told_that_it_is_done(new: NewHouse) -> None:
    nobody = new.rig.nobody

    answered = await asyncio.gather(
        nobody.post(SETUP, json=new.body()), nobody.post(SETUP, json=new.body(email="other@example.test"))
    )

    assert sorted(each.status_code for each in answered) == [201, 410]
    assert await new.rig.database.api.fetchval("SELECT count(*) FROM users WHERE role = 'admin'") == 1


async def test_wrong_token_is_refused_and_learns_nothing_about_the_rest(new: NewHouse) -> None:
    wrong = await new.rig.nobody.post(SETUP, json=new.body(token="rk_setup_wrong"))
    wrong_and_bad = await new.rig.nobody.post(SETUP, json=new.body(token="rk_setup_wrong", password="short"))

    assert (wrong.status_code, wrong.json()["code"]) == (403, "forbidden")
    assert (wrong_and_bad.status_code, wrong_and_bad.json()["code"]) == (403, "forbidden")
    assert "fields" not in wrong_and_bad.json()
    assert (await new.rig.nobody.get(SETUP)).json() == {"needed": True}


async def test_bad_body_after_setup_is_told_that_it_is_set_up(new: NewHouse) -> None:
    await new.rig.nobody.post(SETUP, json=new.body())

    late = await new.rig.nobody.post(SETUP, json={"token": 7})

    assert (late.status_code, late.json()["code"]) == (410, "set_up")


async def test_everything_that_is_wrong_is_named_at_once_and_nothing_is_stored(new: NewHouse) -> None:
    refused = await new.rig.nobody.post(
        SETUP, json=new.body(email="nobody", username="Not a name", password="short", color="red")
    )

    assert refused.status_code == 400
    assert {each["field"] for each in refused.json()["fields"]} == {"email", "username", "password", "color"}
    assert await new.rig.database.api.fetchval("SELECT count(*) FROM users WHERE role = 'admin'") == 0


@pytest.mark.parametrize("password", ["root@example.test", "tooshort", "x" * 257, "password123"])
async def test_password_that_anybody_would_try_is_refused(new: NewHouse, password: str) -> None:
    refused = await new.rig.nobody.post(SETUP, json=new.body(password=password))

    assert refused.status_code == 400, refused.text
    assert [each["field"] for each in refused.json()["fields"]] == ["password"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/version"),
        ("GET", "/api/v1/users/me"),
        ("POST", "/api/v1/auth/login"),
        ("POST", "/api/v1/auth/link"),
        ("GET", "/api/v1/chats/watch"),
        ("GET", "/api/v1/no/such/path"),
    ],
)
async def test_nothing_else_is_served_before(new: NewHouse, method: str, path: str) -> None:
    refused = await new.rig.nobody.request(method, path, json={} if method == "POST" else None)

    assert (refused.status_code, refused.json()["code"]) == (503, "setup_required")
    assert refused.headers["retry-after"] == "5"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/"])
async def test_health_is_told_before(new: NewHouse, path: str) -> None:
    async def is_well() -> bool:
        return (await new.rig.nobody.get(path)).status_code == 200

    # On a busy machine the event loop may be late for a moment, so the server is not ready.
    await until(is_well)


async def test_other_replicas_serve_as_soon_as_one_was_set_up(new: NewHouse) -> None:
    async with open_door(new.rig) as url:
        before = await new.rig.nobody.get(f"{url}/api/v1/version")
        key = (await new.rig.nobody.post(SETUP, json=new.body())).json()["session_key"]
        after = await new.rig.nobody.get(f"{url}/api/v1/version", headers={KEY: key})

    # The session is valid there too: it belongs to the deployment, not to one replica.
    assert (before.status_code, after.status_code) == (503, 200)


async def test_page_of_another_site_cannot_set_up(new: NewHouse) -> None:
    refused = await new.rig.nobody.post(SETUP, json=new.body(), headers={"Origin": "https://evil.example"})

    assert (refused.status_code, refused.json()["code"]) == (403, "origin_rejected")
