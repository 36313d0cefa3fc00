"""The live endpoints: a WebSocket or a plain GET on the same path opens a stream.

They are ASGI applications, not route handlers, because a stream outlives a request handler, and a refusal before the
upgrade is an ordinary response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from starlette import types
from starlette.requests import HTTPConnection

from rookery.api.caller import Caller
from rookery.api.errors import explain
from rookery.api.git_watch import GitSource
from rookery.api.routes import PREFIX, Route
from rookery.domain.access.rights import Action, Resource, Role, Scope, has_scope
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.store.people.errors import Denied, ScopeMissing
from rookery.stream import query_parameters
from rookery.stream.access_monitor import Grant
from rookery.stream.service import Opened, Streams
from rookery.workspaces.runtime import WorkspaceRuntime

# The delay after a stream was refused with 503. Many clients reconnect at the same time.
RETRY_SECONDS = "2"

Open = Callable[[Caller, HTTPConnection], Awaitable[Opened]]


def routes(streams: Streams, workspaces: WorkspaceRuntime) -> list[Route]:
    """Return the routes of all streams."""

    async def open_watch(caller: Caller, connection: HTTPConnection) -> Opened:
        for name in connection.query_params:
            raise InvalidInput(name, f"There is no parameter {name!r} here.")
        if not has_scope(caller.actor, Resource.CHAT, Action.LIST):
            raise ScopeMissing(Scope.CHAT_READ)
        grant = Grant(user_id=caller.user.id, credential=str(caller.credential_id))
        return streams.open_watch(grant, since=caller.access_changes)

    async def open_chat(caller: Caller, connection: HTTPConnection) -> Opened:
        wanted = query_parameters.parse(
            dict(connection.query_params), last_event_id=connection.headers.get("last-event-id")
        )
        chat_id = _chat_id(connection)
        root_id = await caller.store.chats.require(chat_id, Action.READ)
        if wanted.debug:  # recorded model calls contain prompts that readers of the chat may not see
            await caller.store.chats.require(chat_id, Action.PATCH)
        grant = Grant(
            user_id=caller.user.id,
            credential=str(caller.credential_id),
            chat_id=chat_id,
            root_id=root_id,
            has_reason=caller.reason is not None,
            marks=await _may_mark(caller, chat_id),
        )
        return await streams.open_chat(grant, wanted, since=caller.access_changes)

    async def open_git(caller: Caller, connection: HTTPConnection) -> Opened:
        """Open the stream of repositories.

        Only the owner may open it, because it runs commands in the owner's workspace and shows more than the chat.
        """
        for name in connection.query_params:
            raise InvalidInput(name, f"There is no parameter {name!r} here.")
        chat_id = _chat_id(connection)
        root_id = await caller.store.chats.require(chat_id, Action.PATCH)
        grant = Grant(user_id=caller.user.id, credential=str(caller.credential_id), chat_id=chat_id, root_id=root_id)
        watch = await workspaces.git.watch(chat_id)
        source = GitSource(chat_id, watch, partial(caller.store.contexts.write_diffs, chat_id))
        try:
            return streams.open_source(grant, source, since=caller.access_changes)
        except BaseException:
            await source.close()
            raise

    return [
        *_both(f"{PREFIX}/chats/watch", open_watch),
        *_both(f"{PREFIX}/chats/{{chat}}/git", open_git),
        *_both(f"{PREFIX}/chats/{{chat}}/stream", open_chat),
    ]


async def _may_mark(caller: Caller, chat_id: ChatId) -> bool:
    """Return whether the stream may move the caller's read cursor, with the same rule as for a request.

    All readers have a read cursor, except administrators who read another user's chat. Only administrators need the
    check.
    """
    if caller.user.role is not Role.ADMIN:
        return has_scope(caller.actor, Resource.CHAT, Action.MARK)
    try:
        await caller.own_store.chats.require(chat_id, Action.MARK)
    except Denied:
        return False
    return True


def _chat_id(connection: HTTPConnection) -> ChatId:
    try:
        return ChatId(UUID(connection.path_params["chat"]))
    except ValueError:
        raise InvalidInput("chat", "This is not the id of a chat.") from None


def _both(path: str, open_stream: Open) -> list[Route]:
    endpoint = _Endpoint(open_stream)
    return [Route(method=method, path=path, application=endpoint) for method in ("GET", "WEBSOCKET")]


class _Endpoint:
    def __init__(self, open_stream: Open) -> None:
        self._open = open_stream

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        caller = scope["rookery.caller"]
        assert isinstance(caller, Caller)
        try:
            opened = await self._open(caller, HTTPConnection(scope))
        except Exception as error:
            # Mapped here, because the framework has no response for a WebSocket that was not accepted.
            explained = explain(error)
            if explained is None:
                raise
            if explained.status == 503:
                explained.headers["Retry-After"] = RETRY_SECONDS
            await scope["rookery.refuse"](receive, explained)
            return
        await opened.serve(scope, receive, send)
