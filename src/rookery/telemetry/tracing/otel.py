"""The exporter for OpenTelemetry: spans and metrics over OTLP/HTTP. Imported only if tracing is enabled.

Threads of the SDK send everything. A collector that is down, slow or hostile costs memory up to the limits below and
one warning a minute, and never delays a chat.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec
import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import SecretRegistry, encodable, hide_secrets
from rookery.telemetry.tracing import names
from rookery.telemetry.tracing.spans import NOTHING, Attributes, Kind, RenderContent, Span, TraceContext, Value

log = get_logger("telemetry.otel")

SCOPE = "rookery"
EXPORT_SECONDS = 10.0
FLUSH_SECONDS = 3.0
BATCH_DELAY_MS = 2_000
MAX_QUEUED_SPANS = 8_192
MAX_BATCH = 512
# Limits of one span. Content has its own limit (`debug.trace_content`).
MAX_NAME, MAX_TEXT = 200, 1_024
LIMITS = SpanLimits(max_span_attributes=64, max_events=32, max_links=32, max_event_attributes=16)
# Spans whose content waits to be rendered. Beyond it, spans are exported without content.
MAX_RENDERING = 64
# A collector answers with a few bytes. The rest of a longer answer is not read.
MAX_ANSWER_BYTES = 64 * 1024
WARN_SECONDS = 60.0
_MAX_INT = 2**63 - 1

_KINDS = {
    Kind.INTERNAL: trace.SpanKind.INTERNAL,
    Kind.SERVER: trace.SpanKind.SERVER,
    Kind.CLIENT: trace.SpanKind.CLIENT,
}


class OtelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration.

    `endpoint` is the base URL of the collector. `sample` is the part of all traces that is exported, from 0 to 1.
    """

    endpoint: str
    headers: Mapping[str, str] = {}
    sample: float = 1.0
    has_metrics: bool = True


class OtelSpan(Span):
    """A span of the SDK."""

    __slots__ = ("_context", "_has_failed", "_is_ended", "_native", "_tracer")

    def __init__(self, native: trace.Span, tracer: OtelTracer) -> None:
        self._native = native
        self._tracer = tracer
        self._has_failed = False
        self._is_ended = False
        found = native.get_span_context()
        self._context = TraceContext(
            trace.format_trace_id(found.trace_id), trace.format_span_id(found.span_id), found.trace_flags.sampled
        )

    @property
    def context(self) -> TraceContext:
        return self._context

    @property
    def is_open(self) -> bool:
        return not self._is_ended and self._native.is_recording()

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    @property
    def native(self) -> trace.Span:
        return self._native

    def rename(self, name: str) -> None:
        self._native.update_name(self._tracer.clean(name, MAX_NAME))

    def set(self, attributes: Attributes) -> None:
        if self.is_open:
            self._native.set_attributes(self._tracer.plain(attributes))

    def event(self, name: str, attributes: Attributes = NOTHING) -> None:
        if self.is_open:
            self._native.add_event(name, self._tracer.plain(attributes))

    def link(self, context: TraceContext) -> None:
        if self.is_open:
            self._native.add_link(_native_context(context))

    def fail(self, error_type: str) -> None:
        if self.is_open and not self._has_failed:
            self._has_failed = True
            self._native.set_attribute(names.ERROR_TYPE, self._tracer.clean(error_type, MAX_TEXT))
            self._native.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._native.end()

    def end_with(self, render: Callable[[], Attributes]) -> None:
        if self._is_ended or not self._native.is_recording():
            self.end()
            return
        self._is_ended = True
        self._tracer.finish_later(self._native, render, ended_at=time.time_ns())


class OtelTracer:
    """Makes spans of the SDK. Strings are cut, and secrets in them are hidden."""

    def __init__(
        self,
        traces: TracerProvider,
        metrics: MeterProvider | None,
        *,
        version: str,
        secrets: SecretRegistry,
        content: RenderContent | None = None,
    ) -> None:
        self.content = content
        self._secrets = secrets
        self._tracer = traces.get_tracer(SCOPE, version, names.SCHEMA_URL)
        self._histograms = {} if metrics is None else _histograms(metrics, version)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rookery-otel")
        self._rendering = threading.BoundedSemaphore(MAX_RENDERING)

    def start(
        self,
        name: str,
        kind: Kind,
        *,
        parent: Span | TraceContext | None,
        links: Iterable[TraceContext],
        attributes: Attributes,
    ) -> OtelSpan:
        native = self._tracer.start_span(
            self.clean(name, MAX_NAME),
            context=_parent_context(parent),
            kind=_KINDS[kind],
            attributes=self.plain(attributes),
            links=[trace.Link(_native_context(each)) for each in links],
            record_exception=False,
            set_status_on_exception=False,
        )
        return OtelSpan(native, self)

    def record(self, metric: str, value: float, attributes: Attributes) -> None:
        if (histogram := self._histograms.get(metric)) is not None:
            histogram.record(value, self.plain(attributes))

    def plain(self, attributes: Attributes) -> dict[str, Any]:
        """Return the attributes in a form that can always be encoded.

        An attribute that cannot be encoded would lose a batch of spans.
        """
        return {name: self._value(value) for name, value in attributes.items() if value is not None}

    def clean(self, text: str, limit: int) -> str:
        # A secret that is cut at the end would not be recognized, so more than the limit is searched.
        return encodable(hide_secrets(text[: 2 * limit], self._secrets))[:limit]

    def finish_later(self, native: trace.Span, render: Callable[[], Attributes], *, ended_at: int) -> None:
        """Add the rendered attributes and end the span, in a thread."""
        if not self._rendering.acquire(blocking=False):
            native.end(ended_at)
            return
        try:
            self._executor.submit(self._finish, native, render, ended_at)
        except RuntimeError:  # the process is ending
            native.end(ended_at)

    def close(self) -> None:
        self._executor.shutdown(wait=True)

    def _finish(self, native: trace.Span, render: Callable[[], Attributes], ended_at: int) -> None:
        try:
            for name, value in render().items():
                if value is not None:
                    content = encodable(hide_secrets(value, self._secrets)) if isinstance(value, str) else value
                    native.set_attribute(name, content)
        except Exception as error:
            log.warning("content_not_exported", error=type(error).__name__)
        finally:
            native.end(ended_at)
            self._rendering.release()

    def _value(self, value: Value) -> Value:
        if isinstance(value, str):
            return self.clean(value, MAX_TEXT)
        if isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            return max(-_MAX_INT, min(value, _MAX_INT))
        return [self.clean(each, MAX_TEXT) for each in value]


class OtelExport:
    """The export of one process. The caller installs `tracer`; `close` sends the remaining spans."""

    def __init__(
        self,
        config: OtelConfig,
        *,
        version: str,
        replica_id: str,
        secrets: SecretRegistry,
        content: RenderContent | None = None,
        metric_seconds: float = 60.0,
    ) -> None:
        _warnings.begin()
        resource = Resource.create(
            {names.SERVICE_VERSION: version, names.SERVICE_INSTANCE: replica_id}, names.SCHEMA_URL
        )
        if str(resource.attributes.get(names.SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES do not set a name.
            resource = resource.merge(Resource({names.SERVICE_NAME: SCOPE}))
        by_ratio = TraceIdRatioBased(config.sample)
        self._traces = TracerProvider(
            # A client that sends a trace cannot raise the amount of exported data.
            sampler=ParentBased(by_ratio, remote_parent_sampled=by_ratio, remote_parent_not_sampled=ALWAYS_OFF),
            resource=resource,
            shutdown_on_exit=False,
            span_limits=LIMITS,
        )
        spans_exporter = OTLPSpanExporter(
            endpoint=f"{config.endpoint}/v1/traces",
            headers=config.headers,
            timeout=EXPORT_SECONDS,
            session=BoundedSession(),
        )
        self._exporters: list[OTLPSpanExporter | OTLPMetricExporter] = [spans_exporter]
        self._traces.add_span_processor(
            BatchSpanProcessor(
                spans_exporter,
                max_queue_size=MAX_QUEUED_SPANS,
                schedule_delay_millis=BATCH_DELAY_MS,
                max_export_batch_size=MAX_BATCH,
            )
        )
        self._metrics: MeterProvider | None = None
        if config.has_metrics:
            metric_exporter = OTLPMetricExporter(
                endpoint=f"{config.endpoint}/v1/metrics",
                headers=dict(config.headers),
                timeout=EXPORT_SECONDS,
                session=BoundedSession(),
            )
            self._exporters.append(metric_exporter)
            reader: MetricReader = PeriodicExportingMetricReader(
                metric_exporter, export_interval_millis=metric_seconds * 1000
            )
            self._metrics = MeterProvider([reader], resource, shutdown_on_exit=False)
        self.tracer = OtelTracer(
            self._traces,
            self._metrics,
            version=version,
            secrets=secrets,
            content=content,
        )

    async def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Send the remaining spans, for at most this long. A thread that hangs in a request is not waited for."""
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self.tracer.close()
            if self._metrics is not None:
                with suppress(Exception):
                    self._metrics.shutdown(timeout_millis=seconds * 1000)
            self._traces.shutdown()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(is_done.set)

        # An executor is not used, because the interpreter would wait for its threads.
        threading.Thread(target=shut_down, name="rookery-otel-close", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await is_done.wait()
        except TimeoutError:
            log.warning("otel_not_flushed", seconds=seconds)
        finally:
            _warnings.end()
            for exporter in self._exporters:
                exporter.shutdown()  # no more retries; a second call does nothing


class BoundedSession(requests.Session):
    """Reads at most `MAX_ANSWER_BYTES` of an answer, within the timeout of its request."""

    def request(self, *args: Any, **options: Any) -> requests.Response:
        ends_at = time.monotonic() + (options.get("timeout") or EXPORT_SECONDS)
        response = super().request(*args, **{**options, "stream": True})
        body, is_whole = bytearray(), False
        try:
            while len(body) < MAX_ANSWER_BYTES and time.monotonic() < ends_at:
                chunk = response.raw.read1(MAX_ANSWER_BYTES)
                if not chunk:
                    is_whole = True
                    break
                body += chunk
        except Exception:
            # The status has arrived, and nothing else of the answer is used.
            is_whole = False
        if not is_whole:
            response.close()
        response._content = bytes(body)
        return response


class _ExportWarnings(logging.Handler):
    """Turns the messages of the SDK into one warning a minute. They may quote answers of the collector.

    It stays attached to the SDK's logger, because a thread that was left behind may log after the export has ended.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_open = False
        self._said_at: float | None = None
        self._unsaid = 0

    def begin(self) -> None:
        logger = logging.getLogger("opentelemetry")
        logger.propagate = False
        logger.addHandler(self)  # once: handlers are unique
        self._is_open, self._said_at, self._unsaid = True, None, 0

    def end(self) -> None:
        self._is_open = False

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if not self._is_open:
            return
        if self._said_at is not None and now - self._said_at < WARN_SECONDS:
            self._unsaid += 1
            return
        unsaid, self._unsaid, self._said_at = self._unsaid, 0, now
        log.warning("otel_export_failed", reason=record.getMessage()[:300], similar=unsaid)


_warnings = _ExportWarnings()


def _histograms(provider: MeterProvider, version: str) -> dict[str, Histogram]:
    meter = provider.get_meter(SCOPE, version, names.SCHEMA_URL)
    rows = (
        (names.TOKEN_USAGE, "{token}", "Number of input and output tokens used.", names.TOKEN_BOUNDS),
        (names.OPERATION_DURATION, "s", "Duration of model calls.", names.DURATION_BOUNDS),
        (names.TIME_TO_FIRST_CHUNK, "s", "Time until the first part of an answer.", names.FIRST_CHUNK_BOUNDS),
    )
    return {
        name: meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=bounds)
        for name, unit, text, bounds in rows
    }


def _native_context(context: TraceContext, *, is_remote: bool = True) -> trace.SpanContext:
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if context.is_sampled else trace.TraceFlags.DEFAULT)
    return trace.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, flags)


def _parent_context(parent: Span | TraceContext | None) -> Context:
    """Return the context below which a span starts. An empty one starts a trace."""
    if isinstance(parent, OtelSpan):
        return trace.set_span_in_context(parent.native, Context())
    if isinstance(parent, TraceContext):
        return trace.set_span_in_context(trace.NonRecordingSpan(_native_context(parent)), Context())
    return Context()
