"""Telling a chat that its subagents have ended: as a step of its running turn, or by resuming it.

Both insert one notice and mark the ends that it tells, under the chat's lock: each end is told once, across crashes.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import Message, NewMessage, Role
from rookery.domain.chat.states import State
from rookery.domain.chat.tool_calls import CloseReason
from rookery.domain.chat.transitions import Transition
from rookery.store.chats import subagents
from rookery.store.chats.subagents import UntoldEnd
from rookery.store.machine import commit, message_rows, settlement
from rookery.store.machine.bundle import Bundle, Tx, transition
from rookery.store.machine.lock import Machine

# Since the user's last message: a parent and its children must not keep each other busy without end.
MAX_WAKES = 10


class _NotWoken(Exception):
    """Raised to roll the bundle back: no version, no hint."""


class Woken(msgspec.Struct, frozen=True):
    chat: Chat
    message: Message


async def tell_ends(tx: Tx) -> Message | None:
    """Commit a step that consists of a notice about ended children. Return None if there is nothing to tell."""
    ends = await subagents.list_untold(tx.conn, tx.chat.id)
    if not ends:
        return None
    committed = await commit.commit_step(tx, [await _notice(tx, ends)])
    message = committed.inserted[0]
    await subagents.tell_by_notice(tx.conn, ends, notice_id=message.id, woke_parent=False)
    return message


async def try_wake(machine: Machine, chat_id: UUID) -> Woken | None:
    """Resume a chat at rest whose children have ended. Return None if it need not or must not be resumed.

    A chat that a user stopped, whose owner is disabled, or that was resumed too often is left alone: its model is told
    with the next turn.
    """

    async def run(bundle: Bundle) -> Woken | None:
        tx = await bundle.open(chat_id)
        state = await subagents.read_wake_state(tx.conn, chat_id)
        if tx.state is not State.W or not state.is_allowed:
            raise _NotWoken
        ends = await subagents.list_untold(tx.conn, chat_id)
        if not subagents.resumes(ends):
            raise _NotWoken
        if state.wakes >= MAX_WAKES:
            await subagents.hold_wake(tx.conn, chat_id)
            return None
        message = await wake_parent(tx, await _notice(tx, ends))
        await subagents.tell_by_notice(tx.conn, ends, notice_id=message.id, woke_parent=True)
        return Woken(tx.chat, message)

    try:
        return await machine.bundle(run)
    except (_NotWoken, ChatError):
        return None


@transition
async def wake_parent(tx: Tx, notice: NewMessage) -> Message:
    """Start a turn with a notice instead of a user's message."""
    tx.require(Transition.WAKE_PARENT)
    row = message_rows.row_of(notice)
    *_, message = await settlement.start_turn(tx, Transition.WAKE_PARENT, row, CloseReason.NEW_USER_MESSAGE)
    return message


async def _notice(tx: Tx, ends: list[UntoldEnd]) -> NewMessage:
    return NewMessage(role=Role.USER, content=await subagents.notices(tx.conn, ends))
