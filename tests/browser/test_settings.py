"""Settings: errors of the server appear under their fields, choices take effect immediately, and other users' pages are
closed.
"""

from __future__ import annotations

import io
import re
import tarfile
from typing import Any

from playwright.sync_api import expect

from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript


def test_complaint_of_the_server_stands_under_its_field(ada: Visitor) -> None:
    ada.allow("status of 400")
    page = ada.go("/settings/retention")
    days = page.get_by_label("Delete archived chats after")
    save = page.get_by_role("button", name="Save").first
    expect(days).to_have_value("0")
    expect(save).to_be_disabled()

    days.fill("99999")
    save.click()
    expect(days).to_have_attribute("aria-invalid", "true")
    expect(days).to_have_accessible_description(re.compile("3650|3,650"))
    days.fill("31")
    save.click()
    expect(page.get_by_text("Saved.")).to_be_visible()

    assert ada.ask("GET", "/settings/chats")["values"]["retention_days"] == 31


def test_theme_is_chosen_at_once_and_is_there_before_the_page_after_a_reload(ada: Visitor) -> None:
    page = ada.go("/settings/appearance")

    # On the page at once; at the server before the page goes, which ends what is still on its way.
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.get_by_role("radio", name="Dark", exact=True).click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        expect(page.get_by_role("radio", name="Dark", exact=True)).to_be_checked()
    page.reload(wait_until="commit")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("radio", name=re.compile("^System")).click()
    expect(page.get_by_role("radio", name=re.compile("^System"))).to_be_checked()


def test_leaving_with_changes_asks_first(ada: Visitor) -> None:
    page = ada.go("/settings/instructions")
    page.get_by_label("Instructions", exact=True).fill("Answer in verse.")

    page.get_by_role("link", name="Profile").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_label("Instructions", exact=True)).to_have_value("Answer in verse.")
    page.get_by_role("link", name="Profile").click()
    page.get_by_role("button", name="Leave").click()

    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()


def test_member_is_told_that_pages_of_administrators_are_not_theirs(ada: Visitor, visit: Visit) -> None:
    ada.ask("POST", "/users", {"email": "ben@example.org", "username": "ben", "password": PASSWORD})
    ben = visit("ben")

    page = ben.go("/settings/providers")

    expect(page.get_by_role("heading", name="Not for you")).to_be_visible()
    expect(page.get_by_role("link", name="Providers")).to_have_count(0)


def test_own_password_is_changed_and_the_form_is_empty_again(ada: Visitor, visit: Visit) -> None:
    ada.ask("POST", "/users", {"email": "cleo@example.org", "username": "cleo", "password": PASSWORD})
    cleo = visit("cleo", own=True)
    cleo.allow("status of 401")
    page = cleo.go("/settings/profile")
    current, new = page.get_by_label("Current password"), page.get_by_label("New password")
    change = page.get_by_role("button", name="Change password")

    page.get_by_role("switch", name="End all API tokens as well").click()
    expect(change).to_be_disabled()
    current.fill("not the one that I have")
    new.fill("correct horse battery staple")
    change.click()
    expect(current).to_have_accessible_description("This is not your current password.")
    page.get_by_role("button", name="Clear").click()
    expect(current).to_have_accessible_description("")
    current.fill(PASSWORD)
    new.fill("correct horse battery staple")
    change.click()

    expect(page.get_by_text("The password was changed.")).to_be_visible()
    expect(current).to_have_value("")
    expect(new).to_have_value("")


def test_notice_of_an_access_leads_to_the_list_with_the_chat(ada: Visitor, visit: Visit) -> None:
    ada.ask("POST", "/users", {"email": "dora@example.org", "username": "dora", "password": PASSWORD})
    dora = visit("dora")
    chat = dora.chat("hello", title="Private")
    dora.wait_for_rest(chat["id"])
    ada.allow("status of 403|WebSocket connection")
    read = ada.go(f"/c/{chat['id']}")
    read.get_by_role("textbox", name="Reason").fill("Dora asked me to look")
    read.get_by_role("button", name="Read the chat").click()
    expect(read.get_by_role("feed", name="Conversation")).to_contain_text("hello")
    ada.go("/")  # an open page reads again, and each access after the dismissal would be another notice

    page = dora.go("/")
    notice = page.get_by_role("status").filter(has_text="An administrator has read your chats.")
    notice.get_by_role("link", name="Details").click()
    row = page.get_by_role("row").filter(has_text="Dora asked me to look")
    expect(row).to_be_in_viewport()
    expect(row.get_by_role("link", name="a chat")).to_have_attribute("href", f"/c/{chat['id']}")
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_have_count(0)


def test_rule_with_too_many_wildcards_is_named_by_its_number(ada: Visitor) -> None:
    ada.allow("status of 400")
    page = ada.go("/settings/approvals")
    for pattern in ("git push*", "*a" * 20):
        page.get_by_role("button", name="Add rule").first.click()
        rule = page.get_by_role("group", name=re.compile("^Rule")).last
        rule.get_by_label("Tool").fill("execute")
        rule.get_by_label("Argument").fill("command")
        rule.get_by_label("Matches").fill(pattern)
    page.get_by_role("button", name="Save").first.click()

    complaint = page.get_by_text("Rule 2: A pattern can have at most 16 wildcards")
    expect(complaint).to_be_visible()
    second = page.get_by_role("group", name="Rule 2")
    expect(second.get_by_label("Matches")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Reset").first.click()
    expect(complaint).to_have_count(0)


def test_new_token_is_shown_once(ada: Visitor) -> None:
    page = ada.go("/settings/tokens")

    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name", exact=True).fill("laptop")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text(re.compile("^rk_"))).to_be_visible()
    page.get_by_role("button", name="Done").click()

    expect(page.get_by_role("cell", name="laptop", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile("^rk_"))).to_have_count(0)


def test_key_of_a_provider_is_never_shown_again(ada: Visitor) -> None:
    key = "sk-never-shown-again"
    body = {"type": "openai_compat", "name": "secretive", "base_url": "http://127.0.0.1:9/v1", "api_key": key}
    made = ada.ask("POST", "/model-providers", body)
    told: list[str] = []
    ada.page.on("response", lambda answer: told.append(answer.text()) if "/api/" in answer.url and answer.ok else None)
    page = ada.go("/settings/providers")

    row = page.get_by_role("row").filter(has_text="secretive")
    row.get_by_role("button", name="Edit").click()
    field = page.get_by_role("dialog").get_by_label("API key", exact=True)
    expect(field).to_have_value("")
    expect(field).to_have_attribute("type", "password")
    ada.ask("DELETE", f"/model-providers/{made['id']}")

    assert key not in page.content()
    assert told
    assert not [text for text in told if key in text]


def test_provider_is_tested_before_it_is_stored_and_before_it_is_changed(ada: Visitor, script: ModelScript) -> None:
    works = ada.ask("GET", f"/model-providers/{provider_of(ada, script.config(ada))}")["base_url"]
    nowhere = "http://127.0.0.1:1/v1"
    page = ada.go("/settings/providers")
    page.get_by_role("button", name="Add provider").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type").select_option("OpenAI-compatible")
    dialog.get_by_label("Name", exact=True).fill("tried-first")
    dialog.get_by_label("Base URL").fill(nowhere)
    dialog.get_by_label("Base URL").press("Enter")
    failed = dialog.get_by_role("alert")
    expect(failed).to_contain_text(f"Tried: GET {nowhere}/models. Nothing was saved.")
    assert "tried-first" not in names_of_providers(ada)
    assert ada.violations() == []

    # This server lists no models, so one is named for the test.
    dialog.get_by_label("Base URL").fill(works)
    dialog.get_by_role("button", name="Test and save").click()
    expect(failed).to_contain_text(f"Tried: GET {works}/models.")
    dialog.get_by_label("Model id for the test (optional)").fill("actor")
    dialog.get_by_role("button", name="Test and save").click()
    expect(dialog).to_have_count(0)
    assert "tried-first" in names_of_providers(ada)

    row = page.get_by_role("row").filter(has_text="tried-first")
    row.get_by_role("button", name="Edit").click()
    # Another name needs no test.
    dialog.get_by_label("Shown as").fill("Provider of tests")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog).to_have_count(0)
    row = page.get_by_role("row").filter(has_text="Provider of tests")
    row.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Base URL").fill(nowhere)
    dialog.get_by_role("button", name="Test and save").click()
    expect(failed).to_contain_text("Nothing was saved.")
    assert names_of_providers(ada)["tried-first"]["base_url"] == works
    dialog.get_by_role("button", name="Save anyway").click()
    expect(dialog).to_have_count(0)
    stored = names_of_providers(ada)["tried-first"]
    assert stored["base_url"] == nowhere
    ada.ask("DELETE", f"/model-providers/{stored['id']}")


def provider_of(visitor: Visitor, config: str) -> str:
    return str(visitor.ask("GET", f"/model-configs/{config}")["provider_id"])


def names_of_providers(visitor: Visitor) -> dict[str, Any]:
    return {each["name"]: each for each in visitor.ask("GET", "/model-providers")["items"]}


def test_templates_say_what_their_workspaces_reach(ada: Visitor) -> None:
    push(ada, "few", 'network = "hosts"\nhosts = ["git.example.org", "*.example.net:8443"]')
    push(ada, "many", f'network = "hosts"\nhosts = {[f"host{number}.example.org" for number in range(12)]}')
    push(ada, "shut", 'network = "none"')
    push(ada, "open", 'network = "host"')

    # By way of the composer, which offers templates too: the page keeps what it was told once.
    page = ada.go("/")
    page.get_by_role("button", name=re.compile("^Workspace:")).click()
    expect(page.get_by_role("option").filter(has_text="few")).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("history.pushState(null, '', '/settings/workspaces'); dispatchEvent(new PopStateEvent('popstate'))")
    rows = page.get_by_role("row")

    expect(rows.filter(has_text="few")).to_contain_text("Listed hosts")
    expect(rows.filter(has_text="few").get_by_text("Reaches git.example.org, *.example.net:8443")).to_be_visible()
    expect(rows.filter(has_text="shut")).to_contain_text("None")
    expect(rows.filter(has_text="Blank")).to_contain_text("Public hosts")
    expect(rows.filter(has_text="open")).to_contain_text("Public hosts")
    expect(rows.filter(has_text="open")).to_contain_text("It asks for more (The server's own) than this server allows")
    many = rows.filter(has_text="many")
    expect(many.get_by_text("host7.example.org")).not_to_be_visible()
    many.get_by_text("Reaches 12 hosts").click()
    expect(many.get_by_text("host7.example.org")).to_be_visible()


def push(admin: Visitor, name: str, sandbox: str) -> None:
    """Store a template with this name, whose workspaces have this sandbox."""
    manifest = f'name = "{name}"\n[sandbox]\n{sandbox}\n'.encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("template.toml")
        entry.size = len(manifest)
        archive.addfile(entry, io.BytesIO(manifest))
    admin.ask("PUT", f"/templates/{name}", packed.getvalue())


def test_a_page_of_the_settings_starts_at_its_beginning(ada: Visitor) -> None:
    page = ada.go("/settings/profile")
    ada.page.set_viewport_size({"width": 1280, "height": 500})
    menu = page.get_by_role("navigation", name="Settings")

    menu.get_by_role("link", name="Workspaces", exact=True).click()

    expect(page.get_by_role("heading", level=1, name="Workspaces")).to_be_in_viewport()
    expect(page.get_by_role("heading", name="Templates")).to_be_in_viewport()


def test_dialog_of_a_new_model_starts_at_the_first_empty_field(ada: Visitor) -> None:
    page = ada.go("/settings/models")
    providers = ada.ask("GET", "/model-providers")["items"]
    page.get_by_role("button", name="Add model").click()
    dialog = page.get_by_role("dialog", name="Add model")

    first = dialog.get_by_label("Model") if len(providers) == 1 else dialog.get_by_label("Provider")
    expect(first).to_be_focused()


def test_menu_of_a_chat_says_where_recording_is_switched_on(ada: Visitor, script: ModelScript) -> None:
    ada.ask("PUT", "/settings/debug", {"allow_users": False})
    ada.chat("say hello", title="Without records", model_config_id=script.config(ada))
    page = ada.go("/")
    page.get_by_role("button", name="Actions for Without records", exact=True).click()
    page.get_by_role("menuitem", name="Debug records").click()
    dialog = page.get_by_role("dialog", name="Debug records")

    expect(dialog).to_contain_text("Recording is off on this server.")
    dialog.get_by_role("link", name="Settings, Debug records").click()
    expect(page.get_by_role("heading", level=1, name="Debug records")).to_be_visible()
