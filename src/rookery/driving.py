"""The drivers of workspaces, as the settings say."""

from __future__ import annotations

from typing import cast

from rookery.settings import Settings, private_paths
from rookery.workspaces import bundle
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.machine import LocalConfig
from rookery.workspaces.drivers.protocol import Driver, Network
from rookery.workspaces.drivers.ssh import SshDriver


def local_config(settings: Settings) -> LocalConfig:
    return LocalConfig(
        data_dir=settings.data_dir,
        hidden=tuple(private_paths(settings)[1:]),
        bwrap=settings.drivers_local_bwrap,
        uid=settings.drivers_local_uid,
        uid_range=settings.drivers_local_uid_range,
        cgroup=settings.drivers_local_cgroup,
        network_max=cast("Network", settings.drivers_local_network_max),
        net_allow_private=settings.net_allow_private,
        tmp_mb=settings.drivers_local_tmp_mb,
        unsafe=settings.drivers_local_unsafe,
    )


def ssh_driver() -> SshDriver:
    """It holds connections: whoever makes it closes it."""
    return SshDriver(bundle.build)


def local_driver(settings: Settings) -> LocalDriver:
    return LocalDriver(local_config(settings), bundle.build)


def all_drivers(settings: Settings) -> dict[str, Driver]:
    """Every driver, by its name in templates. The runtime of workspaces closes those that hold connections."""
    return {"local": local_driver(settings), "ssh": ssh_driver()}
