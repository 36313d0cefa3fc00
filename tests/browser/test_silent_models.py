"""Silent models and tools: the messages of the page, and how a user tries again."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def test_silent_model_is_told_with_its_age_and_asked_again_now(ada: Visitor, visit: Visit, script: ModelScript) -> None:
    never = script.cue()
    script.plays("are you there", [never, Answer(text="Too late.")], Answer(text="Here I am."))
    chat = ada.chat("are you there", title="A silent model", model_config_id=script.config(ada))
    page = ada.page
    page.clock.install()
    ada.go(f"/c/{chat['id']}")
    phase = page.get_by_test_id("phase")
    expect(phase).to_contain_text(re.compile(r"Waiting for the model"))
    again = page.get_by_role("button", name="Try again now")
    page.clock.fast_forward(20_000)
    expect(phase).to_contain_text(re.compile(r"Waiting for the model, 2\d s"))
    expect(again).to_have_count(0)

    page.clock.fast_forward(15_000)
    expect(phase).to_contain_text(re.compile(r"Waiting for the model, 3\d s"))
    assert ada.violations() == []
    phone = visit(**PHONE)
    phone.go(f"/c/{chat['id']}")
    expect(phone.page.get_by_test_id("phase")).to_contain_text("Waiting for the model")
    again.press("Enter")
    expect(page.get_by_role("feed")).to_contain_text("Here I am.")
    expect(page.get_by_role("feed")).not_to_contain_text("Too late.")
    expect(phone.page.get_by_role("feed")).to_contain_text("Here I am.")


def test_answer_that_stops_in_the_middle_is_told_as_silent(ada: Visitor, script: ModelScript) -> None:
    never = script.cue()
    script.plays(
        "tell me half", [Answer(text="The first half, "), never, Answer(text="never")], Answer(text="All of it.")
    )
    chat = ada.chat("tell me half", title="Half an answer", model_config_id=script.config(ada))
    page = ada.page
    page.clock.install()
    ada.go(f"/c/{chat['id']}")
    expect(page.get_by_test_id("live")).to_contain_text("The first half,")
    page.clock.fast_forward(40_000)
    expect(page.get_by_test_id("phase")).to_contain_text(re.compile(r"Model silent, (39|4\d) s"))

    page.get_by_role("button", name="Try again now").click()
    expect(page.get_by_role("feed")).to_contain_text("All of it.")
    expect(page.get_by_role("feed")).not_to_contain_text("The first half,")
