"""HTTP requests to the server: credentials, timeouts, retries and errors.

A failed request is retried only if it cannot take effect twice: reads, requests with an idempotency key, and requests
that the server refused before it did anything. Redirects are not followed, because they could send the token to another
server.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from random import Random
from typing import TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit, urlunsplit
from uuid import UUID

import httpx2
import msgspec

from rookery import __version__
from rookery.client import backoff, errors
from rookery.client.errors import ApiError, Conflict, RateLimited, TimedOut, Unavailable, UnexpectedAnswer, Unreachable
from rookery.runtime.clock import Clock, DeadlineExceeded

T = TypeVar("T")

API = "/api/v1"
USER_AGENT = f"rookery-python/{__version__}"
REFUSED = "the connection was refused"
# If a server asks for a longer delay, the error is raised and the caller decides.
MAX_WAIT_SECONDS = 30.0

_TOKEN = re.compile(r"[!-~]+")

Query: TypeAlias = Mapping[str, "str | int | bool | UUID | Sequence[str] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The connection settings of a server. `timeout_seconds` limits one whole try.

    `unix_socket` is the path of the socket that every connection uses instead of the host and port of `base_url`.
    """

    base_url: str
    token: str | None
    timeout_seconds: float
    max_retries: int
    clock: Clock
    rng: Random
    unix_socket: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Http:
    """An HTTP client for the API of one server. It adds the base URL and the credentials, and pools connections."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.base_url = normal_url(config.base_url)
        if config.token is not None:
            require_token(config.token)
        # For a client that logged in with a password. The connection pool holds the cookie that belongs to it.
        self.session_key: str | None = None
        self._client = httpx2.AsyncClient(
            headers={"User-Agent": USER_AGENT, "Accept": "application/json"},
            timeout=None,  # the clock's deadline applies instead
            trust_env=not is_loopback(self.base_url),  # no proxy is needed on the same machine
            transport=None if config.unix_socket is None else httpx2.AsyncHTTPTransport(uds=config.unix_socket),
        )

    async def close(self) -> None:
        await self._client.aclose()

    def url(self, path: str, query: Query | None = None) -> str:
        text = urlencode(_pairs(query or {}))
        return f"{self.base_url}{API}{path}{'?' if text else ''}{text}"

    def stream_request(self, path: str, query: Query | None = None) -> httpx2.Request:
        """Return a GET request with the credentials of this client. The stream sends it."""
        return self._client.build_request("GET", self.url(path, query), headers=self._credentials())

    async def send_stream(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response before its body is read."""
        return await self._client.send(request, stream=True)

    async def read(self, kind: type[T], path: str, query: Query | None = None) -> T:
        return self.decode(kind, await self.send("GET", path, query=query))

    async def write(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        body: object = None,
        key: str | None = None,
        is_repeatable: bool = False,
        timeout_seconds: float | None = None,
    ) -> T:
        """Send a change and return its response.

        With a `key` (`Idempotency-Key`), a repeated request has no further effect.
        """
        answer = await self.send(
            method, path, body=body, key=key, is_repeatable=is_repeatable, timeout_seconds=timeout_seconds
        )
        return self.decode(kind, answer)

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        is_repeatable: bool = False,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Send until there is a response, or no retry is left. Error responses are raised."""
        sent = {**self._credentials(), **(headers or {})}
        if body is not None:
            content, sent["Content-Type"] = msgspec.json.encode(body), "application/json"
        if key is not None:
            sent["Idempotency-Key"] = key
        request = self._client.build_request(method, self.url(path, query), content=content, headers=sent)
        may_repeat = method == "GET" or key is not None or is_repeatable
        seconds = timeout_seconds or self.config.timeout_seconds
        attempt = 0
        while True:
            try:
                return await self._once(request, seconds)
            except (ApiError, Unreachable, TimedOut) as error:
                delay = self._delay(error, attempt, may_repeat=may_repeat)
                if delay is None:
                    raise
            await self.config.clock.sleep(delay, "request-retry")
            attempt += 1

    def decode(self, kind: type[T], answer: Answer) -> T:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise UnexpectedAnswer(self.base_url, str(error)) from error

    async def _once(self, request: httpx2.Request, seconds: float) -> Answer:
        what = f"{request.method} {request.url.path}"
        try:
            async with self.config.clock.deadline(seconds, "request"):
                response = await self._client.send(request)
        except DeadlineExceeded as error:
            raise TimedOut(what, seconds) from error
        except httpx2.DecodingError as error:
            raise UnexpectedAnswer(self.base_url, str(error)) from error
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise Unreachable(self.base_url, reason_of(error)) from error
        answer = Answer(response.status_code, response.headers, response.content)
        if response.is_success:
            return answer
        raise self.refusal(answer)

    def refusal(self, answer: Answer) -> errors.RookeryError:
        """Return the error of a response."""
        return errors.api_error(answer.status, answer.headers, answer.body) or self._foreign(answer)

    def _foreign(self, answer: Answer) -> errors.RookeryError:
        """Return the error of a response that comes from a proxy.

        If the proxy cannot reach the server, the error is `Unreachable`.
        """
        if answer.status in (502, 503, 504):
            body = errors.ErrorBody("unavailable", f"The server behind {self.base_url} does not answer.")
            return Unavailable(answer.status, body, retry_after=errors.retry_after(answer.headers))
        return UnexpectedAnswer(self.base_url, f"it answers {answer.status} without a reason")

    def _delay(self, error: errors.RookeryError, attempt: int, *, may_repeat: bool) -> float | None:
        """Return the delay before the next try; None to give up."""
        if attempt >= self.config.max_retries or not _is_passing(error, may_repeat=may_repeat):
            return None
        asked = error.retry_after if isinstance(error, ApiError) else None
        if asked is not None and asked > MAX_WAIT_SECONDS:
            return None
        return max(asked or 0.0, backoff.request_delay(attempt, self.config.rng))

    def _credentials(self) -> dict[str, str]:
        if self.config.token is not None:
            return {"Authorization": f"Bearer {self.config.token}"}
        # With a cookie the server checks the origin of a request.
        origin = {"Origin": origin_of(self.base_url)}
        return origin if self.session_key is None else {**origin, "Rookery-Session-Key": self.session_key}


def _is_passing(error: errors.RookeryError, *, may_repeat: bool) -> bool:
    """Return whether the same request may succeed a little later, and cannot have taken effect already."""
    match error:
        case errors.QueueFull() | errors.TooManyStreams() | errors.SetupRequired():
            return False
        case RateLimited():
            return True  # refused before anything was checked
        case Unavailable() | Unreachable() | TimedOut():
            return may_repeat
        case Conflict(code="idempotency_in_progress"):
            return may_repeat  # the first try, whose response was lost, is still running
    return False


def path(*segments: object) -> str:
    """Return a path of these segments. Each segment is quoted, so that it cannot change the path."""
    return "".join(f"/{quote(str(segment), safe='')}" for segment in segments)


def normal_url(given: str) -> str:
    """Return the normalized address of a server. Users may write it with a final slash or with the path of the API."""
    text = given.strip()
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{given!r} is not the address of a server. It looks like http://127.0.0.1:7117.")
    if parts.username or parts.password:
        raise ValueError("The address of a server must not contain a password. Pass the token separately.")
    below = parts.path.rstrip("/").removesuffix(API)
    return urlunsplit((parts.scheme, parts.netloc, below, "", ""))


def require_token(given: str) -> None:
    """Refuse a token that a header cannot contain. The request would fail as if the server were unreachable."""
    if not _TOKEN.fullmatch(given):
        raise ValueError(
            "The token is empty, or contains spaces, line ends or other characters that no token has. Copy it again."
        )


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return f".{host}".endswith(".localhost")


def reason_of(error: Exception) -> str:
    """Return why a connection failed, in the words of the operating system if possible."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return REFUSED
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "the program there does not use TLS; try http instead of https"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).rstrip(".") or type(error).__name__


def _pairs(query: Query) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        match value:
            case None:
                continue
            case bool():
                pairs.append((name, "true" if value else "false"))
            case str() | int() | UUID():
                pairs.append((name, str(value)))
            case _:
                pairs.extend((name, each) for each in value)
    return pairs
