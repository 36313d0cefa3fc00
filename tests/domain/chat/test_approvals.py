"""Approval rules: their matches, their precedence, and the rules that users' answers create."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from rookery.domain.chat import approval_arguments, approval_patterns, approvals
from rookery.domain.chat.approvals import (
    UNREADABLE,
    Answer,
    Decision,
    Default,
    Offers,
    Policy,
    Rule,
    RuleAction,
    Scope,
    Verdict,
)
from rookery.domain.chat.errors import ApprovalRejected, InvalidInput

PERMITTING = (RuleAction.ALLOW, RuleAction.ALWAYS)
RESTRICTING = (RuleAction.ASK, RuleAction.DENY)


def rule(action: RuleAction | str, tool: str = "execute", **match: str) -> Rule:
    return Rule(tool=tool, action=RuleAction(action), match=match)


def verdict(*rules: Rule, tool: str = "execute", args: object = None, **policy: Any) -> Verdict:
    given_args = {"command": "git status"} if args is None else args
    return approvals.judge(Policy(rules=rules, **policy), (tool,), given_args).verdict


# Which rule counts


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ((), Verdict.ALLOW),
        (("allow",), Verdict.ALLOW),
        (("ask",), Verdict.ASK),
        (("deny",), Verdict.DENY),
        (("always",), Verdict.ALLOW),
        (("allow", "ask"), Verdict.ASK),
        (("ask", "allow"), Verdict.ASK),
        (("always", "ask"), Verdict.ALLOW),
        (("ask", "always"), Verdict.ALLOW),
        (("always", "deny"), Verdict.DENY),
        (("deny", "ask", "always", "allow"), Verdict.DENY),
    ],
)
def test_the_strongest_rule_counts_in_any_order(actions: tuple[str, ...], expected: Verdict) -> None:
    assert verdict(*(rule(action) for action in actions)) is expected


def test_the_default_is_for_calls_that_no_rule_matches() -> None:
    assert verdict(default=Default.ASK) is Verdict.ASK
    assert verdict(rule("allow"), default=Default.ASK) is Verdict.ALLOW
    assert verdict(rule("allow", "read_file"), default=Default.ASK) is Verdict.ASK


def test_answers_given_beforehand_count_for_nothing_where_they_are_switched_off() -> None:
    assert verdict(rule("ask"), rule("always"), may_remember=False) is Verdict.ASK


def test_rules_that_cannot_be_read_leave_everything_to_be_asked() -> None:
    assert approvals.judge(UNREADABLE, ("read_file",), {}).verdict is Verdict.ASK


def test_a_rule_with_a_field_of_a_newer_version_cannot_be_read() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"tool": "execute", "action": "allow", "unless": {"command": "rm *"}}, type=Rule)


@pytest.mark.parametrize(("rules", "is_open"), [((), True), ((rule("allow"),), True), ((rule("ask"),), False)])
def test_a_policy_is_open_when_nothing_can_be_held_up(rules: tuple[Rule, ...], is_open: bool) -> None:
    assert Policy(rules=rules).is_open is is_open
    assert not Policy(rules=rules, default=Default.ASK).is_open


# Commands


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git status*", "git status"),
        ("git status*", "git status --porcelain -b"),
        ("git *", "git log --oneline HEAD~3..HEAD"),
        ("make ?est", "make test"),
        ("cd /src && make *", "cd /src && make all"),
        ("echo \\*", "echo *"),
        ("a\\?b\\\\", "a?b\\"),
        ("*", "ls -l 'a b'"),
    ],
)
@pytest.mark.parametrize("action", PERMITTING)
def test_permitting_patterns_match_what_they_say(action: RuleAction, pattern: str, command: str) -> None:
    assert verdict(rule(action, command=pattern), default=Default.ASK, args={"command": command}) is Verdict.ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf /",
        "git status;rm -rf /",
        "git status && rm -rf /",
        "git status || rm -rf /",
        "git status & rm -rf /",
        "git status | sh",
        "git status\nrm -rf /",
        "git status\rrm -rf /",
        "git status $(rm -rf /)",
        "git status `rm -rf /`",
        "git status ${IFS}x",
        "git status > /etc/passwd",
        "git status >> ~/.bashrc",
        "git status < /etc/shadow",
        "git status <(rm -rf /)",
        "git status {a,b}",
        "git status \\\nrm",
        "git status\x00rm",
        "git status\u2028rm",
        "git status \x1b[2J",
        "git status ../../etc",
        "git status --git-dir=../x",
        " git status",
        "GIT STATUS",
        "xgit status",
    ],
)
@pytest.mark.parametrize("action", PERMITTING)
def test_a_permitted_command_does_not_let_another_pass(action: RuleAction, command: str) -> None:
    allowed = rule(action, command="git status*")

    assert verdict(allowed, default=Default.ASK, args={"command": command}) is Verdict.ASK


@given(st.text(max_size=30), st.sampled_from(list(";&|<>$`(){}\n\r\\\x00\x1b\x7f")), st.text(max_size=30))
def test_no_wildcard_of_a_permitting_rule_stands_for_an_operator(before: str, operator: str, after: str) -> None:
    args = {"command": f"git status{before}{operator}{after}"}

    assert verdict(rule("always", command="git status*"), default=Default.ASK, args=args) is Verdict.ASK


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "git status; rm -rf /",
        "git status &&rm -rf /",
        "true | rm -rf /",
        "x=$(rm -rf /)",
        "echo `rm -rf /`",
        "(rm -rf /)",
        "ls\nrm -rf /",
        "  rm   -rf  /",
        "/bin/rm -rf /",
        "sudo rm -rf /",
        "env A=1 B=2 rm -rf /",
        "A=1 rm -rf /",
        '"rm" -rf /',
        "r\\m -rf /",
        "RM -rf /",
        "if true; then rm -rf /; fi",
    ],
)
@pytest.mark.parametrize("action", RESTRICTING)
def test_restricting_patterns_find_a_command_wherever_it_stands(action: RuleAction, command: str) -> None:
    assert verdict(rule(action, command="rm *"), args={"command": command}) is Verdict(action.value)


@pytest.mark.parametrize("command", ["ls", "git rm", "rmdir x", "git commit -m 'rm it'", "firm -x"])
def test_restricting_patterns_leave_other_commands_alone(command: str) -> None:
    assert verdict(rule("deny", command="rm *"), args={"command": command}) is Verdict.ALLOW


# Paths and other arguments


@pytest.mark.parametrize("path", ["/etc/passwd", "/tmp/../etc/passwd", "//etc/passwd", "/./etc/x", "/ETC/x"])
def test_a_restricted_path_is_found_in_every_spelling(path: str) -> None:
    assert verdict(rule("deny", "write_file", path="/etc/*"), tool="write_file", args={"path": path}) is Verdict.DENY


@pytest.mark.parametrize("path", ["/project/../etc/passwd", "/project/..", "/projectx/a", "/project/a\nb"])
def test_a_permitted_folder_does_not_let_others_pass(path: str) -> None:
    allowed = rule("allow", "write_file", path="/project/*")

    assert verdict(allowed, tool="write_file", default=Default.ASK, args={"path": path}) is Verdict.ASK


EDITS = {"files": [{"path": "/project/a"}, {"path": "/etc/b"}]}


def test_a_path_goes_through_lists_and_permits_only_if_all_match_and_restricts_if_any_does() -> None:
    allowed = Rule(tool="edit_files", action=RuleAction.ALLOW, match={"files.path": "/project/*"})
    denied = Rule(tool="edit_files", action=RuleAction.DENY, match={"files.path": "/etc/*"})
    harmless = {"files": [{"path": "/project/a"}, {"path": "/project/b"}]}

    assert verdict(allowed, tool="edit_files", default=Default.ASK, args=harmless) is Verdict.ALLOW
    assert verdict(allowed, tool="edit_files", default=Default.ASK, args=EDITS) is Verdict.ASK
    assert verdict(denied, tool="edit_files", args=EDITS) is Verdict.DENY
    assert verdict(denied, tool="edit_files", args=harmless) is Verdict.ALLOW


def test_json_in_a_string_hides_nothing() -> None:
    denied = Rule(tool="edit_files", action=RuleAction.DENY, match={"files.path": "/etc/*"})
    wrapped = {"files": msgspec.json.encode(EDITS["files"]).decode()}

    assert verdict(denied, tool="edit_files", args=wrapped) is Verdict.DENY


def test_a_branch_without_the_argument_is_not_permitted() -> None:
    allowed = Rule(tool="edit_files", action=RuleAction.ALLOW, match={"files.path": "*"})
    partly = {"files": [{"path": "/project/a"}, {"target": "/etc/b"}]}

    assert verdict(allowed, tool="edit_files", default=Default.ASK, args=partly) is Verdict.ASK
    assert verdict(rule("allow", workdir="*"), default=Default.ASK) is Verdict.ASK


def test_all_named_arguments_have_to_match() -> None:
    both = rule("ask", command="git *", workdir="/prod*")

    assert verdict(both, args={"command": "git push", "workdir": "/prod/a"}) is Verdict.ASK
    assert verdict(both, args={"command": "git push", "workdir": "/test"}) is Verdict.ALLOW
    assert verdict(both, args={"command": "git push"}) is Verdict.ALLOW


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (None, "null"), (3, "3"), ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'), ("x", "x")]
)
def test_every_value_has_one_text(value: object, text: str) -> None:
    assert approval_arguments.text_of(value) == text
    assert verdict(rule("deny", argument=text), args={"argument": value}) is Verdict.DENY


@pytest.mark.parametrize("args", [None, [], "text", 3])
def test_arguments_that_are_no_object_are_restricted_and_never_permitted(args: object) -> None:
    policy = Policy(rules=(rule("deny", command="rm *"),))
    permissive = Policy(rules=(rule("allow"),), default=Default.ASK)

    assert approvals.judge(policy, ("execute",), args).verdict is Verdict.DENY
    assert approvals.judge(permissive, ("execute",), args).verdict is Verdict.ASK


def test_an_old_name_of_a_tool_is_restricted_by_either_and_permitted_by_both() -> None:
    names = ("close_agent", "interrupt_agent")

    for name in names:
        denied = Policy(rules=(rule("deny", name),))
        allowed = Policy(rules=(rule("allow", name),), default=Default.ASK)
        assert approvals.judge(denied, names, {}).verdict is Verdict.DENY
        assert approvals.judge(allowed, names, {}).verdict is Verdict.ASK


def test_tools_are_named_by_globs() -> None:
    assert verdict(rule("ask", "process_*"), tool="process_list", args={}) is Verdict.ASK
    assert verdict(rule("ask", "process_*"), tool="execute", args={}) is Verdict.ALLOW
    assert verdict(rule("ask", "*"), tool="anything", args={}) is Verdict.ASK


# Tools of MCP servers


def of_server(server: str, tool: str) -> tuple[str, str]:
    """The names of an MCP server's tool, in rules and for models."""
    return approvals.mcp_name(server, tool), f"{server}__{tool}"


def permits(pattern: str, names: tuple[str, ...]) -> bool:
    policy = Policy(rules=(rule("allow", pattern),), default=Default.ASK)
    return approvals.judge(policy, names, {}).verdict is Verdict.ALLOW


def restricts(pattern: str, names: tuple[str, ...]) -> bool:
    return approvals.judge(Policy(rules=(rule("deny", pattern),)), names, {}).verdict is Verdict.DENY


@pytest.mark.parametrize("pattern", ["*", "read_*", "read_docs__search", "read_docs__*", "?ead*", "*:*", "m*", "*/*"])
def test_a_glob_without_the_reserved_form_never_permits_a_tool_of_an_mcp_server(pattern: str) -> None:
    assert not permits(pattern, of_server("read_docs", "search"))


@pytest.mark.parametrize("pattern", ["mcp:docs/search", "mcp:docs/*", "mcp:*/search", "mcp:*/*", "mcp:d?cs/s*"])
def test_the_reserved_form_permits_only_tools_of_mcp_servers(pattern: str) -> None:
    assert permits(pattern, of_server("docs", "search"))
    assert not permits(pattern, ("docs__search",))
    assert not permits(pattern, ("search",))


@pytest.mark.parametrize(
    ("server", "tool"),
    [("docs/x", "search"), ("docs", "x/search"), ("docs2", "search"), ("DOCS", "search"), ("docs", "Search")],
)
def test_names_with_slashes_colons_or_capitals_are_not_taken_for_others(server: str, tool: str) -> None:
    assert not permits("mcp:docs/search", of_server(server, tool))
    assert not permits("mcp:docs/search*", of_server("docs/search", tool))


@pytest.mark.parametrize("server", ["mcp:docs", "a/b", "execute", "*", "docs\u202e", "a b", "%2f"])
def test_exact_rule_covers_only_its_server_for_any_name(server: str) -> None:
    names = of_server(server, "run")

    assert names[0].count("/") == 1
    assert permits(approval_patterns.literal(names[0]), names)
    assert not permits(approval_patterns.literal(names[0]), of_server(server + "x", "run"))
    assert not permits("execute", names)


@pytest.mark.parametrize("pattern", ["*", "docs__*", "DOCS__search", "mcp:docs/*", "MCP:Docs/Search", "mcp:*/*"])
def test_restricting_rules_find_tools_of_mcp_servers_under_either_name(pattern: str) -> None:
    if approvals.find_problem(rule("deny", pattern)) is None:
        assert restricts(pattern, of_server("docs", "search"))


@pytest.mark.parametrize("tool", ["mcp:docs", "mcp:*", "mcp:/x", "mcp:docs/", "mcp:a/b/c", "MCP:docs/x"])
def test_a_reserved_name_that_names_no_server_and_tool_is_a_problem_and_restricts_all_the_same(tool: str) -> None:
    problem = approvals.find_problem(rule("deny", tool))

    assert problem is not None
    assert problem[0] == "tool"
    assert "mcp:SERVER/TOOL" in problem[1]
    assert not permits(tool, of_server("docs", "x"))


def test_always_for_a_tool_of_an_mcp_server_leaves_a_rule_in_the_reserved_form() -> None:
    names = of_server("docs", "search")
    offered = approvals.offers(None, names, {"q": "x"})
    answer = Answer(tool_call_id="1", decision=Decision.APPROVE, always=Scope.CHAT)

    made = approvals.rule_of_answer(answer, names[1], {"q": "x"}, offered)

    assert made == Rule(tool="mcp:docs/search", action=RuleAction.ALWAYS)
    assert approvals.matches(made, names, {"q": "x"})


# Properties


texts = st.text(max_size=40)


@given(texts)
def test_a_literal_matches_its_text_alone(text: str) -> None:
    exact = rule("allow", command=approval_patterns.literal(text))

    assert verdict(exact, default=Default.ASK, args={"command": text}) is Verdict.ALLOW
    assert verdict(exact, default=Default.ASK, args={"command": f"{text}x"}) is Verdict.ASK


@given(st.text(alphabet="ab*?", max_size=8), st.text(alphabet="ab", max_size=12))
def test_globs_match_as_the_obvious_definition_does(pattern: str, text: str) -> None:
    assert (verdict(rule("deny", x=pattern), args={"x": text}) is Verdict.DENY) == _matches(pattern, text)
    assert (verdict(rule("allow", x=pattern), default=Default.ASK, args={"x": text}) is Verdict.ALLOW) == _matches(
        pattern, text
    )


def _matches(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(_matches(pattern[1:], text[place:]) for place in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and _matches(pattern[1:], text[1:])


@given(st.text(alphabet="ab;*?\\. /$", max_size=10), st.text(alphabet="ab;. /$", max_size=16))
def test_every_permitted_call_would_be_restricted_by_the_same_pattern(pattern: str, text: str) -> None:
    args = {"command": text}
    if approvals.matches(rule("allow", command=pattern), ("execute",), args):
        assert approvals.matches(rule("deny", command=pattern), ("execute",), args)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=4))
def test_judging_never_fails_and_what_is_offered_covers_the_call(args: dict[str, object]) -> None:
    asked = approvals.judge(Policy(rules=(rule("ask", "*"),)), ("tool",), args)
    offered = approvals.offers(asked.rule, ("tool",), args)

    for match in (offered.chat, offered.user):
        if match is not None:
            always = Rule(tool="tool", action=RuleAction.ALWAYS, match=match)
            assert approvals.matches(always, ("tool",), args)


# Bounds


LONGEST = approval_arguments.MAX_VALUE_BYTES


@pytest.mark.parametrize("size", [LONGEST + 1, 1_000_000])
@pytest.mark.parametrize("pattern", ["*", "a*", "rm *", "never this"])
def test_a_value_beyond_the_limit_is_restricted_by_every_rule_and_permitted_by_none(size: int, pattern: str) -> None:
    args = {"command": "a" * size}

    assert verdict(rule("deny", command=pattern), args=args) is Verdict.DENY
    assert verdict(rule("ask", command=pattern), args=args) is Verdict.ASK
    for action in PERMITTING:
        assert verdict(rule(action, command=pattern), default=Default.ASK, args=args) is Verdict.ASK
    assert verdict(rule("allow"), default=Default.ASK, args=args) is Verdict.ALLOW, "it does not look at the value"
    assert verdict(rule("deny", workdir="*"), args=args) is Verdict.ALLOW, "there is no such argument"


def test_a_value_at_the_limit_is_judged_by_what_it_says() -> None:
    args = {"command": "a" * LONGEST}

    assert verdict(rule("deny", command="rm *"), args=args) is Verdict.ALLOW
    assert verdict(rule("deny", command="a*"), args=args) is Verdict.DENY
    assert verdict(rule("allow", command="a*"), default=Default.ASK, args=args) is Verdict.ALLOW
    wide = {"command": "\u00e4" * (LONGEST // 2 + 1)}
    assert verdict(rule("deny", command="rm *"), args=wide) is Verdict.DENY, "bytes are counted, not characters"


@pytest.mark.parametrize(
    "value",
    [
        ["x"] * LONGEST,
        {str(place): "x" for place in range(LONGEST)},
        [[["x" * 100]] * 100] * 100,
        "[" * 1000 + '"x"' + "]" * 1000 + " " * LONGEST,
    ],
)
def test_values_that_are_no_text_are_measured_too(value: object) -> None:
    assert verdict(rule("deny", argument="rm *"), args={"argument": value}) is Verdict.DENY
    assert verdict(rule("allow", argument="*"), default=Default.ASK, args={"argument": value}) is Verdict.ASK


def test_a_path_through_json_that_is_too_long_to_be_read_is_restricted_and_not_permitted() -> None:
    files = msgspec.json.encode([{"path": "/project/a", "text": "x" * LONGEST}]).decode()
    denied = Rule(tool="edit_files", action=RuleAction.DENY, match={"files.path": "/etc/*"})
    allowed = Rule(tool="edit_files", action=RuleAction.ALLOW, match={"files.path": "/project/*"})

    for given_files in (files, " " * 2000 + files):
        args = {"files": given_files}
        assert verdict(denied, tool="edit_files", args=args) is Verdict.DENY
        assert verdict(allowed, tool="edit_files", default=Default.ASK, args=args) is Verdict.ASK
    plain = {"files": [{"path": "/project/a", "text": "x" * LONGEST}]}
    assert verdict(denied, tool="edit_files", args=plain) is Verdict.ALLOW
    assert verdict(allowed, tool="edit_files", default=Default.ASK, args=plain) is Verdict.ALLOW


TOO_LONG = "a" * 257 + "*"
TOO_WILD = "*a" * 17


@pytest.mark.parametrize("pattern", [TOO_LONG, TOO_WILD, "?" * 17])
def test_a_stored_rule_over_the_bounds_restricts_all_calls_of_its_tool_and_permits_none(pattern: str) -> None:
    found = approvals.find_problem(rule("deny", command=pattern))

    assert found is not None
    assert found[0] == "match.command"
    assert verdict(rule("deny", command=pattern), args={"command": "ls"}) is Verdict.DENY
    assert verdict(rule("deny", command=pattern), tool="read_file", args={"command": "ls"}) is Verdict.ALLOW
    assert verdict(rule("allow", command=pattern), default=Default.ASK, args={"command": "a" * 300}) is Verdict.ASK
    assert verdict(rule("deny", pattern[:200].ljust(20, "?")), args={}) is not Verdict.ASK
    shown = approvals.with_problems([rule("deny", command=pattern), rule("deny")])
    assert [each.problem is not msgspec.UNSET for each in shown] == [True, False]


def hostile_rules(count: int) -> tuple[Rule, ...]:
    """Return patterns that match as much as possible of every argument before they fail."""
    made = []
    for place in range(count):
        pattern = "*".join("a" * 15 for _ in range(15))[:240] + f"{place:03}b"
        made.append(Rule(tool="*", action=RuleAction.DENY, match={f"a{at}": pattern for at in range(16)}))
    return tuple(made)


@pytest.mark.parametrize(
    "value", ["a" * LONGEST, "a;" * (LONGEST // 2), "[" + "1," * (LONGEST // 2 - 1) + "1]", "a/" * (LONGEST // 2)]
)
def test_judging_comes_in_short_steps_and_ends_however_hostile_the_rules_are(value: str) -> None:
    args = {f"a{at}": value for at in range(16)}
    rules = (*hostile_rules(200), *(Rule(tool="*", action=RuleAction.DENY, match={f"a0.{n}": "x"}) for n in range(200)))
    longest, began = 0.0, time.process_time()
    steps = approvals.judge_sliced(Policy(rules=rules), ("tool",), args)
    while True:
        step = time.process_time()
        if next(steps, "end") == "end":
            break
        longest = max(longest, time.process_time() - step)

    # Far above what is measured (2 ms and 40 ms), and far below what matching by backtracking takes.
    assert longest < 0.1
    assert time.process_time() - began < 1.0


def test_offers_and_remembered_rules_are_computed_in_one_slice_per_pattern() -> None:
    args: dict[str, object] = {f"a{at}": "a" * 100 for at in range(16)}
    asked = Rule(tool="*", action=RuleAction.ASK, match=dict.fromkeys(args, "a*"))
    answer = Answer(tool_call_id="1", decision=Decision.APPROVE, always=Scope.CHAT, match=asked.match)

    assert len(list(approvals.offers_sliced(asked, ("tool",), args))) >= 32, "what was asked, and this very call"
    assert len(list(approvals.rule_of_answer_sliced(answer, "tool", args, Offers()))) >= 16


# Questions and answers


CALL = {"command": "git push origin", "model_intent": "push the branch", "timeout": "10s"}


def test_always_in_this_chat_is_about_what_was_asked_and_for_the_user_about_this_very_call() -> None:
    asked = rule("ask", command="git push*")

    offered = approvals.offers(asked, ("execute",), CALL)

    assert offered == Offers(
        {"command": "git push*"}, {"command": "git push origin"}, program={"command": "git push *"}
    )


def test_a_question_about_part_of_a_command_offers_only_that_command() -> None:
    asked, call = rule("ask", command="rm *"), {"command": "ls; rm x"}

    assert approvals.offers(asked, ("execute",), call).chat == {"command": "ls; rm x"}


@pytest.mark.parametrize("args", [{}, {"a.b": "c"}, {"a": "x" * 257}, {"a": "*" * 200}, {"timeout": "3s"}, None])
def test_nothing_is_offered_that_no_pattern_can_say_exactly(args: object) -> None:
    assert approvals.offers(None, ("execute",), args).user is None


def test_an_answer_becomes_a_rule_of_the_tool_it_is_about() -> None:
    answer = Answer(tool_call_id="1", decision=Decision.APPROVE, always=Scope.USER, match={"command": "git push *"})

    made = approvals.rule_of_answer(answer, "execute", CALL, Offers())

    assert made == rule("always", command="git push *")


@pytest.mark.parametrize("match", [{"command": "git pull*"}, {"path": "*"}, {"command": "x" * 3000}, None])
def test_an_answer_is_not_remembered_for_calls_it_was_not_about(match: dict[str, str] | None) -> None:
    answer = Answer(tool_call_id="1", decision=Decision.APPROVE, always=Scope.USER, match=match)

    with pytest.raises(InvalidInput):
        approvals.rule_of_answer(answer, "execute", CALL, Offers())


def answers(*ids: str, **fields: Any) -> list[Answer]:
    return [Answer(tool_call_id=each, decision=Decision.APPROVE, **fields) for each in ids]


@pytest.mark.parametrize(
    ("given_ids", "problem"),
    [(("a", "a"), "duplicate"), (("a",), "missing"), (("a", "b", "c"), "unexpected"), (("c", "c"), "duplicate")],
)
def test_answers_have_to_be_to_exactly_the_open_questions(given_ids: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ApprovalRejected) as caught:
        approvals.check_answers(("a", "b"), answers(*given_ids))

    assert caught.value.problem == problem


def test_answers_to_all_questions_are_taken_in_any_order() -> None:
    approvals.check_answers(("a", "b"), answers("b", "a"))


def test_only_approvals_are_remembered() -> None:
    denied = Answer(tool_call_id="a", decision=Decision.DENY, always=Scope.CHAT)
    for answer in (denied, *answers("a", match={"command": "x"})):
        with pytest.raises(InvalidInput):
            approvals.check_answers(("a",), [answer])


def test_the_model_is_told_not_to_try_again_and_why() -> None:
    said = approvals.denied_by_user("not on a Friday")
    ruled = approvals.denied_by_rule(Rule(tool="*", action=RuleAction.DENY, reason="no network"))

    assert " Reason: not on a Friday. Go on" in said
    assert " Reason: no network. Go on" in ruled
    assert " Reason: Never! Go on" in approvals.denied_by_user(" Never! ")
    assert all("Do not repeat it" in text for text in (said, ruled, approvals.denied_by_rule(None)))


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("git push origin main", "git push *"),
        ("npm test -- --watch", "npm test *"),
        ("ls -la /src", "ls *"),
        ("git push", None),
        ("git -C /src push", None),
        ("ls", None),
        ("bash -c ls", None),
        ("python3 -m http.server", None),
        ("/bin/ls -la", None),
        ("git push; rm -rf /", None),
        ("git push $(x)", None),
        ("git push\nrm -rf /", None),
        ("FOO=1 make all", None),
        (" ls -la", None),
        ("", None),
        (3, None),
    ],
)
def test_always_offers_all_commands_of_a_program_only_where_that_is_narrow(
    command: object, program: str | None
) -> None:
    offered = approvals.offers(None, ("execute",), {"command": command}).program
    assert offered == (UNSET if program is None else {"command": program})
