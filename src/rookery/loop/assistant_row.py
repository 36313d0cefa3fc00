"""The assistant row: collects the parts of one model stream into the content of a row, and publishes each part live.

A block keeps the position at which it began, so the committed order is the order of the live parts. Each token costs
one lookup, one append and one live part; text is joined only at the end.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Meta, Prompt
from rookery.domain.chat.parts import Part
from rookery.llm import types as llm
from rookery.llm.types import LanguageModel, Usage
from rookery.loop import tool_input
from rookery.loop.tool import Publish

# Every wire accepts these ids. Other ids are replaced, because a history that contains them cannot be replayed.
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_ORIGINAL_ID = 200
# Larger counts are errors of the server, and would not fit into a column.
_MAX_COUNT = 2**53


class _Block:
    """An unfinished block: reasoning if it has a start time, else text."""

    __slots__ = ("ended_at", "is_refusal", "meta", "pieces", "started_at")

    def __init__(self, started_at: datetime | None = None) -> None:
        self.pieces: list[str] = []
        self.meta: Meta | None = None
        self.is_refusal = False
        self.started_at = started_at
        self.ended_at: datetime | None = None


class _OpenCall:
    """A call whose arguments are incomplete. `call_id` may differ from `wire_id`, the id on the wire."""

    __slots__ = ("call_id", "name", "pieces", "provider_executed", "slot", "wire_id")

    def __init__(self, call_id: str, wire_id: str, *, name: str, provider_executed: bool, slot: int) -> None:
        self.call_id = call_id
        self.wire_id = wire_id
        self.name = name
        self.provider_executed = provider_executed
        self.slot = slot
        self.pieces: list[str] = []


class StepDraft:
    """The draft of one answer. `cut_calls` are the ids of calls whose arguments the output limit cut off.

    `size` is the approximate size of the answer: the characters of its text and the bytes of its files.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Prompt,
        *,
        publish: Publish,
        now: Callable[[], datetime],
        new_id: Callable[[], UUID],
        server_id: Callable[[str], UUID | None] = lambda name: None,
        shell_commands: Callable[[str, Raw], tuple[tuple[str, ...], ...] | None] = lambda name, args: None,
    ) -> None:
        self.usage = Usage()
        self.started = llm.ResponseStarted(None, None, None)
        self.warnings: tuple[llm.CallWarning, ...] = ()
        self.cut_calls: set[str] = set()
        self.size = 0
        self._stamp = {"wire": model.wire, "provider_id": str(model.provider_id), "model": model.model}
        self._publish = publish
        self._now = now
        self._new_id = new_id
        self._server_id = server_id
        self._shell_commands = shell_commands
        self._prompt = prompt
        self._used_ids: set[str] | None = None
        self._slots: list[Part | _Block | _OpenCall | llm.GeneratedFile] = []
        self._texts: dict[str, _Block] = {}
        self._thoughts: dict[str, _Block] = {}
        self._open_calls: dict[str, list[_OpenCall]] = {}
        self._sources: set[tuple[str, str]] = set()

    def add(self, part: llm.StreamPart) -> None:
        """Add a part that is not terminal."""
        _HANDLERS[type(part)](self, part)

    def finish(self, finish: llm.Finish) -> None:
        """End the stream: record the usage, and add the ids of calls that were cut off to `cut_calls`."""
        self._count(finish.usage)
        is_cut = _is_output_limit(finish)
        for slot, held in enumerate(self._slots):
            if isinstance(held, _OpenCall) and is_cut and held.name and not held.provider_executed:
                cut = self._make_call(held.call_id, held.name, "".join(held.pieces), original=held.wire_id)
                self._slots[slot] = cut
                self.cut_calls.add(held.call_id)
                self._publish(Role.ASSISTANT, cut)
        if is_cut:
            self.cut_calls.update(
                part.tool_call_id
                for part in self._slots
                if isinstance(part, parts.ToolCall) and not part.provider_executed and not _is_object(part)
            )

    def count_written(self) -> int:
        """Return the number of characters that the model has written so far: text, reasoning and arguments of calls."""
        written = 0
        for held in self._slots:
            if isinstance(held, _Block | _OpenCall):
                written += sum(map(len, held.pieces))
            elif isinstance(held, parts.ToolCall) and isinstance(held.args, Raw) and not held.provider_executed:
                written += len(bytes(held.args))
        return written

    def files(self) -> Iterable[tuple[int, llm.GeneratedFile]]:
        """Return the generated files that are not stored yet, with their index for `put_file`."""
        return [(slot, held) for slot, held in enumerate(self._slots) if isinstance(held, llm.GeneratedFile)]

    def put_file(self, slot: int, file: parts.File) -> None:
        self._slots[slot] = file
        self._publish(Role.ASSISTANT, file)

    def content(self) -> tuple[Part, ...]:
        """Return the parts of the row. Call it after `finish`. Blocks without text and signature are left out."""
        built: list[Part] = []
        for held in self._slots:
            if isinstance(held, _Block):
                if (part := self._text(held) if held.started_at is None else self._thought(held)) is not None:
                    built.append(part)
            elif isinstance(held, llm.GeneratedFile):
                built.append(inline_file(held))
            elif not isinstance(held, _OpenCall):
                built.append(held)
        return tuple(built)

    # Text and reasoning

    def _on_text(self, part: llm.TextDelta) -> None:
        block = self._texts.get(part.id) or self._open_text(part.id)
        block.pieces.append(part.text)
        self.size += len(part.text)
        self._publish(Role.ASSISTANT, parts.Text(part.text))

    def _on_text_start(self, part: llm.TextStart) -> None:
        self._open_text(part.id)

    def _open_text(self, block_id: str) -> _Block:
        block = self._texts[block_id] = _Block()
        self._slots.append(block)
        return block

    def _on_text_end(self, part: llm.TextEnd) -> None:
        block = self._texts.pop(part.id, None)
        if block is None:
            return
        block.meta = part.meta
        block.is_refusal = part.refusal
        if part.refusal:
            self._publish(Role.ASSISTANT, parts.Text("", refusal=True))

    def _on_thought(self, part: llm.ReasoningDelta) -> None:
        block = self._thoughts.get(part.id) or self._open_thought(part.id)
        block.pieces.append(part.text)
        self.size += len(part.text)
        self._publish(Role.ASSISTANT, parts.Reasoning(part.text, block.started_at))

    def _on_thought_start(self, part: llm.ReasoningStart) -> None:
        self._open_thought(part.id).meta = part.meta

    def _open_thought(self, block_id: str) -> _Block:
        block = self._thoughts[block_id] = _Block(self._now())
        self._slots.append(block)
        return block

    def _on_thought_end(self, part: llm.ReasoningEnd) -> None:
        block = self._thoughts.pop(part.id, None) or self._open_thought(part.id)
        self._thoughts.pop(part.id, None)
        # An end without metadata must not erase the signature that the start contained.
        block.meta = part.meta or block.meta
        block.ended_at = self._now()
        if block.pieces:
            self._publish(Role.ASSISTANT, parts.Reasoning("", block.started_at, block.ended_at))

    def _text(self, block: _Block) -> parts.Text | None:
        text = "".join(block.pieces)
        if not text:
            return None
        return parts.Text(text, block.is_refusal, self._stamped(block.meta))

    def _thought(self, block: _Block) -> parts.Reasoning | None:
        text = "".join(block.pieces)
        if not text and not block.meta:
            return None
        return parts.Reasoning(text, block.started_at, block.ended_at or self._now(), self._stamped(block.meta))

    # Calls and other parts

    def _on_input_start(self, part: llm.ToolInputStart) -> None:
        preview = _OpenCall(
            self._choose_call_id(part.id, provider_executed=part.provider_executed),
            part.id,
            name=part.name,
            provider_executed=part.provider_executed,
            slot=len(self._slots),
        )
        self._slots.append(preview)
        self._open_calls.setdefault(part.id, []).append(preview)
        self._show_input(preview, "")

    def _on_input(self, part: llm.ToolInputDelta) -> None:
        if opened := self._open_calls.get(part.id):
            preview = opened[-1]
            preview.pieces.append(part.json)
            self.size += len(part.json)
            self._show_input(preview, part.json)

    def _show_input(self, preview: _OpenCall, delta: str) -> None:
        shown = parts.ToolCall(
            preview.call_id, preview.name, args_delta=delta, provider_executed=preview.provider_executed
        )
        self._publish(Role.ASSISTANT, shown)

    def _on_call(self, part: llm.ToolCall) -> None:
        opened = self._open_calls.get(part.id)
        preview = opened.pop(0) if opened else None
        if preview is None or not preview.pieces:
            self.size += len(part.input)
        if preview is None:
            call_id = self._choose_call_id(part.id, provider_executed=part.provider_executed)
        else:
            call_id = preview.call_id
        call = self._make_call(
            call_id,
            part.name,
            part.input,
            provider_executed=part.provider_executed,
            meta=part.meta,
            original=part.id,
        )
        if preview is None:
            self._slots.append(call)
        else:
            self._slots[preview.slot] = call
        self._publish(Role.ASSISTANT, call)

    def _make_call(
        self,
        call_id: str,
        name: str,
        text: str,
        *,
        provider_executed: bool = False,
        meta: Meta | None = None,
        original: str | None = None,
    ) -> parts.ToolCall:
        if original is not None and original != call_id:
            meta = {**(meta or {}), "orig_id": original[:_MAX_ORIGINAL_ID]}
        args = tool_input.read(text).args
        return parts.ToolCall(
            call_id,
            name,
            args=args,
            parsed_commands=self._shell_commands(name, args),
            mcp_server_id=self._server_id(name),
            provider_executed=provider_executed,
            created_at=self._now(),
            provider_meta=self._stamped(meta),
        )

    def _choose_call_id(self, call_id: str, *, provider_executed: bool) -> str:
        """Return the id from the wire; a new one if a wire would reject it or another call of the chat has it."""
        if provider_executed:
            return call_id
        if self._used_ids is None:
            # Collected for the first call only, because most answers have none and the prompt may be long.
            self._used_ids = set(self._prompt.call_ids)
        if call_id in self._used_ids or not _CALL_ID.fullmatch(call_id):
            call_id = f"call_{self._new_id().hex}"
        self._used_ids.add(call_id)
        return call_id

    def _on_result(self, part: llm.ToolResult) -> None:
        result = parts.ToolResult(
            part.id,
            part.name,
            result=part.output,
            is_error=part.is_error,
            provider_executed=True,
            created_at=self._now(),
            provider_meta=self._stamped(part.meta),
        )
        self._slots.append(result)
        self.size += len(bytes(part.output))
        self._publish(Role.TOOL, result)

    def _on_file(self, part: llm.GeneratedFile) -> None:
        self._slots.append(part)
        self.size += len(part.data)

    def _on_source(self, part: llm.Source) -> None:
        key = (part.kind, part.url or part.title or part.id)
        if key in self._sources:
            return
        self._sources.add(key)
        source = parts.Source(part.url, part.id, part.title)
        self._slots.append(source)
        self._publish(Role.ASSISTANT, source)

    # Figures

    def _on_usage(self, part: llm.UsageUpdate) -> None:
        self._count(part.usage)

    def _count(self, usage: Usage) -> None:
        """Replace the usage by a newer report of the provider, unless the report has only zeros."""
        valid = valid_usage(usage)
        if any(msgspec.structs.astuple(valid)):
            self.usage = valid

    def _on_started(self, part: llm.ResponseStarted) -> None:
        self.started = part

    def _on_warnings(self, part: llm.Warnings) -> None:
        self.warnings = part.items

    def _stamped(self, meta: Meta | None) -> Meta | None:
        return {**self._stamp, **meta} if meta else None


def _ignore(draft: StepDraft, part: llm.ToolInputEnd) -> None:
    """Ignore the end of the arguments, because the complete call follows."""


# This table is at module level. If a draft referred to its own methods, it would be a reference cycle, and the garbage
# collector would free it late, with the whole answer.
_HANDLERS: Mapping[type[Any], Callable[[StepDraft, Any], None]] = {
    llm.TextDelta: StepDraft._on_text,
    llm.ReasoningDelta: StepDraft._on_thought,
    llm.ToolInputDelta: StepDraft._on_input,
    llm.TextStart: StepDraft._on_text_start,
    llm.TextEnd: StepDraft._on_text_end,
    llm.ReasoningStart: StepDraft._on_thought_start,
    llm.ReasoningEnd: StepDraft._on_thought_end,
    llm.ToolInputStart: StepDraft._on_input_start,
    llm.ToolInputEnd: _ignore,
    llm.ToolCall: StepDraft._on_call,
    llm.ToolResult: StepDraft._on_result,
    llm.Source: StepDraft._on_source,
    llm.GeneratedFile: StepDraft._on_file,
    llm.UsageUpdate: StepDraft._on_usage,
    llm.ResponseStarted: StepDraft._on_started,
    llm.Warnings: StepDraft._on_warnings,
}


def _is_object(call: parts.ToolCall) -> bool:
    return not isinstance(call.args, msgspec.UnsetType) and tool_input.read_stored(call.args).is_object


def _is_output_limit(finish: llm.Finish) -> bool:
    """Return whether the output limit ended the answer.

    An answer with calls has the reason `tool_calls` on every wire; the original reason is in `meta`.
    """
    said = (finish.meta or {}).get("stop_reason")
    return finish.reason is llm.FinishReason.LENGTH or said in ("max_tokens", "model_context_window_exceeded")


def valid_usage(usage: Usage) -> Usage:
    """Return the usage without negative or impossibly large counts."""
    counts = {name: getattr(usage, name) for name in usage.__struct_fields__}
    return Usage(**{name: count if _is_count(count) else None for name, count in counts.items()})


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def inline_file(file: llm.GeneratedFile) -> parts.File:
    return parts.File(file.media_type, data=b64encode(file.data).decode())
