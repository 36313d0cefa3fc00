"""The audit log: entries are written once, contain no secrets, and are read in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from rookery.domain.access.rights import Actor, OwnerActor, Role, SystemActor, SystemName, UserActor
from rookery.domain.chat.errors import InvalidInput
from rookery.store.people import audit
from rookery.store.people.audit import EntryFilter, Event, Outcome, RequestInfo
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import person

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ADMIN = UserActor(uuid4(), Role.ADMIN)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def write(world: StoreRig, action: str = "user.update", *, actor: Actor | None = ADMIN, hours: int = 0) -> int:
    event = Event(action=action, resource_type=action.partition(".")[0], resource_id="7")
    return await audit.record(world.conn, event, actor=actor, now=NOW + timedelta(hours=hours))


async def test_entry_is_read_back_as_it_was_written(world: StoreRig) -> None:
    event = Event(
        action="user.update",
        resource_type="user",
        resource_id="42",
        outcome=Outcome.REFUSED,
        diff={"role": ["member", "admin"]},
        extra={"why": "a\0b\ud800"},
    )
    request = RequestInfo(ip="10.0.0.1", user_agent="x", request_id="r")

    await audit.record(world.conn, event, actor=ADMIN, now=NOW, request=request)

    (entry,) = (await audit.list_entries(world.conn)).entries
    assert (entry.at, entry.actor_id, entry.actor_kind, entry.actor_label) == (NOW, ADMIN.id, "user", "admin")
    assert (entry.ip, entry.user_agent, entry.request_id, entry.outcome) == ("10.0.0.1", "x", "r", "refused")
    assert entry.diff == {"role": ["member", "admin"]}
    assert entry.extra == {"why": "a\ufffdb\ufffd"}


@pytest.mark.parametrize(
    ("actor", "told"),
    [
        (None, ("user", "anonymous")),
        (OwnerActor(uuid4()), ("system", "owner")),
        (SystemActor(SystemName.JOBS), ("system", "jobs")),
        (SystemActor(SystemName.CLI), ("cli", "cli")),
    ],
)
async def test_log_tells_what_kind_of_actor_it_was(world: StoreRig, actor: Actor | None, told: tuple[str, str]) -> None:
    await write(world, actor=actor)

    (entry,) = (await audit.list_entries(world.conn)).entries
    assert (entry.actor_kind, entry.actor_label) == told


@pytest.mark.parametrize("statement", ["UPDATE audit_log SET action = 'x'", "DELETE FROM audit_log"])
async def test_entries_are_never_changed_or_removed(world: StoreRig, statement: str) -> None:
    await write(world)

    with pytest.raises(asyncpg.PostgresError) as refused:
        await world.conn.execute(statement)

    assert refused.value.sqlstate == "RK002"


async def test_purge_removes_old_entries_in_batches_and_locks_again(world: StoreRig) -> None:
    for hours in (0, 1, 2, 3):
        await write(world, hours=hours)
    before = NOW + timedelta(hours=3)

    async with world.conn.transaction():
        removed = [await audit.purge_audit(world.conn, before=before, batch=2) for _ in range(3)]
        with pytest.raises(asyncpg.PostgresError):
            async with world.conn.transaction():
                await world.conn.execute("DELETE FROM audit_log")

    assert removed == [2, 1, 0]
    assert await world.conn.fetchval("SELECT count(*) FROM audit_log") == 1


async def test_pages_go_back_in_time_without_gaps(world: StoreRig) -> None:
    written = [await write(world, hours=hours) for hours in range(5)]

    first = await audit.list_entries(world.conn, limit=3)
    await write(world, hours=9)
    second = await audit.list_entries(world.conn, limit=3, cursor=first.next_cursor)

    assert [entry.id for page in (first, second) for entry in page.entries] == written[::-1]
    assert second.next_cursor is None
    early = await audit.list_entries(world.conn, EntryFilter(end=NOW + timedelta(hours=2)))
    assert [entry.id for entry in early.entries] == written[1::-1]
    for wrong in ({"limit": 0}, {"cursor": "?"}):
        with pytest.raises(InvalidInput):
            await audit.list_entries(world.conn, **wrong)


async def test_list_is_filtered(world: StoreRig) -> None:
    update = await write(world, "user.update")
    create = await write(world, "user.create", actor=None, hours=1)
    share = await write(world, "chat.share", hours=2)

    async def found(**wanted: object) -> list[int]:
        page = await audit.list_entries(world.conn, EntryFilter(**wanted))  # type: ignore[arg-type]
        return [entry.id for entry in page.entries]

    assert await found(action="user") == [create, update]
    assert await found(action="user.update") == [update]
    assert await found(action="use") == []
    assert await found(actor_id=ADMIN.id) == [share, update]
    assert await found(resource_type="chat", resource_id="7") == [share]
    assert await found(start=NOW + timedelta(hours=1), end=NOW + timedelta(hours=2)) == [create]


async def test_every_column_of_a_logged_table_has_a_disposition(world: StoreRig) -> None:
    for table, told in audit.DISPOSITIONS.items():
        columns = await world.conn.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = $1 AND table_schema = 'public'",
            table,
        )
        assert set(told) == {record["column_name"] for record in columns}, table


async def test_diff_tells_values_but_no_secrets(world: StoreRig) -> None:
    class Row(msgspec.Struct):
        name: str
        api_key_enc: str
        updated_at: int

    told = audit.diff("model_providers", Row("a", "sealed-1", 1), Row("b", "sealed-2", 2))

    assert told == {"name": ["a", "b"], "api_key_enc": audit.CHANGED}
    user = await person(world.conn, "ada")
    assert audit.diff("users", user, user) == {}
    assert audit.diff("users", None, user)["username"] == [None, "ada"]
