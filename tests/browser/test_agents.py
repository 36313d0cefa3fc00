"""A chat with subagents: their live cards and timelines, their questions, the panel, and the cards of their ends."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from playwright.sync_api import Locator, Page, WebSocket, expect

from rookery.testing.fake_completions import Answer, FakeCall
from tests.browser.browser_user import PATIENCE_MS, Visitor, wait_until
from tests.browser.conftest import Visit
from tests.browser.keyboard import Keys
from tests.browser.model_script import Cue, ModelScript


def spawn(title: str, prompt: str) -> FakeCall:
    return FakeCall("spawn_agent", json.dumps({"type": "general", "title": title, "prompt": prompt}))


def test_parent_shows_two_children_live_stops_one_and_gets_the_report_of_the_other(
    ada: Visitor, script: ModelScript
) -> None:
    cue = script.cue()
    script.plays(
        "use two agents",
        Answer(calls=[spawn("callers", "find the callers"), spawn("endless", "never end")]),
        Answer(text="Both are at work."),
    )
    script.plays("find the callers", [Answer(text="There are "), cue, Answer(text="**three** callers.")])
    script.plays("never end", [Answer(text="On and "), script.cue(), Answer(text="on.")])
    chat = ada.chat("use two agents", title="Parent", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}?panel=agents")
    cards = page.get_by_test_id("tool-spawn_agent")
    expect(cards).to_have_count(2)
    callers, endless = cards.filter(has_text="callers"), cards.filter(has_text="endless")
    expect(callers.get_by_text("Waiting for the model")).to_be_visible()
    listed = page.get_by_role("list", name="Subagents").get_by_role("listitem")
    expect(listed).to_have_count(2)

    endless.get_by_role("button", name="Stop endless").click()
    expect(endless.get_by_text("Stopped")).to_be_visible()
    expect(listed.filter(has_text="endless").get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
    cue.give()

    notice = page.get_by_test_id("agent-notice").filter(has_text="Agent “callers” finished")
    expect(notice.get_by_text("three")).to_be_visible()
    expect(callers.get_by_text("Finished", exact=True)).to_be_visible()
    # Notices are not messages of the user.
    expect(page.locator("article[data-kind=user]")).to_have_count(1)
    expect(page.get_by_role("button", name="Edit and resend")).to_have_count(1)
    notice.get_by_role("link", name="Open").click()
    expect(page.get_by_role("feed", name="Conversation")).to_contain_text("find the callers")


def watch_streams(page: Page) -> list[str]:
    """Return the addresses of the open streams of single chats. The list changes with them."""
    open_now = list[str]()

    def add(socket: WebSocket) -> None:
        if re.search(r"/chats/[0-9a-f-]{36}/stream", socket.url):
            open_now.append(socket.url)
            socket.on("close", lambda _: open_now.remove(socket.url))

    page.on("websocket", add)
    return open_now


def streams_to(open_now: list[str], children: list[Any]) -> int:
    return sum(child["chat_id"] in url for child in children for url in open_now)


def wait_for_streams(page: Page, open_now: list[str], children: list[Any], count: int) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while streams_to(open_now, children) != count:
        assert time.monotonic() < deadline, open_now
        page.wait_for_timeout(100)


def agents_of(visitor: Visitor, chat_id: str) -> list[Any]:
    agents: list[Any] = visitor.ask("GET", f"/chats/{chat_id}/agents")["agents"]
    return agents


# Whether a paragraph that begins with these words is in the visible part of a box.
IN_VIEW = """([box, words]) => {
    const view = box.getBoundingClientRect();
    const found = [...box.querySelectorAll("p")].find((one) => one.textContent.startsWith(words));
    const place = found?.getBoundingClientRect();
    return place !== undefined && place.top >= view.top - 1 && place.bottom <= view.bottom + 1;
}"""


def opened(card: Locator, title: str) -> Locator:
    """Open the card of a subagent. Return its timeline."""
    card.get_by_role("button", name=f"Agent: {title}").click()
    return card.get_by_role("region", name=f"Timeline of {title}")


def test_timeline_of_a_child_is_read_live_inside_its_card(ada: Visitor, script: ModelScript) -> None:
    cue, end = script.cue(), script.cue()
    script.plays("one agent, please", Answer(calls=[spawn("words", "say much")]), Answer(text="It is at work."))
    many = "".join(f"Line {number} of the answer.\n\n" for number in range(40))
    script.plays(
        "say much",
        [Answer(text="I begin. "), cue, Answer(text=f"{many}", calls=[FakeCall("list_files_of_nowhere", "{}")])],
        [Answer(text="The last "), end, Answer(text="word.")],
    )
    chat = ada.chat("one agent, please", title="Reads along", model_config_id=script.config(ada))
    streams = watch_streams(ada.page)
    page = ada.go(f"/c/{chat['id']}")
    card = page.get_by_test_id("tool-spawn_agent")
    expect(card.get_by_text("Waiting for the model")).to_be_visible()
    children = agents_of(ada, chat["id"])
    assert streams_to(streams, children) == 0

    timeline = opened(card, "words")
    expect(timeline).to_contain_text("I begin.")
    assert streams_to(streams, children) == 1
    cue.give()
    expect(timeline.get_by_text("The last")).to_be_visible()
    wait_until(page, IN_VIEW, [timeline.element_handle(), "The last"])
    # Its height is limited, and the end is followed until somebody scrolls up.
    box = timeline.bounding_box()
    assert box
    assert box["height"] < 400
    timeline.hover()
    page.mouse.wheel(0, -5_000)
    wait_until(page, IN_VIEW, [timeline.element_handle(), "Line 1 of the answer."])
    end.give()
    expect(card.get_by_text("Finished", exact=True)).to_be_visible()
    expect(timeline).to_contain_text("The last word.")
    wait_until(page, IN_VIEW, [timeline.element_handle(), "Line 1 of the answer."])
    # The task is above, nothing can be sent from here, and a subagent at rest needs no stream.
    expect(card.get_by_role("group", name="Task")).to_contain_text("say much")
    expect(timeline.get_by_text("say much")).to_have_count(0)
    expect(timeline.get_by_role("button", name="Edit and resend")).to_have_count(0)
    ada.wait_for_rest(chat["id"])
    wait_for_streams(page, streams, children, 0)
    assert ada.violations() == []


def test_three_children_are_followed_at_a_time_and_the_others_on_request(ada: Visitor, script: ModelScript) -> None:
    titles = ["north", "east", "south", "west"]
    cues = {title: script.cue() for title in titles}
    calls = [spawn(title, f"go {title}") for title in titles]
    script.plays("to all sides", Answer(calls=calls), Answer(text="They went."))
    for title in titles:
        script.plays(f"go {title}", [Answer(text=f"Going {title}. "), cues[title], Answer(text="There.")])
    chat = ada.chat("to all sides", title="Four sides", model_config_id=script.config(ada))
    streams = watch_streams(ada.page)
    page = ada.go(f"/c/{chat['id']}")
    cards = {title: page.get_by_test_id("tool-spawn_agent").filter(has_text=title) for title in titles}
    timelines = {title: opened(cards[title], title) for title in titles}
    for title in titles:
        expect(timelines[title]).to_contain_text(f"Going {title}.")
    children = agents_of(ada, chat["id"])
    paused = "Paused, because other agents are shown live."
    expect(page.get_by_text(paused)).to_have_count(1)
    wait_for_streams(page, streams, children, 3)
    first = next(title for title in titles if cards[title].get_by_text(paused).count())
    cards[first].get_by_role("button", name="Show live").click()

    expect(cards[first].get_by_text(paused)).to_have_count(0)
    expect(page.get_by_text(paused)).to_have_count(1)
    # The text so far stays.
    for title in titles:
        expect(timelines[title]).to_contain_text(f"Going {title}.")
    wait_for_streams(page, streams, children, 3)
    for cue in cues.values():
        cue.give()
    for title in titles:
        expect(timelines[title]).to_contain_text("There.")
    ada.wait_for_rest(chat["id"])


def careful_chat(ada: Visitor, script: ModelScript, title: str) -> str:
    """A chat at rest whose subagents ask before they run a command."""
    chat = ada.chat("hello", title=title, model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    rule = {"tool": "execute", "action": "ask"}
    ada.ask("PUT", f"/chats/{chat['id']}/approval-rules", {"rules": [rule]})
    return str(chat["id"])


def run(command: str) -> FakeCall:
    return FakeCall("execute", json.dumps({"command": command}))


def results_of(ada: Visitor, chat_id: str) -> str:
    return json.dumps(ada.ask("GET", f"/chats/{chat_id}/messages?limit=50")["items"])


def test_questions_of_children_are_answered_at_the_root_also_on_a_phone(
    ada: Visitor, visit: Visit, script: ModelScript
) -> None:
    names = ["first", "second", "third"]
    script.plays("carefully", Answer(calls=[spawn(one, f"do {one}") for one in names]), Answer(text="All began."))
    for one in names:
        script.plays(f"do {one}", Answer(calls=[run(f"echo {one}")]), Answer(text=f"Done with {one}."))
    chat = careful_chat(ada, script, "Asks for its children")
    phone = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    small = phone.go(f"/c/{chat}")
    page, keys = ada.go(f"/c/{chat}"), Keys(ada)
    box = page.get_by_role("textbox", name="Message")
    keys.to(box)
    keys.type("carefully")
    keys.press("Enter")
    ada.wait_for_rest(chat)

    question, there = page.get_by_test_id("approval"), small.get_by_test_id("approval")
    cards = page.get_by_test_id("tool-spawn_agent")
    for one in names:
        expect(cards.filter(has_text=one).get_by_text("Waiting for approval")).to_be_visible()
    expect(question.get_by_text("2 more agents wait for your answer.")).to_be_visible()
    expect(there.get_by_text("2 more agents wait for your answer.")).to_be_visible()
    assert ada.violations() == []
    assert phone.violations() == []

    # The one that was asked for is shown; it is approved by keys.
    keys.do(cards.filter(has_text="second").get_by_role("button", name="Answer second"))
    expect(question).to_contain_text("Asked by the agent second")
    expect(question).to_contain_text("$ echo second")
    keys.do(question.get_by_role("button", name="Approve"))
    keys.somewhere()
    expect(cards.filter(has_text="second").get_by_text("Finished", exact=True)).to_be_visible()
    # The others are answered on the phone: one is denied with a reason.
    expect(there.get_by_text("1 more agent waits for your answer.")).to_be_visible()
    asked = "first" if there.get_by_text("$ echo first").count() else "third"
    there.get_by_role("button", name="Deny").tap()
    there.get_by_role("textbox", name="Why not").fill("Not today")
    there.get_by_role("button", name="Deny").tap()
    other = "third" if asked == "first" else "first"
    expect(there.get_by_text(f"$ echo {other}")).to_be_visible()
    # Not a tap: it would count as the second of a double tap, which answers nothing.
    there.get_by_role("button", name="Approve").click()
    expect(there).to_have_count(0)
    expect(question).to_have_count(0)
    for one in names:
        expect(cards.filter(has_text=one).get_by_text("Finished", exact=True)).to_be_visible()
    ids = {one["title"]: one["chat_id"] for one in agents_of(ada, chat)}
    assert "Not today" in results_of(ada, ids[asked])
    assert "Not today" not in results_of(ada, ids[other])
    ada.wait_for_rest(chat)


def test_panel_stops_all_children_at_once_and_leaves_the_parent(ada: Visitor, script: ModelScript) -> None:
    def endless(title: str) -> list[Answer | Cue]:
        return [Answer(text=f"{title} goes on "), script.cue(), Answer(text="and on.")]

    titles = ["one", "two", "three"]
    calls = [spawn(title, f"endless {title}") for title in titles]
    script.plays("start three", Answer(calls=calls), Answer(text="Three began."))
    for title in titles:
        script.plays(f"endless {title}", endless(title))
    chat = ada.chat("start three", title="Stops all", model_config_id=script.config(ada))
    page = ada.go(f"/c/{chat['id']}?panel=agents")
    panel = page.get_by_role("complementary", name="Panel")
    expect(panel.get_by_text("3 of 3 agents at work")).to_be_visible()
    # The list of chats shows them below their parent, and says nothing about unread answers.
    nested = page.get_by_role("navigation").get_by_role("link", name=re.compile("^(one|two|three)"))
    expect(nested).to_have_count(3)
    ada.wait_for_rest(chat["id"])
    panel.get_by_role("button", name="Stop all agents").click()

    listed = page.get_by_role("list", name="Subagents").get_by_role("listitem")
    for title in titles:
        expect(listed.filter(has_text=title).get_by_text("Stopped", exact=True)).to_be_visible()
    expect(panel.get_by_text("3 agents", exact=True)).to_be_visible()
    expect(panel.get_by_role("button", name=re.compile("^Stop"))).to_have_count(0)
    assert {one["outcome"] for one in agents_of(ada, chat["id"])} == {"interrupted"}
    assert ada.ask("GET", f"/chats/{chat['id']}")["status"] == "waiting"


def test_new_user_hands_two_tasks_to_agents_that_work_side_by_side(ada: Visitor) -> None:
    page = ada.go("/")
    expect(page.get_by_role("heading", name=re.compile("^What should we work on, .+[?]$"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^Delegate to two agents: ")).click()
    page.get_by_role("button", name="Send message").click()

    cards = page.get_by_test_id("tool-spawn_agent")
    expect(cards).to_have_count(2)
    for task in ("list the files in /etc", "run uname -a"):
        expect(cards.filter(has_text=task).get_by_text("Finished", exact=True)).to_be_visible()
    answer = page.get_by_role("article").filter(has_text="reports:").last
    expect(answer).to_contain_text("passwd")
    expect(answer).to_contain_text("Linux")
    # The header of a subagent names the main chat, and leads back to it.
    home = page.url
    main = home.rpartition("/c/")[2]
    ada.wait_for_rest(main)
    agent = agents_of(ada, main)[0]
    page = ada.go(f"/c/{agent['chat_id']}")
    expect(page.get_by_role("heading", name=agent["title"], level=1)).to_be_visible()
    page.locator("header").get_by_role("link", name=ada.ask("GET", f"/chats/{main}")["title"]).click()
    expect(page).to_have_url(home)


def test_cards_of_two_agents_show_their_work_while_the_main_chat_waits(ada: Visitor) -> None:
    page = ada.go("/")
    box = page.get_by_role("textbox", name="Message")
    box.fill("delegate: run `sleep 8; echo apples`; run `sleep 8; echo pears`")
    page.get_by_role("button", name="Send message").click()

    cards = page.get_by_test_id("tool-spawn_agent")
    expect(cards).to_have_count(2)
    for fruit in ("apples", "pears"):
        expect(cards.filter(has_text=fruit).get_by_text("Running a tool")).to_be_visible()
    # The chat waits for its calls and does not think.
    expect(page.get_by_text("Waiting for 2 agents")).to_be_visible()
    expect(page.get_by_text(re.compile("^Thinking"))).to_have_count(0)
    timeline = opened(cards.filter(has_text="apples"), "run `sleep 8; echo apples`")
    expect(timeline).to_contain_text("I will run that.")
    for fruit in ("apples", "pears"):
        expect(cards.filter(has_text=fruit).get_by_text("Finished", exact=True)).to_be_visible()
    answer = page.get_by_role("article").filter(has_text="reports:").last
    expect(answer).to_contain_text("apples")
    expect(answer).to_contain_text("pears")


def test_own_kind_is_created_edited_and_deleted(ada: Visitor) -> None:
    page = ada.go("/settings/agent-kinds")
    page.get_by_role("button", name="Create a kind").click()
    page.get_by_role("textbox", name="Name").fill("reviewer")
    page.get_by_role("textbox", name="Description").fill("Reviews code.")
    page.get_by_role("textbox", name="Tools").fill("read_file execute")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="reviewer")
    expect(row).to_contain_text("Reviews code.")

    row.get_by_role("button", name="Edit reviewer").click()
    page.get_by_role("textbox", name="Description").fill("Reviews tests.")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("Reviews tests.")
    stored = next(kind for kind in ada.ask("GET", "/agent-kinds")["kinds"] if kind["name"] == "reviewer")
    assert stored["tools"] == ["read_file", "execute"]

    row.get_by_role("button", name="Delete reviewer").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)


def test_user_chooses_models_for_own_subagents_if_administrators_allow_it(ada: Visitor) -> None:
    (provider, *_) = ada.ask("GET", "/models")["providers"]
    model = provider["models"][0]
    name = model["display_name"] or model["model"]
    page = ada.go("/settings/chat")
    expect(page.get_by_role("heading", name="Summarizing long chats")).to_be_visible()
    expect(page.get_by_role("heading", name="Your models")).to_have_count(0)

    try:
        override = {"model_config_id": model["id"]}
        ada.ask("PUT", "/settings/models", {"allow_personal_overrides": True, "explore_subagents": override})
        page = ada.go("/settings/chat")
        section = page.locator("section").filter(has=page.get_by_role("heading", name="Your models"))
        expect(section.get_by_label("General subagents").locator("option").first).to_have_text(
            "Server default: the chat's own"
        )
        explore = section.get_by_label("Explore subagents")
        expect(explore.locator("option").first).to_have_text(f"Server default: {name}")
        explore.select_option(label="The chat's own")
        section.get_by_label("General subagents").select_option(label=name)
        section.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Saved.")).to_be_visible()

        saved = ada.ask("GET", "/me/settings")["model_overrides"]
        assert (saved["general"]["mode"], saved["general"]["model_config_id"]) == ("model", model["id"])
        assert (saved["explore"]["mode"], saved["root"]) == ("chat_default", None)
        page.reload()
        expect(section.get_by_label("Explore subagents")).to_have_value("chat_default")
    finally:
        ada.ask("PUT", "/settings/models", {"allow_personal_overrides": False, "explore_subagents": None})
