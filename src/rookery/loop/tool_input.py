"""Arguments of tool calls: parsing, checks, and the errors for invalid arguments.

Invalid arguments are never repaired, because a repaired call is not the call that the model made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.parts import ContentError

NOT_AN_OBJECT = (
    "This call was not executed: its arguments are not a well-formed JSON object. "
    "Call the tool again with an object that matches its schema."
)
CUT_OFF = (
    "This call was not executed: the output limit was reached while its arguments were being written. "
    "Call the tool again with shorter arguments, or split the work into several calls."
)

# Keys below this depth are treated as data. No schema is that deep.
_MAX_SCHEMA_DEPTH = 32
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


class Arguments(msgspec.Struct, frozen=True):
    """Parsed arguments. `args` is stored: the object, or the model's text if it is not an object."""

    args: Raw
    is_object: bool


def read(text: str) -> Arguments:
    """Parse the arguments of a call. Blank text means an empty object.

    The object may be encoded twice, as JSON text inside a JSON string.
    """
    if not text.strip():
        return Arguments(Raw(b"{}"), True)
    try:
        raw = parts.json_text(text)
    except ContentError:
        return Arguments(parts.json_raw(text), False)
    return read_stored(raw)


def read_stored(raw: Raw) -> Arguments:
    """Parse arguments from the history, which are valid JSON."""
    start = bytes(raw).lstrip()[:1]
    if start == b"{":
        return Arguments(raw, True)
    if start == b'"':
        inner = parts.json_value(raw)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            try:
                return Arguments(parts.json_text(inner), True)
            except ContentError:
                return Arguments(raw, False)
    return Arguments(raw, False)


def find_ambiguity(args: Raw, schema: Mapping[str, Any]) -> str | None:
    """Return an error for keys that a rule and a tool could read differently; None if there are none.

    These are repeated keys, and keys that differ from a declared one only in upper and lower case. All depths are
    checked, including JSON inside strings. Keys of free-form maps are only checked for repetition.
    """
    return next(_ambiguities(_tree(bytes(args)), schema, root=schema, path="", depth=0), None)


def _tree(text: str | bytes) -> Any:
    # Numbers are not parsed, because they are not used here and long ones are slow to parse.
    return json.loads(text, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


class _Pairs(list[tuple[str, Any]]):
    """An object with all its keys, including repeated ones."""


def _ambiguities(
    node: object, schema: Mapping[str, Any], *, root: Mapping[str, Any], path: str, depth: int
) -> Iterator[str]:
    if isinstance(node, _Pairs):
        yield from _of_object(node, schema, root=root, path=path, depth=depth)
    elif isinstance(node, list):
        items = _merged(schema, "items", root)
        for index, item in enumerate(node):
            yield from _ambiguities(item, items, root=root, path=f"{path}[{index}]", depth=depth + 1)
    elif isinstance(node, str) and node.lstrip()[:1] in ("[", "{") and _is_structure(schema, root):
        try:
            inner = _tree(node)
        except (ValueError, RecursionError):
            return  # the tool reports the invalid JSON
        yield from _ambiguities(inner, schema, root=root, path=path, depth=depth + 1)


def _is_structure(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Return whether the schema declares a list or an object but no string, so that tools parse a string as JSON."""
    kinds = [form.get("type") for form in _forms(schema, root)]
    return ("array" in kinds or "object" in kinds) and "string" not in kinds


def _of_object(
    node: _Pairs, schema: Mapping[str, Any], *, root: Mapping[str, Any], path: str, depth: int
) -> Iterator[str]:
    declared = _properties(schema, root) if depth < _MAX_SCHEMA_DEPTH else {}
    folded = {name.casefold(): name for name in declared}
    others = _merged(schema, "additionalProperties", root)
    seen: set[str] = set()
    for key, value in node:
        place = f"{path}.{key}" if path else key
        if key in seen:
            yield _refusal(f"the key `{place}` stands there more than once")
        elif key not in declared and (meant := folded.get(key.casefold())) is not None:
            yield _refusal(f"the key `{place}` is spelled `{meant}` in the schema")
        seen.add(key)
        yield from _ambiguities(value, declared.get(key, others), root=root, path=place, depth=depth + 1)


def _refusal(problem: str) -> str:
    return f"This call was not executed: {problem}. Call the tool again with each key once, spelled as in the schema."


def _properties(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for each in _forms(schema, root):
        properties = each.get("properties")
        if isinstance(properties, dict):
            found.update((name, value) for name, value in properties.items() if isinstance(value, dict))
    return found


def _merged(schema: Mapping[str, Any], key: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the subschema under the key, from the schema and all its alternatives."""
    found = [each[key] for each in _forms(schema, root) if isinstance(each.get(key), dict)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _forms(schema: Mapping[str, Any], root: Mapping[str, Any], *, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and all its alternatives, with local references resolved."""
    if depth > _MAX_SCHEMA_DEPTH:
        return
    yield schema
    if isinstance(reference := schema.get("$ref"), str) and isinstance(target := _resolve(reference, root), dict):
        yield from _forms(target, root, depth=depth + 1)
    for key in _ALTERNATIVES:
        alternatives = schema.get(key)
        for each in alternatives if isinstance(alternatives, list) else ():
            if isinstance(each, dict):
                yield from _forms(each, root, depth=depth + 1)


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    node: object = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node
