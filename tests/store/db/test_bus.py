"""Hints in one process: their receivers, and their encoding in notifications."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.store.db import pubsub
from rookery.store.db.hints import (
    CHANNELS,
    AccessHint,
    ChatHint,
    ConfigHint,
    Hint,
    MiscHint,
    OwnershipHint,
    WatchHint,
    WatchKind,
)
from rookery.store.db.pubsub import Bus

CHAT = uuid4()


def chat_hint(version: int, chat_id: UUID = CHAT) -> ChatHint:
    return ChatHint(
        chat_id=chat_id,
        snapshot_version=version,
        history_version=1,
        queue_version=1,
        retry_state_version=1,
        generation_attempt=0,
        status="running",
        archived=False,
        worker_id=None,
        runner_id=None,
    )


def misc(topic: str, size: int = 0) -> MiscHint:
    return MiscHint(topic=topic, data={"filler": "x" * size})


# The bus.


@pytest.mark.parametrize(
    ("hint", "key"),
    [
        (chat_hint(1), CHAT),
        (OwnershipHint(chat_id=CHAT, snapshot_version=1), CHAT),
        (WatchHint(user_id=UUID(int=1), kind=WatchKind.CREATED, chat_id=CHAT, snapshot_version=1), UUID(int=1)),
        (
            WatchHint(
                user_id=UUID(int=1), kind=WatchKind.DELETED, chat_id=CHAT, snapshot_version=1, users=(UUID(int=2),)
            ),
            UUID(int=2),
        ),
        (ConfigHint(kind="model"), "model"),
        (AccessHint(kind="token"), "token"),
        (misc("replica"), "replica"),
    ],
)
def test_a_hint_reaches_only_subscribers_of_its_kind_or_key(hint: Hint, key: UUID | str) -> None:
    bus = Bus()
    of_kind, of_key, of_other_key, of_other_kind = list[Hint](), list[Hint](), list[Hint](), list[Hint]()
    bus.subscribe(type(hint), of_kind.append)
    bus.subscribe(type(hint), of_key.append, key=key)
    bus.subscribe(type(hint), of_other_key.append, key=uuid4())
    for kind in CHANNELS:
        if kind is not type(hint):
            bus.subscribe(kind, of_other_kind.append)
            bus.subscribe(kind, of_other_kind.append, key=key)

    bus.dispatch(hint)

    assert of_kind == of_key == [hint]
    assert of_other_key == of_other_kind == []


def test_a_user_named_twice_in_a_hint_hears_it_once() -> None:
    bus, heard, user = Bus(), list[Hint](), uuid4()
    bus.subscribe(WatchHint, heard.append, key=user)

    bus.dispatch(WatchHint(user_id=user, kind=WatchKind.DELETED, chat_id=CHAT, snapshot_version=1, users=(user, user)))

    assert len(heard) == 1


def test_a_failing_subscriber_is_logged_and_does_not_hurt_the_others(caplog: pytest.LogCaptureFixture) -> None:
    bus, heard = Bus(), list[Hint]()

    def fail(_: Hint) -> None:
        raise RuntimeError("broken subscriber")

    bus.subscribe(ChatHint, fail)
    bus.subscribe(ChatHint, heard.append)
    bus.dispatch(chat_hint(1))

    assert heard == [chat_hint(1)]
    assert "hint_callback_failed" in caplog.messages


def test_a_subscriber_may_leave_and_others_come_while_a_hint_is_handed_out() -> None:
    bus, heard = Bus(), list[str]()

    def leave(_: Hint) -> None:
        heard.append("leaver")
        subscription.close()
        bus.subscribe(ChatHint, lambda _: heard.append("late"), key=CHAT)

    subscription = bus.subscribe(ChatHint, leave, key=CHAT)
    bus.subscribe(ChatHint, lambda _: heard.append("stayer"), key=CHAT)

    bus.dispatch(chat_hint(1))
    assert heard == ["leaver", "stayer"]

    bus.dispatch(chat_hint(2))
    assert heard[2:] == ["stayer", "late"]


def test_closed_subscriptions_leave_nothing_behind() -> None:
    bus = Bus()
    with bus.on_resync(lambda: None), bus.subscribe(ChatHint, lambda _: None, key=CHAT) as subscription:
        assert bus.stats() == {"resync": 1, "ChatHint": 1}
        subscription.close()
    subscription.close()

    assert bus.stats() == {"resync": 0}


def test_a_hint_costs_the_same_among_ten_thousand_other_chats() -> None:
    bus, called = Bus(), 0

    def call(_: Hint) -> None:
        nonlocal called
        called += 1

    for _ in range(10_000):
        bus.subscribe(ChatHint, call, key=uuid4())
    bus.subscribe(ChatHint, call, key=CHAT)

    bus.dispatch(chat_hint(1))

    assert called == 1


# Payloads.


@given(st.lists(st.integers(0, 3000), max_size=40))
def test_payloads_stay_below_the_limit_and_keep_every_hint_in_order(sizes: list[int]) -> None:
    hints = [misc(f"t{number}", size) for number, size in enumerate(sizes)]

    payloads = list(pubsub.split_payloads([msgspec.json.encode(hint) for hint in hints]))

    assert all(0 < len(payload.encode()) <= pubsub.MAX_PAYLOAD_BYTES for payload in payloads)
    decoded = [pubsub.decode("rookery_misc", payload) for payload in payloads]
    assert [hint for found, _ in decoded for hint in found] == hints
    assert all(ignored == 0 for _, ignored in decoded)


@pytest.mark.parametrize(("over", "payloads"), [(0, 1), (1, 2)])
def test_a_payload_is_filled_to_the_last_byte_and_no_further(over: int, payloads: int) -> None:
    first = b'"' + b"x" * 3000 + b'"'
    rest = pubsub.MAX_PAYLOAD_BYTES - len(first) - len(b"[,]") + over
    second = b'"' + b"y" * (rest - 2) + b'"'

    made = list(pubsub.split_payloads([first, second]))

    assert len(made) == payloads
    assert max(len(payload) for payload in made) == (pubsub.MAX_PAYLOAD_BYTES if over == 0 else rest + 2)


def test_the_longest_hint_that_fits_alone_is_one_payload() -> None:
    room = pubsub.MAX_PAYLOAD_BYTES - 2
    exact = b'"' + b"x" * (room - 2) + b'"'

    payloads = list(pubsub.split_payloads([exact, b"1", b"2"]))

    assert [len(payload) for payload in payloads] == [pubsub.MAX_PAYLOAD_BYTES, 5]


@pytest.mark.parametrize(
    ("channel", "payload", "found", "ignored"),
    [
        ("rookery_config", '[{"v":1,"kind":"model","id":null,"colour":"blue"}]', 1, 0),
        ("rookery_config", '[{"v":2,"kind":"model","id":null},{"v":1,"kind":"mcp"}]', 1, 1),
        ("rookery_config", '[{"v":1},7,null,{"v":1,"kind":"mcp"}]', 1, 3),
        ("rookery_config", '{"v":1,"kind":"model"}', 0, 1),
        ("rookery_config", "", 0, 1),
        ("rookery_config", "[[[", 0, 1),
        ("rookery_config", "[" * 7900, 0, 1),
        ("rookery_config", "\x01\xff garbage", 0, 1),
        ("rookery_owner", '[{"user_id":"x","kind":"created","chat_id":"y","snapshot_version":1}]', 0, 1),
        ("rookery_unknown", "[]", 0, 1),
    ],
)
def test_invalid_payloads_are_ignored_and_counted(channel: str, payload: str, found: int, ignored: int) -> None:
    hints, left_out = pubsub.decode(channel, payload)

    assert (len(hints), left_out) == (found, ignored)
