"""What changes in a chat's repository, seen beside the conversation, and comments on it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.visit import PATIENCE_MS, Visitor

BEFORE = "def put(name):\n    return name\n"
AFTER = "def put(name):\n    return name.strip()\n"


@pytest.fixture
def project(ada: Visitor, data_dir: Path) -> tuple[Any, Path]:
    """A workspace that runs, and its folder, which is a repository with one commit."""
    made = ada.ask("POST", "/workspaces", {"template": "blank"})["workspace"]
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while (workspace := ada.ask("GET", f"/workspaces/{made['id']}"))["status"] != "running":
        assert workspace["status"] != "failed", workspace
        assert time.monotonic() < deadline, workspace
        ada.page.wait_for_timeout(100)
    (folder,) = data_dir.glob(f"**/{made['id']}/home/project")
    (folder / "src").mkdir()
    (folder / "src" / "put.py").write_text(BEFORE)
    settings = ["user.name=x", "user.email=x@example.org", "safe.directory=*"]
    git = ["git", *(part for each in settings for part in ("-c", each)), "-C", str(folder)]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    # Under root, workspaces have a user of their own, whose git asks whose files these are.
    owner = folder.stat()
    for path in folder.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)
    return made, folder


def test_changes_of_the_working_tree_are_seen_live_and_commented_on(ada: Visitor, project: tuple[Any, Path]) -> None:
    workspace, folder = project
    chat = ada.chat("hello", title="Changes", workspace_id=workspace["id"])
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}?panel=changes")
    panel = page.get_by_role("complementary", name="Panel")
    expect(panel.get_by_text("Clean. Everything is committed.")).to_be_visible()

    (folder / "src" / "put.py").write_text(AFTER)
    panel.get_by_role("button", name="Look again").click()
    lines = panel.get_by_role("region", name="Changes of the working tree")
    expect(lines.get_by_text("return name.strip()")).to_be_visible()
    expect(panel.get_by_role("list", name="Changed files")).to_contain_text(re.compile(r"src.*put\.py.*\+1 -1"))
    lines.focus()
    for key in ("ArrowDown", "ArrowDown", "Shift+ArrowDown", "Enter"):
        lines.press(key)
    lines.get_by_role("textbox", name="Comment on src/put.py:2").fill("Do not strip")
    lines.get_by_role("textbox", name="Comment on src/put.py:2").press("Enter")

    box = page.get_by_role("textbox", name="Message")
    expect(box).to_have_value("@src/put.py:2 Do not strip\n")
    page.reload()
    expect(box).to_have_value("@src/put.py:2 Do not strip\n")
    expect(page.get_by_role("list", name="References")).to_contain_text("src/put.py:2")
    box.press("Control+End")
    box.press_sequentially("as in @sr")
    page.get_by_role("option", name="src").click()
    page.get_by_role("option", name="put.py").click()
    with page.expect_response(re.compile("/messages$")):
        page.get_by_role("button", name="Send message").click()
    sent = [one for one in ada.ask("GET", f"/chats/{chat['id']}/messages")["items"] if one["role"] == "user"]
    assert max(sent, key=lambda one: one["id"])["content"] == [
        {
            "type": "file-reference",
            "file_name": "src/put.py",
            "start_line": 2,
            "end_line": 2,
            "content": "    return name.strip()",
        },
        {"type": "text", "text": "Do not strip\nas in"},
        {"type": "file-reference", "file_name": "src/put.py", "start_line": 0, "end_line": 0, "content": ""},
    ]
    assert ada.violations() == []
    ada.wait_for_rest(chat["id"])
