"""The scroll position while content changes: the visible text does not move, and screen readers announce new
messages.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Locator, Page, WebSocketRoute, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import Visitor, wait_until
from tests.browser.keyboard import Keys
from tests.browser.model_script import Cue, ModelScript
from tests.browser.stored_chats import END, RARE, StoredChats

MOST_PX = 2
LONG = "".join(f"Paragraph {{0}}-{number} has some words, so that it fills a line.\n\n" for number in range(50))
# Where a row is, looked at whenever something is painted; a row that is gone is infinitely far.
HOLD = """(element) => {
    const top = element.getBoundingClientRect().top;
    window.moved = 0;
    const look = () => {
        const now = element.isConnected ? element.getBoundingClientRect().top : Number.POSITIVE_INFINITY;
        window.moved = Math.max(window.moved, Math.abs(now - top));
        requestAnimationFrame(look);
    };
    look();
}"""
# What screen readers are told without asking. Nothing of the transcript may be among it.
LISTEN = """() => {
    window.heard = [];
    const live = "[role=status], [role=alert], [role=log], [aria-live]:not([aria-live=off])";
    new MutationObserver((changes) => {
        for (const { target } of changes) {
            const region = (target instanceof Element ? target : target.parentElement)?.closest(live);
            const text = region?.textContent ?? "";
            if (text && window.heard.at(-1) !== text) window.heard.push(text);
        }
    }).observe(document.body, { childList: true, characterData: true, subtree: true });
}"""
# Looks at the view before every paint, when the scroll events are over: the largest part of it, in pixels, in which
# there is no row.
WATCH = """() => {
    window.blank = 0;
    const list = document.querySelector("[data-rows]");
    const box = list.closest(".overflow-y-auto");
    const isRow = (element) => element.closest("[data-key], [data-testid=live]") !== null;
    const look = () => {
        const view = box.getBoundingClientRect();
        const end = Math.min(view.bottom, list.nextElementSibling.getBoundingClientRect().bottom);
        let blank = 0;
        for (let y = view.top; y < end; y += 20) {
            blank = document.elementsFromPoint(view.left + view.width / 2, y).some(isRow) ? 0 : blank + 20;
            window.blank = Math.max(window.blank, blank);
        }
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
}"""
JUMP = """(part) => {
    const box = document.querySelector("[data-rows]").closest(".overflow-y-auto");
    box.scrollTop = part * box.scrollHeight;
}"""
# A turn of the wheel is animated.
SCROLLED = """async () => {
    const box = document.querySelector("[data-rows]").closest(".overflow-y-auto");
    for (let still = 0, top = box.scrollTop; still < 10; top = box.scrollTop) {
        await new Promise(requestAnimationFrame);
        still = box.scrollTop === top ? still + 1 : 0;
    }
}"""
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
# The line above the first row, and the space around it.
MOST_BLANK_PX = 80


# Draws a picture and looks for strips of it, this many pixels high, that have one color only.
STRIPS = """async ([url, height]) => {
    const picture = new Image();
    picture.src = url;
    await picture.decode();
    const canvas = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
    canvas.drawImage(picture, 0, 0);
    const empty = [];
    for (let top = 0; top + height <= picture.height; top += height) {
        const pixels = new Uint32Array(canvas.getImageData(0, top, picture.width, height).data.buffer);
        if (pixels.every((pixel) => pixel === pixels[0])) empty.push(top);
    }
    return empty;
}"""


def empty_strips(page: Page) -> list[int]:
    """Return the painted parts of the view that are empty."""
    box = page.locator(".overflow-y-auto", has=page.get_by_role("feed")).bounding_box()
    assert box
    # Without the bar at the top, and the padding below the last row.
    picture = base64.b64encode(
        page.screenshot(
            clip={"x": box["x"] + 20, "y": box["y"] + 60, "width": box["width"] - 60, "height": box["height"] - 160}
        )
    ).decode()
    found: list[int] = page.evaluate(STRIPS, [f"data:image/png;base64,{picture}", MOST_BLANK_PX])
    return found


def top_row(page: Page) -> Locator:
    """Return a paragraph in the middle of the view."""
    number = page.evaluate(
        """() => document.elementFromPoint(innerWidth / 2, innerHeight / 2).closest("p, li").textContent"""
    )
    return page.get_by_role("main").get_by_text(number, exact=True)


def scroll_up(page: Page, by: int) -> None:
    """Scroll with the wheel, and wait until the scrolling has ended."""
    box = page.get_by_role("feed")
    before = box.evaluate("(feed) => feed.getBoundingClientRect().top")
    page.mouse.move(700, 300)
    page.mouse.wheel(0, -by)
    wait_until(
        page, "(least) => document.querySelector('[role=feed]').getBoundingClientRect().top >= least", before + by - 5
    )


def test_text_under_the_eye_stays_while_the_answer_grows_and_the_end_is_one_press_away(
    ada: Visitor, script: ModelScript
) -> None:
    cues = [script.cue() for _ in range(2)]
    told = [Answer(text=LONG.format(part)) for part in ("first", "second")]
    script.plays("at length", [told[0], cues[0], told[1], cues[1], Answer(text="The very end.")])
    chat = ada.chat("at length", title="Read while it grows", model_config_id=script.config(ada))
    page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
    main = page.get_by_role("main")
    expect(main.get_by_text("Paragraph first-49")).to_be_in_viewport()

    scroll_up(page, 900)
    top_row(page).evaluate(HOLD)
    cues[0].give()
    expect(main.get_by_text("Paragraph second-49")).to_be_attached()
    assert page.evaluate("moved") <= MOST_PX
    page.get_by_role("button", name=re.compile("New activity below|new steps?")).click()
    expect(main.get_by_text("Paragraph second-49")).to_be_in_viewport()

    # The answer is stored while somebody reads above.
    scroll_up(page, 900)
    place = top_row(page)
    before = place.bounding_box()
    cues[1].give()
    ada.wait_for_rest(chat["id"])
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    after = place.bounding_box()
    assert before
    assert after
    assert abs(before["y"] - after["y"]) <= MOST_PX
    keys.to(page.get_by_role("button", name="Copy prompt"), "Shift+Tab")
    keys.press("End")
    expect(main.get_by_text("The very end.")).to_be_in_viewport()

    # What is sent goes to the top of the view, and the answer grows below it.
    script.plays("and now", Answer(text="It grows below."))
    keys.to(page.get_by_role("textbox", name="Message"))
    page.evaluate(LISTEN)
    keys.type("and now")
    keys.press("Enter")
    expect(main).to_contain_text("It grows below.")
    ada.wait_for_rest(chat["id"])
    wait_until(page, "() => heard.length >= 2")
    view = page.locator(".overflow-y-auto", has=page.get_by_role("feed")).bounding_box()
    prompt = main.get_by_text("and now", exact=True).bounding_box()
    assert view
    assert prompt
    assert prompt["y"] - view["y"] < 100
    assert page.evaluate("heard") == ["Agent is working", "It grows below."]


def test_live_turn_of_a_thousand_rows_shows_rows_wherever_one_looks(ada: Visitor, script: ModelScript) -> None:
    stops = {number: script.cue() for number in (20, 60, 80, 100)}

    def step(number: int) -> list[Answer | Cue]:
        # Ten rows of different heights; this tool is never part of a group. Equal calls would be held by the brake.
        calls = [
            FakeCall("list_agents", f'{{"offset": {9 * number + each}}}', id=f"call-{number}-{each}")
            for each in range(9)
        ]
        told = Answer(text=f"Step {number} begins. " + "It has some more words. " * (number * 7 % 40), calls=calls)
        return [told] if number not in stops else [Answer(text=f"Stop {number}. "), stops[number], told]

    script.plays("very many steps", *(step(number) for number in range(101)))
    chat = ada.chat("hello", title="A thousand rows", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
    main = page.get_by_role("main")
    expect(main.get_by_text("Understood.")).to_be_in_viewport()
    page.evaluate(WATCH)

    # The view follows the agent.
    keys.to(page.get_by_role("textbox", name="Message"))
    keys.type("very many steps")
    keys.press("Enter")
    expect(main.get_by_text("Stop 20.")).to_be_in_viewport()
    assert page.evaluate("blank") <= MOST_BLANK_PX
    stops[20].give()
    expect(main.get_by_text("Stop 60.")).to_be_in_viewport()
    assert page.evaluate("blank") <= MOST_BLANK_PX

    # A row in the middle of the turn keeps its place.
    scroll_up(page, 900)
    page.get_by_role("feed").get_by_text(re.compile("Step 5[0-9] begins.")).last.evaluate(HOLD)
    stops[60].give()
    expect(main.get_by_text("Stop 80.")).to_be_attached()
    assert page.evaluate("moved") <= MOST_PX
    assert page.evaluate("blank") <= MOST_BLANK_PX

    # Everywhere else there are rows as well, while more are added.
    stops[80].give()
    for part in (0.0, 0.5, 0.9, 0.1, 0.3, 0.7, 1.0):
        page.mouse.wheel(0, -1)
        page.evaluate(JUMP, part)
        page.mouse.wheel(0, -2500)
        page.evaluate(SCROLLED)
    page.get_by_role("button", name=re.compile("New activity below|new steps?")).click()
    expect(main.get_by_text("Stop 100.")).to_be_in_viewport()
    assert page.evaluate("blank") <= MOST_BLANK_PX
    assert empty_strips(page) == []
    for _ in range(3):
        page.mouse.wheel(0, -6000)
        page.evaluate(SCROLLED)
        page.evaluate(PAINTED)
        assert empty_strips(page) == []
    stops[100].give()
    ada.wait_for_rest(chat["id"])


def test_edit_elsewhere_leaves_rows_that_it_does_not_concern_where_they_are(ada: Visitor, stored: StoredChats) -> None:
    title = "Edited elsewhere"
    chat = stored.chat(ada, title, messages=300)
    (found,) = ada.ask("GET", f"/chats/{chat}/search?q={RARE}")["items"]
    page = ada.go(f"/c/{chat}?m={found['message_id']}")
    row = page.get_by_role("feed").get_by_text("I saw a heron at 8.", exact=True)
    expect(row).to_be_in_viewport()
    row.evaluate(HOLD)

    newest = ada.ask("GET", f"/chats/{chat}/messages?limit=10")["items"]
    prompt = next(one for one in newest if one["role"] == "user")
    words = {"content": [{"type": "text", "text": "Rather something else"}]}
    ada.ask("PATCH", f"/chats/{chat}/messages/{prompt['id']}", words)
    ada.wait_for_rest(chat)
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    page.evaluate(PAINTED)

    assert page.evaluate("moved") <= MOST_PX
    page.get_by_role("button", name=re.compile("new steps?$")).click()
    expect(page.get_by_role("feed").get_by_text("Rather something else", exact=True)).to_be_visible()
    expect(page.get_by_text(f"{END} {title}")).to_have_count(0)


def test_chat_whose_messages_arrive_late_opens_at_its_end(ada: Visitor, stored: StoredChats) -> None:
    title = "Arrives late"
    chat = stored.chat(ada, title, messages=300)
    held, is_open = list[Callable[[], None]](), False

    def hold(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def pass_on(frame: str | bytes) -> None:
            if is_open:
                socket.send(frame)
            else:
                held.append(partial(socket.send, frame))

        server.on_message(pass_on)

    ada.page.clock.install()
    ada.page.route_web_socket(re.compile(rf"/chats/{chat}/stream"), hold)
    page = ada.go(f"/c/{chat}")
    expect(page.get_by_role("feed")).to_be_attached()

    # All timers of the page that opens are over.
    page.clock.fast_forward("00:10")
    is_open = True
    for pass_on in held:
        pass_on()

    expect(page.get_by_text(f"{END} {title}")).to_be_in_viewport()


def test_newly_opened_chat_shows_rows_to_a_user_who_scrolls_up_immediately(ada: Visitor, stored: StoredChats) -> None:
    title = "Scrolled at once"
    chat = stored.chat(ada, title, messages=300)
    # The other rows come when the browser is idle, which it never is here.
    ada.page.add_init_script("window.requestIdleCallback = () => 1")
    page = ada.go(f"/c/{chat}")
    expect(page.get_by_text(f"{END} {title}")).to_be_in_viewport()
    page.evaluate(WATCH)
    page.mouse.move(700, 300)
    page.mouse.wheel(0, -4000)
    page.evaluate(SCROLLED)
    page.mouse.wheel(0, -1)
    page.evaluate(JUMP, 0.0)
    page.evaluate(PAINTED)

    assert page.evaluate("blank") <= MOST_BLANK_PX


def test_view_follows_the_agent_until_the_user_scrolls_up_or_opens_something(ada: Visitor, script: ModelScript) -> None:
    cues = [script.cue() for _ in range(3)]
    told = [Answer(text=LONG.format(part)) for part in ("one", "two", "three", "four")]
    call = Answer(calls=[FakeCall("list_agents", "{}")])
    script.plays("talk for long", [Answer(text="Look first. "), call])
    script.plays(
        "talk for long",
        [told[0], cues[0], told[1], cues[1], told[2], cues[2], told[3], Answer(text="The very end.")],
    )
    chat = ada.chat("hello", title="Followed", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
    main = page.get_by_role("main")
    pill = page.get_by_role("button", name=re.compile("New activity below|new steps?|Jump to the end"))
    keys.to(page.get_by_role("textbox", name="Message"))
    keys.type("talk for long")
    keys.press("Enter")
    expect(main.get_by_text("Paragraph one-49")).to_be_in_viewport()
    expect(pill).to_have_count(0)

    # Scrolling up ends it, and the button returns.
    scroll_up(page, 900)
    top_row(page).evaluate(HOLD)
    cues[0].give()
    expect(main.get_by_text("Paragraph two-49")).to_be_attached()
    assert page.evaluate("moved") <= MOST_PX
    pill.click()
    expect(main.get_by_text("Paragraph two-49")).to_be_in_viewport()
    cues[1].give()
    expect(main.get_by_text("Paragraph three-49")).to_be_in_viewport()

    cues[2].give()
    ada.wait_for_rest(chat["id"])
    expect(main.get_by_text("The very end.")).to_be_in_viewport()


@pytest.mark.parametrize("grows", [True, False], ids=["and grows", "and ends"])
def test_text_that_is_selected_in_the_running_answer_stays_in_view_and_selected(
    ada: Visitor, script: ModelScript, grows: bool
) -> None:
    cues = [script.cue() for _ in range(2)]
    said = "select while it grows" if grows else "select while it ends"
    more = LONG.format("second") if grows else ""
    # In the second case, only the end of the answer follows: nothing grows between the selection and the commit.
    script.plays(said, [Answer(text=LONG.format("first")), cues[0], Answer(text=more), cues[1], Answer(text="")])
    chat = ada.chat("hello", title="Selected", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
    main = page.get_by_role("main")
    keys.to(page.get_by_role("textbox", name="Message"))
    keys.type(said)
    keys.press("Enter")
    expect(main.get_by_text("Paragraph first-49")).to_be_in_viewport()

    # A double click selects a word of the answer, which the view follows until then.
    target = main.get_by_text("Paragraph first-45")
    target.dblclick(position={"x": 20, "y": 10})
    assert page.evaluate("getSelection().toString().trim()") == "Paragraph"
    where = target.bounding_box()
    assert where
    cues[0].give()
    if grows:
        expect(main.get_by_text("Paragraph second-49")).to_be_attached()
    cues[1].give()
    ada.wait_for_rest(chat["id"])
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    page.evaluate(PAINTED)

    now = target.bounding_box()
    assert now
    assert abs(now["y"] - where["y"]) <= MOST_PX
    assert page.evaluate("getSelection().toString().trim()") == "Paragraph"
    # It is still the word that was selected, although each paragraph has the same one.
    inside = "(element) => element.contains(getSelection().anchorNode)"
    assert target.evaluate(inside)


def test_setting_keeps_the_sent_message_at_the_top(ada: Visitor, script: ModelScript) -> None:
    page = ada.go("/settings/chat")
    page.get_by_role("switch", name="Follow the agent").click()
    expect(page.get_by_role("switch", name="Follow the agent")).not_to_be_checked()
    script.plays("stay at the top", Answer(text=LONG.format("top")))
    try:
        chat = ada.chat("hello", title="Not followed", model_config_id=script.config(ada))
        ada.wait_for_rest(chat["id"])
        page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
        keys.to(page.get_by_role("textbox", name="Message"))
        keys.type("stay at the top")
        keys.press("Enter")
        main = page.get_by_role("main")
        expect(main.get_by_text("Paragraph top-49")).to_be_attached()
        ada.wait_for_rest(chat["id"])
        expect(main.get_by_text("stay at the top", exact=True)).to_be_in_viewport()
        expect(page.get_by_role("button", name=re.compile("new steps?|Jump to the end"))).to_be_visible()
    finally:
        ada.ask("PATCH", "/me/settings", {"display": {"follow_agent": True}})


def test_view_follows_short_turns_of_the_queue_and_goes_to_each_message_of_the_user(
    ada: Visitor, script: ModelScript
) -> None:
    cue = script.cue()
    short = "\n\n".join(f"Line {number} of {{0}}." for number in range(5))
    script.plays("begin here", [Answer(text="I look."), cue, Answer(calls=[FakeCall("list_templates", "{}")])])
    script.plays("steer it", Answer(text=short.format("steer")))
    script.plays("queue one", Answer(text=short.format("one")))
    script.plays("queue two", Answer(text=short.format("two")))
    chat = ada.chat("hello", title="Short turns", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
    feed = page.get_by_role("feed")
    keys.to(page.get_by_role("textbox", name="Message"))
    for text, key in (
        ("begin here", "Enter"),
        ("steer it", "Control+Enter"),
        ("queue one", "Enter"),
        ("queue two", "Enter"),
    ):
        keys.type(text)
        keys.press(key)
        if key == "Enter" and text == "begin here":
            expect(page.get_by_role("main").get_by_text("I look.")).to_be_visible()
    expect(page.get_by_role("region", name="Queued messages").get_by_role("listitem")).to_have_count(3)
    cue.give()
    ada.wait_for_rest(chat["id"])

    expect(feed.get_by_text("Line 4 of two.")).to_be_in_viewport()
    expect(page.get_by_role("button", name=re.compile("New activity|new steps?$|Jump to the end"))).to_have_count(0)
    row = page.get_by_role("navigation", name="Chats").get_by_role("listitem").filter(has_text="Short turns")
    expect(row).to_have_count(1)
    expect(row.get_by_role("img", name="Unread")).to_have_count(0)

    # Somebody who reads above queues a message: the view goes to it when it is its turn.
    cue = script.cue()
    script.plays("run long", [Answer(text=LONG.format("long")), cue, Answer(text="The end.")])
    script.plays("my own", Answer(text="Here it is."))
    keys.type("run long")
    keys.press("Enter")
    expect(page.get_by_text("Paragraph long-49")).to_be_in_viewport()
    scroll_up(page, 900)
    keys.type("my own")
    keys.press("Enter")
    expect(page.get_by_role("region", name="Queued messages").get_by_role("listitem")).to_have_count(1)
    cue.give()
    expect(feed.get_by_text("my own", exact=True)).to_be_in_viewport()
    expect(feed.get_by_text("Here it is.")).to_be_in_viewport()


def test_bar_of_prompts_names_the_turn_at_the_top_and_covers_no_prompt(ada: Visitor, script: ModelScript) -> None:
    script.plays("tell much", Answer(text=LONG.format("much")))
    script.plays("tell little", Answer(text="Little."))
    script.plays("tell less", Answer(text="Less."))
    chat = ada.chat("tell much", title="Prompts at the top", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page, keys = ada.go(f"/c/{chat['id']}"), Keys(ada)
    feed, bar = page.get_by_role("feed"), page.get_by_role("navigation", name="Prompts")
    expect(bar).to_contain_text("tell much")
    keys.to(page.get_by_role("textbox", name="Message"))
    view = page.locator(".overflow-y-auto", has=feed).bounding_box()
    assert view
    for text, answer in (("tell little", "Little."), ("tell less", "Less.")):
        keys.type(text)
        keys.press("Enter")
        expect(feed.get_by_text(answer, exact=True)).to_be_visible()
        ada.wait_for_rest(chat["id"])
        expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
        page.evaluate(PAINTED)
        expect(bar).to_have_count(0)
        prompt = feed.get_by_text(text, exact=True).bounding_box()
        assert prompt
        assert 0 < prompt["y"] - view["y"] < 40

    # The previous prompt, reached from the bar, is not covered either, and the bar names the turn below it.
    scroll_up(page, 300)
    expect(bar).to_contain_text("tell much")
    bar.get_by_role("button", name="tell much").click()
    expect(feed.get_by_text("tell much", exact=True)).to_be_in_viewport()
    expect(bar).to_have_count(0)
