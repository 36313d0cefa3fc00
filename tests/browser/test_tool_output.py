"""The output of tools in a browser: live, failed, in a group, and complete."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from playwright.sync_api import Locator, expect

from rookery.domain.chat.messages import Role
from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import PATIENCE_MS, Visitor, wait_until
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript
from tests.browser.stored_chats import Step, StoredChats

BELOW = "(box) => box.scrollHeight - box.scrollTop - box.clientHeight"
# An id, a tool, its arguments, its result, and whether it failed.
Call = tuple[str, str, Mapping[str, object], object, bool]
LINES = "".join(f"line {number} of the log\n" for number in range(1, 101))


def steps(*calls: Call) -> list[Step]:
    """One step of calls and its results."""
    asked: list[dict[str, object]] = [
        {"type": "tool-call", "tool_call_id": name, "tool_name": tool, "args": args} for name, tool, args, _, _ in calls
    ]
    results: list[dict[str, object]] = [
        {"type": "tool-result", "tool_call_id": name, "tool_name": tool, "result": result, "is_error": failed}
        for name, tool, _, result, failed in calls
    ]
    return [(Role.ASSISTANT, asked), (Role.TOOL, results)]


def command(name: str, line: str, exit_code: int, output: str) -> Call:
    result = {"success": exit_code == 0, "exit_code": exit_code, "output": output, "wall_duration_ms": 1200}
    return name, "execute", {"command": line}, result, False


def is_at_end(box: Locator) -> bool:
    return bool(box.evaluate(BELOW) < 2)


def test_live_output_follows_its_end_until_the_user_scrolls_it_up(ada: Visitor, script: ModelScript) -> None:
    loop = "seq -f 'row %g' 1 60; while true; do n=$((n+1)); echo tick $n; sleep 0.1; done"
    call = FakeCall("execute", json.dumps({"command": loop, "timeout": "10m"}))
    script.plays("watch it", Answer(calls=[call]), Answer(text="It was stopped."))
    made = ada.ask("POST", "/workspaces", {"template": "blank"})["workspace"]
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while ada.ask("GET", f"/workspaces/{made['id']}")["status"] != "running":
        assert time.monotonic() < deadline
        ada.page.wait_for_timeout(100)
    chat = ada.chat("watch it", title="Live output", model_config_id=script.config(ada), workspace_id=made["id"])
    page = ada.go(f"/c/{chat['id']}")
    card = page.get_by_test_id("tool-execute")
    card.get_by_role("button").first.click()
    box = card.get_by_role("group", name="Output")
    expect(box).to_contain_text("tick 3")
    assert is_at_end(box)
    expect(card.get_by_role("button", name="Show from start")).to_have_count(0)

    # The box keeps the place of a user who reads above its end.
    box.hover()
    page.mouse.wheel(0, -100_000)
    wait_until(page, "() => document.querySelector('[role=group][aria-label=Output]').scrollTop === 0")
    box.evaluate("(box) => { window.lines = box.textContent.length; }")
    wait_until(page, "() => document.querySelector('[role=group][aria-label=Output]').textContent.length > lines + 60")
    assert box.evaluate("(box) => box.scrollTop") == 0

    box.evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
    page.get_by_role("button", name="Stop", exact=True).click()
    ada.wait_for_rest(chat["id"])
    expect(card).to_have_attribute("data-state", "stopped")


def test_failed_output_opens_at_its_end_and_shows_its_start_on_request(ada: Visitor, stored: StoredChats) -> None:
    chat = stored.chat(ada, "Failed output", steps=steps(command("c1", "make test", 2, LINES)))
    page = ada.go(f"/c/{chat}")
    card = page.get_by_test_id("tool-execute")
    card.get_by_role("button").first.click()
    box = card.get_by_role("group", name="Output")
    expect(box.get_by_text("line 100 of the log")).to_be_visible()
    assert is_at_end(box)
    assert ada.violations() == []

    card.get_by_role("button", name="Show from start").click()
    assert box.evaluate("(box) => box.scrollTop") == 0
    expect(box).to_be_focused()
    expect(card.get_by_role("button", name="Show from start")).to_have_count(0)


def test_output_of_a_command_that_succeeded_opens_at_its_start(ada: Visitor, stored: StoredChats) -> None:
    chat = stored.chat(ada, "Good output", steps=steps(command("c1", "make test", 0, LINES)))
    page = ada.go(f"/c/{chat}")
    card = page.get_by_test_id("tool-execute")
    card.get_by_role("button").first.click()
    box = card.get_by_role("group", name="Output")
    expect(box.get_by_text("line 1 of the log")).to_be_visible()
    assert box.evaluate("(box) => box.scrollTop") == 0
    expect(card.get_by_role("button", name="Show from start")).to_have_count(0)


def test_process_that_runs_and_failed_tool_of_a_server_show_their_ends(ada: Visitor, stored: StoredChats) -> None:
    running = {"success": True, "running": True, "output": LINES, "command": "make serve"}
    made = steps(("p1", "process_output", {"process_id": "p"}, running, False))
    made += [(Role.ASSISTANT, [{"type": "text", "text": "And now the other one."}])]
    made += steps(("u1", "github__create_issue", {"title": "x"}, LINES, True))
    chat = stored.chat(ada, "Other tools", steps=made)
    page = ada.go(f"/c/{chat}")
    for tool in ("process_output", "github__create_issue"):
        card = page.get_by_test_id(f"tool-{tool}")
        card.get_by_role("button").first.click()
        box = card.get_by_role("group", name="Output")
        expect(box).to_contain_text("line 100 of the log")
        assert is_at_end(box)
        expect(card.get_by_role("button", name="Show from start")).to_be_visible()


def test_folded_group_names_its_failure_and_opens_at_it(ada: Visitor, stored: StoredChats, visit: Visit) -> None:
    reads = [
        (f"r{number}", "read_file", {"path": f"/src/file_{number}.py"}, {"content": "1\tx\n", "lines_read": 1}, False)
        for number in range(40)
    ]
    lost = ("bad", "read_file", {"path": "/src/lost.py"}, {"error": "There is no such file."}, True)
    made = steps(*reads, command("c1", "make test", 2, LINES), lost)
    chat = stored.chat(ada, "A failure in a group", steps=made)
    page = ada.go(f"/c/{chat}")
    group = page.get_by_test_id("tool-group")
    expect(group).to_contain_text("1 failed")
    expect(group).to_contain_text("exit 2")
    expect(group.get_by_test_id("group-failure")).to_have_text("Could not read lost.py: There is no such file.")
    assert ada.violations() == []

    group.get_by_role("button").first.click()
    failed = group.locator("[data-call=bad]")
    expect(failed).to_be_in_viewport()
    expect(failed.get_by_role("button").first).to_have_attribute("aria-expanded", "true")
    expect(group.get_by_test_id("group-failure")).to_have_count(0)

    # By keys, on a phone.
    phone = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    small = phone.go(f"/c/{chat}")
    group = small.get_by_test_id("tool-group")
    group.get_by_role("button").first.press("Enter")
    expect(group.locator("[data-call=bad]")).to_be_in_viewport()
    assert phone.violations() == []


def test_folded_group_of_commands_names_the_one_that_ended_with_an_error(ada: Visitor, stored: StoredChats) -> None:
    made = steps(command("c1", "make lint", 0, "fine\n"), command("c2", "make test", 1, LINES))
    page = ada.go(f"/c/{stored.chat(ada, 'A bad exit in a group', steps=made)}")
    group = page.get_by_test_id("tool-group")
    expect(group.get_by_test_id("group-failure")).to_have_text("Ran make test: exit 1")

    group.get_by_role("button").first.click()
    box = group.locator("[data-call=c2]").get_by_role("group", name="Output")
    expect(box.get_by_text("line 100 of the log")).to_be_visible()
    expect(box.get_by_text("line 100 of the log")).to_be_in_viewport()
