"""Think tags are found wherever the text is split."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rookery.llm.completions.think_tags import ThinkTags

# No time limits, because busy machines are slow to make examples.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(
    st.lists(st.tuples(st.booleans(), st.text("ab<>/think \n", max_size=12)), max_size=5),
    st.integers(min_value=1, max_value=9),
)
def test_think_tags_are_found_wherever_chunks_are_cut(blocks: list[tuple[bool, str]], size: int) -> None:
    text = "".join(f"<think>{inner}</think>" if is_reasoning else inner for is_reasoning, inner in blocks)

    def split(pieces: Iterable[str]) -> tuple[str, str]:
        tags = ThinkTags()
        found = [found for piece in pieces for found in tags.split(piece)] + tags.rest()
        assert all(piece for _, piece in found)
        return "".join(t for is_r, t in found if is_r), "".join(t for is_r, t in found if not is_r)

    assert split(text[i : i + size] for i in range(0, len(text), size)) == split([text])


def test_line_ends_behind_a_closing_tag_belong_to_the_tag() -> None:
    tags = ThinkTags()
    pieces = [piece for text in ("a<th", "ink>b</think>", "\n", "\nc\n") for piece in tags.split(text)]
    assert pieces == [(False, "a"), (True, "b"), (False, "c\n")]
