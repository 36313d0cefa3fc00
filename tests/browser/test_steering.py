"""Steering: a message that reaches the running turn at its next step."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import Cue, ModelScript


def begin(visitor: Visitor, script: ModelScript, prompt: str) -> tuple[Page, Cue]:
    """Open a chat whose turn runs until the cue is given."""
    cue = script.cue()
    script.plays(prompt, [Answer(text="I look."), cue, Answer(calls=[FakeCall("list_templates", "{}")])])
    chat = visitor.chat(prompt, title="Steered", model_config_id=script.config(visitor))
    page = visitor.go(f"/c/{chat['id']}")
    expect(page.get_by_role("main")).to_contain_text("I look.")
    return page, cue


def queued(page: Page) -> Locator:
    return page.get_by_role("region", name="Queued messages").get_by_role("listitem")


def test_enter_queues_and_control_enter_steers_into_the_running_turn(ada: Visitor, script: ModelScript) -> None:
    script.plays("use the red one", Answer(text="Red it is."))
    script.plays("and then rest", Answer(text="I rest."))
    page, cue = begin(ada, script, "begin")
    feed = page.get_by_role("feed")
    box = page.get_by_role("textbox", name="Message")
    box.fill("and then rest")
    box.press("Enter")
    expect(queued(page)).to_have_count(1)
    box.fill("use the red one")
    box.press("Control+Enter")
    rows = queued(page)
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("use the red one")
    expect(rows.filter(has_text="use the red one")).to_contain_text("Next step")
    expect(rows.filter(has_text="and then rest")).not_to_contain_text("Next step")
    expect(rows.first.get_by_role("button", name="Stop and send")).to_be_visible()
    assert ada.violations() == []
    cue.give()
    expect(feed).to_contain_text("I rest.")
    said = feed.inner_text()
    places = [said.index(text) for text in ("I look.", "use the red one", "Red it is.", "and then rest", "I rest.")]
    assert places == sorted(places), said
    assert said.count("Steered") == 1


def test_thumb_chooses_how_to_send_while_the_agent_works(visit: Visit, script: ModelScript) -> None:
    phone = visit("ada", viewport={"width": 360, "height": 780}, has_touch=True, is_mobile=True)
    script.plays("use the blue one", Answer(text="Blue it is."))
    page, cue = begin(phone, script, "begin on the phone")
    expect(page.get_by_role("button", name="Ways to send")).to_have_count(0)
    page.get_by_role("textbox", name="Message").fill("use the blue one")
    expect(page.get_by_role("button", name="Ways to send")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing scrolls sideways"
    page.get_by_role("button", name="Ways to send").tap()
    page.get_by_role("menuitem", name="Steer at the next step").tap()
    expect(queued(page)).to_contain_text("Next step")
    assert phone.violations() == []
    cue.give()
    expect(page.get_by_role("feed")).to_contain_text("Blue it is.")


def test_control_shift_enter_stops_the_turn_and_sends(ada: Visitor, script: ModelScript) -> None:
    script.plays("do this instead", Answer(text="I do this instead."))
    page, _ = begin(ada, script, "begin something long")
    box = page.get_by_role("textbox", name="Message")
    box.fill("do this instead")
    box.press("Control+Shift+Enter")
    expect(page.get_by_role("feed")).to_contain_text("I do this instead.")
    expect(page.get_by_role("feed")).to_contain_text("Stopped")


def test_preference_swaps_queue_and_steer(ada: Visitor, script: ModelScript) -> None:
    page = ada.go("/settings/chat")
    page.get_by_role("radio", name="Steer the agent while it works").check()
    expect(page.get_by_role("radio", name="Steer the agent while it works")).to_be_checked()
    page, cue = begin(ada, script, "begin with the other preference")
    box = page.get_by_role("textbox", name="Message")
    box.fill("to be read soon")
    page.get_by_role("button", name="Steer the agent").click()
    box.fill("to be read later")
    box.press("Control+Enter")
    expect(queued(page)).to_have_count(2)
    expect(queued(page).first).to_contain_text("Next step")
    expect(queued(page).last).not_to_contain_text("Next step")
    cue.give()
    ada.ask("PATCH", "/me/settings", {"display": {"busy_send": "queue"}})


def test_queue_is_taken_back_into_the_message_box_before_a_stop(ada: Visitor, script: ModelScript) -> None:
    page, _ = begin(ada, script, "begin and be stopped")
    box = page.get_by_role("textbox", name="Message")
    stop = page.get_by_role("button", name="Stop", exact=True)
    expect(stop).not_to_have_attribute("aria-description", "The next queued message is sent")
    for number, text in enumerate(("the first", "the second", "the third"), 1):
        box.fill(text)
        box.press("Enter")
        expect(queued(page)).to_have_count(number)
    queue = page.get_by_role("region", name="Queued messages")
    expect(queue).to_contain_text("3 queued. The next is sent when the agent is done or stopped.")
    expect(stop).to_have_attribute("aria-description", "The next queued message is sent")

    # A deleted message returns to its place.
    queued(page).nth(1).get_by_role("button", name="Delete").click()
    expect(queued(page)).to_have_count(2)
    notice = page.get_by_role("status").filter(has_text="Deleted from the queue.").bounding_box()
    assert notice
    assert notice["y"] + notice["height"] < 160, "the notice is below the header, far from the message box"
    page.get_by_role("button", name="Undo").click()
    expect(queued(page)).to_have_count(3)
    expect(queued(page).nth(1)).to_contain_text("the second")
    expect(queued(page).last).to_contain_text("the third")

    box.fill("a draft")
    queue.get_by_role("button", name="Take back all").press("Enter")
    expect(queue).to_have_count(0)
    expect(box).to_have_value("a draft\n\nthe first\n\nthe second\n\nthe third")
    expect(box).to_be_focused()
    stop.click()
    expect(page.get_by_role("feed")).to_contain_text("Stopped at")
    expect(page.get_by_role("feed")).not_to_contain_text("the first")
