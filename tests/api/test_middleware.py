from __future__ import annotations

import asyncio
import re

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from rookery.api.host_and_origin import Origins
from tests.api.api_rig import PASSWORD, ApiRig, Person
from tests.api.more_servers import credentials, log_in, open_door
from tests.eventually import until

ME = "/api/v1/users/me"
SESSIONS = "/api/v1/auth/sessions"
LOGIN = "/api/v1/auth/login"


async def test_version_is_returned_to_authenticated_users(rig: ApiRig, ada: Person) -> None:
    found = await ada.http.get("/api/v1/version")

    assert found.status_code == 200, found.text
    assert found.json()["api"] == 1


async def test_unauthenticated_request_is_refused_with_the_advice_to_log_in(rig: ApiRig) -> None:
    found = await rig.nobody.get("/api/v1/version")

    assert found.status_code == 401
    assert found.json()["code"] == "unauthenticated"
    assert found.json()["request_id"] == found.headers["x-request-id"]


async def test_document_describes_its_own_operation(rig: ApiRig, ada: Person) -> None:
    found = (await ada.http.get("/api/v1/openapi.json")).json()

    assert found["openapi"] == "3.1.0"
    assert found["paths"]["/api/v1/version"]["get"]["operationId"] == "server.version"


async def test_unknown_parameter_is_refused_by_name(rig: ApiRig, ada: Person) -> None:
    found = await ada.http.get("/api/v1/version", params={"verbose": "1"})

    assert found.status_code == 400
    assert found.json()["fields"] == [{"field": "verbose", "message": "There is no such parameter."}]


async def test_unauthenticated_request_to_an_unknown_path_is_refused_like_any_other(rig: ApiRig, ada: Person) -> None:
    stranger = await rig.nobody.get("/api/v1/no/such/path")
    known = await ada.http.get("/api/v1/no/such/path")
    outside = await rig.nobody.get("/no/such/path")
    wrong = await ada.http.put("/api/v1/version")

    assert (stranger.status_code, stranger.json()["code"]) == (401, "unauthenticated")
    assert [(each.status_code, each.json()["code"]) for each in (known, outside)] == [(404, "not_found")] * 2
    assert (wrong.status_code, wrong.json()["code"]) == (405, "not_allowed")


async def test_path_with_a_slash_too_many_leads_nowhere(ada: Person) -> None:
    """Behind a proxy that terminates TLS, a redirect would name http, and a client would send its token there."""
    found = [await ada.http.get("/api/v1/version/"), await ada.http.post("/api/v1/chats/", json={})]

    assert [(each.status_code, each.json()["code"]) for each in found] == [(404, "not_found")] * 2


async def test_request_id_of_the_client_is_taken_when_it_is_one(rig: ApiRig, ada: Person) -> None:
    given = ["build-7.a_b", "x" * 64, "x" * 65, "with space", "a/b", ""]

    found = [(await ada.http.get(ME, headers={"X-Request-Id": each})).headers["x-request-id"] for each in given]

    assert found[:2] == given[:2]
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in found[2:])
    assert len(set(found)) == len(found)


async def test_answers_are_not_kept_by_caches_or_guessed_at(rig: ApiRig, ada: Person) -> None:
    answered = [await ada.http.get(ME), await rig.nobody.get(ME), await rig.nobody.get("/no/such/path")]

    for each in answered:
        assert each.headers["cache-control"] == "no-store"
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["referrer-policy"] == "no-referrer"


async def test_head_is_a_get_without_a_body(rig: ApiRig, ada: Person) -> None:
    got, asked = await ada.http.get("/api/v1/version"), await ada.http.head("/api/v1/version")
    refused = await rig.nobody.head("/api/v1/version")
    missing = await ada.http.head(f"/api/v1/users/{'0' * 8}-0000-0000-0000-{'0' * 12}")

    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-length"] == str(len(got.content))
    assert [(each.status_code, each.content) for each in (refused, missing)] == [(401, b""), (404, b"")]


async def test_head_on_a_stream_opens_none(rig: ApiRig, ada: Person) -> None:
    asked = await asyncio.wait_for(ada.http.head("/api/v1/chats/watch"), 10)

    assert (asked.status_code, asked.content) == (200, b"")
    await until(lambda: len(rig.replica.streams.sessions) == 0)


async def test_name_that_is_not_ours_is_refused(rig: ApiRig, ada: Person) -> None:
    names = ["evil.example", "evil.example:7117", "127.0.0.1.evil.example", "localhost@evil.example", "10.0.0.1", ""]

    refused = [
        await ada.http.get(path, headers={"Host": name}) for name in names for path in ("/", "/api/v1/setup", ME)
    ]

    assert {(each.status_code, each.json()["code"]) for each in refused} == {(400, "invalid_host")}


async def test_names_that_are_ours_are_served(rig: ApiRig, ada: Person) -> None:
    origins = Origins(external_url="https://rookery.example", allowed_hosts=("Rookery.LAN",))
    names = ["localhost", "LOCALHOST:9", "[::1]:7117", "rookery.example", "rookery.lan:80"]

    async with open_door(rig, origins=origins) as url:
        found = [await ada.http.get(f"{url}{ME}", headers={"Host": name}) for name in names]

    assert [each.status_code for each in found] == [200] * len(names)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_load_balancers_ask_for_health_by_any_name(rig: ApiRig, path: str) -> None:
    response = await rig.nobody.get(path, headers={"Host": "10.1.2.3:7117"})

    # A replica on a busy machine may not be ready. It says so, and does not refuse the host.
    assert response.status_code in ({200, 503} if path == "/readyz" else {200})


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://127.0.0.1:1"},
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_cookie_does_nothing_for_another_page(rig: ApiRig, ada: Person, method: str) -> None:
    session = credentials(await log_in(rig, ada))

    refused = [
        await rig.nobody.request(method, path, headers={**headers, **session})
        for headers in FOREIGN
        for path in (SESSIONS, "/api/v1/no/such/path")
    ]

    assert {(each.status_code, each.json()["code"]) for each in refused} == {(403, "origin_rejected")}
    assert not any("set-cookie" in each.headers for each in refused)


async def test_cookie_works_for_our_own_pages(rig: ApiRig, ada: Person) -> None:
    session = credentials(await log_in(rig, ada))
    ours = [{"Origin": rig.url}, {"Sec-Fetch-Site": "same-origin"}]

    done = [await rig.nobody.delete(SESSIONS, headers={**each, **session}) for each in ours]
    read = await rig.nobody.get(ME, headers={**session, "Origin": "https://evil.example"})

    assert [each.status_code for each in done] == [204, 204]
    assert read.status_code == 200
    assert "access-control-allow-origin" not in read.headers


async def test_bearer_is_exempt_from_origins(rig: ApiRig, ada: Person) -> None:
    done = await ada.http.delete(SESSIONS, headers={"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"})

    assert done.status_code == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        # A page without `stay_signed_in` is older than the session key.
        ({"Sec-Fetch-Site": "same-origin"}, 409),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_programs_log_in_without_an_origin_and_other_pages_do_not(
    rig: ApiRig, ada: Person, headers: dict[str, str], status: int
) -> None:
    answered = await rig.nobody.post(LOGIN, json={"login": "ada", "password": PASSWORD}, headers=headers)

    assert answered.status_code == status
    assert ("set-cookie" in answered.headers) == (status == 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Origin": "https://evil.example"}, 403), ({}, 403), ({"Sec-Fetch-Site": "same-origin"}, 101)],
)
async def test_stream_with_a_cookie_needs_our_own_page(
    rig: ApiRig, ada: Person, headers: dict[str, str], status: int
) -> None:
    session = credentials(await log_in(rig, ada))
    url = f"{rig.url}/api/v1/chats/watch"

    async def upgrade() -> int:
        try:
            async with connect(url.replace("http", "ws", 1), additional_headers={**headers, **session}, proxy=None):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    async with rig.nobody.stream("GET", url, headers={**headers, **session}) as plain:
        assert plain.status_code == (200 if status == 101 else 403)
    assert await upgrade() == status


async def test_browser_on_a_listed_origin_reads_answers_with_a_token(rig: ApiRig, ada: Person) -> None:
    page = {"Origin": "https://tools.example"}
    ask = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}

    async with open_door(rig, origins=Origins(allowed_origins=("https://tools.example",))) as url:
        allowed = await rig.nobody.options(f"{url}/api/v1/tokens", headers=ask)
        read = await ada.http.get(f"{url}{ME}", headers=page)
        refused = await rig.nobody.get(f"{url}{ME}", headers=page)
        foreign = await rig.nobody.options(f"{url}/api/v1/tokens", headers={**ask, "Origin": "https://evil.example"})
        plain = await ada.http.get(f"{url}{ME}")
        rebound = await rig.nobody.options(f"{url}/api/v1/tokens", headers={**ask, "Host": "evil.example"})

    assert (allowed.status_code, allowed.content) == (204, b"")
    assert "Authorization" in allowed.headers["access-control-allow-headers"]
    assert "DELETE" in allowed.headers["access-control-allow-methods"]
    for each in (allowed, read, refused):
        assert each.headers["access-control-allow-origin"] == "https://tools.example"
        assert "access-control-allow-credentials" not in each.headers
    for each in (foreign, plain, rebound):
        assert "access-control-allow-origin" not in each.headers
    assert (foreign.status_code, plain.headers["vary"], rebound.status_code) == (401, "Origin", 400)


async def test_no_origin_is_allowed_when_none_is_listed(rig: ApiRig, ada: Person) -> None:
    ask = {"Origin": rig.url, "Access-Control-Request-Method": "POST"}

    asked = await rig.nobody.options("/api/v1/tokens", headers=ask)
    read = await ada.http.get(ME, headers={"Origin": rig.url})

    assert asked.status_code == 401
    assert not any(name.startswith("access-control") for each in (asked, read) for name in each.headers)


async def test_bug_shows_nothing_but_the_request_id(rig: ApiRig, ada: Person) -> None:
    await rig.database.api.execute("ALTER TABLE sessions RENAME COLUMN user_agent TO agent")

    broken = await ada.http.get(SESSIONS)

    assert broken.status_code == 500
    assert broken.json() == {
        "code": "internal",
        "message": "Something went wrong on the server. The server log has the details under the request id.",
        "request_id": broken.headers["x-request-id"],
    }


async def test_bug_before_any_router_is_answered_alike(rig: ApiRig, ada: Person) -> None:
    await rig.database.api.execute("ALTER TABLE api_tokens RENAME COLUMN scopes TO rights")

    broken = await ada.http.get(ME)

    assert (broken.status_code, set(broken.json())) == (500, {"code", "message", "request_id"})


async def test_database_that_is_away_is_said_to_be(rig: ApiRig, ada: Person) -> None:
    await rig.database.api.execute("ALTER TABLE users RENAME TO people")
    broken = await rig.nobody.get("/api/v1/setup")
    await rig.database.api.execute("ALTER TABLE people RENAME TO users")
    await rig.database.api.close()

    away = await ada.http.get(ME)

    assert broken.status_code == 500
    assert (away.status_code, away.json()["code"], away.headers["retry-after"]) == (503, "unavailable", "1")


STRICT = "strict-transport-security"


async def test_browsers_are_told_to_stay_with_https(rig: ApiRig) -> None:
    """For the page and the API, for responses and refusals. Not over http, and not for loopback names."""
    secure = Origins(external_url="https://rook.example", allowed_hosts=["rook.example"])
    async with open_door(rig, origins=secure) as url:
        door = rig.client(None)
        for path in ("/", ME, "/healthz"):
            found = await door.get(f"{url}{path}", headers={"Host": "rook.example"})
            assert found.headers[STRICT] == "max-age=31536000", path
        loopback = await door.get(f"{url}/healthz", headers={"Host": "localhost"})
    plain = Origins(external_url="http://rook.example")
    async with open_door(rig, origins=plain) as url:
        over_http = await rig.client(None).get(f"{url}/healthz", headers={"Host": "rook.example"})

    assert STRICT not in loopback.headers
    assert STRICT not in over_http.headers
