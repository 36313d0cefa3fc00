"""Three whole replicas over one database, chats that are moved by hand, and everything that may go wrong between.

Hints go through PostgreSQL, live parts over the replicas' own sockets, clients come over TCP. What a replica hears of
chats may be lost, or kept for later, to be told twice and in another order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from uuid import UUID, uuid4

from rookery.app.replica import Replica
from rookery.client.reducer import View
from rookery.domain.access.rights import Role as UserRole
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import Refused
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import Part, Reasoning, Text
from rookery.domain.chat.transitions import TABLE, Transition
from rookery.live.part_buffer import Episode, EpisodeKey, PartBufferError
from rookery.runtime.clock import SystemClock
from rookery.store import machine
from rookery.store.db.hints import ChatHint, Hint
from rookery.store.db.pubsub import Bus
from tests.api.api_rig import ApiRig, Person, open_house
from tests.eventually import until
from tests.store.machine.machine_rig import Rig as MachineRig
from tests.store.machine.machine_rig import assistant
from tests.store.machine.transition_calls import MOVES
from tests.stream.expected_view import stored_view

PLAYED = sorted(set(MOVES) - {Transition.RECONCILE_INVALID_STATE})
RETRIES = frozenset({"stream-retry", "listen-reconnect", "relay-redial"})
END_LISTENERS = """
    SELECT pg_terminate_backend(pid)
      FROM pg_stat_activity
     WHERE datname = current_database()
       AND application_name LIKE '%:listen'
"""


class HastyClock(SystemClock):
    """Nobody waits long for another try. A moment all the same: what is down would be asked in a tight loop."""

    async def sleep(self, seconds: float, tag: str) -> None:
        await super().sleep(min(seconds, 0.01) if tag in RETRIES else seconds, tag)


class Hearing(Enum):
    ALL = "all"
    NOTHING = "nothing"
    LATER = "later"


class Ear:
    """Between a replica's bus and what comes to it: hints about chats are passed on, lost or kept."""

    def __init__(self, bus: Bus) -> None:
        self._pass_on = bus.dispatch
        self.hearing = Hearing.ALL
        self._kept: list[Hint] = []
        bus.dispatch = self._hear  # type: ignore[method-assign]

    def _hear(self, hint: Hint) -> None:
        if self.hearing is Hearing.ALL or not isinstance(hint, ChatHint):
            self._pass_on(hint)
        elif self.hearing is Hearing.LATER:
            self._kept.append(hint)

    def tell_what_was_kept(self, *, is_reversed: bool, times: int) -> None:
        hints, self._kept = self._kept * times, []
        for hint in reversed(hints) if is_reversed else hints:
            self._pass_on(hint)

    def mend(self) -> None:
        self.hearing = Hearing.ALL
        self._kept = []


@dataclass(frozen=True, slots=True)
class Truth:
    """A chat as it was committed at one snapshot version."""

    chat: Chat
    view: View

    @property
    def episode(self) -> EpisodeKey | None:
        """Whose parts clients may be shown."""
        chat = self.chat
        is_live = chat.status in ("running", "interrupting") and chat.retry_state is None
        return key_of(chat) if is_live and chat.generation_attempt else None


class ReplicasRig:
    """`truths` holds every committed version of every chat, `said` the whole text of every episode.

    `told` counts the events that were checked against them, by type.
    """

    def __init__(self, houses: list[ApiRig], person: Person, chats: MachineRig) -> None:
        self.houses = houses
        self.person = person
        self.ears = [Ear(rig.replica.bus) for rig in houses]
        self.truths: dict[ChatId, dict[int, Truth]] = defaultdict(dict)
        self.said: dict[EpisodeKey, str] = defaultdict(str)
        self.told: Counter[str] = Counter()
        self._chats = chats
        self._episodes: dict[EpisodeKey, tuple[Replica, Episode]] = {}
        self._count = 0

    @property
    def replicas(self) -> list[Replica]:
        return [rig.replica for rig in self.houses]

    # What people and workers do

    async def create(self) -> ChatId:
        chat_id = await self._chats.create()
        await self.note(chat_id)
        return chat_id

    async def move(self, chat_id: ChatId, choice: int, *, at: int) -> None:
        """One of the transitions that are allowed now, through a replica of the town."""
        self._chats.machine = self.replicas[at].machine
        state = await self._chats.state(chat_id)
        legal = [transition for transition in PLAYED if state in TABLE[transition]]
        if not legal:
            return
        move = MOVES[legal[choice % len(legal)]]
        self._chats.worker = self.replicas[at].id
        with suppress(Refused):
            await self._chats.update(chat_id, lambda tx: move(self._chats, tx))
        await self.note(chat_id)

    async def attempt(self, chat_id: ChatId, *, at: int) -> None:
        """A replica takes the chat, from whoever has it, and begins a step."""
        replica = self.replicas[at]
        self._chats.machine = replica.machine
        if await self._chats.state(chat_id) not in TABLE[Transition.RECORD_GENERATION_ATTEMPT]:
            return
        await self._chats.run(chat_id, machine.acquire, worker_id=replica.id, runner_id=uuid4())
        await self.note(chat_id)
        await self._chats.run(chat_id, machine.record_generation_attempt)
        truth = await self.note(chat_id)
        if truth.episode is not None:
            self._episodes[truth.episode] = (replica, replica.worker.buffer.create_episode(truth.episode))

    async def speak(self, chat_id: ChatId, count: int, *, is_merged: bool) -> None:
        """The model says so many words, to whoever began the step: the owner, or one that does not know better."""
        key = key_of(await self._chats.load(chat_id))
        if key not in self._episodes:
            return
        _, episode = self._episodes[key]
        for _ in range(count):
            self._count += 1
            word = f"{self._count} "
            kind: Part = Reasoning(word) if self._count % 10 > 7 else Text(word)
            with suppress(PartBufferError):
                episode.add_part(Role.ASSISTANT, kind)
                self.said[key] += word
                if not is_merged:
                    episode.flush()

    async def end_step(self, chat_id: ChatId) -> None:
        """The owner closes its episode, then commits what was said in it."""
        truth = await self.note(chat_id)
        if truth.episode is None or truth.episode not in self._episodes or truth.chat.status != "running":
            return
        replica, _ = self._episodes[truth.episode]
        if replica.id != truth.chat.worker_id:
            return
        replica.worker.buffer.close_episode(truth.episode)
        self._chats.machine = replica.machine
        await self._chats.commit(chat_id, assistant(self.said[truth.episode] or "nothing"))
        await self.note(chat_id)

    async def note(self, chat_id: ChatId) -> Truth:
        """Write down what is committed now. Nobody else moves the chats, so no version is missed."""
        chat = await self._chats.load(chat_id)
        truths = self.truths[chat_id]
        if chat.snapshot_version not in truths:
            truths[chat.snapshot_version] = Truth(chat, await stored_view(self._chats.pool, chat))
        return truths[chat.snapshot_version]

    def preview(self, truth: Truth) -> str | None:
        """What a client shows of the running step once all has arrived; None when that depends on when it came."""
        if truth.episode is None:
            return ""
        if truth.episode not in self._episodes:
            return None
        replica, _ = self._episodes[truth.episode]
        return self.said[truth.episode] if replica.id == truth.chat.worker_id else None

    # What goes wrong, and what makes up for it

    def cut_links(self) -> None:
        """Break every connection between the replicas where it is, without a goodbye."""
        for replica in self.replicas:
            for link in replica.relay.hub.links():
                if link._connection is not None:
                    link._connection.transport.abort()

    async def poll(self) -> None:
        for replica in self.replicas:
            await replica.streams.poller.tick()

    async def lose_listeners(self) -> None:
        """PostgreSQL ends the sessions on which the replicas hear; they come back, and have missed something."""
        before = [replica.listener.stats().connections for replica in self.replicas]
        async with self._chats.pool.acquire() as conn:
            await conn.execute(END_LISTENERS)
        for replica, connections in zip(self.replicas, before, strict=True):
            await until(lambda r=replica, c=connections: r.listener.stats().connections > c)  # type: ignore[misc]

    def mend(self) -> None:
        for ear in self.ears:
            ear.mend()


def key_of(chat: Chat) -> EpisodeKey:
    return EpisodeKey(chat.id, chat.history_version, chat.generation_attempt)


@asynccontextmanager
async def open_town(database_url: str, tmp_path: Path, *, replicas: int = 3) -> AsyncIterator[ReplicasRig]:
    async with AsyncExitStack() as stack:
        houses = [
            await stack.enter_async_context(open_house(database_url, tmp_path, clock=HastyClock()))
            for _ in range(replicas)
        ]
        first = houses[0]
        person = await first.add("ada", role=UserRole.ADMIN)
        model: UUID = await first.add_model()
        chats = MachineRig(first.database.api, user=person.id, model=model, worker=first.replica.id)
        chats.machine = first.replica.machine
        yield ReplicasRig(houses, person, chats)
