"""The process tools: execute, process_output, process_list, process_signal. The workspace agent runs the processes.

A command is started with the call's replay token as its key. A call that is run again after a crash therefore attaches
to the running command, and its timeout counts from that command's start. Only a user's interrupt ends a foreground
command; any other cancellation leaves it for the next run of the call.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import uuid5

import msgspec
from msgspec import Meta

from rookery.loop.tool import CancelReason, Replay, Tool, ToolContext, ToolOutput
from rookery.tools import commands, durations
from rookery.tools.durations import BadDuration
from rookery.tools.live_output import LiveTail
from rookery.tools.step_workspace import Refused, StepContext, ask_agent, make_tool, step_of, with_warning
from rookery.workspaces.agent_client import MAX_WAIT_SECONDS, StartedProcess
from rookery.workspaces.agent_messages import Output, ProcessInfo, StartProcess
from rookery.workspaces.errors import AgentError, AgentUnreachable, NoConnection, WorkspaceError

# Time for the requests around a call, on top of its own timeout.
SLACK_SECONDS = 120.0
# Time for the last query about a command whose connection broke.
SNAPSHOT_SECONDS = 30.0
TERMINATE_SECONDS = 5.0
MAX_UNTIL = 500
UNTIL_SINCE_API = 2
LOST = (
    "The workspace was restarted while this command ran, so its outcome is unknown. Check what it did before you "
    "repeat it."
)
CANNOT_PROTECT = (
    "This workspace cannot protect its files from commands, so this one could have changed some. Only look on this "
    "turn; do not change anything."
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
    """Accept times as numbers of seconds."""
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
    turn = step_of(ctx)
    command, is_marked = commands.split_background(given.command)
    if not command.strip():
        raise Refused("The command is empty.")
    seconds, notes = _timeout(given.timeout, "timeout")
    is_background = given.run_in_background or is_marked
    ctx.set_deadline(seconds + SLACK_SECONDS)
    started, protection = await _start(ctx, turn, given, command=command, is_background=is_background)
    notes.extend(protection)
    if (note := commands.note_on(command)) is not None:
        notes.append(note)
    if is_background:
        return ToolOutput(_noted({"success": True, "backgrounded": True, "background_process_id": started.id}, notes))
    try:
        value = await _follow(ctx, turn, started, seconds=seconds)
    except asyncio.CancelledError:
        if ctx.cancel_reason is CancelReason.USER:
            await _end(ctx, turn, started.id)
        raise
    return ToolOutput(with_warning(turn.workspace, _noted(value, notes)))


def _timeout(text: str, field: str, *, may_be_zero: bool = False) -> tuple[float, list[str]]:
    try:
        seconds = durations.parse(text, field=field, may_be_zero=may_be_zero)
    except BadDuration as error:
        raise Refused(str(error)) from error
    clamped = durations.clamp(seconds)
    return clamped, [] if clamped == seconds else [f"The {field} was cut to {durations.shown(clamped)}, the maximum."]


async def _start(
    ctx: ToolContext, turn: StepContext, given: Execute, *, command: str, is_background: bool
) -> tuple[StartedProcess, list[str]]:
    """Return the process of this call, and notes on how it runs."""
    wanted = StartProcess(
        command=command,
        workdir=(given.workdir or "").strip() or None,
        env=commands.environment(turn.chat_id),
        background=is_background,
        read_only=turn.only_looks,
    )
    try:
        return await _started(ctx, turn, wanted, is_background=is_background), []
    except AgentError as error:
        if error.status == 410:
            raise Refused(LOST) from error
        if not (wanted.read_only and error.code == "read_only_unavailable"):
            raise Refused(_cannot_start(error)) from error
    open_ended = msgspec.structs.replace(wanted, read_only=False)
    # A different command needs a different key.
    try:
        started = await _started(ctx, turn, open_ended, is_background=is_background, suffix="writable")
    except AgentError as error:
        raise Refused(LOST if error.status == 410 else _cannot_start(error)) from error
    return started, [CANNOT_PROTECT]


async def _started(
    ctx: ToolContext, turn: StepContext, wanted: StartProcess, *, is_background: bool, suffix: str = ""
) -> StartedProcess:
    """Start the process. When the user cancels the request, wait for its answer: the process must be ended."""
    key = uuid5(ctx.replay_token, suffix) if suffix else ctx.replay_token
    starting = asyncio.create_task(
        ask_agent(
            turn.workspace,
            lambda conn: conn.start_process(wanted, key=key, result_name=commands.result_name(ctx.call_id)),
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
                await _end(ctx, turn, starting.result().id)
        raise


def _cannot_start(error: AgentError) -> str:
    message = f"The command could not be started: {error.message}"
    if "sh" in error.message and "not found" in error.message.lower():
        message += " The workspace has no shell; its template has to provide one."
    return message


async def _follow(ctx: ToolContext, turn: StepContext, started: StartedProcess, *, seconds: float) -> dict[str, Any]:
    """Wait for the end of a foreground command, and show its output meanwhile."""
    begun = ctx.clock.monotonic()
    latest = begun + seconds
    if started.is_replay:
        first = await _snapshot(turn, started.id)
        if not first.running:
            return _finished(first, ctx.clock.monotonic() - begun)
        latest -= min(_age(first, ctx.clock.now()), seconds)
    tail = LiveTail(ctx, turn.workspace, started.id)
    try:
        while True:
            left = latest - ctx.clock.monotonic()
            wait = min(max(left, 0.0), MAX_WAIT_SECONDS)
            output = await _waited(turn, started.id, wait)
            if output is None:
                return await _after_break(ctx, turn, started.id, ctx.clock.monotonic() - begun)
            if not output.running:
                return _finished(output, ctx.clock.monotonic() - begun)
            if ctx.clock.monotonic() >= latest:
                return _timed_out(output, started.id, seconds)
    finally:
        await tail.stop()


async def _waited(turn: StepContext, process_id: str, wait: float) -> Output | None:
    """Return a snapshot at the end of the process or of the wait; None when there was no connection, or it broke."""
    try:
        conn = await turn.workspace.conn()
    except NoConnection:
        return None
    try:
        return await conn.process_output(process_id, wait=wait)
    except AgentUnreachable:
        turn.workspace.forget(conn)
        return None
    except AgentError as error:
        if error.status in (401, 410) or error.code == "generation":
            turn.workspace.forget(conn)
            return None
        raise


async def _snapshot(turn: StepContext, process_id: str) -> Output:
    return await ask_agent(turn.workspace, lambda conn: conn.process_output(process_id))


async def _after_break(ctx: ToolContext, turn: StepContext, process_id: str, elapsed: float) -> dict[str, Any]:
    """Look up once more what became of a command whose connection broke."""
    try:
        async with ctx.clock.deadline(SNAPSHOT_SECONDS, "process-snapshot"):
            output = await _snapshot(turn, process_id)
    except AgentError as error:
        raise Refused(LOST if error.status in (404, 410) else error.message) from error
    except Exception as error:
        raise Refused(
            f"The connection to the workspace broke while the command ran. It may still run as process {process_id}: "
            f"ask process_output for it. ({error})"
        ) from error
    if not output.running:
        return _finished(output, elapsed)
    value = _shown_output(output)
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
    return {"success": code == 0, **_shown_output(output), "exit_code": code, "wall_duration_ms": round(elapsed * 1000)}


def _timed_out(output: Output, process_id: str, seconds: float) -> dict[str, Any]:
    return {
        "success": False,
        "exit_code": -1,
        **_shown_output(output),
        "error": f"timed out after {durations.shown(seconds)}",
        "background_process_id": process_id,
        "cursor": output.cursor,
    }


def _shown_output(output: Output) -> dict[str, Any]:
    view = commands.view(output.output, output.truncated, file=output.file)
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


def _noted(value: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    return {**value, "note": " ".join(notes)} if notes else value


async def _end(ctx: ToolContext, turn: StepContext, process_id: str) -> None:
    """End a command that the user has interrupted: ask it to end, and kill it after a while."""
    try:
        conn = await turn.workspace.conn()
        await conn.signal_process(process_id, "terminate", seconds=TERMINATE_SECONDS)
        output = await conn.process_output(process_id, wait=TERMINATE_SECONDS)
        if output.running:
            await conn.signal_process(process_id, "kill", seconds=TERMINATE_SECONDS)
    except WorkspaceError:
        return  # it has ended, or the agent cannot be reached


# The other tools


async def process_output(ctx: ToolContext, given: ProcessOutput) -> ToolOutput:
    turn = step_of(ctx)
    process_id = _process_id(given.process_id)
    seconds, notes = _timeout(given.wait_timeout, "wait_timeout", may_be_zero=True)
    until = await _checked_until(turn, given.until)
    since = None if given.cursor is None else max(given.cursor, 0)
    ctx.set_deadline(seconds + SLACK_SECONDS)
    latest = ctx.clock.monotonic() + seconds
    while True:
        wait = min(max(latest - ctx.clock.monotonic(), 0.0), MAX_WAIT_SECONDS)
        output = await _asked(turn, process_id, wait=wait, since=since, until=until)
        is_found = output.matched or (until is None and since is not None and bool(output.output))
        if is_found or not output.running or ctx.clock.monotonic() >= latest:
            break
    value: dict[str, Any] = {"success": True, **_shown_output(output), "command": output.command}
    value["cursor"] = output.cursor
    if until is not None:
        value["matched"] = output.matched
        if output.match is not None:
            value["match"] = output.match
        elif output.match_slow:
            notes.append("The expression in `until` takes too long to match. Use a simpler one.")
    if since is not None and output.gap:
        value["gap_bytes"] = int(output.gap)
        notes.append(f"What came before is in {output.file}." if output.file else "What came before is not kept.")
    if output.running:
        value["running"] = True
        notes.append("It still runs. Ask again for the rest, or end it with process_signal.")
    else:
        value["exit_code"] = _exit_code(output)
        value["success"] = value["exit_code"] == 0
    return ToolOutput(_noted(value, notes))


async def _checked_until(turn: StepContext, until: str | None) -> str | None:
    """Return the expression, if there is one and the workspace's agent is new enough to match it."""
    if until is None or not until.strip():
        return None
    if len(until) > MAX_UNTIL:
        raise Refused(f"The expression in `until` is longer than {MAX_UNTIL} characters. Use a shorter one.")
    _, health = await turn.workspace.dial()
    if health.api < UNTIL_SINCE_API:
        raise Refused(
            "The agent of this workspace is too old for `until`. Leave it out, or restart the workspace with "
            "stop_workspace and start_workspace to update its agent."
        )
    return until


async def _asked(turn: StepContext, process_id: str, *, wait: float, since: int | None, until: str | None) -> Output:
    try:
        return await ask_agent(
            turn.workspace, lambda conn: conn.process_output(process_id, wait=wait, since=since, until=until)
        )
    except AgentError as error:
        # The agent's `since` is the tool's `cursor`.
        if any(each.field == "since" for each in error.fields):
            raise Refused(error.message.replace("`since`", "`cursor`")) from error
        raise


async def process_list(ctx: ToolContext, given: ProcessList) -> ToolOutput:
    found = await ask_agent(step_of(ctx).workspace, lambda conn: conn.list_processes())
    return ToolOutput({"processes": [_listed(each) for each in found[:10]]})


def _listed(process: ProcessInfo) -> dict[str, Any]:
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
        raise Refused("The process id is not one: use background_process_id of execute, or process_list.")
    return trimmed
