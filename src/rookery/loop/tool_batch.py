"""The tool batch: checks the tool calls of one step, runs them concurrently, and returns one result for each.

A tool that raises, hangs, ignores its cancellation or returns invalid output gets an error result; the other calls are
not affected. Only a cancellation of the batch or a failure of the ledger ends the batch without results.
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

from rookery.domain.chat import open_tool_calls, parts
from rookery.domain.chat.approvals import DENIED_BY_RULE
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import ContentError, File, Part, ToolResult
from rookery.domain.chat.truncation import budget_bytes
from rookery.loop import step_rows, tool_input, tool_results
from rookery.loop.config import LoopConfig
from rookery.loop.tool import (
    BatchView,
    CallTimer,
    Cancellation,
    CancelReason,
    EarlierRun,
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
    WaitsForUser,
    keep_no_result,
    keep_no_state,
)
from rookery.loop.tool_results import CallName, CallResult, UnusableOutput
from rookery.runtime.clock import Clock, DeadlineExceeded
from rookery.runtime.nudge import Nudge
from rookery.telemetry.log import get_logger
from rookery.telemetry.tracing import names, spans

log = get_logger("loop.tool_batch")

# Limit of the output of a stopped call that its result keeps.
_MAX_SO_FAR = 16_384
# The reason in the result of a call that a user stopped while its turn went on.
_NUDGED = "nudged"

OUTCOME_UNKNOWN = (
    "This call was started before and its outcome is unknown: the server stopped while it ran. "
    "Check what it did before you repeat it."
)


class PendingCall(msgspec.Struct, frozen=True):
    """An open call, and the message that contains it."""

    message_id: int
    call: parts.ToolCall


class ToolStats(Protocol):
    """Receives the events of tool calls that the metrics count. `tool` is `ToolSpec.label`."""

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
    """The input of a batch besides its calls. `on_progress` receives the latest deadline of the running calls.

    `refused` maps the ids of calls that a rule has denied to the text of their error result. A nudge stops the running
    calls; the turn goes on with their results.
    """

    chat_id: ChatId
    tools: ToolSet
    publish: Publish
    clock: Clock
    ledger: Ledger
    unfinished_tools: UnfinishedTools
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
    keep_result: KeepResult = keep_no_result
    nudge: Nudge = field(default_factory=Nudge)


async def execute_batch(calls: Sequence[PendingCall], setup: BatchSetup) -> tuple[CallResult, ...]:
    """Run the calls. Return one result for each, in their order, to be committed together.

    Calls that wait for the user have no result; they stay open.

    Results are published live as they arrive. A cancellation cancels the tools and waits a bounded time for their end.
    """
    return await _Batch(calls, setup).run()


class _Waiting:
    """Replaces the output of a call that waits for the user."""


class _Batch:
    def __init__(self, calls: Sequence[PendingCall], setup: BatchSetup) -> None:
        self._calls = calls
        self._setup = setup
        self._max_bytes = budget_bytes(setup.context_limit)
        self._results: dict[int, CallResult] = {}
        self._kept_in: dict[int, str] = {}
        self._running: dict[int, CallTimer] = {}
        self._waiting: set[int] = set()
        self._view = BatchView(
            tuple(setup.tools.canonical(each.call.tool_name) for each in calls),
            {},
            tuple(each.call.tool_call_id for each in calls),
        )

    async def run(self) -> tuple[CallResult, ...]:
        runnable = self._admit()
        serial = [index for index in runnable if self._tool(index).spec.serial]
        await self._run_all([index for index in runnable if index not in serial])
        for index in serial:
            await self._run_all([index])
        return await self._capped()

    # Checks

    def _admit(self) -> list[int]:
        """Record an error result for each call that cannot run. Return the indices of the other calls."""
        setup = self._setup
        if step_rows.is_exclusive_violation(self._view.names, setup.tools):
            alone = next(name for name in self._view.names if setup.tools.is_exclusive(name))
            for index, name in enumerate(self._view.names):
                self._reject(index, _exclusive_error(name, alone, is_exclusive=setup.tools.is_exclusive(name)))
            return []
        runnable: list[int] = []
        for index, pending in enumerate(self._calls):
            call = pending.call
            if (denial := setup.refused.get(call.tool_call_id)) is not None:
                self._deny(index, denial)
                continue
            problem = setup.tools.find_problem(call.tool_name) or step_rows.find_problem(call, setup.tools)
            if problem is None:
                runnable.append(index)
            else:
                self._reject(index, problem)
        return runnable

    def _reject(self, index: int, problem: str) -> None:
        self._record_result(index, self._error(index, problem), seconds=0.0)

    def _deny(self, index: int, text: str) -> None:
        """Record the result of a call that a rule denies. Its reason tells clients that nothing has failed."""
        output = ToolOutput({"error": text, "reason": DENIED_BY_RULE}, is_error=True)
        at = self._setup.clock.now()
        result = tool_results.shape(self._name(index), output, at=at, max_bytes=self._max_bytes)
        self._record_result(index, result, seconds=0.0)

    # Execution

    async def _run_all(self, indices: Collection[int]) -> None:
        if not indices:
            return
        gate = asyncio.Semaphore(self._setup.config.tool_batch_concurrency)
        tasks = [asyncio.create_task(self._run_gated(index, gate), name=f"call:{index}") for index in indices]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            await self._cancel_all(tasks)
            raise
        failed = next((task for task in tasks if _has_failed(task)), None)
        if failed is not None:
            await self._cancel_all(tasks)
            failed.result()
        for index in indices:
            if index not in self._results and index not in self._waiting:
                # A library cancelled the call. The owner of this batch did not.
                self._reject(index, _cancelled_error(self._view.names[index]))

    async def _cancel_all(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """Cancel the running calls and wait until they end. Each call limits the time of its cleanup."""
        running = {task for task in tasks if not task.done()}
        for task in running:
            task.cancel()
        try:
            if running:
                await asyncio.wait(running)
        finally:
            for task in tasks:
                if not task.done():
                    self._setup.unfinished_tools.adopt(task)
                elif _has_failed(task) and (error := task.exception()) is not None:
                    log.exception("batch_failed", error, chat_id=self._setup.chat_id)

    async def _run_gated(self, index: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            with self._span(index) as span:
                await self._run_call(index)
                if index in self._waiting:
                    return
                result = self._results[index]
                span.set({names.RESULT_BYTES: _size(result)})
                if result.is_error:
                    span.fail("tool_error")

    def _span(self, index: int) -> spans.Active:
        label = self._label(index)
        attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: label,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: self._calls[index].call.tool_call_id,
        }
        return spans.span(f"{names.EXECUTE_TOOL} {label}", attributes=attributes)

    async def _run_call(self, index: int) -> None:
        setup = self._setup
        tool = self._tool(index)
        token = self._token(index)
        is_ledgered = tool.spec.replay in (Replay.LEDGER, Replay.RESUME)
        earlier: EarlierRun | None = None
        if is_ledgered:
            known = await self._find_ledger_run(index, token)
            if isinstance(known, CallResult):
                self._record_result(index, known, seconds=0.0)
                return
            earlier = known
        seconds = tool.spec.deadline_seconds or setup.config.tool_default_deadline_seconds
        timer = CallTimer(
            setup.clock,
            seconds=seconds,
            max_seconds=setup.config.tool_max_deadline_seconds,
            on_change=self._report_progress,
        )
        started = setup.clock.monotonic()
        self._running[index] = timer
        self._report_progress()
        try:
            output = await self._invoke(index, tool, timer=timer, token=token, earlier=earlier)
            if isinstance(output, _Waiting):
                self._waiting.add(index)
                return
            result = await self._shaped(index, output)
            if result.is_truncated and await self._store_full(index, output):
                result = await self._shaped(index, output)
        finally:
            del self._running[index]
            self._report_progress()
        self._record_result(index, result, seconds=setup.clock.monotonic() - started)
        if is_ledgered:
            await self._finish_ledger_run(token, result)

    async def _invoke(
        self, index: int, tool: Tool, *, timer: CallTimer, token: UUID, earlier: EarlierRun | None
    ) -> ToolOutput | _Waiting:
        """Run the tool within its deadline, in a separate task. The batch can end while this task still runs."""
        setup, name = self._setup, self._view.names[index]
        shown = _LiveResult(self._name(index), setup.publish)
        cancellation = _CallCancellation(setup.cancellation)
        call = self._calls[index].call
        context = ToolContext(
            chat_id=setup.chat_id,
            call_id=call.tool_call_id,
            replay_token=token,
            clock=setup.clock,
            new_id=setup.new_id,
            publish=shown,
            timer=timer,
            cancellation=cancellation,
            services=setup.services,
            batch=self._view,
            owner_id=setup.owner_id,
            turn_id=setup.turn_id,
            context_limit=setup.context_limit,
            earlier=earlier,
            keep_state=partial(setup.ledger.keep, token) if tool.spec.replay is Replay.RESUME else keep_no_state,
        )
        assert call.args is not UNSET
        arguments = tool_input.read_stored(call.args)
        task = asyncio.create_task(
            _run_tool(tool, context, ToolCall(call.tool_call_id, name, arguments.args)), name=f"tool:{name}"
        )
        late: DeadlineExceeded | None = None
        began = setup.clock.monotonic()

        def stop() -> None:
            if not task.done():
                cancellation.is_nudged = True
                task.cancel()

        try:
            async with timer.start():
                with setup.nudge.heard_by(stop):
                    await asyncio.wait({task})
        except DeadlineExceeded as error:
            late = None if task.done() else error
        finally:
            shown.close()
            if not task.done():
                await self._stop(task, index)
                if setup.cancellation.reason is CancelReason.USER and _has_output(task):
                    # The batch ends without results. The interrupt task saves those that were published.
                    seconds = setup.clock.monotonic() - began
                    self._record_result(index, await self._shaped(index, task.result()), seconds=seconds)
        if late is not None:
            return self._deadline_output(index, late.seconds)
        if cancellation.is_nudged and task.cancelled():
            return _nudged(_failure(_nudged_text(name, setup.clock.monotonic() - began, shown.text)))
        output = self._read(task, index)
        if cancellation.is_nudged and isinstance(output, ToolOutput) and output.is_error:
            return _nudged(output)
        return output

    async def _stop(self, task: asyncio.Task[ToolOutput], index: int) -> None:
        """Cancel a tool and wait for its cleanup. If it takes too long, `UnfinishedTools` takes over its task."""
        setup = self._setup
        task.cancel()
        try:
            async with setup.clock.deadline(setup.config.tool_cleanup_seconds, "tool-cleanup"):
                await asyncio.wait({task})
        except DeadlineExceeded:
            pass
        finally:
            if not task.done():
                log.warning("tool_abandoned", **self._fields(index))
                setup.stats.tool_abandoned(self._label(index))
                setup.unfinished_tools.adopt(task)
            elif _has_failed(task) and (error := task.exception()) is not None:
                log.exception("tool_cleanup_failed", error, **self._fields(index))

    def _deadline_output(self, index: int, seconds: float) -> ToolOutput:
        log.warning("tool_deadline", **self._fields(index), seconds=seconds)
        return _failure(f"{self._view.names[index]} did not finish within {_format_duration(seconds)} and was stopped.")

    def _read(self, task: asyncio.Task[ToolOutput], index: int) -> ToolOutput | _Waiting:
        """Return the output of a tool that has ended; an error output if it raised."""
        name, fields = self._view.names[index], self._fields(index)
        if task.cancelled():
            log.warning("tool_cancelled_itself", **fields)
            return _failure(_cancelled_error(name))
        error = task.exception()
        if isinstance(error, WaitsForUser):
            log.info("tool_waits_for_user", **fields)
            return _Waiting()
        if error is not None:
            log.exception("tool_failed", error, **fields)
            return _failure(f"tool failed: {type(error).__name__}: {_text_of(error)}")
        return task.result()

    async def _shaped(self, index: int, output: ToolOutput) -> CallResult:
        shape = partial(
            tool_results.shape,
            self._name(index),
            output,
            at=self._setup.clock.now(),
            max_bytes=self._max_bytes,
            kept_in=self._kept_in.get(index, ""),
        )
        try:
            return await asyncio.to_thread(shape) if tool_results.needs_thread(output) else shape()
        except Exception as error:
            # A failure to convert this output must not fail the other calls.
            log.exception("tool_output_unusable", error, **self._fields(index))
            why = _text_of(error) if isinstance(error, UnusableOutput) else type(error).__name__
            return self._error(index, f"tool failed: its result cannot be used: {why}")

    # The ledger

    async def _find_ledger_run(self, index: int, token: UUID) -> CallResult | EarlierRun | None:
        """Return the result of an earlier run of this call, or what it has kept for this run; None if there was none.

        Record the start of this run.
        """
        setup, call = self._setup, self._calls[index].call
        run = await setup.ledger.begin(
            token,
            chat_id=setup.chat_id,
            message_id=self._calls[index].message_id,
            call_id=call.tool_call_id,
            tool_name=self._view.names[index],
        )
        if run.state is LedgerState.NEW:
            return None
        log.info("tool_replayed", **self._fields(index), state=run.state)
        found = _decoded(run.content) if run.state is LedgerState.FINISHED else None
        if run.state is LedgerState.UNFINISHED and self._tool(index).spec.replay is Replay.RESUME:
            return run.earlier
        return found or self._error(index, OUTCOME_UNKNOWN)

    async def _finish_ledger_run(self, token: UUID, result: CallResult) -> None:
        """Store the result in the ledger, even if the batch is cancelled meanwhile."""
        setup = self._setup
        task = asyncio.create_task(self._write_ledger(token, result), name="tool-ledger")
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            try:
                async with setup.clock.deadline(setup.config.tool_cleanup_seconds, "tool-ledger"):
                    await asyncio.wait({task})
            except DeadlineExceeded:
                setup.unfinished_tools.adopt(task)
            raise
        finally:
            if _has_failed(task) and (error := task.exception()) is not None:
                # The result is lost only if the process crashes before the batch is committed.
                log.exception("tool_result_not_kept", error, chat_id=setup.chat_id)

    async def _write_ledger(self, token: UUID, result: CallResult) -> None:
        await self._setup.ledger.finish(token, parts.encode((result.result, *result.files)))

    # Results

    def _record_result(self, index: int, result: CallResult, *, seconds: float) -> None:
        setup, part, label = self._setup, result.result, self._label(index)
        self._results[index] = result
        self._view.errors[part.tool_call_id] = result.is_error
        _show(setup.publish, part)
        for file in result.files:
            _show(setup.publish, file)
        setup.stats.tool_finished(label, is_error=result.is_error, seconds=seconds, result_bytes=_size(result))
        if result.is_truncated:
            self._report_truncated(index)

    async def _capped(self) -> tuple[CallResult, ...]:
        """Return all results in call order. Cut them so that together they leave room for an answer."""
        config = self._setup.config
        allowed = tool_results.batch_budget_bytes(self._setup.context_limit, percent=config.batch_percent)
        indices = [index for index in range(len(self._calls)) if index not in self._waiting]
        ordered = [self._results[index] for index in indices]
        await self._store_overlong([indices[place] for place in tool_results.find_overlong(ordered, allowed)])
        kept_in = {place: self._kept_in[index] for place, index in enumerate(indices) if index in self._kept_in}
        if tool_results.is_capping_slow(ordered, allowed):
            capped = await asyncio.to_thread(tool_results.cap_batch, ordered, allowed, kept_in)
        else:
            capped = tool_results.cap_batch(ordered, allowed, kept_in)
        for index, before, after in zip(indices, ordered, capped, strict=True):
            if after is not before:
                self._report_truncated(index)
        return capped

    async def _store_overlong(self, indices: Sequence[int]) -> None:
        """Store the full text of the results that will be cut now."""
        whole = [index for index in indices if not self._results[index].is_truncated]
        await asyncio.gather(*(self._store_full(index, _output_of(self._results[index])) for index in whole))

    async def _store_full(self, index: int, output: ToolOutput) -> bool:
        """Store the full output of the call. Return whether it was stored."""
        pending = self._calls[index]
        path = await self._setup.keep_result(pending.call.tool_call_id, self._token(index), output)
        if path:
            self._kept_in[index] = path
        return bool(path)

    def _report_truncated(self, index: int) -> None:
        log.info("tool_result_truncated", **self._fields(index))
        self._setup.stats.result_truncated(self._label(index))

    def _report_progress(self) -> None:
        self._setup.on_progress(max((timer.due for timer in self._running.values()), default=None))

    def _error(self, index: int, text: str) -> CallResult:
        return tool_results.error_result(self._name(index), text, at=self._setup.clock.now(), max_bytes=self._max_bytes)

    def _tool(self, index: int) -> Tool:
        tool = self._setup.tools.find(self._view.names[index])
        assert tool is not None, "only admitted calls run"
        return tool

    def _token(self, index: int) -> UUID:
        pending = self._calls[index]
        return open_tool_calls.replay_token(self._setup.chat_id, pending.message_id, pending.call.tool_call_id)

    def _name(self, index: int) -> CallName:
        return step_rows.name_of(self._calls[index].call, self._setup.tools)

    def _label(self, index: int) -> str:
        return self._setup.tools.label(self._view.names[index])

    def _fields(self, index: int) -> dict[str, object]:
        call = self._calls[index].call
        return {"chat_id": self._setup.chat_id, "tool": self._view.names[index], "call_id": call.tool_call_id}


async def _run_tool(tool: Tool, context: ToolContext, call: ToolCall) -> ToolOutput:
    """Call the tool inside the task, so that an error before its first await fails only the task."""
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
    """Return the tool's output, restored from a result that was not cut."""
    raw = result.result.result
    assert not isinstance(raw, msgspec.UnsetType)
    value = parts.json_value(raw)
    return ToolOutput(value if isinstance(value, dict) else bytes(raw), is_error=result.is_error)


def _size(result: CallResult) -> int:
    raw = result.result.result
    return 0 if isinstance(raw, msgspec.UnsetType) else len(bytes(raw))


def _has_output(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


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


def _format_duration(seconds: float) -> str:
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:.3g} s"


class _CallCancellation(Cancellation):
    """The reason why one call is cancelled: that of the batch, or `user` if the user stopped the call."""

    __slots__ = ("_batch", "is_nudged")

    def __init__(self, batch: Cancellation) -> None:
        self._batch = batch
        self.is_nudged = False

    @property
    def reason(self) -> CancelReason | None:
        return CancelReason.USER if self.is_nudged else self._batch.reason

    @reason.setter
    def reason(self, reason: CancelReason | None) -> None:
        raise AssertionError("the owner of the batch sets the reason")


def _nudged(output: ToolOutput) -> ToolOutput:
    """Return the output with a reason for the model: only this call was stopped, and not its turn."""
    value = output.value if isinstance(output.value, Mapping) else {"error": output.value}
    return msgspec.structs.replace(output, value={**value, "reason": _NUDGED})


def _nudged_text(name: str, seconds: float, so_far: str) -> str:
    so_far = tool_results.clean_text(so_far).strip()
    said = f" Output so far:\n{so_far}" if so_far else ""
    return (
        f"{name} was stopped by the user after {_format_duration(round(seconds))}, because it took too long. Try it "
        f"again, differently if that helps, and tell the user if it cannot work.{said}"
    )


class _LiveResult:
    """Publishes the output of a running call. Ignores output that arrives after the call has ended."""

    __slots__ = ("_is_open", "_name", "_publish", "text")

    def __init__(self, name: CallName, publish: Publish) -> None:
        self._name = name
        self._publish = publish
        self._is_open = True
        # The end of the output so far.
        self.text = ""

    def __call__(self, text: str, *, reset: bool = False) -> None:
        if self._is_open:
            self.text = (text if reset else self.text + text)[-_MAX_SO_FAR:]
            delta = ToolResult(
                self._name.call_id,
                self._name.tool_name,
                result_delta=tool_results.clean_text(text),
                result_reset=reset,
                mcp_server_id=self._name.server_id,
            )
            _show(self._publish, delta)

    def close(self) -> None:
        self._is_open = False


def _show(publish: Publish, part: Part) -> None:
    """Publish a live part. Errors are only logged, because they must not fail the call."""
    try:
        publish(Role.TOOL, part)
    except Exception as error:
        log.exception("live_part_lost", error)


class UnfinishedTools:
    """The tasks of tools that did not end after their cancellation. One per process.

    Such a task uses memory, but does not block the chat that called the tool.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def adopt(self, task: asyncio.Task[object]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def close(self, clock: Clock, seconds: float) -> None:
        """Cancel all tasks once more, and wait at most this long for their end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            try:
                async with clock.deadline(seconds, "unfinished-tools"):
                    await asyncio.wait(self._tasks)
            except DeadlineExceeded:
                log.warning("unfinished_tools_left", tasks=sorted(task.get_name() for task in self._tasks))

    def _on_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        log.info("unfinished_tool_ended", task=task.get_name(), error=None if error is None else type(error).__name__)
