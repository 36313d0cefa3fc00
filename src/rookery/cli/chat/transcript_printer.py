"""The transcript printer: shows live parts as they arrive, and committed messages that were not seen live.

Live parts are a preview. They may be cut off, restart after a failed attempt, or never arrive if another process drives
the chat. When a step is committed, its text is compared with the shown text, and the rest is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from rookery.cli.chat.terminal_screen import Style
from rookery.domain.chat import parts
from rookery.domain.chat.approvals import DENIED_BY_RULE
from rookery.domain.chat.chat import RetryState
from rookery.domain.chat.messages import Role
from rookery.domain.chat.open_tool_calls import CloseReason
from rookery.domain.chat.parts import AgentNotice, File, Part, Reasoning, Source, Text, ToolCall, ToolResult, TurnEnd

MAX_ARGUMENTS = 300
# Tools whose results are about one or several subagents.
AGENT_TOOLS = frozenset({"spawn_agent", "wait_agent", "message_agent"})
# The reasons of results that only say that their call was stopped with the turn.
STOPS = frozenset({CloseReason.INTERRUPTED, CloseReason.INTERRUPTED_BY_USER, CloseReason.INTERRUPTED_BY_MESSAGE})


class Shown(Protocol):
    """The screen methods that the printer needs. See `Screen`."""

    def text(self, piece: str) -> None: ...

    def end_block(self) -> None: ...

    def thought(self, piece: str) -> None: ...

    def end_thought(self) -> None: ...

    def note(self, text: str, *, style: Style = Style.DIM) -> None: ...

    def lines(self, *texts: str) -> None: ...

    def user(self, text: str) -> None: ...

    def result(self, result: ToolResult) -> None: ...

    def output(self, piece: str) -> None: ...


class EndMark(msgspec.Struct, frozen=True):
    """The end of a turn that was stopped, or has failed with this error."""

    at: datetime
    error: str | None = None


class TranscriptPrinter:
    """Prints one followed chat.

    Call `print_live` between `begin` and the commit of a step, and `print_committed` for every message. `at` is the
    time of the part or message, from which the duration of tools is computed.
    """

    def __init__(self, screen: Shown) -> None:
        self._screen = screen
        self._said = ""  # the text of this step that was shown
        self._in_text = False
        self._called_at: dict[str, datetime] = {}
        self._answered: set[str] = set()
        self._asked: set[str] = set()
        self._agents: dict[str, str] = {}  # titles of subagents by chat id
        self._agent_lines: dict[str, str] = {}  # the last line about each subagent
        self._end: EndMark | None = None  # of the last turn, not printed yet

    def begin(self) -> None:
        """Start another attempt. The output of the previous attempt is void, and is shown again if needed."""
        if self._said:
            self._screen.end_block()
            self._screen.note("The answer was cut off; it starts again.")
        self._said = ""
        self._in_text = False

    def print_live(self, part: Part, *, at: datetime) -> None:
        self.print_end()
        match part:
            case Text(text=text):
                self._say(text)
            case Reasoning(text=text, completed_at=ended):
                self._leave_text()
                self._screen.thought(text)
                if ended is not None:
                    self._screen.end_thought()
            case ToolCall() if part.args is not UNSET:
                self._call(part, at)
            case ToolResult() if part.result is not UNSET:
                self._result(part, at)
            case ToolResult(result_delta=str(piece)):
                self._screen.output(piece)

    def print_committed(
        self, role: Role, content: Sequence[Part], *, at: datetime, is_interrupted: bool = False
    ) -> None:
        """Show a message of the chat. `is_interrupted`: the answer was stopped before its end."""
        if role in (Role.USER, Role.ASSISTANT):
            self.print_end()
        match role:
            case Role.ASSISTANT:
                self._commit(content, at)
            case Role.TOOL:
                self._others(content, at)
            case Role.SYSTEM:
                # Texts for users are never cut. Notes about the context have no text.
                self._screen.lines(*(line for line in parts.plain_text(content).splitlines() if line.strip()))
            case Role.USER:
                self._said = ""  # a user's next message begins another turn
                for part in content:
                    if isinstance(part, AgentNotice):
                        self._agent(ended_agent(part.chat_id, part.title, part.outcome, part.error))
        for part in content:
            if isinstance(part, TurnEnd):
                self._end = EndMark(at, part.message if part.outcome == "failed" else None)
            elif isinstance(part, ToolResult) and is_stop(part):
                self._end = EndMark(at)
        if is_interrupted:
            self._end = EndMark(at)

    def take_end(self) -> EndMark | None:
        """Return the mark of the last turn. The caller prints it, with what the user can do.

        A mark that is not taken is printed before the next turn.
        """
        end, self._end = self._end, None
        return end

    def print_end(self) -> None:
        """Print the mark of the last turn, because something follows it."""
        if (end := self.take_end()) is not None:
            self._screen.lines(end_line(end))

    def tell_agent(self, agent: ShownAgent) -> None:
        """Print the end of a subagent before the chat gets its report. Only subagents that the transcript names are
        printed.
        """
        if agent.chat_id in self._agents:
            self._agent(agent)

    def wait_for_user(self, tool_call_id: str) -> None:
        """Note that a call waits for an answer. Its duration is not shown, because most of it is the user's."""
        self._asked.add(tool_call_id)

    def tell_retry(self, retry: RetryState) -> None:
        again = f"Trying again in {retry.delay_ms / 1000:.0f} s."
        self._screen.note(f"Attempt {retry.attempt} failed: {retry.error} {again}", style=Style.RED)

    def _commit(self, content: Sequence[Part], at: datetime) -> None:
        texts = [part.text for part in content if isinstance(part, Text)]
        rest = "".join(texts)
        if rest.startswith(self._said):
            rest = rest[len(self._said) :]
        else:
            self._leave_text()
        if not self._said:
            # No live part was shown, so the blocks are separated as they are stored.
            for text in texts:
                self._say(text)
                self._leave_text()
        else:
            self._say(rest)
        self._leave_text()
        self._said = ""
        self._others(content, at)

    def _others(self, content: Sequence[Part], at: datetime) -> None:
        for part in content:
            match part:
                case ToolCall():
                    self._call(part, at)
                    if part.tool_call_id not in self._answered:
                        self._called_at[part.tool_call_id] = at  # tools start once their calls are committed
                case ToolResult():
                    self._result(part, at)
                case Source(url=url, title=title):
                    self._screen.note(f"source: {title or ''} {url}".replace("  ", " "))
                case File(name=name, media_type=kind):
                    self._screen.note(f"file: {name or 'without a name'} ({kind})")

    def _say(self, text: str) -> None:
        if not text:
            return
        if not self._in_text:
            self._screen.end_block()
            self._in_text = True
        self._said += text
        self._screen.text(text)

    def _leave_text(self) -> None:
        self._in_text = False

    def _call(self, call: ToolCall, at: datetime) -> None:
        if call.tool_call_id in self._called_at or call.tool_call_id in self._answered:
            return
        self._leave_text()
        self._called_at[call.tool_call_id] = at
        arguments = self._waited_for(call) or arguments_of(call)
        self._screen.note(f"{call.tool_name} {arguments}".rstrip())

    def _waited_for(self, call: ToolCall) -> str:
        """Return the titles of the subagents that a call waits for; empty if one of them is unknown."""
        if call.tool_name != "wait_agent" or not isinstance(call.args, Raw):
            return ""
        try:
            wait = msgspec.json.decode(call.args, type=_Wait)
        except msgspec.DecodeError:
            return ""
        ids = [*([wait.chat_id] if wait.chat_id else []), *(wait.chat_ids or ())]
        return ", ".join(self._agents[each] for each in ids) if set(ids) <= set(self._agents) else ""

    def _result(self, result: ToolResult, at: datetime) -> None:
        call_id = result.tool_call_id
        if call_id in self._answered:
            return
        self._leave_text()
        self._answered.add(call_id)
        started = self._called_at.pop(call_id, None)
        if call_id in self._asked:
            started = None
        seconds = "" if started is None else f" {max((at - started).total_seconds(), 0.0):.1f} s"
        if (denied := denial_of(result)) is not None:
            self._screen.note(f"{result.tool_name} {denied}")
        elif is_stop(result):
            self._screen.note(f"{result.tool_name} stopped{f' after{seconds}' if seconds else ''}")
            self._screen.result(result)
        elif result.is_error:
            after = f" after{seconds}" if seconds else ""
            self._screen.note(f"{result.tool_name} failed{after}: {reason_of(result)}", style=Style.RED)
            self._screen.result(result)
        elif failure := failure_of(result):
            after = f" after{seconds}" if seconds else ""
            self._screen.note(f"{result.tool_name} failed{after}: {failure}", style=Style.RED)
            self._screen.result(result)
        else:
            self._screen.note(f"{result.tool_name} done{f' in{seconds}' if seconds else ''}")
            self._screen.result(result)
            self._screen.lines(*questions_of(result))
            for agent in agents_of(result):
                self._agent(agent)

    def _agent(self, agent: ShownAgent) -> None:
        """Print the line of a subagent, unless it was the last one about it."""
        self._agents[agent.chat_id] = agent.title
        line = agent_line(agent)
        if self._agent_lines.get(agent.chat_id) != line:
            self._agent_lines[agent.chat_id] = line
            self._screen.lines(line)


def arguments_of(call: ToolCall) -> str:
    """Return the arguments in one line, as `name=value`; JSON if they are not an object."""
    if not isinstance(call.args, Raw):
        return ""
    value = parts.json_value(call.args)
    if not isinstance(value, dict):
        return bytes(call.args).decode("utf-8", "replace")[:MAX_ARGUMENTS]
    return " ".join(f"{name}={_word(each)}" for name, each in value.items())[:MAX_ARGUMENTS]


class _Wait(msgspec.Struct, frozen=True):
    chat_id: str | None = None
    chat_ids: tuple[str, ...] | None = None


class ShownAgent(msgspec.Struct, frozen=True):
    """A subagent in the result of a tool or in a notice, or one that has just ended."""

    chat_id: str
    title: str
    status: str = ""
    interrupted: bool = False
    last_error: str = ""
    last_error_kind: str = ""


def agents_of(result: ToolResult) -> tuple[ShownAgent, ...]:
    """Return the subagents that a result is about."""
    if result.tool_name not in AGENT_TOOLS or not isinstance(result.result, Raw):
        return ()
    value = parts.json_value(result.result)
    several = value.get("agents") if isinstance(value, dict) else None
    try:
        return msgspec.convert([value] if several is None else several, type=tuple[ShownAgent, ...])
    except msgspec.ValidationError:
        return ()


def ended_agent(chat_id: UUID, title: str, outcome: str, error: str | None = None) -> ShownAgent:
    """Return a subagent whose last turn ended with this outcome."""
    return ShownAgent(
        chat_id=str(chat_id),
        title=title,
        status="error" if outcome == "error" else "waiting",
        interrupted=outcome == "interrupted",
        last_error=error or "",
        last_error_kind=outcome if outcome == "deadline" else "",
    )


def agent_line(agent: ShownAgent) -> str:
    """Return one line about a subagent. Its short id is the argument of `rookery chat attach`."""
    if agent.status not in ("waiting", "error"):
        state = "at work"
    elif agent.last_error_kind == "deadline":
        state = "stopped at its time limit"
    elif agent.status == "error":
        state = f"failed: {' '.join(agent.last_error.split())}" if agent.last_error else "failed"
    else:
        state = "stopped" if agent.interrupted else "finished"
    return f"  agent {agent.chat_id[:8]} {agent.title}: {state}"


class _Option(msgspec.Struct, frozen=True):
    label: str
    description: str = ""


class _Question(msgspec.Struct, frozen=True):
    question: str
    options: tuple[_Option, ...] = ()


class _Questions(msgspec.Struct, frozen=True):
    questions: tuple[_Question, ...]


def questions_of(result: ToolResult) -> list[str]:
    """Return the questions of a model to its user, with the choices; the next message answers them."""
    if result.tool_name != "ask_user_question" or not isinstance(result.result, Raw):
        return []
    try:
        asked = msgspec.json.decode(result.result, type=_Questions).questions
    except msgspec.DecodeError:
        return []
    lines = []
    for each in asked:
        lines.append(each.question)
        lines.extend(f"  - {option.label}: {option.description}" for option in each.options)
    return [*lines, "Answer with your next message."]


def denial_of(result: ToolResult) -> str | None:
    """Return who denied a call, with the user's words; None if it was not denied."""
    value = parts.json_value(result.result) if result.is_error and isinstance(result.result, Raw) else None
    if not isinstance(value, dict):
        return None
    if value.get("reason") == DENIED_BY_RULE:
        return "denied by a rule"
    if value.get("reason") != CloseReason.DENIED_BY_USER:
        return None
    comment = " ".join(str(value.get("comment") or "").split())
    return f"denied by you{f': {comment}' if comment else ''}"


def is_stop(result: ToolResult) -> bool:
    """Return whether a result says that its call was stopped with the turn."""
    value = parts.json_value(result.result) if result.is_error and isinstance(result.result, Raw) else None
    return isinstance(value, dict) and value.get("reason") in STOPS


def end_line(end: EndMark) -> str:
    """Return the mark of a turn, with the time of this computer."""
    time = end.at.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"Stopped, {time}" if end.error is None else f"Failed, {time}: {end.error}"


def failure_of(result: ToolResult) -> str:
    """Return how a command failed that ran; empty if it succeeded."""
    value = parts.json_value(result.result) if isinstance(result.result, Raw) else None
    if not isinstance(value, dict) or value.get("success") is not False:
        return ""
    return reason_of(result) if value.get("error") or "exit_code" not in value else f"exit code {value['exit_code']}"


def reason_of(result: ToolResult) -> str:
    """Return why a tool failed, in its own words."""
    if not isinstance(result.result, Raw):
        return "no reason was given"
    value = parts.json_value(result.result)
    if isinstance(value, dict):
        value = value.get("error") or value.get("message") or value.get("output") or value
    return " ".join(value.split()) if isinstance(value, str) else _word(value)


def _word(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode("utf-8", "replace")
