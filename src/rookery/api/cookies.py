"""The session cookie: its name, and the headers that set and delete it.

The prefix `__Host-` makes browsers bind the cookie to this host over https. Browsers refuse that prefix over plain
http, which is meant for local use, so the cookie has another name there.
"""

from __future__ import annotations

from rookery.store.people.sessions import Session

PLAIN_NAME = "rookery_session"
SECURE_NAME = f"__Host-{PLAIN_NAME}"


def name(*, secure: bool) -> str:
    return SECURE_NAME if secure else PLAIN_NAME


def find_session(header: str | None, *, secure: bool) -> str | None:
    """Return the value of the session cookie in a `Cookie` header.

    `SimpleCookie` is not used. All ports of a host share their cookies, and it would drop the whole header because of
    one malformed value that another program on this machine has set.
    """
    wanted = name(secure=secure)
    for pair in (header or "").split(";"):
        found, _, value = pair.strip().partition("=")
        if found == wanted and value:
            return value
    return None


def set_header(session: Session, value: str, *, secure: bool) -> str:
    """Return the `Set-Cookie` header that keeps the session until it expires, or until the browser is closed."""
    age = max(0, int((session.expires_at - session.last_seen_at).total_seconds()))
    return _header(value, age if session.stays else None, secure=secure)


def delete_header(*, secure: bool) -> str:
    return _header("", 0, secure=secure)


def _header(value: str, age: int | None, *, secure: bool) -> str:
    """Build the header. Without an age the browser drops the cookie when it is closed."""
    lifetime = "" if age is None else f"; Max-Age={age}"
    flags = "; Secure" if secure else ""
    return f"{name(secure=secure)}={value}; Path=/{lifetime}; HttpOnly; SameSite=Lax{flags}"
