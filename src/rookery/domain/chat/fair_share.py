"""How the owners of chats share the slots of a pool.

One slot in four is kept for owners who have none. An owner who holds more than a fair share gives way to an owner who
holds less and waits: one chat at a time, at the end of a step. A fair share is what each would have if all owners who
hold a slot or wait for one had the same. Who is at the fair share never gives way, so nothing moves back and forth.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId

# One slot in so many is kept for owners who have none. `capacity.HAS_ROOM` says the same in SQL.
RESERVED_ONE_IN = 4


class WaitingChat(msgspec.Struct, frozen=True):
    """The chat of an owner that has waited longest for a slot."""

    chat_id: ChatId
    snapshot_version: int
    since: datetime


class Claim(msgspec.Struct, frozen=True):
    """What one owner has of a pool, and wants."""

    owner_id: UUID
    held: int
    waiting: WaitingChat | None = None


class Use(msgspec.Struct, frozen=True):
    """`active` chats of so many `owners` hold a slot; `own` of them belong to the owner of the chat that asks."""

    active: int
    owners: int
    own: int

    def with_one_more(self) -> Use:
        """Once the chat that asks has its slot, too."""
        return Use(self.active + 1, self.owners + (self.own == 0), self.own + 1)


def may_start(limit: int, use: Use) -> bool:
    """Whether the chat that asks may take a slot."""
    if use.active >= limit:
        return False
    beyond_first = use.active - use.owners
    return use.own == 0 or beyond_first + 1 < limit - limit // RESERVED_ONE_IN


def takes_from_poorer(limit: int, use: Use, claims: Collection[Claim], *, chat_id: ChatId) -> bool:
    """Whether somebody who holds less waits for a slot and would find none any more."""
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
    """The owners who are to give way now; nobody while everybody below the fair share has what they want."""
    share = fair_share(limit, claims)
    if not _kept_waiting(limit, claims, share):
        return frozenset()
    return frozenset(claim.owner_id for claim in claims if claim.held > share)


def find_receiver(limit: int, claims: Collection[Claim], *, donor: UUID) -> WaitingChat | None:
    """The chat for which the donor is to let go of one of its own; None when it may keep all."""
    share = fair_share(limit, claims)
    if not any(claim.owner_id == donor and claim.held > share for claim in claims):
        return None
    found = min(_kept_waiting(limit, claims, share), key=lambda claim: (claim.held, _since(claim)), default=None)
    return None if found is None else found.waiting


def fair_share(limit: int, claims: Collection[Claim]) -> int:
    return max(1, limit // max(1, len(claims)))


def _kept_waiting(limit: int, claims: Collection[Claim], share: int) -> list[Claim]:
    """Owners below the fair share whose next chat has no room."""
    active, owners = sum(claim.held for claim in claims), sum(claim.held > 0 for claim in claims)
    return [
        claim
        for claim in claims
        if claim.waiting is not None and claim.held < share and not may_start(limit, Use(active, owners, claim.held))
    ]


def _since(claim: Claim) -> datetime:
    assert claim.waiting is not None
    return claim.waiting.since
