"""`History`: the committed rows of a chat for one decision: the turn, its open calls, and its compactions.

A live row is neither deleted nor compressed. The turn is the live rows after the last live user row that is visible to
users. System rows, and user rows that only the model sees, do not start a turn. Rows are read from the end and no
further than needed, so the cost depends on the turn, not on the chat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from rookery.domain.chat import compaction, open_tool_calls, parts
from rookery.domain.chat.messages import Message, MessageId, Role, Visibility
from rookery.domain.chat.open_tool_calls import CallRow, OpenCall
from rookery.domain.chat.parts import CONTENT_VERSION, AgentNotice, ContentError, ToolCall
from rookery.domain.chat.prompt import PromptRow, UnreadableRow

# The stored form of `llm.types.FinishReason.PAUSE`: the provider paused between its own tools and has to be called
# again.
PAUSE = "pause"
_OF_A_TURN = (Role.ASSISTANT, Role.TOOL)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The committed rows for the next decision.

    `turn` has the live rows of the turn in order, without the user row that began it, which is `begun_by`. `last` is
    the last row of the turn, or `begun_by`. `open_calls` refer to the assistant rows that contain them. `compactions`
    are the causes of compactions since the last user message, oldest first. `unreadable` rows count as rows without
    calls and results. `work` has the live rows of models and tools since the last message of a user, and ends with
    `turn`. A notice about a subagent begins a turn, but must not reset the step limit or the brake.
    """

    turn: tuple[PromptRow, ...]
    last: PromptRow | None
    open_calls: tuple[OpenCall, ...]
    has_compactable: bool
    begun_by: Message | None = None
    compactions: tuple[compaction.Source, ...] = ()
    unreadable: tuple[MessageId, ...] = ()
    work: tuple[PromptRow, ...] = ()

    @property
    def steps(self) -> int:
        """Return the number of answers of the model since the last message of a user."""
        return sum(row.message.role is Role.ASSISTANT for row in self.work)

    @property
    def pauses(self) -> int:
        """Return the number of answers in the turn that the provider paused."""
        return sum(_is_paused(row) for row in self.turn)

    @property
    def ends_in_answer(self) -> bool:
        """Return whether the newest row is an answer of the model."""
        return self.last is not None and self.last.message.role is Role.ASSISTANT

    @property
    def ends_in_pause(self) -> bool:
        return self.last is not None and _is_paused(self.last)

    @property
    def ends_in_user_message(self) -> bool:
        """Return whether the newest row is the user message that began the turn."""
        return not self.turn

    @property
    def begins_with_notice(self) -> bool:
        """Return whether the turn began with a notice about a subagent instead of a user's message."""
        if self.begun_by is None:
            return False
        try:
            return any(isinstance(part, AgentNotice) for part in self.begun_by.parts())
        except ContentError:
            return False

    def has_result_of(self, tool_names: Collection[str]) -> bool:
        """Return whether one of these tools has succeeded in the turn."""
        if not tool_names:
            return False
        return any(
            part.type == "tool-result" and part.tool_name in tool_names and not part.is_error
            for row in self.turn
            if row.message.role is Role.TOOL
            for part in _results(row.message)
        )

    def call_parts(self, calls: Sequence[OpenCall]) -> tuple[ToolCall, ...]:
        """Return the parts of these calls, in the given order. Raises `UnreadableRow` if a row cannot be read."""
        messages = {row.message.id: row.message for row in self.turn}
        made: dict[tuple[int, str], ToolCall] = {}
        for message_id in dict.fromkeys(MessageId(call.message_id) for call in calls):
            for part in _parts(messages[message_id]):
                if isinstance(part, ToolCall):
                    made[message_id, part.tool_call_id] = part
        return tuple(made[call.message_id, call.tool_call_id] for call in calls)


def read(rows: Sequence[PromptRow]) -> History:
    """Return the history of these rows, which are in ascending order.

    They must include all rows, of any visibility, since the last message of a user and since the newest boundary. They
    may include older, deleted and compressed rows.
    """
    start = _find_turn(rows)
    asked = _find_asked(rows, start)
    turn = tuple(row for row in rows[start:] if _is_work(row.message))
    earlier = tuple(row for row in rows[asked:start] if _is_work(row.message))
    begun_by = rows[start - 1] if start else None
    unreadable: list[MessageId] = []
    open_calls = open_tool_calls.open_calls(
        (_call_row(row.message) for row in turn),
        on_unreadable=lambda message_id: unreadable.append(MessageId(message_id)),
    )
    return History(
        turn=turn,
        last=turn[-1] if turn else begun_by,
        open_calls=open_calls,
        has_compactable=_has_compactable(rows),
        begun_by=None if begun_by is None else begun_by.message,
        compactions=tuple(_compactions(rows[asked:])),
        unreadable=tuple(unreadable),
        work=(*earlier, *turn) if earlier else turn,
    )


def _find_asked(rows: Sequence[PromptRow], start: int) -> int:
    """Return the index of the first row after the last message of a user; 0 if there is none."""
    place = start
    while place and not is_from_user(rows[place - 1].message):
        place -= 1
    return place


def is_from_user(message: Message) -> bool:
    """Return whether this is a live message of a user. Summaries and notices have the same role."""
    return _starts_turn(message) and not (
        # Notices have no author.
        message.created_by is None and '"agent-notice"' in message.content
    )


def _starts_turn(message: Message) -> bool:
    return message.role is Role.USER and message.visibility is not Visibility.MODEL and _is_live(message)


def _is_live(message: Message) -> bool:
    return not message.deleted and not message.compressed


def _is_work(message: Message) -> bool:
    return _is_live(message) and message.role in _OF_A_TURN


def _is_paused(row: PromptRow) -> bool:
    return row.message.role is Role.ASSISTANT and row.figures.finish_reason == PAUSE


def _find_turn(rows: Sequence[PromptRow]) -> int:
    """Return the index of the first row after the last live visible user row; 0 if there is none."""
    for place in range(len(rows) - 1, -1, -1):
        if _starts_turn(rows[place].message):
            return place + 1
    return 0


def _has_compactable(rows: Sequence[PromptRow]) -> bool:
    """Return whether the model has answered since the newest boundary."""
    for row in reversed(rows):
        message = row.message
        if message.deleted:
            continue
        if message.compressed:
            return False
        if message.role is Role.ASSISTANT:
            return True
    return False


def _compactions(rows: Iterable[PromptRow]) -> Iterable[compaction.Source]:
    for row in rows:
        message = row.message
        if message.compressed and not message.deleted and message.role is Role.ASSISTANT:
            yield _source(message)


def _source(message: Message) -> compaction.Source:
    """Return the cause of a compaction from its tool call. If the call cannot be read, return `AUTOMATIC`."""
    try:
        for part in message.parts():
            if isinstance(part, ToolCall) and not isinstance(part.args, msgspec.UnsetType):
                return msgspec.convert(parts.json_value(part.args), _CompactionArgs).source
    except (ContentError, msgspec.ValidationError):
        pass
    return compaction.Source.AUTOMATIC


class _CompactionArgs(msgspec.Struct, frozen=True):
    source: compaction.Source


class _ResultPart(msgspec.Struct, frozen=True):
    """The fields of a part that show which tool has succeeded."""

    type: str = ""
    tool_name: str | None = None
    is_error: bool = False


_result_parts = msgspec.json.Decoder(tuple[_ResultPart, ...])


def _results(message: Message) -> tuple[_ResultPart, ...]:
    if message.content_version != CONTENT_VERSION:
        return ()
    try:
        return _result_parts.decode(parts.unescape(message.content))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ()


def _parts(message: Message) -> tuple[parts.Part, ...]:
    try:
        return message.parts()
    except ContentError as error:
        raise UnreadableRow(message.id, str(error)) from error


def _call_row(message: Message) -> CallRow:
    return CallRow(message.id, message.role, message.content, message.content_version)
