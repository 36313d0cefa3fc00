"""Saved prompts over HTTP."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rookery.domain.access.rights import Role
from rookery.domain.content import saved_prompts as rules
from tests.api.api_rig import ApiRig, Person

PROMPTS = "/api/v1/saved-prompts"
SHARED = {"scope": "deployment"}
FILL = """
    INSERT INTO saved_prompts (owner_id, name, summary, text)
    SELECT $1, 'prompt-' || n, 'Summary ' || n, repeat('Long text ' || n || ' ', 200)
      FROM generate_series(1, 10000) n
"""


@pytest.fixture
async def chief(rig: ApiRig) -> Person:
    return await rig.add("chief", role=Role.ADMIN)


async def put(person: Person, name: str, text: str = "Review this.", **query: str) -> Any:
    return await person.http.put(f"{PROMPTS}/{name}", json={"text": text}, params=query)


async def names(person: Person, **query: Any) -> list[tuple[str, str]]:
    found = await person.http.get(PROMPTS, params=query)
    assert found.status_code == 200, found.text
    return [(each["scope"], each["name"]) for each in found.json()["items"]]


async def test_prompt_is_written_replaced_read_and_deleted(ada: Person) -> None:
    made = await put(ada, "review", "Review {{file}}.\nBe strict.")
    again = await put(ada, "review", "Review {{file}} for {{goal}}.")
    read = (await ada.http.get(f"{PROMPTS}/review")).json()

    assert (made.json()["variables"], made.json()["summary"]) == (["file"], "Review {{file}}. Be strict.")
    assert (again.status_code, read["text"], read["variables"]) == (
        200,
        "Review {{file}} for {{goal}}.",
        ["file", "goal"],
    )
    assert "text" not in (await ada.http.get(PROMPTS)).json()["items"][0]
    assert (await ada.http.delete(f"{PROMPTS}/review")).status_code == 204
    for answered in (await ada.http.delete(f"{PROMPTS}/review"), await ada.http.get(f"{PROMPTS}/review")):
        assert (answered.status_code, answered.json()["code"]) == (404, "not_found")


async def test_administrators_share_prompts_and_others_only_read_them(ada: Person, chief: Person) -> None:
    await put(ada, "review", "My own way.")

    shared = await put(chief, "review", "The way of the house.", **SHARED)
    refused = [await put(ada, "review", **SHARED), await ada.http.delete(f"{PROMPTS}/review", params=SHARED)]

    assert shared.json()["scope"] == "deployment"
    assert {each.status_code for each in refused} == {403}
    assert await names(ada) == [("user", "review"), ("deployment", "review")]
    assert (await ada.http.get(f"{PROMPTS}/review")).json()["text"] == "My own way."
    assert (await ada.http.get(f"{PROMPTS}/review", params=SHARED)).json()["text"] == "The way of the house."
    logged = (await chief.http.get("/api/v1/audit", params={"action": "saved_prompt"})).json()["items"]
    assert [each["action"] for each in logged] == ["saved_prompt.write"]


async def test_prompts_of_a_user_are_hidden_from_other_users(rig: ApiRig, ada: Person, chief: Person) -> None:
    bob = await rig.add("bob")
    await put(ada, "secret", "Only mine.")

    for other in (bob, chief):
        assert await names(other) == []
        assert (await other.http.get(f"{PROMPTS}/secret")).status_code == 404
        assert (await other.http.delete(f"{PROMPTS}/secret")).status_code == 404


async def test_search_finds_names_and_beginnings_and_pages_through_them(ada: Person, chief: Person) -> None:
    await put(ada, "zoo-fix", "Feed the animals.")
    await put(ada, "fix", "Repair it.")
    await put(chief, "fix-all", "Repair everything.", **SHARED)

    assert await names(ada, q="fix") == [("user", "fix"), ("deployment", "fix-all"), ("user", "zoo-fix")]
    assert await names(ada, q=" REPAIR ") == [("user", "fix"), ("deployment", "fix-all")]
    assert await names(ada, q="%") == await names(ada, q="_") == await names(ada, q="a\0b") == []
    pages, cursor = [], None
    while True:
        page = (
            await ada.http.get(PROMPTS, params={"q": "fix", "limit": 1, **({"cursor": cursor} if cursor else {})})
        ).json()
        pages += [each["name"] for each in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert pages == ["fix", "fix-all", "zoo-fix"]
    assert (await ada.http.get(PROMPTS, params={"cursor": "nonsense"})).status_code == 400


@pytest.mark.parametrize("name", ["Review", "a%20b", "-x", "%3Cscript%3E", "%2e%2e", "x" * 65])
async def test_hostile_name_is_refused(ada: Person, name: str) -> None:
    answered = await put(ada, name)

    assert answered.status_code in (400, 404)
    assert await names(ada) == []


async def test_ten_thousand_prompts_are_searched_quickly_and_are_the_limit(rig: ApiRig, ada: Person) -> None:
    async with rig.database.api.acquire() as conn:
        await conn.execute(FILL, ada.id)

    started = time.perf_counter()
    found = await names(ada, q="9999", limit=10)
    took = time.perf_counter() - started
    refused = await put(ada, "one-more")

    assert found == [("user", "prompt-9999")]
    assert took < 1, took  # 48 ms were measured with 20,000 rows
    assert refused.json()["fields"][0]["message"] == "There can be 10,000 saved prompts. Delete one first."
    assert (await put(ada, "prompt-1", "Replaced.")).status_code == 200
    assert rules.MAX_PROMPTS == 10_000
