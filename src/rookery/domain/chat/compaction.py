"""Compaction: the decision whether to summarize a history, and the three rows that a summary adds.

The decision uses the number of tokens that the provider reported for the newest answer, plus an estimate for later
rows, because a large tool result must count before it is sent. `summary_prompt` has the request for the summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.chat import parts
from rookery.domain.chat.messages import NewMessage, Role, StepFigures, Visibility
from rookery.domain.chat.parts import (
    AgentNotice,
    ContentError,
    File,
    FileReference,
    Part,
    Text,
    ToolCall,
    ToolResult,
)
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.chat.truncation import BYTES_PER_TOKEN
from rookery.domain.content.attachments import MAX_PASTED_BYTES, StoredFile, plain_type
from rookery.domain.models import context_window

DEFAULT_THRESHOLD = 70
# Above this percentage of the window, a turn does not continue without a summary.
FULL_PERCENT = 95
TOOL_NAME = "chat_summarized"

# Stored boundaries are recognized by these two texts, so they must not change.
LEAD_IN = (
    "The conversation so far was summarised to make room. The summary below replaces it; trust it as your own notes, "
    "and read files again where you need their exact text.\n\n"
)
CARRIED_LEAD_IN = (
    "What follows is, word for word, the user's message that is being worked on right now. It was not answered yet: "
    "go on with it from where the summary ends."
)
NOT_SUMMARISED = (
    "This chat is getting too long for its model and could not be summarized: {reason} The turn continues, and the "
    "next step tries again."
)
TIGHT = (
    "The summary did not bring this chat below its compaction threshold. The turn continues, and the chat is "
    "summarized again when the model's window is nearly full."
)
STILL_OVER_LIMIT = (
    "The summary did not bring this chat under its context limit. Raise the limit or the compaction threshold of the "
    "model, or start a new chat."
)

# Chosen: the tokens of a picture of common size. If that is too low, the provider refuses the prompt as too long.
_MEDIA_TOKENS = 1600


class Source(StrEnum):
    """The cause of a compaction: the threshold, a user, or a provider that refused the prompt as too long."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    OVERFLOW = "overflow"


class Status(StrEnum):
    NOT_NEEDED = "not_needed"
    NEEDED = "needed"
    AFTER_COMPACTION = "after_compaction"
    TIGHT = "tight"
    STILL_OVER_LIMIT = "still_over_limit"


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the context and the resulting decision.

    `tokens` is None until the provider has reported the tokens of an answer.
    """

    status: Status
    threshold_percent: int
    tokens: int | None
    limit_tokens: int | None

    @property
    def has_room(self) -> bool:
        """Return whether the turn can continue without a summary. True if the tokens are unknown."""
        return not _is_full(self.tokens, self.limit_tokens)

    @property
    def usage_percent(self) -> float | None:
        if self.tokens is None or not self.limit_tokens:
            return None
        return round(self.tokens * 100 / self.limit_tokens, 1)


def effective_threshold(user_value: int | None, config_value: int | None) -> int:
    """Return the threshold in percent: that of the user for this model, or that of the model. 100 means never."""
    chosen = user_value if user_value is not None else config_value
    return chosen if chosen is not None and 0 <= chosen <= 100 else DEFAULT_THRESHOLD


def effective_limit(*limits: int | None) -> int | None:
    """Return the smaller of the windows of the chat's model and of the summarizing model."""
    return context_window.smallest(*limits)


def assess(
    rows: Sequence[PromptRow], *, files: Mapping[UUID, StoredFile], threshold_percent: int, limit_tokens: int | None
) -> Assessment:
    """Decide whether to compact before the next generation. `rows` are those of the prompt."""
    tokens = count_tokens(rows, files=files)
    return Assessment(
        status=_status(rows, tokens, threshold_percent=threshold_percent, limit_tokens=limit_tokens),
        threshold_percent=threshold_percent,
        tokens=tokens,
        limit_tokens=limit_tokens,
    )


def _status(
    rows: Sequence[PromptRow], tokens: int | None, *, threshold_percent: int, limit_tokens: int | None
) -> Status:
    boundary = _find_boundary(rows)
    live = rows if boundary is None else rows[boundary + 1 :]
    live = [row for row in live if row.message.role is not Role.SYSTEM]
    if boundary is not None and not live:
        return Status.AFTER_COMPACTION
    if not _is_over(tokens, threshold_percent=threshold_percent, limit_tokens=limit_tokens):
        return Status.NOT_NEEDED
    if boundary is None:
        return Status.NEEDED
    first = next((row for row in live if row.message.role is Role.ASSISTANT), None)
    # With a threshold of 0, the context is always over the threshold, even right after a successful summary.
    if (
        first is not None
        and threshold_percent > 0
        and _is_over(_counted(first.figures), threshold_percent=threshold_percent, limit_tokens=limit_tokens)
    ):
        # Another summary would be as long as this one. The turn can continue while the window is not full.
        if not _is_full(tokens, limit_tokens):
            return Status.TIGHT
        return Status.STILL_OVER_LIMIT if _is_full(_counted(first.figures), limit_tokens) else Status.NEEDED
    return Status.NEEDED


def _is_over(tokens: int | None, *, threshold_percent: int, limit_tokens: int | None) -> bool:
    if tokens is None or limit_tokens is None or limit_tokens <= 0 or threshold_percent >= 100:
        return False
    return tokens * 100 >= threshold_percent * limit_tokens


def _is_full(tokens: int | None, limit_tokens: int | None) -> bool:
    return tokens is not None and bool(limit_tokens) and tokens * 100 >= FULL_PERCENT * (limit_tokens or 0)


def _find_boundary(rows: Sequence[PromptRow]) -> int | None:
    """Return the index of the newest summary among the rows."""
    for place in range(len(rows) - 1, -1, -1):
        message = rows[place].message
        if message.compressed and message.visibility is Visibility.MODEL:
            return place
    return None


def count_tokens(rows: Sequence[PromptRow], *, files: Mapping[UUID, StoredFile]) -> int | None:
    """Return the tokens of the next request: reported up to the newest answer, estimated after it. None if unknown."""
    guessed = 0
    for row in reversed(rows):
        counted = _counted(row.figures)
        if counted is not None:
            return counted + guessed // BYTES_PER_TOKEN
        guessed += _prompt_bytes(row, files)
    return None


def _counted(figures: StepFigures) -> int | None:
    """Return the input tokens of a step; None if unknown. Servers that do not count report zero."""
    if figures.context_tokens:
        return figures.context_tokens
    read = (figures.input_tokens or 0) + (figures.cache_read_tokens or 0) + (figures.cache_write_tokens or 0)
    return read or figures.total_tokens or None


def _prompt_bytes(row: PromptRow, files: Mapping[UUID, StoredFile]) -> int:
    """Return the size of a row in a prompt. Media counts by its estimated tokens, not by its bytes."""
    content = row.message.content
    size = len(content.encode("utf-8", "replace"))
    if '"file"' not in content and '"is_media"' not in content:
        return size
    try:
        found = row.message.parts()
    except ContentError:
        return size
    for part in found:
        if isinstance(part, File) and row.message.role is Role.USER:
            size += file_bytes(part, files) - len(part.data or "")
        elif isinstance(part, File):
            size -= len(part.data or "")
        elif isinstance(part, ToolResult) and part.is_media and not isinstance(part.result, msgspec.UnsetType):
            size += _MEDIA_TOKENS * BYTES_PER_TOKEN - len(bytes(part.result))
    return max(size, 0)


def file_bytes(part: File, files: Mapping[UUID, StoredFile]) -> int:
    """Return the size of a file of a user message in a prompt."""
    file = files.get(part.file_id) if part.file_id is not None else None
    if file is None or not file.data:
        return 0
    if file.is_pasted:
        return min(len(file.data), MAX_PASTED_BYTES)
    media_type = plain_type(file.media_type)
    is_text = media_type.startswith("text/") or media_type == "application/json"
    return len(file.data) if is_text else _MEDIA_TOKENS * BYTES_PER_TOKEN


# Rows that a compaction adds


def current_turn_parts(rows: Sequence[PromptRow]) -> tuple[Part, ...]:
    """Return all parts of the user message, or messages, that began the current turn.

    If an earlier compaction of the turn has removed them from the rows, their copy in the summary message is used.
    """
    said: list[tuple[Part, ...]] = []
    behind: tuple[Part, ...] = ()
    before: tuple[Part, ...] = ()
    for row in reversed(rows):
        message = row.message
        if message.deleted:
            continue
        if message.compressed:
            if message.visibility is not Visibility.MODEL:
                continue
            if said:
                before = _carried_by(message.parts())
                break
            behind = behind or _carried_by(message.parts())
        elif message.role is Role.USER and message.visibility is not Visibility.MODEL:
            said.append(message.parts())
        elif message.role is Role.ASSISTANT and said:
            break
    own = carriable(part for content in reversed(said) for part in content)
    if behind:
        # The copy in the boundary may be cut. The row has the whole message.
        return (*behind[: max(len(behind) - len(own), 0)], *own)
    return (*before, *own)


def carriable(content: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts of a user message that a boundary can carry: those that are sent to the model."""
    return tuple(
        part
        for part in content
        if isinstance(part, File | FileReference | AgentNotice) or (isinstance(part, Text) and part.text.strip())
    )


def boundary_summary(rows: Sequence[PromptRow]) -> str:
    """Return the text of the newest summary; empty if there is none."""
    place = _find_boundary(rows)
    first = None if place is None else next(iter(rows[place].message.parts()), None)
    return first.text.removeprefix(LEAD_IN) if isinstance(first, Text) and first.text.startswith(LEAD_IN) else ""


def boundary_parts(summary: str, carried: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts of a boundary, which replaces all rows before it in the prompt."""
    content: tuple[Part, ...] = (Text(LEAD_IN + summary),) if summary else ()
    return (*content, Text(CARRIED_LEAD_IN), *carried) if carried else content


def _carried_by(boundary: tuple[Part, ...]) -> tuple[Part, ...]:
    for place, part in enumerate(boundary[:2]):
        if part == Text(CARRIED_LEAD_IN):
            return boundary[place + 1 :]
    return ()


def new_rows(
    summary: str,
    *,
    source: Source,
    assessment: Assessment,
    carried: Sequence[Part],
    tool_call_id: str,
    model_config_id: UUID,
    runtime_ms: int,
    at: datetime,
    steps: Steps | None = None,
) -> tuple[NewMessage, ...]:
    """Return the rows of a compaction, for one commit: boundary, tool call and tool result.

    The boundary is for the model; the call and the result are shown to users. `carried` are the parts of the user
    message, if the turn continues: the model gets it word for word, because a summary may change an instruction.
    `summary` is empty if that message was the only content.
    """
    content = boundary_parts(summary, carried)
    if not content:
        raise ValueError("A boundary needs a summary or a message.")
    boundary = NewMessage(
        role=Role.USER,
        content=content,
        visibility=Visibility.MODEL,
        compressed=True,
        model_config_id=model_config_id,
    )
    call = NewMessage(
        role=Role.ASSISTANT,
        content=(call_part(tool_call_id, source=source, assessment=assessment, at=at),),
        visibility=Visibility.USER,
        compressed=True,
        model_config_id=model_config_id,
        figures=StepFigures(runtime_ms=runtime_ms),
    )
    result = NewMessage(
        role=Role.TOOL,
        content=(result_part(tool_call_id, summary, source=source, assessment=assessment, at=at, steps=steps),),
        compressed=True,
        model_config_id=model_config_id,
    )
    return boundary, call, result


def tool_call_id(unique: UUID) -> str:
    return f"{TOOL_NAME}_{unique}"


def call_part(tool_call_id: str, *, source: Source, assessment: Assessment, at: datetime) -> ToolCall:
    """Return the tool call that is shown while the summary is generated, and stored with it."""
    args = {"source": str(source), "threshold_percent": assessment.threshold_percent}
    return ToolCall(tool_call_id, TOOL_NAME, args=parts.json_raw(args), created_at=at)


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a compaction: the overflow rungs, the number of requests, and the messages that were cut."""

    rungs: tuple[str, ...] = ()
    calls: int = 1
    spilled: tuple[Spilled, ...] = ()


class Spilled(msgspec.Struct, frozen=True, kw_only=True):
    """A text of the user message that was cut to its beginning and end. `path` has all of it, in the workspace."""

    bytes: int
    path: str | None = None


def result_part(
    tool_call_id: str,
    summary: str,
    *,
    source: Source,
    assessment: Assessment,
    at: datetime,
    steps: Steps | None = None,
) -> ToolResult:
    result = {
        "summary": summary,
        "source": str(source),
        "threshold_percent": assessment.threshold_percent,
        "usage_percent": assessment.usage_percent,
        "context_tokens": assessment.tokens,
        "context_limit_tokens": assessment.limit_tokens,
    }
    if steps is not None:
        result |= msgspec.to_builtins(steps)
    return ToolResult(tool_call_id, TOOL_NAME, result=parts.json_raw(result), created_at=at)


def error_part(tool_call_id: str, message: str, *, at: datetime) -> ToolResult:
    """Return the tool result that is shown if the summary fails. It is not stored."""
    error = parts.json_raw({"error": message})
    return ToolResult(tool_call_id, TOOL_NAME, result=error, is_error=True, created_at=at)
