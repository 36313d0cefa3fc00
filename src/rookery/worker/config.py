"""The worker's configuration: intervals, limits and timeouts."""

from __future__ import annotations

import msgspec


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a worker. The defaults were estimated, not measured."""

    acquire_interval_seconds: float = 5.0
    acquire_jitter: float = 0.2
    # Delay before the next pass if this process was not allowed to take chats.
    acquire_again_seconds: float = 0.5
    acquire_batch: int = 10
    # Number of chats taken from a list of candidates before the list is read again, if hints arrived meanwhile.
    acquire_reread_after: int = 3
    # Delay after a hint, per chat that runs here, so that idle replicas take the chat first. Not used without peers.
    acquire_delay_per_runner_seconds: float = 0.0005
    acquire_delay_max_seconds: float = 0.05
    max_runners: int = 256
    max_lag_seconds: float = 0.25
    max_pool_wait_seconds: float = 1.0

    # Stored in the row of this replica, because other replicas judge its leases by it.
    lease_seconds: float = 30.0
    heartbeat_interval_seconds: float = 9.0
    self_fence_seconds: float = 24.0
    # Used if there are peers: they may take a chat as soon as the database drops a silent connection, which happens
    # before the lease ends.
    self_fence_with_peers_seconds: float = 15.0
    beat_again_seconds: float = 1.0
    sweep_interval_seconds: float = 30.0
    sync_interval_seconds: float = 15.0
    # Limit of each database access in the loops that keep leases. A hanging access must end before the lease does.
    database_seconds: float = 5.0

    task_backoff_seconds: float = 0.1
    task_backoff_max_seconds: float = 5.0
    task_idle_seconds: float = 15 * 60.0
    # Added to a planned wait, and to the latest deadline of a running tool.
    task_grace_seconds: float = 60.0
    # Interval at which a commit checks whether this process holds its presence lock again.
    presence_look_seconds: float = 0.1
    stall_backoff_seconds: float = 1.0
    stall_backoff_max_seconds: float = 30.0
    # A chat that only waits for its next attempt gives up its slot, but not sooner than this after its acquisition.
    slot_hold_seconds: float = 1.0

    cleanup_seconds: float = 5.0
    # Time allowed for writing and announcing a label, a summary or a title.
    watch_publish_seconds: float = 10.0
    drain_seconds: float = 25.0

    prepare_tries: int = 3
    prepare_backoff_seconds: float = 0.2

    capacity_interval_seconds: float = 30.0
    archive_interval_seconds: float = 3600.0
    archive_batch: int = 1000
    search_interval_seconds: float = 30.0
    # With the jitter, and the two seconds in which peers notice a dead replica, its debug runs end within 35 s. A run
    # that is silent for 120 s ends within 150 s.
    debug_sweep_interval_seconds: float = 24.0
    # Interval of the check for recently disabled accounts.
    disabled_interval_seconds: float = 2.0
    # Interval at which overdue subagents are stopped, and parents resumed that a dead replica left at rest.
    subagent_interval_seconds: float = 5.0
