"""The list of a server's tools: its bounds, its age, and the repair of schemas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from rookery.mcp.problems import Problem
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
    """A tool of a server. `name` is the server's own name.

    `input_schema` is one that all models accept. `repaired` says what was changed in the server's own schema, which is
    then in `original_schema`.
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


class RefusedTool(msgspec.Struct, frozen=True):
    """A tool that is not offered, and why."""

    name: str
    why: str


class ToolList(msgspec.Struct, frozen=True, kw_only=True):
    """A list as a server gave it. `is_cut` is True if the server has more tools than are kept.

    `size` is that of the tools in bytes, about.
    """

    tools: tuple[McpTool, ...] = ()
    refused: tuple[RefusedTool, ...] = ()
    is_cut: bool = False
    ttl_seconds: float = DEFAULT_TTL_SECONDS
    size: int = 0


class ServerTools(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a server in a step.

    With a `problem`, the server could not be asked; `tools` is then its last known list, or empty. `instructions` are
    the server's own words about its use.
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
    """Return the result of `tools/list` with at most `MAX_TOOLS` tools, each of which every parser accepts.

    One invalid tool must not cost the others: it is left out, and named in `_meta`.
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
    """Return the tool with a schema that all models accept, or why there is no such schema."""
    try:
        schema, repaired = repaired_schema(input_schema)
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
    )


def repaired_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the schema without alternatives at the root, which models refuse there, and what was changed."""
    changed: list[str] = []
    shaped = {**schema, "type": "object"}
    properties = shaped.get("properties")
    if not isinstance(properties, dict):
        if properties is not None:
            changed.append("its properties were not an object")
        properties = {}
    properties = dict(properties)
    for word in ("allOf", "anyOf", "oneOf"):
        branches = shaped.pop(word, None)
        if branches is None:
            continue
        changed.append(f"{word} at the root was merged")
        for branch in branches if isinstance(branches, list) else ():
            inner = _resolved(branch, schema)
            more = inner.get("properties") if isinstance(inner, Mapping) else None
            for key, value in (more if isinstance(more, dict) else {}).items():
                properties.setdefault(key, value)
            needed = inner.get("required") if isinstance(inner, Mapping) else None
            if word == "allOf" and isinstance(needed, list):
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
    return shaped, "; ".join(changed[:5]) or None


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
    """Return the pages as one list: tools of the same name once, at most `MAX_TOOLS`, with the shortest age."""
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
