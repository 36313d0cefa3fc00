from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.machine.rig import Rig, make_rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made
