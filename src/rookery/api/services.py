"""The services of the replica that the API uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from rookery.api.host_and_origin import Origins
from rookery.api.rate_limits import RateLimits
from rookery.api.request_bodies import MAX_BODY_BYTES, READ_SECONDS
from rookery.api.routers.health import Health
from rookery.api.web_app import WebApp, packaged
from rookery.debug.replay import Replayer
from rookery.mcp.server_access import McpAccess
from rookery.models.connector import Connector
from rookery.models.directory import Directory
from rookery.models.key_ring import KeyRing
from rookery.runtime.clock import Clock
from rookery.store.authorized.actor_store import Store
from rookery.store.machine import Publisher
from rookery.store.people.logins import Logins
from rookery.store.people.passwords import Passwords
from rookery.stream.service import Streams
from rookery.telemetry.http_stats import HttpStats
from rookery.worker.short_texts import ShortTexts, Titling
from rookery.workspaces.runtime import WorkspaceRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """The API's dependencies. `pool` is for credentials only; user data is read through `store` on behalf of a user.

    Without `requires_setup`, requests are accepted before there is an administrator. With `is_debug_forced`, the model
    calls of all chats are recorded.
    """

    store: Store
    pool: asyncpg.Pool
    publisher: Publisher
    logins: Logins
    passwords: Passwords
    streams: Streams
    directory: Directory
    connector: Connector
    texts: ShortTexts
    replayer: Replayer
    titling: Titling
    ring: KeyRing | None
    health: Health
    clock: Clock
    limits: RateLimits
    data_dir: Path
    workspaces: WorkspaceRuntime
    mcp: McpAccess
    origins: Origins = field(default_factory=Origins)
    token_max_days: int = 365
    max_body: int = MAX_BODY_BYTES
    read_seconds: float = READ_SECONDS
    log_access: bool = True
    is_in_the_clear: bool = False
    requires_setup: bool = True
    is_debug_forced: bool = False
    stats: HttpStats = field(default_factory=HttpStats)
    web: WebApp = field(default_factory=packaged)
    worker_wake: Callable[[], None] = lambda: None
