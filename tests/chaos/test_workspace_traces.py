"""The invariants of a run with workspaces: a correct trace, and every possible violation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import workspace_traces as traces
from tests.chaos.workspace_jobs import Job
from tests.chaos.workspace_traces import Result, Trace

JOBS = (Job("c0m0", is_first=True), Job("c0m1", is_last=True))


def sheet(job: Job) -> str:
    return "\n".join(["top", *job.lines(), "end"]) + "\n"


def right() -> Trace:
    calls: list[tuple[str, str]] = []
    results: list[Result] = []
    for job in JOBS:
        outputs = iter(job.outputs())
        for call in [call for batch in job.batches() for call in batch]:
            call_id = f"call_{len(calls) + 1}"
            calls.append((call_id, call.name))
            value: dict[str, Any] = {"ok": True}
            match call.name:
                case "execute":
                    value = {"exit_code": 0, "output": next(outputs)}
                case "write_file" | "create_workspace":
                    value = {"created": True}
                case "attach_file":
                    value = {"file_id": job.name}
            results.append(Result(call_id, value))
    return Trace(
        chat_id="chat",
        jobs=JOBS,
        calls=calls,
        results=results,
        log="".join(f"{line}\n" for job in JOBS for line in job.lines()),
        sheets={job.name: sheet(job) for job in JOBS},
        files={job.name: sheet(job).encode() for job in JOBS},
        workspaces=["w"],
        operations=[("create", "succeeded"), ("stop", "succeeded")],
        sandboxes=[1, 0],
    )


RIGHT = right()


def told(tool: str, **value: Any) -> Trace:
    """Return a trace in which the first call of this tool reports something else."""
    call_id = next(call_id for call_id, name in RIGHT.calls if name == tool)
    changed = [
        replace(each, value={**each.value, **value}) if each.call_id == call_id else each for each in RIGHT.results
    ]
    return replace(RIGHT, results=changed)


WRONG: list[tuple[Callable[..., object], Trace]] = [
    (traces.chat_is_at_rest, replace(RIGHT, status="running")),
    (traces.chat_is_at_rest, replace(RIGHT, status="error", error="broken")),
    (traces.every_call_is_made_once, replace(RIGHT, calls=RIGHT.calls[:-1], results=RIGHT.results[:-1])),
    (traces.every_call_is_made_once, replace(RIGHT, calls=[*RIGHT.calls, ("call_99", "execute")])),
    (traces.every_call_has_one_result, replace(RIGHT, results=RIGHT.results[:-1])),
    (traces.every_call_has_one_result, replace(RIGHT, results=[*RIGHT.results, RIGHT.results[-1]])),
    (
        traces.every_call_has_one_result,
        replace(RIGHT, results=[*RIGHT.results[:-1], replace(RIGHT.results[-1], is_error=True)]),
    ),
    (traces.results_tell_what_happened, told("execute", output="done\n")),
    (traces.results_tell_what_happened, told("execute", exit_code=-1)),
    (traces.results_tell_what_happened, told("write_file", created=False)),
    (traces.results_tell_what_happened, told("create_workspace", created=False)),
    (traces.commands_ran_once, replace(RIGHT, log=RIGHT.log + "c0m0-0\n")),
    (traces.commands_ran_once, replace(RIGHT, log="")),
    (traces.edits_were_made_once, replace(RIGHT, sheets={**RIGHT.sheets, "c0m1": "top\nend\n"})),
    (traces.edits_were_made_once, replace(RIGHT, sheets={**RIGHT.sheets, "c0m1": sheet(JOBS[1]) + "end\n"})),
    (traces.edits_were_made_once, replace(RIGHT, sheets={**RIGHT.sheets, "c0m1": ""})),
    (traces.files_were_attached_once, replace(RIGHT, files={**RIGHT.files, "again": sheet(JOBS[0]).encode()})),
    (traces.files_were_attached_once, replace(RIGHT, files={**RIGHT.files, "c0m0": b"half"})),
    (traces.files_were_attached_once, told("attach_file", file_id="another")),
    (traces.one_workspace_was_made, replace(RIGHT, workspaces=["w", "v"])),
    (traces.one_workspace_was_made, replace(RIGHT, operations=[*RIGHT.operations, ("stop", "succeeded")])),
    (traces.one_workspace_was_made, replace(RIGHT, operations=[("create", "succeeded"), ("stop", "failed")])),
    (traces.one_workspace_was_made, replace(RIGHT, sandboxes=[2, 0])),
    (traces.one_workspace_was_made, replace(RIGHT, sandboxes=[0, 0])),
    (traces.one_workspace_was_made, replace(RIGHT, sandboxes=[1, 1])),
]


def test_nothing_is_wrong_with_a_right_trace() -> None:
    assert traces.find_faults(RIGHT) == []


@pytest.mark.parametrize(("check", "trace"), WRONG)
def test_every_violation_is_found_by_its_check(check: Callable[..., object], trace: Trace) -> None:
    assert any(fault.startswith(f"{check.__name__}: ") for fault in traces.find_faults(trace))


def test_every_check_has_been_shown_something_wrong() -> None:
    assert {check for check, _ in WRONG} == set(traces.CHECKS)
