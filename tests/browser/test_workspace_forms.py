"""Forms for workspaces: parameters of templates, names, and the message if no workspace can start."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

from playwright.sync_api import Browser, Page, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import PASSWORD, Visitor, visiting
from tests.browser.model_script import ModelScript
from tests.cli.serve.server_process import serving

WORDS = re.compile("^[a-z]+-[a-z]+$")


def pick(page: Page, name: str) -> None:
    page.get_by_role("button", name="Workspace: ").click()
    page.get_by_role("option", name=name).click()


def test_new_git_workspace_asks_for_its_repository_and_offers_it_again(ada: Visitor) -> None:
    page = ada.go("/")
    repository = f"https://127.0.0.1:1/{uuid4().hex[:8]}.git"
    pick(page, "New: Git repository")
    dialog = page.get_by_role("dialog", name="New workspace: Git repository")
    field = dialog.get_by_label("Repository", exact=True)
    expect(field).to_be_focused()
    expect(dialog.get_by_label("Depth (optional)")).to_have_value("1")
    expect(dialog).to_contain_text("Address to clone from")
    assert ada.violations() == []

    ada.allow("status of 400")
    dialog.get_by_role("button", name="Create").click()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(dialog).to_contain_text("This is required.")
    expect(field).to_be_focused()
    field.fill("not an address")
    dialog.get_by_label("Depth (optional)").fill("many")
    dialog.get_by_label("Name (optional)").fill("Bad Name")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("This must match")
    expect(dialog).to_contain_text("This must be a number.")
    expect(dialog).to_contain_text("Use lowercase letters")
    expect(dialog.get_by_role("button", name="Create", exact=True)).to_be_enabled()
    page.mouse.move(0, 0)
    assert ada.violations() == []

    field.fill(repository)
    name = dialog.get_by_label("Name (optional)")
    expect(name).to_have_value("Bad Name")
    dialog.get_by_label("Depth (optional)").fill("3")
    name.fill("")
    page.keyboard.press("Enter")
    notice = dialog.get_by_role("alert")
    expect(notice).to_contain_text(re.compile("Its startup script failed with exit code [1-9]"), timeout=60_000)
    expect(notice).to_contain_text("The repository could not be cloned. Check the address")
    assert ada.violations() == []
    dialog.get_by_role("button", name="Close").last.click()
    expect(dialog).to_have_count(0)
    made = ada.ask("GET", "/workspaces")["items"][0]
    assert made["parameters"] == {"repository": repository, "branch": "", "depth": 3}
    assert (made["agent_state"], made["startup_operation"] is None) == ("script_failed", False)
    assert WORDS.fullmatch(made["name"])

    picker = page.get_by_role("button", name=f"Workspace: {made['name']}")
    picker.click()
    menu = page.get_by_role("dialog", name="Workspace")
    expect(menu.get_by_role("alert")).to_contain_text("could not be cloned")
    expect(menu.get_by_role("button", name="Try again")).to_be_visible()
    page.keyboard.press("Escape")
    pick(page, "New: Git repository")
    # An address that failed is not offered again. The name is that of the repository until another one is typed.
    expect(dialog.get_by_role("list", name="Recent values of Repository")).to_have_count(0)
    field.fill("https://127.0.0.1:1/ada/Tidy.Tools.git")
    expect(name).to_have_value("tidy-tools")
    page.keyboard.press("Escape")

    page = ada.go("/settings/own-workspaces")
    row = page.get_by_role("row").filter(has_text=made["name"])
    expect(row.get_by_role("alert")).to_contain_text("could not be cloned")


def test_settings_create_and_rename_a_workspace_by_keys(ada: Visitor) -> None:
    page = ada.go("/settings/own-workspaces")
    page.get_by_role("button", name="New workspace").click()
    page.get_by_role("menuitem", name="Python").click()
    dialog = page.get_by_role("dialog", name="New workspace: Python")
    packages = dialog.get_by_label("Packages (optional)")
    packages.fill("<script>\nok")
    ada.allow("status of 400")
    dialog.get_by_role("button", name="Create").click()
    expect(packages).to_have_attribute("aria-invalid", "true")
    packages.fill("")
    name = f"lab-{uuid4().hex[:6]}"
    dialog.get_by_label("Name (optional)").fill(name)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)

    page.get_by_role("button", name=f"Rename {name}").click()
    field = page.get_by_role("dialog").get_by_label("Name")
    field.fill("No Spaces")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Use lowercase letters")
    assert ada.violations() == []
    field.fill(f"{name}-two")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name=f"Rename {name}-two")).to_be_visible()


def test_machine_without_sandboxes_says_so_in_set_up_chats_settings_and_health(
    browser: Browser, tmp_path: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text('#!/bin/sh\necho "bwrap: No permissions to create new namespace" >&2\nexit 1\n')
    bwrap.chmod(0o755)
    helps = re.compile(r"No permissions to create new namespace\. .*(sysctl -w|--security-opt)")
    with serving(tmp_path, "--data-dir", str(tmp_path / "data"), "--drivers-local-bwrap", str(bwrap)) as served:
        link = served.wait_for_line(re.compile(r"http\S+/setup#token=\S+"))[0]
        with visiting(browser, served.url) as newcomer:
            page = newcomer.page
            page.goto(link)
            page.get_by_label("Email").fill("ada@example.org")
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="Choose a model").wait_for()
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_role("radio", name="None")).to_be_checked()
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_role("heading", name="Start chatting")).to_be_visible()
            expect(page.get_by_text("Everything is ready")).to_have_count(0)
            expect(page.get_by_role("note")).to_contain_text(helps)
            assert newcomer.violations() == []

            page.get_by_role("button", name="What can you do here?").click()
            expect(page.get_by_role("feed", name="Conversation")).to_be_visible()
            expect(page.get_by_role("status").filter(has_text="run nothing")).to_contain_text(helps)
            for place in ("own-workspaces", "health"):
                page.goto(f"{served.url}/settings/{place}")
                expect(page.get_by_role("note").first).to_contain_text(helps)
                assert newcomer.violations() == []


def test_set_up_says_that_the_agent_creates_a_workspace_and_asks_for_parameters(
    browser: Browser, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    options = ("--data-dir", str(tmp_path / "data"), "--workspaces-shared-folders", str(shared))
    with serving(tmp_path, *options) as served:
        link = served.wait_for_line(re.compile(r"http\S+/setup#token=\S+"))[0]
        with visiting(browser, served.url) as newcomer:
            page = newcomer.page
            page.goto(link)
            page.get_by_label("Email").fill("ada@example.org")
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="Choose a model").wait_for()
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_role("radio", name="When a task needs one")).to_be_checked()
            expect(page.get_by_text("The agent creates a workspace by itself")).to_be_visible()
            page.get_by_role("radio", name="Folder of this machine").click()
            newcomer.allow("status of 400")
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_label("Folder", exact=True)).to_have_attribute("aria-invalid", "true")
            page.get_by_role("list", name="Recent values of Folder").get_by_role("button").click()
            expect(page.get_by_label("Folder", exact=True)).to_have_value(str(shared))
            assert newcomer.violations() == []
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_role("heading", name="Start chatting")).to_be_visible()
            expect(page.get_by_text("Everything is ready")).to_be_visible()
            assert newcomer.ask("GET", "/workspaces")["items"][0]["parameters"] == {"folder": str(shared)}


def test_failed_connection_in_set_up_stores_nothing_unless_the_user_saves_it_anyway(ada: Visitor) -> None:
    page = ada.go("/setup?step=2")
    nowhere = "http://127.0.0.1:1/v1"
    known = {each["id"] for each in ada.ask("GET", "/model-providers")["items"]}
    page.get_by_role("radio", name="Other").click()
    page.get_by_label("Base URL").fill(nowhere)
    page.get_by_role("button", name="Connect").click()
    failed = page.get_by_role("alert").filter(has_text="Tried")
    expect(failed).to_contain_text(f"could not be reached at {nowhere}")
    expect(failed).to_contain_text(f"Tried: GET {nowhere}/models. Nothing was saved.")
    assert ada.violations() == []
    page.get_by_label("Model id").fill("some-model")
    page.get_by_role("button", name="Test and continue").click()
    expect(failed).to_contain_text(f"Tried: a short message to the model some-model at {nowhere}.")
    assert {each["id"] for each in ada.ask("GET", "/model-providers")["items"]} == known

    page.get_by_role("radio", name="Anthropic").click()
    page.get_by_role("textbox", name="API key").fill("key with spaces inside \u00e9")
    ada.allow("status of 400")
    page.get_by_role("button", name="Connect").click()
    expect(page.get_by_role("textbox", name="API key")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("radio", name="Other").click()
    page.get_by_label("Base URL").fill("not an address")
    page.get_by_role("button", name="Connect").click()
    expect(page.get_by_label("Base URL")).to_have_attribute("aria-invalid", "true")
    assert {each["id"] for each in ada.ask("GET", "/model-providers")["items"]} == known

    page.get_by_label("Base URL").fill(nowhere)
    page.get_by_role("button", name="Connect").click()
    page.get_by_role("button", name="Save anyway").click()
    expect(page.get_by_role("heading", name="Choose a workspace")).to_be_visible()
    made = [each for each in ada.ask("GET", "/model-providers")["items"] if each["id"] not in known]
    assert [each["base_url"] for each in made] == [nowhere]
    ada.ask("DELETE", f"/model-providers/{made[0]['id']}")


def test_agent_that_lacks_a_repository_asks_with_the_form_and_goes_on_after_a_reload(
    ada: Visitor, script: ModelScript
) -> None:
    repository = f"https://127.0.0.1:1/{uuid4().hex[:8]}.git"
    call = FakeCall("create_workspace", '{"template_id": "git", "parameters": {"depth": 2}}')
    script.plays("clone it for me", Answer(calls=[call]), Answer(text="I looked at it."))
    chat = ada.chat("clone it for me", title="Cloning", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    question = page.get_by_role("region", name="Approval")
    expect(question).to_contain_text("The agent needs a workspace: Git repository")
    expect(question.get_by_label("Depth (optional)")).to_have_value("2")
    assert ada.ask("GET", f"/chats/{chat['id']}")["status"] == "requires_action"

    page.reload()  # the question is in the database
    field = question.get_by_label("Repository", exact=True)
    field.fill("nonsense with spaces")
    ada.allow("status of 400")
    question.get_by_role("button", name="Create workspace").click()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(question).to_contain_text("This must match")
    page.mouse.move(0, 0)
    assert ada.violations() == []
    field.fill(repository)
    page.keyboard.press("Enter")

    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("I looked at it.")
    found = ada.ask("GET", f"/chats/{chat['id']}")
    made = ada.ask("GET", f"/workspaces/{found['workspace_id']}")
    assert made["parameters"] == {"repository": repository, "branch": "", "depth": 2}
    expect(question).to_have_count(0)


def test_denied_form_creates_no_workspace_and_the_agent_goes_on(ada: Visitor, script: ModelScript) -> None:
    call = FakeCall("create_workspace", '{"template_id": "git"}')
    script.plays("clone nothing", Answer(calls=[call]), Answer(text="Then not."))
    chat = ada.chat("clone nothing", title="Not cloning", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    page.get_by_role("region", name="Approval").get_by_role("button", name="Deny").click()
    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("Then not.")
    assert ada.ask("GET", f"/chats/{chat['id']}")["workspace_id"] is None


def test_chat_without_a_workspace_gets_one_when_its_agent_creates_it(ada: Visitor, script: ModelScript) -> None:
    page = ada.go("/")
    page.get_by_role("button", name="Workspace: none").click()
    expect(page.get_by_role("option", name="No workspace")).to_contain_text("created when needed")
    call = FakeCall("create_workspace", '{"template_id": "blank"}')
    script.plays("make something", Answer(calls=[call]), Answer(text="It is made."))
    chat = ada.chat("make something", title="Made when needed", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("It is made.")
    found = ada.ask("GET", f"/chats/{chat['id']}")
    made = ada.ask("GET", f"/workspaces/{found['workspace_id']}")
    expect(page.get_by_role("button", name=f"Workspace: {made['name']}")).to_be_visible()
