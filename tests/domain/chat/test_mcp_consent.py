"""Entries of MCP servers: what an answer is about, and what agents are sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.domain.chat.mcp_consent import Entry

COMMAND: dict[str, Any] = {"name": "docs", "folder": "/p", "command": "npx", "args": ["docs"], "env": ["TOKEN"]}
ADDRESS: dict[str, Any] = {
    "name": "docs",
    "folder": "/p",
    "url": "https://docs.example/mcp",
    "type": "http",
    "headers": ["Authorization"],
    "env": ["TOKEN"],
}


def entry(fields: dict[str, Any]) -> Entry:
    return msgspec.convert(fields, Entry)


@pytest.mark.parametrize("fields", [COMMAND, ADDRESS])
def test_agent_gets_back_what_it_has_sent(fields: dict[str, Any]) -> None:
    assert msgspec.to_builtins(entry(fields).for_agent()) == fields


def test_answers_of_older_versions_stay_valid() -> None:
    assert entry(COMMAND).hash == "63acdeebd4d42086f4e9530ff945f359cfb695ec957e212ddfdad833a8183bae"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"folder": "/q"},
        {"url": "https://docs.example/other"},
        {"type": "sse"},
        {"headers": []},
        {"headers": ["Authorization", "X-Team"]},
        {"env": []},
    ],
)
def test_every_field_of_an_address_is_part_of_the_answer(change: dict[str, Any]) -> None:
    assert entry({**ADDRESS, **change}).hash != entry(ADDRESS).hash


def test_order_of_names_is_not_part_of_the_answer() -> None:
    names = {"headers": ["A", "B"], "env": ["C", "D"]}
    turned = {"headers": ["B", "A"], "env": ["D", "C"]}

    assert entry({**ADDRESS, **names}).hash == entry({**ADDRESS, **turned}).hash


@pytest.mark.parametrize(
    "fields",
    [
        {**ADDRESS, "command": "npx"},
        {**COMMAND, "type": "http"},
        {"name": "docs", "folder": "/p"},
        {**ADDRESS, "type": None},
        {**ADDRESS, "url": ""},
        {**ADDRESS, "url": "https://x/" + "y" * 2048},
        {**ADDRESS, "headers": [f"X-{place}" for place in range(21)]},
    ],
)
def test_entry_is_either_a_command_or_an_address(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        entry(fields)
