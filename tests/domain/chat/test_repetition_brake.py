"""The brake: the calls that count as repetitions, and the calls that are held."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import parts, repetition_brake
from rookery.domain.chat.parts import ToolCall, ToolResult
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.chat.repetition_brake import Limits, Repeat
from tests.domain.chat.prompt_rows import assistant, call, tool

LIMITS = Limits()
DENIED = {"error": "no", "reason": "denied_by_user"}
LATE = {"error": "too late", "reason": "approval_timed_out"}


class Call(msgspec.Struct, frozen=True):
    """A call with its result."""

    args: object = None
    result: object = "done"
    name: str = "run"
    is_error: bool = False


def rows(*calls: Call, per_step: int = 1) -> list[PromptRow]:
    """Return the steps of a turn that makes these calls."""
    found: list[PromptRow] = []
    for first in range(0, len(calls), per_step):
        batch = [(f"c{first + place}", each) for place, each in enumerate(calls[first : first + per_step])]
        number = 2 * first + 1
        found.append(assistant(number, *(call(call_id, each.args, name=each.name) for call_id, each in batch)))
        found.append(tool(number + 1, *(_result(call_id, each) for call_id, each in batch)))
    return found


def _result(call_id: str, each: Call) -> ToolResult:
    return ToolResult(call_id, each.name, result=parts.json_raw(each.result), is_error=each.is_error)


def held(done: Sequence[Call], *following: Call, limits: Limits = LIMITS, per_step: int = 1) -> list[Repeat | None]:
    """Return for each of the following calls the repetition for which it is held."""
    opened = [call(f"open{place}", each.args, name=each.name) for place, each in enumerate(following)]
    found = repetition_brake.find_held(
        repetition_brake.read_recent(rows(*done, per_step=per_step), limits), opened, limits
    )
    return [found.get(each.tool_call_id) for each in opened]


SAME = Call({"a": 1})
FAILED = Call({"a": 1}, {"error": "no such file"}, is_error=True)


def exits(code: int, output: str | None, **args: object) -> Call:
    said = {} if output is None else {"output": output}
    # The duration of a command differs each time.
    result = {"success": code == 0, "exit_code": code, "wall_duration_ms": hash(str(args)) % 1000, **said}
    return Call(args, result, "execute")


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_a_call_is_not_held_before_the_sixth(calls: int) -> None:
    assert held([SAME] * calls, SAME) == [None]


def test_the_sixth_equal_call_with_equal_results_is_held() -> None:
    assert held([SAME] * 5, SAME) == [Repeat(("run",), 5)]


def test_a_call_with_other_arguments_is_not_held() -> None:
    assert held([SAME] * 5, Call({"a": 2})) == [None]


def test_a_call_of_another_tool_is_not_held() -> None:
    assert held([SAME] * 5, Call({"a": 1}, name="look")) == [None]


def test_calls_whose_results_differ_are_progress() -> None:
    assert held([Call({"a": 1}, number) for number in range(30)], SAME) == [None]


def test_one_other_result_begins_the_count_again() -> None:
    assert held([SAME, SAME, Call({"a": 1}, "other"), SAME, SAME, SAME], SAME) == [None]


def test_the_order_of_the_names_in_arguments_does_not_matter() -> None:
    one, two = Call({"a": 1, "b": 2}), Call({"b": 2, "a": 1})
    assert held([one, two, one, two, one], two) == [Repeat(("run",), 5)]


@pytest.mark.parametrize("names", [("look", "run"), ("look", "run", "think")])
def test_a_cycle_of_calls_is_held_where_its_sixth_round_begins(names: tuple[str, ...]) -> None:
    cycle = [Call({}, name=name) for name in names]

    assert held(cycle * 5, *cycle) == [Repeat(tuple(names[at:] + names[:at]), 5) for at in range(len(names))]
    assert held([*cycle * 4, *cycle[:-1]], cycle[-1]) == [None]


def test_a_longer_cycle_is_left_to_the_step_limit() -> None:
    cycle = [Call({}, name=name) for name in "abcd"]
    assert held(cycle * 10, *cycle) == [None] * 4


def test_calls_made_in_parallel_count_like_calls_one_after_another() -> None:
    cycle = [Call({}, name="look"), Call({}, name="run")]
    assert held(cycle * 5, *cycle, per_step=2) == [Repeat(("look", "run"), 5), Repeat(("run", "look"), 5)]


def test_growing_arguments_that_fail_with_the_same_error_are_held() -> None:
    done = [Call({"a": "x" * size}, {"error": "too long"}, is_error=True) for size in range(5)]
    assert held(done, Call({"a": "y"})) == [Repeat(("run",), 5, is_failure=True)]


def test_a_command_that_fails_in_the_same_way_is_held_although_its_arguments_grow() -> None:
    done = [exits(127, "foo: not found", command=f"foo {'x' * size}") for size in range(5)]
    assert held(done, exits(0, None, command="foo y")) == [Repeat(("execute",), 5, is_failure=True)]


def test_searches_without_a_match_are_not_held() -> None:
    done = [exits(1, None, command=f"grep -r word{size}") for size in range(10)]
    assert held(done, exits(1, None, command="grep -r other")) == [None]


def test_commands_that_succeed_with_the_same_output_are_not_held() -> None:
    done = [exits(0, "ok", command=f"check {size}") for size in range(30)]
    assert held(done, exits(0, "ok", command="check 31")) == [None]


def test_eighteen_calls_that_all_fail_differently_are_held() -> None:
    done = [Call({"a": size}, {"error": f"not {size}"}, name=f"t{size % 4}", is_error=True) for size in range(18)]

    assert held(done, Call({"a": "new"}), Call({"a": "newer"})) == [Repeat((), 18, is_failure=True)] * 2
    assert held(done[1:], Call({"a": "new"})) == [None]
    assert held([Call({"a": 1}), *done[1:]], Call({"a": "new"})) == [None]


def test_a_spawn_with_the_same_order_repeats_although_each_subagent_has_its_own_id() -> None:
    done = [Call({"prompt": "x"}, {"chat_id": f"id-{at}", "status": "running"}, "spawn_agent") for at in range(5)]
    assert held(done, Call({"prompt": "x"}, name="spawn_agent")) == [Repeat(("spawn_agent",), 5)]


WAITS = [
    Call({"process_id": "1"}, {"success": True, "running": True, "cursor": 0}, "process_output"),
    Call({"chat_id": "1"}, {"chat_id": "1", "status": "running", "timed_out": True}, "wait_agent"),
    Call({"chat_ids": ["1"]}, {"agents": [{"chat_id": "1", "timed_out": True}]}, "wait_agent"),
]


@pytest.mark.parametrize("wait", WAITS)
def test_waiting_for_something_that_goes_on_is_not_held(wait: Call) -> None:
    assert held([wait] * 50, wait) == [None]
    assert repetition_brake.notice(repetition_brake.read_recent(rows(*[wait] * 50), LIMITS), LIMITS) is None


@pytest.mark.parametrize("wait", WAITS)
def test_a_look_between_two_waits_is_not_held(wait: Call) -> None:
    assert held([SAME, wait] * 20, SAME, wait) == [None, None]


def test_asking_again_for_the_output_of_a_command_that_has_ended_is_held() -> None:
    ended = Call({"process_id": "1"}, {"success": True, "exit_code": 0}, "process_output")
    assert held([ended] * 5, ended) == [Repeat(("process_output",), 5)]


def test_another_tool_cannot_claim_to_wait() -> None:
    assert held([Call({}, {"running": True})] * 5, Call({})) != [None]


def test_a_denial_of_the_user_begins_the_count_again() -> None:
    denied = Call({"a": 1}, DENIED, is_error=True)
    assert held([*[FAILED] * 5, denied, *[FAILED] * 4], FAILED) == [None]


def test_a_question_that_was_not_answered_in_time_does_not_begin_the_count_again() -> None:
    late = Call({"a": 1}, LATE, is_error=True)
    assert held([*[FAILED] * 5, late], FAILED) == [Repeat(("run",), 5)]


def test_an_approved_call_is_the_first_of_a_new_count() -> None:
    done = rows(*[SAME] * 10)
    approved = done[10].message.id

    def is_approved(message_id: int, tool_call_id: str) -> bool:
        return (message_id, tool_call_id) == (approved, "c5")

    opened = [call("open", {"a": 1}, name="run")]
    for finished, is_held in ((16, False), (18, False), (20, True)):
        recent = repetition_brake.read_recent(done[:finished], LIMITS, is_approved=is_approved)
        assert bool(repetition_brake.find_held(recent, opened, LIMITS)) is is_held


def test_no_call_is_held_without_a_limit() -> None:
    assert held([SAME] * 50, SAME, limits=Limits(ask_after=0)) == [None]


def test_rows_that_cannot_be_read_end_the_count() -> None:
    done = rows(*[SAME] * 5)
    broken = msgspec.structs.replace(done[4].message, content="{")
    recent = repetition_brake.read_recent([*done[:4], PromptRow(broken), *done[5:]], LIMITS)
    assert repetition_brake.find_held(recent, [call("open", {"a": 1}, name="run")], LIMITS) == {}


def test_calls_with_a_repeated_id_have_their_own_results() -> None:
    done = [assistant(1, call("x", {"a": 1}, name="run")), tool(2, _result("x", Call(result="one")))]
    done += [assistant(3, call("x", {"a": 1}, name="run")), tool(4, _result("x", Call(result="two")))]
    assert [made.result for made in repetition_brake.read_recent(done, LIMITS)] == [b'"two"', b'"one"']


# Sentences


@pytest.mark.parametrize(
    ("done", "sentence"),
    [
        ([SAME] * 3, "You made the same call of run at least 3 times, with the same result each time."),
        ([FAILED, Call({"a": 2}, FAILED.result, is_error=True)] * 2, "it failed with the same error each time."),
        ([SAME, Call({}, name="look")] * 3, "You made the same 2 calls (run, look) at least 3 times in turn"),
    ],
)
def test_the_model_gets_a_notice_that_says_what_repeats(done: list[Call], sentence: str) -> None:
    text = repetition_brake.notice(repetition_brake.read_recent(rows(*done), LIMITS), LIMITS)

    assert text is not None
    assert sentence in text
    assert "tell the user what blocks you" in text


def test_the_notice_is_the_same_for_each_further_repeat() -> None:
    texts = {
        repetition_brake.notice(repetition_brake.read_recent(rows(*[SAME] * times), LIMITS), LIMITS)
        for times in range(3, 20)
    }
    assert len(texts) == 1
    assert repetition_brake.notice(repetition_brake.read_recent(rows(SAME, SAME), LIMITS), LIMITS) is None
    off = Limits(notice_after=0)
    assert repetition_brake.notice(repetition_brake.read_recent(rows(*[SAME] * 5), off), off) is None


def test_the_user_is_told_what_happened_and_what_can_be_done() -> None:
    assert repetition_brake.question(Repeat(("execute",), 5)) == (
        "The agent made the same call of execute 5 times, with the same result each time. The next call is on hold. "
        "Continue, stop the turn, or tell the agent what to do instead."
    )
    assert "called run 5 times in a row, and it failed" in repetition_brake.question(
        Repeat(("run",), 5, is_failure=True)
    )
    assert "made 18 calls in a row, and all of them failed" in repetition_brake.question(
        Repeat((), 18, is_failure=True)
    )


def test_the_model_gets_the_users_instruction() -> None:
    assert repetition_brake.stopped_by_user(" Use make test. ").endswith(
        "it was not run. The user tells you: Use make test."
    )
    assert "Try another way" in repetition_brake.stopped_by_user(" ")


@pytest.mark.parametrize(
    ("call", "is_failed"),
    [
        (FAILED, True),
        (exits(1, None), True),
        (Call({}, {"success": False, "error": "timed out after 10s"}), True),
        (exits(0, "ok"), False),
        (Call({}, {"error": "a word in an answer"}), False),
        (Call({}, "text"), False),
        (Call({}, {"success": "no"}), False),
        (Call({}, ["a"]), False),
    ],
)
def test_a_call_failed_if_its_result_is_an_error_or_its_command_did_not_succeed(call: Call, is_failed: bool) -> None:
    assert repetition_brake.is_failed(_result("x", call)) is is_failed


# What holds for every history

CALLS = st.builds(
    Call,
    args=st.sampled_from([{}, {"a": 1}, {"a": 2}]),
    result=st.sampled_from(["x", "y", {"error": "no"}, {"running": True}, {"success": False, "output": "bad"}]),
    name=st.sampled_from(["run", "look", "process_output"]),
    is_error=st.booleans(),
)


def _facts(made: Call) -> tuple[object, ...]:
    return made.name, made.args, made.result, repetition_brake.is_failed(_result("x", made))


@given(st.lists(CALLS, max_size=30), st.integers(3, 7))
def test_a_held_call_was_made_before_or_follows_failures(done: list[Call], ask_after: int) -> None:
    limits = Limits(ask_after=ask_after)
    for following in (Call({}), Call({"a": 1}), Call({"a": 2}, name="look")):
        [repeat] = held(done, following, limits=limits)
        if repeat is None:
            continue
        assert len(done) >= repeat.times >= ask_after - 1
        newest = done[-repeat.times :]
        if repeat.is_failure:
            assert all(repetition_brake.is_failed(_result("x", each)) for each in newest)
        else:
            period = len(repeat.tools)
            cycle = done[-period:]
            counted = [_facts(each) for each in done[-period * repeat.times :]]
            assert counted == [_facts(each) for each in cycle] * repeat.times
            assert (cycle[0].args, cycle[0].name) == (following.args, following.name)


@given(st.lists(CALLS.filter(lambda each: each.name != "process_output"), min_size=1, max_size=3), st.integers(3, 7))
def test_every_cycle_of_up_to_three_calls_is_held_in_its_last_round(cycle: list[Call], ask_after: int) -> None:
    limits = Limits(ask_after=ask_after)
    assert None not in held(cycle * (ask_after - 1), *cycle, limits=limits)


@given(st.lists(CALLS, max_size=12), st.lists(CALLS, max_size=25), CALLS)
def test_reading_stops_early_without_another_result(older: list[Call], newer: list[Call], following: Call) -> None:
    """Rows before a call that belongs to no repetition do not matter."""
    breaks = Call({"unique": True}, "unique", "unique")
    assert held([*older, breaks, *newer], following) == held([breaks, *newer], following)


@given(st.lists(CALLS, max_size=20), st.data())
def test_the_count_does_not_depend_on_the_steps_in_which_calls_were_made(done: list[Call], data: st.DataObject) -> None:
    following = data.draw(CALLS)
    assert held(done, following, per_step=data.draw(st.integers(1, 4))) == held(done, following)


def test_a_turn_without_repetition_is_read_for_a_few_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    decode = parts.decode

    def count(content: str, *, version: int) -> tuple[parts.Part, ...]:
        nonlocal read
        read += 1
        return decode(content, version=version)

    monkeypatch.setattr(parts, "decode", count)
    repetition_brake.read_recent(rows(*(Call({"a": at}, at) for at in range(500))), LIMITS)

    assert read <= 10


def test_calls_are_compared_with_their_arguments_as_values() -> None:
    recent = repetition_brake.read_recent(rows(*[SAME] * 5), LIMITS)
    spaced = ToolCall("open", "run", args=msgspec.Raw(b'{ "a" : 1 }'))
    assert repetition_brake.find_held(recent, [spaced], LIMITS)
