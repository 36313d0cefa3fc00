"""Transitions for families: archive, unarchive or delete a root chat together with its subagents' chats.

Each of them is atomic. The root is locked first, then the other members by (`created_at`, `id`).
"""

from __future__ import annotations

from uuid import UUID

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatBusy, ChatNotRoot, InvalidState, TransitionNotAllowed
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import Transition
from rookery.store.chats import pins, shares, subagents
from rookery.store.machine.bundle import Bundle, Tx, transition

_LIST_MEMBERS = "SELECT id FROM chats WHERE root_chat_id = $1 ORDER BY created_at, id"
_DELETE = "DELETE FROM chats WHERE id = $1"


@transition
async def set_archived(tx: Tx, archived: bool) -> Chat:
    """Archive or unarchive one chat. Raise `TransitionNotAllowed` if the chat is in the requested state already."""
    source = tx.require(Transition.SET_ARCHIVED)
    if tx.chat.archived == archived:
        cause = "already_archived" if archived else "not_archived"
        raise TransitionNotAllowed(
            Transition.SET_ARCHIVED, source, f"The chat is {cause.replace('_', ' ')}.", cause=cause
        )
    if archived:
        await pins.drop_pins(tx.conn, tx.chat.id)
        await tx.remove_records(delete_from=0)
        # A chat that is unarchived later stays at rest until its user writes.
        await subagents.set_aside(tx.conn, tx.chat.id)
    await tx.settle(
        Transition.SET_ARCHIVED, "archived = $2, archived_at = CASE WHEN $2 THEN clock_timestamp() END", archived
    )
    return tx.chat


async def set_family_archived(bundle: Bundle, root_id: UUID, *, archived: bool) -> list[Chat]:
    """Archive or unarchive a whole family. Return the members, the root first.

    A member that is already in the requested state is accepted and announced like the others. A busy or invalid member
    fails the bundle.
    """
    members = []
    for tx in await _open_family(bundle, root_id):
        if tx.state is State.INVALID:
            raise bundle.refuse(InvalidState(tx.chat.id))
        if tx.chat.archived != archived:
            await set_archived(tx, archived)
        tx.moved_with_family = True
        members.append(tx.chat)
    return members


async def delete_family(bundle: Bundle, root_id: UUID) -> list[Chat]:
    """Delete a family and all its data. Refused while a member is runnable or INVALID.

    The state INVALID may be valid in a newer version of the server, which may be running the member.
    """
    members = await _open_family(bundle, root_id)
    for tx in members:
        if tx.state is State.INVALID:
            raise bundle.refuse(InvalidState(tx.chat.id))
        if tx.state.is_runnable:
            raise bundle.refuse(ChatBusy(tx.chat.id))
    # At most `shares.MAX_ENTRIES` ids, so that they fit into one notification.
    readers = tuple(await shares.list_readers(bundle.conn, members[0].chat.id))
    await pins.drop_pins(bundle.conn, members[0].chat.id)
    await bundle.conn.execute(_DELETE, root_id)
    for tx in members:
        tx.gone, tx.readers = True, readers
    return [tx.chat for tx in members]


async def _open_family(bundle: Bundle, root_id: UUID) -> list[Tx]:
    root = await bundle.open(root_id)
    if not root.chat.is_root:
        raise bundle.refuse(ChatNotRoot(root_id))
    # The root is locked before the members are listed. The creation of a subagent's chat locks the root too, so no new
    # member is missed.
    records = await bundle.conn.fetch(_LIST_MEMBERS, root_id)
    return [root, *[await bundle.open(record["id"]) for record in records]]
