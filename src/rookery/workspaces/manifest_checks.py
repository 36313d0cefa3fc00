"""Checks of single values of a manifest. Each returns the value, or raises ValueError with a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rookery.domain.content import bounded_regex
from rookery.workspaces.egress import hosts

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
PARAMETER_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}")
SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PARAMETER_PREFIX = "ROOKERY_PARAM_"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_seconds(raw: object) -> float:
    """Parse a duration such as `"2h"`, `"90s"` or `"1d"`, or a whole number of seconds."""
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= 10**9:
        return float(raw)
    match = re.fullmatch(r"([0-9]{1,9})(s|m|h|d|)", raw) if isinstance(raw, str) else None
    if match is None:
        raise ValueError('Write a duration like "90s", "10m", "2h" or "1d", or 0.')
    return float(int(match[1]) * _UNITS.get(match[2], 1))


def path_parameter(path: str) -> str | None:
    """Return the name of the parameter in a path such as `$ROOKERY_PARAM_folder`; None for other paths."""
    name = path.removeprefix(f"${PARAMETER_PREFIX}")
    return name if name != path else None


def is_table(raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError("This must be a table.")
    return raw


def are_tables(raw: object) -> list[Mapping[str, Any]]:
    if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
        raise ValueError("This must be a list of tables, each written as [[...]].")
    return raw


def text(most: int) -> Callable[[object], str]:
    def check(raw: object) -> str:
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError("This must be text.")
        if len(raw) > most:
            raise ValueError(f"This may have at most {most} characters.")
        return raw

    return check


def word(raw: object) -> str:
    """Check a word of a command line: it has no spaces and does not begin with a hyphen."""
    if not isinstance(raw, str) or not re.fullmatch(r"[A-Za-z0-9_.@:\[\]%~+-]{1,255}", raw) or raw.startswith("-"):
        raise ValueError("This must be one word of letters, digits and . _ - @ :, and not begin with a hyphen.")
    return raw


def slug(most: int) -> Callable[[object], str]:
    def check(raw: object) -> str:
        if not isinstance(raw, str) or not NAME.fullmatch(raw) or len(raw) > most:
            raise ValueError(f"Use lowercase letters, digits and single hyphens, at most {most} characters.")
        return raw

    return check


def parameter_name(raw: object) -> str:
    if not isinstance(raw, str) or not PARAMETER_NAME.fullmatch(raw):
        raise ValueError("A name begins with a letter and has at most 64 letters, digits and underscores.")
    return raw


def secret_name(raw: object) -> str:
    if not isinstance(raw, str) or not SECRET_NAME.fullmatch(raw):
        raise ValueError("This must be the name of a key: letters, digits and . _ -, at most 64 characters.")
    return raw


def one_of(*allowed: str) -> Callable[[object], Any]:
    def check(raw: object) -> str:
        if raw not in allowed or not isinstance(raw, str):
            raise ValueError(f"This must be one of {', '.join(allowed)}.")
        return raw

    return check


def boolean(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError("This must be true or false.")
    return raw


def whole(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not 0 <= raw <= 10**9:
        raise ValueError("This must be a whole number, 0 for no limit.")
    return raw


def number(raw: object) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool):
        raise ValueError("This must be a number.")
    return float(raw)


def amount(raw: object) -> float:
    given = number(raw)
    if not 0 <= given <= 10_000:
        raise ValueError("This must be a number, 0 for no limit.")
    return given


def port(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or not 1 <= raw <= 65_535:
        raise ValueError("This must be a port, 1 to 65535.")
    return raw


def regex(raw: object) -> str:
    """Check a pattern. Users' values are matched with it, so only patterns that match in bounded time are accepted."""
    given = text(bounded_regex.MAX_PATTERN)(raw)
    try:
        bounded_regex.compile_pattern(given)
    except bounded_regex.Unsupported as error:
        raise ValueError(f"This pattern cannot be used: {error}") from None
    return given


def path(raw: object) -> str:
    """Check a path: absolute, below `~`, or a parameter. `..` is refused, because links can change its meaning."""
    given = text(4096)(raw)
    is_rooted = given == "~" or given.startswith(("~/", "/")) or path_parameter(given) is not None
    if not is_rooted or ".." in given.split("/"):
        raise ValueError("This must be ~, a path that begins with ~/ or /, without `..`, or $ROOKERY_PARAM_NAME.")
    return given


def bind(raw: object) -> str:
    given = path(raw)
    if given.startswith("~") or given == "/":
        raise ValueError("This must be an absolute path of the host, and not the root.")
    return given


def source(raw: object) -> str:
    given = path(raw)
    if path_parameter(given) is not None:
        raise ValueError("This must be a path that begins with ~ or /.")
    return given


def host(raw: object) -> str:
    """Check a host rule and return it in canonical form."""
    return str(hosts.parse(text(300)(raw)))


def list_of(check: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    def check_all(raw: object) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise ValueError("This must be a list.")
        if len(raw) > 200:
            raise ValueError("This may have at most 200 entries.")
        return tuple(check(each) for each in raw)

    return check_all
