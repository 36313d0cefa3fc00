"""Preparation of a step: connects the model, opens the tools, writes the prompt, and assesses the history's length.

Everything is read for every step, through caches, so an administrator's change takes effect with the next step.
Optional texts of the prompt are left out if they cannot be read; other failures fail the try. The prompt is written
only for steps that call a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from rookery.domain.chat import compaction, next_action, prompt, system_blocks
from rookery.domain.chat.chat import Chat, RetryState
from rookery.domain.chat.compaction import Assessment
from rookery.domain.chat.messages import Effort, Role, StepFigures, Visibility
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.next_action import Rules
from rookery.domain.chat.prompt import ModelIdentity, PromptBuilder, PromptRow
from rookery.domain.chat.system_blocks import Mode, StepBlockInputs
from rookery.domain.content.attachments import FileRules, StoredFile
from rookery.domain.mcp.tool_search import ToolSearch
from rookery.domain.models.context_window import Windows
from rookery.domain.models.options import DEFAULT_MAX_OUTPUT_TOKENS
from rookery.llm import reasoning_effort
from rookery.llm.types import Call, Capabilities, ErrorKind, LanguageModel, ProviderError, Purpose
from rookery.models import model_resolution
from rookery.models.connector import Connector, Origin, identity_of, make_call
from rookery.models.cost import Prices
from rookery.models.directory import Directory, ReadyModel, windows_of
from rookery.models.model_resolution import Choice
from rookery.runtime.cache import CHAT_SECONDS, Cache
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.chats import files, subagents
from rookery.store.chats.files import FileCache
from rookery.store.chats.step_reads import LoadedHistory, Step
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.models import context_windows, spending
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.providers import Provider
from rookery.store.models.usage_ledger import KeySource
from rookery.store.settings import limit_settings
from rookery.store.settings.limit_settings import ChatSettings
from rookery.telemetry.log import get_logger
from rookery.tools import find_tools
from rookery.tools.mcp_stats import SearchStats
from rookery.tools.step_tools import StepPrompt, StepTools, Toolbox, ToolsUnavailable, mode_of
from rookery.worker import error_classification
from rookery.worker.error_classification import Classified, StepFailed

log = get_logger("worker.step_preparation")

T = TypeVar("T")

# Anthropic's models refuse larger images on every host.
_ANTHROPIC_IMAGE_BYTES = 5 * 1024 * 1024
_ANTHROPIC_TYPES = frozenset({"anthropic", "bedrock"})
# Longer histories are processed in a thread.
_ROWS_ON_LOOP = 200
# The cache size of `cost.list_prices`.
_MAX_LOOKED_UP = 1000
_MAX_REPORTS = 1000
_BYTES_ON_LOOP = 1024 * 1024
_NO_FIGURES = StepFigures()


class ConnectedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A connected model with its prices and windows."""

    ready: ReadyModel
    model: LanguageModel
    prices: Prices | None
    effort: Effort | None
    windows: Windows = Windows()

    @property
    def provider_name(self) -> str:
        return self.ready.provider_name


class ActiveFallback(msgspec.Struct, frozen=True):
    """Marks a step that a fallback model answers. `notice` informs the user, once per turn."""

    notice: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared step. `summary` is the model that would summarize the chat.

    `write_prompt` raises `ChatError` if the history cannot be converted for the model.
    """

    step: Step
    mode: Mode
    connected: ConnectedModel
    write_prompt: Callable[[], Awaitable[Prompt]]
    step_tools: StepTools
    assessment: Assessment
    summary: Choice
    max_steps: int
    # Limit of an answer if the model config sets none.
    max_output_tokens: int
    files: Mapping[UUID, StoredFile]
    fallback: ActiveFallback | None = None

    @property
    def rules(self) -> Rules:
        tools = self.step_tools.tools
        stops = next_action.stop_after_tools(self.mode, is_root=self.step.chat.is_root)
        return Rules(
            dynamic_tools=tools.dynamic_names,
            exclusive_tools=tools.exclusive_names,
            stop_after_tools=tools.stop_after_names | stops,
            max_steps=self.max_steps,
        )

    @property
    def context_limit(self) -> int | None:
        return self.connected.windows.effective

    async def call(
        self, connected: ConnectedModel | None = None, *, purpose: Purpose = Purpose.TURN, notice: str | None = None
    ) -> Call:
        """Return the model call of this step. `notice` is sent to the model in this request only."""
        connected = connected or self.connected
        chat = self.step.chat
        told = await self.write_prompt()
        if notice is not None:
            told = prompt.with_notice(told, notice)
        return make_call(
            connected.ready,
            connected.model,
            prompt=told,
            tools=self.step_tools.tools.definitions(),
            purpose=purpose,
            effort=connected.effort,
            may_search=self.mode is not Mode.PLAN,
            origin=Origin(
                owner_id=chat.owner_id,
                chat_id=chat.id,
                root_chat_id=chat.root_chat_id or chat.id,
                workspace_id=self.step.meta.workspace_id,
            ),
            window_tokens=connected.windows.effective,
            default_output_tokens=self.max_output_tokens,
        )


class _OfferedTools(msgspec.Struct, frozen=True):
    """The properties of the offered tools that affect the prompt of the step."""

    plan_path: str | None
    names: frozenset[str]


class Preparer:
    """Prepares steps. One per process."""

    def __init__(
        self,
        directory: Directory,
        connector: Connector,
        toolbox: Toolbox,
        *,
        pool: asyncpg.Pool,
        clock: Clock,
        max_steps: int = next_action.MAX_STEPS,
        max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS,
        search_stats: SearchStats | None = None,
    ) -> None:
        self._search_stats = search_stats or SearchStats()
        self._max_output_tokens = max_output_tokens
        self._max_steps = max_steps
        self._directory = directory
        self._connector = connector
        self._toolbox = toolbox
        self._pool = pool
        self._clock = clock
        self._files = FileCache(clock=clock)
        self._prompts = PromptCache(clock=clock)
        self._looked_up: set[tuple[str, str, date]] = set()
        self._reports_kept: dict[UUID, int] = {}

    @property
    def caches(self) -> tuple[Cache[Any, Any], ...]:
        return self._prompts.entries, self._files.entries

    async def prepare(self, step: Step, stack: AsyncExitStack) -> Prepared:
        """Prepare a step. Raise `StepFailed` if a retry would not help, else the original error."""
        chat, mode = step.chat, mode_of(step)
        self._directory.prefetch(chat.owner_id)
        config_id = await self._choose(step)
        connected = await self.connect(config_id, owner_id=chat.owner_id, effort=chat.last_reasoning_effort)
        # Mostly cached, so these take no tasks of their own.
        user_prompt = await self._user_prompt(step)
        plan_instructions = await self._plan_instructions(mode)
        summary, summary_limit = await self._summary_choice(step, connected.ready)
        threshold = await self._threshold(step, connected.ready)
        stored, step_tools = await self._files_and_tools(step, mode, stack)
        step_tools = await self._deferred(step, step_tools, connected.windows.effective)
        context = StepBlockInputs(
            is_subagent=not chat.is_root,
            subagent_instruction=step_tools.subagent_instruction,
            workspace_context=step_tools.workspace_context,
            skills=step_tools.skills,
            user_prompt=user_prompt,
            mode=mode,
            plan_instructions=plan_instructions,
            has_advisor=step_tools.has_advisor,
            tools=step_tools.tools.active,
        )
        rows = assessed_rows(step.history)
        limit = compaction.effective_limit(connected.windows.effective, summary_limit)
        step_blocks = system_blocks.step_blocks(context)
        # Not the tools themselves: they have the service, and a cycle would outlive the step.
        offered = _OfferedTools(step_tools.plan_path, step_tools.tools.active)
        step_tools.services.add(
            StepPrompt(lambda: self._prompt(step, connected, stored, step_blocks, offered, is_apart=True))
        )
        return Prepared(
            step=step,
            mode=mode,
            connected=connected,
            write_prompt=lambda: self._prompt(step, connected, stored, step_blocks, offered),
            step_tools=step_tools,
            assessment=compaction.assess(rows, files=stored, threshold_percent=threshold, limit_tokens=limit),
            summary=summary,
            max_steps=self._max_steps,
            max_output_tokens=self._max_output_tokens,
            files=stored,
            fallback=await self._stand_in(step, connected),
        )

    async def _files_and_tools(
        self, step: Step, mode: Mode, stack: AsyncExitStack
    ) -> tuple[Mapping[UUID, StoredFile], StepTools]:
        """Load the files while the tools are opened. The first failure cancels the other."""
        if not step.history.file_ids:
            return {}, await self._open_tools(step, mode, stack)
        try:
            async with asyncio.TaskGroup() as group:
                loaded = group.create_task(self._load_files(step))
                # This runs in the current task, because a connection must be closed by the task that opened it.
                step_tools = await self._open_tools(step, mode, stack)
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from group_error
        return loaded.result(), step_tools

    async def _choose(self, step: Step) -> UUID:
        """Return the chat's model, or the fallback that replaces it in this turn."""
        own = step.chat.last_model_config_id
        config = (await self._directory.snapshot()).configs.get(own)
        if config is None or not config.options.fallbacks:
            return own
        retry = stored_retry(step.chat)
        return model_resolution.with_fallbacks(
            await self._directory.models(step.chat.owner_id),
            (own, *config.options.fallbacks),
            last=_last_writer(step),
            failed=None if retry is None else retry.kind,
            attempts=0 if retry is None else retry.attempt,
        )

    async def _stand_in(self, step: Step, connected: ConnectedModel) -> ActiveFallback | None:
        snapshot, config = await self._directory.snapshot(), connected.ready.config
        own = snapshot.configs.get(step.chat.last_model_config_id)
        if own is None or config.id not in own.options.fallbacks:
            return None
        if _last_writer(step) == config.id:
            return ActiveFallback(None)
        return ActiveFallback(f"{_name(own)} did not answer. This turn continues with {_name(config)}.")

    async def connect(self, model_config_id: UUID, *, owner_id: UUID, effort: str | None) -> ConnectedModel:
        """Connect the model of a config. Raise `StepFailed` if the model cannot be used."""
        ready = await self._directory.for_generation(model_config_id, owner_id=owner_id)
        return await self._connect(ready, effort)

    async def connect_choice(self, choice: Choice, *, owner_id: UUID, effort: str | None) -> ConnectedModel:
        ready = await self._directory.ready(choice, owner_id=owner_id)
        return await self._connect(ready, choice.reasoning_effort or effort)

    async def check_spend(self, connected: ConnectedModel, owner_id: UUID) -> None:
        """Raise `SpendLimitReached` if the owner has reached the spend limit. An unreadable limit is ignored."""
        if connected.ready.key_source is KeySource.USER:
            return
        try:
            if await self._directory.setting(spending.SETTING) is None:
                return
            async with self._pool.acquire() as conn:
                await spending.check_spend(conn, owner_id, now=self._clock.now())
        except DATABASE_ERRORS as error:
            log.warning("spend_not_checked", owner_id=owner_id, error=str(error) or type(error).__name__)

    async def check_budget(self, step: Step) -> None:
        """End the turn of a subagent that has reached the budget that its parent set."""
        budget = None if step.meta.agent is None else step.meta.agent.budget_micros
        if budget is None:
            return
        async with self._pool.acquire() as conn:
            spent = await subagents.spent_micros(conn, step.chat.id)
        if spent >= budget:
            raise StepFailed(
                Classified(
                    kind=ErrorKind.BUDGET,
                    message=f"The subagent has reached its budget of ${budget / 1_000_000:.2f}.",
                    retryable=False,
                )
            )

    async def action_seconds(self) -> float:
        """Return the time limit for tool calls that the client executes, in seconds."""
        return float((await self.chat_settings()).dynamic_tool_timeout_seconds)

    async def chat_settings(self) -> ChatSettings:
        try:
            return limit_settings.parse_chat_settings(await self._directory.setting(limit_settings.CHATS))
        except msgspec.ValidationError as error:
            log.warning("setting_unreadable", setting=limit_settings.CHATS, error=str(error))
            return ChatSettings()

    async def _connect(self, ready: ReadyModel | ProviderError, effort: str | None) -> ConnectedModel:
        if isinstance(ready, ProviderError):
            raise StepFailed(error_classification.classify(ready))
        model = await self._connector.model(ready)
        if isinstance(model, ProviderError):
            raise StepFailed(error_classification.classify(model, ready.provider_name))
        now, reported = self._clock.now(), self._connector.reported_window(ready)
        prices, windows = await self._look_up(
            ready.provider, ready.config, lambda: (ready.prices(now), ready.windows(reported=reported))
        )
        await self._keep_report(ready, windows)
        return ConnectedModel(
            ready=ready, model=model, prices=prices, effort=reasoning_effort.parse(effort), windows=windows
        )

    async def _keep_report(self, ready: ReadyModel, windows: Windows) -> None:
        """Store the context window that a provider reports, for other replicas and for administrators."""
        stored = None if ready.window is None else ready.window.reported_tokens
        config_id, reported = ready.config.id, windows.reported
        if reported is None or reported == stored or self._reports_kept.get(config_id) == reported:
            return
        if len(self._reports_kept) >= _MAX_REPORTS:
            self._reports_kept.clear()
        self._reports_kept[config_id] = reported
        try:
            async with self._pool.acquire() as conn:
                await context_windows.report(conn, config_id, tokens=reported)
        except DATABASE_ERRORS as error:
            log.warning("report_not_kept", model_config_id=config_id, error=str(error) or type(error).__name__)

    def forget_models(self) -> None:
        """Drop cached models, so that the next step reads newly learned context windows."""
        self._directory.forget_models()

    async def _look_up(self, provider: Provider, config: ModelConfig, read: Callable[[], T]) -> T:
        """Read prices or windows of a model.

        The first lookup of a model loads a table, so it runs in a thread. Later lookups run on the event loop, because
        in a busy process a thread is scheduled late.
        """
        looked_up = (provider.type, config.model, self._clock.now().date())
        if looked_up in self._looked_up:
            return read()
        found = await asyncio.to_thread(read)
        if len(self._looked_up) >= _MAX_LOOKED_UP:
            self._looked_up.clear()
        self._looked_up.add(looked_up)
        return found

    async def _open_tools(self, step: Step, mode: Mode, stack: AsyncExitStack) -> StepTools:
        """Open the tools. Network errors are converted, so that they do not count as a database outage."""
        try:
            return await self._toolbox.open(step, mode=mode, stack=stack)
        except (OSError, DeadlineExceeded) as error:
            reason = str(error) or type(error).__name__
            raise ToolsUnavailable(f"A tool that this chat needs cannot be reached: {reason}") from error

    async def _deferred(self, step: Step, opened: StepTools, context_limit: int | None) -> StepTools:
        """Leave the definitions of servers' tools out of the prompt if they are too long."""
        if not any(find_tools.is_external(spec) for spec in opened.tools.specs()):
            return opened
        setting = _tool_search(await self._directory.setting("mcp"))
        tools = find_tools.defer(
            opened.tools,
            step.history.prompt,
            setting=setting,
            context_limit=context_limit,
            stats=self._search_stats,
        )
        return opened if tools is opened.tools else replace(opened, tools=tools)

    async def _prompt(
        self,
        step: Step,
        connected: ConnectedModel,
        stored: Mapping[UUID, StoredFile],
        step_blocks: tuple[str, ...],
        offered: _OfferedTools,
        *,
        is_apart: bool = False,
    ) -> Prompt:
        """Return the prompt of the step. With `is_apart`, the cached prompt is neither read nor changed."""
        ready, rows, chat_id = connected.ready, step.history.prompt, step.chat.id
        max_image = _ANTHROPIC_IMAGE_BYTES if ready.provider.type in _ANTHROPIC_TYPES else None
        target = identity_of(ready.provider, ready.config)
        rules = _file_rules(connected.model.caps, max_image)
        writers = await self._writers(step)
        builder = None if is_apart else self._prompts.take(chat_id)
        if builder is None or not builder.can_continue(rows, target=target, writers=writers, files=stored, rules=rules):
            builder = PromptBuilder(target, rules)

        def build() -> Prompt:
            builder.add(rows, writers=writers, files=stored)
            return builder.prompt(step_blocks, plan_path=offered.plan_path, tools=offered.names)

        told = await asyncio.to_thread(build) if _is_long(rows[len(builder) :]) else build()
        if not is_apart:
            self._prompts.keep(chat_id, builder, history_bytes=step.history.size_bytes)
        return told

    async def _writers(self, step: Step) -> dict[UUID, ModelIdentity]:
        snapshot = await self._directory.snapshot()
        return {
            config_id: identity_of(snapshot.providers[config.provider_id], config)
            for config_id in step.history.model_config_ids
            if (config := snapshot.configs.get(config_id)) is not None
        }

    async def _load_files(self, step: Step) -> Mapping[UUID, StoredFile]:
        named = step.history.file_ids
        async with self._pool.acquire() as conn:
            return await files.load_cached(conn, step.chat.id, file_ids=named, cache=self._files)

    async def _user_prompt(self, step: Step) -> str:
        return await self._degraded("custom_prompt", self._directory.user_setting(step.chat.owner_id, "custom_prompt"))

    async def _plan_instructions(self, mode: Mode) -> str:
        if mode is not Mode.PLAN:
            return ""
        stored = await self._directory.setting("prompts")
        return str(stored.get("plan_mode_instructions") or "") if isinstance(stored, dict) else ""

    async def _degraded(self, what: str, reading: Any) -> str:
        """Return an optional text of the prompt. If it cannot be read, return an empty text."""
        try:
            found = await reading
        except DATABASE_ERRORS as error:
            log.warning("left_out", what=what, error=str(error) or type(error).__name__)
            return ""
        return found if isinstance(found, str) else ""

    async def _summary_choice(self, step: Step, ready: ReadyModel) -> tuple[Choice, int | None]:
        """Return the model that would summarize the chat, and its window. The model is not connected yet."""
        stored = await self._directory.setting("models")
        named = stored.get("compaction") if isinstance(stored, dict) else None
        override, _ = model_resolution.read_override(named)
        choice = model_resolution.for_compaction(
            await self._directory.models(step.chat.owner_id), chat=ready.config.id, admin=override
        )
        snapshot = await self._directory.snapshot()
        config, known = snapshot.configs.get(choice.model_config_id), snapshot.windows.get(choice.model_config_id)
        provider = None if config is None else snapshot.providers.get(config.provider_id)
        if config is None or provider is None:
            return choice, None
        windows = await self._look_up(provider, config, lambda: windows_of(config, provider.type, known))
        return choice, windows.effective

    async def _threshold(self, step: Step, ready: ReadyModel) -> int:
        own = await self._directory.user_setting(step.chat.owner_id, "compaction_thresholds")
        value = own.get(str(ready.config.id)) if isinstance(own, dict) else None
        return compaction.effective_threshold(
            value if isinstance(value, int) else None, ready.config.compression_threshold
        )


# Most of the counted bytes are shared with the histories in `store.chats.step_reads.HistoryCache`.
MAX_CACHE_BYTES = 64 * 1024 * 1024
# The estimated size of a builder without its rows.
_BASE_BYTES = 4096


class PromptCache:
    """Prompt builders of chats, kept between steps, so that a step converts only new messages.

    A builder is removed while a step uses it, so that two steps of one chat never share it. `history_bytes` is the size
    of the history that it was built from.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES, *, clock: Clock | None = None) -> None:
        self.entries: Cache[UUID, PromptBuilder] = Cache(
            "prompts", max_bytes=max_bytes, max_age_seconds=CHAT_SECONDS, clock=clock
        )

    def take(self, chat_id: UUID) -> PromptBuilder | None:
        """Remove and return the builder of this chat."""
        return self.entries.take(chat_id)

    def keep(self, chat_id: UUID, builder: PromptBuilder, *, history_bytes: int) -> None:
        """Keep the builder for the next step."""
        self.entries.keep(chat_id, builder, size_bytes=history_bytes + _BASE_BYTES)


@lru_cache(maxsize=256)
def _file_rules(caps: Capabilities, max_image_bytes: int | None) -> FileRules:
    """Return the rules for files. Equal arguments return the same object, because cached prompts are compared by
    identity.
    """
    return FileRules(accepts=caps.accepts, max_image_bytes=max_image_bytes)


def _is_long(rows: Sequence[PromptRow]) -> bool:
    return len(rows) > _ROWS_ON_LOOP or sum(len(row.message.content) for row in rows) > _BYTES_ON_LOOP // 2


def is_turn_long(step: Step) -> bool:
    """Return whether decoding the turn takes too long for the event loop."""
    rows = step.history.rows[-_ROWS_ON_LOOP:]
    size = 0
    for row in reversed(rows):
        message = row.message
        size += len(message.content)
        if size > _BYTES_ON_LOOP // 2:
            return True
        if message.role is Role.USER and message.visibility is not Visibility.MODEL:
            return False
    return len(step.history.rows) > _ROWS_ON_LOOP


def assessed_rows(history: LoadedHistory) -> tuple[PromptRow, ...]:
    """Return the rows of the prompt that `compaction.assess` needs. A long chat has many other rows."""
    rows = history.prompt
    newest = len(rows) - 1
    while newest > 0 and not _is_counted(rows[newest]):
        newest -= 1
    if history.boundary_id is None:
        return rows[newest:]
    boundary = next(place for place, row in enumerate(rows) if row.message.id == history.boundary_id)
    after = range(boundary, len(rows))
    # The first answer after the boundary; without one, the first row that is not a system row.
    said = next((place for place in after[1:] if rows[place].message.role is not Role.SYSTEM), boundary)
    first = next((place for place in after if rows[place].message.role is Role.ASSISTANT), said)
    return rows[boundary:] if newest <= first else (*rows[boundary : first + 1], *rows[newest:])


def _is_counted(row: PromptRow) -> bool:
    return row.figures != _NO_FIGURES and compaction.count_tokens((row,), files={}) is not None


def _tool_search(stored: object) -> ToolSearch:
    """Return the setting `mcp.tool_search`; the default if it cannot be read."""
    given = stored.get("tool_search") if isinstance(stored, dict) else None
    return ToolSearch(given) if given in set(ToolSearch) else ToolSearch.AUTO


def stored_retry(chat: Chat) -> RetryState | None:
    """Decode the retry state of the chat. Return None if there is none or it cannot be decoded."""
    if chat.retry_state is None:
        return None
    try:
        return msgspec.json.decode(chat.retry_state, type=RetryState)
    except msgspec.DecodeError:
        return None


def _last_writer(step: Step) -> UUID | None:
    """Return the id of the model config that wrote the newest answer of this turn."""
    for row in reversed(step.history.rows):
        message = row.message
        if message.role is Role.ASSISTANT and not message.compressed:
            return message.model_config_id
        if message.role is Role.USER and message.visibility is not Visibility.MODEL:
            return None
    return None


def _name(config: ModelConfig) -> str:
    return config.display_name or config.model
