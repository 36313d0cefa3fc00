"""Headers of a reverse proxy: the client's address, and whether it used https.

They are trusted from the networks in the settings, and from a unix socket, which only the proxy can open. If a secret
is set, they are trusted only with that secret. The secret is removed before the application sees the headers.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from rookery.server import unauthenticated_connections

_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_OF_WEBSOCKETS = {"http": "ws", "https": "wss"}
_MAX_HOST_CHARS = 64


class ProxyHeaders:
    """Sets `client` and `scheme` of a request to those of the proxy's client."""

    def __init__(
        self, application: Any, *, networks: Sequence[str] = (), secret: str | None = None, header: str = ""
    ) -> None:
        self._application = application
        self._networks = tuple(networks)
        self._secret = None if secret is None else secret.encode()
        self._header = header.lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            shown = self._take_secret(scope)
            if self._is_proxy(scope, shown):
                self._believe(scope)
                if self._secret is not None and (known := scope.get("rookery.known")) is not None:
                    known()  # the peer connects for many clients, like a proxy that is known by its network
        await self._application(scope, receive, send)

    def _take_secret(self, scope: Scope) -> list[bytes]:
        if self._secret is None:
            return []
        shown = [value for name, value in scope["headers"] if name == self._header]
        if shown:
            scope["headers"] = [(name, value) for name, value in scope["headers"] if name != self._header]
        return shown

    def _is_proxy(self, scope: Scope, shown: list[bytes]) -> bool:
        client = scope.get("client")
        if self._secret is not None:
            is_right = len(shown) == 1 and hmac.compare_digest(shown[0], self._secret)
            # If networks are set as well, the network and the secret must both match.
            return is_right and (
                client is None
                or not self._networks
                or unauthenticated_connections.is_trusted(client[0], self._networks)
            )
        return client is None or unauthenticated_connections.is_trusted(client[0], self._networks)

    def _believe(self, scope: Scope) -> None:
        said = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-proto"]
        if len(said) == 1 and (scheme := _SCHEMES.get(said[0].strip().lower())) is not None:
            scope["scheme"] = _OF_WEBSOCKETS[scheme] if scope["type"] == "websocket" else scheme
        passed = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        # Each proxy appends the address of its peer. The last address that is not a trusted proxy is the client's.
        for each in reversed([part.strip() for part in ",".join(passed).split(",") if part.strip()]):
            host = _host(each)
            if not unauthenticated_connections.is_trusted(host, self._networks):
                scope["client"] = (host, 0)
                return


def _host(text: str) -> str:
    """Return the host without a port. Text that is not an address is returned as it is, at most `_MAX_HOST_CHARS`."""
    if text.startswith("[") and "]" in text:
        return text[1 : text.index("]")]
    return (text.partition(":")[0] if text.count(":") == 1 else text)[:_MAX_HOST_CHARS]
