"""Counters of HTTP requests, which the API fills and the metrics export.

Label values are from fixed sets: an unknown method is `other`, a path without a route is `unmatched`, and paths and
queries are never recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rookery.telemetry.histogram import Histograms

REQUEST_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0)
WEBSOCKET_BOUNDS = (0.001, 1.0, 60.0, 3600.0, 54_000.0, 108_000.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
UNMATCHED = "unmatched"

# The last two answers also create a rule, for the chat or for all chats of the user.
APPROVAL_ANSWERS = ("approve", "deny", "always_chat", "always_user")
# The part of a request that was too large. URLs and headers count as `other`.
BODY = "body"


class HttpStats:
    """Counters of one replica. `route` is the template (`/api/v1/chats/{chat}`), or None if no route matched."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # by method, route and code
        self.request_seconds = Histograms[tuple[str, str]](REQUEST_BOUNDS)
        self.websocket_seconds = Histograms[str](WEBSOCKET_BOUNDS)
        self.in_flight: Counter[tuple[str, str]] = Counter()
        self.refused_as_large: Counter[tuple[str, str]] = Counter()  # by route and reason
        self.limited: Counter[str] = Counter()
        self.unauthenticated: Counter[str] = Counter()
        self.denied: Counter[tuple[str, str]] = Counter()  # by resource and action
        self.approvals: Counter[str] = Counter()  # answers of users to approval questions, by answer

    def observe(self, method: str, route: str | None, code: int, seconds: float) -> None:
        """Count an answered request."""
        method, route = _method(method), route or UNMATCHED
        self.requests[method, route, str(code)] += 1
        self.request_seconds.observe((method, route), seconds)

    def websocket_closed(self, route: str | None, seconds: float) -> None:
        """Count a closed WebSocket and its duration."""
        self.websocket_seconds.observe(route or UNMATCHED, seconds)

    @contextmanager
    def serving(self, method: str, route: str | None) -> Iterator[None]:
        """Count a request as in progress during the block."""
        key = (_method(method), route or UNMATCHED)
        self.in_flight[key] += 1
        try:
            yield
        finally:
            self.in_flight[key] -= 1

    def too_large(self, route: str | None, reason: str) -> None:
        self.refused_as_large[route or UNMATCHED, reason if reason == BODY else OTHER] += 1

    def rate_limited(self, limit: str) -> None:
        """Count a refused request. `limit` is the name of the rate limit."""
        self.limited[limit] += 1

    def auth_failure(self, reason: str) -> None:
        self.unauthenticated[reason] += 1

    def authz_denied(self, resource: str, action: str) -> None:
        self.denied[resource, action] += 1


def _method(method: str) -> str:
    return method if method in METHODS else OTHER
