"""Metrics of streams to clients and of links between replicas."""

from __future__ import annotations

from rookery.metrics.families import Family, counter, gauge
from rookery.stream.errors import CloseCode
from rookery.stream.relay.service import Relay
from rookery.stream.service import Streams

STREAMS: tuple[Family[Streams], ...] = (
    gauge(
        "streams_open",
        "Open client streams. Each follows one chat or a list of chats.",
        lambda streams: len(streams.sessions),
    ),
    counter(
        "stream_frames_total",
        "Frames sent to clients; each has one or more events.",
        lambda streams: streams.sessions.stats.sent_frames,
    ),
    counter("stream_bytes_total", "Bytes sent to clients.", lambda streams: streams.sessions.stats.sent_bytes),
    counter(
        "stream_closed_total",
        "Streams that the server ended, by close code.",
        lambda streams: streams.sessions.stats.closed,
        labels=("code",),
        known=map(int, CloseCode),
    ),
    counter(
        "stream_slow_total",
        "Clients that were disconnected because they read too slowly.",
        lambda streams: streams.sessions.stats.slow,
    ),
    counter("stream_syncs_total", "Reads of chats for streams.", lambda streams: streams.reader.stats().reads),
    counter(
        "stream_sync_shared_total",
        "Reads that were shared with another viewer of the same chat.",
        lambda streams: streams.reader.stats().shared,
    ),
    counter(
        "stream_resets_total",
        "Times a client was told to drop its state and load it again.",
        lambda streams: streams.loop_stats.resets,
        labels=("reason",),
        known=("first", "resync", "cut", "rebase", "lagged"),
    ),
    counter("part_gaps_total", "Gaps in live parts that a stream noticed.", lambda streams: streams.loop_stats.gaps),
)

RELAY: tuple[Family[Relay], ...] = (
    gauge(
        "relay_links",
        "Open links to other replicas, by the side that dialed.",
        lambda relay: {"dialed": len(relay.hub.links()), "served": relay.endpoint.stats.links if relay.endpoint else 0},
        labels=("side",),
    ),
    counter("relay_dials_total", "Attempts to reach another replica.", lambda relay: relay.hub.stats.dials),
    counter(
        "relay_failures_total",
        "Failed attempts to reach another replica, and lost links.",
        lambda relay: relay.hub.stats.failed,
    ),
    counter(
        "relay_bytes_total",
        "Bytes of live parts sent between replicas.",
        lambda relay: {
            "received": relay.hub.stats.received_bytes,
            "sent": relay.endpoint.stats.sent_bytes if relay.endpoint else 0,
        },
        labels=("direction",),
    ),
    counter(
        "relay_protocol_mismatch_total",
        "Links that were closed because the other replica has another version of the protocol.",
        lambda relay: (
            relay.hub.stats.protocol_mismatches + (relay.endpoint.stats.protocol_mismatches if relay.endpoint else 0)
        ),
    ),
)
