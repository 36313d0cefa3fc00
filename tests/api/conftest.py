"""Fixtures for the tests of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.domain.access.rights import Role
from tests.api.api_rig import ApiRig, Person, open_house


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[ApiRig]:
    """A server with an administrator and without a worker."""
    async with open_house(database_url, tmp_path) as opened:
        await opened.add("root", role=Role.ADMIN)
        yield opened


@pytest.fixture
async def ada(rig: ApiRig) -> Person:
    """A member."""
    return await rig.add("ada")


@pytest.fixture
async def ben(rig: ApiRig) -> Person:
    """Another member."""
    return await rig.add("ben")
