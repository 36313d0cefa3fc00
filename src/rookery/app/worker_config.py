"""The worker's configuration from the start settings `worker.*`. Values without a setting keep their defaults."""

from __future__ import annotations

from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.live.part_buffer import PartLimits
from rookery.loop.config import LoopConfig
from rookery.runtime.shared_tick import SharedTick
from rookery.settings.settings import Settings
from rookery.worker.config import WorkerConfig


def worker_config(settings: Settings) -> WorkerConfig:
    fence_seconds = settings.worker_self_fence_after.total_seconds()
    return WorkerConfig(
        acquire_interval_seconds=settings.worker_acquire_interval.total_seconds(),
        acquire_batch=settings.worker_acquire_batch,
        max_runners=settings.worker_max_runners,
        lease_seconds=settings.worker_lease_ttl.total_seconds(),
        heartbeat_interval_seconds=settings.worker_heartbeat_interval.total_seconds(),
        self_fence_seconds=fence_seconds,
        self_fence_with_peers_seconds=min(fence_seconds, WorkerConfig().self_fence_with_peers_seconds),
        sweep_interval_seconds=settings.worker_heartbeat_gc_interval.total_seconds(),
        sync_interval_seconds=settings.worker_runner_sync_interval.total_seconds(),
        task_backoff_seconds=settings.worker_task_backoff.total_seconds(),
        task_backoff_max_seconds=settings.worker_task_backoff_max.total_seconds(),
        task_idle_seconds=settings.worker_task_idle_timeout.total_seconds(),
        cleanup_seconds=settings.worker_cleanup_timeout.total_seconds(),
        watch_publish_seconds=settings.worker_watch_publish_timeout.total_seconds(),
        drain_seconds=settings.drain_timeout.total_seconds(),
        prepare_tries=settings.worker_prepare_tries,
        prepare_backoff_seconds=settings.worker_prepare_backoff.total_seconds(),
        capacity_interval_seconds=settings.worker_capacity_gauge_interval.total_seconds(),
        archive_interval_seconds=settings.worker_archive_interval.total_seconds(),
        archive_batch=settings.worker_archive_batch,
    )


def loop_config(settings: Settings) -> LoopConfig:
    return LoopConfig(
        first_byte_seconds=settings.worker_first_byte_timeout.total_seconds(),
        stream_silence_seconds=settings.worker_stream_silence_timeout.total_seconds(),
        tool_default_deadline_seconds=settings.worker_tool_default_deadline.total_seconds(),
        tool_max_deadline_seconds=settings.worker_tool_max_deadline.total_seconds(),
        tool_batch_concurrency=settings.worker_tool_batch_concurrency,
    )


def retry_policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=settings.worker_max_attempts,
        first_delay=settings.worker_retry_delay,
        max_delay=settings.worker_retry_delay_max,
        retry_after_cap=settings.worker_retry_after_cap,
    )


def tick(settings: Settings) -> SharedTick:
    return SharedTick(settings.worker_part_flush.total_seconds())


def part_limits(settings: Settings) -> PartLimits:
    return PartLimits(
        episode_max_bytes=settings.worker_episode_max_bytes,
        episode_retention_seconds=settings.worker_episode_retention.total_seconds(),
        subscriber_stall_seconds=settings.worker_subscriber_stall_timeout.total_seconds(),
        merge_chars=settings.worker_part_flush_chars,
    )
