"""Fixtures for all tests: a separate database for each test, migrated or empty."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.database import Server, fresh_database, lease_server, wait_until_stopped
from tests.machine_load import slowdown

# Much longer than the longest test on a busy machine.
HANGS_SECONDS = 300

# No deadline, because a busy machine is slow.
settings.register_profile("rookery", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rookery")


@pytest.fixture(scope="session")
def database_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    lease = lease_server(root.parent if is_worker else root)
    yield lease.server
    lease.release()


@pytest.fixture
async def database_url(database_server: Server) -> AsyncIterator[str]:
    """A new database with the current schema."""
    async with fresh_database(database_server) as url:
        yield url


@pytest.fixture(scope="session")
def shared_database_url(database_server: Server) -> Iterator[str]:
    """A shared database, for tests that read only the rows they created: creating a database takes longer than most."""
    made = fresh_database(database_server)
    with asyncio.Runner() as runner:
        yield runner.run(made.__aenter__())
        runner.run(made.__aexit__(None, None, None))


@pytest.fixture
async def empty_database_url(database_server: Server) -> AsyncIterator[str]:
    """A new, empty database."""
    async with fresh_database(database_server, template=None) as url:
        yield url


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the collected tests from garbage collection: scanning them took a quarter of the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """End the process of a test that hangs, with a traceback of every thread, so that the test fails by name."""
    faulthandler.dump_traceback_later(HANGS_SECONDS * slowdown(), exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        wait_until_stopped(_base_temp(session))


def _base_temp(session: pytest.Session) -> Path:
    factory: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()
