from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.debug.debug_rows import DebugRows
from tests.store.machine.machine_rig import make_rig


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[DebugRows]:
    async with make_rig(database_url) as rig:
        yield DebugRows(rig)
