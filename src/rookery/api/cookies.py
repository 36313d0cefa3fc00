"""The cookie of a session: what it is called, and how it is set and taken back.

`__Host-` makes browsers keep it to this host over https; over plain http, which is for one's own machine, they would
refuse that name.
"""

from __future__ import annotations

from rookery.store.people.sessions import Session

PLAIN_NAME = "rookery_session"
SECURE_NAME = f"__Host-{PLAIN_NAME}"


def name(*, secure: bool) -> str:
    return SECURE_NAME if secure else PLAIN_NAME


def find(header: str | None, *, secure: bool) -> str | None:
    """The session in a `Cookie` header.

    Read by hand: cookies belong to a host whatever the port, and `SimpleCookie` gives up a whole header for one value
    of another program on this machine that it does not like.
    """
    wanted = name(secure=secure)
    for pair in (header or "").split(";"):
        found, _, value = pair.strip().partition("=")
        if found == wanted and value:
            return value
    return None


def keep(session: Session, value: str, *, secure: bool) -> str:
    """The `Set-Cookie` header that makes a browser keep the session until it ends, or until the browser is closed."""
    age = max(0, int((session.expires_at - session.last_seen_at).total_seconds()))
    return _header(value, age if session.stays else None, secure=secure)


def forget(*, secure: bool) -> str:
    return _header("", 0, secure=secure)


def _header(value: str, age: int | None, *, secure: bool) -> str:
    """Without an age a browser drops the cookie when it is closed."""
    lifetime = "" if age is None else f"; Max-Age={age}"
    flags = "; Secure" if secure else ""
    return f"{name(secure=secure)}={value}; Path=/{lifetime}; HttpOnly; SameSite=Lax{flags}"
