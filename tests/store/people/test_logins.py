"""Logins: the same answer and the same time for every failure, and waits after five failures."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from rookery.store.people import audit, logins, one_time_links, sessions, users
from rookery.store.people.audit import RequestInfo
from rookery.store.people.errors import InvalidCredentials, LinkInvalid, PasswordsBusy, TooManyAttempts
from rookery.store.people.logins import Logins
from rookery.store.people.one_time_links import LinkKind
from rookery.store.people.passwords import Passwords
from rookery.store.people.users import Status, User, UserPatch
from rookery.testing import FakeClock
from tests.eventually import until
from tests.store.people.account_rows import PASSWORD, cheap_passwords, open_pool, person


class LoginRig:
    """A user with a password, and methods to log in."""

    def __init__(self, pool: asyncpg.Pool, checker: Passwords, clock: FakeClock, user: User) -> None:
        self.pool = pool
        self.checker = checker
        self.clock = clock
        self.user = user
        self.logins = Logins(pool, checker, clock=clock)

    async def fail(self, login: str = "ada") -> None:
        with pytest.raises(InvalidCredentials):
            await self.logins.log_in(login, "not the password")

    async def wait(self, login: str = "ada") -> int:
        """Return the time until the next attempt is allowed."""
        with pytest.raises(TooManyAttempts) as refused:
            await self.logins.log_in(login, PASSWORD)
        return refused.value.retry_after_seconds


@pytest.fixture
async def house(database_url: str) -> AsyncIterator[LoginRig]:
    checker = cheap_passwords()
    async with open_pool(database_url) as pool:
        async with pool.acquire() as conn:
            user = await person(conn, "ada", password_hash=await checker.hash(PASSWORD))
        yield LoginRig(pool, checker, FakeClock(), user)
    checker.close()


@pytest.mark.parametrize("login", ["ada", "ADA@example.org"])
async def test_right_password_opens_a_session(house: LoginRig, login: str) -> None:
    done = await house.logins.log_in(login, PASSWORD, request=RequestInfo(ip="10.0.0.1", user_agent="x"))

    found = await sessions.authenticate(house.pool, done.session.cookie, done.session.key, now=house.clock.now())  # type: ignore[arg-type]
    assert (found.user.id, found.session.ip) == (house.user.id, "10.0.0.1")


async def test_every_failure_has_the_same_answer(house: LoginRig) -> None:
    await house.pool.execute("INSERT INTO users (username) VALUES ('invited')")

    for login, password in [("ada", "wrong"), ("nobody", PASSWORD), ("invited", PASSWORD), ("", ""), ("a\0", "\0")]:
        with pytest.raises(InvalidCredentials) as refused:
            await house.logins.log_in(login, password)
        assert str(refused.value) == str(InvalidCredentials())


async def test_disabled_user_cannot_log_in(house: LoginRig) -> None:
    async with house.pool.acquire() as conn:
        await users.update_user(conn, house.user.id, patch=UserPatch(status=Status.DISABLED))

    with pytest.raises(InvalidCredentials):
        await house.logins.log_in("ada", PASSWORD)


async def test_unknown_user_takes_as_long_as_a_wrong_password(house: LoginRig) -> None:
    real = Passwords()
    async with house.pool.acquire() as conn:
        await users.set_password_hash(conn, house.user.id, password_hash=await real.hash(PASSWORD))
    slow = Logins(house.pool, real, clock=house.clock)

    async def seconds(login: str) -> float:
        await house.pool.execute("DELETE FROM login_failures")
        start = time.perf_counter()
        with pytest.raises(InvalidCredentials):
            await slow.log_in(login, "not the password")
        return time.perf_counter() - start

    # The least of each is what they take without the noise of the machine. On a busy one it takes longer to be seen.
    known, unknown, ratio = math.inf, math.inf, math.inf
    for pairs in range(80):
        known = min(known, await seconds("ada"))
        unknown = min(unknown, await seconds("eve"))
        ratio = unknown / known
        if pairs >= 15 and 0.8 <= ratio <= 1.2:
            break
    real.close()

    assert 0.8 <= ratio <= 1.2, (known, unknown)


async def test_waits_grow_after_five_failures(house: LoginRig) -> None:
    for _ in range(5):
        await house.fail()

    waits = []
    for _ in range(8):
        waits.append(await house.wait())
        await house.clock.advance(waits[-1])
        await house.fail()

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_name_without_an_account_waits_like_any_other(house: LoginRig) -> None:
    for _ in range(5):
        await house.fail("nobody")

    assert await house.wait("Nobody ") == 1
    await house.logins.log_in("ada", PASSWORD)


async def test_success_forgets_the_failures(house: LoginRig) -> None:
    for _ in range(4):
        await house.fail()
    await house.logins.log_in("ada", PASSWORD)

    for _ in range(4):
        await house.fail()

    await house.logins.log_in("ada", PASSWORD)


async def test_failures_are_forgotten_after_a_day(house: LoginRig) -> None:
    for _ in range(5):
        await house.fail()
    await house.clock.advance(timedelta(hours=24).total_seconds())

    await house.fail()
    await house.logins.log_in("ada", PASSWORD)


async def test_tries_sent_at_once_are_all_counted(house: LoginRig) -> None:
    outcomes = await asyncio.gather(
        *(house.logins.log_in("ada", f"guess number {n}") for n in range(12)), return_exceptions=True
    )

    assert sum(isinstance(outcome, InvalidCredentials) for outcome in outcomes) == 5
    assert sum(isinstance(outcome, TooManyAttempts) for outcome in outcomes) == 7


async def test_attempt_that_was_not_checked_does_not_count(house: LoginRig) -> None:
    busy = Passwords(memory_kib=64, threads=1, max_waiting=-1)
    for _ in range(6):
        with pytest.raises(PasswordsBusy):
            await Logins(house.pool, busy, clock=house.clock).log_in("ada", PASSWORD)
    busy.close()

    await house.logins.log_in("ada", PASSWORD)


async def test_password_changed_while_it_is_checked_opens_nothing(house: LoginRig) -> None:
    """The account is disabled between the check of the password and the session."""

    class Meddler(Passwords):
        async def verify(self, password: str, stored: str | None) -> bool:
            matches = await super().verify(password, stored)
            await house.pool.execute("UPDATE users SET status = 'disabled'")
            return matches

    meddler = Meddler(memory_kib=64)
    with pytest.raises(InvalidCredentials):
        await Logins(house.pool, meddler, clock=house.clock).log_in("ada", PASSWORD)
    meddler.close()

    assert await house.pool.fetchval("SELECT count(*) FROM sessions") == 0


async def test_login_that_a_new_password_overtakes_opens_nothing(house: LoginRig) -> None:
    """The new password is written but not committed when the login reads the account again."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    hashed = await house.checker.hash("another-lamp-43")
    async with house.pool.acquire() as conn:
        async with conn.transaction():
            await users.set_password_hash(conn, house.user.id, password_hash=hashed)
            await logins.end_credentials(conn, house.user.id)
            login = asyncio.create_task(house.logins.log_in("ada", PASSWORD))
            await until(lambda: house.pool.fetchval(waiting))
        with pytest.raises(InvalidCredentials):
            await login

    assert await house.pool.fetchval("SELECT count(*) FROM sessions") == 0


async def test_password_chosen_by_a_link_is_not_replaced_by_a_change_that_began_before(house: LoginRig) -> None:
    chosen, wanted = "another-lamp-43", "third-lamp-4444"
    async with house.pool.acquire() as conn:
        link = await one_time_links.create_link(conn, house.user.id, kind=LinkKind.RESET, now=house.clock.now())

    class Meddler(Passwords):
        async def hash(self, password: str) -> str:
            hashed = await super().hash(password)
            await house.logins.choose_password(link.secret, chosen)
            return hashed

    meddler = Meddler(memory_kib=64)
    with pytest.raises(InvalidCredentials):
        await Logins(house.pool, meddler, clock=house.clock).change_password(
            house.user, current=PASSWORD, new=wanted, revoke_tokens=False, keep=None
        )
    meddler.close()

    await house.logins.log_in("ada", chosen)


async def test_hash_of_old_settings_is_renewed_at_login(house: LoginRig) -> None:
    stronger = Passwords(memory_kib=128)
    before = await house.pool.fetchval("SELECT password_hash FROM users")

    await Logins(house.pool, stronger, clock=house.clock).log_in("ada", PASSWORD)
    stronger.close()

    after = await house.pool.fetchval("SELECT password_hash FROM users")
    assert "m=64" in before
    assert "m=128" in after
    await house.logins.log_in("ada", PASSWORD)


async def test_logins_and_failures_are_logged_without_what_was_typed(house: LoginRig) -> None:
    await house.logins.log_in("ada", PASSWORD, request=RequestInfo(ip="10.0.0.9", request_id="r1"))
    await house.fail("ada")
    await house.fail("hunter2-typed-here")

    async with house.pool.acquire() as conn:
        page = await audit.list_entries(conn)
    stranger, failed, done = page.entries
    assert (done.action, done.outcome, done.actor_id, done.request_id) == ("auth.log_in", "done", house.user.id, "r1")
    assert (failed.outcome, failed.actor_id, failed.resource_id) == ("refused", None, str(house.user.id))
    assert (stranger.outcome, stranger.resource_id) == ("refused", None)
    assert "hunter2" not in str(await house.pool.fetch("SELECT a::text, f::text FROM audit_log a, login_failures f"))


async def test_changed_password_ends_the_other_sessions(house: LoginRig) -> None:
    kept = (await house.logins.log_in("ada", PASSWORD)).session.session.id
    other = (await house.logins.log_in("ada", PASSWORD)).session.session.id

    ended = await house.logins.change_password(
        house.user, current=PASSWORD, new="another-lamp-43", revoke_tokens=False, keep=kept
    )

    assert (ended.sessions, ended.tokens) == ((other,), ())
    await house.logins.log_in("ada", "another-lamp-43")
    with pytest.raises(InvalidCredentials):
        await house.logins.change_password(
            house.user, current=PASSWORD, new="third-lamp-4444", revoke_tokens=False, keep=None
        )


async def test_wrong_current_passwords_count_like_logins(house: LoginRig) -> None:
    for _ in range(5):
        with pytest.raises(InvalidCredentials):
            await house.logins.change_password(
                house.user, current="no", new="another-lamp-43", revoke_tokens=False, keep=None
            )

    assert await house.wait() == 1


async def test_purge_removes_what_is_forgotten(house: LoginRig) -> None:
    await house.fail()
    async with house.pool.acquire() as conn:
        assert await logins.purge_failures(conn, now=house.clock.now()) == 0
        assert await logins.purge_failures(conn, now=house.clock.now() + logins.FORGOTTEN_AFTER) == 1


async def test_link_chooses_a_password_once(house: LoginRig) -> None:
    now = house.clock.now()
    async with house.pool.acquire() as conn:
        link = await one_time_links.create_link(conn, house.user.id, kind=LinkKind.RESET, now=now)
        hashed = await house.checker.hash("another-lamp-43")

        assert (await one_time_links.find_link(conn, link.secret, now=now)).user.id == house.user.id
        assert await one_time_links.use_link(conn, link.secret, password_hash=hashed, now=now) == house.user.id
        with pytest.raises(LinkInvalid):
            await one_time_links.use_link(conn, link.secret, password_hash=hashed, now=now)
    await house.logins.log_in("ada", "another-lamp-43")


async def test_link_ends_after_a_day_and_with_the_next_one(house: LoginRig) -> None:
    now = house.clock.now()
    async with house.pool.acquire() as conn:
        old = await one_time_links.create_link(conn, house.user.id, kind=LinkKind.INVITE, now=now)
        new = await one_time_links.create_link(conn, house.user.id, kind=LinkKind.RESET, now=now)

        for secret, at in [(old.secret, now), (new.secret, now + timedelta(hours=24)), ("garbage", now)]:
            with pytest.raises(LinkInvalid):
                await one_time_links.find_link(conn, secret, now=at)
            with pytest.raises(LinkInvalid):
                await one_time_links.use_link(conn, secret, password_hash="$argon2id$x", now=at)
        assert await one_time_links.purge_links(conn, now=now + timedelta(hours=24)) == 1


async def test_failures_of_all_spellings_of_a_name_are_counted_together(house: LoginRig) -> None:
    async with house.pool.acquire() as conn:
        await users.update_user(conn, house.user.id, patch=UserPatch(email="\u00e4da@stra\u00dfe.example"))
    spellings = [
        "\u00c4DA@STRASSE.EXAMPLE",
        "a\u0308da@stra\u00dfe.example",
        "\uff41\u0308da@strasse.example",
        "\u00e4da@stra\u1e9ee.example \u3000",
        "\u00e4da@strasse.example",
    ]

    for spelling in spellings:
        await house.fail(spelling)

    assert [await house.wait(spelling) for spelling in spellings] == [1] * len(spellings)


async def test_login_by_another_spelling_does_not_reset_failures_of_another_account(house: LoginRig) -> None:
    hashed = await house.checker.hash(PASSWORD)
    async with house.pool.acquire() as conn:
        other = await person(conn, "other", password_hash=hashed)
        await conn.execute("UPDATE users SET email = $2 WHERE id = $1", other.id, "\uff41da@example.org")
    for _ in range(4):
        await house.fail("ada@example.org")

    done = await house.logins.log_in("\uff41da@example.org", PASSWORD)
    await house.fail("ada@example.org")

    assert done.user.id == other.id
    assert await house.wait("ada@example.org") == 1
