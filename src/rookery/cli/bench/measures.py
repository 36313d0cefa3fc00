"""The measurements of `rookery bench`. Each measures Rookery and the floor in turn, in the same run."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import msgspec

from rookery.cli.bench import cpu
from rookery.cli.bench.conversations import Conversation, a_few_at_once, opened
from rookery.cli.bench.processes import Child
from rookery.cli.bench.rig import BenchRig
from rookery.cli.exit_codes import Refused
from rookery.domain.chat.messages import ChatId
from rookery.store import machine
from rookery.store.db import replica_presence

FEW, FEW_PACE = 10, 100
MANY_PACE = 50
SETTLE_SECONDS = 0.7
TURN_TOKENS = 20
TURNS_AT_ONCE = 8
CHATS_PER_LANE = 2
REPLICAS = 3
TAKEOVER_SECONDS = 30.0
POLL_SECONDS = 0.02
_HOLD = "import sys; print(flush=True); sys.stdin.read()"


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of Rookery and of the floor. `ratio` is how many times the floor's cost Rookery has."""

    name: str
    label: str
    unit: str
    value: float
    floor: float
    floor_is: str
    is_less_better: bool = True
    details: dict[str, float] = {}

    @property
    def ratio(self) -> float | None:
        cost, least = (self.value, self.floor) if self.is_less_better else (self.floor, self.value)
        return cost / least if least > 0 else None


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often is measured."""

    window_seconds: float
    rounds: int
    many: int  # chats that stream at once
    first_tokens: int
    kills: int


FULL = Effort(window_seconds=5.0, rounds=3, many=100, first_tokens=40, kills=12)
QUICK = Effort(window_seconds=1.0, rounds=1, many=20, first_tokens=5, kills=2)


class Bench:
    """One server of a rig, and the chats in it."""

    def __init__(self, rig: BenchRig, server: Child, effort: Effort, chats: Sequence[tuple[UUID, str]]) -> None:
        self._rig = rig
        self._server = server
        self._effort = effort
        self._chats = chats

    # CPU per token

    async def tokens(self) -> Measure:
        floors, ours = await self._streamed(FEW, FEW_PACE)
        return Measure(
            name="cpu_per_token",
            label=f"CPU per token, {FEW} answers at {FEW_PACE} tokens/s",
            unit="us",
            value=statistics.median(each.us_per_token for each in ours),
            floor=statistics.median(each.us_per_token for each in floors),
            floor_is="a bare relay: read, decode once, merge 27 ms of text, send; nothing is stored",
        )

    async def streams(self) -> Measure:
        floors, ours = await self._streamed(self._effort.many, MANY_PACE, rounds=1)
        return Measure(
            name="streams_per_core",
            label=f"streams per core, {MANY_PACE} tokens/s each",
            unit="streams",
            value=statistics.median(each.per_core for each in ours),
            floor=statistics.median(each.per_core for each in floors),
            floor_is="the same bare relay",
            is_less_better=False,
            details={
                "answers_at_once": self._effort.many,
                "cpu_per_token_us": ours[-1].us_per_token,
                "tokens_per_second": ours[-1].words / ours[-1].seconds,
            },
        )

    async def _streamed(
        self, answers: int, pace: int, rounds: int | None = None
    ) -> tuple[list[_Window], list[_Window]]:
        floors, ours = [], []
        for _ in range(rounds or self._effort.rounds):
            floors.append(await self._window(self._rig.of_floor(answers), pace, [self._rig.floor.pid]))
            pids = [self._server.pid, self._rig.postgres_pid]
            ours.append(await self._window(self._rig.of_server(self._server, self._chats[:answers]), pace, pids))
        return floors, ours

    async def _window(self, conversations: Sequence[Conversation], pace: int, pids: Sequence[int]) -> _Window:
        """Stream endless answers, and measure the processes while all of them run."""
        async with opened(conversations):
            await a_few_at_once([lambda each=each: each.send(f"0@{pace}") for each in conversations])  # type: ignore[misc]
            await asyncio.gather(*(each.first_word() for each in conversations))
            await asyncio.sleep(SETTLE_SECONDS)
            words, used, began = _words(conversations), _cpu(pids), time.monotonic()
            await asyncio.sleep(self._effort.window_seconds)
            seconds = time.monotonic() - began
            found = _Window(
                words=_words(conversations) - words, cpu_seconds=_cpu(pids) - used, seconds=seconds, pace=pace
            )
            await a_few_at_once([each.stop for each in conversations])
        if not found.words:
            raise Refused("No token arrived. The machine is too busy to measure.")
        return found

    # The first token

    async def first_token(self) -> Measure:
        (ours,) = self._rig.of_server(self._server, self._chats[:1])
        (floor,) = self._rig.of_floor(1)
        own: list[float] = []
        floors: list[float] = []
        found: list[float] = []
        async with opened([ours, floor]):
            for number in range(self._effort.first_tokens + 1):
                began = time.monotonic()
                await self._rig.ask_provider("1@0")
                times = (time.monotonic() - began, await _first_word(floor), await _first_word(ours))
                if number:  # the first round loads and caches the history
                    for each, kept in zip(times, (own, floors, found), strict=True):
                        kept.append(each * 1000)
        base = statistics.median(own)
        return Measure(
            name="added_first_token",
            label="added to the first token, idle server",
            unit="ms",
            value=statistics.median(found) - base,
            floor=statistics.median(floors) - base,
            floor_is="the same bare relay; both without the provider's own time",
            details={"provider_ms": base, "worst_ms": max(found) - base},
        )

    # Turns

    async def turns(self) -> Measure:
        lanes = self._chats[: TURNS_AT_ONCE * CHATS_PER_LANE]
        floor = await self._turns(self._rig.of_floor(len(lanes), is_stored=True), [self._rig.floor.pid])
        ours = await self._turns(self._rig.of_server(self._server, lanes), [self._server.pid])
        return Measure(
            name="short_turns_per_second",
            label=f"short turns per second ({TURN_TOKENS} tokens, {TURNS_AT_ONCE} at once)",
            unit="turns/s",
            value=ours[0],
            floor=floor[0],
            floor_is="the bare relay, with one transaction for the message and one for the answer",
            is_less_better=False,
            details={
                "python_ms_per_turn": ours[1],
                "postgresql_ms_per_turn": ours[2],
                "floor_python_ms_per_turn": floor[1],
                "floor_postgresql_ms_per_turn": floor[2],
            },
        )

    async def _turns(self, conversations: Sequence[Conversation], pids: Sequence[int]) -> tuple[float, float, float]:
        """Return the turns per second, and the CPU milliseconds per turn of the server and of PostgreSQL."""
        done, until = 0, float("inf")

        async def work(own: Sequence[Conversation]) -> None:
            nonlocal done
            while True:
                for each in own:
                    if time.monotonic() >= until:
                        return
                    await each.send(f"{TURN_TOKENS}@0")
                    await each.rest()
                    done += 1

        async with opened(conversations):
            for each in conversations:  # histories are loaded and cached
                await each.send("1@0")
                await each.rest()
            own_cpu, postgres_cpu = _cpu(pids), cpu.of_tree(self._rig.postgres_pid)
            began = time.monotonic()
            until = began + self._effort.window_seconds
            async with asyncio.TaskGroup() as group:
                for lane in range(TURNS_AT_ONCE):
                    group.create_task(work(conversations[lane::TURNS_AT_ONCE]))
            seconds = time.monotonic() - began
            own_ms = (_cpu(pids) - own_cpu) / done * 1000
            postgres_ms = (cpu.of_tree(self._rig.postgres_pid) - postgres_cpu) / done * 1000
        return done / seconds, own_ms, postgres_ms

    # Takeover

    async def takeover(self) -> Measure:
        """Kill the replica that runs a chat, as often as asked, and wait for the next request to the model.

        The server must have several replicas.
        """
        (chat_id, _), *_ = self._chats
        (ours,) = self._rig.of_server(self._server, self._chats[:1])
        floors, found = [], []
        async with opened([ours]):
            await ours.send("0@10")
            await ours.first_word()
            for _ in range(self._effort.kills):
                floors.append(await self._bare_kill())
                pid = await self._owner(chat_id)
                await self._rig.provider_requests()  # forgotten
                killed_at = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                found.append((await self._next_request(str(chat_id)) - killed_at) * 1000)
        return Measure(
            name="takeover",
            label="takeover after SIGKILL, to the model's request",
            unit="ms",
            value=statistics.median(found),
            floor=statistics.median(floors),
            floor_is="a process that sees the pipe of the killed one close, and sends the request",
            details={"worst_ms": max(found), "kills": len(found)},
        )

    async def _owner(self, chat_id: UUID) -> int:
        """Wait until all replicas run and one of them has the chat. Return its process id."""
        async with asyncio.timeout(TAKEOVER_SECONDS):
            while True:
                async with self._rig.database.api.acquire() as conn:
                    state = (await machine.states_of(conn, {chat_id})).get(ChatId(chat_id))
                    running = await replica_presence.list_replicas(conn)
                pids = {each.replica.id: each.replica.pid for each in running if _is_alive(each.replica.pid)}
                if state is not None and state.worker_id in pids and len(pids) == REPLICAS:
                    return pids[state.worker_id]
                await asyncio.sleep(POLL_SECONDS)

    async def _next_request(self, chat: str) -> float:
        try:
            async with asyncio.timeout(TAKEOVER_SECONDS):
                while True:
                    for name, at in await self._rig.provider_requests():
                        if name == chat:
                            return at
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise Refused(f"No replica took the chat over within {TAKEOVER_SECONDS:g} s.") from None

    async def _bare_kill(self) -> float:
        """Return the milliseconds from a kill to the request of a process that waits for it."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", _HOLD, stdin=pipe, stdout=pipe, start_new_session=True
        )
        try:
            assert process.stdout is not None
            await process.stdout.readline()
            await self._rig.provider_requests()
            killed_at = time.monotonic()
            process.kill()
            await process.stdout.read()
            await self._rig.ask_provider("1@0")
            return ((await self._rig.provider_requests())[0][1] - killed_at) * 1000
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class _Window(msgspec.Struct, frozen=True, kw_only=True):
    words: int
    cpu_seconds: float
    seconds: float
    pace: int

    @property
    def us_per_token(self) -> float:
        return self.cpu_seconds / self.words * 1e6

    @property
    def per_core(self) -> float:
        """Return how many answers of this pace one core could stream at this cost."""
        return 1e6 / (self.us_per_token * self.pace) if self.cpu_seconds else 0.0


async def _first_word(conversation: Conversation) -> float:
    began = time.monotonic()
    await conversation.send("1@0")
    await conversation.first_word()
    assert conversation.first_at is not None
    seconds = conversation.first_at - began
    await conversation.rest()
    return seconds


def _words(conversations: Sequence[Conversation]) -> int:
    return sum(each.words for each in conversations)


def _cpu(pids: Sequence[int]) -> float:
    return sum(map(cpu.of_tree, pids))


def _is_alive(pid: int) -> bool:
    try:
        state = (cpu.PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")
