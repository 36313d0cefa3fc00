"""Requests to a misbehaving server: retries, timeouts and errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

import pytest

from rookery.client import AsyncRookery, errors
from rookery.client.errors import RookeryError
from rookery.client.http import is_loopback, normal_url, path
from rookery.testing import FakeClock
from tests.client.raw_server import Fault, RawServer, Reply, refused

PAGE = Reply(200, {"items": [], "next_cursor": None})
CHAT = "6f7c1a4e-0000-4000-8000-000000000001"
SENT = Reply(
    200,
    {
        "queued": False,
        "messages": [],
        "chat": {"status": "running", "snapshot_version": 2, "history_version": 2, "queue_len": 0, "new": 1},
        "something_new": {"a": 1},
    },
)


@asynccontextmanager
async def talking(
    *replies: Reply | Fault, clock: FakeClock | None = None, token: str | None = "rk_t", retries: int = 3
) -> AsyncIterator[tuple[AsyncRookery, RawServer, FakeClock]]:
    clock = clock or FakeClock()
    async with RawServer(*replies).listening() as server:
        client = AsyncRookery(server.url, token=token, max_retries=retries, clock=clock, rng=Random(1))
        async with client:
            yield client, server, clock


async def test_token_and_user_agent_are_sent() -> None:
    async with talking(PAGE) as (client, server, _):
        await client.chats.list()

    assert server.requests[0].headers["authorization"] == "Bearer rk_t"
    assert server.requests[0].headers["user-agent"].startswith("rookery-python/")
    assert server.requests[0].target == "/api/v1/chats?limit=50"


async def test_query_leaves_out_what_was_not_given_and_repeats_labels() -> None:
    async with talking(PAGE) as (client, server, _):
        await client.chats.list("a b", labels={"x": "1", "y": "2"}, cursor="c")

    assert server.requests[0].target == "/api/v1/chats?q=a+b&label=x%3A1&label=y%3A2&limit=50&cursor=c"


async def test_unknown_members_are_ignored() -> None:
    async with talking(SENT) as (client, _, _):
        answer = await client.messages.send(CHAT, "hello")

    assert answer.chat.status == "running"


async def test_body_has_only_what_was_given() -> None:
    async with talking(SENT) as (client, server, _):
        await client.messages.send(CHAT, "hello", client_id="mine")

    assert server.requests[0].json() == {"content": [{"type": "text", "text": "hello"}], "client_id": "mine"}


@pytest.mark.parametrize("fault", [Fault.CUT, refused(503, "unavailable"), Reply(502, b"<html>bad gateway</html>")])
async def test_read_is_tried_again(fault: Reply | Fault) -> None:
    async with talking(fault, PAGE) as (client, server, clock):
        reading = asyncio.create_task(client.chats.list())
        await clock.fire("request-retry")

        assert (await reading).items == ()
    assert len(server.requests) == 2


async def test_send_is_tried_again_as_the_same_message() -> None:
    async with talking(Fault.CUT, refused(503, "chat_busy"), SENT) as (client, server, clock):
        sending = asyncio.create_task(client.messages.send(CHAT, "hello"))
        await clock.fire("request-retry")
        await clock.fire("request-retry")
        await sending

    first, *others = [request.json()["client_id"] for request in server.requests]
    assert str(UUID(first)) == first
    assert others == [first, first]


async def test_creation_that_is_still_running_is_waited_for_under_its_key() -> None:
    refusal = refused(409, "idempotency_in_progress")
    async with talking(Fault.CUT, refusal, refused(400, "invalid")) as (client, server, clock):
        creating = asyncio.create_task(client.chats.create("hello"))
        await clock.fire("request-retry")
        await clock.fire("request-retry")
        with pytest.raises(errors.Invalid):
            await creating

    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert (len(server.requests), len(keys)) == (3, 1)


@pytest.mark.parametrize("fault", [Fault.CUT, refused(503, "unavailable")])
async def test_change_that_a_repeat_would_make_twice_is_not_tried_again(fault: Reply | Fault) -> None:
    async with talking(fault) as (client, server, _):
        with pytest.raises((errors.Unreachable, errors.Unavailable)):
            await client.chats.interrupt(CHAT)

    assert len(server.requests) == 1


async def test_rate_limit_is_waited_for_even_by_changes() -> None:
    async with talking(refused(429, "rate_limited", Retry_After="7"), Reply(204, b"")) as (client, server, clock):
        clearing = asyncio.create_task(client.queue.clear(CHAT))
        await clock.until_waiting("request-retry")

        assert clock.waiting("request-retry")[0].due == 7.0
        await clock.fire("request-retry")
        await clearing
    assert len(server.requests) == 2


async def test_server_that_asks_for_too_long_a_wait_is_an_error_at_once() -> None:
    async with talking(refused(429, "rate_limited", Retry_After="31")) as (client, server, _):
        with pytest.raises(errors.RateLimited) as caught:
            await client.chats.list()

    assert caught.value.retry_after == 31.0
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", ["queue_full", "too_many_streams"])
async def test_limits_that_waiting_does_not_lift_are_errors_at_once(code: str) -> None:
    async with talking(refused(429, code)) as (client, server, _):
        with pytest.raises(errors.RateLimited):
            await client.messages.send(CHAT, "hello")

    assert len(server.requests) == 1


async def test_tries_are_bounded_and_wait_longer_each_time() -> None:
    async with talking(refused(503, "unavailable"), retries=3) as (client, server, clock):
        reading = asyncio.create_task(client.chats.list())
        waits = []
        for _ in range(3):
            await clock.until_waiting("request-retry")
            waits.append(clock.waiting("request-retry")[0].due - clock.monotonic())
            await clock.fire("request-retry")
        with pytest.raises(errors.Unavailable):
            await reading

    assert len(server.requests) == 4
    for wait, plain in zip(waits, (0.25, 0.5, 1.0), strict=True):
        assert 0.7 * plain <= wait <= 1.3 * plain


async def test_silent_server_is_given_up_after_the_timeout() -> None:
    async with talking(Fault.SILENCE, retries=0) as (client, _, clock):
        reading = asyncio.create_task(client.chats.list())
        await clock.until_waiting("request")
        await clock.fire("request")
        with pytest.raises(errors.TimedOut) as caught:
            await reading

    assert str(caught.value) == "GET /api/v1/chats was not answered within 30 s."


@pytest.mark.parametrize("token", ["", "rk_one\n", "rk one", "rk_\N{EURO SIGN}"])
def test_token_that_no_header_can_carry_is_refused_at_once(token: str) -> None:
    with pytest.raises(ValueError, match="Copy it again"):
        AsyncRookery(token=token)


async def test_error_for_an_unreachable_server_names_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with AsyncRookery(url, max_retries=0) as client:
            with pytest.raises(errors.Unreachable) as caught:
                await client.me()

    assert str(caught.value) == f"Nothing answers at {url}: the connection was refused."


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid", errors.Invalid),
        (401, "token_expired", errors.Unauthenticated),
        (403, "owner_only", errors.Forbidden),
        (404, "chat_not_found", errors.NotFound),
        (409, "chat_archived", errors.Conflict),
        (409, "usage_limit", errors.UsageLimitReached),
        (410, "set_up", errors.AlreadySetUp),
        (412, "version_mismatch", errors.PreconditionFailed),
        (413, "body_too_large", errors.Invalid),
        (429, "queue_full", errors.QueueFull),
        (418, "something_new", errors.ApiError),
        (500, "internal", errors.ServerError),
        (503, "setup_required", errors.SetupRequired),
    ],
)
async def test_refusal_has_a_type_of_its_own(status: int, code: str, kind: type[errors.ApiError]) -> None:
    async with talking(refused(status, code), retries=0) as (client, _, _):
        with pytest.raises(RookeryError) as caught:
            await client.me()

    assert type(caught.value) is kind
    assert isinstance(caught.value, errors.ApiError)
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (status, code, "r-1")


async def test_all_wrong_fields_are_in_the_message() -> None:
    body = {
        "code": "invalid",
        "message": "title: Too long. (1 more)",
        "fields": [{"field": "title", "message": "Too long."}, {"field": "labels", "message": "Too many."}],
    }
    async with talking(Reply(400, body, {"X-Request-Id": "from-header"})) as (client, _, _):
        with pytest.raises(errors.Invalid) as caught:
            await client.chats.update(CHAT, title="x" * 201)

    assert str(caught.value) == "title: Too long. labels: Too many."
    assert caught.value.request_id == "from-header"


async def test_members_that_a_code_adds_are_kept() -> None:
    body = {"code": "usage_limit", "message": "Spent.", "request_id": "r", "spent_micros": 5, "limit_micros": 4}
    async with talking(Reply(409, body)) as (client, _, _):
        with pytest.raises(errors.UsageLimitReached) as caught:
            await client.chats.create("hello")

    assert caught.value.members == {"spent_micros": 5, "limit_micros": 4}


@pytest.mark.parametrize("reply", [Reply(200, b"<html>"), Reply(200, {"id": 5}), Reply(404, b"nginx")])
async def test_answer_of_something_else_is_told_apart(reply: Reply) -> None:
    async with talking(reply) as (client, server, _):
        with pytest.raises(errors.UnexpectedAnswer) as caught:
            await client.me()

    assert server.url in str(caught.value)


async def test_redirect_is_not_followed_with_the_token() -> None:
    async with (
        RawServer(PAGE).listening() as elsewhere,
        talking(Reply(302, b"", {"Location": elsewhere.url})) as (client, _, _),
    ):
        with pytest.raises(errors.UnexpectedAnswer):
            await client.chats.list()

    assert elsewhere.requests == []


async def test_session_of_a_login_is_kept_and_says_where_it_comes_from() -> None:
    user: dict[str, object] = {
        "id": CHAT,
        "username": "ann",
        "name": "Ann",
        "permissions": [],
        "email": "ann@example.org",
        "role": "admin",
        "status": "active",
        "created_at": "2030-01-01T00:00:00Z",
        "access_notice": None,
        "warnings": [],
    }
    login = Reply(200, {**user, "session_key": "rk_k_abc"}, {"Set-Cookie": "rookery_session=abc; Path=/; HttpOnly"})
    async with talking(login, Reply(200, user), token=None) as (client, server, _):
        await client.account.login("ann", "secret words")
        await client.me()

    assert server.requests[0].headers["origin"] == server.url
    assert server.requests[1].headers["cookie"] == "rookery_session=abc"
    assert server.requests[1].headers["rookery-session-key"] == "rk_k_abc"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        (" https://h/rookery/ ", "https://h/rookery"),
        ("http://h:1/api/v1", "http://h:1"),
        ("127.0.0.1:7117", "http://127.0.0.1:7117"),
    ],
)
def test_address_is_taken_as_people_write_it(given: str, url: str) -> None:
    assert normal_url(given) == url


@pytest.mark.parametrize("given", ["", "ftp://h", "http://", "http://h?x=1", "http://ann:secret@h"])
def test_invalid_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="address of a server"):
        AsyncRookery(given)


def test_id_from_anywhere_stays_one_segment() -> None:
    assert path("chats", "../users/me?x", "stream") == "/chats/..%2Fusers%2Fme%3Fx/stream"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost", "http://[::1]:80", "http://a.localhost"])
def test_this_machine_is_reached_without_a_proxy(url: str) -> None:
    assert is_loopback(url)
    assert not is_loopback("http://example.org")
