"""Metrics of the process and its infrastructure: requests, database, hints, event loop and replicas."""

from __future__ import annotations

from dataclasses import dataclass

from rookery.metrics.families import Family, counter, every, gauge, histogram
from rookery.store.db.hints import CHANNELS
from rookery.store.db.pool import Database, PoolStats
from rookery.store.db.pubsub import Listener, Notifier, NotifyProbe
from rookery.store.db.replica_presence import Presence, ReplicaState
from rookery.telemetry.histogram import Histograms
from rookery.telemetry.http_stats import APPROVAL_ANSWERS, HttpStats
from rookery.telemetry.loop_lag import LagMonitor

HTTP: tuple[Family[HttpStats], ...] = (
    counter(
        "http_requests_total",
        "Answered requests, by the template of their route.",
        lambda http: http.requests,
        labels=("method", "route", "code"),
    ),
    histogram(
        "http_request_seconds",
        "Duration of requests.",
        lambda http: http.request_seconds,
        labels=("method", "route"),
    ),
    gauge("http_in_flight", "Requests in progress.", lambda http: http.in_flight, labels=("method", "route")),
    histogram(
        "websocket_seconds",
        ("Duration of WebSocket connections."),
        lambda http: http.websocket_seconds,
        labels=("route",),
    ),
    counter(
        "http_too_large_total",
        "Requests refused because of their size.",
        lambda http: http.refused_as_large,
        labels=("route", "reason"),
    ),
    counter("rate_limited_total", "Requests refused by a rate limit.", lambda http: http.limited, labels=("limit",)),
    counter(
        "auth_failures_total",
        "Requests with invalid credentials.",
        lambda http: http.unauthenticated,
        labels=("reason",),
    ),
    counter(
        "authz_denied_total",
        "Requests refused because the caller lacks the right.",
        lambda http: http.denied,
        labels=("resource", "action"),
    ),
)

APPROVALS: tuple[Family[HttpStats], ...] = (
    counter(
        "approvals_answered_total",
        "Approval requests that users answered, by answer.",
        lambda http: http.approvals,
        labels=("answer",),
        known=APPROVAL_ANSWERS,
    ),
)

DATABASE: tuple[Family[Database], ...] = (
    gauge(
        "db_pool",
        "Connections of the pools: in use, idle, and those that may still be opened.",
        lambda database: _connections(database.stats()),
        labels=("pool", "state"),
    ),
    histogram(
        "db_pool_wait_seconds",
        "Time to get a connection from a pool.",
        lambda database: Histograms.of({name: waits.seconds for name, waits in database.waits().items()}),
        labels=("pool",),
    ),
)


@dataclass(frozen=True, slots=True)
class PubSub:
    """The parts of a process that send, receive and measure hints."""

    notifier: Notifier
    listener: Listener
    probe: NotifyProbe


PUBSUB: tuple[Family[PubSub], ...] = (
    counter(
        "pubsub_messages_total",
        "Hints by channel; a replica also receives its own hints.",
        lambda pubsub: _messages(pubsub),
        labels=("channel", "direction"),
        known=every(dict.fromkeys(CHANNELS.values()), ("sent", "received")),
    ),
    counter(
        "pubsub_bytes_total",
        "Size of notifications, counted in characters, not in bytes.",
        lambda pubsub: {
            "sent": pubsub.notifier.stats().sent_bytes,
            "received": pubsub.listener.stats().received_bytes,
        },
        labels=("direction",),
    ),
    counter(
        "pubsub_failed_total",
        "Hints that could not be sent; pollers find the changes instead.",
        lambda pubsub: pubsub.notifier.stats().failed,
    ),
    histogram("notify_batch_size", "Hints sent by one statement.", lambda pubsub: pubsub.notifier.stats().batch_sizes),
    gauge(
        "pubsub_connected",
        "1 while this replica listens for hints.",
        lambda pubsub: float(pubsub.listener.connected),
    ),
    gauge(
        "pubsub_deaf",
        "1 while hints do not come back to this replica although its connections look healthy.",
        lambda pubsub: float(pubsub.probe.deaf),
    ),
    histogram(
        "pubsub_latency_seconds",
        "Round-trip time of a hint through the database, measured every minute.",
        lambda pubsub: pubsub.probe.latencies,
    ),
)

LAG: tuple[Family[LagMonitor], ...] = (
    histogram(
        "event_loop_lag_seconds",
        "Delay of the event loop's wake-ups, measured four times a second.",
        lambda lag: lag.measured,
    ),
)

PRESENCE: tuple[Family[Presence], ...] = (
    gauge(
        "replicas",
        "Replicas that this one knows, including itself; aggregate with max.",
        lambda presence: presence.known(),
        labels=("state",),
        known=(ReplicaState.ALIVE, ReplicaState.STOPPING),
    ),
    gauge(
        "presence_held",
        "1 while this replica may take chats and commit: it holds its lock and its heartbeat is fresh.",
        lambda presence: float(presence.held),
    ),
)


@dataclass(frozen=True, slots=True)
class Build:
    version: str
    schema: int


BUILD: tuple[Family[Build], ...] = (
    gauge(
        "build_info",
        "Always 1; the labels are the running version and the schema that it needs.",
        lambda build: {(build.version, build.schema): 1},
        labels=("version", "schema"),
    ),
)


def _connections(pools: dict[str, PoolStats]) -> dict[tuple[str, str], int]:
    found = {}
    for name, pool in pools.items():
        found[name, "in_use"] = pool.size - pool.idle
        found[name, "idle"] = pool.idle
        found[name, "unopened"] = pool.maximum - pool.size
    return found


def _messages(pubsub: PubSub) -> dict[tuple[str, str], int]:
    sent = {(channel, "sent"): count for channel, count in pubsub.notifier.stats().sent_by_channel.items()}
    heard = {(channel, "received"): count for channel, count in pubsub.listener.stats().received.items()}
    return sent | heard
