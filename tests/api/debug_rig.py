"""Stored debug records for tests of the API, made with the functions of the recorder and the store."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from rookery.debug import replay_request
from rookery.debug.normalization import PromptHashes, ResponseCollector, share_prefix
from rookery.debug.recorded_http import AttemptRecord, body_meta, redact_attempt
from rookery.debug.redaction import CapturedBody, Redactor
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.types import Call, Finish, FinishReason, StreamPart, TextDelta, Tool, Usage
from rookery.store.debug import attempts, runs, steps
from rookery.store.debug.attempts import NewAttempt
from rookery.store.debug.record_rows import AttemptStatus, RunKind, RunStatus, StepStatus, json_text
from rookery.store.debug.runs import NewRun
from rookery.store.debug.steps import NewStep, StepEnd, StepRequest

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
TOOL = Tool(name="read_file", description="Read a file.", input_schema={"type": "object", "properties": {}})
USAGE = Usage(input=100, output=20, cache_read=5000)


def said(*texts: str) -> Call:
    """Return a call with these texts, by the user and the model in turn."""
    roles = (Role.USER, Role.ASSISTANT)
    messages = [PromptMessage(role=roles[n % 2], parts=(PromptText(text),)) for n, text in enumerate(texts)]
    return Call(prompt=Prompt(tuple(messages)), tools=(TOOL,))


def answered(text: str, usage: Usage = USAGE) -> list[StreamPart]:
    return [TextDelta("0", text), Finish(FinishReason.STOP, usage)]


class DebugRecords:
    """Writes records of chats."""

    def __init__(self, pool: asyncpg.Pool, redactor: Redactor | None = None) -> None:
        self._pool = pool
        self._redactor = redactor or Redactor()

    async def run(
        self,
        chat: UUID | str,
        calls: Sequence[Call] = (),
        *,
        model_config_id: UUID | None = None,
        is_finished: bool = True,
        parts: Sequence[StreamPart] | None = None,
        minutes: int = 0,
        **fields: Any,
    ) -> tuple[UUID, list[UUID]]:
        """Write a run with one step for each call. Return their ids."""
        chat_id = ChatId(UUID(str(chat)))
        at = NOON + timedelta(minutes=minutes)
        async with self._pool.acquire() as conn:
            row = await conn.fetchrow(
                # The run of a replica that does not exist would be ended while it is written.
                "SELECT coalesce(root_chat_id, id) AS root, parent_chat_id, snapshot_version,"
                " (SELECT id FROM replicas LIMIT 1) AS replica_id FROM chats WHERE id = $1",
                chat_id,
            )
            assert row is not None
            values: dict[str, Any] = {
                "id": uuid4(),
                "chat_id": chat_id,
                "root_chat_id": row["root"],
                "parent_chat_id": row["parent_chat_id"],
                "replica_id": row["replica_id"] or uuid4(),
                "snapshot_version": row["snapshot_version"],
                "kind": RunKind.CHAT_TURN,
                "started_at": at,
                "provider": "offline",
                "model": "echo",
                "model_config_id": model_config_id,
                "summary": {"first_message": "Hello."},
            }
            run = NewRun(**{**values, **fields})
            assert await runs.insert_run(conn, run)
            made = await self._steps(conn, run, calls, parts or answered("Hi."))
            if is_finished:
                await runs.finish_run(
                    conn, run.id, chat_id, status=RunStatus.COMPLETED, finished_at=at + timedelta(seconds=9)
                )
        return run.id, made

    async def _steps(self, conn: Any, run: NewRun, calls: Sequence[Call], parts: Sequence[StreamPart]) -> list[UUID]:
        hashes, made = PromptHashes(), []
        for number, call in enumerate(calls, 1):
            prefix = msgspec.structs.replace(hashes.add(call), step=number - 1 or None)
            step_id = uuid4()
            request = StepRequest(
                model_config_id=run.model_config_id,
                provider=run.provider,
                model=run.model,
                message_count=len(call.prompt.messages),
                shared_messages=prefix.length,
                tool_count=len(call.tools),
                request=json_text(share_prefix(call, self._redactor, prefix)),
                replay_form=replay_request.pack(replay_request.encode(call, self._redactor, prefix)),
            )
            step = NewStep(
                id=step_id,
                run_id=run.id,
                chat_id=run.chat_id,
                step_number=number,
                step_key=None,
                epoch=1,
                operation="stream",
                history_tip_message_id=None,
                started_at=run.started_at,
                request=request,
            )
            assert await steps.insert_step(conn, step) == number
            collector = ResponseCollector()
            for part in parts:
                collector.add(part)
            response, summary = collector.finish(self._redactor)
            end = StepEnd(
                status=StepStatus.COMPLETED,
                finished_at=run.started_at + timedelta(seconds=2),
                response=json_text(response),
                usage=json_text(response.usage),
                cost_micros=117,
                finish_reason=response.finish_reason,
                metadata=json_text({"stream_summary": summary}),
                ttft_ms=250,
            )
            assert await steps.finish_step(conn, step_id, epoch=1, end=end)
            await self._attempt(conn, step_id, run, call)
            made.append(step_id)
        return made

    async def _attempt(self, conn: Any, step_id: UUID, run: NewRun, call: Call) -> None:
        text = call.prompt.messages[-1].parts[0]
        assert isinstance(text, PromptText)
        body = b'data: {"text": "Hi."}\n\n'
        record = AttemptRecord(
            number=1,
            status=AttemptStatus.COMPLETED,
            url="https://api.example/v1/messages?key=none-of-yours",
            request_headers={"x-api-key": "none-of-yours", "content-type": "application/json"},
            request_body=msgspec.json.encode({"text": text.text, "password": "none-of-yours"}),
            started_at=run.started_at,
            finished_at=run.started_at,
            duration_ms=1900,
            ttfb_ms=200,
            response_status=200,
            response_headers={"content-type": "text/event-stream", "request-id": "req_1"},
            response_body=CapturedBody(head=body, size=len(body)),
        )
        stored = redact_attempt(record, self._redactor)
        assert stored.response_body is not None
        attempt = NewAttempt(
            number=stored.number,
            status=stored.status,
            generation_attempt=1,
            method=stored.method,
            url=stored.url,
            path=stored.path,
            request_headers=json_text(stored.request_headers),
            request_body=zlib.compress(stored.request_body.data, 1),
            response_status=stored.response_status,
            response_headers=json_text(stored.response_headers),
            response_body=zlib.compress(stored.response_body.data, 1),
            body_meta=json_text(body_meta(stored)),
            error=stored.error,
            ttfb_ms=stored.ttfb_ms,
            duration_ms=stored.duration_ms,
            started_at=stored.started_at,
            finished_at=stored.finished_at,
        )
        assert await attempts.write_attempt(conn, step_id, run.chat_id, attempt)
