"""A whole server with one user. The tests change its chats; no worker runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.domain.access.rights import Role
from tests.api.api_rig import ApiRig, Person, open_house
from tests.client.client_rig import Rig
from tests.store.machine.machine_rig import Rig as MachineRig


@pytest.fixture
async def house(database_url: str, tmp_path: Path) -> AsyncIterator[ApiRig]:
    """A server without a worker."""
    async with open_house(database_url, tmp_path) as opened:
        yield opened


@pytest.fixture
async def ada(house: ApiRig) -> Person:
    return await house.add("ada", role=Role.ADMIN)


@pytest.fixture
async def rig(house: ApiRig, ada: Person) -> AsyncIterator[Rig]:
    model = await house.add_model()
    machine = MachineRig(house.database.api, user=ada.id, model=model, worker=house.replica.id)
    machine.machine = house.replica.machine
    async with Rig(house, ada, machine).opened() as rig:
        yield rig
