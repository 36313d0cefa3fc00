"""The part of a chat's rows that a decision reads."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import compaction, history, parts
from rookery.domain.chat.compaction import Source
from rookery.domain.chat.messages import Role, StepFigures, Visibility
from rookery.domain.chat.open_tool_calls import OpenCall
from rookery.domain.chat.parts import CONTENT_VERSION, ToolResult
from rookery.domain.chat.prompt import PromptRow, UnreadableRow
from tests.domain.chat.prompt_rows import AT, assistant, boundary, call, hook, result, row, system, tool, user

CONFIG = UUID(int=11)


def deleted(each: PromptRow) -> PromptRow:
    return msgspec.structs.replace(each, message=msgspec.structs.replace(each.message, deleted=True))


def notice(message_id: int) -> PromptRow:
    """Return a row that only users see."""
    return row(message_id, Role.SYSTEM, (parts.Text("note"),), visibility=Visibility.USER)


def summary(first_id: int, source: Source = Source.AUTOMATIC) -> list[PromptRow]:
    """Return the three rows of a compaction, in the form of `compaction.new_rows`."""
    new = compaction.new_rows(
        "We did things.",
        source=source,
        assessment=compaction.Assessment(
            status=compaction.Status.NEEDED, threshold_percent=70, tokens=1, limit_tokens=1
        ),
        carried=(),
        tool_call_id=f"chat_summarized_{first_id}",
        model_config_id=CONFIG,
        runtime_ms=1,
        at=AT,
    )
    return [
        row(first_id + place, each.role, each.content, visibility=each.visibility, compressed=True)
        for place, each in enumerate(new)
    ]


def ids(view: history.History) -> list[int]:
    return [each.message.id for each in view.turn]


# The turn


def test_turn_starts_behind_the_last_user_message() -> None:
    view = history.read([user(1, "a"), assistant(2, "b"), user(3, "c"), assistant(4, call("x")), tool(5, result("x"))])

    assert ids(view) == [4, 5]
    assert view.last is not None
    assert view.last.message.id == 5
    assert view.steps == 1


def test_rows_for_the_model_only_and_system_rows_are_nobodys_turn() -> None:
    rows = [system(1, "rules"), user(2, "a"), assistant(3, "b"), hook(4, "psst"), notice(5)]

    view = history.read(rows)

    assert ids(view) == [3]
    assert view.ends_in_answer


def test_deleted_and_compressed_rows_are_not_live() -> None:
    rows = [user(1, "a"), assistant(2, "b"), *summary(3), deleted(user(6, "c")), deleted(assistant(7, "d"))]

    view = history.read(rows)

    assert ids(view) == [2]


def test_turn_goes_on_across_a_summary() -> None:
    rows = [user(1, "a"), assistant(2, call("x")), tool(3, result("x")), *summary(4), assistant(7, "b")]

    assert ids(history.read(rows)) == [2, 3, 7]


def test_unanswered_user_message_is_last() -> None:
    view = history.read([assistant(1, "a"), user(2, "b"), hook(3, "psst")])

    assert view.turn == ()
    assert view.last is not None
    assert view.last.message.id == 2
    assert view.ends_in_user_message
    assert not view.ends_in_answer


def test_chat_without_rows_has_an_empty_history() -> None:
    view = history.read([])

    assert view == history.History(turn=(), last=None, open_calls=(), has_compactable=False)
    assert not view.ends_in_answer
    assert not view.ends_in_pause


def test_rows_before_any_user_message_are_a_turn_too() -> None:
    assert ids(history.read([system(1, "rules"), assistant(2, "hello")])) == [2]


def test_pauses_of_the_turn_are_counted() -> None:
    paused = StepFigures(finish_reason="pause")
    rows = [assistant(1, "z", figures=paused), user(2, "a"), assistant(3, "b", figures=paused), assistant(4, "c")]

    assert (history.read(rows).pauses, history.read(rows).ends_in_pause) == (1, False)
    assert (history.read(rows[:3]).pauses, history.read(rows[:3]).ends_in_pause) == (1, True)


# Calls


def test_open_calls_name_their_assistant_row() -> None:
    rows = [user(1, "a"), assistant(2, call("x"), call("y", name="run")), tool(3, result("x"))]

    assert history.read(rows).open_calls == (OpenCall(2, "y", "run"),)


def test_call_stays_open_although_another_row_follows_its_message() -> None:
    rows = [user(1, "a"), assistant(2, call("x")), assistant(3, "an attachment")]

    assert history.read(rows).open_calls == (OpenCall(2, "x", "read_file"),)


def test_calls_of_earlier_turns_are_not_looked_at() -> None:
    assert history.read([user(1, "a"), assistant(2, call("x")), user(3, "b")]).open_calls == ()


def test_result_that_was_deleted_answers_nothing() -> None:
    rows = [user(1, "a"), assistant(2, call("x")), deleted(tool(3, result("x")))]

    assert history.read(rows).open_calls == (OpenCall(2, "x", "read_file"),)


def test_unreadable_row_has_no_calls_and_is_named() -> None:
    view = history.read([user(1, "a"), row(2, Role.ASSISTANT, "[{"), tool(3, result("x"))])

    assert (view.open_calls, view.unreadable) == ((), (2,))


def test_open_calls_are_given_with_their_arguments_in_order() -> None:
    x, y, z = call("x", {"path": "a"}), call("y", {"path": "b"}), call("z", {"path": "c"})
    view = history.read([user(1, "a"), assistant(2, x, "and", y), assistant(3, z)])

    assert view.call_parts(view.open_calls) == (x, y, z)
    assert view.call_parts(view.open_calls[::-1]) == (z, y, x)
    assert view.call_parts(()) == ()


def test_call_in_a_row_with_parts_from_the_future_cannot_be_given() -> None:
    odd = '[{"type": "hologram"}, {"type": "tool-call", "tool_call_id": "x", "tool_name": "run"}]'
    view = history.read([user(1, "a"), row(2, Role.ASSISTANT, odd)])

    with pytest.raises(UnreadableRow) as raised:
        view.call_parts(view.open_calls)
    assert raised.value.message_id == 2


# Results


@pytest.mark.parametrize(
    ("each", "found"),
    [
        (tool(3, result("x", name="propose_plan")), True),
        (tool(3, result("x", name="other")), False),
        (tool(3, ToolResult("x", "propose_plan", is_error=True)), False),
        (deleted(tool(3, result("x", name="propose_plan"))), False),
        (assistant(3, result("x", name="propose_plan")), False),
        (row(3, Role.TOOL, "[{"), False),
        (row(3, Role.TOOL, (result("x", name="propose_plan"),), version=CONTENT_VERSION + 1), False),
    ],
)
def test_success_of_a_tool_is_found_in_the_turn(each: PromptRow, found: bool) -> None:
    view = history.read([user(1, "a"), assistant(2, call("x", name="propose_plan")), each])

    assert view.has_result_of(frozenset({"propose_plan", "ask_user_question"})) is found
    assert not view.has_result_of(frozenset())


def test_success_in_an_earlier_turn_does_not_count() -> None:
    rows = [user(1, "a"), tool(2, result("x", name="propose_plan")), user(3, "b"), assistant(4, "c")]

    assert not history.read(rows).has_result_of({"propose_plan"})


# Compaction


@pytest.mark.parametrize(
    ("rows", "compactable"),
    [
        ([user(1, "a")], False),
        ([user(1, "a"), assistant(2, "b")], True),
        ([user(1, "a"), assistant(2, "b"), user(3, "c")], True),
        ([user(1, "a"), assistant(2, "b"), *summary(3)], False),
        ([user(1, "a"), assistant(2, "b"), *summary(3), user(6, "c")], False),
        ([user(1, "a"), assistant(2, "b"), *summary(3), user(6, "c"), assistant(7, "d"), user(8, "e")], True),
        ([user(1, "a"), assistant(2, "b"), *map(deleted, summary(3)), user(6, "c")], True),
        ([user(1, "a"), deleted(assistant(2, "b"))], False),
        # What the prompt's query gives: the boundary alone of the three.
        ([boundary(3, "summary"), user(6, "c")], False),
    ],
)
def test_an_answer_since_the_newest_summary_can_be_compacted(rows: list[PromptRow], compactable: bool) -> None:
    assert history.read(rows).has_compactable is compactable


def test_compactions_since_the_user_spoke_are_known_by_their_source() -> None:
    rows = [
        user(1, "a"),
        assistant(2, "b"),
        *summary(3, Source.MANUAL),
        user(6, "c"),
        assistant(7, call("x")),
        *summary(8),
        *map(deleted, summary(11)),
        *summary(14, Source.OVERFLOW),
    ]

    assert history.read(rows).compactions == (Source.AUTOMATIC, Source.OVERFLOW)


@pytest.mark.parametrize("content", ["[{", "[]", '[{"type": "tool-call", "tool_call_id": "x", "tool_name": "y"}]'])
def test_compaction_that_cannot_be_read_is_no_answer_to_an_overflow(content: str) -> None:
    rows = [user(1, "a"), row(2, Role.ASSISTANT, content, compressed=True)]

    assert history.read(rows).compactions == (Source.AUTOMATIC,)


@given(st.integers(min_value=0, max_value=6))
def test_older_rows_change_nothing(dropped: int) -> None:
    older = [user(1, "a"), assistant(2, call("x")), *summary(3), user(6, "b"), assistant(7, "c")]
    newer = [user(8, "d"), assistant(9, call("y")), tool(10, result("y")), assistant(11, call("z"))]

    assert history.read(older[dropped:] + newer) == history.read(older + newer)
