"""The tool find_tools, which finds and activates tools of MCP servers whose definitions are left out of the prompt.

`defer` decides for each step whether definitions are left out, and which tools are active. The decision depends on the
history alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import ContentError, Part
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.mcp import tool_search
from rookery.domain.mcp.tool_search import FIND_TOOLS, Candidate, ToolSearch, Use
from rookery.loop.tool import Tool, ToolContext, ToolOutput, ToolSet, ToolSource, ToolSpec
from rookery.tools.framework import make_tool
from rookery.tools.mcp_stats import SearchStats

DESCRIPTION = (
    "Find tools of the connected servers by words or by name, and activate them: their descriptions are sent from the "
    "next step on. Many tools are connected, so they are only listed here. A listed tool can also be called directly "
    "by its name. A query `SERVER: words` searches one server.\n\nConnected tools by server:\n{catalog}"
)
EXHAUSTED = (
    "The tools that this answer has called fill the room for descriptions. Call a listed tool directly by its name."
)
_EXTERNAL = frozenset({ToolSource.MCP, ToolSource.WORKSPACE_MCP})
# Parameter texts only help the search.
_MAX_PARAMETERS = 2000


class FindTools(msgspec.Struct):
    queries: Annotated[
        list[str], Meta(description="Words to search for, at most 10 queries, for example `create issue`.")
    ] = []
    names: Annotated[list[str], Meta(description="Exact names of tools from the list, at most 40.")] = []


@dataclass(frozen=True, slots=True)
class _Search:
    """The deferred tools of one step. `max_bytes` is the size that definitions of active tools may have."""

    candidates: Sequence[Candidate]
    max_bytes: int
    stats: SearchStats = field(default_factory=SearchStats)

    @property
    def sizes(self) -> dict[str, int]:
        return {each.name: each.size_bytes for each in self.candidates}

    async def run(self, ctx: ToolContext, given: FindTools) -> ToolOutput:
        stats = self.stats
        stats.calls += 1
        queries = [each for each in given.queries if each.strip()]
        if not queries and not given.names:
            stats.rejected += 1
            return ToolOutput("Give at least one query or one name.", is_error=True)
        matches = tool_search.search(self.candidates, queries=queries, names=given.names)
        stats.matches += len(matches)
        if not matches:
            stats.empty += 1
            return ToolOutput({"matches": [], "activated": [], "total_deferred": len(self.candidates)})
        # The tools that the same answer has called. This one runs after them.
        called = ctx.batch.succeeded()
        activated = tool_search.activate(matches, called=called, sizes=self.sizes, max_bytes=self.max_bytes)
        if not activated:
            stats.rejected += 1
            return ToolOutput(EXHAUSTED, is_error=True)
        stats.activations += len(activated)
        found = [{"name": each.name, "description": tool_search.summary(each.description)} for each in matches]
        value: dict[str, Any] = {
            "matches": found,
            "activated": list(activated),
            "total_deferred": len(self.candidates),
        }
        return ToolOutput(value)


def defer(
    tools: ToolSet,
    rows: Sequence[PromptRow],
    *,
    setting: ToolSearch,
    context_limit: int | None,
    stats: SearchStats,
) -> ToolSet:
    """Return the tools of a step with `find_tools` in place of inactive definitions; the same set if all definitions
    are sent.
    """
    external = [spec for spec in tools.specs() if is_external(spec) and spec.name in tools.active]
    if not external or setting is ToolSearch.NEVER or tools.find_spec(FIND_TOOLS) is not None:
        return tools
    candidates = [_known_candidate(spec) for spec in external]
    if not tool_search.is_deferred(setting, candidates, context_limit=context_limit):
        return tools
    catalog = tool_search.catalog(candidates, max_bytes=tool_search.catalog_bytes(context_limit))
    room = tool_search.budget_bytes(context_limit) - len(catalog.encode("utf-8", "replace"))
    search = _Search(candidates, max(room, 0), stats)
    sizes = search.sizes
    chosen = tool_search.active(uses(rows, sizes), sizes, max_bytes=search.max_bytes)
    return tools.with_search(_tool(search, catalog), deferred=sizes.keys() - chosen)


def is_external(spec: ToolSpec) -> bool:
    return spec.source in _EXTERNAL


def _tool(search: _Search, catalog: str) -> Tool:
    return make_tool(
        FIND_TOOLS,
        DESCRIPTION.format(catalog=catalog),
        arguments=FindTools,
        handler=search.run,
        serial=True,
        read_only=True,
    )


# Specifications are kept between steps, and their size takes long to compute. Entries hold their specification, so that
# its identity is not reused.
_candidates: dict[int, tuple[ToolSpec, Candidate]] = {}
_MAX_CANDIDATES = 20_000


def _known_candidate(spec: ToolSpec) -> Candidate:
    known = _candidates.get(id(spec))
    if known is not None and known[0] is spec:
        return known[1]
    while len(_candidates) >= _MAX_CANDIDATES:
        del _candidates[next(iter(_candidates))]  # the oldest entry
    made = _candidate(spec)
    _candidates[id(spec)] = spec, made
    return made


def _candidate(spec: ToolSpec) -> Candidate:
    size = len(msgspec.json.encode({"name": spec.name, "description": spec.description, "schema": spec.input_schema}))
    return Candidate(spec.name, spec.name.partition("__")[0], spec.description, _parameters(spec.input_schema), size)


def _parameters(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    texts: list[str] = []
    for name, each in properties.items():
        described = each.get("description") if isinstance(each, Mapping) else None
        texts.append(f"{name} {described}" if isinstance(described, str) else str(name))
    return " ".join(texts)[:_MAX_PARAMETERS]


def uses(rows: Sequence[PromptRow], names: Mapping[str, int]) -> Iterator[Use]:
    """Yield the uses of deferred tools in the model's answers, the newest answer first."""
    results: dict[str, tuple[bool, tuple[str, ...]]] = {}
    for row in reversed(rows):
        role = row.message.role
        if role is Role.TOOL:
            for part in _parts(row):
                if isinstance(part, parts.ToolResult):
                    results.setdefault(part.tool_call_id, (part.is_error, _activated(part)))
        elif role is Role.ASSISTANT:
            made = [part for part in _parts(row) if isinstance(part, parts.ToolCall)]
            called: list[str] = []
            failed: list[str] = []
            activated: list[str] = []
            for call in made:
                is_error, found = results.pop(call.tool_call_id, (False, ()))
                if call.tool_name == FIND_TOOLS:
                    activated += found
                elif call.tool_name in names:
                    (failed if is_error else called).append(call.tool_name)
            if called or failed or activated:
                yield Use(tuple(called), tuple(failed), tuple(activated))


def _parts(row: PromptRow) -> Sequence[Part]:
    try:
        return row.message.parts()
    except ContentError:
        return ()


def _activated(result: parts.ToolResult) -> tuple[str, ...]:
    if result.tool_name != FIND_TOOLS or result.is_error or result.result is UNSET:
        return ()
    try:
        value = parts.json_value(result.result)
    except ContentError:
        return ()
    found = value.get("activated") if isinstance(value, dict) else None
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()
