"""Validation of titles, turn labels and summaries that a model has written, and their fallbacks.

A text that breaks the rules is refused (None), and the fallback stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rookery.domain.chat.parts import FileReference, Part, Text

MAX_TITLE = 80
MAX_TITLE_WORDS = 8
FALLBACK_WORDS = 6
EMPTY_TITLE = "New chat"

FINISHED_LABEL = "Turn finished"
STOPPED_LABEL = "Stopped"
WAITING_LABEL = "Waiting for input"
LABEL_WORDS = (2, 5)
MAX_SUMMARY = 1000
MAX_SUMMARY_SENTENCES = 6
MAX_REPORT = 300
MAX_REPORT_SENTENCES = 3

_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
# A label describes the state of the work, so a label is refused if it begins with a word for the agent.
_ABOUT_THE_AGENT = re.compile(r"(?:the\s+)?(?:agent|assistant|i|it|the|we)\b", re.IGNORECASE)
_MARKDOWN = re.compile(r"[*_`#>]+|\[([^\]]*)\]\([^)]*\)")
# Longer than the shown text with its markup. Many open brackets in a long paragraph would be searched many times.
_MAX_PARAGRAPH = 4096
_NOT_PROSE = re.compile(r"\s*(?:#|[-*+] |\d+[.)] |\||```|~~~|<)")


def title_text(parts: Iterable[Part]) -> str:
    """Return the text of a message from which a title is made: its texts and quoted files, in order."""
    pieces = []
    for part in parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, FileReference):
            pieces.append(f"{part.file_name}: {part.content}" if part.content.strip() else part.file_name)
    return _one_line(" ".join(pieces))


def fallback_title(text: str) -> str:
    """Return the first words of a message, used until a model has suggested a title."""
    return _first_words(text, mark="\N{HORIZONTAL ELLIPSIS}")


def given_title(text: str) -> str | None:
    """Return a title that was chosen for a chat, on one line and cut to its limit; None if it is blank."""
    title = _one_line(text)
    if len(title) > MAX_TITLE:
        title = title[: MAX_TITLE - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    return title or None


def is_fallback_title(title: str, text: str) -> bool:
    """Return whether the title is still the fallback."""
    # Older versions cut titles with three dots.
    return title in ("", EMPTY_TITLE, fallback_title(text), _first_words(text, mark="..."))


def clean_title(answer: str) -> str | None:
    """Return a model's title without quotes and line breaks; None if it is empty or too long."""
    title = _one_line(answer).strip(_QUOTES + " ").rstrip(".")
    if not 1 <= len(title.split()) <= MAX_TITLE_WORDS or len(title) > MAX_TITLE:
        return None
    return title


def clean_label(answer: str) -> str | None:
    """Return a model's label without quotes; None unless it has two to five words about the state of the work."""
    if "\n" in answer.strip():
        return None
    label = _one_line(answer).strip(_QUOTES + " ").rstrip(".")
    least, most = LABEL_WORDS
    if not least <= len(label.split()) <= most or _SENTENCE_END.search(label) or _ABOUT_THE_AGENT.match(label):
        return None
    return label


def clean_summary(answer: str) -> str | None:
    """Return a model's summary in one line; None if it has over a thousand characters or six sentences."""
    summary = _one_line(answer)
    if not summary or len(summary) > MAX_SUMMARY or len(_SENTENCE_END.split(summary)) > MAX_SUMMARY_SENTENCES:
        return None
    return summary


def report_summary(report: str) -> str | None:
    """Return the first paragraph of prose of a subagent's report, without markup."""
    for paragraph in re.split(r"\n\s*\n", report):
        if _NOT_PROSE.match(paragraph) or not paragraph.strip():
            continue
        plain = _one_line(_MARKDOWN.sub(r"\1", paragraph[:_MAX_PARAGRAPH]))
        short = " ".join(_SENTENCE_END.split(plain)[:MAX_REPORT_SENTENCES])
        return short if len(short) <= MAX_REPORT else short[: MAX_REPORT - 3].rstrip() + "..."
    return None


def head_and_tail(text: str, limit: int) -> str:
    """Return the text. If it is longer than the limit, return its beginning and end around a mark."""
    if len(text) <= limit:
        return text
    mark = f"\n[... {len(text) - limit} characters omitted ...]\n"
    keep = max(0, limit - len(mark))
    head = keep * 2 // 3
    return text[:head] + mark + (text[-(keep - head) :] if keep > head else "")


def transcript(turns: Sequence[tuple[str, str]], *, per_turn: int, limit: int) -> str:
    """Return pairs of speaker and text as lines for a model, with a limit per turn and in total."""
    lines = [f"{who}: {head_and_tail(_trimmed(what), per_turn)}" for who, what in turns if what.strip()]
    return head_and_tail("\n\n".join(lines), limit)


def _first_words(text: str, *, mark: str) -> str:
    words = _one_line(text).split()
    if not words:
        return EMPTY_TITLE
    short = " ".join(words[:FALLBACK_WORDS])
    is_cut = len(words) > FALLBACK_WORDS or len(short) > MAX_TITLE
    return short[: MAX_TITLE - len(mark)].rstrip() + mark if is_cut else short


def _trimmed(text: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", text.strip())


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
