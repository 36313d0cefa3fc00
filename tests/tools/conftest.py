"""Fixtures: the tools over one agent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.tools import tools_rig
from tests.tools.tools_rig import ToolsRig


@pytest.fixture
async def rig() -> AsyncIterator[ToolsRig]:
    async with tools_rig.open_hands() as made:
        yield made
