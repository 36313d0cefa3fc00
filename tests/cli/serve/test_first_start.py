"""The first start, for a program that waits for `/readyz` and then sets the server up immediately."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from rookery.store.people import first_admin
from tests.cli.serve import first_starts
from tests.eventually import until

IS_AWAITED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.mark.parametrize("replicas", [1, 2])
async def test_server_is_not_ready_before_its_setup_token_works(
    tmp_path: Path, database_url: str, replicas: int
) -> None:
    data_dir, port = tmp_path / "data", first_starts.free_port()
    arguments = first_starts.arguments(data_dir, port, replicas=replicas)
    connection = await asyncpg.connect(database_url)
    # This lock keeps the server from creating its token.
    await connection.execute("SELECT pg_advisory_lock($1)", first_admin.LOCK_KEY)
    process = first_starts.start(tmp_path, arguments, ROOKERY_DATABASE_URL=database_url)
    try:
        await until(lambda: connection.fetchval(IS_AWAITED), timeout=60)
        ready = asyncio.create_task(asyncio.to_thread(first_starts.wait_ready, process, port, data_dir))
        # A server that did not wait for its token would answer within this second, without the file.
        await asyncio.wait({ready}, timeout=1)
        await connection.execute("SELECT pg_advisory_unlock($1)", first_admin.LOCK_KEY)

        token = await ready

        assert token.mode == 0o600
        assert await asyncio.to_thread(first_starts.set_up, port, token.text) == 201
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)
        await connection.close()
