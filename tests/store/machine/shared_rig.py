"""A rig for tests that read only their own chats: all of them share one database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.machine.machine_rig import Rig, make_rig


@pytest.fixture
async def rig(shared_database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(shared_database_url, is_shared=True) as made:
        yield made
