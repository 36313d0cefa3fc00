"""The network levels of workspaces, as templates and settings name them. Pure.

`none` is no network. `hosts` allows the hosts that the template lists, and `public` all public hosts. Workspaces with
these levels have their own network namespace, which only a proxy of the server connects to the network. `host` is the
network of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

Network: TypeAlias = Literal["none", "hosts", "public", "host"]
# In increasing order. The settings limit the level that a template gets.
NETWORKS: tuple[Network, ...] = get_args(Network)
DEFAULT: Network = "public"
# Workspaces with these levels use the proxy of the server.
BY_PROXY: tuple[Network, ...] = ("hosts", "public")
# Former names, which settings and stored templates may still use.
OLD_NAMES: Mapping[str, Network] = {"proxy": "hosts", "full": "host"}

WORDS: Mapping[Network, str] = {
    "none": "nothing",
    "hosts": "the hosts that its template lists, and nothing else",
    "public": "the internet, but neither the server's machine nor private networks",
    "host": "every host that the machine can reach, including its localhost and private networks",
}


def read(raw: object) -> Network:
    """Parse a level. Raise ValueError with a sentence if it is invalid."""
    for network in NETWORKS:
        if raw == network:
            return network
    if isinstance(raw, str) and raw in OLD_NAMES:
        return OLD_NAMES[raw]
    raise ValueError(f"This must be one of {', '.join(NETWORKS)}.")


def lowered(asked: Network, most: Network) -> Network:
    """Return the lower of the requested level and the maximum."""
    return min(asked, most, key=NETWORKS.index)


def with_new_names(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored manifest with the current name of its level."""
    sandbox = manifest.get("sandbox")
    if not isinstance(sandbox, Mapping) or sandbox.get("network") not in OLD_NAMES:
        return manifest
    return {**manifest, "sandbox": {**sandbox, "network": OLD_NAMES[sandbox["network"]]}}
