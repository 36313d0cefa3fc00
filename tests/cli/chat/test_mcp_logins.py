"""The login to MCP servers at the terminal, and the question of a server from the API to its answer."""

from __future__ import annotations

from pathlib import Path

from rookery.cli.chat import approvals, mcp_servers
from rookery.client import ApprovalAnswer
from rookery.llm.scripted import CallTool, Say
from rookery.store.settings import settings
from rookery.testing.fake_mcp import FakeCall, FakeMcp, Json, text
from tests.cli.chat.chat_rig import open_chat_desk
from tests.eventually import until
from tests.worker.worker_rig import in_turn

FORM = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
LOG_IN = """
    INSERT INTO mcp_oauth_tokens (server_id, user_id, issuer, resource, token_url, client_id, token_auth_method,
                                  access_token_enc)
    VALUES ($1, $2, 'https://as.example', 'https://mcp.example', 'https://as.example/token', 'us', 'none', 'sealed')
"""


async def test_the_terminal_waits_for_a_login_in_the_browser(database_url: str, tmp_path: Path) -> None:
    async with open_chat_desk(database_url, tmp_path) as desk:
        made = await desk.client.mcp_servers.create("linear", "https://mcp.example/mcp", auth_type="oauth2")
        await desk.client.mcp_servers.create("open", "https://open.example/mcp")

        (server,) = await mcp_servers.find_logins(desk.client)
        before = await mcp_servers.wait_for_login(desk.client, made.id, seconds=0, every=1)
        async with desk.rig.database.api.acquire() as conn:
            await conn.execute(LOG_IN, made.id, desk.person.id)
        after = await mcp_servers.wait_for_login(desk.client, made.id, seconds=0, every=1)

        assert (before, after) == (False, True)
        assert list(mcp_servers.login_lines([server], "")) == ["linear: /connect linear"]
        assert "There is no MCP server x with a login." in mcp_servers.login_lines([server], "x")
        assert f"?server={made.id}" in mcp_servers.connect_line("https://r.example", server)


async def test_a_question_of_a_server_is_answered_through_the_api(database_url: str, tmp_path: Path) -> None:
    fake = FakeMcp()
    steps = in_turn((CallTool("trains__book"),), (Say("done"),))

    async def book(call: FakeCall) -> Json:
        answer = await call.ask("Which seat?", FORM)
        return text(f"booked {answer['content']['seat']}")

    fake.tool("book", book)
    async with fake.listening() as url, open_chat_desk(database_url, tmp_path) as desk:
        async with desk.rig.database.api.acquire() as conn:
            await settings.write_setting(conn, "mcp", value={"allow_private_addresses": True})
        server = await desk.client.mcp_servers.create("trains", url)
        with desk.script(steps):
            chat = await desk.client.chats.create("Book a seat", mcp_server_ids=[server.id])

            async def asked() -> bool:
                action = (await desk.client.chats.get(chat.id)).action
                return action is not None and action.kind == "approval"

            await until(asked)
            action = (await desk.client.chats.get(chat.id)).action
            assert action is not None
            (call,) = action.tool_calls
            assert call.elicitation is not None
            lines = list(approvals.elicitation_lines(call.elicitation))
            responses = approvals.typed_responses(call.elicitation, "12A")
            answer = ApprovalAnswer(tool_call_id=call.tool_call_id, decision="approve", responses=responses)
            await desk.client.chats.answer_approvals(chat.id, [answer])

            async def rested() -> bool:
                return (await desk.client.chats.get(chat.id)).status == "waiting"

            await until(rested)

        assert lines == ["  trains asks: Which seat?"]
        assert len(fake.calls) == 2
        assert fake.calls[1].responses["question"]["content"] == {"seat": "12A"}
