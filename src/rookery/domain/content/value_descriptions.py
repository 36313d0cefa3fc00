"""Descriptions of the values that a type accepts, as parts of sentences for users: "a whole number from 1 to 10".

They are made from the type, not from the validator's message. Such a message is written for programmers, and may quote
a value that is secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import inspect


def describe(kind: Any) -> str:
    """Return what a value of the type is. The `description` of a type's `Meta` is used instead, if there is one."""
    return _describe(inspect.type_info(kind))


def _describe(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            described = (kind.extra_json_schema or {}).get("description")
            return described if isinstance(described, str) else _describe(kind.type)
        case inspect.UnionType():
            # Null is left out: it means that there is no value.
            return _either([_describe(each) for each in kind.types if not isinstance(each, inspect.NoneType)])
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _range(kind.ge, kind.le)
        case inspect.FloatType():
            return "a number" + _range(kind.ge, kind.le)
        case inspect.StrType():
            return "text" + _size(kind.min_length, kind.max_length, "character")
        case inspect.EnumType():
            return _either([repr(str(each.value)) for each in kind.cls])
        case inspect.LiteralType():
            return _either([repr(each) for each in kind.values])
        case inspect.UUIDType():
            return "a UUID"
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            # A list has no plural of each item, so the item is described in brackets.
            items = "" if isinstance(kind.item_type, inspect.AnyType) else f" (each: {_describe(kind.item_type)})"
            return "a list" + _size(kind.min_length, kind.max_length, "item") + items
        case inspect.DictType():
            values = (
                "" if isinstance(kind.value_type, inspect.AnyType) else f" (each value: {_describe(kind.value_type)})"
            )
            keys = f" (each key: {_describe(kind.key_type)})" if _is_described(kind.key_type) else ""
            return "an object" + _size(kind.min_length, kind.max_length, "field") + keys + values
        case inspect.StructType():
            return f"an object with the fields {_listed([each.encode_name for each in kind.fields], 'and')}"
    raise TypeError(f"There is no description of {kind!r}.")


def _is_described(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.Metadata) and "description" in (kind.extra_json_schema or {})


def _either(choices: Sequence[str]) -> str:
    return _listed(choices, "or")


def _listed(words: Sequence[str], joint: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}"


def _range(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f" of at least {least:,}"
    return f" of at most {most:,}" if least is None else f" from {least:,} to {most:,}"


def _size(least: int | None, most: int | None, unit: str) -> str:
    units = unit if (most or least) == 1 else f"{unit}s"
    if least and most:
        return f" of {least:,} to {most:,} {units}"
    if most is not None:
        return f" of at most {most:,} {units}"
    return f" of at least {least:,} {units}" if least else ""
