"""The owner's end of links: serves episodes of the local part buffer to replicas with viewers.

A selection is a cursor into its episode, so a slow link needs no queue: its parts stay in the part buffer and are
merged until the link reads again. Selections take turns, so that a long replay does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import msgspec
from starlette.types import Receive, Scope, Send

from rookery import __version__
from rookery.domain.chat.messages import ChatId
from rookery.live.feeds import MAX_BATCH_BYTES, EndReason, Subscription
from rookery.live.part_buffer import EpisodeKey, PartBufferError
from rookery.stream import ws
from rookery.stream.errors import CloseCode
from rookery.stream.follow import PartSource
from rookery.stream.relay import frames
from rookery.stream.relay.dial_tokens import TokenCheck, TokenRefused
from rookery.stream.relay.frames import Batch, Drop, End, Hello, Parts, Select
from rookery.stream.relay.workspace_agents import AgentEndpoint, FindAgent, OnCutOff
from rookery.stream.ws import Refusal
from rookery.telemetry.log import get_logger

log = get_logger("stream.relay")

_UNAUTHENTICATED = Refusal(status=401, code="unauthenticated", message="This address is for replicas of Rookery.")
_NOT_FOUND = Refusal(status=404, code="not_found", message="There is nothing at this address.")
_DRAINING = Refusal(status=503, code="unavailable", message="This replica is about to stop.")


@dataclass(slots=True)
class RelayServerStats:
    links: int = 0
    refused: int = 0
    selections: int = 0
    sent_bytes: int = 0
    protocol_mismatches: int = 0


class RelayEndpoint:
    """The ASGI application of the internal listener: links for live parts, and access to the agents of this machine."""

    def __init__(self, replica_id: UUID, buffer: PartSource, *, check: TokenCheck) -> None:
        self._agents: AgentEndpoint | None = None
        self._hello = Hello(frames.PROTOCOL, replica_id, __version__)
        self._buffer = buffer
        self._check = check
        self._links: dict[_ServedLink, None] = {}
        self._is_draining = False
        self.stats = RelayServerStats()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            if self._agents is not None and self._agents.takes(scope):
                await self._agents(scope, receive, send)
            else:
                await _answer_plainly(scope, send)
            return
        refusal = await self._judge(scope)
        if refusal is not None:
            self.stats.refused += 1
            await ws.refuse(receive, send, refusal)
            return
        await ws.accept(scope, receive, send)
        link = _ServedLink(self._hello, self._buffer, receive=receive, send=send, stats=self.stats)
        self._links[link] = None
        self.stats.links += 1
        try:
            await link.run()
        finally:
            del self._links[link]
            self.stats.links -= 1

    def serve_agents(self, find: FindAgent, on_cut_off: OnCutOff) -> None:
        self._agents = AgentEndpoint(find, self._check, on_cut_off)

    def drain(self) -> None:
        """End the selections of every link, and accept no new ones."""
        self._is_draining = True
        for link in tuple(self._links):
            link.drain()

    async def _judge(self, scope: Scope) -> Refusal | None:
        if scope["path"] != frames.PATH:
            return _NOT_FOUND
        if self._is_draining:
            return _DRAINING
        headers = dict(scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise TokenRefused("There is no token.")
            await self._check.check(token)
        except TokenRefused as error:
            log.warning("relay_dial_refused", reason=str(error))
            return _UNAUTHENTICATED
        return None


async def _answer_plainly(scope: Scope, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": _NOT_FOUND.raw_headers()})
        await send({"type": "http.response.body", "body": _NOT_FOUND.body()})


class _Selection:
    """One episode for one link."""

    __slots__ = ("generation", "is_draining", "sid", "subscription")

    def __init__(self, sid: int, generation: int, subscription: Subscription | None) -> None:
        self.sid = sid
        self.generation = generation
        self.subscription = subscription
        self.is_draining = subscription is None

    def close(self) -> None:
        if self.subscription is not None:
            self.subscription.close()


class _ServedLink:
    """One accepted link: a task that reads selections, and one that sends their parts."""

    __slots__ = ("_buffer", "_hello", "_ready", "_receive", "_selections", "_send", "_sends_batches", "_stats", "_wake")

    def __init__(
        self, hello: Hello, buffer: PartSource, *, receive: Receive, send: Send, stats: RelayServerStats
    ) -> None:
        self._hello = hello
        self._buffer = buffer
        self._receive = receive
        self._send = send
        self._stats = stats
        self._selections: dict[int, _Selection] = {}
        self._ready: dict[_Selection, None] = {}
        self._sends_batches = False
        self._wake = asyncio.Event()

    async def run(self) -> None:
        sender = asyncio.create_task(self._send_on(), name="relay-send")
        try:
            await self._receive_on()
        finally:
            sender.cancel()
            for selection in self._selections.values():
                selection.close()
            (failed,) = await asyncio.gather(sender, return_exceptions=True)
            if isinstance(failed, Exception) and not isinstance(failed, OSError):
                log.exception("relay_link_failed", failed)

    def drain(self) -> None:
        for selection in self._selections.values():
            selection.is_draining = True
            self._rouse(selection)

    async def _receive_on(self) -> None:
        while (data := await self._next()) is not None:
            try:
                frame = frames.decode_from_viewer(data)
            except msgspec.DecodeError:
                await self._send(
                    {"type": "websocket.close", "code": int(CloseCode.ABUSE), "reason": "The frame cannot be read."}
                )
                return
            match frame:
                case Hello(protocol=protocol) if protocol != frames.PROTOCOL:
                    # The response contains our protocol number, so that the other side can log it. That side then
                    # disconnects.
                    self._stats.protocol_mismatches += 1
                case Hello(reads_batches=reads_batches):
                    self._sends_batches = reads_batches
                case Select():
                    self._select(frame)
                case Drop(sid=sid):
                    self._drop(sid)

    async def _next(self) -> bytes | None:
        message = await self._receive()
        return message.get("bytes") or b"" if message["type"] == "websocket.receive" else None

    def _select(self, frame: Select) -> None:
        self._drop(frame.sid)
        self._stats.selections += 1
        key = EpisodeKey(ChatId(frame.chat_id), frame.history_version, frame.generation_attempt)
        selection = _Selection(frame.sid, frame.generation, None)
        try:
            selection.subscription = self._buffer.subscribe(
                key, max(frame.from_seq, 1), wake=_waker(self._rouse, selection)
            )
            selection.is_draining = False
        except PartBufferError:
            selection.is_draining = True
        self._selections[frame.sid] = selection
        self._rouse(selection)

    def _drop(self, sid: int) -> None:
        selection = self._selections.pop(sid, None)
        if selection is not None:
            self._ready.pop(selection, None)
            selection.close()

    def _rouse(self, selection: _Selection) -> None:
        self._ready[selection] = None
        self._wake.set()

    async def _send_on(self) -> None:
        await self._put(frames.encode(self._hello))
        while True:
            while self._ready:
                for frame in self._take_frames():
                    await self._put(frames.encode(frame))
            self._wake.clear()
            if not self._ready:
                await self._wake.wait()

    def _take_frames(self) -> list[Parts | Batch | End]:
        """Take one batch of each ready selection, up to the size of a frame.

        A selection that has more parts moves to the end of the queue.
        """
        taken: list[Parts] = []
        ends: list[Parts | Batch | End] = []
        size = 0
        for selection in tuple(self._ready):
            del self._ready[selection]
            if self._selections.get(selection.sid) is not selection:
                continue
            subscription = selection.subscription
            batch = subscription.pull() if subscription is not None else []
            if batch:
                taken.append(Parts(selection.sid, batch, selection.generation))
                if subscription is None or subscription.has_more or _end_reason(selection) is not None:
                    self._ready[selection] = None
                size += sum(len(part[2]) for part in batch)
                if size >= MAX_BATCH_BYTES or not self._sends_batches:
                    break
            elif (reason := _end_reason(selection)) is not None:
                last_seq = 0 if subscription is None else subscription.next_seq - 1
                self._drop(selection.sid)
                ends.append(End(selection.sid, last_seq, reason, selection.generation))
        return [*([Batch(taken)] if len(taken) > 1 else taken), *ends]

    async def _put(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": data})
        self._stats.sent_bytes += len(data)


def _end_reason(selection: _Selection) -> str | None:
    if selection.is_draining or selection.subscription is None:
        return "draining"
    end = selection.subscription.end
    if end is None:
        return None
    return "draining" if end is EndReason.SHUTDOWN else str(end)


def _waker(rouse: Callable[[_Selection], None], selection: _Selection) -> Callable[[], None]:
    return lambda: rouse(selection)
