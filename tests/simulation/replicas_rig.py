"""Three complete replicas on one database, chats that tests change, and faults between all of them.

Hints pass through PostgreSQL, live parts through the sockets of the replicas, and clients connect over TCP. Hints about
chats can be lost, delayed, repeated and reordered.
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
    """A clock with short delays between tries.

    Some delay remains, so that an unreachable service is not called in a tight loop.
    """

    async def sleep(self, seconds: float, tag: str) -> None:
        await super().sleep(min(seconds, 0.01) if tag in RETRIES else seconds, tag)


class Hearing(Enum):
    ALL = "all"
    NOTHING = "nothing"
    LATER = "later"


class HintFilter:
    """Between a replica's bus and its hints: passes hints about chats on, drops them or holds them."""

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
    """The committed state of a chat at one snapshot version."""

    chat: Chat
    view: View

    @property
    def episode(self) -> EpisodeKey | None:
        """The episode whose parts clients may be shown."""
        chat = self.chat
        is_live = chat.status in ("running", "interrupting") and chat.retry_state is None
        return key_of(chat) if is_live and chat.generation_attempt else None


class ReplicasRig:
    """`truths` holds every committed version of every chat, `said` the whole text of every episode.

    `told` counts the checked events by type.
    """

    def __init__(self, replicas_rigs: list[ApiRig], person: Person, chats: MachineRig) -> None:
        self.replicas_rigs = replicas_rigs
        self.person = person
        self.hint_filters = [HintFilter(rig.replica.bus) for rig in replicas_rigs]
        self.truths: dict[ChatId, dict[int, Truth]] = defaultdict(dict)
        self.said: dict[EpisodeKey, str] = defaultdict(str)
        self.told: Counter[str] = Counter()
        self._chats = chats
        self._episodes: dict[EpisodeKey, tuple[Replica, Episode]] = {}
        self._count = 0

    @property
    def replicas(self) -> list[Replica]:
        return [rig.replica for rig in self.replicas_rigs]

    # Actions of users and workers

    async def create(self) -> ChatId:
        chat_id = await self._chats.create()
        await self.note(chat_id)
        return chat_id

    async def move(self, chat_id: ChatId, choice: int, *, at: int) -> None:
        """Apply one of the transitions that are allowed now, through one of the replicas."""
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
        """Let a replica take the chat from its owner and begin a step."""
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
        """Let the model stream this many words to the replica that began the step, which may no longer own the chat."""
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
        """Let the owner close its episode and commit its text."""
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
        """Record the committed state. Only this rig changes the chats, so no version is missed."""
        chat = await self._chats.load(chat_id)
        truths = self.truths[chat_id]
        if chat.snapshot_version not in truths:
            truths[chat.snapshot_version] = Truth(chat, await stored_view(self._chats.pool, chat))
        return truths[chat.snapshot_version]

    def preview(self, truth: Truth) -> str | None:
        """Return the preview of the running step after all parts have arrived; None if it depends on the timing."""
        if truth.episode is None:
            return ""
        if truth.episode not in self._episodes:
            return None
        replica, _ = self._episodes[truth.episode]
        return self.said[truth.episode] if replica.id == truth.chat.worker_id else None

    # Faults and recovery

    def cut_links(self) -> None:
        """Break every connection between the replicas without a close frame."""
        for replica in self.replicas:
            for link in replica.relay.hub.links():
                if link._connection is not None:
                    link._connection.transport.abort()

    async def poll(self) -> None:
        for replica in self.replicas:
            await replica.streams.poller.tick()

    async def lose_listeners(self) -> None:
        """End the sessions on which the replicas listen for hints. They reconnect, and have missed hints."""
        before = [replica.listener.stats().connections for replica in self.replicas]
        async with self._chats.pool.acquire() as conn:
            await conn.execute(END_LISTENERS)
        for replica, connections in zip(self.replicas, before, strict=True):
            await until(lambda r=replica, c=connections: r.listener.stats().connections > c)  # type: ignore[misc]

    def mend(self) -> None:
        for hint_filter in self.hint_filters:
            hint_filter.mend()


def key_of(chat: Chat) -> EpisodeKey:
    return EpisodeKey(chat.id, chat.history_version, chat.generation_attempt)


@asynccontextmanager
async def open_replicas(database_url: str, tmp_path: Path, *, replicas: int = 3) -> AsyncIterator[ReplicasRig]:
    async with AsyncExitStack() as stack:
        replicas_rigs = [
            await stack.enter_async_context(open_house(database_url, tmp_path, clock=HastyClock()))
            for _ in range(replicas)
        ]
        first = replicas_rigs[0]
        person = await first.add("ada", role=UserRole.ADMIN)
        model: UUID = await first.add_model()
        chats = MachineRig(first.database.api, user=person.id, model=model, worker=first.replica.id)
        chats.machine = first.replica.machine
        yield ReplicasRig(replicas_rigs, person, chats)
