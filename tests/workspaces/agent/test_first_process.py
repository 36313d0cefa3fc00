"""The agent as the first process of a sandbox: no process inside can end it, and all of them end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.eventually import until
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import PATIENCE_S, Rig


@pytest.fixture
async def confined() -> AsyncIterator[Rig]:
    program = rigs.bubblewrap()
    async with rigs.rig() as made:
        own = str(made.root)
        made.around = [program, "--unshare-user", "--unshare-pid", "--as-pid-1", "--ro-bind", "/", "/", "--dev", "/dev"]
        made.around += ["--proc", "/proc", "--bind", own, own, "--die-with-parent", "--"]
        await made.start()
        yield made


async def test_nothing_inside_can_end_the_agent(confined: Rig) -> None:
    assert confined.record()["pid"] == 1
    for number in ("INT", "TERM", "HUP", "QUIT", "USR1", "PIPE", "SEGV", "KILL", "STOP"):
        await confined.run(f"kill -{number} 1")
    await confined.post("/v1/processes", {"command": "sleep 1000"})

    await confined.run("pkill -9 python3; kill -9 -1")

    async def all_are_reaped() -> bool:
        return bool((await confined.get("/v1/health"))["processes"] == 0)

    assert (await confined.run("echo alive"))["output"] == "alive\n"
    await until(all_are_reaped, timeout=PATIENCE_S)


async def test_orphans_are_reaped(confined: Rig) -> None:
    await confined.run("for i in 1 2 3; do (setsid sh -c 'sleep 0.05' >/dev/null 2>&1 &) ; done")

    async def only_the_agent() -> bool:
        shown = await confined.run("for d in /proc/[0-9]*; do cut -d' ' -f3 $d/stat; done 2>/dev/null")
        return "Z" not in shown["output"]

    await until(only_the_agent, timeout=PATIENCE_S)


async def test_shutdown_ends_daemons_too(confined: Rig) -> None:
    await confined.run("(setsid sleep 1000 >/dev/null 2>&1 &)")
    await until(lambda: len(confined.below()) >= 2, timeout=PATIENCE_S)  # the agent below bwrap, and the daemon

    await confined.post("/v1/shutdown", {})
    assert confined.process is not None
    process = confined.process
    await until(lambda: process.poll() is not None, timeout=PATIENCE_S)

    assert process.returncode == 0
    assert not confined.below()
