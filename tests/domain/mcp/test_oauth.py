"""Challenges, metadata, scopes and answers of token endpoints."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rookery.domain.mcp import oauth
from rookery.domain.mcp.oauth import Challenge, LoginError, ResourceMetadata

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        (None, Challenge()),
        ("", Challenge()),
        ("Basic realm=x", Challenge()),
        ("Bearer", Challenge()),
        ("bearer scope=read", Challenge(scopes=("read",))),
        (
            'Bearer resource_metadata="https://a.test/x", scope="a b a", error="insufficient_scope"',
            Challenge("https://a.test/x", ("a", "b"), "insufficient_scope"),
        ),
        ('Basic realm="x", Bearer error="invalid_token"', Challenge(error="invalid_token")),
        ('Bearer error="a\\"b"', Challenge(error='a"b')),
        ('Bearer scope="' + "a" * 100_000, Challenge()),
    ],
)
def test_challenge_is_read(header: str | None, challenge: Challenge) -> None:
    assert oauth.parse_challenge(header) == challenge


@pytest.mark.parametrize(
    ("url", "resource", "is_fine"),
    [
        ("https://a.test/mcp", "https://a.test/mcp", True),
        ("https://a.test/mcp", "https://A.test/mcp/", True),
        ("https://a.test/mcp", "https://a.test", True),
        ("https://a.test/mcp", "https://a.test/mc", False),
        ("https://a.test/mcp", "https://a.test/mcp/other", False),
        ("https://a.test/mcp", "https://b.test/mcp", False),
        ("https://a.test/mcp", "http://a.test/mcp", False),
        ("https://a.test/mcp", "https://a.test:444/mcp", False),
        ("https://a.test/mcp", "https://a.test/mcp?x=1", False),
    ],
)
def test_metadata_counts_only_for_its_own_resource(url: str, resource: str, is_fine: bool) -> None:
    if is_fine:
        assert oauth.check_resource(url, ResourceMetadata(resource=resource)) == resource
        return
    with pytest.raises(LoginError):
        oauth.check_resource(url, ResourceMetadata(resource=resource))


def test_metadata_is_looked_for_in_the_order_of_the_specification() -> None:
    assert oauth.server_metadata_urls("https://a.test/t1/") == (
        "https://a.test/.well-known/oauth-authorization-server/t1",
        "https://a.test/.well-known/openid-configuration/t1",
        "https://a.test/t1/.well-known/openid-configuration",
    )
    assert oauth.resource_metadata_urls("https://a.test/") == ("https://a.test/.well-known/oauth-protected-resource",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3600, NOW + timedelta(hours=1)),
        ("3600", NOW + timedelta(hours=1)),
        (0, NOW),
        (None, None),
        ("soon", None),
        (-1, None),
        (float("inf"), None),
        (True, None),
        (10**30, None),
    ],
)
def test_lifetime_of_a_token_is_read_with_care(given: Any, expected: datetime | None) -> None:
    answer = {"access_token": "a", "token_type": "bearer", "expires_in": given}

    assert oauth.read_token_answer(answer, now=NOW).expires_at == expected


def test_scopes_are_chosen_by_configuration_then_challenge_then_support() -> None:
    def wanted(**given: Any) -> tuple[str, ...]:
        return oauth.wanted_scopes(**{"configured": (), "challenged": (), "supported": None, "offered": None, **given})

    assert wanted() == ()
    assert wanted(supported=("s",)) == ("s",)
    assert wanted(supported=("s",), challenged=("c",)) == ("c",)
    assert wanted(supported=("s",), challenged=("c",), configured=("m",), stepped_up=("u",)) == ("m", "u")
    assert wanted(offered=("offline_access",)) == ("offline_access",)


def test_login_page_keeps_the_parameters_of_its_own_address() -> None:
    url = oauth.authorization_url("https://a.test/login?tenant=1&state=old", {"state": "new"})

    assert url == "https://a.test/login?tenant=1&state=new"
