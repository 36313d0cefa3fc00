"""An MCP server: its fields, their rules, and who may use it.

The struct has secrets only as sealed texts. `check` raises `InvalidInput` for the first wrong field, and its messages
never quote secrets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Role
from rookery.domain.chat.errors import InvalidInput

MAX_SLUG = 40
MAX_DISPLAY_NAME = 100
MAX_DESCRIPTION = 2000
MAX_ICON = 200
MAX_URL_BYTES = 2048
MAX_HEADERS = 20
MAX_HEADER_BYTES = 8192
MAX_SCOPES = 50
MAX_LISTED_TOOLS = 500
MAX_TOOL_NAME = 128
MAX_ALLOWED = 1000
MAX_CALL_SECONDS = 1800
MAX_OWN_SERVERS = 50  # of one user

T = TypeVar("T")

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
# RFC 6749, appendix A.4
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
# The client sets these headers itself: they belong to HTTP or to the protocol.
_RESERVED_HEADERS = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "upgrade"),
        *("te", "trailer", "keep-alive", "expect", "accept", "accept-encoding", "cookie", "proxy-authorization"),
        *("proxy-connection", "last-event-id"),
    }
)
_RESERVED_PREFIXES = ("mcp-", "x-rookery-", "proxy-")
# Parameters of an address whose value is a secret. In an address, a secret would be shown and logged.
_SECRET_PARAMETER = re.compile(
    r"(?:^|[_.-])(?:key|apikey|token|secret|passw(?:or)?d|pwd|pat|auth|authorization|credentials?|signature|sig|jwt)$"
    r"|(?:api|access|auth|secret|private)[_.-]?(?:key|token|secret)$",
    re.IGNORECASE,
)


class Transport(StrEnum):
    """The transport of a server. `auto` tries streamable HTTP first, then SSE."""

    AUTO = "auto"
    STREAMABLE_HTTP = "streamable_http"
    SSE = "sse"


class Availability(StrEnum):
    """Whether new chats use a server: always, unless the user switches it off, or only if the user switches it on."""

    FORCE_ON = "force_on"
    DEFAULT_ON = "default_on"
    DEFAULT_OFF = "default_off"


class AuthType(StrEnum):
    NONE = "none"
    API_KEY = "api_key"
    CUSTOM_HEADERS = "custom_headers"
    OAUTH2 = "oauth2"


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server as stored.

    `owner_id` is None for servers of the deployment. `workspace_id` is set for a server that a project's file names;
    `entry_hash` is then the entry to which the owner agreed, and `enabled` whether the file names that entry now. Names
    that end with `_enc` are sealed texts. `config_version` grows whenever connections and tool lists of the server
    become outdated.
    """

    id: UUID
    owner_id: UUID | None = None
    workspace_id: UUID | None = None
    entry_hash: str | None = None
    slug: str
    display_name: str = ""
    description: str = ""
    icon: str = ""
    url: str
    transport: Transport = Transport.AUTO
    enabled: bool = True
    availability: Availability = Availability.DEFAULT_OFF
    auth_type: AuthType = AuthType.NONE
    api_key_header: str | None = None
    api_key_enc: str | None = None
    header_names: tuple[str, ...] = ()
    headers_enc: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret_enc: str | None = None
    oauth_authorization_url: str | None = None
    oauth_token_url: str | None = None
    oauth_revocation_url: str | None = None
    oauth_scopes: tuple[str, ...] = ()
    allow_in_plan_mode: bool = False
    model_intent: bool = False
    forward_identity: bool = False
    tool_allow_list: tuple[str, ...] = ()
    tool_deny_list: tuple[str, ...] = ()
    allowed_users: tuple[UUID, ...] = ()
    allowed_roles: tuple[Role, ...] = ()
    call_timeout_seconds: int = 60
    config_version: int = 1
    created_by: UUID | None = None
    created_at: datetime = datetime.min
    updated_at: datetime = datetime.min

    @property
    def name(self) -> str:
        """The name that users see."""
        return self.display_name or self.slug

    @property
    def is_of_deployment(self) -> bool:
        return self.owner_id is None

    @property
    def is_forced(self) -> bool:
        return self.availability is Availability.FORCE_ON

    @property
    def is_discovered(self) -> bool:
        """Whether OAuth endpoints and the client are found by discovery and registration."""
        return self.auth_type is AuthType.OAUTH2 and self.oauth_client_id is None

    @property
    def can_log_in(self) -> bool:
        """Whether a login can end a refusal. A project's file does not say whether its server needs one."""
        is_unknown = self.workspace_id is not None and self.auth_type is AuthType.NONE
        return self.auth_type is AuthType.OAUTH2 or is_unknown

    def is_allowed_for(self, user_id: UUID, role: Role) -> bool:
        """Return whether a user may use the server, if it is enabled. Administrators have no additional rights here."""
        if self.owner_id is not None:
            return self.owner_id == user_id
        if not self.allowed_users and not self.allowed_roles:
            return True
        return user_id in self.allowed_users or role in self.allowed_roles

    def offers(self, tool: str) -> bool:
        """Return whether the allow list and the deny list permit a tool, by its original name."""
        return tool not in self.tool_deny_list and (not self.tool_allow_list or tool in self.tool_allow_list)


def check(server: McpServer) -> None:
    """Check the fields that need no other rows. Raises `InvalidInput` with the name of the field."""
    check_slug(server.slug)
    _check_text("display_name", server.display_name, MAX_DISPLAY_NAME)
    _check_text("icon", server.icon, MAX_ICON)
    if len(server.description) > MAX_DESCRIPTION or _CONTROL_BUT_LINES.search(server.description):
        raise InvalidInput(
            "description", f"The description is longer than {MAX_DESCRIPTION} characters or has control characters."
        )
    check_url("url", server.url)
    _check_tools("tool_allow_list", server.tool_allow_list)
    _check_tools("tool_deny_list", server.tool_deny_list)
    if len(server.allowed_users) > MAX_ALLOWED:
        raise InvalidInput("allowed_users", f"At most {MAX_ALLOWED} users can be listed.")
    if not 1 <= server.call_timeout_seconds <= MAX_CALL_SECONDS:
        raise InvalidInput("call_timeout_seconds", f"The time limit of a call is 1 to {MAX_CALL_SECONDS} seconds.")
    if server.owner_id is not None:
        _check_own(server)
    _check_auth(server)


def check_slug(slug: str) -> None:
    if not _SLUG.fullmatch(slug) or len(slug) > MAX_SLUG:
        raise InvalidInput(
            "slug", f"A slug has at most {MAX_SLUG} characters: a-z, 0-9 and single hyphens between them."
        )


def check_url(field: str, url: str) -> None:
    """Check the address of a server or of an OAuth endpoint. It must not contain a secret, because it is shown."""
    wrong = InvalidInput(
        field, f"This must be an absolute http or https URL of at most {MAX_URL_BYTES} bytes, without a fragment."
    )
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port != 0
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not host or not port_is_fine or len(url.encode()) > MAX_URL_BYTES:
        raise wrong
    if "#" in url or not url.isascii() or re.search(r"[\s\x00-\x1f\x7f\\<>\"{}|^`]", url):
        raise wrong
    if "@" in parts.netloc:
        raise InvalidInput(field, "This URL contains a user name or password. Send them in a header instead.")
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if _SECRET_PARAMETER.search(name):
            raise InvalidInput(
                field,
                "This URL contains a secret in its query. Remove it, and send it in a header instead.",
            )


def check_secret_url(field: str, url: str) -> None:
    """Check the address of an endpoint to which secrets are sent. Without TLS, only this machine is allowed."""
    check_url(field, url)
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise InvalidInput(field, "This URL must begin with https, because secrets are sent to it.")


def is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def check_header(field: str, name: str, value: str | None = None) -> None:
    """Check a header that is sent with every request. The messages never quote the value."""
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidInput(field, "A header's name has 1 to 200 letters, digits and hyphens.")
    if name.lower() in _RESERVED_HEADERS or name.lower().startswith(_RESERVED_PREFIXES):
        raise InvalidInput(field, f"The header {name} is set by the client itself.")
    if value is None:
        return
    if len(value) > MAX_HEADER_BYTES or not _HEADER_VALUE.fullmatch(value):
        raise InvalidInput(
            field,
            f"A header's value has 1 to {MAX_HEADER_BYTES} characters, no line breaks, and no white space around it.",
        )


def check_headers(field: str, headers: Mapping[str, str]) -> None:
    if not 1 <= len(headers) <= MAX_HEADERS:
        raise InvalidInput(field, f"Give 1 to {MAX_HEADERS} headers.")
    if len({name.lower() for name in headers}) < len(headers):
        raise InvalidInput(field, "A header is given twice.")
    for name, value in headers.items():
        check_header(f"{field}.{name}" if _HEADER_NAME.fullmatch(name) else field, name, value)


def _check_own(server: McpServer) -> None:
    if server.availability is Availability.FORCE_ON:
        raise InvalidInput("availability", "Only servers of the deployment can be forced on.")
    for field in ("allowed_users", "allowed_roles"):
        if getattr(server, field):
            raise InvalidInput(field, "A server of your own is for your chats only.")


def _check_auth(server: McpServer) -> None:
    auth = server.auth_type
    if (server.api_key_enc is None) is (auth is AuthType.API_KEY):
        raise InvalidInput("api_key", _mismatch(AuthType.API_KEY, "a key"))
    if (server.api_key_header is None) is (auth is AuthType.API_KEY):
        raise InvalidInput("api_key_header", _mismatch(AuthType.API_KEY, "the name of a header"))
    if server.api_key_header is not None:
        check_header("api_key_header", server.api_key_header)
    if (server.headers_enc is None) is (auth is AuthType.CUSTOM_HEADERS):
        raise InvalidInput("headers", _mismatch(AuthType.CUSTOM_HEADERS, "at least one header"))
    _check_oauth(server)


def _check_oauth(server: McpServer) -> None:
    given = {
        "oauth_client_id": server.oauth_client_id,
        "oauth_authorization_url": server.oauth_authorization_url,
        "oauth_token_url": server.oauth_token_url,
    }
    secret = server.oauth_client_secret_enc
    optional = {"oauth_client_secret": secret, "oauth_revocation_url": server.oauth_revocation_url}
    for field, value in {**given, **optional, "oauth_scopes": server.oauth_scopes}.items():
        if value and server.auth_type is not AuthType.OAUTH2:
            raise InvalidInput(field, "This needs the authentication type oauth2.")
    missing = [field for field, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise InvalidInput(
            missing[0],
            "Give the client id, the authorization URL and the token URL, or none of them: then they are discovered.",
        )
    for field, value in optional.items():
        if value is not None and missing:
            raise InvalidInput(field, "This needs a client id, an authorization URL and a token URL.")
    if server.oauth_client_id is not None:
        _check_text("oauth_client_id", server.oauth_client_id, 500, empty=False)
    for field in ("oauth_authorization_url", "oauth_token_url", "oauth_revocation_url"):
        url = getattr(server, field)
        if url is not None:
            check_secret_url(field, url)
    if len(server.oauth_scopes) > MAX_SCOPES or not all(_SCOPE.fullmatch(scope) for scope in server.oauth_scopes):
        raise InvalidInput("oauth_scopes", f"Give at most {MAX_SCOPES} scopes, without spaces, quotes and backslashes.")


def _mismatch(auth: AuthType, what: str) -> str:
    return f"The authentication type {auth} needs {what}; other types must have none."


def _check_text(field: str, text: str, most: int, *, empty: bool = True) -> None:
    if len(text) > most or _CONTROL.search(text) or not (empty or text):
        raise InvalidInput(field, f"This text is empty, longer than {most} characters, or has control characters.")


def _check_tools(field: str, names: Sequence[str]) -> None:
    if len(names) > MAX_LISTED_TOOLS:
        raise InvalidInput(field, f"At most {MAX_LISTED_TOOLS} tools can be listed.")
    for place, name in enumerate(names):
        if not 1 <= len(name) <= MAX_TOOL_NAME or _CONTROL.search(name):
            raise InvalidInput(f"{field}[{place}]", f"A tool's name has 1 to {MAX_TOOL_NAME} characters.")


def origin(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of an address. Secrets of one origin are never sent to another."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return parts.scheme, parts.hostname or "", port
    except ValueError:
        return "", url, None


def slug_of(name: str) -> str:
    """Return a slug for any name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_SLUG].strip("-") or "server"


def free_slug(slug: str, taken: Collection[str]) -> str:
    """Return the slug, or if it is taken, the first free one of slug-2, slug-3, ..."""
    number, found = 2, slug
    while found in taken:
        suffix = f"-{number}"
        found, number = slug[: MAX_SLUG - len(suffix)].rstrip("-") + suffix, number + 1
    return found


def unique(items: Iterable[T]) -> tuple[T, ...]:
    """Return the items without duplicates, in their order."""
    return tuple(dict.fromkeys(items))


def chosen(
    given: Sequence[UUID], servers: Iterable[McpServer], *, stored: Collection[UUID] = ()
) -> tuple[tuple[UUID, ...], tuple[UUID, ...]]:
    """Return the ids to store for a chat, and the ids that cannot be chosen.

    `servers` are the enabled servers that the owner may use. Forced servers are added. Ids in `stored` are always
    allowed, even if their servers no longer exist.
    """
    usable = {server.id: server for server in servers}
    forced = [server.id for server in usable.values() if server.is_forced]
    unknown = tuple(each for each in unique(given) if each not in usable and each not in stored)
    return unique((*given, *forced)), unknown
