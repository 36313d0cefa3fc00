"""The settings of chats: defaults, and what is refused."""

from __future__ import annotations

import asyncpg
import msgspec
import pytest

from rookery.store.machine import Limits
from rookery.store.settings import limit_settings, settings
from rookery.store.settings.limit_settings import ChatSettings


async def test_missing_values_have_their_defaults(database_url: str) -> None:
    conn = await asyncpg.connect(database_url)
    try:
        assert await limit_settings.read_chat_settings(conn) == ChatSettings()
        await settings.write_setting(conn, limit_settings.CHATS, value={"running_roots": 3})

        found = await limit_settings.read_chat_settings(conn)
    finally:
        await conn.close()

    assert found.limits == Limits(running_roots=3, running_subagents=40)
    assert (found.retention_days, found.auto_archive_days, found.dynamic_tool_timeout_seconds) == (0, 0, 300)


@pytest.mark.parametrize(
    "stored", [{"running_roots": -1}, {"auto_archive_days": 4000}, {"dynamic_tool_timeout_seconds": 9}, ["x"]]
)
def test_value_out_of_range_cannot_be_read(stored: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        limit_settings.parse_chat_settings(stored)
