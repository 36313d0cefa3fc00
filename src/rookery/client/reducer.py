"""The reducer: applies the events of a chat's stream to the view of a client. Every client has to follow these rules.

Pure: the same view and events give the same view. All events up to and including `synced` are one change; only live
parts are shown immediately. If the connection is lost within a change, its events are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

Event: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class View:
    """The view of a chat. `messages` are by id, in order; `preview` holds live parts of the running step.

    `last_message_id` is the value to send as `after_id` when connecting again.
    """

    messages: Mapping[int, Event] = field(default_factory=dict)
    queue: tuple[Event, ...] = ()
    status: str | None = None
    archived: bool = False
    error: Event | None = None
    retry: Event | None = None
    action: Event | None = None
    preview: tuple[Event, ...] = ()
    is_truncated: bool = False
    snapshot_version: int = 0
    last_message_id: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """A view, and the change that is being received."""

    view: View = field(default_factory=View)
    pending: tuple[Event, ...] = ()


def connected(client: Client) -> Client:
    """Start a new connection. The preview, the banner and the unfinished change of the old connection are dropped."""
    return Client(replace(client.view, preview=(), retry=None, is_truncated=False))


def reduce(client: Client, events: Iterable[Event]) -> Client:
    """Apply the events of a frame."""
    for event in events:
        client = _take(client, event)
    return client


def _take(client: Client, event: Event) -> Client:
    match event["type"]:
        case "hello":
            return connected(client)
        case "message_part":
            return Client(_with_part(client.view, event), client.pending)
        case "preview_reset" if not client.pending:
            # Outside of a change, the same episode is shown again from its start.
            return Client(_without_preview(client.view), client.pending)
        case "preview_truncated":
            return Client(replace(client.view, is_truncated=True), client.pending)
        case "synced":
            return Client(_committed(client.view, client.pending, event))
        case "heartbeat" | "goodbye" | "pong" | "debug_update" | "disconnected":
            return client
        case _:
            return Client(client.view, (*client.pending, event))


def _with_part(view: View, event: Event) -> View:
    return replace(view, preview=(*view.preview, event), retry=None)


def _without_preview(view: View) -> View:
    # The banner stays. A failed attempt is sent as `retry` and then `preview_reset`; its end is sent as `retry` with
    # null.
    return replace(view, preview=(), is_truncated=False)


def _committed(view: View, pending: Iterable[Event], synced: Event) -> View:
    messages: dict[int, Event] = dict(view.messages)
    for event in pending:
        match event["type"]:
            case "history_reset":
                messages = {}
            case "message":
                messages.setdefault(event["message"]["id"], event["message"])
            case _:
                view = _changed(view, event)
    return replace(
        view,
        messages=MappingProxyType(dict(sorted(messages.items()))),
        snapshot_version=synced["snapshot_version"],
        last_message_id=synced["last_message_id"],
    )


def _changed(view: View, event: Event) -> View:
    match event["type"]:
        case "queue_update":
            return replace(view, queue=tuple(event["queued_messages"]))
        case "status":
            return _with_status(view, event)
        case "error":
            return replace(view, error=event["error"])
        case "action_required":
            return replace(view, action=event)
        case "retry":
            return replace(view, retry=event["retry"])
        case "preview_reset":
            return _without_preview(view)
        case _:
            return view


def _with_status(view: View, event: Event) -> View:
    status = event["status"]
    return replace(
        view,
        status=status,
        archived=event["archived"],
        error=view.error if status == "error" else None,
        action=view.action if status == "requires_action" else None,
    )
