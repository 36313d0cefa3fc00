"""A turn without tools takes five statements, so that round trips do not grow back unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rookery.domain.chat.messages import ChatId, NewQueuedMessage
from rookery.domain.chat.parts import Text
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import Say
from rookery.store.db.hints import ChatHint
from rookery.store.db.query_spans import query_span
from rookery.store.machine import single_statement
from rookery.worker.config import WorkerConfig
from tests.worker.worker_rig import WorkerRig, open_house

# No timer runs a statement during a turn.
QUIET = WorkerConfig(acquire_interval_seconds=300.0)


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the statements of all pools, except those that send hints, whose number depends on the time."""
    ran: list[str] = []

    def noted(query: str) -> object:
        if "pg_notify" not in query:
            ran.append(" ".join(query.split()))
        return query_span(query)

    with monkeypatch.context() as patch:
        patch.setattr("rookery.store.db.pool.query_span", noted)
        yield ran


async def turn(rig: WorkerRig, chat_id: ChatId) -> None:
    ends: asyncio.Queue[int] = asyncio.Queue()

    def heard(hint: ChatHint) -> None:
        if hint.status == Status.WAITING and hint.runner_id is None:
            ends.put_nowait(hint.snapshot_version)

    message = NewQueuedMessage(content=(Text("and now?"),), created_by=rig.user, model_config_id=rig.model)
    with rig.replicas[0].bus.subscribe(ChatHint, heard, key=chat_id):
        sent = await single_statement.send_at_rest(
            rig.machine, chat_id, message, owner_id=rig.user, busy=BusyBehavior.QUEUE
        )
        assert sent is not None
        async with asyncio.timeout(30):
            # The hint of the previous turn may arrive late.
            while await ends.get() <= sent.chat.snapshot_version:
                pass
    await rig.worker.wait_idle()


async def test_turn_without_tools_takes_five_statements(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(database_url, script=(Say("done"),), config=QUIET) as rig:
        chat_id = await rig.ask(client_type="api")
        await rig.rested(chat_id)
        await turn(rig, chat_id)  # configuration is cached

        with statements(monkeypatch) as ran:
            await turn(rig, chat_id)

    beginnings = [
        "WITH rested AS ( SELECT c.id FROM chats",  # send
        "WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)), free AS",  # acquire
        "SELECT news.*, chat.*",  # load
        "WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)) UPDATE chats",  # count
        "WITH rested AS ( UPDATE chats",  # commit, end and release
    ]
    assert len(ran) == len(beginnings), ran
    assert all(query.startswith(begin) for query, begin in zip(ran, beginnings, strict=True)), ran


async def test_first_turn_of_a_new_chat_reads_it_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(database_url, script=(Say("done"),), config=QUIET) as rig:
        await rig.rested(await rig.ask(client_type="api"))
        with statements(monkeypatch) as ran:
            await rig.rested(await rig.ask(client_type="api"))
            await rig.worker.wait_idle()

    assert sum(query.startswith("SELECT news.*") for query in ran) == 1, ran
    assert not any("m.id) >= " in query for query in ran), ran
