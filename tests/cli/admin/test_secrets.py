"""`rookery admin rotate-secrets`: every value is sealed again, none is lost, and the output reports it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from rookery.domain.models.options import ProviderType
from rookery.models import key_ring
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.store.models import key_rotation, providers, user_keys
from rookery.store.models.providers import ProviderDraft
from tests.cli.serve.server_process import rookery
from tests.eventually import until
from tests.store.models.provider_rows import ModelRows, open_nest

OLD, NEW = new_key("old"), new_key("new")
BEFORE, BOTH, AFTER = KeyRing.parse(OLD), KeyRing.parse(f"{NEW},{OLD}"), KeyRing.parse(NEW)
CENTRAL, OWN = "central-key-0123", "own-key-012345"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as opened:
        yield opened


async def fill(rows: ModelRows, *, ring: KeyRing = BEFORE) -> tuple[UUID, UUID]:
    """Create a provider with a central key and a user key, and the mark of a server. Return the ids."""
    assert await key_ring.check_ring(rows.conn, ring)
    draft = ProviderDraft(type=ProviderType.ANTHROPIC, name="a", api_key=SecretStr(CENTRAL), allow_user_key=True)
    provider = await providers.create_provider(rows.conn, draft, ring=ring)
    user = await rows.user()
    await user_keys.put_user_key(rows.conn, user, provider_id=provider.id, api_key=SecretStr(OWN), ring=ring)
    return provider.id, user


async def opened(rows: ModelRows, ring: KeyRing, provider_id: UUID, user_id: UUID) -> list[SecretStr | None]:
    """Return both keys, opened with this ring."""
    central = (await providers.get_provider(rows.conn, provider_id)).api_key_enc
    own = (await user_keys.user_keys(rows.conn, user_id)).get(provider_id)
    assert central is not None
    assert own is not None
    row_id = user_keys.row_id(user_id, provider_id)
    return [
        ring.open(central, table=providers.TABLE, row_id=str(provider_id), column=providers.COLUMN),
        ring.open(own, table=user_keys.TABLE, row_id=row_id, column=user_keys.COLUMN),
    ]


async def is_blocked(watcher: asyncpg.Connection) -> bool:
    return bool(await watcher.fetchval(BLOCKED))


async def rotate(home: Path, url: str, *arguments: str, ring: str | None) -> subprocess.CompletedProcess[str]:
    variables = {} if ring is None else {"ROOKERY_SECRET_KEYS": ring}
    command = ("admin", "rotate-secrets", "--database-url", url, *arguments)
    return await asyncio.to_thread(rookery, home, *command, **variables)


@pytest.mark.parametrize("flags", [(), ("--full",)])
async def test_every_value_gets_under_the_active_key_and_the_old_one_may_go(
    rows: ModelRows, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    provider_id, user_id = await fill(rows)

    done = await rotate(tmp_path, rows.url, *flags, ring=f"{NEW},{OLD}")

    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            # The mark is sealed again when the ring is checked. Counted are the keys, and with --full also the mark.
            f"{3 if flags else 2} value(s) sealed again with key new.",
            "key  values  role",
            "new       3  active",
            "old       0  opens only",
            "No value is under old any more. Remove it once every server runs with this ring.",
        ],
    )
    assert await opened(rows, AFTER, provider_id, user_id) == [SecretStr(CENTRAL), SecretStr(OWN)]
    assert await key_ring.check_ring(rows.conn, AFTER)


async def test_second_rotation_has_nothing_to_do(rows: ModelRows, tmp_path: Path) -> None:
    await fill(rows)
    await rotate(tmp_path, rows.url, ring=f"{NEW},{OLD}")

    again = await rotate(tmp_path, rows.url, "--json", ring=NEW)

    assert again.returncode == 0
    assert json.loads(again.stdout) == {
        "active": "new",
        "keys": [{"id": "new", "values": 3, "role": "active"}],
        "removable": [],
        "rewrapped": 0,
        "unreadable": 0,
    }


async def test_status_counts_and_changes_nothing(rows: ModelRows, tmp_path: Path) -> None:
    provider_id, user_id = await fill(rows)

    done = await rotate(tmp_path, rows.url, "--status", ring=f"{NEW},{OLD}")

    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "key  values  role",
            "new       0  active",
            "old       3  opens only",
            "`rookery admin rotate-secrets` seals them all with the active key.",
        ],
    )
    assert await opened(rows, BEFORE, provider_id, user_id) == [SecretStr(CENTRAL), SecretStr(OWN)]
    assert await key_ring.check_ring(rows.conn, BEFORE)


async def test_status_names_the_key_that_a_wrong_ring_lacks(rows: ModelRows, tmp_path: Path) -> None:
    await fill(rows)

    done = await rotate(tmp_path, rows.url, "--status", ring=NEW)

    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == ["new       0  active", "old       3  not in the ring"]
    assert "Not in the ring: old." in done.stderr


async def test_wrong_ring_is_refused_before_anything_is_written(rows: ModelRows, tmp_path: Path) -> None:
    provider_id, user_id = await fill(rows)

    done = await rotate(tmp_path, rows.url, ring=NEW)

    assert (done.returncode, done.stdout) == (2, "")
    assert "This ring did not seal the keys in the database." in done.stderr
    assert await opened(rows, BEFORE, provider_id, user_id) == [SecretStr(CENTRAL), SecretStr(OWN)]


async def test_external_database_without_a_ring_is_a_wrong_setting(rows: ModelRows, tmp_path: Path) -> None:
    done = await rotate(tmp_path, rows.url, ring=None)

    assert done.returncode == 2
    assert "Set ROOKERY_SECRET_KEYS" in done.stderr


async def test_lost_key_file_is_not_replaced_by_a_fresh_one(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    arguments = ("--data-dir", str(data_dir))
    assert (await asyncio.to_thread(rookery, tmp_path, "admin", "migrate", *arguments)).returncode == 0

    done = await asyncio.to_thread(rookery, tmp_path, "admin", "rotate-secrets", "--status", *arguments)

    assert done.returncode == 2
    assert "restore it from a backup" in done.stderr
    assert not (data_dir / key_ring.KEY_FILE).exists()


async def test_value_that_does_not_open_is_kept_and_fails_the_command(rows: ModelRows, tmp_path: Path) -> None:
    provider_id, user_id = await fill(rows)
    foreign = KeyRing.parse(new_key("gone")).seal(
        CENTRAL, table=providers.TABLE, row_id=str(provider_id), column=providers.COLUMN
    )
    await rows.conn.execute("UPDATE model_providers SET api_key_enc = $1", foreign)

    done = await rotate(tmp_path, rows.url, ring=f"{NEW},{OLD}")

    assert done.returncode == 1
    assert "gone       1  not in the ring" in done.stdout
    assert "1 value(s) cannot be opened with this ring" in done.stderr
    assert (await providers.get_provider(rows.conn, provider_id)).api_key_enc == foreign
    assert (await opened(rows, AFTER, provider_id, user_id))[1] == SecretStr(OWN)


async def test_key_saved_in_the_middle_of_a_rotation_wins(rows: ModelRows) -> None:
    provider_id, user_id = await fill(rows)
    saved = AFTER.seal("saved-meanwhile", table=providers.TABLE, row_id=str(provider_id), column=providers.COLUMN)

    async with rows.connection() as server, rows.connection() as watcher:
        saving = server.transaction()
        await saving.start()
        await server.execute("UPDATE model_providers SET api_key_enc = $1", saved)
        rotating = asyncio.create_task(key_rotation.rotate(rows.conn, BOTH))
        await until(lambda: is_blocked(watcher))
        await saving.commit()
        done = await rotating

    assert done.by_key_id == {"new": 3}
    assert (await opened(rows, AFTER, provider_id, user_id))[0] == SecretStr("saved-meanwhile")


async def test_interrupted_rotation_leaves_every_value_readable_and_can_be_finished(
    rows: ModelRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider_id, _ = await fill(rows)
    monkeypatch.setattr(key_rotation, "BATCH", 2)
    users = [await rows.user() for _ in range(5)]
    for user in users:
        await user_keys.put_user_key(rows.conn, user, provider_id=provider_id, api_key=SecretStr(OWN), ring=BEFORE)

    def stop_in_the_middle(seen: int) -> None:
        if seen >= 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await key_rotation.rotate(rows.conn, BOTH, on_batch=stop_in_the_middle)

    between = await key_rotation.count_by_key_id(rows.conn, BOTH)
    assert between == {"new": 3, "old": 5}
    for user in users:
        assert await opened(rows, BOTH, provider_id, user) == [SecretStr(CENTRAL), SecretStr(OWN)]
    assert (await key_rotation.rotate(rows.conn, BOTH)).by_key_id == {"new": 8}


async def test_value_that_an_old_server_seals_behind_the_pass_is_counted(rows: ModelRows) -> None:
    provider_id, user_id = await fill(rows)
    row_id = user_keys.row_id(user_id, provider_id)
    late = BEFORE.seal("late-key-123", table=user_keys.TABLE, row_id=row_id, column=user_keys.COLUMN)

    async with rows.connection() as server, rows.connection() as watcher:
        # The settings come last: a lock on them stops the rotation after the user keys.
        async with server.transaction():
            await server.execute("SELECT FROM settings FOR UPDATE")
            rotating = asyncio.create_task(key_rotation.rotate(rows.conn, BOTH))
            await until(lambda: is_blocked(watcher))
            await watcher.execute("UPDATE user_provider_keys SET key_enc = $1", late)
        done = await rotating

    assert (done.by_key_id, done.rewrapped, done.unreadable) == ({"new": 2, "old": 1}, 3, 0)
