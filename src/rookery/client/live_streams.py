"""Live streams: the changes of one chat, and of the list of chats.

async with client.chats.stream(chat_id) as live:
    async for change in live:
        print(live.state.status, change.events)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

import msgspec

from rookery.client import reducer
from rookery.client.errors import ActionRequired, StreamEnded, TurnFailed, UnexpectedAnswer
from rookery.client.http import Http, Query, path
from rookery.client.models import Chat, Message
from rookery.client.reconnecting_stream import Frames, Transport
from rookery.client.reducer import Client, Event, View
from rookery.client.stream_connection import NORMAL, EndOfStream

T = TypeVar("T")

AT_REST = frozenset({"waiting", "error", "requires_action"})


@dataclass(frozen=True, slots=True)
class Change:
    """Events that belong together. The state of the chat already includes them.

    `is_committed`: the events are a complete change of the stored chat. Otherwise they are live parts of the running
    step, or the client-side event `disconnected`, with `reason` and `retry_in_seconds`.
    """

    events: tuple[Event, ...]
    state: View
    is_committed: bool = False


class _Stream(ABC, Generic[T]):
    """The base class of both streams.

    It is opened by `async with` and iterated by one task. Frames are split into items.
    """

    def __init__(self, http: Http, frames: Frames) -> None:
        self._http = http
        self._frames = frames
        self._ready: deque[T] = deque()

    @abstractmethod
    def _take(self, frame: Sequence[Event]) -> None:
        """Add the items of the frame to `_ready`."""

    async def __aenter__(self) -> Self:
        await self._frames.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._frames.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._ready:
            try:
                frame = await self._frames.receive()
            except EndOfStream:
                raise StopAsyncIteration from None
            self._take(frame)
        return self._ready.popleft()


class LiveChat(_Stream[Change]):
    """One chat, followed across reconnects. Open it by `async with`, and iterate it in one task.

    `state` is the view of the chat after the last change that was taken. Iteration ends when the server ends the stream
    normally. It raises a `StreamEnded` when the caller loses access or the chat is deleted.
    """

    def __init__(
        self, http: Http, chat_id: UUID | str, *, query: Query, after_id: int = 0, transport: Transport = "auto"
    ) -> None:
        super().__init__(http, Frames(http, path("chats", chat_id, "stream"), self._where, transport=transport))
        self._after_id = after_id
        self._query = dict(query)
        self._client = Client()
        self._state = self._client.view
        self._collected: list[Event] = []

    @property
    def state(self) -> View:
        return self._state

    @property
    def messages(self) -> tuple[Message, ...]:
        """The committed messages of the state, as structs."""
        try:
            return tuple(msgspec.convert(list(self.state.messages.values()), list[Message]))
        except msgspec.ValidationError as error:
            raise UnexpectedAnswer(self._http.base_url, str(error)) from error

    async def __anext__(self) -> Change:
        change = await super().__anext__()
        self._state = change.state
        return change

    async def wait_idle(self, since: int = 0) -> View:
        """Follow the chat until it is at rest.

        A chat at rest waits for a message, has failed, or requires an action: an approval, or results of this
        program's tools. `since` is the `snapshot_version` of the response to the last request; states before that
        version do not count.
        """
        while not self._is_idle(since):
            try:
                await anext(self)
            except StopAsyncIteration:
                raise StreamEnded(NORMAL, "The stream ended before the chat came to rest.") from None
        return self.state

    async def answer(self, since: int = 0) -> str:
        """Follow the chat until it is at rest.

        Return the text of its last answer. Raise a `TurnNotFinished` if there is none.
        """
        state = await self.wait_idle(since)
        if state.status == "error":
            raise TurnFailed(state.error or {})
        if state.status == "requires_action":
            raise ActionRequired(state.action or {})
        return last_answer(state)

    def _is_idle(self, since: int) -> bool:
        return self.state.status in AT_REST and self.state.snapshot_version >= since

    def _where(self) -> Query:
        after_id = self._client.view.last_message_id or self._after_id
        return {**self._query, "after_id": after_id} if after_id else self._query

    def _take(self, frame: Sequence[Event]) -> None:
        """Group events into changes.

        The events up to a `synced` are one change, and so are the live parts of a frame.
        """
        live: list[Event] = []
        for event in frame:
            before = self._client
            self._client = reducer.reduce(before, [event])
            match event["type"]:
                case "synced":
                    self._tell(live, before.view)
                    live = []
                    self._tell([*self._collected, event], self._client.view, is_committed=True)
                    self._collected = []
                case "hello":
                    self._collected = []
                    live.append(event)
                case _ if len(self._client.pending) > len(before.pending):
                    self._collected.append(event)
                case "heartbeat":
                    continue
                case _:
                    live.append(event)
        self._tell(live, self._client.view)

    def _tell(self, events: Sequence[Event], state: View, *, is_committed: bool = False) -> None:
        if events:
            self._ready.append(Change(tuple(events), state, is_committed))


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the list of chats.

    `ready`: no later change is missed; load the list now. `chat`: the current state of this chat. `chat_gone`: remove
    the chat. `resync`: load the list again. `disconnected`: the connection is lost; another `ready` follows.
    """

    type: str
    kinds: tuple[str, ...] = ()
    chat: Chat | None = None
    chat_id: UUID | None = None
    kind: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    reason: str | None = None
    retry_in_seconds: float | None = None


class Watch(_Stream[WatchEvent]):
    """Changes of the chats that the caller owns or reads. Nothing is replayed, so reload the list at every `ready`."""

    def __init__(self, http: Http, *, transport: Transport = "auto") -> None:
        super().__init__(http, Frames(http, path("chats", "watch"), dict, transport=transport))

    def _take(self, frame: Sequence[Event]) -> None:
        shown = [event for event in frame if event["type"] not in ("heartbeat", "goodbye")]
        try:
            self._ready.extend(msgspec.convert(shown, list[WatchEvent]))
        except msgspec.ValidationError as error:
            raise UnexpectedAnswer(self._http.base_url, str(error)) from error


def last_answer(state: View) -> str:
    """Return the text of the last assistant message in the last turn. Its blocks become paragraphs."""
    for message in reversed(list(state.messages.values())):
        if message["role"] == "assistant":
            return "\n\n".join(part["text"] for part in message["content"] if part["type"] == "text")
        if message["role"] == "user":
            break
    return ""
