"""What is counted about streams to clients, and about the links between replicas that feed them."""

from __future__ import annotations

from rookery.metrics.families import Family, counter, gauge
from rookery.stream.errors import CloseCode
from rookery.stream.relay.service import Relay
from rookery.stream.service import Streams

STREAMS: tuple[Family[Streams], ...] = (
    gauge("streams_open", "Clients that follow a chat or their list of chats.", lambda streams: len(streams.sessions)),
    counter(
        "stream_frames_total",
        "Frames sent to clients; one holds one event or several.",
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
        "Clients that were given up because they read too slowly.",
        lambda streams: streams.sessions.stats.slow,
    ),
    counter("stream_syncs_total", "Reads of chats for streams.", lambda streams: streams.reader.stats().reads),
    counter(
        "stream_sync_shared_total",
        "Reads that were spared because another viewer of the same chat read the same.",
        lambda streams: streams.reader.stats().shared,
    ),
    counter(
        "stream_resets_total",
        "Times a client was told to forget what it had.",
        lambda streams: streams.loop_stats.resets,
        labels=("reason",),
        known=("first", "resync", "cut", "rebase", "lagged"),
    ),
    counter("part_gaps_total", "Holes in live parts that a stream noticed.", lambda streams: streams.loop_stats.gaps),
)

RELAY: tuple[Family[Relay], ...] = (
    gauge(
        "relay_links",
        "Open links to other replicas, by who dialed.",
        lambda relay: {"dialed": len(relay.hub.links()), "served": relay.endpoint.stats.links if relay.endpoint else 0},
        labels=("side",),
    ),
    counter("relay_dials_total", "Tries to reach another replica.", lambda relay: relay.hub.stats.dials),
    counter(
        "relay_failures_total",
        "Other replicas that could not be reached, and links that were lost.",
        lambda relay: relay.hub.stats.failed,
    ),
    counter(
        "relay_bytes_total",
        "Bytes of live parts that crossed between replicas.",
        lambda relay: {
            "received": relay.hub.stats.received_bytes,
            "sent": relay.endpoint.stats.sent_bytes if relay.endpoint else 0,
        },
        labels=("direction",),
    ),
    counter(
        "relay_protocol_mismatch_total",
        "Links that were given up because the other replica speaks another protocol.",
        lambda relay: (
            relay.hub.stats.protocol_mismatches + (relay.endpoint.stats.protocol_mismatches if relay.endpoint else 0)
        ),
    ),
)
