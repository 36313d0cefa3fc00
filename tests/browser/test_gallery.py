"""The gallery of a test build, which shows every row and card in every state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.hostile_texts import HOSTILE, damage, unfold

BUILT = Path(__file__).parents[2] / "build" / "gallery"


@pytest.fixture
def gallery(visit: Visit) -> tuple[Visitor, Page]:
    """The gallery page, with the API of the server, and with everything unfolded."""
    if not (BUILT / "index.html").is_file() and "CI" not in os.environ:
        pytest.skip("The gallery is not built: make gallery.")
    ada = visit(reduced_motion="reduce")  # what fades in and out has no colour to judge
    ada.allow("WebSocket connection")  # a page that a test hands out may open none
    ada.allow("status of 400")  # there are no chats of the subagents whose timelines are shown

    def serve(route: Route) -> None:
        path = route.request.url.removeprefix(ada.url).split("?")[0].lstrip("/")
        route.fulfill(path=BUILT / path if path and (BUILT / path).is_file() else BUILT / "index.html")

    ada.context.route(lambda url: not url.startswith(f"{ada.url}/api/"), serve)
    return ada, ada.page


def open_all(visitor: Visitor, path: str) -> None:
    page = visitor.go(path)
    expect(page.get_by_role("heading", level=1, name="Gallery")).to_be_visible()
    page.get_by_role("button", name="Open all").click()
    expect(page.get_by_role("button", name="Close all")).to_be_visible()


def test_axe_finds_no_barrier_in_any_row_or_card(gallery: tuple[Visitor, Page]) -> None:
    ada, page = gallery
    open_all(ada, "/gallery")

    found = {"light": ada.violations()}
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    # Only colours are others.
    found["dark"] = ada.violations("color-contrast")

    assert found == {"light": [], "dark": []}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_arguments_results_and_errors_are_only_text_in_every_card(gallery: tuple[Visitor, Page]) -> None:
    ada, page = gallery
    open_all(ada, f"/gallery?words={HOSTILE}")

    unfold(page)

    assert page.get_by_text(HOSTILE).count() > 50
    assert damage(page) == []
