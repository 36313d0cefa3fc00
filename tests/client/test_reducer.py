"""The reducer from events to the view of a client."""

from __future__ import annotations

from typing import Any

from rookery.client import reducer
from rookery.client.reducer import Client

Event = dict[str, Any]


def synced(version: int = 1, last: int = 0) -> Event:
    return {
        "type": "synced",
        "snapshot_version": version,
        "history_version": version,
        "queue_version": 0,
        "last_message_id": last,
    }


def message(number: int, text: str = "hi") -> Event:
    return {"type": "message", "message": {"id": number, "role": "user", "content": [{"type": "text", "text": text}]}}


def part(text: str) -> Event:
    return {"type": "message_part", "seq": 1, "role": "assistant", "part": {"type": "text", "text": text}}


def reset(reason: str = "attempt") -> Event:
    return {"type": "preview_reset", "history_version": 1, "generation_attempt": 1, "reason": reason}


HISTORY_RESET: Event = {"type": "history_reset", "count": 1, "has_more": False, "first_message_id": 1}
RETRY: Event = {"type": "retry", "retry": {"attempt": 1}}


def after(*frames: list[Event]) -> Client:
    client = Client()
    for frame in frames:
        client = reducer.reduce(client, frame)
    return client


def test_nothing_is_shown_before_the_change_is_complete() -> None:
    client = after([HISTORY_RESET, message(1), {"type": "status", "status": "running", "archived": False}])

    assert client.view == Client().view
    assert list(reducer.reduce(client, [synced(last=1)]).view.messages) == [1]


def test_change_may_be_split_over_frames() -> None:
    view = after([HISTORY_RESET], [message(1)], [message(2)], [synced(last=2)]).view

    assert list(view.messages) == [1, 2]
    assert view.last_message_id == 2


def test_second_reset_before_the_end_starts_the_collection_over() -> None:
    view = after([HISTORY_RESET, message(1), HISTORY_RESET, message(2), synced()]).view

    assert list(view.messages) == [2]


def test_known_message_is_a_duplicate() -> None:
    view = after([message(1, "first"), synced()], [message(1, "again"), synced(2)]).view

    assert view.messages[1]["content"][0]["text"] == "first"


def test_messages_are_in_order_of_their_ids() -> None:
    assert list(after([message(3), message(1), synced()]).view.messages) == [1, 3]


def test_parts_are_shown_at_once_and_clear_the_banner() -> None:
    view = after([RETRY, synced()], [part("a"), part("b")]).view

    assert [event["part"]["text"] for event in view.preview] == ["a", "b"]
    assert view.retry is None


def test_failed_attempt_empties_the_preview_and_leaves_its_banner() -> None:
    view = after([part("lost")], [RETRY, reset("retry"), synced()]).view

    assert view.preview == ()
    assert view.retry == {"attempt": 1}


def test_null_clears_the_banner() -> None:
    view = after([RETRY, synced()], [{"type": "retry", "retry": None}, reset(), synced(2)]).view

    assert view.retry is None


def test_preview_that_starts_over_outside_of_a_change_is_emptied_at_once() -> None:
    view = after([part("a")], [reset("lagged"), part("ab")]).view

    assert [event["part"]["text"] for event in view.preview] == ["ab"]


def test_truncated_preview_is_marked_until_the_next_one() -> None:
    client = after([{"type": "preview_truncated"}])

    assert client.view.is_truncated
    assert not reducer.reduce(client, [reset(), synced()]).view.is_truncated


def test_other_status_clears_the_error() -> None:
    failed = after(
        [
            {"type": "status", "status": "error", "archived": False},
            {"type": "error", "error": {"message": "m"}},
            synced(),
        ]
    )
    recovered = reducer.reduce(failed, [{"type": "status", "status": "running", "archived": False}, synced(2)])

    assert failed.view.error == {"message": "m"}
    assert recovered.view.error is None


def test_action_lasts_as_long_as_its_status() -> None:
    action: Event = {"type": "action_required", "tool_calls": [], "deadline_at": None}
    asked = after([{"type": "status", "status": "requires_action", "archived": False}, action, synced()])
    answered = reducer.reduce(asked, [{"type": "status", "status": "running", "archived": False}, synced(2)])

    assert asked.view.action == action
    assert answered.view.action is None


def test_new_connection_drops_preview_banner_and_what_was_not_finished() -> None:
    before = after(
        [message(1), synced(last=1)], [RETRY, synced(2, last=1)], [part("half")], [HISTORY_RESET, message(9)]
    )

    client = reducer.reduce(before, [{"type": "hello", "protocol": 1}])

    assert client.pending == ()
    assert (client.view.preview, client.view.retry, list(client.view.messages)) == ((), None, [1])
    assert client.view.last_message_id == 1


def test_signs_of_life_change_nothing() -> None:
    client = after([message(1), synced()])

    for kind in ("heartbeat", "goodbye", "pong", "debug_update", "something new"):
        assert reducer.reduce(client, [{"type": kind}, synced()]).view == client.view
