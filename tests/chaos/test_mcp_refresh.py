"""Two replicas, as processes, refresh one login at the moment at which its token expires in all of their chats."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from rookery.domain.chat import parts
from rookery.domain.mcp.server import AuthType, Availability, McpServer
from rookery.mcp.address_guard import mcp_guard
from rookery.mcp.guarded_http import guarded_client
from rookery.mcp.oauth.logins import Callback, McpLogins
from rookery.runtime.clock import SystemClock
from rookery.store.db.pubsub import Bus, Notifier
from rookery.store.mcp import servers
from rookery.store.mcp.servers import ServerDraft
from rookery.store.settings import settings
from rookery.testing.fake_authorization import FakeAuthorization
from rookery.testing.fake_mcp import FakeCall, FakeMcp, Json, text
from tests.chaos import mcp_jobs
from tests.chaos.deployment import Deployment, open_deployment
from tests.chaos.mcp_jobs import Kind
from tests.eventually import until

SEED = 20
CHATS = 20
WAIT_SECONDS = 60.0
REDIRECT = "https://rookery.test/callback"

EXPIRE = "UPDATE mcp_oauth_tokens SET expires_at = now()"
OWNERS = "SELECT worker_id, count(*) FROM chats WHERE id = ANY ($1) GROUP BY worker_id"
# The other replica waits for the row that the one with the refresh has locked.
WAITING = """
    SELECT count(*)
      FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%mcp_oauth_tokens%'
"""
RESULTS = "SELECT content::text FROM chat_messages WHERE chat_id = ANY ($1) AND role = 'tool' AND NOT deleted"


class GrantedTokens(Container[str]):
    """The tokens that the authorization server accepts now."""

    def __init__(self, authorization: FakeAuthorization) -> None:
        self._authorization = authorization

    def __contains__(self, token: object) -> bool:
        return isinstance(token, str) and self._authorization.accepts(token)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path for the sockets of the replicas."""
    folder = Path(tempfile.mkdtemp(prefix="rkr"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def log_in(deployment: Deployment, authorization: FakeAuthorization, url: str) -> McpServer:
    """Add the server, and log the user in."""
    client = authorization.register(REDIRECT)
    draft = ServerDraft(
        slug=mcp_jobs.SLUG,
        url=url,
        availability=Availability.FORCE_ON,
        auth_type=AuthType.OAUTH2,
        oauth_client_id=client.id,
        oauth_authorization_url=f"{authorization.base}/authorize",
        oauth_token_url=f"{authorization.base}/token",
    )
    async with deployment.pool.acquire() as conn:
        await settings.write_setting(conn, "mcp", value={"allow_private_addresses": True})
        server = await servers.create_server(conn, draft, ring=deployment.ring, by=None)
    logins = McpLogins(
        deployment.pool,
        ring=deployment.ring,
        http=lambda: guarded_client(mcp_guard(allow_private=True)),
        clock=SystemClock(),
        publisher=Notifier(deployment.pool, Bus()),
    )
    begun = await logins.begin(server, deployment.user, redirect_uri=REDIRECT, document_url=None)
    answer = Callback(**authorization.approve(begun.authorization_url))
    await logins.finish(server.id, answer, cookie_state=begun.state)
    return server


async def test_one_refresh_serves_twenty_chats_of_two_processes(database_url: str, folder: Path) -> None:
    fake, begun = FakeMcp(), Counter[str]()
    all_called = asyncio.Event()

    async def wait_for_all(call: FakeCall) -> Json:
        begun[call.arguments["job"]] += 1
        await all_called.wait()
        return text("first")

    async def answer(call: FakeCall) -> Json:
        return text("second")

    properties = {"job": {"type": "string"}}
    fake.tool(Kind.NEITHER, wait_for_all, properties=properties)
    fake.tool(Kind.IDEMPOTENT, answer, properties=properties)
    async with (
        fake.listening() as url,
        FakeAuthorization(protects=url).listening() as authorization,
        open_deployment(
            lambda: database_url,
            folder,
            seed=SEED,
            replicas=2,
            is_fast=True,
            has_doors=False,
            scripted_model=mcp_jobs.MODEL,
        ) as deployment,
    ):
        fake.bearers = GrantedTokens(authorization)
        await log_in(deployment, authorization, url)
        for replica in deployment.replicas:
            # The replicas have cached that there are no servers.
            await replica.end()
        await asyncio.gather(*(replica.start() for replica in deployment.replicas))

        people = [deployment.person(number) for number in range(CHATS)]
        for number, person in enumerate(people):
            await person.say(mcp_jobs.message(f"j{number}", Kind.NEITHER, Kind.IDEMPOTENT))
        await until(lambda: len(begun) == CHATS, timeout=WAIT_SECONDS)
        chats = [person.chat_id for person in people]
        owners = {row["worker_id"]: row["count"] for row in await deployment.pool.fetch(OWNERS, chats)}
        assert set(owners) == {replica.id for replica in deployment.replicas}

        # The token expires in all calls at once, for the chats and for the server.
        held = authorization.hold("/token")
        await deployment.pool.execute(EXPIRE)
        authorization.grants[0].expires_at = 0.0
        before = authorization.asked["/token"]
        all_called.set()
        await until(lambda: deployment.pool.fetchval(WAITING), timeout=WAIT_SECONDS)
        held.set()
        async with asyncio.timeout(WAIT_SECONDS):
            for person in people:
                await deployment.watch.until_rest(person.chat_id)

        assert authorization.asked["/token"] - before == 1
        assert (authorization.refreshes, authorization.replays) == (1, 0)
        results = [
            part
            for row in await deployment.pool.fetch(RESULTS, chats)
            for part in parts.decode(row["content"].encode())
            if isinstance(part, parts.ToolResult)
        ]
        assert len(results) == 2 * CHATS
        assert not [each for each in results if each.is_error]
        assert Counter(call.tool for call in fake.calls) == {Kind.NEITHER: CHATS, Kind.IDEMPOTENT: CHATS}
