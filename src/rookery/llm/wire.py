"""The interface of a wire: a pure builder of requests, and a pure fold that converts events to parts.

The driver in `model` sends requests and reads responses. One `Fold` reads one response. It does no I/O and never raises
because of the data of a server: unknown data is kept or ignored, and invalid data ends with a `StreamError` part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.error_bodies import Hide, default_hide
from rookery.llm.types import Call, CallWarning, StreamPart, Wire


class PromptInvalid(ValueError):
    """Raised when the prompt breaks a rule of the wire, which is a bug. The request is not sent."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event. `name` is empty for an event without a name. `data` is the undecoded payload."""

    name: str
    data: bytes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send. `path` is relative to the base URL; the driver adds the authentication.

    `broken_prefix` is the prefix hash of the newest answer if this request has a different prefix.
    `drops_stale_thinking` means that thinking with a changed prefix is not sent, or that the provider drops it.
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
        """The number of ignored events by type, for unknown types."""
        ...

    @property
    def has_plain_deltas(self) -> bool:
        """Whether a delta of text or reasoning becomes a part, and changes nothing else in the fold."""
        ...

    def start(self, request_id: str | None, hide: Hide = default_hide) -> None:
        """Start a response with status 200. `hide` removes secrets from the texts of errors."""
        ...

    def feed(self, event: Event) -> Sequence[StreamPart]: ...

    def read_document(self, body: bytes) -> Iterable[StreamPart]:
        """Read the JSON document of a server that does not stream. The last part is terminal."""
        ...

    def end(self) -> Iterable[StreamPart]:
        """End a stream that had no terminal part. The last part is terminal."""
        ...


class WireFormat(Protocol):
    """A wire, configured for one provider row and model."""

    wire: Wire

    def build(self, call: Call, previous: EncodedRequest | None = None) -> Request:
        """Build the request.

        `previous` is the last request of the chat, which saves encoding; the bytes are the same.
        """
        ...

    def fold(self, call: Call) -> Fold: ...


def openai_account_headers(organization: str | None, project: str | None) -> Mapping[str, str]:
    """Return the headers that name the account to bill, on both wires of OpenAI."""
    named = {"OpenAI-Organization": organization, "OpenAI-Project": project}
    return {name: value for name, value in named.items() if value}


_any_json = msgspec.json.Decoder()


def is_complete_json(text: str) -> bool:
    """Return whether the input of a tool call is complete JSON. Wires use it for answers that were cut short.

    Empty input counts as incomplete, because it may not have begun.
    """
    try:
        _any_json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
