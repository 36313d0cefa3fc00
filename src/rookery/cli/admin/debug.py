"""`rookery admin debug`: the debug records of chats, their export, and replays of recorded calls.

The operator needs no account. Every command is written to the audit log, because records contain all texts of users and
models.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.cli.admin import provider_input, secrets
from rookery.cli.admin.run.model_choice import find_model, list_models
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.debug import record_views, run_comparison
from rookery.debug.export import Export, file_name
from rookery.debug.normalization import NormalizedMessage, NormalizedPart, NormalizedUsage
from rookery.debug.record_views import AttemptView, RunDetailView, RunView, StepSummaryView, StepView
from rookery.debug.redaction import Redactor
from rookery.debug.replay import NotReplayable, Replay, ReplayAnswer, ReplayChange, Replayer
from rookery.debug.run_comparison import ComparedStepView, ComparisonView, RunFigures, StepPair
from rookery.domain.access.rights import Resource, SystemActor, SystemName
from rookery.domain.chat.messages import ChatId, Effort
from rookery.models.connector import Connector
from rookery.models.directory import Directory
from rookery.runtime.clock import SystemClock
from rookery.settings.settings import Settings
from rookery.store.authorized.debug import RecordedCall, RunDetail, RunPair, StepDetail
from rookery.store.chats import chat_view_reads
from rookery.store.db.pool import Connection, Database
from rookery.store.debug import record_reads
from rookery.store.debug.export import list_exported
from rookery.store.debug.record_rows import RunKind, RunRow, RunStatus, StepSummaryRow
from rookery.store.debug.run_comparison import find_difference, read_compared
from rookery.store.models import spending
from rookery.store.models.usage_ledger import KeySource
from rookery.store.people import audit
from rookery.store.people.audit import Event
from rookery.telemetry.redaction import printable

READ = "chat.debug_read"
REPLAY = "chat.debug_replay"
_ACTOR = SystemActor(SystemName.CLI)
_LABEL_CHARS = 60
_TEXT_CHARS = 2000


async def list_runs(
    settings: Settings, out: Output, *, chat: str, kind: str | None, status: str | None, limit: int
) -> int:
    """Show the recorded runs of a chat, the newest first."""
    with provider_input.refusals(out) as outcome:
        chat_id = ChatId(_id(chat, "CHAT"))
        async with provider_input.opened(settings, out) as (_, conn):
            await _log(conn, chat_id, READ)
            page = await record_reads.list_runs(
                conn,
                chat_id,
                limit=limit,
                kind=None if kind is None else RunKind(kind),
                status=None if status is None else RunStatus(status),
            )
        found = [record_views.run(row) for row in page.runs]
        if found:
            headers = ("run", "started", "kind", "status", "model", "steps", "in", "out", "cost", "first message")
            out.table(headers, [_run_row(run) for run in found])
        else:
            out.line("This chat has no debug records.")
        out.result({"runs": found, "has_more": page.next_cursor is not None})
    return outcome.code


async def show(settings: Settings, out: Output, *, run: str, step: int | None, attempt: int | None) -> int:
    """Show a run, or one of its steps with the prompt and the answer, or one of its HTTP exchanges."""
    with provider_input.refusals(out) as outcome:
        run_id = _id(run, "RUN")
        async with provider_input.opened(settings, out) as (_, conn):
            found = await _find_run(conn, run_id)
            await _log(conn, found.chat_id, READ, run_id=run_id)
            steps, attempts = (
                await record_reads.list_steps(conn, run_id),
                await record_reads.list_attempts(conn, run_id),
            )
            if step is None:
                _show_run(out, record_views.run_detail(RunDetail(found, steps, attempts)))
                return outcome.code
            wanted = _find_step(steps, step)
            if attempt is not None:
                exchange = await record_reads.find_attempt(conn, wanted.id, attempt)
                if exchange is None:
                    raise Refused(f"Step {step} has no attempt {attempt}.", code=Exit.USAGE)
                _show_attempt(out, record_views.attempt(exchange))
                return outcome.code
            row = await record_reads.find_step(conn, run_id, wanted.id)
            if row is None:
                raise Refused("The step was deleted meanwhile.")
            requests = await record_reads.list_requests(conn, run_id, last_number=step)
        own = [each for each in attempts if each.step_id == wanted.id]
        _show_step(out, record_views.step(StepDetail(row, requests, own)))
    return outcome.code


async def compare(settings: Settings, out: Output, *, run: str, other: str) -> int:
    """Show the tokens, cost and time of two runs, and where their prompts begin to differ."""
    with provider_input.refusals(out) as outcome:
        run_id, other_id = _id(run, "RUN"), _id(other, "OTHER")
        if run_id == other_id:
            raise Refused("RUN and OTHER are the same run.", code=Exit.USAGE)
        async with provider_input.opened(settings, out) as (_, conn):
            one, second = await _find_run(conn, run_id), await _find_run(conn, other_id)
            await _log(conn, one.chat_id, READ, run_id=run_id)
            await _log(conn, second.chat_id, READ, run_id=other_id)
            left, right = await read_compared(conn, one), await read_compared(conn, second)
            difference = await find_difference(conn, left, right)
        _show_comparison(out, run_comparison.compare(RunPair(left, right, difference)))
    return outcome.code


async def export(settings: Settings, out: Output, *, chat: str, run: str | None, output: str | None) -> int:
    """Write the records of a chat, or of one of its runs, to a file."""
    with provider_input.refusals(out) as outcome:
        chat_id, run_id = ChatId(_id(chat, "CHAT")), None if run is None else _id(run, "--run")
        now = datetime.now(UTC)
        path = Path(output or file_name(chat_id, run_id, now))
        async with provider_input.opened(settings, out) as (_, conn):
            await _log(conn, chat_id, READ, run_id=run_id)
            runs = await list_exported(conn, chat_id, run_id, acquire=lambda: nullcontext(conn))
            if run_id is not None and not runs:
                raise Refused(f"There is no run {run_id} of this chat.", code=Exit.USAGE)
            document = Export(runs, chat_id, run_id, exported_at=now)
            size = 0
            with await asyncio.to_thread(_create, path) as file:
                async for piece in document.pieces():
                    size += await asyncio.to_thread(file.write, piece)
        if not document.is_complete:
            out.warning("The export is too large and has only the most recent records.")
        count = document.run_count
        out.line(f"{count} {'run' if count == 1 else 'runs'} written to {path}")
        out.result({"file": str(path), "bytes": size})
    return outcome.code


def _create(path: Path) -> BinaryIO:
    """Create the file of an export. Only its owner may read it, because records can hold sensitive text."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


async def replay(
    settings: Settings,
    out: Output,
    *,
    run: str,
    step: int,
    model: str | None,
    effort: str | None,
    edits: Sequence[str],
) -> int:
    """Make a recorded call again and show both answers."""
    with provider_input.refusals(out) as outcome:
        run_id = _id(run, "RUN")
        change = ReplayChange(effort=UNSET if effort is None else Effort(effort), edits=_edits(edits))
        async with provider_input.opened(settings, out) as (database, conn):
            ring = await secrets.load_checked_ring(settings, conn)
            found = await _find_run(conn, run_id)
            recorded, owner_id = await _recorded(conn, found, step)
            named = (
                recorded.step.model_config_id if model is None else find_model(await list_models(conn), model).config.id
            )
            if named is None:
                raise Refused("The record does not name its model. Choose one with --model.", code=Exit.USAGE)
            directory = Directory(
                database.worker, ring=ring, environ=os.environ, clock=SystemClock(), registry=out.secrets
            )
            try:
                await _check_spend(directory, conn, named, owner_id)
                await _log(conn, found.chat_id, REPLAY, run_id=run_id)
                answers = await _replay(directory, database, out, recorded, named, owner_id=owner_id, change=change)
            finally:
                await directory.close()
        _show_replay(out, answers)
        if answers.replayed.error is not None:
            outcome.code = Exit.FAILED
    return outcome.code


async def _replay(
    directory: Directory,
    database: Database,
    out: Output,
    recorded: RecordedCall,
    model_config_id: UUID,
    *,
    owner_id: UUID,
    change: ReplayChange,
) -> Replay:
    connector = Connector()
    replayer = Replayer(directory, connector, pool=database.worker, clock=SystemClock(), redactor=Redactor(out.secrets))
    try:
        # The operator pays with the server's keys, not with a key of the user.
        return await replayer.replay(recorded, model_config_id, owner_id=owner_id, change=change, uses_own_key=False)
    except NotReplayable as error:
        raise Refused(str(error)) from None
    finally:
        await connector.close()


async def _check_spend(directory: Directory, conn: Connection, model_config_id: UUID, owner_id: UUID) -> None:
    models = await directory.models(UUID(int=0))
    reason = models.unusable(model_config_id)
    if reason is not None:
        raise Refused(f"{reason.sentence} Choose another one with --model.", code=Exit.USAGE)
    if models.by_id[model_config_id].key is not KeySource.USER:
        await spending.check_spend(conn, owner_id, now=datetime.now(UTC))


async def _find_run(conn: Connection, run_id: UUID) -> RunRow:
    chat = await record_reads.find_chat(conn, run_id)
    run = None if chat is None else await record_reads.find_run(conn, chat[0], run_id)
    if run is None:
        raise Refused(f"There is no run {run_id}. `rookery admin debug list CHAT` shows them.", code=Exit.USAGE)
    return run


def _find_step(steps: Sequence[StepSummaryRow], number: int) -> StepSummaryRow:
    for step in steps:
        if step.step_number == number:
            return step
    raise Refused(f"This run has no step {number}; it has {len(steps)}.", code=Exit.USAGE)


async def _recorded(conn: Connection, run: RunRow, number: int) -> tuple[RecordedCall, UUID]:
    chat = await record_reads.find_chat(conn, run.id)
    summary = _find_step(await record_reads.list_steps(conn, run.id), number)
    step = await record_reads.find_step(conn, run.id, summary.id)
    if step is None or chat is None:
        raise Refused("The run was deleted meanwhile.")
    forms = await record_reads.list_replay_forms(conn, run.id, last_number=number)
    return RecordedCall(run, step, forms), chat[1]


async def _log(conn: Connection, chat_id: ChatId, action: str, *, run_id: UUID | None = None) -> None:
    """Write the command to the audit log, for the chat's owner."""
    chat = await chat_view_reads.find_owner(conn, chat_id)
    if chat is None:
        raise Refused(f"There is no chat {chat_id}.", code=Exit.USAGE)
    event = Event(
        action=action,
        resource_type=Resource.CHAT,
        resource_id=str(chat_id),
        extra={} if run_id is None else {"run_id": str(run_id)},
        subject_id=chat,
    )
    await audit.record(conn, event, actor=_ACTOR, now=datetime.now(UTC))


def _id(text: str, argument: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Refused(f"{argument} is not an id: {text}", code=Exit.USAGE) from None


def _edits(given: Sequence[str]) -> dict[int, str]:
    edits: dict[int, str] = {}
    for pair in given:
        index, equals, text = pair.partition("=")
        if not equals or not index.isdecimal():
            raise Refused("--edit is given as NUMBER=TEXT; messages are numbered from 0.", code=Exit.USAGE)
        edits[int(index)] = text
    return edits


# Output


def _show_run(out: Output, run: RunDetailView) -> None:
    _show_run_head(out, run)
    out.line()
    headers = ("step", "status", "model", "messages", "new", "tools", "in", "cached", "out", "cost", "time", "attempts")
    out.table(headers, [_step_row(step) for step in run.steps])
    for step in run.steps:
        if step.error is not None:
            out.line(f"step {step.number}: {step.error.message}")
        if step.cache is not None and step.cache.reason not in ("none", "first_step"):
            at = "" if step.cache.broke_at is None else f" from message {step.cache.broke_at} on"
            price = "" if step.cache.cost_micros is None else f", {_money(step.cache.cost_micros)}"
            tokens = f"{step.cache.uncached_tokens} tokens{price}"
            out.line(f"step {step.number}: not cached{at} ({step.cache.reason.replace('_', ' ')}; {tokens})")
    out.result(run)


def _show_run_head(out: Output, run: RunView) -> None:
    out.line(f"Run {run.id} ({run.kind}, {run.status})")
    if isinstance(run.summary.first_message, str):
        out.line(f"  {run.summary.first_message}")
    out.line(f"  chat {run.chat_id}, started {_time(run.started_at)}, {run.provider or '?'}/{run.model or '?'}")


def _show_comparison(out: Output, found: ComparisonView) -> None:
    for mark, run in (("RUN", found.one.run), ("OTHER", found.other.run)):
        out.line(f"{mark}: {_label(run)}")
        out.line(f"  {_time(run.started_at)}, {run.kind}, {run.status}, {run.provider or '?'}/{run.model or '?'}")
    out.line()
    out.table(("", "RUN", "OTHER", "difference"), _figure_rows(found.one.figures, found.other.figures))
    out.line()
    shown = ("step", "same messages", "of", "changed", "in", "out", "cost", "time", "in", "out", "cost", "time")
    out.table(shown, [_pair_row(pair) for pair in found.steps])
    if (tools := found.tools) is not None:
        out.line()
        out.line(f"The tools differ from step {tools.number} on:")
        for text, names in (("only RUN", tools.only_one), ("only OTHER", tools.only_other), ("changed", tools.changed)):
            if names:
                out.line(f"  {text}: {', '.join(map(printable, names))}")
    out.line()
    if (message := found.message) is None:
        out.line("The recorded prompts of all steps that both runs have are the same.")
    else:
        out.line(f"The prompts differ from message {message.index} of step {message.number} on.")
        for mark, each in (("RUN", message.one), ("OTHER", message.other)):
            out.line(f"[{message.index}] {mark}: {'no message' if each is None else each.role}")
            if each is not None:
                _show_parts(out, each)
    out.result(found)


def _figure_rows(one: RunFigures, other: RunFigures) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name in RunFigures.__struct_fields__:
        left, right = getattr(one, name), getattr(other, name)
        difference = None if left is None or right is None else right - left
        shown = _money if name == "cost_micros" else str
        title = "cost" if name == "cost_micros" else name.replace("_", " ")
        rows.append((title, *("" if each is None else shown(each) for each in (left, right, difference))))
    return rows


def _pair_row(pair: StepPair) -> tuple[object, ...]:
    counts = [str(step.message_count) for step in (pair.one, pair.other) if step is not None]
    same = "" if pair.same_messages is None else pair.same_messages
    figures = (figure for step in (pair.one, pair.other) for figure in _step_figures(step))
    return (pair.number, same, "/".join(counts), ", ".join(pair.changed or ()), *figures)


def _step_figures(step: ComparedStepView | None) -> tuple[object, object, object, object]:
    if step is None:
        return ("", "", "", "")
    usage = step.usage or NormalizedUsage()
    return (
        "" if usage.input_tokens is None else usage.input_tokens,
        "" if usage.output_tokens is None else usage.output_tokens,
        "" if step.cost_micros is None else _money(step.cost_micros),
        "" if step.duration_ms is None else _took(step.duration_ms),
    )


def _label(run: RunView) -> str:
    label = run.summary.first_message
    return f"{run.id} {label}" if isinstance(label, str) else str(run.id)


def _show_step(out: Output, step: StepView) -> None:
    out.line(f"Step {step.number} ({step.status}), {step.provider or '?'}/{step.model or '?'}")
    options = {**step.request.options, "tool_choice": step.request.tool_choice, "effort": step.request.effort}
    shown = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    out.line(f"  {shown}")
    if step.request.tools:
        out.line(f"  tools: {', '.join(tool.name for tool in step.request.tools)}")
    for index, message in enumerate(step.request.messages):
        mark = "" if index < step.shared_messages else " (new)"
        out.line()
        out.line(f"[{index}] {message.role}{mark}")
        _show_parts(out, message)
    out.line()
    out.line(f"Answer ({step.finish_reason or 'not finished'})")
    for part in () if step.response is None else step.response.content:
        _show_part(out, part)
    if step.error is not None:
        out.line(f"Error: {step.error.message}")
    out.result(step)


def _show_parts(out: Output, message: NormalizedMessage) -> None:
    for part in message.parts:
        _show_part(out, part)


def _show_part(out: Output, part: NormalizedPart) -> None:
    match part.type:
        case "tool-call":
            text = f"{part.tool_name}({part.arguments})"
        case "tool-result":
            text = f"{part.tool_name} {'failed' if part.is_error else 'answered'}: {part.result}"
        case "file":
            text = f"[file {part.filename or ''} {part.media_type or ''}, {part.size} bytes]"
        case "source":
            text = f"[source {part.title or ''} {part.url or ''}]"
        case _:
            text = part.text or ""
    if len(text) > _TEXT_CHARS:
        text = f"{text[:_TEXT_CHARS]}... ({len(text)} characters; --json shows all that is recorded)"
    for line in text.splitlines():
        out.line(f"  {line}")


def _show_attempt(out: Output, attempt: AttemptView) -> None:
    status = attempt.response_status if attempt.response_status is not None else "no answer"
    out.line(f"{attempt.method} {attempt.url}: {status}, {attempt.status}, {attempt.duration_ms} ms")
    if attempt.error is not None:
        out.line(f"  {attempt.error}")
    for title, headers, body in (
        ("Request", attempt.request_headers, attempt.request_body),
        ("Response", attempt.response_headers, attempt.response_body),
    ):
        out.line()
        out.line(title)
        for name, value in headers.items():
            out.line(f"  {name}: {value}")
        if body is not None:
            out.line(f"  ({body.size} bytes{', shortened' if body.truncated else ''})")
            for line in _indented(body.text).splitlines():
                out.line(f"  {line}")
    out.result(attempt)


def _show_replay(out: Output, answers: Replay) -> None:
    for warning in answers.warnings:
        out.warning(warning)
    for title, answer in (("Recorded", answers.recorded), ("Replayed", answers.replayed)):
        out.line(f"{title}: {_figures(answer)}")
        for part in answer.content:
            _show_part(out, part)
        if answer.error is not None:
            out.line(f"  Error: {printable(answer.error.message)}")
        out.line()
    out.result(answers)


def _figures(answer: ReplayAnswer) -> str:
    usage = answer.usage
    figures = [
        f"{answer.provider or '?'}/{answer.model or '?'}",
        None if answer.effort is None else f"effort {answer.effort}",
        None if usage is None or usage.input_tokens is None else f"{usage.input_tokens} tokens in",
        None if usage is None or usage.output_tokens is None else f"{usage.output_tokens} out",
        None if answer.cost_micros is None else _money(answer.cost_micros),
        None if answer.ttft_ms is None else f"first text after {answer.ttft_ms} ms",
        None if answer.duration_ms is None else f"{answer.duration_ms} ms",
    ]
    return ", ".join(figure for figure in figures if figure is not None)


def _run_row(run: RunView) -> tuple[object, ...]:
    summary = run.summary
    label = summary.first_message if isinstance(summary.first_message, str) else ""
    cost = _money(summary.cost_micros) if isinstance(summary.cost_micros, int) else ""
    return (
        run.id,
        _time(run.started_at),
        run.kind,
        run.status,
        run.model or "",
        summary.step_count,
        summary.total_input_tokens,
        summary.total_output_tokens,
        cost,
        label[:_LABEL_CHARS],
    )


def _step_row(step: StepSummaryView) -> tuple[object, ...]:
    usage = step.usage
    seconds = None if step.finished_at is None else (step.finished_at - step.started_at).total_seconds()
    return (
        step.number,
        step.status,
        step.model or "",
        step.message_count,
        step.message_count - step.shared_messages,
        step.tool_count,
        "" if usage is None or usage.input_tokens is None else usage.input_tokens,
        "" if usage is None or usage.cache_read_tokens is None else usage.cache_read_tokens,
        "" if usage is None or usage.output_tokens is None else usage.output_tokens,
        "" if step.cost_micros is None else _money(step.cost_micros),
        "" if seconds is None else _took(round(seconds * 1000)),
        len(step.attempts),
    )


def _took(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _indented(text: str) -> str:
    """Return a JSON document with indentation, and any other text as it is."""
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        return text


def _money(micros: int) -> str:
    return f"${micros / 1e6:.4f}"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
