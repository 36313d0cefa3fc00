"""Short texts about chats, written by a small model: titles, turn labels, summaries.

The model is chosen for each text. A call is retried by the worker's retry rule while its time lasts, is entered in the
ledger however it ends, and is not made once the owner's spend limit is used up. A failed text is not an error: the
caller gets None and keeps the old text. Only a user who asks for a title is shown why there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import parts, retry_policy, titles
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import Message, Role, Visibility
from rookery.domain.chat.parts import ContentError, File, Part
from rookery.domain.chat.prompt_parts import Prompt
from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy
from rookery.domain.content.attachments import StoredFile, cut_utf8, plain_type
from rookery.domain.models.options import ProviderType
from rookery.llm.errors import CallFailed, NoObject
from rookery.llm.types import Call, LanguageModel, ProviderError, Purpose, Usage
from rookery.models import resolve
from rookery.models.call_stats import CallStats
from rookery.models.connect import Connector, Origin, make_call
from rookery.models.directory import Directory
from rookery.runtime.clock import Clock, Deadline
from rookery.store.chats import chat_rows, files
from rookery.store.chats import messages as stored_messages
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import WatchHint, WatchKind
from rookery.store.db.pool import Connection
from rookery.store.machine import Publisher
from rookery.store.models import spending, usage
from rookery.store.models.errors import NoDefaultModel, SpendLimitReached
from rookery.store.models.usage import CallStatus, KeySource
from rookery.telemetry.log import get_logger
from rookery.titles import generate
from rookery.titles.generate import Build, Quick
from rookery.worker import billing
from rookery.worker.background_tasks import BackgroundTasks
from rookery.worker.prepare import Asked

log = get_logger("worker.short_texts")

SETTING = "models"
# The first message is among this many oldest rows.
OLDEST = 20
# Chosen: one call of a summary may take 60 s, all tries together this long.
SUMMARY_TOTAL_SECONDS = 120.0
# Time allowed for writing a ledger row after its call.
WRITE_SECONDS = 10.0
MAX_PASTED_BYTES = 65_536
MAX_PASTED_CHARS = 16_384

_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/javascript", "application/yaml"})


Make: TypeAlias = Callable[[LanguageModel, Build], Awaitable[Quick]]


class NoTitle(Exception):
    """Raised when the model's answer is not a title."""

    def __init__(self) -> None:
        super().__init__("The model did not give a title. Try again.")


class ShortTexts:
    """Writes short texts; one per process. `rng` randomizes the waits between tries."""

    def __init__(
        self,
        directory: Directory,
        connector: Connector,
        *,
        pool: asyncpg.Pool,
        clock: Clock,
        rng: Random,
        policy: RetryPolicy = DEFAULT_POLICY,
        stats: CallStats | None = None,
    ) -> None:
        self._directory = directory
        self._connector = connector
        self._pool = pool
        self._clock = clock
        self._rng = rng
        self._policy = policy
        self._stats = stats or CallStats()

    async def title(self, chat: Chat, request: str) -> str | None:
        """Return a title for a chat that starts with this request."""
        return await self._make(
            chat,
            lambda model, build: generate.make_title(model, request, build=build),
            purpose=Purpose.TITLE,
            seconds=generate.TITLE_SECONDS,
        )

    async def propose_title(self, chat: Chat, request: str) -> str:
        """Return a title for a user who waits for it.

        Raises `NoDefaultModel`, `SpendLimitReached`, `CallFailed`, `NoObject`, `NoTitle`, `DeadlineExceeded` or
        `TimeoutError`.
        """
        proposed = await self._ask(
            chat,
            lambda model, build: generate.make_title(model, request, build=build),
            purpose=Purpose.TITLE,
            seconds=generate.TITLE_SECONDS,
        )
        if proposed is None:
            raise NoTitle
        return proposed

    async def label(self, chat: Chat, *, title: str, state: str, last_answer: str) -> str | None:
        """Return a label that describes in a few words how a turn ended."""
        return await self._make(
            chat,
            lambda model, build: generate.make_label(
                model, title=title, state=state, last_answer=last_answer, build=build
            ),
            purpose=Purpose.LABEL,
            seconds=generate.LABEL_SECONDS,
        )

    async def summary(self, chat: Chat, turns: list[tuple[str, str]]) -> str | None:
        """Return a summary of a chat, from (speaker, text) pairs."""
        return await self._make(
            chat,
            lambda model, build: generate.make_summary(model, turns, build=build),
            purpose=Purpose.SUMMARY,
            seconds=SUMMARY_TOTAL_SECONDS,
        )

    async def wants_titles(self) -> bool:
        """Return whether a model names chats at all; administrators can switch that off."""
        stored = await self._directory.setting(SETTING)
        return not isinstance(stored, dict) or stored.get("generate_titles") is not False

    async def _make(self, chat: Chat, make: Make, *, purpose: Purpose, seconds: float) -> str | None:
        try:
            return await self._ask(chat, make, purpose=purpose, seconds=seconds)
        except NoDefaultModel:
            return None
        except SpendLimitReached:
            log.debug("text_not_paid_for", chat_id=chat.id, purpose=purpose)
        except (CallFailed, NoObject) as error:
            log.info("text_not_made", chat_id=chat.id, purpose=purpose, error=str(error))
        except DATABASE_ERRORS as error:  # includes our own limit, and that of a single call
            log.warning("text_not_made", chat_id=chat.id, purpose=purpose, error=str(error) or type(error).__name__)
        return None

    async def _ask(self, chat: Chat, make: Make, *, purpose: Purpose, seconds: float) -> str | None:
        async with self._clock.deadline(seconds, f"{purpose}-call") as limit:
            asked = await self._find_model(chat, purpose)
            if asked is None:
                raise NoDefaultModel
            return await self._tried(chat, asked, make, purpose=purpose, limit=limit, seconds=seconds)

    async def _find_model(self, chat: Chat, purpose: Purpose) -> Asked | None:
        """Return the model that administrators chose, else a small one; None if no model is to be called.

        A title, which is made once, may also be made by the chat's own model. Texts made after every turn may not,
        unless administrators chose it, or it costs nothing.
        """
        stored = await self._directory.setting(SETTING)
        override, _ = resolve.read_override(stored.get("title_generation") if isinstance(stored, dict) else None)
        small = await self._directory.title_candidates()
        choice = resolve.for_title(
            await self._directory.models(chat.owner_id),
            chat=chat.last_model_config_id,
            admin=override,
            preferred=small,
        )
        if choice is None:
            return None
        if purpose is not Purpose.TITLE and override is None and choice.model_config_id not in small:
            snapshot = await self._directory.snapshot()
            own = snapshot.configs[choice.model_config_id]
            if snapshot.providers[own.provider_id].type != ProviderType.SCRIPTED:
                return None
        ready = await self._directory.ready(choice, owner_id=chat.owner_id)
        model = ready if isinstance(ready, ProviderError) else await self._connector.model(ready)
        if isinstance(ready, ProviderError) or isinstance(model, ProviderError):
            log.info("text_model_unusable", chat_id=chat.id, model_config_id=choice.model_config_id)
            return None
        # In a thread: the first lookup of list prices loads a table.
        prices = await asyncio.to_thread(ready.prices, self._clock.now())
        return Asked(ready=ready, model=model, prices=prices, effort=choice.reasoning_effort)

    async def _tried(
        self,
        chat: Chat,
        asked: Asked,
        make: Make,
        *,
        purpose: Purpose,
        limit: Deadline,
        seconds: float,
    ) -> str | None:
        """Return the text. Transient failures are retried while the next wait fits in the time."""
        due = self._clock.monotonic() + seconds
        attempt = 1
        while True:
            await self._check_spend(asked, chat.owner_id)
            try:
                return (await self._call(chat, asked, make, purpose=purpose, limit=limit)).text
            except CallFailed as failure:
                error = failure.error
                delay = retry_policy.next_delay(
                    attempt,
                    self._rng.random,
                    retryable=error.retryable,
                    retry_after=error.retry_after,
                    policy=self._policy,
                )
                if not isinstance(delay, timedelta) or self._clock.monotonic() + delay.total_seconds() >= due:
                    raise
            await self._clock.sleep(delay.total_seconds(), f"{purpose}-retry")
            attempt += 1

    async def _call(
        self,
        chat: Chat,
        asked: Asked,
        make: Make,
        *,
        purpose: Purpose,
        limit: Deadline,
    ) -> Quick:
        """Make one call and write its ledger row, even when the call is cut off."""
        started = self._clock.monotonic()
        spent, status = Usage(), CallStatus.FAILED
        try:
            quick = await make(asked.model, _builder(asked, chat))
            spent, status = quick.usage, CallStatus.OK
            return quick
        except (CallFailed, NoObject) as failure:
            spent = failure.usage
            raise
        except asyncio.CancelledError:
            if not limit.is_expired:
                status = CallStatus.INTERRUPTED
            raise
        finally:
            runtime_ms = round((self._clock.monotonic() - started) * 1000)
            row = billing.entry(chat, asked, spent, purpose=purpose, status=status, runtime_ms=runtime_ms)
            self._stats.call_ended(asked.model, row)
            await self._record(row)

    async def _record(self, entry: usage.Entry) -> None:
        """Write a ledger row. A failure is only logged: the text is still usable."""
        try:
            async with self._clock.deadline(WRITE_SECONDS, "usage"), self._pool.acquire() as conn:
                await usage.record_call(conn, entry)
        except DATABASE_ERRORS as error:
            log.warning("usage_not_recorded", chat_id=entry.chat_id, error=str(error) or type(error).__name__)

    async def _check_spend(self, asked: Asked, owner_id: UUID) -> None:
        if asked.ready.key_source is KeySource.USER or await self._directory.setting(spending.SETTING) is None:
            return
        async with self._pool.acquire() as conn:
            await spending.check_spend(conn, owner_id, now=self._clock.now())


def _builder(asked: Asked, chat: Chat) -> Build:
    """Return a builder that makes calls as turns do, without web search and without provider-side chat history."""

    def build(prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call:
        root = chat.root_chat_id or chat.id
        call = make_call(
            asked.ready,
            asked.model,
            prompt=prompt,
            purpose=purpose,
            max_output_tokens=max_output_tokens,
            may_search=False,
            origin=Origin(owner_id=chat.owner_id, chat_id=chat.id, root_chat_id=root),
        )
        return msgspec.structs.replace(call, chat_id=None, cache_key=None)

    return build


class Titling:
    """Names new chats. One per process."""

    def __init__(
        self,
        texts: ShortTexts,
        *,
        pool: asyncpg.Pool,
        publisher: Publisher,
        inflight: BackgroundTasks,
        write_seconds: float,
    ) -> None:
        self._texts = texts
        self._pool = pool
        self._publisher = publisher
        self._inflight = inflight
        # The time for the title and its ledger row.
        self._seconds = generate.TITLE_SECONDS + WRITE_SECONDS + write_seconds

    def start(self, chat: Chat, *, title: str, messages: Sequence[Message]) -> None:
        """Name a chat that was just created, in the background.

        `title` and `messages` are those it was created with.
        """
        self._inflight.start(
            lambda: self.generate_title(chat, title=title, messages=messages),
            name="title",
            seconds=self._seconds,
        )

    def start_again(self, chat: Chat, *, title: str) -> None:
        """After a turn, name a chat whose earlier tries failed, if it may be tried once more."""
        self._inflight.start(
            lambda: self.generate_again(chat, title=title),
            name="title",
            seconds=self._seconds,
        )

    async def generate_title(self, chat: Chat, *, title: str, messages: Sequence[Message]) -> str | None:
        """Generate and store a title. Return it, or None if the chat keeps its own.

        The title comes from the first message, and is only stored while the chat has the title seen before: a title
        that a user writes meanwhile stays.
        """
        first = find_only_message(messages)
        return None if first is None else await self._generate(chat, title, first)

    async def generate_again(self, chat: Chat, *, title: str) -> str | None:
        async with self._pool.acquire() as conn:
            messages = (await stored_messages.list_oldest(conn, chat.id, limit=OLDEST)).messages
        first = find_first_message(messages)
        return None if first is None else await self._generate(chat, title, first)

    async def _generate(self, chat: Chat, title: str, first: tuple[Part, ...]) -> str | None:
        if not await self._texts.wants_titles():
            return None
        async with self._pool.acquire() as conn:
            request = await read_title_text(conn, chat, first)
        if not request or not titles.is_fallback_title(title, request):
            async with self._pool.acquire() as conn:
                await chat_rows.end_title_tries(conn, chat.id)
            return None
        async with self._pool.acquire() as conn:
            if not await chat_rows.begin_title_try(conn, chat.id, seen_title=title):
                return None
        found = None
        try:
            found = await self._texts.title(chat, request)
        finally:
            if found is None:
                await self._give_back(chat)
        if found is None or found == title:
            return None
        async with self._pool.acquire() as conn:
            if not await chat_rows.write_title(conn, chat.id, title=found, seen_title=title):
                return None
        self._publisher.publish([watch_hint(chat, WatchKind.TITLE_CHANGE)])
        return found

    async def _give_back(self, chat: Chat) -> None:
        """End the try, so that the next turn need not wait until it expires."""
        try:
            async with self._pool.acquire() as conn:
                await chat_rows.end_title_try(conn, chat.id)
        except DATABASE_ERRORS as error:
            log.debug("title_try_not_ended", chat_id=chat.id, error=str(error) or type(error).__name__)


def find_first_message(messages: Sequence[Message]) -> tuple[Part, ...] | None:
    """Return the content of the first user message; None if it cannot be read."""
    for message in messages:
        if message.role is Role.USER and message.visibility is not Visibility.MODEL and not message.compressed:
            try:
                return message.parts()
            except ContentError:
                return None
    return None


def find_only_message(messages: Sequence[Message]) -> tuple[Part, ...] | None:
    """Return the content of the only user message; None if there are more, or an answer, or it cannot be read."""
    if any(message.role in (Role.ASSISTANT, Role.TOOL) for message in messages):
        return None
    said = [each for each in messages if each.role is Role.USER and each.visibility is not Visibility.MODEL]
    if len(said) != 1:
        return None
    try:
        return said[0].parts()
    except ContentError:
        return None


async def read_title_text(conn: Connection, chat: Chat, content: Sequence[Part]) -> str:
    """Return the text that can name a chat: what was written, else what was pasted. Reads files that the chat links."""
    said = titles.title_text(content)
    named = parts.file_ids(content)
    if said or not named:
        return said
    return pasted_text(content, await files.load_files(conn, chat.id, file_ids=named))


def pasted_text(content: Sequence[Part], stored: Mapping[UUID, StoredFile]) -> str:
    """Return the beginnings of the text files among these, in the order of the message."""
    texts = []
    for file_id in (part.file_id for part in content if isinstance(part, File)):
        file = None if file_id is None else stored.get(file_id)
        if file is not None and (file.is_pasted or _is_text(file.media_type)):
            start = cut_utf8(file.data, MAX_PASTED_BYTES).decode("utf-8", "replace")
            texts.append(start[:MAX_PASTED_CHARS])
    return " ".join(" ".join(texts).split())


def watch_hint(chat: Chat, kind: WatchKind) -> WatchHint:
    return WatchHint(user_id=chat.owner_id, kind=kind, chat_id=chat.id, snapshot_version=chat.snapshot_version)


def _is_text(media_type: str) -> bool:
    plain = plain_type(media_type)
    return plain.startswith("text/") or plain in _TEXT_TYPES
