"""The writer: order, bounds, slow and lost databases, and what it says about records that are missing."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.debug.recorded_http import AttemptBodies, AttemptRecord
from rookery.debug.recorder import Limits, Run, Step, cut_label, new_id
from rookery.debug.redaction import CapturedBody, Redactor
from rookery.debug.stats import Dropped, Result
from rookery.debug.writer import AWAY_SECONDS, OPERATION_SECONDS, RECONNECT_SECONDS
from rookery.domain.chat.model_prompt import Prompt
from rookery.llm.types import ErrorKind, Finish, FinishReason, ProviderError, TextDelta, Tool, ToolCall, Usage
from rookery.runtime.clock import SystemClock
from rookery.store.db.hints import MiscHint
from rookery.store.debug.record_rows import AttemptStatus, RunStatus, StepStatus
from rookery.testing import FakeClock
from tests.debug.recording_rig import MODEL, RecordingRig, call_of, open_recording
from tests.eventually import until

ERROR = ProviderError(kind=ErrorKind.OVERLOADED, message="Overloaded.", retryable=True, provider="Acme", status=529)
FULL_DISK = """
    CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER no_space BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION no_space();
"""


class WatchedPrompt(Prompt, frozen=True, weakref=True):
    """A prompt of which a test sees whether it is freed."""


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[RecordingRig]:
    async with open_recording(database_url) as opened:
        yield opened


def record_call(
    run: Run, *texts: str, key: str | None = None, status: StepStatus = StepStatus.COMPLETED, **fields: Any
) -> Step:
    """Record a whole call."""
    step = run.step(key=key)
    assert step is not None
    call = step.begin(call_of(*texts, **fields), MODEL, wire="completions")
    if status is StepStatus.COMPLETED:
        call.answer.add(TextDelta("0", "hi"))
        call.answer.add(Finish(FinishReason.STOP, Usage(input=5, output=1)))
    call.end(status, ERROR if status is StepStatus.ERROR else None)
    return step


def attempt(number: int, *, body: bytes = b'{"a": 1}', answer: bytes = b"data: {}\n\n") -> AttemptRecord:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    return AttemptRecord(
        number=number,
        status=AttemptStatus.COMPLETED,
        url="https://api.example/v1/chat",
        request_headers={"content-type": "application/json"},
        request_body=body,
        response_status=200,
        response_headers={"content-type": "text/event-stream"},
        response_body=CapturedBody(head=answer, size=len(answer)),
        started_at=now,
        finished_at=now,
        duration_ms=3,
        ttfb_ms=1,
    )


async def test_operations_of_a_run_are_written_in_their_order(rig: RecordingRig) -> None:
    run = await rig.run()
    step = record_call(run, "hello", key="h1", status=StepStatus.ERROR)
    step.retry_planned("overloaded", timedelta(seconds=2))
    again = record_call(run, "hello", key="h1")
    run.finish(RunStatus.COMPLETED)

    assert again is step
    (row,) = await rig.rows("runs")
    written = await rig.step()
    assert (row["status"], written["status"], written["finish_epoch"]) == ("completed", "completed", 2)
    assert rig.writer.stats.operations["close", Result.OK] == 1
    assert rig.recorder.open_runs == []


async def test_message_of_an_answer_is_written_with_its_end_or_after_it(rig: RecordingRig) -> None:
    run = await rig.run()
    early = record_call(run, "one")
    early.committed(7)
    await rig.writer.flush()
    late = record_call(run, "one", "two")
    await rig.writer.flush()
    late.committed(9)

    assert [step["assistant_message_id"] for step in await rig.rows("steps")] == [7, 9]
    assert rig.writer.stats.operations["message", Result.OK] == 1


async def test_second_record_of_an_attempt_replaces_the_first(rig: RecordingRig) -> None:
    run = await rig.run()
    step = record_call(run, "hello")
    step.attempt_ended(attempt(1))
    step.attempt_ended(msgspec.structs.replace(attempt(1), status=AttemptStatus.FAILED, error="Connection lost."))

    (row,) = await rig.rows("attempts")
    assert (row["status"], row["error"], row["body_meta"]["response"]["size"]) == ("failed", "Connection lost.", 10)


async def test_stored_attempt_says_that_its_body_was_cut(rig: RecordingRig) -> None:
    step = record_call(await rig.run(), "hello")
    long = msgspec.json.encode({"messages": [{"role": "user", "content": "word " * 200}] * 200})
    step.attempt_ended(msgspec.structs.replace(attempt(1), request_body=long))

    (row,) = await rig.rows("attempts")
    stored = msgspec.convert(row["body_meta"], AttemptBodies)
    assert stored.request is not None
    assert (stored.request.size, stored.request.is_truncated) == (len(long), True)


async def test_size_of_stored_bodies_is_a_setting(database_url: str) -> None:
    async with open_recording(database_url, redactor=Redactor(body_bytes=8192)) as rig:
        step = record_call(await rig.run(), "hello")
        long = msgspec.json.encode({"messages": [{"role": "user", "content": f"word {n}" * 50} for n in range(200)]})
        step.attempt_ended(attempt(1, body=long, answer=b"data: {}\n\n" * 5000))

        (row,) = await rig.rows("attempts")
        sizes = [len(zlib.decompress(row[name])) for name in ("request_body", "response_body")]
        assert all(1000 < size <= 8192 + 20_000 for size in sizes)
        assert sizes[0] <= 8192


async def test_run_of_removed_history_is_refused_and_the_rest_is_dropped(rig: RecordingRig) -> None:
    facts = await rig.facts()
    await rig.rig.pool.execute(
        "INSERT INTO chat_debug_state (chat_id, floor) VALUES ($1, $2)", rig.chat_id, facts.snapshot_version + 1
    )
    run = rig.recorder.open(facts)
    assert run is not None
    record_call(run, "hello")
    run.finish(RunStatus.COMPLETED)

    assert await rig.rows("runs") == []
    stats = rig.writer.stats
    assert (stats.operations["run", Result.REFUSED], stats.dropped[Dropped.DETACHED]) == (1, 3)


@pytest.mark.parametrize("how", ["ended", "deleted"])
async def test_recorder_of_a_run_that_was_ended_or_deleted_elsewhere_is_detached_quietly(
    how: str, rig: RecordingRig, caplog: pytest.LogCaptureFixture
) -> None:
    run = await rig.run()
    record_call(run, "hello")
    await rig.writer.flush()
    statement = "DELETE FROM chat_debug_runs"
    if how == "ended":
        statement = "UPDATE chat_debug_runs SET status = 'interrupted', finished_at = started_at"
    await rig.rig.pool.execute(statement)
    with caplog.at_level(logging.WARNING):
        record_call(run, "hello", "again")
        run.finish(RunStatus.COMPLETED)
        await rig.writer.flush()

    assert run.is_detached
    assert caplog.records == []
    assert len(await rig.rows("steps")) == (1 if how == "ended" else 0)


async def test_run_that_belongs_to_another_chat_is_reported_as_a_bug(
    rig: RecordingRig, caplog: pytest.LogCaptureFixture
) -> None:
    run = await rig.run()
    record_call(run, "hello")
    await rig.writer.flush()
    run.facts = await rig.facts(chat_id=uuid4())
    with caplog.at_level(logging.ERROR):
        record_call(run, "again")
        await rig.writer.flush()

    assert [record.getMessage() for record in caplog.records] == ["debug_run_not_found"]


# Requests


async def test_requests_share_prefixes_across_retries_and_lost_steps(rig: RecordingRig) -> None:
    run = await rig.run()
    record_call(run, "a", "b", key="h1")
    record_call(run, "a", "b", "c", key="h2", status=StepStatus.ERROR)
    record_call(run, "a", "b", "c", "d", key="h2")  # a retry with another prompt
    record_call(run, "a", "x", key="h3")
    rows = await rig.rows("steps")

    requests = [row["normalized_request"] for row in rows]
    assert [(each.get("prefix_from"), each.get("prefix_len", 0)) for each in requests] == [(None, 0), (1, 2), (2, 1)]
    assert [len(each["messages"]) for each in requests] == [2, 2, 1]
    assert [row["shared_messages"] for row in rows] == [0, 2, 1]


async def test_run_beyond_its_limits_keeps_only_metadata(database_url: str) -> None:
    async with open_recording(database_url, limits=Limits(max_steps=2)) as rig:
        run = await rig.run()
        for number in range(4):
            record_call(run, "hello", str(number)).attempt_ended(attempt(1))
        run.finish(RunStatus.COMPLETED)
        steps, (row,) = await rig.rows("steps"), await rig.rows("runs")
        bodies = await rig.rig.pool.fetch(
            "SELECT a.request_body IS NULL FROM chat_debug_attempts a"
            " JOIN chat_debug_steps s ON s.id = a.step_id ORDER BY s.step_number"
        )

    assert [step["normalized_request"] == {} for step in steps] == [False, False, True, True]
    assert [step["normalized_response"] is None for step in steps] == [False, False, True, True]
    assert [step["replay_form"] is None for step in steps] == [False, False, True, True]
    assert [body[0] for body in bodies] == [False, False, True, True]
    assert [step["message_count"] for step in steps] == [2] * 4
    assert (row["summary"]["truncated"], row["summary"]["total_input_tokens"]) == (True, 20)


async def test_run_that_is_too_large_keeps_only_metadata(database_url: str) -> None:
    async with open_recording(database_url, limits=Limits(max_bytes=20_000)) as rig:
        run = await rig.run()
        for _ in range(5):
            record_call(run, "".join(str(uuid4()) for _ in range(200)))
        run.finish(RunStatus.COMPLETED)
        steps = await rig.rows("steps")
        (row,) = await rig.rows("runs")

    kept = [step["normalized_request"] != {} for step in steps]
    assert (kept[0], kept[-1]) == (True, False)
    assert row["summary"]["truncated"] is True


async def test_turn_of_100_steps_over_400_kilobytes_stores_less_than_10_mebibytes(rig: RecordingRig) -> None:
    words = ["".join(str(uuid4()) for _ in range(280)) for _ in range(40)]  # incompressible, 400 KB
    tools = tuple(Tool(name=f"tool_{n}", description="d" * 300, input_schema={"type": "object"}) for n in range(20))
    run = await rig.run()
    for number in range(100):
        words.append(f"step {number} " + str(uuid4()) * 20)
        step = record_call(run, *words, key=f"h{number}", tools=tools)
        body = b'{"messages": ["' + "".join(words).encode() + b'"]}'
        step.attempt_ended(attempt(1, body=body, answer=b'data: {"text": "hello"}\n\n' * 500))
        await rig.writer.flush()
    run.finish(RunStatus.COMPLETED)
    await rig.writer.flush()
    size = await rig.rig.pool.fetchval(
        "SELECT sum(pg_total_relation_size(t)) FROM unnest(ARRAY['chat_debug_runs', 'chat_debug_steps',"
        " 'chat_debug_attempts']::regclass[]) AS t"
    )

    assert len(await rig.rows("steps")) == 100
    assert size < 10 * 1024 * 1024


# Bounds of the queue


async def test_full_queue_leaves_out_bodies_then_new_runs_and_never_ends(database_url: str) -> None:
    async with open_recording(database_url, is_running=False, max_bytes=100_000) as rig:
        run = await rig.run()
        step = record_call(run, "hello")
        for number in range(1, 6):
            step.attempt_ended(attempt(number, body=b"x" * 30_000))
        stripped = rig.writer.stats.dropped[Dropped.ATTEMPT_BODY]
        size = rig.writer.stats.queue_bytes
        for number in range(6, 200):
            step.attempt_ended(attempt(number, body=b"x" * 30_000))
        refused = rig.recorder.open(await rig.facts())
        call = step.begin(call_of("y" * 50_000), MODEL, wire="completions")
        call.end(StepStatus.COMPLETED)
        run.finish(RunStatus.COMPLETED)
        names = [operation.name for operation in rig.writer._queue]

    assert (stripped, size <= 100_000) == (2, True)
    assert refused is None
    assert rig.writer.stats.dropped[Dropped.RUN] == 1
    assert rig.writer.stats.dropped[Dropped.REQUEST] == 1
    assert names[-3:] == ["step", "finish", "close"]


async def test_too_many_operations_are_dropped_except_ends(database_url: str) -> None:
    async with open_recording(database_url, is_running=False, max_operations=10) as rig:
        run = await rig.run()
        steps = [record_call(run, "hello") for _ in range(30)]
        run.finish(RunStatus.COMPLETED)
        names = [operation.name for operation in rig.writer._queue]

    assert names.count("finish") == 30
    assert names[-1] == "close"
    assert names.count("step") < 30
    assert rig.writer.stats.dropped[Dropped.OPERATION] == 30 - names.count("step")
    assert len(steps) == 30


async def test_waiting_ends_are_counted_with_their_answers_and_errors(database_url: str) -> None:
    long = msgspec.structs.replace(ERROR, message="x" * 5_000)
    async with open_recording(database_url, is_running=False) as rig:
        step = (await rig.run()).step(key=None)
        assert step is not None
        call = step.begin(call_of("hello"), MODEL, wire="completions")
        before = rig.writer.stats.queue_bytes
        for _ in range(100):
            call.answer.add(TextDelta("0", "y" * 100))
        call.answer.add(ToolCall("1", "write", "z" * 20_000))
        call.end(StepStatus.ERROR, long)

        assert rig.writer.stats.queue_bytes - before > 35_000


async def test_request_that_is_left_out_is_freed_although_its_end_waits(database_url: str) -> None:
    async with open_recording(database_url, is_running=False, max_bytes=10_000) as rig:
        step = (await rig.run()).step(key=None)
        assert step is not None
        sent = msgspec.structs.replace(call_of(), prompt=WatchedPrompt(call_of("y" * 50_000).prompt.messages))
        prompt = weakref.ref(sent.prompt)
        step.begin(sent, MODEL, wire="completions").end(StepStatus.COMPLETED)
        del sent
        gc.collect()

        assert rig.writer.stats.dropped[Dropped.REQUEST] == 1
        assert prompt() is None


async def test_queue_is_written_when_the_process_stops(database_url: str) -> None:
    async with open_recording(database_url) as rig:
        run = await rig.run()
        for number in range(50):
            record_call(run, "hello", str(number))
        run.close(RunStatus.INTERRUPTED)
        await rig.writer.close()
        late = rig.recorder.open(await rig.facts())

        assert len(await rig.rows("steps")) == 50
        assert late is None
        assert rig.writer.stats.queue_bytes == 0


async def test_stop_waits_for_a_slow_database_for_five_seconds(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, door = FakeClock(), Door(database_url)
    async with open_recording(database_url, clock=clock, connect=door.connect) as rig:
        door.is_stuck = True
        run = await rig.run()
        record_call(run, "hello")
        await until(lambda: door.tries)
        closing = asyncio.create_task(rig.writer.close())
        with caplog.at_level(logging.WARNING):
            await clock.fire("debug-flush")
            await closing

        assert "debug_not_recorded" in caplog.text
        assert len(rig.writer) == 0


# Databases that fail


class Door:
    """Opens connections to the database, unless it is away or stuck."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_away = self.is_stuck = False
        self.tries = 0
        self.opened: list[asyncpg.Connection] = []

    async def connect(self) -> asyncpg.Connection:
        self.tries += 1
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.is_away:
            raise ConnectionRefusedError("The database is away.")
        conn = await asyncpg.connect(self._url)
        self.opened.append(conn)
        return conn

    def cut(self) -> None:
        self.is_away = True
        for conn in self.opened:
            conn.terminate()


async def test_records_of_a_short_outage_are_written_after_it(database_url: str) -> None:
    clock, door = FakeClock(), Door(database_url)
    async with open_recording(database_url, clock=clock, connect=door.connect) as rig:
        run = await rig.run()
        record_call(run, "hello")
        await rig.writer.flush()
        door.cut()
        record_call(run, "hello", "again")
        run.finish(RunStatus.COMPLETED)
        for _ in range(3):
            await clock.fire("debug-reconnect")
        door.is_away = False
        await clock.fire("debug-reconnect")
        steps = await rig.rows("steps")
        (row,) = await rig.rows("runs")

    assert ([step["status"] for step in steps], row["status"]) == (["completed"] * 2, "completed")
    assert sum(count for (_, result), count in rig.writer.stats.operations.items() if result is Result.FAILED) == 0


async def test_long_outage_costs_records_and_one_warning(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, door = FakeClock(), Door(database_url)
    async with open_recording(database_url, clock=clock, connect=door.connect) as rig:
        door.is_away = True
        run = await rig.run()
        for _ in range(10):
            record_call(run, "hello")
        run.finish(RunStatus.COMPLETED)
        with caplog.at_level(logging.WARNING):
            flushing = asyncio.create_task(rig.writer.flush())
            while not flushing.done():
                if clock.waiting("debug-reconnect"):
                    await clock.fire("debug-reconnect")
                await asyncio.sleep(0)
        door.is_away = False
        late = await rig.run()
        record_call(late, "hello")
        late.finish(RunStatus.COMPLETED)
        (row,) = await rig.rows("runs")

    (warning,) = caplog.records
    assert warning.getMessage() == "debug_not_recorded"
    fields = warning.__dict__["fields"]
    assert (fields["operation"], fields["chat_id"], fields["run_id"]) == ("run", rig.chat_id, run.id)
    assert (row["id"], row["status"]) == (late.id, "completed")
    assert clock.monotonic() >= AWAY_SECONDS
    assert RECONNECT_SECONDS < AWAY_SECONDS


async def test_statement_that_takes_too_long_is_given_up(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, door = FakeClock(), Door(database_url)
    async with open_recording(database_url, clock=clock, connect=door.connect) as rig:
        run = await rig.run()
        await rig.writer.flush()
        holder = await asyncpg.connect(database_url)
        async with holder.transaction():
            await holder.execute("SELECT FROM chat_debug_runs FOR UPDATE")
            record_call(run, "hello")
            with caplog.at_level(logging.WARNING):
                await clock.until_waiting("debug-operation")
                await until(lambda: is_waiting(rig))
                await clock.advance(OPERATION_SECONDS)
                await until(lambda: rig.writer.stats.operations["step", Result.TIMEOUT])
        await holder.close()
        again = record_call(run, "hello", "again")
        run.finish(RunStatus.COMPLETED)
        (step,) = await rig.rows("steps")

    assert "debug_not_recorded" in caplog.text
    assert step["id"] == again.id
    assert step["normalized_request"].get("prefix_len", 0) == 0, "a lost request is not referred to"


async def is_waiting(rig: RecordingRig) -> bool:
    return bool(
        await rig.rig.pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


@pytest.mark.parametrize("table", ["chat_debug_runs", "chat_debug_steps", "chat_debug_attempts"])
async def test_full_disk_costs_the_record_and_one_warning(
    table: str, rig: RecordingRig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.rig.pool.execute(FULL_DISK.format(table=table))
    with caplog.at_level(logging.WARNING):
        run = await rig.run()
        for number in range(3):
            record_call(run, "hello", str(number)).attempt_ended(attempt(1))
        run.finish(RunStatus.COMPLETED)
        await rig.writer.flush()
    await rig.rig.pool.execute(f"DROP TRIGGER no_space ON {table}")
    late = await rig.run()
    record_call(late, "hello").attempt_ended(attempt(1))
    late.finish(RunStatus.COMPLETED)
    rows = await rig.rows("runs")

    assert [record.getMessage() for record in caplog.records] == ["debug_not_recorded"]
    assert "No space left" in str(caplog.records[0].__dict__["fields"]["reason"])
    assert [row["status"] for row in rows] == ["completed"] * (1 if table == "chat_debug_runs" else 2)


async def test_operation_with_a_bug_does_not_end_the_others(
    rig: RecordingRig, caplog: pytest.LogCaptureFixture
) -> None:
    run = await rig.run()
    step = record_call(run, "hello")
    with caplog.at_level(logging.ERROR):
        step.attempt_ended(msgspec.structs.replace(attempt(1), url=None))
        run.finish(RunStatus.COMPLETED)
        await rig.writer.flush()

    assert [record.getMessage() for record in caplog.records] == ["debug_operation_failed"]
    (row,) = await rig.rows("runs")
    assert row["status"] == "completed"


# Times and hints


class JumpingClock(SystemClock):
    """A clock whose wall time jumps."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return super().now() + self.offset


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400), timedelta(hours=-1)])
async def test_clock_that_jumps_changes_no_duration(jump: timedelta, database_url: str) -> None:
    clock = JumpingClock()
    async with open_recording(database_url, clock=clock) as rig:
        run = await rig.run()
        step = run.step(key=None)
        assert step is not None
        call = step.begin(call_of("hello"), MODEL, wire="completions")
        clock.offset = jump
        call.end(StepStatus.COMPLETED)
        run.finish(RunStatus.COMPLETED)
        (row,) = await rig.rows("runs")
        written = await rig.step()

    for each in (row, written):
        assert timedelta() <= each["finished_at"] - each["started_at"] < timedelta(minutes=1)
    assert abs(datetime.now(UTC) - row["updated_at"]) < timedelta(minutes=1), "the clock of the database"


async def test_changes_are_announced_at_most_four_times_a_second(database_url: str) -> None:
    clock = FakeClock()
    async with open_recording(database_url, clock=clock) as rig:
        run = await rig.run()
        for number in range(20):
            record_call(run, "hello", str(number))
        await rig.writer.flush()
        early = kinds(rig)
        await clock.advance(0.25)
        record_call(run, "late")
        await rig.writer.flush()
        middle = kinds(rig)
        run.finish(RunStatus.COMPLETED)
        await rig.writer.flush()

    assert early == ["run"]
    assert middle == ["run", "step"]
    assert kinds(rig) == ["run", "step", "finalize"]


def kinds(rig: RecordingRig) -> list[Any]:
    return [hint.data["kind"] for hint in rig.hints if isinstance(hint, MiscHint)]


async def test_change_that_came_too_early_is_announced_a_moment_later(rig: RecordingRig) -> None:
    run = await rig.run()
    record_call(run, "hello")
    await rig.writer.flush()

    await until(lambda: kinds(rig) == ["run", "step"])


# Labels and ids


@given(st.text(max_size=400))
def test_label_is_one_line_of_at_most_200_characters(text: str) -> None:
    label = cut_label(text)

    assert len(label) <= 200
    assert label == " ".join(label.split())


def test_ids_are_uuids_of_version_7_in_the_order_of_time() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    ids = [new_id(start + timedelta(milliseconds=number)) for number in range(100)]

    assert {each.version for each in ids} == {7}
    assert ids == sorted(ids)
    assert new_id(datetime(1900, 1, 1, tzinfo=UTC)).version == 7


# Epochs: whatever order calls of a step end in, the newest call decides, and its strongest end

ENDS = st.sampled_from([StepStatus.INTERRUPTED, StepStatus.ERROR, StepStatus.COMPLETED])
EVENTS = st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), ENDS), st.booleans()), min_size=1, max_size=12)


@given(events=EVENTS)
@settings(max_examples=40)
def test_step_shows_the_newest_call_for_any_order_of_ends(shared_database_url: str, events: Any) -> None:
    async def check() -> None:
        async with open_recording(shared_database_url) as rig:
            run = await rig.run()
            step = run.step(key="h1")
            assert step is not None
            calls = [step.begin(call_of("hello"), MODEL, wire="completions")]
            model: list[StepStatus] = [StepStatus.IN_PROGRESS]
            for which, status, flushes in events:
                if status is None:
                    calls.append(step.begin(call_of("hello"), MODEL, wire="completions"))
                    model.append(StepStatus.IN_PROGRESS)
                else:
                    index = min(which, len(calls) - 1)
                    calls[index].end(status, ERROR if status is StepStatus.ERROR else None)
                    is_first = model[index] is StepStatus.IN_PROGRESS
                    is_reason = (model[index], status) == (StepStatus.INTERRUPTED, StepStatus.ERROR)
                    model[index] = status if is_first or is_reason else model[index]
                if flushes:
                    await rig.writer.flush()
            await rig.writer.flush()
            found = await rig.rig.pool.fetchrow(
                "SELECT status, finish_epoch, error FROM chat_debug_steps WHERE id = $1", step.id
            )

            assert found is not None
            assert (found["finish_epoch"], found["status"]) == (len(calls), model[-1])
            assert (found["error"] is not None) == (model[-1] is StepStatus.ERROR)

    asyncio.run(check())
