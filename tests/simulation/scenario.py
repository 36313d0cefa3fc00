"""A scenario with three replicas, whose actions, faults and recoveries hypothesis chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.client.reconnecting_stream import Transport
from rookery.domain.chat.messages import ChatId
from tests.faulty_proxy import FaultyProxy
from tests.simulation.follower import Follower
from tests.simulation.replicas_rig import Hearing, ReplicasRig, open_replicas

# Chat, transport, and the requested length of the history.
CLIENTS: tuple[tuple[int, Transport, int], ...] = (
    (0, "websocket", 1000),
    (0, "sse", 3),
    (1, "sse", 1000),
    (1, "websocket", 3),
)
# By weight. Hypothesis shrinks to the first.
WEIGHTS = {
    "rest": 1,
    "move": 24,
    "attempt": 6,
    "answer": 8,
    "speak": 6,
    "end_step": 3,
    "hear": 4,
    "tell_what_was_kept": 3,
    "cut_links": 3,
    "cut_line": 8,
    "hold_line": 2,
    "mend_line": 2,
    "lose_listeners": 2,
    "settle_by_polling": 2,
    "settle_by_resync": 2,
}
KINDS = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]


class Act(NamedTuple):
    """An action and its parameters; each kind uses those it needs."""

    kind: str
    chat: int
    who: int
    replica: int
    number: int
    is_so: bool


ACTS = st.builds(
    Act,
    kind=st.sampled_from(KINDS),
    chat=st.integers(0, 1),
    who=st.integers(0, len(CLIENTS) - 1),
    replica=st.integers(0, 2),
    number=st.integers(0, 4000),
    is_so=st.booleans(),
)


class Scenario:
    """With `is_apart`, clients are connected only to the first replica, which never owns a chat."""

    def __init__(
        self, rig: ReplicasRig, chats: Sequence[ChatId], followers: Sequence[Follower], *, is_apart: bool
    ) -> None:
        self._rig = rig
        self._chats = chats
        self._followers = followers
        self._is_apart = is_apart

    async def act(self, act: Act) -> None:
        await getattr(self, act.kind)(act)
        await asyncio.sleep(0)  # let woken tasks run

    async def rest(self, act: Act) -> None:
        """Do nothing."""

    # Actions of users and workers

    async def move(self, act: Act) -> None:
        await self._rig.move(self._chats[act.chat], act.number, at=self._worker(act))

    async def attempt(self, act: Act) -> None:
        await self._rig.attempt(self._chats[act.chat], at=self._worker(act))

    async def answer(self, act: Act) -> None:
        """Run a whole step with live parts, the most frequent action of workers."""
        await self.attempt(act)
        await self.speak(act)
        await self.end_step(act)

    async def speak(self, act: Act) -> None:
        """Stream words, sometimes so many that they are merged for late readers."""
        await self._rig.speak(self._chats[act.chat], 1 + act.number % 90, is_merged=act.is_so)

    async def end_step(self, act: Act) -> None:
        await self._rig.end_step(self._chats[act.chat])

    # Faults

    async def hear(self, act: Act) -> None:
        self._rig.hint_filters[act.replica].hearing = list(Hearing)[act.number % 3]

    async def tell_what_was_kept(self, act: Act) -> None:
        self._rig.hint_filters[act.replica].tell_what_was_kept(is_reversed=act.is_so, times=1 + act.number % 2)

    async def cut_links(self, act: Act) -> None:
        self._rig.cut_links()

    async def cut_line(self, act: Act) -> None:
        """Break the connection of a client, now or a little later. It reconnects to another replica."""
        line = self._followers[act.who].line
        line.target = url_of(self._rig, act.replica, is_apart=self._is_apart)
        if act.is_so:
            line.cut()
        else:
            line.cut_after(1 + act.number)

    async def hold_line(self, act: Act) -> None:
        self._followers[act.who].line.hang()

    async def mend_line(self, act: Act) -> None:
        self._followers[act.who].line.flow()

    async def lose_listeners(self, act: Act) -> None:
        await self._rig.lose_listeners()

    # Recovery

    async def settle_by_polling(self, act: Act) -> None:
        await self.settle(self._rig.poll)

    async def settle_by_resync(self, act: Act) -> None:
        await self.settle(self._rig.lose_listeners)

    async def settle(self, make_up: Callable[[], Awaitable[None]]) -> None:
        for follower in self._followers:
            follower.line.flow()
        await make_up()
        for follower in self._followers:
            await follower.settled()

    def _worker(self, act: Act) -> int:
        return 1 + act.replica % 2 if self._is_apart else act.replica


def url_of(rig: ReplicasRig, replica: int, *, is_apart: bool) -> str:
    return rig.replicas_rigs[0 if is_apart else replica].url


async def scenario(rig: ReplicasRig, acts: Sequence[Act], *, is_apart: bool) -> None:
    """Run all actions with new chats and clients. At the end, all clients must show the stored state."""
    rig.mend()
    chats = [await rig.create() for _ in range(2)]
    async with AsyncExitStack() as stack:
        followers = []
        for chat, transport, tail in CLIENTS:
            line = await stack.enter_async_context(FaultyProxy(url_of(rig, 0, is_apart=is_apart)).laid())
            follower = Follower(rig, chats[chat], line, tail=tail)
            followers.append(await stack.enter_async_context(follower.following(transport)))
        playing = Scenario(rig, chats, followers, is_apart=is_apart)
        for act in acts:
            await playing.act(act)
        await playing.settle(rig.lose_listeners)


def run_scenarios(
    rig: ReplicasRig, runner: asyncio.Runner, profile: settings, *, length: int, is_apart: bool = False
) -> None:
    @profile
    @given(acts=st.lists(ACTS, min_size=length, max_size=length))
    def plays(acts: list[Act]) -> None:
        runner.run(scenario(rig, acts, is_apart=is_apart))

    plays()


@contextmanager
def running_replicas(database_url: str, tmp_path: Path, runner: asyncio.Runner) -> Iterator[ReplicasRig]:
    """Opened and closed by one task, because its resources belong to a task."""
    stop = asyncio.Event()
    opened: asyncio.Future[ReplicasRig] = runner.get_loop().create_future()

    async def host() -> None:
        async with open_replicas(database_url, tmp_path) as rig:
            opened.set_result(rig)
            await stop.wait()

    async def town_of(hosting: asyncio.Task[None]) -> ReplicasRig:
        hosting.add_done_callback(lambda _: opened.done() or opened.cancel())
        return await opened

    hosting = runner.get_loop().create_task(host())
    try:
        yield runner.run(town_of(hosting))
    finally:
        stop.set()
        runner.run(asyncio.wait_for(hosting, 60))
