"""MCP servers of a workspace through a real agent: their descriptions and the results of calls."""

from __future__ import annotations

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
        write_config(rig, calc=program(SECRET="<${TOKEN}>"), gone={"command": "/nowhere"}, far={"url": "http://x"})
        await rig.start()

        servers = await agree_to_all(rig)
        assert {name: each["status"] for name, each in servers.items()} == {
            "calc": "ok",
            "gone": "unreadable",
            "far": "unreadable",
        }
        assert [each["name"] for each in servers["calc"]["tools"]] == ["add", "show env"]
        assert "cannot be started" in servers["gone"]["error"]
        assert "Only servers with a `command`" in servers["far"]["error"]
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
    ],
)
def test_bad_entry_spoils_the_file_and_is_named(servers: Any, words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        mcp_config.parse(json.dumps({"mcpServers": servers}).encode(), "/p")


def test_variables_come_from_the_workspace() -> None:
    config = ServerConfig("a", "/p", "x", env={"KEY": "${HOME}-${MISSING}-$HOME"})

    assert config.environment({"HOME": "/h"}) == {"HOME": "/h", "KEY": "/h--$HOME"}
