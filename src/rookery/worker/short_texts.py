"""Short texts about chats, written by a small model: titles, turn labels and summaries.

A call is retried by the worker's retry rule within its time limit, and every call is recorded in the usage ledger. No
call is made if the owner has reached the spend limit. A failure is not an error: the caller gets None and keeps the old
text. Only `propose_title`, which a user waits for, raises.
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

from rookery.debug.call_scope import CallScope, RunScope
from rookery.debug.recorder import ModelFacts, RunFacts
from rookery.debug.turn_recording import Recordings
from rookery.domain.chat import parts, retry_policy, titles
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import Message, Role, Visibility
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.parts import ContentError, File, Part
from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy
from rookery.domain.content.attachments import StoredFile, cut_utf8, plain_type
from rookery.domain.models.options import ProviderType
from rookery.llm.errors import CallFailed, NoObject
from rookery.llm.types import Call, LanguageModel, ProviderError, Purpose, Usage
from rookery.models import model_resolution
from rookery.models.call_stats import CallStats
from rookery.models.connector import Connector, Origin, make_call
from rookery.models.directory import Directory
from rookery.runtime.clock import Clock, Deadline
from rookery.store.chats import chat_rows, files
from rookery.store.chats import messages as stored_messages
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import WatchHint, WatchKind
from rookery.store.db.pool import Connection
from rookery.store.debug.record_rows import RunKind
from rookery.store.machine import Publisher
from rookery.store.models import spending, usage_ledger
from rookery.store.models.errors import NoDefaultModel, SpendLimitReached
from rookery.store.models.usage_ledger import CallStatus, KeySource
from rookery.telemetry.log import get_logger
from rookery.titles import generate
from rookery.titles.generate import Build, ShortText
from rookery.worker import billing
from rookery.worker.follow_up_work import FollowUpWork
from rookery.worker.step_preparation import ConnectedModel

log = get_logger("worker.short_texts")

SETTING = "models"
# The first user message is among this many oldest rows.
OLDEST = 20
# Limit of all tries of a summary together; one call may take 60 s.
SUMMARY_TOTAL_SECONDS = 120.0
# Limit for writing the ledger row of a call.
WRITE_SECONDS = 10.0
MAX_PASTED_BYTES = 65_536
MAX_PASTED_CHARS = 16_384

_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/javascript", "application/yaml"})


Make: TypeAlias = Callable[[LanguageModel, Build], Awaitable[ShortText]]


class Subject(msgspec.Struct, frozen=True):
    """The messages that a text is about, for its debug record."""

    trigger_message_id: int | None = None
    history_tip_message_id: int | None = None

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Subject:
        """Return the first visible user message and the last message."""
        first = next(
            (each for each in messages if each.role is Role.USER and each.visibility is not Visibility.MODEL), None
        )
        return cls(None if first is None else first.id, messages[-1].id if messages else None)


NOTHING = Subject()
_LABELS = {Purpose.TITLE: "Title generation", Purpose.LABEL: "Turn status label", Purpose.SUMMARY: "Chat summary"}


class NoTitle(Exception):
    """Raised when the model's answer is not a title."""

    def __init__(self) -> None:
        super().__init__("The model did not give a title. Try again.")


class ShortTexts:
    """Writes short texts. One per process. `rng` randomizes the delays between tries."""

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
        recordings: Recordings | None = None,
    ) -> None:
        self._recordings = recordings
        self._directory = directory
        self._connector = connector
        self._pool = pool
        self._clock = clock
        self._rng = rng
        self._policy = policy
        self._stats = stats or CallStats()

    async def title(self, chat: Chat, request: str, *, about: Subject = NOTHING) -> str | None:
        """Return a title for a chat whose first message is `request`."""
        return await self._make(
            chat,
            lambda model, build: generate.make_title(model, request, build=build),
            purpose=Purpose.TITLE,
            seconds=generate.TITLE_SECONDS,
            about=about,
            label=request,
        )

    async def propose_title(self, chat: Chat, request: str, *, about: Subject = NOTHING) -> str:
        """Return a title for a user who waits for it.

        Raise `NoDefaultModel`, `SpendLimitReached`, `CallFailed`, `NoObject`, `NoTitle`, `DeadlineExceeded` or
        `TimeoutError`.
        """
        proposed = await self._ask(
            chat,
            lambda model, build: generate.make_title(model, request, build=build),
            purpose=Purpose.TITLE,
            seconds=generate.TITLE_SECONDS,
            about=about,
            label=request,
        )
        if proposed is None:
            raise NoTitle
        return proposed

    async def label(
        self, chat: Chat, *, title: str, state: str, last_answer: str, about: Subject = NOTHING
    ) -> str | None:
        """Return a label that describes in a few words how a turn ended."""
        return await self._make(
            chat,
            lambda model, build: generate.make_label(
                model, title=title, state=state, last_answer=last_answer, build=build
            ),
            purpose=Purpose.LABEL,
            seconds=generate.LABEL_SECONDS,
            about=about,
        )

    async def summary(self, chat: Chat, turns: list[tuple[str, str]], *, about: Subject = NOTHING) -> str | None:
        """Return a summary of a chat, from (speaker, text) pairs."""
        return await self._make(
            chat,
            lambda model, build: generate.make_summary(model, turns, build=build),
            purpose=Purpose.SUMMARY,
            seconds=SUMMARY_TOTAL_SECONDS,
            about=about,
        )

    async def wants_titles(self) -> bool:
        """Return whether a model writes titles. Administrators can switch that off."""
        stored = await self._directory.setting(SETTING)
        return not isinstance(stored, dict) or stored.get("generate_titles") is not False

    async def _make(
        self, chat: Chat, make: Make, *, purpose: Purpose, seconds: float, about: Subject, label: str | None = None
    ) -> str | None:
        try:
            return await self._ask(chat, make, purpose=purpose, seconds=seconds, about=about, label=label)
        except NoDefaultModel:
            return None
        except SpendLimitReached:
            log.debug("text_not_paid_for", chat_id=chat.id, purpose=purpose)
        except (CallFailed, NoObject) as error:
            log.info("text_not_made", chat_id=chat.id, purpose=purpose, error=str(error))
        except DATABASE_ERRORS as error:  # includes an exceeded time limit
            log.warning("text_not_made", chat_id=chat.id, purpose=purpose, error=str(error) or type(error).__name__)
        return None

    async def _ask(
        self,
        chat: Chat,
        make: Make,
        *,
        purpose: Purpose,
        seconds: float,
        about: Subject = NOTHING,
        label: str | None = None,
    ) -> str | None:
        async with self._clock.deadline(seconds, f"{purpose}-call") as limit:
            connected = await self._find_model(chat, purpose)
            if connected is None:
                raise NoDefaultModel
            scope = await self._recorded(chat, connected, purpose, limit=limit, about=about, label=label)
            with scope as model:
                recorded = msgspec.structs.replace(connected, model=model)
                return await self._tried(chat, recorded, make, purpose=purpose, limit=limit, seconds=seconds)

    async def _recorded(
        self,
        chat: Chat,
        connected: ConnectedModel,
        purpose: Purpose,
        *,
        limit: Deadline,
        about: Subject,
        label: str | None,
    ) -> CallScope:
        """Return the recording scope of the calls. If the chat is recorded, they form a separate debug run."""
        recordings = self._recordings
        if recordings is None or not await recordings.policy.records_call(chat.id):
            return CallScope(connected.model)
        facts = RunFacts(
            chat_id=chat.id,
            root_chat_id=chat.root_chat_id or chat.id,
            parent_chat_id=chat.parent_chat_id,
            snapshot_version=chat.snapshot_version,
            kind=RunKind.TITLE_GENERATION if purpose is Purpose.TITLE else RunKind.QUICKGEN,
            model=ModelFacts.of(connected.ready, connected.prices),
            label=label or _LABELS[purpose],
            trigger_message_id=about.trigger_message_id,
            history_tip_message_id=about.history_tip_message_id,
        )
        run = recordings.recorder.open(facts)
        if run is None:
            return CallScope(connected.model)
        return RunScope(connected.model, run, operation="generate", is_late=lambda: limit.is_expired)

    async def _find_model(self, chat: Chat, purpose: Purpose) -> ConnectedModel | None:
        """Return the model that administrators have configured, otherwise a small model; None if there is none.

        The chat's own model writes only titles, because a chat gets only one title. It writes other texts only if
        administrators have configured it, or if it is a scripted model, which costs nothing.
        """
        stored = await self._directory.setting(SETTING)
        override, _ = model_resolution.read_override(
            stored.get("title_generation") if isinstance(stored, dict) else None
        )
        small = await self._directory.title_candidates()
        choice = model_resolution.for_title(
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
        # This runs in a thread, because the first lookup of list prices loads a table.
        prices = await asyncio.to_thread(ready.prices, self._clock.now())
        return ConnectedModel(ready=ready, model=model, prices=prices, effort=choice.reasoning_effort)

    async def _tried(
        self,
        chat: Chat,
        connected: ConnectedModel,
        make: Make,
        *,
        purpose: Purpose,
        limit: Deadline,
        seconds: float,
    ) -> str | None:
        """Return the text. Transient failures are retried as long as the next delay ends within the time limit."""
        due = self._clock.monotonic() + seconds
        attempt = 1
        while True:
            await self._check_spend(connected, chat.owner_id)
            try:
                return (await self._call(chat, connected, make, purpose=purpose, limit=limit)).text
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
        connected: ConnectedModel,
        make: Make,
        *,
        purpose: Purpose,
        limit: Deadline,
    ) -> ShortText:
        """Make one call and write its ledger row, even if the call is cancelled."""
        started = self._clock.monotonic()
        spent, status = Usage(), CallStatus.FAILED
        try:
            short_text = await make(connected.model, _builder(connected, chat))
            spent, status = short_text.usage, CallStatus.OK
            return short_text
        except (CallFailed, NoObject) as failure:
            spent = failure.usage
            raise
        except asyncio.CancelledError:
            if not limit.is_expired:
                status = CallStatus.INTERRUPTED
            raise
        finally:
            runtime_ms = round((self._clock.monotonic() - started) * 1000)
            row = billing.entry(chat, connected, spent, purpose=purpose, status=status, runtime_ms=runtime_ms)
            self._stats.call_ended(connected.model, row)
            await self._record(row)

    async def _record(self, entry: usage_ledger.Entry) -> None:
        """Write a ledger row. A failure is only logged, because the text is still usable."""
        try:
            async with self._clock.deadline(WRITE_SECONDS, "usage"), self._pool.acquire() as conn:
                await usage_ledger.record_call(conn, entry)
        except DATABASE_ERRORS as error:
            log.warning("usage_not_recorded", chat_id=entry.chat_id, error=str(error) or type(error).__name__)

    async def _check_spend(self, connected: ConnectedModel, owner_id: UUID) -> None:
        if connected.ready.key_source is KeySource.USER or await self._directory.setting(spending.SETTING) is None:
            return
        async with self._pool.acquire() as conn:
            await spending.check_spend(conn, owner_id, now=self._clock.now())


def _builder(connected: ConnectedModel, chat: Chat) -> Build:
    """Return a function that makes the calls, without web search and without state at the provider."""

    def build(prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call:
        root = chat.root_chat_id or chat.id
        call = make_call(
            connected.ready,
            connected.model,
            prompt=prompt,
            purpose=purpose,
            max_output_tokens=max_output_tokens,
            may_search=False,
            origin=Origin(owner_id=chat.owner_id, chat_id=chat.id, root_chat_id=root),
        )
        return msgspec.structs.replace(call, chat_id=None, cache_key=None)

    return build


class Titling:
    """Generates titles of chats. One per process."""

    def __init__(
        self,
        texts: ShortTexts,
        *,
        pool: asyncpg.Pool,
        publisher: Publisher,
        inflight: FollowUpWork,
        write_seconds: float,
    ) -> None:
        self._texts = texts
        self._pool = pool
        self._publisher = publisher
        self._inflight = inflight
        # Limit for the title, its ledger row and its storage.
        self._seconds = generate.TITLE_SECONDS + WRITE_SECONDS + write_seconds

    def start(self, chat: Chat, *, title: str, messages: Sequence[Message]) -> None:
        """Generate the title of a new chat in the background. `title` and `messages` are the ones that the chat was
        created with.
        """
        self._inflight.start(
            lambda: self.generate_title(chat, title=title, messages=messages),
            name="title",
            seconds=self._seconds,
        )

    def start_again(self, chat: Chat, *, title: str) -> None:
        """Generate the title in the background after a turn, if earlier tries failed and another one is allowed."""
        self._inflight.start(
            lambda: self.generate_again(chat, title=title),
            name="title",
            seconds=self._seconds,
        )

    async def generate_title(self, chat: Chat, *, title: str, messages: Sequence[Message]) -> str | None:
        """Generate a title from the first message and store it. Return None if the chat keeps its title.

        The new title is stored only if the chat still has `title`, so a title that a user writes meanwhile is kept.
        """
        first = find_only_message(messages)
        return None if first is None else await self._generate(chat, title, first, about=Subject.of(messages))

    async def generate_again(self, chat: Chat, *, title: str) -> str | None:
        async with self._pool.acquire() as conn:
            messages = (await stored_messages.list_oldest(conn, chat.id, limit=OLDEST)).messages
        first = find_first_message(messages)
        return None if first is None else await self._generate(chat, title, first, about=Subject.of(messages))

    async def _generate(self, chat: Chat, title: str, first: tuple[Part, ...], *, about: Subject) -> str | None:
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
            found = await self._texts.title(chat, request, about=about)
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
        """End the attempt, so that the next turn can start another one immediately."""
        try:
            async with self._pool.acquire() as conn:
                await chat_rows.end_title_try(conn, chat.id)
        except DATABASE_ERRORS as error:
            log.debug("title_try_not_ended", chat_id=chat.id, error=str(error) or type(error).__name__)


def find_first_message(messages: Sequence[Message]) -> tuple[Part, ...] | None:
    """Return the content of the first user message; None if there is none or it is invalid."""
    for message in messages:
        if message.role is Role.USER and message.visibility is not Visibility.MODEL and not message.compressed:
            try:
                return message.parts()
            except ContentError:
                return None
    return None


def find_only_message(messages: Sequence[Message]) -> tuple[Part, ...] | None:
    """Return the content of the only user message; None if there is another message or the content is invalid."""
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
    """Return the text from which a title is generated: the text of the message, or if it is empty, the text of its
    files.
    """
    said = titles.title_text(content)
    named = parts.file_ids(content)
    if said or not named:
        return said
    return pasted_text(content, await files.load_files(conn, chat.id, file_ids=named))


def pasted_text(content: Sequence[Part], stored: Mapping[UUID, StoredFile]) -> str:
    """Return the beginnings of the text files of a message, in their order."""
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
