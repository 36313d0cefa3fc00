"""Notices to a chat about the ends of its subagents: as a step of the running turn, or as the start of a new turn.

Each function inserts one notice and marks the ends in it as told, under the chat's lock. An end is told when the
history of the parent contains it. Each end is therefore told exactly once, even after a crash.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import msgspec

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import Message, NewMessage, Role, Visibility
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.parts import Text
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import Transition
from rookery.store.chats import subagents
from rookery.store.chats.subagents import UntoldEnd
from rookery.store.machine import message_rows, transition_update, turn_transitions
from rookery.store.machine.bundle import Bundle, Tx, transition
from rookery.store.machine.bundle_runner import Machine, View

# The limit since the user's last message. It keeps a parent and its subagents from waking each other forever.
MAX_WAKES = 10
# Shown to the user with the last wake. The model does not see it.
LAST_WAKE = NewMessage(
    role=Role.SYSTEM,
    visibility=Visibility.USER,
    content=(
        Text(
            f"Subagents have resumed this chat {MAX_WAKES} times since your last message. They do not resume it again "
            "until you send one."
        ),
    ),
)


class _NotWoken(Exception):
    """Raised to roll the bundle back, so that no version changes and no hint is published."""


class Woken(msgspec.Struct, frozen=True):
    chat: Chat
    message: Message


async def tell_ends(tx: Tx) -> Message | None:
    """Commit a step that consists of a notice about ended subagents. Return None if there is no untold end."""
    ends = await subagents.list_untold(tx.conn, tx.chat.id)
    if not ends:
        return None
    committed = await turn_transitions.commit_step(tx, [await _notice(tx, ends)])
    message = committed.inserted[0]
    await subagents.tell_by_notice(tx.conn, ends, notice_id=message.id, woke_parent=False)
    return message


async def try_wake(machine: Machine, chat_id: UUID) -> Woken | None:
    """Start a turn in a chat at rest whose subagents have ended. Return None if no turn is needed or allowed.

    No turn is started if a user stopped the chat, if its owner is disabled, or if subagents have resumed the chat too
    often. In these cases, the notice becomes part of the next turn.
    """

    async def run(bundle: Bundle) -> Woken | None:
        tx = await bundle.open(chat_id)
        state = await subagents.read_wake_state(tx.conn, chat_id)
        if tx.state is not State.W or not state.is_due:
            raise _NotWoken
        if state.wakes >= MAX_WAKES:
            await subagents.hold_wake(tx.conn, chat_id)
            await subagents.set_aside(tx.conn, chat_id)
            return None
        if state.wakes + 1 == MAX_WAKES:
            await message_rows.insert(tx, [message_rows.row_of(LAST_WAKE)])
        # If there are more ends than fit into one notice, the steps of the new turn tell the others.
        ends = await subagents.list_untold(tx.conn, chat_id)
        message = await wake_parent(tx, await _notice(tx, ends))
        await subagents.tell_by_notice(tx.conn, ends, notice_id=message.id, woke_parent=True)
        return Woken(tx.chat, message)

    try:
        return await machine.bundle(run)
    except (_NotWoken, ChatError):
        return None


async def keep_at_rest(machine: Machine, chat_id: UUID) -> None:
    """Prevent subagents that have already ended from resuming this chat. The next turn tells the model about these
    ends.
    """

    async def run(view: View) -> None:
        await subagents.set_aside(view.conn, chat_id)

    # The chat may be gone by now.
    with suppress(ChatError):
        await machine.lock(chat_id, run)


@transition
async def wake_parent(tx: Tx, notice: NewMessage) -> Message:
    """Start a turn with a notice instead of a user's message."""
    tx.require(Transition.WAKE_PARENT)
    row = message_rows.row_of(notice)
    *_, message = await transition_update.start_turn(tx, Transition.WAKE_PARENT, row, CloseReason.NEW_USER_MESSAGE)
    return message


async def _notice(tx: Tx, ends: list[UntoldEnd]) -> NewMessage:
    return NewMessage(role=Role.USER, content=await subagents.notices(tx.conn, ends))
