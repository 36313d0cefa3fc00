"""Logins at MCP servers against a strict authorization server: discovery, the flow, refresh, step-up, revocation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from rookery.domain.mcp.oauth import LoginError, NotOAuth, ServerChanged, StateRejected
from rookery.domain.mcp.server import AuthType
from rookery.mcp.errors import McpError, ProblemKind
from rookery.mcp.oauth import logins as service
from rookery.mcp.oauth.guarded_requests import Refusal
from rookery.mcp.oauth.logins import Callback
from rookery.runtime.secret_str import SecretStr
from rookery.store.db.hints import ConfigHint
from rookery.store.mcp import logins, servers
from rookery.store.mcp.logins import LoginState, state_of
from rookery.store.mcp.servers import ServerPatch
from rookery.testing import Fault, Scenario
from rookery.testing.fake_authorization import oauth_error
from tests.mcp.oauth.login_rig import DOCUMENT, REDIRECT, RING, LoginRig, open_rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[LoginRig]:
    async with open_rig(database_url) as rig:
        yield rig


def query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def expire(rig: LoginRig) -> None:
    await rig.clock.advance(rig.fake.lifetime_seconds - 30)


# -- the flow


async def test_user_logs_in_by_discovery_and_registration(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    rig.fake.challenged_scopes = ("read",)
    begun = await rig.begin(server, user)
    asked = query(begun.authorization_url)
    assert (asked["code_challenge_method"], asked["resource"]) == ("S256", rig.fake.resource)
    assert asked["scope"] == "read offline_access"
    assert asked["prompt"] == "consent"

    found = await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))

    login = await rig.login(server, user)
    assert found == user
    assert login is not None
    assert state_of(login) is LoginState.CONNECTED
    assert login.scopes == ("read", "offline_access")
    assert await rig.call(rig.logins, server, user) == 200
    assert ConfigHint(kind="mcp", id=str(server.id)) in rig.published.hints


async def test_tokens_and_secrets_are_stored_only_sealed(rig: LoginRig) -> None:
    rig.fake.auth_methods = ("client_secret_post",)
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)
    flow = await rig.pool.fetchval("SELECT string_agg(f::text, ' ') FROM mcp_oauth_flows f")
    await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))
    stored = await rig.pool.fetchval(
        "SELECT (SELECT string_agg(t::text, ' ') FROM mcp_oauth_tokens t) "
        "|| (SELECT string_agg(c::text, ' ') FROM mcp_oauth_clients c)"
    )

    grant, client = rig.fake.grants[0], next(iter(rig.fake.clients.values()))
    assert grant.refresh_token is not None
    assert client.secret is not None
    for secret in (grant.access_token, grant.refresh_token, client.secret, begun.state):
        assert secret not in stored
        assert secret not in flow


async def test_metadata_document_identifies_the_client_where_the_server_takes_one(rig: LoginRig) -> None:
    rig.fake.takes_documents = True
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user, document=DOCUMENT)
    await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))

    assert query(begun.authorization_url)["client_id"] == DOCUMENT
    assert rig.fake.asked["/register"] == 0
    assert await rig.call(rig.logins, server, user) == 200


async def test_client_is_registered_once_for_all_users(rig: LoginRig) -> None:
    server = await rig.server()
    for _ in range(3):
        await rig.connect(server, await rig.user())

    assert rig.fake.asked["/register"] == 1


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_client_that_is_configured_by_hand_needs_no_discovery(rig: LoginRig, method: str) -> None:
    server, user = await rig.configured(secret="s3cret:%/+", method=method), await rig.user()
    await rig.connect(server, user)
    await expire(rig)

    assert await rig.call(rig.logins, server, user) == 200
    assert rig.fake.refreshes == 1
    assert rig.fake.asked["/.well-known/oauth-authorization-server"] == 0


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_registered_client_authenticates_as_the_server_says(rig: LoginRig, method: str) -> None:
    rig.fake.auth_methods = (method,)
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await expire(rig)

    assert await rig.call(rig.logins, server, user) == 200


async def test_state_is_good_once_and_only_in_the_browser_that_began(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)
    answer = Callback(**rig.fake.approve(begun.authorization_url))
    for cookie in (None, "another"):
        with pytest.raises(StateRejected):
            await rig.logins.finish(server.id, answer, cookie_state=cookie)

    await rig.logins.finish(server.id, answer, cookie_state=begun.state)
    with pytest.raises(StateRejected):
        await rig.logins.finish(server.id, answer, cookie_state=begun.state)

    assert rig.fake.asked["/token"] == 1


async def test_state_of_another_server_is_rejected(rig: LoginRig) -> None:
    server, other, user = await rig.server(), await rig.server(), await rig.user()
    begun = await rig.begin(server, user)

    with pytest.raises(StateRejected):
        await rig.finish(other, begun, rig.fake.approve(begun.authorization_url))


async def test_state_expires_after_ten_minutes(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)
    assert begun.expires_at - rig.clock.now() == timedelta(minutes=10)
    await rig.clock.advance(601)

    with pytest.raises(StateRejected):
        await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))


async def test_changed_server_ends_the_flow_and_all_logins(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    begun = await rig.begin(server, user)
    async with rig.pool.acquire() as conn:
        patch = ServerPatch(url=rig.fake.resource.replace("127.0.0.1", "localhost"))
        await servers.update_server(conn, server.id, patch, ring=RING)
        assert await logins.find_login(conn, server.id, user) is None

    # The flow's row is deleted with the logins: the state is unknown.
    with pytest.raises((ServerChanged, StateRejected)):
        await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))


async def test_server_that_is_disabled_meanwhile_refuses_the_callback(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)
    async with rig.pool.acquire() as conn:
        await servers.update_server(conn, server.id, ServerPatch(enabled=False), ring=RING)

    with pytest.raises(ServerChanged):
        await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))


async def test_denied_login_says_so_and_stores_nothing(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)

    with pytest.raises(Refusal, match="The user said no"):
        await rig.finish(server, begun, rig.fake.deny(begun.authorization_url))

    assert await rig.login(server, user) is None


@pytest.mark.parametrize("iss", [None, "https://attacker.test"])
async def test_answer_of_another_issuer_is_refused(rig: LoginRig, iss: str | None) -> None:
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)
    answer = rig.fake.approve(begun.authorization_url)
    del answer["iss"]
    if iss is not None:
        answer["iss"] = iss

    with pytest.raises(LoginError, match="authorization server"):
        await rig.finish(server, begun, answer)

    assert rig.fake.asked["/token"] == 0


async def test_answer_without_issuer_is_taken_where_the_server_sends_none(rig: LoginRig) -> None:
    rig.fake.sends_iss = False
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)

    assert await rig.call(rig.logins, server, user) == 200


async def test_server_without_oauth_has_no_login(rig: LoginRig) -> None:
    server = await rig.server(auth_type=AuthType.NONE)

    with pytest.raises(NotOAuth):
        await rig.begin(server, await rig.user())


# -- discovery


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"issuer": "https://attacker.test"}, "another issuer"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"token_endpoint": "http://public.test/token"}, "token_endpoint is not a valid https address"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is not a valid https"),
        ({"token_endpoint": "https://user:pw@host.test/"}, "token_endpoint is not a valid https"),
        ({"token_endpoint_auth_methods_supported": ["private_key_jwt"]}, "no authentication of clients"),
        ({"registration_endpoint": None}, "registers no clients by itself"),
        ({"token_endpoint": 7}, "is not valid"),
    ],
)
async def test_unsafe_metadata_of_an_authorization_server_is_refused(
    rig: LoginRig, changes: dict[str, object], message: str
) -> None:
    rig.fake.metadata_changes = dict(changes)
    server = await rig.server()

    with pytest.raises(LoginError, match=message):
        await rig.begin(server, await rig.user())


@pytest.mark.parametrize(
    "changes", [{"resource": "https://attacker.test/mcp"}, {"authorization_servers": []}, {"resource": None}]
)
async def test_metadata_of_another_resource_is_refused(rig: LoginRig, changes: dict[str, object]) -> None:
    rig.fake.resource_changes = changes
    server = await rig.server()

    with pytest.raises(LoginError):
        await rig.begin(server, await rig.user())


async def test_server_without_any_metadata_asks_for_manual_configuration(rig: LoginRig) -> None:
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
        rig.fake.server.pages[f"GET {path}"] = Scenario(status=404, body={})
    for path in ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"):
        rig.fake.server.pages[f"GET {path}"] = Scenario(status=404, body={})
    rig.fake.names_metadata = False
    server = await rig.server()

    with pytest.raises(LoginError, match="enter the client id"):
        await rig.begin(server, await rig.user())


async def test_older_server_is_its_own_authorization_server(rig: LoginRig) -> None:
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
        rig.fake.server.pages[f"GET {path}"] = Scenario(status=404, body={})
    rig.fake.names_metadata = False
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)

    assert await rig.call(rig.logins, server, user) == 200


async def test_discovery_never_asks_a_private_address(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    strict = await rig.replica(allow_private=False)

    with pytest.raises(LoginError, match="private network"):
        await strict.begin(server, user, redirect_uri=REDIRECT, document_url=None)

    assert rig.fake.server.requests == []


async def test_redirects_of_discovery_are_checked_too(rig: LoginRig) -> None:
    # The metadata service of clouds is never exempt, even where private addresses are allowed.
    rig.fake.server.pages["GET /.well-known/oauth-authorization-server"] = Scenario(
        status=302, body={}, headers={"location": "http://169.254.169.254/latest/meta-data/"}
    )
    server = await rig.server()

    with pytest.raises(LoginError, match=r"169\.254\.169\.254 leads to an address of this machine"):
        await rig.begin(server, await rig.user())


async def test_redirects_in_a_circle_end(rig: LoginRig) -> None:
    rig.fake.server.pages["GET /.well-known/oauth-authorization-server"] = Scenario(
        status=302, body={}, headers={"location": "/.well-known/oauth-authorization-server"}
    )
    server = await rig.server()

    with pytest.raises(LoginError, match="too often"):
        await rig.begin(server, await rig.user())


async def test_answer_of_two_megabytes_is_refused(rig: LoginRig) -> None:
    rig.fake.server.pages["GET /.well-known/oauth-authorization-server"] = Scenario(body={"x": "y" * 2_000_000})
    server = await rig.server()

    with pytest.raises(LoginError, match="1024 KiB"):
        await rig.begin(server, await rig.user())


async def test_secrets_are_not_sent_after_a_redirect_to_another_origin(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)
    rig.fake.fail(
        "/token", Scenario(status=307, body={}, headers={"location": rig.fake.base.replace("127.0.0.1", "localhost")})
    )

    with pytest.raises(LoginError, match="not followed"):
        await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))


# -- refresh


async def test_twenty_chats_of_two_replicas_refresh_an_expired_token_once(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    replicas = [await rig.replica(), await rig.replica()]
    await expire(rig)
    held = rig.fake.hold("/token")
    waiting = [asyncio.create_task(rig.call(replicas[number % 2], server, user)) for number in range(20)]
    await rig.fake.server.received(len(rig.fake.server.requests) + 1)
    held.set()

    assert await asyncio.gather(*waiting) == [200] * 20
    assert (rig.fake.refreshes, rig.fake.replays, rig.fake.calls) == (1, 0, 20)


async def test_twenty_chats_whose_token_is_refused_refresh_it_once(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    replicas = [await rig.replica(), await rig.replica()]
    await rig.clock.advance(100)
    rig.fake.grants[0].expires_at = 0.0  # the server's own clock says so; the client knows nothing

    done = await asyncio.gather(*(rig.call(replicas[number % 2], server, user) for number in range(20)))

    assert done == [200] * 20
    assert (rig.fake.refreshes, rig.fake.replays) == (1, 0)


async def test_refresh_outlives_the_call_that_began_it(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await expire(rig)
    held = rig.fake.hold("/token")
    call = asyncio.create_task(rig.logins.headers_for(server, user))
    await rig.fake.server.received(len(rig.fake.server.requests) + 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    held.set()
    await rig.logins.close()

    assert await rig.call(rig.logins, server, user) == 200
    assert (rig.fake.refreshes, rig.fake.replays) == (1, 0)


async def test_refresh_token_stays_where_the_server_does_not_rotate_it(rig: LoginRig) -> None:
    rig.fake.rotates = False
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    for _ in range(3):
        await expire(rig)
        assert await rig.call(rig.logins, server, user) == 200

    assert rig.fake.refreshes == 3


async def test_token_is_not_refreshed_before_it_is_due(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await rig.clock.advance(rig.fake.lifetime_seconds - 61)

    assert await rig.call(rig.logins, server, user) == 200
    assert rig.fake.refreshes == 0


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_client", "unauthorized_client"])
async def test_refusal_of_the_grant_ends_the_login(rig: LoginRig, error: str) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await expire(rig)
    rig.fake.fail("/token", oauth_error(error, description="It is over."))

    assert await rig.logins.headers_for(server, user) == {}

    login = await rig.login(server, user)
    assert login is not None
    assert state_of(login) is LoginState.EXPIRED
    assert "It is over." in (login.dead_reason or "")
    before = len(rig.fake.server.requests)
    assert await rig.logins.headers_for(server, user) == {}
    assert len(rig.fake.server.requests) == before
    await rig.connect(server, user)
    assert await rig.call(rig.logins, server, user) == 200


async def test_grant_that_the_user_has_ended_there_is_dead_here(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await rig.clock.advance(100)
    rig.fake.revoke_all()

    assert await rig.call(rig.logins, server, user) == 401
    assert state_of(await rig.login(server, user)) is LoginState.EXPIRED


@pytest.mark.parametrize(
    "failure",
    [
        oauth_error("temporarily_unavailable", status=503),
        oauth_error("invalid_request"),
        oauth_error("slow_down", status=429),
        oauth_error("invalid_grant", status=500),
        Scenario(status=200, body="no json"),
        Scenario(status=200, body={"token_type": "Bearer"}),
        Scenario(status=200, body={"access_token": "a\nb", "token_type": "Bearer"}),
        Scenario(status=200, body={"access_token": "a", "token_type": "mac"}),
        Scenario(status=200, body=[1]),
        Scenario(status=302, body={}, headers={"location": "http://attacker.test/"}),
        Scenario(body={}, fault=Fault.RESET, after_bytes=None),
    ],
    ids=lambda scenario: f"{scenario.status}-{scenario.body}",
)
async def test_other_failures_of_a_refresh_are_tried_again_later(rig: LoginRig, failure: Scenario) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await rig.clock.advance(rig.fake.lifetime_seconds + 1)
    rig.fake.fail("/token", failure)

    with pytest.raises(McpError) as raised:
        await rig.logins.headers_for(server, user)
    assert raised.value.kind is ProblemKind.UNREACHABLE
    with pytest.raises(McpError):  # no second request within the pause
        await rig.logins.headers_for(server, user)
    assert rig.fake.asked["/token"] == 2
    await rig.clock.advance(service.PAUSE_SECONDS + 1)

    assert await rig.call(rig.logins, server, user) == 200
    assert (rig.fake.refreshes, rig.fake.replays) == (1, 0)


async def test_token_that_is_still_valid_is_used_while_its_refresh_fails(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await expire(rig)
    rig.fake.fail("/token", oauth_error("temporarily_unavailable", status=503))

    assert await rig.call(rig.logins, server, user) == 200


async def test_slow_refresh_ends_after_its_time(rig: LoginRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REFRESH_SECONDS", 0.2)
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    await rig.clock.advance(rig.fake.lifetime_seconds + 1)
    rig.fake.fail("/token", Scenario(body={}, fault=Fault.STALL, after_bytes=None))

    with pytest.raises(McpError, match="too long"):
        await rig.logins.headers_for(server, user)


async def test_login_without_a_refresh_token_ends_with_its_token(rig: LoginRig) -> None:
    rig.fake.issues_refresh_tokens = False
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    assert await rig.call(rig.logins, server, user) == 200
    await expire(rig)

    assert await rig.logins.headers_for(server, user) == {}
    assert state_of(await rig.login(server, user)) is LoginState.EXPIRED


# -- refusals of the server


async def test_refused_scope_is_asked_for_at_the_next_login(rig: LoginRig) -> None:
    rig.fake.challenged_scopes = ("read",)
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    rig.fake.required_scopes = ("read", "admin:all")

    assert await rig.call(rig.logins, server, user) == 403

    login = await rig.login(server, user)
    assert state_of(login) is LoginState.INSUFFICIENT
    assert login is not None
    assert login.missing_scopes == ("admin:all",)
    begun = await rig.begin(server, user)
    assert query(begun.authorization_url)["scope"] == "read admin:all offline_access"
    await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))
    assert await rig.call(rig.logins, server, user) == 200
    assert rig.fake.refreshes == 0


async def test_request_without_a_login_has_no_token(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()

    assert await rig.logins.headers_for(server, user) == {}
    assert await rig.call(rig.logins, server, user) == 401


async def test_key_and_headers_of_a_server_are_sent_as_they_are(rig: LoginRig) -> None:
    user = await rig.user()
    keyed = await rig.server(auth_type=AuthType.API_KEY, api_key_header="X-Key", api_key=SecretStr("k"))
    headed = await rig.server(auth_type=AuthType.CUSTOM_HEADERS, headers={"X-A": SecretStr("1"), "X-B": SecretStr("2")})

    assert await rig.logins.headers_for(keyed, user) == {"X-Key": "k"}
    assert await rig.logins.headers_for(headed, user) == {"X-A": "1", "X-B": "2"}
    assert not await rig.logins.on_unauthorized(keyed, user, status=401, challenge=None)


# -- the end


async def test_disconnect_revokes_and_deletes(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    grant = rig.fake.grants[0]

    done = await rig.logins.disconnect(server.id, user)

    assert (done.revoked, done.error) == (True, None)
    assert rig.fake.revoked == [grant.refresh_token, grant.access_token]
    assert await rig.login(server, user) is None


async def test_disconnect_deletes_even_if_the_revocation_fails(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    rig.fake.fail("/revoke", Scenario(status=503, body={}))

    done = await rig.logins.disconnect(server.id, user)

    assert done.revoked is False
    assert "503" in (done.error or "")
    assert await rig.login(server, user) is None


async def test_revocation_keeps_its_body_in_a_redirect_within_the_origin(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    await rig.connect(server, user)
    rig.fake.fail("/revoke", Scenario(status=308, body={}, headers={"location": "/revoke"}))

    assert (await rig.logins.disconnect(server.id, user)).revoked is True
    assert len(rig.fake.revoked) == 2


async def test_disconnect_without_a_login_or_revocation_says_so(rig: LoginRig) -> None:
    rig.fake.revokes = False
    server, user = await rig.server(), await rig.user()
    assert (await rig.logins.disconnect(server.id, user)).revoked is None
    await rig.connect(server, user)

    assert (await rig.logins.disconnect(server.id, user)).revoked is None
    assert await rig.login(server, user) is None


async def test_message_of_a_server_is_shown_in_one_short_line(rig: LoginRig) -> None:
    server, user = await rig.server(), await rig.user()
    begun = await rig.begin(server, user)
    rig.fake.fail("/token", oauth_error("invalid_grant", description="<b>\n\u202e" + "x" * 5000))

    with pytest.raises(Refusal) as raised:
        await rig.finish(server, begun, rig.fake.approve(begun.authorization_url))

    assert "\n" not in str(raised.value)
    assert "\u202e" not in str(raised.value)
    assert len(str(raised.value)) < 400
