"""MCP servers over HTTP: administrators, users' own, bad input, choice of a chat, and the login in the browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from rookery.api.middleware import ApiMiddleware
from rookery.domain.access.rights import Role
from rookery.testing.fake_authorization import FakeAuthorization
from tests.api.api_rig import ApiRig, Person

SERVERS = "/api/v1/mcp-servers"
OWN = "/api/v1/me/mcp-servers"
URL = "https://mcp.example.org/mcp"


@pytest.fixture
async def chief(rig: ApiRig) -> Person:
    return await rig.add("chief", role=Role.ADMIN)


@pytest.fixture
async def fake() -> AsyncIterator[FakeAuthorization]:
    async with FakeAuthorization().listening() as fake:
        yield fake


async def add(person: Person, *, path: str = SERVERS, **fields: Any) -> dict[str, Any]:
    made = await person.http.post(path, json={"slug": "docs", "url": URL, **fields})
    assert made.status_code == 201, made.text
    assert made.headers["location"] == f"{SERVERS}/{made.json()['id']}"
    found: dict[str, Any] = made.json()
    return found


async def test_member_sees_the_server_and_not_its_configuration(chief: Person, ada: Person) -> None:
    made = await add(
        chief, auth_type="api_key", api_key_header="X-Key", api_key="key-secret", availability="default_on"
    )

    seen = (await ada.http.get(f"{SERVERS}/{made['id']}")).json()

    assert (made["url"], made["api_key"]) == (URL, {"name": "X-Key", "has_value": True})
    assert (seen["slug"], seen["availability"], seen["is_editable"], seen["connected"]) == (
        "docs",
        "default_on",
        False,
        True,
    )
    assert seen["url"] is None
    assert seen["api_key"] is None
    for person in (chief, ada):
        assert "key-secret" not in (await person.http.get(SERVERS)).text
    assert "key-secret" not in (await chief.http.get("/api/v1/audit")).text


async def test_own_server_is_for_its_owner_alone(chief: Person, ada: Person, ben: Person) -> None:
    made = await add(ada, path=OWN)

    assert [each["id"] for each in (await ada.http.get(SERVERS)).json()["items"]] == [made["id"]]
    for person in (ben, chief):
        assert (await person.http.get(SERVERS)).json()["items"] == []
        assert (await person.http.get(f"{SERVERS}/{made['id']}")).status_code == 404
        assert (await person.http.patch(f"{OWN}/{made['id']}", json={"enabled": False})).status_code == 404
        assert (await person.http.delete(f"{OWN}/{made['id']}")).status_code == 404
    assert (await chief.http.patch(f"{SERVERS}/{made['id']}", json={"enabled": False})).status_code == 404
    assert (await ada.http.patch(f"{OWN}/{made['id']}", json={"enabled": False})).json()["enabled"] is False
    assert (await ada.http.delete(f"{OWN}/{made['id']}")).status_code == 204


async def test_own_servers_can_be_disabled(chief: Person, ada: Person) -> None:
    await chief.http.put("/api/v1/settings/mcp", json={"allow_user_servers": False})

    refused = await ada.http.post(OWN, json={"slug": "docs", "url": URL})

    assert (refused.status_code, refused.json()["code"]) == (403, "disabled")


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("slug", {"slug": "A"}),
        ("url", {"url": "https://user:pw@mcp.example.org/"}),
        ("url", {"url": "https://mcp.example.org/?token=abc"}),
        ("url", {"url": "file:///etc/passwd"}),
        ("headers.X-A", {"auth_type": "custom_headers", "headers": {"X-A": "a\r\nX-B: c"}}),
        ("headers", {"auth_type": "custom_headers"}),
        ("api_key", {"auth_type": "api_key", "api_key_header": "X"}),
        ("oauth_token_url", {"auth_type": "oauth2", "oauth_client_id": "c", "oauth_authorization_url": URL}),
        ("call_timeout_seconds", {"call_timeout_seconds": 1801}),
        ("transport", {"transport": "stdio"}),
        ("color", {"color": "red"}),
    ],
)
async def test_bad_field_is_named_and_nothing_is_stored(chief: Person, field: str, body: dict[str, Any]) -> None:
    refused = await chief.http.post(SERVERS, json={"slug": "docs", "url": URL, **body})

    assert refused.status_code == 400, refused.text
    assert field in [each["field"] for each in refused.json()["fields"]]
    assert (await chief.http.get(SERVERS)).json()["items"] == []


async def test_slug_is_taken_once(chief: Person, ada: Person) -> None:
    own = await add(ada, path=OWN)
    await add(chief)

    for person, path in ((chief, SERVERS), (ada, OWN)):
        refused = await person.http.post(path, json={"slug": "docs", "url": URL})
        assert (refused.status_code, refused.json()["code"]) == (409, "already_exists")
    assert (await ada.http.get(f"{SERVERS}/{own['id']}")).json()["slug"] == "docs-2"


async def test_chat_takes_only_servers_of_its_owner(chief: Person, ada: Person, ben: Person, rig: ApiRig) -> None:
    await rig.add_model()
    forced = (await add(chief, slug="forced", availability="force_on"))["id"]
    default = (await add(chief, slug="default", availability="default_on"))["id"]
    plain = (await add(chief, slug="plain"))["id"]
    foreign = (await add(ben, path=OWN, slug="foreign"))["id"]
    content = [{"type": "text", "text": "hi"}]

    made = (await ada.http.post("/api/v1/chats", json={"content": content})).json()
    assert made["mcp_server_ids"] == [default, forced]
    chosen = await ada.http.post("/api/v1/chats", json={"content": content, "mcp_server_ids": [plain, plain]})
    assert chosen.json()["mcp_server_ids"] == [plain, forced]
    for refused in (
        await ada.http.post("/api/v1/chats", json={"content": content, "mcp_server_ids": [foreign]}),
        await ada.http.patch(f"/api/v1/chats/{made['id']}", json={"mcp_server_ids": [foreign]}),
        await ada.http.post(
            f"/api/v1/chats/{made['id']}/messages", json={"content": content, "mcp_server_ids": [foreign]}
        ),
    ):
        assert refused.status_code == 400
        assert foreign in refused.json()["fields"][0]["message"]
    changed = await ada.http.patch(f"/api/v1/chats/{made['id']}", json={"mcp_server_ids": []})
    assert changed.json()["mcp_server_ids"] == [forced]
    await chief.http.delete(f"{SERVERS}/{forced}")
    assert (await ada.http.get(f"/api/v1/chats/{made['id']}")).json()["mcp_server_ids"] == []


async def test_catalog_lists_well_known_servers(ada: Person) -> None:
    items = (await ada.http.get(f"{SERVERS}/catalog")).json()["items"]

    assert {"slug": "linear", "auth_type": "oauth2"}.items() <= next(
        each for each in items if each["slug"] == "linear"
    ).items()


async def test_failed_test_says_why_in_words(chief: Person) -> None:
    made = await add(chief, url="http://127.0.0.1:9/mcp")

    tested = (await chief.http.post(f"{SERVERS}/{made['id']}/test")).json()

    assert tested["ok"] is False
    assert "private network" in tested["error"]["message"]


async def test_user_connects_in_the_browser_and_disconnects(
    rig: ApiRig, chief: Person, ada: Person, fake: FakeAuthorization
) -> None:
    await chief.http.put("/api/v1/settings/mcp", json={"allow_private_addresses": True})
    server = f"{SERVERS}/{(await add(chief, url=fake.resource, auth_type='oauth2'))['id']}"
    assert (await ada.http.get(server)).json()["login"]["state"] == "none"

    begun = await ada.http.post(f"{server}/oauth/connect")
    assert begun.status_code == 200, begun.text
    assert "HttpOnly" in begun.headers["set-cookie"]
    assert "SameSite=Lax" in begun.headers["set-cookie"]
    answer = fake.approve(begun.json()["authorization_url"])
    cookie = begun.headers["set-cookie"].split(";")[0]
    page = {"Accept": "text/html"}
    # Another browser, without the cookie, cannot finish the login.
    stolen = await rig.nobody.get(f"{server}/oauth/callback", params=answer, headers=page)
    assert stolen.status_code == 400
    assert "Not connected" in stolen.text
    finished = await rig.nobody.get(
        f"{server}/oauth/callback", params={**answer, "session_state": "x"}, headers={**page, "Cookie": cookie}
    )
    assert finished.status_code == 200, finished.text
    assert "script-src 'nonce-" in finished.headers["content-security-policy"]
    assert "Max-Age=0" in finished.headers["set-cookie"]

    seen = (await ada.http.get(server)).json()
    assert (seen["connected"], seen["login"]["state"]) == (True, "connected")
    assert (await chief.http.get(server)).json()["login"]["state"] == "none"
    ended = await ada.http.delete(f"{server}/oauth")
    assert ended.json() == {"revoked": True, "error": None}
    assert (await ada.http.get(server)).json()["login"]["state"] == "none"
    log = (await chief.http.get("/api/v1/audit", params={"action": "mcp_login"})).json()["items"]
    assert [each["action"] for each in log] == ["mcp_login.disconnect", "mcp_login.connect"]


async def test_denied_login_is_shown_as_text(rig: ApiRig, chief: Person, ada: Person, fake: FakeAuthorization) -> None:
    await chief.http.put("/api/v1/settings/mcp", json={"allow_private_addresses": True})
    server = f"{SERVERS}/{(await add(chief, url=fake.resource, auth_type='oauth2'))['id']}"
    begun = await ada.http.post(f"{server}/oauth/connect")
    answer = {**fake.deny(begun.json()["authorization_url"]), "error_description": "</script><b>no</b>"}

    page = await rig.nobody.get(
        f"{server}/oauth/callback",
        params=answer,
        headers={"Accept": "text/html", "Cookie": begun.headers["set-cookie"].split(";")[0]},
    )

    assert page.status_code == 502
    assert "<b>no" not in page.text
    assert page.text.count("</script>") == 1


@pytest.mark.parametrize(
    "change",
    [{"enabled": False}, {"forward_identity": True}, {"transport": "sse"}],
    ids=lambda change: next(iter(change)),
)
async def test_server_that_changed_during_a_login_ends_it(
    rig: ApiRig, chief: Person, ada: Person, fake: FakeAuthorization, change: dict[str, Any]
) -> None:
    await chief.http.put("/api/v1/settings/mcp", json={"allow_private_addresses": True})
    server = f"{SERVERS}/{(await add(chief, url=fake.resource, auth_type='oauth2'))['id']}"
    begun = await ada.http.post(f"{server}/oauth/connect")
    answer = fake.approve(begun.json()["authorization_url"])
    cookie = {"Cookie": begun.headers["set-cookie"].split(";")[0]}
    assert (await chief.http.patch(server, json=change)).status_code == 200

    refused = await rig.nobody.get(f"{server}/oauth/callback", params=answer, headers=cookie)
    again = await rig.nobody.get(f"{server}/oauth/callback", params=answer, headers={**cookie, "Accept": "text/html"})

    assert (refused.status_code, refused.json()["code"]) == (409, "version_mismatch")
    assert "Max-Age=0" in refused.headers["set-cookie"]
    assert again.status_code == 400, "a state is good once"
    assert (await chief.http.get(server)).json()["login"]["state"] == "none"
    assert await rig.database.api.fetchval("SELECT count(*) FROM mcp_oauth_tokens") == 0


async def test_login_needs_a_key_ring_before_anybody_is_sent_away(
    rig: ApiRig, chief: Person, ada: Person, fake: FakeAuthorization
) -> None:
    await chief.http.put("/api/v1/settings/mcp", json={"allow_private_addresses": True})
    server = f"{SERVERS}/{(await add(chief, url=fake.resource, auth_type='oauth2'))['id']}"
    application = rig.replica.application
    assert isinstance(application, ApiMiddleware)
    logins = application.services.mcp.logins
    kept, logins._ring = logins._ring, None

    try:
        refused = await ada.http.post(f"{server}/oauth/connect")
    finally:
        logins._ring = kept

    assert (refused.status_code, refused.json()["code"]) == (412, "keys_missing")
    assert "set-cookie" not in refused.headers
    assert await rig.database.api.fetchval("SELECT count(*) FROM mcp_oauth_flows") == 0


async def test_login_needs_a_server_with_oauth(chief: Person, ada: Person) -> None:
    server = f"{SERVERS}/{(await add(chief))['id']}"

    refused = await ada.http.post(f"{server}/oauth/connect")

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")


async def test_unreachable_authorization_server_is_reported(chief: Person, ada: Person) -> None:
    server = f"{SERVERS}/{(await add(chief, url='http://127.0.0.1:9/mcp', auth_type='oauth2'))['id']}"

    refused = await ada.http.post(f"{server}/oauth/connect")

    assert (refused.status_code, refused.json()["code"]) == (502, "upstream_failed")
    assert "private network" in refused.json()["message"]


async def test_client_document_names_its_own_address_and_callback(rig: ApiRig, chief: Person) -> None:
    server = f"{SERVERS}/{(await add(chief, auth_type='oauth2'))['id']}"

    found: httpx2.Response = await rig.nobody.get(f"{server}/oauth/client-metadata")

    document = found.json()
    base = document["client_id"].removesuffix("/client-metadata")
    assert base.endswith(f"{server}/oauth")
    assert document["redirect_uris"] == [f"{base}/callback"]
    assert document["token_endpoint_auth_method"] == "none"
