"""A project with MCP servers, in a real workspace: none is started or called before the owner has agreed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

import pytest

from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.mcp_consent import McpDecision
from rookery.domain.chat.messages import ChatId, Role
from rookery.llm.scripted import CallTool, Say, Step, results_since_user
from rookery.llm.types import Call
from rookery.models.connector import default_scripts
from rookery.store.workspaces.mcp_consents import NamedServer
from rookery.testing.fake_mcp import FakeCall, FakeMcp, Json, text
from tests.eventually import until
from tests.tools.replica_rig import ReplicaRig, open_replica_rig
from tests.workspaces.agent.mcp.test_mcp import SERVER
from tests.workspaces.drivers.driver_rig import known_machine

ADD = "read_calc__add"
# Creates a file as soon as it is started.
START = "touch started; exec python3 -I server.py"
CONFIG = {"mcpServers": {"read_calc": {"command": "/bin/sh", "args": ["-c", START]}}}
FILES = f"""
cat > server.py <<'END'
{SERVER.read_text()}
END
cat > .mcp.json <<'END'
{json.dumps(CONFIG)}
END
"""


REMOTE = """
cat > .mcp.json <<'END'
{"mcpServers": {"docs": {"type": "http", "url": "%s", "headers": {"Authorization": "Bearer ${ROOKERY_CHAT:-s3cret}"}}}}
END
"""


@pytest.fixture(autouse=True)
def sandbox() -> None:
    """Skip the test on a machine without a sandbox."""
    known_machine()


def project(call: Call) -> Sequence[Step]:
    """Create the project, list its files, or call the tool if there is one, depending on the user's message."""
    done = len(results_since_user(call.prompt))
    asked = next(message for message in reversed(call.prompt.messages) if message.role is Role.USER)
    steps: dict[str, list[CallTool]] = {
        "make it": [CallTool("create_workspace", {"template_id": "blank"}), CallTool("execute", {"command": FILES})],
        "look": [CallTool("execute", {"command": "ls"})],
        "use it": [CallTool("read_calc__add", {"a": 20, "b": 22})]
        * any(t.name == "read_calc__add" for t in call.tools),
    }
    wanted = next(found for words, found in steps.items() if words in str(asked.parts))
    return (wanted[done],) if done < len(wanted) else (Say("Done."),)


async def named(stead: ReplicaRig, chat: ChatId) -> list[NamedServer]:
    store = stead.replica.store.as_actor(OwnerActor(stead.user))
    return [each.named for each in await store.workspace_mcp_servers.list(await bound(stead, chat))]


async def bound(stead: ReplicaRig, chat: ChatId) -> UUID:
    found: UUID = await stead.sql("SELECT workspace_id FROM chats WHERE id = $1", chat)
    return found


async def test_a_server_of_a_project_starts_after_its_owner_has_agreed_and_its_tools_come_to_the_chat(
    database_url: str,
) -> None:
    scripts = default_scripts()
    with scripts.registered("project", project):
        async with open_replica_rig(database_url, scripts=scripts, model="project") as stead:
            chat = await stead.ask("make it")

            seen: list[str] = []

            async def is_named() -> bool:
                (listed,) = await stead.say(chat, "look")
                seen.append(listed.value["output"])
                return bool(await named(stead, chat))

            await until(is_named)
            await is_named()
            (server,) = await named(stead, chat)
            unused = await stead.say(chat, "use it")
            store = stead.replica.store.as_actor(OwnerActor(stead.user))
            await store.workspace_mcp_servers.answer(await bound(stead, chat), server.entry.hash, McpDecision.AGREE)
            await stead.replica.workspaces.run_agreed_servers(await bound(stead, chat))
            (added,) = await stead.say(chat, "use it")

            assert all("server.py" in listed and "started" not in listed for listed in seen)
            assert (server.state, server.resource.status) == ("asked", "pending")
            assert unused == []
            assert not added.is_error, added

            await store.workspace_mcp_servers.withdraw(await bound(stead, chat), server.entry.hash)
            assert await stead.say(chat, "use it") == []


async def test_server_with_an_address_is_called_by_rookery_with_the_headers_of_the_file(database_url: str) -> None:
    fake = FakeMcp()

    async def look(call: FakeCall) -> Json:
        return text("found it")

    fake.tool("look", look)

    def remote(call: Call) -> Sequence[Step]:
        done = len(results_since_user(call.prompt))
        asked = next(message for message in reversed(call.prompt.messages) if message.role is Role.USER)
        steps: dict[str, list[CallTool]] = {
            "make it": [
                CallTool("create_workspace", {"template_id": "blank"}),
                CallTool("execute", {"command": REMOTE % url}),
            ],
            "look": [CallTool("execute", {"command": "ls"})],
            "use it": [CallTool("docs__look", {})] * any(t.name == "docs__look" for t in call.tools),
        }
        wanted = next(found for words, found in steps.items() if words in str(asked.parts))
        return (wanted[done],) if done < len(wanted) else (Say("Done."),)

    scripts = default_scripts()
    with scripts.registered("remote", remote):
        async with (
            fake.listening() as url,
            open_replica_rig(database_url, scripts=scripts, model="remote", net_allow_private="127.0.0.0/8") as stead,
        ):
            chat = await stead.ask("make it")

            async def is_named() -> bool:
                await stead.say(chat, "look")
                return bool(await named(stead, chat))

            await until(is_named)
            (server,) = await named(stead, chat)
            unused = await stead.say(chat, "use it")
            before = list(fake.requests)
            store = stead.replica.store.as_actor(OwnerActor(stead.user))
            await store.workspace_mcp_servers.answer(await bound(stead, chat), server.entry.hash, McpDecision.AGREE)
            await stead.replica.workspaces.run_agreed_servers(await bound(stead, chat))
            (found,) = await stead.say(chat, "use it")

            assert (unused, before) == ([], [])
            assert (server.entry.url, server.entry.headers, server.entry.env) == (
                url,
                ("Authorization",),
                ("ROOKERY_CHAT",),
            )
            assert found.value == {"output": "found it"}
            assert {each.headers.get("authorization") for each in fake.requests} == {"Bearer s3cret"}
            for row in await stead.database.api.fetch("SELECT content::text FROM chat_messages"):
                assert "Bearer s3cret" not in row[0]

            await store.workspace_mcp_servers.withdraw(await bound(stead, chat), server.entry.hash)
            assert await stead.say(chat, "use it") == []
