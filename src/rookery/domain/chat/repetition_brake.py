"""The brake: finds agents that repeat the same calls with the same results. Pure, and counted from the history.

After `notice_after` repeats, the model gets a notice with each request. The call that would be repeat number
`ask_after` is held, and the user is asked (docs/decisions/0074). Calls are read from the newest backward, and only as
long as they can belong to a repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import UNSET, Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.parts import ContentError, ToolCall, ToolResult
from rookery.domain.chat.prompt import PromptRow

# The longest cycle that is found: A, B, C, A, B, C.
MAX_PERIOD = 3
# Calls that fail one after another, each in its own way, are held after this many times the limit.
FAILURES_PER_REPEAT = 3
# Below these numbers, the sentences about a repetition would not be true.
MIN_NOTICE_AFTER = 2
MIN_ASK_AFTER = 3
# Tools that wait. Repeating them is their purpose, as long as what they wait for goes on.
_WAITING_TOOLS = frozenset({"process_output", "wait_agent"})
# Longer arguments count as equal only if their bytes are equal.
_MAX_COMPARED = 64 * 1024
# Figures and ids that differ although the result is the same.
_VARYING = re.compile(rb'"(?:wall_duration_ms|chat_id|background_process_id)": ?(?:"[^"\\]*"|[0-9.]+)')
_BY_USER = f'"{CloseReason.DENIED_BY_USER}"'.encode()
_TIMED_OUT = f'"{CloseReason.APPROVAL_TIMED_OUT}"'.encode()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of repeats after which the model gets a notice and the user is asked. 0 switches a limit off."""

    notice_after: int = 3
    ask_after: int = 6


NO_LIMITS = Limits(notice_after=0, ask_after=0)


class Made(msgspec.Struct, frozen=True):
    """A call of the turn. `result` is None while the call is open.

    `is_failure` is the result of `is_failed`. `is_explained`: a failure that says why it happened.
    """

    message_id: int
    tool_call_id: str
    tool_name: str
    args: bytes
    result: bytes | None = None
    is_failure: bool = False
    is_explained: bool = False


class Repeat(msgspec.Struct, frozen=True):
    """Calls that repeat `times` times. `tools` are the tools of one cycle.

    If they are calls of one tool that fail in the same way with any arguments, `is_failure` is set. If they are
    different calls that all fail, `tools` is empty.
    """

    tools: tuple[str, ...]
    times: int
    is_failure: bool = False


class _Agent(msgspec.Struct, frozen=True):
    timed_out: bool = False


class _Outcome(msgspec.Struct, frozen=True):
    """The fields of a result that say whether the call failed or waits."""

    success: bool | None = None
    output: object = None
    error: object = None
    running: bool | None = None
    timed_out: bool | None = None
    agents: tuple[_Agent, ...] | None = None


_outcomes = msgspec.json.Decoder(_Outcome)
_NO_OUTCOME = _Outcome()


def is_failed(result: ToolResult) -> bool:
    """Return whether a call failed: its result is an error, or it ran a command that did not succeed.

    A command does not succeed if its exit code is not 0, or if it was cut off.
    """
    return result.is_error or _outcome(result).success is False


def read_recent(
    work: Sequence[PromptRow], limits: Limits, *, is_approved: Callable[[int, str], bool] = lambda *_: False
) -> tuple[Made, ...]:
    """Return the finished calls that may belong to a repetition, newest first. `work` has the rows in order.

    The list ends where the repetition begins: at a wait, at a call that the user denied, and after a call that the user
    approved, because the user has seen what happened before it.
    """
    most = max(limits.notice_after, limits.ask_after) * max(MAX_PERIOD, FAILURES_PER_REPEAT)
    found: list[Made] = []
    periods, is_failing, is_same_failure = set(range(1, MAX_PERIOD + 1)), True, True
    for made in _finished(work):
        if len(found) >= most:
            break
        found.append(made)
        at = len(found) - 1
        periods = {period for period in periods if at < period or _is_same(made, found[at - period])}
        is_failing = is_failing and made.is_failure
        is_same_failure = is_same_failure and (at == 0 or _is_same_failure(made, found[at - 1]))
        if not (periods or is_failing or is_same_failure) or is_approved(made.message_id, made.tool_call_id):
            break
    return tuple(found)


def find_repeat(recent: Sequence[Made]) -> Repeat | None:
    """Return the repetition in which the newest finished calls are; None if there is none."""
    best: Repeat | None = None
    for period in range(1, MAX_PERIOD + 1):
        times = _run(recent, period, _is_same) // period
        if times > 1 and (best is None or times > best.times):
            best = Repeat(_cycle(recent, period), times)
    failures = _run(recent, 1, _is_same_failure)
    if failures > 1 and (best is None or failures > best.times):
        best = Repeat((recent[0].tool_name,), failures, is_failure=True)
    return best


def find_held(recent: Sequence[Made], calls: Sequence[ToolCall], limits: Limits) -> dict[str, Repeat]:
    """Return the open calls that would continue a repetition beyond the limit, with the repetition.

    `calls` are in their order. Each is judged as if those before it had the results that they had last time.
    """
    if limits.ask_after <= 0:
        return {}
    done = limits.ask_after - 1
    held: dict[str, Repeat] = {}
    seen = list(recent)
    all_failed = limits.ask_after * FAILURES_PER_REPEAT
    for call in calls:
        made = Made(0, call.tool_call_id, call.tool_name, _bytes(call.args))
        expected, longest = None, 0
        for period in range(1, min(MAX_PERIOD, len(seen)) + 1):
            if not _is_same_call(made, seen[period - 1]):
                continue
            run = _run(seen, period, _is_same)
            if run // period > longest:
                expected, longest = seen[period - 1], run // period
            if run >= period * done:
                held.setdefault(call.tool_call_id, Repeat(_cycle(seen, period), done))
        if seen and seen[0].is_failure and seen[0].is_explained and seen[0].tool_name == made.tool_name:
            expected = expected or seen[0]
            if _run(seen, 1, _is_same_failure) >= done:
                held.setdefault(call.tool_call_id, Repeat((made.tool_name,), done, is_failure=True))
        if len(recent) >= all_failed and all(each.is_failure for each in recent[:all_failed]):
            held.setdefault(call.tool_call_id, Repeat((), all_failed, is_failure=True))
        seen.insert(0, expected or made)
    return held


# Sentences


def notice(recent: Sequence[Made], limits: Limits) -> str | None:
    """Return the notice for the model. Its text is the same for each step, so that provider caches stay valid."""
    repeat = find_repeat(recent) if limits.notice_after > 0 else None
    if repeat is None or repeat.times < limits.notice_after:
        return None
    return (
        f"{_what_happened('You', repeat, f'at least {limits.notice_after}')} Repeating this will not help. Try another "
        "way, or tell the user what blocks you."
    )


def question(repeat: Repeat) -> str:
    """Return the sentences for the user about a call that is held."""
    return (
        f"{_what_happened('The agent', repeat, str(repeat.times))} The next call is on hold. Continue, stop the turn, "
        "or tell the agent what to do instead."
    )


def stopped_by_user(instruction: str) -> str:
    """Return the tool result for a held call that the user did not continue."""
    told = instruction.strip()
    then = f"The user tells you: {told}" if told else "Try another way, or tell the user what blocks you."
    return f"The user stopped this call because it repeats without a new result; it was not run. {then}"


def _what_happened(who: str, repeat: Repeat, times: str) -> str:
    if not repeat.tools:
        return f"{who} made {times} calls in a row, and all of them failed."
    if repeat.is_failure:
        return f"{who} called {repeat.tools[0]} {times} times in a row, and it failed with the same error each time."
    if len(repeat.tools) == 1:
        return f"{who} made the same call of {repeat.tools[0]} {times} times, with the same result each time."
    made = f"{who} made the same {len(repeat.tools)} calls ({', '.join(repeat.tools)}) {times} times in turn"
    return f"{made}, with the same results each time."


# Reading


def _finished(work: Sequence[PromptRow]) -> Iterator[Made]:
    """Yield the calls that have results, newest first, up to a wait or a call that the user denied.

    A held call that the user did not answer in time is left out, so that the next one is held again. Some providers
    repeat ids, so each result is used once.
    """
    results: dict[str, ToolResult] = {}
    for row in reversed(work):
        try:
            content = row.message.parts()
        except ContentError:
            return
        for part in reversed(content):
            if isinstance(part, ToolResult) and row.message.role is Role.TOOL:
                results[part.tool_call_id] = part
            elif isinstance(part, ToolCall) and (result := results.pop(part.tool_call_id, None)) is not None:
                outcome, said = _outcome(result), _bytes(result.result)
                if _is_wait(part.tool_name, outcome) or (result.is_error and _BY_USER in said):
                    return
                if result.is_error and _TIMED_OUT in said:
                    continue
                yield Made(
                    row.message.id,
                    part.tool_call_id,
                    part.tool_name,
                    _bytes(part.args),
                    _VARYING.sub(b"", said),
                    is_failure=is_failed(result),
                    # A command that only has an exit code, such as a search without a match, does not say why.
                    is_explained=result.is_error or bool(outcome.output or outcome.error),
                )


def _outcome(result: ToolResult) -> _Outcome:
    try:
        return _outcomes.decode(_bytes(result.result))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NO_OUTCOME


def _is_wait(tool_name: str, outcome: _Outcome) -> bool:
    """Return whether the call waited for something that had not ended."""
    if tool_name not in _WAITING_TOOLS:
        return False
    return bool(outcome.running or outcome.timed_out or any(each.timed_out for each in outcome.agents or ()))


# Comparing


def _run(seen: Sequence[Made], period: int, same: Callable[[Made, Made], bool]) -> int:
    """Return the number of newest calls that repeat with this period."""
    if len(seen) < period:
        return 0
    run = period
    while run < len(seen) and same(seen[run], seen[run - period]):
        run += 1
    return run


def _cycle(seen: Sequence[Made], period: int) -> tuple[str, ...]:
    return tuple(made.tool_name for made in reversed(seen[:period]))


def _is_same(left: Made, right: Made) -> bool:
    is_same_result = left.result is not None and (left.result, left.is_failure) == (right.result, right.is_failure)
    return is_same_result and _is_same_call(left, right)


def _is_same_failure(left: Made, right: Made) -> bool:
    is_failure = left.is_failure and right.is_failure and left.is_explained and left.tool_name == right.tool_name
    return is_failure and left.result is not None and left.result == right.result


def _is_same_call(left: Made, right: Made) -> bool:
    return left.tool_name == right.tool_name and (left.args == right.args or _is_same_json(left.args, right.args))


def _is_same_json(left: bytes, right: bytes) -> bool:
    if max(len(left), len(right)) > _MAX_COMPARED:
        return False
    try:
        return bool(parts.json_value(Raw(left)) == parts.json_value(Raw(right)))
    except ContentError:
        return False


def _bytes(raw: Raw | msgspec.UnsetType) -> bytes:
    return b"" if raw is UNSET else bytes(raw)
