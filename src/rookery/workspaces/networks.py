"""What a workspace may reach: the names that templates and settings use for it, and words for people. Pure.

`none` is nothing. `hosts` are the hosts that the template lists. `public` is every public host. Workspaces with one of
these have a network namespace of their own, and a proxy of the server's as the only way out. `host` is the network of
the machine itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

Network: TypeAlias = Literal["none", "hosts", "public", "host"]
# From the least on: the settings cap what templates may ask for.
NETWORKS: tuple[Network, ...] = get_args(Network)
DEFAULT: Network = "public"
# With these the server serves a proxy for the workspace.
BY_PROXY: tuple[Network, ...] = ("hosts", "public")
# What they were called before. Templates, stored ones too, and settings may still say so.
OLD_NAMES: Mapping[str, Network] = {"proxy": "hosts", "full": "host"}

WORDS: Mapping[Network, str] = {
    "none": "nothing",
    "hosts": "the hosts that its template lists, and nothing else",
    "public": "every public host, but nothing of the server's machine and of private networks",
    "host": "all that the machine reaches, with its localhost and private networks",
}


def read(raw: object) -> Network:
    """A name as somebody wrote it. Raises ValueError with a sentence."""
    for network in NETWORKS:
        if raw == network:
            return network
    if isinstance(raw, str) and raw in OLD_NAMES:
        return OLD_NAMES[raw]
    raise ValueError(f"This must be one of {', '.join(NETWORKS)}.")


def lowered(asked: Network, most: Network) -> Network:
    """What is granted to whoever asks for this, where no more than `most` is allowed."""
    return min(asked, most, key=NETWORKS.index)


def with_new_names(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored manifest, which may be from before the names changed."""
    sandbox = manifest.get("sandbox")
    if not isinstance(sandbox, Mapping) or sandbox.get("network") not in OLD_NAMES:
        return manifest
    return {**manifest, "sandbox": {**sandbox, "network": OLD_NAMES[sandbox["network"]]}}
