"""The spans of requests: the caller's trace, names without values of the path, and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from rookery.domain.access.rights import Role
from tests.api.api_rig import ApiRig, open_house
from tests.api.chat_rig import ChatRig
from tests.eventually import until
from tests.otlp_collector import OtlpCollector, exporting, otlp_collector

ME = "/api/v1/users/me"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with otlp_collector() as opened:
        yield opened


@pytest.fixture
async def rig(database_url: str, tmp_path: Path, collector: OtlpCollector) -> AsyncIterator[ApiRig]:
    overrides = {"otel.endpoint": collector.url}
    async with open_house(database_url, tmp_path, overrides=overrides) as opened:
        await opened.add("root", role=Role.ADMIN)
        yield opened


async def test_request_is_a_span_below_the_callers_span(rig: ApiRig, collector: OtlpCollector) -> None:
    ada = await rig.add("ada")
    found = await ada.http.get(ME, headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "X-Request-Id": "r-1"})

    (span,) = await collector.until("GET /api/v1/users/me")
    assert found.status_code == 200
    assert (span.trace_id, span.parent_id, span.kind) == (TRACE, SPAN, "server")
    assert span.attributes["http.request.method"] == "GET"
    assert span.attributes["http.route"] == ME
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["rookery.user.id"] == str(ada.id)
    assert span.attributes["rookery.request.id"] == "r-1"
    assert span.resource["service.instance.id"] == str(rig.replica.id)
    queries = [each for each in collector.named("db ") if each.trace_id == TRACE]
    assert {each.parent_id for each in queries} == {span.span_id}


@pytest.mark.parametrize(
    "sent",
    [
        [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        ["nonsense"],
        ["0" * 8000],
        [],
    ],
)
async def test_header_that_is_not_one_valid_traceparent_is_ignored(
    rig: ApiRig, collector: OtlpCollector, sent: list[str]
) -> None:
    ada = await rig.add("ada")

    found = await ada.http.get(ME, headers=[("traceparent", each) for each in sent])

    (span,) = await collector.until("GET /api/v1/users/me")
    assert found.status_code == 200
    assert span.parent_id == ""
    assert span.trace_id not in ("0" * 32, TRACE)


async def test_names_of_spans_have_no_values_of_the_path_or_the_query(rig: ApiRig, collector: OtlpCollector) -> None:
    ada = await rig.add("ada")
    chat = "0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000"
    await ada.http.get(f"/api/v1/chats/{chat}/messages", params={"limit": "7"})
    await ada.http.get("/api/v1/no/such/secret-path")
    await rig.nobody.get(ME, headers={"Authorization": "Bearer rk_wrong_wrong_wrong"})
    await rig.nobody.get("/healthz")

    await collector.until("GET", 3)
    assert sorted(span.name for span in collector.spans if span.kind == "server") == [
        "GET",
        "GET",
        "GET /api/v1/chats/{chat}/messages",
    ]
    everything = b"".join(collector.bodies)
    for value in (chat, "secret-path", "rk_wrong"):
        assert value.encode() not in everything


async def test_span_of_a_stream_ends_when_the_stream_opens(rig: ApiRig, collector: OtlpCollector) -> None:
    ada = await rig.add("ada")
    url = rig.url.replace("http", "ws") + "/api/v1/chats/watch"

    async with connect(url, additional_headers={"Authorization": f"Bearer {ada.token}"}):
        (span,) = await collector.until("WEBSOCKET /api/v1/chats/watch")

    assert span.attributes["http.response.status_code"] == 101
    assert not span.has_failed


async def test_failure_of_the_server_fails_the_span_without_its_text(
    rig: ApiRig, collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await rig.add("ada")

    def broken(*_: object) -> None:
        raise RuntimeError("the key is sk-abcdefghijklmnop")

    monkeypatch.setattr(type(rig.replica.api.limits), "take", broken)
    found = await ada.http.get(ME)

    (span,) = await collector.until("GET")
    assert found.status_code == 500
    assert (span.has_failed, span.attributes["error.type"]) == (True, "500")
    assert b"the key is" not in b"".join(collector.bodies)


async def test_turn_on_another_replica_is_linked_to_the_request(database_url: str, tmp_path: Path) -> None:
    """One replica serves the requests, and another one runs the chats."""
    with otlp_collector() as collector:
        async with (
            exporting(collector),
            open_house(database_url, tmp_path) as serving,
            open_house(database_url, tmp_path, takes_chats=True) as running,
        ):
            await serving.add("root", role=Role.ADMIN)
            await serving.add_model("echo")
            chats = ChatRig(serving, await serving.add("ada"))
            chat = await chats.create("first")
            await until(partial(is_at_rest, chats, chat))
            sent = await chats.send(chat, "second")
            await until(partial(is_at_rest, chats, chat))
            turns = await collector.until("invoke_agent", 2)

    assert sent.status_code == 200, sent.text
    created, second = collector.one("POST /api/v1/chats"), collector.one("POST /api/v1/chats/{chat}/messages")
    assert [turn.links for turn in turns] == [[created.id], [second.id]]
    assert {turn.attributes["rookery.replica.id"] for turn in turns} == {str(running.replica.id)}


async def is_at_rest(chats: ChatRig, chat: str) -> bool:
    return bool((await chats.get(chat))["status"] == "waiting")
