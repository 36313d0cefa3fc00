"""The read-only view of a workspace: a nested sandbox in which only plans and a temporary /tmp can be written.

The run directory is hidden, because it contains the token, with which a command could write files through the agent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rookery.workspaces.agent import config
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.shared_state import Agent

PROBE_S = 20.0
SCRATCH = "/tmp"  # noqa: S108 - a mount of the view, made for each command
# The first variant has its own /proc. Where the kernel forbids that, the view sees the processes of the workspace.
_VARIANTS = (("--unshare-pid", "--proc", "/proc"), ())


async def wrap(agent: Agent, arguments: Sequence[str], *, workdir: str) -> list[str]:
    """Return the command line that runs `arguments` in the view. Raise 409 if this workspace has no view."""
    prefix = await _prefix(agent)
    return [*prefix, "--chdir", workdir, "--", *arguments]


def plan_dir(agent: Agent) -> str:
    return agent.config.plan_dir or os.path.join(agent.config.home, ".rookery", "plans")


async def _prefix(agent: Agent) -> list[str]:
    if agent.read_only_prefix is not None:
        return agent.read_only_prefix
    if not agent.config.nested or agent.config.bwrap is None:
        raise _unavailable("nested sandboxes are disabled for this workspace")
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
    raise _unavailable(reason)


def _mounts(agent: Agent, plans: str) -> list[str]:
    """Return the mount arguments. Later mounts cover earlier ones."""
    mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", SCRATCH]
    for path in (agent.config.home, agent.config.directory):
        if os.path.isdir(path) and os.path.realpath(path).startswith(SCRATCH + "/"):
            mounts += [
                "--ro-bind",
                path,
                path,
            ]  # otherwise the temporary /tmp would cover an unconfined workspace that is below /tmp
    mounts += ["--bind", plans, plans]
    return [*mounts, "--tmpfs", str(agent.run_dir), "--remount-ro", str(agent.run_dir)]


def _unavailable(reason: str) -> AgentError:
    message = "This workspace cannot run a command in a read-only view, so it was not run."
    return AgentError(409, "read_only_unavailable", message, detail=reason)
