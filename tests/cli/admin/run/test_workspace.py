"""`rookery admin run --workspace`: the agent has its tools, and what the turn started is stopped at its end."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rookery.cli.exit_codes import Exit
from rookery.domain.chat.messages import ChatId
from rookery.llm.scripted import CallTool, Say, Step, results_since_user
from rookery.llm.types import Call
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
