"""`rookery chat export`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.cli.chat import chat_actions, export
from rookery.cli.exit_codes import Exit
from rookery.client import Chat, Message
from rookery.llm.scripted import Say
from tests.cli.chat.chat_rig import HELLO, ChatRig, open_chat_desk

ID = "6f7c1a4e-0000-4000-8000-000000000001"
AT = "2030-01-01T00:00:00Z"


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[ChatRig]:
    async with open_chat_desk(database_url, tmp_path) as opened:
        yield opened


def message(role: str, *content: dict[str, Any]) -> Message:
    row = {"id": 1, "chat_id": ID, "role": role, "content": content, "created_at": AT}
    return msgspec.convert(row, Message)


def titled(title: str) -> Chat:
    fields = {name: None for name in Chat.__struct_fields__}
    return Chat(**{**fields, "title": title})  # type: ignore[arg-type]


async def test_whole_chat_is_printed(rig: ChatRig) -> None:
    with rig.script(HELLO):
        await chat_actions.new(rig.terminal(), "hello", wait=True)
    (made,) = (await rig.client.chats.list()).items

    assert await export.export(rig.terminal(), str(made.id)[:8]) == Exit.OK
    assert rig.said == f"# {made.title}\n\n## User\n\nhello\n\n## Assistant\n\nGood morning.\n"

    at = rig.terminal(json=True)
    await export.export(at, str(made.id))
    at.out.finish()
    document = json.loads(rig.said)
    assert document["chat"]["id"] == str(made.id)
    assert [each["role"] for each in document["messages"]] == ["user", "assistant"]


async def test_on_a_terminal_nothing_is_obeyed(rig: ChatRig) -> None:
    with rig.script((Say("red\x1b[2J\n\tgreen"),)):
        await chat_actions.new(rig.terminal(), "hello", wait=True)
    (made,) = (await rig.client.chats.list()).items

    at = rig.terminal()
    rig.stdout._is_terminal = True
    await export.export(at, str(made.id))

    assert rig.said.endswith("red\\u001b[2J\n\tgreen\n")


def test_tool_results_are_shown_under_the_assistant_that_called_them() -> None:
    call = {"type": "tool-call", "tool_call_id": "c", "tool_name": "look", "args": {"at": "it"}}
    result = {"type": "tool-result", "tool_call_id": "c", "tool_name": "look", "result": "x", "is_error": True}
    rows = [message("assistant", call), message("tool", result), message("user", {"type": "text", "text": "Oh."})]

    assert export.markdown(titled("Tools"), rows) == (
        '# Tools\n\n## Assistant\n\n`look`\n\n```json\n{\n  "at": "it"\n}\n```\n\n'
        '`look` failed:\n\n```json\n"x"\n```\n\n## User\n\nOh.\n'
    )


def test_quoted_text_cannot_end_its_fence() -> None:
    quoted = {"type": "file-reference", "file_name": "a.md", "start_line": 1, "end_line": 2, "content": "a\n````\nb"}

    said = export.markdown(titled("Fences"), [message("user", quoted)])

    assert "`a.md`, lines 1 to 2:\n\n`````\na\n````\nb\n`````" in said


def test_files_and_sources_are_named_and_unknown_parts_left_out() -> None:
    parts = [
        {"type": "file", "name": "a.png", "media_type": "image/png"},
        {"type": "source", "url": "https://example.org", "title": "There"},
        {"type": "hologram"},
    ]

    said = export.markdown(titled("Things"), [message("assistant", *parts)])

    assert said == "# Things\n\n## Assistant\n\n[file: a.png]\n\nSource: [There](https://example.org)\n"
