"""A fake authorization server with a protected MCP address. It refuses every request that breaks a rule.

    fake = FakeAuthorization()
    async with fake.listening():
        ...                                   # connect the client to `fake.resource`
        callback = fake.approve(authorization_url)   # what the user's browser does

Codes and refresh tokens are good once. A second use revokes the whole grant, as the security rules of OAuth demand. The
tokens of a grant are for one resource. `hold` makes a path wait, and `fail` makes it answer with an error.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import msgspec

from rookery.runtime.clock import Clock, SystemClock
from rookery.testing.fake_server import FakeServer, RecordedRequest, Scenario

SCOPES = ("read", "write")
_RESOURCE = "/mcp"
_METADATA = "/.well-known/oauth-protected-resource/mcp"


@dataclass(slots=True, kw_only=True)
class FakeClient:
    """A registered client. `secret` is None for a public one."""

    id: str
    secret: str | None
    method: str
    redirect_uris: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class FakeGrant:
    """A grant of a user. Only the newest `refresh_token` is valid."""

    client_id: str
    scopes: tuple[str, ...]
    refresh_token: str | None = None
    access_token: str = ""
    expires_at: float = 0.0
    is_alive: bool = True
    used: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class _Code:
    client_id: str
    redirect_uri: str
    challenge: str
    scopes: tuple[str, ...]
    grant: FakeGrant | None = None


class Violation(AssertionError):
    """Raised if the client's address of the login page breaks the rules."""


class FakeAuthorization:
    """The server. The public attributes say what it offers; tests change them before a client discovers it.

    `refreshes` counts redeemed refresh tokens, and `replays` those that were used again. `protects` is the address of
    another fake, which asks `accepts` about its tokens; without it, this server has a protected address itself.
    """

    def __init__(self, *, clock: Clock | None = None, protects: str | None = None) -> None:
        self._protects = protects
        self.clock = clock or SystemClock()
        self.server = FakeServer(respond=self._respond)
        self.agrees = True
        self.registers = True
        self.takes_documents = False
        self.challenge_methods: tuple[str, ...] | None = ("S256",)
        self.auth_methods: tuple[str, ...] = ("none", "client_secret_basic", "client_secret_post")
        self.sends_iss = True
        # Older servers do not name their metadata in the challenge, and have none.
        self.names_metadata = True
        self.scopes_supported: tuple[str, ...] = (*SCOPES, "offline_access")
        self.challenged_scopes: tuple[str, ...] = ()
        self.required_scopes: tuple[str, ...] = ()
        self.issues_refresh_tokens = True
        self.rotates = True
        self.revokes = True
        self.lifetime_seconds = 3600
        self.metadata_changes: dict[str, Any] = {}
        self.resource_changes: dict[str, Any] = {}
        self.clients: dict[str, FakeClient] = {}
        self.grants: list[FakeGrant] = []
        self.revoked: list[str] = []
        self.refreshes = 0
        self.replays = 0
        self.calls = 0
        self.asked: Counter[str] = Counter()
        self.base = ""
        self._numbers = itertools.count(1)
        self._codes: dict[str, _Code] = {}
        self._failures: defaultdict[str, deque[Scenario]] = defaultdict(deque)
        self._held: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[FakeAuthorization]:
        async with self.server.listening() as base:
            self.base = base
            yield self

    @property
    def resource(self) -> str:
        """The address of the protected MCP server."""
        return self._protects or self.base + _RESOURCE

    def accepts(self, token: str) -> bool:
        """Return whether this is a valid access token."""
        return self._grant_of(token) is not None

    def _grant_of(self, token: str | None) -> FakeGrant | None:
        now = self.clock.now().timestamp()
        valid = (each for each in self.grants if each.is_alive and each.expires_at > now)
        return next((each for each in valid if each.access_token == token and token), None)

    def fail(self, path: str, *scenarios: Scenario) -> None:
        """Answer the next requests of a path, such as `/token`, with these scenarios."""
        self._failures[path].extend(scenarios)

    def hold(self, path: str) -> asyncio.Event:
        """Delay the answers of a path until the event is set. The effect of the request has already happened."""
        return self._held.setdefault(path, asyncio.Event())

    def revoke_all(self) -> None:
        """End all grants, as a user does in the settings of the service."""
        for grant in self.grants:
            grant.is_alive = False

    def register(self, redirect_uri: str, *, secret: str | None = None, method: str = "none") -> FakeClient:
        """Register a client by hand."""
        client = FakeClient(
            id=f"client-{next(self._numbers)}", secret=secret, method=method, redirect_uris=(redirect_uri,)
        )
        self.clients[client.id] = client
        return client

    def approve(self, authorization_url: str) -> dict[str, str]:
        """Agree to a login. Return the parameters of the callback. Raise `Violation` for a wrong address."""
        given = self._checked(authorization_url)
        code = f"code-{next(self._numbers)}"
        self._codes[code] = _Code(
            client_id=given["client_id"],
            redirect_uri=given["redirect_uri"],
            challenge=given["code_challenge"],
            scopes=tuple(given.get("scope", "").split()),
        )
        answer = {"code": code, "state": given["state"]}
        return {**answer, "iss": self.base} if self.sends_iss else answer

    def deny(self, authorization_url: str) -> dict[str, str]:
        """Refuse a login."""
        given = self._checked(authorization_url)
        answer = {"error": "access_denied", "error_description": "The user said no.", "state": given["state"]}
        return {**answer, "iss": self.base} if self.sends_iss else answer

    def _checked(self, url: str) -> dict[str, str]:
        parts = urlsplit(url)
        if f"{parts.scheme}://{parts.netloc}{parts.path}" != f"{self.base}/authorize":
            raise Violation(f"{url} is not the login page")
        given = {name: values[0] for name, values in parse_qs(parts.query).items() if len(values) == 1}
        client = self._client(given.get("client_id", ""), given.get("redirect_uri", ""))
        wrong = {
            "client_id": client is None,
            "redirect_uri": client is not None and given.get("redirect_uri") not in client.redirect_uris,
            "response_type": given.get("response_type") != "code",
            "code_challenge_method": given.get("code_challenge_method") != "S256",
            "code_challenge": len(given.get("code_challenge", "")) != 43,
            "resource": given.get("resource") != self.resource,
            "state": len(given.get("state", "")) < 32,
            "scope": not set(given.get("scope", "").split()) <= {*self.scopes_supported, *self.required_scopes},
        }
        if broken := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise Violation(f"wrong parameters: {', '.join(broken)}")
        return given

    def _client(self, client_id: str, redirect_uri: str) -> FakeClient | None:
        if client_id not in self.clients and self.takes_documents and urlsplit(client_id).scheme == "https":
            # The document itself is not fetched, because it is on the server under test.
            self.clients[client_id] = FakeClient(
                id=client_id, secret=None, method="none", redirect_uris=(redirect_uri,)
            )
        return self.clients.get(client_id)

    # -- answers

    def _respond(self, request: RecordedRequest) -> Scenario:
        self.asked[request.path] += 1
        if self._failures[request.path]:
            return self._failures[request.path].popleft()
        answer = self._answer(request)
        held = self._held.get(request.path)
        if held is None:
            return answer
        return Scenario(
            events=(held, msgspec.json.encode(answer.body)),
            status=answer.status,
            headers=answer.headers,
            content_type="application/json",
        )

    def _answer(self, request: RecordedRequest) -> Scenario:
        match request.method, request.path:
            case _, "/mcp":
                return self._serve_resource(request)
            case "GET", path if path == _METADATA:
                metadata = {
                    "resource": self.resource,
                    "authorization_servers": [self.base],
                    "scopes_supported": list(SCOPES),
                    **self.resource_changes,
                }
                return Scenario(body=metadata)
            case "GET", "/.well-known/oauth-authorization-server":
                return Scenario(body=self._metadata())
            case "GET", "/authorize":
                return self._show_login(request)
            case "POST", "/register" if self.registers:
                return self._register(request)
            case "POST", "/token":
                return self._token(request)
            case "POST", "/revoke" if self.revokes:
                return self._revoke(request)
        return _error("not_found", status=404)

    def _show_login(self, request: RecordedRequest) -> Scenario:
        """Redirect the browser immediately, as if the user had agreed or refused."""
        url = f"{self.base}/authorize?{request.query}"
        answer = self.approve(url) if self.agrees else self.deny(url)
        callback = parse_qs(request.query)["redirect_uri"][0]
        return Scenario(status=302, body={}, headers={"location": f"{callback}?{urlencode(answer)}"})

    def _metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "issuer": self.base,
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
            "registration_endpoint": f"{self.base}/register" if self.registers else None,
            "revocation_endpoint": f"{self.base}/revoke" if self.revokes else None,
            "scopes_supported": list(self.scopes_supported),
            "code_challenge_methods_supported": self.challenge_methods,
            "token_endpoint_auth_methods_supported": list(self.auth_methods),
            "authorization_response_iss_parameter_supported": self.sends_iss,
            "client_id_metadata_document_supported": self.takes_documents,
            **self.metadata_changes,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _serve_resource(self, request: RecordedRequest) -> Scenario:
        token = request.api_key if request.auth_header == "authorization" else None
        grant = self._grant_of(token)
        if grant is None:
            scope = f', scope="{" ".join(self.challenged_scopes)}"' if self.challenged_scopes else ""
            challenge = "Bearer realm=mcp"
            if self.names_metadata:
                challenge = f'Bearer resource_metadata="{self.base}{_METADATA}"{scope}'
            if token:
                challenge += ', error="invalid_token"'
            return _error("unauthorized", status=401, headers={"www-authenticate": challenge})
        missing = [scope for scope in self.required_scopes if scope not in grant.scopes]
        if missing:
            wanted = " ".join(self.required_scopes)
            challenge = f'Bearer error="insufficient_scope", scope="{wanted}"'
            return _error("forbidden", status=403, headers={"www-authenticate": challenge})
        self.calls += 1
        return Scenario(body={"ok": True, "scopes": list(grant.scopes)})

    def _register(self, request: RecordedRequest) -> Scenario:
        body = request.body
        if not isinstance(body, dict) or not body.get("redirect_uris") or not body.get("client_name"):
            return _error("invalid_client_metadata")
        method = body.get("token_endpoint_auth_method", "client_secret_basic")
        if method not in self.auth_methods:
            return _error("invalid_client_metadata")
        secret = None if method == "none" else f"secret-{next(self._numbers)}"
        client = self.register(body["redirect_uris"][0], secret=secret, method=method)
        answer = {**body, "client_id": client.id, "client_id_issued_at": 1}
        if secret is not None:
            answer |= {"client_secret": secret, "client_secret_expires_at": 0}
        return Scenario(status=201, body=answer)

    def _token(self, request: RecordedRequest) -> Scenario:
        form = _form(request)
        if form is None:
            return _error("invalid_request")
        client = self._authenticated(request, form)
        if client is None:
            return _error("invalid_client", status=401)
        if form.get("resource") != self.resource:
            return _error("invalid_target")
        match form.get("grant_type"):
            case "authorization_code":
                return self._redeem_code(form, client)
            case "refresh_token":
                return self._refresh(form, client)
        return _error("unsupported_grant_type")

    def _authenticated(self, request: RecordedRequest, form: Mapping[str, str]) -> FakeClient | None:
        client_id, secret, method = form.get("client_id", ""), form.get("client_secret"), "client_secret_post"
        if request.auth_header == "authorization" and (request.api_key or "").startswith("Basic "):
            pair = base64.b64decode((request.api_key or "")[6:]).decode()
            client_id, secret = (unquote(part) for part in pair.split(":", 1))
            method = "client_secret_basic"
        client = self.clients.get(client_id)
        if client is None or client.secret != secret:
            return None
        return client if client.secret is None or client.method == method else None

    def _redeem_code(self, form: Mapping[str, str], client: FakeClient) -> Scenario:
        code = self._codes.get(form.get("code", ""))
        if code is None or code.client_id != client.id or code.redirect_uri != form.get("redirect_uri"):
            return _error("invalid_grant")
        if code.grant is not None:
            code.grant.is_alive = False
            return _error("invalid_grant")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != code.challenge:
            return _error("invalid_grant")
        code.grant = FakeGrant(client_id=client.id, scopes=code.scopes)
        self.grants.append(code.grant)
        return self._issue(code.grant)

    def _refresh(self, form: Mapping[str, str], client: FakeClient) -> Scenario:
        token = form.get("refresh_token", "")
        for grant in self.grants:
            if token in grant.used:
                self.replays += 1
                grant.is_alive = False
                return _error("invalid_grant")
            if grant.refresh_token == token and grant.is_alive and grant.client_id == client.id:
                self.refreshes += 1
                return self._issue(grant)
        return _error("invalid_grant")

    def _issue(self, grant: FakeGrant) -> Scenario:
        number = next(self._numbers)
        grant.access_token = f"access-{number}"
        grant.expires_at = self.clock.now().timestamp() + self.lifetime_seconds
        answer: dict[str, Any] = {
            "access_token": grant.access_token,
            "token_type": "Bearer",
            "expires_in": self.lifetime_seconds,
            "scope": " ".join(grant.scopes),
        }
        if self.issues_refresh_tokens and (self.rotates or grant.refresh_token is None):
            if grant.refresh_token is not None:
                grant.used.add(grant.refresh_token)
            grant.refresh_token = answer["refresh_token"] = f"refresh-{number}"
        return Scenario(body=answer, headers={"cache-control": "no-store"})

    def _revoke(self, request: RecordedRequest) -> Scenario:
        form = _form(request)
        if form is None or self._authenticated(request, form) is None:
            return _error("invalid_client", status=401)
        self.revoked.append(form.get("token", ""))
        for grant in self.grants:
            if form.get("token") in (grant.access_token, grant.refresh_token):
                grant.is_alive = False
        return Scenario(body={})


def oauth_error(error: str, *, status: int = 400, description: str | None = None) -> Scenario:
    """Return an error of OAuth, for `fail`."""
    body = {"error": error} if description is None else {"error": error, "error_description": description}
    return Scenario(status=status, body=body)


def _error(error: str, *, status: int = 400, headers: Mapping[str, str] = {}) -> Scenario:
    return Scenario(status=status, body={"error": error}, headers=headers)


def _form(request: RecordedRequest) -> dict[str, str] | None:
    """Return the fields of a form; None if the body is not a form or repeats a field."""
    if request.headers.get("content-type", "").split(";")[0] != "application/x-www-form-urlencoded":
        return None
    fields: Mapping[str, Sequence[str]] = parse_qs(request.raw.decode(), keep_blank_values=True)
    if any(len(values) != 1 for values in fields.values()):
        return None
    return {name: values[0] for name, values in fields.items()}
