"""Which tool calls may run, which have to be asked about, which never run. Pure: rules and a call in, a verdict out.

Rules that permit match narrowly and rules that restrict match broadly, so that whatever a pattern did not foresee is
asked about rather than run (docs/decisions/0026). The globs know `*` (any run of characters), `?` (one character) and
a backslash before a character that stands for itself; they match a whole value.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.chat import patterns
from rookery.chat.errors import ApprovalRejected, InvalidInput
from rookery.chat.patterns import Texts, literal

MAX_RULES = 200  # of one source
MAX_MATCHES = 16
MAX_PATTERN = patterns.MAX_CHARS
MAX_REASON = 1000
# Longer values match every rule that restricts their tool, and none that permits it.
MAX_VALUE_BYTES = 16 * 1024
# What judging one call may take, in about nanoseconds: what is left over then counts as too long.
MAX_WORK = 20_000_000
# Rules that an older version has stored may have longer patterns. They can be read, and `find_problem` names them.
_MAX_STORED_PATTERN = 2000
_MAX_STRINGS_CHARS = 3 * MAX_VALUE_BYTES
# How far the first character of JSON in a text is looked for.
_INDENT = 1024
_LARGE = 1 << 64

T = TypeVar("T")
# Arguments that only describe a call, or say how long to wait for it: another time they are different.
_DESCRIPTIVE = frozenset({"model_intent", "timeout", "wait_timeout"})


class RuleAction(StrEnum):
    """What a rule does with a call that it matches, the strongest first.

    `always` answers beforehand what would be asked; it is what "do not ask again" leaves behind.
    """

    DENY = "deny"
    ALWAYS = "always"
    ASK = "ask"
    ALLOW = "allow"


class Default(StrEnum):
    """What becomes of calls that no rule matches."""

    ALLOW = "allow"
    ASK = "ask"


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Decision(StrEnum):
    """What a person answers."""

    APPROVE = "approve"
    DENY = "deny"


class Scope(StrEnum):
    """Where an answer holds from now on: in this chat and its subagents, or in all chats of its owner."""

    CHAT = "chat"
    USER = "user"


Pattern: TypeAlias = Annotated[str, Meta(max_length=_MAX_STORED_PATTERN)]
# From the path of an argument, its names joined by dots, to the glob that its value must match.
Match: TypeAlias = Annotated[dict[Annotated[str, Meta(min_length=1, max_length=200)], Pattern], Meta(max_length=16)]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tool` is a glob over the tool's name, `mcp:SERVER/TOOL` for tools of MCP servers. Every path in `match` has to
    match; arguments it does not name may be anything. `reason` is told to the model when the rule denies.

    `problem` is there for a stored rule that is not valid any more: it counts for every call of its tool if it
    restricts, and for none if it permits. A field that this version does not know may narrow the rule: such a rule
    cannot be read.
    """

    tool: Annotated[str, Meta(min_length=1, max_length=200)]
    action: RuleAction
    match: Match = {}
    reason: Annotated[str, Meta(max_length=MAX_REASON)] = ""
    problem: str | UnsetType | None = UNSET


Rules: TypeAlias = Annotated[tuple[Rule, ...], Meta(max_length=MAX_RULES)]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All rules that hold for a chat. Without `may_remember`, `always` counts for nothing."""

    rules: tuple[Rule, ...] = ()
    default: Default = Default.ALLOW
    may_remember: bool = True

    @property
    def is_open(self) -> bool:
        """Whether every call runs, whatever it is."""
        return self.default is Default.ALLOW and all(rule.action not in _RESTRICTING for rule in self.rules)


# For rules that somebody wrote and nobody can read: everything is asked, and nothing was answered beforehand.
UNREADABLE = Policy(default=Default.ASK, may_remember=False)


class Judgement(msgspec.Struct, frozen=True):
    """`rule` is what decided; None for the default."""

    verdict: Verdict
    rule: Rule | None = None


class Offers(msgspec.Struct, frozen=True):
    """What "always" would permit: in this chat whatever the question was about, for the user this very call.

    None where no pattern says it exactly, because the call is too long for one, say; then one has to be given. `tool`
    is what the rule names instead of the tool's own name, for tools of MCP servers.
    """

    chat: dict[str, str] | None = None
    user: dict[str, str] | None = None
    tool: str | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A person's answer to one question. With `always` it becomes a rule, over `match` or what was offered."""

    tool_call_id: str
    decision: Decision
    reason: str = ""
    always: Scope | None = None
    match: dict[str, str] | None = None


_RESTRICTING = frozenset({RuleAction.DENY, RuleAction.ASK})
_STRENGTH = {action: place for place, action in enumerate(RuleAction)}


def judge(policy: Policy, names: Collection[str], args: object) -> Judgement:
    """What becomes of a call. `names` are the tool's name as called and as it is now; `args` is the decoded object.

    A tool of an MCP server has its reserved name (`mcp_name`) among them. Arguments that are no object match every
    rule that restricts their tool, and none that permits it.
    """
    return _drained(judging(policy, names, args))


def judging(policy: Policy, names: Collection[str], args: object) -> Generator[None, None, Judgement]:
    """The same in steps of at most some milliseconds, for callers who have others to serve in between."""
    called = _Call(tuple(names), args)
    for rule in sorted(policy.rules, key=lambda each: _STRENGTH[each.action]):
        if _counts(rule, policy) and (yield from called.matching(rule)):
            return Judgement(_VERDICTS[rule.action], rule)
    return Judgement(Verdict(policy.default))


_VERDICTS = {
    RuleAction.DENY: Verdict.DENY,
    RuleAction.ALWAYS: Verdict.ALLOW,
    RuleAction.ASK: Verdict.ASK,
    RuleAction.ALLOW: Verdict.ALLOW,
}


def _drained(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _counts(rule: Rule, policy: Policy) -> bool:
    return policy.may_remember or rule.action is not RuleAction.ALWAYS


def matches(rule: Rule, names: Collection[str], args: object) -> bool:
    return _drained(_Call(tuple(names), args).matching(rule))


# What a rule may say


def find_problem(rule: Rule) -> tuple[str, str] | None:
    """Which field of a rule is not taken, and why. Rules of an older version may be stored all the same: then those
    that restrict match every call of their tool, and those that permit match none."""
    if (problem := _tool_problem(rule.tool)) is not None:
        return "tool", problem
    for path, pattern in rule.match.items():
        if (problem := patterns.find_problem(pattern)) is not None:
            return f"match.{path}", problem
    return None


def shown(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules as people see them, each with what is wrong with it."""
    return tuple(_with_problem(rule) for rule in rules)


def _with_problem(rule: Rule) -> Rule:
    found = find_problem(rule)
    return msgspec.structs.replace(rule, problem=UNSET if found is None else f"{found[0]}: {found[1]}")


def _tool_problem(tool: str) -> str | None:
    if tool[: len(MCP)].lower() == MCP and not _OF_SERVER.fullmatch(tool):
        return f"Tools of MCP servers are named {MCP}SERVER/TOOL. {MCP}*/* stands for all of them."
    return patterns.find_problem(tool)


# Tools of MCP servers. Their names are a stranger's: they are matched under a form that no other tool can have.


MCP = "mcp:"
_OF_SERVER = re.compile(r"mcp:[^/]+/[^/]+", re.DOTALL)


def mcp_name(server: str, tool: str) -> str:
    """The name of an MCP server's tool in rules. What is no letter, digit or one of `_.-~` is percent-encoded."""
    return f"{MCP}{quote(server, safe='')}/{quote(tool, safe='')}"


@functools.lru_cache(maxsize=8192)
def _is_tool(pattern: str, names: tuple[str, ...], is_restricting: bool) -> bool:
    """Whether a rule is about a tool. One that permits has to name an MCP server's tool as such."""
    if is_restricting:
        return any(patterns.matches(pattern, name, is_narrow=False) for name in names)
    of_server = [name for name in names if name.startswith(MCP)]
    if not of_server:
        return bool(names) and all(_is_exactly(pattern, name) for name in names)
    if not pattern.startswith(MCP):
        return False
    server, _, tool = pattern.removeprefix(MCP).partition("/")
    given_server, _, given_tool = of_server[0].removeprefix(MCP).partition("/")
    return _is_exactly(server, given_server) and _is_exactly(tool, given_tool)


def _is_exactly(pattern: str, text: str) -> bool:
    return patterns.matches(pattern, text, is_narrow=True)


# Values


def text_of(value: object) -> str:
    """The one text of a JSON value: a string as it is, all else as JSON with sorted keys and no spaces."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


class _TooMuch(Exception):
    """A value is too long to be judged, or judging the call has taken all the work it may take."""


class _Values(msgspec.Struct, frozen=True):
    """What was found under a path, with a text for each value; and whether each branch had one."""

    found: tuple[object, ...]
    is_complete: bool


class _Call:
    """One call, with what judging it has found out so far."""

    def __init__(self, names: tuple[str, ...], args: object) -> None:
        self._names = names
        self._args = args
        self._left = MAX_WORK
        self._values: dict[str, _Values | None] = {}
        self._exact: dict[str, Texts | None] = {}
        self._readings: dict[str, Texts | None] = {}
        self._parsed: dict[str, object] = {}

    def matching(self, rule: Rule) -> Generator[None, None, bool]:
        yield
        is_restricting = rule.action in _RESTRICTING
        if find_problem(rule) is not None:
            return is_restricting and (
                patterns.find_problem(rule.tool) is not None or _is_tool(rule.tool, self._names, is_restricting)
            )
        if not _is_tool(rule.tool, self._names, is_restricting):
            return False
        if not isinstance(self._args, Mapping):
            return is_restricting
        for path, pattern in rule.match.items():
            yield
            try:
                is_match = self._restricts(path, pattern) if is_restricting else self._permits(path, pattern)
            except _TooMuch:
                is_match = is_restricting
            if not is_match:
                return False
        return True

    def _restricts(self, path: str, pattern: str) -> bool:
        if path not in self._readings:
            self._readings[path] = self._kept(path, lambda found: Texts(self._read(found), is_narrow=False))
        return bool(_present(self._readings[path]).match(pattern, self._spend))

    def _permits(self, path: str, pattern: str) -> bool:
        if path not in self._exact:
            self._exact[path] = self._kept(path, lambda found: Texts(list(map(text_of, found)), is_narrow=True))
        texts = _present(self._exact[path])
        values = self._values[path]
        if values is None or not values.found or not values.is_complete:
            return False
        if texts.match(pattern, self._spend) != texts.ends:
            return False
        return not patterns.has_wildcard(pattern) or not any(_parent.search(text_of(each)) for each in values.found)

    def _kept(self, path: str, make: Callable[[tuple[object, ...]], Texts]) -> Texts | None:
        """The texts of a path; None if they are too long."""
        try:
            if path not in self._values:
                self._values[path] = None
                self._values[path] = self._find(path)
            values = _present(self._values[path])
            if not _is_within(values.found, MAX_VALUE_BYTES):
                return None
            texts = make(values.found)
            self._spend(50 * texts.size)
        except _TooMuch:
            return None
        return texts

    def _spend(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise _TooMuch

    def _find(self, path: str) -> _Values:
        """The values under a path, through all items of lists on the way; and whether each branch had one."""
        nodes: list[object] = [self._args]
        is_complete = True
        for name in path.split("."):
            found: list[object] = []
            for node in self._items(nodes):
                if isinstance(node, Mapping) and name in node:
                    found.append(node[name])
                else:
                    is_complete = False
            nodes = found
        return _Values(tuple(nodes), is_complete)

    def _items(self, nodes: Sequence[object]) -> list[object]:
        """Lists give their items. Tools take JSON in a string where a list or an object is declared, so it is read."""
        found: list[object] = []
        waiting = list(reversed(nodes))
        while waiting:
            value = self._unwrapped(waiting.pop())
            self._spend(400)
            if isinstance(value, list | tuple):
                self._spend(20 * len(value))
                waiting.extend(reversed(value))
            else:
                found.append(value)
        return found

    def _unwrapped(self, node: object) -> object:
        if not isinstance(node, str) or node[:_INDENT].lstrip()[:1] not in ("", "{", "["):
            return node
        if len(node) > MAX_VALUE_BYTES:
            raise _TooMuch
        if node in self._parsed:
            return self._parsed[node]
        self._spend(100 * len(node))
        if node.lstrip()[:1] not in ("{", "["):
            return node
        try:
            self._parsed[node] = json.loads(node)
        except (ValueError, RecursionError):
            self._parsed[node] = node
        return self._parsed[node]

    def _read(self, values: Iterable[object]) -> list[str]:
        """The ways in which values may be meant: as they stand, as paths, and as every command within them."""
        whole = [text_of(value) for value in values]
        texts = dict.fromkeys(self._strings(values))
        paths = [posixpath.normpath(text).replace("//", "/") for text in texts if "/" in text]
        return list(dict.fromkeys((*whole, *texts, *paths, *_commands(texts))))

    def _strings(self, values: Iterable[object]) -> list[str]:
        """Every text within, also in JSON that is text itself."""
        found: list[str] = []
        size, nodes = 0, list(values)
        while nodes:
            node = nodes.pop()
            self._spend(400)
            if isinstance(node, Mapping):
                nodes += node.values()
                continue
            if isinstance(node, list | tuple):
                nodes += node
                continue
            found.append(text_of(node))
            size += len(found[-1])
            if size > _MAX_STRINGS_CHARS:
                raise _TooMuch
            if (inner := self._unwrapped(node)) is not node:
                nodes.append(inner)
        return found


def _is_within(values: Iterable[object], max_bytes: int) -> bool:
    """Whether the texts of these values have at most so many bytes together. Looks no further than it has to."""
    left, nodes = max_bytes, list(values)
    while nodes and left >= 0:
        node = nodes.pop()
        if isinstance(node, str):
            # Every character is a byte at least; how many it really is, is asked only of what might fit.
            left -= len(node) if len(node) > left else len(node.encode("utf-8", "replace"))
        elif isinstance(node, Mapping | list | tuple):
            left -= 2 * len(node)
            if left >= 0:
                nodes += [*node.keys(), *node.values()] if isinstance(node, Mapping) else node
        else:
            left -= node.bit_length() // 3 if isinstance(node, int) else len(str(node)) // 2
    return left >= 0


def _present(value: T | None) -> T:
    if value is None:
        raise _TooMuch
    return value


# A path segment that leads up.
_parent = re.compile(r"(?:^|[/\s=:,'\"])\.\.(?:$|[/\s:,'\"])")
# A character that ends a command of a shell and may begin another, or a redirection. Zero is between two texts.
_OPERATORS = re.compile(r"[;&|<>(){}`\n\r$\0]+")
_QUOTES = re.compile(r"[\"'\\]")
_SPACES = re.compile(r"\s+")
_SPACES_IN_LINES = re.compile(r"[^\S\n\r]+")
# What may stand before the command that is meant: assignments, and programs that run what follows them.
_PREFIX = re.compile(
    r"^(?:(?:\w++=\S*+|sudo|doas|env|exec|command|builtin|nohup|nice|time|xargs|then|do|else|if|!) )++", re.MULTILINE
)
_FOLDERS = re.compile(r"^[^ \n]*/", re.MULTILINE)


def _commands(texts: Iterable[str]) -> list[str]:
    """Every command within the texts without quotes: as it stands, and without what precedes its program."""
    joined = _QUOTES.sub("", "\0".join(texts))
    whole = _SPACES.sub(" ", joined).split("\0")
    pieces = _OPERATORS.split(_SPACES_IN_LINES.sub(" ", joined))
    found = dict.fromkeys(command for each in (*whole, *pieces) if (command := each.strip()))
    if not found:
        return []
    lines = "\n".join(found)
    return [*found, *_FOLDERS.sub("", _PREFIX.sub("", lines)).split("\n")]


# Questions and answers


def offers(rule: Rule | None, names: Collection[str], args: object) -> Offers:
    """What "always" may stand for in answer to a question that this rule (None: the default) has raised."""
    of_server = next((name for name in names if name.startswith(MCP)), UNSET)
    exact = _exact(args)
    if rule is None:
        return Offers({}, exact, of_server)
    return Offers(dict(rule.match) if _is_permitted(rule.match, args) else exact, exact, of_server)


def _exact(args: object) -> dict[str, str] | None:
    """This very call: all its arguments, none of which is left to chance. None if a pattern cannot say it."""
    if not isinstance(args, Mapping):
        return None
    told = {name: value for name, value in args.items() if name not in _DESCRIPTIVE}
    is_sayable = told and len(told) <= MAX_MATCHES and all(0 < len(name) <= 200 and "." not in name for name in told)
    if not is_sayable or not all(_is_within((value,), MAX_PATTERN) for value in told.values()):
        return None
    named = {name: literal(text_of(value)) for name, value in told.items()}
    return named if _is_permitted(named, args) else None


def _is_permitted(match: Mapping[str, str], args: object) -> bool:
    return matches(Rule(tool="*", action=RuleAction.ALLOW, match=dict(match)), ("tool",), args)


def remembered(answer: Answer, tool_name: str, args: object, offered: Offers) -> Rule:
    """The rule that an answer leaves behind. It has to cover the very call that it answers."""
    given = answer.match if answer.match is not None else getattr(offered, answer.always or Scope.USER)
    if given is None:
        raise InvalidInput(
            "answers.match",
            "This call is too long or too unusual to be remembered as it is. Approve it once, or say in `match` "
            "which calls are meant.",
        )
    name = offered.tool or tool_name
    try:
        rule = msgspec.convert({"tool": literal(name), "action": "always", "match": given}, type=Rule, str_keys=True)
    except msgspec.ValidationError as error:
        raise InvalidInput("answers.match", f"{error}.") from None
    if (problem := find_problem(rule)) is not None:
        raise InvalidInput(f"answers.{problem[0]}", problem[1])
    if not matches(rule, (name,), args):
        raise InvalidInput("answers.match", "The pattern does not match the call that is answered with it.")
    return rule


def check_answers(pending: Sequence[str], answers: Sequence[Answer]) -> None:
    """Refuse answers that are not to exactly the open questions, given by call id; the first problem wins."""
    seen: set[str] = set()
    for answer in answers:
        if answer.tool_call_id in seen:
            raise ApprovalRejected("duplicate", answer.tool_call_id)
        seen.add(answer.tool_call_id)
    for call_id in pending:
        if call_id not in seen:
            raise ApprovalRejected("missing", call_id)
    for answer in answers:
        if answer.tool_call_id not in pending:
            raise ApprovalRejected("unexpected", answer.tool_call_id)
        if answer.always is not None and answer.decision is not Decision.APPROVE:
            raise InvalidInput("answers.always", "Only an approval can be remembered; rules that deny are settings.")
        if answer.match is not None and answer.always is None:
            raise InvalidInput("answers.match", "A pattern needs to be told how long it holds: `always`.")


def denied_by_user(reason: str) -> str:
    """What the model is told about a call that a person did not want."""
    why = _because(reason)
    return (
        "The user denied this call; it was not run. Do not repeat it, and do not try to get the same done another way."
        f"{why} Go on without it, or ask the user what to do instead."
    )


def denied_by_rule(rule: Rule | None) -> str:
    why = _because("" if rule is None else rule.reason)
    return (
        "A rule of this server or its user denies this call; it was not run. Do not repeat it, and do not try to get "
        f"the same done another way.{why} Go on without it, or tell the user what you would have needed."
    )


def _because(reason: str) -> str:
    """The reason as a sentence between others."""
    told = reason.strip()
    return f" Reason: {told}{'' if told.endswith(('.', '!', '?')) else '.'}" if told else ""
