"""The reference page of the metrics, and the tables that it is made from."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from rookery.metrics.export import TABLES
from rookery.metrics.prometheus_text import Kind
from rookery.metrics.reference import reference_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
FAMILIES = [family for table in TABLES for family in table.families]


def test_page_in_the_docs_is_current() -> None:
    assert PAGE.read_text() == reference_markdown(), "run: make docs"


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(family.name for family in FAMILIES).items() if count > 1] == []


def test_families_follow_the_rules_of_names() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"[a-z][a-z_]*", family.name)
        assert family.name.endswith("_total") is (family.kind is Kind.COUNTER), family.name
        assert not {"le", "process", "quantile"} & set(family.labels), "these labels have a meaning of their own"
        assert re.fullmatch(r"[A-Z1][^\n|\"\\]*\.", family.help), "one sentence, nothing to escape"
        assert all(len(values) == len(family.labels) for values in family.known), family.name
