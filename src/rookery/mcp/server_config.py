"""The configuration of a server for one user: its address, and the callbacks for the headers of each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

Transport: TypeAlias = Literal["auto", "streamable_http", "sse"]

DEFAULT_CALL_SECONDS = 60.0
MAX_CALL_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Unauthorized:
    """A response with status 401 or 403. `challenge` is its `WWW-Authenticate` header."""

    status: int
    challenge: str


Headers: TypeAlias = Callable[[], Awaitable[Mapping[str, str]]]
OnUnauthorized: TypeAlias = Callable[[Unauthorized], Awaitable[bool]]


async def no_headers() -> Mapping[str, str]:
    return {}


async def no_other_login(unauthorized: Unauthorized) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A server with the settings of one user.

    `key` identifies the server within a chat. `revision` changes with the configuration and with the user's login; a
    connection with another revision is replaced. `headers` is awaited for each request and returns its headers with the
    credentials. `on_unauthorized` is awaited after a status of 401 or 403; it returns whether the request is repeated
    once with new headers. `call_seconds` is the longest time without progress in a call.
    """

    key: str
    slug: str
    url: str
    transport: Transport = "auto"
    revision: str = ""
    id: UUID | None = None
    headers: Headers = no_headers
    on_unauthorized: OnUnauthorized = no_other_login
    call_seconds: float = DEFAULT_CALL_SECONDS

    @property
    def shown_url(self) -> str:
        """The address without user info, query and fragment, which may contain secrets."""
        return shown(self.url)


def shown(url: str) -> str:
    split = urlsplit(url)
    return urlunsplit((split.scheme, split.netloc.rpartition("@")[2], split.path, "", ""))
