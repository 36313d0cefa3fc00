"""Commands in a real agent: start, output, end, and which chats may access them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import PATIENCE_S, Rig


async def start(rig: Rig, command: str, **given: Any) -> str:
    body = {name: given.pop(name) for name in ("workdir", "env", "background", "read_only") if name in given}
    return str((await rig.post("/v1/processes", {"command": command, **body}, **given))["id"])


async def test_command_runs_in_the_working_directory_and_its_output_is_merged(rig: Rig) -> None:
    shown = await rig.run("echo out; echo err >&2; pwd; cat")

    assert shown["output"] == f"out\nerr\n{rig.directory}\n"
    assert (shown["exit_code"], shown["running"]) == (0, False)
    assert "truncated" not in shown
    assert "signal" not in shown
    assert shown["cursor"] == len(shown["output"])
    assert shown["started_at"] <= shown["exited_at"]


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [
        ("true", 0, None),
        ("exit 1", 1, None),
        ("exit 42", 42, None),
        ("exit 255", 255, None),
        ("kill -9 $$", 137, 9),
        ("kill -TERM $$", 143, 15),
        ("kill -SEGV $$", 139, 11),
        ("kill -INT $$", 130, 2),
        ("kill -PIPE $$", 141, 13),
        ("no-such-program", 127, None),
        ("/", 126, None),
        ("if", 2, None),
        ("sh -c 'kill -9 $$'", 137, None),
    ],
)
async def test_exit_code_of_every_kind_of_end(shared: Rig, command: str, code: int, number: int | None) -> None:
    shown = await shared.run(command)

    if number is None and code == 137:
        assert shown["exit_code"] == 137  # dash runs the last command in its own place
    else:
        assert (shown["exit_code"], shown.get("signal")) == (code, number)


async def test_environment_is_clean_and_later_sources_win() -> None:
    settings = {"env": {"A": "template", "B": "template", "C": "template"}, "parameters": {"size": 3, "on": True}}
    async with rigs.rig(settings) as rig:
        await rig.start()

        shown = await rig.run("env | sort", chat="c1", env={"B": "request", "ROOKERY_CHAT_ID": "forged"})

    lines = dict(line.split("=", 1) for line in shown["output"].splitlines())
    assert (lines["A"], lines["B"], lines["C"]) == ("template", "request", "template")
    assert (lines["ROOKERY_PARAM_size"], lines["ROOKERY_PARAM_on"]) == ("3", "true")
    assert lines["ROOKERY_CHAT_ID"] == "c1"
    assert lines["HOME"] == str(rig.home)
    names = {name for name in lines if not name.startswith("ROOKERY_")}
    assert names <= {"A", "B", "C", "HOME", "PATH", "LANG", "TMPDIR", "SHELL", "TZ", "USER", "LOGNAME", "PWD", "_"}


async def test_directory_that_was_asked_for_must_exist(shared: Rig) -> None:
    (shared.home / "elsewhere").mkdir(exist_ok=True)
    file = shared.home / "a-file"
    file.write_text("")

    assert (await shared.run("pwd", workdir=str(shared.home / "elsewhere")))["output"].endswith("/elsewhere\n")
    assert (await shared.run("pwd", workdir="~/elsewhere"))["output"].endswith("/elsewhere\n")
    for wrong in ("relative", "/no/such/directory", str(file), "a\x00b", 7):
        answer = await shared.ask("POST", "/v1/processes", json={"command": "true", "workdir": wrong})
        assert (answer.status, answer.json["fields"][0]["field"]) == (400, "workdir")


async def test_without_its_directory_a_workspace_starts_commands_at_home(rig: Rig) -> None:
    rig.directory.rmdir()

    assert (await rig.run("pwd"))["output"] == f"{rig.home}\n"


async def test_all_waiters_are_answered_at_the_end(rig: Rig) -> None:
    process = await start(rig, f"mkfifo {rig.root}/gate; cat {rig.root}/gate")
    waits = [asyncio.create_task(rig.get(f"/v1/processes/{process}/output?wait_s=50")) for _ in range(20)]
    await until((rig.root / "gate").exists, timeout=PATIENCE_S)
    assert not any(wait.done() for wait in waits)

    await asyncio.to_thread((rig.root / "gate").write_text, "done\n")
    shown = await asyncio.gather(*waits)

    assert [item["output"] for item in shown] == ["done\n"] * 20
    assert not any(item["running"] for item in shown)


async def test_wait_ends_with_a_snapshot_of_what_still_runs(rig: Rig) -> None:
    process = await start(rig, "echo begun; sleep 1000")
    await until(lambda: printed(rig, process, "begun\n"), timeout=PATIENCE_S)

    shown = await rig.get(f"/v1/processes/{process}/output?wait_s=0.05")

    assert (shown["running"], shown["output"]) == (True, "begun\n")
    assert "exit_code" not in shown
    assert "exited_at" not in shown


async def printed(rig: Rig, process: str, text: str) -> bool:
    return text in (await rig.get(f"/v1/processes/{process}/output"))["output"]


async def test_cursor_gives_only_what_is_new_and_waits_for_it(rig: Rig) -> None:
    gate = rig.root / "gate"
    os.mkfifo(gate)
    process = await start(rig, f"printf one; cat {gate}; sleep 1000")
    first = await rig.get(f"/v1/processes/{process}/output?since=0&wait_s=50")
    second = asyncio.create_task(rig.get(f"/v1/processes/{process}/output?since={first['cursor']}&wait_s=50"))
    await asyncio.to_thread(gate.write_bytes, "zwei €".encode()[:-1])  # the last character is not whole yet
    shown = await second

    assert (first["output"], first["cursor"]) == ("one", 3)
    assert (shown["output"], shown["cursor"]) == ("zwei ", 8)
    assert "gap" not in shown
    beyond = await rig.ask("GET", f"/v1/processes/{process}/output?since=100")
    assert beyond.status == 400


async def test_client_that_leaves_does_not_end_its_command(rig: Rig) -> None:
    gate = rig.root / "gate"
    os.mkfifo(gate)
    process = await start(rig, f"cat {gate}")
    wait = asyncio.create_task(rig.get(f"/v1/processes/{process}/output?wait_s=50"))
    await asyncio.sleep(0)
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)

    await asyncio.to_thread(gate.write_text, "still here\n")

    assert (await rig.output(process))["output"] == "still here\n"


async def test_hundred_mebibytes_stay_in_bounds_and_end_with_the_last_line(rig: Rig) -> None:
    began = time.monotonic()
    shown = await rig.run("head -c 104857600 /dev/zero | tr '\\0' x | fold -w 79; echo; echo the last line")

    assert time.monotonic() - began < PATIENCE_S
    assert len(shown["output"].encode()) <= 32 * 1024
    assert shown["output"].startswith("xxx")
    assert shown["output"].endswith("\nthe last line\n")
    assert shown["truncated"]["original_bytes"] == shown["cursor"] > 104857600
    assert shown["truncated"]["omitted_bytes"] == shown["cursor"] - shown["truncated"]["retained_bytes"]
    assert rig.process is not None
    assert peak_kb(rig.process.pid) < 100 * 1024


def peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def test_command_that_prints_for_ever_leaves_the_agent_answering(rig: Rig) -> None:
    process = await start(rig, "yes")
    await until(lambda: has_dropped(rig, process), timeout=PATIENCE_S)

    shown = await rig.get(f"/v1/processes/{process}/output?since=0")
    await rig.post(f"/v1/processes/{process}/signal", {"signal": "kill"})
    ended = await rig.output(process)

    assert shown["gap"] > 0
    assert len(shown["output"]) <= 256 * 1024
    assert set(shown["output"]) <= {"y", "\n"}
    assert ended["exit_code"] == 137


async def has_dropped(rig: Rig, process: str) -> bool:
    return "truncated" in await rig.get(f"/v1/processes/{process}/output")


async def test_output_that_is_no_text_is_shown_as_text(shared: Rig) -> None:
    shown = await shared.run(r"printf 'a\377\376b\000c\n'; printf '\342\202'")

    assert shown["output"] == "a��b\x00c\n�"


async def test_signals_reach_the_whole_group(rig: Rig) -> None:
    process = await start(rig, "sleep 1000 & sleep 1000 & echo ready; wait")
    await until(lambda: printed(rig, process, "ready\n"), timeout=PATIENCE_S)

    await rig.post(f"/v1/processes/{process}/signal", {"signal": "terminate"})
    shown = await rig.output(process)

    assert (shown["exit_code"], shown["signal"]) == (143, signal.SIGTERM)
    await until(lambda: not rig.below(), timeout=PATIENCE_S)


async def test_command_that_ignores_terminate_is_ended_by_kill(rig: Rig) -> None:
    process = await start(rig, "trap 'echo not me' TERM; echo ready; while :; do sleep 0.01; done")
    await until(lambda: printed(rig, process, "ready\n"), timeout=PATIENCE_S)

    await rig.post(f"/v1/processes/{process}/signal", {"signal": "terminate"})
    await until(lambda: printed(rig, process, "not me\n"), timeout=PATIENCE_S)
    assert (await rig.get(f"/v1/processes/{process}/output"))["running"]
    await rig.post(f"/v1/processes/{process}/signal", {"signal": "kill"})

    assert (await rig.output(process))["exit_code"] == 137


async def test_signal_of_what_is_not_there_or_not_known_is_refused(shared: Rig) -> None:
    ended = await shared.run("true")
    refused = {
        "gone": await shared.ask("POST", f"/v1/processes/{ended['id']}/signal", json={"signal": "kill"}),
        "unknown": await shared.ask("POST", "/v1/processes/nope/signal", json={"signal": "kill"}),
        "strange": await shared.ask("POST", f"/v1/processes/{ended['id']}/signal", json={"signal": "HUP"}),
        "number": await shared.ask("POST", f"/v1/processes/{ended['id']}/signal", json={"signal": 9}),
    }

    statuses = {name: answer.status for name, answer in refused.items()}
    assert statuses == {"gone": 409, "unknown": 404, "strange": 400, "number": 400}


async def test_pipe_held_by_a_daemon_is_closed_and_the_daemon_adopted(rig: Rig) -> None:
    shown = await rig.run("(setsid sleep 1000 &) ; echo started")

    assert shown["output"] == "started\n"
    assert 4.5 <= shown["exited_at"] - shown["started_at"] < PATIENCE_S
    await until(lambda: len(rig.below()) == 1, timeout=PATIENCE_S)


async def test_orphans_that_end_are_not_left_as_zombies(rig: Rig) -> None:
    await rig.run("for i in 1 2 3 4 5; do (setsid sh -c 'exec >/dev/null 2>&1; sleep 0.05' &) ; done >/dev/null 2>&1")

    await until(lambda: not rig.below(), timeout=PATIENCE_S)


async def test_processes_of_another_chat_are_not_found(shared: Rig) -> None:
    mine = await start(shared, "true", chat="chat-mine")

    seen = {
        "own": await shared.ask("GET", f"/v1/processes/{mine}/output", chat="chat-mine"),
        "other": await shared.ask("GET", f"/v1/processes/{mine}/output", chat="chat-other"),
        "parent": await shared.ask("GET", f"/v1/processes/{mine}/output", chat="chat-other", ancestors=["chat-mine"]),
        "server": await shared.ask("GET", f"/v1/processes/{mine}/output"),
        "signal": await shared.ask("POST", f"/v1/processes/{mine}/signal", chat="chat-other", json={"signal": "kill"}),
    }

    statuses = {name: answer.status for name, answer in seen.items()}
    assert statuses == {"own": 200, "other": 404, "parent": 404, "server": 200, "signal": 404}
    assert (await shared.get("/v1/processes", chat="chat-other"))["processes"] == []
    assert [item["id"] for item in (await shared.get("/v1/processes", chat="chat-mine"))["processes"]] == [mine]


async def test_list_has_running_ones_first_then_the_newest_and_ten_at_most(rig: Rig) -> None:
    sleeper = await start(rig, "sleep 1000", background=True)
    ended = [(await rig.run("true"))["id"] for _ in range(12)]
    second = await start(rig, "sleep 1001")

    listed = (await rig.get("/v1/processes"))["processes"]

    assert [item["id"] for item in listed] == [second, sleeper, *reversed(ended[4:])]
    assert [item["background"] for item in listed[:2]] == [False, True]
    assert listed[0]["workdir"] == str(rig.directory)


async def test_sixty_fifth_running_process_is_refused(rig: Rig) -> None:
    answers = await asyncio.gather(
        *(rig.ask("POST", "/v1/processes", json={"command": "sleep 1000"}) for _ in range(65))
    )

    assert sorted(answer.status for answer in answers) == [200] * 64 + [429]
    assert (await rig.get("/v1/health"))["processes"] == 64


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "command"),
        ({"command": ""}, "command"),
        ({"command": "  \n"}, "command"),
        ({"command": None}, "command"),
        ({"command": ["ls"]}, "command"),
        ({"command": "a\x00b"}, "command"),
        ({"command": "\ud800"}, "command"),
        ({"command": "true", "env": []}, "env"),
        ({"command": "true", "env": {"A": 1}}, "env"),
        ({"command": "true", "env": {"A=B": "1"}}, "env"),
        ({"command": "true", "env": {"": "1"}}, "env"),
        ({"command": "true", "env": {"A": "\x00"}}, "env"),
        ({"command": "true", "background": "yes"}, "background"),
        ({"command": "true", "read_only": 1}, "read_only"),
        ({"command": "true", "timeout": 5}, "timeout"),
    ],
)
async def test_wrong_start_is_refused_with_its_field(shared: Rig, body: dict[str, Any], field: str) -> None:
    answer = await shared.ask("POST", "/v1/processes", json=body)

    assert (answer.status, answer.code) == (400, "invalid")
    assert [item["field"] for item in answer.json["fields"]] == [field]
    assert f"`{field}`" in answer.json["message"]


async def test_command_longer_than_the_system_takes_is_refused_with_advice(shared: Rig) -> None:
    answer = await shared.ask("POST", "/v1/processes", json={"command": "true " + "x" * 200_000})

    assert (answer.status, answer.code) == (400, "command_too_long")
    assert "file" in answer.json["message"]


async def test_read_only_command_can_write_only_plans_and_scratch() -> None:
    async with rigs.rig({"nested": True, "bwrap": rigs.bubblewrap()}) as rig:
        await rig.start()
        command = (
            "touch here; touch ~/there; cat TOKEN; touch /tmp/scratch && echo scratch;"
            "touch ~/.rookery/plans/p && echo plan; pwd; exit 5"
        ).replace("TOKEN", str(rig.run_dir / "token"))

        shown = await rig.run(command, read_only=True)

        assert shown["output"].splitlines()[-3:] == ["scratch", "plan", str(rig.directory)]
        assert shown["exit_code"] == 5
        assert rigs.TOKEN not in shown["output"]
        assert (rig.home / ".rookery/plans/p").exists()
        assert not (rig.directory / "here").exists()
        assert not (rig.home / "there").exists()


async def test_without_nested_sandboxes_a_read_only_command_is_not_run(shared: Rig) -> None:
    answer = await shared.ask("POST", "/v1/processes", json={"command": "touch ran", "read_only": True})

    assert (answer.status, answer.code) == (409, "read_only_unavailable")
    assert not (shared.directory / "ran").exists()
