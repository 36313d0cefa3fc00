"""A fake of Anthropic's Messages API: scripted answers in its stream format, and the refusals of the real server.

    fake = FakeAnthropic(api_key="sk-ant-test")
    fake.answer(
        Answer([Thinking("They want the readme."), Call("read_file", {"path": "README.md"})]),
        failure(529, "Overloaded"),
        Answer([Text("It is short.")]),
    )
    async with fake.listening() as base_url:  # or hand `fake` itself to an ASGI client
        ...
    assert fake.requests[1].body["messages"][-1]["role"] == "user"

A request that breaks a rule (`fake_anthropic_checks`) gets status 400 with the message of the real server, and takes no
answer from the script. A signature covers the thinking and everything before it: a changed signature, or one after
another history, is refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import msgspec

from rookery.testing.fake_anthropic_checks import Issued, blocks_of, find_fault, prefix_hash
from rookery.testing.fake_server import FakeServer, RecordedRequest, Scenario, count_tokens

__all__ = [
    "Answer",
    "Call",
    "FakeAnthropic",
    "OtherBlock",
    "Redacted",
    "Search",
    "Text",
    "Thinking",
    "failure",
    "model_info",
]

Json: TypeAlias = dict[str, Any]
Event: TypeAlias = tuple[str, Json]

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Text:
    """A text block. `cites` are the cited pages (url, title)."""

    text: str
    cites: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Thinking:
    """A thinking block with a signature. Models that are asked to omit their thinking send an empty text."""

    text: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """A thinking block that only the server can decrypt."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a local tool. `input` as text is sent unchanged, even if it is not JSON."""

    name: str
    input: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """A web search by the server. `found` are the pages (url, title), or an error code; None if there is no result."""

    query: str
    found: Sequence[tuple[str, str]] | str | None = ()
    id: str | None = None


@dataclass(frozen=True, slots=True)
class OtherBlock:
    """A block of any type, sent unchanged, with its deltas."""

    block: Json
    deltas: Sequence[Json] = ()


Block: TypeAlias = Text | Thinking | Redacted | Call | Search | OtherBlock


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. The stop reason is derived from the blocks unless it is given.

    `start_usage` and `usage` override numbers in the first and the last event. The stream ends after `events` events,
    with an error event if `error` (type, message) is set.
    """

    blocks: Sequence[Block] = ()
    _: KW_ONLY
    stop_reason: str | None = None
    stop_details: Json | None = None
    start_usage: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    delta_chars: int = 8
    events: int | None = None
    error: tuple[str, str] | None = None
    events_per_second: float | None = None


def error_body(status: int, message: str) -> Json:
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_fake"}


def failure(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Scenario:
    """Return an error response in Anthropic's format."""
    return Scenario(status=status, body=error_body(status, message), headers=headers or {})


def model_info(
    model: str,
    *,
    max_tokens: int = 128_000,
    max_input_tokens: int = 1_000_000,
    thinking: Sequence[str] = ("adaptive", "disabled"),
    efforts: Sequence[str] = ("low", "medium", "high", "xhigh", "max"),
) -> Json:
    """Return the description of a model at the models endpoint. `thinking` are the accepted types, if it thinks."""

    def supported(names: Sequence[str], chosen: Sequence[str]) -> Json:
        return {name: {"supported": name in chosen} for name in names}

    plain = ("batch", "citations", "code_execution", "image_input", "pdf_input", "structured_outputs")
    capabilities: Json = {
        **supported(plain, plain),
        "context_management": {"supported": False},
        "effort": {"supported": bool(efforts), **supported(("low", "medium", "high", "xhigh", "max"), efforts)},
        "server_tools": {"supported": True, **supported(("code_execution", "web_search"), ("web_search",))},
        "thinking": {
            "supported": bool(thinking),
            "types": supported(("adaptive", "between_tools", "disabled", "enabled"), thinking or ("disabled",)),
        },
    }
    return {
        "id": model,
        "type": "model",
        "display_name": model,
        "created_at": "2026-10-01T00:00:00Z",
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": max_input_tokens,
        "max_tokens": max_tokens,
        "capabilities": capabilities,
    }


class FakeAnthropic(FakeServer):
    """The server. With `binds_thinking`, as for newer models, thinking is accepted only after the same history.

    `window_tokens` is the context window, where a token is `bytes_per_token` of the request's body.
    """

    def __init__(
        self,
        *,
        api_key: str | None = "sk-ant-test",
        binds_thinking: bool = True,
        window_tokens: int | None = None,
        bytes_per_token: float = 4.0,
    ) -> None:
        super().__init__(
            api_key=api_key,
            validate=self._refusal,
            respond=self._next,
            error_body=error_body,
            request_id_header="request-id",
        )
        self.issued: dict[str, Issued] = {}
        self._binds_thinking = binds_thinking
        self._window = window_tokens
        self._bytes_per_token = bytes_per_token
        self._script: deque[Answer | Scenario] = deque()
        self._made = 0
        self._calls = 0

    def answer(self, *answers: Answer | Scenario) -> None:
        """Add answers to the script. Each accepted request takes the next one."""
        self._script.extend(answers)

    def offer(self, info: Json) -> None:
        """Add a model to the models endpoint (see `model_info`). It answers 404 for all others."""
        self.pages[f"GET /v1/models/{info['id']}"] = Scenario(body=info)

    @property
    def remaining(self) -> int:
        """The number of answers that were not requested yet."""
        return len(self._script) + super().remaining

    def events(self, answer: Answer, request: Json) -> list[Event]:
        """Return the events of an answer to this request body. Its signatures count as issued."""
        events = list(self._events(answer, request))
        if answer.events is None:
            return events
        cut = events[: answer.events]
        if answer.error is None:
            return cut
        kind, message = answer.error
        return [*cut, ("error", {"type": "error", "error": {"type": kind, "message": message}})]

    def _refusal(self, request: RecordedRequest) -> tuple[int, Json] | None:
        if (request.method, request.path) != ("POST", "/v1/messages"):
            return 404, error_body(404, f"Not found: {request.path}")
        fault = find_fault(request.body, request.headers, issued=self.issued, binds_thinking=self._binds_thinking)
        fault = fault or self._too_long(request)
        return None if fault is None else (400, error_body(400, fault))

    def _too_long(self, request: RecordedRequest) -> str | None:
        """Return the error if the prompt, or the prompt with the requested output, exceeds the window."""
        if self._window is None:
            return None
        read, wanted = count_tokens(request, self._bytes_per_token), request.body.get("max_tokens", 0)
        if read > self._window:
            return f"prompt is too long: {read} tokens > {self._window} maximum"
        if read + wanted > self._window:
            return (
                f"input length and `max_tokens` exceed context limit: {read} + {wanted} > {self._window}, decrease "
                "input length or `max_tokens` and try again"
            )
        return None

    def _next(self, request: RecordedRequest) -> Scenario | None:
        if not self._script:
            return None
        answer = self._script.popleft()
        if isinstance(answer, Scenario):
            return answer
        events = self.events(answer, request.body)
        if request.body.get("stream") is not True:
            return Scenario(body=_whole(events))
        return Scenario(events=events, events_per_second=answer.events_per_second)

    def _events(self, answer: Answer, request: Json) -> Iterator[Event]:
        self._made += 1
        message = {
            "id": f"msg_{self._made}",
            "type": "message",
            "role": "assistant",
            "model": request.get("model", "claude-fake"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1, **answer.start_usage},
        }
        yield _event("message_start", message=message)
        yield _event("ping")
        index = 0
        for block in answer.blocks:
            for start, deltas in self._blocks(block, answer, request):
                yield _event("content_block_start", index=index, content_block=start)
                for delta in deltas:
                    yield _event("content_block_delta", index=index, delta=delta)
                yield _event("content_block_stop", index=index)
                index += 1
        stop: Json = {"stop_reason": answer.stop_reason or _stop_reason(answer.blocks), "stop_sequence": None}
        if answer.stop_details is not None:
            stop["stop_details"] = answer.stop_details
        yield _event("message_delta", delta=stop, usage={"output_tokens": 20, **answer.usage})
        yield _event("message_stop")

    def _blocks(self, block: Block, answer: Answer, request: Json) -> Iterator[tuple[Json, list[Json]]]:
        """Return the start of a block and its deltas."""
        size = answer.delta_chars
        match block:
            case Text():
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block.text, size)]
                cited = [{"type": "citations_delta", "citation": _citation(url, title)} for url, title in block.cites]
                yield {"type": "text", "text": ""}, deltas + cited
            case Thinking():
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block.text, size)]
                # Sent in one piece, like the real server does, because the official client keeps only the last one.
                signed = {"type": "signature_delta", "signature": self._issue(block.text, request)}
                yield {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]
            case Redacted():
                yield {"type": "redacted_thinking", "data": self._issue("", request)}, []
            case Call():
                call_id = block.id or f"toolu_{self._made}_{self._count()}"
                text = block.input if isinstance(block.input, str) else _json(block.input)
                start = {"type": "tool_use", "id": call_id, "name": block.name, "input": {}}
                yield start, _input_deltas(text, size)
            case Search():
                call_id = block.id or f"srvtoolu_{self._made}_{self._count()}"
                start = {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}}
                yield start, _input_deltas(_json({"query": block.query}), size)
                if block.found is not None:
                    yield _found(call_id, block.found), []
            case OtherBlock():
                yield block.block, list(block.deltas)

    def _count(self) -> int:
        self._calls += 1
        return self._calls

    def _issue(self, thinking: str, request: Json) -> str:
        """Return a signature for this thinking after this request."""
        blocks = len(blocks_of(request))
        prefix = prefix_hash(request, blocks)
        number = len(self.issued).to_bytes(4)
        signature = base64.b64encode(number + hashlib.sha256(prefix + thinking.encode()).digest()).decode()
        self.issued[signature] = Issued(thinking=thinking, blocks=blocks, prefix=prefix)
        return signature


def _event(name: str, **fields: Any) -> Event:
    return name, {"type": name, **fields}


def _stop_reason(blocks: Sequence[Block]) -> str:
    return "tool_use" if any(isinstance(block, Call) for block in blocks) else "end_turn"


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _input_deltas(text: str, size: int) -> list[Json]:
    # The first delta is empty, like that of the real server.
    return [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(text, size)]]


def _citation(url: str, title: str) -> Json:
    return {
        "type": "web_search_result_location",
        "cited_text": title,
        "encrypted_index": "ZW5j",
        "title": title,
        "url": url,
    }


def _found(call_id: str, found: Sequence[tuple[str, str]] | str) -> Json:
    content: Any = (
        {"type": "web_search_tool_result_error", "error_code": found}
        if isinstance(found, str)
        else [
            {"type": "web_search_result", "url": url, "title": title, "encrypted_content": "ZW5j", "page_age": None}
            for url, title in found
        ]
    )
    return {"type": "web_search_tool_result", "tool_use_id": call_id, "content": content}


def _whole(events: Sequence[Event]) -> Json:
    """Return the message that results from the events, for requests without streaming."""
    message: Json = {}
    for name, event in events:
        if name == "message_start":
            message = {**event["message"], "content": []}
        elif name == "content_block_start":
            message["content"].append({**event["content_block"], "_json": ""})
        elif name == "content_block_delta":
            _add(message["content"][-1], event["delta"])
        elif name == "content_block_stop":
            block = message["content"][-1]
            if text := block.pop("_json"):
                block["input"] = msgspec.json.decode(text)
        elif name == "message_delta":
            message |= {**event["delta"], "usage": message["usage"] | event["usage"]}
    return message


def _add(block: Json, delta: Json) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] += delta["signature"]
        case "input_json_delta":
            block["_json"] += delta["partial_json"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
