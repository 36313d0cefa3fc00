"""The values of template parameters: types, checks, masks, and their form in an environment."""

from __future__ import annotations

import math
import re
from typing import Literal, Protocol, TypeAlias

import msgspec

from rookery.domain.content import bounded_regex

ParameterType: TypeAlias = Literal["string", "number", "bool", "list(string)", "secret"]
Value: TypeAlias = bool | int | float | str | list[str]
TYPES: tuple[ParameterType, ...] = ("string", "number", "bool", "list(string)", "secret")
MASK = "***"  # shown instead of a secret; a client that sends it back keeps the stored value
MAX_TEXT_BYTES = 32_768
MAX_ITEMS = 200
_BOOLEANS = {"true": True, "false": False}


class Rules(Protocol):
    """The properties of a parameter that its values must satisfy."""

    @property
    def type(self) -> ParameterType: ...
    @property
    def options(self) -> tuple[Value, ...]: ...
    @property
    def regex(self) -> str | None: ...
    @property
    def description(self) -> str: ...
    @property
    def min(self) -> float | None: ...
    @property
    def max(self) -> float | None: ...


def item_type(kind: ParameterType) -> ParameterType:
    """Return the type of a parameter's options. For a list, it is the type of the items."""
    return "string" if kind == "list(string)" else kind


def convert(raw: object, kind: ParameterType) -> Value:
    """Convert a value to its type. Text such as "true" is accepted too. Raise ValueError with a sentence."""
    match kind:
        case "string" | "secret":
            if isinstance(raw, str) and "\0" not in raw and len(raw.encode(errors="replace")) <= MAX_TEXT_BYTES:
                return raw
            raise ValueError(f"This must be text of at most {MAX_TEXT_BYTES} bytes.")
        case "number":
            return _number(raw)
        case "bool":
            if isinstance(raw, bool):
                return raw
            if isinstance(raw, str) and raw.strip().lower() in _BOOLEANS:
                return _BOOLEANS[raw.strip().lower()]
            raise ValueError("This must be true or false.")
        case "list(string)":
            if isinstance(raw, list) and len(raw) <= MAX_ITEMS and all(isinstance(each, str) for each in raw):
                return [str(convert(each, "string")) for each in raw]
            raise ValueError(f"This must be a list of at most {MAX_ITEMS} strings.")


def _number(raw: object) -> int | float:
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", raw.strip()):
        raw = float(raw)
    if isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw):
        return int(raw) if float(raw).is_integer() and abs(raw) < 2**53 else raw
    raise ValueError("This must be a number.")


def check(value: Value, rules: Rules) -> list[str]:
    """Return the problems of a value as sentences. The value has the right type."""
    found = []
    items = value if isinstance(value, list) else [value]
    if rules.options and any(item not in rules.options for item in items):
        found.append(f"Choose from {', '.join(text(each) for each in rules.options)}.")
    if rules.regex is not None and (problem := _mismatch(rules.regex, [str(item) for item in items])) is not None:
        # The description explains the pattern to users who cannot read regular expressions.
        meaning = f" {rules.description}" if rules.description else ""
        found.append(f"{problem}{meaning}")
    if isinstance(value, bool):
        return found
    size = value if isinstance(value, int | float) else len(value)
    what = {
        "number": "This",
        "string": "Its length",
        "secret": "Its length",
        "list(string)": "The number of its entries",
    }.get(rules.type, "This")
    if rules.min is not None and size < rules.min:
        found.append(f"{what} must be at least {rules.min:g}.")
    if rules.max is not None and size > rules.max:
        found.append(f"{what} must be at most {rules.max:g}.")
    return found


def _mismatch(pattern: str, items: list[str]) -> str | None:
    """Return a sentence if an item does not match the pattern. The time is bounded, whatever the pattern and items."""
    if sum(len(item) for item in items) > bounded_regex.MAX_TEXT:
        return f"This may have at most {bounded_regex.MAX_TEXT} characters."
    try:
        compiled = bounded_regex.compile_pattern(pattern)
    except bounded_regex.Unsupported:
        # An older version stored it.
        return f"The pattern {pattern} of the template cannot be used any more. Ask an administrator to change it."
    return None if all(compiled.fullmatch(item) for item in items) else f"This must match {pattern}."


def text(value: Value) -> str:
    """Return the value as text, as scripts get it in `ROOKERY_PARAM_NAME`. A list is JSON."""
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return msgspec.json.encode(value).decode()
        case _:
            return str(value)


# The user info of a URL, up to the last @ before the path.
_USER_INFO = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)([^/?#\s]*)@")
# The user name ends at the first colon. If it could contain colons, a long run of them would be searched many times.
_ONE_URL = re.compile(r"((?:[a-z]+\+)?https?://)[^/?#\s@:]*:\S*@([^\s@]+)", re.IGNORECASE)
_WEB = re.compile(r"(?:.*\+)?(?:https?|ftps?)://", re.IGNORECASE)


def without_credentials(value: Value) -> Value:
    """Return the value without the user info of its URLs. A user name without password stays, except in web URLs."""
    return _rewritten(value, "")


def masked(value: Value) -> Value:
    """Return the value for display, with the user info of URLs masked."""
    return _rewritten(value, f"{MASK}@")


def _rewritten(value: Value, mask: str) -> Value:
    if isinstance(value, list):
        return [str(_rewritten(each, mask)) for each in value]
    if not isinstance(value, str):
        return value
    if (alone := _ONE_URL.fullmatch(value)) is not None:
        # A slash in a password should be percent-encoded. The password is hidden even if it is not.
        return alone[1] + mask + alone[2]

    def rewrite(found: re.Match[str]) -> str:
        scheme, info = found[1], found[2]
        if _WEB.fullmatch(scheme):
            return scheme + mask
        user, colon, _ = info.partition(":")
        return f"{scheme}{user}:{mask}" if colon and mask else f"{scheme}{user}@"

    return _USER_INFO.sub(rewrite, value)
