"""MCP servers in a browser: settings, logins in a window, questions in a chat, and the servers of a chat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rookery.testing.fake_authorization import FakeAuthorization
from rookery.testing.fake_completions import Answer, FakeCall
from rookery.testing.fake_mcp import FakeCall as McpCall
from rookery.testing.fake_mcp import FakeMcp, text
from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.faulty_connection import EventLoopThread
from tests.browser.model_script import ModelScript
from tests.browser.test_mcp_servers import put
from tests.browser.test_workspace_panel import make_project

FORM = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "title": "Place", "enum": ["north", "south"]},
        "note": {"type": "string", "title": "Note"},
        "count": {"type": "integer", "title": "Count", "minimum": 1},
    },
    "required": ["place"],
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def plant(call: McpCall) -> Any:
    answer = await call.ask("Where should it be planted?", FORM)
    return text(json.dumps(answer))


async def draw(call: McpCall) -> Any:
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    return {"content": [{"type": "text", "text": "A dot."}, image], "structuredContent": {"dots": 1}}


@pytest.fixture
def garden(backstage: EventLoopThread) -> Iterator[str]:
    """The address of an MCP server with three tools."""
    fake = FakeMcp()
    fake.tool("plant_tree", plant, description="Plant a tree.")
    fake.tool("draw_dot", draw, description="Draw a dot.")
    fake.tool("remove_all", description="Remove every tree.")
    with listening(backstage, fake.listening) as url:
        yield url


@pytest.fixture
def authorization(backstage: EventLoopThread) -> Iterator[FakeAuthorization]:
    """An authorization server, and an MCP server that requires its tokens."""
    fake = FakeAuthorization()
    with listening(backstage, fake.listening):
        yield fake


@contextmanager
def listening(backstage: EventLoopThread, listen: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[Any]:
    context = listen()

    async def enter() -> Any:
        return await context.__aenter__()

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    entered = backstage.run(enter())
    yield entered
    backstage.run(leave())


@pytest.fixture
def ada(ada: Visitor) -> Iterator[Visitor]:
    """The administrator. MCP servers on this machine are allowed, and are deleted at the end."""
    ada.ask("PUT", "/settings/mcp", {"allow_private_addresses": True})
    yield ada
    for server in ada.ask("GET", "/mcp-servers")["items"]:
        if workspace := server["workspace_id"]:
            for named in ada.ask("GET", f"/workspaces/{workspace}/mcp-servers")["items"]:
                if named["server"] == server["id"]:
                    ada.ask("DELETE", f"/workspaces/{workspace}/mcp-servers/{named['hash']}")
            continue
        ada.ask("DELETE", f"{'/me' if server['is_own'] else ''}/mcp-servers/{server['id']}")


@pytest.fixture
def bert(ada: Visitor, visit: Visit) -> Visitor:
    if not any(user["username"] == "bert" for user in ada.ask("GET", "/users")["items"]):
        ada.ask("POST", "/users", {"email": "bert@example.org", "username": "bert", "password": PASSWORD})
    return visit("bert")


def test_administrator_adds_a_server_tests_it_and_switches_a_tool_off(ada: Visitor, garden: str) -> None:
    page = ada.go("/settings/mcp")
    page.get_by_role("button", name="Add server").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("searchbox", name="Search").fill("issues")
    expect(dialog.get_by_role("button", name="Linear")).to_be_visible()
    assert ada.violations() == []
    dialog.get_by_role("button", name="By its address").click()
    dialog.get_by_role("textbox", name="Address").fill(garden)
    dialog.get_by_role("textbox", name="Name", exact=True).fill("My Garden")
    expect(dialog.get_by_role("textbox", name="Short name")).to_have_value("my-garden")
    assert ada.violations() == []
    dialog.get_by_role("button", name="Add", exact=True).click()

    # The new server is tested at once.
    tools = dialog.get_by_role("list", name="Tools").get_by_role("listitem")
    expect(dialog).to_contain_text("It works. It has 3 tools")
    expect(tools.filter(has_text="remove_all")).to_contain_text("Remove every tree.")
    assert ada.violations() == []
    dialog.get_by_role("button", name="Edit").click()
    dialog.get_by_text("Tools: 3 of 3 are on").click()
    dialog.get_by_role("switch", name="remove_all").click()
    expect(dialog).to_contain_text("Tools: 2 of 3 are on")
    dialog.get_by_text("More", exact=True).click()
    assert ada.violations() == []
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert ada.ask("GET", "/mcp-servers")["items"][0]["tool_deny_list"] == ["remove_all"]

    row = page.get_by_role("row", name="My Garden")
    row.get_by_role("button", name="Test My Garden").click()
    expect(tools.filter(has_text="remove_all")).to_contain_text("off")
    dialog.get_by_role("button", name="Close").last.click()
    assert ada.violations() == []
    row.get_by_role("button", name="Delete My Garden").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No MCP servers yet.")).to_be_visible()


def test_administrator_lets_a_person_use_a_server(ada: Visitor, bert: Visitor, garden: str) -> None:
    server = ada.ask("POST", "/mcp-servers", {"slug": "garden", "display_name": "Garden", "url": garden})
    page = ada.go("/settings/mcp")
    page.get_by_role("button", name="Edit Garden").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("More", exact=True).click()
    dialog.get_by_role("checkbox", name="Auditors").check()
    dialog.get_by_role("textbox", name="And for these people").fill("bert")
    dialog.get_by_role("button", name="@bert").click()
    allowed = dialog.get_by_role("list", name="People who may use the server")
    expect(allowed).to_contain_text("@bert")
    assert ada.violations() == []
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)

    me = bert.ask("GET", "/users/me")["id"]
    assert ada.ask("GET", f"/mcp-servers/{server['id']}")["allowed_users"] == [me]
    assert [each["id"] for each in bert.ask("GET", "/mcp-servers")["items"]] == [server["id"]]
    page.get_by_role("button", name="Edit Garden").click()
    dialog.get_by_text("More", exact=True).click()
    allowed.get_by_role("button", name="Remove bert").click()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert bert.ask("GET", "/mcp-servers")["items"] == []


def test_server_of_a_project_is_used_after_its_owner_has_agreed_to_its_address(
    ada: Visitor, garden: str, authorization: FakeAuthorization, script: ModelScript, data_dir: Path
) -> None:
    workspace, folder = make_project(ada, data_dir)
    files = {
        "garden": {"type": "http", "url": garden, "headers": {"X-Team": "${TEAM:-blue}"}},
        "vault": {"url": authorization.resource},
    }
    put(folder, ".mcp.json", json.dumps({"mcpServers": files}))
    script.plays("a dot", Answer(calls=[FakeCall("garden__draw_dot", "{}")]))
    chat = ada.chat("hello", title="Addresses", workspace_id=workspace["id"], model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}?panel=info")
    card = page.get_by_role("region", name="MCP server", exact=True)
    expect(card).to_contain_text("This project wants to use the MCP server garden. May Rookery connect to it?")
    expect(card.get_by_role("group", name="Address of garden")).to_contain_text(garden)
    expect(card).to_contain_text(
        "It gets the header X-Team of the file, with the value of the environment variable TEAM."
    )
    assert ada.violations() == []
    card.get_by_role("button", name="Allow").click()
    expect(card).to_contain_text("the MCP server vault. May Rookery connect to it?")
    card.get_by_role("button", name="Allow").click()
    expect(card).to_have_count(0)
    listed = page.get_by_role("list", name="MCP servers of the project").get_by_role("listitem")
    expect(listed.filter(has_text="garden")).to_contain_text("In use, 3 tools")
    expect(listed.filter(has_text="vault")).to_contain_text("Allowed, needs your login")
    expect(listed.filter(has_text="vault").get_by_role("link", name="Log in to vault")).to_be_visible()
    notice = page.get_by_test_id("connect-notice")
    expect(notice).to_contain_text("vault needs you to log in")
    assert ada.violations() == []
    click_in_window(page, "Connect vault")
    expect(notice).to_have_count(0)

    say(ada, chat["id"], "a dot")
    expect(page.get_by_role("feed")).to_contain_text("Understood.")
    call = page.get_by_test_id("tool-garden__draw_dot")
    call.get_by_role("button").first.click()
    expect(call.get_by_role("group", name="Output")).to_contain_text("A dot.")
    page.get_by_role("button", name="MCP servers: 2 on").click()
    switches = page.get_by_role("dialog", name="MCP servers")
    expect(switches.get_by_role("switch", name="garden")).to_be_disabled()
    expect(switches).to_contain_text("Named by the project of this workspace")
    page.keyboard.press("Escape")
    listed.filter(has_text="garden").get_by_role("button", name="Withdraw garden").click()
    expect(card).to_contain_text("the MCP server garden. May Rookery connect to it?")
    expect(page.get_by_role("button", name="MCP servers: 1 on")).to_be_visible()


def test_user_answers_the_question_of_a_server_by_its_form_or_declines(
    ada: Visitor, garden: str, script: ModelScript
) -> None:
    server = ada.ask("POST", "/mcp-servers", {"slug": "garden", "display_name": "Garden", "url": garden})
    script.plays("plant one", Answer(calls=[FakeCall("garden__plant_tree", "{}")]), Answer(text="Planted."))
    script.plays("plant two", Answer(calls=[FakeCall("garden__plant_tree", "{}")]), Answer(text="As you like."))
    chat = ada.chat("hello", title="Trees", model_config_id=script.config(ada), mcp_server_ids=[server["id"]])
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    say(ada, chat["id"], "plant one")
    card = page.get_by_test_id("server-question")
    expect(card).to_contain_text("Garden asks you")
    expect(card).to_contain_text("Where should it be planted?")
    assert ada.violations() == []
    card.get_by_role("button", name="Send answer").click()
    expect(card).to_contain_text("This is needed.")
    card.get_by_role("combobox", name="Place").select_option("south")
    card.get_by_role("textbox", name="Count").fill("many")
    expect(card).to_contain_text("This must be a number.")
    card.get_by_role("textbox", name="Note").fill("near the wall")
    page.reload()
    expect(card.get_by_role("combobox", name="Place")).to_have_value("south")
    expect(card.get_by_role("textbox", name="Note")).to_have_value("near the wall")
    card.get_by_role("textbox", name="Count").fill("2")
    card.get_by_role("button", name="Send answer").click()
    expect(page.get_by_role("feed")).to_contain_text("Planted.")
    call = page.get_by_test_id("tool-garden__plant_tree")
    expect(call).to_contain_text("plant tree")
    call.get_by_role("button").first.click()
    expect(call).to_contain_text("south")
    assert ada.violations() == []

    # The next question is a new form.
    say(ada, chat["id"], "plant two")
    expect(card.get_by_role("textbox", name="Note")).to_have_value("")
    expect(page.get_by_role("status").filter(has_text="Garden asks a question")).to_have_count(1)
    card.get_by_role("button", name="Decline").click()
    expect(page.get_by_role("feed")).to_contain_text("As you like.")
    expect(card).to_have_count(0)


def click_in_window(page: Page, name: str) -> None:
    with page.expect_popup():
        page.get_by_role("button", name=name).click()


def test_user_connects_in_a_window_and_disconnects(ada: Visitor, authorization: FakeAuthorization) -> None:
    draft = {"slug": "vault", "display_name": "Vault", "url": authorization.resource, "auth_type": "oauth2"}
    server = ada.ask("POST", "/mcp-servers", draft)
    page = ada.go(f"/settings/connections?server={server['id']}")
    row = page.get_by_role("list", name="Connections").get_by_role("listitem")
    expect(row).to_contain_text("Not connected.")
    assert ada.violations() == []

    authorization.agrees = False
    click_in_window(page, "Connect Vault")
    expect(row.get_by_role("status")).to_contain_text("The user said no.")
    authorization.agrees = True
    click_in_window(page, "Connect Vault")
    expect(row).to_contain_text("Connected.")
    expect(row).to_contain_text("The agent may use: read, write")
    assert ada.violations() == []

    row.get_by_role("button", name="Disconnect Vault").click()
    page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
    expect(row).to_contain_text("Not connected.")


def test_chat_offers_the_login_that_a_server_needs(
    ada: Visitor, authorization: FakeAuthorization, script: ModelScript
) -> None:
    draft = {"slug": "vault", "display_name": "Vault", "url": authorization.resource, "auth_type": "oauth2"}
    server = ada.ask("POST", "/mcp-servers", draft)
    chat = ada.chat("hello", title="Vaults", model_config_id=script.config(ada), mcp_server_ids=[server["id"]])
    ada.wait_for_rest(chat["id"])
    page = ada.go(f"/c/{chat['id']}")
    notice = page.get_by_test_id("connect-notice")
    expect(notice).to_contain_text("Vault needs you to log in")
    expect(notice.get_by_role("link", name="Settings")).to_have_attribute(
        "href", f"/settings/connections?server={server['id']}"
    )
    assert ada.violations() == []
    click_in_window(page, "Connect Vault")
    expect(notice).to_have_count(0)


def test_servers_of_new_and_of_existing_chats_are_switched_below_the_message_box(
    ada: Visitor, garden: str, script: ModelScript
) -> None:
    made = {
        slug: ada.ask("POST", "/mcp-servers", {"slug": slug, "url": garden, "availability": availability})["id"]
        for slug, availability in (("always", "force_on"), ("often", "default_on"), ("seldom", "default_off"))
    }
    script.plays("a dot", Answer(calls=[FakeCall("seldom__draw_dot", "{}")]))
    script.config(ada)
    page = ada.go("/")
    page.get_by_role("button", name="MCP servers: 2 on").click()
    switches = page.get_by_role("dialog", name="MCP servers")
    expect(switches.get_by_role("switch", name="always")).to_be_disabled()
    assert ada.violations() == []
    switches.get_by_role("switch", name="seldom").click()
    switches.get_by_role("switch", name="often").click()
    page.keyboard.press("Escape")
    page.get_by_role("textbox", name="Message", exact=False).fill("hello")
    page.get_by_role("button", name="Send message").click()
    page.wait_for_url("**/c/*")
    chat = page.url.rsplit("/", 1)[1]
    ada.wait_for_rest(chat)
    assert set(ada.ask("GET", f"/chats/{chat}")["mcp_server_ids"]) == {made["always"], made["seldom"]}

    page.get_by_role("button", name="MCP servers: 2 on").click()
    switches.get_by_role("switch", name="often").click()
    expect(page.get_by_role("button", name="MCP servers: 3 on")).to_be_visible()
    page.keyboard.press("Escape")
    assert made["often"] in ada.ask("GET", f"/chats/{chat}")["mcp_server_ids"]

    body = {"content": [{"type": "text", "text": "a dot"}], "model_config_id": script.config(ada)}
    ada.ask("POST", f"/chats/{chat}/messages", body)
    expect(page.get_by_role("feed")).to_contain_text("Understood.")
    call = page.get_by_test_id("tool-seldom__draw_dot")
    expect(call).to_contain_text("seldom: draw dot")
    call.get_by_role("button").first.click()
    expect(call.get_by_role("group", name="Output")).to_contain_text("A dot.")
    expect(page.get_by_role("feed").get_by_role("img").first).to_be_visible()
    assert ada.violations() == []


def say(ada: Visitor, chat: str, words: str) -> None:
    ada.ask("POST", f"/chats/{chat}/messages", {"content": [{"type": "text", "text": words}]})
