"""The asynchronous client: one server, one identity, the namespaces of the API."""

from __future__ import annotations

from random import Random, SystemRandom
from types import TracebackType
from typing import Self

from rookery.client.account import AsyncAccount, AsyncModels, AsyncTokens
from rookery.client.agents import AsyncAgentKinds
from rookery.client.chats import AsyncChats
from rookery.client.debug import AsyncDebug
from rookery.client.files import AsyncFiles
from rookery.client.folders import AsyncFolders
from rookery.client.http import Config, Http
from rookery.client.live_streams import Watch
from rookery.client.mcp_servers import AsyncMcpServers
from rookery.client.messages import AsyncMessages, AsyncQueues
from rookery.client.models import Me, Version
from rookery.client.reconnecting_stream import Transport
from rookery.client.saved_prompts import AsyncSavedPrompts
from rookery.client.usage import AsyncUsageReports
from rookery.client.workspaces import AsyncTemplates, AsyncWorkspaces
from rookery.runtime.clock import Clock, SystemClock

DEFAULT_URL = "http://127.0.0.1:7117"
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_RETRIES = 3


class AsyncRookery:
    """A connection to a server; close it, or use it as `async with AsyncRookery(url, token=...) as client`.

    `timeout` is in seconds and applies to each try of a request. It does not limit streams. `unix_socket` is the path
    of the socket of a server on the same machine; `base_url` is then `http://localhost`. `clock` and `rng` are for
    tests.
    """

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
        self._http = Http(
            Config(
                base_url=base_url,
                token=token,
                timeout_seconds=timeout,
                max_retries=max_retries,
                clock=clock or SystemClock(),
                rng=rng or SystemRandom(),
                unix_socket=unix_socket,
            )
        )
        self.chats = AsyncChats(self._http)
        self.messages = AsyncMessages(self._http)
        self.queue = AsyncQueues(self._http)
        self.files = AsyncFiles(self._http)
        self.folders = AsyncFolders(self._http)
        self.mcp_servers = AsyncMcpServers(self._http)
        self.saved_prompts = AsyncSavedPrompts(self._http)
        self.models = AsyncModels(self._http)
        self.account = AsyncAccount(self._http)
        self.tokens = AsyncTokens(self._http)
        self.agent_kinds = AsyncAgentKinds(self._http)
        self.templates = AsyncTemplates(self._http)
        self.workspaces = AsyncWorkspaces(self._http)
        self.debug = AsyncDebug(self._http)
        self.usage = AsyncUsageReports(self._http)

    @property
    def base_url(self) -> str:
        return self._http.base_url

    async def me(self) -> Me:
        """Return the user of the token."""
        return await self.account.me()

    async def version(self) -> Version:
        return await self._http.read(Version, "/version")

    def watch(self, *, transport: Transport = "auto") -> Watch:
        """Follow the changes of all chats that the caller owns or reads."""
        return self.chats.watch(transport=transport)

    async def close(self) -> None:
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
