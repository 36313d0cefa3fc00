"""A user who has only a keyboard, and checks that the focus is visible."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.browser.browser_user import MOST_TABS, Visitor, step_to, wait_until

# The edge around what has the focus, or around the box that a field stands in; a menu marks its entry.
RING = """(element) => {
    const shows = (one, style = getComputedStyle(one)) =>
        style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5;
    if (element.matches("[role^=menuitem], [role=option]")) return element.matches("[data-highlighted]");
    const edge = parseFloat(getComputedStyle(element).borderBottomWidth);
    if (element.matches("[role=combobox]") && edge >= 1.5) return true;
    return shows(element) || (element.matches("input, textarea") && shows(element.parentElement));
}"""
# What has the focus: nothing, what had it before, something else, or what is new. New ones must have a ring and must be
# seen at all: not beyond an edge, not clear as glass.
STEP = f"""(within) => {{
    const here = document.activeElement;
    if (here === document.body) return "end";
    if (here.dataset.reached) return "again";
    here.dataset.reached = "1";
    if (!here.closest(within)) return "outside";
    const box = here.getBoundingClientRect();
    const isSeen = here.checkVisibility({{ opacityProperty: true, visibilityProperty: true }})
        && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
    return isSeen && ({RING})(here) ? "new" : `not shown: ${{here.outerHTML.slice(0, 160)}}`;
}}"""
# A walk before this one may have marked what is still there.
FORGET = "() => { for (const one of document.querySelectorAll('[data-reached]')) delete one.dataset.reached; }"
WAY = """(element) => document.activeElement !== document.body
    && element.compareDocumentPosition(document.activeElement) & Node.DOCUMENT_POSITION_FOLLOWING ? "Shift+Tab" : "Tab"
"""
IS_SOMEWHERE = "() => document.activeElement !== null && document.activeElement !== document.body"
# Everything that a mouse could press, of which each has to be reached. One of several radio buttons or tabs stands for
# all; what holds them passes the focus on.
REACHABLE = """(within) => [...document.querySelector(within)
    .querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter((one) => one.tabIndex >= 0 && !one.disabled && !one.closest("[inert]")
        && one.checkVisibility({ visibilityProperty: true }) && one.getBoundingClientRect().width > 0
        && !one.matches("input[type=radio]:not(:checked), [role=tablist], [role=radiogroup]"))
    .filter((one) => !one.dataset.reached)
    .map((one) => one.outerHTML.slice(0, 160))
"""


class Keys:
    """The keys of one visitor. Nothing is clicked, and the test never sets the focus."""

    def __init__(self, visitor: Visitor) -> None:
        self.page = visitor.page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def to(self, target: Locator, key: str | None = None) -> None:
        """Press Tab or Shift+Tab (the shorter way), or this key, until the element has the focus."""
        target.wait_for()
        if key is None:
            way = target.evaluate(WAY)
            step_to(target, lambda: self.press(way))
        else:
            step_to(target, lambda: self.step(key))
        self.at(target)

    def step(self, key: str) -> None:
        """Move to another entry of a list. A menu moves the focus shortly after the key, so an early second key would
        skip an entry.
        """
        here = self.page.evaluate_handle("document.activeElement")
        self.press(key)
        wait_until(self.page, "(here) => document.activeElement !== here", here)

    def do(self, target: Locator, key: str = "Enter") -> None:
        self.to(target)
        self.press(key)

    def at(self, target: Locator) -> None:
        """Check that the element has the focus and that the focus is visible."""
        expect(target).to_be_focused()
        assert target.evaluate(RING), f"No ring: {target.evaluate('(element) => element.outerHTML.slice(0, 200)')}"

    def somewhere(self) -> None:
        """Check that some element has the focus, even if the previously focused one has disappeared."""
        wait_until(self.page, IS_SOMEWHERE)

    def walk(self, within: str = "body") -> list[str]:
        """Move through a part of the page with Tab, starting at the focus.

        Return the elements without a focus ring, the invisible ones that got the focus, and those that were not
        reached.
        """
        wrong: list[str] = []
        missed: list[str] = []
        self.page.evaluate(FORGET)
        is_inside = is_around = False
        for _ in range(2 * MOST_TABS):
            self.press("Tab")
            found = self.page.evaluate(STEP, within)
            is_around = is_around or found == "again" or (found == "outside" and is_inside)
            is_inside = is_inside or found not in ("outside", "end")
            if found.startswith("not"):
                wrong.append(found)
            # What a page showed only after the focus had passed its place is reached in the next round.
            missed = self.page.evaluate(REACHABLE, within) if is_around else []
            if is_around and not missed:
                return wrong
        return [*wrong, *(f"not reached: {one}" for one in missed)] if is_around else [*wrong, "not left again"]
