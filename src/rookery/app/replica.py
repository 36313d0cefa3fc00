"""A replica: all components of a process, built from the settings, wired and run."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from random import Random, SystemRandom
from uuid import UUID, uuid4

from starlette.types import ASGIApp

from rookery import __version__
from rookery.agents.advisor import AdvisorServices, AdvisorTools
from rookery.agents.subagent_kinds import AllKinds
from rookery.agents.subagent_operations import FamilyServices
from rookery.agents.subagent_tools import SubagentTools
from rookery.api.application import create_application
from rookery.api.host_and_origin import Origins
from rookery.api.rate_limits import RateLimits
from rookery.api.services import ApiServices
from rookery.app import worker_config
from rookery.app import workspaces as app_workspaces
from rookery.app.health import ReplicaHealth
from rookery.app.relay import agent_peers, relay_sockets
from rookery.app.tracing import exported_traces
from rookery.debug.recorder import Limits
from rookery.debug.recording_policy import Policy
from rookery.debug.recording_service import RecordingService
from rookery.debug.redaction import Redactor
from rookery.debug.replay import Replayer
from rookery.llm.scripted import Scripts
from rookery.llm.wire_stats import ModelCounters
from rookery.mcp.server_access import McpAccess
from rookery.metrics.endpoint import metrics_endpoint
from rookery.metrics.export import Metrics, Sources
from rookery.metrics.infrastructure import Build, PubSub
from rookery.models.call_stats import CallStats
from rookery.models.connector import Connector
from rookery.models.directory import Directory
from rookery.models.key_ring import KeyRing
from rookery.runtime.clock import Clock, SystemClock
from rookery.runtime.time_slices import ThreadPauses
from rookery.settings.settings import Settings, is_in_the_clear
from rookery.store.authorized.actor_store import Store
from rookery.store.db import migrate, replica_presence
from rookery.store.db.pool import Database
from rookery.store.db.pubsub import Bus, Listener, Notifier, NotifyProbe
from rookery.store.db.replica_presence import Presence
from rookery.store.machine import Machine
from rookery.store.mcp import servers as mcp_servers
from rookery.store.people.logins import Logins
from rookery.store.people.passwords import Passwords
from rookery.stream.access_check import AccessCheck, ReadNotifier
from rookery.stream.relay.service import Listening, Relay
from rookery.stream.service import Streams, StreamServices
from rookery.telemetry.http_stats import HttpStats
from rookery.telemetry.log import bind, get_logger
from rookery.telemetry.loop_lag import LagMonitor
from rookery.telemetry.redaction import SecretRegistry
from rookery.tools.step_mcp_servers import McpFamily, McpServices
from rookery.tools.step_tools import Toolbox
from rookery.worker.config import WorkerConfig
from rookery.worker.short_texts import ShortTexts
from rookery.worker.worker import Worker, WorkerServices
from rookery.workspaces.drivers.driver_interface import Driver
from rookery.workspaces.runtime import WorkspaceRuntime

log = get_logger("app.replica")


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One running process over one database."""

    id: UUID
    database: Database
    bus: Bus
    notifier: Notifier
    listener: Listener
    probe: NotifyProbe
    presence: Presence
    lag: LagMonitor
    machine: Machine
    directory: Directory
    connector: Connector
    worker: Worker
    debug: RecordingService
    relay: Relay
    streams: Streams
    store: Store
    passwords: Passwords
    logins: Logins
    api: ApiServices
    health: ReplicaHealth
    workspaces: WorkspaceRuntime
    mcp_family: McpFamily
    metrics: Metrics

    @cached_property
    def application(self) -> ASGIApp:
        """Return the application of the public port.

        It is built on demand, because a command that only runs a chat needs no routes.
        """
        return create_application(self.api)

    async def announce_stop(self) -> None:
        """Announce to load balancers and other replicas that this replica stops. It still serves its requests."""
        self.health.stopping = True
        self.worker.stop_acquiring()
        await self.presence.stopping()

    async def leave(self) -> None:
        """Release every chat, then ask clients to reconnect.

        The order matters, because other replicas can serve the chats only after they are released.
        """
        self.streams.sessions.stop_admitting()
        await self.worker.close()
        await self.debug.close()
        self.relay.drain()
        await self.streams.sessions.goodbye()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options of a replica besides its settings, for tests and commands.

    Without `takes_chats`, the worker runs only chats that it is given explicitly, because a command must not run chats
    of other users. `index` numbers the replicas of one server. `drivers`, `worker` and `toolbox` replace the workspace
    drivers, the worker configuration and the tools that follow from the settings.
    """

    index: int = 0
    ring: KeyRing | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    secrets: SecretRegistry | None = None
    toolbox: Toolbox | None = None
    scripts: Scripts | None = None
    worker: WorkerConfig | None = None
    passwords: Passwords | None = None
    takes_chats: bool = True
    drivers: Mapping[str, Driver] | None = None
    clock: Clock = field(default_factory=SystemClock)
    rng: Random = field(default_factory=SystemRandom)


@asynccontextmanager
async def running_replica(
    settings: Settings, database: Database, choices: Choices | None = None
) -> AsyncIterator[Replica]:
    """Build a replica and run its loops until the block ends.

    If a loop fails, the block is canceled and the error is raised, so that the process exits. A partial replica would
    hold leases that it cannot serve. At the end, the replica's row in the database is deleted, so that other replicas
    take over immediately. Call `announce_stop` before; otherwise other replicas report this one as crashed.
    """
    choices = choices or Choices()
    replica_id = uuid4()
    async with AsyncExitStack() as stack:
        secrets = choices.secrets or SecretRegistry()
        # Entered first, so that the spans of the shutdown are sent as well.
        await stack.enter_async_context(exported_traces(settings, replica_id=replica_id, secrets=secrets))
        listening = stack.enter_context(
            relay_sockets(settings, replica_id, ring=choices.ring, index=choices.index, is_server=choices.takes_chats)
        )
        replica = _wire(settings, database, choices, replica_id=replica_id, listening=listening, secrets=secrets)
        stack.callback(replica.passwords.close)
        stack.enter_context(bind(replica=str(replica.id)))
        await replica.presence.start()
        stack.push_async_callback(replica.presence.close)
        stack.push_async_callback(replica.connector.close)
        stack.push_async_callback(replica.directory.close)
        stack.push_async_callback(replica.api.mcp.close)
        stack.push_async_callback(replica.mcp_family.close)
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(replica.listener.run(), name="listener"),
                group.create_task(replica.notifier.run(), name="notifier"),
                group.create_task(replica.presence.run(), name="presence"),
                group.create_task(replica.lag.run(), name="lag"),
            ]
            try:
                # Users of the replica rely on receiving hints, and the health check would fail without them.
                await replica.listener.wait_connected()
                loops.append(group.create_task(replica.probe.run(), name="notify-probe"))
                loops.append(group.create_task(replica.worker.run(), name="worker"))
                loops.append(group.create_task(replica.debug.run(), name="debug"))
                loops += replica.workspaces.start(group, is_server=choices.takes_chats)
                stack.push_async_callback(replica.workspaces.close)
                async with replica.relay.running(partial(_with_metrics, replica.metrics)), replica.streams.running():
                    try:
                        yield replica
                    finally:
                        await replica.leave()
            finally:
                # Closed last, so that hints of the other components' shutdown are still sent.
                await replica.notifier.close()
                for loop in loops:
                    loop.cancel()


def _with_metrics(metrics: Metrics, relay: ASGIApp) -> ASGIApp:
    return metrics_endpoint(metrics, otherwise=relay)


def _wire(
    settings: Settings,
    database: Database,
    choices: Choices,
    *,
    replica_id: UUID,
    listening: Listening | None,
    secrets: SecretRegistry,
) -> Replica:
    clock, rng = choices.clock, choices.rng
    figures = choices.worker or worker_config.worker_config(settings)
    identity = replica_presence.Replica(
        id=replica_id,
        host_id=listening.host_id if listening is not None else f"none:{replica_id}",
        hostname=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        schema_version=migrate.SCHEMA_VERSION,
        index=choices.index,
        relay_unix=str(listening.unix_path) if listening is not None else None,
        relay_url=listening.url if listening is not None else None,
        lease_ttl=timedelta(seconds=figures.lease_seconds),
    )

    def take_over(_: UUID) -> None:
        worker.wake()
        workspaces.executor.wake()

    bus = Bus()
    notifier = Notifier(database.worker, bus, is_alone=lambda: presence.is_alone, clock=clock)
    listener = Listener(lambda: database.dedicated("listen"), bus, clock=clock, rng=rng)
    presence = Presence(lambda: database.dedicated("presence"), identity, clock=clock, rng=rng, on_peer_dead=take_over)
    lag = LagMonitor(clock)
    # A single replica has no slots to report.
    shared_dir = settings.data_dir if settings.replicas > 1 else None
    health = ReplicaHealth(database, listener, presence, lag, data_dir=shared_dir)
    directory = Directory(database.worker, ring=choices.ring, environ=choices.environ, clock=clock, registry=secrets)
    directory.follow(bus)
    counters = ModelCounters()
    connect_seconds = settings.worker_connect_timeout.total_seconds()
    tick = worker_config.tick(settings)
    connector = Connector(
        scripts=choices.scripts, clock=clock, stats=counters, connect_seconds=connect_seconds, tick=tick
    )
    workspaces = app_workspaces.runtime(
        settings,
        identity,
        database.worker,
        ring=choices.ring,
        drivers=choices.drivers,
        bus=bus,
        publisher=notifier,
        clock=clock,
        peers=agent_peers(listening, identity.id, pool=database.worker, clock=clock),
    )
    driving_machine = Machine(database.worker, notifier, clock=clock, rng=rng)
    driving_store = Store(database.worker, machine=driving_machine, publisher=notifier, clock=clock)
    # Records hide the secrets that the directory reads.
    redactor = Redactor(secrets)
    debug = RecordingService(
        database.worker,
        lambda: database.dedicated("debug"),
        replica_id=identity.id,
        policy=Policy(directory, pool=database.worker, is_forced=settings.debug_force),
        bus=bus,
        publish=notifier.publish,
        clock=clock,
        redactor=Redactor(secrets, body_bytes=settings.debug_body_bytes, pause=ThreadPauses()),
        limits=Limits(max_bytes=settings.debug_run_bytes),
        queue_bytes=settings.debug_queue_bytes,
    )
    call_stats = CallStats()
    advisor = AdvisorServices(
        pool=database.worker,
        directory=directory,
        connector=connector,
        clock=clock,
        random=rng.random,
        call_stats=call_stats,
        loop=worker_config.loop_config(settings),
        recordings=debug.recordings,
    )
    mcp = McpAccess(
        database.worker,
        ring=choices.ring,
        clock=clock,
        publisher=notifier,
        setting=lambda: directory.setting(mcp_servers.SETTING),
        allow=settings.net_allow_private,
        own_ports=app_workspaces.own_ports(settings),
    )
    mcp_family = McpFamily(McpServices(pool=database.worker, access=mcp, clock=clock, bus=bus))
    mcp_family.follow()
    family = FamilyServices(
        pool=database.worker,
        store=driving_store,
        bus=bus,
        directory=directory,
        clock=clock,
        external_servers=mcp_family.visible_ids,
    )
    kinds = AllKinds(database.worker, directory, bus=bus, clock=clock)
    toolbox = app_workspaces.toolbox(
        workspaces,
        driving_store,
        directory,
        families=(SubagentTools(family, catalog=kinds), AdvisorTools(advisor), mcp_family),
    )
    worker = Worker(
        WorkerServices(
            worker_id=identity.id,
            machine=driving_machine,
            pool=database.worker,
            connect=database.dedicated,
            bus=bus,
            publisher=notifier,
            directory=directory,
            connector=connector,
            toolbox=choices.toolbox or toolbox,
            caches=(*toolbox.caches, *kinds.caches, *mcp_family.caches),
            advisor_stats=advisor.stats,
            mcp_stats=mcp_family.stats,
            call_stats=call_stats,
            recordings=debug.recordings,
            clock=clock,
            rng=rng,
            may_acquire=lambda: choices.takes_chats and settings.worker_enabled and health.is_fit(figures),
            may_commit=lambda: presence.held,
            config=figures,
            loop=worker_config.loop_config(settings),
            retry=worker_config.retry_policy(settings),
            max_steps=settings.worker_max_steps,
            max_output_tokens=settings.worker_max_output_tokens,
            part_limits=worker_config.part_limits(settings),
            tick=tick,
        )
    )
    probe = NotifyProbe(notifier, bus, replica_id=identity.id, clock=clock)
    machine = Machine(database.api, notifier, clock=clock, rng=rng)
    relay = Relay(identity.id, worker.buffer, listening=listening, pool=database.api, clock=clock, rng=rng)
    relay.serve_agents(workspaces.directory.find_own, workspaces.directory.cut_off)
    streams = Streams(
        StreamServices(
            replica_id=identity.id,
            machine=machine,
            pool=database.api,
            bus=bus,
            sources=relay.hub,
            check=AccessCheck(database.api, clock=clock),
            clock=clock,
            rng=rng,
            is_deaf=lambda: probe.deaf,
            on_read=ReadNotifier(notifier),
            per_replica=settings.max_streams_per_replica,
        )
    )
    passwords = choices.passwords or Passwords()
    logins = Logins(database.api, passwords, clock=clock)
    store = Store(database.api, machine=machine, publisher=notifier, clock=clock, ring=choices.ring)
    http_stats = HttpStats()
    parts = ApiServices(
        store=store,
        pool=database.api,
        publisher=notifier,
        logins=logins,
        passwords=passwords,
        streams=streams,
        directory=directory,
        connector=connector,
        texts=ShortTexts(
            directory,
            connector,
            pool=database.api,
            clock=clock,
            rng=rng,
            stats=call_stats,
            recordings=debug.recordings,
        ),
        replayer=Replayer(directory, connector, pool=database.api, clock=clock, redactor=redactor, stats=call_stats),
        titling=worker.effects.titling,
        ring=choices.ring,
        health=health,
        clock=clock,
        limits=RateLimits(clock=clock, replicas=lambda: presence.live_count, on_refused=http_stats.rate_limited),
        data_dir=settings.data_dir,
        workspaces=workspaces,
        mcp=mcp,
        origins=Origins(
            external_url=settings.external_url,
            allowed_origins=settings.allowed_origins,
            allowed_hosts=settings.allowed_hosts,
        ),
        token_max_days=settings.auth_token_max_ttl.days,
        max_body=settings.http_max_body,
        log_access=settings.log_access,
        is_in_the_clear=is_in_the_clear(settings),
        is_debug_forced=settings.debug_force,
        stats=http_stats,
    )
    return Replica(
        id=identity.id,
        database=database,
        bus=bus,
        notifier=notifier,
        listener=listener,
        probe=probe,
        presence=presence,
        lag=lag,
        machine=machine,
        directory=directory,
        connector=connector,
        worker=worker,
        debug=debug,
        relay=relay,
        streams=streams,
        store=store,
        passwords=passwords,
        logins=logins,
        api=parts,
        health=health,
        workspaces=workspaces,
        mcp_family=mcp_family,
        metrics=Metrics(
            Sources(
                build=Build(__version__, migrate.SCHEMA_VERSION),
                worker=worker,
                debug=debug.stats,
                models=counters,
                http=parts.stats,
                streams=streams,
                relay=relay,
                database=database,
                pubsub=PubSub(notifier, listener, probe),
                lag=lag,
                presence=presence,
                workspaces=workspaces.parts.stats,
            )
        ),
    )
