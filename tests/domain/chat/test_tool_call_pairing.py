"""Every history gives a prompt in which each call has exactly one result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.chat.tool_call_pairing import NO_RESULT, repair


def call(call_id: str, name: str = "look", *, provider_executed: bool = False) -> PromptCall:
    return PromptCall(call_id, name, Raw(b"{}"), provider_executed=provider_executed)


def result(call_id: str, text: str = "seen", *, name: str = "look", provider_executed: bool = False) -> PromptResult:
    return PromptResult(call_id, name, text, provider_executed=provider_executed)


def message(role: Role, *parts: PromptPart) -> PromptMessage:
    return PromptMessage(role=role, parts=parts)


def asks(*parts: PromptPart) -> PromptMessage:
    return message(Role.ASSISTANT, *parts)


def answers(*parts: PromptPart) -> PromptMessage:
    return message(Role.TOOL, *parts)


def says(text: str) -> PromptMessage:
    return message(Role.USER, PromptText(text))


def outline(messages: Iterable[PromptMessage]) -> list[str]:
    """Return one word per part: `>a` a call, `<a` a result, `<a!` a synthetic result, otherwise the text."""
    return [_word(part) for each in messages for part in each.parts]


def _word(part: PromptPart) -> str:
    match part:
        case PromptCall():
            return f">{part.id}"
        case PromptResult():
            return f"<{part.id}" + ("!" if part.text == NO_RESULT else "")
        case PromptText() | PromptReasoning():
            return part.text
        case PromptFile():
            return part.media_type


def test_a_history_in_order_stays_as_it_is() -> None:
    history = (
        says("go"),
        asks(PromptText("on it"), call("a"), call("b")),
        answers(result("a")),
        answers(result("b")),
        asks(PromptText("done")),
    )

    assert repair(history) == history


def test_a_hook_row_does_not_separate_call_and_result() -> None:
    repaired = repair((asks(call("a")), says("hook"), answers(result("a")), says("more")))

    assert outline(repaired) == [">a", "<a", "hook", "more"]


def test_results_keep_their_stored_order() -> None:
    repaired = repair((asks(call("a"), call("b")), answers(result("b")), says("hook"), answers(result("a"))))

    assert outline(repaired) == [">a", ">b", "<b", "<a", "hook"]


def test_an_unanswered_call_gets_one_error() -> None:
    repaired = repair((asks(call("a"), call("b")), answers(result("a")), says("next")))

    assert outline(repaired) == [">a", ">b", "<a", "<b!", "next"]
    assert repaired[2].parts == (PromptResult("b", "look", NO_RESULT, is_error=True),)


def test_a_call_that_the_provider_executes_gets_no_result() -> None:
    repaired = repair((asks(call("ws", provider_executed=True)), says("next")))

    assert outline(repaired) == [">ws", "next"]


def test_an_orphan_result_gets_a_call() -> None:
    repaired = repair((says("go"), answers(result("a", name="list")), says("next")))

    assert outline(repaired) == ["go", ">a", "<a", "next"]
    assert repaired[1].parts == (PromptCall("a", "list", Raw(b"{}")),)
    assert not repaired[1].is_native


@pytest.mark.parametrize(
    "orphan", [result("a", name=" "), result("a", provider_executed=True)], ids=["nameless", "of the provider"]
)
def test_other_orphan_results_are_dropped(orphan: PromptResult) -> None:
    assert outline(repair((asks(PromptText("hi")), answers(orphan), says("next")))) == ["hi", "next"]


def test_a_result_behind_the_next_answer_is_not_lost() -> None:
    repaired = repair((asks(call("a")), asks(PromptText("hm")), answers(result("a"))))

    assert outline(repaired) == [">a", "<a!", "hm", ">a_2", "<a_2"]


def test_of_two_results_for_one_call_the_first_is_kept() -> None:
    repaired = repair(
        (asks(call("a")), answers(result("a", "first")), answers(result("a", "second")), asks(PromptText("hm")))
    )

    assert outline(repaired) == [">a", "<a", "hm"]
    assert repaired[1].parts == (result("a", "first"),)


def test_a_copy_of_a_result_far_behind_is_dropped() -> None:
    repaired = repair((asks(call("a")), answers(result("a")), asks(PromptText("hm")), answers(result("a"))))

    assert outline(repaired) == [">a", "<a", "hm"]


def test_a_reused_call_id_becomes_unique_with_its_result() -> None:
    step = (asks(call("call_0")), answers(result("call_0")))

    repaired = repair((*step, *step, *step))

    assert outline(repaired) == [
        ">call_0", "<call_0", ">call_0_2", "<call_0_2", ">call_0_3", "<call_0_3",
    ]  # fmt: skip


def test_one_id_twice_in_a_message_takes_results_in_turn() -> None:
    repaired = repair((asks(call("a"), call("a")), answers(result("a", "one"), result("a", "two"))))

    assert outline(repaired) == [">a", ">a_2", "<a", "<a_2"]
    assert repaired[2].parts == (result("a_2", "two"),)


def test_a_suffix_never_meets_an_id_that_exists() -> None:
    repaired = repair(
        (asks(call("a_2"), call("a"), call("a")), answers(result("a_2")), answers(result("a")), answers(result("a")))
    )

    assert outline(repaired) == [">a_2", ">a", ">a_3", "<a_2", "<a", "<a_3"]


def test_a_suffixed_id_stays_within_what_wires_accept() -> None:
    long = "x" * 64

    repaired = repair((asks(call(long)), answers(result(long)), asks(call(long)), answers(result(long))))

    assert outline(repaired)[2:] == [">" + "x" * 62 + "_2", "<" + "x" * 62 + "_2"]


def test_ids_are_mapped_to_the_common_alphabet() -> None:
    repaired = repair((asks(call("a.b c"), call("")), answers(result("a.b c")), answers(result(""))))

    assert outline(repaired) == [">a_b_c", ">call", "<a_b_c", "<call"]


def test_ids_that_become_equal_are_told_apart() -> None:
    repaired = repair((asks(call("a.b"), call("a:b")), answers(result("a.b", "1")), answers(result("a:b", "2"))))

    assert outline(repaired) == [">a_b", ">a_b_2", "<a_b", "<a_b_2"]


def test_results_of_a_provider_move_behind_their_call() -> None:
    repaired = repair(
        (
            asks(call("ws", provider_executed=True), PromptText("found it")),
            answers(result("ws", provider_executed=True)),
        )
    )

    assert outline(repaired) == [">ws", "<ws", "found it"]
    assert len(repaired) == 1


def test_a_local_result_inside_an_answer_moves_out_of_it() -> None:
    repaired = repair((asks(call("a"), result("a"), PromptText("so")),))

    assert [each.role for each in repaired] == [Role.ASSISTANT, Role.TOOL]
    assert outline(repaired) == [">a", "so", "<a"]


def test_part_that_its_role_cannot_have_is_dropped() -> None:
    repaired = repair(
        (
            message(Role.USER, call("a"), result("b"), PromptReasoning("hm"), PromptText("hi")),
            message(Role.SYSTEM, result("c")),
            message(Role.TOOL, PromptText("odd")),
            asks(PromptFile("image/png", b"x")),
        )
    )

    assert outline(repaired) == ["hi"]


def test_a_longer_history_repairs_to_a_longer_prompt_with_the_same_start() -> None:
    history = [
        says("go"),
        asks(call("a"), call("a")),
        answers(result("a")),
        says("hook"),
        answers(result("x")),
        asks(call("a_2")),
        answers(result("a_2")),
    ]

    shorter = repair(history[:5])

    assert repair([*history, asks(call("a"))])[: len(shorter)] == shorter


IDS = st.sampled_from(["a", "b", "a_2", "a.b", "a_b", ""])
NAMES = st.sampled_from(["look", "list", ""])
PARTS = st.one_of(
    st.builds(PromptText, st.sampled_from(["hi", "", "so"])),
    st.builds(PromptReasoning, st.just("hm")),
    st.builds(PromptFile, st.just("image/png"), st.just(b"x")),
    st.builds(PromptCall, IDS, NAMES, st.just(Raw(b"{}")), provider_executed=st.booleans()),
    st.builds(PromptResult, IDS, NAMES, st.just("seen"), provider_executed=st.booleans()),
)
SOUP = st.lists(
    st.builds(
        PromptMessage,
        role=st.sampled_from(list(Role)),
        parts=st.lists(PARTS, max_size=4).map(tuple),
    ),
    max_size=12,
)


@given(SOUP)
def test_a_second_run_changes_nothing(soup: Sequence[PromptMessage]) -> None:
    once = repair(soup)

    assert repair(once) == once


@given(SOUP)
def test_every_call_has_exactly_one_result_before_the_next_answer(soup: Sequence[PromptMessage]) -> None:
    repaired = repair(soup)

    waiting: list[str] = []
    seen: set[str] = set()
    for each in repaired:
        assert each.parts
        if each.role is Role.TOOL:
            for part in each.parts:
                assert isinstance(part, PromptResult)
                waiting.remove(part.id)
            continue
        assert not waiting, "a result is missing, or something stands between it and its call"
        for part in each.parts:
            assert not isinstance(part, PromptResult) or part.provider_executed
            if isinstance(part, PromptCall) and not part.provider_executed:
                assert part.id not in seen
                seen.add(part.id)
                waiting.append(part.id)
    assert not waiting


@given(SOUP, SOUP)
def test_messages_after_an_answer_change_nothing_before_it(
    before: Sequence[PromptMessage], after: Sequence[PromptMessage]
) -> None:
    shorter = repair(before)

    assert repair((*before, asks(PromptText("so")), *after))[: len(shorter)] == shorter
