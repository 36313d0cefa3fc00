"""The interface of a wire: a pure builder of requests and a pure fold over events. The driver in `model` does the rest.

One `Fold` reads one response. It never does I/O and never raises on what a server sends: unknown data is kept or
ignored, broken data ends in a `StreamError` part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rookery.llm.encoded_requests import EncodedRequest
from rookery.llm.error_bodies import Hide, by_look
from rookery.llm.types import Call, CallWarning, StreamPart, Wire


class PromptInvalid(ValueError):
    """Raised when the prompt breaks a rule of the wire: a bug in the code that built it. Such a request is never
    sent."""


class Event(msgspec.Struct, frozen=True):
    """One server-sent event. `name` is empty for an event without a name. `data` is the undecoded payload."""

    name: str
    data: bytes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send. `path` is relative to the base URL; the driver adds the authentication.

    `broken_prefix` is the fingerprint of the newest answer, if this request no longer has that prefix.
    `drops_stale_thinking`: the provider is asked to drop thinking whose prefix changed, or that thinking is not sent.
    """

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = {}
    warnings: tuple[CallWarning, ...] = ()
    prefix_fp: bytes | None = None
    broken_prefix: bytes | None = None
    drops_stale_thinking: bool = False


class Fold(Protocol):
    """Folds the events of one response into parts. It must not be used after a terminal part."""

    @property
    def unknown(self) -> Mapping[str, int]:
        """The number of events that were ignored because their types are unknown, by type."""
        ...

    def start(self, request_id: str | None, hide: Hide = by_look) -> None:
        """Start an answer of status 200; its headers named this request. Text that errors quote passes `hide` before
        it is cut."""
        ...

    def feed(self, event: Event) -> Sequence[StreamPart]: ...

    def whole(self, body: bytes) -> Iterable[StreamPart]:
        """Read the JSON document of a server that ignored `stream`; ends with a terminal part."""
        ...

    def end(self) -> Iterable[StreamPart]:
        """End a stream that had no terminal part so far; ends with one."""
        ...


class WireFormat(Protocol):
    """The wire of one provider, configured for one provider row and model."""

    wire: Wire

    def build(self, call: Call, past: EncodedRequest | None = None) -> Request:
        """Build the request. `past` is of this wire and chat; without it the bytes are the same, but take longer."""
        ...

    def fold(self, call: Call) -> Fold: ...
