"""The plan and the checks of the soak: the load is constant, and every rise of memory is found."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.chaos.soak import SIZES, TURNS, largest_rise, medians_of_eighths, plan


def test_every_seven_chats_have_the_same_sizes_in_another_order() -> None:
    chats = list(plan(Random(1), rate=0.5, began=100, until=100 + 84))

    assert [chat.due for chat in chats] == [100 + 2 * number for number in range(42)]
    assert [chat.turns for chat in chats] == [turns for turns in TURNS * 2 for _ in range(7)]
    groups = [[chat.tokens for chat in chats[first : first + 7]] for first in range(0, 42, 7)]
    assert [Counter(group) for group in groups] == [Counter(dict(SIZES))] * 6
    assert len({tuple(group) for group in groups}) > 1


def test_rise_is_measured_from_the_lowest_value_before_it() -> None:
    assert largest_rise([150, 140, 150, 165, 155]) == 25
    assert largest_rise([150, 140, 130]) == 0
    assert largest_rise([]) == 0


def test_eighths_are_judged_by_their_medians() -> None:
    values = [float(number // 10) for number in range(80)]
    values[5] = 1000

    assert medians_of_eighths(values) == [0, 1, 2, 3, 4, 5, 6, 7]
