"""Titles, labels and summaries of the scripted model, made from words of the chat.

The field names of the requested object determine which text is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rookery.domain.chat import titles

MAX_ASKED = 5
MAX_ASKED_WORDS = 12
MAX_ANSWER_WORDS = 25
MAX_PIECE = 120  # characters of a request or an answer in a summary, which has at most six of them

_LABELLED = re.compile(r"\ATitle: (?P<title>[^\n]*)\nState: (?P<state>[^\n]*)\n\n(?P<answer>.*)\Z", re.DOTALL)
_SPEECH = re.compile(r"(?:\A|\n\n)(User|Assistant|Summary of what came before): ")
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_SENTENCE_END = re.compile(r"[.!?:]+(?:\s+|\Z)")
_STUCK = re.compile(r"\bcould be (?:made|started)\b")
_FAILED = re.compile(r"\bfailed\b|\bexit code\b")
_DENIED = re.compile(r"\bden(?:ied|ies) that\b")
_SHORT = ((_DENIED, "Waiting for other instructions"), (_STUCK, "No workspace"), (_FAILED, "Step failed"))


def make_object(schema: Mapping[str, Any], text: str) -> dict[str, object]:
    """Return an object of this schema about the text."""
    properties = schema.get("properties") or {}
    return {name: _value(name, declared, text) for name, declared in properties.items()}


def _value(name: str, schema: object, text: str) -> object:
    kind = schema.get("type") if isinstance(schema, dict) else None
    match kind:
        case "integer" | "number":
            return 0
        case "boolean":
            return False
        case "array":
            return []
        case "object":
            return {}
        case _:
            return _TEXTS.get(name, title)(text)


def title(text: str) -> str:
    """Return a title: the first words of the request."""
    words = text.replace("`", "").split()
    if not words:
        return titles.EMPTY_TITLE
    short = " ".join(words[: titles.MAX_TITLE_WORDS]).strip(".,:;!?")[: titles.MAX_TITLE].rstrip()
    return capitalized(short)


def label(text: str) -> str:
    """Return a label that describes how a turn ended, from the words of its last answer."""
    found = _LABELLED.match(text)
    if found is None:
        return titles.FINISHED_LABEL
    if "decision" in found["state"]:
        return "Waiting for a decision"
    answer = _CODE.sub("", found["answer"])
    for told, short in _SHORT:
        if told.search(answer):
            return short
    # The title is shown above the label, so the label tells the result instead.
    words = _last_sentence(answer).removeprefix("The ").split()
    least, most = titles.LABEL_WORDS
    if not least <= len(words) <= most:
        return titles.FINISHED_LABEL
    return titles.clean_label(capitalized(" ".join(words))) or titles.FINISHED_LABEL


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def summary(text: str) -> str:
    """Return a summary: the user's requests and the end of the last answer."""
    # The first piece is the text before the first speaker. Then speakers and messages alternate.
    pieces = _SPEECH.split(text)
    speeches = list(zip(pieces[1::2], pieces[2::2], strict=True))
    asked = [_words(said, MAX_ASKED_WORDS) for who, said in speeches if who == "User" and said.strip()]
    answers = [said for who, said in speeches if who == "Assistant"]
    told = f"Requests: {'; '.join(asked[-MAX_ASKED:]) or 'none'}."
    end = _last_sentence(answers[-1]) if answers else ""
    return f"{told} Last answer: {end}." if end else told


_TEXTS: Mapping[str, Callable[[str], str]] = {"title": title, "label": label, "summary": summary}


def _last_sentence(answer: str) -> str:
    """Return the first sentence of the last prose paragraph."""
    paragraphs = [each.strip() for each in re.split(r"\n\s*\n", _CODE.sub("", answer))]
    prose = [each for each in paragraphs if each and "\n- " not in each]
    return _words(_SENTENCE_END.split(prose[-1])[0], MAX_ANSWER_WORDS) if prose else ""


def _words(text: str, count: int) -> str:
    """Return at most this many words on one line, without periods."""
    whole = " ".join(_SENTENCE_END.sub(" ", text).split())
    short = " ".join(whole.split()[:count])[:MAX_PIECE].strip(" .,;")
    return short + ("\N{HORIZONTAL ELLIPSIS}" if len(short) < len(whole.strip(" .,;")) else "")
