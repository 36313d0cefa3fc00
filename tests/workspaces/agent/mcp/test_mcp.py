"""MCP servers of a workspace through a real agent: their descriptions and the results of calls."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rookery.workspaces.agent.mcp import config as mcp_config
from rookery.workspaces.agent.mcp.config import BadConfig, ServerConfig
from tests.eventually import until
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import Answer, Rig

SERVER = Path(__file__).with_name("fake_server.py")


def write_config(rig: Rig, **servers: Mapping[str, Any]) -> None:
    (rig.directory / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


def program(**env: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(SERVER)], "env": env}


async def told(rig: Rig, *, after: int = 0) -> dict[str, Any]:
    """Return the context's description of each server, once there is one."""
    found = await rig.get(f"/v1/context?after={after}&wait_s=50")
    return {each["source"]: each for each in found["resources"] if each["kind"] == "mcp_server"}


async def agree(rig: Rig, *entries: object, wait_s: float = 30) -> Answer:
    return await rig.ask("POST", "/v1/mcp/servers", json={"servers": list(entries), "wait_s": wait_s})


async def agree_to_all(rig: Rig) -> dict[str, Any]:
    """Agree to all servers that files configure, and return the context's description of each."""
    await agree(rig, *(each["entry"] for each in (await told(rig)).values() if "entry" in each))
    return await told(rig)


async def call(rig: Rig, server: object, tool: object, arguments: object = None, **given: Any) -> Answer:
    entry = next((each.get("entry") for name, each in (await told(rig)).items() if name == server), None)
    body = {"server": server, "tool": tool, "arguments": {} if arguments is None else arguments, "entry": entry}
    return await rig.ask("POST", "/v1/mcp/call", json=body, **given)


def mark(rig: Rig, name: str = "started") -> dict[str, Any]:
    """Return a program that creates a file when it is run."""
    return {"command": "/bin/sh", "args": ["-c", f"touch {name}"]}


async def test_nothing_is_started_before_this_very_entry_was_agreed_to() -> None:
    async with rigs.rig() as rig:
        write_config(rig, calc=program(SECRET="x"), mark=mark(rig))
        await rig.start()
        servers = await told(rig)

        assert {each["status"] for each in servers.values()} == {"pending"}
        assert servers["calc"]["entry"] == {
            "name": "calc",
            "folder": str(rig.directory),
            "command": sys.executable,
            "args": ["-I", str(SERVER)],
            "env": ["SECRET"],
        }
        entry = servers["mark"]["entry"]
        for other in (
            {**entry, "command": "/bin/bash"},
            {**entry, "args": [*entry["args"], "x"]},
            {**entry, "env": ["LD_PRELOAD"]},
            {**entry, "folder": "/"},
            {**entry, "more": 1},
        ):
            assert (await agree(rig, other)).json == {"running": []}
            refused = await rig.ask(
                "POST", "/v1/mcp/call", json={"server": "mark", "tool": "x", "arguments": {}, "entry": other}
            )
            assert (refused.status, refused.json["code"]) == (409, "not_agreed")
        assert (await agree(rig, servers["calc"]["entry"])).json == {"running": ["calc"]}
        assert {name: each["status"] for name, each in (await told(rig)).items()} == {"calc": "ok", "mark": "pending"}
        assert not (rig.directory / "started").exists()

        assert (await agree(rig)).json == {"running": []}
        assert (await told(rig))["calc"]["status"] == "pending"


async def test_a_changed_entry_ends_the_server_and_waits_for_its_owner_again() -> None:
    async with rigs.rig() as rig:
        write_config(rig, calc=program())
        await rig.start()
        await agree_to_all(rig)
        before = (await rig.get("/v1/context"))["version"]

        write_config(rig, calc={**mark(rig), "env": {}})
        servers = await told(rig, after=before)

        assert servers["calc"]["status"] == "pending"
        assert servers["calc"]["entry"]["command"] == "/bin/sh"
        assert not (rig.directory / "started").exists()


@pytest.mark.parametrize("body", [{}, {"servers": {}}, {"servers": [1]}, {"servers": [], "wait_s": "long"}])
async def test_bad_lists_of_entries_are_refused(body: dict[str, Any]) -> None:
    async with rigs.rig() as rig:
        await rig.start()

        assert (await rig.ask("POST", "/v1/mcp/servers", json=body)).status == 400


async def test_servers_are_told_with_their_tools_and_called() -> None:
    async with rigs.rig({"env": {"TOKEN": "s3cret"}}) as rig:
        write_config(rig, calc=program(SECRET="<${TOKEN}>"), gone={"command": "/nowhere"})
        await rig.start()

        servers = await agree_to_all(rig)
        assert {name: each["status"] for name, each in servers.items()} == {"calc": "ok", "gone": "unreadable"}
        assert [each["name"] for each in servers["calc"]["tools"]] == ["add", "show env"]
        assert "cannot be started" in servers["gone"]["error"]
        assert "s3cret" not in json.dumps(servers)

        first = await call(rig, "calc", "add", {"a": 1, "b": 2}, key="k1")
        again = await call(rig, "calc", "add", {"a": 1, "b": 2}, key="k1")
        assert first.json == {"content": [{"type": "text", "text": "3"}], "is_error": False, "structured": {"sum": 3}}
        assert (again.json, again.headers.get("idempotent-replay")) == (first.json, "1")
        assert (rig.directory / "calls").read_text() == "k1\n"
        assert (await call(rig, "calc", "show env")).json["content"][0]["text"] == "<s3cret>"
        assert (await call(rig, "calc", "nothing")).json["is_error"] is True

        refused = [
            await call(rig, "a__b", "x"),
            await call(rig, "calc", ""),
            await call(rig, "calc", "add", [1]),
            await call(rig, "other", "x"),
            await call(rig, "gone", "x"),
            await call(rig, "calc", "die"),
        ]
        assert [each.status for each in refused] == [400, 400, 400, 404, 502, 502]
        assert "told to die" in refused[-1].json["message"]
        # The next call starts it again.
        assert (await call(rig, "calc", "add", {"a": 2, "b": 2})).json["content"][0]["text"] == "4"

        before = await rig.get("/v1/context")
        await call(rig, "calc", "more")
        changed = await rig.get(f"/v1/context?after={before['version']}&wait_s=50")
        assert changed["hash"] == before["hash"]
        (calc,) = [each for each in changed["resources"] if each["source"] == "calc"]
        assert [each["name"] for each in calc["tools"]] == ["add", "show env", "late"]

        write_config(rig)

        async def is_gone() -> bool:
            return (await call(rig, "calc", "add")).status == 404

        await until(is_gone)


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ({"a__b": {"command": "x"}}, "name"),
        ({"_a": {"command": "x"}}, "name"),
        ({"a": {"command": "x", "args": "y"}}, "args"),
        ({"a": {"command": "x", "env": {"K": 1}}}, "env"),
        ({"a": {"command": "x", "type": "pigeon"}}, "type"),
        ({"a": []}, "object"),
        ({"a": {}}, "neither"),
        ({"a": {"command": ""}}, "empty"),
        ({"a": {"command": "x", "args": ["y"] * 101}}, "arguments"),
        ({"a": {"command": "x", "args": ["y" * 4097]}}, "too long"),
        ({"a": {"command": "x", "env": {f"K{n}": "" for n in range(51)}}}, "variables"),
        ({"a": {"url": ""}}, "URL"),
        ({"a": {"url": "https://x/ y"}}, "URL"),
        ({"a": {"url": "https://x/\n"}}, "URL"),
        ({"a": {"url": "https://x/" + "y" * 2048}}, "URL"),
        ({"a": {"url": "https://${HOST}/mcp"}}, "variable"),
        ({"a": {"url": "https://x", "type": "stdio"}}, "type http or sse"),
        ({"a": {"url": "https://x", "type": ["http"]}}, "type"),
        ({"a": {"command": "x", "url": 1, "type": "http"}, "b": {"command": 1, "url": 1}}, "neither"),
        ({"a": {"url": "https://x", "headers": ["X-A"]}}, "headers"),
        ({"a": {"url": "https://x", "headers": {"X-A": 1}}}, "headers"),
        ({"a": {"url": "https://x", "headers": {"X A": "y"}}}, "invalid name"),
        ({"a": {"url": "https://x", "headers": {"X-A\r\nX-B": "y"}}}, "invalid name"),
        ({"a": {"url": "https://x", "headers": {"X-A": "y", "x-a": "y"}}}, "twice"),
        ({"a": {"url": "https://x", "headers": {f"X-{n}": "y" for n in range(21)}}}, "20 headers"),
        ({"a": {"url": "https://x", "headers": {"X-A": "y" * 8193}}}, "too long"),
        ({"a": {"url": "https://x", "headers": {"X-A": "".join(f"${{V{n}}}" for n in range(51))}}}, "50 variables"),
    ],
)
def test_bad_entry_spoils_the_file_and_is_named(servers: Any, words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        mcp_config.parse(json.dumps({"mcpServers": servers}).encode(), "/p")


def test_variables_come_from_the_workspace() -> None:
    config = ServerConfig("a", "/p", "x", env={"KEY": "${HOME}-${MISSING}-$HOME-${MISSING:-d}-${HOME:-d}"})

    assert config.environment({"HOME": "/h"}) == {"HOME": "/h", "KEY": "/h--$HOME-d-/h"}


def remote(**headers: str) -> dict[str, Any]:
    return {"type": "http", "url": "https://docs.example/mcp", "headers": headers}


async def headers_of(rig: Rig, name: str, entry: object) -> Answer:
    return await rig.ask("POST", "/v1/mcp/headers", json={"server": name, "entry": entry})


async def test_headers_leave_the_workspace_only_for_the_entry_that_was_agreed_to() -> None:
    async with rigs.rig({"env": {"TOKEN": "s3cret"}}) as rig:
        write_config(rig, docs=remote(Authorization="Bearer ${TOKEN}", Team="${TEAM:-blue}"), calc=program())
        await rig.start()
        pending = (await told(rig))["docs"]
        entry = pending["entry"]

        assert (pending["status"], pending["hash"]) == ("pending", "")
        assert entry == {
            "name": "docs",
            "folder": str(rig.directory),
            "url": "https://docs.example/mcp",
            "type": "http",
            "headers": ["Authorization", "Team"],
            "env": ["TEAM", "TOKEN"],
        }
        for other in (
            None,
            {**entry, "url": "https://evil.example/mcp"},
            {**entry, "headers": ["Authorization"]},
            {**entry, "env": []},
            {**entry, "type": "sse"},
            {**entry, "folder": "/"},
            {**entry, "more": 1},
        ):
            refused = await headers_of(rig, "docs", other)
            assert (refused.status, refused.json["code"]) == (409, "not_agreed")

        assert (await agree(rig, entry)).json == {"running": ["docs"]}
        agreed = (await told(rig))["docs"]
        given = await headers_of(rig, "docs", entry)

        assert (agreed["status"], agreed["tools"]) == ("ok", [])
        assert given.json == {"headers": {"Authorization": "Bearer s3cret", "Team": "blue"}}
        assert "s3cret" not in json.dumps([pending, agreed])
        calc = (await told(rig))["calc"]["entry"]
        assert [(await headers_of(rig, "calc", calc)).status, (await headers_of(rig, "a__b", entry)).status] == [
            404,
            400,
        ]
        assert (await call(rig, "docs", "look")).status == 404


async def test_new_values_of_headers_are_announced_without_a_new_question() -> None:
    async with rigs.rig() as rig:
        write_config(rig, docs=remote(Authorization="one"))
        await rig.start()
        before = (await agree_to_all(rig))["docs"]
        version = (await rig.get("/v1/context"))["version"]

        write_config(rig, docs=remote(Authorization="two"))
        while (after := (await told(rig, after=version))["docs"])["hash"] in ("", before["hash"]):
            version = (await rig.get("/v1/context"))["version"]

        assert (after["status"], after["entry"]) == ("ok", before["entry"])
        assert (await headers_of(rig, "docs", after["entry"])).json == {"headers": {"Authorization": "two"}}
        for name in ("one", "two"):
            plain = hashlib.sha256(json.dumps({"Authorization": name}).encode()).hexdigest()
            assert plain not in (before["hash"], after["hash"]), "short values could be found by trying"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("Bearer ${MISSING}", "variable MISSING of its header Authorization is not set"),
        ("${EMPTY}", "empty"),
        ("Bearer ${EMPTY}", "white space"),
        ("${LINES}", "line breaks"),
        ("${WIDE}", "cannot have"),
        ("a\r\nX-Evil: b", "line breaks"),
        ("", "empty"),
    ],
)
async def test_header_that_cannot_be_sent_is_reported_by_its_name(value: str, words: str) -> None:
    env = {"EMPTY": "", "LINES": "s3cret\r\nX-Evil: 1", "WIDE": "s3cret\u20ac"}
    async with rigs.rig({"env": env}) as rig:
        write_config(rig, docs=remote(Authorization=value))
        await rig.start()

        docs = (await agree_to_all(rig))["docs"]
        refused = await headers_of(rig, "docs", docs["entry"])

        assert docs["status"] == "unreadable"
        assert words in docs["error"]
        assert (refused.status, refused.json["message"]) == (409, docs["error"])
        assert "s3cret" not in json.dumps(docs)


def test_type_decides_what_an_entry_with_a_command_and_a_url_is() -> None:
    both = {"command": "x", "url": "https://x"}
    given = {"a": both, "b": {**both, "type": "http"}, "c": {"url": "https://x"}, "d": {**both, "type": "stdio"}}
    given["e"] = {"url": "https://x", "type": "streamable-http"}

    found = mcp_config.parse(json.dumps({"mcpServers": given}).encode(), "/p")

    assert [(each.command, each.url, each.type) for each in found] == [
        ("x", None, "auto"),
        (None, "https://x", "http"),
        (None, "https://x", "auto"),
        ("x", None, "auto"),
        (None, "https://x", "http"),
    ]
