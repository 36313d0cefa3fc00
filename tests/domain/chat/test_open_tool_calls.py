from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.errors import ToolResultRejected
from rookery.domain.chat.messages import NewMessage, Role, Visibility
from rookery.domain.chat.open_tool_calls import (
    CallRow,
    CloseReason,
    OpenCall,
    SubmittedResult,
    check_results,
    closure,
    open_calls,
    result_rows,
    select_dynamic,
)
from rookery.domain.chat.parts import CONTENT_VERSION, Part, Text, ToolCall, ToolResult

MODEL = UUID("00000000-0000-0000-0000-000000000001")
USER = UUID("00000000-0000-0000-0000-000000000002")
AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def call(tool_call_id: str, tool_name: str = "read_file", *, provider_executed: bool = False) -> ToolCall:
    return ToolCall(tool_call_id, tool_name, provider_executed=provider_executed)


def result(tool_call_id: str, tool_name: str = "read_file") -> ToolResult:
    return ToolResult(tool_call_id, tool_name, result=Raw(b"{}"))


def rows(*contents: tuple[Role, Sequence[Part] | str]) -> list[CallRow]:
    """Return rows with the ids 1, 2, ... A string is stored content, which may be damaged."""
    return [
        CallRow(index, role, content if isinstance(content, str) else parts.encode(content), CONTENT_VERSION)
        for index, (role, content) in enumerate(contents, start=1)
    ]


def asks(*calls: Part) -> tuple[Role, Sequence[Part]]:
    return Role.ASSISTANT, calls


def answers(*tool_call_ids: str) -> tuple[Role, Sequence[Part]]:
    return Role.TOOL, [result(tool_call_id) for tool_call_id in tool_call_ids]


def ids(calls: Sequence[OpenCall]) -> list[str]:
    return [each.tool_call_id for each in calls]


# Which calls are open


def test_call_is_open_until_a_tool_row_answers_it() -> None:
    assert open_calls(rows(asks(call("a", "run")))) == (OpenCall(1, "a", "run"),)
    assert open_calls(rows(asks(call("a", "run")), answers("a"))) == ()


def test_open_calls_of_the_whole_turn_are_found_in_order() -> None:
    turn = rows(asks(call("a"), call("b")), answers("a"), asks(call("c"), call("d")), answers("c"))

    assert open_calls(turn) == (OpenCall(1, "b", "read_file"), OpenCall(3, "d", "read_file"))


def test_one_tool_row_may_answer_several_calls() -> None:
    assert open_calls(rows(asks(call("a"), call("b"), call("c")), answers("c", "a"))) == (
        OpenCall(1, "b", "read_file"),
    )


def test_provider_executed_call_is_never_open() -> None:
    turn = rows(asks(call("a", provider_executed=True), call("b")))

    assert ids(open_calls(turn)) == ["b"]


def test_result_in_the_same_assistant_row_answers_a_call() -> None:
    assert open_calls(rows(asks(call("a"), result("a")))) == ()
    assert open_calls(rows(asks(result("a"), call("a")))) == ()


def test_result_in_a_later_assistant_row_answers_nothing() -> None:
    assert ids(open_calls(rows(asks(call("a")), asks(result("a"))))) == ["a"]


def test_result_before_its_call_does_not_answer_it() -> None:
    assert ids(open_calls(rows(answers("a"), asks(call("a"))))) == ["a"]


def test_id_that_a_provider_uses_again_is_open_again() -> None:
    turn = rows(asks(call("call_0", "first")), answers("call_0"), asks(call("call_0", "second")))

    assert open_calls(turn) == (OpenCall(3, "call_0", "second"),)


def test_result_for_an_unknown_call_changes_nothing() -> None:
    assert ids(open_calls(rows(asks(call("a")), answers("z")))) == ["a"]


def test_call_in_a_tool_row_is_no_call() -> None:
    assert open_calls(rows((Role.TOOL, [call("a")]))) == ()


def test_other_parts_beside_a_call_do_not_matter() -> None:
    odd = '[{"type": "hologram", "depth": 3}, {"type": "tool-call", "tool_call_id": "a", "tool_name": "run"}]'

    assert open_calls(rows((Role.ASSISTANT, odd))) == (OpenCall(1, "a", "run"),)
    assert open_calls(rows(asks(Text("let me see"), call("a", "run")))) == (OpenCall(1, "a", "run"),)


def test_id_with_characters_that_jsonb_refuses_is_matched_as_it_was_written() -> None:
    turn = rows(asks(call("a\x00b"), call("\ue000")), answers("a\x00b"))

    assert ids(open_calls(turn)) == ["\ue000"]


def test_empty_turn_has_no_open_calls() -> None:
    assert open_calls([]) == ()


DAMAGED = {
    "no JSON": "[{",
    "no list": '{"type": "tool-call", "tool_call_id": "x", "tool_name": "run"}',
    "no object": "[7]",
    "too deep": '[{"type": "tool-call", "args": ' + "[" * 5000 + "]" * 5000 + "}]",
    "call without id": '[{"type": "tool-call", "tool_name": "run"}]',
    "call without name": '[{"type": "tool-call", "tool_call_id": "x"}]',
    "id is a number": '[{"type": "tool-call", "tool_call_id": 7, "tool_name": "run"}]',
    "name is null": '[{"type": "tool-call", "tool_call_id": "x", "tool_name": null}]',
    "flag is text": '[{"type": "tool-call", "tool_call_id": "x", "tool_name": "run", "provider_executed": "no"}]',
    "one good, one bad": (
        '[{"type": "tool-call", "tool_call_id": "x", "tool_name": "run"}, {"type": "tool-call", "tool_name": "run"}]'
    ),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_assistant_row_has_no_calls_and_is_reported(content: str) -> None:
    reported: list[int] = []

    found = open_calls(rows(asks(call("a")), (Role.ASSISTANT, content)), on_unreadable=reported.append)

    assert ids(found) == ["a"]
    assert reported == [2]


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_tool_row_has_no_results_and_is_reported(content: str) -> None:
    reported: list[int] = []
    content = content.replace("tool-call", "tool-result").replace("tool-result_id", "tool_call_id")

    found = open_calls(rows(asks(call("x")), (Role.TOOL, content)), on_unreadable=reported.append)

    assert ids(found) == ["x"]
    assert reported == [2]


def test_row_of_another_content_version_is_not_guessed_at() -> None:
    reported: list[int] = []
    newer = CallRow(7, Role.ASSISTANT, parts.encode([call("a")]), CONTENT_VERSION + 1)

    assert open_calls([newer], on_unreadable=reported.append) == ()
    assert reported == [7]


def test_damaged_row_needs_no_callback() -> None:
    assert open_calls(rows((Role.ASSISTANT, "[{"))) == ()


_turn_parts = st.one_of(
    st.builds(call, st.sampled_from("abcd"), provider_executed=st.booleans()),
    st.builds(result, st.sampled_from("abcd")),
    st.just(Text("words")),
)
_turns = st.lists(
    st.tuples(st.sampled_from([Role.ASSISTANT, Role.TOOL]), st.lists(_turn_parts, max_size=4)), max_size=6
)


@given(_turns)
def test_answering_what_is_open_leaves_nothing_open(turn: list[tuple[Role, list[Part]]]) -> None:
    history = rows(*turn)

    closed = [
        (closing.role, closing.content)
        for closing in (
            closure(each, CloseReason.INTERRUPTED, model_config_id=MODEL, at=AT) for each in open_calls(history)
        )
    ]

    assert open_calls(history + rows(*closed)) == ()


@given(_turns)
def test_open_call_is_a_call_of_its_row_that_no_later_tool_row_answers(turn: list[tuple[Role, list[Part]]]) -> None:
    history = rows(*turn)

    for found in open_calls(history):
        role, content = turn[found.message_id - 1]
        assert role is Role.ASSISTANT
        assert call(found.tool_call_id) in content
        assert result(found.tool_call_id) not in content
        later = [content for role, content in turn[found.message_id :] if role is Role.TOOL]
        assert not any(result(found.tool_call_id) in content for content in later)


def test_dynamic_calls_are_those_of_declared_tools() -> None:
    calls = (OpenCall(1, "a", "pick_colour"), OpenCall(1, "b", "run"), OpenCall(2, "c", "pick_colour"))

    assert ids(select_dynamic(calls, {"pick_colour", "unused"})) == ["a", "c"]
    assert select_dynamic(calls, ()) == ()


# Synthetic results


@pytest.mark.parametrize("reason", list(CloseReason))
def test_closure_is_a_visible_tool_row_with_one_error_result(reason: CloseReason) -> None:
    row = closure(OpenCall(3, "a", "run"), reason, model_config_id=MODEL, at=AT)

    assert row == NewMessage(
        role=Role.TOOL, content=row.content, visibility=Visibility.BOTH, created_by=None, model_config_id=MODEL
    )
    (stored,) = json.loads(parts.encode(row.content))
    sentence = stored["result"].pop("error")
    assert stored == {
        "type": "tool-result",
        "tool_call_id": "a",
        "tool_name": "run",
        "is_error": True,
        "result": {"reason": str(reason)},
        "created_at": "2030-01-02T03:04:05Z",
    }
    assert sentence.endswith(".")
    assert sentence[0].isupper()


def test_each_reason_says_something_else() -> None:
    sentences = {
        parts.encode(closure(OpenCall(1, "a", "run"), reason, model_config_id=MODEL, at=AT).content)
        for reason in CloseReason
    }

    assert len(sentences) == len(CloseReason)


def test_note_takes_the_place_of_the_sentence_and_the_code_stays() -> None:
    row = closure(
        OpenCall(1, "a", "run"), CloseReason.INTERRUPTED_BY_USER, model_config_id=MODEL, at=AT, note="Wrong file."
    )

    (part,) = row.content
    assert isinstance(part, ToolResult)
    assert isinstance(part.result, Raw)
    assert parts.json_value(part.result) == {"error": "Wrong file.", "reason": "interrupted_by_user"}


# Results of clients

PENDING = (OpenCall(1, "a", "pick_colour"), OpenCall(1, "b", "pick_font"))


def given_results(*tool_call_ids: str, invalid: str = "") -> list[SubmittedResult]:
    return [SubmittedResult(each, "{" if each in invalid else '{"n": 1}') for each in tool_call_ids]


@pytest.mark.parametrize(
    ("submitted", "problem", "culprit"),
    [
        (given_results("a", "b", "a"), "duplicate", "a"),
        (given_results("a", "b", invalid="b"), "invalid_json", "b"),
        (given_results("b"), "missing", "a"),
        (given_results(), "missing", "a"),
        (given_results("a", "b", "c"), "unexpected", "c"),
        # One submission with several problems: the walk comes first, then missing, then unexpected.
        (given_results("c", "c", invalid="c"), "invalid_json", "c"),
        (given_results("c", "c"), "duplicate", "c"),
        (given_results("a", "a", "b", invalid="b"), "duplicate", "a"),
        (given_results("b", "a", "a", invalid="b"), "invalid_json", "b"),
        (given_results("a", "c", invalid="c"), "invalid_json", "c"),
        (given_results("a", "c"), "missing", "b"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_submission_that_does_not_fit_is_refused_with_the_first_problem(
    submitted: list[SubmittedResult], problem: str, culprit: str
) -> None:
    with pytest.raises(ToolResultRejected) as refusal:
        check_results(PENDING, submitted)

    assert (refusal.value.problem, refusal.value.tool_call_id) == (problem, culprit)
    assert refusal.value.code == f"tool_result_{problem}"
    assert refusal.value.field == "results"
    assert repr(culprit) in str(refusal.value)


@pytest.mark.parametrize("output", ["{}", "[]", '"text"', "null", "1.50", '"\\u0000"'])
def test_any_json_is_a_result(output: str) -> None:
    check_results(PENDING, [SubmittedResult("b", output), SubmittedResult("a", output)])


@pytest.mark.parametrize("output", ["", " ", "{", "red", "{} {}", "NaN", "[" * 1000 + "]" * 1000])
def test_anything_else_is_not(output: str) -> None:
    with pytest.raises(ToolResultRejected) as refusal:
        check_results(PENDING, [SubmittedResult("a", output), SubmittedResult("b", "{}")])

    assert refusal.value.problem == "invalid_json"


def test_results_become_tool_rows_in_the_order_of_the_submission() -> None:
    submitted = [SubmittedResult("b", '{"font": 1.50}'), SubmittedResult("a", '"none"', is_error=True)]

    found = result_rows(PENDING, submitted, created_by=USER, model_config_id=MODEL, at=AT)

    assert found == (
        NewMessage(
            role=Role.TOOL,
            content=(ToolResult("b", "pick_font", result=Raw(b'{"font": 1.50}'), created_at=AT),),
            created_by=USER,
            model_config_id=MODEL,
        ),
        NewMessage(
            role=Role.TOOL,
            content=(ToolResult("a", "pick_colour", result=Raw(b'"none"'), is_error=True, created_at=AT),),
            created_by=USER,
            model_config_id=MODEL,
        ),
    )
