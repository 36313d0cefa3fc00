"""MCP servers with an address that a project names: consent, secrets, logins, and hostile entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rookery.store.mcp import project_servers
from rookery.testing.fake_authorization import FakeAuthorization
from rookery.testing.fake_mcp import FakeMcp, answer_with
from tests.api.test_workspace_mcp_servers import answer, hear, servers, workspace_with
from tests.api.test_workspaces import WORKSPACES, Site, open_site
from tests.eventually import until

SERVERS = "/api/v1/mcp-servers"
OWN = "/api/v1/me/mcp-servers"
SECRET = "Bearer s3cret"


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(database_url, tmp_path) as opened:
        await opened.rig.add_model()
        await allow_private(opened)
        yield opened


async def allow_private(site: Site, *, allowed: bool = True) -> None:
    put = await site.root.http.put("/api/v1/settings/mcp", json={"allow_private_addresses": allowed})
    assert put.status_code == 200, put.text


def entry(url: str, **fields: Any) -> dict[str, Any]:
    return {"name": "docs", "folder": "/p", "url": url, "type": "auto", "headers": [], "env": [], **fields}


async def stored(site: Site, workspace: str) -> list[Any]:
    async with site.rig.database.api.acquire() as conn:
        return list(await project_servers.list_of_workspace(conn, UUID(workspace)))


async def listed(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await site.ada.http.get(SERVERS)).json()["items"]
    return found


async def everything_stored(site: Site) -> str:
    """Return all that the database has, as text."""
    tables = await site.rig.database.api.fetch(
        "SELECT quote_ident(tablename) AS name FROM pg_tables WHERE schemaname = 'public'"
    )
    texts = [
        await site.rig.database.api.fetchval(f"SELECT string_agg(t::text, ' ') FROM {table['name']} t")
        for table in tables
    ]
    return " ".join(filter(None, texts))


async def test_nothing_is_sent_before_consent_and_headers_come_with_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeMcp()
    fake.tool("look")
    async with fake.listening() as url:
        site.driver.headers["docs"] = {"Authorization": SECRET}
        workspace = await workspace_with(site, entry(url, headers=["Authorization"], env=["TOKEN"]))
        (asked,) = await servers(site, workspace)
        before = (list(fake.requests), list(site.driver.asked_headers), await stored(site, workspace))

        agreed = await answer(site, workspace, asked["hash"])

        assert before == ([], [], [])
        assert {key: asked[key] for key in ("state", "url", "type", "headers", "env", "command", "running")} == {
            "state": "asked",
            "url": url,
            "type": "auto",
            "headers": ["Authorization"],
            "env": ["TOKEN"],
            "command": None,
            "running": False,
        }
        assert (agreed["state"], agreed["running"], agreed["tools"], agreed["error"]) == (
            "agreed",
            True,
            ["look"],
            None,
        )
        assert {each.headers.get("authorization") for each in fake.requests} == {SECRET}
        assert agreed["login"] is None
        (one,) = await listed(site)
        assert (one["id"], one["workspace_id"], one["is_own"], one["is_editable"]) == (
            agreed["server"],
            workspace,
            True,
            False,
        )
        assert one["headers"] == [{"name": "Authorization", "has_value": True}]
        assert "s3cret" not in await everything_stored(site)
        assert "s3cret" not in caplog.text
        assert "s3cret" not in str(await servers(site, workspace))


async def test_withdrawn_server_is_gone_and_denied_one_is_never_asked(site: Site) -> None:
    fake = FakeMcp()
    fake.tool("look")
    async with fake.listening() as url:
        workspace = await workspace_with(site, entry(url))
        (asked,) = await servers(site, workspace)
        agreed = await answer(site, workspace, asked["hash"])
        asked_until_then = len(fake.requests)

        withdrawn = await site.ada.http.delete(f"{WORKSPACES}/{workspace}/mcp-servers/{asked['hash']}")
        denied = await answer(site, workspace, asked["hash"], "deny")

        assert withdrawn.json()["items"][0]["state"] == "asked"
        assert (denied["state"], denied["running"], denied["server"]) == ("denied", False, None)
        assert (await site.ada.http.get(f"{SERVERS}/{agreed['server']}")).status_code == 404
        assert await listed(site) == []
        assert len(fake.requests) == asked_until_then


async def test_changed_entry_is_not_dialed_and_the_old_server_ends_with_the_new_answer(site: Site) -> None:
    good, evil = FakeMcp(), FakeMcp()
    for fake in (good, evil):
        fake.tool("look")
    async with good.listening() as url, evil.listening() as other:
        site.driver.headers["docs"] = {"Authorization": SECRET}
        first = entry(url, headers=["Authorization"])
        workspace = await workspace_with(site, first)
        (asked,) = await servers(site, workspace)
        before = await answer(site, workspace, asked["hash"])

        for change in (
            {"url": other},
            {"headers": ["Authorization", "X-More"]},
            {"type": "sse"},
            {"env": ["HOME"]},
            {"folder": "/q"},
        ):
            site.driver.name_servers({**first, **change})
            await hear(site, workspace)
            (changed,) = await servers(site, workspace)
            assert (changed["state"], changed["running"], changed["server"]) == ("changed", False, None)
            assert await listed(site) == [], "the former entry is not used either"
        assert evil.requests == []

        site.driver.name_servers(first)
        await hear(site, workspace)
        (again,) = await servers(site, workspace)
        assert (again["running"], again["server"]) == (True, before["server"]), "the answer about it still stands"

        site.driver.name_servers({**first, "url": other})
        await hear(site, workspace)
        (changed,) = await servers(site, workspace)
        after = await answer(site, workspace, changed["hash"])
        assert after["server"] != before["server"]
        assert [each.url for each in await stored(site, workspace)] == [other]


async def test_new_values_of_headers_are_used_without_a_new_question(site: Site) -> None:
    fake = FakeMcp()
    fake.tool("look")
    async with fake.listening() as url:
        site.driver.headers["docs"] = {"Authorization": SECRET}
        workspace = await workspace_with(site, entry(url, headers=["Authorization"]))
        (asked,) = await servers(site, workspace)
        agreed = await answer(site, workspace, asked["hash"])
        fetched = len(site.driver.asked_headers)
        await hear(site, workspace)
        assert len(site.driver.asked_headers) == fetched, "values that are known are not fetched again"

        site.driver.change_headers("docs", Authorization="Bearer new")
        await hear(site, workspace)
        tested = await site.ada.http.post(f"{OWN}/{agreed['server']}/test")

        assert tested.json()["ok"] is True
        assert fake.requests[-1].headers["authorization"] == "Bearer new"


async def test_server_that_wants_a_login_gets_that_of_its_owner(site: Site) -> None:
    async with FakeAuthorization().listening() as authorization:
        workspace = await workspace_with(site, entry(authorization.resource))
        (asked,) = await servers(site, workspace)

        agreed = await answer(site, workspace, asked["hash"])
        begun = await site.ada.http.post(f"{SERVERS}/{agreed['server']}/oauth/connect")
        assert begun.status_code == 200, begun.text
        finished = await site.rig.nobody.get(
            f"{SERVERS}/{agreed['server']}/oauth/callback",
            params=authorization.approve(begun.json()["authorization_url"]),
            headers={"Accept": "text/html", "Cookie": begun.headers["set-cookie"].split(";")[0]},
        )
        (connected,) = await servers(site, workspace)
        stranger = await site.rig.add("eve")

        assert (agreed["login"], agreed["running"]) == ("none", True)
        assert finished.status_code == 200, finished.text
        assert connected["login"] == "connected"
        for person in (stranger, site.root):
            refused = await person.http.post(f"{SERVERS}/{agreed['server']}/oauth/connect")
            assert refused.status_code == 404
        assert (await listed(site))[0]["login"]["state"] == "connected"


async def test_only_the_owner_sees_and_tests_it_and_only_the_file_changes_it(site: Site) -> None:
    fake = FakeMcp()
    fake.tool("look")
    async with fake.listening() as url:
        workspace = await workspace_with(site, entry(url))
        (asked,) = await servers(site, workspace)
        server = (await answer(site, workspace, asked["hash"]))["server"]
        stranger = await site.rig.add("eve")

        for person in (stranger, site.root):
            assert (await person.http.get(f"{SERVERS}/{server}")).status_code == 404
            assert (await person.http.get(f"{SERVERS}/{server}/tools")).status_code == 404
            assert (await person.http.post(f"{OWN}/{server}/test")).status_code == 404
            assert (await person.http.get(SERVERS)).json()["items"] == []
        assert (await site.root.http.post(f"{SERVERS}/{server}/test")).status_code == 404
        for person in (site.ada, site.root):
            for path in (OWN, SERVERS):
                refused = [
                    await person.http.patch(f"{path}/{server}", json={"url": "https://evil.example/mcp"}),
                    await person.http.delete(f"{path}/{server}"),
                ]
                assert {each.status_code for each in refused} <= {403, 404}
        assert (await site.ada.http.post(f"{OWN}/{server}/test")).json()["ok"] is True
        tools = (await site.ada.http.get(f"{SERVERS}/{server}/tools")).json()["items"]
        assert [each["name"] for each in tools] == ["look"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://user:hidden@docs.example/mcp", "user name or password"),
        ("https://docs.example/mcp?api_key=hidden", "secret in its query"),
        ("file:///etc/hidden", "http or https"),
        ("https:///hidden", "http or https"),
        ("https://docs.example/mcp#hidden", "fragment"),
    ],
)
async def test_address_that_must_not_be_shown_is_refused_and_not_stored(site: Site, url: str, words: str) -> None:
    workspace = await workspace_with(site, entry(url))

    assert await servers(site, workspace) == []
    error = await site.rig.database.api.fetchval("SELECT resources->0->>'error' FROM workspace_context")
    assert words in error
    assert "hidden" not in await everything_stored(site)


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Mcp-Session-Id", "X-Rookery-Owner-Id", "Cookie"])
async def test_headers_that_the_client_sets_itself_are_refused(site: Site, name: str) -> None:
    workspace = await workspace_with(site, entry("https://docs.example/mcp", headers=[name]))

    assert await servers(site, workspace) == []
    error = await site.rig.database.api.fetchval("SELECT resources->0->>'error' FROM workspace_context")
    assert f"The header {name} is set by the client itself." in error


@pytest.mark.parametrize("host", ["127.0.0.1:9", "169.254.169.254", "10.0.0.1", "[::1]:9", "0.0.0.0:9", "[fd00::1]"])
async def test_private_address_is_refused_where_it_is_dialed(site: Site, host: str) -> None:
    await allow_private(site, allowed=False)
    workspace = await workspace_with(site, entry(f"http://{host}/mcp"))
    (asked,) = await servers(site, workspace)

    agreed = await answer(site, workspace, asked["hash"])
    tested = (await site.ada.http.post(f"{OWN}/{agreed['server']}/test")).json()

    assert agreed["tools"] == []
    assert (tested["ok"], tested["error"]["kind"]) == (False, "blocked"), tested


async def test_redirect_to_another_place_is_not_followed_and_headers_stay(site: Site) -> None:
    fake, inner = FakeMcp(), FakeMcp()
    inner.tool("look")
    async with fake.listening() as url, inner.listening() as target:
        away = answer_with(b"", status=307, headers=[("location", target)])
        fake.behaviors |= {"server/discover": away, "initialize": away}
        site.driver.headers["docs"] = {"Authorization": SECRET}
        workspace = await workspace_with(site, entry(url, headers=["Authorization"]))
        (asked,) = await servers(site, workspace)

        agreed = await answer(site, workspace, asked["hash"])
        tested = (await site.ada.http.post(f"{OWN}/{agreed['server']}/test")).json()

        assert tested["error"]["kind"] == "redirected"
        assert inner.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "a\r\nX-Evil: hidden"},
        {"Authorization": "a", "X-Evil": "hidden"},
        {"X-Evil": "hidden"},
        {},
        {"Authorization": ""},
    ],
)
async def test_agent_that_lies_about_headers_is_not_believed(
    site: Site, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Programs in the workspace could replace the agent."""
    fake = FakeMcp()
    async with fake.listening() as url:
        site.driver.headers["docs"] = headers
        workspace = await workspace_with(site, entry(url, headers=["Authorization"]))
        (asked,) = await servers(site, workspace)

        agreed = await answer(site, workspace, asked["hash"])

        assert (agreed["state"], agreed["running"], agreed["server"]) == ("agreed", False, None)
        assert agreed["error"] is not None
        assert fake.requests == []
        assert "hidden" not in caplog.text


async def test_characters_that_could_hide_an_address_are_escaped(site: Site) -> None:
    workspace = await workspace_with(site, entry("https://docs.example/mcp", name="do\u202ecs", headers=["X-A"]))

    (shown,) = await servers(site, workspace)

    assert (shown["name"], shown["url"]) == ("do\\u202ecs", "https://docs.example/mcp")


async def test_administrators_can_forbid_servers_of_projects(site: Site) -> None:
    fake = FakeMcp()
    async with fake.listening() as url:
        await site.root.http.put(
            "/api/v1/settings/mcp", json={"allow_private_addresses": True, "allow_user_servers": False}
        )
        workspace = await workspace_with(site, entry(url))
        (asked,) = await servers(site, workspace)

        agreed = await answer(site, workspace, asked["hash"])

        assert (agreed["running"], agreed["error"]) == (
            False,
            "An administrator has disabled MCP servers of users and projects.",
        )
        assert fake.requests == []


async def test_server_ends_with_its_workspace(site: Site) -> None:
    fake = FakeMcp()
    fake.tool("look")
    async with fake.listening() as url:
        site.driver.headers["docs"] = {"Authorization": SECRET}
        workspace = await workspace_with(site, entry(url, headers=["Authorization"]))
        (asked,) = await servers(site, workspace)
        await answer(site, workspace, asked["hash"])

        assert (await site.ada.http.delete(f"{WORKSPACES}/{workspace}")).status_code in (200, 202)

        async def is_gone() -> bool:
            return await stored(site, workspace) == []

        await until(is_gone)
        assert await listed(site) == []


async def test_stopped_workspace_keeps_its_servers_and_prepares_new_ones_later(site: Site) -> None:
    fake = FakeMcp()
    fake.tool("look")
    async with fake.listening() as url:
        workspace = await workspace_with(site, entry(url), entry(url, name="later"))
        first, later = await servers(site, workspace)
        await answer(site, workspace, first["hash"])
        await site.ada.http.post(f"{WORKSPACES}/{workspace}/stop")
        await site.until(workspace, "stopped")

        path = f"{WORKSPACES}/{workspace}/mcp-servers/{later['hash']}"
        assert (await site.ada.http.put(path, json={"decision": "agree"})).status_code == 200
        stopped = await servers(site, workspace)
        started = await site.ada.http.post(f"{WORKSPACES}/{workspace}/start", json={})
        assert started.status_code < 300, started.text
        await site.until(workspace, "running")
        await hear(site, workspace)

        assert [(each["state"], each["running"], each["error"]) for each in stopped] == [
            ("agreed", True, None),
            ("agreed", False, None),
        ]
        assert [each["running"] for each in await servers(site, workspace)] == [True, True]
