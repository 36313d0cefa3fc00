"""Menus, pages and tables stay within small and magnified screens."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
# A window of 1280 by 800 pixels at a zoom of 200 %.
ZOOMED = {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2}


@pytest.mark.parametrize("options", [PHONE, ZOOMED], ids=["phone", "zoomed"])
def test_first_command_of_the_menu_is_in_view(visit: Visit, options: dict[str, object]) -> None:
    page = visit(**options).go("/")
    page.get_by_role("textbox", name="Message").fill("/")

    first = page.get_by_role("option").first
    expect(first).to_be_in_viewport(ratio=1)
    # Nothing lies above it.
    assert first.evaluate(
        """(option) => {
            const { left, top } = option.getBoundingClientRect();
            return option.contains(document.elementFromPoint(left + 20, top + 4));
        }"""
    )


def test_page_of_the_settings_begins_at_its_beginning(ada: Visitor) -> None:
    page = ada.go("/settings/health")

    expect(page.get_by_role("link", name="Health")).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("heading", name="Version")).to_be_in_viewport(ratio=1)


def test_current_page_of_the_settings_is_in_view_in_the_strip_of_a_phone(visit: Visit) -> None:
    page = visit(**PHONE).go("/settings/health")

    # The position is rounded to whole pixels.
    expect(page.get_by_role("link", name="Health")).to_be_in_viewport(ratio=0.95)


def test_templates_fit_a_phone(visit: Visit) -> None:
    page = visit(**PHONE).go("/settings/workspaces")

    table = page.get_by_role("region", name="Templates")
    expect(table.get_by_role("row").nth(1)).to_be_visible()
    assert table.evaluate("(element) => element.scrollWidth <= element.clientWidth")


def test_name_of_the_model_is_readable_on_a_phone_while_the_agent_works(visit: Visit, script: ModelScript) -> None:
    phone = visit(**PHONE)
    never = script.cue()
    script.plays("work on a phone", [never, Answer(text="Done.")])
    chat = phone.chat("work on a phone", title="Small work", model_config_id=script.config(phone))
    page = phone.go(f"/c/{chat['id']}")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()

    name = page.get_by_role("button", name="Model: actor").get_by_text("actor")
    expect(name).to_be_visible()
    assert name.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    never.give()
