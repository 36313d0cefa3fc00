"""The text form of credentials: a prefix `rk_...`, then an id, a secret and a checksum in letters and digits.

Text with a wrong checksum is refused without a query. The row is found by the id, and the hash of the secret is
compared in constant time. Logs hide all text that begins with `rk_`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from enum import StrEnum
from uuid import UUID, uuid4

import msgspec

SECRET_BYTES = 32

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
# The numbers of characters for 16 bytes, for 32 bytes, and for a checksum of 32 bits.
_ID_CHARS, _SECRET_CHARS, _CHECK_CHARS = 22, 43, 6
_BODY_CHARS = _ID_CHARS + _SECRET_CHARS


class Kind(StrEnum):
    """The kind of a credential. The value is its prefix."""

    TOKEN = "rk_"  # noqa: S105 -- a prefix, not a secret
    SESSION = "rk_s_"
    SESSION_KEY = "rk_k_"
    LINK = "rk_l_"


class Credential(msgspec.Struct, frozen=True):
    """A parsed credential. `reveal` returns its text, which is not stored."""

    kind: Kind
    id: UUID
    secret: bytes

    @property
    def secret_hash(self) -> bytes:
        return hashlib.sha256(self.secret).digest()

    def matches(self, secret_hash: bytes) -> bool:
        return hmac.compare_digest(self.secret_hash, secret_hash)

    def reveal(self) -> str:
        body = _encode(self.id.int, _ID_CHARS) + _encode(int.from_bytes(self.secret), _SECRET_CHARS)
        return self.kind + body + _checksum(self.kind, body)

    def __repr__(self) -> str:
        return f"Credential({self.kind.name}, {self.id}, ***)"


def new(kind: Kind, *, id: UUID | None = None) -> Credential:
    """Return a credential with a new secret, for an existing row id or a new one."""
    return Credential(kind, id or uuid4(), secrets.token_bytes(SECRET_BYTES))


def parse(kind: Kind, text: str) -> Credential | None:
    """Return the credential; None if the text cannot be one of this kind."""
    body = text.removeprefix(kind)
    if body == text or len(body) != _BODY_CHARS + _CHECK_CHARS:
        return None
    body, checksum = body[:_BODY_CHARS], body[_BODY_CHARS:]
    if checksum != _checksum(kind, body):
        return None
    id_value, secret = _decode(body[:_ID_CHARS]), _decode(body[_ID_CHARS:])
    if id_value is None or secret is None or id_value >= 2**128 or secret >= 2 ** (8 * SECRET_BYTES):
        return None
    return Credential(kind, UUID(int=id_value), secret.to_bytes(SECRET_BYTES))


def _checksum(kind: Kind, body: str) -> str:
    return _encode(zlib.crc32((kind + body).encode("utf-8", "surrogatepass")), _CHECK_CHARS)


def _encode(number: int, length: int) -> str:
    characters = []
    for _ in range(length):
        number, value = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[value])
    return "".join(reversed(characters))


def _decode(text: str) -> int | None:
    number = 0
    for character in text:
        value = _VALUES.get(character)
        if value is None:
            return None
        number = number * len(_ALPHABET) + value
    return number
