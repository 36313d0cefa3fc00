"""The load of many users on a server, through the Python client: create a chat, follow it, send, wait, send again.

Times are kept in histograms and errors are counted by kind, so only the ids of the chats take memory as it runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar
from uuid import UUID

import msgspec

from rookery.cli.bench.percentiles import Percentiles
from rookery.client import AsyncRookery, LiveChat, errors
from rookery.client.errors import ApiError, RookeryError
from rookery.client.live_streams import AT_REST, Change
from rookery.client.reducer import Event

T = TypeVar("T")

CREATE, OPEN, SEND = "create", "open", "send"
RUNNING, FIRST_TOKEN, REST, RESUME = "running", "first_token", "rest", "resume"
KINDS = (CREATE, OPEN, SEND, RUNNING, FIRST_TOKEN, REST, RESUME)

# After the end, running turns have this long to finish.
GRACE_SECONDS = 10.0
# The pause after an error. It doubles with each error in a row.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 30.0
# For refusals that do not say how long to wait.
LIMITED_PAUSE_SECONDS = 5.0
LAG_SECONDS = 0.25
MAX_ERROR_KINDS = 50

# These apply to all users of a token and do not pass, so the load ends.
FATAL = (errors.Unauthenticated, errors.Forbidden, errors.SetupRequired, errors.LoggedOut)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`think_seconds` is the mean of a random pause; `messages` are sent to a chat before the next one is created."""

    users: int
    seconds: float
    ramp_seconds: float
    think_seconds: float
    messages: int
    text: str
    timeout_seconds: float
    model_id: UUID
    label: str


@dataclass(frozen=True, slots=True)
class MadeChat:
    client: AsyncRookery
    chat_id: UUID


@dataclass(slots=True)
class _Turn:
    """A message and the times until the end of its turn. `version` is None until the response has arrived."""

    began: float
    version: int | None = None
    running_at: float | None = None
    first_at: float | None = None
    rests: list[tuple[int, float, str, str]] = field(default_factory=list)

    def rest(self) -> tuple[int, float, str, str] | None:
        """Return (version, time, status, error) of the first rest after the message."""
        if self.version is None:
            return None
        return next((rest for rest in self.rests if rest[0] >= self.version), None)


class Load:
    """Runs the users. `clients` are used in turn; the figures can be read at any time."""

    def __init__(self, plan: Plan, clients: Sequence[AsyncRookery], *, rng: Random) -> None:
        self.plan = plan
        self.times: Mapping[str, Percentiles] = {kind: Percentiles() for kind in KINDS}
        self.errors: Counter[str] = Counter()
        self.limited: Counter[str] = Counter()
        self.limited_seconds = 0.0
        self.turns = self.unfinished = self.users = self.running_turns = 0
        self.chats: list[MadeChat] = []
        self.lag = Percentiles()
        self._clients = clients
        self._rng = rng
        self._ended = asyncio.Event()
        self._began = self._stopped = time.monotonic()
        self._cpu_began = self._cpu_stopped = time.process_time()

    @property
    def seconds(self) -> float:
        return self._stopped - self._began

    @property
    def cpu_share(self) -> float:
        """The part of one core that this process used. The figures include its delays if it is near 1."""
        return (self._cpu_stopped - self._cpu_began) / max(self.seconds, 1e-9)

    def tick(self) -> None:
        """Update the durations."""
        self._stopped, self._cpu_stopped = time.monotonic(), time.process_time()

    async def run(self) -> None:
        """Run until the planned end. Raise the error if the server refuses the token."""
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        lag = asyncio.create_task(self._watch_lag())
        users = [asyncio.create_task(self._user(number)) for number in range(self.plan.users)]
        try:
            await self._wait(users, self.plan.seconds)
            self._ended.set()
            self.tick()
            await self._wait(users, GRACE_SECONDS)
        finally:
            if not self._ended.is_set():
                self._ended.set()
                self.tick()
            lag.cancel()
            self.unfinished = self.running_turns
            for user in users:
                user.cancel()
            await asyncio.gather(lag, *users, return_exceptions=True)

    async def _wait(self, users: Sequence[asyncio.Task[None]], seconds: float) -> None:
        done, _ = await asyncio.wait(users, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for user in done:
            user.result()

    # One user

    async def _user(self, number: int) -> None:
        await self._pause(self.plan.ramp_seconds * number / self.plan.users)
        client, failures = self._clients[number % len(self._clients)], 0
        self.users += not self._ended.is_set()
        while not self._ended.is_set():
            try:
                await self._chat(client)
                failures = 0
            except FATAL:
                raise
            except RookeryError as error:
                self._count(_kind(error))
                pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 8), LAST_PAUSE_SECONDS)
                failures += 1
                await self._pause(pause * self._rng.uniform(0.7, 1.3))

    async def _chat(self, client: AsyncRookery) -> None:
        """Create a chat, and send to it until it has enough messages, or a turn fails."""
        plan = self.plan

        async def create() -> tuple[UUID, int]:
            made = await client.chats.create(
                plan.text,
                title="Load test",
                labels={"load": plan.label},
                model_config_id=plan.model_id,
            )
            self.chats.append(MadeChat(client, made.id))
            return made.id, made.snapshot_version

        created = await self._obeying(CREATE, create)
        if created is None:
            return
        began, (chat_id, version) = created

        async def open_stream() -> LiveChat:
            return await client.chats.stream(chat_id).__aenter__()

        opened = await self._obeying(OPEN, open_stream)
        if opened is None:
            return
        live = opened[1]
        follower = _Follower(live, self.times)
        reader = asyncio.create_task(follower.run())
        try:
            turn = follower.turn = _Turn(began, version)
            for number in range(plan.messages):
                if number:
                    await self._pause(plan.think_seconds * self._rng.uniform(0.5, 1.5))
                    sent = None if self._ended.is_set() else await self._send(client, chat_id, follower)
                    if sent is None:
                        return
                    turn = sent
                if not await self._finish(client, chat_id, follower, turn):
                    return
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            with suppress(Exception):
                await live.close()

    async def _send(self, client: AsyncRookery, chat_id: UUID, follower: _Follower) -> _Turn | None:
        async def send() -> int:
            follower.turn = _Turn(asyncio.get_running_loop().time())
            return (await client.messages.send(chat_id, self.plan.text)).chat.snapshot_version

        sent = await self._obeying(SEND, send)
        if sent is None:
            return None
        turn = follower.turn
        assert turn is not None
        turn.version = sent[1]
        return turn

    async def _finish(self, client: AsyncRookery, chat_id: UUID, follower: _Follower, turn: _Turn) -> bool:
        """Wait for the end of a turn and record its times. Return whether it ended with an answer."""
        self.running_turns += 1
        try:
            async with asyncio.timeout(self.plan.timeout_seconds):
                _, at, status, error = await follower.rest(turn)
        except TimeoutError:
            self._count("no answer in time")
            await _interrupt(client, chat_id)
            return False
        finally:
            # A user that is canceled at the end leaves its turn unfinished.
            self.running_turns -= 1
        if status != "waiting":
            self._count(f"turn failed: {error}" if status == "error" else "turn waits for an approval or a tool result")
            if status != "error":
                await _interrupt(client, chat_id)
            return False
        self.turns += 1
        for kind, when in ((RUNNING, turn.running_at), (FIRST_TOKEN, turn.first_at), (REST, at)):
            if when is not None:
                self.times[kind].add(when - turn.began)
        return True

    async def _obeying(self, kind: str, act: Callable[[], Awaitable[T]]) -> tuple[float, T] | None:
        """Do this, again after the requested pause if a limit refuses it. Return its start and result.

        Return None if the load ended meanwhile.
        """
        loop = asyncio.get_running_loop()
        while not self._ended.is_set():
            began = loop.time()
            try:
                found = await act()
            except errors.RateLimited as error:
                self.limited[error.code] += 1
                pause = LIMITED_PAUSE_SECONDS if error.retry_after is None else error.retry_after
                self.limited_seconds += pause
                await self._pause(pause)
                continue
            self.times[kind].add(loop.time() - began)
            return began, found
        return None

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not longer than the load."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def _count(self, kind: str) -> None:
        self.errors[kind if kind in self.errors or len(self.errors) < MAX_ERROR_KINDS else "other"] += 1

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.lag.add(max(loop.time() - due, 0.0))
            self.tick()


class _Follower:
    """Reads the stream of one chat all the time, also while its user thinks."""

    def __init__(self, live: LiveChat, times: Mapping[str, Percentiles]) -> None:
        self._live = live
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._lost_at: float | None = None
        self.turn: _Turn | None = None

    async def run(self) -> None:
        try:
            async for change in self._live:
                self._take(change, self._loop.time())
            self._failure = errors.StreamEnded(1000, "The stream ended during the load.")
        except RookeryError as error:
            self._failure = error
        finally:
            self._changed.set()

    async def rest(self, turn: _Turn) -> tuple[int, float, str, str]:
        """Wait for the end of the turn. Raise the error that ended the stream."""
        while (found := turn.rest()) is None:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        return found

    def _take(self, change: Change, now: float) -> None:
        turn = self.turn
        for event in change.events:
            match event["type"]:
                case "disconnected" if self._lost_at is None:
                    self._lost_at = now
                case "hello" if self._lost_at is not None:
                    self._times[RESUME].add(now - self._lost_at)
                    self._lost_at = None
                case "message_part" if turn is not None and turn.first_at is None:
                    turn.first_at = now
                case "message" if turn is not None and turn.first_at is None and _is_answer(event):
                    # A short answer may be committed before its parts are sent.
                    turn.first_at = now
        if not change.is_committed or turn is None:
            return
        state = change.state
        if state.status == "running" and turn.running_at is None:
            turn.running_at = now
        if state.status in AT_REST:
            error = str((state.error or {}).get("kind", "unknown"))
            turn.rests.append((state.snapshot_version, now, str(state.status), error))
            self._changed.set()


def _is_answer(event: Event) -> bool:
    return bool(event["message"]["role"] == "assistant")


def _kind(error: RookeryError) -> str:
    match error:
        case ApiError():
            return f"{error.status} {error.code}"
        case errors.Unreachable():
            return "not reachable"
        case errors.TimedOut():
            return "request timed out"
        case errors.StreamEnded():
            return f"stream closed with {error.close_code}"
    return type(error).__name__


async def _interrupt(client: AsyncRookery, chat_id: UUID) -> None:
    with suppress(RookeryError):
        await client.chats.interrupt(chat_id)
