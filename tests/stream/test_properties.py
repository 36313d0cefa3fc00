"""Random operations with lost, repeated and reversed hints and cut links: clients end with the stored state.

Hypothesis chooses the operations. They run in a separate event loop, on PostgreSQL and over unix sockets between two
replicas. Each client is a reducer that gets the data from its socket.

HYPOTHESIS_PROFILE=thorough runs many more and different samples than the default, which repeats the same ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from rookery.client import reducer
from rookery.client.reducer import Client, View
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import Refused
from rookery.domain.chat.interrupted_step import LivePart
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Text
from rookery.domain.chat.transitions import TABLE, Transition
from rookery.live.part_buffer import EpisodeExists, EpisodeKey, PartBufferError
from rookery.store import machine
from tests.eventually import until
from tests.store.machine.transition_calls import MOVES
from tests.stream.expected_view import difference, preview_of, stored_view
from tests.stream.relay.test_relay import cut_links
from tests.stream.stream_rig import Rig, Site, Viewer, key_of, open_rig

COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)
PROFILES = {
    "ci": settings(COMMON, max_examples=60, stateful_step_count=40, derandomize=True, phases=[Phase.generate]),
    "thorough": settings(COMMON, max_examples=500, stateful_step_count=60),
}
PROFILE = PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "ci")]

PLAYED = sorted(set(MOVES) - {Transition.RECONCILE_INVALID_STATE})
CHOICES = st.integers(0, 59)
SITES = st.integers(0, 1)
CLIENTS = st.integers(0, 2)
TAILS = (1000, 3, 1000)


class Person:
    """A client with a reducer that is kept across connections."""

    def __init__(self, tail: int) -> None:
        self.tail = tail
        self.client = Client()
        self.viewer: Viewer | None = None
        self._taken = 0

    async def connect(self, site: Site, chat_id: ChatId) -> None:
        await self.leave()
        self.viewer = await site.view(chat_id, after_id=self.client.view.last_message_id, tail=self.tail)

    async def leave(self) -> None:
        if self.viewer is None:
            return
        await self.viewer.close()
        self.catch_up()
        self.viewer, self._taken = None, 0

    def catch_up(self) -> View:
        """Reduce the received events; return the view."""
        if self.viewer is not None:
            frames = self.viewer.transport.frames
            for frame in frames[self._taken :]:
                self.client = reducer.reduce(self.client, frame)
            self._taken = len(frames)
        return self.client.view


class Play(RuleBasedStateMachine):
    def __init__(self, rig: Rig, runner: asyncio.Runner) -> None:
        super().__init__()
        self.rig = rig
        self.runner = runner
        self.people = [Person(tail) for tail in TAILS]
        self.spoke: dict[EpisodeKey, UUID | None] = {}
        self.said = 0
        rig.wire.is_cut = rig.wire.keeps = False
        self.chat_id = runner.run(self._begin())

    async def _begin(self) -> ChatId:
        chat_id = await self.rig.chats.create()
        for index, person in enumerate(self.people):
            await person.connect(self.rig.sites[index % 2], chat_id)
        return chat_id

    @rule(choice=CHOICES, site=SITES)
    def move(self, choice: int, site: int) -> None:
        """Make a transition that is currently allowed."""
        self.runner.run(self._move(choice, self.rig.sites[site]))

    @rule(site=SITES)
    def attempt(self, site: int) -> None:
        """Acquire the chat and begin a step, as workers do."""
        self.runner.run(self._attempt(self.rig.sites[site]))

    @rule(count=st.integers(1, 90))
    def speak(self, count: int) -> None:
        """Add live parts at the owner, sometimes so many that they are merged."""
        self.runner.run(self._speak(count))

    @rule(mode=st.sampled_from(["open", "cut", "keep"]))
    def set_wire(self, mode: str) -> None:
        self.rig.wire.is_cut = mode == "cut"
        self.rig.wire.keeps = mode == "keep"

    @rule(reverse=st.booleans(), times=st.integers(1, 2))
    def deliver_what_was_kept(self, reverse: bool, times: int) -> None:
        self.runner.run(self._deliver(reverse, times))

    @rule()
    def poll(self) -> None:
        self.runner.run(self._poll())

    @rule()
    def lose_links(self) -> None:
        self.runner.run(self._cut())

    @rule(who=CLIENTS, site=SITES)
    def connect_again(self, who: int, site: int) -> None:
        self.runner.run(self.people[who].connect(self.rig.sites[site], self.chat_id))

    @rule(who=CLIENTS)
    def ask_for_everything(self, who: int) -> None:
        viewer = self.people[who].viewer
        assert viewer is not None
        viewer.transport.say(type="resync")

    @rule()
    def settle(self) -> None:
        self.runner.run(self._settle())

    def teardown(self) -> None:
        self.runner.run(self._settle())
        self.runner.run(self._leave())

    async def _move(self, choice: int, site: Site) -> None:
        state = await self.rig.chats.state(self.chat_id)
        legal = [transition for transition in PLAYED if state in TABLE[transition]]
        if not legal:
            return
        transition = legal[choice % len(legal)]
        try:
            if transition is Transition.ACQUIRE:
                await self._acquire(site)
            else:
                move = MOVES[transition]
                await self.rig.chats.update(self.chat_id, lambda tx: move(self.rig.chats, tx))
        except Refused:
            return
        await self._note(transition)

    async def _attempt(self, site: Site) -> None:
        state = await self.rig.chats.state(self.chat_id)
        if state not in TABLE[Transition.RECORD_GENERATION_ATTEMPT]:
            return
        with suppress(Refused):
            await self._acquire(site)
        await self.rig.chats.run(self.chat_id, machine.record_generation_attempt)
        await self._note(Transition.RECORD_GENERATION_ATTEMPT)

    async def _acquire(self, site: Site) -> None:
        await self.rig.chats.run(self.chat_id, machine.acquire, worker_id=site.id, runner_id=uuid4())

    async def _note(self, transition: Transition) -> None:
        """Note the replica of the current attempt: only it has parts."""
        if transition is Transition.RECORD_GENERATION_ATTEMPT:
            chat = await self.rig.load(self.chat_id)
            self.spoke[key_of(chat)] = chat.worker_id

    def _owner(self, chat: Chat) -> Site | None:
        """Return the replica whose parts clients should see."""
        is_live = chat.status in ("running", "interrupting") and chat.retry_state is None
        if not is_live or chat.generation_attempt < 1 or self.spoke.get(key_of(chat)) != chat.worker_id:
            return None
        return next((site for site in self.rig.sites if site.id == chat.worker_id), None)

    async def _speak(self, count: int) -> None:
        chat = await self.rig.load(self.chat_id)
        owner = self._owner(chat)
        if owner is None:
            return
        key = key_of(chat)
        with suppress(EpisodeExists):
            owner.buffer.create_episode(key)
        episode = owner.buffer._episodes[key]
        for _ in range(count):
            self.said += 1
            episode.add_part(Role.ASSISTANT, Text(f"{self.said} "))
            episode.flush()

    async def _deliver(self, reverse: bool, times: int) -> None:
        kept, self.rig.wire.kept = self.rig.wire.kept, []
        hints = [*kept] * times
        self.rig.wire.deliver(reversed(hints) if reverse else hints)

    async def _poll(self) -> None:
        for site in self.rig.sites:
            await site.streams.poller.tick()

    async def _cut(self) -> None:
        cut_links(self.rig)

    async def _leave(self) -> None:
        for person in self.people:
            await person.leave()
        self.rig.wire.kept = []
        for site in self.rig.sites:
            site.viewers.clear()

    async def _settle(self) -> None:
        """Wait until everything is delivered, then compare."""
        await self._poll()
        chat = await self.rig.load(self.chat_id)
        stored = await stored_view(self.rig.pool, chat)
        preview = self._preview(chat)
        for person in self.people:
            problem: list[str] = []

            def agrees(person: Person = person, problem: list[str] = problem) -> bool:
                shown = person.catch_up()
                problem[:] = difference(shown, stored)
                if preview is not None and preview_of(shown) != preview:
                    problem.append("preview")
                return not problem

            try:
                await until(agrees)
            except AssertionError:
                raise AssertionError(f"the client differs in {problem}") from None

    def _preview(self, chat: Chat) -> str | None:
        """Return the preview of a client; None if it depends on timing."""
        if not (chat.status in ("running", "interrupting") and chat.retry_state is None and chat.generation_attempt):
            return ""
        owner = self._owner(chat)
        if owner is None:
            return None
        try:
            return said(owner.buffer.get_parts(key_of(chat)))
        except PartBufferError:
            return ""


def said(parts: Sequence[LivePart]) -> str:
    return "".join(part.part.text for part in parts if isinstance(part.part, Text))


@contextmanager
def running_rig(database_url: str, sockets: Path, runner: asyncio.Runner) -> Iterator[Rig]:
    """Open and close the rig in one task, because its task groups belong to a task."""
    stop = asyncio.Event()
    opened: asyncio.Future[Rig] = runner.get_loop().create_future()

    async def host() -> None:
        async with open_rig(database_url, sites=2, sockets=sockets) as rig:
            opened.set_result(rig)
            await stop.wait()

    async def rig_of(hosting: asyncio.Task[None]) -> Rig:
        hosting.add_done_callback(lambda _: opened.done() or opened.cancel())
        return await opened

    hosting = runner.get_loop().create_task(host())
    try:
        yield runner.run(rig_of(hosting))
    finally:
        stop.set()
        runner.run(asyncio.wait_for(hosting, 30))


def test_client_ends_with_what_is_stored(database_url: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner, running_rig(database_url, tmp_path, runner) as rig:
        run_state_machine_as_test(lambda: Play(rig, runner), settings=PROFILE)  # type: ignore[arg-type]
