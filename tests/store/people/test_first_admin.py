"""The first administrator: one setup token, which works once."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from rookery.domain.access.rights import Role
from rookery.domain.chat.errors import InvalidInput
from rookery.store.people import first_admin, sessions, users
from rookery.store.people.errors import AlreadySetUp, WrongSetupToken
from rookery.store.people.passwords import Passwords
from rookery.store.people.users import UserDraft, ensure_operator
from rookery.testing import FakeClock
from tests.store.people.account_rows import PASSWORD, cheap_passwords, open_pool


class FirstRun:
    def __init__(self, pool: asyncpg.Pool, checker: Passwords, data_dir: Path) -> None:
        self.pool = pool
        self.checker = checker
        self.data_dir = data_dir
        self.clock = FakeClock()

    async def token(self, data_dir: Path | None = None, *, configured: str | None = None) -> str | None:
        async with self.pool.acquire() as conn:
            return await first_admin.ensure_token(
                conn, data_dir or self.data_dir, now=self.clock.now(), configured=configured
            )

    async def complete(
        self, token: str | None, email: str = "ada@example.org", password: str = PASSWORD
    ) -> first_admin.SetUp:
        return await first_admin.complete(
            self.pool,
            self.checker,
            token=token or "",
            draft=UserDraft(email=email),
            password=password,
            clock=self.clock,
        )


@pytest.fixture
async def first_run(database_url: str, tmp_path: Path) -> AsyncIterator[FirstRun]:
    checker = cheap_passwords()
    async with open_pool(database_url) as pool:
        yield FirstRun(pool, checker, tmp_path)
    checker.close()


async def test_holder_of_the_token_becomes_the_administrator(first_run: FirstRun) -> None:
    token = await first_run.token()

    done = await first_run.complete(token)

    assert (done.user.role, done.user.username) == (Role.ADMIN, "ada")
    async with first_run.pool.acquire() as conn:
        assert not await first_admin.is_setup_needed(conn)
        found = await sessions.authenticate(conn, done.session.cookie, done.session.key, now=first_run.clock.now())
    assert found.user.id == done.user.id


async def test_token_lies_in_the_data_directory_for_its_owner_only(first_run: FirstRun) -> None:
    token = await first_run.token()

    path = first_run.data_dir / first_admin.TOKEN_FILE
    assert path.read_text().strip() == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in first_run.data_dir.iterdir()] == [first_admin.TOKEN_FILE]
    assert str(token) not in str(await first_run.pool.fetchval("SELECT t::text FROM setup_tokens t"))


async def test_replicas_of_one_directory_agree_on_a_token(first_run: FirstRun) -> None:
    made = await asyncio.gather(*(first_run.token() for _ in range(5)))

    assert len(set(made)) == 1


async def test_each_directory_has_a_token_and_any_of_them_will_do(first_run: FirstRun, tmp_path: Path) -> None:
    other_dir = tmp_path / "other"
    other_dir.mkdir()
    first, second = await first_run.token(), await first_run.token(other_dir)

    assert first != second
    await first_run.complete(first)
    with pytest.raises(AlreadySetUp):
        await first_run.complete(second)


async def test_configured_token_wins_and_needs_no_file(first_run: FirstRun) -> None:
    assert await first_run.token(configured="from the settings") == "from the settings"

    assert list(first_run.data_dir.iterdir()) == []
    await first_run.complete("from the settings")


async def test_wrong_token_is_refused_before_anything_is_hashed(first_run: FirstRun) -> None:
    await first_run.token()
    first_run.checker.close()  # hashing would raise

    for wrong in ("", "guess", "\ud800"):
        with pytest.raises(WrongSetupToken):
            await first_run.complete(wrong)


async def test_weak_password_leaves_setup_open(first_run: FirstRun) -> None:
    token = await first_run.token()

    with pytest.raises(InvalidInput):
        await first_run.complete(token, password="password123")

    await first_run.complete(token)


async def test_of_two_at_once_one_is_set_up(first_run: FirstRun) -> None:
    token = await first_run.token()

    outcomes = await asyncio.gather(
        first_run.complete(token, "a@example.org"), first_run.complete(token, "b@example.org"), return_exceptions=True
    )

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AlreadySetUp", "SetUp"]
    assert await first_run.pool.fetchval("SELECT count(*) FROM users") == 1


async def test_token_and_file_end_with_the_first_administrator(first_run: FirstRun) -> None:
    token = await first_run.token()
    async with first_run.pool.acquire() as conn:
        await users.create_user(conn, UserDraft(email="cli@example.org", role=Role.ADMIN))

    assert await first_run.token() is None
    assert list(first_run.data_dir.iterdir()) == []
    with pytest.raises(AlreadySetUp):
        await first_run.complete(token)


async def test_empty_file_is_replaced(first_run: FirstRun) -> None:
    (first_run.data_dir / first_admin.TOKEN_FILE).write_text("")

    assert await first_run.token()


async def test_operator_of_the_machine_does_not_stand_in_the_way(first_run: FirstRun) -> None:
    async with first_run.pool.acquire() as conn:
        await ensure_operator(conn)
        assert await first_admin.is_setup_needed(conn)

    done = await first_run.complete(await first_run.token())

    assert done.user.role is Role.ADMIN
