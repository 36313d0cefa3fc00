"""Repair of tool calls and results in a prompt, so that every call has exactly one result.

Providers refuse a call without a result, a result without a call, and an id that is used twice. A chat with such a
history could not continue. The repair is applied to every prompt, never raises, and is idempotent. The repair of a
message depends only on messages before the next assistant message, so a prefix does not change when the chat grows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
    sum_sizes,
)

NO_RESULT = "interrupted: no result was recorded for this call"

# The longest call id that all wires accept.
_MAX_ID = 64
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")


def repair(messages: Iterable[PromptMessage]) -> tuple[PromptMessage, ...]:
    """Return the messages with exactly one result after each local call, and without other local results.

    Calls that a provider executes are not changed: their results are in assistant messages, and the wire handles them.
    """
    pairing = IncrementalRepair()
    pairing.add(messages)
    return pairing.result().messages


class Repaired(NamedTuple):
    """Repaired messages. `call_ids` are the ids of all calls in them."""

    messages: tuple[PromptMessage, ...]
    size_bytes: int
    call_ids: frozenset[str]


class IncrementalRepair:
    """The repair of a growing history.

    Messages before the last assistant message are final: they are not repaired again, and their objects stay the same.
    """

    def __init__(self) -> None:
        self._pairing = _Pairing()
        self._settled: list[PromptMessage] = []
        self._size_bytes = 0
        self._assistant: PromptMessage | None = None
        self._rest: list[PromptMessage] = []

    def add(self, messages: Iterable[PromptMessage]) -> None:
        for message in messages:
            normal = _normalized(message)
            if not normal.parts:
                continue
            if normal.role is Role.ASSISTANT:
                self._settle()
                self._assistant = normal
            else:
                self._rest.append(normal)

    def result(self) -> Repaired:
        """Return the repaired messages."""
        pairing = self._pairing.copy()
        last = tuple(pairing.repair_segment(self._assistant, self._rest))
        return Repaired((*self._settled, *last), self._size_bytes + sum_sizes(last), pairing.call_ids())

    def _settle(self) -> None:
        done = tuple(self._pairing.repair_segment(self._assistant, self._rest))
        self._settled += done
        self._size_bytes += sum_sizes(done)
        self._rest = []


def _normalized(message: PromptMessage) -> PromptMessage:
    """Return the message with only the parts that its role can have, and with ids that every wire accepts."""
    kept = tuple(_with_clean_id(part) for part in message.parts if _belongs(part, message.role))
    return message if kept == message.parts else msgspec.structs.replace(message, parts=kept)


def _belongs(part: PromptPart, role: Role) -> bool:
    if role is Role.TOOL:
        return isinstance(part, PromptResult)
    if role is Role.ASSISTANT:
        return isinstance(part, PromptText | PromptReasoning | PromptCall | PromptResult)
    return not isinstance(part, PromptCall | PromptResult | PromptReasoning)


def _with_clean_id(part: PromptPart) -> PromptPart:
    if not isinstance(part, PromptCall | PromptResult):
        return part
    clean = _NOT_IN_IDS.sub("_", part.id) or "call"
    return part if clean == part.id else msgspec.structs.replace(part, id=clean)


class _Pairing:
    """The state of a pass from the first message to the last. New ids depend on earlier messages only."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        # Stored ids of calls whose result was found. Another result with such an id is a copy.
        self._answered: set[str] = set()

    def copy(self) -> _Pairing:
        copied = _Pairing()
        copied._used, copied._answered = self._used.copy(), self._answered.copy()
        return copied

    def call_ids(self) -> frozenset[str]:
        return frozenset(self._used)

    def repair_segment(self, assistant: PromptMessage | None, rest: Sequence[PromptMessage]) -> Iterator[PromptMessage]:
        """Repair an assistant message and the messages up to the next one.

        `None` stands for the messages before the first one.
        """
        open_calls = _OpenCalls()
        results: list[PromptResult] = []
        if assistant is not None:
            assistant = self._open(assistant, rest, open_calls)
            stray = _local_results(assistant)
            assistant = _without(assistant, stray)
            results += self._take(stray, open_calls)
        others: list[PromptMessage] = []
        for message in rest:
            if message.role is not Role.TOOL:
                others.append(message)
                continue
            for result in _local_results(message):
                if taken := self._take((result,), open_calls):
                    results += taken
                else:
                    others += self._with_new_call(result)
        if assistant is not None and assistant.parts:
            yield assistant
        yield from map(_result_message, results)
        yield from (_result_message(_missing(call)) for call in open_calls.unanswered())
        yield from others

    def _open(self, assistant: PromptMessage, rest: Sequence[PromptMessage], calls: _OpenCalls) -> PromptMessage:
        """Return the assistant message with unique ids for local calls, and the results of provider-executed calls."""
        parts: list[PromptPart] = []
        for part in assistant.parts:
            if not isinstance(part, PromptCall):
                parts.append(part)
            elif part.provider_executed:
                self._used.add(part.id)
                parts.append(part)
                parts += _provider_results_outside(part, assistant, rest)
            else:
                call = msgspec.structs.replace(part, id=self._unique(part.id))
                calls.add(part.id, call)
                parts.append(call)
        return msgspec.structs.replace(assistant, parts=tuple(parts))

    def _take(self, found: Iterable[PromptResult], calls: _OpenCalls) -> list[PromptResult]:
        """Return the results that belong to open calls, with the new ids of these calls."""
        taken: list[PromptResult] = []
        for result in found:
            if call := calls.pop(result.id):
                self._answered.add(result.id)
                taken.append(msgspec.structs.replace(result, id=call.id))
        return taken

    def _with_new_call(self, result: PromptResult) -> Iterator[PromptMessage]:
        """Yield a call for a result without a call, and the result. Copies and results without a name are dropped."""
        if result.id in self._answered or not result.name.strip():
            return
        self._answered.add(result.id)
        call = PromptCall(id=self._unique(result.id), name=result.name, input=Raw(b"{}"))
        yield PromptMessage(role=Role.ASSISTANT, parts=(call,), is_native=False, is_whole=False)
        yield _result_message(msgspec.structs.replace(result, id=call.id))

    def _unique(self, call_id: str) -> str:
        unique = call_id
        if call_id in self._used:
            suffixes = (f"_{number}" for number in count(2))
            candidates = (call_id[: _MAX_ID - len(suffix)] + suffix for suffix in suffixes)
            unique = next(candidate for candidate in candidates if candidate not in self._used)
        self._used.add(unique)
        return unique


class _OpenCalls:
    """The local calls of one assistant message without a result, by stored id."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[PromptCall]] = {}
        self._in_order: list[PromptCall] = []

    def add(self, stored_id: str, call: PromptCall) -> None:
        self._waiting.setdefault(stored_id, deque()).append(call)
        self._in_order.append(call)

    def pop(self, stored_id: str) -> PromptCall | None:
        waiting = self._waiting.get(stored_id)
        return waiting.popleft() if waiting else None

    def unanswered(self) -> Iterator[PromptCall]:
        left = {call.id for waiting in self._waiting.values() for call in waiting}
        return (call for call in self._in_order if call.id in left)


def _local_results(message: PromptMessage) -> tuple[PromptResult, ...]:
    return tuple(part for part in message.parts if isinstance(part, PromptResult) and not part.provider_executed)


def _without(message: PromptMessage, dropped: Sequence[PromptResult]) -> PromptMessage:
    if not dropped:
        return message
    kept = tuple(part for part in message.parts if not any(part is each for each in dropped))
    return msgspec.structs.replace(message, parts=kept)


def _provider_results_outside(
    call: PromptCall, assistant: PromptMessage, rest: Sequence[PromptMessage]
) -> Iterator[PromptResult]:
    """Yield the provider's result of this call if a tool row has it. Wires expect it after the call."""
    if any(isinstance(part, PromptResult) and part.id == call.id for part in assistant.parts):
        return
    for message in rest:
        for part in message.parts:
            if isinstance(part, PromptResult) and part.provider_executed and part.id == call.id:
                yield part
                return


def _missing(call: PromptCall) -> PromptResult:
    return PromptResult(id=call.id, name=call.name, text=NO_RESULT, is_error=True)


def _result_message(result: PromptResult) -> PromptMessage:
    return PromptMessage(role=Role.TOOL, parts=(result,))
