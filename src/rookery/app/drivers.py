"""The workspace drivers, configured from the settings."""

from __future__ import annotations

from rookery.settings.settings import Settings, private_paths
from rookery.workspaces import agent_bundle, network_levels
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.protocol import Driver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.drivers.ssh import SshDriver

DATABASE_PORT = 5432


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
    # Not by `urlsplit`: some versions of Python refuse an IPv6 address behind other hosts.
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
