"""Results of client-executed tools: truncation, and the file with the full result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rookery.domain.chat import truncation
from rookery.domain.models.context_window import Learned, LearnedFrom
from rookery.store.models import context_windows
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig
from tests.api.test_workspaces import open_site

BUDGET = truncation.budget_bytes(None)


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


async def submit(chat_rig: ChatRig, chat: str, output: object) -> int:
    open_call = (await chat_rig.get(chat))["action"]["tool_calls"][0]["tool_call_id"]
    results = [{"tool_call_id": open_call, "output": output}]
    return (await chat_rig.http.post(f"{CHATS}/{chat}/tool-results", json={"results": results})).status_code


async def stored(chat_rig: ChatRig, chat: str) -> Any:
    """Return the result as it is stored."""
    query = "SELECT content::text FROM chat_messages WHERE chat_id = $1 AND role = 'tool' ORDER BY id DESC LIMIT 1"
    (part, *_) = json.loads(await chat_rig.rig.database.api.fetchval(query, UUID(chat)))
    return part["result"]


LONG = {
    "text": "x" * 2_000_000,
    "rows": {"rows": [{"text": "y" * 30_000} for _ in range(60)]},
    "numbers": list(range(300_000)),
    "wide": "\U0001f600" * 400_000,
}
SHORT = {"text": "short", "object": {"a": [1, None, 2.5]}, "just": "z" * (BUDGET - 10), "empty": [], "number": 7}


@pytest.mark.parametrize("kind", LONG)
async def test_a_result_of_the_client_is_cut_to_the_budget_of_results(chat_rig: ChatRig, kind: str) -> None:
    chat = await chat_rig.asking()

    assert await submit(chat_rig, chat, LONG[kind]) == 204

    kept = json.dumps(await stored(chat_rig, chat), ensure_ascii=False, separators=(",", ":"))
    assert BUDGET // 8 < len(kept.encode()) <= BUDGET * 1.1
    assert "bytes of this result were removed" in kept


@pytest.mark.parametrize("kind", SHORT)
async def test_a_result_within_the_budget_is_stored_as_it_is(chat_rig: ChatRig, kind: str) -> None:
    chat = await chat_rig.asking()

    assert await submit(chat_rig, chat, SHORT[kind]) == 204

    assert await stored(chat_rig, chat) == SHORT[kind]


async def test_a_result_is_cut_for_the_window_that_was_learned(chat_rig: ChatRig) -> None:
    async with chat_rig.rig.database.api.acquire() as conn:
        for config in await conn.fetch("SELECT id FROM model_configs"):
            await context_windows.learn(conn, config["id"], Learned(4_000, LearnedFrom.PROVIDER))
    chat_rig.rig.replica.directory.invalidate()
    chat = await chat_rig.asking()

    assert await submit(chat_rig, chat, "x" * 20_000) == 204

    assert len(await stored(chat_rig, chat)) <= truncation.budget_bytes(4_000) * 1.1 < 20_000


async def test_truncated_result_names_the_workspace_file_with_the_full_text(database_url: str, tmp_path: Path) -> None:
    async with open_site(database_url, tmp_path) as site:
        await site.rig.add_model()
        chat_rig = ChatRig(site.rig, site.ada)
        workspace = (await site.create())["workspace"]["id"]
        await site.until(workspace, "running")
        chat = await chat_rig.asking()
        assert (await chat_rig.http.patch(f"{CHATS}/{chat}", json={"workspace_id": workspace})).status_code == 200

        assert await submit(chat_rig, chat, "w" * 1_000_000) == 204

        ((path, data),) = site.driver.files.items()
        assert data == b"w" * 1_000_000
        assert path in json.dumps(await stored(chat_rig, chat))
