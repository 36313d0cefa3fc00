"""Network levels: their parser, their limit, and the ports of the server that are never reachable."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.app import workspaces
from rookery.settings.settings import Settings, load
from rookery.settings.value_types import Address
from rookery.workspaces import network_levels
from rookery.workspaces.network_levels import NETWORKS


def settings(flags: dict[str, str] | None = None) -> Settings:
    return load(flags or {}, {"HOME": "/nonexistent"}).settings


def test_names_are_read_and_old_ones_too() -> None:
    assert [network_levels.read(name) for name in ("none", "hosts", "public", "host", "proxy", "full")] == [
        *("none", "hosts", "public", "host", "hosts", "host")
    ]


@pytest.mark.parametrize("raw", ["", "Host", "host ", "all", "*", None, True, 1, ["host"], {"host": 1}, "host\0"])
def test_everything_else_is_refused_with_what_there_is(raw: Any) -> None:
    with pytest.raises(ValueError, match="one of none, hosts, public, host"):
        network_levels.read(raw)


def test_level_is_never_above_the_request_or_the_limit() -> None:
    for asked in NETWORKS:
        for most in NETWORKS:
            granted = network_levels.lowered(asked, most)
            assert NETWORKS.index(granted) == min(NETWORKS.index(asked), NETWORKS.index(most))


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("none", "none"),
        ("hosts", "hosts"),
        ("public", "public"),
        ("host", "host"),
        ("proxy", "hosts"),
        ("full", "host"),
    ],
)
def test_setting_takes_the_names_and_those_from_before(given: str, read: str) -> None:
    made = settings({"drivers.local.network_max": given})

    assert workspaces.local_config(made).network_max == read


def test_ports_of_the_server_and_its_database_are_known() -> None:
    made = msgspec.structs.replace(
        settings(),
        listen=Address("", 7117),
        metrics_listen=Address("127.0.0.1", 9090),
        relay_bind=Address("", 7200),
        replicas=3,
        database_url="postgresql://u:p%40@db1:6543,db2,[::1]:6544/rookery",
    )

    assert workspaces.own_ports(made) == (5432, 6543, 6544, 7117, 7200, 7201, 7202, 9090)
    assert workspaces.own_ports(msgspec.structs.replace(settings(), listen=Address("", 0))) == ()
