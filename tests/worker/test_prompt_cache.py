"""Prompt builders between steps, and the rows a step is assessed by."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import compaction
from rookery.domain.chat.messages import MessageId, Role, StepFigures
from rookery.domain.chat.parts import Text
from rookery.domain.chat.prompt import PromptBuilder, PromptRow
from rookery.store.chats.step_reads import LoadedHistory
from rookery.worker.prepare import assessed_rows
from rookery.worker.prompt_cache import PromptCache
from tests.domain.chat.prompt_rows import CHAT, CLAUDE, EVERYTHING, WRITERS, boundary, row, system, user

ROOM = 100_000
HALF = 40_000
ONE, TWO, THREE = UUID(int=1), UUID(int=2), UUID(int=3)

FIGURES = st.sampled_from(
    [
        StepFigures(),
        StepFigures(),
        StepFigures(request_id="r"),
        StepFigures(input_tokens=90),
        StepFigures(total_tokens=5),
    ]
)
ROWS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), FIGURES), max_size=12)


def builder() -> PromptBuilder:
    return PromptBuilder(WRITERS[CLAUDE], EVERYTHING)


def test_builder_is_taken_by_one_step_only() -> None:
    cache, kept = PromptCache(), builder()
    cache.keep(ONE, kept, history_bytes=10)

    assert cache.take(ONE) is kept
    assert cache.take(ONE) is None
    assert cache.entries.size_bytes == 0


def test_builders_used_last_are_kept_within_the_room_there_is() -> None:
    cache = PromptCache(max_bytes=ROOM)
    for chat_id in (ONE, TWO):
        cache.keep(chat_id, builder(), history_bytes=HALF)
    first = cache.take(ONE)
    assert first is not None
    cache.keep(ONE, first, history_bytes=HALF + 100)

    cache.keep(THREE, builder(), history_bytes=HALF)

    assert cache.entries.size_bytes <= ROOM
    assert [cache.take(chat_id) is not None for chat_id in (ONE, TWO, THREE)] == [True, False, True]


def test_builder_larger_than_all_room_is_not_kept() -> None:
    cache = PromptCache(max_bytes=ROOM)
    cache.keep(ONE, builder(), history_bytes=HALF)

    cache.keep(ONE, builder(), history_bytes=ROOM)

    assert len(cache.entries) == 0


@given(
    before=st.integers(0, 2),
    has_boundary=st.booleans(),
    after=ROWS,
    threshold=st.sampled_from([0, 50, 100]),
    limit=st.sampled_from([None, 20, 100, 1000]),
)
def test_rows_between_those_that_count_make_no_difference_to_the_assessment(
    before: int, has_boundary: bool, after: list[tuple[str, StepFigures]], threshold: int, limit: int | None
) -> None:
    rows: list[PromptRow] = [system(number + 1, "Be brief.") for number in range(before)]
    if has_boundary:
        rows.append(boundary(10, "What was said so far."))
    for number, (role, figures) in enumerate(after, start=11):
        rows.append(
            user(number, "Go on.") if role == "user" else row(number, Role(role), (Text("Yes."),), figures=figures)
        )
    history = LoadedHistory(
        chat_id=CHAT,
        history_version=1,
        rows=tuple(rows),
        prompt=tuple(rows),
        boundary_id=MessageId(10) if has_boundary else None,
        size_bytes=0,
    )
    asked: dict[str, Any] = {"files": {}, "threshold_percent": threshold, "limit_tokens": limit}

    assert compaction.assess(assessed_rows(history), **asked) == compaction.assess(rows, **asked)


def test_long_chat_is_assessed_by_a_few_rows() -> None:
    rows = [user(number, "Go on.") for number in range(1, 1000)]
    rows[990] = row(991, Role.ASSISTANT, (Text("Yes."),), figures=StepFigures(input_tokens=5))
    history = LoadedHistory(
        chat_id=CHAT, history_version=1, rows=tuple(rows), prompt=tuple(rows), boundary_id=None, size_bytes=0
    )

    assert assessed_rows(history) == tuple(rows[990:])
