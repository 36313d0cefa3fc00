"""Own kinds of subagents over HTTP: of a user, and of the deployment."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.domain.access.rights import Role
from tests.api.api_rig import ApiRig, Person

KINDS = "/api/v1/agent-kinds"
BODY = {"description": "Reviews changes.", "prompt": "Be strict.", "tools": ["read_file"], "max_minutes": 5}


@pytest.fixture
async def root(rig: ApiRig) -> Person:
    """An administrator."""
    return await rig.add("chief", role=Role.ADMIN)


async def listed(person: Person) -> list[tuple[str, str, str | None]]:
    found = (await person.http.get(KINDS)).json()["kinds"]
    return [(each["name"], each["source"], each["hidden_by"]) for each in found]


async def test_own_kind_is_written_replaced_and_deleted(ada: Person) -> None:
    made = await ada.http.put(f"{KINDS}/reviewer", json=BODY)
    assert made.status_code == 200, made.text
    assert (made.json()["source"], made.json()["tools"]) == ("user", ["read_file"])

    changed = await ada.http.put(f"{KINDS}/reviewer", json={"description": "Reviews."})
    assert (changed.json()["tools"], changed.json()["prompt"]) == (None, "")
    assert await listed(ada) == [
        ("general", "builtin", None),
        ("explore", "builtin", None),
        ("reviewer", "user", None),
    ]

    assert (await ada.http.delete(f"{KINDS}/reviewer")).status_code == 204
    gone = await ada.http.delete(f"{KINDS}/reviewer")
    assert (gone.status_code, gone.json()["code"]) == (404, "agent_kind_not_found")


async def test_kind_of_the_deployment_is_for_everyone_and_hides_a_users(ada: Person, root: Person) -> None:
    await ada.http.put(f"{KINDS}/reviewer", json=BODY)

    made = await root.http.put(f"{KINDS}/reviewer?scope=deployment", json=BODY)

    assert made.status_code == 200, made.text
    assert ("reviewer", "deployment", None) in await listed(ada)
    assert ("reviewer", "user", "deployment") in await listed(ada)
    assert [each for each in await listed(root) if each[1] == "user"] == []


async def test_kinds_of_a_user_are_not_visible_to_other_users(ada: Person, root: Person, rig: ApiRig) -> None:
    await ada.http.put(f"{KINDS}/reviewer", json=BODY)

    for other in (root, await rig.add("stranger")):
        assert "reviewer" not in [name for name, *_ in await listed(other)]
        assert (await other.http.delete(f"{KINDS}/reviewer")).status_code == 404
        assert (await other.http.put(f"{KINDS}/reviewer", json={"description": "Mine."})).status_code == 200
    kept = [each for each in (await ada.http.get(KINDS)).json()["kinds"] if each["name"] == "reviewer"]
    assert [each["prompt"] for each in kept] == ["Be strict."]


async def test_member_cannot_change_kinds_of_the_deployment(ada: Person, root: Person) -> None:
    await root.http.put(f"{KINDS}/reviewer?scope=deployment", json=BODY)

    assert (await ada.http.put(f"{KINDS}/reviewer?scope=deployment", json=BODY)).status_code == 403
    assert (await ada.http.delete(f"{KINDS}/reviewer?scope=deployment")).status_code == 403


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("general", BODY, "name"),
        ("Big", BODY, "name"),
        ("a", {}, "description"),
        ("a", {"description": "  "}, "description"),
        ("a", {**BODY, "max_minutes": 0}, "max_minutes"),
        ("a", {**BODY, "tools": ["x"] * 65}, "tools"),
        ("a", {**BODY, "tools": [""]}, "tools"),
        ("a", {**BODY, "prompt": "x" * 70_000}, "prompt"),
        ("a", {**BODY, "reasoning_effort": "frantic"}, "reasoning_effort"),
        ("a", {**BODY, "model_config_id": "00000000-0000-0000-0000-000000000001"}, "model_config_id"),
        ("a", {**BODY, "colour": "red"}, "colour"),
    ],
)
async def test_bad_kind_is_refused_with_its_field(ada: Person, name: str, body: dict[str, Any], field: str) -> None:
    refused = await ada.http.put(f"{KINDS}/{name}", json=body)

    assert refused.status_code == 400, refused.text
    assert any(each["field"].startswith(field) for each in refused.json()["fields"])


async def test_user_has_at_most_fifty_kinds(ada: Person) -> None:
    for number in range(50):
        assert (await ada.http.put(f"{KINDS}/kind-{number}", json={"description": "x"})).status_code == 200

    assert (await ada.http.put(f"{KINDS}/one-more", json={"description": "x"})).status_code == 400
    assert (await ada.http.put(f"{KINDS}/kind-7", json={"description": "y"})).status_code == 200
