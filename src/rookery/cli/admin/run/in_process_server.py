"""The API of a replica in this process, for a command that uses it through the Python client.

It is served on a unix socket in a directory that only this user can enter. No port is opened.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from rookery.api.application import create_application
from rookery.app.replica import Replica
from rookery.client import AsyncRookery
from rookery.domain.access.rights import Scope
from rookery.server import listener
from rookery.store.people import tokens

# At the end, open requests belong to a client that has disconnected. They are ended soon, and without a log line.
SERVING: Mapping[str, Any] = {"timeout_graceful_shutdown": 1, "log_level": "critical"}
# The path of a socket has at most 107 bytes.
_MAX_DIRECTORY = 40


@asynccontextmanager
async def connected(replica: Replica, user_id: UUID) -> AsyncIterator[AsyncRookery]:
    """Serve the API until the block ends, and return a client that acts as this user."""
    # A command works before the first administrator exists.
    parts = dataclasses.replace(replica.api, requires_setup=False, log_access=False)
    usual = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="rookery-",
        dir=usual if len(usual) < _MAX_DIRECTORY else "/tmp",  # noqa: S108 - made with a fresh name
    ) as directory:
        path = Path(directory) / "api.sock"
        with listener.unix_socket(path) as listening:
            async with (
                listener.serving(create_application(parts), listening, **SERVING),
                _token(replica, user_id) as token,
                AsyncRookery("http://localhost", unix_socket=str(path), token=token) as client,
            ):
                yield client


@asynccontextmanager
async def _token(replica: Replica, user_id: UUID) -> AsyncIterator[str]:
    """Create an API token that is deleted at the end of the block. If the process is killed, it expires after a day."""
    async with replica.database.api.acquire() as conn:
        made = await tokens.create_token(
            conn,
            user_id,
            name=f"rookery admin run {uuid4()}",
            scopes={Scope.CHAT_WRITE},
            now=replica.api.clock.now(),
            days=1,
            max_tokens=None,
        )
    try:
        yield made.secret
    finally:
        async with replica.database.api.acquire() as conn:
            await tokens.delete_token(conn, made.token.id)
