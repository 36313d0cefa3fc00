"""The model list, providers, model configs and user keys, with a real server and fake providers."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import Role, Scope
from rookery.domain.models.context_window import Learned, LearnedFrom
from rookery.store.models import context_windows
from rookery.testing.fake_completions import Answer, FakeCompletions
from rookery.testing.fake_server import Scenario, failure
from tests.api.api_rig import ApiRig, Person

KEY = "sk-very-secret-0123456789"


@pytest.fixture
async def root(rig: ApiRig) -> Person:
    """An administrator."""
    return await rig.add("chief", role=Role.ADMIN)


@pytest.fixture
async def audrey(rig: ApiRig) -> Person:
    """An auditor."""
    return await rig.add("audrey", role=Role.AUDITOR)


async def add_provider(root: Person, **fields: Any) -> dict[str, Any]:
    body = {"type": "openai_compat", "name": f"p{uuid4().hex}", "base_url": "http://127.0.0.1:9/v1", **fields}
    made = await root.http.post("/api/v1/model-providers", json=body)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


async def add_config(root: Person, provider_id: str, **fields: Any) -> dict[str, Any]:
    body = {"provider_id": provider_id, "model": "small", "context_limit": 1000, **fields}
    made = await root.http.post("/api/v1/model-configs", json=body)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


# Pickers


async def test_picker_offers_enabled_models_by_name(rig: ApiRig, root: Person, ada: Person) -> None:
    late = await add_provider(root, display_name="zeta")
    early = await add_provider(root, display_name="Alpha")
    off = await add_provider(root, enabled=False)
    effort = {"reasoning_effort": {"default": "low", "max": "medium"}}
    first = await add_config(root, late["id"], display_name="One", options=effort)
    await add_config(root, early["id"])
    await add_config(root, early["id"], model="hidden", enabled=False)

    found = (await ada.http.get("/api/v1/models")).json()["providers"]

    assert [provider["display_name"] for provider in found] == ["Alpha", "zeta"]
    assert off["id"] not in {provider["id"] for provider in found}
    assert [model["model"] for model in found[0]["models"]] == ["small"]
    assert found[1] == {
        "id": late["id"],
        "type": "openai_compat",
        "display_name": "zeta",
        "icon": "",
        "available": True,
        "unavailable_reason": None,
        "models": [
            {
                "id": first["id"],
                "model": "small",
                "display_name": "One",
                "context_limit": 1000,
                "reasoning_efforts": ["none", "minimal", "low", "medium"],
                "is_default": True,
                "compression_threshold": 70,
            }
        ],
    }


async def test_picker_says_that_a_key_of_ones_own_is_needed_and_then_that_it_is_there(
    rig: ApiRig, root: Person, ada: Person
) -> None:
    provider = await add_provider(root, type="openai", base_url=None, central_key_enabled=False, allow_user_key=True)
    await add_config(root, provider["id"])

    before = (await ada.http.get("/api/v1/models")).json()["providers"][0]
    put = await ada.http.put(f"/api/v1/me/provider-keys/{provider['id']}", json={"api_key": KEY})
    after = (await ada.http.get("/api/v1/models")).json()["providers"][0]

    assert (before["available"], before["unavailable_reason"]) == (False, "user_api_key_required")
    assert put.status_code == 204, put.text
    assert (after["available"], after["unavailable_reason"]) == (True, None)


# Providers


async def test_provider_is_made_read_changed_and_deleted(rig: ApiRig, root: Person, audrey: Person) -> None:
    made = await add_provider(root, name="home", display_name="Home", api_key=KEY)

    assert made["has_key"] is True
    assert (await audrey.http.get(f"/api/v1/model-providers/{made['id']}")).json() == made
    assert [each["id"] for each in (await audrey.http.get("/api/v1/model-providers")).json()["items"]] == [made["id"]]

    changed = await root.http.patch(f"/api/v1/model-providers/{made['id']}", json={"api_key": None, "icon": "house"})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["has_key"], changed.json()["icon"], changed.json()["display_name"]) == (
        False,
        "house",
        "Home",
    )

    assert (await root.http.delete(f"/api/v1/model-providers/{made['id']}")).status_code == 204
    assert (await root.http.get(f"/api/v1/model-providers/{made['id']}")).status_code == 404


BAD_PROVIDERS: tuple[tuple[dict[str, Any], int, str], ...] = (
    ({"name": "Not good"}, 400, "name"),
    ({"type": "telegraph"}, 400, "type"),
    ({"base_url": "ftp://example.test"}, 400, "base_url"),
    ({"central_key_enabled": False}, 400, "central_key_enabled"),
    ({"allow_central_fallback": True}, 400, "allow_central_fallback"),
    ({"type": "openai", "base_url": None}, 400, "api_key"),
    ({"api_key": f" {KEY}"}, 400, "api_key"),
    ({"api_key": ""}, 400, "api_key"),
    ({"api_key": "k" * 10_241}, 400, "api_key"),
    ({"options": {"colour": "red"}}, 400, "options.colour"),
    ({"options": {"headers": {"X-Gate": "***"}}}, 400, "options.headers.X-Gate"),
    ({"colour": "red"}, 400, "colour"),
)


async def test_provider_that_breaks_a_rule_is_refused_by_field(rig: ApiRig, root: Person) -> None:
    for fields, status, field in BAD_PROVIDERS:
        body = {"type": "openai_compat", "name": "home", "base_url": "http://127.0.0.1:9/v1", **fields}

        found = await root.http.post("/api/v1/model-providers", json=body)

        assert found.status_code == status, found.text
        assert [each["field"] for each in found.json()["fields"]] == [field]
        assert KEY not in found.text
        assert (await root.http.get("/api/v1/model-providers")).json()["items"] == []


async def test_name_that_is_taken_is_a_conflict(rig: ApiRig, root: Person) -> None:
    await add_provider(root, name="home")

    body = {"type": "scripted", "name": "home"}
    assert (await root.http.post("/api/v1/model-providers", json=body)).json()["code"] == "already_exists"


async def test_header_values_are_masked_and_the_mask_keeps_them(rig: ApiRig, root: Person) -> None:
    made = await add_provider(root, options={"headers": {"X-Gate": KEY, "X-Team": "birds"}})

    assert made["options"]["headers"] == {"X-Gate": "***", "X-Team": "***"}
    path = f"/api/v1/model-providers/{made['id']}"
    changed = await root.http.patch(path, json={"options": {"headers": {"X-Gate": "***", "X-Team": "rooks"}}})

    assert changed.json()["options"]["headers"] == {"X-Gate": "***", "X-Team": "***"}
    stored = (await rig.replica.directory.snapshot()).providers[UUID(made["id"])].options.headers
    assert stored == {"X-Gate": KEY, "X-Team": "rooks"}


async def test_header_values_of_a_model_are_masked_and_the_mask_keeps_them(rig: ApiRig, root: Person) -> None:
    provider = await add_provider(root, type="openai_compat", base_url="http://localhost:1/v1")
    made = await add_config(root, provider["id"], options={"headers": {"X-Gate": KEY, "X-Team": "birds"}})

    assert made["options"]["headers"] == {"X-Gate": "***", "X-Team": "***"}
    path = f"/api/v1/model-configs/{made['id']}"
    changed = await root.http.patch(path, json={"options": {"headers": {"X-Gate": "***", "X-Team": "rooks"}}})

    assert changed.json()["options"]["headers"] == {"X-Gate": "***", "X-Team": "***"}
    opened = (await rig.replica.directory.snapshot()).configs[UUID(made["id"])].options.headers
    assert opened == {"X-Gate": KEY, "X-Team": "rooks"}
    stored = await rig.database.api.fetchval("SELECT c::text FROM model_configs c WHERE id = $1", UUID(made["id"]))
    assert KEY not in stored
    assert "rooks" not in stored


@pytest.mark.parametrize("who", ["ada", "audrey"])
async def test_only_administrators_change_providers_and_learn_nothing_from_a_bad_body(
    rig: ApiRig, root: Person, ada: Person, audrey: Person, who: str
) -> None:
    made = await add_provider(root)
    person = {"ada": ada, "audrey": audrey}[who]
    path = f"/api/v1/model-providers/{made['id']}"

    for found in (
        await person.http.post("/api/v1/model-providers", json={"colour": "red"}),
        await person.http.patch(path, json={"colour": "red"}),
        await person.http.patch(path, json={"options": {"headers": {"X-Gate": "***"}}}),
        await person.http.delete(path),
        await person.http.post(f"{path}/test"),
        await person.http.get(f"{path}/upstream-models"),
        await person.http.post("/api/v1/model-configs", json={}),
    ):
        assert (found.status_code, found.json()["code"]) == (403, "forbidden"), found.text


async def test_member_sees_no_providers(rig: ApiRig, ada: Person) -> None:
    assert (await ada.http.get("/api/v1/model-providers")).status_code == 403
    assert (await ada.http.get("/api/v1/model-configs")).status_code == 403


async def test_token_needs_the_scope(rig: ApiRig, root: Person) -> None:
    reader = rig.client(await rig.token_of(root.user, scopes=frozenset({Scope.CHAT_READ})))

    assert (await reader.get("/api/v1/models")).status_code == 200
    assert (await reader.get("/api/v1/model-providers")).json()["code"] == "scope"


# Testing a provider


async def test_provider_that_answers_passes_its_test_and_the_call_is_in_the_ledger(rig: ApiRig, root: Person) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Answer(text="ok"))
    async with fake.server.listening() as url:
        provider = await add_provider(root, base_url=url, api_key=KEY)
        await add_config(root, provider["id"])

        found = (await root.http.post(f"/api/v1/model-providers/{provider['id']}/test")).json()

    assert (found["ok"], found["error"]) == (True, None)
    assert found["latency_ms"] >= 0
    usage = (await root.http.get("/api/v1/usage", params={"group_by": "purpose"})).json()["items"]
    assert [(row["key"], row["request_count"]) for row in usage] == [("test", 1)]


async def test_provider_that_refuses_the_key_fails_its_test_without_telling_the_key(rig: ApiRig, root: Person) -> None:
    fake = FakeCompletions(api_key="sk-another-key-entirely")
    async with fake.server.listening() as url:
        provider = await add_provider(root, base_url=url, api_key=KEY)
        await add_config(root, provider["id"])

        found = await root.http.post(f"/api/v1/model-providers/{provider['id']}/test")

    assert found.json()["ok"] is False
    assert found.json()["error"]["kind"] == "auth"
    assert KEY not in found.text


async def test_provider_is_tried_before_anything_is_stored(rig: ApiRig, root: Person) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(Answer(text="ok"))
    fake.pages["GET /models"] = Scenario(body={"data": [{"id": "b"}, {"id": "a"}]})
    async with fake.server.listening() as url:
        given = {"type": "openai_compat", "base_url": url, "api_key": KEY}
        listed = (await root.http.post("/api/v1/model-providers/try", json=given)).json()
        asked = (await root.http.post("/api/v1/model-providers/try", json={**given, "model": "a"})).json()
        wrong = await root.http.post("/api/v1/model-providers/try", json={**given, "api_key": "sk-wrong-key"})

    assert (listed["ok"], listed["models"], listed["tried"]) == (True, ["a", "b"], f"GET {url}/models")
    assert (asked["ok"], asked["error"]) == (True, None)
    assert asked["tried"] == f"a short message to the model a at {url}"
    assert wrong.json()["ok"] is False
    assert url in wrong.json()["error"]["message"]
    assert "API key" in wrong.json()["error"]["message"]
    assert "sk-wrong-key" not in wrong.text
    gone = (await root.http.post("/api/v1/model-providers/try", json=given)).json()
    assert (gone["ok"], gone["models"]) == (False, [])
    assert "could not be reached" in gone["error"]["message"]
    assert url in gone["error"]["message"]
    stored = (await root.http.get("/api/v1/model-providers")).json()["items"]
    assert [each for each in stored if each["source"] != "env" and each["type"] == "openai_compat"] == []


async def test_change_of_a_provider_is_tried_with_its_stored_key_and_headers(rig: ApiRig, root: Person) -> None:
    old, new = FakeCompletions(api_key="sk-another-key-entirely"), FakeCompletions(api_key=KEY)
    new.pages["GET /models"] = Scenario(body={"data": [{"id": "a"}]})

    async def attempt(given: object) -> Any:
        return (await root.http.post("/api/v1/model-providers/try", json=given)).json()

    async with old.server.listening() as wrong, new.server.listening() as url:
        options = {"headers": {"x-team": "blue"}}
        provider = await add_provider(root, base_url=wrong, api_key=KEY, options=options)
        given = {"type": "openai_compat", "provider_id": provider["id"]}
        as_stored = await attempt(given)
        moved = await attempt({**given, "base_url": url})
        masked = await attempt({**given, "base_url": url, "options": {"headers": {"x-team": "***"}}})
        other_key = await attempt({**given, "base_url": url, "api_key": "sk-wrong-key"})

    assert [each["ok"] for each in (as_stored, moved, masked, other_key)] == [False, True, True, False]
    assert {each.headers.get("x-team") for each in new.server.requests} == {"blue"}
    stored = (await root.http.get(f"/api/v1/model-providers/{provider['id']}")).json()
    assert stored["base_url"] == wrong
    mistyped = await root.http.post("/api/v1/model-providers/try", json={**given, "type": "anthropic"})
    assert (mistyped.status_code, mistyped.json()["fields"][0]["field"]) == (400, "type")
    unknown = await root.http.post("/api/v1/model-providers/try", json={**given, "provider_id": str(uuid4())})
    assert unknown.status_code == 404
    # As if the server had found the key in its environment at the start.
    await rig.database.api.execute(
        "UPDATE model_providers SET source = 'env', api_key_enc = NULL WHERE id = $1", UUID(provider["id"])
    )
    refused = await root.http.post("/api/v1/model-providers/try", json=given)
    assert (refused.status_code, refused.json()["code"]) == (409, "pinned")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"type": "openai_compat"}, "base_url"),
        ({"type": "openai_compat", "base_url": "javascript:alert(1)"}, "base_url"),
        ({"type": "openai_compat", "base_url": "http://" + "x" * 3000}, "base_url"),
        ({"type": "anthropic"}, "api_key"),
        ({"type": "anthropic", "api_key": " sk\u0000 "}, "api_key"),
        ({"type": "nonsense"}, "type"),
        ({"type": "scripted", "model": "m" * 500}, "model"),
        ({"type": "scripted", "name": "x"}, "name"),
    ],
)
async def test_wrong_field_of_a_try_is_named(rig: ApiRig, root: Person, given: dict[str, str], field: str) -> None:
    refused = await root.http.post("/api/v1/model-providers/try", json=given)

    assert refused.status_code == 400, refused.text
    assert field in [each["field"] for each in refused.json()["fields"]]


async def test_provider_without_a_model_cannot_be_tried(rig: ApiRig, root: Person) -> None:
    provider = await add_provider(root)

    found = (await root.http.post(f"/api/v1/model-providers/{provider['id']}/test")).json()

    assert (found["ok"], found["error"]["kind"]) == (False, "config")


async def test_upstream_models_are_listed_with_the_central_key(rig: ApiRig, root: Person) -> None:
    fake = FakeCompletions(api_key=KEY)
    fake.pages["GET /v1/models"] = Scenario(body={"data": [{"id": "b"}, {"id": "a", "owned_by": "x"}]})
    async with fake.server.listening() as url:
        provider = await add_provider(root, base_url=f"{url}/v1", api_key=KEY)

        found = await root.http.get(f"/api/v1/model-providers/{provider['id']}/upstream-models")

    assert found.json() == {"items": [{"id": "a"}, {"id": "b"}]}


@pytest.mark.parametrize(
    "page", [failure(500, f"never {KEY}"), Scenario(body={"models": []}), Scenario(body="what?"), None]
)
async def test_list_that_cannot_be_had_is_a_bad_gateway(rig: ApiRig, root: Person, page: Scenario | None) -> None:
    fake = FakeCompletions(api_key=KEY)
    async with fake.server.listening() as url:
        if page is not None:
            fake.pages["GET /v1/models"] = page
        provider = await add_provider(root, base_url=f"{url}/v1", api_key=KEY)

        found = await root.http.get(f"/api/v1/model-providers/{provider['id']}/upstream-models")

    assert (found.status_code, found.json()["code"]) == (502, "upstream_failed"), found.text
    assert KEY not in found.text


async def test_provider_without_a_list_says_so(rig: ApiRig, root: Person) -> None:
    provider = await add_provider(root, type="bedrock", base_url=None)

    found = await root.http.get(f"/api/v1/model-providers/{provider['id']}/upstream-models")

    assert found.status_code == 502
    assert "bedrock" in found.json()["message"]


async def test_offline_provider_lists_its_scripts(rig: ApiRig, root: Person) -> None:
    provider = await add_provider(root, type="scripted", base_url=None)

    found = await root.http.get(f"/api/v1/model-providers/{provider['id']}/upstream-models")

    assert {"id": "guide"} in found.json()["items"]


# Model configs


async def test_window_in_force_and_what_was_learned_are_shown_and_can_be_forgotten(
    rig: ApiRig, root: Person, audrey: Person
) -> None:
    provider = await add_provider(root)
    made = await add_config(root, provider["id"])
    path = f"/api/v1/model-configs/{made['id']}"
    limit = made["context_limit"]
    assert (made["window"]["effective"], made["window"]["learned"], made["window"]["differs"]) == (limit, None, False)
    async with rig.database.api.acquire() as conn:
        await context_windows.learn(conn, UUID(made["id"]), Learned(limit // 2, LearnedFrom.PROVIDER))
        await context_windows.report(conn, UUID(made["id"]), tokens=limit - 1)

    seen = (await audrey.http.get(path)).json()["window"]
    assert (seen["effective"], seen["learned"], seen["learned_from"]) == (limit // 2, limit // 2, "provider")
    assert (seen["reported"], seen["differs"]) == (limit - 1, True)
    assert (await audrey.http.delete(f"{path}/learned-window")).status_code == 403
    assert (await root.http.delete(f"/api/v1/model-configs/{UUID(int=1)}/learned-window")).status_code == 404

    forgotten = await root.http.delete(f"{path}/learned-window")
    assert forgotten.status_code == 200
    assert (forgotten.json()["window"]["learned"], forgotten.json()["window"]["effective"]) == (None, limit - 1)


async def test_model_is_made_read_changed_and_deleted(rig: ApiRig, root: Person, audrey: Person) -> None:
    provider = await add_provider(root)
    made = await add_config(root, provider["id"], price_input="0.25", price_output=1.5, options={"temperature": 0.5})
    path = f"/api/v1/model-configs/{made['id']}"

    assert (made["is_default"], made["price_input"], made["price_output"]) == (True, "0.25", "1.5")
    assert (made["compression_threshold"], made["options"]) == (70, {"temperature": 0.5})
    assert (await audrey.http.get(path)).json() == made

    changed = await root.http.patch(
        path, json={"price_input": None, "price_output": None, "compression_threshold": 100}
    )
    assert changed.status_code == 200, changed.text
    assert (changed.json()["price_input"], changed.json()["model"]) == (None, "small")
    assert (await root.http.delete(path)).status_code == 204
    assert (await root.http.get(path)).status_code == 404
    assert (await root.http.get("/api/v1/model-configs")).json()["items"] == []


BAD_MODELS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"context_limit": 0}, "context_limit"),
    ({"compression_threshold": 101}, "compression_threshold"),
    ({"options": {"reasoning_effort": {"default": "high", "max": "low"}}}, "options.reasoning_effort"),
    ({"options": {"reasoning_effort": {"default": "high"}}}, "options.reasoning_effort"),
    ({"options": {"colour": 1}}, "options.colour"),
    ({"options": {"extra_body": {"n": 10**30}}}, "options.extra_body"),
    ({"price_input": "1"}, "price_output"),
    ({"price_input": "-1"}, "price_input"),
    ({"price_input": "1E-400"}, "price_input"),
    ({"model": " x"}, "model"),
)


async def test_model_that_breaks_a_rule_is_refused_by_field(rig: ApiRig, root: Person) -> None:
    provider = await add_provider(root)
    for fields, field in BAD_MODELS:
        body = {"provider_id": provider["id"], "model": "m", "context_limit": 10, **fields}

        found = await root.http.post("/api/v1/model-configs", json=body)

        assert found.status_code == 400, found.text
        assert field in [each["field"] for each in found.json()["fields"]]


async def test_two_bad_fields_are_told_at_once(rig: ApiRig, root: Person) -> None:
    body = {"provider_id": str(uuid4()), "model": "", "context_limit": 0}

    found = (await root.http.post("/api/v1/model-configs", json=body)).json()

    assert {each["field"] for each in found["fields"]} == {"model", "context_limit"}


@pytest.mark.parametrize("is_there", [True, False])
async def test_model_of_a_provider_that_cannot_be_used_is_a_failed_precondition(
    rig: ApiRig, root: Person, is_there: bool
) -> None:
    provider_id = (await add_provider(root, enabled=False))["id"] if is_there else str(uuid4())
    body = {"provider_id": provider_id, "model": "m", "context_limit": 10}

    found = await root.http.post("/api/v1/model-configs", json=body)

    assert (found.status_code, found.json()["code"]) == (412, "provider_unavailable")


async def test_ten_models_at_once_make_one_default(rig: ApiRig, root: Person) -> None:
    provider = await add_provider(root)

    await asyncio.gather(*(add_config(root, provider["id"], model=f"m{number}") for number in range(10)))

    found = (await root.http.get("/api/v1/model-configs")).json()["items"]
    assert len(found) == 10
    assert [each["is_default"] for each in found].count(True) == 1


async def test_deleting_the_default_promotes_a_usable_one(rig: ApiRig, root: Person) -> None:
    provider = await add_provider(root)
    first = await add_config(root, provider["id"], model="first")
    await add_config(root, provider["id"], model="off", enabled=False)
    third = await add_config(root, provider["id"], model="third")

    await root.http.delete(f"/api/v1/model-configs/{first['id']}")

    found = (await root.http.get("/api/v1/model-configs")).json()["items"]
    assert [each["id"] for each in found if each["is_default"]] == [third["id"]]


# User keys


async def test_keys_of_ones_own_are_shown_as_there_or_not(rig: ApiRig, root: Person, ada: Person) -> None:
    open_one = await add_provider(root, display_name="a", allow_user_key=True, api_key=KEY)
    await add_provider(root, display_name="b")
    path = f"/api/v1/me/provider-keys/{open_one['id']}"

    before = (await ada.http.get("/api/v1/me/provider-keys")).json()["items"]
    await ada.http.put(path, json={"api_key": KEY})
    after = (await ada.http.get("/api/v1/me/provider-keys")).json()["items"]

    assert [(each["has_user_key"], each["has_central_key"], each["user_key_allowed"]) for each in before] == [
        (False, True, True),
        (False, True, False),
    ]
    assert after[0]["has_user_key"] is True
    assert after[0]["provider"]["id"] == open_one["id"]
    assert (await ada.http.delete(path)).status_code == 204
    assert (await ada.http.delete(path)).status_code == 404


@pytest.mark.parametrize(
    ("provider", "key", "status", "code"),
    [
        ({}, KEY, 403, "disabled"),
        ({"allow_user_key": True, "enabled": False}, KEY, 412, "provider_unavailable"),
        ({"allow_user_key": True}, f"{KEY} ", 400, "invalid"),
        ({"allow_user_key": True}, "", 400, "invalid"),
        ({"allow_user_key": True}, "k" * 10_241, 400, "invalid"),
    ],
)
async def test_key_that_cannot_be_saved_is_refused(
    rig: ApiRig, root: Person, ada: Person, provider: dict[str, Any], key: str, status: int, code: str
) -> None:
    made = await add_provider(root, **provider)

    found = await ada.http.put(f"/api/v1/me/provider-keys/{made['id']}", json={"api_key": key})

    assert (found.status_code, found.json()["code"]) == (status, code), found.text


async def test_key_for_an_unknown_provider_is_not_found(rig: ApiRig, ada: Person) -> None:
    assert (await ada.http.put(f"/api/v1/me/provider-keys/{uuid4()}", json={"api_key": KEY})).status_code == 404


# Secrets


async def test_key_is_in_no_answer_no_audit_entry_and_no_log_line(
    rig: ApiRig, root: Person, ada: Person, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    made = await add_provider(root, allow_user_key=True, api_key=KEY, options={"headers": {"X-Gate": KEY}})
    config = await add_config(root, made["id"], options={"headers": {"X-Other": KEY}})
    provider = f"/api/v1/model-providers/{made['id']}"
    said.append(await ada.http.put(f"/api/v1/me/provider-keys/{made['id']}", json={"api_key": KEY}))
    said.append(await root.http.patch(provider, json={"api_key": KEY, "name": "!"}))
    said.append(await root.http.patch(provider, json={"api_key": f"{KEY}\n"}))
    said.append(await root.http.patch(provider, json={"api_key": [KEY]}))
    said.append(await root.http.post("/api/v1/model-providers", json={"api_key": KEY, KEY[:9]: 1}))
    paths = (
        provider,
        "/api/v1/model-providers",
        f"{provider}/upstream-models",
        f"/api/v1/model-configs/{config['id']}",
        "/api/v1/model-configs",
        "/api/v1/me/provider-keys",
        "/api/v1/models",
        "/api/v1/audit",
        "/api/v1/openapi.json",
    )
    said += [await root.http.get(path) for path in paths]
    said.append(await root.http.get("/api/v1/audit", params={"format": "csv"}))
    said.append(await root.http.post(f"{provider}/test"))

    assert [found.request.url.path for found in said if KEY in found.text] == []
    printed = capsys.readouterr()
    assert KEY not in printed.out + printed.err + caplog.text
