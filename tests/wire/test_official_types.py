"""The strict validators refuse what the plain types accept. Without these tests, the others would prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from pydantic import TypeAdapter
from pydantic_core import ValidationError

from tests.wire import official_types

Body = dict[str, Any]


def anthropic_body(**fields: Any) -> Body:
    user = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    return {"model": "claude", "max_tokens": 10, "stream": True, "messages": [user], **fields}


def responses_body(**fields: Any) -> Body:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    return {"model": "gpt", "stream": True, "input": [item], **fields}


def completions_body(**fields: Any) -> Body:
    return {"model": "gpt", "stream": True, "messages": [{"role": "user", "content": "hello"}], **fields}


def with_block(block: Body, role: str = "user") -> Body:
    return anthropic_body(messages=[{"role": role, "content": [block]}])


def with_tool(tool: Body) -> Body:
    return anthropic_body(tools=[tool])


def with_item(item: Body) -> Body:
    return responses_body(input=[item])


def with_message(message: Body) -> Body:
    return completions_body(messages=[message])


SCHEMA: Body = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
CALL: Body = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}

GOOD: list[tuple[Callable[[Body], None], Body]] = [
    (official_types.check_anthropic, anthropic_body(system=[{"type": "text", "text": "be brief"}])),
    (official_types.check_anthropic, with_tool({"name": "read", "description": "Reads.", "input_schema": SCHEMA})),
    (official_types.check_anthropic, with_block(CALL, "assistant")),
    (official_types.check_anthropic, with_block({**CALL, "input": msgspec.Raw(b'{"path": "a"}')}, "assistant")),
    (official_types.check_anthropic, with_block({"type": "tool_result", "tool_use_id": "toolu_1", "content": "text"})),
    (official_types.check_anthropic_beta, anthropic_body()),
    (
        official_types.check_anthropic_beta,
        anthropic_body(
            thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
        ),
    ),
    (official_types.check_responses, responses_body(store=False, include=["reasoning.encrypted_content"])),
    (official_types.check_responses, with_item({"type": "function_call_output", "call_id": "c", "output": "text"})),
    (official_types.check_completions, completions_body(stream_options={"include_usage": True})),
    (official_types.check_completions, with_message({"role": "tool", "tool_call_id": "c", "content": "text"})),
]

BAD: list[tuple[str, Callable[[Body], None], Body]] = [
    ("missing stream", official_types.check_anthropic, {k: v for k, v in anthropic_body().items() if k != "stream"}),
    (
        "missing max_tokens",
        official_types.check_anthropic,
        {k: v for k, v in anthropic_body().items() if k != "max_tokens"},
    ),
    ("sampling field", official_types.check_anthropic, anthropic_body(temperature=0.5)),
    (
        "misspelt key",
        official_types.check_anthropic,
        anthropic_body(system_prompt=[{"type": "text", "text": "be brief"}]),
    ),
    ("wrong type", official_types.check_anthropic, anthropic_body(max_tokens="10")),
    ("misspelt key in a block", official_types.check_anthropic, with_block({"type": "text", "text": "a", "cache": {}})),
    ("call without id", official_types.check_anthropic, with_block({"type": "tool_use", "name": "read", "input": {}})),
    ("call with text input", official_types.check_anthropic, with_block({**CALL, "input": "{}"}, "assistant")),
    (
        "call with an array",
        official_types.check_anthropic,
        with_block({**CALL, "input": msgspec.Raw(b"[]")}, "assistant"),
    ),
    ("result without id", official_types.check_anthropic, with_block({"type": "tool_result", "content": "text"})),
    (
        "unknown block inside a result",
        official_types.check_anthropic,
        with_block({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "video"}]}),
    ),
    ("thinking without signature", official_types.check_anthropic, with_block({"type": "thinking", "thinking": "hm"})),
    (
        "image of another type",
        official_types.check_anthropic,
        with_block({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "AA=="}}),
    ),
    ("tool without schema", official_types.check_anthropic, with_tool({"name": "read", "description": "Reads."})),
    (
        "beta field outside of beta",
        official_types.check_anthropic,
        anthropic_body(thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}),
    ),
    ("unknown effort", official_types.check_anthropic, anthropic_body(output_config={"effort": "minimal"})),
    ("sampling field in beta", official_types.check_anthropic_beta, anthropic_body(top_k=5)),
    ("misspelt key", official_types.check_responses, responses_body(max_output_token=5)),
    (
        "output without output",
        official_types.check_responses,
        with_item({"type": "function_call_output", "call_id": "c"}),
    ),
    ("unknown item", official_types.check_responses, with_item({"type": "functions_call", "call_id": "c"})),
    (
        "tool without strict",
        official_types.check_responses,
        responses_body(tools=[{"type": "function", "name": "f", "parameters": {}}]),
    ),
    ("misspelt key", official_types.check_completions, completions_body(max_token=5)),
    (
        "result without tool_call_id",
        official_types.check_completions,
        with_message({"role": "tool", "content": "text"}),
    ),
    ("unknown role", official_types.check_completions, with_message({"role": "robot", "content": "text"})),
    (
        "call without function",
        official_types.check_completions,
        with_message({"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}),
    ),
    ("stream off", official_types.check_completions, completions_body(stream=False)),
]


@pytest.mark.parametrize(("check", "body"), GOOD)
def test_complete_request_is_accepted(check: Callable[[Body], None], body: Body) -> None:
    check(body)


@pytest.mark.parametrize(("check", "body"), [pytest.param(check, body, id=name) for name, check, body in BAD])
def test_deviation_is_refused(check: Callable[[Body], None], body: Body) -> None:
    with pytest.raises(ValidationError):
        check(body)


def test_plain_type_adapter_lets_the_same_deviations_pass() -> None:
    plain: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)

    plain.validate_python(anthropic_body(temperature=0.5, messages=[{"role": "robot"}]))


def test_type_this_cannot_rebuild_is_an_error_and_not_a_hole() -> None:
    with pytest.raises(TypeError, match="does not know"):
        official_types._Rebuild().schema(set[str])
