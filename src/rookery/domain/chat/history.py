"""What a decision needs to know of a chat's committed rows: its turn, its open calls, where it was compacted.

Live rows are neither deleted nor compressed. The turn is what is live after the last live user row that people can
see; system rows and user rows for the model only are nobody's turn. Rows are read from the end and no further than
needed, so a long chat costs no more than its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from rookery.domain.chat import compaction, parts, tool_calls
from rookery.domain.chat.messages import Message, MessageId, Role, Visibility
from rookery.domain.chat.parts import CONTENT_VERSION, ContentError, ToolCall
from rookery.domain.chat.prompt import PromptRow, UnreadableRow
from rookery.domain.chat.tool_calls import CallRow, OpenCall

# `llm.types.FinishReason.PAUSE`, as stored: the provider stopped in the middle of its own tools and wants to go on.
PAUSE = "pause"
_OF_A_TURN = (Role.ASSISTANT, Role.TOOL)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The committed rows as the next decision sees them.

    `turn` holds its live rows in order, without the user's own, which is `begun_by`. `last` is the newest live row of
    the conversation: of the turn, or the user row that began it. `open_calls` name the assistant rows they stand in.
    `compactions` says, oldest first, why the chat was compacted since the user last spoke. `unreadable` rows have no
    calls and no results.
    """

    turn: tuple[PromptRow, ...]
    last: PromptRow | None
    open_calls: tuple[OpenCall, ...]
    has_compactable: bool
    begun_by: Message | None = None
    compactions: tuple[compaction.Source, ...] = ()
    unreadable: tuple[MessageId, ...] = ()

    @property
    def steps(self) -> int:
        """How many answers of the model the turn has."""
        return sum(row.message.role is Role.ASSISTANT for row in self.turn)

    @property
    def pauses(self) -> int:
        """How many of its answers the provider paused."""
        return sum(_is_paused(row) for row in self.turn)

    @property
    def ends_in_answer(self) -> bool:
        """Whether the model spoke last."""
        return self.last is not None and self.last.message.role is Role.ASSISTANT

    @property
    def ends_in_pause(self) -> bool:
        return self.last is not None and _is_paused(self.last)

    @property
    def ends_in_user_message(self) -> bool:
        """Whether the user waits for a first answer."""
        return not self.turn

    def has_result_of(self, tool_names: Collection[str]) -> bool:
        """Whether one of these tools succeeded in the turn. An error result does not count."""
        if not tool_names:
            return False
        return any(
            part.type == "tool-result" and part.tool_name in tool_names and not part.is_error
            for row in self.turn
            if row.message.role is Role.TOOL
            for part in _results(row.message)
        )

    def call_parts(self, calls: Sequence[OpenCall]) -> tuple[ToolCall, ...]:
        """The calls as the model made them, in the given order; `UnreadableRow` when their row cannot be read."""
        messages = {row.message.id: row.message for row in self.turn}
        made: dict[tuple[int, str], ToolCall] = {}
        for message_id in dict.fromkeys(MessageId(call.message_id) for call in calls):
            for part in _parts(messages[message_id]):
                if isinstance(part, ToolCall):
                    made[message_id, part.tool_call_id] = part
        return tuple(made[call.message_id, call.tool_call_id] for call in calls)


def read(rows: Sequence[PromptRow]) -> History:
    """The history of these rows, in ascending order of ids.

    Wanted are all rows since the last user row that people can see and since the newest boundary, with whatever
    visibility; older, deleted and compressed ones may be among them.
    """
    start = _find_turn(rows)
    turn = tuple(row for row in rows[start:] if _is_live(row.message) and row.message.role in _OF_A_TURN)
    begun_by = rows[start - 1] if start else None
    unreadable: list[MessageId] = []
    open_calls = tool_calls.open_calls(
        (_call_row(row.message) for row in turn),
        on_unreadable=lambda message_id: unreadable.append(MessageId(message_id)),
    )
    return History(
        turn=turn,
        last=turn[-1] if turn else begun_by,
        open_calls=open_calls,
        has_compactable=_has_compactable(rows),
        begun_by=None if begun_by is None else begun_by.message,
        compactions=tuple(_compactions(rows[start:])),
        unreadable=tuple(unreadable),
    )


def _is_live(message: Message) -> bool:
    return not message.deleted and not message.compressed


def _is_paused(row: PromptRow) -> bool:
    return row.message.role is Role.ASSISTANT and row.figures.finish_reason == PAUSE


def _find_turn(rows: Sequence[PromptRow]) -> int:
    """Where the turn begins: behind the last live user row that people can see; at the first row if there is none."""
    for place in range(len(rows) - 1, -1, -1):
        message = rows[place].message
        if message.role is Role.USER and message.visibility is not Visibility.MODEL and _is_live(message):
            return place + 1
    return 0


def _has_compactable(rows: Sequence[PromptRow]) -> bool:
    """Whether the model said something since the newest boundary: walking back, an answer comes before a summary."""
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
    """Why a compaction was made, from the call it left. Whatever cannot be read was no answer to an overflow."""
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
    """The few fields of any part that say which tool succeeded."""

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
