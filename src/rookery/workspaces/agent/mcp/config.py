"""The entries of a `.mcp.json`.

Values of variables and headers may be secrets. Those of variables never leave the workspace. Those of headers leave it
only after the owner of the workspace has agreed to the entry.
"""

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
MAX_URL_CHARS = 2048
MAX_HEADERS = 20
MAX_HEADER_NAME_CHARS = 200
MAX_HEADER_CHARS = 8192
AUTO, HTTP, SSE = "auto", "http", "sse"
# `${NAME}`, or `${NAME:-default}` with a value for a variable that is missing or empty.
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# The types of the file, and the types of entries.
_ADDRESS_TYPES = {HTTP: HTTP, "streamable-http": HTTP, SSE: SSE, None: AUTO}
_TYPES = ("stdio", *filter(None, _ADDRESS_TYPES))


class BadConfig(ValueError):
    """Raised for an invalid file. The message does not quote the file, which may hold secrets."""


@dataclass(frozen=True)
class ServerConfig:
    """One server: a command, or a URL. `folder` is the folder of the file that configures it.

    A server with a URL has a type and maybe headers; only a server with a command has arguments and variables.
    """

    name: str
    folder: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    type: str = AUTO
    headers: Mapping[str, str] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """Return the entry that the owner is asked about: all but the values of variables and headers."""
        shared = {"name": self.name, "folder": self.folder}
        if self.url is None:
            return {**shared, "command": self.command, "args": list(self.args), "env": sorted(self.env)}
        used = {found[1] for text in self.headers.values() for found in _VARIABLE.finditer(text)}
        return {**shared, "url": self.url, "type": self.type, "headers": sorted(self.headers), "env": sorted(used)}

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the server: that of the workspace and its own. `${VAR}` is expanded from `base`."""
        own = {name: _VARIABLE.sub(lambda found: _value(found, base) or "", text) for name, text in self.env.items()}
        return {**base, **own}

    def sent_headers(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the headers with their values. `${VAR}` is expanded from `base`. Raise `BadConfig` if that fails."""
        return {name: self._header(name, text, base) for name, text in self.headers.items()}

    def _header(self, name: str, text: str, base: Mapping[str, str]) -> str:
        for found in _VARIABLE.finditer(text):
            if _value(found, base) is None:
                raise BadConfig(f"The variable {found[1]} of its header {name} is not set in this workspace.")
        value = _VARIABLE.sub(lambda found: _value(found, base) or "", text)
        if not value or value != value.strip() or len(value) > MAX_HEADER_CHARS or not _is_line(value):
            raise BadConfig(
                f"The value of its header {name} is empty or too long, has line breaks or characters that headers "
                "cannot have, or begins or ends with white space."
            )
        return value


def _value(found: re.Match[str], base: Mapping[str, str]) -> str | None:
    value, default = base.get(found[1]), found[2]
    return value if default is None else value or default


def _is_line(text: str) -> bool:
    return all(each == "\t" or ("\x20" <= each <= "\xff" and each != "\x7f") for each in text)


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
    command, url, kind = entry.get("command"), entry.get("url"), entry.get("type")
    if not isinstance(command, str) and not isinstance(url, str):
        raise BadConfig(f"The server {name} has neither `command` nor `url`.")
    if kind is not None and kind not in _TYPES:
        raise BadConfig(f"The type of the server {name} must be stdio, http or sse.")
    has_command = isinstance(command, str) and (kind in (None, "stdio") or not isinstance(url, str))
    return _command(name, entry, folder) if has_command else _address(name, entry, folder)


def _command(name: str, entry: Mapping[str, Any], folder: str) -> ServerConfig:
    command, args, env = entry["command"], entry.get("args", []), entry.get("env", {})
    if not isinstance(args, list) or not all(isinstance(each, str) and "\0" not in each for each in args):
        raise BadConfig(f"`args` of the server {name} is not a list of strings.")
    if not isinstance(env, dict) or not all(isinstance(each, str) and "\0" not in each for each in env.values()):
        raise BadConfig(f"`env` of the server {name} does not map names to strings.")
    texts = [command, *args, *map(str, env)]
    if len(args) > MAX_ARGS or len(env) > MAX_VARIABLES:
        raise BadConfig(f"The server {name} has more than {MAX_ARGS} arguments or {MAX_VARIABLES} variables.")
    if max(map(len, texts)) > MAX_TEXT_CHARS or sum(map(len, texts)) > MAX_ENTRY_CHARS:
        raise BadConfig(f"The command, the arguments and the variables of the server {name} are too long.")
    if not command or "\0" in command:
        raise BadConfig(f"The command of the server {name} is empty or contains a zero byte.")
    return ServerConfig(name, folder, command, tuple(args), {str(key): text for key, text in env.items()})


def _address(name: str, entry: Mapping[str, Any], folder: str) -> ServerConfig:
    """Return a server with a URL. Rookery checks the URL itself, and the names of headers that it sets."""
    url, headers, kind = entry["url"], entry.get("headers", {}), entry.get("type")
    if not isinstance(url, str) or kind not in _ADDRESS_TYPES:
        raise BadConfig(f"A server with a `url` has the type http or sse. The server {name} has not.")
    if not url or len(url) > MAX_URL_CHARS or not all("\x20" < each < "\x7f" for each in url):
        raise BadConfig(f"The URL of the server {name} is empty or too long, or has spaces or non-ASCII characters.")
    if _VARIABLE.search(url):
        # The owner agrees to an address, so it must not depend on anything else.
        raise BadConfig(f"The URL of the server {name} has a variable in it. Variables may be used in `headers` only.")
    if not isinstance(headers, dict) or not all(isinstance(each, str) for each in headers.values()):
        raise BadConfig(f"`headers` of the server {name} does not map names to strings.")
    if len(headers) > MAX_HEADERS or any(len(each) > MAX_HEADER_CHARS for each in headers.values()):
        raise BadConfig(f"The server {name} has more than {MAX_HEADERS} headers, or they are too long.")
    if not all(_HEADER_NAME.fullmatch(each) and len(each) <= MAX_HEADER_NAME_CHARS for each in headers):
        raise BadConfig(f"A header of the server {name} has an invalid name.")
    if len({each.lower() for each in headers}) < len(headers):
        raise BadConfig(f"The server {name} has a header twice.")
    server = ServerConfig(name, folder, url=url, type=_ADDRESS_TYPES[kind], headers=headers)
    if len(server.entry()["env"]) > MAX_VARIABLES:
        raise BadConfig(f"The headers of the server {name} have more than {MAX_VARIABLES} variables.")
    return server
