"""Assembles tool calls from streamed pieces, which servers number in different ways.

A piece belongs to the call with the same `index`. Some servers omit the index or the id, or use the index 0 for every
call. Their pieces are assigned by id, by name, and by the completeness of the previous call.
"""

from __future__ import annotations

import msgspec

from rookery.domain.chat.model_prompt import Meta
from rookery.llm.completions.chunks import CallDelta, Function
from rookery.llm.types import StreamPart, ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart
from rookery.llm.wire import is_complete_json


class OpenCall:
    """An unfinished call. Its start is emitted when its name is known, unless a later call has begun before.

    `index` is its position. `server_index` is the index of the server, which several calls may share.
    """

    __slots__ = ("ended", "extra_content", "id", "index", "name", "pieces", "server_index", "started")

    def __init__(self, index: int, call_id: str, *, server_index: int | None) -> None:
        self.index = index
        self.server_index = server_index
        self.id = call_id
        self.name = ""
        self.pieces: list[str] = []
        self.extra_content: Meta | None = None
        self.started = False
        self.ended = False

    @property
    def input(self) -> str:
        return "".join(self.pieces) or "{}"

    def is_complete(self) -> bool:
        """Return whether the input so far is complete JSON."""
        return is_complete_json(self.input)

    def is_runnable(self, *, is_last: bool) -> bool:
        """Return whether the call can run although the answer was cut short.

        The answer may have ended before the input of its last call, so the last call cannot run without input. No call
        can run if its input is incomplete.
        """
        return bool(self.name) and self.is_complete() and (bool(self.pieces) or not is_last)

    def is_finished(self) -> bool:
        """Return whether the input is finished. The last character is checked first, because that is fast."""
        return not self.pieces or (self.pieces[-1].rstrip().endswith("}") and self.is_complete())

    def call(self) -> ToolCall:
        meta = {"extra_content": self.extra_content} if self.extra_content else None
        return ToolCall(self.id, self.name, self.input, meta=meta)


class OpenCalls:
    """The calls of one response, in the order of arrival."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[OpenCall] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def in_order(self) -> list[OpenCall]:
        return sorted(self._calls, key=lambda call: call.index)

    def are_complete(self) -> bool:
        """Return whether every call has a name and complete input. Empty input counts as complete."""
        return all(call.is_complete() and call.name for call in self._calls)

    def runnable(self) -> list[OpenCall]:
        """Return the calls that can run although the answer was cut short."""
        return [call for call in self.in_order() if call.is_runnable(is_last=call is self._calls[-1])]

    def add(self, delta: CallDelta, parts: list[StreamPart]) -> None:
        function = delta.function or Function()
        text = _arguments(function)
        if not function.name and not text:
            self._keep_extra(delta)
            return
        call = self._find(delta, function) or self._open(delta, parts)
        if function.name:
            _add_name(call, function.name)
        if delta.extra_content:
            call.extra_content = delta.extra_content
        if text:
            call.pieces.append(text)
        self._show(call, text, parts)

    def end_all(self, parts: list[StreamPart]) -> None:
        """Emit the ends of open calls. Also emit the calls whose name arrived after a later call had begun."""
        for call in self._calls:
            if call.name and not call.started:
                call.ended = False
                self._show(call, "", parts)
            _end(call, parts)

    def _keep_extra(self, delta: CallDelta) -> None:
        """Store the extra data of a piece without name and input, which the server may require in the next request."""
        call = self._find(delta, Function())
        if call is not None and delta.extra_content:
            call.extra_content = delta.extra_content

    def _find(self, delta: CallDelta, function: Function) -> OpenCall | None:
        """Return the call that this piece continues; None if it begins a new call."""
        if not self._calls:
            return None
        if delta.index is not None:
            found = next((call for call in reversed(self._calls) if call.server_index == delta.index), None)
        elif delta.id:
            return next((call for call in self._calls if call.id == delta.id), None)
        else:
            found = self._calls[-1]
        if found is None:
            return None
        if delta.index is not None and (not delta.id or delta.id == found.id):
            return found
        # A name after a complete call begins the next call of a server that sends no index or repeats it. A name after
        # an incomplete call is only a repetition.
        return None if function.name and found.name and found.is_finished() else found

    def _open(self, delta: CallDelta, parts: list[StreamPart]) -> OpenCall:
        for earlier in self._calls:
            _end(earlier, parts)
        following = max((call.index for call in self._calls), default=-1) + 1
        taken = any(call.index == delta.index for call in self._calls)
        index = following if delta.index is None or taken else delta.index
        call = OpenCall(index, self._unique_id(delta.id, index), server_index=delta.index)
        self._calls.append(call)
        return call

    def _unique_id(self, wanted: str | None, index: int) -> str:
        taken = {call.id for call in self._calls}
        if wanted and wanted not in taken:
            return wanted
        made = f"call_{index}"
        while made in taken:
            made += "_"
        return made

    def _show(self, call: OpenCall, text: str, parts: list[StreamPart]) -> None:
        if not call.name or call.ended:
            return
        if call.started:
            if text:
                parts.append(ToolInputDelta(call.id, text))
            return
        call.started = True
        parts.append(ToolInputStart(call.id, call.name))
        if call.pieces:
            parts.append(ToolInputDelta(call.id, "".join(call.pieces)))


def _arguments(function: Function) -> str:
    if isinstance(function.arguments, dict):
        return msgspec.json.encode(function.arguments).decode()
    return function.arguments or ""


def _add_name(call: OpenCall, name: str) -> None:
    """Add a name or a piece of it. Servers send names whole, repeated, growing, or in pieces before the input."""
    if name.startswith(call.name):
        call.name = name
    elif not call.pieces:
        call.name += name


def _end(call: OpenCall, parts: list[StreamPart]) -> None:
    if call.started and not call.ended:
        parts.append(ToolInputEnd(call.id))
    call.ended = True
