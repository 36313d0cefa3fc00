"""The rows of an interrupted step, built from the live parts of its episode.

Only content that can be sent to a model again is kept. Text is kept, even if it is incomplete. A call is kept if its
arguments are complete. Every call that is kept gets a result: its own, or an error with the live output of the tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.domain.chat import open_tool_calls, parts, truncation
from rookery.domain.chat.messages import NewMessage, Role, StepFigures
from rookery.domain.chat.open_tool_calls import CloseReason, OpenCall
from rookery.domain.chat.parts import ContentError, File, Part, Reasoning, Source, Text, ToolCall, ToolResult
from rookery.domain.chat.prompt import INTERRUPTED

NOTE = "interrupted before this call finished"
NOTE_WITH_OUTPUT = f"{NOTE}; its output so far is in `output`"
# Enough for a failing test or the end of a build. The live output of a tool can be much longer.
MAX_OUTPUT_BYTES = 32 * 1024


class LivePart(msgspec.Struct, frozen=True, gc=False):
    """A live part, with the role of the row that it would be stored in."""

    role: Role
    part: Part


def rows(
    live: Iterable[LivePart],
    *,
    at: datetime,
    model_config_id: UUID,
    figures: StepFigures,
    committed: Sequence[OpenCall] = (),
) -> tuple[NewMessage, ...]:
    """Return the rows of an interrupted step: results for `committed`, the model's row, and a result for each call.

    `live` are the parts of the episode in order. `committed` are the calls of the history that were open when the step
    began; the step may have run their tools. `figures` are the usage and run time as far as they are known.
    """
    draft = _Draft(at)
    for each in live:
        draft.add(each)
    content = draft.content()
    kept = [draft.answer(call, model_config_id=model_config_id) for call in committed]
    if content:
        kept.append(
            NewMessage(
                role=Role.ASSISTANT,
                content=content,
                model_config_id=model_config_id,
                figures=_figures(figures, has_model_output=draft.has_model_output),
            )
        )
    kept += (draft.answer(call, model_config_id=model_config_id) for call in _local_calls(content))
    return tuple(kept)


def _figures(figures: StepFigures, *, has_model_output: bool) -> StepFigures:
    runtime_ms = figures.runtime_ms if has_model_output else None
    return msgspec.structs.replace(figures, finish_reason=INTERRUPTED, runtime_ms=runtime_ms)


def _local_calls(content: Iterable[Part]) -> tuple[OpenCall, ...]:
    return tuple(
        OpenCall(0, part.tool_call_id, part.tool_name)
        for part in content
        if isinstance(part, ToolCall) and not part.provider_executed
    )


class _Draft:
    """The state of a fold over live parts. `_content` has the model's parts in order; a call is where it began."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._content: list[Part] = []
        # The pieces of each text and reasoning part, by index. They are joined at the end.
        self._words: dict[int, list[str]] = {}
        self._places: dict[str, int] = {}
        self._arguments: dict[str, list[str]] = {}
        self._results: dict[str, ToolResult] = {}
        self._files: dict[str, list[File]] = {}
        # The live output of tools, by call.
        self._output: dict[str, list[str]] = {}
        self._last_result: str | None = None
        self.has_model_output = False

    def add(self, live: LivePart) -> None:
        part = live.part
        if isinstance(part, ToolResult):
            self._add_result(part)
        elif live.role is Role.TOOL:
            # Attachments of a tool follow its result. If the result is not kept, they are dropped.
            if isinstance(part, File) and self._last_result is not None:
                self._files.setdefault(self._last_result, []).append(part)
        elif live.role is Role.ASSISTANT:
            self._add_own(part)

    def content(self) -> tuple[Part, ...]:
        """Return the content of the model's row, without incomplete calls and results without a call."""
        calls = {part.tool_call_id for part in self._content if isinstance(part, ToolCall) and self._finished(part)}
        kept: list[Part] = []
        answered: set[str] = set()
        for place, part in enumerate(self._content):
            match self._whole(place, part):
                case ToolCall() as call:
                    if finished := self._finished(call):
                        kept.append(finished)
                case ToolResult(tool_call_id=call_id) as result:
                    if call_id in calls and call_id not in answered:
                        answered.add(call_id)
                        kept.append(result)
                case Text(text="") | Reasoning(text=""):
                    continue
                case whole:
                    kept.append(whole)
        return tuple(kept)

    def answer(self, call: OpenCall, *, model_config_id: UUID) -> NewMessage:
        # The result is removed, because a call may have the same id as one of the history.
        result = self._results.pop(call.tool_call_id, None)
        if result is None:
            output = truncation.cut_text("".join(self._output.pop(call.tool_call_id, ())), MAX_OUTPUT_BYTES)
            return open_tool_calls.closure(
                call,
                CloseReason.INTERRUPTED,
                model_config_id=model_config_id,
                at=self._at,
                note=NOTE_WITH_OUTPUT if output else NOTE,
                output=output,
            )
        content = (result, *self._files.get(call.tool_call_id, ()))
        return NewMessage(role=Role.TOOL, content=content, model_config_id=model_config_id)

    def _add_own(self, part: Part) -> None:
        self.has_model_output = self.has_model_output or not isinstance(part, File)
        match part:
            case Text() | Reasoning():
                self._add_words(part)
            case ToolCall():
                self._add_call(part)
            case Source() | File():
                self._content.append(part)
            case _:
                # Models produce no other parts.
                return

    def _add_words(self, part: Text | Reasoning) -> None:
        place = len(self._content) - 1
        last = self._content[place] if self._content else None
        if isinstance(part, Text) and isinstance(last, Text):
            self._content[place] = msgspec.structs.replace(last, refusal=last.refusal or part.refusal)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            created_at = last.created_at or part.created_at
            self._content[place] = Reasoning("", created_at, part.completed_at)
        else:
            place += 1
            # The signature of the provider covers only the first piece of the text, so the signature is removed.
            self._content.append(part if isinstance(part, Text) else msgspec.structs.replace(part, provider_meta=None))
        self._words.setdefault(place, []).append(part.text)

    def _add_call(self, part: ToolCall) -> None:
        call_id = part.tool_call_id
        place = self._places.setdefault(call_id, len(self._content))
        if place == len(self._content):
            self._content.append(part)
        if part.args is not UNSET:
            self._content[place] = msgspec.structs.replace(part, args_delta=None)
        elif part.args_delta:
            self._arguments.setdefault(call_id, []).append(part.args_delta)

    def _add_result(self, part: ToolResult) -> None:
        self._last_result = None
        if part.result is UNSET or part.result_delta is not None:
            if part.result_reset:
                self._output.pop(part.tool_call_id, None)
            if part.result_delta:
                self._output.setdefault(part.tool_call_id, []).append(part.result_delta)
            return
        whole = msgspec.structs.replace(part, result_reset=False)
        if part.provider_executed:
            self._content.append(whole)
        elif part.tool_call_id not in self._results:
            self._results[part.tool_call_id] = whole
            self._last_result = part.tool_call_id

    def _finished(self, call: ToolCall) -> ToolCall | None:
        """Return the call with its arguments; None if they are not a complete JSON object."""
        if call.args is not UNSET:
            return call
        text = "".join(self._arguments.get(call.tool_call_id, ()))
        if not text.lstrip().startswith("{"):
            return None
        try:
            return msgspec.structs.replace(call, args=parts.json_text(text), args_delta=None)
        except ContentError:
            return None

    def _whole(self, place: int, part: Part) -> Part:
        match part:
            case Text():
                return msgspec.structs.replace(part, text="".join(self._words[place]))
            case Reasoning(created_at=created_at, completed_at=completed_at):
                return Reasoning("".join(self._words[place]), created_at or self._at, completed_at or self._at)
            case _:
                return part
