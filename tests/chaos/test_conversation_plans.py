"""The answers of the models in a chaos run, and that a seed determines all decisions."""

from __future__ import annotations

from itertools import islice

from tests.chaos import schedule
from tests.chaos.conversation_plans import Plan, Said, reply
from tests.chaos.schedule import OVERTURE, Say, script_of, strikes


def said(plan: Plan) -> Said:
    return Said("user", str(plan))


ASKED = Plan("c1m0", (("note",), ("post", "book")))
CALLED = Said("assistant", "One moment.", calls=1)


def test_plan_is_read_back_as_it_was_written() -> None:
    plans = [ASKED, Plan("c2m13"), Plan("c2m1", (("note", "note"),))]

    assert Plan.find_all("\n".join(str(plan) for plan in plans)) == plans


def test_model_asks_for_the_next_step_of_the_plan() -> None:
    first, second = reply([said(ASKED)]), reply([said(ASKED), CALLED])

    assert first is not None
    assert first.calls == (("c1m0-0-0", "note"),)
    assert second is not None
    assert second.calls == (("c1m0-1-0", "post"), ("c1m0-1-1", "book"))


def test_model_answers_every_message_that_was_not_answered() -> None:
    conversation = [
        said(Plan("c1m0")),
        Said("assistant", "[c1m0] is done."),
        said(Plan("c1m1")),
        Said("assistant", "I was stopped at [c1"),
        said(Plan("c1m2")),
    ]

    answer = reply(conversation)

    assert answer is not None
    assert answer.calls == ()
    assert "[c1m1] [c1m2]" in answer.text
    assert "[c1m0]" not in answer.text


def test_step_that_is_asked_for_again_is_answered_the_same() -> None:
    assert reply([said(ASKED), CALLED]) == reply([said(ASKED), CALLED])


def test_same_seed_makes_the_same_decisions() -> None:
    assert [script_of(7, chat) for chat in range(20)] == [script_of(7, chat) for chat in range(20)]
    assert list(islice(strikes(7, 3), 200)) == list(islice(strikes(7, 3), 200))


def test_another_seed_makes_other_decisions() -> None:
    assert script_of(7, 0) != script_of(8, 0)
    assert list(islice(strikes(7, 3), 20)) != list(islice(strikes(8, 3), 20))


def test_every_script_ends_with_a_message_at_rest_so_that_all_are_answered() -> None:
    for chat in range(200):
        last = script_of(1, chat)[-1]
        assert isinstance(last, Say)
        assert last.at_rest


def test_short_run_meets_the_faults_of_the_overture() -> None:
    first = list(islice(strikes(3, 3), len(OVERTURE)))

    assert {strike.fault for strike in first} == set(OVERTURE)
    assert set(OVERTURE) | {schedule.Fault.KILL_ALL, schedule.Fault.LOSE_COMMIT} == set(schedule.Fault)
