"""One request to the server: who asks, how long it may take, when it is tried again, and what its errors are called.

A request is repeated only where a repeat cannot act twice: reads, what carries a key that the server knows repeats by,
and what was refused before anything was done. Redirects are not followed: they would carry the token elsewhere.
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
# A server that asks for more than this is not waited for: the caller decides.
MAX_WAIT_SECONDS = 30.0

_TOKEN = re.compile(r"[!-~]+")

Query: TypeAlias = Mapping[str, "str | int | bool | UUID | Sequence[str] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How to reach a server. `timeout_seconds` is for one try, all told."""

    base_url: str
    token: str | None
    timeout_seconds: float
    max_retries: int
    clock: Clock
    rng: Random


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Http:
    """Requests under `/api/v1` of one server, over connections that are kept."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.base_url = normal_url(config.base_url)
        if config.token is not None:
            require_token(config.token)
        # Of a client that logged in with a password. The cookie that belongs to it is kept by the connection pool.
        self.session_key: str | None = None
        self._client = httpx2.AsyncClient(
            headers={"User-Agent": USER_AGENT, "Accept": "application/json"},
            timeout=None,  # the clock's deadline is the one that counts
            trust_env=not is_loopback(self.base_url),  # no proxy stands between this machine and itself
        )

    async def close(self) -> None:
        await self._client.aclose()

    def url(self, path: str, query: Query | None = None) -> str:
        text = urlencode(_pairs(query or {}))
        return f"{self.base_url}{API}{path}{'?' if text else ''}{text}"

    def stream_request(self, path: str, query: Query | None = None) -> httpx2.Request:
        """A GET with the credentials of this client, to be sent by whoever serves streams."""
        return self._client.build_request("GET", self.url(path, query), headers=self._credentials())

    async def send_stream(self, request: httpx2.Request) -> httpx2.Response:
        """The response with its body still to be read."""
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
        """A change, and what it answers. `key` makes a repeat harmless by `Idempotency-Key`."""
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
        """Send until there is an answer, or no use in trying again. Answers that are errors are raised."""
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
        """The error that an answer is."""
        return errors.api_error(answer.status, answer.headers, answer.body) or self._foreign(answer)

    def _foreign(self, answer: Answer) -> errors.RookeryError:
        """An answer of something in between: a proxy that has lost the server counts as one that is not there."""
        if answer.status in (502, 503, 504):
            body = errors.ErrorBody("unavailable", f"The server behind {self.base_url} does not answer.")
            return Unavailable(answer.status, body, retry_after=errors.retry_after(answer.headers))
        return UnexpectedAnswer(self.base_url, f"it answers {answer.status} without a reason")

    def _delay(self, error: errors.RookeryError, attempt: int, *, may_repeat: bool) -> float | None:
        """How long to wait before the next try; None to give up."""
        if attempt >= self.config.max_retries or not _is_passing(error, may_repeat=may_repeat):
            return None
        asked = error.retry_after if isinstance(error, ApiError) else None
        if asked is not None and asked > MAX_WAIT_SECONDS:
            return None
        return max(asked or 0.0, backoff.request_delay(attempt, self.config.rng))

    def _credentials(self) -> dict[str, str]:
        if self.config.token is not None:
            return {"Authorization": f"Bearer {self.config.token}"}
        # With a cookie the server asks where a request comes from.
        origin = {"Origin": origin_of(self.base_url)}
        return origin if self.session_key is None else {**origin, "Rookery-Session-Key": self.session_key}


def _is_passing(error: errors.RookeryError, *, may_repeat: bool) -> bool:
    """Whether the same request may succeed a little later, and cannot have acted already."""
    match error:
        case errors.QueueFull() | errors.TooManyStreams() | errors.SetupRequired():
            return False
        case RateLimited():
            return True  # refused before anything was looked at
        case Unavailable() | Unreachable() | TimedOut():
            return may_repeat
        case Conflict(code="idempotency_in_progress"):
            return may_repeat  # the first try, whose answer was lost, is still at it
    return False


def path(*segments: object) -> str:
    """A path of these segments; whatever is in them, none becomes another path."""
    return "".join(f"/{quote(str(segment), safe='')}" for segment in segments)


def normal_url(given: str) -> str:
    """The address of a server as people write it: with or without a slash or the path of the API at its end."""
    text = given.strip()
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{given!r} is not the address of a server. It looks like http://127.0.0.1:7117.")
    if parts.username or parts.password:
        raise ValueError("The address of a server holds no password; give the token by itself.")
    below = parts.path.rstrip("/").removesuffix(API)
    return urlunsplit((parts.scheme, parts.netloc, below, "", ""))


def require_token(given: str) -> None:
    """Refuse what no header can carry: it would fail as if the server were not there."""
    if not _TOKEN.fullmatch(given):
        raise ValueError(
            "The token is empty or holds spaces, line ends or other signs that no token has. Copy it again."
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
    """Why a connection failed, in the words of the operating system where it has some."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return REFUSED
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "what is there does not speak TLS; try http instead of https"
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
