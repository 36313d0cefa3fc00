"""The address guard of MCP servers and of their authorization servers."""

from __future__ import annotations

from collections.abc import Iterable

from rookery.runtime.address_guard import Guard, Resolve

_PRIVATE = ("0.0.0.0/0", "::/0", "127.0.0.0/8", "::1/128")


def mcp_guard(
    *,
    allow: Iterable[str] = (),
    allow_private: bool = False,
    own_ports: Iterable[int] = (),
    resolve: Resolve | None = None,
) -> Guard:
    """Return the address guard. `allow` are exempt networks; `allow_private` exempts all private networks and this
    machine.

    The server's own ports are never exempt, and neither are the metadata services of clouds.
    """
    return Guard((*allow, *(_PRIVATE if allow_private else ())), own_ports=own_ports, resolve=resolve)
