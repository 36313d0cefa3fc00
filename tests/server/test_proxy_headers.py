"""The client address and scheme from proxy headers: which proxies are trusted, and the effect."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.server.proxy_headers import ProxyHeaders

SECRET = "the-proxy-knows-this-one"
HEADER = b"x-rookery-proxy-secret"
FORWARDED = [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-proto", b"https")]
BY_SECRET, BY_NETWORK = {"secret": SECRET}, {"networks": ["10.0.0.0/8"]}


async def seen(
    options: dict[str, Any], client: tuple[str, int] | None, *headers: tuple[bytes, bytes], kind: str = "http"
) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        found.update(scope)

    scheme = "http" if kind == "http" else "ws"
    scope = {"type": kind, "client": client, "scheme": scheme, "headers": [*headers, *FORWARDED]}
    await ProxyHeaders(application, header="X-Rookery-Proxy-Secret", **options)(scope, None, None)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("options", "client", "shown", "is_believed"),
    [
        ({}, "127.0.0.1", [], False),
        (BY_NETWORK, "10.1.2.3", [], True),
        (BY_NETWORK, "127.0.0.1", [], False),
        (BY_NETWORK, None, [], True),  # a unix socket
        ({}, None, [], True),
        (BY_SECRET, "127.0.0.1", [SECRET], True),
        (BY_SECRET, "127.0.0.1", [], False),
        (BY_SECRET, "127.0.0.1", [SECRET[:-1]], False),
        (BY_SECRET, "127.0.0.1", [SECRET, SECRET], False),
        (BY_SECRET, "127.0.0.1", [""], False),
        (BY_SECRET, None, [], False),
        (BY_SECRET, None, [SECRET], True),
        (BY_SECRET | BY_NETWORK, "10.1.2.3", [], False),
        (BY_SECRET | BY_NETWORK, "127.0.0.1", [SECRET], False),
        (BY_SECRET | BY_NETWORK, "10.1.2.3", [SECRET], True),
    ],
)
async def test_forwarded_headers_are_believed_from_whom_the_settings_say(
    options: dict[str, Any], client: str | None, shown: list[str], is_believed: bool
) -> None:
    peer = None if client is None else (client, 4711)
    for kind in ("http", "websocket"):
        found = await seen(options, peer, *((HEADER, each.encode()) for each in shown), kind=kind)

        assert found["client"] == (("203.0.113.9", 0) if is_believed else peer)
        assert (found["scheme"] in ("https", "wss")) is is_believed


@pytest.mark.parametrize("value", [SECRET, "a guess"])
async def test_secret_is_removed_before_the_application(value: str) -> None:
    found = await seen(BY_SECRET, ("127.0.0.1", 1), (HEADER, value.encode()), (b"accept", b"*/*"))

    assert found["headers"] == [(b"accept", b"*/*"), *FORWARDED]


async def test_connection_of_a_proxy_with_the_secret_is_not_counted_as_unauthenticated() -> None:
    known: list[bool] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        return None

    wrapped = ProxyHeaders(application, secret=SECRET, header="X-Rookery-Proxy-Secret")
    for value in (b"a guess", SECRET.encode()):
        scope = {"type": "http", "client": ("127.0.0.1", 1), "scheme": "http", "headers": [(HEADER, value)]}
        await wrapped({**scope, "rookery.known": lambda: known.append(True)}, None, None)  # type: ignore[arg-type]

    assert known == [True]


@pytest.mark.parametrize(
    ("said", "client"),
    [
        (b"203.0.113.9, 10.0.0.7", "203.0.113.9"),  # two trusted proxies in a row
        (b"198.51.100.1, 203.0.113.9", "203.0.113.9"),  # headers of the client itself are not trusted
        (b"[2001:db8::1]:443", "2001:db8::1"),
        (b"203.0.113.9:5555", "203.0.113.9"),
        (b"", "10.1.2.3"),
        (b" , ,", "10.1.2.3"),
        (b"10.0.0.8", "10.1.2.3"),
    ],
)
async def test_client_is_the_last_address_that_is_no_proxy(said: bytes, client: str) -> None:
    found: dict[str, Any] = {}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        found.update(scope)

    scope = {"type": "http", "client": ("10.1.2.3", 1), "scheme": "http", "headers": [(b"x-forwarded-for", said)]}
    await ProxyHeaders(application, **BY_NETWORK)(scope, None, None)  # type: ignore[arg-type]

    assert found["client"][0] == client
