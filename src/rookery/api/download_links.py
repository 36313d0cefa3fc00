"""Signed download links: the addresses that may be signed, and the signature in their query.

Browsers do not send the session key when they load images and downloads. Only the addresses that pages need for this
can be signed, and all of them only read data.
"""

from __future__ import annotations

import re
from datetime import datetime
from urllib.parse import parse_qsl

from starlette.types import Scope

from rookery.store.people.signed_links import LinkKey, SignedTarget

PARAMETER = "signature"
MAX_TARGET_CHARS = 4096
# Cache lifetime of an answer to a signed link. A link is valid for at least as long.
CACHING = "private, max-age=300"

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BYTES = re.compile(rf"/api/v1/(?:files/{_UUID}|chats/{_UUID}/file/bytes)")
_REPORT = re.compile(r"/api/v1/(?:usage|audit)")
# The query as browsers write it. A query that a browser or proxy could rewrite is not signed.
_QUERY = re.compile(r"[A-Za-z0-9%*._~+&=:-]*", re.ASCII)


def is_signable(target: str) -> bool:
    """Return whether this address (path and query) is that of a file or of a downloadable report."""
    path, _, query = target.partition("?")
    if len(target) > MAX_TARGET_CHARS or not _QUERY.fullmatch(query):
        return False
    pairs = parse_qsl(query, keep_blank_values=True)
    if any(name == PARAMETER for name, _ in pairs):
        return False
    return _BYTES.fullmatch(path) is not None or (_REPORT.fullmatch(path) is not None and ("format", "csv") in pairs)


def sign(links: LinkKey, target: str, *, expires_at: datetime) -> str:
    """Return the address with a signature as its last query parameter."""
    joint = "&" if "?" in target else "?"
    return f"{target}{joint}{PARAMETER}={links.sign(target, expires_at=expires_at)}"


def find_signed(scope: Scope) -> SignedTarget | None:
    """Return the signed address of the request; None if it has no signature, or if its path does not accept one."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    rest, signature = _split(scope)
    target = f"{scope['path']}?{rest}" if rest else scope["path"]
    return SignedTarget(target, signature) if signature and is_signable(target) else None


def remove_signature(scope: Scope) -> None:
    """Remove the signature, so that the request looks like one with a session key."""
    scope["query_string"] = _split(scope)[0].encode("latin-1")


def _split(scope: Scope) -> tuple[str, str]:
    """Split the query into everything before its last parameter and the signature in it (empty if there is none)."""
    query = scope.get("query_string", b"").decode("latin-1")
    rest, _, last = query.rpartition("&")
    name, _, value = last.partition("=")
    return (rest, value) if name == PARAMETER else (query, "")
