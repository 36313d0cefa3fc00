"""The ASGI application for `GET /metrics`. It is never served on the public port."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from rookery.metrics.export import MetricsSource

PATH = "/metrics"
PLAIN = "text/plain; charset=utf-8"


def metrics_endpoint(metrics: MetricsSource, token: str | None = None, *, otherwise: ASGIApp | None = None) -> ASGIApp:
    """Return the application that answers scrapes. With a token, scrapes must send `Authorization: Bearer <token>`.

    `otherwise` serves other paths and WebSockets on the same listener.
    """
    if token == "":
        raise ValueError("An empty token would allow every scrape. Leave it out, or set one.")
    return _Endpoint(metrics, token, otherwise)


class _Endpoint:
    def __init__(self, metrics: MetricsSource, token: str | None, otherwise: ASGIApp | None) -> None:
        self._metrics = metrics
        self._token = None if token is None else token.encode()
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and scope["path"] == PATH
        if not is_ours and self._otherwise is not None:
            await self._otherwise(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            status, kind, body, *headers = await self._answer(scope)
            await _send(send, status, kind, body if scope["method"] != "HEAD" else b"", headers, size=len(body))

    async def _answer(self, scope: Scope) -> tuple[int, str, bytes, *tuple[tuple[bytes, bytes], ...]]:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if scope["path"] != PATH:
            return 404, PLAIN, b"Metrics are at /metrics.\n"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, PLAIN, b"Metrics are read with GET.\n", (b"allow", b"GET, HEAD")
        if not self._is_allowed(headers.get(b"authorization", b"")):
            return 401, PLAIN, b"Send the metrics token as a bearer token.\n", (b"www-authenticate", b"Bearer")
        kind, body = await self._metrics.scrape(headers.get(b"accept", b"").decode("latin-1"))
        return 200, kind, body

    def _is_allowed(self, authorization: bytes) -> bool:
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(b" ")
        # Compared in constant time, so that the duration reveals nothing about the token.
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token)


async def _send(
    send: Send, status: int, kind: str, body: bytes, headers: list[tuple[bytes, bytes]], *, size: int
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", kind.encode()),
                (b"content-length", str(size).encode()),
                (b"cache-control", b"no-store"),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
