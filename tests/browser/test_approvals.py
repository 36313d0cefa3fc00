"""Approvals in a browser: decisions per call, rules that "always" creates, denied calls, and the settings page."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript

EDIT = {"files": [{"path": "/src/hello.py", "edits": [{"old_text": "print('hello')", "new_text": "print('goodbye')"}]}]}


def careful_chat(ada: Visitor, script: ModelScript, title: str, *tools: str) -> str:
    """A chat at rest that asks before it uses these tools."""
    chat = ada.chat("hello", title=title, model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    rules = [{"tool": tool, "action": "ask"} for tool in tools]
    ada.ask("PUT", f"/chats/{chat['id']}/approval-rules", {"rules": rules})
    return str(chat["id"])


def run(command: str) -> FakeCall:
    return FakeCall("execute", json.dumps({"command": command}))


def say(ada: Visitor, chat: str, words: str) -> None:
    ada.ask("POST", f"/chats/{chat}/messages", {"content": [{"type": "text", "text": words}]})


def test_denied_calls_say_who_denied_them_and_count_neither_as_run_nor_as_failed(
    ada: Visitor, script: ModelScript
) -> None:
    script.plays("two risky", Answer(calls=[run("echo one"), run("echo two")]), Answer(text="I let it be."))
    chat = careful_chat(ada, script, "Denied calls", "execute")
    page = ada.go(f"/c/{chat}")
    say(ada, chat, "two risky")
    card = page.get_by_test_id("approval")
    card.get_by_role("button", name="Deny all").click()
    card.get_by_role("textbox", name="Why not").fill("Not on a Friday")
    card.get_by_role("button", name="Deny all").click()
    expect(page.get_by_role("feed")).to_contain_text("I let it be.")

    group = page.get_by_test_id("tool-group")
    expect(group).to_contain_text("2 denied by you")
    expect(group).not_to_contain_text("failed")
    expect(group).not_to_contain_text("Ran")
    group.get_by_role("button").first.click()
    cards = page.get_by_test_id("tool-execute")
    for each in cards.all():
        expect(each).to_have_attribute("data-state", "denied")
        expect(each).to_contain_text("Denied by you")
        expect(each).to_contain_text("Not on a Friday")
        expect(each).not_to_contain_text("Do not repeat it")
    assert ada.violations() == []


def test_calls_that_a_rule_denies_are_not_failures(ada: Visitor, script: ModelScript) -> None:
    script.plays("two forbidden", Answer(calls=[run("echo one"), run("echo two")]), Answer(text="I let it be."))
    chat = careful_chat(ada, script, "Denied by a rule", "execute")
    ada.ask("PUT", f"/chats/{chat}/approval-rules", {"rules": [{"tool": "execute", "action": "deny"}]})
    page = ada.go(f"/c/{chat}")
    say(ada, chat, "two forbidden")
    expect(page.get_by_role("feed")).to_contain_text("I let it be.")
    group = page.get_by_test_id("tool-group")
    expect(group).to_contain_text("2 denied by a rule")
    expect(group).not_to_contain_text("failed")
    expect(group).not_to_contain_text("Ran")
    group.get_by_role("button").first.click()
    for each in page.get_by_test_id("tool-execute").all():
        expect(each).to_have_attribute("data-state", "denied")
        expect(each).to_contain_text("Denied by a rule")
    assert ada.violations() == []


def test_each_call_has_its_own_decision_and_is_shown_as_what_it_does(
    ada: Visitor, visit: Visit, script: ModelScript
) -> None:
    write = FakeCall("write_file", json.dumps({"path": "/src/new.py", "content": "answer = 42\n"}))
    calls = [run("echo one"), FakeCall("edit_files", json.dumps(EDIT)), write]
    script.plays("three things", Answer(calls=calls), Answer(text="As you decided."))
    chat = careful_chat(ada, script, "Three decisions", "execute", "edit_files", "write_file")
    page = ada.go(f"/c/{chat}")
    say(ada, chat, "three things")
    card = page.get_by_test_id("approval")
    expect(card).to_contain_text("Allow these 3 actions?")
    expect(card).to_contain_text("Waiting for you")
    command, edit, file = (card.get_by_test_id("asked-call").nth(at) for at in range(3))
    expect(command).to_contain_text("$ echo one")
    expect(edit.get_by_role("group", name="Intended change")).to_contain_text("print('goodbye')")
    expect(edit).not_to_contain_text("old_text")
    expect(file).to_contain_text("/src/new.py")
    expect(file.get_by_role("group", name="Content")).to_contain_text("answer = 42")
    # The calls in the timeline wait for the user: nothing turns.
    group = page.get_by_test_id("tool-group")
    expect(group).to_contain_text("Waiting for you")
    expect(group.get_by_role("status")).to_have_count(0)
    assert ada.violations() == []
    phone = visit(viewport={"width": 390, "height": 844}, color_scheme="dark")
    phone.go(f"/c/{chat}")
    expect(phone.page.get_by_test_id("approval")).to_be_visible()
    assert phone.violations() == []

    send = card.get_by_role("button", name="Send decisions")
    for each in (edit, file):
        each.get_by_role("button", name="Deny").click()
        expect(send).to_be_disabled()
    file.get_by_role("textbox", name="Why not").fill("Keep it small")
    command.get_by_role("button", name="Approve").click()
    send.click()
    expect(page.get_by_role("feed")).to_contain_text("As you decided.")
    results = json.dumps(ada.ask("GET", f"/chats/{chat}/messages?limit=50")["items"])
    assert results.count("denied_by_user") == 2
    assert results.count('"comment": "Keep it small"') == 1


def test_always_offers_the_command_its_program_and_the_tool_with_what_they_would_allow(
    ada: Visitor, script: ModelScript
) -> None:
    asks = [run("echo first one"), run("echo second one"), run("echo third; ls")]
    script.plays("say things", *(Answer(calls=[each]) for each in asks), Answer(text="All said."))
    chat = careful_chat(ada, script, "Always a program", "execute")
    page = ada.go(f"/c/{chat}")
    say(ada, chat, "say things")
    card = page.get_by_test_id("approval")
    expect(card).to_contain_text("$ echo first one")
    card.get_by_role("button", name="Approve", exact=True).click()
    expect(card).to_contain_text("$ echo second one")
    card.get_by_role("button", name="Always", exact=True).click()
    offers = card.get_by_role("list", name="Always")
    expect(offers).to_contain_text("This exact command in this chat")
    expect(offers).to_contain_text("This tool in this chat")
    program = offers.get_by_role("listitem").filter(has_text="echo with any arguments in this chat")
    expect(program).to_contain_text("echo *")
    expect(program).to_contain_text("Earlier in this chat it would have allowed echo first one.")
    assert ada.violations() == []
    program.get_by_role("button").click()
    # The rule does not cover two commands in one.
    expect(card).to_contain_text("$ echo third; ls")
    rules = ada.ask("GET", f"/chats/{chat}/approval-rules")["rules"]
    kept = [{key: rule[key] for key in ("tool", "action", "match")} for rule in rules]
    assert {"tool": "execute", "action": "always", "match": {"command": "echo *"}} in kept
    card.get_by_role("button", name="Deny").click()
    card.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("feed")).to_contain_text("All said.")


def test_own_rules_and_rules_for_all_users_are_on_one_page(ada: Visitor) -> None:
    page = ada.go("/settings/approvals")
    expect(page.get_by_role("heading", name="Your rules")).to_be_visible()
    expect(page.get_by_role("heading", name="Rules for all users")).to_be_visible()
    expect(page.get_by_role("link", name="Approval rules")).to_have_count(0)
    assert ada.violations() == []


def repeating_chat(ada: Visitor, script: ModelScript, prompt: str, *after: Answer) -> str:
    """A chat whose agent has repeated a failing call until the brake holds it."""
    script.plays(prompt, *[Answer(calls=[FakeCall("no_such_tool", "{}")])] * 6, *after)
    chat = ada.chat(prompt, title=prompt.capitalize(), model_config_id=script.config(ada))
    return str(chat["id"])


def test_an_agent_that_repeats_itself_can_be_continued_and_steered_and_stopped(
    ada: Visitor, visit: Visit, script: ModelScript
) -> None:
    more = [Answer(calls=[FakeCall("no_such_tool", "{}")])] * 5
    chat = repeating_chat(ada, script, "repeat yourself", *more, Answer(text="I use make now."))
    page = ada.go(f"/c/{chat}")
    card = page.get_by_test_id("brake")
    expect(card).to_contain_text("The agent repeats itself")
    expect(card).to_contain_text("5 times")
    expect(card).to_contain_text("Continue, stop the turn, or tell the agent what to do instead.")
    expect(card.get_by_role("button")).to_have_text(["Stop", "Steer", "Continue"])
    assert ada.violations() == []
    phone = visit(viewport={"width": 390, "height": 844}, color_scheme="dark")
    phone.go(f"/c/{chat}")
    expect(phone.page.get_by_test_id("brake")).to_be_visible()
    assert phone.violations() == []

    card.get_by_role("button", name="Continue").click()
    expect(card).to_have_count(0)
    expect(card).to_contain_text("5 times")
    card.get_by_role("button", name="Steer").click()
    expect(card.get_by_role("button", name="Send")).to_be_disabled()
    card.get_by_role("textbox", name="Instruction for the agent").fill("Use make instead")
    card.get_by_role("textbox").press("Enter")
    expect(page.get_by_role("feed")).to_contain_text("I use make now.")
    results = json.dumps(ada.ask("GET", f"/chats/{chat}/messages?limit=50")["items"])
    assert "The user tells you: Use make instead" in results


def test_stopping_an_agent_that_repeats_itself_ends_its_turn(ada: Visitor, script: ModelScript) -> None:
    chat = repeating_chat(ada, script, "repeat and stop")
    page = ada.go(f"/c/{chat}")
    card = page.get_by_test_id("brake")
    card.get_by_role("button", name="Stop").click()
    expect(card).to_have_count(0)
    ada.wait_for_rest(chat)
