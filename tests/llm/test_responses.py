"""The Responses wire: the request of a call, item by item."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

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
from rookery.llm.responses.request import chosen_effort
from rookery.llm.responses.wire import ResponsesFormat, ResponsesOptions, wire_of
from rookery.llm.types import (
    Call,
    Capabilities,
    JsonFormat,
    Tool,
    WebSearch,
)
from rookery.llm.wire import PromptInvalid

REASONS = Capabilities(
    reasoning_model=True, json_schema=True, efforts=(Effort.NONE, Effort.LOW, Effort.MEDIUM, Effort.HIGH)
)
PLAIN = Capabilities()
READ = Tool(name="read_file", description="Read a file.", input_schema={"type": "object", "properties": {}})
ADD = Tool(name="add", description="Add.", input_schema={"type": "object", "properties": {}})

THOUGHT = PromptReasoning(
    "Look first.",
    {
        "item_id": "rs_1",
        "encrypted_content": "sealed",
        "summary": [{"type": "summary_text", "text": "Look first."}],
    },
)
SAID = PromptText("I look.", {"item_id": "msg_1", "phase": "commentary"})
CALLED = PromptCall("call_1", "read_file", Raw(b'{"path":  "a"}'), meta={"item_id": "fc_1"})
RAW_SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
SEARCHED = PromptCall("ws_1", "web_search", Raw(b"{}"), True, {"item_id": "ws_1", "raw": RAW_SEARCH})
FOUND = PromptResult("ws_1", "web_search", "", provider_executed=True)

FAITHFUL_THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Look first."}],
    "encrypted_content": "sealed",
}
FAITHFUL_SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    "phase": "commentary",
}
FAITHFUL_CALLED = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "read_file",
    "arguments": '{"path":  "a"}',
}
PLAIN_SAID = {"type": "message", "role": "assistant", "content": "I look.", "phase": "commentary"}
PLAIN_CALLED = {key: value for key, value in FAITHFUL_CALLED.items() if key != "id"}


def user(*parts: PromptPart | str) -> PromptMessage:
    return PromptMessage(
        role=Role.USER, parts=tuple(PromptText(part) if isinstance(part, str) else part for part in parts)
    )


def assistant(*parts: PromptPart, is_native: bool = True, is_whole: bool = True) -> PromptMessage:
    return PromptMessage(role=Role.ASSISTANT, parts=parts, is_native=is_native, is_whole=is_whole)


def hello(**fields: Any) -> Call:
    return Call(prompt=Prompt((user("Hello."),)), **fields)


def built(call: Call, caps: Capabilities = REASONS) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(ResponsesFormat("gpt-x", caps).build(call).body))
    return body


def items(*messages: PromptMessage, caps: Capabilities = REASONS, **fields: Any) -> list[Any]:
    """Return the items of these messages. Open calls get an output, which is removed from the result."""
    calls = [
        part
        for message in messages
        for part in message.parts
        if isinstance(part, PromptCall) and not part.provider_executed
    ]
    outputs = PromptMessage(role=Role.TOOL, parts=tuple(PromptResult(part.id, part.name, "ok") for part in calls))
    sent: list[Any] = built(Call(prompt=Prompt((*messages, outputs)), **fields), caps)["input"]
    return sent[: len(sent) - len(calls)]


def warned(call: Call, caps: Capabilities = REASONS) -> list[str]:
    return [warning.setting for warning in ResponsesFormat("gpt-x", caps).build(call).warnings]


# Requests


def test_request_says_everything_once_and_input_last() -> None:
    call = Call(
        prompt=Prompt(
            (
                PromptMessage(role=Role.SYSTEM, parts=(PromptText("Be brief."),)),
                user("Read it."),
                assistant(THOUGHT, CALLED),
                PromptMessage(role=Role.TOOL, parts=(PromptResult("call_1", "read_file", "text"),)),
            )
        ),
        tools=(READ, ADD),
        web_search=WebSearch(
            allowed_domains=("example.org",), context_size="low", user_location={"country": "DE", "city": "Jena"}
        ),
        format=JsonFormat("title", {"type": "object", "properties": {"title": {"type": "string"}}}),
        max_output_tokens=1000,
        effort=Effort.MINIMAL,
        cache_key="chat-1",
        options=ResponsesOptions(text_verbosity="low", parallel_tool_calls=True, metadata={"a": "b"}, top_logprobs=2),
    )

    request = ResponsesFormat("gpt-x", REASONS, organization="org", project="proj").build(call)

    assert request.path == "/responses"
    assert request.headers == {"OpenAI-Organization": "org", "OpenAI-Project": "proj"}
    assert request.warnings == ()
    assert list(request.body)[-1] == "input"
    assert msgspec.json.decode(msgspec.json.encode(request.body)) == {
        "model": "gpt-x",
        "stream": True,
        "store": False,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources", "message.output_text.logprobs"],
        "max_output_tokens": 1000,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {
            "verbosity": "low",
            "format": {
                "type": "json_schema",
                "name": "title",
                "schema": {
                    "type": "object",
                    "properties": {"title": {"type": "string"}},
                },
                "strict": False,
            },
        },
        "top_logprobs": 2,
        "prompt_cache_key": "chat-1",
        "metadata": {"a": "b"},
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Add.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            },
            {
                "type": "function",
                "name": "read_file",
                "description": "Read a file.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            },
            {
                "type": "web_search",
                "filters": {"allowed_domains": ["example.org"]},
                "search_context_size": "low",
                "user_location": {"type": "approximate", "country": "DE", "city": "Jena"},
            },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read it."}]},
            FAITHFUL_THOUGHT,
            FAITHFUL_CALLED,
            {"type": "function_call_output", "call_id": "call_1", "output": "text"},
        ],
    }


def test_smallest_request_for_an_unknown_model() -> None:
    assert built(hello(), PLAIN) == {
        "model": "gpt-x",
        "stream": True,
        "store": False,
        "truncation": "disabled",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}],
    }


@pytest.mark.parametrize("option", ResponsesOptions.__struct_fields__)
def test_every_option_reaches_the_request(option: str) -> None:
    values: dict[str, Any] = {
        "store": True,
        "reasoning_summary": "concise",
        "reasoning_context": "all_turns",
        "text_verbosity": "high",
        "parallel_tool_calls": False,
        "max_tool_calls": 7,
        "service_tier": "priority",
        "prompt_cache_key": "own",
        "safety_identifier": "hash",
        "metadata": {"k": "v"},
        "strict_json_schema": True,
        "top_logprobs": 3,
    }
    call = hello(tools=(READ,), cache_key="chat")

    changed = msgspec.structs.replace(call, options=ResponsesOptions(**{option: values[option]}))

    assert built(changed) != built(call)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("read_file", {"type": "function", "name": "read_file"}),
        ("missing", "auto"),
    ],
)
def test_tool_choice(choice: str, sent: object) -> None:
    call = hello(tools=(READ,), tool_choice=choice)

    assert built(call)["tool_choice"] == sent
    assert warned(call) == (["tool_choice"] if choice == "missing" else [])


@pytest.mark.parametrize(
    ("asked", "efforts", "sent"),
    [
        (None, (Effort.LOW,), None),
        (Effort.LOW, (Effort.LOW, Effort.HIGH), Effort.LOW),
        (Effort.MEDIUM, (Effort.HIGH, Effort.LOW), Effort.HIGH),
        (Effort.NONE, (Effort.MINIMAL, Effort.LOW), Effort.MINIMAL),
        (Effort.MAX, (Effort.LOW, Effort.HIGH), Effort.HIGH),
        (Effort.XHIGH, (), Effort.XHIGH),
    ],
)
def test_effort_is_the_nearest_at_or_above(asked: Effort, efforts: tuple[Effort, ...], sent: Effort) -> None:
    assert chosen_effort(asked, Capabilities(reasoning_model=True, efforts=efforts)) == sent


def test_effort_for_a_model_that_does_not_reason_is_left_out_with_a_warning() -> None:
    assert "reasoning" not in built(hello(effort=Effort.HIGH), PLAIN)
    assert warned(hello(effort=Effort.HIGH), PLAIN) == ["effort"]
    assert warned(hello(effort=Effort.NONE), PLAIN) == []


@pytest.mark.parametrize(
    ("caps", "effort", "is_sent"),
    [
        (PLAIN, None, True),
        (REASONS, None, False),
        (REASONS, Effort.HIGH, False),
        (REASONS, Effort.NONE, True),
        (Capabilities(sampling=False), None, False),
    ],
)
def test_sampling_is_sent_only_where_it_is_taken(caps: Capabilities, effort: Effort | None, is_sent: bool) -> None:
    call = hello(temperature=0.0, top_p=0.5, effort=effort)

    body = built(call, caps)

    assert (body.get("temperature"), body.get("top_p")) == ((0.0, 0.5) if is_sent else (None, None))
    assert warned(call, caps) == ([] if is_sent else ["temperature", "top_p"])


def test_settings_the_wire_does_not_have_are_warned_about() -> None:
    call = hello(top_k=3, presence_penalty=0.1, frequency_penalty=0.2)

    assert warned(call) == ["top_k", "presence_penalty", "frequency_penalty"]
    assert not {"top_k", "presence_penalty", "frequency_penalty"} & built(call).keys()


def test_web_search_warns_about_what_it_cannot_do() -> None:
    call = hello(web_search=WebSearch(blocked_domains=("example.com",), version="web_search_20250305", max_uses=2))

    assert warned(call) == ["web_search.blocked_domains", "web_search.version", "web_search.max_uses"]
    assert built(call)["tools"] == [{"type": "web_search"}]


@pytest.mark.parametrize(("asked", "sent"), [(500, 100), (50, 50), (1, 16), (None, None)])
def test_output_limit_stays_within_what_the_model_and_the_api_allow(asked: int | None, sent: int | None) -> None:
    caps = Capabilities(max_output=100)

    assert built(hello(max_output_tokens=asked), caps).get("max_output_tokens") == sent


@pytest.mark.parametrize(
    ("provider", "asked", "completions_only", "wire"),
    [
        ("openai", None, False, "responses"),
        ("openai", True, False, "responses"),
        ("openai", False, False, "completions"),
        ("openai", None, True, "completions"),
        ("azure_openai", None, False, "responses"),
        ("azure_openai", False, False, "completions"),
        ("openai_compat", None, False, "completions"),
        ("openai_compat", True, False, "responses"),
        ("openrouter", None, False, "completions"),
        ("openrouter", False, False, "completions"),
        ("openrouter", True, True, "responses"),
    ],
)
def test_wire_depends_on_provider_type_catalog_and_setting(
    provider: str, asked: bool | None, completions_only: bool, wire: str
) -> None:
    assert wire_of(provider, use_responses_api=asked, completions_only=completions_only) == wire


# Items


def test_system_blocks_are_one_item_each_in_the_role_the_model_obeys() -> None:
    blocks = PromptMessage(role=Role.SYSTEM, parts=(PromptText("one"), PromptText("two")))

    assert [item["role"] for item in items(blocks, user("x"))] == ["developer", "developer", "user"]
    assert [item["role"] for item in items(blocks, user("x"), caps=PLAIN)] == ["system", "system", "user"]


def test_files_of_a_user_are_data_urls() -> None:
    (item,) = items(
        user("See:", PromptFile("image/PNG; x=y", b"png", "a.png"), PromptFile("application/pdf", b"pdf", "b.pdf"))
    )

    assert item["content"] == [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "detail": "auto", "image_url": _data_url("image/png", b"png")},
        {"type": "input_file", "filename": "b.pdf", "file_data": _data_url("application/pdf", b"pdf")},
    ]


def test_file_of_an_unsupported_type_is_mentioned() -> None:
    call = Call(prompt=Prompt((user(PromptFile("audio/wav", b"wav")),)))

    assert "audio/wav" in built(call)["input"][0]["content"][0]["text"]
    assert warned(call) == ["file"]


def test_media_of_a_tool_follows_its_text() -> None:
    media = PromptMedia("image/png", "cG5n")
    results = PromptMessage(
        role=Role.TOOL,
        parts=(
            PromptResult("call_1", "read_file", "a dot", media=media),
            PromptResult("call_2", "read_file", "", media=media),
        ),
    )
    calls = assistant(CALLED, PromptCall("call_2", "read_file", Raw(b"{}")))
    image = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,cG5n"}

    *_, first, second = built(Call(prompt=Prompt((user("Look."), calls, results))))["input"]

    assert first["output"] == [{"type": "input_text", "text": "a dot"}, image]
    assert second["output"] == [image]


FAITHFUL_CASES: dict[str, tuple[Sequence[PromptPart], list[Any]]] = {
    "everything": (
        (THOUGHT, SEARCHED, FOUND, SAID, CALLED),
        [FAITHFUL_THOUGHT, RAW_SEARCH, FAITHFUL_SAID, FAITHFUL_CALLED],
    ),
    "no reasoning": ((SAID, CALLED), [FAITHFUL_SAID, FAITHFUL_CALLED]),
    "search without reasoning": ((SEARCHED, FOUND, SAID), [FAITHFUL_SAID]),
    "second search in a row": (
        (THOUGHT, SEARCHED, FOUND, msgspec.structs.replace(SEARCHED, id="ws_2"), SAID),
        [FAITHFUL_THOUGHT, RAW_SEARCH, FAITHFUL_SAID],
    ),
    "texts of one item": (
        (SAID, PromptText("And no.", {"item_id": "msg_1", "phase": "commentary", "refusal": True})),
        [
            FAITHFUL_SAID
            | {
                "content": [
                    {"type": "output_text", "text": "I look.", "annotations": []},
                    {"type": "refusal", "refusal": "And no."},
                ]
            }
        ],
    ),
    "texts of two items": (
        (SAID, PromptText("Done.", {"item_id": "msg_2"})),
        [
            FAITHFUL_SAID,
            {
                "type": "message",
                "id": "msg_2",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
            },
        ],
    ),
}


@pytest.mark.parametrize(("parts", "expected"), FAITHFUL_CASES.values(), ids=FAITHFUL_CASES)
def test_faithful_message(parts: Sequence[PromptPart], expected: list[Any]) -> None:
    assert items(user("x"), assistant(*parts))[1:] == expected


UNPROVEN = PromptReasoning("Look first.", {"item_id": "rs_1"})
PLAIN_CASES: dict[str, PromptMessage] = {
    "another provider's": assistant(THOUGHT, SAID, CALLED, is_native=False),
    "interrupted": assistant(THOUGHT, SAID, CALLED, is_whole=False),
    "reasoning without proof": assistant(UNPROVEN, SAID, CALLED),
    "reasoning without follower": assistant(SAID, CALLED, THOUGHT),
    "only one id is missing": assistant(THOUGHT, SAID, msgspec.structs.replace(CALLED, meta=None)),
}


@pytest.mark.parametrize("message", PLAIN_CASES.values(), ids=PLAIN_CASES)
def test_plain_message(message: PromptMessage) -> None:
    assert items(user("x"), message)[1:] == [PLAIN_SAID, PLAIN_CALLED]


def test_plain_history_makes_every_message_plain() -> None:
    message = assistant(THOUGHT, SEARCHED, FOUND, SAID, CALLED)

    assert items(user("x"), message, plain_history=True)[1:] == [PLAIN_SAID, PLAIN_CALLED]


def test_texts_of_one_item_stay_one_message_in_plain_form() -> None:
    more = PromptText(" Then I answer.", {"item_id": "msg_1", "phase": "commentary"})

    sent = items(user("x"), assistant(SAID, more, PromptText("one"), PromptText("two"), is_whole=False))[1:]

    assert [item["content"] for item in sent] == ["I look. Then I answer.", "one", "two"]


@pytest.mark.parametrize(
    "messages",
    [
        (assistant(CALLED),),
        (PromptMessage(role=Role.TOOL, parts=(PromptResult("call_1", "x", "ok"),)),),
        (assistant(CALLED, CALLED), PromptMessage(role=Role.TOOL, parts=(PromptResult("call_1", "x", "ok"),))),
        (assistant(CALLED), PromptMessage(role=Role.TOOL, parts=(PromptResult("call_1", "x", "ok"),) * 2)),
    ],
    ids=["open call", "orphan output", "same call twice", "two outputs"],
)
def test_prompt_with_broken_pairs_is_not_sent(messages: tuple[PromptMessage, ...]) -> None:
    with pytest.raises(PromptInvalid):
        ResponsesFormat("gpt-x", REASONS).build(Call(prompt=Prompt((user("x"), *messages))))


def test_fingerprint_changes_with_the_prefix_and_not_with_settings() -> None:
    wire = ResponsesFormat("gpt-x", REASONS)
    first = wire.build(hello(tools=(READ,))).prefix_fp

    assert wire.build(hello(tools=(READ,), max_output_tokens=99)).prefix_fp == first
    assert wire.build(hello(tools=(READ, ADD))).prefix_fp != first
    assert ResponsesFormat("gpt-y", REASONS).build(hello(tools=(READ,))).prefix_fp != first


def test_fingerprint_of_a_request_is_that_of_the_next_one_up_to_there() -> None:
    wire = ResponsesFormat("gpt-x", REASONS)
    first = wire.build(hello())

    assert first.prefix_fp is not None
    answers = [msgspec.structs.replace(assistant(SAID), prefix_fp=fp) for fp in (first.prefix_fp, b"?" * 16)]
    second, other = (wire.build(Call(prompt=Prompt((user("Hello."), each, user("Go on."))))) for each in answers)

    assert second.body["input"][: len(first.body["input"])] == first.body["input"]
    assert second.prefix_fp != first.prefix_fp
    assert (second.broken_prefix, other.broken_prefix) == (None, b"?" * 16)


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
