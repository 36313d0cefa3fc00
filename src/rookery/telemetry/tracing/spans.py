"""The interface for traces: spans, the current span of a task, and the W3C header `traceparent`.

Without an installed tracer every function does nothing. A tracer is installed for the whole process, like the log,
because a process has one replica. No function may be called per token.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from enum import Enum
from types import MappingProxyType, TracebackType
from typing import Protocol, TypeAlias

import msgspec

from rookery.telemetry.tracing import names

Value: TypeAlias = str | int | float | bool | Sequence[str]
# Attributes with the value None are left out.
Attributes: TypeAlias = Mapping[str, Value | None]
NOTHING: Attributes = MappingProxyType({})

HEADER = "traceparent"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
# Longer headers are ignored. Version 00 has exactly 55 characters; later versions may add fields.
_MAX_HEADER = 256
_SAMPLED = 0x01


class TraceContext(msgspec.Struct, frozen=True):
    """The identity of a span, in lowercase hexadecimal digits. It can be sent to other processes and stored."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.is_sampled else 0:02x}"


def parse_traceparent(header: str | None) -> TraceContext | None:
    """Return the context in a `traceparent` header; None if there is none or it is not valid."""
    if header is None or len(header) > _MAX_HEADER:
        return None
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    if not int(match[2], 16) or not int(match[3], 16):
        return None
    return TraceContext(match[2], match[3], bool(int(match[4], 16) & _SAMPLED))


class Kind(Enum):
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span:
    """A span that records nothing. The span of an exporter is a subclass.

    `is_open` is True if attributes are recorded: the span is sampled and has not ended. `context` is None if no spans
    are exported.
    """

    __slots__ = ()

    @property
    def context(self) -> TraceContext | None:
        return None

    @property
    def is_open(self) -> bool:
        return False

    @property
    def is_ended(self) -> bool:
        return False

    def rename(self, name: str) -> None:
        """Replace the name, which was not known at the start."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def event(self, name: str, attributes: Attributes = NOTHING) -> None:
        """Add an event with the current time."""

    def link(self, context: TraceContext) -> None:
        """Add a link to another span."""

    def fail(self, error_type: str) -> None:
        """Mark the span as failed. Texts of errors are not exported, because they may contain secrets."""

    def end(self) -> None:
        """End the span. Idempotent."""

    def end_with(self, render: Callable[[], Attributes]) -> None:
        """End the span now, and add attributes that another thread computes before it is exported."""


NO_SPAN = Span()


# Renders the prompt and the answer of a model call, which this package does not know.
RenderContent: TypeAlias = Callable[..., Attributes]


class Tracer(Protocol):
    """Starts spans and records metrics. `content` is None unless texts of users and models are exported."""

    content: RenderContent | None

    def start(
        self,
        name: str,
        kind: Kind,
        *,
        parent: Span | TraceContext | None,
        links: Iterable[TraceContext],
        attributes: Attributes,
    ) -> Span: ...

    def record(self, metric: str, value: float, attributes: Attributes) -> None: ...


_tracer: Tracer | None = None
_current: ContextVar[Span] = ContextVar("rookery_span", default=NO_SPAN)


def install(tracer: Tracer | None) -> None:
    """Use this tracer for all spans of the process from now on; None ends tracing."""
    global _tracer
    _tracer = tracer


def is_on() -> bool:
    return _tracer is not None


def content() -> RenderContent | None:
    return None if _tracer is None else _tracer.content


def current() -> Span:
    """Return the current span of this task."""
    return _current.get()


def traceparent() -> str | None:
    """Return the header for requests that are made for the current span; None if it has ended or there is none."""
    span = _current.get()
    context = span.context
    return None if context is None or span.is_ended else context.traceparent


def exported_traceparent() -> str | None:
    """Return the header of the current span if it is exported, so that a later trace can link to it."""
    return traceparent() if _current.get().is_open else None


def start(
    name: str,
    kind: Kind = Kind.INTERNAL,
    attributes: Attributes = NOTHING,
    *,
    links: Iterable[TraceContext] = (),
) -> Span:
    """Start a span below the current span. The caller ends it.

    If the current span has ended, as for work in the background, the new span begins a trace that is linked to it.
    """
    if _tracer is None:
        return NO_SPAN
    above = _current.get()
    parent: Span | None = above
    if above.is_ended and above.context is not None:
        parent, links = None, (above.context, *links)
    return _tracer.start(name, kind, parent=parent, links=links, attributes=attributes)


def start_root(
    name: str,
    kind: Kind = Kind.INTERNAL,
    attributes: Attributes = NOTHING,
    *,
    parent: TraceContext | None = None,
    links: Iterable[TraceContext] = (),
) -> Span:
    """Start the first span of a trace, or the first one in this process if another process began the trace."""
    if _tracer is None:
        return NO_SPAN
    return _tracer.start(name, kind, parent=parent, links=links, attributes=attributes)


def record(metric: str, value: float, attributes: Attributes) -> None:
    """Record a value of a metric."""
    if _tracer is not None:
        _tracer.record(metric, value, attributes)


class Active:
    """Makes a span the current one of a `with` block. With `ends`, the block also ends the span, and errors fail it.

    Use it in plain coroutines only, because the block of an async generator may end in another task.
    """

    __slots__ = ("_ends", "_token", "span")

    def __init__(self, span: Span, *, ends: bool) -> None:
        self.span = span
        self._ends = ends
        self._token: Token[Span] | None = None

    def __enter__(self) -> Span:
        if self.span is not NO_SPAN:
            self._token = _current.set(self.span)
        return self.span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is None:
            return
        _current.reset(self._token)
        if not self._ends:
            return
        if error is not None:
            self.span.fail(error_type(error))
        self.span.end()


_OFF = Active(NO_SPAN, ends=False)


def active(span: Span) -> Active:
    """Make the span the current one of a `with` block, without ending it."""
    return _OFF if span is NO_SPAN else Active(span, ends=False)


def span(
    name: str,
    kind: Kind = Kind.INTERNAL,
    attributes: Attributes = NOTHING,
    *,
    links: Iterable[TraceContext] = (),
) -> Active:
    """Start a span below the current span, for a `with` block. An error that leaves the block fails the span."""
    if _tracer is None:
        return _OFF
    return Active(start(name, kind, attributes, links=links), ends=True)


def error_type(error: BaseException) -> str:
    return names.CANCELLED if isinstance(error, asyncio.CancelledError) else type(error).__name__
