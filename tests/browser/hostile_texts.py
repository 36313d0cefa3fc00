"""Hostile texts (markup, scripts, links), and the check that the page shows them only as text."""

from __future__ import annotations

from playwright.sync_api import Page

HOSTILE = '"><img src=x onerror=window.owned=1>'

# Nothing of it may have become an element, an attribute that runs or an address that does.
_MADE = """
    () => [...document.querySelectorAll("body *")]
        .filter((one) => [...one.attributes].some(({ name, value }) => /^on/i.test(name) || /^javascript:/i.test(value))
            || /^(iframe|object|embed)$/i.test(one.tagName)
            || (one.tagName === "IMG" && one.getAttribute("src") === "x"))
        .map((one) => one.outerHTML.slice(0, 120))
        .concat(window.owned === undefined ? [] : ["owned"])
"""


def damage(page: Page) -> list[str]:
    """Return the effects of a hostile text on this page."""
    found: list[str] = page.evaluate(_MADE)
    return found


def unfold(page: Page) -> None:
    """Open everything on the page that can be opened."""
    page.evaluate("for (const one of document.querySelectorAll('main [aria-expanded=false]')) one.click()")
