"""An OpenTelemetry collector for tests: a real OTLP/HTTP receiver on loopback that keeps what it gets.

It runs in threads of its own, like a separate process: the exporter must not depend on the event loop of the test.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from rookery.telemetry.redaction import SecretRegistry
from rookery.telemetry.tracing import spans
from rookery.telemetry.tracing.otel import OtelConfig, OtelExport
from rookery.telemetry.tracing.spans import RenderContent
from tests.eventually import until

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True, kw_only=True)
class ReceivedSpan:
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    events: Sequence[str]
    links: Sequence[tuple[str, str]]  # trace and span
    has_failed: bool
    started_ns: int
    ended_ns: int
    resource: Mapping[str, Any]
    scope: tuple[str, str]  # name and schema URL

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def id(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


@dataclass(kw_only=True)
class OtlpCollector:
    """A receiver that stores requests. `answer`, if set, replaces the default response 200."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: dict[str, list[Any]] = field(default_factory=dict)  # data points by metric; of the newest export
    headers: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    requests: int = 0
    answer: Answer | None = None

    def named(self, start: str) -> list[ReceivedSpan]:
        """Return the spans whose name begins like this, in the order of their start."""
        return sorted((span for span in self.spans if span.name.startswith(start)), key=lambda span: span.started_ns)

    def one(self, name: str) -> ReceivedSpan:
        """Return the only span of this name, or whose name begins like this."""
        found = [span for span in self.spans if span.name == name] or self.named(name)
        assert len(found) == 1, [span.name for span in self.spans]
        return found[0]

    async def until(self, start: str, count: int = 1) -> list[ReceivedSpan]:
        """Wait for this many spans whose name begins like this."""
        await until(lambda: len(self.named(start)) >= count)
        return self.named(start)

    def receive(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        match path:
            case "/v1/traces":
                self.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            case "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in resource.scope_metrics:
                        for metric in scope.metrics:
                            self.metrics[metric.name] = list(metric.histogram.data_points)
            case _:
                raise AssertionError(path)


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            collector.requests += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.answer is not None:
                collector.answer(self)
                return
            collector.headers.append(dict(self.headers))
            collector.receive(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        collector = OtlpCollector(url=f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def exporting(
    collector: OtlpCollector,
    *,
    secrets: SecretRegistry | None = None,
    content: RenderContent | None = None,
    **config: Any,
) -> AsyncIterator[OtelExport]:
    """Export all spans of this process to the collector. At the end of the block, all have arrived."""
    export = OtelExport(
        OtelConfig(endpoint=collector.url, **config),
        version="1.2.3",
        replica_id="replica-1",
        secrets=secrets or SecretRegistry(),
        content=content,
    )
    spans.install(export.tracer)
    try:
        yield export
    finally:
        spans.install(None)
        await export.close()


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource in request.resource_spans:
        of_resource = attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    attributes=attributes(span.attributes),
                    events=[event.name for event in span.events],
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    has_failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
                    started_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    resource=of_resource,
                    scope=(scope.scope.name, scope.schema_url),
                )


def attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
