"""A fake Chat Completions server: it refuses the requests that real servers refuse, and imitates many of them.

    fake = FakeCompletions(api_key="sk-test", style=Style(usage="cumulative", reasoning="reasoning"))
    fake.enqueue(Answer(text="Hello", calls=(FakeCall("read_file", '{"path":"a"}'),)))
    async with fake.listening() as base_url: ...

An `Answer` is the output of the model; a `Style` is the format of the server. A `Scenario` in the queue is sent
unchanged, for errors and broken connections. Requests are in `fake.requests`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec

from rookery.testing.fake_server import (
    FakeServer,
    Receive,
    RecordedRequest,
    Scenario,
    Scope,
    ScriptedEvent,
    Send,
    count_tokens,
    encode_event,
    error_body,
)

Json: TypeAlias = Any

PATH = "/chat/completions"
DONE: ScriptedEvent = ("", "[DONE]")
SKIP_SIGNATURE = "skip_thought_signature_validator"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CREATED = 1_700_000_000


@dataclass(frozen=True, slots=True)
class FakeCall:
    name: str
    arguments: str = "{}"
    id: str = ""
    signature: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeUsage:
    """Token counts. As in the Chat Completions API, `prompt` includes cached tokens, and `completion` reasoning."""

    prompt: int = 100
    completion: int = 20
    cached: int = 0
    written: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    reasoning: str = ""
    text: str = ""
    refusal: str = ""
    calls: Sequence[FakeCall] = ()
    citations: Sequence[tuple[str, str]] = ()
    usage: FakeUsage = FakeUsage()
    finish_reason: str | None = None
    """None chooses it: `tool_calls` with calls, else `stop`."""

    @property
    def reason(self) -> str:
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The format of a server's answers. The defaults are OpenAI's; each other value occurs on a real server."""

    usage: Literal["own chunk", "finish chunk", "before finish", "cumulative", "choice", "groq", "missing"] = (
        "own chunk"
    )
    usage_names: Literal["details", "deepseek"] = "details"
    reasoning: Literal["reasoning_content", "reasoning", "reasoning_details", "think tags"] = "reasoning_content"
    indexes: Literal["given", "missing", "zero"] = "given"
    ids: Literal["first", "every", "missing"] = "first"
    names: Literal["first", "late", "every"] = "first"
    arguments: Literal["text", "object"] = "text"
    end: Literal["done", "eof"] = "done"
    finish: Literal["given", "missing"] = "given"
    streams: bool = True
    piece_chars: int = 7


class FakeCompletions:
    """The server. With `signs`, calls have thought signatures, and requests must return those of the current turn.

    `window_tokens` is the limit for prompt and answer together, where a token is `bytes_per_token` of the body.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        style: Style | None = None,
        signs: bool = False,
        window_tokens: int | None = None,
        bytes_per_token: float = 4.0,
    ) -> None:
        self.style = style or Style()
        self.server = FakeServer(api_key=api_key, validate=self._validate, respond=self._respond)
        self._signs = signs
        self._window = window_tokens
        self._bytes_per_token = bytes_per_token
        self._issued: set[str] = set()
        self._queue: deque[Answer | Scenario] = deque()

    @property
    def requests(self) -> list[RecordedRequest]:
        return self.server.requests

    @property
    def pages(self) -> dict[str, Scenario]:
        return self.server.pages

    @property
    def remaining(self) -> int:
        """The number of answers that were not requested yet."""
        return len(self._queue)

    async def received(self, count: int = 1) -> None:
        """Wait until this many requests have arrived in total."""
        await self.server.received(count)

    def enqueue(self, *answers: Answer | Scenario) -> None:
        self._queue.extend(answers)

    def listening(self) -> AbstractAsyncContextManager[str]:
        return self.server.listening()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.server(scope, receive, send)

    def _validate(self, request: RecordedRequest) -> tuple[int, Json] | None:
        if request.method != "POST" or not request.path.endswith(PATH):
            return 404, error_body(404, f"Unknown request URL: {request.method} {request.path}.")
        problem = find_problem(request.body)
        if problem is None and self._signs:
            problem = self._signature_problem(request.body["messages"])
        if problem is None and (too_long := self._too_long(request)) is not None:
            return 400, error_body(400, too_long, code="context_length_exceeded")
        return None if problem is None else (400, error_body(400, problem))

    def _too_long(self, request: RecordedRequest) -> str | None:
        """Return the error if prompt and answer together exceed the window. OpenAI and vLLM count both, too."""
        if self._window is None:
            return None
        read = count_tokens(request, self._bytes_per_token)
        wanted = request.body.get("max_tokens") or request.body.get("max_completion_tokens") or 0
        if read + wanted <= self._window:
            return None
        return (
            f"This model's maximum context length is {self._window} tokens. However, you requested {read + wanted} "
            f"tokens ({read} in the messages, {wanted} in the completion). Please reduce the length of the messages or "
            "completion."
        )

    def _respond(self, request: RecordedRequest) -> Scenario | None:
        if not self._queue:
            return None
        answer = self._queue.popleft()
        if isinstance(answer, Scenario):
            return answer
        answer = self._numbered(answer, len(self.requests))
        if not (self.style.streams and request.body.get("stream")):
            return Scenario(body=document(answer, request.body["model"]))
        wants_usage = (request.body.get("stream_options") or {}).get("include_usage", False)
        style = self.style if wants_usage else replace(self.style, usage="missing")
        return Scenario(events=events(answer, style, model=request.body["model"]))

    def _numbered(self, answer: Answer, number: int) -> Answer:
        calls = []
        for index, call in enumerate(answer.calls):
            # Only the first call of a step is signed, as at Google.
            signature = f"sig-{number}" if self._signs and index == 0 else call.signature
            if signature:
                self._issued.add(signature)
            calls.append(replace(call, id=call.id or f"call_{number}_{index}", signature=signature))
        return replace(answer, calls=calls)

    def _signature_problem(self, messages: Sequence[Json]) -> str | None:
        last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
        for message in messages[last_user + 1 :]:
            for call in (message.get("tool_calls") or ())[:1]:
                signature = call.get("extra_content", {}).get("google", {}).get("thought_signature")
                if signature not in self._issued and signature != SKIP_SIGNATURE:
                    return f"Function call `{call['function']['name']}` is missing a thought_signature."
        return None


# Requests that real servers refuse


def find_problem(body: Json) -> str | None:
    """Return the error message of the real server for a request; None if it is valid."""
    if not isinstance(body, dict):
        return "We could not parse the JSON body of your request."
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "you must provide a model parameter"
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        return "Missing required parameter: 'messages'."
    if body.get("stream_options") is not None and not body.get("stream"):
        return "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    if "max_tokens" in body and "max_completion_tokens" in body:
        return "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    return _tools_problem(body) or _pairing_problem(body["messages"]) or _content_problem(body["messages"])


def _tools_problem(body: Mapping[str, Json]) -> str | None:
    tools = body.get("tools")
    if tools is None:
        unusable = next((name for name in ("tool_choice", "parallel_tool_calls") if name in body), None)
        return f"'{unusable}' is only allowed when 'tools' are specified." if unusable else None
    if not tools:
        return "Invalid 'tools': empty array."
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(tool["function"]["name"]):
            return f"Invalid 'tools[{index}].function.name': string does not match pattern."
    return None


def _pairing_problem(messages: Sequence[Json]) -> str | None:
    """Check that each call has exactly one result in the tool messages directly after it."""
    open_ids: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_ids:
                return (
                    f"Invalid parameter: messages[{index}] with role 'tool' must be a response to a preceding "
                    "message with 'tool_calls'."
                )
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return _unanswered(open_ids)
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_ids)) != len(open_ids):
            return f"Duplicate tool call ids in messages[{index}]."
    return _unanswered(open_ids) if open_ids else None


def _unanswered(ids: Sequence[str]) -> str:
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(ids)}"
    )


def _content_problem(messages: Sequence[Json]) -> str | None:
    for index, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            return f"Invalid value: '{role}'."
        if content is None:
            if role != "assistant" or not message.get("tool_calls"):
                return f"Invalid value for 'content' of messages[{index}]: expected a string, got null."
            continue
        kinds = {part["type"] for part in content} if isinstance(content, list) else set()
        allowed = {"text", "image_url", "input_audio", "file"} if role == "user" else {"text"}
        if not kinds <= allowed or content == []:
            return f"Invalid 'messages[{index}].content' for the role '{role}'."
        if message.get("tool_calls") == []:
            return f"Invalid 'messages[{index}].tool_calls': empty array."
    return None


# The format of answers


def document(answer: Answer, model: str) -> Json:
    """Return the answer as one document, for requests without streaming and servers that ignore it."""
    message: dict[str, Json] = {"role": "assistant", "content": answer.text or None, "refusal": answer.refusal or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} | _extra(c)
            for c in answer.calls
        ]
    if answer.citations:
        message["annotations"] = _annotations(answer)
    choice = {"index": 0, "message": message, "finish_reason": answer.reason, "logprobs": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": _CREATED,
        "model": model,
        "choices": [choice],
        "usage": _usage(answer.usage, Style()),
    }


def events(answer: Answer, style: Style, *, model: str) -> list[ScriptedEvent]:
    """Return the whole stream of an answer."""
    chunks = list(_chunks(answer, style, model))
    if style.usage == "cumulative":
        _count_up(chunks, answer, style)
    sent: list[ScriptedEvent] = [("", chunk) for chunk in chunks]
    return [*sent, DONE] if style.end == "done" else sent


def error_event(message: str, *, code: str | int | None = None, named: bool = False) -> ScriptedEvent:
    """Return an error event in the middle of a stream."""
    return ("error" if named else "", {"error": {"message": message, "code": code}})


def stream_bytes(scripted: Sequence[ScriptedEvent]) -> bytes:
    """Return the body of a stream, for tests that cut it themselves."""
    return b"".join(encode_event(event) for event in scripted if isinstance(event, bytes | tuple))


@dataclass(slots=True)
class _Maker:
    """Creates chunks that differ only in their delta."""

    model: str

    def __call__(self, delta: Json, *, reason: str | None = None, **extras: Json) -> dict[str, Json]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self.bare([choice]) | extras

    def bare(self, choices: list[Json]) -> dict[str, Json]:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": _CREATED, "model": self.model}
        return {**head, "choices": choices}


def _chunks(answer: Answer, style: Style, model: str) -> Iterator[dict[str, Json]]:
    make = _Maker(model)
    usage = _usage(answer.usage, style)
    yield make({"role": "assistant", "content": "", "refusal": None})
    text = answer.text
    if style.reasoning == "think tags" and answer.reasoning:
        text = f"<think>{answer.reasoning}</think>\n\n{text}"
    else:
        for piece in _cut(answer.reasoning, style):
            yield make(_reasoning_delta(piece, style))
        if answer.reasoning and style.reasoning == "reasoning_details":
            yield make({"content": "", "reasoning": None, "reasoning_details": [_signature_detail()]})
    for piece in _cut(text, style):
        yield make({"content": piece})
    for piece in _cut(answer.refusal, style):
        yield make({"refusal": piece})
    if answer.citations:
        yield make({"content": "", "annotations": _annotations(answer)})
    for index, call in enumerate(answer.calls):
        for entry in _call_entries(call, index, style):
            yield make({"tool_calls": [entry]})
    if style.usage == "before finish":
        yield make({}, usage=usage)
    yield from _last_chunks(answer, style, make=make, usage=usage)


def _last_chunks(answer: Answer, style: Style, *, make: _Maker, usage: Json) -> Iterator[dict[str, Json]]:
    last = make({}, reason=answer.reason if style.finish == "given" else None)
    match style.usage:
        case "finish chunk":
            yield last | {"usage": usage}
        case "choice":
            last["choices"][0]["usage"] = usage
            yield last
        case "groq":
            yield last | {"x_groq": {"id": "req_1", "usage": usage}}
        case "own chunk":
            yield last
            yield make.bare([]) | {"usage": usage}
        case _:
            yield last


def _count_up(chunks: list[dict[str, Json]], answer: Answer, style: Style) -> None:
    """Add usage to every chunk, growing to the full numbers in the last."""
    for number, chunk in enumerate(chunks, start=1):
        completion = answer.usage.completion * number // len(chunks)
        chunk["usage"] = _usage(replace(answer.usage, completion=completion), style)


def _reasoning_delta(piece: str, style: Style) -> Json:
    if style.reasoning != "reasoning_details":
        return {style.reasoning: piece}
    detail = {"type": "reasoning.text", "text": piece, "format": "anthropic-claude-v1", "index": 0}
    return {"content": "", "reasoning": piece, "reasoning_details": [detail]}


def _signature_detail() -> Json:
    return {"type": "reasoning.text", "signature": "c2ln", "format": "anthropic-claude-v1", "index": 0}


def _call_entries(call: FakeCall, index: int, style: Style) -> Iterator[Json]:
    pieces = _cut(call.arguments, style) or [""]
    if style.arguments == "object" or style.indexes == "zero":
        pieces = [call.arguments]
    for number, piece in enumerate(pieces):
        is_first, is_last = number == 0, number == len(pieces) - 1
        entry: dict[str, Json] = {}
        if style.indexes != "missing":
            entry["index"] = 0 if style.indexes == "zero" else index
        if style.ids == "every" or (style.ids == "first" and is_first):
            entry |= {"id": call.id, "type": "function"}
        function: dict[str, Json] = {"arguments": msgspec.json.decode(piece) if style.arguments == "object" else piece}
        if style.names == "every" or (is_last if style.names == "late" else is_first):
            function["name"] = call.name
        entry["function"] = function
        yield entry | (_extra(call) if is_first else {})


def _extra(call: FakeCall) -> dict[str, Json]:
    return {"extra_content": {"google": {"thought_signature": call.signature}}} if call.signature else {}


def _annotations(answer: Answer) -> list[Json]:
    return [
        {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 1, "url": url, "title": title}}
        for url, title in answer.citations
    ]


def _usage(usage: FakeUsage, style: Style) -> Json:
    counted: dict[str, Json] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
    if style.usage_names == "deepseek":
        return counted | {
            "prompt_cache_hit_tokens": usage.cached,
            "prompt_cache_miss_tokens": usage.prompt - usage.cached,
        }
    return counted | {
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _cut(text: str, style: Style) -> list[str]:
    return [text[start : start + style.piece_chars] for start in range(0, len(text), style.piece_chars)]
