"""Options as they are shown: header values may carry keys, so they never leave the server.

A value is shown as `***`, and a change that sends `***` back leaves it as it is: what was read can be edited and saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rookery.api.errors import BadFields, FieldError

MASK = "***"


def shown(options: msgspec.Struct) -> dict[str, Any]:
    """The options that are set, without the values of headers."""
    built: dict[str, Any] = msgspec.to_builtins(options)
    if built.get("headers"):
        built["headers"] = {name: MASK for name in built["headers"]}
    return built


def restored(options: Mapping[str, Any], known: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The options to save: what is masked in them is what it was, and was there."""
    headers = options.get("headers")
    if not isinstance(headers, Mapping):
        return dict(options)
    saved = {name.lower(): value for name, value in (known or {}).items()}
    unknown = [name for name, value in headers.items() if value == MASK and name.lower() not in saved]
    full = {name: saved.get(name.lower(), value) if value == MASK else value for name, value in headers.items()}
    if unknown:
        raise BadFields(
            [FieldError(f"options.headers.{name}", f"{MASK} stands for a value that is saved.") for name in unknown]
        )
    return {**options, "headers": full}
