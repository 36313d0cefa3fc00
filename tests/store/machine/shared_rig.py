"""The rig of tests that look at nothing but the chats they made: a database is made once for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.store.machine.machine_rig import Rig, make_rig


@pytest.fixture
async def rig(shared_database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(shared_database_url, is_shared=True) as made:
        yield made
