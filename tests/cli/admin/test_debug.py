"""`rookery admin debug`: lists, shows, compares, exports and replays records, and audits each command."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from rookery.cli.admin import arguments as admin_arguments
from rookery.domain.chat.messages import Effort
from rookery.store.debug.record_rows import RunKind, RunStatus
from tests.api.debug_rig import DebugRecords, said
from tests.cli.serve.server_process import SCRIPT, environment
from tests.store.models.provider_rows import open_nest

NOTHING = UUID(int=1)


@dataclass
class Desk:
    """Runs `rookery admin debug` on a database with one recorded run of two steps."""

    pool: asyncpg.Pool
    env: dict[str, str]
    home: Path
    owner: UUID
    chat: UUID
    run: UUID
    model: UUID

    async def call(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [SCRIPT, "admin", "debug", *map(str, arguments)],
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    async def ok(self, *arguments: object) -> str:
        done = await self.call(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def json(self, *arguments: object) -> Any:
        return json.loads(await self.ok(*arguments, "--json"))

    async def logged(self) -> list[tuple[str, str, UUID]]:
        rows = await self.pool.fetch("SELECT action, actor_label, subject_id FROM audit_log ORDER BY id")
        return [tuple(row) for row in rows]


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_nest(database_url) as rows:
        owner = await rows.user()
        config = await rows.config(await rows.provider("scripted", key=None, name="offline"), "echo")
        chat = await rows.chat(owner, config)
        pool = await asyncpg.create_pool(database_url, min_size=1, max_size=2)
        try:
            calls = [said("Hello."), said("Hello.", "Hi.", "Sing \x1b[31ma song.")]
            run, _ = await DebugRecords(pool).run(chat, calls, model_config_id=config.id)
            env = environment(tmp_path, ROOKERY_DATABASE_URL=database_url)
            yield Desk(pool, env, tmp_path, owner, chat, run, config.id)
        finally:
            await pool.close()


def test_choices_of_the_arguments_are_those_of_the_records() -> None:
    assert list(admin_arguments.RUN_KINDS) == [str(kind) for kind in RunKind]
    assert list(admin_arguments.RUN_STATUSES) == [str(status) for status in RunStatus]
    assert list(admin_arguments.EFFORTS) == [str(effort) for effort in Effort]


async def test_runs_are_listed(desk: Desk) -> None:
    shown = await desk.ok("list", desk.chat)
    document = await desk.json("list", desk.chat, "--kind", "chat_turn", "--status", "completed")
    none = await desk.ok("list", desk.chat, "--status", "error")

    assert str(desk.run) in shown
    assert "Hello." in shown
    assert [run["id"] for run in document["runs"]] == [str(desk.run)]
    assert none == "This chat has no debug records.\n"
    assert await desk.logged() == [("chat.debug_read", "cli", desk.owner)] * 3


async def test_run_is_shown_with_its_steps(desk: Desk) -> None:
    shown = await desk.ok("show", desk.run)
    document = await desk.json("show", desk.run)

    assert f"Run {desk.run} (chat_turn, completed)" in shown
    assert [step["number"] for step in document["steps"]] == [1, 2]


async def test_step_is_shown_with_its_prompt_and_without_control_characters(desk: Desk) -> None:
    shown = await desk.ok("show", desk.run, "--step", 2)
    document = await desk.json("show", desk.run, "--step", 2)

    assert "[0] user\n  Hello." in shown
    assert "[2] user (new)\n  Sing \\u001b[31ma song." in shown
    assert "Answer (stop)\n  Hi." in shown
    assert len(document["request"]["messages"]) == 3


async def test_attempt_is_shown_with_its_bodies(desk: Desk) -> None:
    shown = await desk.ok("show", desk.run, "--step", 1, "--attempt", 1)

    assert "x-api-key: [REDACTED]" in shown
    assert 'data: {"text": "Hi."}' in shown
    assert "none-of-yours" not in shown


async def test_two_runs_are_compared(desk: Desk) -> None:
    calls = [said("Hello."), said("Hello.", "Good day.", "Sing \x1b[31ma song.")]
    other, _ = await DebugRecords(desk.pool).run(desk.chat, calls, model_config_id=desk.model)

    shown = await desk.ok("compare", desk.run, other)
    document = await desk.json("compare", desk.run, other)
    same = await desk.call("compare", desk.run, desk.run)

    assert "The prompts differ from message 1 of step 2 on." in shown
    assert "[1] RUN: assistant\n  Hi.\n[1] OTHER: assistant\n  Good day." in shown
    assert "input tokens" in shown
    assert (document["message"]["number"], document["message"]["index"]) == (2, 1)
    assert same.returncode == 2
    assert await desk.logged() == [("chat.debug_read", "cli", desk.owner)] * 4


async def test_records_are_exported_to_a_new_file(desk: Desk) -> None:
    shown = await desk.ok("export", desk.chat)
    (written,) = desk.home.glob("rookery-debug-chat-*.json")
    one = await desk.json("export", desk.chat, "--run", desk.run, "--output", "one.json")
    again = await desk.call("export", desk.chat, "--output", "one.json")

    assert written.name in shown
    assert json.loads(written.read_text())["runs"][0]["id"] == str(desk.run)
    assert one["bytes"] == (desk.home / "one.json").stat().st_size
    assert (desk.home / "one.json").stat().st_mode & 0o777 == 0o600
    assert again.returncode == 1
    assert "exists" in again.stderr


async def test_step_is_replayed_with_the_servers_key_and_billed_to_the_owner(desk: Desk) -> None:
    shown = await desk.ok("replay", desk.run, "--step", 1)
    document = await desk.json("replay", desk.run, "--step", 2, "--model", "offline/echo", "--edit", "2=Whistle.")

    assert "Recorded: offline/echo" in shown
    assert "Replayed: offline/echo" in shown
    assert document["replayed"]["content"][0]["text"] == "Whistle."
    billed = await desk.pool.fetch("SELECT owner_id, purpose, status FROM model_usage")
    assert [tuple(row) for row in billed] == [(desk.owner, "replay", "ok")] * 2
    assert [entry[0] for entry in await desk.logged()] == ["chat.debug_replay"] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", NOTHING), "There is no chat"),
        (("list", "none"), "CHAT is not an id: none"),
        (("show", NOTHING), "There is no run"),
        (("show", "RUN", "--step", 3), "This run has no step 3; it has 2."),
        (("show", "RUN", "--step", 1, "--attempt", 2), "Step 1 has no attempt 2."),
        (("export", "CHAT", "--run", NOTHING), "There is no run"),
        (("replay", "RUN", "--step", 9), "This run has no step 9"),
        (("replay", "RUN", "--step", 1, "--model", "none"), "There is no model none"),
        (("replay", "RUN", "--step", 1, "--edit", "Whistle."), "--edit is given as NUMBER=TEXT"),
        (("replay", "RUN", "--step", 1, "--edit", "7=Whistle."), "This prompt has 1 messages"),
        (("list", "CHAT", "--limit", 0), "limit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_wrong_arguments_are_refused(desk: Desk, arguments: tuple[object, ...], message: str) -> None:
    named = {"RUN": desk.run, "CHAT": desk.chat}

    done = await desk.call(*(named.get(str(each), each) for each in arguments))

    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert await desk.pool.fetchval("SELECT count(*) FROM model_usage") == 0
