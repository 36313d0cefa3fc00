"""The workspace panel beside a chat: changes, files, and the captured context."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import PATIENCE_MS, Visitor
from tests.browser.keyboard import Keys
from tests.browser.model_script import ModelScript

BEFORE = "def put(name):\n    return name\n"
AFTER = "def put(name):\n    return name.strip()\n"


SKILL = "---\nname: release\ndescription: Makes a release.\n---\nTag it.\n"

# Presses an option, and is in the box as soon as the menu is closed, before the menu gives the focus back.
CHOOSE_AND_LEAVE = """(option) => new Promise((done) => {
    new MutationObserver((_, observer) => {
        if (option.isConnected) return;
        observer.disconnect();
        document.querySelector("[data-composer]").focus();
        done();
    }).observe(document.body, { childList: true, subtree: true });
    option.click();
})"""

# One is enough for all tests here: bringing it up takes longer than they do.
_made: list[tuple[Any, Path]] = []


@pytest.fixture
def project(ada: Visitor, data_dir: Path) -> tuple[Any, Path]:
    """A running workspace, and its folder: a repository with one commit and no changes."""
    if not _made:
        _made.append(make_project(ada, data_dir))
    _, folder = _made[0]
    (folder / "src" / "put.py").write_text(BEFORE)
    return _made[0]


def make_project(ada: Visitor, data_dir: Path) -> tuple[Any, Path]:
    made = ada.ask("POST", "/workspaces", {"template": "blank"})["workspace"]
    wait(ada, lambda: ada.ask("GET", f"/workspaces/{made['id']}")["status"] == "running")
    (folder,) = data_dir.glob(f"**/{made['id']}/home/project")
    for name, text in {"src/put.py": BEFORE, "AGENTS.md": "Be brief.\n", "skills/release/SKILL.md": SKILL}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    settings = ["user.name=x", "user.email=x@example.org", "safe.directory=*"]
    git = ["git", *(part for each in settings for part in ("-c", each)), "-C", str(folder)]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    # Under root, workspaces have a user of their own, whose git asks whose files these are.
    owner = folder.stat()
    for path in folder.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)
    return made, folder


def wait(visitor: Visitor, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline
        visitor.page.wait_for_timeout(100)


def test_changes_of_the_working_tree_are_seen_live_and_commented_on(
    ada: Visitor, script: ModelScript, project: tuple[Any, Path]
) -> None:
    workspace, folder = project
    chat = ada.chat("hello", title="Changes", workspace_id=workspace["id"], model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}?panel=changes")
    panel = page.get_by_role("complementary", name="Panel")
    expect(panel.get_by_text("Clean. Everything is committed.")).to_be_visible()

    (folder / "src" / "put.py").write_text(AFTER)
    panel.get_by_role("button", name="Look again").click()
    lines = panel.get_by_role("region", name="Changes of the working tree")
    expect(lines.get_by_text("return name.strip()")).to_be_visible()
    expect(panel.get_by_role("list", name="Changed files")).to_contain_text(re.compile(r"src.*put\.py.*\+1 -1"))
    keys = Keys(ada)
    keys.to(lines)
    keys.press("ArrowDown", "ArrowDown", "Shift+ArrowDown", "Enter")
    comment = lines.get_by_role("textbox", name="Comment on src/put.py:2")
    keys.at(comment)
    keys.type("Do not strip")
    page.reload()
    expect(comment).to_have_value("Do not strip")
    keys.do(comment)
    expect(comment).to_have_count(0)
    keys.somewhere()

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
    # Rows of a running turn fade in while axe looks, and have another contrast on their way.
    ada.wait_for_rest(chat["id"])
    expect(page.get_by_test_id("live")).to_have_count(0)
    assert ada.violations() == []


def test_file_that_an_answer_names_is_read_beside_it_and_mentioned(
    ada: Visitor, script: ModelScript, project: tuple[Any, Path]
) -> None:
    workspace, _ = project
    script.plays(
        "where is it", Answer(text="In `src/put.py:2`, as [`a.py`](https://example.org) says, not in `os.path`.")
    )
    chat = ada.chat("where is it", title="Files", workspace_id=workspace["id"], model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    main, panel = page.get_by_role("feed"), page.get_by_role("complementary", name="Panel")

    main.get_by_role("link", name="src/put.py:2").click()
    text = panel.get_by_role("region", name="Text of src/put.py")
    expect(text).to_contain_text("return name")
    expect(panel.get_by_role("button", name=re.compile("put.py"))).to_have_attribute("aria-current", "true")
    assert [link.inner_text() for link in main.get_by_role("link").all()] == ["src/put.py:2", "a.py"]
    page.reload()
    expect(text).to_contain_text("return name")
    assert ada.violations() == []
    panel.get_by_role("button", name="Mention in the message").click()
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_have_value("@src/put.py ")
    with page.expect_download() as started:
        panel.get_by_role("link", name="Download the file").click()
    assert started.value.path().read_text() == BEFORE
    panel.get_by_role("button", name="Close the file").click()
    panel.get_by_role("button", name="skills").click()
    expect(panel.get_by_role("button", name="release")).to_be_visible()

    # The palette gives the focus back to where it was.
    box.focus()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(box).to_be_focused()


def test_skills_and_files_of_a_workspace_are_offered_where_one_types(
    ada: Visitor, script: ModelScript, project: tuple[Any, Path]
) -> None:
    workspace, _ = project
    chat = ada.chat("hello", title="Skills", workspace_id=workspace["id"], model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    wait(ada, lambda: len(ada.ask("PUT", f"/chats/{chat['id']}/context")["items"]) >= 2)
    page = ada.go(f"/c/{chat['id']}?panel=info")
    context = page.get_by_role("list", name="Context from the workspace")
    expect(context).to_contain_text("AGENTS.md")
    expect(context).to_contain_text("Makes a release.")
    box = page.get_by_role("textbox", name="Message")
    box.press_sequentially("/rel")
    expect(page.get_by_role("option", name="/release")).to_be_visible()
    box.press("Enter")
    expect(box).to_have_value("Use the skill release: ")
    box.fill("")

    page = ada.go("/")
    page.get_by_role("button", name="Workspace: none").click()
    # The menu does not take the focus back.
    page.get_by_role("option", name=re.compile(workspace["name"])).evaluate(CHOOSE_AND_LEAVE)
    page.keyboard.type("see @AG")
    page.get_by_role("option", name="AGENTS.md").click()
    expect(page.get_by_role("list", name="References")).to_contain_text("AGENTS.md")


def test_plan_is_questioned_and_carried_out_by_keys(ada: Visitor, project: tuple[Any, Path]) -> None:
    workspace, _ = project
    guide = next(one for one in ada.ask("GET", "/model-configs")["items"] if one["is_default"])
    text = "make a plan to tidy the home directory"
    more = {"workspace_id": workspace["id"], "model_config_id": guide["id"], "plan_mode": True}
    chat = ada.chat(text, title="Planned by keys", **more)
    ada.wait_for_rest(chat["id"])
    page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
    plan, box = page.get_by_role("region", name="Plan", exact=True), page.get_by_role("textbox", name="Message")
    expect(plan.get_by_text("Plan ready")).to_be_visible()

    keys.do(plan.get_by_role("button", name="Ask for changes"))
    keys.at(box)
    expect(box).to_have_value(re.compile("^Please change the plan"))
    keys.press("Control+a", "Delete")
    keys.do(plan.get_by_role("button", name="Implement"))
    expect(page.get_by_role("feed").get_by_text("The plan is good. Implement it.", exact=True)).to_be_visible()
    keys.somewhere()
    assert ada.wait_for_rest(chat["id"])["plan_mode"] is False
