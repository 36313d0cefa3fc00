"""The cookie that binds the login at an MCP server to the browser that began it.

It is sent only to the callback of its server, and the callback is reached from another site, so it is `SameSite=Lax`.
"""

from __future__ import annotations

from uuid import UUID

from rookery.api.routes import PREFIX

MAX_AGE_SECONDS = 600
PLAIN_NAME = "rookery_mcp_login"
SECURE_NAME = f"__Secure-{PLAIN_NAME}"


def set_header(server_id: UUID, state: str, *, secure: bool) -> str:
    return _header(server_id, state, MAX_AGE_SECONDS, secure=secure)


def delete_header(server_id: UUID, *, secure: bool) -> str:
    return _header(server_id, "", 0, secure=secure)


def find_state(header: str | None, server_id: UUID, *, secure: bool) -> str | None:
    """Return the state in a `Cookie` header; None if it has none."""
    wanted = SECURE_NAME if secure else PLAIN_NAME
    for pair in (header or "").split(";"):
        found, _, value = pair.strip().partition("=")
        if found == wanted and value:
            return value
    return None


def _header(server_id: UUID, value: str, age: int, *, secure: bool) -> str:
    name, flags = (SECURE_NAME, "; Secure") if secure else (PLAIN_NAME, "")
    path = f"{PREFIX}/mcp-servers/{server_id}/oauth"
    return f"{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Lax{flags}"
