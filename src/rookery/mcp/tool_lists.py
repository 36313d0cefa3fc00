"""The list of a server's tools: its limits, its age, and the repair of schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from rookery.mcp.errors import Problem
from rookery.mcp.server_config import ServerConfig

MAX_TOOLS = 500
MAX_NAME_CHARS = 256
MAX_DESCRIPTION_CHARS = 16_384
MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 64
# All tools of a list together.
MAX_LIST_BYTES = 4 * 1024 * 1024
# How long a list is used that says nothing about its age.
DEFAULT_TTL_SECONDS = 300.0
MAX_TTL_SECONDS = 86_400.0
# A server that calls every list outdated is not asked more often than this within a turn.
MIN_TTL_SECONDS = 1.0

TaskSupport = Literal["forbidden", "optional", "required"]


class Annotations(msgspec.Struct, frozen=True):
    """The server's hints about a tool. They are shown, and never trusted for permission."""

    title: str | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server. `name` is the name that the server uses.

    `input_schema` is accepted by all models. `repaired` describes the changes to the server's schema, which is then
    kept in `original_schema`. `renamed` maps parameters to their original names, if models do not accept the original
    name.
    """

    name: str
    title: str | None = None
    description: str = ""
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: Annotations = Annotations()
    task_support: TaskSupport = "forbidden"
    repaired: str | None = None
    original_schema: Mapping[str, Any] | None = None
    renamed: Mapping[str, str] = msgspec.field(default_factory=dict)

    def own_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call with the original parameter names."""
        return {self.renamed.get(name, name): value for name, value in arguments.items()}


class RefusedTool(msgspec.Struct, frozen=True):
    """A tool that is not offered, and the reason."""

    name: str
    why: str


class ToolList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of tools of a server. `is_cut` is True if the server has more tools than are kept.

    `size` is the approximate size of the tools in bytes.
    """

    tools: tuple[McpTool, ...] = ()
    refused: tuple[RefusedTool, ...] = ()
    is_cut: bool = False
    ttl_seconds: float = DEFAULT_TTL_SECONDS
    size: int = 0


class ServerTools(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a server in a step.

    With a `problem`, the server did not answer, and `tools` is its last known list, or empty. `instructions` is the
    server's text about its use.
    """

    server: ServerConfig
    tools: tuple[McpTool, ...] = ()
    refused: tuple[RefusedTool, ...] = ()
    is_cut: bool = False
    problem: Problem | None = None
    instructions: str | None = None


# Where `sanitized` leaves what it found, in `_meta` of the result.
REFUSED_KEY = "rookery/refused"
CUT_KEY = "rookery/cut"
_HINTS = {
    "title": str,
    "readOnlyHint": bool,
    "destructiveHint": bool,
    "idempotentHint": bool,
    "openWorldHint": bool,
}


def sanitized(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `tools/list` with at most `MAX_TOOLS` tools that every parser accepts.

    Invalid tools are left out and named in `_meta`, so that one of them does not make the whole list unusable.
    """
    found = result.get("tools")
    tools: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    offered = found if isinstance(found, list) else []
    for raw in offered[:MAX_TOOLS]:
        name = raw.get("name") if isinstance(raw, dict) else None
        if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARS:
            refused.append({"name": _shortened(name), "why": "its name is not a short text"})
            continue
        try:
            tools.append(_sanitized_tool(name, raw))
        except _Refused as error:
            refused.append({"name": name, "why": str(error)})
    meta = result.get("_meta")
    return {
        **{key: value for key, value in result.items() if key not in ("tools", "_meta")},
        "tools": tools,
        "_meta": {
            **(meta if isinstance(meta, dict) else {}),
            REFUSED_KEY: refused,
            CUT_KEY: len(offered) > MAX_TOOLS,
        },
    }


class _Refused(Exception):
    pass


def _sanitized_tool(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    schema = raw.get("inputSchema")
    if schema is None:
        schema = {}
    if not isinstance(schema, dict):
        raise _Refused("its input schema is not an object")
    _check(schema)
    kept: dict[str, Any] = {"name": name, "inputSchema": {**schema, "type": "object"}}
    if schema.get("type") not in (None, "object"):
        raise _Refused("its input schema does not describe an object")
    for key in ("title", "description"):
        if isinstance(raw.get(key), str):
            kept[key] = raw[key][:MAX_DESCRIPTION_CHARS]
    output = raw.get("outputSchema")
    if isinstance(output, dict) and _encoded_size(output) <= MAX_SCHEMA_BYTES and depth(output) <= MAX_SCHEMA_DEPTH:
        kept["outputSchema"] = output
    hints = raw.get("annotations")
    if isinstance(hints, dict):
        kept["annotations"] = {key: hints[key] for key, kind in _HINTS.items() if isinstance(hints.get(key), kind)}
    execution = raw.get("execution")
    if isinstance(execution, dict) and execution.get("taskSupport") in ("forbidden", "optional", "required"):
        kept["execution"] = {"taskSupport": execution["taskSupport"]}
    return kept


def _check(schema: Mapping[str, Any]) -> None:
    if (size := _encoded_size(schema)) > MAX_SCHEMA_BYTES:
        raise _Refused(f"its input schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are accepted")
    if depth(schema) > MAX_SCHEMA_DEPTH:
        raise _Refused(f"its input schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")


def _encoded_size(value: object) -> int:
    try:
        return len(msgspec.json.encode(value))
    except RecursionError:
        return MAX_SCHEMA_BYTES + 1


def depth(value: object) -> int:
    """Return the nesting of a JSON value, without recursion."""
    deepest, level, layer = 0, 0, [value]
    while layer and level <= MAX_SCHEMA_DEPTH:
        deepest, level = level, level + 1
        inner: list[object] = []
        for each in layer:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        layer = inner
    return level if layer else deepest


def made_tool(
    *,
    name: str,
    title: str | None,
    description: str | None,
    input_schema: Mapping[str, Any],
    output_schema: Mapping[str, Any] | None,
    annotations: Annotations,
    task_support: TaskSupport,
) -> McpTool | RefusedTool:
    """Return the tool with a schema that all models accept, or the reason why this is impossible."""
    try:
        schema, repaired = repaired_schema(input_schema)
        schema, renamed = _with_safe_names(schema)
    except _Refused as error:
        return RefusedTool(name, str(error))
    return McpTool(
        name=name,
        title=title or annotations.title,
        description=description or title or annotations.title or "",
        input_schema=schema,
        output_schema=output_schema,
        annotations=annotations,
        task_support=task_support,
        repaired=repaired,
        original_schema=None if repaired is None else input_schema,
        renamed=renamed,
    )


def repaired_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return a schema that all models accept, and a description of the changes.

    The root of the schema has no alternatives, because models refuse them there. The schema is valid in revision
    2020-12 of JSON Schema, because a provider refuses a request that contains an invalid schema.
    """
    shaped = {**schema, "type": "object"}
    removed = [word for word in ("enum", "not") if shaped.pop(word, None) is not None]
    changed = [f"{word} at the root was removed" for word in removed]
    properties = shaped.get("properties")
    if not isinstance(properties, dict):
        if properties is not None:
            changed.append("its properties were not an object")
        properties = {}
    properties = dict(properties)
    for word in ("$ref", "allOf", "anyOf", "oneOf"):
        branches = shaped.pop(word, None)
        if branches is None:
            continue
        if word == "$ref":
            if isinstance(branches, str) and not branches.startswith("#"):
                raise _Refused(f"its input schema refers to {_shortened(branches)}, outside of itself")
            branches = [{"$ref": branches}]
        changed.append(f"{word} at the root was merged")
        for branch in branches if isinstance(branches, list) else ():
            inner = _resolved(branch, schema)
            more = inner.get("properties") if isinstance(inner, Mapping) else None
            for key, value in (more if isinstance(more, dict) else {}).items():
                properties.setdefault(key, value)
            needed = inner.get("required") if isinstance(inner, Mapping) else None
            if word in ("$ref", "allOf") and isinstance(needed, list):
                before = shaped.get("required")
                shaped["required"] = [*(before if isinstance(before, list) else []), *needed]
    for key, value in properties.items():
        if not isinstance(value, dict):
            # `true` is a valid schema that models do not accept.
            properties[key] = {}
            changed.append(f"the schema of {_shortened(key)} was not an object")
    shaped["properties"] = properties
    required = shaped.pop("required", None)
    if isinstance(required, list):
        kept = list(dict.fromkeys(each for each in required if isinstance(each, str) and each in properties))
        if kept:
            shaped["required"] = kept
    if foreign := _foreign_reference(shaped):
        raise _Refused(f"its input schema refers to {_shortened(foreign)}, outside of itself")
    return _valid(shaped, shaped, changed), "; ".join(dict.fromkeys(changed[:5])) or None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def _is_type(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and _are_names(value) and _TYPES.issuperset(value)
    return isinstance(value, str) and value in _TYPES


# Words whose value is a schema, a list of schemas, or schemas by name.
_SCHEMA = frozenset(
    {
        *("items", "contains", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties"),
        *("not", "if", "then", "else", "contentSchema"),
    }
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_WORDS: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "required": _are_names,
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
    **dict.fromkeys(("title", "description", "format", "$comment", "contentEncoding", "contentMediaType"), _is_text),
    "pattern": lambda value: isinstance(value, str) and _compiles(value),
    "examples": lambda value: isinstance(value, list),
    "$ref": _is_text,
}
# Schemas are given alone, so what names them and their parts for others is of no use, and can be invalid.
_IDENTITY = frozenset({"$id", "$schema", "$anchor", "$dynamicAnchor", "$dynamicRef", "$vocabulary", "id"})


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _valid(schema: Mapping[str, Any], root: Mapping[str, Any], changed: list[str]) -> dict[str, Any]:
    """Return the schema without keywords whose value is invalid. Removals are added to `changed`.

    The caller has limited the depth.
    """
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _IDENTITY:
            continue
        if word in _SCHEMA_MAPS and isinstance(value, dict):
            made[word] = {
                name: _valid_or_any(each, root, changed)
                for name, each in value.items()
                if word != "patternProperties" or _compiles(name)
            }
        elif word in _SCHEMA_LISTS and isinstance(value, list) and value:
            made[word] = [_valid_or_any(each, root, changed) for each in value]
        elif word in _SCHEMA and isinstance(value, dict | bool):
            made[word] = _valid_or_any(value, root, changed)
        elif word in _SCHEMA or word in _SCHEMA_LISTS or word in _SCHEMA_MAPS or not _WORDS.get(word, _is_any)(value):
            changed.append(f"{word} was invalid")
        elif word == "$ref" and not _leads_somewhere(value, root):
            changed.append(f"{_shortened(value)} does not exist")
        else:
            made[word] = value
    types = made.get("type")
    if (types == "array" or (isinstance(types, list) and "array" in types)) and "items" not in made:
        # Some models refuse an array without it.
        made["items"] = {}
    return made


def _leads_somewhere(reference: str, root: object) -> bool:
    at = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and name.isdecimal() and int(name) < len(at):
            at = at[int(name)]
        elif isinstance(at, Mapping) and name in at:
            at = at[name]
        else:
            return False
    return reference == "#" or reference.startswith("#/")


def _is_any(value: object) -> bool:
    return True


def _valid_or_any(schema: object, root: Mapping[str, Any], changed: list[str]) -> dict[str, Any] | bool:
    if isinstance(schema, dict):
        return _valid(schema, root, changed)
    if isinstance(schema, bool):
        return schema
    changed.append("a part was no schema")
    return {}


# Providers refuse a request with other names of parameters.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def _with_safe_names(schema: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the schema with parameter names that models accept, and the original names of the renamed parameters."""
    names: dict[str, str] = {}
    taken = {name for name in schema["properties"] if _SAFE_NAME.fullmatch(name)}
    for name in schema["properties"]:
        if name in taken:
            continue
        base = _UNSAFE.sub("_", name)[:60] or "_"
        number, safe = 2, base
        while safe in taken:
            safe, number = f"{base}_{number}", number + 1
        taken.add(safe)
        names[name] = safe
    if not names:
        return schema, {}
    properties = {names.get(name, name): value for name, value in schema["properties"].items()}
    renamed = {**schema, "properties": properties}
    if "required" in schema:
        renamed["required"] = [names.get(name, name) for name in schema["required"]]
    return renamed, {safe: name for name, safe in names.items()}


def _resolved(branch: object, root: Mapping[str, Any]) -> object:
    """Follow a reference into `$defs` or `definitions` of the root."""
    if isinstance(branch, Mapping) and isinstance(reference := branch.get("$ref"), str):
        parts = reference.removeprefix("#/").split("/")
        if reference.startswith("#/") and len(parts) == 2:
            group = root.get(parts[0])
            return group.get(parts[1]) if isinstance(group, Mapping) else None
    return branch


def _foreign_reference(schema: Mapping[str, Any]) -> str | None:
    waiting: list[object] = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            reference = each.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                return reference
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return None


def _shortened(value: object) -> str:
    return str(value)[:80]


def joined_list(pages: Iterable[ToolList]) -> ToolList:
    """Return the pages as one list: without tools of the same name, at most `MAX_TOOLS`, with the shortest age."""
    tools: dict[str, McpTool] = {}
    refused: list[RefusedTool] = []
    is_cut, ttl = False, MAX_TTL_SECONDS
    for page in pages:
        for tool in page.tools:
            tools.setdefault(tool.name, tool)
        refused += page.refused
        is_cut = is_cut or page.is_cut
        ttl = min(ttl, page.ttl_seconds)
    kept: list[McpTool] = []
    size = 0
    for tool in tools.values():
        size += len(msgspec.json.encode(tool))
        if len(kept) == MAX_TOOLS or size > MAX_LIST_BYTES:
            is_cut = True
            break
        kept.append(tool)
    return ToolList(tools=tuple(kept), refused=tuple(refused[:MAX_TOOLS]), is_cut=is_cut, ttl_seconds=ttl, size=size)
