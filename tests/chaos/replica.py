"""A replica as a separate process, with the tools of a chaos run: `python -m tests.chaos.replica '<orders as JSON>'`.

It prints one line when it serves, answers each line on stdin with its current work, and ends with stdin, so that it
does not outlive its parent.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import uvloop

from rookery.app import replica as app_replica
from rookery.loop.tool import Replay, Tool, ToolContext, ToolOutput
from rookery.models.connector import default_scripts
from rookery.models.key_ring import KeyRing
from rookery.settings import settings
from rookery.settings.settings import Settings
from rookery.store.db.errors import StoreError
from rookery.store.db.pool import Database, DatabaseConfig
from rookery.telemetry import log
from rookery.tools.framework import make_tool
from rookery.tools.step_tools import PlainToolbox
from rookery.worker.config import WorkerConfig
from tests.chaos import effect_server, family_jobs, mcp_jobs, workspace_jobs
from tests.chaos.conversation_plans import BOOK, NOTE, POST
from tests.chaos.effect_server import Wish
from tests.tools.replica_rig import HastyClock

# Leases end five times faster, for runs with many kills; see `deployment`.
FAST = WorkerConfig(
    acquire_interval_seconds=1.0,
    heartbeat_interval_seconds=1.0,
    self_fence_seconds=4.0,
    sweep_interval_seconds=5.0,
    sync_interval_seconds=3.0,
    database_seconds=2.0,
    debug_sweep_interval_seconds=3.0,
)


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a replica.

    Without `effects_port`, it has the built-in tools, and the models of `workspace_jobs`, `family_jobs` and `mcp_jobs`.
    """

    number: int
    database_url: str
    effects_port: int | None
    ring: str
    data_dir: str
    is_fast: bool


class Doing(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a line on stdin."""

    runners: int
    is_present: bool
    is_fenced: bool


class NoArguments(msgspec.Struct):
    pass


def tools(number: int, port: int) -> list[Tool]:
    async def note(ctx: ToolContext, _: NoArguments) -> ToolOutput:
        await asyncio.sleep(0.05)
        return ToolOutput({"noted": True})

    async def post(ctx: ToolContext, _: NoArguments) -> ToolOutput:
        wish = Wish(number, ctx.call_id, str(ctx.replay_token))
        return ToolOutput({"number": await effect_server.ask(port, wish)})

    async def book(ctx: ToolContext, _: NoArguments) -> ToolOutput:
        token = str(ctx.replay_token)
        return ToolOutput({"number": await effect_server.ask(port, Wish(number, ctx.call_id, token, token))})

    return [
        make_tool(NOTE, "Safe to repeat.", arguments=NoArguments, handler=note),
        make_tool(POST, "Must not be repeated.", arguments=NoArguments, handler=post, replay=Replay.LEDGER),
        make_tool(BOOK, "Idempotent by token.", arguments=NoArguments, handler=book, replay=Replay.TOKEN),
    ]


async def serve(orders: Orders) -> None:
    config = settings.load(
        # All model calls are recorded, so that runs also check the records.
        {"data_dir": orders.data_dir, "database_url": orders.database_url, "debug_force": "true"},
        {"HOME": orders.data_dir},
    )
    port, scripts = orders.effects_port, default_scripts()
    choices = app_replica.Choices(
        ring=KeyRing.parse(orders.ring),
        toolbox=None if port is None else PlainToolbox(tools(orders.number, port)),
        worker=FAST if orders.is_fast else WorkerConfig(),
        scripts=scripts,
        clock=HastyClock(),
    )
    database = DatabaseConfig(orders.database_url, pool_api=2, pool_worker=8, application_name=f"r{orders.number}")
    with (
        scripts.registered(workspace_jobs.MODEL, workspace_jobs.script),
        scripts.registered(family_jobs.MODEL, family_jobs.script),
        scripts.registered(mcp_jobs.MODEL, mcp_jobs.script),
    ):
        await _serve_until_told(config.settings, database, choices)


async def _serve_until_told(config: Settings, database: DatabaseConfig, choices: app_replica.Choices) -> None:
    async with (
        await Database.connect(database) as connected,
        app_replica.running_replica(config, connected, choices) as replica,
    ):
        print(replica.id, flush=True)
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            doing = Doing(
                runners=len(replica.worker.manager),
                is_present=replica.presence.held,
                is_fenced=replica.worker.manager.is_fenced,
            )
            print(msgspec.json.encode(doing).decode(), flush=True)
        os._exit(0)  # there is no caller that would wait for a regular end


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    log.configure("info", "text", replica=f"r{orders.number}", stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(orders))
    except StoreError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
