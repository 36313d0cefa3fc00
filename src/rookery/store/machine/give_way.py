"""Giving way: a chat of an owner above the fair share makes room for a chat of an owner below it."""

from __future__ import annotations

from rookery.domain.chat import fair_share
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.fair_share import WaitingChat
from rookery.domain.chat.transitions import Transition
from rookery.store.db.hints import OwnershipHint
from rookery.store.db.pool import Connection
from rookery.store.machine.bundle import Tx, transition
from rookery.store.machine.capacity import Limits, Pool, Slot, list_claims, lock_pool
from rookery.store.machine.leases import delete_leases


async def find_donors(conn: Connection, limits: Limits) -> set[Slot]:
    """Return the owners whose chats have to give way, by pool."""
    return {
        Slot(owner_id, pool)
        for pool in Pool
        if (limit := limits.of(pool))
        for owner_id in fair_share.find_donors(limit, await list_claims(conn, pool))
    }


@transition
async def give_way(tx: Tx, *, to: WaitingChat) -> Chat:
    """Release a running chat between two steps, so that another can run. It keeps its position in the order.

    The other chat is announced instead of this one: workers take the chat that is announced, and this one has to wait.
    """
    source, runner_id = tx.require(Transition.GIVE_WAY), tx.chat.runner_id
    if runner_id is None:
        raise TransitionNotAllowed(Transition.GIVE_WAY, source, "Nobody owns this chat.", cause="not_owned")
    await tx.settle(Transition.GIVE_WAY, "worker_id = NULL, runner_id = NULL")
    await delete_leases(tx.conn, [(tx.chat.id, runner_id)])
    tx.successor = OwnershipHint(chat_id=to.chat_id, snapshot_version=to.snapshot_version)
    return tx.chat


async def find_receiver(tx: Tx, limits: Limits) -> WaitingChat | None:
    """Return the chat that this one has to give way to, decided under the lock of its pool; None if it may continue."""
    slot = Slot.of(tx.chat)
    if not (limit := limits.of(slot.pool)):
        return None
    await lock_pool(tx.conn, slot.pool)
    claims = await list_claims(tx.conn, slot.pool)
    return fair_share.find_receiver(limit, claims, donor=slot.owner_id)
