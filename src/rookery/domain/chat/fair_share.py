"""Fair sharing of a worker pool's slots among the owners of chats.

One slot in four is reserved for owners who have none. An owner who holds more than a fair share gives way to a waiting
owner who holds less: one chat at a time, at the end of a step. The fair share is an equal division among all owners who
hold a slot or wait for one. Owners at the fair share never give way, so slots do not move back and forth.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId

# One slot in this many is reserved for owners who have none. `capacity.HAS_ROOM` is the same rule in SQL.
RESERVED_ONE_IN = 4


class WaitingChat(msgspec.Struct, frozen=True):
    """The chat of an owner that has waited longest for a slot."""

    chat_id: ChatId
    snapshot_version: int
    since: datetime


class Claim(msgspec.Struct, frozen=True):
    """The slots that one owner holds in a pool, and wants."""

    owner_id: UUID
    held: int
    waiting: WaitingChat | None = None


class Use(msgspec.Struct, frozen=True):
    """The use of a pool: `active` chats of `owners` owners hold a slot; `own` of them belong to the asking chat's
    owner.
    """

    active: int
    owners: int
    own: int

    def with_one_more(self) -> Use:
        """Return the use after the asking chat has its slot."""
        return Use(self.active + 1, self.owners + (self.own == 0), self.own + 1)


def may_start(limit: int, use: Use) -> bool:
    """Return whether the asking chat may take a slot."""
    if use.active >= limit:
        return False
    beyond_first = use.active - use.owners
    return use.own == 0 or beyond_first + 1 < limit - limit // RESERVED_ONE_IN


def takes_from_poorer(limit: int, use: Use, claims: Collection[Claim], *, chat_id: ChatId) -> bool:
    """Return whether an owner who holds less is waiting and would no longer find a slot."""
    after = use.with_one_more()
    return any(
        claim.waiting is not None
        and claim.waiting.chat_id != chat_id
        and claim.held < use.own
        and may_start(limit, Use(use.active, use.owners, claim.held))
        and not may_start(limit, Use(after.active, after.owners, claim.held))
        for claim in claims
    )


def find_donors(limit: int, claims: Collection[Claim]) -> frozenset[UUID]:
    """Return the owners who have to give way now; none while every owner below the fair share has what it wants."""
    share = fair_share(limit, claims)
    if not _kept_waiting(limit, claims, share):
        return frozenset()
    return frozenset(claim.owner_id for claim in claims if claim.held > share)


def find_receiver(limit: int, claims: Collection[Claim], *, donor: UUID) -> WaitingChat | None:
    """Return the chat for which the donor has to release one of its own; None if it may keep all."""
    share = fair_share(limit, claims)
    if not any(claim.owner_id == donor and claim.held > share for claim in claims):
        return None
    found = min(_kept_waiting(limit, claims, share), key=lambda claim: (claim.held, _since(claim)), default=None)
    return None if found is None else found.waiting


def fair_share(limit: int, claims: Collection[Claim]) -> int:
    return max(1, limit // max(1, len(claims)))


def _kept_waiting(limit: int, claims: Collection[Claim], share: int) -> list[Claim]:
    """Return the owners below the fair share whose next chat has no room."""
    active, owners = sum(claim.held for claim in claims), sum(claim.held > 0 for claim in claims)
    return [
        claim
        for claim in claims
        if claim.waiting is not None and claim.held < share and not may_start(limit, Use(active, owners, claim.held))
    ]


def _since(claim: Claim) -> datetime:
    assert claim.waiting is not None
    return claim.waiting.since
