"""Which addresses a page may have signed, and how the signature stands in them.

Browsers load pictures and downloads by themselves and send no session key with them. The addresses that pages use in
this way are few, and they only read. No other address is signed or accepted.
"""

from __future__ import annotations

import re
from datetime import datetime
from urllib.parse import parse_qsl

from starlette.types import Scope

from rookery.store.people.signed_links import LinkKey, SignedTarget

PARAMETER = "signature"
MAX_TARGET_CHARS = 4096
# What a browser may keep of a signed answer. A link lasts at least as long.
CACHING = "private, max-age=300"

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BYTES = re.compile(rf"/api/v1/(?:files/{_UUID}|chats/{_UUID}/file/bytes)")
_REPORT = re.compile(r"/api/v1/(?:usage|audit)")
# As browsers write it. Whatever they or a proxy would write differently is not signed.
_QUERY = re.compile(r"[A-Za-z0-9%*._~+&=:-]*", re.ASCII)


def is_signable(target: str) -> bool:
    """Whether this address, path and query, is one of a file or of a report to be saved."""
    path, _, query = target.partition("?")
    if len(target) > MAX_TARGET_CHARS or not _QUERY.fullmatch(query):
        return False
    pairs = parse_qsl(query, keep_blank_values=True)
    if any(name == PARAMETER for name, _ in pairs):
        return False
    return _BYTES.fullmatch(path) is not None or (_REPORT.fullmatch(path) is not None and ("format", "csv") in pairs)


def signed(links: LinkKey, target: str, *, expires_at: datetime) -> str:
    """The address with its signature, which always stands last."""
    joint = "&" if "?" in target else "?"
    return f"{target}{joint}{PARAMETER}={links.sign(target, expires_at=expires_at)}"


def find(scope: Scope) -> SignedTarget | None:
    """The signed address that is asked for; None where there is no signature, or where none counts."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    rest, signature = _split(scope)
    target = f"{scope['path']}?{rest}" if rest else scope["path"]
    return SignedTarget(target, signature) if signature and is_signable(target) else None


def take_signature(scope: Scope) -> None:
    """Leave the request as it would be with the session key."""
    scope["query_string"] = _split(scope)[0].encode("latin-1")


def _split(scope: Scope) -> tuple[str, str]:
    """The query without its last parameter, and the signature that this parameter holds; empty where it holds none."""
    query = scope.get("query_string", b"").decode("latin-1")
    rest, _, last = query.rpartition("&")
    name, _, value = last.partition("=")
    return (rest, value) if name == PARAMETER else (query, "")
