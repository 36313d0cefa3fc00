"""Monitoring of rights while streams are open: a user who loses a right loses the stream.

Hints announce that rights may have changed; in addition, all rights are checked every minute. This module decides when
to check and applies the result. A callable reads the rights from the database (`access_check`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn
from uuid import UUID

from rookery.store.db.hints import AccessHint
from rookery.store.db.pubsub import Bus
from rookery.stream.errors import CloseCode
from rookery.stream.session import Session
from rookery.telemetry.log import get_logger

log = get_logger("stream.access_monitor")


class Right(Enum):
    """The remaining access of a stream."""

    KEPT = "kept"
    LOGGED_OUT = "logged_out"  # the session or token has ended or expired, or the user is disabled
    WITHDRAWN = "withdrawn"  # the user may no longer read this chat
    DELETED = "deleted"  # the chat no longer exists


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The user, chat and credential of a stream. Watch streams have no chat. The rights on a chat are those on its
    root.

    `has_reason`: an administrator opened the stream with a reason. `marks`: the stream may move the read cursor.
    """

    user_id: UUID
    credential: str  # id of the session or token
    chat_id: UUID | None = None
    root_id: UUID | None = None
    has_reason: bool = False
    marks: bool = True


# One query for all grants, with results in the same order. It is called again after an exception.
RightsCheck = Callable[[Sequence[Grant]], Awaitable[Sequence[Right]]]

_ENDINGS = {
    Right.LOGGED_OUT: (CloseCode.UNAUTHENTICATED, "The login is no longer valid."),
    Right.WITHDRAWN: (CloseCode.WITHDRAWN, "Access to this chat was withdrawn."),
    Right.DELETED: (CloseCode.DELETED, "This chat was deleted."),
}


class AccessMonitor:
    """Monitors the grants of all open streams. `run` handles hints; `recheck` checks all streams."""

    def __init__(self, bus: Bus, check: RightsCheck) -> None:
        self._check = check
        self._grants: dict[Session, Grant] = {}
        self._pending: dict[Session, None] = {}
        self._wake = asyncio.Event()
        # The number of access changes so far. It is compared before and after a stream is opened.
        self.changes = 0
        self._subscriptions = (bus.subscribe(AccessHint, self._on_hint), bus.on_resync(self._check_all_soon))

    def __len__(self) -> int:
        return len(self._grants)

    async def hold(self, session: Session, grant: Grant, *, since: int) -> None:
        """Monitor a stream that is about to begin. `since` is the value of `changes` before the right was checked.

        If rights have changed since then, they are checked again before anything is sent.
        """
        self._grants[session] = grant
        if self.changes != since:
            await self._check_sessions([session])

    def release(self, session: Session) -> None:
        self._grants.pop(session, None)

    def grants(self) -> Mapping[Session, Grant]:
        """The grants of all open streams. Their sessions count as used."""
        return dict(self._grants)

    async def run(self) -> NoReturn:
        """Check the streams that hints concern, until canceled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._pending = self._pending, {}
            await self._check_sessions([session for session in asked if session in self._grants])

    async def recheck(self) -> None:
        """Check every open stream."""
        await self._check_sessions(list(self._grants))

    def close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()

    async def _check_sessions(self, sessions: Sequence[Session]) -> None:
        if not sessions:
            return
        try:
            rights = await self._check([self._grants[session] for session in sessions])
        except Exception as error:
            # A failed check is not a withdrawal, so the streams stay open. The check is repeated within a minute.
            log.warning("access_check_failed", streams=len(sessions), error=str(error) or type(error).__name__)
            return
        for session, right in zip(sessions, rights, strict=True):
            if right is not Right.KEPT:
                session.end(*_ENDINGS[right])

    def _on_hint(self, hint: AccessHint) -> None:
        self.changes += 1
        self._check_soon(session for session, grant in self._grants.items() if concerns(hint, grant))

    def _check_all_soon(self) -> None:
        self.changes += 1
        self._check_soon(self._grants)

    def _check_soon(self, sessions: Iterable[Session]) -> None:
        self._pending.update(dict.fromkeys(sessions))
        if self._pending:
            self._wake.set()


def concerns(hint: AccessHint, grant: Grant) -> bool:
    """Return whether a change of rights may affect this grant. A change of an unknown kind affects all grants."""
    if hint.id is None:
        return True
    match hint.kind:
        case "session" | "token":
            return hint.id == grant.credential
        case "user":
            return hint.id == str(grant.user_id)
        case "chat_acl":
            return hint.id in (str(grant.chat_id), str(grant.root_id))
        case _:
            return True
