"""Database checks of the rights behind open streams, and notifications of read cursors to the user's other tabs.

A session with an open stream counts as used, although no requests are sent with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock
from rookery.store.chats import stream_reads, viewer_access
from rookery.store.chats.viewer_access import Viewer, ViewerAccess
from rookery.store.db.hints import WatchHint, WatchKind
from rookery.store.machine import Publisher
from rookery.stream.access_monitor import Grant, Right

_RIGHTS = {
    ViewerAccess.KEPT: Right.KEPT,
    ViewerAccess.LOGGED_OUT: Right.LOGGED_OUT,
    ViewerAccess.WITHDRAWN: Right.WITHDRAWN,
    ViewerAccess.DELETED: Right.DELETED,
}


class AccessCheck:
    """The `RightsCheck` of a replica."""

    def __init__(self, pool: asyncpg.Pool, *, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    async def __call__(self, grants: Sequence[Grant]) -> Sequence[Right]:
        watching = [
            Viewer(
                user_id=grant.user_id,
                credential_id=UUID(grant.credential),
                chat_id=grant.chat_id,
                has_reason=grant.has_reason,
            )
            for grant in grants
        ]
        now = self._clock.now()
        async with self._pool.acquire() as conn:
            found = await viewer_access.check_viewers(conn, watching, now=now)
            kept = {
                each.credential_id
                for each, standing in zip(watching, found, strict=True)
                if standing is not ViewerAccess.LOGGED_OUT
            }
            await stream_reads.record_seen(conn, list(kept), now=now)
        return [_RIGHTS[standing] for standing in found]


class ReadNotifier:
    """Notifies the user's other tabs when a stream has moved the read cursor."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def __call__(self, user_id: UUID, chat_id: ChatId) -> None:
        # No version has changed. A reader may not be the owner, so the user is named in `users`.
        hint = WatchHint(user_id=user_id, kind=WatchKind.READ, chat_id=chat_id, snapshot_version=0, users=(user_id,))
        self._publisher.publish([hint])
