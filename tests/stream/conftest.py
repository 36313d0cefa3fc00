"""One replica with a new database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.stream.stream_rig import Rig, open_rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with open_rig(database_url) as opened:
        yield opened
