"""The audit log, the replicas and their housekeeping jobs, for administrators and auditors."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest

from rookery.domain.access.rights import Role
from rookery.store.db import job_runs, page_cursors
from rookery.store.db.job_runs import JobOutcome, JobRun
from rookery.store.people import audit
from rookery.store.people.audit import Event
from tests.api.api_rig import ApiRig, Person

PATH = "/api/v1/audit"


@pytest.fixture
async def audrey(rig: ApiRig) -> Person:
    """An auditor."""
    return await rig.add("audrey", role=Role.AUDITOR)


async def write(rig: ApiRig, number: int, *, action: str = "thing.done", who: Person | None = None) -> None:
    async with rig.database.api.acquire() as conn:
        for index in range(number):
            event = Event(action=action, resource_type="thing", resource_id=f"t{index}", diff={"n": [index, index + 1]})
            actor = None if who is None else who.user.actor
            await audit.record(conn, event, actor=actor, now=rig.clock.now())


async def test_member_does_not_see_the_log(rig: ApiRig, ada: Person) -> None:
    assert (await ada.http.get(PATH)).json()["code"] == "forbidden"
    assert (await ada.http.get(PATH, params={"format": "csv"})).json()["code"] == "forbidden"
    assert (await ada.http.get("/api/v1/replicas")).json()["code"] == "forbidden"
    assert (await ada.http.get("/api/v1/jobs")).json()["code"] == "forbidden"


async def test_log_is_paged_newest_first(rig: ApiRig, audrey: Person) -> None:
    await write(rig, 5)

    seen: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params = {"action": "thing.done", "limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await audrey.http.get(PATH, params=params)).json()
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert [entry["resource_id"] for entry in seen] == ["t4", "t3", "t2", "t1", "t0"]
    assert seen[0]["diff"] == {"n": [4, 5]}
    assert seen[0]["outcome"] == "done"


async def test_log_is_filtered_by_actor_action_resource_and_time(rig: ApiRig, audrey: Person, ada: Person) -> None:
    await write(rig, 1, who=ada)
    await write(rig, 1, action="other.done")

    async def found(**params: str) -> list[str]:
        answered = await audrey.http.get(PATH, params=params)
        assert answered.status_code == 200, answered.text
        return [entry["action"] for entry in answered.json()["items"]]

    assert await found(actor=str(ada.id)) == ["thing.done"]
    assert await found(action="other") == ["other.done"]
    assert await found(resource_type="thing") == ["other.done", "thing.done"]
    assert await found(resource_type="thing", resource_id="t1") == []
    assert await found(**{"from": "2999-01-01"}) == []
    assert await found(to="2000-01-01T00:00:00Z") == []


BAD_FILTERS: tuple[dict[str, str], ...] = (
    {"limit": "0"},
    {"limit": "201"},
    {"cursor": "nonsense"},
    {"cursor": page_cursors.encode(2**64 - 1)},
    {"action": "a\0b"},
    {"resource_id": "\0"},
    {"actor": "ada"},
    {"to": "9999-12-31T23:59:59-14:00"},
)


async def test_bad_filter_is_refused_by_name(rig: ApiRig, audrey: Person) -> None:
    for params in BAD_FILTERS:
        found = await audrey.http.get(PATH, params=params)

        assert found.status_code == 400, found.text
        assert [each["field"] for each in found.json()["fields"]] == list(params)


async def test_csv_is_the_whole_log(rig: ApiRig, audrey: Person) -> None:
    await write(rig, 401)

    found = await audrey.http.get(PATH, params={"action": "thing", "format": "csv"})

    assert found.headers["content-type"].startswith("text/csv")
    header, *rows = csv.reader(io.StringIO(found.text))
    assert header == list(audit.Entry.__struct_fields__)
    assert len(rows) == 401
    assert rows[0][header.index("diff")] == '{"n":[400,401]}'


async def test_replicas_are_listed_with_what_they_do(rig: ApiRig, audrey: Person) -> None:
    (found,) = (await audrey.http.get("/api/v1/replicas")).json()["items"]

    assert (found["id"], found["state"]) == (str(rig.replica.id), "alive")
    assert (found["owned_chats"], found["streams"]) == (0, 0)


async def test_jobs_are_listed_with_their_last_runs(rig: ApiRig, audrey: Person) -> None:
    at = rig.clock.now()
    async with rig.database.api.acquire() as conn:
        for job, number, error in (("sweep_b", 3, None), ("sweep_a", 0, None), ("sweep_b", 0, "The disk is full.")):
            outcome = JobOutcome.DONE if error is None else JobOutcome.FAILED
            end = at + timedelta(seconds=2)
            run = JobRun(job, rig.replica.id, at, end, outcome, removed=number, skipped=1, error=error)
            await job_runs.record_run(conn, run)

    found = (await audrey.http.get("/api/v1/jobs")).json()["items"]

    mine = [job for job in found if job["name"].startswith("sweep")]
    assert [job["name"] for job in mine] == ["sweep_a", "sweep_b"]
    failed, done = mine[1]["runs"]
    assert (failed["outcome"], failed["error"], failed["removed"]) == ("failed", "The disk is full.", 0)
    assert (done["outcome"], done["error"], done["removed"], done["skipped"]) == ("done", None, 3, 1)
    assert done["replica_id"] == str(rig.replica.id)
    assert done["started_at"] < done["finished_at"]


async def test_version_says_what_the_server_speaks(rig: ApiRig, ada: Person) -> None:
    found = (await ada.http.get("/api/v1/version")).json()

    assert (found["api"], found["stream_protocol"], found["commit"]) == (1, 1, None)
    assert found["schema"] >= 4
