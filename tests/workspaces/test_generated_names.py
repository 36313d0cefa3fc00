"""Generated names of workspaces."""

from __future__ import annotations

from random import Random

from rookery.store.workspaces.workspaces import MAX_NAME, is_name
from rookery.workspaces import generated_names
from rookery.workspaces.generated_names import ADJECTIVES, ANIMALS


def test_every_name_is_two_words_that_a_workspace_may_have() -> None:
    assert len({*ADJECTIVES, *ANIMALS}) == len(ADJECTIVES) + len(ANIMALS)
    assert len(ADJECTIVES) * len(ANIMALS) > 10_000
    longest = f"{max(ADJECTIVES, key=len)}-{max(ANIMALS, key=len)}-9999"
    assert is_name(longest)
    assert len(longest) <= MAX_NAME
    assert all(is_name(word) for word in (*ADJECTIVES, *ANIMALS))


def test_later_attempts_add_a_number() -> None:
    random = Random(1)
    words = [generated_names.generate(attempt, random=random).split("-") for attempt in range(8)]
    assert [len(each) for each in words] == [2, 2, 2, 3, 3, 3, 3, 3]
