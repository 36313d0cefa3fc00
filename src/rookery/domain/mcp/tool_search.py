"""Search over the tools of MCP servers whose definitions are left out of the prompt.

Many tools cost many tokens in every request. Above a limit, their definitions are left out. Instead, the tool
`find_tools` has a catalog of them, searches them by words, and activates their definitions for the next steps. The
catalog and the active definitions together cost at most a tenth of the model's window.

The set of active tools is computed from the history alone, so every replica computes the same set.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

FIND_TOOLS = "find_tools"
MAX_QUERIES = 10
MAX_QUERY_TOKENS = 16
MAX_NAMES = 40
MAX_MATCHES = 20
# Assumed for models whose window is unknown.
UNKNOWN_WINDOW_TOKENS = 64_000
# JSON schemas have about this many bytes per token.
BYTES_PER_TOKEN = 2.5
_SHARE = 10
_MAX_CATALOG_TOKENS = 4000
_SUMMARY_CHARS = 80
# Enough for a search. Descriptions of servers may be long.
_MAX_TEXT = 4000

_NAME_TOKEN, _IN_NAME, _IN_DESCRIPTION, _IN_PARAMETERS, _IN_SERVER, _BARE_SCOPE = 8, 5, 2, 1, 1, 1
_words = re.compile(r"[^\W_]+")
_humps = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class ToolSearch(StrEnum):
    """The setting `mcp.tool_search`. `auto` defers the tools if they cost more than a tenth of the window."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Candidate(msgspec.Struct, frozen=True):
    """A tool that may be deferred. `name` is the name for the model, and `size_bytes` is the size of its definition.

    `parameters` are the names and descriptions of its arguments.
    """

    name: str
    server: str
    description: str = ""
    parameters: str = ""
    size_bytes: int = 0


class Use(msgspec.Struct, frozen=True):
    """The effects of one answer of the model: the tools that it called, the calls that failed, and the tools that it
    found.
    """

    called: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    activated: tuple[str, ...] = ()


def is_deferred(setting: ToolSearch, candidates: Collection[Candidate], *, context_limit: int | None) -> bool:
    if not candidates or setting is ToolSearch.NEVER:
        return False
    if setting is ToolSearch.ALWAYS:
        return True
    return sum(each.size_bytes for each in candidates) > budget_bytes(context_limit)


def budget_bytes(context_limit: int | None) -> int:
    """Return the size that all tools of MCP servers may have in a prompt."""
    return int(_window(context_limit) // _SHARE * BYTES_PER_TOKEN)


def catalog_bytes(context_limit: int | None) -> int:
    """Return the size that the catalog may have: at most half of the budget."""
    return int(min(_MAX_CATALOG_TOKENS, _window(context_limit) // _SHARE // 2) * BYTES_PER_TOKEN)


def _window(context_limit: int | None) -> int:
    return context_limit if context_limit is not None and context_limit > 0 else UNKNOWN_WINDOW_TOKENS


# The catalog


def catalog(candidates: Iterable[Candidate], *, max_bytes: int) -> str:
    """Return the list of the tools by server, in the most detailed form that fits: with summaries, names, or counts."""
    servers: dict[str, list[Candidate]] = {}
    for each in sorted(candidates, key=lambda each: (each.server, each.name)):
        servers.setdefault(each.server, []).append(each)
    total = sum(map(len, servers.values()))
    for form in (_detailed, _names, _counts):
        text = "\n".join(form(server, tools) for server, tools in servers.items())
        if len(text.encode("utf-8", "replace")) <= max_bytes:
            return text
    return f"{_number(total, 'tool')} of {_number(len(servers), 'server')}."


def _detailed(server: str, tools: Sequence[Candidate]) -> str:
    lines = [f"{server}:"]
    for tool in tools:
        short = summary(tool.description)
        lines.append(f"- {tool.name} - {short}" if short else f"- {tool.name}")
    return "\n".join(lines)


def _names(server: str, tools: Sequence[Candidate]) -> str:
    return f"{server}: {', '.join(tool.name for tool in tools)}"


def _counts(server: str, tools: Sequence[Candidate]) -> str:
    return f"{server}: {_number(len(tools), 'tool')}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def summary(description: str) -> str:
    """Return the beginning of a description, on one line."""
    line = " ".join(description[:_MAX_TEXT].split())
    if len(line) <= _SUMMARY_CHARS:
        return line
    return line[: _SUMMARY_CHARS - 3].rstrip() + "..."


# The search


def search(
    candidates: Sequence[Candidate], *, queries: Sequence[str] = (), names: Sequence[str] = ()
) -> tuple[Candidate, ...]:
    """Return the best matches: the named tools first, in the order of the names, then the tools with the best scores.

    A query `SERVER: words` searches the tools of that server only. The score of a tool is that of its best query.
    """
    known = {each.name: each for each in candidates}
    found = {name: known[name] for name in names[:MAX_NAMES] if name in known}
    servers = {each.server for each in candidates}
    indexed = [_Indexed(each) for each in candidates] if queries else []
    scores: dict[str, int] = {}
    for query in queries[:MAX_QUERIES]:
        scope, terms = _scope(query, servers)
        tokens = tokens_of(terms)[:MAX_QUERY_TOKENS]
        for each in indexed:
            if scope is not None and each.candidate.server != scope:
                continue
            score = each.score(tokens) if tokens else (_BARE_SCOPE if scope is not None else 0)
            if score > scores.get(each.candidate.name, 0):
                scores[each.candidate.name] = score
    for name in sorted(scores, key=lambda name: (-scores[name], name)):
        found.setdefault(name, known[name])
    return tuple(found.values())[:MAX_MATCHES]


class _Indexed:
    """The case-folded texts of a tool, so that they are folded only once for several queries."""

    __slots__ = ("_description", "_name", "_parameters", "_server", "_tokens", "candidate")

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self._tokens = frozenset(tokens_of(candidate.name))
        self._name = candidate.name.casefold()
        self._description = candidate.description[:_MAX_TEXT].casefold()
        self._parameters = candidate.parameters[:_MAX_TEXT].casefold()
        self._server = candidate.server.casefold()

    def score(self, tokens: Iterable[str]) -> int:
        total = 0
        for token in tokens:
            if token in self._tokens:
                total += _NAME_TOKEN
            elif token in self._name:
                total += _IN_NAME
            total += _IN_DESCRIPTION * (token in self._description)
            total += _IN_PARAMETERS * (token in self._parameters)
            total += _IN_SERVER * (token in self._server)
        return total


def tokens_of(text: str) -> list[str]:
    """Return the words of a text, folded, without repetitions. Words in camel case are split."""
    spaced = _humps.sub(" ", text[:_MAX_TEXT])
    return list(dict.fromkeys(word.casefold() for word in _words.findall(spaced)))


def _scope(query: str, servers: Collection[str]) -> tuple[str | None, str]:
    """Return the server that a query names, and the words after it. The longest matching name is used, then the exact
    case.
    """
    best: tuple[int, bool, str] | None = None
    for server in servers:
        prefix = query.lstrip()[: len(server) + 1]
        if not prefix.endswith(":") or prefix[:-1].casefold() != server.casefold():
            continue
        rank = (len(server), prefix[:-1] == server, server)
        best = rank if best is None else max(best, rank)
    if best is None:
        return None, query
    return best[2], query.lstrip()[best[0] + 1 :]


# The active tools


def active(history: Iterable[Use], sizes: Mapping[str, int], *, max_bytes: int) -> frozenset[str]:
    """Return the tools whose definitions are in the prompt. `history` begins with the newest answer.

    Within an answer, called tools come before found ones, and tools whose call failed come last. The newest activation
    is always kept; the oldest are dropped. `sizes` has the size of each deferred tool; other names are ignored.
    """
    chosen: dict[str, None] = {}
    failed: list[str] = []
    total = 0
    for use in history:
        for name in (*use.called, *use.activated):
            if name in chosen or name not in sizes:
                continue
            total += sizes[name]
            if chosen and total > max_bytes:
                return frozenset(chosen)
            chosen[name] = None
        failed += use.failed
    for name in failed:
        if name in chosen or name not in sizes:
            continue
        total += sizes[name]
        if chosen and total > max_bytes:
            break
        chosen[name] = None
    return frozenset(chosen)


def activate(
    matches: Sequence[Candidate], *, called: Collection[str], sizes: Mapping[str, int], max_bytes: int
) -> tuple[str, ...]:
    """Return the matches that a search activates, sorted by name; none if the budget has no room for one.

    `called` are the tools that the same answer has called successfully. They take precedence.
    """
    counted = {name for name in called if name in sizes}
    total = sum(sizes[name] for name in counted)
    chosen: list[str] = []
    for match in matches:
        if match.name in counted:
            chosen.append(match.name)
        elif total + match.size_bytes <= max_bytes or not (chosen or counted):
            chosen.append(match.name)
            total += match.size_bytes
    return tuple(sorted(chosen))
