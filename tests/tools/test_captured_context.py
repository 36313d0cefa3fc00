"""Captured contexts: the texts of a workspace's files for the prompt, cleaned once and without stopping other work."""

from __future__ import annotations

import pytest

from rookery.domain.content import invisible_characters
from rookery.tools.captured_context import CapturedContexts
from tests.event_loop_turns import calls_by_turn
from tests.workspaces.test_context import Rig, instructions, skill
from tests.workspaces.test_context import rig as rig


async def test_texts_are_cleaned_when_they_are_loaded_and_not_again_for_each_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await rig.workspace()
    chat_id = await rig.chat(workspace)
    await rig.keep(workspace, instructions("Be kind. <!-- no -->"), instructions("<!-- nothing -->"), skill())
    contexts = CapturedContexts(rig.pool)
    captured = await contexts.load_newest(chat_id)
    assert captured is not None

    async with calls_by_turn(monkeypatch, invisible_characters, "clean_markdown") as cleaned:
        block = captured.block(None)
        again = await contexts.load_newest(chat_id)

    assert again is captured
    assert block == "<workspace-context>\nSource: /p/AGENTS.md\nBe kind.\n</workspace-context>"
    assert [(each.name, each.body) for each in captured.skills] == [("deploy", "Run make ship.")]
    assert cleaned.total() == 0


async def test_one_text_is_cleaned_in_one_turn_of_the_event_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = await rig.workspace()
    chat_id = await rig.chat(workspace)
    names = [f"s{place}" for place in range(30)]
    skills = [skill(f"---\nname: {name}\ndescription: a\n---\nb", f"/p/skills/{name}/SKILL.md") for name in names]
    await rig.keep(workspace, *(instructions(source=f"/p/{name}") for name in names), *skills)

    async with calls_by_turn(monkeypatch, invisible_characters, "clean_markdown") as cleaned:
        captured = await CapturedContexts(rig.pool).load_newest(chat_id)

    assert captured is not None
    assert (len(captured.instructions), len(captured.skills)) == (30, 30)
    assert (cleaned.total(), max(cleaned.values())) == (60, 1)
