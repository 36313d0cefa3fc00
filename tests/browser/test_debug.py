"""The Debug tab: recorded model calls of a chat, live and afterwards, and links between them and the conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rookery.testing.fake_completions import Answer, FakeCall
from rookery.testing.fake_server import Scenario
from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.faulty_connection import EventLoopThread
from tests.browser.keyboard import Keys
from tests.browser.model_script import ModelScript
from tests.browser.stored_chats import StoredChats
from tests.browser.stored_records import RARE, RARE_STEP, StoredRecords
from tests.browser.test_large_chats import working

REFUSED = Scenario(
    status=429,
    headers={"retry-after": "1"},
    body={"error": {"message": "Too many requests for now.", "type": "rate_limit_error"}},
)
DENIED = Scenario(status=401, body={"error": {"message": "Wrong key.", "type": "authentication_error"}})
MAX_OPENING_MS = 1_000.0
MAX_ELEMENTS = 3_000


@pytest.fixture
def edna(ada: Visitor, visit: Visit) -> Iterator[Visitor]:
    """A user whose chats are recorded. The settings are restored for other tests of this server."""
    before = ada.ask("GET", "/settings/debug")["values"]
    ada.ask("PUT", "/settings/debug", {"allow_users": True})
    if not any(user["username"] == "edna" for user in ada.ask("GET", "/users")["items"]):
        ada.ask("POST", "/users", {"email": "edna@example.org", "username": "edna", "password": PASSWORD})
    edna = visit("edna")
    edna.ask("PATCH", "/me/settings", {"debug": True})
    yield edna
    ada.ask("PUT", "/settings/debug", {name: before[name] for name in ("allow_users", "retention_days")})


@pytest.fixture
def records(backstage: EventLoopThread, database: str) -> StoredRecords:
    return StoredRecords(backstage, database)


def steps_of(page: Page) -> Any:
    return page.get_by_role("listbox", name="Steps").get_by_role("option")


def test_turn_with_one_refusal_is_shown_exported_and_linked_both_ways(
    ada: Visitor, edna: Visitor, script: ModelScript, tmp_path: Path
) -> None:
    script.plays("count the herons", REFUSED, Answer(calls=[FakeCall("list_agents", "{}")]), Answer(text="Two herons."))
    chat = edna.chat("count the herons", title="Herons", model_config_id=script.config(ada))
    edna.wait_for_rest(chat["id"])
    page = edna.go(f"/c/{chat['id']}")

    page.get_by_role("feed").get_by_role("button", name="Debug").click()
    expect(page).to_have_url(re.compile(r"panel=debug(:|%3A)[0-9a-f-]{36}"))
    steps = steps_of(page)
    expect(steps).to_have_count(2)
    expect(steps.first).to_contain_text("1 tool call")
    expect(steps.first).to_contain_text("1 retry")
    steps.first.click()
    expect(page.get_by_role("region", name="Errors")).to_contain_text("rate limit")
    prompt = page.get_by_role("region", name=re.compile("^Message .* user"))
    expect(prompt).to_contain_text("count the herons")
    page.get_by_role("tab", name="Attempts 2").click()
    refused = page.get_by_role("region", name="Attempt 1")
    expect(refused).to_contain_text("429")
    expect(refused).to_contain_text("Tried again")
    refused.get_by_role("button", name="Attempt 1").click()
    expect(refused.get_by_role("group", name="response 1")).to_contain_text("Too many requests for now.")
    assert edna.violations() == []

    page.get_by_role("button", name="Next step").click()
    page.get_by_role("tab", name=re.compile("^Input")).click()
    expect(page.get_by_text("New since step 1: 2 messages")).to_be_visible()
    page.get_by_role("tab", name="Output").click()
    expect(page.get_by_role("tabpanel", name="Output")).to_contain_text("Two herons.")
    page.get_by_role("button", name="Show in conversation").click()
    expect(page.locator("article[data-kind=prose]").filter(has_text="Two herons.")).to_be_in_viewport()
    page.get_by_role("button", name="Back to the steps").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export this run").click()
    assert re.fullmatch(r"rookery-debug-run-[0-9a-f]{8}-.*\.json", download.value.suggested_filename)
    download.value.save_as(tmp_path / "run.json")
    exported = json.loads((tmp_path / "run.json").read_text())
    assert (exported["version"], exported["run_count"], len(exported["runs"][0]["steps"])) == (1, 1, 2)


def test_failed_turn_of_an_unrecorded_chat_is_kept_and_its_error_opens_it(ada: Visitor, script: ModelScript) -> None:
    script.plays("use the wrong key", DENIED)
    chat = ada.chat("use the wrong key", title="Denied", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")

    page.get_by_test_id("chat-error").get_by_role("button", name="Debug").click()

    expect(page.get_by_role("region", name="Errors")).to_contain_text("HTTP 401")
    expect(page.get_by_role("region", name="Errors")).to_contain_text("Wrong key.")
    expect(page.get_by_role("region", name="Message 3, user")).to_contain_text("use the wrong key")
    # Exchanges are observed only while recording is on.
    expect(page.get_by_role("tab", name="Usage")).to_be_visible()
    expect(page.get_by_role("tab", name="Attempts")).to_have_count(0)


def test_open_run_is_followed_until_it_ends(ada: Visitor, edna: Visitor, script: ModelScript) -> None:
    cue = script.cue()
    script.plays("take your time", [Answer(text="One "), cue, Answer(text="moment.")])
    chat = edna.chat("take your time", title="Slow", model_config_id=script.config(ada))
    page = edna.go(f"/c/{chat['id']}?panel=debug")
    turn = page.get_by_role("listbox", name="Runs").get_by_role("option", name=re.compile("take your time.*Turn"))
    expect(turn.get_by_role("img", name="Running")).to_be_visible()
    turn.click()
    expect(page.get_by_role("heading", name="Step 1 of 1")).to_be_visible()

    cue.give()

    expect(
        page.get_by_role("heading", name="take your time").locator("..").get_by_role("img", name="Completed")
    ).to_be_visible()
    page.get_by_role("tab", name="Output").click()
    expect(page.get_by_role("tabpanel", name="Output")).to_contain_text("One moment.")


def test_owner_switches_recording_of_a_chat_and_deletes_its_records(ada: Visitor, edna: Visitor) -> None:
    chat = edna.chat("hello", title="Switched")
    edna.wait_for_rest(chat["id"])
    page = edna.go(f"/c/{chat['id']}?panel=debug")
    runs = page.get_by_role("listbox", name="Runs").get_by_role("option")
    expect(runs.first).to_be_visible()
    mode = page.get_by_label("Record this chat")
    expect(mode).to_have_value("inherit")
    expect(mode).to_contain_text("As in your settings (on)")

    mode.select_option("Never")
    expect(mode).to_have_value("off")
    page.get_by_role("button", name="Export or delete records").click()
    page.get_by_role("menuitem", name="Delete all records").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Recording is off.")).to_be_visible()

    page.get_by_role("button", name="Record this chat").click()
    expect(mode).to_have_value("on")
    expect(page.get_by_text("Nothing is recorded yet.")).to_be_visible()


def test_tab_is_hidden_where_nothing_is_recorded_and_users_may_not_record(ada: Visitor, edna: Visitor) -> None:
    ada.ask("PUT", "/settings/debug", {"allow_users": False})
    chat = edna.chat("hello", title="Unseen")
    edna.wait_for_rest(chat["id"])

    page = edna.go(f"/c/{chat['id']}?panel=debug")

    expect(page.get_by_role("tab", name="Info")).to_have_attribute("data-state", "active")
    expect(page.get_by_role("tab", name="Debug")).to_have_count(0)
    expect(page.get_by_role("button", name="Debug")).to_have_count(0)


def test_administrator_with_a_reason_reads_records_and_changes_nothing(ada: Visitor, edna: Visitor) -> None:
    chat = edna.chat("hello", title="Inspected")
    edna.wait_for_rest(chat["id"])
    ada.allow("status of 403|WebSocket connection")
    page = ada.go(f"/c/{chat['id']}?panel=debug")
    page.get_by_role("textbox", name="Reason").fill("Edna asked me to look")
    page.get_by_role("button", name="Read the chat").click()

    page.get_by_role("listbox", name="Runs").get_by_role("option", name=re.compile("hello.*Turn")).click()

    expect(page.get_by_role("region", name=re.compile("^Message .* user"))).to_contain_text("hello")
    expect(page.get_by_role("button", name="Replay", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Back to the runs").click()
    expect(page.get_by_label("Record this chat")).to_have_count(0)
    page.get_by_role("button", name="Export or delete records").click()
    expect(page.get_by_role("menuitem")).to_have_text(["Export the newest 100 runs"])


def test_run_of_a_thousand_steps_opens_at_once_and_is_searched(
    edna: Visitor, stored: StoredChats, records: StoredRecords, ada: Visitor
) -> None:
    chat = edna.chat("hello", title="Birds")
    edna.wait_for_rest(chat["id"])
    run = records.run(chat["id"], step_count=1_000)
    page = edna.go(f"/c/{chat['id']}?panel=debug")
    entry = page.get_by_role("option", name=re.compile("Look at every bird"))
    entry.wait_for()

    with working(page) as opening:
        entry.click()
        expect(steps_of(page).first).to_be_visible()
    steps = page.get_by_role("listbox", name="Steps")
    steps.focus()
    page.keyboard.press("End")
    expect(steps_of(page).filter(has_text=re.compile("^Step 1000"))).to_be_visible()
    elements = page.evaluate("document.querySelectorAll('*').length")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Step 1000 of 1000")).to_be_focused()
    expect(page.get_by_text("New since step 999: 2 messages")).to_be_visible()
    page.get_by_role("button", name="Back to the steps").click()
    expect(steps).to_be_focused()
    page.get_by_role("textbox", name="Search in this run").fill(RARE.upper())
    places = page.get_by_role("listbox", name="Places").get_by_role("option")
    expect(places).to_have_count(1)
    places.click()
    expect(page.get_by_role("heading", name=f"Step {RARE_STEP} of 1000")).to_be_visible()
    message = page.get_by_role("region", name=f"Message {2 * RARE_STEP}, tool, new")
    expect(message.locator("mark")).to_have_text(RARE)

    assert opening[0] < MAX_OPENING_MS
    assert elements < MAX_ELEMENTS
    assert run in page.url


def test_everything_in_the_tab_of_a_linked_step_is_reached_by_tab(
    ada: Visitor, edna: Visitor, script: ModelScript
) -> None:
    script.plays("greet me", Answer(calls=[FakeCall("list_agents", "{}")]), Answer(text="Good morning."))
    chat = edna.chat("greet me", title="Walked", model_config_id=script.config(ada))
    edna.wait_for_rest(chat["id"])
    page = edna.go(f"/c/{chat['id']}?panel=debug")
    page.get_by_role("listbox", name="Runs").get_by_role("option", name=re.compile("greet me.*Turn")).click()
    steps_of(page).nth(1).click()
    page.reload()
    expect(page.get_by_role("heading", name="Step 2 of 2")).to_be_visible()
    expect(page.get_by_role("region", name=re.compile("^Message 5"))).to_be_visible()

    assert Keys(edna).walk("aside") == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_two_runs_are_compared_and_a_step_is_opened_from_there(
    ada: Visitor, edna: Visitor, script: ModelScript, theme: str, tmp_path: Path
) -> None:
    question = f"count the {theme} owls"
    script.plays(question, Answer(calls=[FakeCall("list_agents", "{}")]), Answer(text="Two owls."))
    script.plays("count them again", Answer(text="Three owls."))
    chat = edna.chat(question, title=f"Owls, {theme}", model_config_id=script.config(ada))
    edna.wait_for_rest(chat["id"])
    edna.ask("POST", f"/chats/{chat['id']}/messages", {"content": [{"type": "text", "text": "count them again"}]})
    edna.wait_for_rest(chat["id"])
    edna.ask("PATCH", "/me/settings", {"display": {"theme": theme}})
    page = edna.go(f"/c/{chat['id']}?panel=debug")
    page.get_by_role("listbox", name="Runs").get_by_role("option", name=re.compile(f"{question}.*Turn")).click()

    page.get_by_role("button", name="Compare with another run").click()

    dialog = page.get_by_role("dialog", name="Compare runs")
    expect(dialog.get_by_label("Compare with")).to_contain_text("count them again")
    expect(dialog.get_by_role("row", name=re.compile("^Steps"))).to_contain_text("1 more (+100 %)")
    expect(dialog.get_by_role("region", name="Prompts")).to_contain_text(
        "The prompts differ from message 4 of step 1 on."
    )
    expect(dialog.get_by_role("region", name="Message of this run")).to_contain_text("ends before this message")
    expect(dialog.get_by_role("region", name="Message of other run")).to_contain_text("list_agents")
    pairs = dialog.get_by_role("listbox", name="Steps of both runs").get_by_role("option")
    expect(pairs).to_have_count(2)
    expect(pairs.nth(1)).to_contain_text("only in this run")
    assert edna.violations() == []
    page.screenshot(path=tmp_path / f"compare-{theme}.png")
    pairs.nth(1).click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="Step 2 of 2")).to_be_visible()


def test_step_is_replayed_with_an_edited_message_beside_the_recorded_answer(
    ada: Visitor, edna: Visitor, script: ModelScript
) -> None:
    script.plays("name a bird", Answer(text="A heron."))
    script.plays("name a fish", Answer(text="A pike."))
    chat = edna.chat("name a bird", title="Replayed", model_config_id=script.config(ada))
    edna.wait_for_rest(chat["id"])
    page = edna.go(f"/c/{chat['id']}")
    page.get_by_role("feed").get_by_role("button", name="Debug").click()
    page.get_by_role("button", name="Replay", exact=True).click()
    dialog = page.get_by_role("dialog", name="Replay step 1")
    dialog.get_by_label("Change a message (optional)").select_option("3, user: name a bird")
    dialog.get_by_role("textbox", name=re.compile("^Message .* user")).fill("name a fish")

    dialog.get_by_role("button", name="Replay", exact=True).click()

    expect(dialog.get_by_role("region", name="Recorded")).to_contain_text("A heron.")
    expect(dialog.get_by_role("region", name="Replay")).to_contain_text("A pike.")
    assert edna.violations() == []
    messages = edna.ask("GET", f"/chats/{chat['id']}/messages")["items"]
    assert not any("pike" in json.dumps(message) for message in messages)


def test_administrator_sets_the_policy_and_users_their_own_switch(ada: Visitor, edna: Visitor) -> None:
    page = ada.go("/settings/debug")
    page.get_by_label("Delete records after").fill("7")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    assert ada.ask("GET", "/settings/debug")["values"]["retention_days"] == 7

    own = edna.go("/settings/chat").get_by_role("switch", name="Record model calls")
    expect(own).to_be_checked()
    own.click()
    expect(own).not_to_be_checked()
    assert edna.ask("GET", "/me/settings")["debug"] is False
