"""The names of tools for the model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.mcp.tool_names import MAX_NAME, is_offered, unique_names


def test_slug_and_tool_are_joined_and_sanitized() -> None:
    names = unique_names([("github", "create issue"), ("git-hub", "ünïcode/x")])

    assert names == {("github", "create issue"): "github__create_issue", ("git-hub", "ünïcode/x"): "git-hub___n_code_x"}


def test_equal_names_get_numbers_in_the_order_of_the_originals() -> None:
    names = unique_names([("a", "x.y"), ("a", "x y"), ("a", "x/y")])

    assert names == {("a", "x y"): "a__x_y", ("a", "x.y"): "a__x_y_2", ("a", "x/y"): "a__x_y_3"}


def test_a_number_fits_into_a_long_name() -> None:
    long = "t" * 100
    names = unique_names([("slug", long), ("slug", long + "!")])

    assert [len(name) for name in names.values()] == [64, 64]
    assert names["slug", long + "!"].endswith("t_2")


def test_names_of_other_tools_are_avoided() -> None:
    assert unique_names([("a", "b")], taken={"a__b"}) == {("a", "b"): "a__b_2"}


@given(st.lists(st.tuples(st.sampled_from(["a", "a_b", "b"]), st.text(max_size=80))))
def test_names_are_valid_unique_and_independent_of_the_order(tools: list[tuple[str, str]]) -> None:
    names = unique_names(tools)

    assert names == unique_names(reversed(tools))
    assert len(set(names.values())) == len(names) == len(set(tools))
    assert all(0 < len(name) <= MAX_NAME and name.isascii() for name in names.values())


def test_the_deny_list_wins_and_lists_match_original_names_exactly() -> None:
    assert is_offered("read", allow=(), deny=())
    assert is_offered("read", allow=("read",), deny=())
    assert not is_offered("Read", allow=("read",), deny=())
    assert not is_offered("read", allow=("read",), deny=("read",))
