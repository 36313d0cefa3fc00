"""Requests to MCP servers and authorization servers whose addresses come from users or from discovery documents.

Each address is checked when it is dialed, also after a redirect. Answers are bounded. Errors contain the origin of the
address and never its query, because a query may contain a secret.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpx2
import msgspec

from rookery.domain.mcp import server as server_rules
from rookery.domain.mcp.oauth import ClientAuth, LoginError, check_endpoint, shown
from rookery.mcp.guarded_http import TooLarge, read_bounded
from rookery.runtime.address_guard import Blocked, Unreachable

MAX_ANSWER_BYTES = 1024 * 1024
MAX_REDIRECTS = 10
ANSWER_SECONDS = 30.0
_REDIRECTS = (301, 302, 303, 307, 308)
_KEEPS_METHOD = (307, 308)
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "rookery"}


class Unanswered(LoginError):
    """Raised if a server does not give a usable answer. A later attempt may succeed."""


class Refusal(LoginError):
    """Raised if an authorization server refuses a request with an OAuth error. `error` is its code."""

    def __init__(self, origin: str, error: str, description: str | None, status: int) -> None:
        detail = f": {shown(description)}" if description else ""
        super().__init__(f"{origin} refused the request ({shown(error, 60)}{detail}).")
        self.error = error
        self.status = status


class Answer(msgspec.Struct, frozen=True):
    """An answer. `body` is its JSON object; None if it has none."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any] | None
    url: str


async def fetch(http: httpx2.AsyncClient, url: str, *, reads_body: bool = True) -> Answer:
    """Get a document and follow its redirects. Raise `Unanswered` on failure."""
    for _ in range(MAX_REDIRECTS + 1):
        if urlsplit(url).scheme not in ("http", "https"):
            raise Unanswered(f"{origin_of(url)} redirects to an address that is neither http nor https.")
        answer = await _send(http, http.build_request("GET", url, headers=_HEADERS), reads_body=reads_body)
        target = answer.headers.get("location")
        if answer.status not in _REDIRECTS or target is None:
            return answer
        before, url = url, urljoin(url, target)
        if urlsplit(before).scheme == "https" and urlsplit(url).scheme == "http":
            raise Unanswered(f"{origin_of(before)} redirects from https to http.")
    raise Unanswered(f"{origin_of(url)} redirects too often.")


async def post(
    http: httpx2.AsyncClient,
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    json: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] = {},
    reads_body: bool = True,
) -> Answer:
    """Send a form or a document. A redirect is followed only to the same origin, and only if it keeps the body."""
    for _ in range(MAX_REDIRECTS + 1):
        request = http.build_request("POST", url, data=form, json=json, headers={**_HEADERS, **headers})
        answer = await _send(http, request, reads_body=reads_body)
        target = answer.headers.get("location")
        if answer.status not in _REDIRECTS or target is None:
            return answer
        before, url = url, urljoin(url, target)
        if answer.status not in _KEEPS_METHOD or server_rules.origin(before) != server_rules.origin(url):
            raise Unanswered(f"{origin_of(before)} redirects a request with secrets, which is not followed.")
    raise Unanswered(f"{origin_of(url)} redirects too often.")


async def post_as_client(
    http: httpx2.AsyncClient,
    url: str,
    form: Mapping[str, str],
    *,
    client_id: str,
    client_secret: str | None,
    auth: ClientAuth,
) -> Answer:
    """Send a form to an endpoint of the authorization server, authenticated as this client."""
    check_endpoint(url, "endpoint")
    filled = dict(form)
    headers: dict[str, str] = {}
    if auth is ClientAuth.BASIC and client_secret is not None:
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"  # RFC 6749, 2.3.1
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        filled["client_id"] = client_id
        if client_secret is not None:
            filled["client_secret"] = client_secret
    return await post(http, url, form=filled, headers=headers)


def require_success(answer: Answer) -> dict[str, Any]:
    """Return the body of a successful answer. Raise `Refusal` for an OAuth error, otherwise `Unanswered`."""
    origin = origin_of(answer.url)
    if answer.status in (200, 201) and answer.body is not None and "error" not in answer.body:
        return answer.body
    error = None if answer.body is None else answer.body.get("error")
    # Some servers send errors with status 200. With 429 or 5xx, the server is overloaded or broken, whatever it says.
    if isinstance(error, str) and error and answer.status != 429 and answer.status < 500:
        description = None if answer.body is None else answer.body.get("error_description")
        raise Refusal(origin, error, description if isinstance(description, str) else None, answer.status)
    if answer.status in (200, 201):
        raise Unanswered(f"{origin} sent an answer that is not a JSON object.")
    raise Unanswered(f"{origin} answered with status {answer.status}.")


def origin_of(url: str) -> str:
    """Return the origin of an address, for messages."""
    parts = urlsplit(url)
    return shown(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")


async def _send(http: httpx2.AsyncClient, request: httpx2.Request, *, reads_body: bool = True) -> Answer:
    origin = origin_of(str(request.url))
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            response = await http.send(request, stream=True)
            try:
                data = await read_bounded(response, MAX_ANSWER_BYTES) if reads_body else b""
            finally:
                await response.aclose()
    except TimeoutError:
        raise Unanswered(f"{origin} does not answer: it took too long.") from None
    except Blocked as error:
        # The address itself is not shown: it would reveal names of the server's network.
        raise LoginError(
            f"{shown(error.host)} leads to an address of this machine or of a private network, which is not allowed."
        ) from None
    except TooLarge as error:
        raise Unanswered(f"{origin} sent an answer of {error}.") from None
    except (Unreachable, httpx2.RequestError, httpx2.InvalidURL, ValueError) as error:
        raise Unanswered(f"{origin} does not answer: {_why(error)}.") from None
    return Answer(response.status_code, response.headers, _object(data), str(request.url))


def _why(error: Exception) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "it took too long"
    return shown(str(error).rstrip(".") or type(error).__name__)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None
