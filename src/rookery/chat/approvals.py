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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from rookery.chat.errors import ApprovalRejected, InvalidInput

MAX_RULES = 200  # of one source
MAX_MATCHES = 16
MAX_PATTERN = 2000
MAX_REASON = 1000
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


Pattern: TypeAlias = Annotated[str, Meta(max_length=MAX_PATTERN)]
# From the path of an argument, its names joined by dots, to the glob that its value must match.
Match: TypeAlias = Annotated[dict[Annotated[str, Meta(min_length=1, max_length=200)], Pattern], Meta(max_length=16)]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tool` is a glob over the tool's name. Every path in `match` has to match; arguments it does not name may be
    anything. `reason` is told to the model when the rule denies.

    A field that this version does not know may narrow the rule: such a rule cannot be read.
    """

    tool: Annotated[str, Meta(min_length=1, max_length=200)]
    action: RuleAction
    match: Match = {}
    reason: Annotated[str, Meta(max_length=MAX_REASON)] = ""


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

    None where no pattern says it exactly; then one has to be given.
    """

    chat: dict[str, str] | None = None
    user: dict[str, str] | None = None


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

    Arguments that are no object match every rule that restricts their tool, and none that permits it.
    """
    found = [rule for rule in policy.rules if _counts(rule, policy) and matches(rule, names, args)]
    if not found:
        return Judgement(Verdict(policy.default))
    strongest = min(found, key=lambda rule: _STRENGTH[rule.action])
    match strongest.action:
        case RuleAction.DENY:
            return Judgement(Verdict.DENY, strongest)
        case RuleAction.ASK:
            return Judgement(Verdict.ASK, strongest)
        case RuleAction.ALWAYS | RuleAction.ALLOW:
            return Judgement(Verdict.ALLOW, strongest)


def _counts(rule: Rule, policy: Policy) -> bool:
    return policy.may_remember or rule.action is not RuleAction.ALWAYS


def matches(rule: Rule, names: Collection[str], args: object) -> bool:
    if rule.action in _RESTRICTING:
        return any(_is_like(rule.tool, name) for name in names) and _is_restricted(rule.match, args)
    return bool(names) and all(_is_exactly(rule.tool, name) for name in names) and _is_permitted(rule.match, args)


def _is_restricted(match: Mapping[str, str], args: object) -> bool:
    if not isinstance(args, Mapping):
        return True
    return all(
        any(_is_like(pattern, text) for value in _find(args, path)[0] for text in _readings(value))
        for path, pattern in match.items()
    )


def _is_permitted(match: Mapping[str, str], args: object) -> bool:
    if not isinstance(args, Mapping):
        return False
    for path, pattern in match.items():
        values, is_complete = _find(args, path)
        if not values or not is_complete or not all(_is_exactly(pattern, text_of(value)) for value in values):
            return False
    return True


# Values


def text_of(value: object) -> str:
    """The one text of a JSON value: a string as it is, all else as JSON with sorted keys and no spaces."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def _find(args: Mapping[str, Any], path: str) -> tuple[list[object], bool]:
    """The values under a path, through all items of lists on the way; and whether each branch had one."""
    nodes: list[object] = [args]
    is_complete = True
    for name in path.split("."):
        found: list[object] = []
        for node in _items(nodes):
            if isinstance(node, Mapping) and name in node:
                found.append(node[name])
            else:
                is_complete = False
        nodes = found
    return nodes, is_complete


def _items(nodes: Iterable[object]) -> Iterator[object]:
    """Lists give their items. Tools take JSON in a string where a list or an object is declared, so it is read."""
    for node in nodes:
        value = _unwrapped(node)
        if isinstance(value, list | tuple):
            yield from _items(value)
        else:
            yield value


def _unwrapped(node: object) -> object:
    if isinstance(node, str) and node.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(node)
        except (ValueError, RecursionError):
            return node
    return node


# A character that ends a command of a shell and may begin another, or a redirection.
_OPERATORS = re.compile(r"[;&|<>(){}`\n\r$]+")
_QUOTES = re.compile(r"[\"'\\]")
_SPACES = re.compile(r"\s+")
# What may stand before the command that is meant: assignments, and programs that run what follows them.
_PREFIX = re.compile(r"(?:(?:\w+=\S*|sudo|doas|env|exec|command|builtin|nohup|nice|time|xargs|then|do|else|if|!)\s+)+")


def _readings(value: object) -> Iterator[str]:
    """The ways in which a value may be meant: as it stands, as a path, and as every command within it."""
    yield text_of(value)
    for text in _strings(value):
        yield text
        if text:
            yield posixpath.normpath(text).replace("//", "/")
        yield from _commands(text)


def _strings(value: object) -> Iterator[str]:
    for item in _items([value]):
        if isinstance(item, Mapping):
            yield from (text for each in item.values() for text in _strings(each))
        else:
            yield text_of(item)
    if isinstance(value, str):
        yield value


def _commands(text: str) -> Iterator[str]:
    for piece in (text, *_OPERATORS.split(text)):
        command = _SPACES.sub(" ", _QUOTES.sub("", piece)).strip()
        if not command:
            continue
        yield command
        bare = _PREFIX.sub("", command, count=1) if _PREFIX.match(command) else command
        program, space, rest = bare.partition(" ")
        yield posixpath.basename(program) + space + rest


# Globs


class _Glob(msgspec.Struct, frozen=True):
    """The literal pieces between the stars, each of a fixed length: matching never takes long, whatever the text."""

    pieces: tuple[re.Pattern[str], ...]
    lengths: tuple[int, ...]
    has_wildcard: bool


# What no wildcard of a permitting rule stands for: control characters, line ends, and what a shell acts on.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u2028\u2029;&|<>$`(){}\\\\"
_unsafe = re.compile(f"[{_UNSAFE}]")
_parent = re.compile(r"(?:^|[/\s=:,'\"])\.\.(?:$|[/\s:,'\"])")


def _is_exactly(pattern: str, text: str) -> bool:
    """For permitting rules."""
    glob = _compiled(pattern, True)
    gaps = _gaps(glob, text)
    if gaps is None:
        return False
    return not glob.has_wildcard or not (_parent.search(text) or any(map(_unsafe.search, gaps)))


def _is_like(pattern: str, text: str) -> bool:
    """For restricting rules."""
    return _gaps(_compiled(pattern, False), text) is not None


def _gaps(glob: _Glob, text: str) -> list[str] | None:
    """What the stars stand for; None if the text does not match."""
    first = glob.pieces[0].match(text)
    if first is None:
        return None
    if len(glob.pieces) == 1:
        return [] if first.end() == len(text) else None
    place, end = first.end(), len(text) - glob.lengths[-1]
    if end < place or glob.pieces[-1].match(text, end) is None:
        return None
    gaps: list[str] = []
    for piece in glob.pieces[1:-1]:
        found = piece.search(text, place, end)
        if found is None:
            return None
        gaps.append(text[place : found.start()])
        place = found.end()
    gaps.append(text[place:end])
    return gaps


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str, is_narrow: bool) -> _Glob:
    one = f"[^{_UNSAFE}]" if is_narrow else "."
    flags = re.DOTALL if is_narrow else re.DOTALL | re.IGNORECASE
    pieces, lengths, current, length, has_wildcard = [], [], "", 0, False
    characters = iter(pattern)
    for character in characters:
        if character == "*":
            pieces.append(current)
            lengths.append(length)
            current, length, has_wildcard = "", 0, True
            continue
        if character == "?":
            current, has_wildcard = current + one, True
        else:
            current += re.escape(next(characters, "\\") if character == "\\" else character)
        length += 1
    return _Glob(tuple(re.compile(piece, flags) for piece in (*pieces, current)), (*lengths, length), has_wildcard)


def literal(text: str) -> str:
    """The glob that matches this text and no other."""
    return re.sub(r"([*?\\])", r"\\\1", text)


# Questions and answers


def offers(rule: Rule | None, names: Collection[str], args: object) -> Offers:
    """What "always" may stand for in answer to a question that this rule (None: the default) has raised."""
    exact = _exact(args)
    if rule is None:
        return Offers({}, exact)
    asked = Rule(tool=rule.tool, action=RuleAction.ALWAYS, match=rule.match)
    return Offers(dict(rule.match) if _is_permitted(asked.match, args) else exact, exact)


def _exact(args: object) -> dict[str, str] | None:
    """This very call: all its arguments, none of which is left to chance."""
    if not isinstance(args, Mapping):
        return None
    named = {name: literal(text_of(value)) for name, value in args.items() if name not in _DESCRIPTIVE}
    is_sayable = named and len(named) <= MAX_MATCHES
    if not is_sayable or any("." in name or not name or len(value) > MAX_PATTERN for name, value in named.items()):
        return None
    return named if _is_permitted(named, args) else None


def remembered(answer: Answer, tool_name: str, args: object, offered: Offers) -> Rule:
    """The rule that an answer leaves behind. It has to cover the very call that it answers."""
    given = answer.match if answer.match is not None else getattr(offered, answer.always or Scope.USER)
    if given is None:
        raise InvalidInput("answers.match", "Say which calls are meant: this one has no pattern of its own.")
    try:
        rule = msgspec.convert(
            {"tool": literal(tool_name), "action": "always", "match": given}, type=Rule, str_keys=True
        )
    except msgspec.ValidationError as error:
        raise InvalidInput("answers.match", f"{error}.") from None
    if not matches(rule, (tool_name,), args):
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
