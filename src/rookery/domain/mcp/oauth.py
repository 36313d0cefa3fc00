"""The rules of logins at MCP servers: challenges, metadata of servers, scopes, and answers of token endpoints. Pure.

The rules are those of RFC 6749, 6750, 7636, 8414, 8707, 9207 and 9728, as the MCP specification of 2026-07-28 applies
them. A `LoginError` describes the problem; it never quotes a token or a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.mcp import server as server_rules

# A token that expires within this time counts as expired.
DUE = timedelta(seconds=60)
OFFLINE = "offline_access"
MAX_TOKEN_BYTES = 64 * 1024
MAX_SCOPES = 100
# Of a challenge. More is not read, because the search for parameters takes long in what has none.
MAX_CHALLENGE = 4096
_MAX_LIFETIME_SECONDS = 10 * 365 * 86_400

_PARAMETER = re.compile(r'([A-Za-z0-9_-]{1,40})\s{0,9}=\s{0,9}(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_TOKEN = re.compile(r"[\x21-\x7e]+")
_PRINTABLE = re.compile(r"[^\x20-\x7e]")


class LoginError(Exception):
    """Raised if a login cannot be started, completed or refreshed. The message is a sentence for the user."""


class StateRejected(LoginError):
    """Raised if a callback belongs to no login that was started."""

    def __init__(self) -> None:
        super().__init__("This login is not the one that was begun here, or it has expired. Begin again.")


class ServerChanged(LoginError):
    """Raised if the server was changed during the login."""

    def __init__(self) -> None:
        super().__init__("The configuration of this MCP server has changed meanwhile. Begin again.")


class NotOAuth(LoginError):
    def __init__(self) -> None:
        super().__init__("This MCP server does not use OAuth, or is disabled.")


class ClientAuth(StrEnum):
    """The authentication of this client at token endpoints."""

    NONE = "none"
    BASIC = "client_secret_basic"
    POST = "client_secret_post"


class Challenge(msgspec.Struct, frozen=True):
    """The header `WWW-Authenticate` of a server that refuses a request."""

    resource_metadata: str | None = None
    scopes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def is_insufficient_scope(self) -> bool:
        return self.error == "insufficient_scope"


class ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a protected resource (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an authorization server (RFC 8414 or OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False


class TokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A successful answer of a token endpoint. `scopes` is None if the answer does not name them."""

    access_token: str
    refresh_token: str | None
    expires_at: datetime | None
    scopes: tuple[str, ...] | None


def parse_challenge(header: str | None) -> Challenge:
    """Read a `WWW-Authenticate` header. Only the scheme Bearer counts; a malformed header is an empty challenge."""
    if not header:
        return Challenge()
    header = header[:MAX_CHALLENGE]
    start = re.search(r"(?:^|,)\s*bearer(?:\s+|$)", header, re.IGNORECASE)
    if start is None:
        return Challenge()
    values: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(header[start.end() :]):
        values.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
    return Challenge(values.get("resource_metadata"), split_scopes(values.get("scope", "")), values.get("error"))


def split_scopes(text: str) -> tuple[str, ...]:
    return server_rules.unique(text.split())[:MAX_SCOPES]


def resource_metadata_urls(url: str) -> tuple[str, ...]:
    """Return the possible addresses of a server's own metadata: for its path first, then for its host."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    known = "/.well-known/oauth-protected-resource"
    places = [known + path, known] if path else [known]
    return tuple(urlunsplit((parts.scheme, parts.netloc, place, "", "")) for place in places)


def server_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the possible addresses of an issuer's metadata, in the order of the MCP specification."""
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    oauth, oidc = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    places = [oauth + path, oidc + path, path + oidc] if path else [oauth, oidc]
    return tuple(urlunsplit((parts.scheme, parts.netloc, place, "", "")) for place in places)


def canonical_resource(url: str) -> str:
    """Return the address of a server as a resource (RFC 8707): in lower case, without fragment and trailing slash."""
    parts = urlsplit(url)
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), path, parts.query, ""))


def check_resource(url: str, metadata: ResourceMetadata) -> str:
    """Return the resource for which a token is requested. Raise `LoginError` if the metadata describes another
    resource.
    """
    here, there = urlsplit(canonical_resource(url)), urlsplit(canonical_resource(metadata.resource))
    same_host = server_rules.origin(url) == server_rules.origin(metadata.resource)
    inside = (here.path.rstrip("/") + "/").startswith(there.path.rstrip("/") + "/")
    if not same_host or not inside or there.query not in ("", here.query):
        raise LoginError("The server's metadata is that of another address, so no login is sent there.")
    return metadata.resource


def check_server(issuer: str, metadata: ServerMetadata) -> ServerMetadata:
    """Return the metadata if it belongs to the issuer, has safe addresses, and offers PKCE.

    A trailing slash of the issuer is ignored, because servers often add or remove it.
    """
    if metadata.issuer.rstrip("/") != issuer.rstrip("/"):
        raise LoginError("The metadata of the authorization server names another issuer.")
    for field in ("authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint"):
        endpoint = getattr(metadata, field)
        if endpoint is not None:
            check_endpoint(endpoint, field)
    if "S256" not in (metadata.code_challenge_methods_supported or ()):
        raise LoginError("The authorization server does not offer PKCE with S256, so its logins are not safe.")
    return metadata


def check_endpoint(url: str, name: str) -> str:
    """Return the address. Raise `LoginError` if it is not https, except for addresses of this machine."""
    try:
        server_rules.check_secret_url(name, url)
    except InvalidInput:
        raise LoginError(f"The authorization server's {name} is not a valid https address.") from None
    return url


def wanted_scopes(
    *,
    configured: Sequence[str],
    challenged: Sequence[str],
    supported: Sequence[str] | None,
    offered: Sequence[str] | None,
    stepped_up: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the scopes to request.

    Configured scopes take precedence, then those of the challenge, then those that the resource supports. Scopes that a
    refusal has named are added, and also `offline_access` if the authorization server supports it.
    """
    base = configured or challenged or supported or ()
    offline = (OFFLINE,) if OFFLINE in (offered or ()) else ()
    return server_rules.unique((*base, *stepped_up, *offline))[:MAX_SCOPES]


def client_auth(metadata: ServerMetadata, *, has_secret: bool) -> ClientAuth:
    """Return an authentication method that both the server and this client support. The default of RFC 8414 is
    basic.
    """
    methods = metadata.token_endpoint_auth_methods_supported or (ClientAuth.BASIC,)
    if not has_secret:
        return ClientAuth.NONE
    return ClientAuth.POST if ClientAuth.BASIC not in methods and ClientAuth.POST in methods else ClientAuth.BASIC


def authorization_url(endpoint: str, parameters: Mapping[str, str]) -> str:
    """Return the address of the login page. Other query parameters of the endpoint are kept."""
    parts = urlsplit(endpoint)
    own = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in parameters]
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode([*own, *parameters.items()]), ""))


def check_issuer(given: str | None, *, issuer: str, is_required: bool) -> None:
    """Check the `iss` of an answer (RFC 9207), so that the answer of another server is not accepted."""
    if given is None and is_required:
        raise LoginError("The answer does not say which authorization server it is from.")
    if given is not None and given != issuer:
        raise LoginError("The answer is from another authorization server.")


def read_token_answer(answer: Mapping[str, Any], *, now: datetime) -> TokenAnswer:
    """Read a successful answer of a token endpoint. Raise `LoginError` if it has no usable token."""
    access, refresh = answer.get("access_token"), answer.get("refresh_token")
    if not _is_token(access):
        raise LoginError("The authorization server's answer has no usable access token.")
    if str(answer.get("token_type", "")).lower() != "bearer":
        raise LoginError("The authorization server's token is not of the type Bearer.")
    scope = answer.get("scope")
    return TokenAnswer(
        access_token=str(access),
        refresh_token=str(refresh) if _is_token(refresh) else None,
        expires_at=_expiry(answer.get("expires_in"), now),
        scopes=split_scopes(scope) if isinstance(scope, str) else None,
    )


def is_due(expires_at: datetime | None, now: datetime) -> bool:
    return expires_at is not None and expires_at - now <= DUE


def shown(text: object, most: int = 200) -> str:
    """Return text of a foreign server for a message: one line of printable ASCII, limited in length."""
    line = _PRINTABLE.sub("?", str(text)).strip()
    return line if len(line) <= most else line[: most - 3] + "..."


def granted(answer: TokenAnswer, asked: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes of a token. An answer without scopes grants the requested ones (RFC 6749, 5.1)."""
    return tuple(asked) if answer.scopes is None else answer.scopes


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TOKEN_BYTES and _TOKEN.fullmatch(value) is not None


def _expiry(value: object, now: datetime) -> datetime | None:
    """Return the expiry time of a token. Some servers send the number as text; other values count as unknown."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    if not 0 <= seconds <= _MAX_LIFETIME_SECONDS:
        return None
    return now + timedelta(seconds=seconds)
