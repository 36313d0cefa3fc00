"""A replica on a real port, with clients and provider in separate processes. Used by `streaming.py` and `turns.py`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import asyncpg
import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._worker_rig import TYPES
from benchmarks.token_decode import PATHS, WIRES, WORD, FloorReader

from rookery.app import installation
from rookery.app.replica import Choices, Replica, running_replica
from rookery.domain.access.rights import Role as UserRole
from rookery.domain.access.rights import Scope
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.domain.chat.states import Status
from rookery.models.key_ring import KeyRing
from rookery.runtime import heap
from rookery.runtime.secret_str import SecretStr
from rookery.server.listener import serving
from rookery.settings.settings import Settings, load
from rookery.store import machine
from rookery.store.db.hints import ChatHint
from rookery.store.db.pool import Database
from rookery.store.machine import ChatSpec
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.people import tokens, users
from rookery.store.people.users import UserDraft
from rookery.store.settings import limit_settings, settings

MERGE_SECONDS = 0.027  # inside the merge window of live parts
RING = KeyRing([("bench", bytes(32))])
PEOPLE = 100
SHARE = "INSERT INTO chat_shares (chat_id, user_id, granted_by) VALUES ($1, NULL, $2)"
FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both',
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', repeat('words and more ', 20) || n)), 1
      FROM generate_series(1, $2::int) n
"""


class Clients:
    """The pipe to `_stream_clients.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("The clients ended.")
        return json.loads(line)

    async def words(self) -> int:
        return int((await self.ask(do="count"))["chars"]) // len(WORD)


@dataclass(kw_only=True)
class ReplicaRig:
    """One replica, which may leave the chats to another one (`owner` is the process id of that one)."""

    replica: Replica
    url: str
    floor_url: str
    floor: FloorApplication
    base: str
    clients: Clients
    session: aiohttp.ClientSession
    people: list[tuple[UUID, str]]  # with their tokens; no user has so many streams that a limit applies
    providers: dict[str, UUID]
    owner: int | None = None
    models: dict[tuple[str, str], UUID] = field(default_factory=dict)
    owners: dict[UUID, int] = field(default_factory=dict)

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1)

    def cpu(self) -> float:
        """Return the CPU seconds of this process, and of the replica that owns the chats if that is another process."""
        return time.process_time() + (0.0 if self.owner is None else cpu_of(self.owner))

    async def model(self, wire: str, tokens: int, *, pace: float, words: int = 1) -> UUID:
        name = f"{tokens}@{pace:g}@0@{words}"
        if (wire, name) not in self.models:
            draft = ModelConfigDraft(provider_id=self.providers[wire], model=name, context_limit=50_000_000)
            async with self.replica.database.api.acquire() as conn:
                self.models[wire, name] = (await model_configs.create_model_config(conn, draft, by=None)).id
            self.replica.bus.resync()
        return self.models[wire, name]

    async def requests(self) -> list[tuple[str, float, float]]:
        """Return (chat, time of the request, time of the first token) of the requests since the last call."""
        async with self.session.get(f"{self.base}/requests") as response:
            return [tuple(each) for each in await response.json()]

    async def start(self, model: UUID, count: int) -> list[UUID]:
        """Create chats that wait for an answer."""

        async def make() -> UUID:
            made = await self.replica.machine.bundle(lambda bundle: self._create(bundle, model))
            return made.chat.id

        return list(await asyncio.gather(*(make() for _ in range(count))))

    async def rested(self, messages: int) -> UUID:
        """Create a chat at rest with a history of this many rows.

        One transaction, so that the worker does not see it run.
        """
        model = await self.model("completions", 1, pace=0)

        async def make(bundle: machine.Bundle) -> UUID:
            created = await self._create(bundle, model)
            tx = await bundle.open(created.chat.id)
            await tx.conn.execute(FILL, tx.chat.id, messages - 1)
            await machine.finish_turn(tx)
            return tx.chat.id

        return await self.replica.machine.bundle(make)

    async def _create(self, bundle: machine.Bundle, model: UUID) -> machine.Created:
        """Create a chat of the next user, which all users may read."""
        number = len(self.owners) % len(self.people)
        user = self.people[number][0]
        message = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=user)
        spec = ChatSpec(owner_id=user, title="bench", model_config_id=model, messages=(message,))
        made = await machine.create_chat(bundle, spec)
        self.owners[made.chat.id] = number
        await bundle.conn.execute(SHARE, made.chat.id, user)
        return made

    def token(self, chat: UUID) -> str:
        return self.people[self.owners[chat]][1]

    async def watch(self, chats: Sequence[UUID], *, viewers: int = 1, tail: int = 0) -> list[float]:
        """Open streams, each of a different user. Return how long each took, in ms."""
        streams = [
            (
                f"{self.ws}/api/v1/chats/{chat}/stream?tail={tail}",
                self.people[(self.owners[chat] + number) % len(self.people)][1],
            )
            for chat in chats
            for number in range(viewers)
        ]
        return list((await self.clients.ask(do="open", streams=streams, wait=True))["ms"])

    async def rest(self, chats: Sequence[UUID], *, seconds: float = 90) -> None:
        """Wait until the turns of all chats have ended."""
        waiting, done = set(chats), asyncio.Event()

        def heard(hint: ChatHint) -> None:
            if hint.status in (Status.WAITING, Status.ERROR):
                waiting.discard(UUID(str(hint.chat_id)))
            if not waiting:
                done.set()

        with self.replica.bus.subscribe(ChatHint, heard):
            async with self.replica.database.api.acquire() as conn:
                for state in (await machine.states_of(conn, set(waiting))).values():
                    assert state.status != Status.ERROR, "a turn failed"
                    if state.status == Status.WAITING:
                        waiting.discard(state.chat_id)
            if waiting:
                async with asyncio.timeout(seconds):
                    await done.wait()

    async def stop(self, chats: Sequence[UUID]) -> None:
        async def stop_one(chat: UUID) -> None:
            with suppress(TransitionNotAllowed):  # it has already ended
                await self.replica.machine.chat(chat).update(machine.interrupt)

        await asyncio.gather(*map(stop_one, chats))
        await self.rest(chats)


class FloorApplication:
    """The minimum that sends tokens to a client: aiohttp, one typed decode, a merge, and a send on the same server.

    A POST is the minimum of a turn: two bare transactions, one for the message and one for the answer.
    """

    def __init__(self, base: str, session: aiohttp.ClientSession, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._base = base
        self._session = session
        self._pool = pool
        self._encode = msgspec.json.Encoder().encode
        self._turns: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._turn(scope, receive, send)
            return
        if scope["type"] != "websocket":
            return
        await receive()
        await send({"type": "websocket.accept"})
        wire, model = scope["path"].removeprefix("/").split("/")
        reading = asyncio.create_task(receive())
        await self._relay(wire, model, send)
        await send({"type": "websocket.close", "code": 1000})
        reading.cancel()

    async def wait_idle(self) -> None:
        while self._turns:
            await asyncio.wait(self._turns)

    async def _turn(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await self._store(msgspec.json.decode(body)["content"][0]["text"])
        task = asyncio.create_task(self._answer(*scope["path"].removeprefix("/").split("/")))
        self._turns.add(task)
        task.add_done_callback(self._turns.discard)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async def _store(self, text: str) -> None:
        async with self._pool.acquire() as conn, conn.transaction():
            await conn.execute("UPDATE bench_turns SET words = $1", text)

    async def _answer(self, wire: str, model: str) -> None:
        feed, rest, chars = FloorReader(wire).feed, b"", 0
        url = self._base + PATHS[wire].removeprefix("/v1")
        async with self._session.post(url, data=json.dumps({"model": model})) as response:
            async for chunk in response.content.iter_any():
                got, rest = feed(rest + chunk)
                chars += got
        await self._store("x" * chars)

    async def _relay(self, wire: str, model: str, send: Any) -> None:
        feed, rest, chars, due, seq = FloorReader(wire).feed, b"", 0, 0.0, 0
        loop = asyncio.get_running_loop()
        url = self._base + PATHS[wire].removeprefix("/v1")
        async with self._session.post(url, data=json.dumps({"model": model})) as response:
            async for chunk in response.content.iter_any():
                got, rest = feed(rest + chunk)
                chars += got
                if chars and loop.time() >= due:
                    seq += 1
                    await send({"type": "websocket.send", "text": self._event(seq, chars)})
                    chars, due = 0, loop.time() + MERGE_SECONDS
        if chars:
            await send({"type": "websocket.send", "text": self._event(seq + 1, chars)})

    def _event(self, seq: int, chars: int) -> str:
        part = {"type": "text", "text": "x" * chars}
        return self._encode([{"type": "message_part", "seq": seq, "role": "assistant", "part": part}]).decode()


@asynccontextmanager
async def open_rig(
    folder: Path, url: str, base: str, *, with_owner: bool = False, running_roots: int = 0
) -> AsyncIterator[ReplicaRig]:
    """Open the rig. `running_roots` chats may run at once; 0 means no limit.

    With `with_owner`, a replica in another process runs the chats, and this one only serves clients.
    """
    config = settings_for(folder, url)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(await Database.connect(installation.database_config(config, url)))
        people, made = await prepare(database, base, running_roots=running_roots)
        choices = Choices(ring=RING, takes_chats=not with_owner)
        replica = await stack.enter_async_context(running_replica(config, database, choices))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        public = await stack.enter_async_context(listening(replica.application))
        bare = FloorApplication(base, session, database.api)
        floor = await stack.enter_async_context(listening(bare))
        clients = await stack.enter_async_context(_clients())
        owner = await stack.enter_async_context(_owner(folder, url)) if with_owner else None
        heap.freeze_startup_objects()  # `rookery serve` does the same
        yield ReplicaRig(
            replica=replica,
            url=f"http://127.0.0.1:{public}",
            floor_url=f"ws://127.0.0.1:{floor}",
            floor=bare,
            base=base,
            clients=clients,
            session=session,
            people=people,
            providers=made,
            owner=owner,
        )


async def prepare(
    database: Database, base: str, *, running_roots: int = 0
) -> tuple[list[tuple[UUID, str]], dict[str, UUID]]:
    name = f"bench-{uuid4().hex[:8]}"
    made: dict[str, UUID] = {}
    people = []
    async with database.api.acquire() as conn:
        await conn.execute("CREATE TABLE IF NOT EXISTS bench_turns AS SELECT '' AS words")
        for number in range(PEOPLE):
            # The first user is an administrator, because a server without one waits for its setup.
            role = UserRole.MEMBER if number else UserRole.ADMIN
            draft = UserDraft(email=f"{name}-{number}@example.test", username=f"{name}-{number}", role=role)
            user = await users.create_user(conn, draft)
            token = await tokens.create_token(conn, user.id, name=name, scopes={Scope.ALL}, now=user.created_at)
            people.append((user.id, token.secret))
        await settings.write_setting(conn, limit_settings.CHATS, value={"running_roots": running_roots})
        # Disabled, because labels and summaries after a turn would be counted as steps by the provider.
        nobody = {"mode": "model", "model_config_id": str(uuid4())}
        await settings.write_setting(conn, "models", value={"title_generation": nobody})
        for wire in WIRES:
            draft_of = ProviderDraft(
                type=TYPES[wire],
                name=f"{wire}-{name}",
                base_url=base,
                api_key=SecretStr("sk-bench"),
                send_correlation=True,
            )
            made[wire] = (await providers.create_provider(conn, draft_of, ring=RING)).id
    return people, made


@asynccontextmanager
async def listening(application: Any) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        async with serving(application, listening):
            yield listening.getsockname()[1]


@asynccontextmanager
async def _clients() -> AsyncIterator[Clients]:
    script = Path(__file__).with_name("_stream_clients.py")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, script, stdin=pipe, stdout=pipe, limit=1 << 26)
    try:
        yield Clients(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def _owner(folder: Path, url: str) -> AsyncIterator[int]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, folder, url, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield process.pid
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def settings_for(folder: Path, url: str, **more: str) -> Settings:
    data = folder / "replica"
    data.mkdir(mode=0o700, exist_ok=True)
    return load({"data_dir": str(data), "database_url": url, "log_access": "false", **more}, {}).settings


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def _own(folder: Path, url: str) -> None:
    """Run the replica that owns the chats, until stdin ends."""
    config = settings_for(folder, url)
    async with (
        await Database.connect(installation.database_config(config, url)) as database,
        running_replica(config, database, Choices(ring=RING)),
    ):
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_own(Path(sys.argv[1]), sys.argv[2]))
