"""The results of chats with workspaces as plain values, and their invariants: everything happened once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.workspace_jobs import Job


@dataclass(frozen=True)
class Result:
    call_id: str
    value: Any
    is_error: bool = False


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A chat with its `jobs`.

    `sheets` are by the name of the job; `files` are the bytes of the chat's files by id. `operations` are (kind, state)
    pairs of all workspaces. `sandboxes` is the number of sandboxes at each rest, also after the last job.
    """

    chat_id: str
    jobs: Sequence[Job]
    status: str = "waiting"
    error: str | None = None
    calls: Sequence[tuple[str, str]] = ()  # (id, tool)
    results: Sequence[Result] = ()
    log: str = ""
    sheets: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    workspaces: Sequence[str] = ()
    operations: Sequence[tuple[str, str]] = ()
    sandboxes: Sequence[int] = ()


def find_faults(trace: Trace) -> list[str]:
    return [f"{check.__name__}: {trace.chat_id}: {fault}" for check in CHECKS for fault in check(trace)]


def chat_is_at_rest(trace: Trace) -> Iterator[str]:
    if trace.status != "waiting" or trace.error is not None:
        yield f"{trace.status}, {trace.error}"


def every_call_is_made_once(trace: Trace) -> Iterator[str]:
    made, wanted = [tool for _, tool in trace.calls], [tool for tool, _ in _planned(trace)]
    if made != wanted:
        yield f"{made} instead of {wanted}"


def every_call_has_one_result(trace: Trace) -> Iterator[str]:
    ids, answered = [call_id for call_id, _ in trace.calls], [result.call_id for result in trace.results]
    if len(set(ids)) < len(ids) or sorted(ids) != sorted(answered):
        yield f"calls {ids}, results {answered}"
    for result in trace.results:
        if result.is_error:
            yield f"{result.call_id} failed: {result.value}"


def results_tell_what_happened(trace: Trace) -> Iterator[str]:
    """A call that ran twice would report an existing file, or output that begins in the middle."""
    results = {result.call_id: result.value for result in trace.results}
    for (call_id, _), (tool, output) in zip(trace.calls, _planned(trace), strict=False):
        value = results.get(call_id)
        if not isinstance(value, dict):
            yield f"{call_id} ({tool}): {value!r}"
        elif tool == "execute" and (value.get("exit_code"), _lines(value.get("output", ""))) != (0, _lines(output)):
            yield f"{call_id} should have said {_lines(output)}: {value}"
        elif tool in ("write_file", "create_workspace") and value.get("created") is not True:
            yield f"{call_id} ({tool}) did not make what it was to make: {value}"


def commands_ran_once(trace: Trace) -> Iterator[str]:
    wanted = [line for job in trace.jobs for line in job.lines()]
    if sorted(trace.log.splitlines()) != sorted(wanted):
        yield f"{trace.log.splitlines()} instead of {wanted}"


def edits_were_made_once(trace: Trace) -> Iterator[str]:
    for job in trace.jobs:
        lines = trace.sheets[job.name].splitlines()
        if (lines[:1], sorted(lines[1:-1]), lines[-1:]) != (["top"], job.lines(), ["end"]):
            yield f"{job.sheet} is {trace.sheets[job.name]!r}"


def files_were_attached_once(trace: Trace) -> Iterator[str]:
    if Counter(trace.files.values()) != Counter(sheet.encode() for sheet in trace.sheets.values()):
        yield f"{trace.files} for {trace.sheets}"
    told = [r.value["file_id"] for r in trace.results if isinstance(r.value, dict) and "file_id" in r.value]
    if sorted(told) != sorted(trace.files):
        yield f"told of {told}, but there are {list(trace.files)}"


def one_workspace_was_made(trace: Trace) -> Iterator[str]:
    if len(trace.workspaces) != 1:
        yield f"workspaces {trace.workspaces}"
    wanted = [("create", "succeeded"), ("stop", "succeeded")]
    if sorted(trace.operations) != wanted:
        yield f"operations {trace.operations}"
    if set(trace.sandboxes[:-1]) != {1} or trace.sandboxes[-1:] != [0]:
        yield f"sandboxes at each rest: {trace.sandboxes}"


CHECKS = (
    chat_is_at_rest,
    every_call_is_made_once,
    every_call_has_one_result,
    results_tell_what_happened,
    commands_ran_once,
    edits_were_made_once,
    files_were_attached_once,
    one_workspace_was_made,
)


def _planned(trace: Trace) -> list[tuple[str, str]]:
    """Yield every call in order, with its expected output if it is a command."""
    outputs = iter([output for job in trace.jobs for output in job.outputs()])
    names = [call.name for job in trace.jobs for batch in job.batches() for call in batch]
    return [(name, next(outputs) if name == "execute" else "") for name in names]


def _lines(text: str) -> list[str]:
    return text.splitlines()
