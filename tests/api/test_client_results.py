"""Results of tools that clients run: how much of them is stored, and where the rest is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rookery.domain.chat import truncation
from rookery.domain.models.context_window import Learned, LearnedFrom
from rookery.store.models import context_windows
from tests.api.api_rig import House, Person
from tests.api.chat_rig import CHATS, Talk
from tests.api.test_workspaces import open_site

BUDGET = truncation.budget_bytes(None)


@pytest.fixture
async def talk(house: House, ada: Person) -> Talk:
    await house.add_model()
    return Talk(house, ada)


async def submit(talk: Talk, chat: str, output: object) -> int:
    open_call = (await talk.get(chat))["action"]["tool_calls"][0]["tool_call_id"]
    results = [{"tool_call_id": open_call, "output": output}]
    return (await talk.http.post(f"{CHATS}/{chat}/tool-results", json={"results": results})).status_code


async def stored(talk: Talk, chat: str) -> Any:
    """The result as every later prompt has it."""
    query = "SELECT content::text FROM chat_messages WHERE chat_id = $1 AND role = 'tool' ORDER BY id DESC LIMIT 1"
    (part, *_) = json.loads(await talk.house.database.api.fetchval(query, UUID(chat)))
    return part["result"]


LONG = {
    "text": "x" * 2_000_000,
    "rows": {"rows": [{"text": "y" * 30_000} for _ in range(60)]},
    "numbers": list(range(300_000)),
    "wide": "\U0001f600" * 400_000,
}
SHORT = {"text": "short", "object": {"a": [1, None, 2.5]}, "just": "z" * (BUDGET - 10), "empty": [], "number": 7}


@pytest.mark.parametrize("kind", LONG)
async def test_a_result_of_the_client_is_cut_to_the_budget_of_results(talk: Talk, kind: str) -> None:
    chat = await talk.asking()

    assert await submit(talk, chat, LONG[kind]) == 204

    kept = json.dumps(await stored(talk, chat), ensure_ascii=False, separators=(",", ":"))
    assert BUDGET // 8 < len(kept.encode()) <= BUDGET * 1.1
    assert "bytes of this result were removed" in kept


@pytest.mark.parametrize("kind", SHORT)
async def test_a_result_within_the_budget_is_stored_as_it_is(talk: Talk, kind: str) -> None:
    chat = await talk.asking()

    assert await submit(talk, chat, SHORT[kind]) == 204

    assert await stored(talk, chat) == SHORT[kind]


async def test_a_result_is_cut_for_the_window_that_was_learned(talk: Talk) -> None:
    async with talk.house.database.api.acquire() as conn:
        for config in await conn.fetch("SELECT id FROM model_configs"):
            await context_windows.learn(conn, config["id"], Learned(4_000, LearnedFrom.PROVIDER))
    talk.house.replica.directory.invalidate()
    chat = await talk.asking()

    assert await submit(talk, chat, "x" * 20_000) == 204

    assert len(await stored(talk, chat)) <= truncation.budget_bytes(4_000) * 1.1 < 20_000


async def test_what_was_cut_is_a_file_of_the_workspace_that_the_result_names(database_url: str, tmp_path: Path) -> None:
    async with open_site(database_url, tmp_path) as site:
        await site.house.add_model()
        talk = Talk(site.house, site.ada)
        workspace = (await site.create())["workspace"]["id"]
        await site.until(workspace, "running")
        chat = await talk.asking()
        assert (await talk.http.patch(f"{CHATS}/{chat}", json={"workspace_id": workspace})).status_code == 200

        assert await submit(talk, chat, "w" * 1_000_000) == 204

        ((path, data),) = site.driver.files.items()
        assert data == b"w" * 1_000_000
        assert path in json.dumps(await stored(talk, chat))
