"""The scripts of the template, and the shutdown of the agent, after which no process of the workspace is left."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import PATIENCE_S, Rig


def give_script(rig: Rig, name: str, text: str, *, timeout_s: float = 50) -> None:
    path = rig.run_dir / f"{name}.sh"
    path.write_text(text)
    rig.config[name] = {"script": str(path), "timeout_s": timeout_s}


async def state(rig: Rig) -> Any:
    return (await rig.get("/v1/health"))["agent_state"]


async def is_ready(rig: Rig) -> bool:
    return bool((await rig.get("/v1/health"))["ready"])


async def ended_startup(rig: Rig) -> Any:
    await until(lambda: is_ready(rig), timeout=PATIENCE_S)
    return await rig.get("/v1/health")


async def has_ended(rig: Rig) -> None:
    assert rig.process is not None
    process = rig.process
    await until(lambda: process.poll() is not None, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "timeout_s", "expected", "code"),
    [
        ("echo made > made; pwd", 50, "ready", 0),
        ("echo broken; exit 3", 50, "script_failed", 3),
        ("#!/bin/sh -e\nfalse\ntrue\n", 50, "script_failed", 1),
        ("#!/usr/bin/env python3\nprint('python')\n", 50, "ready", 0),
        ("#!/no/such/interpreter\n", 50, "script_failed", None),
        ("trap '' TERM; while :; do sleep 0.05; done", 0.2, "script_timeout", 137),
        ("sleep 1000", 0.2, "script_timeout", 143),
    ],
)
async def test_startup_script_decides_the_state_and_never_the_use(
    text: str, timeout_s: float, expected: str, code: int | None
) -> None:
    async with rigs.rig() as rig:
        give_script(rig, "startup", text, timeout_s=timeout_s)
        await rig.start()

        health = await ended_startup(rig)

        assert (health["agent_state"], health["startup_exit_code"]) == (expected, code)
        assert (await rig.run("echo usable"))["output"] == "usable\n"


async def test_startup_script_is_followed_by_its_log() -> None:
    async with rigs.rig({"parameters": {"colour": "red"}, "env": {"A": "b"}}) as rig:
        gate = rig.root / "gate"
        os.mkfifo(gate)
        give_script(rig, "startup", f"echo begun $A $ROOKERY_PARAM_colour; cat {gate}; echo over; exit 4")
        await rig.start()

        first = await rig.get("/v1/scripts/log?since=0&wait_s=50")
        early = await rig.get("/v1/health")
        gate.write_text("")
        await ended_startup(rig)
        rest = await rig.get(f"/v1/scripts/log?since={first['cursor']}")
        whole = await rig.get("/v1/scripts/log")
        asked = await rig.post("/v1/scripts/startup", {})

    assert (first["output"], first["running"], first["agent_state"]) == ("begun b red\n", True, "starting")
    assert (early["agent_state"], early["ready"]) == ("starting", False)
    assert (rest["output"], rest["running"], rest["exit_code"]) == ("over\n", False, 4)
    assert whole["output"] == "begun b red\nover\n"
    assert asked == {"agent_state": "script_failed", "exit_code": 4}


async def test_startup_script_gets_secrets_by_a_descriptor_and_nowhere_else() -> None:
    value = 'it\'s $HOME; `rm` \n"two" lines'
    async with rigs.rig({"secrets": ["key", "repo"]}) as rig:
        give_script(
            rig,
            "startup",
            '. "/dev/fd/$ROOKERY_SECRETS_FD"\n'
            'printf %s "$ROOKERY_SECRET_key" > key\n'
            'echo "the repo is $ROOKERY_SECRET_repo"\n'
            'env > env; tr "\\0" "\\n" < /proc/$$/environ > environ\n',
        )
        await rig.start()
        early = await rig.get("/v1/health")
        answers = [
            await rig.ask("POST", "/v1/secrets", json=body)
            for body in (
                {"secrets": {"key": "x"}},
                {"secrets": {"key": "x", "repo": 3}},
                {"secrets": ["key", "repo"]},
                {"secrets": {"key": value, "repo": "https://me:hunter2@h/"}},
                {"secrets": {"key": value, "repo": "again"}},
            )
        ]
        health = await ended_startup(rig)
        log = await rig.get("/v1/scripts/log")
        command = await rig.run('env; ls /proc/self/fd | wc -l; cat /dev/fd/"${ROOKERY_SECRETS_FD:-none}"')

        assert early["agent_state"] == "starting"
        assert [each.status for each in answers] == [400, 400, 400, 200, 409]
        assert (health["agent_state"], health["startup_exit_code"]) == ("ready", 0)
        assert (rig.directory / "key").read_text() == value
        assert log["output"] == f"the repo is {'*' * len('https://me:hunter2@h/')}\n"
        for place in ("env", "environ"):
            assert "hunter2" not in (rig.directory / place).read_text()
        assert "SECRET" not in command["output"]
        kept = [path for path in rig.root.rglob("*") if path.is_file() and path.name != "key"]
        assert not [path for path in kept if b"hunter2" in path.read_bytes()]


async def test_workspace_that_waits_for_its_secrets_can_be_used() -> None:
    async with rigs.rig({"secrets": ["key"]}) as rig:
        await rig.start()

        assert (await rig.get("/v1/health"))["agent_state"] == "starting"
        assert (await rig.run("echo usable"))["output"] == "usable\n"


async def test_log_says_when_a_script_was_ended() -> None:
    async with rigs.rig() as rig:
        give_script(rig, "startup", "echo begun; sleep 1000", timeout_s=0.3)
        await rig.start()
        await ended_startup(rig)

        log = await rig.get("/v1/scripts/log")

        assert "0.3 seconds" in log["error"]
        assert (await rig.ask("GET", "/v1/scripts/log?name=other")).status == 400


async def test_startup_script_runs_once_in_a_generation() -> None:
    async with rigs.rig() as rig:
        give_script(rig, "startup", "echo x >> runs; exit 3")
        await rig.start()
        await ended_startup(rig)
        rig.kill()
        await rig.start()
        again = await ended_startup(rig)
        rig.kill()
        after_second = (rig.directory / "runs").read_text()
        await rig.start(generation=2)
        await ended_startup(rig)

        assert after_second == "x\n"
        assert (again["agent_state"], again["startup_exit_code"]) == ("script_failed", 3)
        assert (rig.directory / "runs").read_text() == "x\nx\n"


async def test_working_directory_is_made_at_the_first_start() -> None:
    async with rigs.rig() as rig:
        rig.directory.rmdir()
        await rig.start()

        assert (await rig.run("pwd"))["output"] == f"{rig.directory}\n"


async def test_shutdown_runs_its_script_and_leaves_nothing() -> None:
    async with rigs.rig() as rig:
        give_script(rig, "shutdown", "echo bye > bye")
        await rig.start()
        await rig.post("/v1/processes", {"command": "sleep 1000"}, key="k")
        await rig.run("(setsid sh -c 'exec >/dev/null 2>&1; sleep 1000; :' &) ; (setsid sleep 1000 >/dev/null 2>&1 &)")
        await until(lambda: len(rig.below()) >= 4, timeout=PATIENCE_S)
        left = rig.below()

        answer = await rig.ask("POST", "/v1/shutdown", json={"grace_s": 30})
        await has_ended(rig)

        assert (answer.status, answer.json) == (202, {"stopping": True})
        assert rig.process is not None
        assert rig.process.returncode == 0
        assert (rig.directory / "bye").read_text() == "bye\n"
        assert not [pid for pid in left if is_running(pid)]

        await rig.disconnect()
        await rig.start(generation=2)
        ended = await rig.ask("POST", "/v1/processes", json={"command": "sleep 1000"}, key="k")
        shown = await rig.output(ended.json["id"])
        assert (shown["exit_code"], shown["signal"]) == (143, signal.SIGTERM)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


async def test_shutdown_kills_what_ignores_it_and_cuts_its_script_short() -> None:
    async with rigs.rig() as rig:
        give_script(rig, "shutdown", "sleep 1000")
        await rig.start()
        process = await rig.post("/v1/processes", {"command": "trap '' TERM; echo ready; while :; do sleep 0.1; done"})
        await rig.get(f"/v1/processes/{process['id']}/output?since=0&wait_s=50")
        left = rig.below()

        await rig.post("/v1/shutdown", {"grace_s": 0.2})
        refused = await rig.ask("POST", "/v1/processes", json={"command": "true"})
        await has_ended(rig)

        assert (refused.status, refused.code) == (409, "stopping")
        assert left
        assert not [pid for pid in left if is_running(pid)]


@pytest.mark.parametrize("body", [{"grace_s": -1}, {"grace_s": "5"}, {"grace_s": True}, {"grace": 5}])
async def test_wrong_shutdown_is_refused_and_nothing_ends(shared: Rig, body: dict[str, Any]) -> None:
    assert (await shared.ask("POST", "/v1/shutdown", json=body)).status == 400
    assert (await shared.run("echo alive"))["output"] == "alive\n"


async def test_terminate_from_outside_is_a_shutdown(rig: Rig) -> None:
    await rig.post("/v1/processes", {"command": "sleep 1000"})
    left = rig.below()

    assert rig.process is not None
    rig.process.terminate()
    await has_ended(rig)

    assert left
    assert not [pid for pid in left if is_running(pid)]


async def test_agent_ends_when_its_directory_is_removed(rig: Rig) -> None:
    await rig.post("/v1/processes", {"command": "sleep 1000"})
    left = rig.below()

    shutil.rmtree(rig.run_dir)
    await has_ended(rig)

    assert left
    assert not [pid for pid in left if is_running(pid)]
