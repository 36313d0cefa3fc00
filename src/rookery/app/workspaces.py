"""The workspace runtime of a replica, its drivers, and the tools of its chats, configured from the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg

from rookery.models.directory import Directory
from rookery.models.key_ring import KeyRing
from rookery.runtime.clock import Clock
from rookery.settings.settings import Settings, private_paths
from rookery.store.authorized.actor_store import Store
from rookery.store.db.pubsub import Bus
from rookery.store.db.replica_presence import Replica
from rookery.store.machine import Publisher
from rookery.store.workspaces.workspaces import Workspace
from rookery.tools.step_tools import ToolFamily
from rookery.tools.toolbox import ToolboxServices, WorkspaceToolbox
from rookery.workspaces import agent_bundle, network_levels
from rookery.workspaces.driver_specs import Specs
from rookery.workspaces.drivers.driver_interface import Driver
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.drivers.ssh import SshDriver
from rookery.workspaces.relayed_connector import Peers
from rookery.workspaces.runtime import WorkspaceRuntime
from rookery.workspaces.shared_services import WorkspaceServices, WorkspaceStats

DATABASE_PORT = 5432


def runtime(
    settings: Settings,
    replica: Replica,
    pool: asyncpg.Pool,
    *,
    ring: KeyRing | None,
    drivers: Mapping[str, Driver] | None,
    bus: Bus,
    publisher: Publisher,
    clock: Clock,
    peers: Peers | None = None,
) -> WorkspaceRuntime:
    """Build the workspace runtime. `drivers` replace those of the settings."""
    chosen = all_drivers(settings) if drivers is None else drivers

    local = [each for each in chosen.values() if isinstance(each, LocalDriver)]

    async def on_ready(workspace: Workspace) -> None:
        await made.refresh_context(workspace)

    made = WorkspaceRuntime(
        WorkspaceServices(
            replica_id=replica.id,
            node=replica.host_id,
            pool=pool,
            publisher=publisher,
            bus=bus,
            clock=clock,
            specs=Specs(
                ring, keys_dir=settings.data_dir / "ssh-keys", shared_folders=settings.workspaces_shared_folders
            ),
            drivers=chosen,
            inventories=local,
            stats=WorkspaceStats(egress=local[0].egress_sockets.stats) if local else WorkspaceStats(),
            shared_folders=settings.workspaces_shared_folders,
            on_ready=on_ready,
            peers=peers,
            ring=ring,
        )
    )
    return made


def toolbox(
    made: WorkspaceRuntime, store: Store, directory: Directory, *, families: Sequence[ToolFamily]
) -> WorkspaceToolbox:
    """Return the tools of chats. `store` is over the pool and the machine of the worker."""
    parts = made.parts
    return WorkspaceToolbox(
        ToolboxServices(
            pool=parts.pool,
            store=store,
            families=families,
            service=made.service,
            directory=made.directory,
            contexts=made.contexts,
            watches=made.watches,
            clock=parts.clock,
            can_make=made.availability.can_make,
            user_setting=directory.user_setting,
        )
    )


def local_config(settings: Settings) -> LocalConfig:
    return LocalConfig(
        data_dir=settings.data_dir,
        hidden=tuple(private_paths(settings)[1:]),
        bwrap=settings.drivers_local_bwrap,
        uid=settings.drivers_local_uid,
        uid_range=settings.drivers_local_uid_range,
        cgroup=settings.drivers_local_cgroup,
        network_max=network_levels.read(settings.drivers_local_network_max),
        net_allow_private=settings.net_allow_private,
        own_ports=own_ports(settings),
        tmp_mb=settings.drivers_local_tmp_mb,
        unsafe=settings.drivers_local_unsafe,
    )


def own_ports(settings: Settings) -> tuple[int, ...]:
    """Return the ports of the server and its database, except those that the system chose."""
    found = {settings.listen.port}
    if settings.metrics_listen is not None:
        found.add(settings.metrics_listen.port)
    if settings.relay_bind is not None:
        found |= {settings.relay_bind.port + index for index in range(settings.replicas)}
    if settings.database_url is not None:
        found |= _database_ports(settings.database_url)
    return tuple(sorted(found - {0}))


def _database_ports(url: str) -> set[int]:
    """Return the ports of all servers in the URL, which may name several."""
    # `urlsplit` is not used, because some versions of Python refuse an IPv6 address behind other hosts.
    authority = url.partition("://")[2].partition("/")[0].partition("?")[0]
    ports = [host.rpartition(":")[2] for host in authority.rpartition("@")[2].split(",")]
    return {int(port) if port.isascii() and port.isdigit() else DATABASE_PORT for port in ports}


def ssh_driver() -> SshDriver:
    """Return an ssh driver. It holds connections, so the caller has to close it."""
    return SshDriver(agent_bundle.build)


def local_driver(settings: Settings) -> LocalDriver:
    return LocalDriver(local_config(settings), agent_bundle.build)


def all_drivers(settings: Settings) -> dict[str, Driver]:
    """Return every driver by its name in templates. The workspace runtime closes those that hold connections."""
    return {"local": local_driver(settings), "ssh": ssh_driver()}
