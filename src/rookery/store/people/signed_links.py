"""Signed links: addresses that a browser loads without the headers of the page, such as images and downloads.

Such requests have no session key. The signature replaces it: it is valid for one address and one session until it
expires. The cookie of the session is needed as well, and the rights of the user are checked when the link is used. The
signing key is derived from the stored hash of the session key, so that every replica has it until the session ends.
"""

from __future__ import annotations

import hmac
import re
from datetime import UTC, datetime
from typing import Self

import msgspec

# All links that are created in one window are equal, so that a browser can use its cache.
WINDOW_SECONDS = 300

_LABEL = b"rookery/session-link"
# Logs hide all text that begins with `rk_`.
_SIGNATURE = re.compile(r"rk_d_([0-9]{1,12})_([0-9a-f]{64})", re.ASCII)


class SignedTarget(msgspec.Struct, frozen=True):
    """A requested address (path and query) with its signature."""

    target: str
    signature: str

    def __repr__(self) -> str:
        return "SignedTarget(***)"


class LinkKey:
    """Signs and checks the links of one session."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of_session(cls, key_hash: bytes) -> Self:
        return cls(hmac.digest(key_hash, _LABEL, "sha256"))

    def sign(self, target: str, *, expires_at: datetime) -> str:
        expires = int(expires_at.timestamp())
        return f"rk_d_{expires}_{self._mac(target, expires)}"

    def accepts(self, signed: SignedTarget, *, now: datetime) -> bool:
        match = _SIGNATURE.fullmatch(signed.signature)
        if match is None:
            return False
        expires = int(match[1])
        return hmac.compare_digest(match[2], self._mac(signed.target, expires)) and now.timestamp() < expires

    def _mac(self, target: str, expires: int) -> str:
        return hmac.digest(self._key, f"{expires}\n{target}".encode(), "sha256").hex()

    def __repr__(self) -> str:
        return "LinkKey(***)"


def expiry(now: datetime) -> datetime:
    """Return the expiry of a link that is created now. It is one to two windows later."""
    return datetime.fromtimestamp((int(now.timestamp()) // WINDOW_SECONDS + 2) * WINDOW_SECONDS, UTC)
