"""Fair sharing of a pool's slots among the owners of chats. Pure.

One slot in four is reserved for owners who have none. The fair share is the number of slots divided by the number of
owners who hold a slot or wait for one. An owner above the fair share gives way to a waiting owner below it, one chat at
a time, at the end of a step. Owners at the fair share do not give way, so slots do not move back and forth.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import ChatId

# One slot in this many is reserved for owners who have none. `capacity.HAS_ROOM` has the same rule in SQL.
RESERVED_ONE_IN = 4


class WaitingChat(msgspec.Struct, frozen=True):
    """The chat of an owner that has waited the longest for a slot."""

    chat_id: ChatId
    snapshot_version: int
    since: datetime


class Claim(msgspec.Struct, frozen=True):
    """The number of slots that an owner holds in a pool, and its first waiting chat."""

    owner_id: UUID
    held: int
    waiting: WaitingChat | None = None


class Use(msgspec.Struct, frozen=True):
    """The use of a pool: `owners` owners hold `active` slots. The owner of the requesting chat holds `own` of them."""

    active: int
    owners: int
    own: int

    def with_one_more(self) -> Use:
        """Return the use after the requesting chat has got a slot."""
        return Use(self.active + 1, self.owners + (self.own == 0), self.own + 1)


def may_start(limit: int, use: Use) -> bool:
    """Return whether the requesting chat may take a slot."""
    if use.active >= limit:
        return False
    beyond_first = use.active - use.owners
    return use.own == 0 or beyond_first + 1 < limit - limit // RESERVED_ONE_IN


def blocks_waiting_owner(limit: int, use: Use, claims: Collection[Claim], *, chat_id: ChatId) -> bool:
    """Return whether a waiting owner with fewer slots would find no slot if the requesting chat takes one."""
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
    """Return the owners who have to give way.

    The result is empty unless an owner below the fair share finds no free slot.
    """
    share = fair_share(limit, claims)
    if not _without_room(limit, claims, share):
        return frozenset()
    return frozenset(claim.owner_id for claim in claims if claim.held > share)


def find_receiver(limit: int, claims: Collection[Claim], *, donor: UUID) -> WaitingChat | None:
    """Return the chat to which the donor has to give way; None if it may keep its slots."""
    share = fair_share(limit, claims)
    if not any(claim.owner_id == donor and claim.held > share for claim in claims):
        return None
    found = min(_without_room(limit, claims, share), key=lambda claim: (claim.held, _since(claim)), default=None)
    return None if found is None else found.waiting


def fair_share(limit: int, claims: Collection[Claim]) -> int:
    return max(1, limit // max(1, len(claims)))


def _without_room(limit: int, claims: Collection[Claim], share: int) -> list[Claim]:
    """Return the claims of owners below the fair share whose waiting chat finds no slot."""
    active, owners = sum(claim.held for claim in claims), sum(claim.held > 0 for claim in claims)
    return [
        claim
        for claim in claims
        if claim.waiting is not None and claim.held < share and not may_start(limit, Use(active, owners, claim.held))
    ]


def _since(claim: Claim) -> datetime:
    assert claim.waiting is not None
    return claim.waiting.since
