"""The namespaces of the blocking client. Made by tools/generate_client_sync.py; change the other ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from msgspec import UNSET, UnsetType

from rookery.client.account import AsyncAccount
from rookery.client.blocking import BlockingLiveChat, BlockingWatch, Portal
from rookery.client.catalog import AsyncModels
from rookery.client.chats import AsyncChats
from rookery.client.content import (
    ApprovalAnswer,
    ApprovalSettings,
    BusyBehavior,
    ChatRef,
    Content,
    DynamicTool,
    Effort,
    ToolOutput,
)
from rookery.client.files import UNKNOWN_TYPE, AsyncFiles
from rookery.client.frames import Transport
from rookery.client.messages import AsyncMessages
from rookery.client.models import (
    AccessNotice,
    AccessPage,
    Chat,
    Cost,
    DownloadUrl,
    EditAnswer,
    File,
    McpServer,
    Me,
    Message,
    MessagePage,
    Model,
    ModelProvider,
    NewToken,
    Operation,
    PromoteAnswer,
    Prompt,
    Queue,
    QueuedMessage,
    RequestedWorkspace,
    Rule,
    SearchMatch,
    SendAnswer,
    Template,
    Token,
    User,
    Workspace,
)
from rookery.client.pages import Page
from rookery.client.queues import AsyncQueues
from rookery.client.reducer import View
from rookery.client.tokens import DEFAULT_SCOPES, AsyncTokens
from rookery.client.workspaces import AsyncTemplates, AsyncWorkspaces


class Account:
    """`client.account`. A client without a token that logs in here keeps the session as a browser does."""

    def __init__(self, inner: AsyncAccount, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def me(self) -> Me:
        return self._portal.run(self._inner.me())

    def is_setup_needed(self) -> bool:
        """Whether the server has no account yet; until it has one it answers nothing else."""
        return self._portal.run(self._inner.is_setup_needed())

    def set_up(
        self, setup_token: str, *, email: str, password: str, username: str | None = None, name: str | None = None
    ) -> User:
        """Make the first account, an administrator, and log in as it. The token is printed at the first start."""
        return self._portal.run(
            self._inner.set_up(setup_token, email=email, password=password, username=username, name=name)
        )

    def login(self, login: str, password: str) -> User:
        """`login` is an email address or a username."""
        return self._portal.run(self._inner.login(login, password))

    def change_password(self, current_password: str, new_password: str, *, revoke_tokens: bool) -> None:
        """Choose a new password. All other sessions end; with `revoke_tokens` all other API tokens do, too."""
        self._portal.run(self._inner.change_password(current_password, new_password, revoke_tokens=revoke_tokens))

    def accesses(self, *, limit: int = 50, cursor: str | None = None) -> AccessPage:
        """When administrators read chats of the caller by stating a reason, or reset the password; newest first."""
        return self._portal.run(self._inner.accesses(limit=limit, cursor=cursor))

    def dismiss_access_notice(self, notice: AccessNotice) -> None:
        """The notice of `me()` is not shown any more. The list of accesses stays as it is."""
        self._portal.run(self._inner.dismiss_access_notice(notice))

    def approval_rules(self) -> tuple[Rule, ...]:
        """The caller's own rules about tool calls, for all their chats."""
        return self._portal.run(self._inner.approval_rules())

    def set_approval_rules(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Replace them, from the next tool call on."""
        return self._portal.run(self._inner.set_approval_rules(rules))

    def approval_settings(self) -> ApprovalSettings:
        """What administrators say about tool calls of everybody."""
        return self._portal.run(self._inner.approval_settings())

    def set_approval_settings(self, settings: ApprovalSettings) -> ApprovalSettings:
        """Replace that. For administrators."""
        return self._portal.run(self._inner.set_approval_settings(settings))

    def logout(self) -> None:
        """End the session of this client. Tokens live on."""
        self._portal.run(self._inner.logout())


class Models:
    """`client.models`."""

    def __init__(self, inner: AsyncModels, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def list(self) -> tuple[ModelProvider, ...]:
        """The providers that are switched on, each with its models."""
        return self._portal.run(self._inner.list())

    def find(self, name: str) -> Model | None:
        """The model with this id, or this name as the provider or people write it."""
        return self._portal.run(self._inner.find(name))


class Chats:
    """`client.chats`."""

    def __init__(self, inner: AsyncChats, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def create(
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
        dynamic_tools: Sequence[DynamicTool] | UnsetType = UNSET,
        client_type: str | UnsetType = UNSET,
        generate_summaries: bool | UnsetType = UNSET,
        idempotency_key: str | None = None,
    ) -> Chat:
        """Start a chat with its first message. It runs when this returns; a lost answer is asked for again."""
        return self._portal.run(
            self._inner.create(
                content,
                model_config_id=model_config_id,
                reasoning_effort=reasoning_effort,
                system_prompt=system_prompt,
                title=title,
                labels=labels,
                workspace_id=workspace_id,
                mcp_server_ids=mcp_server_ids,
                plan_mode=plan_mode,
                dynamic_tools=dynamic_tools,
                client_type=client_type,
                generate_summaries=generate_summaries,
                idempotency_key=idempotency_key,
            )
        )

    def get(self, chat_id: ChatRef) -> Chat:
        return self._portal.run(self._inner.get(chat_id))

    def list(
        self,
        q: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        workspace_id: UUID | str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Chat]:
        """One page of root chats, the pinned first, then the last active. `q` is a search: `status:running title:x`."""
        return self._portal.run(
            self._inner.list(q, labels=labels, workspace_id=workspace_id, limit=limit, cursor=cursor)
        )

    def iterate(
        self,
        q: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        workspace_id: UUID | str | None = None,
        page_size: int = 50,
    ) -> Iterator[Chat]:
        """Every chat of the list, loaded page by page."""
        return self._portal.iterate(
            self._inner.iterate(q, labels=labels, workspace_id=workspace_id, page_size=page_size)
        )

    def update(
        self,
        chat_id: ChatRef,
        *,
        title: str | UnsetType = UNSET,
        labels: Mapping[str, str] | UnsetType = UNSET,
        pin_order: int | UnsetType = UNSET,
        workspace_id: UUID | str | UnsetType | None = UNSET,
        plan_mode: bool | UnsetType = UNSET,
        mcp_server_ids: Sequence[UUID | str] | UnsetType = UNSET,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType | None = UNSET,
        archived: bool | UnsetType = UNSET,
    ) -> Chat:
        """Change what is given, all of it or nothing."""
        return self._portal.run(
            self._inner.update(
                chat_id,
                title=title,
                labels=labels,
                pin_order=pin_order,
                workspace_id=workspace_id,
                plan_mode=plan_mode,
                mcp_server_ids=mcp_server_ids,
                model_config_id=model_config_id,
                reasoning_effort=reasoning_effort,
                archived=archived,
            )
        )

    def archive(self, chat_id: ChatRef) -> Chat:
        return self._portal.run(self._inner.archive(chat_id))

    def unarchive(self, chat_id: ChatRef) -> Chat:
        return self._portal.run(self._inner.unarchive(chat_id))

    def delete(self, chat_id: ChatRef) -> None:
        """Delete an archived root chat with its family, for good."""
        self._portal.run(self._inner.delete(chat_id))

    def interrupt(self, chat_id: ChatRef, *, cascade: bool = True) -> Chat:
        """Stop the running turn; what was said so far is kept. `cascade` stops running subagents too."""
        return self._portal.run(self._inner.interrupt(chat_id, cascade=cascade))

    def retry(self, chat_id: ChatRef) -> Chat:
        """Go on after an error or an unfinished turn, without another message."""
        return self._portal.run(self._inner.retry(chat_id))

    def compact(self, chat_id: ChatRef) -> Chat:
        """Summarise the history, to make room."""
        return self._portal.run(self._inner.compact(chat_id))

    def reconcile(self, chat_id: ChatRef) -> Chat:
        """Bring a chat out of a state that should not exist; it ends in error, with its queue kept."""
        return self._portal.run(self._inner.reconcile(chat_id))

    def cost(self, chat_id: ChatRef) -> Cost:
        """What the chat and its subagents have cost so far."""
        return self._portal.run(self._inner.cost(chat_id))

    def propose_title(self, chat_id: ChatRef) -> str:
        """A title that a model makes of the messages; nothing is changed. Empty when there is nothing to read."""
        return self._portal.run(self._inner.propose_title(chat_id))

    def regenerate_title(self, chat_id: ChatRef) -> Chat:
        """Give the chat such a title, unless somebody renames it meanwhile."""
        return self._portal.run(self._inner.regenerate_title(chat_id))

    def submit_tool_results(self, chat_id: ChatRef, results: Sequence[ToolOutput]) -> None:
        """Answer all calls that the chat waits for."""
        self._portal.run(self._inner.submit_tool_results(chat_id, results))

    def answer_approvals(self, chat_id: ChatRef, answers: Sequence[ApprovalAnswer]) -> None:
        """Approve or deny all calls that the chat asks about. `Conflict` when somebody else was faster."""
        self._portal.run(self._inner.answer_approvals(chat_id, answers))

    def approval_rules(self, chat_id: ChatRef) -> tuple[Rule, ...]:
        """The chat's own rules about tool calls; its subagents have the same."""
        return self._portal.run(self._inner.approval_rules(chat_id))

    def set_approval_rules(self, chat_id: ChatRef, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Replace them, from the next tool call on."""
        return self._portal.run(self._inner.set_approval_rules(chat_id, rules))

    def mark_read(self, chat_id: ChatRef, message_id: int | None = None) -> None:
        """Move the caller's own read cursor forward: to this message, or to the newest."""
        self._portal.run(self._inner.mark_read(chat_id, message_id))

    def stream(
        self,
        chat_id: ChatRef,
        *,
        after_id: int = 0,
        tail: int | None = None,
        parts: bool = True,
        mark_read: bool = False,
        transport: Transport = "auto",
    ) -> BlockingLiveChat:
        """Follow a chat: `with client.chats.stream(chat_id) as live: for change in live: ...`

        `after_id` is the last message that the caller has; without it the stream begins with the last `tail` ones.
        """
        return BlockingLiveChat(
            self._inner.stream(
                chat_id, after_id=after_id, tail=tail, parts=parts, mark_read=mark_read, transport=transport
            ),
            self._portal,
        )

    def watch(self, *, transport: Transport = "auto") -> BlockingWatch:
        """What happens to all chats that the caller owns or reads."""
        return BlockingWatch(self._inner.watch(transport=transport), self._portal)

    def run(
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

        Cancelling it leaves the chat running on the server, as closing a browser tab does.
        """
        return self._portal.run(
            self._inner.run(
                content,
                model_config_id=model_config_id,
                reasoning_effort=reasoning_effort,
                system_prompt=system_prompt,
                labels=labels,
                workspace_id=workspace_id,
            )
        )

    def wait_idle(self, chat_id: ChatRef, since: int = 0) -> View:
        """Wait until a chat rests; see `LiveChat.wait_idle`."""
        return self._portal.run(self._inner.wait_idle(chat_id, since))


class Files:
    """`client.files`."""

    def __init__(self, inner: AsyncFiles, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def upload(self, data: bytes | Path, *, name: str | None = None, mime_type: str = UNKNOWN_TYPE) -> File:
        """Upload a file, at most 10 MiB. The server looks at the bytes to know the type of one that is not said.

        Use it in a message with `content.file_part(file.id)`.
        """
        return self._portal.run(self._inner.upload(data, name=name, mime_type=mime_type))

    def download(self, file_id: UUID | str) -> bytes:
        return self._portal.run(self._inner.download(file_id))

    def download_url(self, file_id: UUID | str) -> DownloadUrl:
        """An address that gives the file to whoever has it, for five minutes."""
        return self._portal.run(self._inner.download_url(file_id))

    def delete(self, file_id: UUID | str) -> None:
        """Delete a file that no chat uses."""
        self._portal.run(self._inner.delete(file_id))


class Messages:
    """`client.messages`."""

    def __init__(self, inner: AsyncMessages, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def list(
        self, chat_id: ChatRef, *, before_id: int | None = None, after_id: int | None = None, limit: int = 50
    ) -> MessagePage:
        """Messages newest first; with `after_id` alone oldest first, so that a poller never skips one."""
        return self._portal.run(self._inner.list(chat_id, before_id=before_id, after_id=after_id, limit=limit))

    def iterate(self, chat_id: ChatRef, *, after_id: int = 0, page_size: int = 100) -> Iterator[Message]:
        """Every message after one, oldest first, loaded page by page."""
        return self._portal.iterate(self._inner.iterate(chat_id, after_id=after_id, page_size=page_size))

    def get(self, chat_id: ChatRef, message_id: int) -> Message:
        return self._portal.run(self._inner.get(chat_id, message_id))

    def send(
        self,
        chat_id: ChatRef,
        content: Content,
        *,
        busy_behavior: BusyBehavior | UnsetType = UNSET,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
        mcp_server_ids: Sequence[UUID | str] | UnsetType = UNSET,
        plan_mode: bool | UnsetType = UNSET,
        client_id: str | None = None,
    ) -> SendAnswer:
        """Send a message. While the chat is busy it waits in the queue, unless `busy_behavior` says otherwise:
        `steer` is heard at the next step, `interrupt` stops the turn and runs next, before the rest of the queue.

        `client_id` makes it one message however often it is sent; one is made up when none is given.
        """
        return self._portal.run(
            self._inner.send(
                chat_id,
                content,
                busy_behavior=busy_behavior,
                model_config_id=model_config_id,
                reasoning_effort=reasoning_effort,
                mcp_server_ids=mcp_server_ids,
                plan_mode=plan_mode,
                client_id=client_id,
            )
        )

    def edit(
        self,
        chat_id: ChatRef,
        message_id: int,
        content: Content,
        *,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
    ) -> EditAnswer:
        """Replace a message of the user, and everything after it by what comes of the new one."""
        return self._portal.run(
            self._inner.edit(
                chat_id, message_id, content, model_config_id=model_config_id, reasoning_effort=reasoning_effort
            )
        )

    def search(self, chat_id: ChatRef, q: str, *, limit: int = 50) -> tuple[SearchMatch, ...]:
        """The messages of a chat in which words stand, newest first."""
        return self._portal.run(self._inner.search(chat_id, q, limit=limit))

    def prompts(self, chat_id: ChatRef, *, limit: int = 500) -> tuple[Prompt, ...]:
        """What the user wrote, newest first."""
        return self._portal.run(self._inner.prompts(chat_id, limit=limit))


class Queues:
    """`client.queue`: the messages of a chat that wait for its turn to end."""

    def __init__(self, inner: AsyncQueues, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def list(self, chat_id: ChatRef) -> Queue:
        return self._portal.run(self._inner.list(chat_id))

    def delete(self, chat_id: ChatRef, queued_id: int) -> None:
        self._portal.run(self._inner.delete(chat_id, queued_id))

    def clear(self, chat_id: ChatRef) -> None:
        self._portal.run(self._inner.clear(chat_id))

    def promote(self, chat_id: ChatRef, queued_id: int) -> PromoteAnswer:
        """Take it next: at once where that is possible, else the running turn is interrupted for it."""
        return self._portal.run(self._inner.promote(chat_id, queued_id))

    def move(self, chat_id: ChatRef, queued_id: int, *, before: int | None) -> Queue:
        """Put it in front of another one, or at the end."""
        return self._portal.run(self._inner.move(chat_id, queued_id, before=before))

    def edit(
        self,
        chat_id: ChatRef,
        queued_id: int,
        *,
        content: Content | UnsetType = UNSET,
        model_config_id: UUID | str | UnsetType = UNSET,
        reasoning_effort: Effort | UnsetType = UNSET,
    ) -> QueuedMessage:
        return self._portal.run(
            self._inner.edit(
                chat_id, queued_id, content=content, model_config_id=model_config_id, reasoning_effort=reasoning_effort
            )
        )


class Tokens:
    """`client.tokens`."""

    def __init__(self, inner: AsyncTokens, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def list(self) -> tuple[Token, ...]:
        return self._portal.run(self._inner.list())

    def create(
        self, name: str, *, scopes: Sequence[str] = DEFAULT_SCOPES, expires_in_days: int | None = None
    ) -> NewToken:
        """A token for programs. It is in the answer, and nowhere else."""
        return self._portal.run(self._inner.create(name, scopes=scopes, expires_in_days=expires_in_days))

    def delete(self, token_id: UUID | str) -> None:
        self._portal.run(self._inner.delete(token_id))


class Templates:
    """`client.templates`."""

    def __init__(self, inner: AsyncTemplates, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def list(self) -> tuple[Template, ...]:
        """Those that the caller may use."""
        return self._portal.run(self._inner.list())

    def get(self, name: str) -> Template:
        """One, with its README."""
        return self._portal.run(self._inner.get(name))


class Workspaces:
    """`client.workspaces`."""

    def __init__(self, inner: AsyncWorkspaces, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def create(
        self,
        template: str,
        *,
        name: str | None = None,
        preset: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> RequestedWorkspace:
        """Make a workspace and start it; `wait` for the operation of the answer."""
        return self._portal.run(self._inner.create(template, name=name, preset=preset, parameters=parameters))

    def list(self, *, limit: int = 50, cursor: str | None = None, owner: str | None = None) -> Page[Workspace]:
        """One page, the newest first. `owner` is for administrators: the id of a user, or `all`."""
        return self._portal.run(self._inner.list(limit=limit, cursor=cursor, owner=owner))

    def iterate(self, *, owner: str | None = None) -> Iterator[Workspace]:
        """Every workspace, loaded as they are asked for."""
        return self._portal.iterate(self._inner.iterate(owner=owner))

    def get(self, workspace_id: UUID | str) -> Workspace:
        return self._portal.run(self._inner.get(workspace_id))

    def update(
        self, workspace_id: UUID | str, *, name: str | None = None, idle_stop_after: int | None = None
    ) -> Workspace:
        """Rename it, or change after how many seconds without use it is stopped; 0 is never."""
        return self._portal.run(self._inner.update(workspace_id, name=name, idle_stop_after=idle_stop_after))

    def start(self, workspace_id: UUID | str, *, parameters: Mapping[str, Any] | None = None) -> RequestedWorkspace:
        """Start it; the answer has no operation when it runs already."""
        return self._portal.run(self._inner.start(workspace_id, parameters=parameters))

    def mcp_servers(self, workspace_id: UUID | str) -> tuple[McpServer, ...]:
        """The MCP servers that its files name. None runs before its owner has agreed to its entry."""
        return self._portal.run(self._inner.mcp_servers(workspace_id))

    def answer_mcp_server(
        self, workspace_id: UUID | str, entry_hash: str, decision: Literal["agree", "deny"]
    ) -> tuple[McpServer, ...]:
        """Agree to an entry, by its `hash`, or deny it. A changed entry has another hash, and is asked about again."""
        return self._portal.run(self._inner.answer_mcp_server(workspace_id, entry_hash, decision))

    def withdraw_mcp_server(self, workspace_id: UUID | str, entry_hash: str) -> tuple[McpServer, ...]:
        """Take an answer back: the server ends, and is asked about again."""
        return self._portal.run(self._inner.withdraw_mcp_server(workspace_id, entry_hash))

    def stop(self, workspace_id: UUID | str) -> RequestedWorkspace:
        """Stop it; its files are kept."""
        return self._portal.run(self._inner.stop(workspace_id))

    def delete(self, workspace_id: UUID | str, *, force: bool = False) -> RequestedWorkspace:
        """Delete it with its files. `force` also while a chat is at work in it, or its machine is out of reach."""
        return self._portal.run(self._inner.delete(workspace_id, force=force))

    def operation(self, operation_id: UUID | str) -> Operation:
        """How something that was asked for stands."""
        return self._portal.run(self._inner.operation(operation_id))

    def log(self, operation_id: UUID | str) -> str:
        """What an operation has said so far, the startup script too: the last 256 KiB."""
        return self._portal.run(self._inner.log(operation_id))

    def wait(self, operation_id: UUID | str) -> Operation:
        """Return once the operation is over, whatever came of it. End the wait with a timeout of your own."""
        return self._portal.run(self._inner.wait(operation_id))
