"""Logins and password changes. Failures are counted in the database, and after five each attempt has to wait.

Attempts are counted by the typed name, not by account, so that a missing account behaves like an existing one. If an
attacker blocks one of the names of an account (username and email), its user can log in with the other. Attempts are
counted before the password is checked, so that concurrent attempts do not bypass the limit. Every failure has the same
response and takes the same time.
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
# Chosen: long enough to stop guessing, short enough that an attacker cannot lock a user out for long.
MAX_DELAY_SECONDS = 60
FORGOTTEN_AFTER = timedelta(hours=24)
MAX_LOGIN_CHARS = 320

# Counts the attempt and returns a row. While the name must wait, nothing is counted and no row is returned. The wait
# starts at 1 s and doubles with each failure.
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
# Undoes the count of an attempt that was not checked, or of a correct one that does not reset earlier failures.
UNCOUNT = """
    UPDATE login_failures SET failures = greatest(failures - 1, 0), blocked_until = last_at WHERE login_hash = $1
"""
PURGE = "DELETE FROM login_failures WHERE last_at <= $1"


class LoggedIn(msgspec.Struct, frozen=True):
    user: User
    session: NewSession


class Ended(msgspec.Struct, frozen=True):
    """The ids of the sessions and tokens that ended with a password, for `AccessHint`s."""

    sessions: tuple[UUID, ...]
    tokens: tuple[UUID, ...]


class Logins:
    """Logins and password changes. No database connection is held while a password is hashed."""

    def __init__(self, pool: asyncpg.Pool, checker: Passwords, *, clock: Clock) -> None:
        self._pool = pool
        self._passwords = checker
        self._clock = clock

    async def log_in(
        self, login: str, password: str, *, stays: bool = True, request: RequestInfo = NO_REQUEST
    ) -> LoggedIn:
        """Create a session. Raises `InvalidCredentials`, `TooManyAttempts` or `PasswordsBusy`.

        `stays`: the cookie is kept when the browser is closed.
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
        """Replace the user's own password. Other sessions end, and with `revoke_tokens` all API tokens.

        `keep` is the session or token of this request, which stays valid. Wrong passwords count like failed logins, so
        that a session does not allow more attempts.
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
            # A one-time link may have replaced the old password meanwhile.
            if await users.find_password_hash(conn, user.id) != stored:
                raise InvalidCredentials
            await forget_attempts(conn, user.username)
            await users.set_password_hash(conn, user.id, password_hash=hashed)
            ended = await end_credentials(conn, user.id, but=keep, with_tokens=revoke_tokens)
            event = _event("user.change_password", user, ended=ended)
            await audit.record(conn, event, actor=user.actor, now=self._clock.now(), request=request)
            return ended

    async def choose_password(self, secret: str, password: str, *, request: RequestInfo = NO_REQUEST) -> LoggedIn:
        """Use a one-time link: replace the password, end all sessions and API tokens, and create a session.

        Raises `LinkInvalid`, or `InvalidInput` for a password that is not allowed; then the link stays valid.
        """
        async with self._pool.acquire() as conn:
            user = (await one_time_links.find_link(conn, secret, now=self._clock.now())).user
        passwords.check(password, names=_names(user))
        hashed = await self._passwords.hash(password)
        now = self._clock.now()
        async with self._pool.acquire() as conn, conn.transaction():
            # Checked again, because the account may have been disabled meanwhile.
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
        # The typed name is not logged, because it may be a password in the wrong field.
        event = _event("auth.log_in", user, outcome=Outcome.REFUSED)
        async with self._pool.acquire() as conn:
            await audit.record(conn, event, actor=None, now=self._clock.now(), request=request)

    async def _open(
        self, name: str, password: str, user: User, *, stored: str, stays: bool, request: RequestInfo
    ) -> LoggedIn:
        renewed = await self._passwords.hash(password) if self._passwords.needs_rehash(stored) else None
        now = self._clock.now()
        async with self._pool.acquire() as conn, conn.transaction():
            # The account may have been disabled or the password changed meanwhile. The lock waits for a change in
            # progress, which would not end a session that is created at the same time.
            await users.lock_user(conn, user.id)
            current = await users.find_by_login(conn, name)
            if current is None or current[0].id != user.id or not current[0].is_active or current[1] != stored:
                raise InvalidCredentials
            if renewed is not None:
                await users.set_password_hash(conn, user.id, password_hash=renewed)
            if normal_name(name) in _names(user):
                await forget_attempts(conn, name)
            else:
                # The normal form may be the name of another account, whose failures must not be reset.
                await conn.execute(UNCOUNT, login_hash(name))
            session = await sessions.create_session(
                conn, user.id, now=now, ip=request.ip, user_agent=request.user_agent, stays=stays
            )
            await audit.record(conn, _event("auth.log_in", user), actor=user.actor, now=now, request=request)
        return LoggedIn(user, session)


async def end_credentials(
    conn: Connection, user_id: UUID, *, but: UUID | None = None, with_tokens: bool = True
) -> Ended:
    """End all sessions of a user, and with `with_tokens` all API tokens. `but` is the id of one that stays valid."""
    # With the lock, a credential that is created at the same time is ended here, or its creation is refused.
    await users.lock_user(conn, user_id)
    ended = await sessions.end_sessions(conn, user_id, but=but)
    deleted = await tokens.delete_tokens(conn, user_id, but=but) if with_tokens else []
    return Ended(tuple(ended), tuple(deleted))


async def begin_attempt(conn: Connection, login: str, *, now: datetime) -> None:
    """Count a login attempt as failed, before the password is checked. Raise `TooManyAttempts` if the name must wait.

    `forget_attempts` resets the count after a successful login.
    """
    key = login_hash(login)
    if await conn.fetchval(BEGIN, key, now, now - FORGOTTEN_AFTER) is not None:
        return
    blocked_until = await conn.fetchval(BLOCKED_UNTIL, key)
    wait = (blocked_until - now).total_seconds() if blocked_until is not None else 0
    raise TooManyAttempts(max(math.ceil(wait), 1))


async def forget_attempts(conn: Connection, login: str) -> None:
    """Reset the number of failed attempts after a successful login."""
    await conn.execute(FORGET, login_hash(login))


async def purge_failures(conn: Connection, *, now: datetime) -> int:
    return int((await conn.execute(PURGE, now - FORGOTTEN_AFTER)).split()[-1])


def login_hash(login: str) -> bytes:
    """Return the hash of the normalized name, so that all spellings of a name share one count."""
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
    """Return the numbers of ended sessions and tokens for the audit log."""
    return {"sessions_ended": len(ended.sessions), "tokens_deleted": len(ended.tokens)}
