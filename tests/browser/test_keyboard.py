"""A conversation with the keyboard only: write, queue, stop, edit, answer questions, approve, and attach files."""

from __future__ import annotations

import re

from playwright.sync_api import FilePayload, Locator, Page, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import Visitor
from tests.browser.conftest import Visit
from tests.browser.keyboard import Keys
from tests.browser.model_script import ModelScript

QUESTIONS = """{"questions": [
    {"header": "Colour", "question": "Which colour?", "options": [
        {"label": "Red", "description": "Like a rose."}, {"label": "Blue", "description": "Like the sky."}]},
    {"header": "Size", "question": "Which size?", "options": [
        {"label": "Small", "description": "Fits."}, {"label": "Large", "description": "Does not."}]}]}"""
# One dot of red: a picture that takes no room here.
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


SAID = ("hello", "second prompt")


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message")


def queue(page: Page) -> Locator:
    return page.get_by_role("region", name="Queued messages").get_by_role("listitem")


def begin(
    visitor: Visitor, script: ModelScript, title: str, text: str = "hello", **more: object
) -> tuple[str, Page, Keys]:
    """Open a chat that has begun. The message box has the focus."""
    chat = visitor.chat(text, title=title, model_config_id=script.config(visitor), **more)
    page = visitor.go(f"/c/{chat['id']}")
    expect(composer(page)).to_be_focused()
    expect(page.get_by_role("button", name=re.compile("^Model: actor"))).to_be_visible()
    return str(chat["id"]), page, Keys(visitor)


def test_queue_is_filled_changed_ordered_emptied_and_the_turn_stopped(ada: Visitor, script: ModelScript) -> None:
    script.plays("work on", [Answer(text="Busy. "), script.cue(), Answer(text="Done.")])
    chat, page, keys = begin(ada, script, "Queue by keys", "work on")
    expect(page.get_by_role("main")).to_contain_text("Busy.")
    for text in ("one", "two", "three", "four"):
        keys.type(text)
        keys.press("Enter")
        expect(queue(page).filter(has_text=text)).to_be_visible()

    def row(place: int, name: str) -> Locator:
        return queue(page).nth(place).get_by_role("button", name=name)

    # Up twice; at the top only the way down is left, and the focus takes it.
    keys.do(row(2, "Move up"))
    expect(queue(page)).to_contain_text(["one", "three", "two", "four"])
    keys.at(row(1, "Move up"))
    keys.press("Enter")
    expect(queue(page)).to_contain_text(["three", "one", "two", "four"])
    keys.at(row(0, "Move down"))
    # What was changed goes back to its place, and the box is the box again.
    keys.do(row(1, "Edit"))
    expect(composer(page)).to_have_value("one")
    keys.at(composer(page))
    keys.press("Control+a")
    keys.type("one, put better")
    keys.press("Enter")
    expect(queue(page).nth(1)).to_contain_text("one, put better")
    keys.at(composer(page))
    # What is deleted leaves the focus to the next of its kind, the last one to the one before.
    keys.do(row(2, "Delete"))
    expect(queue(page)).to_contain_text(["three", "one, put better", "four"])
    keys.at(row(2, "Delete"))
    keys.press("Enter")
    expect(queue(page)).to_have_count(2)
    keys.at(row(1, "Delete"))

    # Two of Escape stop, and the queue goes on with its first; the focus stays in the box.
    script.plays("three", [Answer(text="The third. "), script.cue(), Answer(text="No end.")])
    keys.to(composer(page))
    keys.press("Escape", "Escape")
    expect(page.get_by_role("main")).to_contain_text("The third.")
    keys.at(composer(page))
    script.plays("one, put better", Answer(text="Nothing is left."))
    keys.do(row(0, "Stop and send"))
    expect(page.get_by_role("main")).to_contain_text("Nothing is left.")
    expect(queue(page)).to_have_count(0)
    keys.at(composer(page))
    ada.wait_for_rest(chat)


def test_prompt_is_edited_and_sent_again_and_prompts_are_walked_through(ada: Visitor, script: ModelScript) -> None:
    _, page, keys = begin(ada, script, "Edited by keys")
    feed = page.get_by_role("feed")
    expect(feed).to_contain_text("Understood.")
    script.plays("second prompt", Answer(text="Second answer. " * 300))
    keys.type("second prompt")
    keys.press("Enter")
    expect(feed).to_contain_text("Second answer.")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)

    keys.type("my own draft")
    keys.do(feed.get_by_role("article").filter(has_text="hello").get_by_role("button", name="Edit and resend"))
    keys.at(composer(page))
    expect(composer(page)).to_have_value("hello")
    keys.press("Escape")
    expect(composer(page)).to_have_value("my own draft")
    keys.at(composer(page))

    # From somewhere else than the box, single letters are commands.
    keys.to(page.get_by_role("button", name="Attach files"))
    prompts = [
        feed.get_by_role("article").filter(has=page.get_by_role("heading", name=f"You: {name}")) for name in SAID
    ]
    for key, prompt in (("]", prompts[1]), ("[", prompts[0]), ("]", prompts[1])):
        keys.press(key)
        keys.at(prompt)
        expect(prompt).to_be_in_viewport()
    keys.press("/")
    keys.at(composer(page))
    keys.to(page.get_by_role("button", name="Attach files"))
    keys.press("e")
    keys.at(composer(page))
    expect(composer(page)).to_have_value("second prompt")
    script.plays("third prompt", Answer(text="Third answer."))
    keys.press("Control+a")
    keys.type("third prompt")
    keys.press("Enter")
    expect(feed).to_contain_text("Third answer.")
    expect(feed).not_to_contain_text("Second answer.")
    expect(composer(page)).to_have_value("my own draft")
    keys.at(composer(page))


def test_questions_approvals_and_cards_are_answered_opened_and_closed(ada: Visitor, script: ModelScript) -> None:
    ada.ask("PATCH", "/me/settings", {"approval_rules": [{"tool": "list_templates", "action": "ask"}]})
    call = Answer(calls=[FakeCall("list_templates", "{}")])
    script.plays("may you", call, call, Answer(text="Thank you."))
    _, page, keys = begin(ada, script, "Cards by keys", "may you")
    card = page.get_by_role("region", name="Approval")
    keys.do(card.get_by_role("button", name="Deny"))
    keys.at(card.get_by_role("textbox", name="Why not"))
    keys.type("Not yet.")
    keys.press("Enter")
    expect(page.get_by_test_id("tool-list_templates")).to_have_count(1)
    keys.somewhere()
    keys.do(card.get_by_role("button", name="Approve", exact=True), "Space")
    expect(page.get_by_role("main")).to_contain_text("Thank you.")
    keys.somewhere()
    ada.ask("PATCH", "/me/settings", {"approval_rules": None})

    # Two calls are one line, which opens to two; so does each of them.
    group = page.get_by_test_id("tool-group").get_by_role("button").first
    keys.to(group)
    expect(group).to_have_attribute("aria-expanded", "false")
    keys.press("Enter")
    expect(group).to_have_attribute("aria-expanded", "true")
    one = page.get_by_test_id("tool-list_templates").last.get_by_role("button").first
    keys.do(one, "Space")
    expect(one).to_have_attribute("aria-expanded", "true")
    keys.at(one)
    keys.press("Space")
    expect(one).to_have_attribute("aria-expanded", "false")

    script.plays("ask me", Answer(calls=[FakeCall("ask_user_question", QUESTIONS)]))
    keys.do(page.get_by_role("button", name="Plan", exact=True))
    keys.to(composer(page))
    keys.type("ask me")
    keys.press("Enter")
    form = page.get_by_role("region", name="Question of the agent")
    # From behind, a group without a choice is entered at its last one.
    keys.to(form.get_by_role("radio", name=re.compile("^Red")), "Tab")
    keys.press("2")
    expect(form.get_by_role("radio", name=re.compile("^Blue"))).to_be_checked()
    keys.do(form.get_by_role("button", name="Next"))
    expect(form).to_contain_text("Which size?")
    keys.somewhere()
    keys.do(form.get_by_role("button", name="Back"))
    expect(form.get_by_role("radio", name=re.compile("^Blue"))).to_be_checked()
    keys.somewhere()
    keys.do(form.get_by_role("button", name="Next"))
    keys.to(form.get_by_role("textbox", name="Another answer"))
    keys.type("Huge")
    keys.press("Enter")
    expect(page.get_by_role("feed").get_by_text(re.compile("^1. Colour: Blue\n2. Size: Huge"))).to_be_visible()
    keys.somewhere()
    # What was asked and answered is told the same way later, and is not asked again.
    page.reload()
    expect(page.get_by_role("feed").get_by_text(re.compile("^1. Colour: Blue\n2. Size: Huge"))).to_be_visible()
    expect(form).to_contain_text("Asked you")
    expect(form.get_by_role("radio")).to_have_count(0)


def test_files_are_attached_removed_sent_and_looked_at(ada: Visitor, script: ModelScript) -> None:
    _, page, keys = begin(ada, script, "Files by keys")
    files = page.get_by_role("list", name="Attachments")
    # From now on choosers are the test's: a key that comes together with that wish is sometimes quicker.
    page.on("filechooser", lambda _: None)

    def attach(*names: str) -> None:
        keys.to(page.get_by_role("button", name="Attach files"))
        with page.expect_file_chooser() as chooser:
            keys.press("Enter")
        chooser.value.set_files([FilePayload(name=name, mimeType="image/png", buffer=PICTURE) for name in names])
        for name in names:
            expect(files.get_by_role("button", name=f"Remove {name}")).to_be_visible()

    attach("a.png", "b.png", "c.png")
    keys.do(files.get_by_role("button", name="Remove a.png"))
    keys.at(files.get_by_role("button", name="Remove b.png"))
    keys.do(files.get_by_role("button", name="Remove c.png"))
    keys.at(files.get_by_role("button", name="Remove b.png"))
    keys.press("Enter")
    expect(files).to_have_count(0)
    keys.at(composer(page))

    attach("one.png", "two.png")
    keys.to(composer(page))
    keys.type("look")
    keys.press("Enter")
    picture = page.get_by_role("feed").get_by_role("button", name="Open one.png")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    keys.do(picture)
    lightbox = page.get_by_role("dialog", name="one.png")
    expect(lightbox).to_contain_text("1 of 2")
    keys.press("ArrowRight")
    other = page.get_by_role("dialog", name="two.png")
    expect(other).to_contain_text("2 of 2")
    keys.do(other.get_by_role("button", name="Original size"))
    expect(other.get_by_role("button", name="Fit to the window")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.at(picture)


def test_models_workspaces_and_the_panel_are_chosen_and_left(ada: Visitor, script: ModelScript) -> None:
    _, page, keys = begin(ada, script, "Panel by keys")

    model = page.get_by_role("button", name=re.compile("^Model:"))
    keys.do(model)
    keys.at(page.get_by_role("combobox", name=re.compile("model", re.IGNORECASE)))
    keys.press("ArrowDown", "Escape")
    keys.at(model)
    workspace = page.get_by_role("button", name=re.compile("^Workspace:"))
    keys.do(workspace)
    keys.at(page.get_by_role("combobox"))
    keys.type("No workspace")
    keys.press("Enter")
    expect(page.get_by_role("combobox")).to_have_count(0)
    keys.at(workspace)
    ring = page.get_by_role("button", name=re.compile("^Context:"))
    keys.do(ring)
    keys.press("Escape")
    keys.at(ring)

    # The panel: by its key, from tab to tab by arrows, and closed again.
    keys.press("Control+j")
    panel = page.get_by_role("complementary", name="Panel")
    info = panel.get_by_role("tab", name="Info")
    keys.to(info)
    keys.press("ArrowLeft")
    keys.at(panel.get_by_role("tab", name="Files"))
    keys.press("ArrowLeft")
    expect(panel.get_by_role("tab", name="Changes")).to_have_attribute("aria-selected", "true")
    keys.press("End")
    keys.at(info)
    width = page.get_by_role("separator", name="Width of the panel")
    keys.to(width)
    before = width.get_attribute("aria-valuenow")
    keys.press("ArrowLeft")
    assert width.get_attribute("aria-valuenow") != before
    keys.do(panel.get_by_role("button", name="Close the panel"))
    expect(panel).to_have_count(0)
    keys.somewhere()


def test_everything_on_the_screens_of_a_chat_is_reached_and_shown_by_tab(visit: Visit, script: ModelScript) -> None:
    ada = visit(reduced_motion="reduce")
    chat, page, keys = begin(ada, script, "Walked through")
    expect(page.get_by_role("feed")).to_contain_text("Understood.")
    found = {}
    for path in (f"/c/{chat}?panel=info", "/", "/search?q=walked", "/usage"):
        page = ada.go(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("link", name=re.compile("Walked through")).first).to_be_visible()
        if path.startswith("/c/"):
            expect(page.get_by_role("button", name="Edit and resend")).to_have_count(1)
            expect(page.get_by_role("complementary", name="Panel")).to_be_visible()
        if wrong := keys.walk():
            found[path] = wrong
    assert found == {}


def test_links_lead_past_the_list_and_page_keys_walk_from_row_to_row(ada: Visitor, script: ModelScript) -> None:
    script.plays("walk", Answer(text="A step."))
    _, page, keys = begin(ada, script, "Walked by keys", "walk")
    newest = page.get_by_role("feed").get_by_role("article").last
    expect(page.get_by_role("feed")).to_contain_text("A step.")
    expect(page.get_by_test_id("live")).to_have_count(0)

    keys.do(page.get_by_role("button", name="Skip to the newest answer"))
    keys.at(newest)
    place = int(newest.get_attribute("aria-posinset") or 0)
    assert newest.get_attribute("aria-setsize") == str(place) != "1"
    keys.press("PageUp")
    keys.at(page.locator(f"article[aria-posinset='{place - 1}']"))
    keys.press("PageDown")
    keys.at(newest)

    keys.do(page.get_by_role("button", name="Skip to the message box"))
    keys.at(composer(page))
