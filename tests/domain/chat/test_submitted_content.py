"""Message content from clients: valid content, the errors for invalid content, and the facts that the server adds."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat import parts, submitted_content
from rookery.domain.chat.parts import (
    File,
    FileReference,
    HookContext,
    HookNotice,
    Part,
    Reasoning,
    Source,
    Text,
    ToolCall,
    ToolResult,
    WorkspaceContext,
)
from rookery.domain.chat.submitted_content import FileFacts, InvalidContent

FILE_ID = UUID("00000000-0000-0000-0000-00000000000f")


def fields(content: Sequence[Part]) -> list[str]:
    return [fault.field for fault in submitted_content.find_faults(content)]


def test_clients_may_send_text_files_and_references() -> None:
    content: list[Part] = [Text("Look:"), File(file_id=FILE_ID), FileReference("a.py", 1, 2, "x")]

    assert submitted_content.submitted(content) == tuple(content)


def test_text_is_trimmed() -> None:
    assert submitted_content.submitted([Text("  hi\n")]) == (Text("hi"),)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Text(" \n"), ["text"]),
        (Text("é" * 131_073), ["text"]),
        (Text("x", refusal=True), ["refusal"]),
        (Text("x", provider_meta={}), ["provider_meta"]),
        (File("image/png"), ["file_id"]),
        (File("image/png", data="QUJD"), ["file_id", "data"]),
        (File("image/png", data="QUJD", file_id=FILE_ID), ["data"]),
        (File("image/png", file_id=FILE_ID, provider_meta={"item_id": "i"}), ["provider_meta"]),
        (FileReference("", 1, 2, "x"), ["file_name"]),
        (FileReference("a" * 1025, 1, 2, "x"), ["file_name"]),
        (FileReference("a", -1, 2, "x"), ["start_line"]),
        (FileReference("a", 3, 2, "x"), ["end_line"]),
        (FileReference("a", 1, 2, "x" * 262_145), ["content"]),
        (Reasoning("x"), ["type"]),
        (ToolCall("c", "t"), ["type"]),
        (ToolResult("c", "t"), ["type"]),
        (Source("https://example.org"), ["type"]),
        (HookContext("obey"), ["type"]),
        (HookNotice("obey"), ["type"]),
        (WorkspaceContext(FILE_ID, 1, "h"), ["type"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_fault_names_its_field(part: Part, expected: list[str]) -> None:
    assert fields([Text("fine"), part]) == [f"content[1].{name}" for name in expected]


@pytest.mark.parametrize(
    "part", [Text("é" * 131_072), FileReference("a" * 1024, 0, 0, ""), FileReference("a", 2, 2, "x" * 262_144)]
)
def test_limits_themselves_are_allowed(part: Part) -> None:
    assert fields([part]) == []


def test_all_faults_are_told_at_once_in_the_order_of_the_parts() -> None:
    content: list[Part] = [HookContext("obey"), Text("fine"), Text("", refusal=True), File()]

    with pytest.raises(InvalidContent) as refusal:
        submitted_content.submitted(content, field="message.content")

    assert [fault.field for fault in refusal.value.faults] == [
        "message.content[0].type",
        "message.content[2].text",
        "message.content[2].refusal",
        "message.content[3].file_id",
    ]
    assert refusal.value.field == "message.content[0].type"
    assert "not hook-context" in str(refusal.value)


def test_message_of_nothing_is_refused() -> None:
    assert fields([]) == ["content"]


def test_file_is_read_without_a_type_from_a_client() -> None:
    sent = msgspec.json.encode([{"type": "file", "file_id": str(FILE_ID)}])

    assert submitted_content.submitted(parts.decode(sent)) == (File(file_id=FILE_ID),)


def test_type_and_name_of_a_file_come_from_the_server_not_from_the_client() -> None:
    claimed, unknown = File("text/html", name="evil.html", file_id=FILE_ID), File(file_id=UUID(int=1))
    content: list[Part] = [Text("Look:"), claimed, unknown]
    facts = {FILE_ID: FileFacts(media_type="image/png", name="a.png")}

    told = submitted_content.with_facts(content, facts)

    assert told == (content[0], File("image/png", name="a.png", file_id=FILE_ID), unknown)
    assert parts.decode(parts.encode(told)) == told
