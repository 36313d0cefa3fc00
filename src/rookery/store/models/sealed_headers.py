"""Sealed headers of providers and model configs. Header values are sealed because any of them may be a key.

The column `headers_enc` contains the headers with their values, sealed as one JSON object. The column `options` has the
names of the headers, with masks in place of the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

import msgspec

from rookery.domain.chat.errors import InvalidInput
from rookery.store.models.errors import KeysMissing

COLUMN = "headers_enc"
MASK = "***"  # shown in place of a header's value; in a request it means the stored value


class Secret(Protocol):
    """A secret value that `repr` and logs do not show."""

    def reveal(self) -> str: ...


class Sealer(Protocol):
    """The methods of the key ring that seal and open values."""

    def seal(self, value: str, *, table: str, row_id: str, column: str) -> str: ...

    def open(self, sealed: str, *, table: str, row_id: str, column: str) -> Secret | None: ...


def masked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with masks in place of the values, as stored in `options` and shown."""
    return {name: MASK for name in headers}


def seal(headers: Mapping[str, str], *, table: str, row_id: UUID, ring: Sealer | None) -> str | None:
    """Return the value of `headers_enc`, or None if there are no headers. Raises `KeysMissing` without a ring."""
    if not headers:
        return None
    if ring is None:
        raise KeysMissing
    return ring.seal(msgspec.json.encode(dict(headers)).decode(), table=table, row_id=str(row_id), column=COLUMN)


def unseal(sealed: str, *, table: str, row_id: UUID, ring: Sealer | None) -> dict[str, str]:
    """Return the headers with their values, or no headers if this ring cannot open them."""
    opened = None if ring is None else ring.open(sealed, table=table, row_id=str(row_id), column=COLUMN)
    return {} if opened is None else msgspec.json.decode(opened.reveal(), type=dict[str, str])


def restored(headers: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with stored values in place of masks.

    Raises `InvalidInput` for a mask without a stored value.
    """
    known = {name.lower(): value for name, value in stored.items()}
    full = {name: known.get(name.lower(), value) if value == MASK else value for name, value in headers.items()}
    if missing := [name for name, value in full.items() if value == MASK]:
        raise InvalidInput(
            f"options.headers.{missing[0]}",
            f"{MASK} means a saved value, but there is none. Enter one.",
        )
    return full
