"""Giving way: a chat of an owner who holds more than a fair share makes room for a chat of one who holds less."""

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
    """Whose chats are to give way, by pool."""
    return {
        Slot(owner_id, pool)
        for pool in Pool
        if (limit := limits.of(pool))
        for owner_id in fair_share.find_donors(limit, await list_claims(conn, pool))
    }


@transition
async def give_way(tx: Tx, *, to: WaitingChat) -> Chat:
    """Let go of a running chat between two steps, so that another can run. Its place in the order stays what it was.

    The one that is announced is the other: whoever hears of a free chat takes it, and this one shall wait.
    """
    source, runner_id = tx.require(Transition.GIVE_WAY), tx.chat.runner_id
    if runner_id is None:
        raise TransitionNotAllowed(Transition.GIVE_WAY, source, "Nobody owns this chat.", cause="not_owned")
    await tx.settle(Transition.GIVE_WAY, "worker_id = NULL, runner_id = NULL")
    await delete_leases(tx.conn, [(tx.chat.id, runner_id)])
    tx.successor = OwnershipHint(chat_id=to.chat_id, snapshot_version=to.snapshot_version)
    return tx.chat


async def find_receiver(tx: Tx, limits: Limits) -> WaitingChat | None:
    """For whom this chat is to give way, judged under the lock of its pool; None when it may go on."""
    slot = Slot.of(tx.chat)
    if not (limit := limits.of(slot.pool)):
        return None
    await lock_pool(tx.conn, slot.pool)
    claims = await list_claims(tx.conn, slot.pool)
    return fair_share.find_receiver(limit, claims, donor=slot.owner_id)
