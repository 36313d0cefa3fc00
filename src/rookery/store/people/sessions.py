"""Browser sessions: rows with the hashes of two secrets, and an expiry time.

One secret is in a cookie, which a browser sends to every port of the host. The other is the session key, which the page
keeps in the storage of its origin and sends in a header. A request needs both. For addresses that the browser itself
loads, such as images, a signed link replaces the key (`signed_links`).

A session expires 24 hours after its last use, and 30 days after its creation. It is renewed when half of the 24 hours
have passed, so most requests write nothing. The last activity of the user is written at most once an hour.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from rookery.domain.access.rights import UserActor
from rookery.store.db.pool import Connection
from rookery.store.people import credentials, users
from rookery.store.people.credentials import Credential, Kind
from rookery.store.people.errors import SessionExpired, SessionKeyRequired, SessionNotFound, Unauthenticated
from rookery.store.people.signed_links import LinkKey, SignedTarget
from rookery.store.people.users import User

IDLE = timedelta(hours=24)
LONGEST = timedelta(days=30)
SEEN_EVERY = timedelta(hours=1)
MAX_USER_AGENT_CHARS = 512

# The fields of `Session`, in their order.
COLUMNS = "s.id, s.user_id, s.created_at, s.last_seen_at, s.expires_at, s.ip, s.user_agent, s.stays"
_WIDTH = 8
# A login counts as activity of the user.
INSERT = f"""
    WITH seen AS (UPDATE users SET last_seen_at = greatest(last_seen_at, $4) WHERE id = $2)
    INSERT INTO sessions AS s (
                id, user_id, secret_hash, created_at, last_seen_at, expires_at, ip, user_agent, stays, key_hash)
    VALUES ($1, $2, $3, $4, $4, $5, $6, $7, $8, $9)
    RETURNING {COLUMNS}
"""
FIND = f"""
    SELECT {COLUMNS}, s.secret_hash, s.key_hash, {users.COLUMNS}
      FROM sessions s
      JOIN users u ON u.id = s.user_id
     WHERE s.id = $1
"""
# Records activity and extends the session; concurrent requests do not shorten it. The row of the user is locked first,
# as in `logins.end_credentials`. In the other order, the two could deadlock.
TOUCH = f"""
    WITH seen AS (UPDATE users SET last_seen_at = greatest(last_seen_at, $2) WHERE id = $3 RETURNING id)
    UPDATE sessions s
       SET last_seen_at = greatest(s.last_seen_at, $2), expires_at = greatest(s.expires_at, $4)
     WHERE s.id = $1
       AND s.user_id = (SELECT id FROM seen)
    RETURNING {COLUMNS}
"""
LIST = f"""
    SELECT {COLUMNS}
      FROM sessions s
     WHERE s.user_id = $1
       AND s.expires_at > $2
     ORDER BY s.last_seen_at DESC, s.id
"""
END = "DELETE FROM sessions WHERE id = $1 AND user_id = $2 RETURNING true"
END_ALL = "DELETE FROM sessions WHERE user_id = $1 AND id IS DISTINCT FROM $2 RETURNING id"
PURGE = "DELETE FROM sessions WHERE expires_at <= $1"


class Session(msgspec.Struct, frozen=True):
    """A session as its user may see it. `stays`: its cookie is kept when the browser is closed."""

    id: UUID
    user_id: UUID
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    ip: str | None
    user_agent: str | None
    stays: bool


class NewSession(msgspec.Struct, frozen=True):
    """A new session with its secrets, which are not stored: the value of the cookie, and the session key."""

    session: Session
    cookie: str
    key: str

    def __repr__(self) -> str:
        return f"NewSession({self.session!r}, ***)"


class AuthenticatedSession(msgspec.Struct, frozen=True):
    """An authenticated session. `renewed`: its expiry was extended, so the response should set the cookie again.

    `links` signs and checks links of this session.
    """

    session: Session
    user: User
    links: LinkKey
    renewed: bool = False

    @property
    def actor(self) -> UserActor:
        return self.user.actor


async def create_session(
    conn: Connection,
    user_id: UUID,
    *,
    now: datetime,
    ip: str | None = None,
    user_agent: str | None = None,
    stays: bool = True,
) -> NewSession:
    credential = credentials.new(Kind.SESSION)
    key = credentials.new(Kind.SESSION_KEY, id=credential.id)
    record = await conn.fetchrow(
        INSERT,
        credential.id,
        user_id,
        credential.secret_hash,
        now,
        now + IDLE,
        ip,
        storable_user_agent(user_agent),
        stays,
        key.secret_hash,
    )
    assert record is not None
    return NewSession(Session(*record), credential.reveal(), key.reveal())


async def authenticate(
    conn: Connection, cookie: str, proof: str | SignedTarget, *, now: datetime
) -> AuthenticatedSession:
    """Return the session and its user. `proof` is the session key, or the signed link that was requested.

    Raises `Unauthenticated`, `SessionKeyRequired` or `SessionExpired`.
    """
    credential = credentials.parse(Kind.SESSION, cookie)
    if credential is None:
        raise Unauthenticated
    checked: Credential | SignedTarget | None = proof if isinstance(proof, SignedTarget) else _key_of(credential, proof)
    if checked is None:
        raise SessionKeyRequired
    record = await conn.fetchrow(FIND, credential.id)
    if record is None:
        raise SessionExpired
    session, (secret_hash, key_hash) = Session(*record[:_WIDTH]), record[_WIDTH : _WIDTH + 2]
    user = users.from_record(record[_WIDTH + 2 :])
    if not credential.matches(secret_hash):
        raise Unauthenticated
    # A replica of an older version may have created a session without a key. It is not valid here.
    if session.expires_at <= now or not user.is_active or key_hash is None:
        raise SessionExpired
    links = LinkKey.of_session(key_hash)
    is_proven = links.accepts(checked, now=now) if isinstance(checked, SignedTarget) else checked.matches(key_hash)
    if not is_proven:
        raise SessionKeyRequired
    return await _seen(conn, AuthenticatedSession(session, user, links), now=now)


async def list_sessions(conn: Connection, user_id: UUID, *, now: datetime) -> list[Session]:
    """List the valid sessions of a user, the last used first."""
    return [Session(*record) for record in await conn.fetch(LIST, user_id, now)]


async def end_session(conn: Connection, user_id: UUID, *, session_id: UUID) -> None:
    if await conn.fetchval(END, session_id, user_id) is None:
        raise SessionNotFound


async def end_sessions(conn: Connection, user_id: UUID, *, but: UUID | None = None) -> list[UUID]:
    """End all sessions of a user except `but`. Returns the ids of the ended ones, for hints."""
    return [record["id"] for record in await conn.fetch(END_ALL, user_id, but)]


async def purge_sessions(conn: Connection, *, now: datetime) -> int:
    """Delete expired sessions. Returns their number."""
    return int((await conn.execute(PURGE, now)).split()[-1])


async def _seen(conn: Connection, found: AuthenticatedSession, *, now: datetime) -> AuthenticatedSession:
    session = found.session
    end = min(now + IDLE, session.created_at + LONGEST)
    renews = session.expires_at - now < IDLE / 2 and end > session.expires_at
    if not renews and now - session.last_seen_at < SEEN_EVERY:
        return found
    record = await conn.fetchrow(TOUCH, session.id, now, session.user_id, end if renews else session.expires_at)
    if record is None:
        raise SessionExpired
    return AuthenticatedSession(Session(*record), found.user, found.links, renewed=renews)


def _key_of(cookie: Credential, text: str) -> Credential | None:
    """Return the session key if it belongs to the session of the cookie; otherwise None."""
    key = credentials.parse(Kind.SESSION_KEY, text)
    return key if key is not None and key.id == cookie.id else None


def storable_user_agent(user_agent: str | None) -> str | None:
    """Return the printable characters of a User-Agent header, cut to the stored length."""
    if user_agent is None:
        return None
    return "".join(character for character in user_agent if character.isprintable())[:MAX_USER_AGENT_CHARS]
