"""Strict validators made from the request types of the official packages. Unknown fields are refused, and required
fields must be present.

A plain `TypeAdapter` of these types proves nothing: it validates `Iterable` fields only when they are iterated, accepts
unknown keys, and requires none, because the annotations are strings. This module rebuilds each `TypedDict` and all
types that it names as a strict schema. Response models, and files that only the packages' helpers support, are removed
from unions. `tests/wire/test_official_types.py` shows that invalid requests are refused.

    check_anthropic(request.body)       # raises `pydantic_core.ValidationError`
"""

from __future__ import annotations

import collections.abc
import functools
import os
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Literal

import msgspec
import typing_extensions
from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming as AnthropicBetaRequest
from anthropic.types.message_create_params import MessageCreateParamsStreaming as AnthropicRequest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as CompletionsRequest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as ResponsesRequest
from pydantic import BaseModel
from pydantic_core import CoreSchema, SchemaValidator, core_schema

LISTS = frozenset({list, collections.abc.Iterable, collections.abc.Sequence, collections.abc.Collection})
MAPPINGS = frozenset({dict, collections.abc.Mapping})
UNIONS = frozenset({typing.Union, types.UnionType})
# Values that are not JSON, which the packages convert before they send.
NOT_JSON = (BaseModel, bytes, bytearray, os.PathLike, date, datetime, typing.IO)
SCALARS: Mapping[Any, Callable[[], CoreSchema]] = {
    str: core_schema.str_schema,
    int: core_schema.int_schema,
    float: core_schema.float_schema,
    bool: core_schema.bool_schema,
    type(None): core_schema.none_schema,
    None: core_schema.none_schema,
    object: core_schema.any_schema,
    Any: core_schema.any_schema,
}


def check_anthropic(body: Mapping[str, Any]) -> None:
    """Raise unless `body` is exactly a streaming request of `anthropic.types`."""
    _check(AnthropicRequest, body)


def check_anthropic_beta(body: Mapping[str, Any]) -> None:
    """Raise unless `body` is exactly a streaming request of `anthropic.types.beta`, without the header field."""
    _check(AnthropicBetaRequest, body)


def check_responses(body: Mapping[str, Any]) -> None:
    """Raise unless `body` is exactly a streaming request of `openai.types.responses`."""
    _check(ResponsesRequest, body)


def check_completions(body: Mapping[str, Any]) -> None:
    """Raise unless `body` is exactly a streaming request of `openai.types.chat`.

    Remove extras of compatible servers first.
    """
    _check(CompletionsRequest, body)


def closed(typed_dict: type) -> SchemaValidator:
    """Return a strict validator of this TypedDict and all types that it names."""
    rebuild = _Rebuild()
    root = rebuild.schema(typed_dict)
    return SchemaValidator(core_schema.definitions_schema(root, list(rebuild.definitions.values())))


@functools.cache
def _validator(typed_dict: type) -> SchemaValidator:
    return closed(typed_dict)


def _check(typed_dict: type, body: Mapping[str, Any]) -> None:
    # Encoded as JSON and decoded again, as when it is sent: `msgspec.Raw` becomes its content, tuples become lists.
    sent = msgspec.json.decode(msgspec.json.encode(body))
    _validator(typed_dict).validate_python(sent, strict=True)


class _Rebuild:
    """Converts types to schemas. Each TypedDict is a separate definition, because content blocks are recursive."""

    def __init__(self) -> None:
        self.definitions: dict[str, CoreSchema] = {}
        self._begun: set[str] = set()

    def schema(self, hint: Any) -> CoreSchema:
        """Return the schema of a type. Raise `TypeError` for an unknown type, so that nothing is left unchecked."""
        origin = typing.get_origin(hint)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired) or origin in _EXTENSIONS:
            return self.schema(typing.get_args(hint)[0])
        if origin in UNIONS:
            return self._union(hint)
        if origin is Literal or origin is typing_extensions.Literal:
            return core_schema.literal_schema(list(typing.get_args(hint)))
        if _is_list(hint):
            return core_schema.list_schema(self.schema((*typing.get_args(hint), Any)[0]), strict=True)
        if origin in MAPPINGS or hint is dict:
            key, value = typing.get_args(hint) or (str, Any)
            return core_schema.dict_schema(self.schema(key), self.schema(value), strict=True)
        if typing_extensions.is_typeddict(hint):
            return self._typed_dict(hint)
        if hint in SCALARS:
            return SCALARS[hint]()
        if isinstance(hint, typing_extensions.TypeAliasType):
            return self.schema(hint.__value__)
        raise TypeError(f"tests/wire/official_types.py does not know {hint!r}")

    def _union(self, hint: Any) -> CoreSchema:
        members = [member for member in typing.get_args(hint) if not _is_foreign(member)]
        choices: list[CoreSchema | tuple[CoreSchema, str]] = [self.schema(member) for member in members]
        return core_schema.union_schema(choices)

    def _typed_dict(self, typed_dict: Any) -> CoreSchema:
        name = f"{typed_dict.__module__}.{typed_dict.__qualname__}"
        if name not in self._begun:
            self._begun.add(name)
            self.definitions[name] = self._fields(typed_dict, name)
        return core_schema.definition_reference_schema(name)

    def _fields(self, typed_dict: Any, name: str) -> CoreSchema:
        hints = typing_extensions.get_type_hints(typed_dict, include_extras=True)
        fields = {
            key: core_schema.typed_dict_field(self.schema(hint), required=_is_required(typed_dict, key, hint))
            for key, hint in hints.items()
        }
        is_open = _is_open(typed_dict)
        return core_schema.typed_dict_schema(
            fields, strict=True, extra_behavior="allow" if is_open else "forbid", ref=name
        )


_EXTENSIONS = frozenset({typing_extensions.Required, typing_extensions.NotRequired})


def _is_list(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    # `SequenceNotStr` is a protocol of each package for "any sequence but a string".
    return hint is list or origin in LISTS or getattr(origin, "__name__", "") == "SequenceNotStr"


def _is_foreign(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    if origin is typing.Annotated:
        return _is_foreign(typing.get_args(hint)[0])
    if origin in UNIONS:
        return all(map(_is_foreign, typing.get_args(hint)))
    return origin is typing.IO or (isinstance(origin, type) and issubclass(origin, NOT_JSON))


def _is_open(typed_dict: Any) -> bool:
    """Return whether the type accepts keys that it does not name, in one of the two possible ways."""
    if getattr(typed_dict, "__pydantic_config__", {}).get("extra") == "allow":
        return True
    extra = getattr(typed_dict, "__extra_items__", None)
    return extra not in (None, typing.Never, typing_extensions.Never, typing_extensions.NoExtraItems)


def _is_required(typed_dict: Any, key: str, hint: Any) -> bool:
    """Return whether a key is required, from the evaluated hints.

    With postponed annotations, `__required_keys__` does not know `Required`.
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing_extensions.Required):
        return True
    if origin in (typing.NotRequired, typing_extensions.NotRequired):
        return False
    # The annotations of a TypedDict include the inherited ones, so the first ancestor with the key declared it.
    owner = next(base for base in _lineage(typed_dict) if key in base.__annotations__)
    return bool(owner.__total__)


def _lineage(typed_dict: Any) -> list[Any]:
    """Return the TypedDicts that it extends, followed by itself. Its `__mro__` is only `dict`."""
    bases = [base for base in typing_extensions.get_original_bases(typed_dict) if typing_extensions.is_typeddict(base)]
    return [*(owner for base in bases for owner in _lineage(base)), typed_dict]
