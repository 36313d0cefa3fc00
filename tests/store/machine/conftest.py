from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.machine.rig import Rig, make_rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made


@pytest.fixture
async def shared_rig(shared_database_url: str) -> AsyncIterator[Rig]:
    """For tests that look at nothing but the chats they made."""
    async with make_rig(shared_database_url, is_shared=True) as made:
        yield made
