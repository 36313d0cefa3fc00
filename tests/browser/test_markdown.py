"""Markdown of answers in a browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript
from tests.browser.stored_chats import StoredChats

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
HEAD = ["Configuration key", "Responsibility", "Internationalization", "Default", "Environment variable"]
CELL = ["authentication.provider", "Administrator", "Unconditionally", "uninitialized", "ROOKERY_AUTHENTICATION"]
TABLE = "\n".join("| " + " | ".join(row) + " |" for row in (HEAD, ["---"] * len(HEAD), CELL, CELL))
# Words that are on more than one line. A place after a hyphen or a dot may be broken.
BROKEN = """(table) => {
    const broken = [];
    for (const cell of table.querySelectorAll("td, th")) {
        const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            for (const word of node.data.matchAll(/\\w+/g)) {
                const range = new Range();
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map((one) => one.top)).size > 1) broken.push(word[0]);
            }
        }
    }
    return broken;
}"""


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desk", "phone"])
def test_table_keeps_words_whole_and_scrolls_sideways(
    visit: Visit, stored: StoredChats, options: dict[str, object]
) -> None:
    ada = visit(**options)
    page = ada.go(f"/c/{stored.chat(ada, 'A wide table', answer=TABLE)}")
    table = page.get_by_role("feed").get_by_role("table")
    expect(table).to_be_visible()

    assert table.evaluate(BROKEN) == []
    if options:
        assert table.evaluate("(table) => table.parentElement.scrollWidth > table.parentElement.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert ada.violations() == []


RICH = r"""
The mass is $E = mc^2$, prices are $5 and $10, and a claim has a footnote[^1]. An unknown one[^9] stays.

[^1]: The first **footnote**.

<details>
<summary>More details</summary>

Hidden text with `code`.

</details>

```mermaid
flowchart LR
  A["Start <script>alert(1)</script>"] --> B[End]
```

```mermaid
flowchart LR
  A -->
```

Line one<br>line two, <b>not bold</b> and <img src=x onerror=alert(1)>.
"""


@pytest.mark.parametrize("options", [{}, PHONE | {"color_scheme": "dark"}], ids=["desk", "phone"])
def test_formulas_footnotes_details_and_diagrams_are_rendered_from_own_files(
    visit: Visit, stored: StoredChats, options: dict[str, object]
) -> None:
    ada = visit(**options)
    asked: list[str] = []
    ada.page.on("request", lambda request: asked.append(request.url))
    page = ada.go(f"/c/{stored.chat(ada, 'Rich parts', answer=RICH)}")
    feed = page.get_by_role("feed")

    expect(feed.locator(".katex")).to_have_count(1)
    expect(feed).to_contain_text("prices are $5 and $10")
    expect(feed).to_contain_text("An unknown one[^9] stays")
    diagram = feed.get_by_role("img", name="Flowchart")
    expect(diagram).to_be_visible()
    expect(diagram).to_have_attribute("src", re.compile("^data:image/svg"))
    expect(feed).to_contain_text("The diagram cannot be drawn.")
    expect(feed).to_contain_text("<b>not bold</b> and <img src=x onerror=alert(1)>")

    hidden = feed.get_by_text("Hidden text with")
    expect(hidden).to_be_hidden()
    feed.get_by_text("More details").press("Enter")
    expect(hidden).to_be_visible()
    feed.get_by_role("button", name="Footnote 1").press("Enter")
    expect(feed.get_by_role("listitem").filter(has_text="The first footnote")).to_be_focused()
    feed.get_by_role("button", name="Back to reference 1").click()
    expect(feed.get_by_role("button", name="Footnote 1")).to_be_focused()

    feed.get_by_role("button", name="Show the source").click()
    expect(feed).to_contain_text('A["Start <script>alert(1)</script>"]')
    feed.get_by_role("button", name="Show the diagram").click()
    feed.get_by_role("button", name="Enlarge the diagram").click()
    expect(page.get_by_role("dialog", name="Flowchart")).to_be_visible()
    page.keyboard.press("Escape")

    frame = page.locator("iframe[title=Diagrams]")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    assert [url for url in asked if not url.startswith((ada.url, "data:", "ws"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert ada.violations() == []


def test_page_without_formulas_and_diagrams_loads_neither_library(ada: Visitor, stored: StoredChats) -> None:
    asked: list[str] = []
    ada.page.on("request", lambda request: asked.append(request.url))
    page = ada.go(f"/c/{stored.chat(ada, 'Plain words', answer='Only **words**.')}")
    expect(page.get_by_role("feed")).to_contain_text("Only words.")

    assert [url for url in asked if re.search("formula|diagram|sandbox|mermaid|katex", url)] == []


def test_diagram_that_arrives_is_drawn_when_it_is_complete(ada: Visitor, script: ModelScript) -> None:
    cue = script.cue()
    begun, rest = 'Look:\n\n```mermaid\npie\n  "a": 1\n', '  "b": 2\n```\n\nThat is all.'
    script.plays("draw me a pie", [Answer(text=begun), cue, Answer(text=rest)])
    chat = ada.chat("draw me a pie", title="A pie", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_test_id("live")).to_contain_text('"a": 1')
    cue.give()

    expect(page.get_by_role("img", name="Pie chart")).to_be_visible()
    expect(page.get_by_role("feed")).to_contain_text("That is all.")
