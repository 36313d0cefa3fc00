"""The fields of an MCP server: every one with bad input, and the rules of who may use a server."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import Role
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.mcp import server as rules
from rookery.domain.mcp.catalog import CATALOG
from rookery.domain.mcp.server import AuthType, Availability, McpServer

OAUTH = {
    "auth_type": AuthType.OAUTH2,
    "oauth_client_id": "c",
    "oauth_authorization_url": "https://auth.test/authorize",
    "oauth_token_url": "https://auth.test/token",
}


def server(**fields: Any) -> McpServer:
    return McpServer(**{"id": uuid4(), "slug": "docs", "url": "https://mcp.test/mcp", **fields})


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        *(("slug", {"slug": slug}) for slug in ("", "-a", "a-", "a--b", "A", "a_b", "a/b", "a" * 41, "ü")),
        ("display_name", {"display_name": "x" * 101}),
        ("display_name", {"display_name": "a\nb"}),
        ("icon", {"icon": "\x00"}),
        ("description", {"description": "x" * 2001}),
        ("description", {"description": "a\x07"}),
        *(
            ("url", {"url": url})
            for url in (
                "",
                "mcp.test",
                "ftp://mcp.test/",
                "file:///etc/passwd",
                "https://",
                "https:///mcp",
                "https://mcp.test:0/",
                "https://mcp.test:99999/",
                "https://mcp.test/#part",
                "https://mcp.test/\n",
                "https://mcp.test/a b",
                "https://mcp.test\\@evil.test/",
                "https://user@mcp.test/",
                "https://user:pw@mcp.test/",
                "https://mcp.test/?api_key=abc",
                "https://mcp.test/?x=1&access_token=abc",
                "https://mcp.test/?Secret=abc",
                "https://mcp.test/?sig=",
                "https://mcp.test/" + "x" * 2048,
                "https://[::1/",
                "javascript:alert(1)",
            )
        ),
        ("tool_allow_list[1]", {"tool_allow_list": ("a", "")}),
        ("tool_deny_list[0]", {"tool_deny_list": ("x" * 129,)}),
        ("tool_deny_list", {"tool_deny_list": tuple(map(str, range(501)))}),
        ("call_timeout_seconds", {"call_timeout_seconds": 0}),
        ("call_timeout_seconds", {"call_timeout_seconds": 1801}),
        ("allowed_users", {"allowed_users": tuple(uuid4() for _ in range(1001))}),
        ("availability", {"owner_id": uuid4(), "availability": Availability.FORCE_ON}),
        ("allowed_users", {"owner_id": uuid4(), "allowed_users": (uuid4(),)}),
        ("allowed_roles", {"owner_id": uuid4(), "allowed_roles": (Role.MEMBER,)}),
        ("api_key", {"auth_type": AuthType.API_KEY}),
        ("api_key", {"api_key_enc": "sealed"}),
        ("api_key_header", {"auth_type": AuthType.API_KEY, "api_key_enc": "sealed"}),
        *(
            ("api_key_header", {"auth_type": AuthType.API_KEY, "api_key_enc": "s", "api_key_header": name})
            for name in ("", "a b", "x\n", "Host", "content-length", "Mcp-Session-Id", "X-Rookery-Chat-Id", "Cookie")
        ),
        ("headers", {"auth_type": AuthType.CUSTOM_HEADERS}),
        ("headers", {"headers_enc": "sealed"}),
        ("oauth_client_id", {"oauth_client_id": "c"}),
        ("oauth_scopes", {"oauth_scopes": ("a",)}),
        *(("oauth_scopes", {**OAUTH, "oauth_scopes": (scope,)}) for scope in ("", "a b", 'a"', "a\\")),
        ("oauth_token_url", {**OAUTH, "oauth_token_url": None}),
        ("oauth_token_url", {**OAUTH, "oauth_token_url": "http://auth.test/token"}),
        ("oauth_authorization_url", {**OAUTH, "oauth_authorization_url": "javascript:alert(1)"}),
        ("oauth_revocation_url", {**OAUTH, "oauth_revocation_url": "http://auth.test/revoke"}),
        ("oauth_revocation_url", {"auth_type": AuthType.OAUTH2, "oauth_revocation_url": "https://auth.test/revoke"}),
        ("oauth_client_secret", {"auth_type": AuthType.OAUTH2, "oauth_client_secret_enc": "sealed"}),
        ("oauth_client_id", {**OAUTH, "oauth_client_id": "a\nb"}),
    ],
)
def test_bad_field_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as raised:
        rules.check(server(**fields))

    assert raised.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"url": "http://127.0.0.1:8000/mcp?tenant=a&page=2&keyword=x"},
        {"url": "https://[::1]:8443/"},
        {"description": "two\nlines"},
        {"auth_type": AuthType.OAUTH2},
        {**OAUTH, "oauth_client_secret_enc": "sealed", "oauth_scopes": ("read:all", "write")},
        {**OAUTH, "oauth_token_url": "http://localhost:9/token"},
        {"auth_type": AuthType.API_KEY, "api_key_enc": "sealed", "api_key_header": "Authorization"},
    ],
)
def test_good_fields_are_taken(fields: dict[str, Any]) -> None:
    rules.check(server(**fields))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-A": ""},
        {"X-A": " a"},
        {"X-A": "a\r\nX-Admin: 1"},
        {"X-A": "a\n"},
        {"X-A": "x" * 8193},
        {"X A": "a"},
        {"X-A": "a", "x-a": "b"},
        {"Host": "a"},
        {f"X-{number}": "a" for number in range(21)},
    ],
)
def test_bad_header_is_refused_without_its_value(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as raised:
        rules.check_headers("headers", headers)

    assert "X-Admin" not in str(raised.value)


def test_server_of_the_deployment_is_for_all_unless_users_or_roles_are_listed() -> None:
    ada = uuid4()

    assert server().is_allowed_for(ada, Role.MEMBER)
    assert server(allowed_users=(ada,)).is_allowed_for(ada, Role.MEMBER)
    assert server(allowed_roles=(Role.AUDITOR,)).is_allowed_for(ada, Role.AUDITOR)
    assert not server(allowed_users=(uuid4(),)).is_allowed_for(ada, Role.ADMIN)
    assert not server(allowed_roles=(Role.AUDITOR,)).is_allowed_for(ada, Role.MEMBER)
    assert server(owner_id=ada).is_allowed_for(ada, Role.MEMBER)
    assert not server(owner_id=uuid4()).is_allowed_for(ada, Role.ADMIN)


def test_deny_list_wins_and_an_empty_allow_list_allows_all() -> None:
    assert server().offers("a")
    assert server(tool_allow_list=("a",)).offers("a")
    assert not server(tool_allow_list=("a",)).offers("A")
    assert not server(tool_allow_list=("a",), tool_deny_list=("a",)).offers("a")


def test_forced_servers_are_added_and_stored_ones_may_stay() -> None:
    forced, plain = server(availability=Availability.FORCE_ON), server()
    gone, unknown = uuid4(), uuid4()

    ids, bad = rules.chosen([plain.id, plain.id, gone, unknown], [plain, forced], stored=[gone])

    assert ids == (plain.id, gone, unknown, forced.id)
    assert bad == (unknown,)


def test_free_slug_is_short_enough_and_not_taken() -> None:
    assert rules.free_slug("a", {"a", "a-2"}) == "a-3"
    assert rules.free_slug("a" * 40, {"a" * 40}) == "a" * 38 + "-2"


def test_catalog_is_valid_and_sorted() -> None:
    slugs = [entry.slug for entry in CATALOG]

    assert slugs == sorted(set(slugs))
    for entry in CATALOG:
        is_keyed = entry.auth_type is AuthType.API_KEY
        assert is_keyed is (entry.api_key_header is not None)
        rules.check(
            server(
                slug=entry.slug,
                url=entry.url,
                display_name=entry.name,
                description=entry.description,
                auth_type=entry.auth_type,
                api_key_header=entry.api_key_header,
                api_key_enc="sealed" if is_keyed else None,
            )
        )


def test_identity_of_an_origin_ignores_case_and_default_ports() -> None:
    assert rules.origin("https://A.test/x") == rules.origin("https://a.test:443/y")
    assert rules.origin("https://a.test") != rules.origin("http://a.test")
    assert UUID(int=0) != server().id
