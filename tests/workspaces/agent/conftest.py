"""Agent fixtures: one agent per test, or one that the tests of a module share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.workspaces.agent import agent_rig as rigs


@pytest.fixture
async def rig() -> AsyncIterator[rigs.Rig]:
    async with rigs.rig() as made:
        await made.start()
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_process() -> AsyncIterator[rigs.Rig]:
    async with rigs.rig() as made:
        await made.start()
        yield made


@pytest.fixture
async def shared(shared_process: rigs.Rig) -> AsyncIterator[rigs.Rig]:
    """An agent that the tests of a module share; each test has its own connections."""
    yield shared_process
    await shared_process.disconnect()
