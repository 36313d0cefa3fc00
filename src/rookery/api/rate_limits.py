"""Rate limits: token buckets per user, or per client address for requests without a user.

Each replica counts its own requests; a user's limit is divided by the number of replicas.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import StrEnum

from rookery.api.errors import ApiError
from rookery.runtime.clock import Clock

# Limits the memory. There are more keys only during an attack. The oldest are dropped, so that their buckets are full
# again.
MAX_KEYS = 50_000


class Limit(StrEnum):
    API = "api"
    CREATE_CHAT = "create_chat"
    UPLOAD = "upload"
    TITLE = "title"
    REPLAY = "replay"
    LOGIN = "login"


PER_MINUTE: Mapping[Limit, int] = {
    Limit.API: 512,
    Limit.CREATE_CHAT: 60,
    Limit.UPLOAD: 12,
    Limit.TITLE: 20,
    Limit.REPLAY: 20,
    Limit.LOGIN: 60,
}


class RateLimits:
    """The buckets of one replica. `take` raises when a bucket is empty."""

    def __init__(
        self,
        *,
        clock: Clock,
        per_minute: Mapping[Limit, int] = PER_MINUTE,
        replicas: Callable[[], int] = lambda: 1,
        on_refused: Callable[[Limit], None] = lambda limit: None,
    ) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._replicas = replicas
        self._on_refused = on_refused
        self._buckets: OrderedDict[tuple[Limit, str], tuple[float, float]] = OrderedDict()

    def take(self, limit: Limit, key: str) -> None:
        """Take one token from the bucket of this key.

        If it is empty, raise 429 with the seconds until the next token.
        """
        size = max(1.0, self._per_minute[limit] / max(1, self._replicas()))
        now = self._clock.monotonic()
        left, at = self._buckets.pop((limit, key), (size, now))
        left = min(size, left + (now - at) * size / 60)
        enough = left >= 1
        self._buckets[limit, key] = (left - 1 if enough else left, now)
        if len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        if enough:
            return
        self._on_refused(limit)
        seconds = max(1, math.ceil(round((1 - left) * 60 / size, 6)))
        raise ApiError(
            429,
            "rate_limited",
            f"Too many requests. Try again in {seconds} s.",
            headers={"Retry-After": str(seconds)},
        )
