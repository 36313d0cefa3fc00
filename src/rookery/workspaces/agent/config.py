"""The configuration of one boot: the token and `config.json`, which the driver writes into the run directory.

The file is read once. An absent field has its default. A field of the wrong type ends the agent with an error, because
the workspace must not run with only a part of its template.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIN_TOKEN_CHARS = 16


class ConfigError(Exception):
    """Raised when the token or `config.json` is missing or invalid."""


@dataclass(frozen=True)
class Script:
    """A script of the template. `path` is None if the template has no such script."""

    path: str | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Egress:
    """The loopback port that processes use as their proxy, and the server's socket that it forwards to."""

    port: int
    socket: str


@dataclass(frozen=True)
class Config:
    generation: int
    directory: str
    home: str
    env: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # the names; the server sends the values
    startup: Script = Script()
    shutdown: Script = Script(timeout_s=60.0)
    context_sources: tuple[str, ...] = ()
    disk_mb: int = 0
    plan_dir: str | None = None
    nested: bool = False
    bwrap: str | None = None
    egress: Egress | None = None


def load(run_dir: Path) -> Config:
    """Return the configuration of this boot."""
    try:
        value = json.loads((run_dir / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"config.json cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("config.json is not an object")
    home = _absolute(value, "home", os.path.expanduser("~"))
    return Config(
        generation=_get(value, "generation", int),
        home=home,
        directory=_absolute(value, "directory", home),
        env=_texts(value, "env"),
        parameters=_get(value, "parameters", dict, {}),
        secrets=tuple(str(name) for name in _get(value, "secrets", list, [])),
        startup=_script(value, "startup", 600.0),
        shutdown=_script(value, "shutdown", 60.0),
        context_sources=tuple(str(source) for source in _get(value, "context_sources", list, [])),
        disk_mb=_get(_get(value, "limits", dict, {}), "disk_mb", int, 0),
        plan_dir=_get(value, "plan_dir", str, "") or None,
        nested=_get(value, "nested", bool, False),
        bwrap=_get(value, "bwrap", str, "") or None,
        egress=_egress(_get(value, "egress", dict, {})),
    )


def load_token(run_dir: Path) -> str:
    """Return the bearer token of this boot."""
    try:
        token = (run_dir / "token").read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token cannot be read: {error}") from error
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(f"the token has fewer than {MIN_TOKEN_CHARS} characters")
    return token


def environment(config: Config) -> dict[str, str]:
    """Return the environment of the workspace's processes: base variables, those of the template, and parameters."""
    base = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/sh",
        "TMPDIR": "/tmp",  # noqa: S108 - the directory of the sandbox, not of the server
    }
    for name in ("PATH", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"):
        if os.environ.get(name):
            base[name] = os.environ[name]
    base["HOME"] = config.home
    parameters = {f"ROOKERY_PARAM_{name}": _as_text(value) for name, value in config.parameters.items()}
    return {**base, **config.env, **parameters}


def start_directory(config: Config) -> str:
    """Return the working directory of processes that request none."""
    return next((path for path in (config.directory, config.home) if os.path.isdir(path)), "/")


def _as_text(value: object) -> str:
    """Return a parameter as an environment variable: text unchanged, other values as JSON (`true`, `3`, `["a"]`)."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_MISSING: Any = object()


def _get(value: Mapping[str, Any], name: str, kind: type, default: Any = _MISSING) -> Any:
    found = value.get(name)
    if found is None:
        if default is _MISSING:
            raise ConfigError(f"config.json has no {name}")
        return default
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ConfigError(f"{name} in config.json is not of type {kind.__name__}")
    return found


def _absolute(value: Mapping[str, Any], name: str, default: str) -> str:
    path = str(_get(value, name, str, default))
    if not os.path.isabs(path):
        raise ConfigError(f"{name} in config.json is not an absolute path")
    return os.path.normpath(path)


def _texts(value: Mapping[str, Any], name: str) -> dict[str, str]:
    found = _get(value, name, dict, {})
    if not all(isinstance(text, str) for text in found.values()):
        raise ConfigError(f"{name} in config.json has a value that is not text")
    return dict(found)


def _script(value: Mapping[str, Any], name: str, timeout_s: float) -> Script:
    found = _get(value, name, dict, {})
    seconds = found.get("timeout_s", timeout_s)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0:
        raise ConfigError(f"{name}.timeout_s in config.json is not a number of seconds")
    return Script(_get(found, "script", str, "") or None, float(seconds))


def _egress(value: Mapping[str, Any]) -> Egress | None:
    return Egress(_get(value, "port", int), _get(value, "socket", str)) if value else None
