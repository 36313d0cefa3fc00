from __future__ import annotations

import pytest

from rookery.api.errors import ApiError
from rookery.api.rate_limits import MAX_KEYS, Limit, RateLimits
from rookery.server.unauthenticated_connections import address_key
from rookery.testing import FakeClock
from tests.api.api_rig import PASSWORD, ApiRig, Person
from tests.api.more_servers import open_door


def taken(limits: RateLimits, key: str = "ada", limit: Limit = Limit.API) -> int | None:
    """Take a token. Return None, or the seconds until there is one."""
    try:
        limits.take(limit, key)
    except ApiError as refused:
        return int(refused.headers["Retry-After"])
    return None


async def test_bucket_empties_and_fills_evenly() -> None:
    clock = FakeClock()
    limits = RateLimits(clock=clock, per_minute={Limit.API: 3})

    assert [taken(limits) for _ in range(4)] == [None, None, None, 20]
    await clock.advance(19)
    assert taken(limits) == 1
    await clock.advance(1)
    assert [taken(limits), taken(limits)] == [None, 20]
    await clock.advance(3600)
    assert [taken(limits) for _ in range(4)] == [None, None, None, 20]


async def test_buckets_are_apart_by_key_and_by_limit() -> None:
    limits = RateLimits(clock=FakeClock(), per_minute={Limit.API: 1, Limit.LOGIN: 1})

    assert [taken(limits), taken(limits, "ben"), taken(limits, limit=Limit.LOGIN)] == [None, None, None]
    assert taken(limits) == 60


async def test_share_is_divided_by_replicas_and_never_nothing() -> None:
    limits = RateLimits(clock=FakeClock(), per_minute={Limit.API: 4, Limit.UPLOAD: 1}, replicas=lambda: 2)

    assert [taken(limits) for _ in range(3)] == [None, None, 30]
    assert taken(limits, limit=Limit.UPLOAD) is None


async def test_refusals_are_told() -> None:
    told: list[Limit] = []
    limits = RateLimits(clock=FakeClock(), per_minute={Limit.TITLE: 1}, on_refused=told.append)

    taken(limits, limit=Limit.TITLE)
    taken(limits, limit=Limit.TITLE)

    assert told == [Limit.TITLE]


async def test_made_up_keys_do_not_grow_without_end() -> None:
    limits = RateLimits(clock=FakeClock(), per_minute={Limit.API: 1})
    taken(limits, "kept")
    for number in range(MAX_KEYS - 1):
        taken(limits, str(number))
    assert taken(limits, "kept") == 60  # used again, so it is not the oldest

    taken(limits, "one more")

    assert [taken(limits, "kept"), taken(limits, "0")] == [60, None]


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        (None, "unknown"),
    ],
)
def test_one_key_per_address_or_network(address: str | None, key: str) -> None:
    assert address_key(address) == key


async def test_users_and_unauthenticated_addresses_have_separate_limits(rig: ApiRig, ada: Person, ben: Person) -> None:
    limits = RateLimits(clock=FakeClock(), per_minute={Limit.API: 3, Limit.LOGIN: 2})

    async with open_door(rig, limits=limits) as url:
        adas = [await ada.http.get(f"{url}/api/v1/users/me") for _ in range(4)]
        bens = await ben.http.get(f"{url}/api/v1/users/me")
        strangers = [await rig.nobody.get(f"{url}/api/v1/users/me") for _ in range(3)]
        logins = [
            await rig.nobody.post(f"{url}/api/v1/auth/login", json={"login": "ada", "password": PASSWORD})
            for _ in range(3)
        ]
        health = await rig.nobody.get(f"{url}/healthz")

    assert [each.status_code for each in adas] == [200, 200, 200, 429]
    assert adas[-1].json()["code"] == "rate_limited"
    assert int(adas[-1].headers["retry-after"]) == 20
    assert adas[-1].headers["x-request-id"] == adas[-1].json()["request_id"]
    assert bens.status_code == 200
    # The first check whether the server is set up was counted for the address.
    assert [each.status_code for each in strangers] == [401, 401, 429]
    assert [each.status_code for each in logins] == [200, 200, 429]
    assert health.status_code == 200
