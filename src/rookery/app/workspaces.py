"""The workspace runtime of a replica, and the tools of its chats."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg

from rookery.app import drivers as app_drivers
from rookery.models.directory import Directory
from rookery.models.secrets import KeyRing
from rookery.runtime.clock import Clock
from rookery.settings.settings import Settings
from rookery.store.authorized.store import Store
from rookery.store.db.pubsub import Bus
from rookery.store.db.replicas import Replica
from rookery.store.machine import Machine, Publisher
from rookery.store.workspaces.workspaces import Workspace
from rookery.tools.toolbox import ToolboxParts, WorkspaceToolbox
from rookery.workspaces.driver_specs import Specs
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.protocol import Driver
from rookery.workspaces.loops import WorkspaceRuntime
from rookery.workspaces.relay import Peers
from rookery.workspaces.services import WorkspaceServices
from rookery.workspaces.stats import WorkspaceStats


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
    chosen = app_drivers.all_drivers(settings) if drivers is None else drivers

    local = [each for each in chosen.values() if isinstance(each, LocalDriver)]

    async def on_ready(workspace: Workspace) -> None:
        await made.hear_context(workspace)

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
        )
    )
    return made


def toolbox(made: WorkspaceRuntime, machine: Machine, directory: Directory) -> WorkspaceToolbox:
    """Return the tools of chats, over the pool and the machine of the worker."""
    parts = made.parts
    return WorkspaceToolbox(
        ToolboxParts(
            pool=parts.pool,
            store=Store(parts.pool, machine=machine, publisher=parts.publisher, clock=parts.clock),
            service=made.service,
            directory=made.directory,
            contexts=made.contexts,
            watches=made.watches,
            clock=parts.clock,
            can_make=made.availability.can_make,
            user_setting=directory.user_setting,
        )
    )
