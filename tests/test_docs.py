"""Checks of the docs: generated pages are current, named files and functions exist, links work."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

import rookery
from rookery.domain.chat import transitions

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
DATA_BLOCK = re.compile(r"^```(toml|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARSERS = {"toml": tomllib.loads, "json": json.loads}


def test_transition_table_in_the_docs_is_current() -> None:
    page = ROOT / "docs" / "reference" / "transitions.md"

    assert page.read_text() == transitions.reference_markdown(), "run: make docs"


def test_relative_links_lead_to_files() -> None:
    targets = [(page, target) for page in PAGES for target in LINK.findall(page.read_text()) if "://" not in target]

    assert [(page.name, target) for page, target in targets if not (page.parent / target).exists()] == []


def test_links_into_a_page_lead_to_one_of_its_headings() -> None:
    targets = [
        (page.parent / path if path else page, anchor)
        for page in PAGES
        for path, anchor in ANCHOR.findall(page.read_text())
        if "://" not in path
    ]

    assert [(target.name, anchor) for target, anchor in targets if anchor not in anchors(target)] == []


def test_toml_and_json_blocks_can_be_parsed() -> None:
    blocks = [(page, *block) for page in PAGES for block in DATA_BLOCK.findall(page.read_text())]

    assert {kind for _, kind, _ in blocks} == {"toml", "json"}
    assert [(page.name, text) for page, kind, text in blocks if not is_valid(kind, text)] == []


def is_valid(kind: str, text: str) -> bool:
    """Return whether a block can be parsed."""
    try:
        PARSERS[kind](text)
    except ValueError:
        return False
    return True


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


def test_every_package_and_module_at_the_top_is_on_the_map() -> None:
    source = Path(rookery.__file__).parent
    tree = (ROOT / "docs" / "architecture.md").read_text().split("```")[1]

    packages = {f"{each.parent.name}/" for each in source.glob("*/__init__.py")}
    modules = {each.stem for each in source.glob("*.py") if not each.stem.startswith("__")}
    assert {name for name in packages if not re.search(rf"^  {name} ", tree, re.MULTILINE)} == set()
    assert {name for name in modules if not re.search(rf"\b{name}\b", tree)} == set()


def test_paths_in_the_architecture_page_name_files_and_functions_that_exist() -> None:
    source = Path(rookery.__file__).parent
    text = (ROOT / "docs" / "architecture.md").read_text()
    hops = re.findall(r"^\| \d+ \| `(\S+\.py)` \| `([\w.]+)` \|", text, re.MULTILINE)

    assert len(hops) > 30
    assert [hop for hop in hops if not defines(source / hop[0], hop[1])] == []
    named = set(re.findall(r"`([\w/]+/\w+\.(?:py|ts))`", text))
    assert {path for path in named if not any((base / path).exists() for base in (source, ROOT))} == set()


def defines(path: Path, name: str) -> bool:
    """Return whether a module defines a function: at its top level, in a class ("Class.method") or in a function."""
    owner, _, function = name.rpartition(".")
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    owners = [node for node in ast.walk(tree) if not owner or (isinstance(node, ast.ClassDef) and node.name == owner)]
    children = [node for each in owners for node in ast.iter_child_nodes(each)]
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function for node in children)


def test_paths_in_the_table_of_what_to_touch_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("| To add | Touch |") :].split("\n\n")[0]
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*|\w+\.toml)`", table)

    assert len(named) > 15
    source = Path(rookery.__file__).parent
    assert [path for path in named if not any((base / path).exists() for base in (source, ROOT))] == []


def test_readme_shows_both_commands() -> None:
    text = (ROOT / "README.md").read_text()

    assert "make serve" in text
    assert "make test" in text


@pytest.mark.parametrize("target", ["serve", "test", "lint", "types", "fmt", "bench", "lock", "docs", "clean"])
def test_make_help_has_one_line_for_each_target(target: str) -> None:
    lines = re.findall(rf"^{target}:.*## (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert len(lines) == 1


def test_pages_have_no_placeholder_left() -> None:
    assert [page.name for page in PAGES if re.search(r"@@|TODO|TBD|XXX", page.read_text())] == []


def test_commands_that_prove_the_facts_name_files_that_exist() -> None:
    named = re.findall(r"pytest (tests/\S+?)`", (ROOT / "README.md").read_text())

    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_promise_of_the_threat_model_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "guide" / "threat-model.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)

    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]

    assert len(named) > 40
    assert missing == []


def test_metrics_named_in_the_operations_pages_exist() -> None:
    metric = re.compile(r"`((?:rookery|process)_[a-z_]+)")
    known = set(metric.findall((ROOT / "docs" / "reference" / "metrics.md").read_text()))
    pages = {page.name: set(metric.findall(page.read_text())) for page in (ROOT / "docs" / "operations").glob("*.md")}

    assert len(pages["sizing.md"]) > 10
    assert {name: named - known for name, named in pages.items() if named - known} == {}
