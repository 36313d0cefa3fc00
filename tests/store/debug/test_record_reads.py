"""Reads of records: pages of runs, steps without prompts, and attempts with and without bodies."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.states import State
from rookery.store.debug import record_reads
from rookery.store.debug.record_rows import AttemptStatus, RunKind, RunRow, RunStatus, StepStatus, json_text
from rookery.store.debug.steps import StepRequest
from tests.store.debug.debug_rows import NOON, DebugRows


async def test_pages_of_runs_are_newest_first_and_complete(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    made = [await rows.run(chat_id, started_at=NOON + timedelta(seconds=index // 2)) for index in range(7)]
    await rows.run(await rows.rig.chat(State.W))
    found: list[RunRow] = []
    cursor, pages = None, 0
    async with rows.pool.acquire() as conn:
        while True:
            page = await record_reads.list_runs(conn, chat_id, limit=3, cursor=cursor)
            found += page.runs
            pages += 1
            if (cursor := page.next_cursor) is None:
                break

    expected = sorted(made, key=lambda run: (run.started_at, run.id), reverse=True)
    assert ([run.id for run in found], pages) == ([run.id for run in expected], 3)
    assert (found[0].kind, found[0].status) == (RunKind.CHAT_TURN, RunStatus.IN_PROGRESS)


async def test_runs_are_filtered_by_kind_and_status(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    turn, title = await rows.run(chat_id), await rows.run(chat_id, kind=RunKind.TITLE_GENERATION)
    async with rows.pool.acquire() as conn:
        titles = await record_reads.list_runs(conn, chat_id, kind=RunKind.TITLE_GENERATION)
        opened = await record_reads.list_runs(conn, chat_id, status=RunStatus.IN_PROGRESS)
        ended = await record_reads.list_runs(conn, chat_id, status=RunStatus.COMPLETED)
        with pytest.raises(InvalidInput):
            await record_reads.list_runs(conn, chat_id, limit=101)
        with pytest.raises(InvalidInput):
            await record_reads.list_runs(conn, chat_id, cursor="nonsense")

    assert [run.id for run in titles.runs] == [title.id]
    assert {run.id for run in opened.runs} == {turn.id, title.id}
    assert ended.runs == []


async def test_run_is_found_in_its_own_chat_alone(rows: DebugRows) -> None:
    chat_id = await rows.rig.chat(State.W)
    run = await rows.run(chat_id)
    async with rows.pool.acquire() as conn:
        found = await record_reads.find_run(conn, chat_id, run.id)
        assert found is not None
        assert found.id == run.id
        assert await record_reads.find_run(conn, await rows.rig.chat(State.W), run.id) is None
        assert await record_reads.find_run(conn, chat_id, uuid4()) is None


async def test_steps_have_their_columns_and_requests_are_read_apart(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.W))
    request = StepRequest(
        message_count=3, shared_messages=1, tool_count=2, request='{"messages": [1]}', replay_form=b"form"
    )
    first = await rows.step(run, 1, request=request, step_key="h1")
    second = await rows.step(run, 2, request=StepRequest(request='{"messages": [2]}'))
    await rows.finish(first, StepStatus.COMPLETED, usage=json_text({"input_tokens": 1}), finish_reason="stop")
    async with rows.pool.acquire() as conn:
        listed = await record_reads.list_steps(conn, run.id)
        step = await record_reads.find_step(conn, run.id, first)
        requests = await record_reads.list_requests(conn, run.id, last_number=2)
        forms = await record_reads.list_replay_forms(conn, run.id, last_number=1)
        assert await record_reads.find_step(conn, uuid4(), first) is None

    assert [(each.id, each.status, each.message_count, each.tool_count) for each in listed] == [
        (first, StepStatus.COMPLETED, 3, 2),
        (second, StepStatus.IN_PROGRESS, 0, 0),
    ]
    assert step is not None
    assert (msgspec.json.decode(step.normalized_request), step.normalized_response) == ({"messages": [1]}, None)
    assert step.usage is not None
    assert msgspec.json.decode(step.usage) == {"input_tokens": 1}
    assert [msgspec.json.decode(each.normalized_request) for each in requests] == [{"messages": [1]}, {"messages": [2]}]
    assert [(each.step_number, each.replay_form) for each in forms] == [(1, b"form")]


async def test_attempts_are_listed_without_bodies(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.W))
    second, first = await rows.step(run, 2), await rows.step(run, 1)
    await rows.attempt(second, run, 1, status=AttemptStatus.ABORTED, error="user")
    await rows.attempt(first, run, 1, request_body=b"sent", response_body=b"read", request_headers='{"a": "b"}')
    async with rows.pool.acquire() as conn:
        listed = await record_reads.list_attempts(conn, run.id)
        whole = await record_reads.find_attempt(conn, first, 1)
        assert await record_reads.find_attempt(conn, first, 2) is None

    assert [(each.step_id, each.status, each.error) for each in listed] == [
        (first, AttemptStatus.COMPLETED, None),
        (second, AttemptStatus.ABORTED, "user"),
    ]
    assert whole is not None
    assert (whole.request_body, whole.response_body) == (b"sent", b"read")
    assert msgspec.json.decode(whole.request_headers) == {"a": "b"}


async def test_search_finds_steps_by_their_texts_without_reading_words_as_patterns(rows: DebugRows) -> None:
    run = await rows.run(await rows.rig.chat(State.W))
    other = await rows.run(await rows.rig.chat(State.W))
    texts = ['say "hi"\nto the Heron', "100% of c:\\temp_a", "Ä word"]
    steps = [
        await rows.step(run, number, request=StepRequest(request=json_text({"messages": [text]})))
        for number, text in enumerate(texts, 1)
    ]
    await rows.step(other, 1, request=StepRequest(request=json_text({"messages": texts})))
    await rows.finish(steps[2], StepStatus.ERROR, error=json_text({"message": "Overloaded"}))

    async def found(query: str, limit: int = 10) -> list[int]:
        async with rows.pool.acquire() as conn:
            return [step.step_number for step in await record_reads.search_steps(conn, run.id, query, limit=limit)]

    assert await found('"HI"   to the heron') == [1]
    assert await found("c:\\temp_a") == [2]
    assert await found("100%") == [2]
    assert await found("100_") == []
    assert await found("overload") == [3]
    assert await found("messages", limit=2) == [1, 2]
