"""The cost of a transition, against a bare transaction in the same run.

A bare transaction is BEGIN, one UPDATE of one row of a plain table, and COMMIT, on the same pool: the minimum of any
committed change. Client CPU is the CPU time of this process. The server is the embedded one with durable settings.

    python benchmarks/transitions.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import asyncpg
import uvloop

from rookery.domain.chat.messages import NewMessage, NewQueuedMessage, Role, StepFigures
from rookery.domain.chat.parts import Text
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.db import migrate
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.hints import Hint
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.store.machine import ChatSpec, Machine, ownership

CPU_BUDGET = 2.5
GROWTH_BUDGET = 1.5
SHORT, LONG = 10, 10_000
IDLE_CHATS = 200_000

FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both',
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', repeat('words and more ', 20) || n)), 1
      FROM generate_series(1, $2::int) n
"""

IDLE = """
    INSERT INTO chats (owner_id, status, title, last_model_config_id, queue_len)
    SELECT $1, 'waiting', 'idle ' || n, $2, 0 FROM generate_series(1, $3::int) n
"""


class Silent:
    """Publishes nothing, because another benchmark measures hints."""

    def publish(self, hints: Sequence[Hint]) -> None:
        return


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one operation: client CPU, and operations per second.

    `ratio` is to the bare transaction before it.
    """

    cpu_us: float
    per_second: float
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class World:
    pool: asyncpg.Pool[asyncpg.Record]
    machine: Machine
    user: UUID
    model: UUID


Operation = Callable[[World, UUID], Awaitable[object]]


async def bare(world: World, chat_id: UUID) -> object:
    async with world.pool.acquire() as conn, conn.transaction():
        return await conn.fetchval("UPDATE bench_rows SET n = n + 1 WHERE id = $1 RETURNING n", chat_id)


async def send(world: World, chat_id: UUID) -> object:
    message = NewQueuedMessage(content=(Text("Please have a look at the failing test."),), created_by=world.user)
    return await world.machine.chat(chat_id).update(lambda tx: machine.send_message(tx, message, BusyBehavior.QUEUE))


async def record_generation_attempt(world: World, chat_id: UUID) -> object:
    return await world.machine.chat(chat_id).update(machine.record_generation_attempt)


async def commit_step(world: World, chat_id: UUID) -> object:
    step = NewMessage(
        role=Role.ASSISTANT,
        content=(Text("It fails because the clock is not injected. " * 5),),
        model_config_id=world.model,
        figures=StepFigures(input_tokens=1200, output_tokens=80, runtime_ms=900, finish_reason="stop"),
    )
    return await world.machine.chat(chat_id).update(lambda tx: machine.commit_step(tx, [step]))


async def finish_turn(world: World, chat_id: UUID) -> object:
    return await world.machine.chat(chat_id).update(machine.finish_turn)


TURN: dict[str, Operation] = {
    "send": send,
    "record_generation_attempt": record_generation_attempt,
    "commit_step": commit_step,
    "finish_turn": finish_turn,
}


async def run_once(world: World, operation: Operation, chats: Sequence[UUID]) -> Cost:
    """Run the operation of every chat once, all at the same time."""
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(operation(world, chat_id) for chat_id in chats))
    cpu, elapsed = time.process_time() - cpu, time.perf_counter() - started
    return Cost(cpu / len(chats) * 1e6, len(chats) / elapsed)


async def measure(world: World, chats: Sequence[UUID], rounds: int) -> dict[str, Cost]:
    """Repeat the turn, with a bare transaction before each transition, so that both have the same conditions."""
    names = ["bare", *TURN]
    samples: dict[str, list[Cost]] = {name: [] for name in names}
    for index in range(rounds + 2):
        for name, operation in TURN.items():
            base = await run_once(world, bare, chats)
            cost = await run_once(world, operation, chats)
            if index >= 2:  # the first rounds prepare statements and fill caches
                samples["bare"].append(base)
                samples[name].append(Cost(cost.cpu_us, cost.per_second, cost.cpu_us / base.cpu_us))
    return {name: median(costs) for name, costs in samples.items()}


def median(costs: Sequence[Cost]) -> Cost:
    """Return the medians, also of the ratios of two neighbors, because a slow machine affects both."""
    return Cost(
        *(statistics.median(getattr(cost, name) for cost in costs) for name in ("cpu_us", "per_second", "ratio"))
    )


async def make_world(database: Database) -> World:
    async with database.worker.acquire() as conn:
        await conn.execute("CREATE TABLE bench_rows (id uuid PRIMARY KEY, n bigint NOT NULL)")
        user = await conn.fetchval("INSERT INTO users (username) VALUES ('bench') RETURNING id")
        provider = await conn.fetchval("INSERT INTO model_providers (type, name) VALUES ('t', 't') RETURNING id")
        model = await conn.fetchval(
            "INSERT INTO model_configs (provider_id, model, context_limit) VALUES ($1, 'm', 1000) RETURNING id",
            provider,
        )
    return World(database.worker, Machine(database.worker, Silent()), user, model)


async def make_chats(world: World, count: int, messages: int) -> list[UUID]:
    """Create chats at rest with a history of `messages` rows."""
    spec = ChatSpec(
        owner_id=world.user,
        title="bench",
        model_config_id=world.model,
        messages=(NewMessage(role=Role.USER, content=(Text("hello"),), created_by=world.user),),
    )
    chats: list[UUID] = []
    for _ in range(count):
        created = await world.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))
        chat_id = created.chat.id

        async def fill(tx: machine.Tx) -> None:
            await tx.conn.execute(FILL, tx.chat.id, messages - 1)
            await machine.finish_turn(tx)

        await world.machine.chat(chat_id).update(fill)
        async with world.pool.acquire() as conn:
            await conn.execute("INSERT INTO bench_rows VALUES ($1, 0)", chat_id)
        chats.append(chat_id)
    return chats


async def acquisition_plan(world: World) -> tuple[list[str], float]:
    """Return the indexes of `chats` that the acquisition scan uses with many idle chats, and its duration."""
    async with world.pool.acquire() as conn:
        await conn.execute("SET statement_timeout = 0")
        # Every new chat is recorded in a transaction-local setting, which is not made for so many.
        await conn.execute("ALTER TABLE chats DISABLE TRIGGER USER")
        await conn.execute(IDLE, world.user, world.model, IDLE_CHATS, timeout=300)
        await conn.execute("ALTER TABLE chats ENABLE TRIGGER USER")
        await conn.execute("ANALYZE chats")
        plan = json.loads(
            await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {ownership.LIST_CANDIDATES.replace('$1', '20')}")
        )
        await conn.execute("RESET statement_timeout")
    return sorted(set(scans_of_chats(plan[0]["Plan"]))), float(plan[0]["Execution Time"])


def scans_of_chats(node: dict[str, object]) -> list[str]:
    found = [str(node.get("Index Name", node["Node Type"]))] if node.get("Relation Name") == "chats" else []
    children = node.get("Plans", [])
    assert isinstance(children, list)
    return found + [name for child in children for name in scans_of_chats(child)]


def print_costs(title: str, costs: dict[str, Cost]) -> None:
    print(f"\n{title}")
    print(f"  {'':26} {'CPU us':>8} {'x bare':>7} {'per s':>8}")
    for name, cost in costs.items():
        print(f"  {name:26} {cost.cpu_us:8.0f} {cost.ratio:7.2f} {cost.per_second:8.0f}")


async def run(*, quick: bool) -> int:
    claims: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="rookery-bench-") as folder:
        server = EmbeddedServer(Path(folder) / "data")
        await server.start()
        try:
            config = DatabaseConfig(server.url, pool_api=1, pool_worker=32)
            await migrate.migrate(config)
            async with await Database.connect(config) as database:
                await measure_all(await make_world(database), claims, rounds=20 if quick else 60)
        finally:
            await server.stop()
    print(f"\n{json.dumps(claims)}")
    return 0 if all(claim["ok"] for claim in claims.values()) else 1


async def measure_all(world: World, claims: dict[str, dict[str, object]], *, rounds: int) -> None:
    short = await make_chats(world, 32, SHORT)
    long = await make_chats(world, 8, LONG)
    worst = dict.fromkeys(TURN, 0.0)
    for writers in (1, 8, 32):
        # Few writers give few samples per round, so they get more rounds.
        costs = await measure(world, short[:writers], rounds * (8 if writers == 1 else 2 if writers == 8 else 1))
        print_costs(f"{writers} writers, chats of {SHORT} messages", costs)
        for name in TURN:
            worst[name] = max(worst[name], costs[name].ratio)
    for name, ratio in worst.items():
        claims[f"{name} CPU over bare transaction"] = claim(ratio, CPU_BUDGET)

    few, many = await measure(world, short[:8], rounds * 2), await measure(world, long, rounds * 2)
    print_costs(f"8 writers, chats of {LONG} messages", many)
    for name in TURN:
        growth = many[name].cpu_us / few[name].cpu_us
        slower = few[name].per_second / many[name].per_second
        claims[f"{name} CPU, {LONG} over {SHORT} messages"] = claim(growth, GROWTH_BUDGET)
        claims[f"{name} time, {LONG} over {SHORT} messages"] = claim(slower, GROWTH_BUDGET)

    indexes, milliseconds = await acquisition_plan(world)
    print(f"\nacquisition over {IDLE_CHATS} idle chats: {milliseconds:.2f} ms, by {', '.join(indexes)}")
    # Running chats are counted by owner, from their heartbeats and by primary key, because there are few.
    others = [name for name in indexes if name not in ("chats_acquire", "chats_pkey")]
    claims["acquisition scans of chats by other indexes, or none"] = claim(len(others), 0)


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def main() -> int:
    parser = argparse.ArgumentParser(description="What a transition costs, against a bare transaction.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 seconds")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
