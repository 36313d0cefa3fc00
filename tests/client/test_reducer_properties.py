"""After any complete synchronization, however it was split or cut, the client shows the state of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rookery.client import reducer
from rookery.client.reducer import Client

Event = dict[str, Any]

# Changes of a chat between two synchronizations.
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from(["user", "assistant", "tool"])),
        st.tuples(st.just("cut"), st.integers(0, 5)),
        st.tuples(st.just("queue"), st.integers(0, 3)),
        st.tuples(st.just("status"), st.sampled_from(["waiting", "running", "error", "requires_action"])),
    ),
    max_size=5,
)
# The delivery of a synchronization: the sizes of its frames, and the number of frames before the connection is lost.
DELIVERY = st.tuples(st.lists(st.integers(1, 4), max_size=4), st.none() | st.integers(0, 6), st.integers(0, 3))


@dataclass
class Server:
    """The stored chat, and the state of one connection. Ids only grow, as in the database."""

    messages: dict[int, str] = field(default_factory=dict)
    queue: list[Event] = field(default_factory=list)
    status: str = "waiting"
    version: int = 0
    next_id: int = 1
    sent: tuple[int, ...] | None = None  # the messages sent on this connection

    def change(self, kind: str, how: Any) -> None:
        self.version += 1
        match kind:
            case "say":
                self.messages[self.next_id] = how
                self.next_id += 1
            case "cut":
                for number in list(self.messages)[how:]:
                    del self.messages[number]
            case "queue":
                self.queue = [{"id": number} for number in range(how)]
            case "status":
                self.status = how

    def connect(self, after_id: int) -> list[Event]:
        held = tuple(number for number in self.messages if number <= after_id) if after_id in self.messages else None
        self.sent = held
        return [{"type": "hello", "protocol": 1}]

    def synchronize(self) -> list[Event]:
        events: list[Event] = []
        held = self.sent
        if held is None or any(number not in self.messages for number in held):
            events.append({"type": "history_reset", "count": len(self.messages), "has_more": False})
            held = ()
        events += [
            {"type": "message", "message": {"id": number, "role": role}}
            for number, role in self.messages.items()
            if number not in held
        ]
        self.sent = tuple(self.messages)
        events.append({"type": "queue_update", "queued_messages": list(self.queue)})
        events.append({"type": "status", "status": self.status, "archived": False})
        if self.status == "error":
            events.append({"type": "error", "error": {"message": "m"}})
        if self.status == "requires_action":
            events.append({"type": "action_required", "tool_calls": []})
        last = max(self.messages, default=0)
        return [*events, {"type": "synced", "snapshot_version": self.version, "last_message_id": last}]


def parts(count: int) -> list[Event]:
    return [{"type": "message_part", "seq": n + 1, "role": "assistant", "part": {"text": "x"}} for n in range(count)]


def frames(events: list[Event], sizes: list[int]) -> list[list[Event]]:
    cut: list[list[Event]] = []
    for size in sizes:
        cut.append(events[:size])
        events = events[size:]
    return [*cut, events]


def agrees(client: Client, server: Server) -> bool:
    view = client.view
    return (
        {number: message["role"] for number, message in view.messages.items()} == server.messages
        and list(view.messages) == sorted(view.messages)
        and view.queue == tuple(server.queue)
        and view.status == server.status
        and (view.error is not None) == (server.status == "error")
        and (view.action is not None) == (server.status == "requires_action")
        and client.pending == ()
    )


@given(st.lists(st.tuples(CHANGES, DELIVERY), max_size=8))
def test_client_converges_over_any_number_of_cut_connections(story: list[tuple[list[Any], Any]]) -> None:
    server, client, is_connected = Server(), Client(), False

    for changes, (sizes, broken_after, live) in story:
        for kind, how in changes:
            server.change(kind, how)
        greeting = [] if is_connected else server.connect(client.view.last_message_id)
        delivered = frames([*greeting, *server.synchronize()], sizes)[:broken_after]
        is_connected = broken_after is None
        before = client.view
        for frame in delivered:
            client = reducer.reduce(client, frame)
        if any(event["type"] == "synced" for frame in delivered for event in frame):
            assert agrees(client, server)
            client = reducer.reduce(client, parts(live))
            assert len(client.view.preview) >= live
        else:
            assert client.view.messages == before.messages, "half a change was shown"

    client = reducer.reduce(client, [*server.connect(client.view.last_message_id), *server.synchronize()])

    assert agrees(client, server)
    assert client.view.preview == ()


@given(st.lists(st.integers(1, 5), max_size=6), CHANGES)
def test_frames_do_not_matter(sizes: list[int], changes: list[Any]) -> None:
    server = Server()
    for kind, how in changes:
        server.change(kind, how)
    events = [*server.connect(0), *server.synchronize(), *parts(2)]

    split = Client()
    for frame in frames(events, sizes):
        split = reducer.reduce(split, frame)

    assert split == reducer.reduce(Client(), events)
