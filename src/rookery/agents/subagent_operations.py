"""The operations of a chat on its subagents: spawn, wait, message, stop, list, read reports.

All changes go through the authorized store on behalf of the owner, so a tool can never access a chat of another user. A
refused operation raises `Refused` with a text for the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID, uuid5

import asyncpg

from rookery.agents import subagent_kinds
from rookery.agents.subagent_kinds import EXPLORE, GENERAL, AgentKind, KindList
from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat import agent_reports, submitted_content, system_blocks, titles, truncation
from rookery.domain.chat.agent_reports import AgentOutcome
from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import ChatId, Effort, NewMessage, NewQueuedMessage, Role
from rookery.domain.chat.parts import Text, ToolCall
from rookery.domain.chat.system_blocks import Awareness, Mode
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.types import ProviderError
from rookery.loop.tool import ToolContext
from rookery.models import model_resolution
from rookery.models.directory import Directory, ReadyModel
from rookery.models.model_resolution import Choice
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.store.authorized.actor_store import ActorStore, Store
from rookery.store.chats import subagents
from rookery.store.chats.step_reads import Step
from rookery.store.chats.subagents import NewSubagent, Subagent
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.hints import ChatHint
from rookery.store.db.pubsub import Bus
from rookery.store.machine import ChatSpec
from rookery.store.models.errors import ModelError, ModelUnusable, NoDefaultModel
from rookery.store.models.usage_ledger import KeySource
from rookery.store.settings.limit_settings import SubagentSettings
from rookery.telemetry.log import get_logger
from rookery.tools.step_workspace import Refused

T = TypeVar("T")
log = get_logger("agents.subagent_operations")

# The namespace of child ids. The id is derived from the replay token of the spawning call, so that a repeated call
# finds its child.
_CHILDREN = UUID("5f3c1b1e-6f0d-4e53-9d0e-3f6f1a3c7b11")

DEFAULT_WAIT_SECONDS = 300
MAX_WAIT_SECONDS = 3600
# Hints announce ends immediately. Polling finds ends whose hint was lost.
POLL_SECONDS = 5.0
# Added to the deadline of a waiting call, for its last read of the children.
WAIT_GRACE_SECONDS = 30.0
# If the database is unavailable, a call is repeated for this long.
DATABASE_SECONDS = 30.0
AGAIN_SECONDS = 0.5
# Less than the smallest size limit of a result, so that a page is never cut.
REPORT_PAGE_BYTES = 12 * 1024
# The size of a result without the reports of the children.
WRAPPING_BYTES = 64
# Longer reports are cut in a thread.
CUT_IN_THREAD_CHARS = 256 * 1024
# The names of the models of each kind in preferences and in settings.
_OVERRIDES = {GENERAL.name: "general_subagents", EXPLORE.name: "explore_subagents"}
PERSONAL_SETTING = "model_overrides"
_OTHER_MODELS = "Call list_subagent_models to see the models that can be used."


class WaitMode(StrEnum):
    ANY = "any"
    ALL = "all"


async def no_servers(step: Step, mode: Mode) -> tuple[UUID, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyServices:
    """Dependencies that the families of a process share. They use the worker's connection pool.

    `external_servers` returns the MCP servers of a step. A subagent of the kind `explore` gets exactly these.
    """

    pool: asyncpg.Pool
    store: Store
    bus: Bus
    directory: Directory
    clock: Clock
    external_servers: Callable[[Step, Mode], Awaitable[tuple[UUID, ...]]] = no_servers


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnOrder:
    """The arguments of `spawn_agent`, as the model wrote them."""

    kind: str
    prompt: str
    title: str | None = None
    model_config_id: str | None = None
    reasoning_effort: str | None = None
    max_minutes: int | None = None
    budget_usd: float | None = None


class AgentFamily:
    """The subagents of one chat, for one step of this chat."""

    def __init__(
        self, parts: FamilyServices, step: Step, *, mode: Mode, available: KindList, settings: SubagentSettings
    ) -> None:
        self._parts = parts
        self._step = step
        self._mode = mode
        self._available = available
        self.settings = settings

    @property
    def _store(self) -> ActorStore:
        return self._parts.store.as_actor(OwnerActor(self._step.chat.owner_id))

    @property
    def _root_id(self) -> ChatId:
        chat = self._step.chat
        return chat.root_chat_id or chat.id

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation for a while if the database is unavailable. The operation must be safe to repeat.

        Without this, the model would read that a spawn has failed, although the subagent may have been created.
        """
        clock = self._parts.clock
        due = clock.monotonic() + DATABASE_SECONDS
        while True:
            try:
                return await work()
            except DATABASE_ERRORS as error:
                if clock.monotonic() >= due:
                    raise
                log.warning("subagent_call_repeated", error=str(error) or type(error).__name__)
            await clock.sleep(AGAIN_SECONDS, "subagent-call")

    # Spawning

    async def spawn(self, ctx: ToolContext, order: SpawnOrder) -> dict[str, Any]:
        """Create a subagent, which starts to work immediately.

        A repetition of the tool call returns the subagent of the first call.
        """
        chat, meta = self._step.chat, self._step.meta
        child_id = ChatId(uuid5(_CHILDREN, str(ctx.replay_token)))
        if not chat.is_root or self._mode is Mode.EXPLORE:
            raise Refused("Only the main chat can start subagents.")
        async with self._parts.pool.acquire() as conn:
            known = await subagents.find_subagents(conn, [child_id], root_id=self._root_id)
        if (made_before := known.get(child_id)) is not None:
            return self.summary(made_before)
        kind = self._available.find(order.kind.strip())
        if kind is None:
            names = subagent_kinds.named(self._available.kinds)
            raise Refused(f"There is no kind of subagent {order.kind[:64]!r}. The kinds are: {names}")
        choice, ready = await self._choose_model(kind, order)
        effort = _effort(order.reasoning_effort)
        chosen_effort = effort or kind.reasoning_effort or choice.reasoning_effort
        prompt = order.prompt.strip()
        if not prompt:
            raise Refused("The prompt is blank. Describe the subagent's task.")
        if len(prompt.encode("utf-8", "replace")) > submitted_content.MAX_TEXT_BYTES:
            raise Refused(
                f"The prompt is longer than {submitted_content.MAX_TEXT_BYTES} bytes. Write long material to a file in "
                "the workspace, and name its path."
            )
        minutes = self._minutes(kind, order.max_minutes)
        budget = await self._budget(order.budget_usd, ready)
        title = titles.given_title(order.title or "") or titles.fallback_title(prompt)
        is_exploring = kind.read_only
        spec = ChatSpec(
            id=child_id,
            owner_id=chat.owner_id,
            parent_chat_id=chat.id,
            root_chat_id=self._root_id,
            title=title,
            model_config_id=choice.model_config_id,
            reasoning_effort=chosen_effort,
            messages=(
                *await self._system_rows(kind),
                NewMessage(
                    role=Role.USER,
                    content=(Text(prompt),),
                    created_by=chat.owner_id,
                    model_config_id=choice.model_config_id,
                    reasoning_effort=chosen_effort,
                ),
            ),
            workspace_id=meta.workspace_id,
            mode=Mode.EXPLORE if is_exploring else None,
            plan_mode=meta.plan_mode and not is_exploring,
            mcp_server_ids=await self._parts.external_servers(self._step, self._mode)
            if is_exploring
            else meta.mcp_server_ids,
            client_type=meta.client_type,
            generate_summaries=False,
            is_named=True,
        )
        terms = NewSubagent(
            chat_id=child_id,
            parent_chat_id=chat.id,
            tool_call_id=ctx.call_id,
            kind=kind.name,
            kind_source=kind.source,
            tools=kind.tools,
            max_minutes=minutes,
            budget_micros=budget,
        )
        try:
            if ready.key_source is not KeySource.USER and (limit := await self._store.turns.find_spend_limit()):
                raise Refused(f"No subagent can be started: {limit}")
            made = await self._store.turns.spawn(chat.id, spec, terms)
        except (ChatError, ModelError) as error:
            raise Refused(str(error)) from error
        return {"chat_id": str(child_id), "title": made.title, "status": made.status, "type": kind.name}

    async def _choose_model(self, kind: AgentKind, order: SpawnOrder) -> tuple[Choice, ReadyModel]:
        owner_id = self._step.chat.owner_id
        models = await self._parts.directory.models(owner_id)
        requested = _model_id(order.model_config_id)
        if requested is None and kind.model_config_id is not None:
            if models.is_usable(kind.model_config_id):
                requested = kind.model_config_id
            else:
                log.info("kind_model_unusable", kind=kind.name, model_config_id=kind.model_config_id)
        personal, admin = await self._overrides(kind)
        try:
            chosen = model_resolution.for_subagent(
                models,
                parent=self._step.chat.last_model_config_id,
                requested=requested,
                personal=personal,
                admin=admin,
            )
        except (ModelUnusable, NoDefaultModel) as error:
            raise Refused(f"{error} {_OTHER_MODELS}") from error
        # The parent's own model may have been deleted or disabled since its turn began.
        usable = model_resolution.for_generation(models, chosen.model_config_id)
        if isinstance(usable, ProviderError):
            raise Refused(f"{usable.message} {_OTHER_MODELS}")
        chosen = Choice(usable.model_config_id, chosen.reasoning_effort)
        ready = await self._parts.directory.ready(chosen, owner_id=owner_id)
        if isinstance(ready, ProviderError):
            raise Refused(f"{ready.message} {_OTHER_MODELS}")
        return chosen, ready

    async def _overrides(
        self, kind: AgentKind
    ) -> tuple[model_resolution.Override | None, model_resolution.Override | None]:
        """Return the models that the user and the administrators have chosen for this kind."""
        key = _OVERRIDES.get(kind.name)
        if key is None:
            return None, None
        directory = self._parts.directory
        stored = await directory.setting("models")
        group = stored if isinstance(stored, dict) else {}
        admin, _ = model_resolution.read_override(group.get(key))
        if not group.get("allow_personal_overrides"):
            return None, admin
        own = await directory.user_setting(self._step.chat.owner_id, PERSONAL_SETTING)
        personal, _ = model_resolution.read_override(own.get(kind.name) if isinstance(own, dict) else None)
        return personal, admin

    def _minutes(self, kind: AgentKind, asked: int | None) -> int:
        if asked is not None and asked < 1:
            raise Refused("`max_minutes` must be at least 1.")
        limits = (self.settings.max_minutes, kind.max_minutes, asked)
        return min(limit for limit in limits if limit is not None)

    async def _budget(self, dollars: float | None, ready: ReadyModel) -> int | None:
        if dollars is None:
            return None
        if not 0 < dollars <= 1_000_000:
            raise Refused("`budget_usd` must be more than 0 and at most 1,000,000.")
        if await asyncio.to_thread(ready.prices, self._parts.clock.now()) is None:
            raise Refused("This model has no price, so a budget cannot be kept. Leave `budget_usd` out.")
        return max(round(dollars * 1_000_000), 1)

    async def _system_rows(self, kind: AgentKind) -> tuple[NewMessage, ...]:
        is_attached = self._step.meta.workspace_id is not None
        return system_blocks.system_rows(
            await self._parts.directory.setting(system_blocks.PROMPTS_SETTING),
            system_prompt=kind.prompt or None,
            awareness=Awareness.ATTACHED if is_attached else Awareness.DETACHED_SUBAGENT,
            is_subagent=True,
        )

    # Waiting

    async def wait(
        self, ctx: ToolContext, ids: Sequence[str], *, mode: WaitMode, seconds: int
    ) -> list[Mapping[str, Any]]:
        """Wait until one or all of these subagents are at rest, or until the time limit. Return one result for each."""
        chat_ids = [_chat_id(each) for each in ids]
        await self.insist(lambda: self._find(chat_ids))
        seconds = DEFAULT_WAIT_SECONDS if seconds <= 0 else min(seconds, MAX_WAIT_SECONDS)
        remaining = max(seconds - self._seconds_since_call(ctx.call_id), 0.0)
        ctx.set_deadline(remaining + WAIT_GRACE_SECONDS)
        clock, ended = self._parts.clock, asyncio.Event()
        due = clock.monotonic() + remaining

        def note(hint: ChatHint) -> None:
            if hint.gone or hint.status in ("waiting", "error"):
                ended.set()

        with ExitStack() as stack:
            for chat_id in dict.fromkeys(chat_ids):
                stack.enter_context(self._parts.bus.subscribe(ChatHint, note, key=chat_id))
            stack.enter_context(self._parts.bus.on_resync(ended.set))
            while True:
                ended.clear()
                found = await self.insist(lambda: self._find(chat_ids))
                resting = [found[chat_id].is_at_rest for chat_id in chat_ids]
                is_over = any(resting) if mode is WaitMode.ANY else all(resting)
                left = due - clock.monotonic()
                if is_over or left <= 0:
                    break
                try:
                    async with clock.deadline(min(left, POLL_SECONDS), "wait-agent"):
                        await ended.wait()
                except DeadlineExceeded:
                    continue
        resting_ids = [chat_id for chat_id in found if found[chat_id].is_at_rest]
        reports = await self.insist(lambda: self._reports(resting_ids))
        told = [self._told(found[chat_id], reports.get(chat_id, ""), timed_out=not is_over) for chat_id in chat_ids]
        max_bytes = truncation.budget_bytes(ctx.context_limit) - WRAPPING_BYTES
        if sum(len(each.get("report", "")) for each in told) > CUT_IN_THREAD_CHARS:
            return await asyncio.to_thread(agent_reports.fit_reports, told, max_bytes)
        return agent_reports.fit_reports(told, max_bytes)

    def _seconds_since_call(self, call_id: str) -> float:
        """Return the seconds since the model called the tool.

        A call that is repeated after a crash waits only for the remaining time.
        """
        for row in reversed(self._step.history.rows):
            message = row.message
            if message.role is Role.USER:
                break
            if message.role is Role.ASSISTANT and any(
                isinstance(part, ToolCall) and part.tool_call_id == call_id for part in message.parts()
            ):
                return max((self._step.now - message.created_at).total_seconds(), 0.0)
        return 0.0

    def _told(self, child: Subagent, report: str, *, timed_out: bool) -> dict[str, Any]:
        told = self.summary(child)
        if not child.is_at_rest:
            return {**told, "timed_out": True} if timed_out else told
        if child.end_id is not None:
            # These fields directly follow the chat, because `agent_reports.told_ends` searches for the pair in a result
            # that was cut.
            told = {"chat_id": told["chat_id"], "end_id": child.end_id, **told}
        told["report"] = report
        if child.outcome == AgentOutcome.DEADLINE:
            told["last_error"] = "The subagent was stopped at its time limit. Its report is what it had written so far."
            told["last_error_kind"] = "deadline"
            told["last_error_retryable"] = False
        elif child.outcome == AgentOutcome.INTERRUPTED:
            told["interrupted"] = True
        elif child.status == "error" and (error := child.error) is not None:
            told["last_error"] = error.detail or error.message
            told["last_error_kind"] = error.kind or "generic"
            told["last_error_retryable"] = error.retryable
            if error.detail:
                told["last_error_detail"] = error.detail
        return told

    # Message, stop, list, and read

    async def message(self, ctx: ToolContext, chat_id: str, text: str, *, interrupt: bool) -> dict[str, Any]:
        """Send a message to a subagent. A subagent at rest starts a turn; otherwise the message is queued."""
        child = await self._one(chat_id)
        if not text.strip():
            raise Refused("The message is blank.")
        if len(text.encode("utf-8", "replace")) > submitted_content.MAX_TEXT_BYTES:
            raise Refused(f"The message is longer than {submitted_content.MAX_TEXT_BYTES} bytes.")
        message = NewQueuedMessage(
            content=(Text(text),),
            created_by=self._step.chat.owner_id,
            model_config_id=child.model_config_id,
            client_id=str(ctx.replay_token),
        )
        busy = BusyBehavior.INTERRUPT if interrupt else BusyBehavior.QUEUE
        try:
            sent = await self._store.turns.send_to_subagent(
                child.chat_id, message, busy=busy, parent_id=self._step.chat.id
            )
        except (ChatError, ModelError) as error:
            raise Refused(_about(child, str(error))) from error
        is_interrupted = interrupt and sent.chat.status == "interrupting"
        return {**self.summary(child), "status": sent.chat.status, "interrupted": is_interrupted}

    async def interrupt(self, chat_id: str) -> dict[str, Any]:
        """Stop a subagent. A subagent at rest is not changed."""
        child = await self._one(chat_id)
        if child.is_at_rest:
            return {**self.summary(child), "interrupted": False}
        try:
            done = await self._store.turns.interrupt(child.chat_id, cascade=False)
        except ChatError as error:
            raise Refused(_about(child, str(error))) from error
        return {**self.summary(child), "status": done.chat.status, "interrupted": True}

    async def list_agents(self, *, limit: int, offset: int) -> dict[str, Any]:
        """Return the subagents of this chat that are not archived, the most recently updated first."""
        async with self._parts.pool.acquire() as conn:
            total = await subagents.count_children(conn, self._root_id)
            found = await subagents.list_children(conn, self._step.chat.id, limit=limit, offset=offset)
        agents = [
            {
                **self.summary(child),
                "created_at": child.created_at.isoformat(),
                "updated_at": child.updated_at.isoformat(),
            }
            for child in found
        ]
        has_more = offset + len(found) < total
        return {"agents": agents, "total": total, "returned": len(found), "offset": offset, "has_more": has_more}

    async def read_report(self, chat_id: str, offset: int) -> dict[str, Any]:
        """Return a page of a subagent's report, starting at a byte offset."""
        child = await self._one(chat_id)
        data = (await self._reports([child.chat_id])).get(child.chat_id, "").encode("utf-8", "replace")
        if not 0 <= offset <= len(data):
            raise Refused(f"`offset` must be between 0 and {len(data)}, the length of the report in bytes.")
        page = data[offset : offset + REPORT_PAGE_BYTES]
        # A page never ends inside of a character.
        while page and offset + len(page) < len(data) and data[offset + len(page)] & 0xC0 == 0x80:
            page = page[:-1]
        told = {**self.summary(child), "report": page.decode("utf-8", "replace"), "total_bytes": len(data)}
        if offset + len(page) < len(data):
            told["next_offset"] = offset + len(page)
        return told

    async def list_models(self) -> dict[str, Any]:
        """Return the models that subagents of this owner can use."""
        directory, owner_id = self._parts.directory, self._step.chat.owner_id
        models, snapshot = await directory.models(owner_id), await directory.snapshot()
        found: list[dict[str, Any]] = []
        for config in snapshot.configs.values():
            if not models.is_usable(config.id):
                continue
            provider = snapshot.providers[config.provider_id]
            told: dict[str, Any] = {
                "model_config_id": str(config.id),
                "display_name": config.display_name or config.model,
                "model": config.model,
                "provider": provider.display_name or provider.name,
                "context_limit": config.context_limit,
                "is_default": config.id == models.default_id,
            }
            if (allowed := config.options.reasoning_effort) is not None:
                efforts = list(Effort)
                told["reasoning_efforts"] = [str(each) for each in efforts[: efforts.index(allowed.max) + 1]]
            found.append(told)
        return {"models": sorted(found, key=lambda each: (not each["is_default"], each["display_name"]))}

    def summary(self, child: Subagent) -> dict[str, Any]:
        """Return the fields about a subagent that all results contain."""
        told: dict[str, Any] = {
            "chat_id": str(child.chat_id),
            "title": child.title,
            "status": child.status,
            "type": child.kind,
        }
        if (phase := child.phase) is not None:
            told["phase"] = str(phase)
        if child.is_stalled(self.settings.stall_after):
            told["stalled"] = True
            told["silent_seconds"] = round((child.now - child.progress_at).total_seconds())
        return told

    async def _reports(self, chat_ids: Sequence[UUID]) -> dict[UUID, str]:
        async with self._parts.pool.acquire() as conn:
            return await subagents.read_reports(conn, chat_ids)

    async def _one(self, chat_id: str) -> Subagent:
        wanted = _chat_id(chat_id)
        return (await self._find([wanted]))[wanted]

    async def _find(self, chat_ids: Sequence[UUID]) -> dict[UUID, Subagent]:
        """Return these subagents. Raise `Refused` for a chat that is not a subagent of this chat."""
        async with self._parts.pool.acquire() as conn:
            found = await subagents.find_subagents(conn, chat_ids, root_id=self._root_id)
        for chat_id in chat_ids:
            if chat_id not in found:
                raise Refused(f"Chat {chat_id} is not a subagent of this chat. Call list_agents to see them.")
        return found


def _about(child: Subagent, text: str) -> str:
    return f"Subagent {child.title!r} ({child.kind}): {text}"


def _chat_id(text: str) -> UUID:
    try:
        return UUID(text.strip())
    except ValueError:
        raise Refused(f"{text[:64]!r} is not a chat id. Use the `chat_id` that spawn_agent returned.") from None


def _model_id(text: str | None) -> UUID | None:
    if text is None or not text.strip():
        return None
    try:
        return UUID(text.strip())
    except ValueError:
        raise Refused(f"{text[:64]!r} is not a model id. {_OTHER_MODELS}") from None


def _effort(text: str | None) -> Effort | None:
    if text is None or not text.strip():
        return None
    try:
        return Effort(text.strip())
    except ValueError:
        raise Refused(f"There is no reasoning effort {text[:64]!r}. It is one of {', '.join(Effort)}.") from None
