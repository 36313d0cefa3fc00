"""The process tools: execute, process_output, process_list, process_signal. The workspace agent runs the processes.

The call's replay token is the idempotency key of the start request. A call that runs again after a crash attaches to
the command that is already running, and its timeout counts from the start of that command. A foreground command is
terminated only when the user interrupts the turn; its output so far is the result. After any other cancellation it
keeps running for the next run of the call.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import uuid5

import msgspec
from msgspec import Meta

from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.loop.tool import CancelReason, Replay, Tool, ToolContext, ToolOutput
from rookery.telemetry.log import get_logger
from rookery.tools import process_arguments
from rookery.tools.process_arguments import BadDuration
from rookery.tools.step_workspace import Refused, StepContext, ask_agent, make_tool, step_of, with_warning
from rookery.workspaces.agent_client import MAX_WAIT_SECONDS, AgentConn, StartedProcess
from rookery.workspaces.agent_messages import Output, ProcessInfo, StartProcess
from rookery.workspaces.connection import ChatWorkspace
from rookery.workspaces.errors import AgentError, AgentUnreachable, NoConnection, WorkspaceError

log = get_logger("tools.process")

# Time for requests to the agent, in addition to the timeout of the call.
SLACK_SECONDS = 120.0
# Time limit of the last request for a command whose connection broke.
SNAPSHOT_SECONDS = 30.0
# How long a command may take to end after the user has stopped it, and then to be killed. The interrupt task waits a
# little longer for the result.
TERMINATE_SECONDS = 2.0
KILL_SECONDS = 1.0
MAX_TIMEOUT_SECONDS = 3600.0
MAX_UNTIL = 500
# If a command ends within this time, its output is not shown live. Most commands end sooner, and polling has a cost.
LIVE_FIRST_SECONDS = 0.15
# Minimum interval between two polls of the output.
LIVE_PACE_SECONDS = 0.1
LIVE_WAIT_SECONDS = 30.0
# Limit of the live output of one command. Further output appears in the result only.
LIVE_MAX_BYTES = 256 * 1024
UNTIL_SINCE_API = 2
OUTCOME_UNKNOWN = (
    "The workspace was restarted while this command ran, so its outcome is unknown. Check what it did before you "
    "repeat it."
)
NOT_PROTECTED = (
    "This workspace cannot protect its files from commands, so this one could have changed some. Only look on this "
    "turn; do not change anything."
)
NO_READ_ONLY = (
    "This workspace cannot protect its files from commands, and the chat is read only, so commands cannot run. Use "
    "read_file, or tell the user."
)

Intent = Annotated[str, Meta(description="A few words for the user: what this is for.")]
Timeout = str | float


class Execute(msgspec.Struct):
    command: Annotated[str, Meta(description="Shell text for sh -c. It gets no input.")]
    timeout: Annotated[
        str, Meta(description="How long to wait for it, such as 30s, 5m or 1h30m. After that it goes on by itself.")
    ] = "10s"
    workdir: Annotated[str, Meta(description="Where to run it; by default the project's directory.")] | None = None
    run_in_background: Annotated[bool, Meta(description="Do not wait; for servers and watchers.")] = False
    model_intent: Intent | None = None


class ProcessOutput(msgspec.Struct):
    process_id: str
    wait_timeout: Annotated[str, Meta(description="How long to wait for its end; 0s for a look.")] = "10s"
    cursor: (
        Annotated[int, Meta(description="Get only what was printed after the `cursor` of an earlier result.")] | None
    ) = None
    until: (
        Annotated[
            str,
            Meta(description="Wait only until a line matches this regular expression, such as `ready in|listening`."),
        ]
        | None
    ) = None
    model_intent: Intent | None = None


class ProcessList(msgspec.Struct):
    pass


class ProcessSignal(msgspec.Struct):
    process_id: str
    signal: Annotated[Literal["terminate", "kill"], Meta(description="terminate asks, kill does not.")]


def tools() -> list[Tool]:
    return [
        make_tool(
            "execute",
            "Run a command in the workspace and get its output and exit code. Every call is a shell of its own. Raise "
            "the timeout for builds and tests; a command that takes longer goes on, and process_output has the rest. "
            "Use run_in_background for what does not end, such as servers.",
            arguments=Execute,
            handler=execute,
            amend=_with_text_timeout,
            needs_workspace=True,
            replay=Replay.TOKEN,
            shell_argument="command",
        ),
        make_tool(
            "process_output",
            "Get the output of a command that goes on in the background, after waiting for its end for a while. With "
            "cursor only what is new, as soon as there is something; with until as soon as a line matches.",
            arguments=ProcessOutput,
            handler=process_output,
            amend=_with_text_timeout,
            needs_workspace=True,
            read_only=True,
        ),
        make_tool(
            "process_list",
            "List the commands of this chat: those that run, then the newest.",
            arguments=ProcessList,
            handler=process_list,
            needs_workspace=True,
            read_only=True,
        ),
        make_tool(
            "process_signal",
            "End a running command and everything it has started.",
            arguments=ProcessSignal,
            handler=process_signal,
            needs_workspace=True,
        ),
    ]


def _with_text_timeout(given: Any) -> Any:
    """Accept timeouts that are numbers of seconds instead of text."""
    if not isinstance(given, dict):
        return given
    return {
        key: f"{value:f}" if key in ("timeout", "wait_timeout") and _is_number(value) else value
        for key, value in given.items()
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# execute


async def execute(ctx: ToolContext, given: Execute) -> ToolOutput:
    step = step_of(ctx)
    command, has_ampersand = process_arguments.split_background(given.command)
    if not command.strip():
        raise Refused("The command is empty.")
    seconds, notes = _timeout(given.timeout, "timeout")
    is_background = given.run_in_background or has_ampersand
    ctx.set_deadline(seconds + SLACK_SECONDS)
    started, protection = await _start(ctx, step, given, command=command, is_background=is_background)
    notes.extend(protection)
    if (note := process_arguments.hint_for(command)) is not None:
        notes.append(note)
    if is_background:
        return ToolOutput(
            _with_notes({"success": True, "backgrounded": True, "background_process_id": started.id}, notes)
        )
    began = ctx.clock.monotonic()
    try:
        value = await _follow(ctx, step, started, seconds=seconds)
    except asyncio.CancelledError:
        if ctx.cancel_reason is not CancelReason.USER:
            raise
        elapsed = ctx.clock.monotonic() - began
        if (output := await _terminate(ctx, step, started.id)) is None:
            raise
        return ToolOutput(_stopped(output, elapsed, is_child=step.is_child), is_error=True)
    return ToolOutput(with_warning(step.workspace, _with_notes(value, notes)))


def _timeout(text: str, field: str, *, may_be_zero: bool = False) -> tuple[float, list[str]]:
    try:
        seconds = process_arguments.parse_duration(text, field=field, may_be_zero=may_be_zero)
    except BadDuration as error:
        raise Refused(str(error)) from error
    clamped = min(seconds, MAX_TIMEOUT_SECONDS)
    return clamped, [] if clamped == seconds else [
        f"The {field} was cut to {process_arguments.format_duration(clamped)}, the maximum."
    ]


async def _start(
    ctx: ToolContext, step: StepContext, given: Execute, *, command: str, is_background: bool
) -> tuple[StartedProcess, list[str]]:
    """Start the command of this call. Return its process, and notes for the model."""
    request = StartProcess(
        command=command,
        workdir=(given.workdir or "").strip() or None,
        env=process_arguments.environment(step.chat_id),
        background=is_background,
        read_only=step.is_read_only,
    )
    try:
        return await _start_process(ctx, step, request, is_background=is_background), []
    except AgentError as error:
        if error.status == 410:
            raise Refused(OUTCOME_UNKNOWN) from error
        if not (request.read_only and error.code == "read_only_unavailable"):
            raise Refused(_cannot_start(error)) from error
        if step.is_strict:
            raise Refused(NO_READ_ONLY) from error
    writable = msgspec.structs.replace(request, read_only=False)
    # The agent refuses the same key for a different request.
    try:
        started = await _start_process(ctx, step, writable, is_background=is_background, suffix="writable")
    except AgentError as error:
        raise Refused(OUTCOME_UNKNOWN if error.status == 410 else _cannot_start(error)) from error
    return started, [NOT_PROTECTED]


async def _start_process(
    ctx: ToolContext, step: StepContext, request: StartProcess, *, is_background: bool, suffix: str = ""
) -> StartedProcess:
    """Start the process. If the user interrupts meanwhile, wait for the response and terminate the process."""
    key = uuid5(ctx.replay_token, suffix) if suffix else ctx.replay_token
    starting = asyncio.create_task(
        ask_agent(
            step.workspace,
            lambda conn: conn.start_process(request, key=key, result_name=process_arguments.result_name(ctx.call_id)),
        ),
        name="process-start",
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        if ctx.cancel_reason is not CancelReason.USER or is_background:
            starting.cancel()
            await asyncio.wait({starting})
        else:
            await asyncio.wait({starting}, timeout=TERMINATE_SECONDS)
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                await _terminate(ctx, step, starting.result().id)
        raise


def _cannot_start(error: AgentError) -> str:
    message = f"The command could not be started: {error.message}"
    if "sh" in error.message and "not found" in error.message.lower():
        message += " The workspace has no shell; its template has to provide one."
    return message


async def _follow(ctx: ToolContext, step: StepContext, started: StartedProcess, *, seconds: float) -> dict[str, Any]:
    """Wait until a foreground command ends or its time is over. Publish its output meanwhile."""
    began = ctx.clock.monotonic()
    deadline = began + seconds
    if started.is_replay:
        first = await _snapshot(step, started.id)
        if not first.running:
            return _finished(first, ctx.clock.monotonic() - began)
        deadline -= min(_age(first, ctx.clock.now()), seconds)
    tail = LiveOutput(ctx, step.workspace, started.id)
    try:
        while True:
            left = deadline - ctx.clock.monotonic()
            wait = min(max(left, 0.0), MAX_WAIT_SECONDS)
            output = await _wait_for_output(step, started.id, wait)
            if output is None:
                return await _after_disconnect(ctx, step, started.id, ctx.clock.monotonic() - began)
            if not output.running:
                return _finished(output, ctx.clock.monotonic() - began)
            if ctx.clock.monotonic() >= deadline:
                return _timed_out(output, started.id, seconds)
    finally:
        await tail.stop()


class LiveOutput:
    """Publishes the output of a process live, from construction until `stop` or the end of the process."""

    def __init__(self, ctx: ToolContext, workspace: ChatWorkspace, process_id: str) -> None:
        self._ctx = ctx
        self._workspace = workspace
        self._process_id = process_id
        self._task = asyncio.create_task(self._run(), name="live-output")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._ctx.clock.sleep(LIVE_FIRST_SECONDS, "live-output")
            await self._show()
        except Exception as error:
            # Live output is a preview. The result contains all of it.
            log.info("live_output_ended", chat_id=self._ctx.chat_id, error=str(error) or type(error).__name__)

    async def _show(self) -> None:
        cursor = shown = 0
        while shown < LIVE_MAX_BYTES:
            conn = await self._workspace.conn()
            output = await conn.process_output(self._process_id, wait=LIVE_WAIT_SECONDS, since=cursor)
            if output.output:
                self._ctx.publish(output.output)
                shown += len(output.output)
            cursor = output.cursor
            if not output.running:
                return
            await self._ctx.clock.sleep(LIVE_PACE_SECONDS, "live-output")


async def _wait_for_output(step: StepContext, process_id: str, wait: float) -> Output | None:
    """Return the output at the end of the process or of the wait; None if the agent could not be reached."""
    try:
        conn = await step.workspace.conn()
    except NoConnection:
        return None
    try:
        return await conn.process_output(process_id, wait=wait)
    except AgentUnreachable:
        step.workspace.forget(conn)
        return None
    except AgentError as error:
        if error.status in (401, 410) or error.code == "generation":
            step.workspace.forget(conn)
            return None
        raise


async def _snapshot(step: StepContext, process_id: str) -> Output:
    return await ask_agent(step.workspace, lambda conn: conn.process_output(process_id))


async def _after_disconnect(ctx: ToolContext, step: StepContext, process_id: str, elapsed: float) -> dict[str, Any]:
    """Ask once more for the state of a command whose connection broke."""
    try:
        async with ctx.clock.deadline(SNAPSHOT_SECONDS, "process-snapshot"):
            output = await _snapshot(step, process_id)
    except AgentError as error:
        raise Refused(OUTCOME_UNKNOWN if error.status in (404, 410) else error.message) from error
    except Exception as error:
        raise Refused(
            f"The connection to the workspace broke while the command ran. It may still run as process {process_id}: "
            f"use process_output to check. ({error})"
        ) from error
    if not output.running:
        return _finished(output, elapsed)
    value = _output_fields(output)
    return {
        "success": False,
        "exit_code": -1,
        **value,
        "error": "the connection broke while the command ran; it goes on",
        "background_process_id": process_id,
    }


def _finished(output: Output, elapsed: float) -> dict[str, Any]:
    code = _exit_code(output)
    if output.started_at is not None and output.exited_at is not None:
        elapsed = max(output.exited_at - output.started_at, 0.0)
    return {
        "success": code == 0,
        **_output_fields(output),
        "exit_code": code,
        "wall_duration_ms": round(elapsed * 1000),
    }


def _timed_out(output: Output, process_id: str, seconds: float) -> dict[str, Any]:
    return {
        "success": False,
        "exit_code": -1,
        **_output_fields(output),
        "error": f"timed out after {process_arguments.format_duration(seconds)}",
        "background_process_id": process_id,
        "cursor": output.cursor,
    }


def _output_fields(output: Output) -> dict[str, Any]:
    view = process_arguments.view(output.output, output.truncated, file=output.file)
    value: dict[str, Any] = {}
    if view.text:
        value["output"] = view.text
    if view.truncated is not None:
        value["truncated"] = msgspec.to_builtins(view.truncated) | ({"file": output.file} if output.file else {})
    return value


def _exit_code(output: Output) -> int:
    if output.exit_code is not None:
        return output.exit_code
    return 128 + output.signal if output.signal else -1


def _age(output: Output, now: datetime) -> float:
    return 0.0 if output.started_at is None else max(now.timestamp() - output.started_at, 0.0)


def _with_notes(value: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    return {**value, "note": " ".join(notes)} if notes else value


async def _terminate(ctx: ToolContext, step: StepContext, process_id: str) -> Output | None:
    """Terminate a command that the user has stopped; kill it if it does not end in time.

    Return its output, or None if the agent could not be reached.
    """
    try:
        conn = await step.workspace.conn()
        await _signal(conn, process_id, "terminate")
        output = await conn.process_output(process_id, wait=TERMINATE_SECONDS)
        if output.running:
            await _signal(conn, process_id, "kill")
            output = await conn.process_output(process_id, wait=KILL_SECONDS)
    except WorkspaceError:
        return None
    return output


async def _signal(conn: AgentConn, process_id: str, signal: str) -> None:
    try:
        await conn.signal_process(process_id, signal, seconds=TERMINATE_SECONDS)
    except AgentError as error:
        # The process has just ended by itself; its output is kept.
        log.info("process_not_signalled", signal=signal, error=str(error))


def _stopped(output: Output, elapsed: float, *, is_child: bool) -> dict[str, Any]:
    """Return the result of a command that was stopped. `reason` is that of closures, so that clients show it as one."""
    if output.started_at is not None and output.exited_at is not None:
        elapsed = max(output.exited_at - output.started_at, 0.0)
    fields = _output_fields(output)
    who = "" if is_child else " by the user"
    so_far = "Its output so far is in `output`." if "output" in fields else "It had printed nothing."
    return {
        "success": False,
        "error": f"Stopped{who} after {_seconds(elapsed)}. {so_far}",
        "reason": str(CloseReason.INTERRUPTED),
        **fields,
        "wall_duration_ms": round(elapsed * 1000),
    }


def _seconds(seconds: float) -> str:
    """Return a duration for users: 0.4 s, 43 s, 2 min 5 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes else f"{left} s"


# The other tools


async def process_output(ctx: ToolContext, given: ProcessOutput) -> ToolOutput:
    step = step_of(ctx)
    process_id = _process_id(given.process_id)
    seconds, notes = _timeout(given.wait_timeout, "wait_timeout", may_be_zero=True)
    until = await _checked_until(step, given.until)
    since = None if given.cursor is None else max(given.cursor, 0)
    ctx.set_deadline(seconds + SLACK_SECONDS)
    deadline = ctx.clock.monotonic() + seconds
    while True:
        wait = min(max(deadline - ctx.clock.monotonic(), 0.0), MAX_WAIT_SECONDS)
        output = await _ask_for_output(step, process_id, wait=wait, since=since, until=until)
        is_found = output.matched or (until is None and since is not None and bool(output.output))
        if is_found or not output.running or ctx.clock.monotonic() >= deadline:
            break
    value: dict[str, Any] = {"success": True, **_output_fields(output), "command": output.command}
    value["cursor"] = output.cursor
    if until is not None:
        value["matched"] = output.matched
        if output.match is not None:
            value["match"] = output.match
        elif output.match_slow:
            notes.append("The expression in `until` takes too long to match. Use a simpler one.")
    if since is not None and output.gap:
        value["gap_bytes"] = int(output.gap)
        notes.append(f"Earlier output is in {output.file}." if output.file else "Earlier output is lost.")
    if output.running:
        value["running"] = True
        notes.append("It is still running. Call process_output again for the rest, or end it with process_signal.")
    else:
        value["exit_code"] = _exit_code(output)
        value["success"] = value["exit_code"] == 0
    return ToolOutput(_with_notes(value, notes))


async def _checked_until(step: StepContext, until: str | None) -> str | None:
    """Return the expression, or None without one. Raise `Refused` if it is too long or the agent too old."""
    if until is None or not until.strip():
        return None
    if len(until) > MAX_UNTIL:
        raise Refused(f"The expression in `until` is longer than {MAX_UNTIL} characters. Use a shorter one.")
    _, health = await step.workspace.dial()
    if health.api < UNTIL_SINCE_API:
        raise Refused(
            "The agent of this workspace is too old for `until`. Leave it out, or restart the workspace with "
            "stop_workspace and start_workspace to update its agent."
        )
    return until


async def _ask_for_output(
    step: StepContext, process_id: str, *, wait: float, since: int | None, until: str | None
) -> Output:
    try:
        return await ask_agent(
            step.workspace, lambda conn: conn.process_output(process_id, wait=wait, since=since, until=until)
        )
    except AgentError as error:
        # The agent's name for the cursor is `since`.
        if any(each.field == "since" for each in error.fields):
            raise Refused(error.message.replace("`since`", "`cursor`")) from error
        raise


async def process_list(ctx: ToolContext, given: ProcessList) -> ToolOutput:
    found = await ask_agent(step_of(ctx).workspace, lambda conn: conn.list_processes())
    return ToolOutput({"processes": [_list_item(each) for each in found[:10]]})


def _list_item(process: ProcessInfo) -> dict[str, Any]:
    value = {
        "id": process.id,
        "command": process.command[:2000],
        "workdir": process.workdir,
        "background": process.background,
        "running": process.running,
        "exit_code": process.exit_code,
        "started_at": _time(process.started_at),
        "exited_at": _time(process.exited_at),
    }
    return {key: item for key, item in value.items() if item is not None}


def _time(at: float | None) -> str | None:
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None


async def process_signal(ctx: ToolContext, given: ProcessSignal) -> ToolOutput:
    process_id, signal = _process_id(given.process_id), given.signal
    await ask_agent(step_of(ctx).workspace, lambda conn: conn.signal_process(process_id, signal))
    return ToolOutput({"success": True, "process_id": process_id, "signal": signal})


def _process_id(text: str) -> str:
    trimmed = text.strip()
    if not trimmed or len(trimmed) > 100:
        raise Refused("This is not a process id. Use background_process_id of execute, or process_list.")
    return trimmed
