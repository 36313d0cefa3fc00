"""The cost of chats, the user's own spending, and reports for all users."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import Role, Scope
from rookery.domain.chat.messages import ChatId
from rookery.store.models import usage_ledger
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource
from tests.api.api_rig import ApiRig, Person

MODEL = "fake-1"


async def record(rig: ApiRig, owner: UUID, *, chat_id: UUID | None = None, **fields: Any) -> None:
    given: dict[str, Any] = {
        "purpose": "turn",
        "provider_id": uuid4(),
        "model_config_id": None,
        "model": MODEL,
        "key_source": KeySource.CENTRAL,
        "status": CallStatus.OK,
        "input_tokens": 10,
        "output_tokens": 5,
        "cost_micros": 100,
        "runtime_ms": 7,
        **fields,
    }
    chat = None if chat_id is None else ChatId(chat_id)
    async with rig.database.api.acquire() as conn:
        await usage_ledger.record_call(conn, Entry(owner_id=owner, chat_id=chat, **given))


@pytest.fixture
async def root(rig: ApiRig) -> Person:
    """An administrator."""
    return await rig.add("chief", role=Role.ADMIN)


async def make_chat(rig: ApiRig, person: Person) -> UUID:
    await rig.add_model()
    made = await person.http.post("/api/v1/chats", json={"content": [{"type": "text", "text": "hello"}]})
    assert made.status_code == 201, made.text
    return UUID(made.json()["id"])


async def test_chat_without_calls_costs_nothing(rig: ApiRig, ada: Person) -> None:
    chat = await make_chat(rig, ada)

    found = await ada.http.get(f"/api/v1/chats/{chat}/cost")

    assert found.json() == {
        "total_cost_micros": 0,
        "request_count": 0,
        "unpriced_request_count": 0,
        "tokens": {"input": 0, "cache_read": 0, "cache_write": 0, "output": 0, "reasoning": 0},
        "runtime_ms": 0,
        "by_model": {},
        "by_chat": {},
        "by_purpose": {},
    }


async def test_cost_of_a_chat_is_summed_by_model_chat_and_purpose(rig: ApiRig, ada: Person, ben: Person) -> None:
    chat = await make_chat(rig, ada)
    await record(rig, ada.id, chat_id=chat)
    await record(rig, ada.id, chat_id=chat, model="fake-2", cost_micros=None, purpose="title")

    found = (await ada.http.get(f"/api/v1/chats/{chat}/cost")).json()

    assert (found["total_cost_micros"], found["request_count"], found["unpriced_request_count"]) == (100, 2, 1)
    assert found["tokens"]["input"] == 20
    assert set(found["by_model"]) == {MODEL, "fake-2"}
    assert found["by_chat"][str(chat)]["cost_micros"] == 100
    assert {key: each["cost_micros"] for key, each in found["by_purpose"].items()} == {"turn": 100, "title": 0}
    assert (await ben.http.get(f"/api/v1/chats/{chat}/cost")).json()["code"] == "chat_not_found"


async def test_spend_is_of_the_period_and_without_keys_of_ones_own(rig: ApiRig, root: Person, ada: Person) -> None:
    await record(rig, ada.id)
    await record(rig, ada.id, key_source=KeySource.USER, cost_micros=900)

    free = (await ada.http.get("/api/v1/me/spend")).json()
    await root.http.put("/api/v1/settings/spend", json={"enabled": True, "default_limit_micros": 50, "period": "day"})
    bound = (await ada.http.get("/api/v1/me/spend")).json()

    assert (free["spent_micros"], free["limit_micros"]) == (100, None)
    assert (bound["spent_micros"], bound["limit_micros"]) == (100, 50)
    start, end = (datetime.fromisoformat(bound["period"][each]) for each in ("start", "end"))
    assert end - start == timedelta(days=1)
    assert start.tzinfo is not None


async def test_member_sees_own_usage_and_administrators_everybodys(
    rig: ApiRig, root: Person, ada: Person, ben: Person
) -> None:
    await record(rig, ada.id)
    await record(rig, ben.id, cost_micros=1)

    own = (await ada.http.get("/api/v1/usage", params={"group_by": "user"})).json()["items"]
    others = await ada.http.get("/api/v1/usage", params={"user": str(ben.id)})
    every = (await root.http.get("/api/v1/usage", params={"group_by": "user"})).json()["items"]
    one = (await root.http.get("/api/v1/usage", params={"group_by": "user", "user": str(ben.id)})).json()["items"]

    assert [(row["key"], row["name"], row["cost_micros"]) for row in own] == [(str(ada.id), "ada", 100)]
    assert others.status_code == 404
    assert {row["name"]: row["cost_micros"] for row in every} == {"ada": 100, "ben": 1}
    assert [row["name"] for row in one] == ["ben"]


@pytest.mark.parametrize("group_by", ["user", "model", "provider", "day", "purpose", "chat"])
async def test_usage_is_grouped_by_each_key_there_is(rig: ApiRig, ada: Person, group_by: str) -> None:
    await record(rig, ada.id)

    (row,) = (await ada.http.get("/api/v1/usage", params={"group_by": group_by})).json()["items"]

    assert row["request_count"] == 1
    if group_by == "day":
        assert row["key"] == datetime.now(UTC).date().isoformat()


async def test_usage_by_chat_has_the_titles_of_ones_own_chats_and_the_most_expensive_first(
    rig: ApiRig, root: Person, ada: Person
) -> None:
    cheap = await make_chat(rig, ada)
    made = await ada.http.post("/api/v1/chats", json={"content": [{"type": "text", "text": "hello"}]})
    dear = UUID(made.json()["id"])
    await ada.http.patch(f"/api/v1/chats/{dear}", json={"title": "A dear chat"})
    await record(rig, ada.id, chat_id=cheap)
    for _ in range(3):
        await record(rig, ada.id, chat_id=dear)
    await record(rig, ada.id, cost_micros=1)

    own, all_users = [
        (await each.http.get("/api/v1/usage", params={"group_by": "chat"})).json()["items"] for each in (ada, root)
    ]

    assert [(row["key"], row["cost_micros"]) for row in own] == [(str(dear), 300), (str(cheap), 100), ("", 1)]
    assert (own[0]["name"], own[2]["name"]) == ("A dear chat", None)
    assert [(row["key"], row["name"]) for row in all_users] == [(row["key"], None) for row in own]


async def test_usage_is_of_the_time_that_is_asked_for(rig: ApiRig, ada: Person) -> None:
    old = datetime(2026, 1, 10, 12, tzinfo=UTC)
    await record(rig, ada.id, at=old)

    within = await ada.http.get("/api/v1/usage", params={"from": "2026-01-10", "to": "2026-01-11T00:00:00+00:00"})
    after = await ada.http.get(
        "/api/v1/usage", params={"from": "2026-01-10T13:00:00+01:01", "to": "2026-01-10T12:00:00Z"}
    )

    assert [row["key"] for row in within.json()["items"]] == ["2026-01-10"]
    assert within.json()["from"] == "2026-01-10T00:00:00Z"
    assert after.json()["items"] == []


BAD_REPORTS: tuple[dict[str, str], ...] = (
    {"from": "2025-01-01", "to": "2026-01-03"},
    {"from": "2026-01-02", "to": "2026-01-01"},
    {"from": "0001-01-01T00:00:00+14:00"},
    {"from": "yesterday"},
    {"group_by": "colour"},
    {"format": "xml"},
    {"colour": "red"},
    {"user": "ada"},
)


async def test_report_that_cannot_be_made_is_refused_by_parameter(rig: ApiRig, ada: Person) -> None:
    for params in BAD_REPORTS:
        found = await ada.http.get("/api/v1/usage", params=params)

        assert found.status_code == 400, found.text
        assert found.json()["fields"][0]["field"] in {"from", "to", "group_by", "format", "colour", "user"}


async def test_csv_has_the_columns_as_its_header_and_no_formulas(rig: ApiRig, ada: Person) -> None:
    await record(rig, ada.id, model='=cmd|"x"')

    found = await ada.http.get("/api/v1/usage", params={"group_by": "model", "format": "csv"})

    assert found.headers["content-type"].startswith("text/csv")
    header, row = csv.reader(io.StringIO(found.text))
    assert header[:3] == ["model", "name", "cost_micros"]
    assert row[:3] == ['\'=cmd|"x"', "", "100"]


async def test_token_for_usage_reads_reports_and_nothing_else(rig: ApiRig, ada: Person) -> None:
    reader = rig.client(await rig.token_of(ada.user, scopes=frozenset({Scope.USAGE_READ})))

    assert (await reader.get("/api/v1/usage")).status_code == 200
    assert (await reader.get("/api/v1/models")).json()["code"] == "scope"
