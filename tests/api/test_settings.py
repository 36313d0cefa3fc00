"""Runtime settings in groups, locked settings, and the user's preferences."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from rookery.domain.access.rights import Role
from rookery.store.settings import locked_settings, setting_groups, settings
from rookery.store.settings.locked_settings import LockedSettingError
from tests.api.api_rig import ApiRig, Person


@pytest.fixture
async def root(rig: ApiRig) -> Person:
    """An administrator."""
    return await rig.add("chief", role=Role.ADMIN)


async def entries(root: Person) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await root.http.get("/api/v1/audit", params={"action": "settings"})).json()["items"]
    return found


# Groups


async def test_administrator_sees_every_group_with_its_defaults(rig: ApiRig, root: Person) -> None:
    found = (await root.http.get("/api/v1/settings")).json()["groups"]

    assert set(found) == set(setting_groups.GROUPS)
    assert found["spend"] == {
        "values": {"enabled": False, "default_limit_micros": 0, "period": "month"},
        "pinned": [],
        "updated_at": None,
    }
    assert found["prompts"]["values"]["include_default"] is True
    assert found["prompts"]["values"]["default_system_prompt"]
    assert found["chats"]["values"]["admin_access"] == "break_glass"
    assert found["models"]["values"] == {
        "title_generation": None,
        "compaction": None,
        "general_subagents": None,
        "explore_subagents": None,
        "allow_personal_overrides": False,
        "generate_titles": True,
    }


async def test_member_sees_the_public_keys_alone(rig: ApiRig, root: Person, ada: Person) -> None:
    found = (await ada.http.get("/api/v1/settings")).json()["groups"]

    assert set(found) == {
        "models",
        "chats",
        "subagents",
        "advisor",
        "approvals",
        "sharing",
        "spend",
        "workspaces",
        "mcp",
        "debug",
    }
    assert found["models"]["values"] == {"allow_personal_overrides": False}
    assert (await ada.http.get("/api/v1/settings/models")).json()["values"] == {"allow_personal_overrides": False}
    assert (await ada.http.get("/api/v1/settings/prompts")).json()["code"] == "forbidden"


async def test_auditor_reads_all_and_changes_nothing(rig: ApiRig) -> None:
    audrey = await rig.add("audrey", role=Role.AUDITOR)

    assert (await audrey.http.get("/api/v1/settings/prompts")).status_code == 200
    for body, headers in (({"colour": "red"}, {}), ({}, {"If-Match": "never"})):
        refused = await audrey.http.put("/api/v1/settings/prompts", json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_group_that_does_not_exist_is_not_found(rig: ApiRig, root: Person) -> None:
    assert (await root.http.get("/api/v1/settings/wizard")).status_code == 404


async def test_change_is_merged_told_once_and_logged_without_values(rig: ApiRig, root: Person) -> None:
    await root.http.put("/api/v1/settings/prompts", json={"include_default": False})

    found = await root.http.put(
        "/api/v1/settings/prompts", json={"system_prompt": "Be  brief.\u200b\r\n\r\n\r\n\r\nNow."}
    )

    values = found.json()["values"]
    assert (values["system_prompt"], values["include_default"]) == ("Be  brief.\n\nNow.", False)
    assert found.json()["updated_at"] is not None
    newest = (await entries(root))[0]
    assert (newest["action"], newest["resource_id"], newest["diff"]) == (
        "settings.update",
        "prompts",
        {"system_prompt": "(changed)"},
    )
    assert await rig.replica.directory.setting("prompts") == {
        "system_prompt": "Be  brief.\n\nNow.",
        "include_default": False,
        "plan_mode_instructions": "",
    }


async def test_change_that_changes_nothing_writes_nothing(rig: ApiRig, root: Person) -> None:
    first = await root.http.put("/api/v1/settings/spend", json={"period": "month"})
    assert (first.status_code, first.json()["updated_at"]) == (200, None)

    await root.http.put("/api/v1/settings/spend", json={"period": "day"})
    before = (await root.http.get("/api/v1/settings/spend")).json()
    after = (await root.http.put("/api/v1/settings/spend", json={"period": "day"})).json()

    assert after == before
    assert len(await entries(root)) == 1


async def test_changes_of_different_keys_at_once_are_all_kept(rig: ApiRig, root: Person) -> None:
    changes = [{"running_roots": 7}, {"running_subagents": 8}, {"auto_archive_days": 9}]

    await asyncio.gather(*(root.http.put("/api/v1/settings/chats", json=change) for change in changes))

    values = (await root.http.get("/api/v1/settings/chats")).json()["values"]
    assert (values["running_roots"], values["running_subagents"], values["auto_archive_days"]) == (7, 8, 9)


BROKEN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("chats", {"auto_archive_days": 3651}, "auto_archive_days"),
    ("chats", {"auto_archive_days": -1}, "auto_archive_days"),
    ("chats", {"dynamic_tool_timeout_seconds": 9}, "dynamic_tool_timeout_seconds"),
    ("chats", {"admin_access": "some"}, "admin_access"),
    ("chats", {"running_roots": 2**64}, "running_roots"),
    # A value that the database cannot use would keep all chats from running.
    ("chats", {"running_roots": 2**31}, "running_roots"),
    ("chats", {"running_subagents": 2**31}, "running_subagents"),
    ("chats", {"running_roots": None}, "running_roots"),
    ("chats", {"retention_days": 3651}, "retention_days"),
    ("chats", {"retention_days": -1}, "retention_days"),
    ("chats", {"colour": "red"}, "colour"),
    ("spend", {"period": "year"}, "period"),
    ("spend", {"enabled": "yes"}, "enabled"),
    ("prompts", {"system_prompt": "x" * (128 * 1024 + 1)}, "system_prompt"),
    ("models", {"compaction": {"model_config_id": str(uuid4())}}, "compaction.model_config_id"),
    ("models", {"compaction": {"reasoning_effort": "low"}}, "compaction.model_config_id"),
    ("sharing", {"enabled": None}, "enabled"),
)


async def test_value_that_breaks_a_rule_is_refused_by_field(rig: ApiRig, root: Person) -> None:
    for group, body, field in BROKEN:
        found = await root.http.put(f"/api/v1/settings/{group}", json=body)

        assert found.status_code == 400, found.text
        assert [each["field"] for each in found.json()["fields"]] == [field]
    assert await entries(root) == []


async def test_prompt_with_characters_no_column_takes_is_stored_without_them(rig: ApiRig, root: Person) -> None:
    found = await root.http.put("/api/v1/settings/prompts", json={"system_prompt": "a\0b"})

    assert found.json()["values"]["system_prompt"] == "a\ufffdb"


async def test_stale_change_is_refused(rig: ApiRig, root: Person) -> None:
    path = "/api/v1/settings/spend"
    first = (await root.http.put(path, json={"enabled": True})).json()["updated_at"]

    taken = await root.http.put(path, json={"enabled": False}, headers={"If-Match": f'"{first}"'})
    stale = await root.http.put(path, json={"enabled": True}, headers={"If-Match": first})
    broken = await root.http.put(path, json={"enabled": True}, headers={"If-Match": "W/abc"})

    assert taken.status_code == 200
    assert (stale.status_code, stale.json()["code"]) == (412, "version_mismatch")
    assert broken.json()["fields"][0]["field"] == "If-Match"


async def test_override_names_a_model_that_can_be_used_and_says_when_it_cannot(rig: ApiRig, root: Person) -> None:
    model = str(await rig.add_model())
    effort = await root.http.put(
        "/api/v1/settings/models", json={"title_generation": {"model_config_id": model, "reasoning_effort": "low"}}
    )
    assert effort.json()["fields"][0]["field"] == "title_generation.reasoning_effort"

    saved = await root.http.put("/api/v1/settings/models", json={"title_generation": {"model_config_id": model}})
    assert saved.json()["values"]["title_generation"] == {
        "model_config_id": model,
        "reasoning_effort": None,
        "usable": True,
    }
    await root.http.patch(f"/api/v1/model-configs/{model}", json={"enabled": False})
    found = (await root.http.get("/api/v1/settings/models")).json()["values"]
    assert found["title_generation"]["usable"] is False

    # A model that became unusable does not block other changes.
    other = await root.http.put("/api/v1/settings/models", json={"generate_titles": False})
    assert other.status_code == 200, other.text
    cleared = await root.http.put("/api/v1/settings/models", json={"title_generation": None})
    assert cleared.json()["values"]["title_generation"] is None


async def test_stored_value_that_cannot_be_read_counts_as_not_set(rig: ApiRig, root: Person) -> None:
    async with rig.database.api.acquire() as conn:
        await settings.write_setting(conn, "chats", value={"auto_archive_days": "soon", "running_roots": 3})

    values = (await root.http.get("/api/v1/settings/chats")).json()["values"]

    assert (values["auto_archive_days"], values["running_roots"]) == (0, 3)


# Locked settings


async def apply(rig: ApiRig, **environ: str) -> bool:
    async with rig.database.api.acquire() as conn:
        return await locked_settings.apply(conn, environ, now=rig.clock.now())


async def test_pinned_key_is_in_effect_listed_and_refused(rig: ApiRig, root: Person, ada: Person) -> None:
    await root.http.put("/api/v1/settings/chats", json={"running_roots": 5, "auto_archive_days": 1})

    assert await apply(rig, ROOKERY_PIN_CHATS_RUNNING_ROOTS="3", ROOKERY_PIN_SPEND_PERIOD="week")
    assert not await apply(rig, ROOKERY_PIN_CHATS_RUNNING_ROOTS="3", ROOKERY_PIN_SPEND_PERIOD="week")

    found = (await ada.http.get("/api/v1/settings/chats")).json()
    assert (found["values"]["running_roots"], found["pinned"]) == (3, ["running_roots"])
    refused = await root.http.put("/api/v1/settings/chats", json={"running_roots": 4, "auto_archive_days": 2})
    assert (refused.status_code, refused.json()["code"]) == (409, "pinned")
    assert "chats.running_roots" in refused.json()["message"]
    logged = [(entry["action"], entry["resource_id"], entry["actor_kind"]) for entry in (await entries(root))[:2]]
    assert logged == [("settings.pin", "spend", "system"), ("settings.pin", "chats", "system")]
    assert (await root.http.put("/api/v1/settings/chats", json={"auto_archive_days": 2})).status_code == 200


async def test_key_whose_pin_ends_is_what_it_was(rig: ApiRig, root: Person) -> None:
    await root.http.put("/api/v1/settings/chats", json={"running_roots": 5})
    await apply(rig, ROOKERY_PIN_CHATS_RUNNING_ROOTS="3", ROOKERY_PIN_PROMPTS_SYSTEM_PROMPT="12")

    pinned = (await root.http.get("/api/v1/settings")).json()["groups"]
    await apply(rig)
    freed = (await root.http.get("/api/v1/settings")).json()["groups"]

    assert pinned["prompts"]["values"]["system_prompt"] == "12"
    assert (freed["chats"]["values"]["running_roots"], freed["chats"]["pinned"]) == (5, [])
    assert (freed["prompts"]["values"]["system_prompt"], freed["prompts"]["pinned"]) == ("", [])


def test_pins_that_cannot_be_are_told_together() -> None:
    with pytest.raises(LockedSettingError) as raised:
        locked_settings.read_environ(
            {"ROOKERY_PIN_CHATS_COLOUR": "red", "ROOKERY_PIN_SPEND_ENABLED": "maybe", "HOME": "/"}
        )

    assert [name for name, _ in raised.value.problems] == ["ROOKERY_PIN_CHATS_COLOUR", "ROOKERY_PIN_SPEND_ENABLED"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_uses_per_run": 0}, "max_uses_per_run"),
        ({"max_uses_per_run": 51}, "max_uses_per_run"),
        ({"max_output_tokens": 255}, "max_output_tokens"),
        ({"max_output_tokens": 65_537}, "max_output_tokens"),
        ({"model_config_id": str(uuid4())}, "model_config_id"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning_effort": "frantic"}, "reasoning_effort"),
        ({"model_config_id": "MODEL", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"enabled": "perhaps"}, "enabled"),
    ],
)
async def test_setting_of_the_advisor_that_cannot_be_is_refused_by_field(
    rig: ApiRig, root: Person, change: dict[str, Any], field: str
) -> None:
    # Efforts cannot be chosen for this model.
    model = str(await rig.add_model())
    body = {key: model if value == "MODEL" else value for key, value in change.items()}

    refused = await root.http.put("/api/v1/settings/advisor", json=body)

    assert refused.status_code == 400, refused.text
    assert [each["field"] for each in refused.json()["fields"]] == [field]


async def test_advisor_is_set_with_an_enabled_model(rig: ApiRig, root: Person) -> None:
    body = {
        "enabled": True,
        "max_uses_per_run": 50,
        "max_output_tokens": 256,
        "model_config_id": str(await rig.add_model()),
    }

    found = (await root.http.put("/api/v1/settings/advisor", json=body)).json()["values"]

    assert found == {**body, "reasoning_effort": None}


# Preferences

NO_OVERRIDES = {"root": None, "general": None, "explore": None}


async def test_preferences_start_empty_and_keep_what_is_set(rig: ApiRig, ada: Person, ben: Person) -> None:
    empty = (await ada.http.get("/api/v1/me/settings")).json()
    assert empty == {
        "custom_prompt": "",
        "context_auto_refresh": False,
        "model_overrides": NO_OVERRIDES,
        "deployment_overrides": {"general": None, "explore": None},
        "overrides_allowed": False,
        "compaction_thresholds": {},
        "approval_rules": [],
        "debug": False,
        "display": {},
    }

    await ada.http.patch(
        "/api/v1/me/settings", json={"custom_prompt": " I am Ada.\u200b ", "display": {"theme": "dark"}}
    )
    found = await ada.http.patch("/api/v1/me/settings", json={"display": {"font": {"size": 12}}})

    assert found.json()["custom_prompt"] == "I am Ada."
    assert found.json()["display"] == {"theme": "dark", "font": {"size": 12}}
    assert await rig.replica.directory.user_setting(ada.id, "custom_prompt") == "I am Ada."
    assert (await ben.http.get("/api/v1/me/settings")).json() == empty


async def test_context_is_refreshed_by_itself_for_those_who_say_so(rig: ApiRig, ada: Person, ben: Person) -> None:
    path = "/api/v1/me/settings"

    on = await ada.http.patch(path, json={"context_auto_refresh": True})
    vague = await ada.http.patch(path, json={"context_auto_refresh": "sometimes"})
    kept = await rig.replica.directory.user_setting(ada.id, "context_auto_refresh")
    cleared = await ada.http.patch(path, json={"context_auto_refresh": None})

    assert on.json()["context_auto_refresh"] is True
    assert vague.json()["fields"][0]["field"] == "context_auto_refresh"
    assert kept is True
    assert await rig.replica.directory.user_setting(ben.id, "context_auto_refresh") is None
    assert cleared.json()["context_auto_refresh"] is False


async def test_debug_records_of_ones_own_need_the_administrators_word(rig: ApiRig, root: Person, ada: Person) -> None:
    path = "/api/v1/me/settings"

    early = await ada.http.patch(path, json={"debug": True})
    off = await ada.http.patch(path, json={"debug": False})
    await root.http.put("/api/v1/settings/debug", json={"allow_users": True})
    late = await ada.http.patch(path, json={"debug": True})

    assert (early.status_code, early.json()["code"]) == (403, "disabled")
    assert off.json()["debug"] is False
    assert late.json()["debug"] is True


async def test_display_is_merged_and_bounded(rig: ApiRig, ada: Person) -> None:
    path = "/api/v1/me/settings"
    await ada.http.patch(path, json={"display": {"a": 1, "b": {"c": 2, "d": "x\0"}}})

    found = await ada.http.patch(path, json={"display": {"a": None, "b": {"c": [1]}}})
    large = await ada.http.patch(path, json={"display": {"a": "x" * 16 * 1024}})
    wide = await ada.http.patch(path, json={"display": {"a": 10**30}})
    cleared = await ada.http.patch(path, json={"display": None})

    assert found.json()["display"] == {"b": {"c": [1], "d": "x\ufffd"}}
    assert [refused.json()["fields"][0]["field"] for refused in (large, wide)] == ["display", "display"]
    assert cleared.json()["display"] == {}


async def test_threshold_is_for_an_enabled_model(rig: ApiRig, ada: Person) -> None:
    model, path = str(await rig.add_model()), "/api/v1/me/settings"

    saved = await ada.http.patch(path, json={"compaction_thresholds": {model: 40}})
    unknown = await ada.http.patch(path, json={"compaction_thresholds": {str(uuid4()): 40}})
    wide = await ada.http.patch(path, json={"compaction_thresholds": {model: 101}})
    removed = await ada.http.patch(path, json={"compaction_thresholds": {model: None}})

    assert saved.json()["compaction_thresholds"] == {model: 40}
    assert (unknown.status_code, wide.status_code) == (400, 400)
    assert removed.json()["compaction_thresholds"] == {}


async def test_model_of_ones_own_needs_the_administrators_word(rig: ApiRig, root: Person, ada: Person) -> None:
    model, path = str(await rig.add_model()), "/api/v1/me/settings"
    override = {"mode": "model", "model_config_id": model, "reasoning_effort": None}

    refused = await ada.http.patch(path, json={"model_overrides": {"root": override}, "custom_prompt": "hi"})
    await root.http.put("/api/v1/settings/models", json={"allow_personal_overrides": True})
    saved = await ada.http.patch(path, json={"model_overrides": {"root": override}})
    await root.http.put("/api/v1/settings/models", json={"allow_personal_overrides": False})
    kept = (await ada.http.get(path)).json()

    assert (refused.status_code, refused.json()["code"]) == (403, "disabled")
    assert saved.json()["model_overrides"] == {**NO_OVERRIDES, "root": override}
    assert (kept["model_overrides"], kept["overrides_allowed"]) == ({**NO_OVERRIDES, "root": override}, False)
    assert kept["custom_prompt"] == ""
    assert (await ada.http.patch(path, json={"model_overrides": {"root": None}})).status_code == 200


async def test_models_of_subagents_are_set_and_cleared_one_by_one(rig: ApiRig, root: Person, ada: Person) -> None:
    model, path = str(await rig.add_model()), "/api/v1/me/settings"
    of_kind = {"model_config_id": model, "reasoning_effort": None}
    await root.http.put(
        "/api/v1/settings/models", json={"allow_personal_overrides": True, "general_subagents": of_kind}
    )
    own = {"mode": "model", "model_config_id": model, "reasoning_effort": None}
    usual = {"mode": "deployment_default", "model_config_id": None, "reasoning_effort": None}
    low = {"mode": "chat_default", "model_config_id": None, "reasoning_effort": "low"}

    await ada.http.patch(path, json={"model_overrides": {"general": own, "explore": usual}})
    found = (await ada.http.patch(path, json={"model_overrides": {"explore": low}})).json()
    cleared = (await ada.http.patch(path, json={"model_overrides": {"general": None}})).json()

    assert found["model_overrides"] == {"root": None, "general": own, "explore": low}
    assert found["deployment_overrides"] == {"general": of_kind, "explore": None}
    assert cleared["model_overrides"] == {"root": None, "general": None, "explore": low}


async def test_model_of_subagents_needs_the_administrators_word(rig: ApiRig, ada: Person) -> None:
    usual = {"mode": "deployment_default"}

    refused = await ada.http.patch("/api/v1/me/settings", json={"model_overrides": {"explore": usual}})

    assert (refused.status_code, refused.json()["code"]) == (403, "disabled")


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ({"mode": "model"}, "model_config_id"),
        ({"mode": "deployment_default", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"mode": "model", "model_config_id": str(uuid4())}, "model_config_id"),
        ({"mode": "best"}, "mode"),
        ({}, "mode"),
    ],
)
async def test_override_of_a_kind_that_cannot_be_is_refused_by_field(
    rig: ApiRig, root: Person, ada: Person, override: dict[str, Any], field: str
) -> None:
    await root.http.put("/api/v1/settings/models", json={"allow_personal_overrides": True})

    found = await ada.http.patch("/api/v1/me/settings", json={"model_overrides": {"general": override}})

    assert found.status_code == 400, found.text
    assert [each["field"] for each in found.json()["fields"]] == [f"model_overrides.general.{field}"]


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ({"mode": "model"}, "model_overrides.root.model_config_id"),
        ({"mode": "chat_default", "reasoning_effort": "low"}, "model_overrides.root.reasoning_effort"),
        ({"mode": "model", "model_config_id": str(uuid4())}, "model_overrides.root.model_config_id"),
        ({"mode": "deployment_default"}, "model_overrides.root.mode"),
    ],
)
async def test_override_that_cannot_be_is_refused_by_field(
    rig: ApiRig, root: Person, ada: Person, override: dict[str, Any], field: str
) -> None:
    await root.http.put("/api/v1/settings/models", json={"allow_personal_overrides": True})

    found = await ada.http.patch("/api/v1/me/settings", json={"model_overrides": {"root": override}})

    assert found.status_code == 400, found.text
    assert [each["field"] for each in found.json()["fields"]] == [field]


async def test_group_is_told_with_the_moment_of_its_change(rig: ApiRig, root: Person) -> None:
    before = datetime.now(UTC)

    found = (await root.http.put("/api/v1/settings/sharing", json={"enabled": False})).json()

    assert abs((datetime.fromisoformat(found["updated_at"]) - before).total_seconds()) < 60


async def test_days_say_how_many_chats_they_would_reach(
    rig: ApiRig, root: Person, ada: Person, database_url: str
) -> None:
    await rig.add_model()
    content = {"content": [{"type": "text", "text": "hello"}]}
    old, gone, _ = [(await ada.http.post("/api/v1/chats", json=content)).json()["id"] for _ in range(3)]
    conn = await asyncpg.connect(database_url.replace("rookery@", "postgres@"))
    await conn.execute("SET session_replication_role = replica")
    await conn.execute("UPDATE chats SET status = 'waiting', worker_id = NULL, runnable_since = NULL")
    await conn.execute("UPDATE chats SET created_at = now() - interval '40 days' WHERE id = $1", old)
    await conn.execute("UPDATE chat_messages SET created_at = now() - interval '40 days' WHERE chat_id = $1", old)
    await conn.execute("UPDATE chats SET archived = TRUE, archived_at = now() - interval '9 days' WHERE id = $1", gone)
    await conn.close()

    async def affected(**days: int) -> object:
        return (await root.http.get("/api/v1/settings/chats/affected", params=days)).json()

    assert await affected(auto_archive_days=30, retention_days=8) == {"auto_archive": 1, "retention": 1}
    assert await affected(auto_archive_days=50, retention_days=10) == {"auto_archive": 0, "retention": 0}
    assert await affected() == {"auto_archive": 0, "retention": 0}
