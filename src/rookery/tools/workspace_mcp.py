"""Tools of the MCP servers that a workspace declares in its files. The workspace agent calls the servers.

Names and definitions come from the captured context, so the tools of a chat change only with that context. They are
untrusted: names are sanitized, definitions are bounded, and a result is text or one image.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from rookery.domain.chat import approvals, parts
from rookery.domain.chat.mcp_consent import Entry
from rookery.loop.tool import Media, Replay, ToolCall, ToolContext, ToolOutput, ToolSource, ToolSpec, object_schema
from rookery.store.workspaces.context import ContextResource
from rookery.tools.step_workspace import Refused, ask_agent, step_of
from rookery.workspaces.agent_client import MCP_SECONDS
from rookery.workspaces.agent_messages import McpResult
from rookery.workspaces.errors import WorkspaceError

MAX_NAME = 64
MAX_TOOLS = 500
WITHDRAWN = "The user has not agreed to the MCP server {name}, or has withdrawn it. Go on without it."
MayRun: TypeAlias = Callable[[Entry], Awaitable[bool]]
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class WorkspaceMcpTool:
    """One tool of a server that the owner has agreed to. `tool` is its name on that server."""

    def __init__(self, spec: ToolSpec, entry: Entry, tool: str, may_run: MayRun) -> None:
        self._spec = spec
        self._entry = entry
        self._tool = tool
        self._may_run = may_run

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def run(self, ctx: ToolContext, call: ToolCall) -> ToolOutput:
        given = parts.json_value(call.input)
        arguments = given if isinstance(given, dict) else {}
        # The owner may have withdrawn the consent since the step began.
        if not await self._may_run(self._entry):
            return ToolOutput(WITHDRAWN.format(name=self._entry.name), is_error=True)
        try:
            result = await ask_agent(
                step_of(ctx).workspace,
                lambda conn: conn.call_mcp_tool(self._entry, self._tool, arguments, key=ctx.replay_token),
            )
        except (Refused, WorkspaceError) as error:
            return ToolOutput(str(error), is_error=True)
        return as_output(result)


def tools(
    resources: Iterable[ContextResource],
    agreed: Collection[str],
    may_run: MayRun,
    *,
    taken: Collection[str] = (),
) -> list[WorkspaceMcpTool]:
    """Return the tools of the MCP servers that the owner has agreed to, sorted by name.

    `agreed` are the hashes of their entries. `may_run` checks the consent again before each call. Names in `taken` are
    those of other tools.
    """
    offered = [
        (each.entry, definition)
        for each in resources
        if each.kind == "mcp_server" and each.status == "ok"
        if each.entry is not None and each.entry.hash in agreed
        for definition in each.tools or ()
        if isinstance(definition.get("name"), str)
    ]
    offered.sort(key=lambda item: (item[0].name, item[1]["name"]))
    names = set(taken)
    made = []
    for entry, definition in offered[:MAX_TOOLS]:
        server = entry.name
        schema = definition.get("inputSchema")
        spec = ToolSpec(
            name=_name(server, definition["name"], names),
            description=str(definition.get("description") or ""),
            input_schema=object_schema(schema if isinstance(schema, dict) else {}),
            source=ToolSource.WORKSPACE_MCP,
            needs_workspace=True,
            replay=Replay.TOKEN,
            deadline_seconds=MCP_SECONDS + 15,
            rule_name=approvals.mcp_name(server, definition["name"]),
        )
        made.append(WorkspaceMcpTool(spec, entry, definition["name"], may_run))
    return sorted(made, key=lambda tool: tool.spec.name)


def _name(server: str, tool: str, taken: set[str]) -> str:
    """Return the names of server and tool, sanitized and joined. A name that is taken gets a number."""
    base = f"{_UNSAFE.sub('_', server)}__{_UNSAFE.sub('_', tool)}"[:MAX_NAME]
    name, number = base, 1
    while name in taken:
        number += 1
        suffix = f"_{number}"
        name = base[: MAX_NAME - len(suffix)] + suffix
    taken.add(name)
    return name


def as_output(result: McpResult) -> ToolOutput:
    """Return all texts of the result; an image only if there is no text."""
    texts = [text for each in result.content if (text := _text_of(each))]
    if result.structured is not None and not texts:
        texts.append(json.dumps(result.structured, ensure_ascii=False))
    if not texts and (media := _media_of(result.content)) is not None:
        return ToolOutput(is_error=result.is_error, media=media)
    return ToolOutput("\n".join(texts), is_error=result.is_error)


def _text_of(content: Mapping[str, Any]) -> str:
    resource = content.get("resource")
    match content.get("type"):
        case "text":
            return str(content.get("text") or "")
        case "resource" if isinstance(resource, dict) and isinstance(resource.get("text"), str):
            return str(resource["text"])
        case "resource_link" | "resource":
            named = resource if isinstance(resource, dict) else content
            return f"[resource: {named.get('uri') or named.get('name') or ''}]"
        case _:
            return ""


def _media_of(contents: Sequence[Mapping[str, Any]]) -> Media | None:
    for content in contents:
        data, media_type = content.get("data"), content.get("mimeType")
        if content.get("type") == "image" and isinstance(data, str) and isinstance(media_type, str):
            try:
                return Media(base64.b64decode(data, validate=True), media_type)
            except (binascii.Error, ValueError):
                continue
    return None
