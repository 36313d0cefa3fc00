"""The process tools with a real agent: results, replays, and the end of commands."""

from __future__ import annotations

import asyncio
import re
import shutil
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from rookery.domain.chat import parts
from rookery.domain.chat.messages import ChatId
from rookery.loop.tool import CancelReason, ToolContext, ToolOutput
from rookery.runtime.clock import SystemClock
from rookery.tools import process
from rookery.tools.framework import make_tool
from rookery.tools.registry import Column
from rookery.workspaces.agent_client import AgentConn, StartedProcess
from rookery.workspaces.agent_messages import StartProcess
from tests.eventually import until
from tests.required_programs import requires
from tests.tools.tools_rig import ToolsRig, open_hands, value_of

PATIENCE = 60.0


class Dump(msgspec.Struct):
    pass


async def _dump(text: str, ctx: ToolContext, given: Dump) -> ToolOutput:
    return ToolOutput(text)


def wait_for(file: Path) -> str:
    return f"until [ -e {file} ]; do sleep 0.05; done"


def is_alive(pid_file: Path) -> bool:
    """Return whether the process whose id is in this file is running. A zombie is not."""
    pid = pid_file.read_text().strip()
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_finished_command_gives_output_and_exit_code(rig: ToolsRig) -> None:
    good = await rig.run("execute", command="echo out; echo err >&2", timeout="60s")
    bad = await rig.run("execute", command="exit 3", timeout="60s")

    assert (good.value["success"], good.value["exit_code"], good.value["output"]) == (True, 0, "out\nerr\n")
    assert good.value["wall_duration_ms"] >= 0
    assert (bad.is_error, bad.value["success"], bad.value["exit_code"]) == (False, False, 3)
    assert "output" not in bad.value


async def test_command_runs_where_it_is_told_in_a_clean_environment(rig: ToolsRig) -> None:
    command = "pwd; echo $GIT_EDITOR-$GIT_TERMINAL_PROMPT-$TERM-$PAGER-$ROOKERY_CHAT-$ROOKERY_CHAT_ID; cat"

    home = await rig.run("execute", command=command, workdir=str(rig.home), timeout="60s")
    default = await rig.run("execute", command="pwd", timeout="60s")
    nowhere = await rig.run("execute", command="pwd", workdir="/nowhere", timeout="60s")

    assert home.value["output"] == f"{rig.home}\ntrue-0-dumb-cat-1-{rig.chat_id}\n"
    assert default.value["output"] == f"{rig.agent.directory}\n"
    assert "could not be started" in nowhere.error


async def test_command_that_takes_longer_goes_on_and_can_be_asked_for(rig: ToolsRig) -> None:
    go = rig.home / "go"
    command = f"echo early; until [ -e {go} ]; do sleep 0.05; done; echo late"
    done = await rig.run("execute", command=command, timeout="2s")

    assert (done.is_error, done.value["success"], done.value["exit_code"]) == (False, False, -1)
    assert done.value["error"] == "timed out after 2s"
    process_id = done.value["background_process_id"]
    still = await rig.run("process_output", process_id=process_id, wait_timeout="0s")
    assert (still.value["running"], still.value["success"]) == (True, True)
    go.touch()
    over = await rig.run("process_output", process_id=process_id, wait_timeout=60)
    assert (over.value["output"], over.value["exit_code"]) == ("early\nlate\n", 0)
    assert "running" not in over.value


@pytest.mark.parametrize("args", [{"command": "sleep 100 &"}, {"command": "sleep 100", "run_in_background": True}])
async def test_background_command_returns_at_once(rig: ToolsRig, args: dict[str, Any]) -> None:
    done = await rig.run("execute", **args)

    assert done.value == {
        "success": True,
        "backgrounded": True,
        "background_process_id": done.value["background_process_id"],
    }
    listed = (await rig.run("process_list")).value["processes"]
    assert [(each["command"], each["background"], each["running"]) for each in listed] == [("sleep 100", True, True)]
    ended = await rig.run("process_signal", process_id=done.value["background_process_id"], signal="kill")
    assert ended.value["success"]
    over = await rig.run("process_output", process_id=done.value["background_process_id"], wait_timeout="60s")
    assert over.value["exit_code"] == 137
    again = await rig.run("process_signal", process_id=done.value["background_process_id"], signal="kill")
    assert "already ended" in again.error


async def test_process_of_another_chat_is_not_found(rig: ToolsRig) -> None:
    done = await rig.run("execute", command="sleep 100 &")
    rig.chat_id = ChatId(uuid4())

    for name, args in (("process_output", {"wait_timeout": "0s"}), ("process_signal", {"signal": "kill"})):
        other = await rig.run(name, process_id=done.value["background_process_id"], **args)
        assert "no such process" in other.error
    assert (await rig.run("process_list")).value["processes"] == []


async def test_much_output_keeps_its_end(rig: ToolsRig) -> None:
    done = await rig.run("execute", command="seq 1 200000", timeout="120s")

    assert len(done.value["output"].encode()) <= 32 * 1024
    assert done.value["output"].startswith("1\n2\n")
    assert done.value["output"].endswith("199999\n200000\n")
    assert done.value["truncated"]["original_bytes"] > 1024 * 1024
    assert done.value["truncated"]["strategy"] == "head_tail"
    # The model can read the rest without running the command again.
    file = str(rig.home / ".rookery/results/call_1")
    assert done.value["truncated"]["file"] == file
    assert f"all of it is in {file}" in done.value["output"]
    middle = await rig.run("read_file", path=file, offset=100_000, limit=1)
    assert middle.value["content"] == "100000\t100000"


async def test_output_after_a_cursor_is_only_what_is_new(rig: ToolsRig) -> None:
    first, second = rig.home / "first", rig.home / "second"
    command = f"echo one; {wait_for(first)}; echo two; echo three; {wait_for(second)}; seq 1 100000"
    started = await rig.run("execute", command=command, run_in_background=True)
    ask = {"process_id": started.value["background_process_id"], "wait_timeout": "60s"}

    seen = await rig.run("process_output", until="on[e]", **ask)
    assert (seen.value["matched"], seen.value["match"], seen.value["running"]) == (True, "one", True)
    assert seen.value["output"] == "one\n"
    first.touch()
    new = await rig.run("process_output", cursor=seen.value["cursor"], until="three", **ask)
    assert (new.value["output"], new.value["match"]) == ("two\nthree\n", "three")
    none = await rig.run("process_output", cursor=new.value["cursor"], **{**ask, "wait_timeout": "0s"})
    assert ("output" not in none.value, none.value["cursor"]) == (True, new.value["cursor"])
    second.touch()
    over = await rig.run("process_output", until="never", **ask)
    assert (over.value["matched"], over.value["exit_code"]) == (False, 0)
    late = await rig.run("process_output", cursor=new.value["cursor"], **ask)
    assert late.value["gap_bytes"] > 0
    assert ".rookery/results/call_1" in late.value["note"]
    assert late.value["output"].endswith("\n100000\n")
    assert len(late.value["output"].encode()) <= 32 * 1024

    beyond = await rig.run("process_output", cursor=10**9, **ask)
    bad = await rig.run("process_output", until="(", **ask)
    long = await rig.run("process_output", until="x" * 501, **ask)
    assert "`cursor` is beyond" in beyond.error
    assert "not a regular expression" in bad.error
    assert "500" in long.error


async def test_result_too_large_for_the_model_is_kept_in_the_workspace(rig: ToolsRig) -> None:
    """This holds for every tool. Here the result is half a megabyte, for a model with a small window."""
    rig.context_limit = 20_000
    (rig.home / "big").write_text("a" * 400 + "\n")
    whole = "\n".join(f"line {number}" for number in range(20_000))
    rig.extra = [make_tool("dump", "", arguments=Dump, handler=partial(_dump, whole))]

    done = await rig.run("dump", call_id="call/1")

    file = rig.home / ".rookery/results/call_1"
    assert file.read_text() == whole
    assert f"All of it is in {file}" in done.value["output"]
    assert len(done.value["output"].encode()) <= 20_000
    # Each of the two results fits, but not both together.
    rig.extra = [make_tool("dump", "", arguments=Dump, handler=partial(_dump, whole[:19_000]))]
    for name, each in zip("34", await rig.run_all(*(rig.call("dump", call_id=n) for n in "34")), strict=True):
        assert f"All of it is in {rig.home}/.rookery/results/{name}" in each.value["output"]
        assert (rig.home / ".rookery/results" / name).read_text() == whole[:19_000]
    rig.directory.status = "stopped"
    rig.workspaces.clear()
    rig.extra = [make_tool("dump", "", arguments=Dump, handler=partial(_dump, whole))]
    without = await rig.run("dump", call_id="call/2")
    assert "Narrow the query" in without.value["output"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"command": "  "}, "empty"),
        ({"command": "&"}, "empty"),
        ({"command": "ls", "timeout": "soon"}, "1h30m"),
        ({"command": "ls", "timeout": "0s"}, "more than 0"),
        ({"command": "pwd", "workdir": "relative"}, "absolute"),
        ({"command": "pwd", "workdir": "/no/such/place"}, "/no/such/place"),
        ({"command": "a\0b"}, "command"),
        ({}, "command"),
    ],
)
async def test_call_that_makes_no_sense_is_refused(rig: ToolsRig, args: dict[str, Any], words: str) -> None:
    assert words in (await rig.run("execute", **args)).error


async def test_unknown_signal_is_refused_and_not_sent(rig: ToolsRig) -> None:
    started = await rig.run("execute", command="sleep 1000", run_in_background=True)
    process_id = started.value["background_process_id"]

    told = [await rig.run("process_signal", process_id=process_id, signal=each) for each in ("HUP", "9", "")]
    running = await rig.run("process_output", process_id=process_id, wait_timeout="0s")
    await rig.run("process_signal", process_id=process_id, signal="kill")

    assert all("terminate" in done.error for done in told)
    assert running.value["running"]


async def test_daemon_does_not_hold_up_the_command_that_made_it(rig: ToolsRig) -> None:
    command = "(setsid sh -c 'exec >/dev/null 2>&1; sleep 1000' &); echo started"

    done = await rig.run("execute", command=command, timeout="60s")

    assert (done.value["exit_code"], done.value["output"]) == (0, "started\n")


async def test_notes_tell_of_long_timeouts_and_better_tools(rig: ToolsRig) -> None:
    done = await rig.run("execute", command="cat /dev/null", timeout="5h")
    number = await rig.run("execute", command="true", timeout=1_800_000)

    assert "cut to 1h" in done.value["note"]
    assert "cut to 1h" in number.value["note"]
    assert "read_file" in done.value["note"]


async def test_output_is_shown_while_the_command_runs(rig: ToolsRig) -> None:
    go = rig.home / "go"
    task = rig.start("execute", command=f"echo first; until [ -e {go} ]; do sleep 0.05; done", timeout="60s")

    def shown() -> str:
        results = [part for _, part in rig.shown.all if isinstance(part, parts.ToolResult)]
        return "".join(part.result_delta or "" for part in results)

    await until(lambda: "first" in shown(), timeout=PATIENCE)
    assert not task.done()
    go.touch()
    await task


# Replays


async def test_call_run_again_attaches_to_the_command_that_runs(rig: ToolsRig) -> None:
    marks, go = rig.home / "marks", rig.home / "go"
    command = f"date >> {marks}; until [ -e {go} ]; do sleep 0.05; done; echo done"
    first = rig.start("execute", call_id="same", command=command, timeout="120s")
    await until(marks.exists, timeout=PATIENCE)

    await rig.cancel(first, CancelReason.LEASE_LOST)
    second = rig.start("execute", call_id="same", command=command, timeout="120s")
    go.touch()
    (result,) = await second

    assert len(marks.read_text().splitlines()) == 1
    assert b"done" in bytes(result.result.result)  # type: ignore[arg-type]


async def test_call_run_again_after_the_end_gives_the_recorded_result(rig: ToolsRig) -> None:
    marks = rig.home / "marks"
    first = await rig.run("execute", call_id="same", command=f"echo x | tee -a {marks}", timeout="60s")

    again = await rig.run("execute", call_id="same", command=f"echo x | tee -a {marks}", timeout="60s")

    assert again.value == first.value
    assert marks.read_text() == "x\n"


class Later(SystemClock):
    """The clock of a replica that takes over after an hour."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def test_timeout_of_a_call_run_again_counts_from_the_start_of_the_command(rig: ToolsRig) -> None:
    done = await rig.run("execute", call_id="same", command="sleep 1000", timeout="200ms")
    rig.clock = Later()

    again = await asyncio.wait_for(rig.run("execute", call_id="same", command="sleep 1000", timeout="50m"), PATIENCE)

    assert again.value["error"] == "timed out after 50m"
    assert again.value["background_process_id"] == done.value["background_process_id"]


async def test_command_lost_with_its_agent_has_an_unknown_outcome(rig: ToolsRig) -> None:
    marks = rig.home / "marks"
    first = rig.start("execute", call_id="same", command=f"date >> {marks}; sleep 100", timeout="120s")
    await until(marks.exists, timeout=PATIENCE)
    rig.agent.kill()
    await rig.agent.start(generation=2)
    (result,) = await first

    again = await rig.run("execute", call_id="same", command=f"date >> {marks}; sleep 100", timeout="120s")

    assert result.is_error
    assert "outcome is unknown" in again.error
    assert len(marks.read_text().splitlines()) == 1


async def test_command_whose_workspace_went_away_keeps_its_id(rig: ToolsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_WAIT_SECONDS", 0.1)
    begun = rig.home / "begun"
    task = rig.start("execute", command=f"touch {begun}; sleep 1000", timeout="10m")
    await until(begun.exists, timeout=PATIENCE)
    (running,) = (await rig.run("process_list")).value["processes"]

    rig.directory.status = "stopped"
    rig.workspace().forget(await rig.workspace().conn())
    (result,) = await asyncio.wait_for(task, PATIENCE)

    assert result.is_error
    told = value_of(result)["error"]
    assert f"process {running['id']}" in told
    assert "start_workspace" in told


# Cancelling


async def test_interrupt_of_the_user_ends_foreground_commands_and_leaves_background_ones(rig: ToolsRig) -> None:
    front, back = rig.home / "front", rig.home / "back"
    await rig.run("execute", command=f"echo $$ > {back}; sleep 1000", run_in_background=True)
    task = rig.start("execute", command=f"echo $$ > {front}; sleep 1000", timeout="10m")
    await until(lambda: front.exists() and front.read_text() and back.exists() and back.read_text(), timeout=PATIENCE)

    await rig.cancel(task, CancelReason.USER)

    await until(lambda: not is_alive(front), timeout=PATIENCE)
    assert is_alive(back)


async def test_output_of_a_stopped_command_is_its_result(rig: ToolsRig) -> None:
    shown = rig.home / "shown"
    command = f"trap 'echo cleaned up; exit 3' TERM; echo one; echo two; touch {shown}; while :; do sleep 0.1; done"
    task = rig.start("execute", command=command, timeout="10m")
    await until(shown.exists, timeout=PATIENCE)

    await rig.cancel(task, CancelReason.USER)

    (result,) = rig.shown.results()
    assert result.is_error
    assert isinstance(result.result, msgspec.Raw)
    value = parts.json_value(result.result)
    assert value["output"].startswith("one\ntwo\n")
    assert value["output"].endswith("cleaned up\n")
    assert value["reason"] == "interrupted"
    assert value["wall_duration_ms"] > 0
    assert re.fullmatch(r"Stopped by the user after \d+\.\d s\. Its output so far is in `output`\.", value["error"])


async def test_command_that_ignores_the_request_to_end_is_killed(rig: ToolsRig) -> None:
    pid = rig.home / "pid"
    task = rig.start("execute", command=f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done", timeout="10m")
    await until(lambda: pid.exists() and pid.read_text(), timeout=PATIENCE)

    await rig.cancel(task, CancelReason.USER)

    await until(lambda: not is_alive(pid), timeout=PATIENCE)


@pytest.mark.parametrize("reason", [CancelReason.LEASE_LOST, CancelReason.SHUTDOWN, CancelReason.SUPERSEDED])
async def test_other_reasons_leave_the_command_alone(rig: ToolsRig, reason: CancelReason) -> None:
    pid = rig.home / "pid"
    task = rig.start("execute", command=f"echo $$ > {pid}; sleep 1000", timeout="10m")
    await until(lambda: pid.exists() and pid.read_text(), timeout=PATIENCE)

    await rig.cancel(task, reason)

    assert is_alive(pid)
    assert [each["running"] for each in (await rig.run("process_list")).value["processes"]] == [True]


@pytest.mark.parametrize(
    ("reason", "is_background", "survives"),
    [(CancelReason.USER, False, False), (CancelReason.USER, True, True), (CancelReason.LEASE_LOST, False, True)],
)
async def test_command_cancelled_before_its_start_was_answered(
    rig: ToolsRig, monkeypatch: pytest.MonkeyPatch, reason: CancelReason, is_background: bool, survives: bool
) -> None:
    """The caller does not know the process id yet. It waits for the id if the process has to be terminated."""
    pid, answer, start = rig.home / "pid", asyncio.Event(), AgentConn.start_process

    async def start_slowly(self: AgentConn, wanted: StartProcess, **options: Any) -> StartedProcess:
        started = await start(self, wanted, **options)
        await answer.wait()
        return started

    monkeypatch.setattr(AgentConn, "start_process", start_slowly)
    command = f"echo $$ > {pid}; sleep 1000"
    task = rig.start("execute", command=command, timeout="10m", run_in_background=is_background)
    await until(lambda: pid.exists() and pid.read_text(), timeout=PATIENCE)
    cancelling = asyncio.create_task(rig.cancel(task, reason))
    asyncio.get_running_loop().call_soon(answer.set)
    await cancelling

    if survives:
        assert is_alive(pid)
    else:
        await until(lambda: not is_alive(pid), timeout=PATIENCE)


# The read-only view


async def test_planning_in_a_workspace_that_cannot_protect_its_files_says_so(rig: ToolsRig) -> None:
    rig.column = Column.ROOT_PLAN

    done = await rig.run("execute", command="echo looked", timeout="60s")
    again = await rig.run("execute", call_id="same", command="echo x", timeout="60s")
    replayed = await rig.run("execute", call_id="same", command="echo x", timeout="60s")

    assert done.value["output"] == "looked\n"
    assert "cannot protect" in done.value["note"]
    assert replayed.value == again.value


@requires("bwrap")
@pytest.mark.parametrize("column", [Column.ROOT_PLAN, Column.CHILD_PLAN, Column.EXPLORE])
async def test_planning_and_exploring_commands_cannot_change_files(column: Column) -> None:
    config = {"nested": True, "bwrap": shutil.which("bwrap")}
    async with open_hands(config=config, column=column) as rig:
        done = await rig.run("execute", command=f"echo x > {rig.home}/x || echo refused", timeout="60s")

        if "cannot protect" in done.value.get("note", ""):
            pytest.skip("this machine has no nested sandboxes")
        assert "refused" in done.value["output"]
        assert not (rig.home / "x").exists()
