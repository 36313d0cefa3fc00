"""Consent for MCP servers of a workspace: who sees them, who answers, and the requests to the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rookery.workspaces.agent_http import ChatHeaders
from tests.api.chat_rig import CHATS, text
from tests.api.test_workspaces import WORKSPACES, Site, open_site

DOCS: dict[str, Any] = {"name": "docs", "folder": "/p", "command": "npx", "args": ["docs-mcp"], "env": ["TOKEN"]}
TRICKY: dict[str, Any] = {**DOCS, "name": "tri\u202ecky", "command": "sh\u200b", "args": ["a\nb", "\x1b[2J"], "env": []}


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(database_url, tmp_path) as opened:
        await opened.rig.add_model()
        yield opened


async def workspace_with(site: Site, *entries: dict[str, Any]) -> str:
    """Create a running workspace whose files define these servers."""
    site.driver.name_servers(*entries)
    made: str = (await site.create())["workspace"]["id"]
    await site.until(made, "running")

    await hear(site, made)
    return made


async def hear(site: Site, workspace: str) -> None:
    """Read the context of the workspace, as a step does."""
    runtime = site.rig.replica.workspaces
    place = await runtime.directory.find(UUID(workspace))
    assert place is not None
    conn = runtime.directory.connect(place, ChatHeaders())
    await runtime.contexts.refresh(place.id, place.generation, conn, seconds=10)


async def servers(site: Site, workspace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await site.ada.http.get(f"{WORKSPACES}/{workspace}/mcp-servers")).json()["items"]
    return found


async def answer(site: Site, workspace: str, entry_hash: str, decision: str = "agree") -> dict[str, Any]:
    path = f"{WORKSPACES}/{workspace}/mcp-servers/{entry_hash}"
    done = await site.ada.http.put(path, json={"decision": decision})
    assert done.status_code == 200, done.text
    (first, *_) = done.json()["items"]
    found: dict[str, Any] = first
    return found


async def test_a_server_runs_after_its_owner_has_agreed_and_ends_when_that_is_withdrawn(site: Site) -> None:
    workspace = await workspace_with(site, DOCS)
    (asked,) = await servers(site, workspace)
    assert site.driver.ran == []

    agreed = await answer(site, workspace, asked["hash"])
    ran = list(site.driver.ran)
    withdrawn = await site.ada.http.delete(f"{WORKSPACES}/{workspace}/mcp-servers/{asked['hash']}")
    denied = await answer(site, workspace, asked["hash"], "deny")

    assert {key: asked[key] for key in ("name", "state", "command", "args", "env", "folder", "running", "tools")} == {
        "name": "docs",
        "state": "asked",
        "command": "npx",
        "args": ["docs-mcp"],
        "env": ["TOKEN"],
        "folder": "/p",
        "running": False,
        "tools": [],
    }
    assert (agreed["state"], agreed["running"], agreed["tools"]) == ("agreed", True, ["look"])
    assert agreed["decided_at"] is not None
    assert ran == [["docs"]]
    assert withdrawn.json()["items"][0]["state"] == "asked"
    assert site.driver.ran[-1] == []
    assert (denied["state"], denied["running"]) == ("denied", False)


async def test_a_changed_entry_is_asked_about_again_and_the_old_answer_does_not_start_it(site: Site) -> None:
    workspace = await workspace_with(site, DOCS)
    (asked,) = await servers(site, workspace)
    await answer(site, workspace, asked["hash"])

    for change in ({"command": "sh"}, {"args": ["evil"]}, {"env": ["TOKEN", "LD_PRELOAD"]}, {"folder": "/q"}):
        site.driver.name_servers({**DOCS, **change})
        await hear(site, workspace)
        (changed,) = await servers(site, workspace)

        assert (changed["state"], changed["running"], changed["decided_at"]) == ("changed", False, None)
        assert site.driver.ran[-1] != ["docs"] or len(site.driver.ran) == 1
        late = await site.ada.http.put(
            f"{WORKSPACES}/{workspace}/mcp-servers/{asked['hash']}", json={"decision": "agree"}
        )
        assert (late.status_code, late.json()["code"]) == (404, "not_found")

    site.driver.name_servers(DOCS)
    await hear(site, workspace)
    assert (await servers(site, workspace))[0]["running"], "what was agreed to stands while nobody has answered anew"


async def test_an_agent_that_forgot_is_told_again_and_one_that_runs_too_much_is_stopped(site: Site) -> None:
    workspace = await workspace_with(site, DOCS)
    (asked,) = await servers(site, workspace)
    await answer(site, workspace, asked["hash"])

    site.driver.name_servers(DOCS, {**DOCS, "name": "other"})
    await hear(site, workspace)

    assert site.driver.ran[-1] == ["docs"]
    assert [(each["name"], each["state"], each["running"]) for each in await servers(site, workspace)] == [
        ("docs", "agreed", True),
        ("other", "asked", False),
    ]
    for each in site.driver.context["resources"]:
        each["status"] = "ok"
    site.driver.context = {**site.driver.context, "version": site.driver.context["version"] + 1}
    await hear(site, workspace)
    assert site.driver.ran[-1] == ["docs"], "the list is the whole of what may run"


async def test_another_workspace_asks_for_itself(site: Site) -> None:
    first = await workspace_with(site, DOCS)
    (asked,) = await servers(site, first)
    await answer(site, first, asked["hash"])

    second = await workspace_with(site, DOCS)

    (again,) = await servers(site, second)
    assert (again["hash"], again["state"]) == (asked["hash"], "asked")


async def test_characters_that_could_hide_a_command_are_escaped(site: Site) -> None:
    workspace = await workspace_with(site, TRICKY)

    (shown,) = await servers(site, workspace)

    assert (shown["name"], shown["command"]) == ("tri\\u202ecky", "sh\\u200b")
    assert shown["args"] == ["a\\u000ab", "\\u001b[2J"]


async def test_only_the_owner_sees_and_answers(site: Site) -> None:
    workspace = await workspace_with(site, DOCS)
    (asked,) = await servers(site, workspace)
    stranger = await site.rig.add("eve")
    path = f"{WORKSPACES}/{workspace}/mcp-servers"

    for person, status in ((stranger, 404), (site.root, 403)):
        refused = [
            await person.http.get(path),
            await person.http.put(f"{path}/{asked['hash']}", json={"decision": "agree"}),
            await person.http.delete(f"{path}/{asked['hash']}"),
        ]
        assert [each.status_code for each in refused] == [status] * 3
    assert (await servers(site, workspace))[0]["state"] == "asked"
    assert site.driver.ran == []


@pytest.mark.parametrize(
    ("entry_hash", "body", "status"),
    [
        ("0" * 64, {"decision": "agree"}, 404),
        ("zz", {"decision": "agree"}, 404),
        ("0" * 64, {"decision": "maybe"}, 400),
        ("0" * 64, {}, 400),
        ("0" * 64, {"decision": "agree", "always": True}, 400),
    ],
)
async def test_bad_answers_are_refused(site: Site, entry_hash: str, body: dict[str, object], status: int) -> None:
    workspace = await workspace_with(site, DOCS)

    refused = await site.ada.http.put(f"{WORKSPACES}/{workspace}/mcp-servers/{entry_hash}", json=body)

    assert refused.status_code == status, refused.text


async def test_chats_in_the_workspace_are_told_of_news_and_answers_are_audited_without_commands(site: Site) -> None:
    workspace = await workspace_with(site, DOCS)
    made = await site.ada.http.post(CHATS, json={"content": text("hello"), "workspace_id": workspace})
    chat = made.json()["id"]

    async def version() -> int:
        return int(await site.rig.database.api.fetchval("SELECT context_servers FROM chats WHERE id = $1", UUID(chat)))

    before = await version()
    (asked,) = await servers(site, workspace)
    await answer(site, workspace, asked["hash"])

    assert await version() > before
    rows = await site.rig.database.api.fetch("SELECT action, extra::text FROM audit_log WHERE action LIKE '%.mcp_%'")
    assert [row["action"] for row in rows] == ["workspace.mcp_agree"]
    assert "npx" not in rows[0][1]


async def test_an_agent_that_does_not_say_what_it_runs_is_not_believed(site: Site) -> None:
    site.driver.context = {
        "version": 1,
        "hash": "h",
        "resources": [{"kind": "mcp_server", "source": "old", "tools": [{"name": "x"}]}],
    }
    made = (await site.create())["workspace"]["id"]
    await site.until(made, "running")
    await hear(site, made)

    assert await servers(site, made) == []
    stored = await site.rig.database.api.fetchval("SELECT resources->0->>'error' FROM workspace_context")
    assert "Restart the workspace" in stored
