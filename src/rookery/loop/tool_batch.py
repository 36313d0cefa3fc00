"""The tool batch: checks the tool calls of one step, runs them concurrently, and returns one result for each.

Whatever a tool does (raise, hang, ignore its cancellation, return invalid output) becomes a result of that call and
does not affect the others. Only a cancellation of the batch, or a ledger that fails, ends it without results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET

from rookery.domain.chat import parts, tool_calls
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.parts import ContentError, File, ToolResult
from rookery.domain.chat.truncation import budget_bytes
from rookery.loop import live_results, step_rows, tool_input, tool_results
from rookery.loop.config import LoopConfig
from rookery.loop.live_results import LiveResult
from rookery.loop.tool import (
    BatchView,
    CallTimer,
    Cancellation,
    KeepResult,
    Ledger,
    LedgerState,
    OnProgress,
    Publish,
    Replay,
    Services,
    Tool,
    ToolCall,
    ToolContext,
    ToolOutput,
    ToolSet,
    keep_nowhere,
)
from rookery.loop.tool_results import CallName, CallResult, UnusableOutput
from rookery.loop.unfinished_tools import Stragglers
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.telemetry.log import get_logger

log = get_logger("loop.tool_batch")

OUTCOME_UNKNOWN = (
    "This call was started before and its outcome is unknown: the server stopped while it ran. "
    "Check what it did before you repeat it."
)


class PendingCall(msgspec.Struct, frozen=True):
    """A call of the history that waits for its result, and the message that contains it."""

    message_id: int
    call: parts.ToolCall


class ToolStats(Protocol):
    """Counters of a batch; the metrics are made from them elsewhere. `tool` is the bounded label, not the name."""

    def tool_finished(self, tool: str, *, is_error: bool, seconds: float, result_bytes: int) -> None: ...

    def result_truncated(self, tool: str) -> None: ...

    def tool_abandoned(self, tool: str) -> None: ...


class NoToolStats:
    def tool_finished(self, tool: str, *, is_error: bool, seconds: float, result_bytes: int) -> None:
        pass

    def result_truncated(self, tool: str) -> None:
        pass

    def tool_abandoned(self, tool: str) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class BatchSetup:
    """The input of a batch besides its calls. `on_progress` gets the latest deadline of the running calls.

    `refused` are calls that rules or users deny, by id, with the text that replaces their result.
    """

    chat_id: ChatId
    tools: ToolSet
    publish: Publish
    clock: Clock
    ledger: Ledger
    stragglers: Stragglers
    config: LoopConfig = field(default_factory=LoopConfig)
    context_limit: int | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    services: Services = field(default_factory=Services)
    owner_id: UUID | None = None
    turn_id: int | None = None
    new_id: Callable[[], UUID] = uuid4
    on_progress: OnProgress = lambda until: None
    refused: Mapping[str, str] = field(default_factory=dict)
    stats: ToolStats = field(default_factory=NoToolStats)
    keep_result: KeepResult = keep_nowhere


async def execute_batch(calls: Sequence[PendingCall], setup: BatchSetup) -> tuple[CallResult, ...]:
    """Run the calls. Return one result for each, in their order, to be committed together.

    Results are published as they arrive. When cancelled, it cancels its tools, waits a bounded time for them, and
    returns nothing: only what was published remains.
    """
    return await _Batch(calls, setup).run()


class _Batch:
    def __init__(self, calls: Sequence[PendingCall], setup: BatchSetup) -> None:
        self._calls = calls
        self._setup = setup
        self._max_bytes = budget_bytes(setup.context_limit)
        self._results: dict[int, CallResult] = {}
        self._kept_in: dict[int, str] = {}
        self._running: dict[int, CallTimer] = {}
        self._view = BatchView(tuple(setup.tools.canonical(each.call.tool_name) for each in calls), {})

    async def run(self) -> tuple[CallResult, ...]:
        runnable = self._admit()
        serial = [place for place in runnable if self._tool(place).spec.serial]
        await self._run_all([place for place in runnable if place not in serial])
        for place in serial:
            await self._run_all([place])
        return await self._capped()

    # Checks

    def _admit(self) -> list[int]:
        """Answer the calls that cannot run. Return the indices of the others."""
        setup = self._setup
        if step_rows.is_exclusive_violation(self._view.names, setup.tools):
            alone = next(name for name in self._view.names if setup.tools.is_exclusive(name))
            for place, name in enumerate(self._view.names):
                self._reject(place, _exclusive_error(name, alone, is_exclusive=setup.tools.is_exclusive(name)))
            return []
        runnable: list[int] = []
        for place, pending in enumerate(self._calls):
            call = pending.call
            problem = (
                setup.refused.get(call.tool_call_id)
                or setup.tools.find_problem(call.tool_name)
                or step_rows.find_problem(call, setup.tools)
            )
            if problem is None:
                runnable.append(place)
            else:
                self._reject(place, problem)
        return runnable

    def _reject(self, place: int, problem: str) -> None:
        self._settle(place, self._error(place, problem), seconds=0.0)

    # Execution

    async def _run_all(self, places: Collection[int]) -> None:
        if not places:
            return
        gate = asyncio.Semaphore(self._setup.config.tool_batch_concurrency)
        tasks = [asyncio.create_task(self._run_gated(place, gate), name=f"call:{place}") for place in places]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            await self._unwind(tasks)
            raise
        failed = next((task for task in tasks if _has_failed(task)), None)
        if failed is not None:
            await self._unwind(tasks)
            failed.result()
        for place in places:
            if place not in self._results:
                # A library cancelled it, not the owner of this batch.
                self._reject(place, _cancelled_error(self._view.names[place]))

    async def _unwind(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Cancel the running calls and wait for them: each call bounds its own end."""
        running = {task for task in tasks if not task.done()}
        for task in running:
            task.cancel()
        try:
            if running:
                await asyncio.wait(running)
        finally:
            for task in tasks:
                if not task.done():
                    self._setup.stragglers.adopt(task)
                elif _has_failed(task) and (error := task.exception()) is not None:
                    log.exception("batch_failed", error, chat_id=self._setup.chat_id)

    async def _run_gated(self, place: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            await self._run_call(place)

    async def _run_call(self, place: int) -> None:
        setup = self._setup
        tool = self._tool(place)
        token = self._token(place)
        is_ledgered = tool.spec.replay is Replay.LEDGER
        if is_ledgered and (known := await self._look_up(place, token)) is not None:
            self._settle(place, known, seconds=0.0)
            return
        seconds = tool.spec.deadline_seconds or setup.config.tool_default_deadline_seconds
        timer = CallTimer(
            setup.clock,
            seconds=seconds,
            max_seconds=setup.config.tool_max_deadline_seconds,
            on_change=self._tell_progress,
        )
        started = setup.clock.monotonic()
        self._running[place] = timer
        self._tell_progress()
        try:
            output = await self._invoke(place, tool, timer=timer, token=token)
            result = await self._shaped(place, output)
            if result.is_truncated and await self._kept(place, output):
                result = await self._shaped(place, output)
        finally:
            del self._running[place]
            self._tell_progress()
        self._settle(place, result, seconds=setup.clock.monotonic() - started)
        if is_ledgered:
            await self._write_down(token, result)

    async def _invoke(self, place: int, tool: Tool, *, timer: CallTimer, token: UUID) -> ToolOutput:
        """Run the tool within its deadline. It runs in a separate task, so that the batch need not wait for its end."""
        setup, name = self._setup, self._view.names[place]
        shown = LiveResult(self._name(place), setup.publish)
        call = self._calls[place].call
        context = ToolContext(
            chat_id=setup.chat_id,
            call_id=call.tool_call_id,
            replay_token=token,
            clock=setup.clock,
            new_id=setup.new_id,
            publish=shown,
            timer=timer,
            cancellation=setup.cancellation,
            services=setup.services,
            batch=self._view,
            owner_id=setup.owner_id,
            turn_id=setup.turn_id,
            context_limit=setup.context_limit,
        )
        assert call.args is not UNSET
        arguments = tool_input.read_stored(call.args)
        task = asyncio.create_task(
            _awaited(tool, context, ToolCall(call.tool_call_id, name, arguments.args)), name=f"tool:{name}"
        )
        late: DeadlineExceeded | None = None
        try:
            async with timer.start():
                await asyncio.wait({task})
        except DeadlineExceeded as error:
            late = None if task.done() else error
        finally:
            shown.close()
            if not task.done():
                await self._stop(task, place)
        return self._read(task, place) if late is None else self._late(place, late.seconds)

    async def _stop(self, task: asyncio.Task[ToolOutput], place: int) -> None:
        """Cancel a tool and give it time to clean up. One that takes longer is left to the stragglers."""
        setup = self._setup
        task.cancel()
        try:
            async with setup.clock.deadline(setup.config.tool_cleanup_seconds, "tool-cleanup"):
                await asyncio.wait({task})
        except DeadlineExceeded:
            pass
        finally:
            if not task.done():
                log.warning("tool_abandoned", **self._fields(place))
                setup.stats.tool_abandoned(self._label(place))
                setup.stragglers.adopt(task)
            elif _has_failed(task) and (error := task.exception()) is not None:
                log.exception("tool_cleanup_failed", error, **self._fields(place))

    def _late(self, place: int, seconds: float) -> ToolOutput:
        log.warning("tool_deadline", **self._fields(place), seconds=seconds)
        return _failure(f"{self._view.names[place]} did not finish within {_for_people(seconds)} and was stopped.")

    def _read(self, task: asyncio.Task[ToolOutput], place: int) -> ToolOutput:
        """Return the output of a tool that has ended; an error becomes an output as well."""
        name, fields = self._view.names[place], self._fields(place)
        if task.cancelled():
            log.warning("tool_cancelled_itself", **fields)
            return _failure(_cancelled_error(name))
        error = task.exception()
        if error is not None:
            log.exception("tool_failed", error, **fields)
            return _failure(f"tool failed: {type(error).__name__}: {_text_of(error)}")
        return task.result()

    async def _shaped(self, place: int, output: ToolOutput) -> CallResult:
        shape = partial(
            tool_results.shape,
            self._name(place),
            output,
            at=self._setup.clock.now(),
            max_bytes=self._max_bytes,
            kept_in=self._kept_in.get(place, ""),
        )
        try:
            return await asyncio.to_thread(shape) if tool_results.needs_thread(output) else shape()
        except Exception as error:
            # Any failure here belongs to this call alone: the other calls have run.
            log.exception("tool_output_unusable", error, **self._fields(place))
            why = _text_of(error) if isinstance(error, UnusableOutput) else type(error).__name__
            return self._error(place, f"tool failed: its result cannot be used: {why}")

    # The ledger

    async def _look_up(self, place: int, token: UUID) -> CallResult | None:
        """Return the result of an earlier run of this call.

        None: this is the first run, and it is recorded as started.
        """
        setup, call = self._setup, self._calls[place].call
        run = await setup.ledger.begin(
            token,
            chat_id=setup.chat_id,
            message_id=self._calls[place].message_id,
            call_id=call.tool_call_id,
            tool_name=self._view.names[place],
        )
        if run.state is LedgerState.NEW:
            return None
        log.info("tool_replayed", **self._fields(place), state=run.state)
        found = _decoded(run.content) if run.state is LedgerState.FINISHED else None
        return found or self._error(place, OUTCOME_UNKNOWN)

    async def _write_down(self, token: UUID, result: CallResult) -> None:
        """Store the result, even when the batch is cancelled meanwhile: the tool has run."""
        setup = self._setup
        task = asyncio.create_task(self._keep(token, result), name="tool-ledger")
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            try:
                async with setup.clock.deadline(setup.config.tool_cleanup_seconds, "tool-ledger"):
                    await asyncio.wait({task})
            except DeadlineExceeded:
                setup.stragglers.adopt(task)
            raise
        finally:
            if _has_failed(task) and (error := task.exception()) is not None:
                # The result itself is in memory and will be committed; only a crash before that would lose it.
                log.exception("tool_result_not_kept", error, chat_id=setup.chat_id)

    async def _keep(self, token: UUID, result: CallResult) -> None:
        await self._setup.ledger.finish(token, parts.encode((result.result, *result.files)))

    # Results

    def _settle(self, place: int, result: CallResult, *, seconds: float) -> None:
        setup, part, label = self._setup, result.result, self._label(place)
        self._results[place] = result
        self._view.errors[part.tool_call_id] = result.is_error
        live_results.show(setup.publish, part)
        for file in result.files:
            live_results.show(setup.publish, file)
        size = 0 if isinstance(part.result, msgspec.UnsetType) else len(bytes(part.result))
        setup.stats.tool_finished(label, is_error=result.is_error, seconds=seconds, result_bytes=size)
        if result.is_truncated:
            self._tell_truncated(place)

    async def _capped(self) -> tuple[CallResult, ...]:
        """Return all results in call order, cut so that together they leave room for an answer."""
        config = self._setup.config
        allowed = tool_results.batch_budget_bytes(self._setup.context_limit, percent=config.batch_percent)
        ordered = [self._results[place] for place in range(len(self._calls))]
        await self._keep_whole(tool_results.find_overlong(ordered, allowed))
        if tool_results.is_capping_slow(ordered, allowed):
            capped = await asyncio.to_thread(tool_results.cap_batch, ordered, allowed, self._kept_in)
        else:
            capped = tool_results.cap_batch(ordered, allowed, self._kept_in)
        for place, (before, after) in enumerate(zip(ordered, capped, strict=True)):
            if after is not before:
                self._tell_truncated(place)
        return capped

    async def _keep_whole(self, places: Sequence[int]) -> None:
        """Store in full those results that are not cut yet and will be."""
        whole = [place for place in places if not self._results[place].is_truncated]
        await asyncio.gather(*(self._kept(place, _output_of(self._results[place])) for place in whole))

    async def _kept(self, place: int, output: ToolOutput) -> bool:
        """Return whether the full output of the call can be read somewhere."""
        pending = self._calls[place]
        path = await self._setup.keep_result(pending.call.tool_call_id, self._token(place), output)
        if path:
            self._kept_in[place] = path
        return bool(path)

    def _tell_truncated(self, place: int) -> None:
        log.info("tool_result_truncated", **self._fields(place))
        self._setup.stats.result_truncated(self._label(place))

    def _tell_progress(self) -> None:
        self._setup.on_progress(max((timer.due for timer in self._running.values()), default=None))

    def _error(self, place: int, text: str) -> CallResult:
        return tool_results.error_result(self._name(place), text, at=self._setup.clock.now(), max_bytes=self._max_bytes)

    def _tool(self, place: int) -> Tool:
        tool = self._setup.tools.find(self._view.names[place])
        assert tool is not None, "only admitted calls run"
        return tool

    def _token(self, place: int) -> UUID:
        pending = self._calls[place]
        return tool_calls.replay_token(self._setup.chat_id, pending.message_id, pending.call.tool_call_id)

    def _name(self, place: int) -> CallName:
        return step_rows.name_of(self._calls[place].call, self._setup.tools)

    def _label(self, place: int) -> str:
        return self._setup.tools.label(self._view.names[place])

    def _fields(self, place: int) -> dict[str, object]:
        call = self._calls[place].call
        return {"chat_id": self._setup.chat_id, "tool": self._view.names[place], "call_id": call.tool_call_id}


async def _awaited(tool: Tool, context: ToolContext, call: ToolCall) -> ToolOutput:
    """Wrap a tool in a coroutine, so that one that raises before its first await fails inside its task."""
    return await tool.run(context, call)


def _decoded(content: str | None) -> CallResult | None:
    try:
        found = parts.decode(content or "")
    except ContentError:
        return None
    if not found or not isinstance(found[0], ToolResult):
        return None
    return CallResult(result=found[0], files=tuple(part for part in found[1:] if isinstance(part, File)))


def _output_of(result: CallResult) -> ToolOutput:
    """Return the tool's output from a result that was not cut."""
    raw = result.result.result
    assert not isinstance(raw, msgspec.UnsetType)
    value = parts.json_value(raw)
    return ToolOutput(value if isinstance(value, dict) else bytes(raw), is_error=result.is_error)


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _cancelled_error(name: str) -> str:
    return f"{name} was cancelled before it finished. Call it again if its result is needed."


def _failure(text: str) -> ToolOutput:
    return ToolOutput(text, is_error=True)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(no text)"


def _exclusive_error(name: str, alone: str, *, is_exclusive: bool) -> str:
    if is_exclusive:
        return f"Not run: {name} only runs by itself. Call it again, alone, without other calls in the same answer."
    return f"Not run: {alone}, which only runs by itself, was called in the same answer. Call {name} again without it."


def _for_people(seconds: float) -> str:
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:.3g} s"
