"""Words that are not used in texts for people: unclear words, British spelling, messages of validators.

The texts are the docs (decisions are history and stay as they are), the docstrings, comments and messages of the
source, and the web application. Names in Python code do not count.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "Makefile",
        *ROOT.glob("*.md"),
        *(page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts),
        *(ROOT / "templates").rglob("*.md"),
    ]
)
SOURCES = sorted((ROOT / "src" / "rookery").rglob("*.py"))
SCRIPTS = sorted(
    path for path in (ROOT / "web" / "src").rglob("*.ts*") if ".test." not in path.name and "testing" not in path.parts
)

# Write "again", and name the role: user, caller, worker, replica.
UNCLEAR = r"anew|of its own accord|somebody|nobody|anybody|whoever|whosoever|whatsoever|rested for"
# Say who has reached which limit, and what to do.
RIDDLES = r"is used up|may (?:more|never) than|may these|may this \w+ run"
# codespell does not know these.
BRITISH = (
    r"(?:col|behavi|fav|hon|neighb|lab)our\w*"
    r"|(?:[sS]ummar|general|recogn|organ|initial|normal|serial|optim|author|emphas|minim)is(?:e|es|ed|ing|ations?)"
    r"|analys(?:e|es|ed|ing)|catalogues?|centres?|greys?|artefacts?|licences?|whilst|amongst|(?:lab|mod)ell(?:ed|ing)"
    r"|programmes?|(?:lower|upper)-case"
)
# Messages of a validator, which users would have to translate.
VALIDATOR = r"Input should be|(?:String|List|Value) should|Field required|Extra inputs are not permitted"
WORDS = re.compile(rf"\b(?:{UNCLEAR}|{RIDDLES}|{BRITISH}|{VALIDATOR})\b", re.IGNORECASE)

# A text by which stored summaries are recognized, the account of Unix, and messages of the server that a fake imitates.
ALLOWED = {
    ("src/rookery/domain/chat/compaction.py", "summarised"),
    ("src/rookery/store/db/embedded/os_account.py", "nobody"),
    ("src/rookery/workspaces/drivers/launcher/bwrap_arguments.py", "nobody"),
    ("docs/operations/sandbox.md", "nobody"),
    *(
        ("src/rookery/testing/fake_anthropic_checks.py", message)
        for message in ("Field required", "Input should be", "Extra inputs are not permitted")
    ),
}


def texts(path: Path) -> Iterator[str]:
    """Yield the docstrings, comments and strings of a module."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def unclear(path: Path, found: Iterator[str]) -> list[tuple[str, str, str]]:
    name = path.relative_to(ROOT).as_posix()
    return [
        (name, word[0], text[max(0, word.start() - 40) : word.end() + 40])
        for text in found
        for word in WORDS.finditer(text)
        if (name, word[0]) not in ALLOWED
    ]


@pytest.mark.parametrize(
    "word",
    [
        "anew",
        "Somebody",
        "behaviour",
        "summarised",
        "colours",
        "lower-case",
        "is used up",
        "String should match pattern",
    ],
)
def test_words_of_the_list_are_found(word: str) -> None:
    assert WORDS.search(f"It is {word} here.")


def test_pages_have_no_unclear_words() -> None:
    assert [hit for page in PAGES for hit in unclear(page, iter([page.read_text()]))] == []


def test_docstrings_comments_and_messages_have_no_unclear_words() -> None:
    assert [hit for path in SOURCES for hit in unclear(path, texts(path))] == []


def test_web_application_has_no_unclear_words() -> None:
    assert [hit for path in SCRIPTS for hit in unclear(path, iter([path.read_text()]))] == []
