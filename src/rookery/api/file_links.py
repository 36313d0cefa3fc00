"""Signed tokens for file downloads: valid for one file, one user and a limited time, without a login."""

from __future__ import annotations

import base64
import binascii
import hmac
import struct
from datetime import UTC, datetime, timedelta
from uuid import UUID

LIFETIME = timedelta(minutes=5)

_HEAD = struct.Struct(">16sQ")
_MAC_BYTES = 32


def expiry(now: datetime) -> datetime:
    """Return when an address made now expires, in whole seconds."""
    return (now + LIFETIME).astimezone(UTC).replace(microsecond=0)


def sign(key: bytes, file_id: UUID, *, user_id: UUID, expires_at: datetime) -> str:
    head = _HEAD.pack(user_id.bytes, int(expires_at.timestamp()))
    return base64.urlsafe_b64encode(head + _mac(key, file_id, head)).decode().rstrip("=")


def verify(key: bytes, token: str, *, file_id: UUID, now: datetime) -> UUID | None:
    """Return the user who made the token if it is valid for this file and not expired."""
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    head, mac = data[: _HEAD.size], data[_HEAD.size :]
    if len(mac) != _MAC_BYTES or not hmac.compare_digest(mac, _mac(key, file_id, head)):
        return None
    user, expires = _HEAD.unpack(head)
    return UUID(bytes=user) if now.timestamp() < expires else None


def _mac(key: bytes, file_id: UUID, head: bytes) -> bytes:
    return hmac.digest(key, file_id.bytes + head, "sha256")
