"""The read-only view of a workspace: a nested sandbox where only plans and a scratch /tmp can be written.

The run directory is hidden in it: with the token there, a command could make the agent write on its behalf.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rookery.workspaces.agent import config
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.state import Agent

PROBE_S = 20.0
SCRATCH = "/tmp"  # noqa: S108 - that of the view, made for each command
# With its own processes where the kernel lets a nested sandbox mount /proc, else with those of the workspace.
_VARIANTS = (("--unshare-pid", "--proc", "/proc"), ())


async def wrap(agent: Agent, arguments: Sequence[str], *, workdir: str) -> list[str]:
    """Return the command line that runs `arguments` in the view. Raises 409 when this workspace cannot have one."""
    prefix = await _prefix(agent)
    return [*prefix, "--chdir", workdir, "--", *arguments]


def plan_dir(agent: Agent) -> str:
    return agent.config.plan_dir or os.path.join(agent.config.home, ".rookery", "plans")


async def _prefix(agent: Agent) -> list[str]:
    if agent.read_only_prefix is not None:
        return agent.read_only_prefix
    if not agent.config.nested or agent.config.bwrap is None:
        raise _impossible("nested sandboxes are switched off for this workspace")
    plans = plan_dir(agent)
    reason = ""
    try:
        os.makedirs(plans, exist_ok=True)
        for variant in _VARIANTS:
            prefix = [agent.config.bwrap, *_mounts(agent, plans), *variant, "--die-with-parent"]
            done = await agent.children.run(
                [*prefix, "--", "sh", "-c", ":"], cwd="/", env=config.environment(agent.config), timeout_s=PROBE_S
            )
            if done.code == 0:
                agent.read_only_prefix = prefix
                return prefix
            reason = done.errors.decode("utf-8", "replace").strip()[-500:] or f"bubblewrap ended with {done.code}"
    except OSError as error:
        reason = str(error)
    raise _impossible(reason)


def _mounts(agent: Agent, plans: str) -> list[str]:
    """Return the mount arguments; later ones cover earlier ones."""
    mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", SCRATCH]
    for path in (agent.config.home, agent.config.directory):
        if os.path.isdir(path) and os.path.realpath(path).startswith(SCRATCH + "/"):
            mounts += ["--ro-bind", path, path]  # the scratch /tmp would cover an unconfined workspace below /tmp
    mounts += ["--bind", plans, plans]
    return [*mounts, "--tmpfs", str(agent.run_dir), "--remount-ro", str(agent.run_dir)]


def _impossible(reason: str) -> AgentError:
    message = "This workspace cannot run a command in a read-only view, so it was not run."
    return AgentError(409, "read_only_unavailable", message, detail=reason)
