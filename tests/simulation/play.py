"""A play in the town, act by act, as hypothesis chooses: what people and workers do, what goes wrong, what makes up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from rookery.chat.messages import ChatId
from rookery.client.frames import Transport
from tests.simulation.follower import Follower
from tests.simulation.line import Line
from tests.simulation.town import Hearing, Town, open_town

CHATS = st.integers(0, 1)
CHOICES = st.integers(0, 59)
REPLICAS = st.integers(0, 2)
# Chat, transport, and how much of the history it asks for.
CLIENTS: tuple[tuple[int, Transport, int], ...] = (
    (0, "websocket", 1000),
    (0, "sse", 3),
    (1, "sse", 1000),
    (1, "websocket", 3),
)
WHO = st.integers(0, len(CLIENTS) - 1)


class Play(RuleBasedStateMachine):
    """`is_apart`: clients are at the first replica only, and never is it the owner of a chat."""

    def __init__(self, town: Town, runner: asyncio.Runner, *, is_apart: bool) -> None:
        super().__init__()
        self.town = town
        self.runner = runner
        self.is_apart = is_apart
        self.stack = AsyncExitStack()
        self.chats: list[ChatId] = []
        self.followers: list[Follower] = []
        self._run(self._begin)

    def _run(self, act: Callable[[], Awaitable[object]]) -> None:
        async def acting() -> None:
            await act()

        self.runner.run(acting())

    async def _begin(self) -> None:
        self.town.mend()
        self.chats = [await self.town.create() for _ in range(2)]
        for chat, transport, tail in CLIENTS:
            line = await self.stack.enter_async_context(Line(self._url(0)).laid())
            follower = Follower(self.town, self.chats[chat], line, tail=tail)
            self.followers.append(await self.stack.enter_async_context(follower.following(transport)))

    def _url(self, replica: int) -> str:
        return self.town.houses[0 if self.is_apart else replica].url

    def _worker(self, replica: int) -> int:
        return 1 + replica % 2 if self.is_apart else replica

    # What people and workers do

    @rule(chat=CHATS, choice=CHOICES, replica=REPLICAS)
    def move(self, chat: int, choice: int, replica: int) -> None:
        self._run(lambda: self.town.move(self.chats[chat], choice, at=self._worker(replica)))

    @rule(chat=CHATS, replica=REPLICAS)
    def attempt(self, chat: int, replica: int) -> None:
        self._run(lambda: self.town.attempt(self.chats[chat], at=self._worker(replica)))

    @rule(chat=CHATS, replica=REPLICAS, count=st.integers(1, 90))
    def answer(self, chat: int, replica: int, count: int) -> None:
        """What workers do most: a whole step, shown while it is made."""

        async def act() -> None:
            await self.town.attempt(self.chats[chat], at=self._worker(replica))
            await self.town.speak(self.chats[chat], count, is_merged=False)
            await self.town.end_step(self.chats[chat])

        self._run(act)

    @rule(chat=CHATS, count=st.integers(1, 90), is_merged=st.booleans())
    def speak(self, chat: int, count: int, is_merged: bool) -> None:
        self._run(lambda: self.town.speak(self.chats[chat], count, is_merged=is_merged))

    @rule(chat=CHATS)
    def end_step(self, chat: int) -> None:
        self._run(lambda: self.town.end_step(self.chats[chat]))

    # What goes wrong

    @rule(replica=REPLICAS, hearing=st.sampled_from(Hearing))
    def hear(self, replica: int, hearing: Hearing) -> None:
        self.town.ears[replica].hearing = hearing

    @rule(replica=REPLICAS, is_reversed=st.booleans(), times=st.integers(1, 2))
    def hear_what_was_kept(self, replica: int, is_reversed: bool, times: int) -> None:
        async def act() -> None:
            self.town.ears[replica].tell_what_was_kept(is_reversed=is_reversed, times=times)

        self._run(act)

    @rule()
    def lose_listeners(self) -> None:
        self._run(self.town.lose_listeners)

    @rule()
    def cut_links(self) -> None:
        async def act() -> None:
            self.town.cut_links()

        self._run(act)

    @rule(who=WHO, replica=REPLICAS, after=st.none() | st.integers(1, 5000))
    def cut_line(self, who: int, replica: int, after: int | None) -> None:
        """At once, or a little later, and on to another replica."""

        async def act() -> None:
            line = self.followers[who].line
            line.target = self._url(replica)
            if after is None:
                line.cut()
            else:
                line.cut_after(after)

        self._run(act)

    @rule(who=WHO)
    def hold_line(self, who: int) -> None:
        async def act() -> None:
            self.followers[who].line.hold()

        self._run(act)

    @rule(who=WHO)
    def mend_line(self, who: int) -> None:
        async def act() -> None:
            self.followers[who].line.mend()

        self._run(act)

    # What makes up for it

    @rule()
    def settle_by_polling(self) -> None:
        self._run(lambda: self._settle(self.town.poll))

    @rule()
    def settle_by_resync(self) -> None:
        self._run(lambda: self._settle(self.town.lose_listeners))

    def teardown(self) -> None:
        try:
            self._run(lambda: self._settle(self.town.lose_listeners))
        finally:
            self._run(self.stack.aclose)

    async def _settle(self, make_up: Callable[[], Awaitable[None]]) -> None:
        for follower in self.followers:
            follower.line.mend()
        await make_up()
        for follower in self.followers:
            await follower.settled()


@contextmanager
def running_town(database_url: str, tmp_path: Path, runner: asyncio.Runner) -> Iterator[Town]:
    """Opened and closed by one task of its own: what it holds belongs to a task."""
    stop = asyncio.Event()
    opened: asyncio.Future[Town] = runner.get_loop().create_future()

    async def host() -> None:
        async with open_town(database_url, tmp_path) as town:
            opened.set_result(town)
            await stop.wait()

    async def town_of(hosting: asyncio.Task[None]) -> Town:
        hosting.add_done_callback(lambda _: opened.done() or opened.cancel())
        return await opened

    hosting = runner.get_loop().create_task(host())
    try:
        yield runner.run(town_of(hosting))
    finally:
        stop.set()
        runner.run(asyncio.wait_for(hosting, 60))


def run_plays(town: Town, runner: asyncio.Runner, profile: settings, *, is_apart: bool = False) -> None:
    run_state_machine_as_test(lambda: Play(town, runner, is_apart=is_apart), settings=profile)  # type: ignore[arg-type]
