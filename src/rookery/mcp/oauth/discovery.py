"""Discovery of an MCP server's authorization server, and registration of this deployment as a client there.

A server whose login is configured by hand needs neither. Every document is checked: it must name the resource or issuer
for which it was requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import httpx2
import msgspec

from rookery.domain.mcp import oauth as rules
from rookery.domain.mcp.oauth import ClientAuth, LoginError, ResourceMetadata, ServerMetadata
from rookery.mcp.oauth import guarded_requests
from rookery.mcp.oauth.guarded_requests import Unanswered
from rookery.store.mcp.logins import OAuthClient

T = TypeVar("T")
CLIENT_NAME = "Rookery"
# A request that changes nothing, and that servers with a login refuse.
_PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
_ACCEPT = {"Accept": "application/json, text/event-stream"}


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    """The discovered facts about the logins of a server. `scopes` are requested at a login, before any step-up."""

    issuer: str
    resource: str
    metadata: ServerMetadata
    challenged: tuple[str, ...] = ()
    supported: tuple[str, ...] | None = None


async def discover(http: httpx2.AsyncClient, url: str) -> Discovered:
    """Find the authorization server of an MCP server. Raise `LoginError`, which names the missing information."""
    challenge = await _challenge(http, url)
    found = await _resource_metadata(http, url, challenge.resource_metadata)
    if found is None:
        # Servers before the revision of 2025-06-18 are their own authorization servers.
        parts = urlsplit(url)
        issuer = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        metadata = await _server_metadata(http, issuer)
        if metadata is None:
            raise LoginError(
                f"{guarded_requests.origin_of(url)} does not say where to log in. If it needs a login, enter the "
                "client id, the authorization URL and the token URL."
            )
        return Discovered(
            issuer=metadata.issuer,
            resource=rules.canonical_resource(url),
            metadata=metadata,
            challenged=challenge.scopes,
        )
    resource = rules.check_resource(url, found)
    if not found.authorization_servers:
        raise LoginError("The server's metadata names no authorization server.")
    issuer = found.authorization_servers[0]
    rules.check_endpoint(issuer, "issuer")
    metadata = await _server_metadata(http, issuer)
    if metadata is None:
        raise LoginError(f"The authorization server {guarded_requests.origin_of(issuer)} has no metadata.")
    return Discovered(
        issuer=metadata.issuer,
        resource=resource,
        metadata=metadata,
        challenged=challenge.scopes,
        supported=found.scopes_supported,
    )


async def register(
    http: httpx2.AsyncClient, found: Discovered, *, redirect_uri: str, document_url: str | None, now: datetime
) -> OAuthClient:
    """Return a client: a client metadata document if the authorization server supports it, otherwise a registered
    client.

    `document_url` is the https address of this deployment's client metadata document; None if it has none.
    """
    metadata = found.metadata
    if metadata.client_id_metadata_document_supported and document_url is not None:
        return OAuthClient(
            id=uuid4(),
            client_id=document_url,
            client_secret=None,
            token_auth_method=ClientAuth.NONE,
            secret_expires_at=None,
        )
    if metadata.registration_endpoint is None:
        raise LoginError(
            f"{guarded_requests.origin_of(found.issuer)} registers no clients by itself. Register Rookery there with "
            f"the redirect address {redirect_uri}, and enter the client id, the authorization URL and the token URL."
        )
    asked = _auth_to_ask(metadata)
    answer = await guarded_requests.post(
        http,
        metadata.registration_endpoint,
        json={**client_document(redirect_uri), "token_endpoint_auth_method": asked},
    )
    return _registered(guarded_requests.require_success(answer), asked, now)


def client_document(redirect_uri: str, client_id: str | None = None) -> dict[str, Any]:
    """Return the metadata of this client (RFC 7591). With `client_id`, it is the document at that address."""
    document: dict[str, Any] = {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "web",
        "token_endpoint_auth_method": ClientAuth.NONE.value,
    }
    return document if client_id is None else {"client_id": client_id, **document}


def _auth_to_ask(metadata: ServerMetadata) -> str:
    methods: Sequence[str] = metadata.token_endpoint_auth_methods_supported or (ClientAuth.BASIC,)
    for each in (ClientAuth.NONE, ClientAuth.BASIC, ClientAuth.POST):
        if each in methods:
            return each.value
    raise LoginError("The authorization server accepts no authentication of clients that Rookery knows.")


def _registered(body: dict[str, Any], asked: str, now: datetime) -> OAuthClient:
    client_id, secret = body.get("client_id"), body.get("client_secret")
    if not isinstance(client_id, str) or not 1 <= len(client_id) <= 2048:
        raise LoginError("The authorization server's registration has no client id.")
    given = body.get("token_endpoint_auth_method", asked)
    if given not in set(ClientAuth):
        raise LoginError("The authorization server chose an authentication of clients that Rookery does not know.")
    auth = ClientAuth(given)
    if auth is not ClientAuth.NONE and not isinstance(secret, str):
        raise LoginError("The authorization server's registration has no client secret.")
    expiry = body.get("client_secret_expires_at")
    expires_at = None
    if isinstance(expiry, int) and now.timestamp() < expiry < 2**33:
        expires_at = datetime.fromtimestamp(expiry, UTC)
    return OAuthClient(
        id=uuid4(),
        client_id=client_id,
        client_secret=secret if isinstance(secret, str) and auth is not ClientAuth.NONE else None,
        token_auth_method=auth,
        secret_expires_at=expires_at,
    )


async def _challenge(http: httpx2.AsyncClient, url: str) -> rules.Challenge:
    """Send a request without a login, and return the challenge of the server. Everything else in the answer is ignored.

    The request is a POST, because many servers answer other methods without checking for a login.
    """
    for method in ("POST", "GET"):
        try:
            if method == "POST":
                answer = await guarded_requests.post(http, url, json=_PING, headers=_ACCEPT, reads_body=False)
            else:
                answer = await guarded_requests.fetch(http, url, reads_body=False)
        except Unanswered:
            continue  # its metadata may be found all the same
        header = answer.headers.get("www-authenticate")
        if answer.status in (401, 403) and header is not None:
            return rules.parse_challenge(header)
    return rules.Challenge()


async def _resource_metadata(http: httpx2.AsyncClient, url: str, named: str | None) -> ResourceMetadata | None:
    if named is not None:
        rules.check_endpoint(named, "metadata address")
        found = _read(await guarded_requests.fetch(http, named), ResourceMetadata)
        if found is None:
            raise LoginError(
                f"{guarded_requests.origin_of(named)} has no metadata of the server where the server says."
            )
        return found
    for place in rules.resource_metadata_urls(url):
        found = _read(await guarded_requests.fetch(http, place), ResourceMetadata)
        if found is not None:
            return found
    return None


async def _server_metadata(http: httpx2.AsyncClient, issuer: str) -> ServerMetadata | None:
    for place in rules.server_metadata_urls(issuer):
        found = _read(await guarded_requests.fetch(http, place), ServerMetadata)
        if found is not None:
            return rules.check_server(issuer, found)
    return None


def _read(answer: guarded_requests.Answer, kind: type[T]) -> T | None:
    """Return the document; None if the address has none. An error of the server does not count as a missing
    document.
    """
    if answer.status >= 500 or answer.status == 429:
        raise Unanswered(f"{guarded_requests.origin_of(answer.url)} answered with status {answer.status}.")
    if answer.status != 200 or answer.body is None:
        return None
    try:
        return msgspec.convert(answer.body, kind)
    except msgspec.ValidationError as error:
        raise LoginError(f"The metadata of {guarded_requests.origin_of(answer.url)} is not valid: {error}.") from None
