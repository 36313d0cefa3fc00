"""Debug records of a long run, written to the database, because a model could not produce it in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from rookery.domain.chat.messages import ChatId
from rookery.store.db.pool import Connection, Database, DatabaseConfig
from rookery.store.debug import attempts, runs, steps
from rookery.store.debug.attempts import NewAttempt
from rookery.store.debug.record_rows import AttemptStatus, RunKind, RunStatus, StepStatus, json_text
from rookery.store.debug.runs import NewRun
from rookery.store.debug.steps import NewStep, StepEnd, StepRequest
from tests.browser.faulty_connection import EventLoopThread

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
# In the prompt of one step only.
RARE = "kingfisher"
RARE_STEP = 700
# The run of a replica that does not exist would be ended while it is written.
_CHAT = """
    SELECT coalesce(root_chat_id, id) AS root, snapshot_version, (SELECT id FROM replicas LIMIT 1) AS replica_id
      FROM chats
     WHERE id = $1
"""
_TRIGGER = "SELECT min(id) FROM chat_messages WHERE chat_id = $1 AND role = 'user'"


class StoredRecords:
    """Writes runs with the functions of the store."""

    def __init__(self, backstage: EventLoopThread, url: str) -> None:
        self._backstage = backstage
        self._url = url

    def run(self, chat: str, *, step_count: int) -> str:
        """A finished run of the chat's first turn. Each step adds two messages to its prompt."""
        return self._backstage.run(self._make(ChatId(UUID(chat)), step_count))

    async def _make(self, chat_id: ChatId, step_count: int) -> str:
        async with (
            await Database.connect(DatabaseConfig(self._url, pool_worker=1)) as database,
            database.api.acquire() as conn,
        ):
            chat = await conn.fetchrow(_CHAT, chat_id)
            assert chat is not None
            run = NewRun(
                id=uuid4(),
                chat_id=chat_id,
                root_chat_id=chat["root"],
                parent_chat_id=None,
                replica_id=chat["replica_id"],
                snapshot_version=chat["snapshot_version"],
                kind=RunKind.CHAT_TURN,
                started_at=BEGAN,
                provider="anthropic",
                model="opus",
                trigger_message_id=await conn.fetchval(_TRIGGER, chat_id),
                summary={"first_message": "Look at every bird"},
            )
            assert await runs.insert_run(conn, run)
            for number in range(1, step_count + 1):
                await _write_step(conn, run, number)
            ended = BEGAN + timedelta(seconds=2 * step_count)
            await runs.finish_run(conn, run.id, chat_id, status=RunStatus.COMPLETED, finished_at=ended)
            return str(run.id)


async def _write_step(conn: Connection, run: NewRun, number: int) -> None:
    began = BEGAN + timedelta(seconds=2 * number)
    shared = 0 if number == 1 else 2 * number - 2
    texts = [f"I look at bird {number}.", f"Bird {number} is a {RARE if number == RARE_STEP else 'crow'}."]
    request = {
        "message_count": 2 * number,
        "prefix_from": None if number == 1 else number - 1,
        "prefix_len": shared,
        "has_same_tools": number > 1,
        "messages": [
            {"role": role, "parts": [{"type": "text", "text": text, "text_length": len(text)}]}
            for role, text in zip(("assistant", "tool"), texts, strict=True)
        ],
    }
    step = NewStep(
        id=uuid4(),
        run_id=run.id,
        chat_id=run.chat_id,
        step_number=number,
        step_key=f"h{number}",
        epoch=1,
        operation="stream",
        history_tip_message_id=None,
        started_at=began,
        request=StepRequest(
            provider="anthropic",
            model="opus",
            message_count=2 * number,
            shared_messages=shared,
            request=json_text(request),
        ),
    )
    assert await steps.insert_step(conn, step) == number
    attempt = NewAttempt(
        number=1,
        status=AttemptStatus.COMPLETED,
        generation_attempt=1,
        method="POST",
        url="https://api.example.org/v1/messages",
        path="/v1/messages",
        request_headers="{}",
        request_body=None,
        response_status=200,
        response_headers="{}",
        response_body=None,
        body_meta="{}",
        error=None,
        ttfb_ms=300,
        duration_ms=1_500,
        started_at=began,
        finished_at=began + timedelta(seconds=1.5),
    )
    await attempts.write_attempt(conn, step.id, run.chat_id, attempt)
    end = StepEnd(
        status=StepStatus.COMPLETED,
        finished_at=began + timedelta(seconds=1.6),
        response=json_text({"content": [{"type": "text", "text": f"The next bird is {number + 1}."}]}),
        usage=json_text({"input_tokens": 12, "cache_read_tokens": 40 * number, "output_tokens": 30}),
        cost_micros=1_200,
        finish_reason="tool_calls",
        metadata=json_text({"stream_summary": {"tool_call_count": 1}}),
        ttft_ms=320,
    )
    assert await steps.finish_step(conn, step.id, epoch=1, end=end)
