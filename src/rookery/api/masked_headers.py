"""Provider and model options as the API shows them, without header values, because these may be keys.

A value is shown as `***`. A change that sends `***` keeps the stored value, so that a client can edit and save what it
has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rookery.api.errors import BadFields, FieldError

MASK = "***"


def mask(options: msgspec.Struct) -> dict[str, Any]:
    """Return the options that are set, with the values of headers masked."""
    built: dict[str, Any] = msgspec.to_builtins(options)
    if built.get("headers"):
        built["headers"] = {name: MASK for name in built["headers"]}
    return built


def unmask(options: Mapping[str, Any], known: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the options to save, with masked values replaced by the stored ones."""
    headers = options.get("headers")
    if not isinstance(headers, Mapping):
        return dict(options)
    saved = {name.lower(): value for name, value in (known or {}).items()}
    unknown = [name for name, value in headers.items() if value == MASK and name.lower() not in saved]
    full = {name: saved.get(name.lower(), value) if value == MASK else value for name, value in headers.items()}
    if unknown:
        problem = f"{MASK} stands for a stored value, and there is none."
        raise BadFields([FieldError(f"options.headers.{name}", problem) for name in unknown])
    return {**options, "headers": full}
