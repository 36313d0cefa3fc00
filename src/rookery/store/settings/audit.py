"""The group `audit` of the runtime settings: how long entries of the audit log are kept."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rookery.store.db.pool import Connection
from rookery.store.settings import settings

SETTING = "audit"


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """0 keeps them forever."""

    retention_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 365


async def read_audit_settings(conn: Connection) -> AuditSettings:
    """Return the settings. Raises `msgspec.ValidationError` if the stored value cannot be read."""
    stored = await settings.find_setting(conn, SETTING)
    return AuditSettings() if stored is None else msgspec.convert(stored, AuditSettings)
