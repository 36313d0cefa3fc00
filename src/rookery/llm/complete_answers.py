"""Complete answers: `generate` returns text and calls, `generate_object` returns one object of a given schema.

Both read `stream()` to its end, because wires have no path without streaming. Both always report the usage, even if the
answer is invalid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import aclosing
from enum import IntEnum
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.errors import CallFailed, NoObject
from rookery.llm.model_call_span import chat_span
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    JsonFormat,
    LanguageModel,
    ReasoningDelta,
    ResponseStarted,
    StreamError,
    TextDelta,
    Tool,
    ToolCall,
    Usage,
    UsageUpdate,
)

T = TypeVar("T", bound=BaseModel)

_MAX_PROBLEMS = 20
_MAX_NAME = 64
# Limit of an invalid answer that is sent to the model again.
_MAX_SHOWN = 8_000
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer. `calls` includes the calls that the provider executed."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    reason: FinishReason
    usage: Usage
    detail: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    model: str | None = None


class ObjectResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A valid object. `usage` is the usage of all tries."""

    value: T
    usage: Usage
    tries: int
    finish_reason: FinishReason


async def generate(model: LanguageModel, call: Call) -> Response:
    """Return the complete answer. Raise `CallFailed` with the error and the usage so far."""
    with chat_span(model, call) as span:
        response = await _generate(model, call)
        span.answered(
            _content(response),
            response.reason,
            response.usage,
            response_id=response.response_id,
            model=response.model,
        )
        return response


def _content(response: Response) -> tuple[parts.Part, ...]:
    """Return the answer as message parts, for traces."""
    calls = [
        parts.ToolCall(call.id, call.name, args=msgspec.Raw(call.input.encode("utf-8", "replace")))
        for call in response.calls
    ]
    texts = [parts.Reasoning(response.reasoning)] if response.reasoning else []
    return (*texts, *([parts.Text(response.text)] if response.text else []), *calls)


async def _generate(model: LanguageModel, call: Call) -> Response:
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    usage = Usage()
    started = ResponseStarted(None, None, None)
    async with aclosing(model.stream(call)) as stream:
        async for part in stream:
            match part:
                case TextDelta():
                    text.append(part.text)
                case ReasoningDelta():
                    reasoning.append(part.text)
                case ToolCall():
                    calls.append(part)
                case ResponseStarted():
                    started = part
                case UsageUpdate():
                    usage = part.usage
                case StreamError():
                    raise CallFailed(part.error, usage)
                case Finish():
                    return Response(
                        text="".join(text),
                        reasoning="".join(reasoning),
                        calls=tuple(calls),
                        reason=part.reason,
                        usage=part.usage,
                        detail=part.detail,
                        response_id=started.response_id,
                        request_id=started.request_id,
                        model=started.model,
                    )
                case _:
                    pass
    raise AssertionError("A stream ended without a terminal part.")


class Strategy(IntEnum):
    """The ways to request an object, from the most to the least reliable."""

    FORMAT = 1
    TOOL = 2
    PROMPT = 3


async def generate_object(
    model: LanguageModel, call: Call, schema: type[T], *, from_text: Callable[[str], T | None] | None = None
) -> ObjectResult[T]:
    """Return an object of this schema. Raise `NoObject` after two invalid answers.

    After the first invalid answer, the model is called again and shown the faults. `from_text` makes the object from an
    answer in plain text.

    There are several strategies for getting an object. If the server refuses one, the next is tried, because our record
    of the server's capabilities may be only a guess. If the server refuses the temperature, the call is
    repeated without it.
    """
    strategy = _first_strategy(model.caps)
    usage = Usage()
    attempt = call
    tries = 0
    while True:
        try:
            response = await generate(model, _apply_strategy(attempt, schema, strategy, caps=model.caps))
        except CallFailed as failure:
            usage = add_usage(usage, failure.usage)
            if attempt.temperature is not None and _refuses_temperature(failure):
                call, attempt = (msgspec.structs.replace(each, temperature=None) for each in (call, attempt))
                continue
            if strategy is Strategy.PROMPT or not _refuses_strategy(failure):
                raise CallFailed(failure.error, usage) from None
            strategy = Strategy(strategy + 1)
            continue
        tries += 1
        usage = add_usage(usage, response.usage)
        found = _find_object(response, schema)
        if not isinstance(found, schema) and from_text is not None and response.reason is FinishReason.STOP:
            found = from_text(response.text.strip()) or found
        if isinstance(found, schema):
            return ObjectResult(value=found, usage=usage, tries=tries, finish_reason=response.reason)
        raw = _raw_text(response, schema)
        if tries == 2 or response.reason is FinishReason.CONTENT_FILTER:
            raise NoObject(raw, usage, finish_reason=response.reason)
        attempt = _with_faults(call, raw, str(found))


def _first_strategy(caps: Capabilities) -> Strategy:
    return Strategy.FORMAT if caps.json_schema else Strategy.TOOL


def _refuses_strategy(failure: CallFailed) -> bool:
    """Return whether the server refused the strategy: with 400 or 422, and not because the model is unknown."""
    error = failure.error
    return error.kind is ErrorKind.CONFIG and error.status in (400, 422) and error.code != "model_not_found"


def _refuses_temperature(failure: CallFailed) -> bool:
    return failure.error.status in (400, 422) and "temperature" in (failure.error.detail or "").lower()


def _apply_strategy(call: Call, schema: type[BaseModel], strategy: Strategy, *, caps: Capabilities) -> Call:
    """Return the call with this strategy and without the call's own tools."""
    name, form = object_name(schema), closed_schema(schema)
    plain = msgspec.structs.replace(call, tools=(), tool_choice="auto", format=None)
    match strategy:
        case Strategy.FORMAT:
            return msgspec.structs.replace(plain, format=JsonFormat(name, form))
        case Strategy.TOOL:
            tool = Tool(name=name, description=f"Give your answer ({name}) by calling this tool.", input_schema=form)
            if caps.forced_tool_choice:
                return msgspec.structs.replace(plain, tools=(tool,), tool_choice=name)
            prompted = _with_user_text(plain, f"Give your answer by calling the tool {name}, and only so.")
            return msgspec.structs.replace(prompted, tools=(tool,))
        case Strategy.PROMPT:
            schema_text = json.dumps(form, ensure_ascii=False, sort_keys=True)
            return _with_user_text(
                plain, f"Answer with one JSON object of this schema and nothing else:\n{schema_text}"
            )


def _with_user_text(call: Call, text: str) -> Call:
    return _with_messages(call, PromptMessage(role=Role.USER, parts=(PromptText(text),)))


def _with_messages(call: Call, *messages: PromptMessage) -> Call:
    return msgspec.structs.replace(call, prompt=Prompt((*call.prompt.messages, *messages)))


def _with_faults(call: Call, raw: str, faults: str) -> Call:
    """Return the call with the invalid answer and its faults added as messages."""
    said = raw[:_MAX_SHOWN].strip() or "(no answer)"
    return _with_messages(
        call,
        PromptMessage(role=Role.ASSISTANT, parts=(PromptText(said),), is_native=False),
        PromptMessage(
            role=Role.USER,
            parts=(PromptText(f"That answer cannot be used:\n{faults}\nAnswer again, with these faults corrected."),),
        ),
    )


def _raw_text(response: Response, schema: type[BaseModel]) -> str:
    name = object_name(schema)
    return next((call.input for call in response.calls if call.name == name), response.text)


def _find_object(response: Response, schema: type[T]) -> T | str:
    """Return the first valid candidate; if there is none, the faults of the first one as text."""
    faults = ""
    for candidate in _candidates(response, schema):
        try:
            return schema.model_validate_json(candidate)
        except ValidationError as error:
            faults = faults or _describe(error)
    return faults or "The answer contains no JSON object."


def _candidates(response: Response, schema: type[BaseModel]) -> Iterator[str]:
    """Yield the texts that may be the object: inputs of the tool, and JSON inside the text."""
    name = object_name(schema)
    for call in response.calls:
        if call.name == name and not call.provider_executed:
            yield call.input
    text = response.text.strip()
    if text.startswith("{"):
        yield text
    for match in _FENCED.finditer(text):
        yield match[1]
    start = text.find("{")
    if start >= 0:
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield text[start:end]


def _describe(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [
        f"- {'.'.join(str(step) for step in problem['loc']) or 'answer'}: {problem['msg']}" for problem in problems
    ]
    return "\n".join(lines[:_MAX_PROBLEMS])


def object_name(schema: type[BaseModel]) -> str:
    """Return the class name with only characters that all providers accept."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", schema.__name__)[:_MAX_NAME]


def closed_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema with `additionalProperties: false` on every object that does not set it."""
    closed = _closed(schema.model_json_schema())
    assert isinstance(closed, dict)
    return closed


def _closed(node: object) -> object:
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    copied = {name: _closed(value) for name, value in node.items()}
    if copied.get("type") == "object":
        copied.setdefault("additionalProperties", False)
    return copied


def add_usage(one: Usage, other: Usage) -> Usage:
    """Add the usage of two calls. `context_tokens` is that of the second. A number that one call lacks counts as 0."""
    return Usage(
        input=_sum(one.input, other.input),
        cache_read=_sum(one.cache_read, other.cache_read),
        cache_write=_sum(one.cache_write, other.cache_write),
        cache_write_1h=_sum(one.cache_write_1h, other.cache_write_1h),
        output=_sum(one.output, other.output),
        reasoning=_sum(one.reasoning, other.reasoning),
        total=_sum(one.total, other.total),
        web_searches=_sum(one.web_searches, other.web_searches),
        context_tokens=one.context_tokens if other.context_tokens is None else other.context_tokens,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
