"""A rig for short texts: real chats in a real database, and a scripted model that answers by purpose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import UUID

from rookery.domain.chat.chat import Chat, LastError
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.next_action import TurnEnd
from rookery.llm.scripted import Say, Scripts, Step, last_user_text
from rookery.llm.types import Call
from rookery.models.connector import Connector
from rookery.models.directory import Directory
from rookery.store import machine
from rookery.store.chats.step_reads import HistoryCache, load_step
from rookery.store.chats.step_reads import Step as LoadedStep
from rookery.store.db.hints import WatchKind
from rookery.store.settings import settings
from rookery.testing.clock import FakeClock
from rookery.worker.config import WorkerConfig
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.turn_end_effects import Effects, Push
from tests.store.machine.machine_rig import Rig, assistant, make_rig

LONG = "The login test failed because the clock was wrong. It is fixed now, and all tests pass again. " * 3


def saying(**fields: str) -> tuple[Step, ...]:
    return (Say(json.dumps(fields)),)


class Pushes:
    """Records pushed notices. With `error` it raises; with a closed `gate` it hangs."""

    def __init__(self) -> None:
        self.sent: list[Push] = []
        self.error: Exception | None = None
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, push: Push) -> None:
        self.begun += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(push)


class TitlesRig:
    """A rig for titles, labels and summaries.

    `answers` maps a requested object to its answers; the last one is repeated.
    """

    def __init__(self, rig: Rig, config: WorkerConfig | None = None) -> None:
        self.rig = rig
        self.clock = FakeClock()
        self.inflight = FollowUpWork(self.clock)
        self.pushes = Pushes()
        self.answers: dict[str, list[Sequence[Step]]] = {
            "Title": [saying(title="Fix the login test")],
            "Label": [saying(label="Login test fixed")],
            "Summary": [saying(summary="The login test was fixed.")],
        }
        self.asked: list[tuple[str, str]] = []
        self.directory = Directory(rig.pool, ring=None, environ={}, clock=self.clock)
        scripts = Scripts({name: self._play for name in ("scripted", "tiny-haiku", "chosen")})
        self.connector = Connector(scripts=scripts, clock=self.clock, tokens_per_second=0)
        self.effects = Effects(
            pool=rig.pool,
            publisher=rig.published,
            directory=self.directory,
            connector=self.connector,
            inflight=self.inflight,
            clock=self.clock,
            rng=Random(1),
            push=self.pushes,
            config=config,
        )

    def _play(self, call: Call) -> Sequence[Step]:
        assert call.format is not None
        name = call.format.name
        self.asked.append((name, last_user_text(call.prompt)))
        answers = self.answers[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def asked_for(self, name: str) -> list[str]:
        return [text for asked, text in self.asked if asked == name]

    async def setting(self, key: str, value: object) -> None:
        async with self.rig.pool.acquire() as conn:
            await settings.write_setting(conn, key, value=value)
        self.directory.invalidate()

    # Turns

    async def load(self, chat_id: ChatId) -> LoadedStep:
        chat = await self.rig.load(chat_id)
        fence = self.rig.fence(chat) if chat.runner_id is not None else await self.rig.acquire(chat_id)
        return await load_step(self.rig.machine, chat_id, fence=fence, cache=HistoryCache())

    async def answered(self, words: str = LONG, **fields: object) -> ChatId:
        """Return a chat whose first turn has an answer but has not ended."""
        chat_id = await self.rig.create(**{"client_type": "ui", **fields})
        await self.rig.commit(chat_id, assistant(words))
        return chat_id

    async def finish(self, chat_id: ChatId, reason: TurnEnd = TurnEnd.COMPLETE) -> Chat:
        """End the turn as the worker does, without waiting for the effects."""
        step = await self.load(chat_id)
        done = await self.rig.update(chat_id, machine.finish_turn)
        chat = await self.rig.load(chat_id)
        self.rig.published.clear()
        self.effects.turn_finished(chat, step.meta, step.history, reason=reason, is_promoted=done.promoted is not None)
        return chat

    async def finish_and_wait(self, chat_id: ChatId, reason: TurnEnd = TurnEnd.COMPLETE) -> Chat:
        chat = await self.finish(chat_id, reason)
        await self.idle()
        return chat

    async def turn(self, chat_id: ChatId, words: str = LONG) -> None:
        """Run another turn and wait for its effects."""
        await self.rig.send(chat_id, "and now?")
        await self.rig.commit(chat_id, assistant(words))
        await self.finish_and_wait(chat_id)

    async def fail(self, chat_id: ChatId, failure: LastError) -> Chat:
        await self.rig.update(chat_id, lambda tx: machine.finish_error(tx, failure))
        chat = await self.rig.load(chat_id)
        self.rig.published.clear()
        self.effects.turn_failed(chat, failure)
        return chat

    async def idle(self) -> None:
        """Wait for all effects. Fail if one of them waits for a time that the test does not reach."""
        async with asyncio.timeout(10):
            await self.inflight.wait_idle()

    # Queries

    async def label(self, chat_id: ChatId) -> str | None:
        return (await self.rig.columns(chat_id))["last_turn_summary"]  # type: ignore[no-any-return]

    async def set_label(self, chat_id: ChatId, label: str) -> None:
        await self.rig.sql("UPDATE chats SET last_turn_summary = $2 WHERE id = $1", chat_id, label)

    async def summary(self, chat_id: ChatId) -> str | None:
        return (await self.rig.columns(chat_id))["summary"]  # type: ignore[no-any-return]

    def watched(self) -> list[tuple[WatchKind, UUID]]:
        return [(hint.kind, hint.chat_id) for hint in self.rig.published.watch()]

    async def ledger(self) -> list[dict[str, Any]]:
        async with self.rig.pool.acquire() as conn:
            return [dict(record) for record in await conn.fetch("SELECT * FROM model_usage ORDER BY id")]


@asynccontextmanager
async def open_desk(database_url: str, config: WorkerConfig | None = None) -> AsyncIterator[TitlesRig]:
    async with make_rig(database_url) as rig:
        desk = TitlesRig(rig, config)
        try:
            yield desk
        finally:
            await desk.inflight.close(0)
            await desk.directory.close()
            await desk.connector.close()
