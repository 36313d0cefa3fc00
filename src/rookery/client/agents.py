"""Kinds of subagents: the built-in kinds, those of the server, and the caller's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from rookery.client.content import Effort
from rookery.client.http import Http, path
from rookery.client.models import AgentKind, AgentKindList

# The scope of a kind: the caller, or everyone. Only administrators change kinds for everyone.
KindScope = Literal["user", "deployment"]


class AsyncAgentKinds:
    """`client.agent_kinds`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[AgentKind, ...]:
        """Return the kinds that the caller's chats can use, and those hidden by others with the same name."""
        return (await self._http.read(AgentKindList, "/agent-kinds")).kinds

    async def put(
        self,
        name: str,
        description: str,
        *,
        prompt: str = "",
        model_config_id: UUID | str | None = None,
        reasoning_effort: Effort | None = None,
        tools: Sequence[str] | None = None,
        read_only: bool = False,
        max_minutes: int | None = None,
        scope: KindScope = "user",
    ) -> AgentKind:
        """Create or replace a kind. `tools` is an allow list; None allows all tools of subagents."""
        body = {
            "description": description,
            "prompt": prompt,
            "model_config_id": model_config_id,
            "reasoning_effort": reasoning_effort,
            "tools": tools,
            "read_only": read_only,
            "max_minutes": max_minutes,
        }
        answer = await self._http.send("PUT", path("agent-kinds", name), query={"scope": scope}, body=body)
        return self._http.decode(AgentKind, answer)

    async def delete(self, name: str, *, scope: KindScope = "user") -> None:
        """Delete a kind. Subagents that were started with it continue."""
        await self._http.send("DELETE", path("agent-kinds", name), query={"scope": scope})
