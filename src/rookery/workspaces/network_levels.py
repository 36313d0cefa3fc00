"""The network levels of workspaces: their names in templates and settings, and their descriptions. Pure.

`none` is no network. `hosts` are the hosts that the template lists. `public` is every public host. Workspaces with one
of these have their own network namespace, and a proxy of the server as the only exit. `host` is the network of the
machine itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

Network: TypeAlias = Literal["none", "hosts", "public", "host"]
# In increasing order: settings cap the level that templates may request.
NETWORKS: tuple[Network, ...] = get_args(Network)
DEFAULT: Network = "public"
# At these levels the server runs a proxy for the workspace.
BY_PROXY: tuple[Network, ...] = ("hosts", "public")
# Former names. Templates, including stored ones, and settings may still use them.
OLD_NAMES: Mapping[str, Network] = {"proxy": "hosts", "full": "host"}

WORDS: Mapping[Network, str] = {
    "none": "nothing",
    "hosts": "the hosts that its template lists, and nothing else",
    "public": "every public host, but nothing of the server's machine and of private networks",
    "host": "all that the machine reaches, with its localhost and private networks",
}


def read(raw: object) -> Network:
    """Parse a level from user input. Raises ValueError with a sentence."""
    for network in NETWORKS:
        if raw == network:
            return network
    if isinstance(raw, str) and raw in OLD_NAMES:
        return OLD_NAMES[raw]
    raise ValueError(f"This must be one of {', '.join(NETWORKS)}.")


def lowered(asked: Network, most: Network) -> Network:
    """Return the level that is granted for the requested one where `most` is the maximum."""
    return min(asked, most, key=NETWORKS.index)


def with_new_names(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored manifest with former level names replaced."""
    sandbox = manifest.get("sandbox")
    if not isinstance(sandbox, Mapping) or sandbox.get("network") not in OLD_NAMES:
        return manifest
    return {**manifest, "sandbox": {**sandbox, "network": OLD_NAMES[sandbox["network"]]}}
