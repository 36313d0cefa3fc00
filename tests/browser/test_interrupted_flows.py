"""Actions on a chat at bad moments: the session ends, the chat is deleted, two tabs act at the same time, texts are
hostile.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from playwright.sync_api import Locator, Page, expect

from rookery.testing.fake_completions import Answer
from tests.browser.browser_user import PASSWORD, SEND, Visitor
from tests.browser.conftest import Visit
from tests.browser.model_script import ModelScript

HOSTILE = """<img src=x onerror="window.owned=1"> <script>window.owned=1</script>

<svg onload="window.owned=1"></svg><iframe srcdoc="<script>parent.owned=1</script>"></iframe>

[press me](javascript:window.owned=1) [data](data:text/html,<script>window.owned=1</script>)

![remote](https://example.org/pixel.png) <a href="javascript:window.owned=1">raw</a>

```mermaid
graph TD; A["<img src=x onerror=window.owned=1>"] --> B; click A href "javascript:window.owned=1"
```"""


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def open_chat(visitor: Visitor, script: ModelScript, title: str) -> tuple[str, Page]:
    """Open a chat with one answer."""
    chat = visitor.chat("hello", title=title, model_config_id=script.config(visitor))
    visitor.wait_for_rest(chat["id"])
    page = visitor.go(f"/c/{chat['id']}")
    expect(page.get_by_role("main")).to_contain_text("Understood.")
    return str(chat["id"]), page


def test_session_that_ends_in_a_chat_is_renewed_over_it_and_the_chat_goes_on(visit: Visit, script: ModelScript) -> None:
    ada = visit(own=True)
    ada.allow("status of 401|HTTP Authentication failed")
    chat, page = open_chat(ada, script, "Signed out here")
    composer(page).fill("half a thought")

    for session in ada.ask("GET", "/auth/sessions")["items"]:
        if session["current"]:
            ada.ask("DELETE", f"/auth/sessions/{session['id']}")
    dialog = page.get_by_role("dialog", name="Sign in again")
    dialog.get_by_label("Password").fill(PASSWORD)
    dialog.get_by_role("button", name="Sign in").click()

    expect(dialog).to_be_hidden()
    expect(composer(page)).to_have_value("half a thought")
    ada.ask("POST", f"/chats/{chat}/messages", {"content": [{"type": "text", "text": "from another device"}]})
    expect(page.get_by_role("main").get_by_text("from another device", exact=True)).to_be_visible()


def test_chat_that_is_deleted_or_no_longer_shared_says_so_and_leaves_the_list(
    ada: Visitor, visit: Visit, script: ModelScript
) -> None:
    reader = ada.ask("POST", "/users", {"email": "rita@example.org", "username": "rita", "password": PASSWORD})
    rita = visit("rita")
    rita.allow("status of 40[34]")
    chat, _ = open_chat(ada, script, "Lent and gone")
    ada.ask("PATCH", f"/chats/{chat}/acl", {"users": {reader["id"]: "read"}})
    page = rita.go(f"/c/{chat}")
    row = page.get_by_role("link", name=re.compile("Lent and gone"))
    expect(page.get_by_text("You can read it.")).to_be_visible()
    expect(row).to_be_visible()

    ada.ask("PATCH", f"/chats/{chat}/acl", {"users": {reader["id"]: None}})
    expect(page.get_by_role("heading", name=re.compile("No longer shared|Nothing is here"))).to_be_visible()
    expect(row).to_be_hidden()
    ada.allow("status of 404")
    ada.ask("PATCH", f"/chats/{chat}", {"archived": True})
    ada.ask("DELETE", f"/chats/{chat}")

    expect(ada.page.get_by_role("heading", name=re.compile("was deleted|Nothing is here"))).to_be_visible()


def test_queue_that_two_tabs_change_is_the_same_in_both(ada: Visitor, script: ModelScript) -> None:
    cue = script.cue()
    script.plays("keep busy", [Answer(text="Busy. "), cue, Answer(text="Done.")])
    chat = ada.chat("keep busy", title="Two tabs", model_config_id=script.config(ada))
    one, two = ada.go(f"/c/{chat['id']}"), ada.open_tab()
    two.goto(one.url)
    for text in ("first", "second", "third"):
        composer(one).fill(text)
        one.get_by_role("button", name=SEND).click()
        expect(queue(two).filter(has_text=text)).to_be_visible()

    queue(two).nth(2).get_by_role("button", name="Move up").click()
    expect(queue(one).nth(1)).to_contain_text("third")
    queue(one).nth(0).get_by_role("button", name="Delete").click()
    expect(queue(two)).to_have_count(2)
    queue(two).nth(1).get_by_role("button", name="Edit").click()
    composer(two).fill("second, put better")
    composer(two).press("Enter")
    expect(queue(one).nth(1)).to_contain_text("second, put better")
    shown = [re.sub(r"\s+", " ", text) for text in queue(one).all_inner_texts()]
    assert [re.sub(r"\s+", " ", text) for text in queue(two).all_inner_texts()] == shown

    # An item that goes out while it is edited comes back as a draft.
    queue(two).nth(0).get_by_role("button", name="Edit").click()
    expect(composer(two)).to_have_value("third")
    cue.give()
    expect(queue(one)).to_have_count(0)
    ada.allow("status of 40[49]")
    composer(two).fill("third, too late")
    composer(two).press("Enter")
    expect(two.get_by_text("was already sent")).to_be_visible()
    expect(composer(two)).to_have_value("third, too late")


def test_draft_survives_another_chat_and_a_reload(ada: Visitor, script: ModelScript) -> None:
    first, page = open_chat(ada, script, "With a draft")
    _, page = open_chat(ada, script, "Without a draft")
    page.get_by_role("link", name=re.compile("With a draft")).click()
    page.wait_for_url(f"**/c/{first}")
    composer(page).fill("not finished\nyet")

    page.get_by_role("link", name=re.compile("Without a draft")).click()
    expect(composer(page)).to_have_value("")
    page.get_by_role("link", name=re.compile("With a draft")).click()
    expect(composer(page)).to_have_value("not finished\nyet")
    page.reload()

    expect(composer(page)).to_have_value("not finished\nyet")


def test_hostile_text_of_people_and_models_is_only_text(ada: Visitor, script: ModelScript) -> None:
    script.plays(HOSTILE, [Answer(reasoning=HOSTILE, text=HOSTILE)])
    chat = ada.chat(HOSTILE, title='<img src=x onerror="window.owned=1">', model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    feed = page.get_by_role("feed", name="Conversation")

    expect(feed.get_by_text('<img src=x onerror="window.owned=1">')).not_to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
    for press in ("press me", "raw", "data"):
        for found in feed.get_by_text(press, exact=True).all():
            found.click()

    assert page.evaluate("window.owned") is None
    assert feed.locator("img, script, iframe, [onerror], [onload]").count() == 0
    for link in feed.get_by_role("link").all():
        assert re.match("https?:|/|#", link.get_attribute("href") or "/"), link.get_attribute("href")


def test_one_escape_only_warns_and_the_second_stops_the_turn(ada: Visitor, script: ModelScript) -> None:
    cue = script.cue()
    script.plays("never ends", [Answer(text="Going on "), cue, Answer(text="for ever.")])
    chat = ada.chat("never ends", title="Stopped by keys", model_config_id=script.config(ada))
    ada.page.clock.install()
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_role("main")).to_contain_text("Going on")
    # The warning lasts two seconds, which a busy machine may need for the way to the second key.
    page.clock.pause_at(datetime.now() + timedelta(seconds=5))

    composer(page).press("Escape")
    expect(page.get_by_text("Esc again to stop the agent")).to_be_visible()
    assert ada.ask("GET", f"/chats/{chat['id']}")["status"] == "running"
    composer(page).press("Escape")
    page.clock.resume()

    expect(page.get_by_role("main")).to_contain_text("Stopped")
    expect(page.get_by_role("main")).to_contain_text("Going on")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)


def test_enter_that_ends_a_composition_does_not_send(ada: Visitor, script: ModelScript) -> None:
    chat, page = open_chat(ada, script, "Written with an input method")
    composer(page).focus()
    keys = page.context.new_cdp_session(page)

    keys.send("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
    expect(composer(page)).to_have_value("にほん")
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
    keys.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
    keys.send("Input.insertText", {"text": "日本"})
    keys.send("Input.dispatchKeyEvent", {"type": "keyUp", **enter})
    expect(composer(page)).to_have_value("日本")
    with page.expect_response(lambda answer: answer.request.method == "POST" and answer.url.endswith("/messages")):
        composer(page).press("Enter")

    expect(composer(page)).to_have_value("")
    expect(page.get_by_role("main").get_by_text("日本", exact=True)).to_be_visible()
    ada.wait_for_rest(chat)
    said = [each for each in ada.ask("GET", f"/chats/{chat}/messages")["items"] if each["role"] == "user"]
    assert {each["content"][0]["text"] for each in said} == {"hello", "日本"}
    assert len(said) == 2


def queue(page: Page) -> Locator:
    return page.get_by_role("region", name="Queued messages").get_by_role("listitem")
