"""The exporter for OpenTelemetry against a real receiver: what arrives, what never does, and receivers that fail."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from inspect import getmembers

import msgspec
import pytest
from opentelemetry.semconv._incubating.attributes import (
    db_attributes,
    gen_ai_attributes,
    http_attributes,
    service_attributes,
    url_attributes,
)
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes

from rookery.telemetry import log
from rookery.telemetry.redaction import SecretRegistry
from rookery.telemetry.tracing import names, otel, spans
from rookery.telemetry.tracing.spans import Attributes, Kind, TraceContext
from tests.eventually import until
from tests.otlp_collector import OtlpCollector, attributes, exporting, otlp_collector

SECRET = "hunter2-hunter2-hunter2"


async def test_span_arrives_with_its_attributes_events_and_identity() -> None:
    with otlp_collector() as collector:
        async with exporting(collector, headers={"authorization": "Bearer let-me-in"}):
            other = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True)
            values: Attributes = {"text": "a", "count": 2, "ratio": 0.5, "flag": True, "names": ["x", "y"]}
            given = {**values, "nothing": None}
            with spans.span("work", Kind.CLIENT, given, links=[other]) as span:
                span.event("halfway")
                span.rename("better work")

    span_ = collector.one("better work")
    assert span_.kind == "client"
    assert span_.attributes == values
    assert (span_.events, span_.links) == (["halfway"], [(other.trace_id, other.span_id)])
    assert span_.resource["service.name"] == "rookery"
    assert span_.resource["service.version"] == "1.2.3"
    assert span_.resource["service.instance.id"] == "replica-1"
    assert span_.scope == ("rookery", "https://opentelemetry.io/schemas/1.41.0")
    assert collector.headers[0]["authorization"] == "Bearer let-me-in"


async def test_standard_variable_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "agents-eu")
    with otlp_collector() as collector:
        async with exporting(collector):
            with spans.span("work"):
                pass

    assert collector.one("work").resource["service.name"] == "agents-eu"


async def test_values_that_cannot_be_encoded_are_changed_and_lose_no_other_span() -> None:
    with otlp_collector() as collector:
        async with exporting(collector):
            with spans.span("odd \ud800 name", attributes={"half": "\udc00", "huge": 10**40, "long": "x" * 100_000}):
                pass
            with spans.span("n" * 10_000):
                pass

    odd, long = collector.one("odd"), collector.one("nnn")
    assert odd.name == "odd \\ud800 name"
    assert (odd.attributes["half"], odd.attributes["huge"]) == ("\\udc00", 2**63 - 1)
    assert (len(odd.attributes["long"]), len(long.name)) == (otel.MAX_TEXT, otel.MAX_NAME)


async def test_known_secrets_and_keys_are_hidden_in_every_text_of_a_span() -> None:
    secrets = SecretRegistry()
    secrets.add("api_key", SECRET)
    key = "sk-abcdefghijklmnop"
    with otlp_collector() as collector:
        async with exporting(collector, secrets=secrets):
            told = {"text": f"it is {SECRET}", "list": [f"or {key}"], "url": f"https://me:{SECRET}@host/?token={key}"}
            with spans.span(f"do {SECRET}", attributes=told) as span:
                span.set({"late": SECRET, "cut": "x" * (otel.MAX_TEXT - 5) + SECRET})
                span.event("said", {"what": key})
                span.rename(f"done {SECRET}")
                span.fail(SECRET)
            with spans.span("content") as span:
                span.end_with(lambda: {"messages": f"remember {SECRET} and {key}"})

    assert len(collector.spans) == 2
    everything = b"".join(collector.bodies)
    assert SECRET.encode() not in everything
    assert key.encode() not in everything
    assert SECRET[:8].encode() not in everything
    assert collector.one("content").attributes["messages"] == "remember [REDACTED:api_key] and [REDACTED]"


async def test_content_is_rendered_by_another_thread_and_does_not_move_the_end_of_its_span() -> None:
    go, threads = asyncio.Event(), list[str]()

    def render() -> dict[str, str]:
        import threading

        threads.append(threading.current_thread().name)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return {"messages": "hello"}

    loop = asyncio.get_running_loop()
    with otlp_collector() as collector:
        async with exporting(collector):
            spans.start("slow content").end_with(render)
            ended_ns = time.time_ns()
            await until(lambda: threads)
            go.set()

    found = collector.one("slow content")
    assert found.attributes == {"messages": "hello"}
    assert found.ended_ns <= ended_ns
    assert threads[0].startswith("rookery-otel")


async def test_content_that_cannot_be_rendered_costs_only_the_content() -> None:
    def broken() -> dict[str, str]:
        raise RuntimeError("no")

    with otlp_collector() as collector:
        async with exporting(collector):
            spans.start("without content").end_with(broken)

    assert collector.one("without content").attributes == {}


async def test_client_can_neither_raise_the_amount_of_exported_data_nor_is_it_exported_against_its_wish() -> None:
    def sent(number: int, *, is_sampled: bool) -> TraceContext:
        # The sampler compares the lower half of the trace id with the ratio.
        return TraceContext(f"{number:032x}", f"{number:016x}", is_sampled)

    with otlp_collector() as collector:
        async with exporting(collector, sample=0.5):
            for number, is_sampled in ((1, True), (2**64 - 1, True), (2, False)):
                spans.start_root(f"of {number}", Kind.SERVER, parent=sent(number, is_sampled=is_sampled)).end()

    assert [span.name for span in collector.spans] == ["of 1"]


async def test_sample_of_zero_exports_nothing_and_children_follow_their_parent() -> None:
    with otlp_collector() as collector:
        async with exporting(collector, sample=0.0):
            for _ in range(20):
                with spans.span("parent"), spans.span("child"):
                    pass

    assert collector.spans == []


async def test_metrics_arrive_with_the_recommended_buckets() -> None:
    with otlp_collector() as collector:
        async with exporting(collector):
            spans.record(names.TOKEN_USAGE, 1500, {names.TOKEN_TYPE: "input"})
            spans.record(names.OPERATION_DURATION, 0.5, {names.REQUEST_MODEL: "m"})
            spans.record("no.such.metric", 1, {})

    (tokens,), (duration,) = collector.metrics[names.TOKEN_USAGE], collector.metrics[names.OPERATION_DURATION]
    assert (tokens.count, tokens.sum, attributes(tokens.attributes)) == (1, 1500, {"gen_ai.token.type": "input"})
    assert [*tokens.explicit_bounds][:3] == [1, 4, 16]
    assert tokens.explicit_bounds[-1] == 67108864
    assert (duration.explicit_bounds[0], duration.explicit_bounds[-1]) == (0.01, 81.92)
    assert set(collector.metrics) == {names.TOKEN_USAGE, names.OPERATION_DURATION}


async def test_metrics_can_be_left_out() -> None:
    with otlp_collector() as collector:
        async with exporting(collector, has_metrics=False):
            spans.record(names.TOKEN_USAGE, 1, {})
            spans.start("work").end()

    assert collector.metrics == {}
    assert len(collector.spans) == 1


def test_names_are_those_of_the_conventions() -> None:
    modules = (
        db_attributes,
        error_attributes,
        gen_ai_attributes,
        gen_ai_metrics,
        http_attributes,
        server_attributes,
        service_attributes,
        url_attributes,
    )
    known = {value for module in modules for _, value in getmembers(module) if isinstance(value, str)}
    providers = {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    ours = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str) and "." in value}

    unknown = {value for value in ours - known if not value.startswith(("rookery.", "https:"))}

    assert unknown == {names.CONVENTIONS}
    assert {names.CHAT, names.INVOKE_AGENT, names.EXECUTE_TOOL} <= operations
    assert set(names._PROVIDERS.values()) <= providers


# Collectors that fail


def refusing(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(400, "Nothing but \x1b[31mlies")


def overloaded(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(503)
    handler.send_header("Retry-After", "3600")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Answer with a body that never ends, as fast as it is read."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/x-protobuf")
    handler.end_headers()
    written = 0
    try:
        while written < 256 * 1024 * 1024:
            written += handler.wfile.write(b"x" * 65536)
    except OSError:
        pass
    handler.close_connection = True
    bytes_written.append(written)


def redirecting(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(307)
    handler.send_header("Location", "http://127.0.0.1:9/stolen")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


bytes_written: list[int] = []


def logged(sink: io.StringIO) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in sink.getvalue().splitlines()]


@pytest.mark.parametrize("answer", [refusing, overloaded, endless, redirecting])
async def test_hostile_collector_costs_one_warning_and_never_waits(
    answer: Callable[[BaseHTTPRequestHandler], None],
) -> None:
    sink = io.StringIO()
    handle = log.configure("info", "json", replica="r", stream=sink)
    bytes_written.clear()
    with otlp_collector() as collector:
        collector.answer = answer
        try:
            async with exporting(collector, has_metrics=False):
                started = time.monotonic()
                for _ in range(3):
                    for _ in range(otel.MAX_BATCH):
                        spans.start("work").end()
                took = time.monotonic() - started
                await until(lambda: collector.requests)
        finally:
            handle.close()

    # A status below 400 is a success for the exporter, whatever follows it.
    failures = [line["reason"] for line in logged(sink) if line["event"] == "otel_export_failed"]
    assert len(failures) == (0 if answer in (endless, redirecting) else 1), failures
    assert "\x1b" not in sink.getvalue()
    assert took < otel.EXPORT_SECONDS
    assert all(written < 16 * 1024 * 1024 for written in bytes_written)


async def test_collector_that_is_down_costs_one_warning() -> None:
    sink = io.StringIO()
    handle = log.configure("info", "json", replica="r", stream=sink)
    try:
        async with exporting(OtlpCollector(url="http://127.0.0.1:9")):
            spans.start("work").end()
            started = time.monotonic()
        took = time.monotonic() - started
    finally:
        handle.close()

    assert [line["event"] for line in logged(sink)] == ["otel_export_failed", "otel_not_flushed"]
    assert took < otel.FLUSH_SECONDS + 1


async def test_queue_of_spans_is_bounded_while_the_collector_hangs() -> None:
    let_go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result()
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True

    with otlp_collector() as collector:
        collector.answer = hang
        async with exporting(collector, has_metrics=False) as export:
            for _ in range(otel.MAX_BATCH):
                spans.start("first").end()
            await until(lambda: collector.requests)
            for _ in range(otel.MAX_QUEUED_SPANS + 1000):
                spans.start("more").end()
            processor = export._traces._active_span_processor._span_processors[0]
            assert len(processor._batch_processor._queue) == otel.MAX_QUEUED_SPANS  # type: ignore[attr-defined]

            started = time.monotonic()
            await export.close(seconds=0.2)
            took = time.monotonic() - started
            let_go.set()

    assert took < otel.EXPORT_SECONDS
