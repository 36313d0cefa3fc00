"""Effects of a turn's end: labels, summaries and push notices, produced by background tasks.

The methods are called after a commit and return immediately; they never delay or fail a step. Every write is
conditional on the chat's history version. Therefore results that arrive after the start of the next turn are dropped,
and no notice is pushed for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import islice
from random import Random
from typing import Protocol
from uuid import UUID

import asyncpg
import msgspec

from rookery.debug.turn_recording import Recordings
from rookery.domain.chat import compaction, titles
from rookery.domain.chat.chat import Chat, LastError
from rookery.domain.chat.messages import ChatId, Message, Role, Visibility
from rookery.domain.chat.next_action import TurnEnd
from rookery.domain.chat.parts import ContentError, Part, Text, ToolResult
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy
from rookery.models.call_stats import CallStats
from rookery.models.connector import Connector
from rookery.models.directory import Directory
from rookery.runtime.clock import Clock
from rookery.store.chats import chat_rows
from rookery.store.chats.step_reads import ChatMeta, LoadedHistory
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import ConfigHint, WatchKind
from rookery.store.db.pool import Connection
from rookery.store.machine import Publisher
from rookery.telemetry.log import get_logger
from rookery.titles import generate
from rookery.worker.config import WorkerConfig
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.short_texts import SUMMARY_TOTAL_SECONDS, ShortTexts, Subject, Titling, watch_hint

log = get_logger("worker.turn_end_effects")

STEP_LIMIT_LABEL = "Stopped at step limit"
# A summary is outdated after this many turns.
TURNS_PER_SUMMARY = 3
MIN_TRANSCRIPT = 200
PUSH_SECONDS = 30.0
TOOLS_SECONDS = 15.0
# Longer histories are processed in a thread.
_ROWS_ON_LOOP = 200

_STATES = {
    TurnEnd.COMPLETE: "the turn is finished",
    TurnEnd.STOP_AFTER_TOOL: "the turn is finished and waits for the user's decision",
}


class _Compacted(msgspec.Struct, frozen=True):
    summary: str = ""


_SUMMARY = msgspec.json.Decoder(_Compacted)


class PushKind(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """A notice for the devices of a chat's owner. `snapshot_version` distinguishes two notices about one chat."""

    kind: PushKind
    owner_id: UUID
    chat_id: ChatId
    snapshot_version: int
    text: str


class Pusher(Protocol):
    """Delivers a notice, or raises. It must limit its own duration."""

    async def __call__(self, push: Push) -> None: ...


async def no_push(push: Push) -> None:
    """Drop the notice. Used by replicas without a push service."""


Wake = Callable[[UUID], Awaitable[None]]


async def wake_nobody(parent_id: UUID) -> None:
    """Do nothing. The `Wake` of replicas without subagents."""


class Effects:
    """Starts the effects of outcomes. `chat` is always the committed row after the transition."""

    def __init__(
        self,
        *,
        pool: asyncpg.Pool,
        publisher: Publisher,
        directory: Directory,
        connector: Connector,
        inflight: FollowUpWork,
        clock: Clock,
        rng: Random,
        push: Pusher = no_push,
        wake_parent: Wake = wake_nobody,
        config: WorkerConfig | None = None,
        retry: RetryPolicy = DEFAULT_POLICY,
        stats: CallStats | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._inflight = inflight
        self._clock = clock
        self._push = push
        self._wake_parent = wake_parent
        self._config = config or WorkerConfig()
        self.texts = ShortTexts(
            directory,
            connector,
            pool=pool,
            clock=clock,
            rng=rng,
            policy=retry,
            stats=stats,
            recordings=recordings,
        )
        self._write_seconds = self._config.watch_publish_seconds
        self.titling = Titling(
            self.texts, pool=pool, publisher=publisher, inflight=inflight, write_seconds=self._write_seconds
        )

    def find_plain_label(self, chat: Chat, meta: ChatMeta) -> str | None:
        """Return the label of a complete turn; None if a model writes it, or the chat has no labels."""
        return titles.FINISHED_LABEL if chat.is_root and not wants_summaries(meta) else None

    def turn_finished(
        self,
        chat: Chat,
        meta: ChatMeta,
        history: LoadedHistory,
        *,
        reason: TurnEnd,
        is_promoted: bool,
        label: str | None = None,
    ) -> None:
        """Handle the end of a turn. With `is_promoted`, the next queued message has already begun a new turn.

        `label` was stored with the end of the turn; None if it has to be found.
        """
        if not chat.is_root:
            self._child_ended(chat, is_promoted=is_promoted)
            if not is_promoted and (report := report_of(history)) is not None:
                self._start(lambda: self._set_summary(chat, report), "report", self._write_seconds)
            return
        if meta.has_children and not is_promoted:
            # A child may have ended after the last check of this turn.
            self._wake(chat.id)
        if meta.title_tries < chat_rows.MAX_TITLE_TRIES:
            self.titling.start_again(chat, title=meta.title)
        if is_promoted:
            self._clear_label(chat)
            return
        if label is not None:
            if label != meta.last_turn_summary:
                self._announce(chat)
            if self._push is not no_push:
                self._start(lambda: self._push(_push(PushKind.FINISHED, chat, label)), "push", PUSH_SECONDS)
            return
        self._start(
            lambda: self._label(chat, meta, history, reason=reason),
            "label",
            generate.LABEL_SECONDS + 2 * self._write_seconds + PUSH_SECONDS,
        )
        if wants_summaries(meta) and is_summary_due(meta.summary_generated_at, history):
            self._start(
                lambda: self._summarise(chat, history), "summary", SUMMARY_TOTAL_SECONDS + 2 * self._write_seconds
            )

    def tools_ended(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the follow-up work of a turn's tools."""
        self._start(work, "tools", TOOLS_SECONDS)

    def model_changed(self, model_config_id: UUID) -> None:
        """Publish a hint that a model config has changed, so that other replicas read it again."""
        try:
            self._publisher.publish([ConfigHint(kind="model", id=str(model_config_id))])
        except Exception as error:
            # Without the hint, the other replicas read it when their cached copy expires.
            log.warning("hint_not_published", model_config_id=model_config_id, error=str(error))

    def turn_failed(self, chat: Chat, failure: LastError) -> None:
        """Handle a turn that ended with an error."""
        self._child_ended(chat, is_promoted=False)
        if chat.is_root:
            self._start(lambda: self._tell_failure(chat, failure), "failure", self._write_seconds + PUSH_SECONDS)

    def action_required(self, chat: Chat) -> None:
        """Label a chat that waits for its client or its user."""
        if chat.is_root:
            self._start(lambda: self._set_label(chat, titles.WAITING_LABEL), "label", self._write_seconds)

    def interrupted(self, chat: Chat, *, is_promoted: bool) -> None:
        """Label a chat whose turn was interrupted. If the next queued message has begun a turn, clear the label."""
        self._child_ended(chat, is_promoted=is_promoted)
        if chat.is_root:
            label = None if is_promoted else titles.STOPPED_LABEL
            self._start(lambda: self._set_label(chat, label), "label", self._write_seconds)

    def _child_ended(self, chat: Chat, *, is_promoted: bool) -> None:
        if chat.parent_chat_id is not None and not is_promoted:
            self._wake(chat.parent_chat_id)

    def _wake(self, parent_id: UUID) -> None:
        self._start(lambda: self._wake_parent(parent_id), "wake", self._write_seconds)

    def _clear_label(self, chat: Chat) -> None:
        self._start(lambda: self._set_label(chat, None), "label", self._write_seconds)

    def _start(self, work: Callable[[], Awaitable[object]], name: str, seconds: float) -> None:
        self._inflight.start(work, name=name, seconds=seconds)

    async def _label(self, chat: Chat, meta: ChatMeta, history: LoadedHistory, *, reason: TurnEnd) -> None:
        label = await self._find_label(chat, meta, history, reason=reason)
        if await self._set_label(chat, label):
            await self._push(_push(PushKind.FINISHED, chat, label))

    async def _find_label(self, chat: Chat, meta: ChatMeta, history: LoadedHistory, *, reason: TurnEnd) -> str:
        if reason is TurnEnd.MAX_STEPS:
            return STEP_LIMIT_LABEL
        answer = last_answer(history)
        if not answer or not wants_summaries(meta) or not await self._is_seen(chat):
            return titles.FINISHED_LABEL
        found = await self.texts.label(
            chat, title=meta.title, state=_STATES[reason], last_answer=answer, about=_turn_of(history)
        )
        return found or titles.FINISHED_LABEL

    async def _summarise(self, chat: Chat, history: LoadedHistory) -> None:
        if len(history.rows) <= _ROWS_ON_LOOP:
            turns = conversation(history.rows)
        else:
            turns = await asyncio.to_thread(conversation, history.rows)
        # Each pair has at least one character, so this many pairs show whether there is enough text to summarize.
        some = turns[:MIN_TRANSCRIPT]
        read = titles.transcript(some, per_turn=generate.SUMMARY_PER_TURN, limit=generate.SUMMARY_INPUT)
        if len(read) < MIN_TRANSCRIPT or not await self._is_seen(chat):
            return
        summary = await self.texts.summary(chat, turns, about=_turn_of(history))
        if summary is not None:
            await self._set_summary(chat, summary)

    async def _is_seen(self, chat: Chat) -> bool:
        """Return whether this outcome is still the last one of the chat. This is checked before a model is called,
        because the call costs money.
        """
        try:
            async with self._pool.acquire() as conn:
                return await chat_rows.is_visible(conn, chat.id, seen_history_version=chat.history_version)
        except DATABASE_ERRORS:
            return True

    async def _tell_failure(self, chat: Chat, failure: LastError) -> None:
        if await self._set_label(chat, None):
            await self._push(_push(PushKind.FAILED, chat, failure.message))

    async def _set_label(self, chat: Chat, label: str | None) -> bool:
        """Write the label. Return whether this outcome is still the last one of the chat."""

        async def write(conn: Connection) -> bool:
            return await chat_rows.write_turn_summary(
                conn, chat.id, summary=label, seen_history_version=chat.history_version
            )

        return await self._written(chat, write)

    async def _set_summary(self, chat: Chat, summary: str) -> bool:
        async def write(conn: Connection) -> bool:
            return await chat_rows.write_summary(
                conn, chat.id, summary=summary, seen_history_version=chat.history_version
            )

        return await self._written(chat, write)

    async def _written(self, chat: Chat, write: Callable[[Connection], Awaitable[bool]]) -> bool:
        """Write and announce a text. Retry while the database is unavailable, until the effect's time limit."""
        delay = self._config.task_backoff_seconds
        while True:
            try:
                async with self._pool.acquire() as conn:
                    is_written = await write(conn)
            except DATABASE_ERRORS as error:
                log.info("effect_not_written", chat_id=chat.id, error=str(error) or type(error).__name__)
            else:
                if is_written:
                    self._announce(chat)
                return is_written
            await self._clock.sleep(delay, "effect-retry")
            delay = min(2 * delay, self._config.task_backoff_max_seconds)

    def _announce(self, chat: Chat) -> None:
        try:
            self._publisher.publish([watch_hint(chat, WatchKind.SUMMARY_CHANGE)])
        except Exception as error:
            # A lost hint only delays the display of the text. The push that follows is still sent.
            log.warning("publish_failed", chat_id=chat.id, error=str(error))


def _turn_of(history: LoadedHistory) -> Subject:
    """Return the message that began the last turn, and the last message."""
    users = (row.message for row in reversed(history.rows) if row.message.role is Role.USER)
    trigger = next((message.id for message in users if _is_shown(message)), None)
    return Subject(trigger, history.rows[-1].message.id if history.rows else None)


def wants_summaries(meta: ChatMeta) -> bool:
    """Return whether a model writes labels and summaries for this chat.

    The default is True for all chats except those made through the API.
    """
    return meta.client_type != "api" if meta.generate_summaries is None else meta.generate_summaries


def last_answer(history: LoadedHistory) -> str:
    """Return the text of the model's last answer in this turn; empty if the model only called tools."""
    for row in reversed(history.rows):
        message = row.message
        if not _is_shown(message):
            continue
        if message.role is Role.USER:
            return ""
        if message.role is Role.ASSISTANT and (said := _said(message)):
            return said
    return ""


def report_of(history: LoadedHistory) -> str | None:
    """Return the beginning of a subagent's report, used as the summary of its chat."""
    return titles.report_summary(last_answer(history))


def is_summary_due(generated_at: datetime | None, history: LoadedHistory) -> bool:
    """Return whether the chat has no summary, or has had `TURNS_PER_SUMMARY` turns since the last one.

    Turns are counted from the last stored summary, so a summary that failed is made after the next turn. Turns that a
    compaction removed cannot be counted, so a compaction makes the summary due.
    """
    if generated_at is None:
        return True
    turns = 0
    for row in reversed(history.rows):
        message = row.message
        if message.created_at <= generated_at:
            return False
        if message.id == history.boundary_id:
            return True
        turns += message.role is Role.USER and _is_shown(message)
        if turns >= TURNS_PER_SUMMARY:
            return True
    return False


def conversation(rows: Sequence[PromptRow], *, limit: int = generate.SUMMARY_INPUT) -> list[tuple[str, str]]:
    """Return (speaker, text) pairs in order, one per turn and speaker. A summary stands for compacted turns.

    Of a long chat only the beginning and the end are returned, each with at least `limit` characters, because the
    prompt of a summary contains no more.
    """
    first, count = _speeches(rows, limit)
    last, _ = _speeches(islice(reversed(rows), len(rows) - count), limit)
    head = [(who, "\n\n".join(said)) for who, said in first]
    return head + [(who, "\n\n".join(reversed(said))) for who, said in reversed(last)]


def _speeches(rows: Iterable[PromptRow], limit: int) -> tuple[list[tuple[str, list[str]]], int]:
    """Return (speaker, texts) pairs in the order of the rows, up to `limit` characters, and the number of rows read."""
    found: list[tuple[str, list[str]]] = []
    length = count = 0
    for row in rows:
        who, what = _speech(row.message)
        if what and found and found[-1][0] == who:
            found[-1][1].append(what)
        elif what:
            if found:
                length += min(sum(map(len, found[-1][1])), generate.SUMMARY_PER_TURN)
            if length >= limit:
                break
            found.append((who, [what]))
        count += 1
    return found, count


def _speech(message: Message) -> tuple[str, str]:
    if message.compressed:
        return "Summary of what came before", _summary_in(message)
    if not _is_shown(message):
        return "", ""
    match message.role:
        case Role.USER:
            return "User", titles.title_text(_parts(message))
        case Role.ASSISTANT:
            return "Assistant", _said(message)
        case _:
            return "", ""


def _is_shown(message: Message) -> bool:
    """Return whether users see the row in the conversation."""
    return message.visibility is not Visibility.MODEL and not message.compressed and not message.deleted


def _said(message: Message) -> str:
    return "\n\n".join(part.text.strip() for part in _parts(message) if isinstance(part, Text) and part.text.strip())


def _summary_in(message: Message) -> str:
    """Return the summary of a compaction from the tool result that users see."""
    for part in _parts(message):
        if isinstance(part, ToolResult) and part.tool_name == compaction.TOOL_NAME:
            try:
                return _SUMMARY.decode(part.result).summary if isinstance(part.result, msgspec.Raw) else ""
            except msgspec.DecodeError:
                return ""
    return ""


def _parts(message: Message) -> tuple[Part, ...]:
    """Decode the row's parts. Return an empty tuple if they are invalid; the next step reports invalid parts."""
    try:
        return message.parts()
    except ContentError:
        return ()


def _push(kind: PushKind, chat: Chat, text: str) -> Push:
    return Push(kind=kind, owner_id=chat.owner_id, chat_id=chat.id, snapshot_version=chat.snapshot_version, text=text)
