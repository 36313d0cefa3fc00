"""What the docs say about the code is made from the code, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rookery.chat import transitions

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)")


def test_transition_table_in_the_docs_is_current() -> None:
    page = ROOT / "docs" / "reference" / "transitions.md"

    assert page.read_text() == transitions.reference_markdown(), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_shows_both_commands() -> None:
    text = (ROOT / "README.md").read_text()

    assert "make serve" in text
    assert "make test" in text


@pytest.mark.parametrize("target", ["serve", "test", "lint", "types", "fmt", "bench", "lock", "docs", "clean"])
def test_make_help_has_one_line_for_each_target(target: str) -> None:
    lines = re.findall(rf"^{target}:.*## (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert len(lines) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_placeholder_left(page: Path) -> None:
    assert not re.search(r"@@|TODO|TBD|XXX", page.read_text())


def test_commands_that_prove_the_facts_name_files_that_exist() -> None:
    named = re.findall(r"pytest (tests/\S+?)`", (ROOT / "README.md").read_text())

    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
