"""Reports of model endpoints: parsed over the catalog, fetched once a day, and never the cause of a failed call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import anthropic.types
import msgspec
import pytest

from rookery.domain.chat.messages import Effort
from rookery.llm.http import HttpClients
from rookery.llm.types import Thinking
from rookery.llm.wire_model import Auth
from rookery.models.reported_models import (
    FRESH_SECONDS,
    MAX_BYTES,
    RETRY_SECONDS,
    Report,
    Reports,
    Source,
    read_anthropic,
    read_openrouter,
)
from rookery.runtime.secret_str import SecretStr
from rookery.testing.clock import FakeClock
from rookery.testing.fake_anthropic import FakeAnthropic, model_info
from rookery.testing.fake_server import Fault, Scenario
from tests.models.connect_rig import KEY

LADDER = (Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH, Effort.MAX)


def source(url: str = "https://api.anthropic.com", model: str = "claude-hoopoe-9", key: str = KEY) -> Source:
    return Source(
        provider_id=UUID(int=1),
        provider_type="anthropic",
        base_url=url,
        model=model,
        auth=Auth("x-api-key", SecretStr(key)),
        headers={"X-Team": "birds", "X-Api-Key": "not this one"},
    )


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


@pytest.fixture
async def reports(clients: HttpClients) -> AsyncIterator[Reports]:
    reports = Reports(clients, clock=FakeClock())
    yield reports
    await reports.close()


def read(info: dict[str, object], model: str = "claude-hoopoe-9") -> Report:
    return read_anthropic(source(model=model), msgspec.json.encode(info))


# Parsing


def test_info_of_the_fake_is_of_the_official_type() -> None:
    anthropic.types.ModelInfo.model_validate(model_info("m"), strict=False, extra="forbid")


@pytest.mark.parametrize(
    ("accepted", "thinking"),
    [
        (("adaptive", "disabled"), Thinking(adaptive=True, disabled=True)),
        (("adaptive", "disabled", "enabled"), Thinking(adaptive=True, disabled=True, budget=True)),
        (("enabled", "disabled"), Thinking(budget=True, disabled=True)),
        (("adaptive",), Thinking(adaptive=True, default_on=True, always_on=True)),
        (("adaptive", "between_tools"), Thinking(adaptive=True, between_tools=True)),
        ((), Thinking()),
    ],
)
def test_accepted_types_of_thinking_are_read(accepted: tuple[str, ...], thinking: Thinking) -> None:
    report = read(model_info("m", thinking=accepted))

    assert report.capabilities.thinking == thinking
    assert report.capabilities.reasoning_model is bool(accepted)


def test_limits_efforts_and_formats_are_read() -> None:
    report = read(model_info("m", max_tokens=5, max_input_tokens=6, efforts=("low", "max")))

    assert (report.capabilities.max_output, report.context_limit) == (5, 6)
    assert report.capabilities.efforts == (Effort.LOW, Effort.MAX)
    assert report.capabilities.json_schema
    assert read(model_info("m", efforts=())).capabilities.efforts == ()


def test_values_missing_in_the_report_come_from_the_catalog() -> None:
    report = read(model_info("claude-sonnet-5-5", thinking=("adaptive", "between_tools")), "claude-sonnet-5-5")
    silent = read({"id": "claude-opus-5-5", "type": "model"}, "claude-opus-5-5")

    assert report.capabilities.binds_thinking
    assert report.capabilities.thinking.default_on
    assert silent.capabilities.efforts == LADDER
    assert silent.context_limit is None


def test_hosts_behind_openrouter_count_by_the_best_of_them() -> None:
    endpoints = [
        {"context_length": 1000, "max_completion_tokens": None, "supported_parameters": ["temperature"]},
        {"context_length": 2000, "max_completion_tokens": 500, "supported_parameters": ["reasoning", "tool_choice"]},
    ]
    asked = msgspec.structs.replace(source(model="z/glm"), provider_type="openrouter")

    report = read_openrouter(asked, msgspec.json.encode({"data": {"id": "z/glm", "endpoints": endpoints}}))
    nobody = read_openrouter(asked, b'{"data":{"endpoints":[]}}')

    caps = report.capabilities
    assert (report.context_limit, caps.max_output) == (2000, 500)
    assert (caps.sampling, caps.forced_tool_choice, caps.json_schema, caps.reasoning_model) == (True, True, False, True)
    assert caps.efforts == (Effort.LOW, Effort.MEDIUM, Effort.HIGH)
    assert nobody.context_limit is None


# Fetching


async def test_endpoint_is_asked_with_the_key_and_the_providers_headers(reports: Reports) -> None:
    fake = FakeAnthropic(api_key=KEY)
    fake.offer(model_info("claude-hoopoe-9"))

    async with fake.listening() as url:
        report = await reports.refresh(source(url))
        with_version = await reports.refresh(source(f"{url}/v1/"))

    assert report is not None
    assert with_version == report
    request, second = fake.requests
    assert (request.method, request.path, request.auth_header) == ("GET", "/v1/models/claude-hoopoe-9", "x-api-key")
    assert second.path == request.path
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["x-team"] == "birds"


async def test_name_of_a_model_cannot_leave_its_place_in_the_path(reports: Reports) -> None:
    fake = FakeAnthropic(api_key=KEY)

    async with fake.listening() as url:
        assert await reports.refresh(source(url, model="../../admin?x=1#y")) is None

    assert fake.requests[0].path == "/v1/models/..%2F..%2Fadmin%3Fx=1%23y"


async def test_report_is_asked_for_once_a_day(clients: HttpClients) -> None:
    clock = FakeClock()
    reports = Reports(clients, clock=clock)
    fake = FakeAnthropic(api_key=KEY)
    fake.offer(model_info("claude-hoopoe-9", max_tokens=1))

    async with fake.listening() as url:
        asked = source(url)
        assert reports.find(asked) is None
        assert reports.find(asked) is None
        await reports.wait_idle()
        known = reports.find(asked)
        await clock.advance(FRESH_SECONDS - 1)
        reports.find(asked)
        await reports.wait_idle()
        assert len(fake.requests) == 1
        fake.offer(model_info("claude-hoopoe-9", max_tokens=2))
        await clock.advance(1)
        assert reports.find(asked) == known
        await reports.wait_idle()
        newer = reports.find(asked)

    assert len(fake.requests) == 2
    assert known is not None
    assert newer is not None
    assert (known.capabilities.max_output, newer.capabilities.max_output) == (1, 2)


def failures(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.msg == "model_report_failed" for record in caplog.records)


@pytest.mark.parametrize(
    "failure",
    [
        Scenario(status=404, body={"type": "error", "error": {"type": "not_found_error", "message": f"no {KEY}"}}),
        Scenario(status=500, body="broken"),
        Scenario(status=301, body="", headers={"location": "http://127.0.0.1:9/"}),
        Scenario(body="<html>", content_type="text/html"),
        Scenario(body="{not json"),
        Scenario(body=b'{"id": "\xff"}'),
        Scenario(body=[]),
        Scenario(body={"id": 5}),
        Scenario(body={"id": "m", "max_tokens": "many"}),
        Scenario(body=b"[" * 100_000),
        Scenario(body=b'{"id":"' + b"x" * MAX_BYTES + b'"}'),
        Scenario(body={"id": "m"}, fault=Fault.RESET, after_bytes=None),
        Scenario(body={"id": "m"}, fault=Fault.CUT, after_bytes=3),
    ],
)
async def test_failure_keeps_what_was_known_and_is_not_repeated_at_once(
    failure: Scenario, clients: HttpClients, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    clock = FakeClock()
    reports = Reports(clients, clock=clock)
    fake = FakeAnthropic(api_key=KEY)
    fake.offer(model_info("claude-hoopoe-9", max_tokens=1))

    async with fake.listening() as url:
        known = await reports.refresh(source(url))
        fake.pages["GET /v1/models/claude-hoopoe-9"] = failure
        assert await reports.refresh(source(url)) == known
        await clock.advance(RETRY_SECONDS - 1)
        assert reports.find(source(url)) == known
        await reports.wait_idle()
        first = failures(caplog)
        await clock.advance(1)
        reports.find(source(url))
        await reports.wait_idle()

    assert (first, failures(caplog)) == (1, 2)
    assert KEY not in "".join(str(record.__dict__) for record in caplog.records)


async def test_endpoint_that_does_not_answer_is_given_up(clients: HttpClients) -> None:
    reports = Reports(clients, clock=FakeClock(), fetch_seconds=0.05)
    fake = FakeAnthropic(api_key=KEY)
    fake.pages["GET /v1/models/claude-hoopoe-9"] = Scenario(body={}, fault=Fault.STALL, after_bytes=None)

    async with fake.listening() as url:
        async with asyncio.timeout(5):
            assert await reports.refresh(source(url)) is None
        await asyncio.wait_for(fake.requests[0].left.wait(), 1)


async def test_closing_ends_who_is_being_asked(clients: HttpClients) -> None:
    reports = Reports(clients, clock=FakeClock())
    fake = FakeAnthropic(api_key=KEY)
    fake.pages["GET /v1/models/claude-hoopoe-9"] = Scenario(body={}, fault=Fault.STALL, after_bytes=None)

    async with fake.listening() as url:
        reports.find(source(url))
        await fake.received()
        await reports.close()
        await asyncio.wait_for(fake.requests[0].left.wait(), 1)


async def test_waiters_share_one_question_and_one_who_leaves_does_not_end_it(reports: Reports) -> None:
    fake = FakeAnthropic(api_key=KEY)
    gate = asyncio.Event()
    fake.pages["GET /v1/models/claude-hoopoe-9"] = Scenario(
        events=[gate, msgspec.json.encode(model_info("claude-hoopoe-9"))], content_type="application/json"
    )

    async with fake.listening() as url:
        leaving = asyncio.create_task(reports.refresh(source(url)))
        staying = asyncio.create_task(reports.refresh(source(url)))
        await fake.received()
        leaving.cancel()
        assert await reports.first(source(url), wait_seconds=0) is None
        gate.set()
        report = await staying

    assert report is not None
    assert leaving.cancelled()
    assert len(fake.requests) == 1


async def test_providers_that_say_nothing_are_not_asked(reports: Reports) -> None:
    asked = msgspec.structs.replace(source("http://127.0.0.1:9"), provider_type="openai")

    assert reports.find(asked) is None
    assert await reports.first(asked, wait_seconds=1) is None
    assert await reports.refresh(asked) is None
