from __future__ import annotations

import pytest

from rookery.api import cookies
from rookery.api.host_and_origin import Origins, host_name

OURS = Origins(
    external_url="https://rookery.example/",
    allowed_origins=("https://tools.example", "http://dev.example:3000"),
    allowed_hosts=("rookery.lan",),
)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:80", "localhost"),
        ("rookery.example.", "rookery.example"),
        ("[::1]:7117", "::1"),
        ("", None),
        ("a b", None),
        ("a/b", None),
        ("user@localhost", None),
        ("localhost:port", None),
        ("localhost:99999", None),
        ("[::1", None),
        ("localhost\\evil", None),
        (":80", None),
    ],
)
def test_name_in_a_host_header(host: str, name: str | None) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("localhost:7117", True),
        ("app.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("[::1]", True),
        ("rookery.example", True),
        ("ROOKERY.EXAMPLE:8443", True),
        ("rookery.lan", True),
        ("evil.example", False),
        ("rookery.example.evil.example", False),
        ("localhost.evil.example", False),
        ("0.0.0.0", False),
        ("192.168.1.5", False),
        ("tools.example", False),
    ],
)
def test_hosts_that_are_ours(host: str, accepted: bool) -> None:
    assert OURS.accepts_host(host) is accepted


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [
        ("https://rookery.example", True),
        ("https://rookery.example:443", True),
        ("https://Rookery.Example", True),
        ("http://127.0.0.1:7117", True),  # the origin of the request itself
        ("https://tools.example", True),
        ("http://dev.example:3000", True),
        ("http://rookery.example", False),
        ("https://rookery.example:8443", False),
        ("https://rookery.example:0", False),
        ("http://127.0.0.1", False),
        ("http://localhost:7117", False),
        ("http://dev.example", False),
        ("https://evil.example", False),
        ("https://rookery.example.evil.example", False),
        ("https://rookery.example@evil.example", False),
        ("https://evil.example@rookery.example", False),
        ("https://rookery.example/path", False),
        ("https://rookery.example https://evil.example", False),
        ("file://", False),
        ("null", False),
        ("", False),
        ("https://", False),
        ("https://rookery.example:port", False),
    ],
)
def test_pages_that_may_use_a_cookie(origin: str, accepted: bool) -> None:
    assert OURS.accepts_origin(origin, scheme="http", host="127.0.0.1:7117") is accepted


def test_scheme_of_a_websocket_is_that_of_its_page() -> None:
    assert OURS.accepts_origin("http://127.0.0.1:7117", scheme="ws", host="127.0.0.1:7117")
    assert OURS.accepts_origin("https://localhost", scheme="wss", host="localhost")
    assert not OURS.accepts_origin("http://localhost", scheme="wss", host="localhost")


def test_answers_are_shared_with_listed_origins_alone() -> None:
    assert OURS.shares_with("https://tools.example")
    assert not OURS.shares_with("https://rookery.example")
    assert not OURS.shares_with("null")
    assert not Origins(external_url="https://rookery.example").shares_with("null")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None),
        ("", None),
        ("rookery_session=abc", "abc"),
        ("a=1;rookery_session=abc; b=2", "abc"),
        ('odd="x; y{"; rookery_session=abc', "abc"),
        ("rookery_session=; rookery_session=abc", "abc"),
        ("xrookery_session=abc", None),
        ("__Host-rookery_session=abc", None),
        ("rookery_session", None),
    ],
)
def test_session_in_a_cookie_header(header: str | None, found: str | None) -> None:
    assert cookies.find_session(header, secure=False) == found


def test_over_https_only_the_bound_cookie_counts() -> None:
    assert cookies.find_session("rookery_session=abc", secure=True) is None
    assert cookies.find_session("__Host-rookery_session=abc", secure=True) == "abc"
    assert (
        cookies.delete_header(secure=True)
        == "__Host-rookery_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure"
    )
