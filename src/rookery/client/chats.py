"""Chats: create, find, change, drive and follow them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import UUID, uuid4

from msgspec import UNSET, UnsetType

from rookery.client import pages
from rookery.client.content import (
    ApprovalAnswer,
    ChatRef,
    Content,
    DebugMode,
    DynamicTool,
    Effort,
    PermissionMode,
    ToolOutput,
    given,
    input_parts,
)
from rookery.client.http import Http, path
from rookery.client.live_streams import LiveChat, Watch
from rookery.client.models import Agent, AgentList, Chat, Cost, ProposedTitle, Rule, Rules
from rookery.client.pages import Page
from rookery.client.reconnecting_stream import Transport
from rookery.client.reducer import View

# The server gives the model 30 s for a title.
TITLE_SECONDS = 45.0


class AsyncChats:
    """`client.chats`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self,
        content: Content,
        *,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
        system_prompt: str | UnsetType = UNSET,
        title: str | UnsetType = UNSET,
        labels: Mapping[str, str] | UnsetType = UNSET,
        workspace_id: UUID | str | UnsetType = UNSET,
        mcp_server_ids: Sequence[UUID | str] | UnsetType = UNSET,
        plan_mode: bool | UnsetType = UNSET,
        permission_mode: PermissionMode | UnsetType = UNSET,
        dynamic_tools: Sequence[DynamicTool] | UnsetType = UNSET,
        client_type: str | UnsetType = UNSET,
        generate_summaries: bool | UnsetType = UNSET,
        idempotency_key: str | None = None,
    ) -> Chat:
        """Start a chat with its first message.

        The turn runs when this returns. If the response is lost, the request is repeated.
        """
        body = given(
            content=input_parts(content),
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
            system_prompt=system_prompt,
            title=title,
            labels=labels,
            workspace_id=workspace_id,
            mcp_server_ids=mcp_server_ids,
            plan_mode=plan_mode,
            permission_mode=permission_mode,
            dynamic_tools=dynamic_tools,
            client_type=client_type,
            generate_summaries=generate_summaries,
        )
        return await self._http.write(Chat, "POST", "/chats", body=body, key=idempotency_key or str(uuid4()))

    async def get(self, chat_id: ChatRef) -> Chat:
        return await self._http.read(Chat, path("chats", chat_id))

    async def list(
        self,
        q: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        workspace_id: UUID | str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Chat]:
        """Return one page of root chats: pinned chats first, then by last activity.

        `q` is a search, such as `status:running title:x`.
        """
        query = {
            "q": q,
            "label": [f"{key}:{value}" for key, value in (labels or {}).items()],
            "workspace_id": workspace_id,
            "limit": limit,
            "cursor": cursor,
        }
        return await self._http.read(Page[Chat], "/chats", query)

    async def iterate(
        self,
        q: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        workspace_id: UUID | str | None = None,
        page_size: int = 50,
    ) -> AsyncIterator[Chat]:
        """Iterate over every chat of the list, loaded page by page."""

        async def load(cursor: str | None) -> Page[Chat]:
            return await self.list(q, labels=labels, workspace_id=workspace_id, limit=page_size, cursor=cursor)

        async for chat in pages.walk(load):
            yield chat

    async def update(
        self,
        chat_id: ChatRef,
        *,
        title: str | UnsetType = UNSET,
        labels: Mapping[str, str] | UnsetType = UNSET,
        pin_order: int | UnsetType = UNSET,
        folder_id: UUID | str | UnsetType | None = UNSET,
        workspace_id: UUID | str | UnsetType | None = UNSET,
        plan_mode: bool | UnsetType = UNSET,
        permission_mode: PermissionMode | UnsetType = UNSET,
        mcp_server_ids: Sequence[UUID | str] | UnsetType = UNSET,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType | None = UNSET,
        archived: bool | UnsetType = UNSET,
        debug_mode: DebugMode | UnsetType = UNSET,
    ) -> Chat:
        """Change the given fields, all or none. `folder_id=None` takes the chat out of its folder."""
        body = given(
            title=title,
            labels=labels,
            pin_order=pin_order,
            folder_id=folder_id,
            workspace_id=workspace_id,
            plan_mode=plan_mode,
            permission_mode=permission_mode,
            mcp_server_ids=mcp_server_ids,
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
            archived=archived,
            debug_mode=debug_mode,
        )
        return await self._http.write(Chat, "PATCH", path("chats", chat_id), body=body)

    async def archive(self, chat_id: ChatRef) -> Chat:
        return await self.update(chat_id, archived=True)

    async def unarchive(self, chat_id: ChatRef) -> Chat:
        return await self.update(chat_id, archived=False)

    async def delete(self, chat_id: ChatRef) -> None:
        """Delete an archived root chat with its subagents permanently."""
        await self._http.send("DELETE", path("chats", chat_id))

    async def interrupt(self, chat_id: ChatRef, *, cascade: bool = True) -> Chat:
        """Stop the running turn and keep the answer so far.

        With `cascade`, the running subagents are stopped as well.
        """
        return await self._http.write(Chat, "POST", path("chats", chat_id, "interrupt"), body={"cascade": cascade})

    async def retry(self, chat_id: ChatRef) -> Chat:
        """Continue after an error or an unfinished turn, without another message."""
        return await self._http.write(Chat, "POST", path("chats", chat_id, "retry"))

    async def nudge(self, chat_id: ChatRef) -> Chat:
        """Try again now: end a silent model call, a retry delay or the running tool calls. The turn goes on."""
        return await self._http.write(Chat, "POST", path("chats", chat_id, "nudge"))

    async def compact(self, chat_id: ChatRef) -> Chat:
        """Summarize the history, so that later prompts need fewer tokens."""
        return await self._http.write(Chat, "POST", path("chats", chat_id, "compact"))

    async def reconcile(self, chat_id: ChatRef) -> Chat:
        """Repair a chat whose stored state is invalid. It gets the status `error` and keeps its queued messages."""
        return await self._http.write(Chat, "POST", path("chats", chat_id, "reconcile-invalid"))

    async def cost(self, chat_id: ChatRef) -> Cost:
        """Return the cost of the chat and its subagents so far."""
        return await self._http.read(Cost, path("chats", chat_id, "cost"))

    async def children(self, chat_id: ChatRef) -> tuple[Agent, ...]:
        """Return the subagents of the chat's family with their state, figures and last activity."""
        return (await self._http.read(AgentList, path("chats", chat_id, "agents"))).agents

    async def propose_title(self, chat_id: ChatRef) -> str:
        """Return a title that a model writes for the messages; empty if there are no messages.

        The chat is not changed.
        """
        target = path("chats", chat_id, "title", "propose")
        return (await self._http.write(ProposedTitle, "POST", target, timeout_seconds=TITLE_SECONDS)).title

    async def regenerate_title(self, chat_id: ChatRef) -> Chat:
        """Set a title that a model writes, unless the chat is renamed meanwhile."""
        target = path("chats", chat_id, "title", "regenerate")
        return await self._http.write(Chat, "POST", target, timeout_seconds=TITLE_SECONDS)

    async def submit_tool_results(self, chat_id: ChatRef, results: Sequence[ToolOutput]) -> None:
        """Send the results of all calls that the chat waits for."""
        await self._http.send("POST", path("chats", chat_id, "tool-results"), body={"results": results})

    async def answer_approvals(self, chat_id: ChatRef, answers: Sequence[ApprovalAnswer]) -> None:
        """Approve or deny all calls that the chat asks about.

        Raise `Conflict` if another client has already answered.
        """
        await self._http.send("POST", path("chats", chat_id, "approvals"), body={"answers": answers})

    async def approval_rules(self, chat_id: ChatRef) -> tuple[Rule, ...]:
        """Return the approval rules of the chat. They also apply to its subagents."""
        return (await self._http.read(Rules, path("chats", chat_id, "approval-rules"))).rules

    async def set_approval_rules(self, chat_id: ChatRef, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Replace the chat's approval rules, from the next tool call on."""
        target = path("chats", chat_id, "approval-rules")
        return (await self._http.write(Rules, "PUT", target, body={"rules": rules})).rules

    async def mark_read(self, chat_id: ChatRef, message_id: int | None = None) -> None:
        """Move the caller's read cursor forward to this message, or to the newest message."""
        body = {"message_id": message_id}
        await self._http.send("POST", path("chats", chat_id, "read"), body=body, is_repeatable=True)

    def stream(
        self,
        chat_id: ChatRef,
        *,
        after_id: int = 0,
        tail: int | None = None,
        parts: bool = True,
        mark_read: bool = False,
        debug: bool = False,
        transport: Transport = "auto",
    ) -> LiveChat:
        """Follow a chat: `async with client.chats.stream(chat_id) as live: async for change in live: ...`

        `after_id` is the last message that the caller has. Without it, the stream begins with the last `tail` messages.
        With `debug`, which only the owner may set, events `debug_update` report changes of the debug records.
        """
        query = {
            "tail": tail,
            "parts": None if parts else False,
            "mark_read": True if mark_read else None,
            "debug": True if debug else None,
        }
        return LiveChat(self._http, chat_id, query=query, after_id=after_id, transport=transport)

    def watch(self, *, transport: Transport = "auto") -> Watch:
        """Follow the changes of all chats that the caller owns or reads."""
        return Watch(self._http, transport=transport)

    async def run(
        self,
        content: Content,
        *,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
        system_prompt: str | UnsetType = UNSET,
        labels: Mapping[str, str] | UnsetType = UNSET,
        workspace_id: UUID | str | UnsetType = UNSET,
    ) -> str:
        """Start a chat, wait for its first turn to end, and return the text of the answer.

        If the call is cancelled, the chat continues on the server, as after a browser tab is closed.
        """
        chat = await self.create(
            content,
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
            system_prompt=system_prompt,
            labels=labels,
            workspace_id=workspace_id,
        )
        async with self.stream(chat.id, parts=False) as live:
            return await live.answer(chat.snapshot_version)

    async def wait_idle(self, chat_id: ChatRef, since: int = 0) -> View:
        """Wait until a chat is at rest. See `LiveChat.wait_idle`."""
        async with self.stream(chat_id, tail=0, parts=False) as live:
            return await live.wait_idle(since)
