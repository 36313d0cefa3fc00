"""`rookery admin run --workspace`: the agent has its tools, and what the turn started is stopped at its end."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rookery.cli.exit_codes import Exit, Refused
from rookery.domain.chat.mcp_consent import Entry
from rookery.domain.chat.messages import ChatId
from rookery.llm.scripted import CallTool, Say, Step, results_since_user
from rookery.llm.types import Call
from rookery.store.workspaces import context
from rookery.store.workspaces.context import ContextResource, Snapshot
from tests.cli.admin.run.run_rig import RunRig, open_desk
from tests.workspaces.fake_driver import FakeDriver

NOTE = "stopping the workspace"


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[RunRig]:
    async with open_desk(database_url, tmp_path) as opened:
        await opened.model()
        yield opened


@pytest.fixture
async def driver() -> AsyncIterator[FakeDriver]:
    with tempfile.TemporaryDirectory(prefix="rkr") as folder:
        made = FakeDriver(Path(folder))
        yield made
        await made.close()


def create(call: Call) -> Sequence[Step]:
    return _once(call, CallTool("create_workspace", {"template_id": "blank"}))


def start(call: Call) -> Sequence[Step]:
    return _once(call, CallTool("start_workspace", {}))


def _once(call: Call, made: CallTool) -> Sequence[Step]:
    return (Say("Done."),) if results_since_user(call.prompt) else (made,)


async def test_workspace_that_a_turn_starts_is_stopped_with_it_and_started_again(
    rig: RunRig, driver: FakeDriver
) -> None:
    done = await rig.run(script=create, driver=driver, has_workspace=True)
    assert (done.code, done.stdout) == (Exit.OK, "Done.\n")
    assert NOTE in done.stderr
    assert (len(driver.starts), len(driver.stops)) == (1, 1)
    assert await rig.sql("SELECT status FROM workspaces") == "stopped"

    chat_id = ChatId(await rig.sql("SELECT id FROM chats"))
    again = await rig.run(script=start, driver=driver, has_workspace=True, chat_id=chat_id)
    assert again.code == Exit.OK
    assert (len(driver.starts), len(driver.stops)) == (2, 2)

    without = await rig.run(script=(Say("No tools."),), driver=driver, chat_id=chat_id)
    assert re.search("not available without --workspace", without.stderr)
    assert len(driver.stops) == 2


async def test_workspace_that_ran_before_goes_on(rig: RunRig, driver: FakeDriver) -> None:
    await rig.run(script=create, driver=driver, has_workspace=True)
    chat_id = ChatId(await rig.sql("SELECT id FROM chats"))
    await rig.sql("UPDATE workspaces SET status = 'running', stopped_at = NULL")

    done = await rig.run(script=(Say("Still there."),), driver=driver, has_workspace=True, chat_id=chat_id)

    assert NOTE not in done.stderr
    assert len(driver.stops) == 1


# MCP servers of the project


DOCS = Entry(name="docs", folder="/p", command="npx", args=("docs-server",), env=("TOKEN",))


async def chat_with_server(rig: RunRig, driver: FakeDriver) -> ChatId:
    """A chat whose workspace, which does not run, has told of a server."""
    await rig.run(script=create, driver=driver, has_workspace=True)
    resource = ContextResource(ordinal=0, kind="mcp_server", source=DOCS.name, status="pending", entry=DOCS)
    async with rig.database.api.acquire() as conn:
        workspace_id = await conn.fetchval("SELECT id FROM workspaces")
        await context.write_snapshot(conn, Snapshot(workspace_id, 1, 10_000, "h", None, (resource,), datetime.now(UTC)))
    return ChatId(await rig.sql("SELECT id FROM chats"))


async def test_server_of_a_project_is_told_and_runs_after_consent_to_its_exact_entry(
    rig: RunRig, driver: FakeDriver
) -> None:
    chat_id = await chat_with_server(rig, driver)
    asking: dict[str, Any] = {"script": (Say("Done."),), "driver": driver, "has_workspace": True, "chat_id": chat_id}

    told = await rig.run(**asking)
    assert "  command: npx docs-server" in told.notes
    assert f"  to allow it: rookery admin run --workspace --chat {chat_id} --agree {DOCS.hash} PROMPT" in told.notes
    assert await rig.sql("SELECT count(*) FROM workspace_mcp_consents") == 0

    agreed = await rig.run(**asking, agreed=(DOCS.hash,))
    assert "--agree" not in agreed.stderr
    given = await rig.database.api.fetchrow("SELECT name, entry_hash, decision FROM workspace_mcp_consents")
    assert tuple(given or ()) == ("docs", DOCS.hash, "agree")


async def test_consent_to_an_entry_that_no_file_names_is_refused_before_the_turn(
    rig: RunRig, driver: FakeDriver
) -> None:
    chat_id = await chat_with_server(rig, driver)

    with pytest.raises(Refused, match="No file of the workspace names an MCP server") as refused:
        await rig.run(driver=driver, has_workspace=True, chat_id=chat_id, agreed=("0" * 64,))

    assert refused.value.code == Exit.USAGE
    assert await rig.sql("SELECT count(*) FROM chat_messages WHERE role = 'user'") == 1


async def test_operator_does_not_consent_for_the_owner_of_a_chat(rig: RunRig, driver: FakeDriver) -> None:
    chat_id = await chat_with_server(rig, driver)
    await rig.sql("UPDATE users SET username = 'ada'")

    with pytest.raises(Refused, match="Only the owner of this chat"):
        await rig.run(driver=driver, has_workspace=True, chat_id=chat_id, agreed=(DOCS.hash,))

    assert await rig.sql("SELECT count(*) FROM workspace_mcp_consents") == 0
