"""One agent for a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.workspaces.agent import rig as rigs


@pytest.fixture
async def rig() -> AsyncIterator[rigs.Rig]:
    async with rigs.rig() as made:
        await made.start()
        yield made
