"""Statuses that the document promises of every operation, asked of each one of them.

What depends on the state of a chat or a setting has tests of its own; these are the ones that no state is needed for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from rookery.chat.rights import Role
from tests.api.house import House

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "api" / "openapi.json").read_text())
METHODS = ("get", "put", "post", "patch", "delete")
STREAMS = {"chats.stream", "chats.watch", "chats.git"}
# Not there, whatever is asked for: a thing by its id, by its number, by its name.
NOTHING = UUID(int=1)
NUMBERS = frozenset({"message", "queued"})
NAMES = frozenset({"template", "asset"})
# What has to be right before anything is looked for.
NEEDED: dict[str, tuple[str, dict[str, str]]] = {
    "messages.search": ("?q=word", {}),
    "provider_keys.put": ("", {"api_key": "sk-none"}),
}


class Asked(NamedTuple):
    name: str
    method: str
    path: str
    statuses: frozenset[int]
    is_public: bool
    is_json: bool
    names_something: bool


def operations() -> Iterator[Asked]:
    for path, methods in DOCUMENT["paths"].items():
        parts = [
            str(1 if part[1:-1] in NUMBERS else "nothing" if part[1:-1] in NAMES else NOTHING)
            if part.startswith("{")
            else part
            for part in path.split("/")
        ]
        for method in METHODS:
            if (found := methods.get(method)) is None:
                continue
            yield Asked(
                found["operationId"],
                method.upper(),
                "/".join(parts),
                frozenset(map(int, found["responses"])),
                found.get("security") == [],
                "application/json" in found.get("requestBody", {}).get("content", {}),
                "{" in path,
            )


ALL = list(operations())


async def test_every_operation_gives_the_statuses_that_need_no_state(house: House) -> None:
    chief, other = await house.add("chief", role=Role.ADMIN), await house.add("other", role=Role.ADMIN)
    wrong: list[tuple[str, int, int]] = []
    for asked in ALL:
        expected: dict[int, int] = {}
        if not asked.is_public:
            expected[401] = (await house.nobody.request(asked.method, asked.path)).status_code
        if asked.name not in STREAMS:
            url = f"{asked.path}?colour=red"
            expected[400] = (await chief.http.request(asked.method, url, json={})).status_code
        if 415 in asked.statuses and not asked.names_something and asked.is_json:
            sent = await other.http.request(asked.method, asked.path, content=b"x", headers={"Content-Type": "a/b"})
            expected[415] = sent.status_code
        if 404 in asked.statuses and asked.names_something:
            query, body = NEEDED.get(asked.name, ("", {}))
            expected[404] = (await other.http.request(asked.method, asked.path + query, json=body)).status_code
        wrong += [(asked.name, status, got) for status, got in expected.items() if got != status]

    assert len(ALL) > 120
    assert not wrong, "; ".join(map(str, wrong))
