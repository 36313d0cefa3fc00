"""Consent to an MCP server of a project, in the chat and in the panel, with a real workspace."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.browser.browser_user import Visitor
from tests.browser.model_script import ModelScript
from tests.browser.test_workspace_panel import make_project, wait
from tests.workspaces.agent.mcp.test_mcp import SERVER

# Longer than what is shown at first, with the part that matters at its end.
LONG = {"command": "/bin/sh", "args": ["-c", "true"] + [f"--allow=/srv/{number}" for number in range(60)] + ["--last"]}
CALC = {"command": "/usr/bin/python3", "args": ["-I", "server.py"], "env": {"CALC_TOKEN": "x"}}


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    os.chown(folder / name, folder.stat().st_uid, folder.stat().st_gid)


def test_servers_of_a_project_are_asked_about_one_by_one_and_a_changed_one_again(
    ada: Visitor, script: ModelScript, data_dir: Path
) -> None:
    workspace, folder = make_project(ada, data_dir)
    put(folder, "server.py", SERVER.read_text())
    put(folder, ".mcp.json", json.dumps({"mcpServers": {"a_long_one": LONG, "calc": CALC}}))
    chat = ada.chat("hello", title="Servers", workspace_id=workspace["id"], model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])

    def states() -> dict[str, Any]:
        items = ada.ask("GET", f"/workspaces/{workspace['id']}/mcp-servers")["items"]
        return {each["name"]: each["state"] for each in items}

    page = ada.go(f"/c/{chat['id']}?panel=info")
    card = page.get_by_role("region", name="MCP server", exact=True)
    expect(card).to_contain_text("This project wants to start the MCP server a_long_one. May it run?")
    expect(card).not_to_contain_text("--last")
    expect(card.get_by_role("button", name="Allow")).to_have_count(0)
    assert ada.violations() == []

    # Keys and clicks that come twice do not answer about what comes next.
    ada.tab_to(card.get_by_role("button", name="Show all of it"))
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(card).to_contain_text("--last")
    assert ada.violations() == []
    ada.tab_to(card.get_by_role("button", name="Deny"))
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(card).to_contain_text("the MCP server calc. May it run?")
    expect(card).to_contain_text("environment variable CALC_TOKEN")
    assert states() == {"a_long_one": "denied", "calc": "asked"}
    card.get_by_role("button", name="Allow").click()
    expect(card).to_have_count(0)
    listed = page.get_by_role("list", name="MCP servers of the project").get_by_role("listitem")
    expect(listed.filter(has_text="calc")).to_contain_text(re.compile("Running, 2 tools"))
    expect(listed.filter(has_text="a_long_one")).to_contain_text("Denied")

    put(folder, ".mcp.json", json.dumps({"mcpServers": {"calc": {**CALC, "args": ["-I", "server.py", "--more"]}}}))

    def is_noticed() -> bool:
        """A step reads the state of the workspace. The next step may begin before the change is known."""
        ada.ask("POST", f"/chats/{chat['id']}/messages", {"content": [{"type": "text", "text": "again"}]})
        ada.wait_for_rest(chat["id"])
        return bool(states().get("calc") == "changed")

    wait(ada, is_noticed)
    expect(card).to_contain_text("This project has changed its MCP server calc. May it run?")
    expect(card).to_contain_text("--more")
    listed.filter(has_text="calc").get_by_role("button", name="Deny calc").click()
    wait(ada, lambda: states()["calc"] == "denied")
    expect(card).to_have_count(0)
    expect(listed.filter(has_text="calc")).to_contain_text("Denied")
