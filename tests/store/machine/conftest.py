from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.machine import sharing
from tests.store.machine.rig import Rig, make_rig

# Beside `rig`, for files that need both.
shared_rig = sharing.rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made
