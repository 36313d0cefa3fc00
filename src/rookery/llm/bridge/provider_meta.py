"""Provider data of parts: converts it to the stored `meta`, and restores it when a part is replayed.

The library sends the data only to the provider in `provider_name`. `raw` is the complete call or result of a
provider-executed tool.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart, TextPart, ThinkingPart, ToolCallPart
from pydantic_core import to_jsonable_python

from rookery.domain.chat.model_prompt import Meta, PromptCall, PromptResult

_numbers = msgspec.json.Encoder(decimal_format="number")


# Storing


def meta_of(part: TextPart | ThinkingPart | ToolCallPart | NativeToolCallPart | None) -> Meta | None:
    """Return the data that the provider requires when the part is replayed; None if there is none."""
    if part is None or not part.provider_name:
        return None
    kept = {
        "signature": part.signature if isinstance(part, ThinkingPart) else None,
        "id": part.id,
        "details": jsonable(part.provider_details),
    }
    meta = {name: value for name, value in kept.items() if value}
    return {"provider_name": part.provider_name, **meta} if meta else None


def call_meta(part: NativeToolCallPart) -> Meta:
    raw = {"args": jsonable(part.args), "call_id": part.tool_call_id, "kind": part.tool_kind}
    return {**(meta_of(part) or _named(part)), "raw": raw}


def return_meta(part: NativeToolReturnPart) -> Meta:
    meta = _named(part)
    if part.provider_details:
        meta["details"] = jsonable(part.provider_details)
    meta["raw"] = {"content": jsonable(part.content), "call_id": part.tool_call_id, "kind": part.tool_kind}
    return meta


def jsonable(value: Any) -> Any:
    return to_jsonable_python(value, bytes_mode="base64", fallback=str)


def _named(part: NativeToolCallPart | NativeToolReturnPart) -> Meta:
    return {} if part.provider_name is None else {"provider_name": part.provider_name}


# Restoring


def is_proven(meta: Meta) -> bool:
    """Return whether reasoning has provider data. Without it, the library would send the reasoning as text."""
    return any(meta.get(key) for key in ("signature", "id", "details"))


def fields_of(meta: Meta) -> dict[str, Any]:
    """Return the fields of a part with the provider data."""
    if not meta.get("provider_name"):
        return {}
    details = meta.get("details")
    return {
        "provider_name": meta["provider_name"],
        "id": meta.get("id"),
        "provider_details": None if details is None else _plain(details),
    }


def has_raw(meta: Meta | None) -> bool:
    return meta is not None and isinstance(meta.get("raw"), dict)


def native_call(part: PromptCall, meta: Meta) -> NativeToolCallPart:
    raw = _plain(meta["raw"])
    return NativeToolCallPart(
        part.name, raw.get("args"), raw.get("call_id") or part.id, tool_kind=raw.get("kind"), **fields_of(meta)
    )


def native_return(part: PromptResult, meta: Meta) -> NativeToolReturnPart:
    raw = _plain(meta["raw"])
    fields = {name: value for name, value in fields_of(meta).items() if name != "id"}
    return NativeToolReturnPart(
        part.name,
        raw.get("content"),
        raw.get("call_id") or part.id,
        tool_kind=raw.get("kind"),
        outcome="failed" if part.is_error else "success",
        **fields,
    )


def _plain(value: Any) -> Any:
    """Return the stored value with ordinary numbers instead of decimals, which libraries do not expect."""
    return msgspec.json.decode(_numbers.encode(value))
