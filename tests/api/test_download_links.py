"""Signed links for images and downloads, which a browser loads without the session key."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from rookery.api import download_links
from rookery.domain.access.rights import Role
from rookery.store.people import signed_links
from rookery.store.people.signed_links import LinkKey, SignedTarget
from rookery.telemetry.redaction import hide_secrets
from rookery.testing.clock import FakeClock
from tests.api.api_rig import ApiRig, Person
from tests.api.more_servers import KEY, credentials, log_in, open_door

LINKS = "/api/v1/download-links"
FILES = "/api/v1/files"
SOME_ID = "8f0e7a3c-5b1d-4c2e-9a6f-0123456789ab"
FILE = f"{FILES}/{SOME_ID}"


async def signed(browser: httpx2.AsyncClient, *paths: str) -> list[dict[str, Any]]:
    answered = await browser.get(LINKS, params={"path": list(paths)})
    assert answered.status_code == 200, answered.text
    items: list[dict[str, Any]] = answered.json()["items"]
    return items


async def uploaded(browser: httpx2.AsyncClient) -> str:
    made = await browser.post(FILES, content=b"hello", headers={"Content-Disposition": 'attachment; filename="a.txt"'})
    assert made.status_code == 201, made.text
    return f"{FILES}/{made.json()['id']}"


def cookie_of(browser: httpx2.AsyncClient) -> dict[str, str]:
    """Return the headers that a browser sends when it loads an image."""
    return {"Cookie": credentials(browser)["Cookie"]}


async def test_link_works_only_with_the_cookie_of_its_session(rig: ApiRig, ada: Person, ben: Person) -> None:
    mine, elsewhere, bens = await log_in(rig, ada), await log_in(rig, ada), await log_in(rig, ben)
    path = await uploaded(mine)
    (link,) = await signed(mine, path)

    given = await rig.nobody.get(link["url"], headers=cookie_of(mine))
    ranged = await rig.nobody.get(link["url"], headers={**cookie_of(mine), "Range": "bytes=1-2"})
    head = await rig.nobody.head(link["url"], headers=cookie_of(mine))
    refused = [
        await rig.nobody.get(link["url"]),
        await rig.nobody.get(link["url"], headers=cookie_of(elsewhere)),
        await rig.nobody.get(link["url"], headers=cookie_of(bens)),
        await rig.nobody.get(path, headers=cookie_of(mine)),
    ]

    assert (given.status_code, given.content, ranged.content, head.status_code) == (200, b"hello", b"el", 200)
    assert link["path"] == path
    assert link["url"].startswith(f"{path}?signature=rk_d_")
    assert [each.status_code for each in refused] == [401] * 4
    assert {each.headers["cache-control"] for each in refused} == {"no-store"}


async def test_answers_to_links_stay_with_the_page_that_asked(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    (link,) = await signed(browser, await uploaded(browser))

    by_link = (await rig.nobody.get(link["url"], headers=cookie_of(browser))).headers
    by_key = (await browser.get(link["path"])).headers

    assert by_link["cache-control"] == "private, max-age=300"
    for headers in (by_link, by_key):
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert "rookery-session-key" in headers["vary"].lower()


async def test_link_opens_nothing_but_its_own_address(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    first, second = await uploaded(browser), await uploaded(browser)
    (link,) = await signed(browser, first)
    signature = link["url"].partition("?")[2]
    cookie = cookie_of(browser)

    others = [
        await rig.nobody.request(method, address, headers={**cookie, "Sec-Fetch-Site": "same-origin"})
        for method, address in (
            ("GET", f"{second}?{signature}"),
            ("DELETE", link["url"]),
            ("POST", f"{first}/download-url?{signature}"),
            ("GET", f"/api/v1/users/me?{signature}"),
            ("GET", f"/api/v1/chats/watch?{signature}"),
            ("GET", f"{LINKS}?path={second}&{signature}"),
            ("GET", f"{first}?{signature}&a=b"),
            ("GET", f"{first}?a=b&{signature}"),
            ("GET", f"{first}?{signature}&{signature}"),
            ("GET", link["url"][:-1] + ("0" if link["url"][-1] != "0" else "1")),
            ("GET", link["url"].upper()),
        )
    ]

    assert [each.status_code for each in others[:-1]] == [401] * 10
    assert others[-1].status_code == 404  # an unknown address
    assert (await browser.get(first)).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM sessions",
        "UPDATE sessions SET expires_at = now() - interval '1 second'",
        "UPDATE sessions SET key_hash = sha256('else')",
        "UPDATE users SET status = 'disabled' WHERE username = 'ada'",
    ],
)
async def test_link_ends_with_its_session_and_with_its_user(rig: ApiRig, ada: Person, change: str) -> None:
    browser = await log_in(rig, ada)
    (link,) = await signed(browser, await uploaded(browser))
    await rig.database.api.execute(change)

    assert (await rig.nobody.get(link["url"], headers=cookie_of(browser))).status_code == 401


async def test_link_to_what_was_taken_away_gives_nothing(rig: ApiRig, ada: Person, ben: Person) -> None:
    owner, reader = await log_in(rig, ada), await log_in(rig, ben)
    path = await uploaded(owner)
    own, foreign = (await signed(owner, path))[0]["url"], (await signed(reader, path))[0]["url"]

    stranger = await rig.nobody.get(foreign, headers=cookie_of(reader))
    await owner.delete(path)
    gone = await rig.nobody.get(own, headers=cookie_of(owner))

    assert (stranger.status_code, gone.status_code) == (404, 404)


async def test_link_lasts_five_to_ten_minutes(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    path, cookie = await uploaded(browser), cookie_of(browser)
    clock = FakeClock(rig.clock.now())
    async with (
        open_door(rig, clock=clock) as url,
        httpx2.AsyncClient(base_url=url, headers=credentials(browser), timeout=20.0, verify=False) as page,
    ):
        (link,) = await signed(page, path)
        await clock.advance(299)
        late = await rig.nobody.get(url + link["url"], headers=cookie)
        await clock.advance(301)
        over = await rig.nobody.get(url + link["url"], headers=cookie)
        again = await rig.nobody.get(url + (await signed(page, path))[0]["url"], headers=cookie)

    assert (late.status_code, over.status_code, again.status_code) == (200, 401, 200)
    assert over.json()["code"] == "session_key_required"


async def test_reports_are_saved_by_link_with_the_rights_of_now(rig: ApiRig) -> None:
    boss = await log_in(rig, await rig.add("boss", role=Role.ADMIN))
    audit, usage = await signed(boss, "/api/v1/audit?format=csv&limit=200", "/api/v1/usage?group_by=day&format=csv")

    saved = [await rig.nobody.get(each["url"], headers=cookie_of(boss)) for each in (audit, usage)]
    plain = await rig.nobody.get(audit["url"].replace("format=csv", "format=json"), headers=cookie_of(boss))

    assert [(each.status_code, each.headers["content-type"].split(";")[0]) for each in saved] == [(200, "text/csv")] * 2
    assert plain.status_code == 401


async def test_path_of_a_workspace_is_signed_as_browsers_write_it(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)
    path = f"/api/v1/chats/{SOME_ID}/file/bytes?path={quote('Bücher & Söhne/100%?.png', safe='')}"
    (link,) = await signed(browser, path)

    answered = await rig.nobody.get(link["url"], headers=cookie_of(browser))

    assert link["url"].startswith(f"{path}&signature=")
    assert (answered.status_code, answered.json()["code"]) == (404, "chat_not_found")


async def test_token_has_no_links_signed(rig: ApiRig, ada: Person) -> None:
    refused = await ada.http.get(LINKS, params={"path": FILE})
    followed = await ada.http.get(f"{FILE}?signature=rk_d_1_{'0' * 64}")

    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert followed.status_code == 400  # an unknown parameter


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/api/v1/users/me",
        "/api/v1/tokens",
        "/api/v1/chats/watch",
        f"/api/v1/chats/{SOME_ID}/stream",
        f"{FILE}/download",
        f"{FILE}/../../users/me",
        f"{FILE}#fragment",
        f"{FILE}?a=b c",
        f"{FILE}?a=\n",
        f"{FILE}?signature=rk_d_1_00",
        f"{FILE}?a=1&signature=",
        f"https://evil.example{FILE}",
        f"//evil.example{FILE}",
        "/api/v1/audit",
        "/api/v1/audit?format=json",
        f"{FILE}?a={'b' * 4096}",
        "\ud800",
        FILE.upper(),
    ],
)
def test_other_addresses_are_never_signed(path: str) -> None:
    assert not download_links.is_signable(path)


async def test_wrong_paths_are_refused_by_name(rig: ApiRig, ada: Person) -> None:
    browser = await log_in(rig, ada)

    refused = [
        await browser.get(LINKS, params={"path": paths})
        for paths in ([], ["/api/v1/tokens"], [FILE, "/api/v1/users/me"], [FILE] * 101)
    ]

    assert [(each.status_code, each.json()["fields"][0]["field"]) for each in refused] == [(400, "path")] * 4
    assert len(await signed(browser, *[FILE] * 100)) == 100


@pytest.mark.parametrize(
    "signature",
    ["", "rk_d_", "rk_d__", f"rk_d_{'9' * 40}_{'0' * 64}", f"rk_d_-1_{'0' * 64}", f"rk_d_٣_{'0' * 64}", "\x00", "%00"],
)
def test_garbage_is_no_signature(signature: str) -> None:
    key = LinkKey.of_session(b"k" * 32)

    assert not key.accepts(SignedTarget(FILE, signature), now=FakeClock().now())


def test_signature_counts_until_its_moment_and_for_its_key() -> None:
    now = FakeClock().now()
    key, other = LinkKey.of_session(b"k" * 32), LinkKey.of_session(b"o" * 32)
    expires_at = signed_links.expiry(now)
    made = SignedTarget(FILE, key.sign(FILE, expires_at=expires_at))
    later = SignedTarget(FILE, made.signature.replace(str(int(expires_at.timestamp())), "99999999999"))

    assert key.accepts(made, now=now)
    assert key.accepts(made, now=expires_at - timedelta(seconds=1))
    assert not key.accepts(made, now=expires_at)
    assert not key.accepts(later, now=now)
    assert not other.accepts(made, now=now)
    assert made.signature not in repr(made) + repr(key)
    assert timedelta(minutes=5) < expires_at - now <= timedelta(minutes=10)


async def test_signatures_are_in_no_log(rig: ApiRig, ada: Person, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("rookery", "uvicorn"):
        caplog.set_level(logging.DEBUG, name)
    browser = await log_in(rig, ada)
    (link,) = await signed(browser, await uploaded(browser))
    await rig.nobody.get(link["url"], headers=cookie_of(browser))
    await rig.nobody.get(link["url"])

    signature = link["url"].partition("signature=")[2]
    assert signature not in caplog.text
    assert browser.headers[KEY] not in caplog.text
    assert signature not in hide_secrets(f"see {rig.url}{link['url']} and {signature}")
