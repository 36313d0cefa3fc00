"""Approval rules: decide whether a tool call runs, needs a user's approval, or is denied. Pure.

Rules that permit match narrowly, and rules that restrict match broadly. A call that the author of a pattern did not
foresee therefore needs an approval (docs/decisions/0026). `approval_patterns` describes the patterns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.domain.chat import approval_patterns
from rookery.domain.chat.approval_arguments import CallValues, TooComplex, is_within, text_of
from rookery.domain.chat.approval_patterns import literal
from rookery.domain.chat.elicitation import Elicitation
from rookery.domain.chat.errors import ApprovalRejected, InvalidInput

MAX_RULES = 200  # per source
MAX_MATCHES = 16
MAX_PATTERN = approval_patterns.MAX_CHARS
MAX_REASON = 1000
# Rules of an older version may have longer patterns. They can be read, and `find_problem` reports them.
_MAX_STORED_PATTERN = 2000

T = TypeVar("T")
# Arguments that describe a call or set its time limit. They differ from call to call, so no rule is made of them.
_DESCRIPTIVE = frozenset({"model_intent", "timeout", "wait_timeout"})


class RuleAction(StrEnum):
    """The effects that a rule can have on a matching call, from strongest to weakest.

    `always` approves the call without asking. The answer "do not ask again" creates such a rule.
    """

    DENY = "deny"
    ALWAYS = "always"
    ASK = "ask"
    ALLOW = "allow"


class Default(StrEnum):
    """The effect on calls that no rule matches."""

    ALLOW = "allow"
    ASK = "ask"


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Decision(StrEnum):
    """A user's answer to a question."""

    APPROVE = "approve"
    DENY = "deny"


class Scope(StrEnum):
    """The chats to which a remembered answer applies: the chat and its subagents, or all chats of its owner."""

    CHAT = "chat"
    USER = "user"


Pattern: TypeAlias = Annotated[str, Meta(max_length=_MAX_STORED_PATTERN)]
# Maps the path of an argument (names joined by dots) to the glob that its value must match.
Match: TypeAlias = Annotated[dict[Annotated[str, Meta(min_length=1, max_length=200)], Pattern], Meta(max_length=16)]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An approval rule.

    `tool` is a glob for the tool's name, or `mcp:SERVER/TOOL` for tools of MCP servers. Every path in `match` has to
    match; other arguments may have any value. The model gets `reason` if the rule denies.

    `problem` is set for a stored rule that is no longer valid. If it restricts, it matches every call of its tool. If
    it permits, it matches none. A rule with an unknown field cannot be read, because the field may narrow the rule.
    """

    tool: Annotated[str, Meta(min_length=1, max_length=200)]
    action: RuleAction
    match: Match = {}
    reason: Annotated[str, Meta(max_length=MAX_REASON)] = ""
    problem: str | UnsetType | None = UNSET


Rules: TypeAlias = Annotated[tuple[Rule, ...], Meta(max_length=MAX_RULES)]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All rules that apply to a chat. Without `may_remember`, `always` rules have no effect."""

    rules: tuple[Rule, ...] = ()
    default: Default = Default.ALLOW
    may_remember: bool = True

    @property
    def is_open(self) -> bool:
        """Return whether every call runs without an approval."""
        return self.default is Default.ALLOW and all(rule.action not in _RESTRICTING for rule in self.rules)


# The policy if stored rules cannot be read: every call needs an approval, and earlier answers do not count.
UNREADABLE = Policy(default=Default.ASK, may_remember=False)


class Judgement(msgspec.Struct, frozen=True):
    """The result of judging a call. `rule` is the rule that decided; None if it was the default."""

    verdict: Verdict
    rule: Rule | None = None


class Offers(msgspec.Struct, frozen=True):
    """The patterns of the rule that the answer "always" would create, for each scope.

    `chat` has the patterns of the rule that asked, and `user` those that match exactly this call. They are None if no
    pattern can express them, as for a long call; then the user has to write patterns. `tool` is the name in
    the rule if the tool is one of an MCP server. `program` has a pattern for all commands of the same program, such as
    `git push *`; absent if the call is not such a command.
    """

    chat: dict[str, str] | None = None
    user: dict[str, str] | None = None
    tool: str | UnsetType = UNSET
    program: dict[str, str] | UnsetType = UNSET


class Asked(Offers, frozen=True):
    """The stored facts of a question. `brake` is set if the call is held because it repeats: what happened, and what
    the user can do. `elicitation` is set if the server of the tool asks the user. Such questions have no offers.
    """

    brake: str | UnsetType = UNSET
    elicitation: Elicitation | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A user's answer to one question. With `always`, it creates a rule from `match` or from the offered patterns.

    `responses` are the values for the questions of a tool's server, by question and field.
    """

    tool_call_id: str
    decision: Decision
    reason: str = ""
    always: Scope | None = None
    match: dict[str, str] | None = None
    responses: dict[str, dict[str, Any]] | None = None


_RESTRICTING = frozenset({RuleAction.DENY, RuleAction.ASK})
_STRENGTH = {action: place for place, action in enumerate(RuleAction)}


def judge(policy: Policy, names: Collection[str], args: object) -> Judgement:
    """Judge one call. `names` are the tool's name in the call and its current name. `args` is the decoded object.

    For a tool of an MCP server, `names` includes `mcp_name`. Arguments that are not an object match every rule that
    restricts their tool, and no rule that permits it.
    """
    return _result(judge_sliced(policy, names, args))


def judge_sliced(policy: Policy, names: Collection[str], args: object) -> Generator[None, None, Judgement]:
    """Judge a call in slices of a few milliseconds at most. The caller may run other tasks in between."""
    called, values = tuple(names), _values(args)
    for rule in sorted(policy.rules, key=lambda each: _STRENGTH[each.action]):
        if _counts(rule, policy) and (yield from _match_sliced(rule, called, values)):
            return Judgement(_VERDICTS[rule.action], rule)
    return Judgement(Verdict(policy.default))


_VERDICTS = {
    RuleAction.DENY: Verdict.DENY,
    RuleAction.ALWAYS: Verdict.ALLOW,
    RuleAction.ASK: Verdict.ASK,
    RuleAction.ALLOW: Verdict.ALLOW,
}


def _result(slices: Generator[None, None, T]) -> T:
    """Run all slices and return the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result


def _counts(rule: Rule, policy: Policy) -> bool:
    return policy.may_remember or rule.action is not RuleAction.ALWAYS


def matches(rule: Rule, names: Collection[str], args: object) -> bool:
    return _result(_match_sliced(rule, tuple(names), _values(args)))


def _values(args: object) -> CallValues | None:
    return CallValues(args) if isinstance(args, Mapping) else None


# Validation of rules


def find_problem(rule: Rule) -> tuple[str, str] | None:
    """Return the invalid field of a rule and the reason; None if the rule is valid.

    An older version may have stored an invalid rule. If it restricts, it matches every call of its tool. If it permits,
    it matches none.
    """
    if (problem := _tool_problem(rule.tool)) is not None:
        return "tool", problem
    for path, pattern in rule.match.items():
        if (problem := approval_patterns.find_problem(pattern)) is not None:
            return f"match.{path}", problem
    return None


def with_problems(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules for display, with `problem` set."""
    return tuple(_with_problem(rule) for rule in rules)


def _with_problem(rule: Rule) -> Rule:
    found = find_problem(rule)
    return msgspec.structs.replace(rule, problem=UNSET if found is None else f"{found[0]}: {found[1]}")


def _tool_problem(tool: str) -> str | None:
    if tool[: len(MCP)].lower() == MCP and not _OF_SERVER.fullmatch(tool):
        return f"Tools of MCP servers are named {MCP}SERVER/TOOL. {MCP}*/* stands for all of them."
    return approval_patterns.find_problem(tool)


# Tools of MCP servers. A server may choose any name, so it is matched in a form that no other tool can have.


MCP = "mcp:"
_OF_SERVER = re.compile(r"mcp:[^/]+/[^/]+", re.DOTALL)


def mcp_name(server: str, tool: str) -> str:
    """Return the name of an MCP server's tool in rules.

    Characters other than letters, digits and `_.-~` are escaped as in URLs.
    """
    return f"{MCP}{quote(server, safe='')}/{quote(tool, safe='')}"


@functools.lru_cache(maxsize=8192)
def _is_tool(pattern: str, names: tuple[str, ...], is_restricting: bool) -> bool:
    """Return whether a rule applies to a tool. A rule that permits a tool of an MCP server must name its `mcp_name`."""
    if is_restricting:
        return any(approval_patterns.matches(pattern, name, is_narrow=False) for name in names)
    of_server = [name for name in names if name.startswith(MCP)]
    if not of_server:
        return bool(names) and all(_is_exactly(pattern, name) for name in names)
    if not pattern.startswith(MCP):
        return False
    server, _, tool = pattern.removeprefix(MCP).partition("/")
    given_server, _, given_tool = of_server[0].removeprefix(MCP).partition("/")
    return _is_exactly(server, given_server) and _is_exactly(tool, given_tool)


def _is_exactly(pattern: str, text: str) -> bool:
    return approval_patterns.matches(pattern, text, is_narrow=True)


def _match_sliced(rule: Rule, names: tuple[str, ...], values: CallValues | None) -> Generator[None, None, bool]:
    """Return whether a rule matches a call. `values` is None for arguments that are not an object."""
    yield
    is_restricting = rule.action in _RESTRICTING
    if find_problem(rule) is not None:
        return is_restricting and (
            approval_patterns.find_problem(rule.tool) is not None or _is_tool(rule.tool, names, is_restricting)
        )
    if not _is_tool(rule.tool, names, is_restricting):
        return False
    if values is None:
        return is_restricting
    for path, pattern in rule.match.items():
        yield
        try:
            is_match = values.restricts(path, pattern) if is_restricting else values.permits(path, pattern)
        except TooComplex:
            is_match = is_restricting
        if not is_match:
            return False
    return True


# Questions and answers


def offers(rule: Rule | None, names: Collection[str], args: object) -> Offers:
    """Return the offers for a question. `rule` is the rule that caused it; None if the default caused it."""
    return _result(offers_sliced(rule, names, args))


def offers_sliced(rule: Rule | None, names: Collection[str], args: object) -> Generator[None, None, Offers]:
    """Compute `offers` in slices, as `judge_sliced` does."""
    of_server = next((name for name in names if name.startswith(MCP)), UNSET)
    exact = yield from _exact(args)
    program = yield from _program(args)
    if rule is None:
        return Offers({}, exact, of_server, program)
    is_permitted = yield from _permitted(rule.match, args)
    return Offers(dict(rule.match) if is_permitted else exact, exact, of_server, program)


# Programs that run other programs. A pattern for them would permit any command.
_RUNNERS = frozenset(
    {"bash", "sh", "dash", "zsh", "fish", "ksh", "busybox", "env", "sudo", "doas", "su", "xargs", "exec", "eval"}
    | {"command", "nohup", "nice", "time", "timeout", "watch", "ssh", "docker", "podman", "kubectl", "find", "parallel"}
    | {"python", "python3", "node", "deno", "bun", "perl", "ruby", "php", "lua", "awk", "gawk", "sed", "source", "npx"}
)
# Programs whose first argument names what they do.
_WITH_SUBCOMMANDS = frozenset(
    {"git", "gh", "npm", "pnpm", "yarn", "cargo", "go", "make", "pip", "uv", "poetry", "apt", "apt-get", "brew"}
    | {"systemctl", "terraform", "dotnet", "mvn", "gradle"}
)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]*")


def _program(args: object) -> Generator[None, None, dict[str, str] | UnsetType]:
    """Return a pattern for all commands of the same program; `UNSET` if there is none that is safe to offer."""
    command = args.get("command") if isinstance(args, Mapping) else None
    if not isinstance(command, str):
        return UNSET
    words = command.split(" ")
    taken = 2 if words[0] in _WITH_SUBCOMMANDS else 1
    named, rest = words[:taken], words[taken:]
    if not any(rest) or named[0] in _RUNNERS or not all(_WORD.fullmatch(word) for word in named):
        return UNSET
    match = {"command": f"{literal(' '.join(named))} *"}
    if len(match["command"]) > MAX_PATTERN:
        return UNSET
    return match if (yield from _permitted(match, args)) else UNSET


def _exact(args: object) -> Generator[None, None, dict[str, str] | None]:
    """Return patterns that match exactly this call with all its arguments; None if patterns cannot express it."""
    if not isinstance(args, Mapping):
        return None
    given = {name: value for name, value in args.items() if name not in _DESCRIPTIVE}
    has_paths = given and len(given) <= MAX_MATCHES and all(0 < len(name) <= 200 and "." not in name for name in given)
    if not has_paths or not all(is_within((value,), MAX_PATTERN) for value in given.values()):
        return None
    named = {name: literal(text_of(value)) for name, value in given.items()}
    return named if (yield from _permitted(named, args)) else None


def _permitted(match: Mapping[str, str], args: object) -> Generator[None, None, bool]:
    """Return whether a rule with these patterns permits the call."""
    return (
        yield from _match_sliced(Rule(tool="*", action=RuleAction.ALLOW, match=dict(match)), ("tool",), _values(args))
    )


def rule_of_answer(answer: Answer, tool_name: str, args: object, offered: Offers) -> Rule:
    """Return the rule that an answer creates. The rule must match the call that is answered."""
    return _result(rule_of_answer_sliced(answer, tool_name, args, offered))


def rule_of_answer_sliced(answer: Answer, tool_name: str, args: object, offered: Offers) -> Generator[None, None, Rule]:
    """Compute `rule_of_answer` in slices, as `judge_sliced` does."""
    given = answer.match if answer.match is not None else getattr(offered, answer.always or Scope.USER)
    if given is None:
        raise InvalidInput(
            "answers.match",
            "No pattern can express this call. Approve it once, or write patterns in `match`.",
        )
    name = offered.tool or tool_name
    try:
        rule = msgspec.convert({"tool": literal(name), "action": "always", "match": given}, type=Rule, str_keys=True)
    except msgspec.ValidationError:
        raise InvalidInput(
            "answers.match", f"Name at most 16 arguments, each with a pattern of 1 to {MAX_PATTERN} characters."
        ) from None
    if (problem := find_problem(rule)) is not None:
        raise InvalidInput(f"answers.{problem[0]}", problem[1])
    if not (yield from _match_sliced(rule, (name,), _values(args))):
        raise InvalidInput("answers.match", "The patterns do not match the call that is answered.")
    return rule


def check_answers(pending: Sequence[str], answers: Sequence[Answer]) -> None:
    """Raise `InvalidInput` unless there is exactly one valid answer for each open question."""
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
            raise InvalidInput("answers.always", "Only an approval can be remembered. To deny calls, add a rule.")
        if answer.match is not None and answer.always is None:
            raise InvalidInput("answers.match", "`match` needs `always`, which says for which chats it applies.")


# The reason in the result of a call that a rule denied. That of a call that a user denied is a `CloseReason`.
DENIED_BY_RULE = "denied_by_rule"


def denied_by_user(reason: str) -> str:
    """Return the tool result for a call that a user denied."""
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
    """Return the reason as a sentence with a leading space."""
    text = reason.strip()
    return f" Reason: {text}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""
