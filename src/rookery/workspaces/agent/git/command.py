"""Git commands that run no program which the repository has configured.

The agent reads diffs without a command of the user, and the configuration of a repository is untrusted. Therefore every
setting that names a program is overridden: hooks, fsmonitor, external diffs, text conversion, filters, and the programs
of a lazy fetch.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.process.children import Children, Completed

TIMEOUT_S = 20.0
_MAX_CONFIG_BYTES = 1024 * 1024
# Settings with a name of the repository's choice. Each has to be overridden separately.
_PROGRAMS = re.compile(
    r"(?P<section>filter|diff)\.(?P<name>.*)\.(clean|smudge|process|required|command|textconv)", re.DOTALL
)
_OVERRIDES = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.untrackedCache=false",
    "diff.external=",
    "diff.ignoreSubmodules=dirty",
    "submodule.recurse=false",
)


class GitFailed(Exception):
    """Raised when git gives no result: it is not installed, too slow, or the folder is no repository."""


class Settings(NamedTuple):
    """The origin of a repository, and the overrides that disable the programs its configuration would run."""

    origin: str | None
    overrides: list[str]


class Git:
    """Runs git in a folder."""

    def __init__(self, children: Children, config: Config) -> None:
        self._children = children
        # The environment of the template is not used: it may contain variables such as GIT_EXTERNAL_DIFF.
        self._env = {
            "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin"),
            "HOME": config.home,
            "LC_ALL": "C",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_PAGER": "cat",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",  # for git before 2.44, which does not know the variable above
            "GIT_SSH_COMMAND": "false",
        }

    async def run(
        self, folder: str, *arguments: str, settings: Settings | None = None, max_bytes: int = 1024 * 1024
    ) -> Completed:
        """Run git and return its result. Raise `GitFailed` if it could not be started or took too long."""
        overrides = [*_OVERRIDES, *(settings.overrides if settings is not None else ())]
        command = ["git", "--no-pager", *(part for value in overrides for part in ("-c", value)), *arguments]
        try:
            done = await self._children.run(
                command, cwd=folder, env=self._env, timeout_s=TIMEOUT_S, max_bytes=max_bytes
            )
        except OSError as error:
            raise GitFailed(f"git cannot be started in {folder}: {error}") from error
        if done.timed_out:
            raise GitFailed(f"git took more than {TIMEOUT_S:g} s in {folder}")
        return done

    async def output(self, folder: str, *arguments: str, settings: Settings | None = None) -> str:
        """Run git and return its output. Raise `GitFailed` if it failed."""
        done = await self.run(folder, *arguments, settings=settings)
        if done.code != 0:
            raise GitFailed(done.errors.decode("utf-8", "replace")[-500:])
        return os.fsdecode(done.output)

    async def settings(self, folder: str) -> Settings:
        """Read the configuration that applies in a folder. This runs no other program."""
        done = await self.run(folder, "config", "--list", "-z", max_bytes=_MAX_CONFIG_BYTES)
        if done.code != 0 or done.truncated:
            # Settings that were not read could not be overridden.
            raise GitFailed(f"the configuration of git cannot be read in {folder}")
        origin = None
        names = set()
        for entry in os.fsdecode(done.output).split("\0"):
            key, _, value = entry.partition("\n")
            if key == "remote.origin.url":
                origin = value
            found = _PROGRAMS.fullmatch(key)
            if found is not None:
                names.add((found["section"], found["name"]))
        overrides = []
        for section, name in sorted(names):
            if "=" in name:
                # `-c` splits at the first equals sign, so this setting cannot be overridden.
                raise GitFailed(f"a driver of git in {folder} has an equals sign in its name")
            programs = ("clean", "smudge", "process") if section == "filter" else ("command", "textconv")
            overrides += [f"{section}.{name}.{program}=" for program in programs]
            if section == "filter":
                overrides.append(f"filter.{name}.required=false")
        return Settings(_without_secrets(origin), overrides)


def _without_secrets(url: str | None) -> str | None:
    """Return a URL without user and password, because they often hold tokens."""
    if url is None:
        return None
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/@]*@", r"\1", url)[:1000]
