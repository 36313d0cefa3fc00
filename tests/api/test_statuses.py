"""The documented statuses, tested for each operation that documents them.

Statuses that depend on the state of a chat, a setting or a provider are in `test_statuses_by_state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rookery.api.rate_limits import Limit, RateLimits
from rookery.api.routers import files, templates
from rookery.domain.access.rights import Role
from rookery.testing import FakeClock
from tests.api.api_rig import ApiRig
from tests.api.more_servers import credentials, log_in, open_door
from tests.api.openapi_operations import ALL, Asked
from tests.api.roles_rig import PRIVATE, RolesRig, open_town

STREAMS = {"chats.stream", "chats.watch", "chats.git"}
# Values that do not exist: an id, a number, a name.
NOTHING = UUID(int=1)
NUMBERS = frozenset({"message", "queued", "number"})
NAMES = frozenset({"template", "asset"})
# Parameters that are checked before the object is looked up.
NEEDED: dict[str, tuple[str, dict[str, str]]] = {
    "debug.compare_runs": (f"?other={UUID(int=2)}", {}),
    "debug.search_run": ("?q=word", {}),
    "messages.search": ("?q=word", {}),
    "provider_keys.put": ("", {"api_key": "sk-none"}),
}
EVIL = "https://evil.example"
NAMED = 'Content-Disposition: attachment; filename="a.txt"\r\n'


def missing(asked: Asked) -> str:
    """Return the path of an object that does not exist."""
    values = {name: 1 if name in NUMBERS else "nothing" if name in NAMES else NOTHING for name in asked.parameters}
    return asked.path.format(**values)


class BrokenPool:
    """Replaces the connection pool that is used to check credentials."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def acquire(self) -> Any:
        raise self._error


@asynccontextmanager
async def open_used_up(rig: ApiRig, *users: UUID) -> AsyncIterator[str]:
    """Start a server on which these users and this address have reached the rate limit."""
    limits = RateLimits(clock=FakeClock(), per_minute=dict.fromkeys(Limit, 2))
    async with open_door(rig, limits=limits) as url:
        assert (await rig.nobody.get(f"{url}/api/v1/docs")).status_code == 200  # the server has cached its setup
        limits.take(Limit.LOGIN, "127.0.0.1")
        for key in map(str, users):
            limits.take(Limit.API, key)
            limits.take(Limit.API, key)
        limits.take(Limit.LOGIN, "127.0.0.1")
        yield url


async def test_every_operation_gives_the_statuses_that_need_no_state(rig: ApiRig) -> None:
    chief, other = await rig.add("chief", role=Role.ADMIN), await rig.add("other", role=Role.ADMIN)
    foreign = {**credentials(await log_in(rig, other)), "Origin": EVIL, "Accept": "text/event-stream"}
    wrong: list[tuple[str, int, int]] = []
    async with (
        open_used_up(rig, chief.id) as used_up,
        open_door(rig, pool=BrokenPool(RuntimeError("a bug"))) as buggy,
        open_door(rig, pool=BrokenPool(ConnectionRefusedError())) as cut_off,
    ):
        for asked in ALL:
            path, got = missing(asked), dict[int, int]()
            if not asked.is_public:
                got[401] = (await rig.nobody.request(asked.method, path)).status_code
            if not asked.is_public:
                got[403] = (await rig.nobody.request(asked.method, path, headers=foreign)).status_code
            elif 403 in asked.statuses:
                got[403] = (await rig.nobody.request(asked.method, path, headers={"Origin": EVIL})).status_code
            if asked.name not in STREAMS:
                got[400] = (await chief.http.request(asked.method, f"{path}?colour=red", json={})).status_code
            if 415 in asked.statuses and not asked.parameters and asked.is_json:
                plain = await other.http.request(asked.method, path, content=b"x", headers={"Content-Type": "a/b"})
                got[415] = plain.status_code
            if 404 in asked.statuses and asked.parameters:
                query, body = NEEDED.get(asked.name, ("", {}))
                got[404] = (await other.http.request(asked.method, path + query, json=body)).status_code
            got[429] = (await chief.http.request(asked.method, used_up + path)).status_code
            got[500] = (await chief.http.request(asked.method, buggy + path, json={})).status_code
            got[503] = (await chief.http.request(asked.method, cut_off + path, json={})).status_code
            wrong += [(asked.name, status, each) for status, each in got.items() if each != status]
            wrong += [(asked.name, status, 0) for status in got if status not in asked.statuses]

    assert len(ALL) > 120
    assert not wrong, "; ".join(map(str, wrong))


@pytest.fixture
async def roles(database_url: str, tmp_path: Path) -> AsyncIterator[RolesRig]:
    """A rig whose owner is an administrator, with all rights."""
    async with open_town(database_url, tmp_path, owner_role=Role.ADMIN) as opened:
        yield opened


async def test_every_body_may_be_too_large_too_slow_or_of_the_wrong_type(
    roles: RolesRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((files, "UPLOAD_SECONDS"), (templates, "ARCHIVE_SECONDS")):
        monkeypatch.setattr(module, name, 0.05)
    limits = RateLimits(clock=FakeClock(), per_minute=dict.fromkeys(Limit, 1_000_000))
    token = roles.people["owner"].token
    with_body = [asked for asked in ALL if 413 in asked.statuses]
    async with open_door(roles.rig, limits=limits, read_seconds=0.05) as url:

        async def status(asked: Asked, kind: str, size: int) -> int:
            """Return the status of a request that announces a body and begins to send it."""
            path = asked.path.format(**{name: await roles.parameter(name, PRIVATE) for name in asked.parameters})
            host = url.removeprefix("http://")
            reader, writer = await asyncio.open_connection(*host.split(":"))
            try:
                writer.write(
                    f"{asked.method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
                    f"{NAMED}Content-Type: {kind}\r\nContent-Length: {size}\r\n\r\n{{".encode()
                )
                async with asyncio.timeout(30):
                    return int((await reader.readline()).split()[1])
            finally:
                writer.close()

        for name in {name for asked in with_body for name in asked.parameters}:
            await roles.parameter(name, PRIVATE)  # created once, because the following requests run concurrently
        got = {
            413: await asyncio.gather(*(status(each, "application/json", 10**12) for each in with_body)),
            408: await asyncio.gather(*(status(each, "application/json", 100) for each in with_body)),
            415: await asyncio.gather(*(status(each, "a/b", 100) for each in with_body if each.is_json)),
        }

    assert {status: set(each) for status, each in got.items()} == {413: {413}, 408: {408}, 415: {415}}
    promised = {status: {each.name for each in ALL if status in each.statuses} for status in got}
    assert promised[408] == promised[413] == {each.name for each in with_body}
    assert promised[415] == {each.name for each in with_body if each.is_json}
