"""Logging in: failures are counted in the database, and after five of them each further try has to wait.

Counted by what was typed, not by account, and before the password is looked at: an account that does not exist
behaves like one that does, tries sent all at once do not slip through, and who is locked out of one of an account's
two names by a stranger still has the other. Whatever fails, the answer is the same and takes the same time.
"""

from __future__ import annotations

import hashlib
import math
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.access.account_names import normal_name
from rookery.runtime.clock import Clock
from rookery.store.db.pool import Connection
from rookery.store.people import audit, one_time_links, passwords, sessions, tokens, users
from rookery.store.people.audit import NO_REQUEST, Event, Outcome, RequestInfo
from rookery.store.people.errors import InvalidCredentials, PasswordsBusy, TooManyAttempts
from rookery.store.people.passwords import Passwords
from rookery.store.people.sessions import NewSession
from rookery.store.people.users import User

FREE_FAILURES = 5
# Chosen: long enough that guessing ends, short enough that a stranger cannot keep anybody out for long.
MAX_DELAY_SECONDS = 60
FORGOTTEN_AFTER = timedelta(hours=24)
MAX_LOGIN_CHARS = 320

# Counts the try unless the name has to wait; then no row comes back. The wait doubles from 1 s on.
BEGIN = f"""
    INSERT INTO login_failures AS f (login_hash, failures, last_at, blocked_until)
    VALUES ($1, 1, $2, $2)
    ON CONFLICT (login_hash) DO UPDATE
       SET failures = CASE WHEN f.last_at <= $3 THEN 1 ELSE f.failures + 1 END,
           last_at = $2,
           blocked_until = CASE
             WHEN f.last_at <= $3 OR f.failures + 1 < {FREE_FAILURES} THEN $2
             ELSE $2 + make_interval(secs => least(power(2, least(f.failures + 1 - {FREE_FAILURES}, 20)),
                                                   {MAX_DELAY_SECONDS}))
           END
     WHERE f.blocked_until <= $2
    RETURNING f.failures
"""
BLOCKED_UNTIL = "SELECT blocked_until FROM login_failures WHERE login_hash = $1"
FORGET = "DELETE FROM login_failures WHERE login_hash = $1"
# A try that was never judged, or that was right and says nothing about those before it.
UNCOUNT = """
    UPDATE login_failures SET failures = greatest(failures - 1, 0), blocked_until = last_at WHERE login_hash = $1
"""
PURGE = "DELETE FROM login_failures WHERE last_at <= $1"


class LoggedIn(msgspec.Struct, frozen=True):
    user: User
    session: NewSession


class Ended(msgspec.Struct, frozen=True):
    """The credentials that ended with a password: ids, for `AccessHint`s."""

    sessions: tuple[UUID, ...]
    tokens: tuple[UUID, ...]


class Logins:
    """One per process. Connections are given back while a password is being hashed."""

    def __init__(self, pool: asyncpg.Pool, checker: Passwords, *, clock: Clock) -> None:
        self._pool = pool
        self._passwords = checker
        self._clock = clock

    async def log_in(
        self, login: str, password: str, *, stays: bool = True, request: RequestInfo = NO_REQUEST
    ) -> LoggedIn:
        """Open a session. Raises `InvalidCredentials` whatever is wrong, `TooManyAttempts` or `PasswordsBusy`.

        `stays`: the cookie outlives the browser.
        """
        name = login[:MAX_LOGIN_CHARS]
        now = self._clock.now()
        async with self._pool.acquire() as conn:
            await begin_attempt(conn, name, now=now)
            found = await users.find_by_login(conn, name)
        user, stored = found if found is not None else (None, None)
        usable = stored if user is not None and user.is_active else None
        matches = await self._matches(name, password, usable)
        if not matches or user is None or stored is None:
            await self._log_refusal(user, request)
            raise InvalidCredentials
        return await self._open(name, password, user, stored=stored, stays=stays, request=request)

    async def change_password(
        self,
        user: User,
        *,
        current: str,
        new: str,
        revoke_tokens: bool,
        keep: UUID | None,
        request: RequestInfo = NO_REQUEST,
    ) -> Ended:
        """Replace one's own password. The other sessions end, and with `revoke_tokens` all API tokens.

        `keep` is the session or token that this was asked with: it goes on. Wrong guesses count like failed logins:
        somebody at an open screen has no more tries than a stranger.
        """
        passwords.check(new, names=_names(user), field="new_password")
        async with self._pool.acquire() as conn:
            await begin_attempt(conn, user.username, now=self._clock.now())
            stored = await users.find_password_hash(conn, user.id)
        if not await self._matches(user.username, current, stored):
            await self._log_refusal(user, request)
            raise InvalidCredentials
        hashed = await self._passwords.hash(new)
        async with self._pool.acquire() as conn, conn.transaction():
            await users.lock_user(conn, user.id)
            # While the new password was hashed, a one-time link may have replaced the old one.
            if await users.find_password_hash(conn, user.id) != stored:
                raise InvalidCredentials
            await forget_attempts(conn, user.username)
            await users.set_password_hash(conn, user.id, password_hash=hashed)
            ended = await end_credentials(conn, user.id, but=keep, with_tokens=revoke_tokens)
            event = _event("user.change_password", user, ended=ended)
            await audit.record(conn, event, actor=user.actor, now=self._clock.now(), request=request)
            return ended

    async def choose_password(self, secret: str, password: str, *, request: RequestInfo = NO_REQUEST) -> LoggedIn:
        """Use a one-time link: the password is replaced, all sessions and API tokens end, and who holds the link is
        logged in.

        Raises `LinkInvalid`, or `InvalidInput` for a password that is not taken; the link stays good then.
        """
        async with self._pool.acquire() as conn:
            user = (await one_time_links.find_link(conn, secret, now=self._clock.now())).user
        passwords.check(password, names=_names(user))
        hashed = await self._passwords.hash(password)
        now = self._clock.now()
        async with self._pool.acquire() as conn, conn.transaction():
            # Once more: the account may have been disabled while the password was hashed.
            user = (await one_time_links.find_link(conn, secret, now=now)).user
            await one_time_links.use_link(conn, secret, password_hash=hashed, now=now)
            ended = await end_credentials(conn, user.id)
            for name in _names(user):
                await forget_attempts(conn, name)
            session = await sessions.create_session(
                conn, user.id, now=now, ip=request.ip, user_agent=request.user_agent
            )
            event = _event("user.choose_password", user, ended=ended)
            await audit.record(conn, event, actor=user.actor, now=now, request=request)
        return LoggedIn(user, session)

    async def _matches(self, name: str, password: str, stored: str | None) -> bool:
        try:
            return await self._passwords.verify(password[: passwords.MAX_CHARS + 1], stored)
        except PasswordsBusy:
            async with self._pool.acquire() as conn:
                await conn.execute(UNCOUNT, login_hash(name))
            raise

    async def _log_refusal(self, user: User | None, request: RequestInfo) -> None:
        # What was typed is not written down: it may be a password in the wrong field.
        event = _event("auth.log_in", user, outcome=Outcome.REFUSED)
        async with self._pool.acquire() as conn:
            await audit.record(conn, event, actor=None, now=self._clock.now(), request=request)

    async def _open(
        self, name: str, password: str, user: User, *, stored: str, stays: bool, request: RequestInfo
    ) -> LoggedIn:
        renewed = await self._passwords.hash(password) if self._passwords.needs_rehash(stored) else None
        now = self._clock.now()
        async with self._pool.acquire() as conn, conn.transaction():
            # While the password was checked somebody may have disabled the account or changed the password. The lock
            # waits for a change that is under way: it ends only the sessions that it sees.
            await users.lock_user(conn, user.id)
            current = await users.find_by_login(conn, name)
            if current is None or current[0].id != user.id or not current[0].is_active or current[1] != stored:
                raise InvalidCredentials
            if renewed is not None:
                await users.set_password_hash(conn, user.id, password_hash=renewed)
            if normal_name(name) in _names(user):
                await forget_attempts(conn, name)
            else:
                # The normal form may be another's name, and what failed under it counts on.
                await conn.execute(UNCOUNT, login_hash(name))
            session = await sessions.create_session(
                conn, user.id, now=now, ip=request.ip, user_agent=request.user_agent, stays=stays
            )
            await audit.record(conn, _event("auth.log_in", user), actor=user.actor, now=now, request=request)
        return LoggedIn(user, session)


async def end_credentials(
    conn: Connection, user_id: UUID, *, but: UUID | None = None, with_tokens: bool = True
) -> Ended:
    """End what a user logged in with, but perhaps one session or token."""
    # A credential that is being made at this moment is either seen and ended here, or refused after this.
    await users.lock_user(conn, user_id)
    ended = await sessions.end_sessions(conn, user_id, but=but)
    deleted = await tokens.delete_tokens(conn, user_id, but=but) if with_tokens else []
    return Ended(tuple(ended), tuple(deleted))


async def begin_attempt(conn: Connection, login: str, *, now: datetime) -> None:
    """Count a try before it is judged, or raise `TooManyAttempts`."""
    key = login_hash(login)
    if await conn.fetchval(BEGIN, key, now, now - FORGOTTEN_AFTER) is not None:
        return
    blocked_until = await conn.fetchval(BLOCKED_UNTIL, key)
    wait = (blocked_until - now).total_seconds() if blocked_until is not None else 0
    raise TooManyAttempts(max(math.ceil(wait), 1))


async def forget_attempts(conn: Connection, login: str) -> None:
    """After a success."""
    await conn.execute(FORGET, login_hash(login))


async def purge_failures(conn: Connection, *, now: datetime) -> int:
    return int((await conn.execute(PURGE, now - FORGOTTEN_AFTER)).split()[-1])


def login_hash(login: str) -> bytes:
    """The same for all spellings of a name: no spelling has tries of its own."""
    return hashlib.sha256(normal_name(login).encode("utf-8", "surrogatepass")).digest()


def _names(user: User) -> tuple[str, ...]:
    return (user.username, user.email or user.username)


def _event(action: str, user: User | None, *, outcome: Outcome = Outcome.DONE, ended: Ended | None = None) -> Event:
    return Event(
        action=action,
        resource_type="user",
        resource_id=None if user is None else str(user.id),
        outcome=outcome,
        extra={} if ended is None else counts(ended),
    )


def counts(ended: Ended) -> dict[str, object]:
    """For the audit log: how many sessions and tokens ended."""
    return {"sessions_ended": len(ended.sessions), "tokens_deleted": len(ended.tokens)}
