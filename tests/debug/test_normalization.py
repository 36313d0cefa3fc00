"""Normalization: every field of a call and an answer is covered, texts are redacted and cut, prefixes are shared."""

from __future__ import annotations

import asyncio
import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.debug import normalization
from rookery.debug.normalization import (
    MAX_STREAM_BYTES,
    MAX_TEXT_CHARS,
    NormalizedMessage,
    NormalizedPart,
    Prefix,
    PromptHashes,
    ResponseCollector,
    SharedRequest,
    normalize_error,
    normalize_request,
    resolve_prefixes,
    share_prefix,
)
from rookery.debug.redaction import Redactor
from rookery.domain.chat import model_prompt
from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.models.options import ModelOptions
from rookery.llm import types as llm
from rookery.llm.errors import CallFailed, TransportError, TransportFault
from rookery.llm.types import Call, ErrorKind, FinishReason, ProviderError, StreamPart, Usage
from rookery.telemetry.redaction import SecretRegistry

CANARY = "canary-9f8e7d6c5b4a-private"


def redactor() -> Redactor:
    secrets = SecretRegistry()
    secrets.add("key", CANARY)
    return Redactor(secrets)


def message(*parts: PromptPart | str, role: Role = Role.USER) -> PromptMessage:
    return PromptMessage(role=role, parts=tuple(PromptText(part) if isinstance(part, str) else part for part in parts))


def call(*messages: PromptMessage, **fields: object) -> Call:
    return Call(prompt=Prompt(messages), **fields)  # type: ignore[arg-type]


def only_part(part: PromptPart) -> NormalizedPart:
    return normalize_request(call(message(part)), redactor()).messages[0].parts[0]


# Every field of every struct of a call and of an answer: how it is normalized, or why it is skipped.
NORMALIZED = "normalized"
FIELDS: dict[str, dict[str, str]] = {
    "Call": {
        "prompt": NORMALIZED,
        "purpose": "skipped: the kind of the run says it",
        "tools": NORMALIZED,
        "web_search": NORMALIZED,
        "tool_choice": NORMALIZED,
        "format": NORMALIZED,
        "max_output_tokens": NORMALIZED,
        "temperature": NORMALIZED,
        "top_p": NORMALIZED,
        "top_k": NORMALIZED,
        "presence_penalty": NORMALIZED,
        "frequency_penalty": NORMALIZED,
        "effort": NORMALIZED,
        "options": NORMALIZED,
        "headers": "skipped: headers are shown with the attempts, redacted",
        "chat_id": "skipped: the run has it",
        "cache_key": "skipped: the root chat of the run",
        "drop_stale_thinking": "skipped: set by the driver for a repair; the attempts show the request",
        "plain_history": "skipped: set by the driver for a repair; the attempts show the request",
    },
    "Tool": {"name": NORMALIZED, "description": NORMALIZED, "input_schema": NORMALIZED},
    "WebSearch": dict.fromkeys(
        ("allowed_domains", "blocked_domains", "max_uses", "user_location", "version", "context_size"),
        "skipped: values of provider options are never normalized",
    ),
    "JsonFormat": {"name": NORMALIZED, "schema": "skipped: it belongs to the feature, not to the chat"},
    "Prompt": {"messages": NORMALIZED},
    "PromptMessage": {
        "role": NORMALIZED,
        "parts": NORMALIZED,
        "is_native": "skipped: a note for the wires, not sent",
        "is_whole": "skipped: a note for the wires, not sent",
        "finish_reason": "skipped: a note for the wires, not sent",
        "prefix_fp": "skipped: a hash for the wires, not sent",
    },
    "PromptText": {"text": NORMALIZED, "meta": "skipped: opaque data of the provider"},
    "PromptReasoning": {"text": NORMALIZED, "meta": "skipped: opaque data of the provider"},
    "PromptFile": {"media_type": NORMALIZED, "data": NORMALIZED, "name": NORMALIZED},
    "PromptCall": {
        "id": NORMALIZED,
        "name": NORMALIZED,
        "input": NORMALIZED,
        "provider_executed": NORMALIZED,
        "meta": "skipped: opaque data of the provider",
    },
    "PromptMedia": {"media_type": NORMALIZED, "data": "skipped: file bytes are never recorded"},
    "PromptResult": {
        "id": NORMALIZED,
        "name": NORMALIZED,
        "text": NORMALIZED,
        "is_error": NORMALIZED,
        "media": NORMALIZED,
        "provider_executed": NORMALIZED,
        "meta": "skipped: opaque data of the provider",
    },
    "Usage": {
        "input": NORMALIZED,
        "cache_read": NORMALIZED,
        "cache_write": NORMALIZED,
        "cache_write_1h": NORMALIZED,
        "output": NORMALIZED,
        "reasoning": NORMALIZED,
        "total": NORMALIZED,
        "web_searches": NORMALIZED,
        "context_tokens": "skipped: a figure for the context window, derived from the others",
    },
    "CallWarning": {"type": NORMALIZED, "setting": NORMALIZED, "message": NORMALIZED},
    "Warnings": {"items": NORMALIZED},
    "ResponseStarted": {
        "response_id": NORMALIZED,
        "model": NORMALIZED,
        "request_id": NORMALIZED,
        "prefix_fp": "skipped: a hash for the wires",
    },
    "TextStart": {"id": "skipped: adjacent deltas form one part"},
    "TextDelta": {"id": "skipped: adjacent deltas form one part", "text": NORMALIZED},
    "TextEnd": {
        "id": "skipped: adjacent deltas form one part",
        "meta": "skipped: opaque data of the provider",
        "refusal": "skipped: the finish reason says it",
    },
    "ReasoningStart": {
        "id": "skipped: adjacent deltas form one part",
        "meta": "skipped: opaque data of the provider",
    },
    "ReasoningDelta": {"id": "skipped: adjacent deltas form one part", "text": NORMALIZED},
    "ReasoningEnd": {
        "id": "skipped: adjacent deltas form one part",
        "meta": "skipped: opaque data of the provider",
    },
    "ToolInputStart": {"id": NORMALIZED, "name": NORMALIZED, "provider_executed": NORMALIZED},
    "ToolInputDelta": {"id": NORMALIZED, "json": NORMALIZED},
    "ToolInputEnd": {"id": "skipped: the call ends with its last delta"},
    "ToolCall": {
        "id": NORMALIZED,
        "name": NORMALIZED,
        "input": NORMALIZED,
        "provider_executed": NORMALIZED,
        "meta": "skipped: opaque data of the provider",
    },
    "ToolResult": {
        "id": NORMALIZED,
        "name": NORMALIZED,
        "output": NORMALIZED,
        "is_error": NORMALIZED,
        "meta": "skipped: opaque data of the provider",
    },
    "Source": {
        "id": "skipped: only used to merge sources",
        "kind": NORMALIZED,
        "url": NORMALIZED,
        "title": NORMALIZED,
    },
    "GeneratedFile": {
        "id": "skipped: the order of the parts says it",
        "media_type": NORMALIZED,
        "data": NORMALIZED,
    },
    "UsageUpdate": {"usage": NORMALIZED},
    "Finish": {
        "reason": NORMALIZED,
        "usage": NORMALIZED,
        "meta": "skipped: opaque data of the provider",
        "detail": NORMALIZED,
    },
    "StreamError": {"error": NORMALIZED},
    "ProviderError": {
        "kind": NORMALIZED,
        "message": NORMALIZED,
        "retryable": NORMALIZED,
        "provider": NORMALIZED,
        "detail": NORMALIZED,
        "status": NORMALIZED,
        "code": NORMALIZED,
        "retry_after": "skipped: the attempt has the header and the planned delay",
        "request_id": NORMALIZED,
        "context_used": "skipped: the detail has the numbers",
        "context_max": "skipped: the detail has the numbers",
        "replay_fault": "skipped: the driver repairs it; the attempts show the request",
        "failed_generation": "skipped: the body of the attempt has it",
    },
    "Thinking": {},
    "Capabilities": {},
}
# Structs that describe a model and are no part of a call.
OUTSIDE = {"Thinking", "Capabilities"}


def structs() -> dict[str, type[msgspec.Struct]]:
    return {
        name: value
        for module in (llm, model_prompt)
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }


def test_every_field_of_a_call_and_an_answer_is_normalized_or_skipped_for_a_reason() -> None:
    actual = {
        name: [field.name for field in msgspec.structs.fields(struct)]
        for name, struct in structs().items()
        if name not in OUTSIDE
    }

    assert actual == {name: list(fields) for name, fields in FIELDS.items() if name not in OUTSIDE}
    rules = {rule for fields in FIELDS.values() for rule in fields.values()}
    assert all(rule == NORMALIZED or len(rule.removeprefix("skipped: ")) > 10 for rule in rules)


# A value that is recognized in the output, by the type of the field.
def marked(struct: str, field: str) -> object:
    special = {
        ("Call", "prompt"): Prompt((message("mark-Call-prompt"),)),
        ("Call", "tools"): (llm.Tool(name="mark-Call-tools", description="", input_schema={}),),
        ("Call", "web_search"): llm.WebSearch(),
        ("Call", "format"): llm.JsonFormat("mark-Call-format", {}),
        ("Call", "effort"): Effort.MAX,
        ("Call", "options"): ModelOptions(service_tier="flex"),
    }
    if (struct, field) in special:
        return special[struct, field]
    return f"mark-{struct}-{field}" if field == "tool_choice" else 117


SHOWN_AS = {"web_search": "web_search", "effort": '"max"', "options": "service_tier"}


@pytest.mark.parametrize("field", [name for name, rule in FIELDS["Call"].items() if rule == NORMALIZED])
def test_field_of_a_call_that_is_called_normalized_changes_the_record(field: str) -> None:
    plain = call(message("Hello."))
    changed = msgspec.structs.replace(plain, **{field: marked("Call", field)})

    before = msgspec.json.encode(normalize_request(plain, redactor())).decode()
    after = msgspec.json.encode(normalize_request(changed, redactor())).decode()

    shown = SHOWN_AS.get(field, "117" if marked("Call", field) == 117 else f"mark-Call-{field}")
    assert shown in after
    assert shown not in before


# Requests


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (PromptText("Hello."), NormalizedPart(type="text", text="Hello.", text_length=6)),
        (PromptReasoning("Hm.", {"signature": "x"}), NormalizedPart(type="reasoning", text="Hm.", text_length=3)),
        (
            PromptFile("image/png", b"\x89PNG", "nest.png"),
            NormalizedPart(type="file", media_type="image/png", filename="nest.png", size=4),
        ),
        (
            PromptCall("c1", "read_file", Raw(b'{"path": "a"}')),
            NormalizedPart(
                type="tool-call", tool_call_id="c1", tool_name="read_file", arguments='{"path": "a"}', input_length=13
            ),
        ),
        (
            PromptResult("c1", "read_file", "No such file.", is_error=True),
            NormalizedPart(
                type="tool-result",
                tool_call_id="c1",
                tool_name="read_file",
                result="No such file.",
                text_length=13,
                is_error=True,
            ),
        ),
        (
            PromptResult("c1", "look", "A nest.", media=PromptMedia("image/png", "AAAA")),
            NormalizedPart(
                type="tool-result",
                tool_call_id="c1",
                tool_name="look",
                result="A nest.",
                text_length=7,
                media_type="image/png",
            ),
        ),
        (
            PromptResult("c1", "look", "", media=PromptMedia("image/png", "AAAA")),
            NormalizedPart(
                type="tool-result",
                tool_call_id="c1",
                tool_name="look",
                result="[media output: image/png]",
                text_length=0,
                media_type="image/png",
            ),
        ),
        (
            PromptResult("c1", "look", "", media=PromptMedia("", "AAAA")),
            NormalizedPart(
                type="tool-result",
                tool_call_id="c1",
                tool_name="look",
                result="[media output]",
                text_length=0,
                media_type="",
            ),
        ),
    ],
)
def test_parts_of_a_prompt(part: PromptPart, shown: NormalizedPart) -> None:
    assert only_part(part) == shown


def test_long_texts_are_cut_with_an_ellipsis_and_keep_their_length() -> None:
    part = only_part(PromptText("ä" * 20_000))

    assert part.text == "ä" * (MAX_TEXT_CHARS - 1) + "…"
    assert part.text_length == 20_000
    assert only_part(PromptText("ä" * MAX_TEXT_CHARS)).text == "ä" * MAX_TEXT_CHARS


def test_secret_at_the_cut_is_hidden_before_the_text_is_cut() -> None:
    for position in range(MAX_TEXT_CHARS - len(CANARY) - 2, MAX_TEXT_CHARS + 2):
        text = only_part(PromptText("x " * (position // 2) + CANARY)).text or ""

        assert CANARY[:8] not in text


def test_arguments_and_results_are_redacted_by_their_keys() -> None:
    arguments = only_part(PromptCall("c1", "login", Raw(b'{"user": "wren", "password": "hunter2-hunter2"}'))).arguments
    result = only_part(PromptResult("c1", "login", '{"access_token": "hunter2-hunter2"}')).result

    assert arguments == '{"user":"wren","password":"[REDACTED]"}'
    assert result == '{"access_token":"[REDACTED]"}'


def test_schemas_of_tools_keep_their_parameters_and_lose_secrets_in_texts() -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string", "default": CANARY}}}
    (tool,) = normalize_request(
        call(message("a"), tools=(llm.Tool(name="login", description="Log in.", input_schema=schema),)), redactor()
    ).tools

    assert tool.input_schema == {
        "type": "object",
        "properties": {"password": {"type": "string", "default": "[REDACTED:key]"}},
    }


def test_characters_that_postgresql_refuses_are_escaped() -> None:
    assert only_part(PromptText("a\0b\ud800c")).text == "a\\u0000b\\ud800c"


# Prefix sharing


def stored(calls: list[Call]) -> list[tuple[int, SharedRequest]]:
    hashes, result = PromptHashes(), []
    for number, each in enumerate(calls, 1):
        prefix = hashes.add(each)
        shared = share_prefix(each, redactor(), msgspec.structs.replace(prefix, step=number - 1 or None))
        # As from the database.
        result.append((number, msgspec.json.decode(msgspec.json.encode(shared), type=SharedRequest)))
    return result


TOOLS = (llm.Tool(name="a", description="A.", input_schema={}),)


def test_step_stores_only_what_is_new() -> None:
    first = [message("system", role=Role.SYSTEM), message("Hello.")]
    second = [*first, message("Hi.", role=Role.ASSISTANT), message("Go on.")]

    (_, one), (_, two) = stored([call(*first, tools=TOOLS), call(*second, tools=TOOLS)])

    assert (one.prefix_len, one.has_same_tools, len(one.messages)) == (0, False, 2)
    assert (two.prefix_from, two.prefix_len, two.has_same_tools, len(two.messages)) == (1, 2, True, 2)
    assert two.message_count == 4
    assert two.tools == ()


def test_message_that_differs_only_beyond_the_cut_ends_the_prefix() -> None:
    first = message("a" * 30_000 + "b")
    second = message("a" * 30_000 + "c")

    assert stored([call(first), call(second)])[1][1].prefix_len == 0


def test_forgotten_step_is_not_referred_to() -> None:
    hashes = PromptHashes()
    hashes.add(call(message("Hello."), tools=TOOLS))
    hashes.forget()

    assert hashes.add(call(message("Hello."), tools=TOOLS)) == Prefix()


def test_missing_step_leaves_a_note() -> None:
    requests = stored([call(message("a")), call(message("a"), message("b"))])

    resolved = resolve_prefixes(requests[1:])[2]

    assert [part.text for each in resolved.messages for part in each.parts] == [
        "[1 messages are not in this record]",
        "b",
    ]


texts = st.sampled_from(["a", "b", "c", "d"])
prompts = st.lists(texts, max_size=6)


@given(st.lists(st.tuples(prompts, st.booleans()), min_size=1, max_size=8))
def test_resolved_requests_are_what_was_sent(steps: list[tuple[list[str], bool]]) -> None:
    calls = [call(*map(message, said), tools=TOOLS if has_tools else ()) for said, has_tools in steps]

    resolved = resolve_prefixes(stored(calls))

    assert list(resolved.values()) == [normalize_request(each, redactor()) for each in calls]


# Answers


def collected(*parts: StreamPart, is_structured: bool = False) -> normalization.NormalizedResponse:
    collector = ResponseCollector(is_structured=is_structured)
    for part in parts:
        collector.add(part)
    return collector.finish(redactor())[0]


def test_answer_joins_deltas_and_gathers_interleaved_tool_input() -> None:
    response = collected(
        llm.Warnings((llm.CallWarning("unsupported_setting", "top_k", "No top_k."),)),
        llm.ResponseStarted("r1", "model-1", "req_1"),
        llm.ReasoningStart("0"),
        llm.ReasoningDelta("0", "Let me "),
        llm.ReasoningDelta("0", "see."),
        llm.ReasoningEnd("0"),
        llm.TextStart("1"),
        llm.TextDelta("1", "I "),
        llm.TextDelta("1", "read."),
        llm.ToolInputStart("c1", "read_file"),
        llm.ToolInputDelta("c1", '{"path":'),
        llm.ToolInputStart("c2", "login"),
        llm.ToolInputDelta("c2", '{"password":'),
        llm.ToolInputDelta("c1", ' "a"}'),
        llm.ToolCall("c1", "read_file", '{"path": "a"}'),
        llm.ToolInputDelta("c2", ' "hunter2-hunter2"'),
        llm.ToolResult("s1", "web_search", Raw(b'{"found": 1}')),
        llm.Source("x", "url", "https://u:p@nest.example/a", "A nest"),
        llm.GeneratedFile("g", "image/png", b"1234"),
        llm.UsageUpdate(Usage(input=3)),
        llm.Finish(FinishReason.TOOL_CALLS, Usage(input=3, output=7, cache_read=2)),
    )

    assert [(part.type, part.text or part.arguments or part.result) for part in response.content] == [
        ("reasoning", "Let me see."),
        ("text", "I read."),
        ("tool-call", '{"path": "a"}'),
        ("tool-call", '{"password": "[REDACTED]"'),
        ("tool-result", '{"found": 1}'),
        ("source", None),
        ("file", None),
    ]
    assert response.content[5].url == "https://nest.example/a"
    assert response.finish_reason == "tool_calls"
    assert response.usage == normalization.NormalizedUsage(input_tokens=3, output_tokens=7, cache_read_tokens=2)
    assert (response.response_id, response.model, response.request_id) == ("r1", "model-1", "req_1")
    assert [warning.setting for warning in response.warnings] == ["top_k"]


def test_secret_that_is_split_over_deltas_is_hidden() -> None:
    response = collected(*(llm.TextDelta("0", letter) for letter in f"the key {CANARY} is secret"))

    assert [part.text for part in response.content] == ["the key [REDACTED:key] is secret"]


def test_texts_of_an_answer_share_one_limit_in_bytes() -> None:
    collector = ResponseCollector()
    for _ in range(2000):
        collector.add(llm.ReasoningDelta("0", "ä" * 20))
    for _ in range(2000):
        collector.add(llm.TextDelta("1", "x" * 20))
    collector.add(llm.Finish(FinishReason.STOP, Usage()))

    response, summary = collector.finish(redactor())

    kept = "".join(part.text or "" for part in response.content)
    assert MAX_STREAM_BYTES <= len(kept.encode()) <= MAX_STREAM_BYTES + 6
    assert kept.endswith("…")
    assert (summary.part_count, summary.text_delta_count, summary.finish_reason) == (4001, 2000, "stop")


def test_secret_at_the_limit_of_an_answer_is_hidden() -> None:
    for position in range(MAX_STREAM_BYTES - len(CANARY) - 2, MAX_STREAM_BYTES + 2, 5):
        collector = ResponseCollector()
        text = "x " * (position // 2) + CANARY + " and so on" * 5000
        for start in range(0, len(text), 900):
            collector.add(llm.TextDelta("0", text[start : start + 900]))

        response, _ = collector.finish(redactor())

        assert CANARY[:8] not in (response.content[0].text or "")


def test_structured_answer_has_only_its_length() -> None:
    response = collected(llm.TextDelta("0", '{"title": "x"}'), is_structured=True)

    assert response.content == ()
    assert response.raw_text_length == 14


def test_summary_counts_parts_and_tool_results_are_no_sources() -> None:
    collector = ResponseCollector()
    failed = ProviderError(kind=ErrorKind.OVERLOADED, message=f"Busy {CANARY}.", retryable=True, provider="Nest")
    for part in (
        llm.Warnings((llm.CallWarning("other", "a", "A."), llm.CallWarning("other", "b", "B."))),
        llm.TextDelta("0", "a"),
        llm.ToolCall("c", "read_file", "{}"),
        llm.ToolResult("s", "web_search", Raw(b"{}")),
        llm.Source("x", "url", "https://nest.example"),
        llm.StreamError(failed),
    ):
        collector.add(part)

    _, summary = collector.finish(redactor())

    assert summary == normalization.StreamSummary(
        part_count=6,
        text_delta_count=1,
        tool_call_count=1,
        source_count=1,
        warning_count=2,
        error_count=1,
        last_error="Busy [REDACTED:key].",
    )


def test_usage_that_was_not_reported_is_absent() -> None:
    assert collected(llm.Finish(FinishReason.STOP, Usage())).usage is None
    assert msgspec.to_builtins(collected(llm.UsageUpdate(Usage(output=0))))["usage"] == {"output_tokens": 0}


# Errors


def test_errors_are_normalized_without_secrets() -> None:
    failed = ProviderError(
        kind=ErrorKind.AUTH,
        message="Nest did not accept the API key.",
        detail=f"Incorrect key {CANARY}",
        retryable=False,
        provider="Nest",
        status=401,
        code="invalid_api_key",
        request_id="req_1",
    )

    shown = normalize_error(CallFailed(failed, Usage()), redactor())

    assert msgspec.to_builtins(shown) == {
        "message": "Nest did not accept the API key.",
        "type": "CallFailed",
        "kind": "auth",
        "detail": "Incorrect key [REDACTED:key]",
        "code": "invalid_api_key",
        "provider_title": "Nest",
        "provider_status": 401,
        "request_id": "req_1",
        "retryable": False,
    }


@pytest.mark.parametrize(
    ("error", "message_", "kind", "cancelled"),
    [
        (ValueError(f"bad {CANARY}"), "bad [REDACTED:key]", None, False),
        (RuntimeError(), "RuntimeError", None, False),
        (asyncio.CancelledError(), "CancelledError", None, True),
        (TransportError(TransportFault.CUT, "The connection ended."), "The connection ended.", "cut", False),
    ],
)
def test_exceptions_are_normalized(error: BaseException, message_: str, kind: str | None, cancelled: bool) -> None:
    shown = normalize_error(error, redactor())

    assert (shown.message, shown.type) == (message_, type(error).__name__)
    assert (shown.kind, shown.cancelled) == (kind, cancelled)


def test_message_struct_is_json() -> None:
    shown = NormalizedMessage(role="user", parts=(NormalizedPart(type="text", text="a", text_length=1),))

    assert msgspec.json.encode(shown) == b'{"role":"user","parts":[{"type":"text","text":"a","text_length":1}]}'
