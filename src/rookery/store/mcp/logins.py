"""Users' logins at MCP servers: registered clients, started flows, and tokens.

Tokens and secrets are stored sealed, each bound to its row. A new login is a new row, so that a running refresh of the
old login cannot change it. Every change of a login is announced by a `ConfigHint(kind="mcp")`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.domain.mcp import server as rules
from rookery.domain.mcp.oauth import MAX_SCOPES, ClientAuth
from rookery.store.db.pool import Connection
from rookery.store.models.errors import KeysMissing
from rookery.store.models.sealed_headers import Sealer

TOKENS = "mcp_oauth_tokens"
CLIENTS = "mcp_oauth_clients"
FLOWS = "mcp_oauth_flows"
MAX_REASON = 500
# A refresh takes at most 15 s. Another replica waits for its row a little longer.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '18s'"


class LoginState(StrEnum):
    """The state of a user's login. `expired`: the user must log in again. `insufficient`: the login lacks scopes."""

    NONE = "none"
    CONNECTED = "connected"
    EXPIRED = "expired"
    INSUFFICIENT = "insufficient"


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A user's login at a server. Names that end with `_enc` are sealed texts."""

    id: UUID
    server_id: UUID
    user_id: UUID
    issuer: str
    resource: str
    token_url: str
    revocation_url: str | None
    client_id: str
    client_secret_enc: str | None
    token_auth_method: str
    access_token_enc: str
    refresh_token_enc: str | None
    scopes: tuple[str, ...]
    wanted_scopes: tuple[str, ...]
    expires_at: datetime | None
    version: int
    refreshed_at: datetime | None
    dead_at: datetime | None
    dead_reason: str | None
    connected_at: datetime

    @property
    def missing_scopes(self) -> tuple[str, ...]:
        """The scopes that the server has asked for and the login does not have."""
        return tuple(scope for scope in self.wanted_scopes if scope not in self.scopes)


class NewLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A login to store, with its secrets in clear text."""

    server_id: UUID
    user_id: UUID
    issuer: str
    resource: str
    token_url: str
    revocation_url: str | None
    client_id: str
    client_secret: str | None
    token_auth_method: ClientAuth
    access_token: str
    refresh_token: str | None
    scopes: tuple[str, ...]
    expires_at: datetime | None


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True):
    """A client that this deployment has registered at an authorization server."""

    id: UUID
    client_id: str
    client_secret: str | None
    token_auth_method: ClientAuth
    secret_expires_at: datetime | None


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """A login that has been started. `details` is the JSON that is stored at the start."""

    server_id: UUID
    user_id: UUID
    config_version: int
    details: str
    expires_at: datetime


_FIELDS = Login.__struct_fields__
COLUMNS = ", ".join(_FIELDS)
FIND = f"SELECT {COLUMNS} FROM mcp_oauth_tokens WHERE server_id = $1 AND user_id = $2"
LOCK = f"SELECT {COLUMNS} FROM mcp_oauth_tokens WHERE id = $1 FOR UPDATE"
LIST = f"SELECT {COLUMNS} FROM mcp_oauth_tokens WHERE user_id = $1 ORDER BY connected_at, id"
REPLACE = "DELETE FROM mcp_oauth_tokens WHERE server_id = $1 AND user_id = $2"
INSERT = """
    INSERT INTO mcp_oauth_tokens (id, server_id, user_id, issuer, resource, token_url, revocation_url, client_id,
                                  client_secret_enc, token_auth_method, access_token_enc, refresh_token_enc, scopes,
                                  expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
"""
REFRESH = """
    UPDATE mcp_oauth_tokens
       SET access_token_enc = $3, refresh_token_enc = coalesce($4, refresh_token_enc), expires_at = $5, scopes = $6,
           version = version + 1, refreshed_at = $7
     WHERE id = $1
       AND version = $2
"""
KILL = """
    UPDATE mcp_oauth_tokens
       SET dead_at = clock_timestamp(), dead_reason = $3, refresh_token_enc = NULL, version = version + 1
     WHERE id = $1
       AND version = $2
       AND dead_at IS NULL
    RETURNING true
"""
WANT = """
    UPDATE mcp_oauth_tokens
       SET wanted_scopes = $2
     WHERE id = $1
       AND wanted_scopes <> $2
    RETURNING true
"""
DELETE = f"DELETE FROM mcp_oauth_tokens WHERE server_id = $1 AND user_id = $2 RETURNING {COLUMNS}"

FIND_CLIENT = """
    SELECT id, client_id, client_secret_enc, token_auth_method, secret_expires_at
      FROM mcp_oauth_clients
     WHERE server_id = $1
       AND issuer = $2
       AND redirect_uri = $3
"""
INSERT_CLIENT = """
    INSERT INTO mcp_oauth_clients (id, server_id, issuer, redirect_uri, client_id, client_secret_enc,
                                   token_auth_method, secret_expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT (server_id, issuer, redirect_uri) DO NOTHING
"""
DELETE_CLIENT = "DELETE FROM mcp_oauth_clients WHERE server_id = $1 AND issuer = $2 AND client_id = $3"

PURGE_FLOWS = "DELETE FROM mcp_oauth_flows WHERE expires_at < $1"
INSERT_FLOW = """
    INSERT INTO mcp_oauth_flows (id, state_hash, server_id, user_id, config_version, details_enc, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
TAKE_FLOW = """
    DELETE FROM mcp_oauth_flows
     WHERE state_hash = $1
    RETURNING id, server_id, user_id, config_version, details_enc, expires_at
"""


def state_of(login: Login | None) -> LoginState:
    if login is None:
        return LoginState.NONE
    if login.dead_at is not None:
        return LoginState.EXPIRED
    return LoginState.INSUFFICIENT if login.missing_scopes else LoginState.CONNECTED


async def find_login(conn: Connection, server_id: UUID, user_id: UUID) -> Login | None:
    record = await conn.fetchrow(FIND, server_id, user_id)
    return None if record is None else _login(record)


async def lock_login(conn: Connection, login_id: UUID) -> Login | None:
    """Return the login and lock its row until the end of the transaction; None if it does not exist."""
    await conn.execute(LOCK_TIMEOUT)
    record = await conn.fetchrow(LOCK, login_id)
    return None if record is None else _login(record)


async def list_logins(conn: Connection, user_id: UUID) -> tuple[Login, ...]:
    return tuple(_login(record) for record in await conn.fetch(LIST, user_id))


async def write_login(conn: Connection, login: NewLogin, *, ring: Sealer | None) -> None:
    """Store a new login, which replaces the user's previous one at this server."""
    login_id = uuid4()
    await conn.execute(REPLACE, login.server_id, login.user_id)
    await conn.execute(
        INSERT,
        login_id,
        login.server_id,
        login.user_id,
        login.issuer,
        login.resource,
        login.token_url,
        login.revocation_url,
        login.client_id,
        _seal(ring, TOKENS, login_id, "client_secret_enc", login.client_secret),
        login.token_auth_method.value,
        _seal(ring, TOKENS, login_id, "access_token_enc", login.access_token),
        _seal(ring, TOKENS, login_id, "refresh_token_enc", login.refresh_token),
        list(login.scopes),
        login.expires_at,
    )


async def write_refreshed(
    conn: Connection,
    login: Login,
    *,
    access_token: str,
    refresh_token: str | None,
    expires_at: datetime | None,
    scopes: Sequence[str],
    now: datetime,
    ring: Sealer | None,
) -> None:
    """Store the tokens of a refresh. If the answer has no refresh token, the old one is kept."""
    await conn.execute(
        REFRESH,
        login.id,
        login.version,
        _seal(ring, TOKENS, login.id, "access_token_enc", access_token),
        _seal(ring, TOKENS, login.id, "refresh_token_enc", refresh_token),
        expires_at,
        list(scopes),
        now,
    )


async def mark_dead(conn: Connection, login: Login, reason: str) -> bool:
    """Mark a login as ended. Return whether this call has changed it."""
    return bool(await conn.fetchval(KILL, login.id, login.version, reason[:MAX_REASON]))


async def want_scopes(conn: Connection, login: Login, scopes: Sequence[str]) -> bool:
    """Add scopes that the server has requested. Return whether there are new ones."""
    wanted = rules.unique((*login.wanted_scopes, *scopes))[:MAX_SCOPES]
    return bool(await conn.fetchval(WANT, login.id, list(wanted)))


async def delete_login(conn: Connection, server_id: UUID, user_id: UUID) -> Login | None:
    """Delete a login and return it, so that it can be revoked."""
    record = await conn.fetchrow(DELETE, server_id, user_id)
    return None if record is None else _login(record)


def open_access_token(login: Login, ring: Sealer | None) -> str | None:
    return _open(ring, TOKENS, login.id, "access_token_enc", login.access_token_enc)


def open_refresh_token(login: Login, ring: Sealer | None) -> str | None:
    return _open(ring, TOKENS, login.id, "refresh_token_enc", login.refresh_token_enc)


def open_client_secret(login: Login, ring: Sealer | None) -> str | None:
    return _open(ring, TOKENS, login.id, "client_secret_enc", login.client_secret_enc)


async def find_client(
    conn: Connection, server_id: UUID, issuer: str, redirect_uri: str, *, ring: Sealer | None
) -> OAuthClient | None:
    record = await conn.fetchrow(FIND_CLIENT, server_id, issuer, redirect_uri)
    if record is None:
        return None
    secret = _open(ring, CLIENTS, record["id"], "client_secret_enc", record["client_secret_enc"])
    if secret is None and record["client_secret_enc"] is not None:
        return None  # sealed with a lost key: register again
    return OAuthClient(
        id=record["id"],
        client_id=record["client_id"],
        client_secret=secret,
        token_auth_method=ClientAuth(record["token_auth_method"]),
        secret_expires_at=record["secret_expires_at"],
    )


async def write_client(
    conn: Connection, server_id: UUID, issuer: str, redirect_uri: str, client: OAuthClient, *, ring: Sealer | None
) -> None:
    """Store a client, unless another replica has just stored one."""
    await conn.execute(
        INSERT_CLIENT,
        client.id,
        server_id,
        issuer,
        redirect_uri,
        client.client_id,
        _seal(ring, CLIENTS, client.id, "client_secret_enc", client.client_secret),
        client.token_auth_method.value,
        client.secret_expires_at,
    )


async def delete_client(conn: Connection, server_id: UUID, issuer: str, client_id: str) -> None:
    """Delete a client that the authorization server no longer knows."""
    await conn.execute(DELETE_CLIENT, server_id, issuer, client_id)


async def begin_flow(conn: Connection, state: str, flow: Flow, *, now: datetime, ring: Sealer | None) -> None:
    """Store a flow under its state, and delete those that have expired."""
    await conn.execute(PURGE_FLOWS, now)
    flow_id = uuid4()
    await conn.execute(
        INSERT_FLOW,
        flow_id,
        _hash(state),
        flow.server_id,
        flow.user_id,
        flow.config_version,
        _seal(ring, FLOWS, flow_id, "details_enc", flow.details),
        flow.expires_at,
    )


async def take_flow(conn: Connection, state: str, *, now: datetime, ring: Sealer | None) -> Flow | None:
    """Delete a flow and return it, so that its state works only once; None if it does not exist or has expired."""
    record = await conn.fetchrow(TAKE_FLOW, _hash(state))
    if record is None or record["expires_at"] <= now:
        return None
    details = _open(ring, FLOWS, record["id"], "details_enc", record["details_enc"])
    if details is None:
        return None
    return Flow(
        server_id=record["server_id"],
        user_id=record["user_id"],
        config_version=record["config_version"],
        details=details,
        expires_at=record["expires_at"],
    )


def _hash(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()


def _login(record: asyncpg.Record) -> Login:
    values: dict[str, Any] = dict(record)
    values["scopes"], values["wanted_scopes"] = tuple(values["scopes"]), tuple(values["wanted_scopes"])
    return Login(**values)


def _seal(ring: Sealer | None, table: str, row_id: UUID, column: str, value: str | None) -> str | None:
    if value is None:
        return None
    if ring is None:
        raise KeysMissing
    return ring.seal(value, table=table, row_id=str(row_id), column=column)


def _open(ring: Sealer | None, table: str, row_id: UUID, column: str, sealed: str | None) -> str | None:
    if sealed is None or ring is None:
        return None
    opened = ring.open(sealed, table=table, row_id=str(row_id), column=column)
    return None if opened is None else opened.reveal()
