"""The relay sockets of a replica, configured from the settings.

The data directory holds the sockets, the id of its host, and a relay key for replicas without a key ring. Id and key
are random and created once. The host name is not used as the id, because two containers may have the same host name,
and the sockets of one cannot be opened in the other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg

from rookery.models.key_ring import KeyRing
from rookery.runtime.clock import Clock
from rookery.settings.settings import Problem, Settings, SettingsError
from rookery.store.db.embedded.data_dir import make_socket_dir
from rookery.stream.relay import service
from rookery.stream.relay.service import Listening, Reach
from rookery.stream.relay.workspace_agents import AgentPeers

HOST_FILE = "host-id"
KEY_FILE = "relay.key"
_RANDOM_BYTES = 32


@contextmanager
def relay_sockets(
    settings: Settings, replica_id: UUID, *, ring: KeyRing | None, index: int, is_server: bool
) -> Iterator[Listening | None]:
    """Open the sockets until the block ends. Yields None without a data directory, which a command must not create.

    A command that runs beside servers is reachable only from its own machine.
    """
    if not settings.data_dir.is_dir():
        yield None
        return
    sockets = service.open_sockets(
        make_socket_dir(settings.data_dir, None).parent,
        replica_id,
        host_id=host_id(settings.data_dir),
        key=ring.subkey("relay") if ring is not None else relay_key(settings.data_dir),
        reach=_reach(settings, index) if is_server else None,
        ca=settings.relay_tls_ca,
    )
    with ExitStack() as stack:
        try:
            listening = stack.enter_context(sockets)
        except OSError as error:
            problem = f"cannot be used: {error.strerror or error}."
            raise SettingsError([Problem("relay_bind", "the relay between replicas", problem)], []) from error
        yield listening


def agent_peers(
    listening: Listening | None, replica_id: UUID, *, pool: asyncpg.Pool, clock: Clock
) -> AgentPeers | None:
    """Return the connections to agents on other machines; None without the key that replicas share."""
    if listening is None:
        return None
    return AgentPeers(replica_id, key=listening.key, pool=pool, clock=clock, tls=listening.dial_tls)


def _reach(settings: Settings, index: int) -> Reach | None:
    """Return the address of one replica.

    Replicas of one machine share the settings, so each adds its index to the ports.
    """
    bind, url = settings.relay_bind, settings.relay_url
    if bind is None:
        return None
    if url is not None and (port := urlsplit(url).port) is not None:
        url = url.removesuffix(f":{port}") + f":{port + index}"
    return Reach(
        host=bind.host,
        port=bind.port + index if bind.port else 0,
        url=url,
        tls_cert=settings.relay_tls_cert,
        tls_key=settings.relay_tls_key,
    )


def host_id(data_dir: Path) -> str:
    """Return the id of the host.

    It is the same for all processes that share this directory, and unique among others.
    """
    return _read_or_make(data_dir / HOST_FILE)[:32]


def relay_key(data_dir: Path) -> bytes:
    """Return the key of replicas that share this directory. Replicas on other machines need a common key ring."""
    return bytes.fromhex(_read_or_make(data_dir / KEY_FILE))


def _read_or_make(path: Path) -> str:
    """Read the file, or create it with a random value.

    It is written under another name and then linked, so that it is always complete and the first writer wins.
    """
    with contextlib.suppress(FileNotFoundError):
        return path.read_text("ascii").strip()
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_RANDOM_BYTES) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return path.read_text("ascii").strip()
