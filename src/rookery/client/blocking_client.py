"""The blocking client: the same as `AsyncRookery`, without `await`."""

from __future__ import annotations

from random import Random
from types import TracebackType
from typing import Self

from rookery.client.async_client import DEFAULT_RETRIES, DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL, AsyncRookery
from rookery.client.event_loop_thread import BlockingWatch, Portal
from rookery.client.models import Me, Version
from rookery.client.reconnecting_stream import Transport
from rookery.client.sync_namespaces import (
    Account,
    AgentKinds,
    Chats,
    Debug,
    Files,
    Folders,
    McpServers,
    Messages,
    Models,
    Queues,
    SavedPrompts,
    Templates,
    Tokens,
    UsageReports,
    Workspaces,
)
from rookery.runtime.clock import Clock


class Rookery:
    """A connection to a server; close it, or use it as `with Rookery(url, token=...) as client`. See `AsyncRookery`."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        max_retries: int = DEFAULT_RETRIES,
        unix_socket: str | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._inner = AsyncRookery(
            base_url,
            token=token,
            timeout=timeout,
            max_retries=max_retries,
            unix_socket=unix_socket,
            clock=clock,
            rng=rng,
        )
        portal = self._portal = Portal()
        self.chats = Chats(self._inner.chats, portal)
        self.messages = Messages(self._inner.messages, portal)
        self.queue = Queues(self._inner.queue, portal)
        self.files = Files(self._inner.files, portal)
        self.folders = Folders(self._inner.folders, portal)
        self.mcp_servers = McpServers(self._inner.mcp_servers, portal)
        self.saved_prompts = SavedPrompts(self._inner.saved_prompts, portal)
        self.models = Models(self._inner.models, portal)
        self.account = Account(self._inner.account, portal)
        self.tokens = Tokens(self._inner.tokens, portal)
        self.agent_kinds = AgentKinds(self._inner.agent_kinds, portal)
        self.templates = Templates(self._inner.templates, portal)
        self.workspaces = Workspaces(self._inner.workspaces, portal)
        self.debug = Debug(self._inner.debug, portal)
        self.usage = UsageReports(self._inner.usage, portal)

    @property
    def base_url(self) -> str:
        return self._inner.base_url

    def me(self) -> Me:
        """Return the user of the token."""
        return self._portal.run(self._inner.me())

    def version(self) -> Version:
        return self._portal.run(self._inner.version())

    def watch(self, *, transport: Transport = "auto") -> BlockingWatch:
        """Follow the changes of all chats that the caller owns or reads."""
        return self.chats.watch(transport=transport)

    def close(self) -> None:
        """End the thread of this client. It may be called twice."""
        if not self._portal.is_closed:
            self._portal.run(self._inner.close())
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
