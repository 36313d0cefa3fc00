"""A client of the SDK that records everything it receives, and compares it with the committed state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from rookery.client import AsyncRookery, Change
from rookery.client.reconnecting_stream import Transport
from rookery.client.reducer import Event, View
from rookery.domain.chat.messages import ChatId
from rookery.live.part_buffer import EpisodeKey
from tests.eventually import until
from tests.faulty_proxy import FaultyProxy
from tests.simulation.replicas_rig import HastyClock, ReplicasRig
from tests.stream.expected_view import difference, preview_of

PATIENCE_SECONDS = 20.0

# The order in which a client applies events (docs/api/streams.md).
ORDER = (
    "history_reset",
    "message",
    "queue_update",
    "status",
    "error",
    "action_required",
    "retry",
    "preview_reset",
    "synced",
)


class Follower:
    """`line` is the connection of the client. `check` checks all events since the last check."""

    def __init__(self, rig: ReplicasRig, chat_id: ChatId, line: FaultyProxy, *, tail: int) -> None:
        self.chat_id = chat_id
        self.line = line
        self.state = View()
        self._rig = rig
        self._tail = tail
        self._unchecked: list[Change] = []
        # The state at the last check.
        self._before = View()
        self._episode: EpisodeKey | None = None
        self._seq = 0
        self._text = ""

    @asynccontextmanager
    async def following(self, transport: Transport) -> AsyncIterator[Follower]:
        token = self._rig.person.token
        async with AsyncRookery(self.line.url, token=token, clock=HastyClock(), rng=Random(1)) as client:
            reading = asyncio.ensure_future(self._read(client, transport))
            try:
                await until(lambda: self.state.status or reading.done())
                yield self
            finally:
                is_over = reading.done()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                if is_over:
                    await reading

    async def _read(self, client: AsyncRookery, transport: Transport) -> None:
        async with client.chats.stream(self.chat_id, tail=self._tail, transport=transport) as live:
            async for change in live:
                self._unchecked.append(change)
                self.state = change.state

    async def settled(self) -> None:
        """Return when this client shows the stored state. Fail if it does not, or if it received something else."""
        truth = await self._rig.note(self.chat_id)
        preview = self._rig.preview(truth)

        def agrees() -> bool:
            self.check()
            return not difference(self.state, truth.view) and preview in (None, preview_of(self.state))

        try:
            await until(agrees, timeout=PATIENCE_SECONDS)
        except AssertionError as error:
            found = [*difference(self.state, truth.view), preview_of(self.state), preview]
            raise AssertionError(f"The client does not come to show what is stored: {found}") from error

    def check(self) -> None:
        unchecked, self._unchecked = self._unchecked, []
        for change in unchecked:
            self._rig.told.update(event["type"] for event in change.events)
            if change.is_committed:
                self._check_committed(change)
            else:
                for event in change.events:
                    self._check_live(event)
            assert preview_of(change.state) == self._text, "the view shows other parts than were told"

    def _check_committed(self, change: Change) -> None:
        kinds = [event["type"] for event in change.events]
        assert kinds == sorted(kinds, key=ORDER.index), f"events out of order: {kinds}"
        self._check_messages(change)
        version = change.state.snapshot_version
        assert version >= self._before.snapshot_version, "the client was taken back"
        truth = self._rig.truths[self.chat_id][version]
        found = difference(change.state, truth.view)
        assert not found, f"at version {version} the client differs in {found}: {kinds}"
        if "preview_reset" in kinds:
            self._seq, self._text = 0, ""
        if truth.episode != self._episode:
            assert self._seq == 0, "parts of another episode are still shown"
        self._episode = truth.episode
        self._before = change.state

    def _check_messages(self, change: Change) -> None:
        ids = [event["message"]["id"] for event in change.events if event["type"] == "message"]
        assert ids == sorted(set(ids)), f"messages out of order or twice: {ids}"
        if not any(event["type"] == "history_reset" for event in change.events):
            known = max(self._before.messages, default=0)
            assert not ids or ids[0] > known, f"messages {ids} come after {known}"

    def _check_live(self, event: Event) -> None:
        match event["type"]:
            case "hello":
                self._seq, self._text, self._episode = 0, "", None
            case "preview_reset":
                self._seq, self._text = 0, ""
            case "message_part":
                assert self._episode is not None, "a part while nothing runs"
                assert event["seq"] - event.get("n", 1) == self._seq, f"part {event['seq']} comes after {self._seq}"
                self._seq = event["seq"]
                self._text += event["part"]["text"]
                said = self._rig.said[self._episode]
                assert said.startswith(self._text), f"{self._text!r} was never said, but {said!r}"
