"""API tokens: invalid text costs no query; scopes and time limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.access.rights import Scope
from rookery.domain.chat.errors import InvalidInput
from rookery.store.people import credentials, tokens, users
from rookery.store.people.credentials import Kind
from rookery.store.people.errors import AlreadyExists, QuotaExceeded, TokenExpired, TokenNotFound, Unauthenticated
from rookery.store.people.users import Status, UserPatch
from rookery.telemetry.redaction import hide_secrets
from tests.store.builders import StoreRig, open_store_rig
from tests.store.people.account_rows import person

NOW = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as world:
        yield world


async def make(world: StoreRig, user: users.User, name: str = "ci", **fields: object) -> tokens.NewToken:
    defaults: dict[str, object] = {"scopes": [Scope.CHAT_READ], "now": NOW}
    return await tokens.create_token(world.conn, user.id, name=name, **{**defaults, **fields})  # type: ignore[arg-type]


async def test_token_leads_to_its_user_with_its_scopes(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    made = await make(world, ada, scopes=[Scope.CHAT_READ, Scope.USAGE_READ])

    found = await tokens.authenticate(world.conn, made.secret, now=NOW)

    assert made.secret.startswith("rk_")
    assert (found.user.id, found.actor.scopes) == (ada.id, frozenset({Scope.CHAT_READ, Scope.USAGE_READ}))
    assert made.token.expires_at == NOW + timedelta(days=90)


async def test_logs_hide_tokens_sessions_and_links() -> None:
    for kind in Kind:
        secret = credentials.new(kind).reveal()

        assert hide_secrets(f"got {secret}.") == "got [REDACTED]."


async def test_garbage_is_refused_without_a_query(world: StoreRig) -> None:
    made = await make(world, await person(world.conn))
    swapped = made.secret[:-1] + ("A" if made.secret[-1] != "A" else "B")
    await world.conn.close()  # a query would raise

    for garbage in ("", "rk_", swapped, made.secret + "A", made.secret.upper(), "rk_\ud800" + made.secret[4:]):
        with pytest.raises(Unauthenticated):
            await tokens.authenticate(world.conn, garbage, now=NOW)


@given(st.binary(min_size=32, max_size=32), st.uuids(), st.sampled_from(Kind))
def test_credential_survives_its_text(secret: bytes, credential_id: object, kind: Kind) -> None:
    made = credentials.Credential(kind, credential_id, secret)  # type: ignore[arg-type]

    assert credentials.parse(kind, made.reveal()) == made
    assert all(credentials.parse(other, made.reveal()) is None for other in Kind if other is not kind)


@given(st.integers(0, 70), st.sampled_from("0Az"))
def test_one_wrong_character_is_noticed(place: int, character: str) -> None:
    text = credentials.Credential(Kind.TOKEN, UUID(int=5), b"s" * 32).reveal()
    at = place + len(Kind.TOKEN)
    typo = text[:at] + character + text[at + 1 :]

    assert typo == text or credentials.parse(Kind.TOKEN, typo) is None


async def test_right_id_with_a_wrong_secret_is_refused(world: StoreRig) -> None:
    made = await make(world, await person(world.conn))
    forged = credentials.Credential(Kind.TOKEN, made.token.id, b"x" * 32).reveal()

    with pytest.raises(Unauthenticated):
        await tokens.authenticate(world.conn, forged, now=NOW)


async def test_expired_deleted_and_disabled_tokens_are_refused(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    made = await make(world, ada, days=1)

    with pytest.raises(TokenExpired):
        await tokens.authenticate(world.conn, made.secret, now=NOW + timedelta(days=1))
    await users.update_user(world.conn, ada.id, patch=UserPatch(status=Status.DISABLED))
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(world.conn, made.secret, now=NOW)
    await tokens.delete_token(world.conn, made.token.id)
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(world.conn, made.secret, now=NOW)
    with pytest.raises(TokenNotFound):
        await tokens.delete_token(world.conn, made.token.id)


async def test_use_is_written_now_and_then(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    made = await make(world, ada)

    for minutes in (0, 5, 10):
        await tokens.authenticate(world.conn, made.secret, now=NOW + timedelta(minutes=minutes))

    (token,) = await tokens.list_tokens(world.conn, ada.id)
    assert token.last_used_at == NOW + timedelta(minutes=10)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "x" * 65}),
        ("name", {"name": " ci"}),
        ("name", {"name": "a\0"}),
        ("scopes", {"scopes": []}),
        ("expires_in_days", {"days": 0}),
        ("expires_in_days", {"days": 31, "max_days": 30}),
    ],
)
async def test_bad_token_is_refused_by_field(world: StoreRig, field: str, wrong: dict[str, object]) -> None:
    ada = await person(world.conn, "ada")

    with pytest.raises(InvalidInput) as refused:
        await make(world, ada, **wrong)  # type: ignore[arg-type]

    assert refused.value.field == field


async def test_name_is_unique_per_user(world: StoreRig) -> None:
    ada, bob = await person(world.conn, "ada"), await person(world.conn, "bob")
    await make(world, ada)

    await make(world, bob)
    with pytest.raises(AlreadyExists):
        await make(world, ada)


async def test_fifty_tokens_are_all_there_may_be_also_at_once(world: StoreRig) -> None:
    ada = await person(world.conn, "ada")
    for number in range(tokens.MAX_TOKENS - 1):
        await make(world, ada, f"t{number}")

    async def one_more(conn: asyncpg.Connection, name: str) -> object:
        return await tokens.create_token(conn, ada.id, name=name, scopes=[Scope.ALL], now=NOW)

    async with world.connection() as first, world.connection() as second:
        outcomes = await asyncio.gather(one_more(first, "a"), one_more(second, "b"), return_exceptions=True)

    assert sum(isinstance(outcome, QuotaExceeded) for outcome in outcomes) == 1
    assert len(await tokens.list_tokens(world.conn, ada.id)) == tokens.MAX_TOKENS
