"""The entries of a `.mcp.json`. Values of their variables may be secrets and never leave the workspace."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_NAME = 64
# Limits of an entry, because users read entries before they agree to them.
MAX_ARGS = 100
MAX_TEXT_CHARS = 4096
MAX_ENTRY_CHARS = 16 * 1024
MAX_VARIABLES = 50
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TYPES = ("stdio", "http", "sse")


class BadConfig(ValueError):
    """Raised for an invalid file. The message does not quote the file, which may hold secrets."""


@dataclass(frozen=True)
class ServerConfig:
    """One server: a command, or a URL. `folder` is the folder of the file that configures it."""

    name: str
    folder: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None

    def entry(self) -> dict[str, Any]:
        """Return the entry that the owner is asked about: the command and all names, without values of variables."""
        return {
            "name": self.name,
            "folder": self.folder,
            "command": self.command,
            "args": list(self.args),
            "env": sorted(self.env),
        }

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the server: that of the workspace and its own. `${VAR}` is expanded from `base`."""
        own = {name: _VARIABLE.sub(lambda found: base.get(found[1], ""), text) for name, text in self.env.items()}
        return {**base, **own}


def parse(data: bytes, folder: str) -> tuple[ServerConfig, ...]:
    """Return the servers of one file, in order. Raise `BadConfig` if any entry is invalid."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = str(error)[:200] if not isinstance(error, UnicodeDecodeError) else "it is not UTF-8 text"
        raise BadConfig(f"It is not valid JSON: {reason}.") from None
    servers = value.get("mcpServers") if isinstance(value, dict) else None
    if not isinstance(servers, dict):
        raise BadConfig("It has no object `mcpServers`.")
    return tuple(_server(str(name), entry, folder) for name, entry in servers.items())


def is_name(name: str) -> bool:
    """Return whether the name is valid. `__` joins it to tool names, so it has no `__` and no outer underscores."""
    return 0 < len(name) <= MAX_NAME and "__" not in name and not name.startswith("_") and not name.endswith("_")


def _server(name: str, entry: Any, folder: str) -> ServerConfig:
    if not is_name(name):
        raise BadConfig(
            f"The server name {name[:100]} is too long, contains `__`, or begins or ends with an underscore."
        )
    if not isinstance(entry, dict):
        raise BadConfig(f"The server {name} is not an object.")
    command, url = entry.get("command"), entry.get("url")
    if not isinstance(command, str) and not isinstance(url, str):
        raise BadConfig(f"The server {name} has neither `command` nor `url`.")
    if entry.get("type", "stdio") not in _TYPES:
        raise BadConfig(f"The type of the server {name} must be stdio, http or sse.")
    args, env = entry.get("args", []), entry.get("env", {})
    if not isinstance(args, list) or not all(isinstance(each, str) and "\0" not in each for each in args):
        raise BadConfig(f"`args` of the server {name} is not a list of strings.")
    if not isinstance(env, dict) or not all(isinstance(each, str) and "\0" not in each for each in env.values()):
        raise BadConfig(f"`env` of the server {name} does not map names to strings.")
    texts = [command if isinstance(command, str) else "", *args, *map(str, env)]
    if len(args) > MAX_ARGS or len(env) > MAX_VARIABLES:
        raise BadConfig(f"The server {name} has more than {MAX_ARGS} arguments or {MAX_VARIABLES} variables.")
    if max(map(len, texts)) > MAX_TEXT_CHARS or sum(map(len, texts)) > MAX_ENTRY_CHARS:
        raise BadConfig(f"The command, the arguments and the variables of the server {name} are too long.")
    if isinstance(command, str):
        if not command or "\0" in command:
            raise BadConfig(f"The command of the server {name} is empty or contains a zero byte.")
        return ServerConfig(name, folder, command, tuple(args), {str(key): text for key, text in env.items()})
    return ServerConfig(name, folder, url=url)
