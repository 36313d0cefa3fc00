from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.machine import shared_rig as machine_shared_rig
from tests.store.machine.machine_rig import Rig, make_rig

# Beside `rig`, for files that need both.
shared_rig = machine_shared_rig.rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made
