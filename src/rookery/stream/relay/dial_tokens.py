"""Dial tokens: the credentials with which one replica dials another. A token is signed for one receiver, and valid for
half a minute and for one use.

They name no user and no chat. The dialing replica has checked the rights of its viewers, and does not send their
credentials.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec

from rookery.runtime.clock import Clock

LIFETIME_SECONDS = 30
# The accepted difference between the clocks of two machines.
SKEW_SECONDS = 30


class TokenRefused(Exception):
    """Raised if the token is not valid here. The message is for the log, not for the dialing replica."""


class _Claims(msgspec.Struct, frozen=True):
    src: UUID
    dst: UUID
    iat: int
    exp: int
    nonce: str


_claims = msgspec.json.Decoder(_Claims)


def mint(key: bytes, *, src: UUID, dst: UUID, clock: Clock) -> str:
    """Return a token for one dial."""
    now = int(clock.now().timestamp())
    claims = _Claims(src, dst, now, now + LIFETIME_SECONDS, secrets.token_urlsafe(12))
    payload = _text(msgspec.json.encode(claims))
    return f"{payload}.{_text(_signature(key, payload))}"


class TokenCheck:
    """Checks tokens for one receiver, and remembers used ones until they expire."""

    def __init__(self, key: bytes, *, me: UUID, clock: Clock, is_live: Callable[[UUID], Awaitable[bool]]) -> None:
        self._key = key
        self._me = me
        self._clock = clock
        self._is_live = is_live
        self._seen: dict[str, int] = {}

    async def check(self, token: str) -> UUID:
        """Return the id of the replica that the token comes from. Raise `TokenRefused` if the token is not valid."""
        claims = self._read(token)
        now = int(self._clock.now().timestamp())
        if claims.dst != self._me:
            raise TokenRefused("The token is for another replica.")
        if not now - LIFETIME_SECONDS - SKEW_SECONDS <= claims.iat <= now + SKEW_SECONDS or claims.exp < now:
            raise TokenRefused("The token is expired, or not valid yet.")
        if claims.exp - claims.iat > LIFETIME_SECONDS:
            raise TokenRefused("The token is valid for too long.")
        self._use(claims, now)
        if not await self._is_live(claims.src):
            raise TokenRefused("The token is from an unknown replica.")
        return claims.src

    def _read(self, token: str) -> _Claims:
        payload, _, signature = token.partition(".")
        try:
            is_ours = hmac.compare_digest(_signature(self._key, payload), _bytes(signature))
            if not is_ours:
                raise TokenRefused("The signature is wrong.")
            return _claims.decode(_bytes(payload))
        except (binascii.Error, ValueError) as error:
            raise TokenRefused("The token cannot be read.") from error

    def _use(self, claims: _Claims, now: int) -> None:
        self._seen = {nonce: exp for nonce, exp in self._seen.items() if exp >= now}
        if claims.nonce in self._seen:
            raise TokenRefused("The token was used before.")
        self._seen[claims.nonce] = claims.exp


def _signature(key: bytes, payload: str) -> bytes:
    return hmac.digest(key, payload.encode(), hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
