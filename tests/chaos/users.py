"""The users of a run: each follows a script with one chat, and repeats a request until the server has accepted it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg

from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import ChatId, NewMessage, NewQueuedMessage, Role
from rookery.domain.chat.parts import Text
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.errors import CommitOutcomeUnknown
from rookery.store.machine import ChatSpec, Machine
from tests.chaos.database_watch import Watch
from tests.chaos.run_results import Accepted
from tests.chaos.schedule import Act, Say, Stop

AGAIN_SECONDS = 0.05
FIND = """
    SELECT EXISTS (SELECT FROM chat_messages WHERE chat_id = $1 AND role = 'user' AND content::text LIKE $2)
        OR EXISTS (SELECT FROM chat_queued_messages WHERE chat_id = $1 AND content::text LIKE $2)
"""


class Person:
    """`accepted` holds the accepted messages in the order of sending."""

    def __init__(
        self, pool: asyncpg.Pool, machine_: Machine, watch: Watch, *, chat_id: UUID, user: UUID, model: UUID
    ) -> None:
        self._pool = pool
        self._machine = machine_
        self._watch = watch
        self._user = user
        self._model = model
        self.chat_id = ChatId(chat_id)
        self.accepted: list[Accepted] = []

    async def follow(self, script: tuple[Act, ...]) -> None:
        """Follow the script, and wait until the chat is at rest."""
        for act in script:
            await asyncio.sleep(act.after_seconds)
            match act:
                case Stop():
                    await self.stop()
                case Say(plan=plan, busy=busy, at_rest=at_rest):
                    if self.accepted and at_rest:
                        await self._watch.until_rest(self.chat_id)
                    await self.say(str(plan), busy)
                    overtakes = busy is not BusyBehavior.QUEUE
                    self.accepted.append(Accepted(str(self.chat_id), plan.name, overtakes))
        await self._watch.until_rest(self.chat_id)

    async def say(self, words: str, busy: BusyBehavior = BusyBehavior.QUEUE) -> None:
        """Send a message. The first one creates the chat."""
        if not self.accepted:
            await self._insist(lambda: self._create(words), lambda: self._has(words))
            self._watch.add(self.chat_id)
            return
        message = NewQueuedMessage(content=(Text(words),), created_by=self._user)
        chat = self._machine.chat(self.chat_id)
        await self._insist(
            lambda: chat.update(lambda tx: machine.send_message(tx, message, busy)), lambda: self._has(words)
        )
        self._watch.expect(self.chat_id)

    async def stop(self) -> None:
        """Interrupt the chat. A chat at rest refuses that, which is not an error."""
        chat = self._machine.chat(self.chat_id)
        try:
            await self._insist(lambda: chat.update(machine.interrupt), _no)
        except TransitionNotAllowed:
            return

    async def _create(self, words: str) -> None:
        message = NewMessage(role=Role.USER, content=(Text(words),), created_by=self._user)
        spec = ChatSpec(
            id=self.chat_id, owner_id=self._user, title="A chat", model_config_id=self._model, messages=(message,)
        )
        await self._machine.bundle(lambda bundle: machine.create_chat(bundle, spec))

    async def _insist(self, ask: Callable[[], Awaitable[object]], is_there: Callable[[], Awaitable[bool]]) -> None:
        """Repeat a request until it is done.

        If the response was lost, check whether it was done, like an idempotency key.
        """
        while True:
            try:
                await ask()
                return
            except CommitOutcomeUnknown:
                if await self._looked(is_there):
                    return
            except DATABASE_ERRORS:
                pass
            await asyncio.sleep(AGAIN_SECONDS)

    async def _looked(self, is_there: Callable[[], Awaitable[bool]]) -> bool:
        while True:
            try:
                return await is_there()
            except DATABASE_ERRORS:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _has(self, words: str) -> bool:
        name = words.split(" ", 1)[0]
        found: bool = await self._pool.fetchval(FIND, self.chat_id, f'%"{name}%')
        return found


async def _no() -> bool:
    """Return False, because an interrupt leaves nothing to check. A second one is refused or stops the next turn."""
    return False
