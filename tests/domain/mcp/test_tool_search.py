"""Ranking, catalog and budget of the search over deferred tools."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.mcp import tool_search
from rookery.domain.mcp.tool_search import Candidate, ToolSearch, Use

TOOLS = (
    Candidate("github__create_issue", "github", "Open an issue in a repository.", "title body labels", 400),
    Candidate("github__list_issues", "github", "List the issues of a repository.", "state page", 300),
    Candidate("github__getPullRequest", "github", "Read a pull request.", "number", 300),
    Candidate("linear__create_issue", "linear", "Create an issue for a team.", "team title", 500),
    Candidate("files__search", "files", "Find files that contain a text.", "query path", 200),
)

names = st.text("abcdefgh_", min_size=1, max_size=12)
candidates = st.lists(
    st.builds(
        Candidate, names, st.sampled_from(("one", "two", "two_more")), st.text(max_size=200), st.text(max_size=50),
        st.integers(1, 5000),
    ),
    max_size=40,
    unique_by=lambda each: each.name,
)  # fmt: skip


def found(*queries: str, by_name: tuple[str, ...] = ()) -> list[str]:
    return [each.name for each in tool_search.search(TOOLS, queries=queries, names=by_name)]


def test_a_word_of_the_name_counts_more_than_one_in_the_description() -> None:
    assert found("search files") == ["files__search"]
    assert found("issue repository") == ["github__create_issue", "linear__create_issue", "github__list_issues"]


def test_camel_case_is_split_into_words() -> None:
    assert found("pull request")[0] == "github__getPullRequest"


def test_a_query_with_a_server_finds_only_its_tools() -> None:
    assert found("linear: create issue") == ["linear__create_issue"]
    assert found("LINEAR: create issue") == ["linear__create_issue"]


def test_a_server_without_words_lists_its_tools_by_name() -> None:
    assert found("github:") == ["github__create_issue", "github__getPullRequest", "github__list_issues"]


def test_a_prefix_that_is_no_server_is_part_of_the_words() -> None:
    assert found("issue: create")[0] == "linear__create_issue"


def test_the_longest_server_name_wins() -> None:
    tools = (Candidate("a__x", "a"), Candidate("a_b__x", "a:b"))

    assert [each.name for each in tool_search.search(tools, queries=["a:b: x"])] == ["a_b__x"]


def test_named_tools_come_first_and_unknown_names_are_left_out() -> None:
    assert found("search", by_name=("linear__create_issue", "nothing"))[:2] == ["linear__create_issue", "files__search"]


def test_words_that_match_nothing_find_nothing() -> None:
    assert found("zebra") == []
    assert found("  ") == []


def test_tools_are_deferred_only_above_a_tenth_of_the_window() -> None:
    limit = 10_000  # a tenth is 2,500 bytes
    small, large = (Candidate("a", "s", size_bytes=2500),), (Candidate("a", "s", size_bytes=2501),)

    assert not tool_search.is_deferred(ToolSearch.AUTO, small, context_limit=limit)
    assert tool_search.is_deferred(ToolSearch.AUTO, large, context_limit=limit)
    assert tool_search.is_deferred(ToolSearch.ALWAYS, small, context_limit=limit)
    assert not tool_search.is_deferred(ToolSearch.NEVER, large, context_limit=limit)
    assert not tool_search.is_deferred(ToolSearch.ALWAYS, (), context_limit=limit)


def test_the_catalog_takes_the_most_detailed_form_that_fits() -> None:
    detailed = tool_search.catalog(TOOLS, max_bytes=10_000)
    by_name = tool_search.catalog(TOOLS, max_bytes=len(detailed) - 1)
    counts = tool_search.catalog(TOOLS, max_bytes=len(by_name) - 1)
    total = tool_search.catalog(TOOLS, max_bytes=len(counts) - 1)

    assert "- files__search - Find files that contain a text." in detailed
    assert "linear: linear__create_issue" in by_name.splitlines()
    assert "Find files" not in by_name
    assert counts.splitlines() == ["files: 1 tool", "github: 3 tools", "linear: 1 tool"]
    assert total == "5 tools of 3 servers."


def test_a_summary_is_one_short_line() -> None:
    assert tool_search.summary("First line.\n  Second.") == "First line. Second."
    assert len(tool_search.summary("word " * 100)) <= 80


def test_the_newest_activation_stays_and_the_oldest_leaves() -> None:
    sizes = {each.name: each.size_bytes for each in TOOLS}
    history = [Use(called=("linear__create_issue",)), Use(activated=("github__create_issue", "files__search"))]

    assert tool_search.active(history, sizes, max_bytes=100) == {"linear__create_issue"}
    assert tool_search.active(history, sizes, max_bytes=900) == {"linear__create_issue", "github__create_issue"}
    assert tool_search.active(history, sizes, max_bytes=1100) == {name for use in history for name in use.called} | {
        "github__create_issue",
        "files__search",
    }


def test_tools_whose_call_failed_are_kept_last() -> None:
    sizes = {each.name: each.size_bytes for each in TOOLS}
    history = [Use(failed=("linear__create_issue",)), Use(activated=("github__create_issue",))]

    assert tool_search.active(history, sizes, max_bytes=899) == {"github__create_issue"}
    assert tool_search.active(history, sizes, max_bytes=900) == {"github__create_issue", "linear__create_issue"}


def test_a_search_counts_the_calls_of_its_answer_first() -> None:
    sizes = {each.name: each.size_bytes for each in TOOLS}
    matches = tool_search.search(TOOLS, queries=["issue"])

    assert tool_search.activate(matches, called=["linear__create_issue"], sizes=sizes, max_bytes=500) == (
        "linear__create_issue",
    )
    assert tool_search.activate(matches[:1], called=["linear__create_issue"], sizes=sizes, max_bytes=500) == ()
    assert tool_search.activate(matches[:1], called=[], sizes=sizes, max_bytes=1) == ("github__create_issue",)


@given(candidates, st.lists(st.text("abcdefgh: _two", max_size=30), max_size=12))
def test_a_search_returns_distinct_candidates_within_the_limit(tools: list[Candidate], queries: list[str]) -> None:
    matches = tool_search.search(tools, queries=queries)

    assert len(matches) <= tool_search.MAX_MATCHES
    assert len({each.name for each in matches}) == len(matches)
    assert set(matches) <= set(tools)
    assert matches == tool_search.search(list(reversed(tools)), queries=queries)


@given(candidates, st.lists(st.lists(names, max_size=4), max_size=10), st.integers(1, 20_000))
def test_active_tools_fit_the_budget_unless_it_is_only_one(
    tools: list[Candidate], called: list[list[str]], max_bytes: int
) -> None:
    sizes = {each.name: each.size_bytes for each in tools}

    chosen = tool_search.active([Use(called=tuple(each)) for each in called], sizes, max_bytes=max_bytes)

    newest = next((name for each in called for name in each if name in sizes), None)
    assert newest is None or newest in chosen
    assert len(chosen) <= 1 or sum(sizes[name] for name in chosen) <= max_bytes


@given(candidates, st.integers(1, 20_000), st.data())
def test_what_a_search_activates_is_active_in_the_next_step(
    tools: list[Candidate], max_bytes: int, data: st.DataObject
) -> None:
    sizes = {each.name: each.size_bytes for each in tools}
    called = data.draw(st.lists(st.sampled_from(sorted(sizes)), max_size=3, unique=True)) if sizes else []
    matches = tool_search.search(tools, queries=["one:", "two:", "two_more:"])
    activated = tool_search.activate(matches, called=called, sizes=sizes, max_bytes=max_bytes)

    chosen = tool_search.active([Use(called=tuple(called), activated=activated)], sizes, max_bytes=max_bytes)

    fits = sum(sizes[name] for name in called) <= max_bytes
    assert not fits or set(activated) | set(called) <= chosen


@given(candidates, st.integers(100, 5000))
def test_the_catalog_fits_unless_it_is_the_total(tools: list[Candidate], max_bytes: int) -> None:
    text = tool_search.catalog(tools, max_bytes=max_bytes)

    assert len(text.encode("utf-8", "replace")) <= max_bytes or text.endswith("servers.")


def test_five_hundred_tools_cost_at_most_a_tenth_of_the_window() -> None:
    tools = [Candidate(f"s{n % 12}__tool_{n}", f"s{n % 12}", "Does things. " * 10, size_bytes=900) for n in range(500)]
    sizes = {each.name: each.size_bytes for each in tools}
    for limit in (8_000, 32_000, 128_000, 200_000, 1_000_000):
        listed = tool_search.catalog(tools, max_bytes=tool_search.catalog_bytes(limit))
        room = tool_search.budget_bytes(limit) - len(listed)
        chosen = tool_search.active([Use(called=tuple(sizes))], sizes, max_bytes=room)

        spent = len(listed) + sum(sizes[name] for name in chosen)
        assert spent <= limit / 10 * tool_search.BYTES_PER_TOKEN
