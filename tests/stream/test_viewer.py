"""The rules of the viewer, without a database: the effects of hints, and the accepted parts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import ChatId
from rookery.live.deltas import PartEvent
from rookery.live.part_buffer import EpisodeKey
from rookery.store.db.hints import ChatHint
from rookery.stream.snapshots import Batch, Snapshot
from rookery.stream.viewer import ClientView, HintEffect, Step, Target, ViewStats

CHAT = ChatId(UUID(int=1))
HERE, THERE = UUID(int=2), UUID(int=3)
AT = datetime(2030, 1, 1, tzinfo=UTC)


def chat(**fields: Any) -> Chat:
    base = Chat(
        id=CHAT,
        owner_id=UUID(int=4),
        parent_chat_id=None,
        root_chat_id=None,
        status="running",
        archived=False,
        worker_id=HERE,
        runner_id=UUID(int=5),
        last_error=None,
        retry_state=None,
        requires_action_deadline_at=None,
        compaction_requested_at=None,
        compaction_resume=False,
        runnable_since=AT,
        snapshot_version=10,
        history_version=8,
        queue_version=4,
        retry_state_version=0,
        generation_attempt=1,
        queue_len=0,
        last_model_config_id=UUID(int=6),
        last_reasoning_effort=None,
        created_at=AT,
        updated_at=AT,
        leased=True,
    )
    return replace(base, **fields)


def hint(**fields: Any) -> ChatHint:
    row = chat()
    names = set(ChatHint.__struct_fields__) - {"v", "gone", "chat_id"}
    values = {"chat_id": CHAT, **{name: getattr(row, name) for name in names}, "snapshot_version": 11}
    return ChatHint(**{**values, **fields})


def loop_at(row: Chat | None = None, **options: Any) -> ClientView:
    loop = ClientView(CHAT, tail=200, stats=ViewStats(), **{"shows_parts": True, **options})
    loop.apply(Snapshot(row or chat(), Batch((), 5)), is_first=True)
    return loop


def told(loop: ClientView, row: Chat, **options: Any) -> list[tuple[str, str | None]]:
    """Return the types of the events, with the reason if there is one."""
    events = [msgspec.json.decode(each) for each in loop.apply(Snapshot(row, **options))]
    return [(event["type"], event.get("reason")) for event in events]


@pytest.mark.parametrize(
    ("fields", "consequence"),
    [
        ({}, HintEffect.IGNORE),
        ({"gone": True}, HintEffect.GONE),
        ({"gone": True, "snapshot_version": 0}, HintEffect.GONE),
        ({"snapshot_version": 10, "history_version": 99}, HintEffect.IGNORE),
        ({"snapshot_version": 9, "status": "waiting"}, HintEffect.IGNORE),
        ({"history_version": 11}, HintEffect.READ),
        ({"history_version": 7}, HintEffect.IGNORE),
        ({"queue_version": 11}, HintEffect.READ),
        ({"queue_version": 3}, HintEffect.IGNORE),
        ({"retry_state_version": 11}, HintEffect.READ),
        ({"status": "waiting"}, HintEffect.READ),
        ({"archived": True}, HintEffect.READ),
        ({"worker_id": THERE}, HintEffect.MOVED),
        ({"worker_id": None}, HintEffect.MOVED),
        ({"generation_attempt": 2}, HintEffect.MOVED),
        ({"generation_attempt": 2, "snapshot_version": 10}, HintEffect.IGNORE),
        ({"generation_attempt": 2, "history_version": 11}, HintEffect.READ),
        ({"generation_attempt": 2, "retry_state_version": 11}, HintEffect.READ),
        ({"worker_id": THERE, "status": "waiting"}, HintEffect.READ),
        ({"runner_id": UUID(int=9)}, HintEffect.IGNORE),
    ],
)
def test_hint_is_worth_a_read_only_when_it_tells_something_new(fields: dict[str, Any], consequence: HintEffect) -> None:
    assert loop_at().effect_of(hint(**fields)) is consequence


def test_late_hint_is_older_than_one_that_brought_nothing_new() -> None:
    loop = loop_at()

    newest = loop.effect_of(hint(snapshot_version=13))
    late = loop.effect_of(hint(snapshot_version=12, status="waiting"))
    next_one = loop.effect_of(hint(snapshot_version=14, status="waiting"))

    assert (newest, late, next_one) == (HintEffect.IGNORE, HintEffect.IGNORE, HintEffect.READ)


def test_hint_of_an_error_is_looked_at_because_errors_differ() -> None:
    loop = loop_at(chat(status="error", last_error="{}"))

    assert loop.effect_of(hint(snapshot_version=13, status="error")) is HintEffect.READ


@pytest.mark.parametrize("retry_state", [None, "{}"])
@pytest.mark.parametrize("shows_parts", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"generation_attempt": 2},
        {"worker_id": THERE},
        {"worker_id": None},
        {"generation_attempt": 2, "worker_id": THERE},
    ],
)
def test_hint_of_another_owner_or_attempt_says_what_a_read_would(
    fields: dict[str, Any], shows_parts: bool, retry_state: str | None
) -> None:
    row = chat(retry_state=retry_state)
    by_hint, by_read = loop_at(row, shows_parts=shows_parts), loop_at(row, shows_parts=shows_parts)

    assert by_hint.effect_of(hint(**fields)) is HintEffect.MOVED
    moved = by_hint.move(hint(**fields))
    read = by_read.apply(Snapshot(replace(row, snapshot_version=11, **fields)))

    assert moved == read
    assert all(getattr(by_hint, name) == getattr(by_read, name) for name in ClientView.__slots__ if name != "_stats")


def test_older_snapshot_says_nothing() -> None:
    assert told(loop_at(), chat(snapshot_version=10, status="waiting")) == []


def test_snapshot_without_news_is_not_announced() -> None:
    loop = loop_at()

    assert told(loop, chat(snapshot_version=12, runner_id=UUID(int=7))) == []
    assert loop.snapshot_version == 12


def test_other_owner_changes_the_target_and_tells_nothing() -> None:
    loop = loop_at()

    assert told(loop, chat(snapshot_version=12, worker_id=THERE)) == []
    assert loop.target == Target(THERE, EpisodeKey(CHAT, 8, 1))


@pytest.mark.parametrize(
    ("fields", "reason", "has_target"),
    [
        ({"generation_attempt": 2}, "attempt", True),
        ({"history_version": 12, "generation_attempt": 1}, "history", True),
        ({"history_version": 12, "generation_attempt": 0}, "history", False),
        ({"history_version": 12, "generation_attempt": 0, "status": "waiting"}, "history", False),
        ({"retry_state": "{}", "retry_state_version": 12}, "retry", False),
        ({"status": "waiting"}, "ended", False),
        ({"status": "error", "last_error": "{}"}, "ended", False),
        ({"status": "interrupting"}, None, True),
        ({"worker_id": None}, None, False),
    ],
)
def test_preview_is_emptied_for_a_reason(fields: dict[str, Any], reason: str | None, has_target: bool) -> None:
    loop = loop_at()
    loop.accept(parts(1, 2), [])

    events = told(loop, chat(snapshot_version=12, **fields), batch=Batch((), 5))

    assert [why for kind, why in events if kind == "preview_reset"] == ([reason] if reason else [])
    assert (loop.target is not None) is has_target
    assert loop.last_seq == (0 if reason else 2)


def test_client_without_parts_follows_no_episode() -> None:
    loop = loop_at(shows_parts=False)

    assert loop.target is None
    assert told(loop, chat(snapshot_version=12, generation_attempt=2)) == []


def test_parts_that_follow_each_other_are_shown() -> None:
    loop = loop_at()
    out: list[PartEvent] = []

    assert loop.accept([part(1), part(2), part(5, n=3)], out) is Step.ON

    assert [seq for seq, _, _ in out] == [1, 2, 5]
    assert loop.last_seq == 5


def test_parts_that_were_shown_are_dropped() -> None:
    loop = loop_at()
    out: list[PartEvent] = []
    loop.accept(parts(1, 2, 3), [])

    assert loop.accept([part(2), part(3, n=3), part(4)], out) is Step.ON

    assert [seq for seq, _, _ in out] == [4]


def test_part_merged_across_the_position_starts_the_preview_over() -> None:
    loop = loop_at()
    loop.accept(parts(1, 2), [])

    assert loop.accept([part(4, n=3)], []) is Step.REBASE
    assert msgspec.json.decode(loop.restart("rebase")) == {
        "type": "preview_reset",
        "history_version": 8,
        "generation_attempt": 1,
        "reason": "rebase",
    }
    assert loop.last_seq == 0


def test_first_gap_is_asked_for_again_the_second_starts_over_and_the_third_gives_up() -> None:
    loop = loop_at()
    loop.accept(parts(1, 2), [])

    steps = [loop.accept([part(seq)], []) for seq in (4, 5, 6)]

    assert steps == [Step.AGAIN, Step.REBASE, Step.STOP]
    assert loop.last_seq == 2


def test_truncation_is_said_once_per_episode() -> None:
    loop = loop_at()

    said = [loop.truncate(), loop.truncate()]
    told(loop, chat(snapshot_version=12, generation_attempt=2))

    assert said[0] is not None
    assert said[1] is None
    assert loop.truncate() is not None


def part(seq: int, n: int = 1) -> PartEvent:
    return seq, n, b"{}"


def parts(*seqs: int) -> list[PartEvent]:
    return [part(seq) for seq in seqs]
