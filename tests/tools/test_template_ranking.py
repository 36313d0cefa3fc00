"""Ranking of templates: selection, order, and recommendation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rookery.store.workspaces.templates import Signals
from rookery.tools import template_ranking
from rookery.tools.template_ranking import Facts

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PYTHON = Facts("python", "Python", "For scripts and services")
GO = Facts("go", "Go", "Small and fast")
PYTHON_ML = Facts("python-ml", "Machine learning", "Notebooks, GPUs")


def ask(*facts: Facts, query: str | None = None, page: int = 1, signals: Any = ()) -> dict[str, Any]:
    loaded = None if signals is None else dict(signals)
    return template_ranking.shortlist(facts, query=query, page=page, signals=loaded, now=NOW)


def ids(result: dict[str, Any]) -> list[str]:
    return [item["id"] for item in result["templates"]]


def users(count: int) -> Signals:
    return Signals(active_users=count)


@pytest.mark.parametrize(
    ("query", "tier"),
    [("python", 4), ("PY-thon", 4), ("machine learning", 0), ("pyt", 3), ("tho", 2), ("services", 1), ("rust", 0)],
)
def test_query_is_looked_for_in_names_first(query: str, tier: int) -> None:
    assert template_ranking.tier(PYTHON, template_ranking._folded(query)) == tier


def test_display_name_counts_as_a_name() -> None:
    assert ask(PYTHON_ML, GO, query="machine_learning")["recommended_template_id"] == "python-ml"


def test_better_tier_comes_first_and_decides() -> None:
    result = ask(PYTHON_ML, PYTHON, GO, query="python", signals={"python-ml": users(50)})

    assert ids(result) == ["python", "python-ml"]
    assert result["recommended_template_id"] == "python"


def test_tie_of_tiers_is_decided_by_a_clear_lead() -> None:
    more, less = Facts("py-a"), Facts("py-b")

    clear = ask(more, less, query="py", signals={"py-a": users(2), "py-b": users(1)})
    close = ask(more, less, query="py", signals={"py-a": users(16), "py-b": users(15)})
    unknown = ask(more, less, query="py", signals=None)

    assert clear["recommended_template_id"] == "py-a"
    assert "recommended_template_id" not in close
    assert "recommended_template_id" not in unknown


@pytest.mark.parametrize(("first", "second", "is_recommended"), [(2, 1, True), (16, 15, False), (1, 0, False)])
def test_without_a_query_use_has_to_be_clear(first: int, second: int, is_recommended: bool) -> None:
    result = ask(PYTHON, GO, signals={"python": users(first), "go": users(second)})

    assert ("recommended_template_id" in result) is is_recommended
    assert ("Ask the user" in result["next_step"]) is not is_recommended


def test_failed_signals_ask_unless_the_tier_decides() -> None:
    assert "recommended_template_id" not in ask(PYTHON, GO, signals=None)
    assert ask(PYTHON, GO, query="go", signals=None)["recommended_template_id"] == "go"


def test_only_template_there_is_is_recommended() -> None:
    assert ask(GO, signals=None)["recommended_template_id"] == "go"
    assert "recommended_template_id" not in ask(GO, query="rust")


def test_own_use_outweighs_others_and_fades() -> None:
    fresh = Signals(active=1, last_used_at=NOW - timedelta(days=1), active_users=1)
    faded = Signals(active=1, last_used_at=NOW - timedelta(days=140), active_users=1)

    assert template_ranking.affinity(fresh, now=NOW) > template_ranking.affinity(users(1000), now=NOW)
    assert template_ranking.affinity(faded, now=NOW) < 1
    assert template_ranking.affinity(Signals(active=2, last_used_at=NOW + timedelta(days=3)), now=NOW) == 20.0
    assert template_ranking.affinity(Signals(deleted=1, last_used_at=NOW - timedelta(days=14)), now=NOW) == 2.5


def test_pages_hold_ten_and_say_what_follows() -> None:
    facts = [Facts(f"t{number:02}") for number in range(23)]

    pages = [ask(*facts, page=page) for page in (0, 1, 2, 3, 4)]

    assert [len(page["templates"]) for page in pages] == [10, 10, 10, 3, 0]
    assert [page.get("next_page") for page in pages] == [2, 2, 3, None, None]
    assert ids(pages[3]) == ["t20", "t21", "t22"]


def test_nothing_found_says_what_to_do() -> None:
    assert "without a query" in ask(GO, PYTHON, query="cobol")["next_step"]
    assert "administrator" in ask()["next_step"]


def test_item_leaves_out_what_says_nothing() -> None:
    (item,) = ask(Facts("go", description="d" * 500))["templates"]

    assert set(item) == {"id", "name", "description"}
    assert len(item["description"]) == 200


def test_excerpt_is_plain_text_without_front_matter() -> None:
    readme = "---\ntitle: x\n---\n# Hello **you**\n\n<!-- hidden -->See [docs](http://a) ![pic](b)\n```sh\nls\n```\n"

    assert template_ranking.excerpt(readme) == "Hello you\n\nSee docs pic\n\nls"
    assert template_ranking.excerpt("---\nnot closed") == "---\nnot closed"
    assert len(template_ranking.excerpt("word " * 1000)) <= 1000
