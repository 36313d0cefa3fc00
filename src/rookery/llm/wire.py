"""What a wire is: a pure builder of requests and a pure fold over events. The driver in `model` does the rest.

One `Fold` reads one response. It never does I/O and never raises on what a server sends: the unknown is kept or
ignored, the broken ends in a `StreamError` part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rookery.llm.error_bodies import Hide, by_look
from rookery.llm.last_request import Past
from rookery.llm.types import Call, CallWarning, StreamPart, Wire


class PromptInvalid(ValueError):
    """The prompt breaks a rule of the wire: a bug in what built it. Such a request is never sent."""


class Event(msgspec.Struct, frozen=True):
    """One server-sent event. `name` is empty when the server sent none; `data` is not decoded yet."""

    name: str
    data: bytes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. `path` is relative to the base URL; authentication is added by the driver.

    `broken_prefix` is the fingerprint of the newest answer, when this request no longer has that prefix.
    `drops_stale_thinking`: the provider is told to drop thinking whose prefix changed, or is not shown it.
    """

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = {}
    warnings: tuple[CallWarning, ...] = ()
    prefix_fp: bytes | None = None
    broken_prefix: bytes | None = None
    drops_stale_thinking: bool = False


class Fold(Protocol):
    """Folds the events of one response into parts. After a terminal part it is not asked again."""

    @property
    def unknown(self) -> Mapping[str, int]:
        """How many events were ignored because nobody knows their types, by type."""
        ...

    def start(self, request_id: str | None, hide: Hide = by_look) -> None:
        """The answer is 200; its headers named this request. What errors quote passes `hide` before it is cut."""
        ...

    def feed(self, event: Event) -> Sequence[StreamPart]: ...

    def whole(self, body: bytes) -> Iterable[StreamPart]:
        """A server that ignored `stream` and answered with one JSON document; ends with a terminal part."""
        ...

    def end(self) -> Iterable[StreamPart]:
        """The stream is over without a terminal part so far; ends with one."""
        ...


class WireFormat(Protocol):
    """One provider's wire, configured for one provider row and model."""

    wire: Wire

    def build(self, call: Call, past: Past | None = None) -> Request:
        """The request. `past` is of this wire and chat; the bytes are the same without it, and take longer."""
        ...

    def fold(self, call: Call) -> Fold: ...
