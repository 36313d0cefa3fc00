"""Chats with real workspaces: the first steps of a new user, and a task from its beginning to its end."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Text, WorkspaceContext
from rookery.llm.scripted import CallTool, Say, Step, results_since_user
from rookery.llm.types import Call
from rookery.models.connector import default_scripts
from rookery.store.settings import settings
from tests.eventually import until
from tests.tools.replica_rig import open_replica_rig
from tests.workspaces.drivers.driver_rig import known_machine

TESTS = """\
import unittest
from greet import greet

class TestGreet(unittest.TestCase):
    def test_greets(self):
        self.assertEqual(greet("Ada"), "Hello, Ada!")
"""

FORGE = "127.0.0.2"


@pytest.fixture(autouse=True)
def sandbox() -> None:
    """Skip the test on a machine without a sandbox."""
    known_machine()


async def test_newcomer_gets_a_workspace_and_a_real_tour(database_url: str) -> None:
    async with open_replica_rig(database_url) as stead:
        chat = await stead.ask("take the tour")

        calls = await stead.calls(chat)
        assert [(call.name, call.is_error) for call in calls] == [
            ("list_templates", False),
            ("create_workspace", False),
            ("write_file", False),
            ("read_file", False),
            ("edit_files", False),
            ("execute", False),
        ], calls
        assert "in a sandbox" in calls[-1].value["output"]
        assert "in a sandbox" in await stead.last_words(chat)


async def test_newcomer_lets_two_subagents_work_in_one_workspace(database_url: str) -> None:
    async with open_replica_rig(database_url) as stead:
        chat = await stead.ask("delegate: a note for later")

        calls = await stead.calls(chat)
        assert [call.name for call in calls] == [
            *("list_templates", "create_workspace"),
            *("spawn_agent", "spawn_agent", "wait_agent"),
        ]
        listed, written = calls[-1].value["agents"]
        assert "total" in listed["report"]
        assert "The file is written." in written["report"]
        read = await stead.say(chat, f"run cat {written['title'].split()[1]}")
        assert "a note for later" in read[0].value["output"]


async def test_newcomer_gets_scripted_advice_where_the_advisor_is_on(database_url: str) -> None:
    async with open_replica_rig(database_url) as stead:
        async with stead.database.api.acquire() as conn:
            await settings.write_setting(conn, "advisor", value={"enabled": True})
        stead.replica.directory.invalidate()
        chat = await stead.ask("ask the advisor: rewrite or patch?")

        (advice,) = await stead.calls(chat)
        assert advice.value["type"] == "advice"
        assert "The advisor says" in await stead.last_words(chat)


async def test_two_calls_at_once_make_one_workspace(database_url: str) -> None:
    def twice(call: Call) -> Sequence[Step]:
        if results_since_user(call.prompt):
            return (Say("There it is."),)
        return (CallTool("create_workspace", {"template_id": "blank"}),) * 2

    scripts = default_scripts()
    with scripts.registered("twice", twice):
        async with open_replica_rig(database_url, scripts=scripts, model="twice") as stead:
            chat = await stead.ask("hello")

            made = sorted((call.value["created"], call.value.get("status", "")) for call in await stead.calls(chat))
            assert made == [(False, "already_exists"), (True, "")]
            assert await stead.sql("SELECT count(*) FROM workspaces") == 1


async def test_workspace_that_cannot_be_made_is_told_with_every_reason(database_url: str) -> None:
    async with open_replica_rig(database_url) as stead:
        chat = await stead.ask('create a workspace from git with {"depth": -1, "colour": "red"}')
        await stead.say(chat, "create a workspace from nowhere")

        wrong, unknown = await stead.calls(chat)
        assert {each["field"] for each in wrong.value["validations"]} == {
            "parameters.repository",
            "parameters.depth",
            "parameters.colour",
        }
        assert "list_templates" in unknown.value["error"]
        assert await stead.sql("SELECT count(*) FROM workspaces") == 0


async def test_startup_script_that_fails_is_told_with_its_last_words(database_url: str) -> None:
    async with open_replica_rig(database_url) as stead:
        chat = await stead.ask('create a workspace from git with {"repository": "/nowhere"}')

        (made,) = await stead.calls(chat)
        assert (made.is_error, made.value["created"]) == (False, True)
        assert (made.value["startup_script"], made.value["startup_exit_code"]) == ("failed", 1)
        assert made.value["startup_output"].startswith("There is no /nowhere in this workspace")
        (running,) = await stead.say(chat, "run echo still usable")
        assert running.value["exit_code"] == 0
        said = [part.text for each in await stead.messages(chat) for part in each.parts() if isinstance(part, Text)]
        assert any("There is no /nowhere" in text for text in said)


@asynccontextmanager
async def served_repository(folder: Path) -> AsyncIterator[str]:
    """A repository that git can clone over HTTP, as a host would serve it."""
    work, bare = folder / "work", folder / "repo.git"
    work.mkdir()
    (work / "greet.py").write_text('def greet(name):\n    return f"Hi, {name}!"\n')
    (work / "test_greet.py").write_text(TESTS)
    (work / "AGENTS.md").write_text("Greet people by their name.\n<!-- hidden -->\n")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (
        ("git", "init", "-q", "-b", "main", str(work)),
        ("git", "-C", str(work), "add", "."),
        ("git", "-C", str(work), *identity, "commit", "-q", "-m", "First"),
        ("git", "clone", "-q", "--bare", str(work), str(bare)),
        ("git", "-C", str(bare), "update-server-info"),
    ):
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    application = web.Application()
    application.router.add_static("/", folder)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    # Not 127.0.0.1, which is the workspace itself for every program in it.
    site = web.TCPSite(runner, FORGE, 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://{FORGE}:{port}/repo.git"
    finally:
        await runner.cleanup()


async def test_task_is_done_in_a_clone_and_goes_on_after_stop_and_restart(database_url: str, tmp_path: Path) -> None:
    exempt = f"{FORGE}/32"
    async with (
        served_repository(tmp_path) as url,
        open_replica_rig(database_url, net_allow_private=exempt) as stead,
    ):
        chat = await stead.ask(f'create a workspace from git with {{"repository": "{url}", "depth": 0}}')
        (made,) = await stead.calls(chat)
        assert made.value["created"], made.value
        assert "startup_script" not in made.value, made.value

        (read,) = await stead.say(chat, "read /home/agent/project/greet.py")
        assert "Hi, {name}" in read.value["content"]
        (failing,) = await stead.say(chat, "run the tests")
        assert failing.value["exit_code"] != 0
        (edit,) = await stead.say(chat, 'replace "Hi, " with "Hello, " in /home/agent/project/greet.py')
        assert not edit.is_error, edit.value
        (passing,) = await stead.say(chat, "run the tests")
        assert passing.value["exit_code"] == 0, passing.value
        (diff,) = await stead.say(chat, "show the diff")
        assert '+    return f"Hello, {name}!"' in diff.value["output"]

        await until(
            lambda: stead.sql("SELECT changed_files > 0 FROM chat_diff_status WHERE chat_id = $1", chat), timeout=60
        )

        (stopped,) = await stead.say(chat, "stop the workspace")
        assert stopped.value["stopped"]
        await stead.restart()
        started, again = await stead.say(chat, "run the tests")
        assert (started.name, started.is_error) == ("start_workspace", False)
        assert again.value["exit_code"] == 0

        # The instructions of the project are in the prompt, and the transcript shows this.
        traces = [
            part
            for message in await stead.messages(chat)
            for part in message.parts()
            if message.role is Role.SYSTEM and isinstance(part, WorkspaceContext)
        ]
        assert [file.path for file in traces[0].files] == ["/home/agent/project/AGENTS.md"]
