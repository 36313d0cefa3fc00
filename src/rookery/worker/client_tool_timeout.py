"""The client-tool-timeout task: closes the tool calls of a client that does not answer before the deadline.

The deadline is stored with the chat and is checked again under the row lock. Therefore a result that arrives first is
kept, and an extended deadline is respected. A chat whose calls no client can answer any more is interrupted. A chat
that waits for its user without a deadline is released; the user's answer makes it runnable again.
"""

from __future__ import annotations

from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.transitions import Transition
from rookery.store.chats.step_reads import read_fenced
from rookery.store.machine import Machine, Tx, cancel_requires_action, interrupt
from rookery.telemetry.log import get_logger
from rookery.worker.tasks import TaskHandle, Work

log = get_logger("worker.client_tool_timeout")


class ActionTimeoutWork:
    def __init__(self, machine: Machine, leave: Work) -> None:
        self._machine = machine
        self._leave = leave

    async def __call__(self, handle: TaskHandle) -> None:
        chat_id, fence = handle.input.chat_id, handle.input.fence()
        while True:
            row = await handle.read(lambda: read_fenced(self._machine, chat_id, fence=fence))
            if row.chat.is_parked:
                # The user may answer days later, and the chat must not hold a slot until then.
                await self._leave(handle)
                return
            deadline = row.chat.requires_action_deadline_at
            # A missing deadline counts as passed, because the wait would never end.
            remaining = 0.0 if deadline is None else (deadline - row.now).total_seconds()
            if remaining > 0:
                await handle.wait(remaining, "action-deadline")
            elif await self._cancel(handle):
                return

    async def _cancel(self, handle: TaskHandle) -> bool:
        """Close the open calls with an error. Return False if the deadline has been extended since it was read."""

        async def cancel(tx: Tx) -> None:
            await cancel_requires_action(tx)

        try:
            await handle.update(cancel, transition=Transition.CANCEL_REQUIRES_ACTION)
        except TransitionNotAllowed as refused:
            if refused.cause == "deadline_not_reached":
                return False
            if refused.cause != "no_open_calls":
                raise
            # The chat's tools were changed while it waited for one of them, and only an interrupt can end the wait.
            log.warning("action_without_calls", chat_id=handle.input.chat_id)
            await handle.update(_stop, transition=Transition.INTERRUPT)
        return True


async def _stop(tx: Tx) -> None:
    await interrupt(tx)
