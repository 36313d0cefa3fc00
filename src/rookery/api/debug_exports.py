"""Limits on exports of debug records: how many are sent at a time, and how slowly a client may receive one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from uuid import UUID

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from rookery.api.errors import ApiError
from rookery.telemetry.log import get_logger

log = get_logger("api.debug_exports")

# Each takes a connection to the database again and again, and a thread to encode its steps.
MAX_EXPORTS = 2
RETRY_SECONDS = 5
# A client may pause for this time, plus the time that its data takes at the lowest accepted speed.
PATIENCE_SECONDS = 30.0
MIN_BYTES_PER_SECOND = 64 * 1024


class ExportSlots:
    """The exports of this replica that are in progress: one per user, and at most `MAX_EXPORTS`."""

    def __init__(self) -> None:
        self._users: set[UUID] = set()

    @contextmanager
    def taken(self, user_id: UUID) -> Iterator[None]:
        """Hold a slot. Raises 429 if there is none."""
        if user_id in self._users:
            raise _refusal("Another export of debug records is in progress for you.")
        if len(self._users) >= MAX_EXPORTS:
            raise _refusal(f"The server is busy with {MAX_EXPORTS} other exports of debug records.")
        self._users.add(user_id)
        try:
            yield
        finally:
            self._users.remove(user_id)


class ExportResponse(StreamingResponse):
    """Sends an export, and closes `held` at the end. A client that receives too slowly is disconnected."""

    def __init__(self, pieces: AsyncIterator[bytes], *, file_name: str, held: ExitStack) -> None:
        named = {"Content-Disposition": f'attachment; filename="{file_name}"'}
        super().__init__(pieces, headers=named, media_type="application/json")
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        left = PATIENCE_SECONDS

        async def paced(message: Message) -> None:
            nonlocal left
            started = time.monotonic()
            try:
                async with asyncio.timeout(left):
                    await send(message)
            except TimeoutError:
                log.info("debug_export_too_slow")
                raise
            left += len(message.get("body", b"")) / MIN_BYTES_PER_SECOND - (time.monotonic() - started)

        await super().stream_response(paced)


def _refusal(reason: str) -> ApiError:
    return ApiError(
        429,
        "too_many_exports",
        f"{reason} Try again in {RETRY_SECONDS} s.",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
