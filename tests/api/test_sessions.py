"""A session needs its cookie and its session key: either alone is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from rookery.api.host_and_origin import Origins
from rookery.api.rate_limits import Limit, RateLimits
from rookery.domain.access.rights import Role
from rookery.store.people import credentials as secrets
from rookery.store.people.credentials import Credential, Kind
from rookery.testing import FakeClock
from tests.api.api_rig import PASSWORD, ApiRig, Person
from tests.api.more_servers import KEY, credentials, log_in, open_door
from tests.api.openapi_operations import ALL, DOCUMENT
from tests.api.test_statuses import STREAMS, missing

ME = "/api/v1/users/me"
LOGIN = "/api/v1/auth/login"
WATCH = "/api/v1/chats/watch"
# All requests have the origin of this server, so the origin is not the reason of a refusal.
OURS = {"Sec-Fetch-Site": "same-origin", "Accept": "text/event-stream"}


@pytest.fixture
async def boss(rig: ApiRig) -> dict[str, str]:
    """The headers of an administrator's session."""
    return credentials(await log_in(rig, await rig.add("boss", role=Role.ADMIN)))


def only(session: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: session[name] for name in names}


async def upgrade(rig: ApiRig, path: str, headers: Mapping[str, str], *protocols: str) -> tuple[int, str]:
    """Open a WebSocket. Return the status and the chosen subprotocol."""
    try:
        async with connect(
            rig.url.replace("http", "ws", 1) + path,
            additional_headers=dict(headers),
            origin=Origin(rig.url),
            subprotocols=[Subprotocol(each) for each in protocols] or None,
            proxy=None,
        ) as socket:
            return 101, socket.subprotocol or ""
    except InvalidStatus as refused:
        return refused.response.status_code, ""


async def test_half_a_session_is_refused_by_every_operation_of_the_document(rig: ApiRig, boss: dict[str, str]) -> None:
    limits = RateLimits(clock=FakeClock(), per_minute=dict.fromkeys(Limit, 1_000_000))
    halves = {"session_key_required": only(boss, "Cookie"), "session_cookie_required": only(boss, KEY)}
    private = [asked for asked in ALL if not asked.is_public]
    wrong = []
    async with open_door(rig, limits=limits) as url:
        for asked in private:
            for code, sent in halves.items():
                got = await rig.nobody.request(asked.method, url + missing(asked), headers={**OURS, **sent})
                if (got.status_code, got.json().get("code")) != (401, code):
                    wrong.append((asked.name, code, got.status_code, got.text))
        # With both halves the request is accepted, so the missing half is the only reason of the refusal.
        whole = await rig.nobody.get(url + ME, headers={**OURS, **boss})

    assert wrong == []
    assert len(private) > 120
    assert {asked.name for asked in private} >= STREAMS
    assert whole.status_code == 200


async def test_half_a_session_opens_no_web_socket(rig: ApiRig, boss: dict[str, str]) -> None:
    paths = [missing(asked) for asked in ALL if asked.name in STREAMS]
    key = f"rookery.session.{boss[KEY]}"

    refused = [
        await upgrade(rig, path, sent, *offered)
        for path in paths
        for sent, offered in (
            (only(boss, "Cookie"), ()),
            (only(boss, "Cookie"), ("rookery.v1",)),
            (only(boss, "Cookie"), ("rookery.v1", "rookery.session.rk_k_nonsense")),
            (only(boss, "Cookie"), (key,)),  # without our subprotocol there is none that the server could select
            (only(boss, KEY), ()),
            ({}, ("rookery.v1", key)),
        )
    ]

    assert len(paths) == 3
    assert set(refused) == {(401, "")}


async def test_key_opens_a_web_socket_as_a_subprotocol_or_as_a_header_and_is_never_repeated(
    rig: ApiRig, boss: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("rookery", "uvicorn"):
        caplog.set_level(logging.DEBUG, name)

    as_protocol = await upgrade(rig, WATCH, only(boss, "Cookie"), "rookery.v1", f"rookery.session.{boss[KEY]}")
    as_header = await upgrade(rig, WATCH, boss)
    read = await rig.nobody.get(ME, headers=boss)

    assert (as_protocol, as_header) == ((101, "rookery.v1"), (101, ""))
    assert boss[KEY] not in str(read.headers) + read.text + caplog.text


async def test_each_login_has_a_key_of_its_own_that_the_database_does_not_know(rig: ApiRig, ada: Person) -> None:
    first, second = await log_in(rig, ada), await log_in(rig, ada)
    keys = [each.headers[KEY] for each in (first, second)]

    rows = str(await rig.database.api.fetch("SELECT s::text FROM sessions s"))

    parsed = [secrets.parse(Kind.SESSION_KEY, key) for key in keys]
    cookies = [secrets.parse(Kind.SESSION, credentials(each)["Cookie"].partition("=")[2]) for each in (first, second)]
    shown = {each.secret for each in (*parsed, *cookies) if isinstance(each, Credential)}
    assert len(shown) == 4
    assert not any(each.hex() in rows for each in shown)


async def test_no_other_key_fits_the_cookie(rig: ApiRig, ada: Person) -> None:
    first, second = credentials(await log_in(rig, ada)), credentials(await log_in(rig, ada))
    parsed = secrets.parse(Kind.SESSION_KEY, second[KEY])
    assert parsed is not None
    mine = secrets.parse(Kind.SESSION_KEY, first[KEY])
    assert mine is not None
    # With the id of one session and the secret of another: the id is not secret.
    forged = Credential(Kind.SESSION_KEY, mine.id, parsed.secret).reveal()

    wrong = (second[KEY], forged, "", "rk_k_", "rk_k_nonsense", first["Cookie"].partition("=")[2])
    refused = [await rig.nobody.get(ME, headers={**first, KEY: key}) for key in wrong]

    assert {(each.status_code, each.json()["code"]) for each in refused} == {(401, "session_key_required")}


async def test_session_that_does_not_stay_has_a_cookie_without_an_age_also_when_it_is_renewed(
    rig: ApiRig, ada: Person
) -> None:
    browser = rig.client(None, Origin=rig.url)
    body = {"login": "ada", "password": PASSWORD, "stay_signed_in": False}

    done = await browser.post(LOGIN, json=body)
    browser.headers[KEY] = done.json()["session_key"]
    await rig.database.api.execute("UPDATE sessions SET expires_at = now() + interval '11 hours'")
    renewed = await browser.get(ME)

    for answered in (done, renewed):
        assert answered.status_code == 200, answered.text
        assert "Max-Age" not in answered.headers["set-cookie"]
        assert "Expires" not in answered.headers["set-cookie"]


@pytest.mark.parametrize("stays", ["yes", None, 1, "true"])
async def test_whether_to_stay_signed_in_is_true_or_false(rig: ApiRig, ada: Person, stays: object) -> None:
    refused = await rig.nobody.post(LOGIN, json={"login": "ada", "password": PASSWORD, "stay_signed_in": stays})

    assert (refused.status_code, refused.json()["fields"][0]["field"]) == (400, "stay_signed_in")


async def test_page_from_before_the_update_is_told_to_reload_when_it_logs_in(rig: ApiRig, ada: Person) -> None:
    body = {"login": "ada", "password": PASSWORD}
    page = {"Origin": rig.url, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}

    old = await rig.nobody.post(LOGIN, json=body, headers=page)
    new = await rig.nobody.post(LOGIN, json={**body, "stay_signed_in": True}, headers=page)

    assert (old.status_code, old.json()["code"]) == (409, "page_outdated")
    assert "set-cookie" not in old.headers
    assert new.status_code == 200


async def test_program_with_the_fetch_of_node_logs_in_without_saying_how_long(rig: ApiRig, ada: Person) -> None:
    sent = {"Sec-Fetch-Mode": "cors", "Accept-Language": "*", "User-Agent": "node"}

    done = await rig.nobody.post(LOGIN, json={"login": "ada", "password": PASSWORD}, headers=sent)

    assert done.status_code == 200


async def test_document_names_cookie_and_key_as_needed_together(rig: ApiRig) -> None:
    schemes = DOCUMENT["components"]["securitySchemes"]
    asked = DOCUMENT["paths"][ME]["get"]["security"]

    assert asked == [{"token": []}, {"session": [], "session_key": []}]
    assert (schemes["session_key"]["in"], schemes["session_key"]["name"]) == ("header", KEY)


async def test_listed_pages_may_send_the_key(rig: ApiRig) -> None:
    listed = "https://tools.example"
    async with open_door(rig, origins=Origins(allowed_origins=[listed])) as url:
        asked = {"Origin": listed, "Access-Control-Request-Method": "GET"}
        allowed = await rig.nobody.request("OPTIONS", url + ME, headers=asked)

    assert KEY.lower() in allowed.headers["access-control-allow-headers"].lower()
