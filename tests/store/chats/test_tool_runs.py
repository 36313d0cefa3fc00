"""The tool ledger: one run per call for all callers, and its rows after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest

from rookery.domain.chat import open_tool_calls
from rookery.domain.chat.chat import Fence
from rookery.domain.chat.errors import StaleFence
from rookery.domain.chat.messages import ChatId, MessageId
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.chats import tool_runs
from rookery.store.chats.tool_runs import Call, RunStatus, ToolRun
from tests.store.machine.machine_rig import Rig, call, calling, make_rig


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made


async def a_call(rig: Rig) -> tuple[Call, Fence]:
    """Create a running chat whose newest row calls a tool."""
    chat_id = await rig.chat(State.R0)
    await rig.commit(chat_id, calling(call("call-1", "send_mail")))
    fence = await rig.acquire(chat_id)
    return Call(chat_id, await rig.last_id(chat_id), "call-1", "send_mail"), fence


async def begin(rig: Rig, of: Call, fence: Fence) -> ToolRun:
    async with rig.pool.acquire() as conn:
        return await tool_runs.begin(conn, of, fence=fence)


async def finish(rig: Rig, of: Call, result: bytes, *, is_error: bool = False) -> bool:
    async with rig.pool.acquire() as conn:
        return await tool_runs.finish(conn, of.token, result=result, is_error=is_error)


def test_token_depends_on_chat_message_and_call() -> None:
    chat_id = ChatId(uuid4())
    tokens = {
        open_tool_calls.replay_token(*place, name)
        for place in ((chat_id, MessageId(1)), (chat_id, MessageId(2)), (ChatId(uuid4()), MessageId(1)))
        for name in ("a", "b")
    }

    assert len(tokens) == 6
    assert open_tool_calls.replay_token(chat_id, MessageId(1), "a") in tokens


async def test_run_is_started_once_and_its_result_is_given_again(rig: Rig) -> None:
    of, fence = await a_call(rig)

    assert await begin(rig, of, fence) == ToolRun(RunStatus.STARTED)
    assert await begin(rig, of, fence) == ToolRun(RunStatus.UNFINISHED)
    assert await finish(rig, of, b"sent\0", is_error=True)
    assert await begin(rig, of, fence) == ToolRun(RunStatus.FINISHED, b"sent\0", True)


async def test_empty_result_is_a_result(rig: Rig) -> None:
    of, fence = await a_call(rig)
    await begin(rig, of, fence)
    await finish(rig, of, b"")

    assert (await begin(rig, of, fence)).status is RunStatus.FINISHED


async def test_of_many_who_begin_at_once_one_runs(rig: Rig) -> None:
    of, fence = await a_call(rig)

    runs = await asyncio.gather(*(begin(rig, of, fence) for _ in range(8)))

    assert sorted(run.status for run in runs) == ["started", *["unfinished"] * 7]


async def test_first_result_stays(rig: Rig) -> None:
    of, fence = await a_call(rig)
    await begin(rig, of, fence)

    assert await finish(rig, of, b"first")
    assert not await finish(rig, of, b"second")
    assert (await begin(rig, of, fence)).result == b"first"


async def test_next_owner_gets_what_the_old_one_left(rig: Rig) -> None:
    of, old = await a_call(rig)
    await begin(rig, of, old)
    new = await rig.acquire(of.chat_id)

    assert (await begin(rig, of, new)).status is RunStatus.UNFINISHED
    assert await finish(rig, of, b"late, but done")  # by the old owner, whose fence is gone
    assert (await begin(rig, of, new)).result == b"late, but done"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", uuid4()),
        ("runner_id", uuid4()),
        ("history_version", 99),
        ("generation_attempt", 7),
        ("status", "interrupting"),
    ],
)
async def test_stale_runner_starts_nothing(rig: Rig, field: str, value: object) -> None:
    of, fence = await a_call(rig)
    stale = msgspec.structs.replace(fence, **{field: value})

    with pytest.raises(StaleFence) as refusal:
        await begin(rig, of, stale)

    assert refusal.value.field == field
    assert await rig.value("SELECT count(*) FROM chat_tool_runs") == 0


async def test_run_of_a_chat_that_is_gone_is_stale_and_its_rows_go_with_it(rig: Rig) -> None:
    of, fence = await a_call(rig)
    await begin(rig, of, fence)
    await rig.update(of.chat_id, machine.interrupt)
    await rig.update(of.chat_id, machine.finish_interruption)
    await rig.machine.bundle(lambda bundle: machine.delete_family(bundle, of.chat_id))

    assert await rig.value("SELECT count(*) FROM chat_tool_runs") == 0
    assert not await finish(rig, of, b"too late")
    with pytest.raises(StaleFence) as refusal:
        await begin(rig, of, fence)
    assert refusal.value.field == "chat"


async def test_purge_removes_the_old_in_batches_and_keeps_the_young(rig: Rig) -> None:
    calls = [await a_call(rig) for _ in range(4)]
    for of, fence in calls:
        await begin(rig, of, fence)
    await rig.sql(
        "UPDATE chat_tool_runs SET started_at = started_at - interval '40 days' WHERE token <> $1", calls[0][0].token
    )

    async with rig.pool.acquire() as conn:
        assert await tool_runs.purge(conn, batch=2) == 2
        assert await tool_runs.purge(conn, batch=2) == 1
        assert await tool_runs.purge(conn, batch=2) == 0
        assert await tool_runs.purge(conn, older_than=timedelta(0)) == 1
