"""The key ring: encrypts provider keys and other secrets before they are stored, and decrypts them for use.

A sealed value is `v1:<key id>:<wrapped data key>:<nonce>:<ciphertext>`. A data key encrypts the value, and a ring key
encrypts (wraps) the data key. Both are bound to table, row and column, so a value that is copied to another row cannot
be decrypted. If the ring is lost, only the sealed values are lost.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypedDict

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from rookery.runtime.secret_str import SecretStr
from rookery.store.db.pool import Connection
from rookery.store.models.key_rotation import CHECK_SETTING
from rookery.store.settings import settings
from rookery.telemetry.log import get_logger

log = get_logger("models.key_ring")

VERSION = "v1"
KEY_BYTES = 32
NONCE_BYTES = 12
KEY_FILE = "secret.keys"
KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,32}")
_TO_URL_SAFE = str.maketrans("+/", "-_")
_CHECK_VALUE = "the ring fits"


class Place(TypedDict):
    """The table, row and column that a sealed value is bound to."""

    table: str
    row_id: str
    column: str


_CHECK_PLACE = Place(table="settings", row_id=CHECK_SETTING, column="value")


class SecretsError(Exception):
    """Raised when the key ring cannot be used. The message is a sentence for users and never contains a key."""


class KeyRing:
    """Ring keys by id. The first key is active and encrypts new values. The others only decrypt existing ones."""

    __slots__ = ("_keys", "active_id")

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        if not keys:
            raise SecretsError("The key ring is empty. Write it as id:base64, the active key first.")
        for key_id, key in keys:
            if not KEY_ID.fullmatch(key_id):
                raise SecretsError("A key id is 1 to 32 letters, digits, dots, hyphens and underscores.")
            if len(key) != KEY_BYTES:
                raise SecretsError(f"Ring key {key_id} is not {KEY_BYTES} bytes in base64.")
        self._keys = dict(keys)
        if len(self._keys) != len(keys):
            raise SecretsError("Two keys of the ring have the same id.")
        self.active_id = keys[0][0]

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A key ring cannot be pickled.")

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Parse a ring from `id:base64` entries, separated by commas or lines."""
        keys = []
        for number, entry in enumerate(filter(None, re.split(r"[\s,]+", text)), start=1):
            key_id, colon, encoded = entry.partition(":")
            if not colon:
                raise SecretsError(f"Entry {number} of the key ring is not id:base64.")
            try:
                # Both base64 alphabets are accepted. The padding is often lost when a key is copied.
                keys.append((key_id, _decoded(encoded.translate(_TO_URL_SAFE).rstrip("="))))
            except ValueError:
                raise SecretsError(f"Entry {number} of the key ring is not base64.") from None
        return cls(keys)

    @property
    def key_ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def seal(self, value: str, *, table: str, row_id: str, column: str) -> str:
        """Encrypt a value for one column of one row."""
        data_key, nonce = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(NONCE_BYTES)
        place = _place(table, row_id, column)
        ciphertext = AESGCM(data_key).encrypt(nonce, value.encode(), place)
        return ":".join((VERSION, self.active_id, self._wrap(data_key, place), _encoded(nonce), _encoded(ciphertext)))

    def open(self, sealed: str, *, table: str, row_id: str, column: str) -> SecretStr | None:
        """Decrypt a value. Log and return None if this ring cannot decrypt it; the value then counts as missing."""
        try:
            return SecretStr(self._opened(sealed, _place(table, row_id, column))[1])
        except (InvalidTag, ValueError, KeyError):
            log.error(
                "secret_cannot_be_opened", table=table, row_id=row_id, column=column, ring_key_id=self.key_id(sealed)
            )
            return None

    def rewrap(self, sealed: str, *, table: str, row_id: str, column: str, full: bool = False) -> str | None:
        """Return the value sealed with the active key, for rotation; None if it cannot be decrypted.

        Only the data key is encrypted again, which is enough to remove an old ring key. With `full`, the value is
        encrypted again as well.
        """
        if not full and self.key_id(sealed) == self.active_id:
            return sealed
        place = _place(table, row_id, column)
        try:
            data_key, value = self._opened(sealed, place)
        except (InvalidTag, ValueError, KeyError):
            log.error(
                "secret_cannot_be_opened", table=table, row_id=row_id, column=column, ring_key_id=self.key_id(sealed)
            )
            return None
        if full:
            return self.seal(value, table=table, row_id=row_id, column=column)
        _, _, _, nonce, ciphertext = sealed.split(":")
        return ":".join((VERSION, self.active_id, self._wrap(data_key, place), nonce, ciphertext))

    def key_id(self, sealed: str) -> str:
        """Return the id of the ring key that sealed a value; `unknown` if it is not a sealed value."""
        parts = sealed.split(":")
        return parts[1] if len(parts) == 5 and parts[0] == VERSION and KEY_ID.fullmatch(parts[1]) else "unknown"

    def subkey(self, label: str) -> bytes:
        """Derive a key for another use (`download`, `setup`, `check`, `user`) from the active key.

        A rotation changes the derived key.
        """
        info = f"rookery/{label}".encode()
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(self._keys[self.active_id])

    def _wrap(self, data_key: bytes, place: bytes) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return _encoded(nonce + AESGCM(self._keys[self.active_id]).encrypt(nonce, data_key, place))

    def _opened(self, sealed: str, place: bytes) -> tuple[bytes, str]:
        version, key_id, wrapped, nonce, ciphertext = sealed.split(":")
        if version != VERSION:
            raise ValueError("another version")
        packed = _decoded(wrapped)
        data_key = AESGCM(self._keys[key_id]).decrypt(packed[:NONCE_BYTES], packed[NONCE_BYTES:], place)
        return data_key, AESGCM(data_key).decrypt(_decoded(nonce), _decoded(ciphertext), place).decode()


def load_ring(secret_keys: str | None, data_dir: Path | None) -> KeyRing | None:
    """Return the ring from the settings, else from the key file in the data directory, else None.

    The key file is created on first use. `data_dir` is None if the database is external. Several machines may share
    that database, so a file on one of them is not enough.
    """
    if secret_keys:
        return KeyRing.parse(secret_keys)
    return None if data_dir is None else ring_from_file(data_dir / KEY_FILE)


def ring_from_file(path: Path) -> KeyRing:
    """Read the key file. Create it if it is missing; processes that start together use the same file."""
    if not path.exists():
        _make_key_file(path)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise SecretsError(f"The key file {path} cannot be read.") from None
    if mode & 0o077:
        raise SecretsError(f"The key file {path} can be read by others. Run chmod 600 on it.")
    return KeyRing.parse(text)


def new_key(key_id: str) -> str:
    """Return a new entry for a ring."""
    return f"{key_id}:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}"


async def check_ring(conn: Connection, ring: KeyRing) -> bool:
    """Return whether this ring belongs to the database, by decrypting a check value. The first ring stores that value.

    After a rotation, the check value is sealed with the active key, so that the old one can be removed.
    """
    stored = await settings.find_setting(conn, CHECK_SETTING)
    if stored is None:
        await settings.write_setting(conn, CHECK_SETTING, value=ring.seal(_CHECK_VALUE, **_CHECK_PLACE))
        return True
    if not isinstance(stored, str):
        return False
    moved = ring.rewrap(stored, **_CHECK_PLACE)
    if moved is None or ring.open(moved, **_CHECK_PLACE) != SecretStr(_CHECK_VALUE):
        return False
    if moved != stored:
        await settings.write_setting(conn, CHECK_SETTING, value=moved)
    return True


def _make_key_file(path: Path) -> None:
    """Create the key file, unless another process has created it.

    It is written to a temporary file and linked, so that the key file is always complete.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(new_key("k1") + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        finally:
            draft.unlink()
    except OSError as error:
        raise SecretsError(f"The key file {path} cannot be created: {error.strerror}.") from None


def _place(table: str, row_id: str, column: str) -> bytes:
    return f"{table}|{row_id}|{column}".encode()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
