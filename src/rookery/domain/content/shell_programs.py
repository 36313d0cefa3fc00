"""The programs that a shell command runs, for display only. Approval rules do not use this."""

from __future__ import annotations

import re
import shlex

# Chosen: a longer command is shown as it is.
MAX_CHARS = 10_000
MAX_COMMANDS = 20

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_SEPARATORS = frozenset({"&&", "||", ";", "|", "&", "|&", ";;", "(", ")", "\n"})
_REDIRECT = re.compile(r"\d*(?:>>?|<<?<?|>\||&>>?|<>)&?")
# Keywords of compound commands that a command may follow.
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "{", "}", "!", "time"})
# Keywords whose syntax this parser does not support.
_OPAQUE = frozenset({"for", "case", "select", "function", "coproc", "[["})


def parsed_commands(text: str) -> tuple[tuple[str, ...], ...] | None:
    """Return `(program,)` or `(program, first argument)` for each simple command; None if the text is too complex."""
    if len(text) > MAX_CHARS or "<<" in text or "`" in text or "$(" in text:
        return None
    try:
        words = _words(text)
    except ValueError:
        return None
    commands: list[tuple[str, ...]] = []
    current: list[str] = []
    for word in (*words, ";"):
        if word not in _SEPARATORS:
            current.append(word)
            continue
        if _OPAQUE.intersection(current):
            return None
        if command := _command(current):
            commands.append(command)
        current = []
    return tuple(commands[:MAX_COMMANDS]) or None


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def _command(words: list[str]) -> tuple[str, ...]:
    rest = [word for word in _without_redirects(words) if word]
    while rest and (rest[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(rest[0])):
        rest.pop(0)
    if not rest:
        return ()
    program = rest[0].rsplit("/", 1)[-1] or rest[0]
    positional = next((word for word in rest[1:] if not word.startswith("-")), None)
    return (program,) if positional is None else (program, positional)


def _without_redirects(words: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif _REDIRECT.fullmatch(word):
            skip = True
            if kept and kept[-1].isdigit():
                kept.pop()  # the number of the stream (as in `2>`), which the lexer returns as a word
        else:
            kept.append(word)
    return kept
