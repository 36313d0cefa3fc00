"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.domain.access.rights import Role
from tests.api.api_rig import House, Person, open_house


@pytest.fixture
async def house(database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    """A server that is set up: it has an administrator, and nobody works on its chats."""
    async with open_house(database_url, tmp_path) as opened:
        await opened.add("root", role=Role.ADMIN)
        yield opened


@pytest.fixture
async def ada(house: House) -> Person:
    """A member."""
    return await house.add("ada")


@pytest.fixture
async def ben(house: House) -> Person:
    """Another member."""
    return await house.add("ben")
