"""The advisor: a second opinion for the agent, from one separate model call without tools.

The call shares neither stored reasoning nor the cached prefix with the chat, and its text is never shown as an answer
of the chat. The uses in a turn are counted from the history, so the count survives a crash.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import asyncpg
import msgspec
from msgspec import Meta

from rookery.debug.call_scope import CallScope, RunScope
from rookery.debug.current_run import current_run
from rookery.debug.recorder import ModelFacts
from rookery.debug.turn_recording import Recordings, child_run
from rookery.domain.chat import advisor_prompt, history, parts, retry_policy
from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.parts import ContentError, Part, Text, ToolResult
from rookery.domain.chat.retry_policy import DEFAULT_POLICY, RetryPolicy
from rookery.domain.chat.system_blocks import Mode
from rookery.llm.errors import CallFailed, LlmError
from rookery.llm.types import Call, LanguageModel, ProviderError, Purpose, Usage
from rookery.loop.config import LoopConfig
from rookery.loop.model_step import AssistantOutcome, SilenceLimits, StepMeter, StepSetup, generate_assistant
from rookery.loop.tool import Tool, ToolContext, ToolOutput
from rookery.models import call_options, cost
from rookery.models.call_stats import CallStats
from rookery.models.connector import Connector, make_call
from rookery.models.directory import Directory, ReadyModel
from rookery.models.model_resolution import Choice
from rookery.runtime.clock import Clock
from rookery.store.chats.step_reads import Step
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.debug.record_rows import RunKind
from rookery.store.models import spending
from rookery.store.models.errors import SpendLimitReached
from rookery.store.models.usage_ledger import CallStatus, KeySource, record_call
from rookery.store.settings import setting_groups
from rookery.store.settings.setting_groups import AdvisorSettings
from rookery.store.workspaces.context import ContextResource
from rookery.telemetry.log import get_logger
from rookery.tools.registry import Column
from rookery.tools.step_tools import FamilyTools, StepPrompt, ToolsUnavailable
from rookery.tools.step_workspace import Refused, make_tool

log = get_logger("agents.advisor")

NAME = "advisor"
# Longer than any answer takes. A silent provider is noticed earlier.
DEADLINE_SECONDS = 900.0
MAX_TRIES = 3
LIMIT_TEXT = "The limit of advisor calls in this turn is reached. Continue without the advisor."


class AskAdvisor(msgspec.Struct):
    question: Annotated[
        str, Meta(description="One precise question, with the options you see. At most 2,000 characters are read.")
    ]
    model_intent: Annotated[str | None, Meta(description="A few words that tell the user why you ask.")] = None


@dataclass(slots=True)
class AdvisorStats:
    """Counts the calls by the type of their result."""

    calls: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisorServices:
    """Shared dependencies of all advisors of a process. They use the worker's connection pool."""

    pool: asyncpg.Pool
    directory: Directory
    connector: Connector
    clock: Clock
    random: Callable[[], float]
    stats: AdvisorStats = field(default_factory=AdvisorStats)
    call_stats: CallStats = field(default_factory=CallStats)
    retry: RetryPolicy = DEFAULT_POLICY
    loop: LoopConfig = field(default_factory=LoopConfig)
    recordings: Recordings | None = None


class AdvisorTools:
    """Offers the advisor to chats that may ask it."""

    def __init__(self, advisor_parts: AdvisorServices) -> None:
        self._parts = advisor_parts
        self._tools: tuple[Tool, ...] = (
            make_tool(
                NAME,
                "Ask a strong model that sees this conversation for a second opinion. It has no tools and changes "
                "nothing. Call it alone, not together with other tools.",
                arguments=AskAdvisor,
                handler=advisor,
                exclusive=True,
                read_only=True,
                deadline_seconds=DEADLINE_SECONDS,
            ),
        )

    async def open(
        self, step: Step, *, mode: Mode, at: Column, resources: Sequence[ContextResource] = ()
    ) -> FamilyTools:
        if at is not Column.ROOT:
            return FamilyTools()
        settings = read_settings(await self._parts.directory.setting(setting_groups.ADVISOR.name))
        if settings is None or not settings.enabled:
            return FamilyTools()
        ready, effort = await self._model(step, settings)
        if ready is None:
            return FamilyTools()
        runtime = Advisor(self._parts, step, settings=settings, ready=ready, effort=effort)
        return FamilyTools(tools=self._tools, services=(runtime,), has_advisor=True)

    async def _model(self, step: Step, settings: AdvisorSettings) -> tuple[ReadyModel | None, Effort | None]:
        """Return the configured model, otherwise the chat's model; None if neither can be used.

        The configured model is read again for each step, so that a disabled model is not used any more.
        """
        directory, owner_id = self._parts.directory, step.chat.owner_id
        if (configured := settings.model_config_id) is not None:
            if await directory.is_enabled_now(configured):
                ready = await directory.ready(Choice(configured), owner_id=owner_id)
                built = ready if isinstance(ready, ProviderError) else await self._parts.connector.model(ready)
                if isinstance(built, ProviderError):
                    raise ToolsUnavailable(f"The advisor's model cannot be used: {built.message}")
                assert isinstance(ready, ReadyModel)
                return ready, settings.reasoning_effort
            log.warning("advisor_model_unusable", model_config_id=configured)
        own = await directory.for_generation(step.chat.last_model_config_id, owner_id=owner_id)
        return (None, None) if isinstance(own, ProviderError) else (own, None)


def read_settings(stored: object) -> AdvisorSettings | None:
    """Return the settings; None if a limit cannot be read, because the default could exceed the configured limit.

    If the model cannot be read, the model and its effort count as not set.
    """
    settings = setting_groups.read(setting_groups.ADVISOR, stored)
    assert isinstance(settings, AdvisorSettings)
    raw = stored if isinstance(stored, dict) else {}
    for limit in ("max_uses_per_run", "max_output_tokens"):
        if limit in raw and raw[limit] != getattr(settings, limit):
            log.warning("advisor_limit_unusable", key=limit)
            return None
    if settings.model_config_id is None and raw.get("model_config_id") is not None:
        log.warning("advisor_model_unusable", model_config_id=str(raw["model_config_id"])[:64])
        return msgspec.structs.replace(settings, reasoning_effort=None)
    return settings


class Advisor:
    """The advisor of one step."""

    def __init__(
        self,
        advisor_parts: AdvisorServices,
        step: Step,
        *,
        settings: AdvisorSettings,
        ready: ReadyModel,
        effort: Effort | None,
    ) -> None:
        self._parts = advisor_parts
        self._step = step
        self._settings = settings
        self._ready = ready
        self._effort = effort

    async def advise(self, ctx: ToolContext, question: str) -> ToolOutput:
        asked = advisor_prompt.trimmed_question(question)
        if not asked:
            raise Refused("The question is blank. Ask one precise question.")
        left = self._settings.max_uses_per_run - count_uses(self._step)
        if left <= 0:
            return self._limited(LIMIT_TEXT)
        if (reached := await self._find_spend_limit()) is not None:
            return self._limited(str(reached), left=left)
        snapshot = await ctx.services.get(StepPrompt).write()
        try:
            prompt = advisor_prompt.advisor_prompt(snapshot, asked, call_id=ctx.call_id)
            outcome = await self._ask(ctx, prompt, asked)
        except LlmError as error:
            return self._failed(str(error))
        text = _text(outcome.content)
        if not text:
            kinds = ", ".join(sorted({parts.kind(part) for part in outcome.content})) or "nothing"
            return self._failed(
                f"The advisor's model returned no text (finish reason: {outcome.finish_reason}; content: {kinds})."
            )
        self._parts.stats.calls["advice"] += 1
        return ToolOutput(
            {
                "type": "advice",
                "advice": text,
                "advisor_model": self._ready.config.display_name or self._ready.config.model,
                "remaining_uses": left - 1,
                "usage": _usage(outcome.usage),
            }
        )

    def _limited(self, reason: str, *, left: int = 0) -> ToolOutput:
        self._parts.stats.calls["limit_reached"] += 1
        return ToolOutput({"type": "limit_reached", "reason": reason, "remaining_uses": left})

    def _failed(self, reason: str) -> ToolOutput:
        self._parts.stats.calls["error"] += 1
        return ToolOutput({"type": "error", "error": reason}, is_error=True)

    async def _ask(self, ctx: ToolContext, prompt: Prompt, question: str) -> AssistantOutcome:
        """Call the model, and repeat the call after a transient failure.

        The text of the advisor is shown live as the result of the tool call.
        """
        model = await self._parts.connector.model(self._ready)
        if isinstance(model, ProviderError):
            raise CallFailed(model, Usage())
        call = self._call(model, prompt)
        with self._recorded(ctx, model, question) as recorded:
            return await self._try_often(ctx, recorded, call)

    def _recorded(self, ctx: ToolContext, model: LanguageModel, question: str) -> CallScope:
        """Return the recording scope of the calls: a debug run below the run of the turn, if the turn is recorded."""
        recordings, parent = self._parts.recordings, current_run.get()
        if recordings is None or parent is None:
            return CallScope(model)
        facts = ModelFacts.of(self._ready, self._ready.prices(self._parts.clock.now()))
        run = child_run(recordings.recorder, parent, kind=RunKind.ADVISOR, label=question, model=facts)
        if run is None:
            return CallScope(model)
        # A cancellation without a reason is the deadline of the tool.
        return RunScope(model, run, abort_reason=lambda: ctx.cancel_reason, is_late=lambda: ctx.cancel_reason is None)

    async def _try_often(self, ctx: ToolContext, model: LanguageModel, call: Call) -> AssistantOutcome:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                return await self._try(ctx, model, call)
            except CallFailed as failure:
                delay = retry_policy.next_delay(
                    attempt,
                    self._parts.random,
                    retryable=failure.error.retryable,
                    retry_after=failure.error.retry_after,
                    policy=self._parts.retry,
                )
                if attempt == MAX_TRIES or isinstance(delay, retry_policy.GiveUp):
                    raise
                ctx.publish("", reset=True)
                await self._parts.clock.sleep(delay.total_seconds(), "advisor-retry")
        raise AssertionError("unreachable")

    async def _try(self, ctx: ToolContext, model: LanguageModel, call: Call) -> AssistantOutcome:
        def publish(role: Role, part: Part) -> None:
            if isinstance(part, Text) and part.text:
                ctx.publish(part.text)

        meter = StepMeter()
        setup = StepSetup(
            provider_name=self._ready.provider_name,
            publish=publish,
            clock=self._parts.clock,
            meter=meter,
            stats=self._parts.call_stats,
            limits=SilenceLimits.of(self._ready.config.options, self._parts.loop),
        )
        try:
            outcome = await generate_assistant(model, call, setup)
        except CallFailed as failure:
            await self._bill(model, failure.usage, CallStatus.FAILED, meter)
            raise
        except asyncio.CancelledError:
            # The provider bills the output that it has sent. The cancelled call waits for the ledger for a limited
            # time.
            if meter.invoked_at is not None:
                await asyncio.shield(self._bill(model, meter.usage, CallStatus.INTERRUPTED, meter))
            raise
        await self._bill(model, outcome.usage, CallStatus.OK, meter)
        return outcome

    def _call(self, model: LanguageModel, prompt: Prompt) -> Call:
        """Return the request to the advisor's model.

        It has no tools, and no origin, so that caches of the chat are not affected.
        """
        own = self._ready.config.options.max_output_tokens
        limit = self._settings.max_output_tokens if own is None else min(own, self._settings.max_output_tokens)
        call = make_call(
            self._ready,
            model,
            prompt=prompt,
            purpose=Purpose.ADVISOR,
            effort=self._effort,
            max_output_tokens=limit,
            may_search=False,
            window_tokens=self._ready.windows().effective,
        )
        return call_options.without_storage(call)

    async def _find_spend_limit(self) -> SpendLimitReached | None:
        if self._ready.key_source is KeySource.USER:
            return None
        try:
            async with self._parts.pool.acquire() as conn:
                await spending.check_spend(conn, self._step.chat.owner_id, now=self._parts.clock.now())
        except SpendLimitReached as reached:
            return reached
        except DATABASE_ERRORS as error:
            log.warning("spend_not_checked", error=str(error) or type(error).__name__)
        return None

    async def _bill(self, model: LanguageModel, usage: Usage, status: CallStatus, meter: StepMeter) -> None:
        """Count the call and write it into the usage ledger. If the database is unavailable, the advice is still
        returned.
        """
        chat = self._step.chat
        entry = msgspec.structs.replace(
            self._ready.usage_entry(
                usage, owner_id=chat.owner_id, chat_id=chat.id, purpose=Purpose.ADVISOR, status=status
            ),
            cost_micros=cost.cost_micros(usage, self._ready.prices(self._parts.clock.now())),
            runtime_ms=meter.runtime_ms(self._parts.clock.monotonic()) or 0,
            request_id=meter.request_id,
            at=self._parts.clock.now(),
        )
        self._parts.call_stats.call_ended(model, entry)
        try:
            async with self._parts.pool.acquire() as conn:
                await record_call(conn, entry)
        except DATABASE_ERRORS as error:
            log.warning("advisor_call_not_recorded", chat_id=chat.id, error=str(error) or type(error).__name__)


async def advisor(ctx: ToolContext, given: AskAdvisor) -> ToolOutput:
    return await ctx.services.get(Advisor).advise(ctx, given.question)


class _Result(msgspec.Struct, frozen=True):
    type: str = ""


_result = msgspec.json.Decoder(_Result)


def count_uses(step: Step) -> int:
    """Return the number of times that the advisor gave advice since the user's last message."""
    uses = 0
    for row in reversed(step.history.rows):
        message = row.message
        if history.is_from_user(message):
            break
        if message.role is not Role.TOOL:
            continue
        try:
            uses += sum(_is_advice(part) for part in message.parts())
        except ContentError:
            continue
    return uses


def _is_advice(part: Part) -> bool:
    if not isinstance(part, ToolResult) or part.tool_name != NAME or part.is_error:
        return False
    try:
        return isinstance(part.result, msgspec.Raw) and _result.decode(part.result).type == "advice"
    except msgspec.DecodeError:
        return False


def _text(content: tuple[Part, ...]) -> str:
    return "\n\n".join(part.text.strip() for part in content if isinstance(part, Text) and part.text.strip())


def _usage(usage: Usage) -> dict[str, Any]:
    found = {"input_tokens": usage.input, "output_tokens": usage.output, "reasoning_tokens": usage.reasoning}
    return {name: value for name, value in found.items() if value is not None}
