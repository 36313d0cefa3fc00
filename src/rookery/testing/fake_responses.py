"""A fake of OpenAI's Responses API: scripted answers, and the refusals of the real server.

    fake = FakeResponses(api_key="sk-test")
    fake.answer(Reasoning(summaries=("Look first.",)), FunctionCall(name="read_file", arguments='{"path": "a"}'))
    fake.answer(say("It is empty."), tokens=Tokens(read=120, cached=100))
    async with fake.listening() as base_url:  # POST {base_url}/v1/responses
        ...

It remembers its own answers and checks histories strictly. Reasoning must be returned with the issued encrypted content
and with the item that followed it, an item must be returned with its reasoning, each call needs its output, and an id
that was not issued is unknown. The error messages are those of the real server, because clients use them to decide how
to repair a history.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rookery.testing.fake_responses_events import (
    Ending,
    Event,
    FunctionCall,
    Output,
    Reasoning,
    Refusal,
    Script,
    Text,
    Tokens,
    WebSearch,
    with_stale_events,
)
from rookery.testing.fake_server import FakeServer, Json, RecordedRequest, Scenario, count_tokens

__all__ = [
    "Ending",
    "Event",
    "FakeResponses",
    "FunctionCall",
    "Output",
    "Reasoning",
    "Refusal",
    "Text",
    "Tokens",
    "WebSearch",
    "say",
]

MIN_OUTPUT_TOKENS = 16
_CALLED = "function_call"
_ANSWERED = "function_call_output"
_REASONED = "reasoning"
_SAMPLING = ("temperature", "top_p")


def say(*parts: str, phase: str | None = None) -> Text:
    """Return a message with these content parts."""
    return Text(parts=parts, phase=phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """An issued item, and its neighbors in the same answer if one of the two is reasoning."""

    item: Mapping[str, Any]
    reasoning_id: str | None = None
    follower_id: str | None = None


class _Refused(Exception):
    """Raised to answer a request with 400."""

    def __init__(self, message: str, *, code: str | None = None, param: str = "input") -> None:
        super().__init__(message)
        self.body = {
            "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code},
        }


class FakeResponses(FakeServer):
    """A `FakeServer` for the Responses protocol. `issued` has every issued item by its id.

    `is_strict=False` accepts every history. With `reasons`, the model reasons and refuses sampling parameters.
    `window_tokens` is the context window, where a token is `bytes_per_token` of the body; refusals name no number.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        model: str = "gpt-fake",
        is_strict: bool = True,
        reasons: bool = True,
        window_tokens: int | None = None,
        bytes_per_token: float = 4.0,
    ) -> None:
        super().__init__(api_key=api_key, validate=self._refusal, error_body=_error_body)
        self.model = model
        self.issued: dict[str, Issued] = {}
        self._is_strict = is_strict
        self._reasons = reasons
        self._window = window_tokens
        self._bytes_per_token = bytes_per_token
        self._ids = itertools.count(1)

    def answer(
        self,
        *outputs: Output,
        tokens: Tokens | None = None,
        ending: Ending | None = None,
        piece: int = 5,
        has_stale_events: bool = False,
        is_whole: bool = False,
        **scenario: Json,
    ) -> list[Event]:
        """Queue an answer with these items. Return its events in order.

        `piece` is the length of a delta. `is_whole` answers with one JSON document, like servers that ignore `stream`.
        Other arguments are passed to the `Scenario` (pacing, faults, headers).
        """
        script = Script(f"resp_{next(self._ids):04d}", self.model, self._ids, piece)
        script.write(outputs, tokens or Tokens(), ending or Ending())
        self._remember(script.items)
        if is_whole:
            self.enqueue(Scenario(body=script.document(tokens or Tokens()), **scenario))
        else:
            sent = with_stale_events(script.events) if has_stale_events else script.events
            self.enqueue(Scenario(events=sent, **scenario))
        return script.events

    def _remember(self, items: Sequence[Mapping[str, Any]]) -> None:
        for before, item, after in zip((None, *items), items, (*items[1:], None), strict=False):
            self.issued[item["id"]] = Issued(
                item=item,
                reasoning_id=before["id"] if before is not None and before["type"] == _REASONED else None,
                follower_id=after["id"] if after is not None and item["type"] == _REASONED else None,
            )

    def _refusal(self, request: RecordedRequest) -> tuple[int, Json] | None:
        if (request.method, request.path.rpartition("/")[2]) != ("POST", "responses"):
            return 404, _error_body(404, f"Invalid URL ({request.method} {request.path})")
        try:
            self._check(request.body)
            if self._window is not None and count_tokens(request, self._bytes_per_token) > self._window:
                raise _Refused(
                    "Your input exceeds the context window of this model. Please adjust your input and try again.",
                    code="context_length_exceeded",
                )
        except _Refused as refused:
            return 400, refused.body
        return None

    def _check(self, body: Json) -> None:
        if not isinstance(body, dict):
            raise _Refused("We could not parse the JSON body of your request.", param="body")
        self._check_settings(body)
        items = body.get("input")
        if isinstance(items, str) or not self._is_strict:
            return
        if not isinstance(items, list):
            raise _Refused("Missing required parameter: 'input'.", code="missing_required_parameter")
        _check_forms(items)
        _check_unique(items)
        self._check_origins(items)
        _check_pairs(items)

    def _check_settings(self, body: Mapping[str, Any]) -> None:
        if not body.get("model"):
            raise _Refused("Missing required parameter: 'model'.", code="missing_required_parameter", param="model")
        if previous := body.get("previous_response_id"):
            raise _Refused(
                f"Previous response with id '{previous}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        limit = body.get("max_output_tokens")
        if limit is not None and limit < MIN_OUTPUT_TOKENS:
            raise _Refused(
                "Invalid 'max_output_tokens': integer below minimum value. "
                f"Expected a value >= {MIN_OUTPUT_TOKENS}, but got {limit} instead.",
                code="integer_below_min_value",
                param="max_output_tokens",
            )
        effort = (body.get("reasoning") or {}).get("effort")
        for setting in _SAMPLING if self._reasons and effort != "none" else ():
            if setting in body:
                raise _Refused(
                    f"Unsupported parameter: '{setting}' is not supported with this model.",
                    code="unsupported_parameter",
                    param=setting,
                )

    def _check_origins(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Check items with an id: each must have been issued, and must be next to the item that it depends on."""
        for before, item, after in zip((None, *items), items, (*items[1:], None), strict=False):
            if (item_id := item.get("id")) is None:
                continue
            issued = self.issued.get(item_id)
            if issued is None or issued.item["type"] != item["type"]:
                raise _not_found(item_id)
            if item["type"] == _REASONED:
                _check_reasoning(item, issued)
                if after is None or after.get("id") != issued.follower_id:
                    raise _Refused(
                        f"Item '{item_id}' of type 'reasoning' was provided without its required following item."
                    )
            else:
                _check_preceded(item, before=before, issued=issued)


def _check_reasoning(item: Mapping[str, Any], issued: Issued) -> None:
    sealed = item.get("encrypted_content")
    if sealed is None:
        raise _not_found(item["id"])
    if sealed != issued.item.get("encrypted_content"):
        raise _Refused(
            f"The encrypted content for item {item['id']} could not be verified.", code="invalid_encrypted_content"
        )


def _check_preceded(item: Mapping[str, Any], *, before: Mapping[str, Any] | None, issued: Issued) -> None:
    """Check that items that followed reasoning are sent with it, and searches only with reasoning."""
    if issued.reasoning_id is None and item["type"] != "web_search_call":
        return
    if before is not None and before.get("id") is not None and before["id"] == issued.reasoning_id:
        return
    raise _Refused(
        f"Item '{item['id']}' of type '{item['type']}' was provided without its required 'reasoning' item: "
        f"'{issued.reasoning_id}'."
    )


def _check_forms(items: Sequence[Mapping[str, Any]]) -> None:
    """Check that assistant messages have output parts and other messages have input parts."""
    for place, item in enumerate(items):
        content = item.get("content")
        if item.get("type", "message") != "message" or not isinstance(content, list):
            continue
        is_output = item["role"] == "assistant"
        allowed = ("output_text", "refusal") if is_output else ("input_text", "input_image", "input_file")
        for index, part in enumerate(content):
            if part["type"] not in allowed:
                supported = ", ".join(f"'{name}'" for name in allowed)
                raise _Refused(
                    f"Invalid value: '{part['type']}'. Supported values are: {supported}.",
                    code="invalid_value",
                    param=f"input[{place}].content[{index}]",
                )


def _check_unique(items: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for item in items:
        if (item_id := item.get("id")) is None:
            continue
        if item_id in seen:
            raise _Refused(
                f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
            )
        seen.add(item_id)


def _check_pairs(items: Sequence[Mapping[str, Any]]) -> None:
    """Check that each call has one output after it, and each output a call before it."""
    called: set[str] = set()
    answered: set[str] = set()
    for item in items:
        kind, call_id = item.get("type"), item.get("call_id", "")
        if (kind == _CALLED and call_id in called) or (kind == _ANSWERED and call_id in answered):
            raise _Refused(f"Duplicate call ids in input: '{call_id}'.")
        if kind == _CALLED:
            called.add(call_id)
        elif kind == _ANSWERED:
            if call_id not in called:
                raise _Refused(f"No tool call found for function call output with call_id {call_id}.")
            answered.add(call_id)
    for item in items:
        if item.get("type") == _CALLED and item["call_id"] not in answered:
            raise _Refused(f"No tool output found for function call {item['call_id']}.")


def _not_found(item_id: str) -> _Refused:
    return _Refused(
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input."
    )


def _error_body(status: int, message: str) -> Json:
    code = "invalid_api_key" if status == 401 else None
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
