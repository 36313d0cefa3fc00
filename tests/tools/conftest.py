"""The tools over one agent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.tools import tools_rig as rigs


@pytest.fixture
async def hands() -> AsyncIterator[rigs.Hands]:
    async with rigs.open_hands() as made:
        yield made
