"""The Chat Completions wire: what is sent to which server, and how streams of many servers become the same parts."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.chat.messages import Effort
from rookery.chat.prompt_parts import Meta, Prompt, PromptFile, PromptMessage, PromptReasoning
from rookery.llm.completions import CompletionsFormat
from rookery.llm.completions_messages import PromptInvalid, merge_details
from rookery.llm.completions_options import CompletionsOptions
from rookery.llm.completions_stream import CompletionsFold
from rookery.llm.think_tags import ThinkTags
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    JsonFormat,
    ProviderError,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResponseStarted,
    Source,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
    UsageUpdate,
    WebSearch,
)
from rookery.llm.wire import Event, Request
from rookery.testing.fake_completions import Answer, FakeCall, FakeUsage, Style, document, error_event, events
from rookery.testing.fake_server import ScriptedEvent
from tests.wire.fixtures import LIST, PDF, PNG, READ, assistant, call, image, prompts, result, system, tool, user

Json = Any

CAPS = Capabilities(media_types=("image/*", "application/pdf", "audio/wav"), json_schema=True)
REASONER = Capabilities(reasoning_model=True, sampling=False, efforts=(Effort.LOW, Effort.HIGH))
HELLO = Prompt((user("Hello."),))


def wire(provider_type: str = "openai_compat", caps: Capabilities = CAPS, *, base_url: str = "") -> CompletionsFormat:
    return CompletionsFormat("some-model", caps, provider="Some Server", provider_type=provider_type, base_url=base_url)


def sent(request: Request) -> Json:
    """The body as the server reads it."""
    return msgspec.json.decode(msgspec.json.encode(request.body))


def body_of(asked: Call, provider_type: str = "openai_compat", caps: Capabilities = CAPS) -> Json:
    return sent(wire(provider_type, caps).build(asked))


def messages_of(*messages: PromptMessage, options: CompletionsOptions | None = None, **fields: Json) -> Json:
    return body_of(Call(prompt=Prompt(messages), options=options, **fields))["messages"]


def as_event(scripted: ScriptedEvent) -> Event:
    assert isinstance(scripted, tuple)
    name, payload = scripted
    return Event(name, payload.encode() if isinstance(payload, str) else msgspec.json.encode(payload))


def folded(scripted: Iterable[ScriptedEvent], *, think_tags: bool = False) -> list[StreamPart]:
    """All parts of a stream that ends behind these events."""
    fold = CompletionsFold("Some Server", think_tags=think_tags)
    fold.start("req_1")
    parts: list[StreamPart] = []
    for event in scripted:
        parts += fold.feed(as_event(event))
        if parts and isinstance(parts[-1], Finish | StreamError):
            return parts
    return [*parts, *fold.end()]


def chunk(delta: Json, reason: str | None = None, **fields: Json) -> ScriptedEvent:
    return "", {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **fields}


def text_of(parts: Iterable[StreamPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


def reasoning_of(parts: Iterable[StreamPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ReasoningDelta))


def calls_of(parts: Iterable[StreamPart]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


def finish_of(parts: list[StreamPart]) -> Finish:
    assert isinstance(parts[-1], Finish), parts[-1]
    return parts[-1]


def error_of(parts: list[StreamPart]) -> ProviderError:
    assert isinstance(parts[-1], StreamError), parts[-1]
    return parts[-1].error


# Requests


def test_request_to_a_compatible_server_looks_like_this() -> None:
    asked = Call(
        prompt=Prompt((system("Be brief."), system("You work in /home."), user("Hello."))),
        tools=(READ, LIST),
        max_output_tokens=500,
        temperature=0.5,
        top_k=40,
        cache_key="chat-1",
    )
    request = wire().build(asked)

    assert request.path == "/chat/completions"
    assert request.warnings == ()
    assert sent(request) == {
        "model": "some-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 500,
        "temperature": 0.5,
        "top_k": 40,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "list_chats",
                    "description": "List the chats.",
                    "parameters": {"type": "object", "properties": {}},
                },
            },
            {
                "type": "function",
                "function": {
                    "name": "read_file",
                    "description": "Read a file of the workspace.",
                    "parameters": dict(READ.input_schema),
                },
            },
        ],
        "messages": [
            {"role": "system", "content": "Be brief.\n\nYou work in /home."},
            {"role": "user", "content": "Hello."},
        ],
    }


@pytest.mark.parametrize(
    ("provider_type", "caps", "expected"),
    [
        ("openai", REASONER, ("max_completion_tokens", "developer", True, True)),
        ("openai", CAPS, ("max_completion_tokens", "system", True, True)),
        ("azure_openai", CAPS, ("max_tokens", "system", False, True)),
        ("azure_openai", REASONER, ("max_completion_tokens", "system", False, True)),
        ("openai_compat", REASONER, ("max_tokens", "system", False, False)),
        ("openrouter", REASONER, ("max_tokens", "system", False, False)),
        ("google", CAPS, ("max_tokens", "system", False, False)),
    ],
)
def test_each_provider_type_gets_its_own_fields(
    provider_type: str, caps: Capabilities, expected: tuple[str, str, bool, bool]
) -> None:
    asked = Call(
        prompt=Prompt((system("Be brief."), user("Hello."))),
        tools=(READ,),
        max_output_tokens=5,
        cache_key="chat-1",
        options=CompletionsOptions(strict_json_schema=True),
    )
    body = body_of(asked, provider_type, caps)

    (limit,) = (name for name in ("max_tokens", "max_completion_tokens") if name in body)
    has_strict = "strict" in body["tools"][0]["function"]
    assert (limit, body["messages"][0]["role"], has_strict, "prompt_cache_key" in body) == expected


def test_every_option_is_sent_or_acts_elsewhere() -> None:
    values: dict[str, Json] = {
        "store": False,
        "text_verbosity": "low",
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "prompt_cache_key": "key",
        "metadata": {"team": "a"},
        "user": "u",
        "logit_bias": {"1": 2},
        "top_logprobs": 2,
        "prediction": {"type": "content", "content": "x"},
        "seed": 7,
        "strict_json_schema": True,
        "max_tokens_field": "max_completion_tokens",
        "include_usage": False,
        "replay_reasoning": "never",
        "think_tags": True,
        "extra_body": {"seed": 8, "provider": {"order": ["a"]}},
        "headers": {"X-Title": "Rookery"},
    }
    assert values.keys() == set(CompletionsOptions.__struct_fields__)
    asked = Call(
        prompt=HELLO,
        tools=(READ,),
        max_output_tokens=9,
        options=CompletionsOptions(**values),
    )
    request = wire("openai").build(asked)
    body = sent(request)

    del body["messages"], body["tools"]
    assert body == {
        "model": "some-model",
        "stream": True,
        "max_completion_tokens": 9,
        "verbosity": "low",
        "store": False,
        "metadata": {"team": "a"},
        "prompt_cache_key": "key",
        "service_tier": "flex",
        "user": "u",
        "logit_bias": {"1": 2},
        "logprobs": True,
        "top_logprobs": 2,
        "prediction": {"type": "content", "content": "x"},
        "seed": 8,
        "parallel_tool_calls": False,
        "provider": {"order": ["a"]},
    }
    assert request.headers == {"X-Title": "Rookery"}


def test_account_is_named_in_headers() -> None:
    named = CompletionsFormat("m", CAPS, organization="org-1", project="proj_1").build(Call(prompt=HELLO))
    assert named.headers == {"OpenAI-Organization": "org-1", "OpenAI-Project": "proj_1"}


@pytest.mark.parametrize(
    ("tools", "choice", "expected"),
    [
        ((READ, LIST), "auto", None),
        ((READ, LIST), "none", "none"),
        ((READ, LIST), "required", "required"),
        ((READ,), "read_file", "required"),
        ((READ, LIST), "read_file", {"type": "function", "function": {"name": "read_file"}}),
        ((), "required", None),
    ],
)
def test_tool_choice_takes_the_form_every_server_understands(tools: Json, choice: str, expected: Json) -> None:
    assert body_of(Call(prompt=HELLO, tools=tools, tool_choice=choice)).get("tool_choice") == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(Effort.NONE, "low"), (Effort.LOW, "low"), (Effort.MEDIUM, "high"), (Effort.MAX, "high")],
)
def test_effort_becomes_the_nearest_one_the_model_knows(asked: Effort, expected: str) -> None:
    assert body_of(Call(prompt=HELLO, effort=asked), "openai", REASONER)["reasoning_effort"] == expected


def test_settings_the_model_does_not_take_are_left_out_with_a_warning() -> None:
    asked = Call(
        prompt=HELLO,
        temperature=1.0,
        top_k=3,
        effort=Effort.HIGH,
        web_search=WebSearch(),
        format=JsonFormat("x", {"type": "object"}),
    )
    request = wire("openai", Capabilities(sampling=False)).build(asked)

    assert [warning.setting for warning in request.warnings] == [
        "temperature",
        "top_k",
        "effort",
        "format",
        "web_search",
    ]
    assert not request.body.keys() & {"temperature", "top_k", "reasoning_effort", "response_format"}


def test_output_limit_is_clamped_to_what_the_model_can_write() -> None:
    asked = Call(prompt=HELLO, max_output_tokens=32_000)
    assert body_of(asked, caps=Capabilities(max_output=4096))["max_tokens"] == 4096


def test_next_request_of_a_chat_starts_with_the_bytes_of_the_one_before() -> None:
    first = Prompt(
        (system("Be brief."), user("Read it."), assistant("I will.", call("call_1")), tool(result("call_1")))
    )
    second = Prompt((*first.messages, assistant("It is the readme."), user("Thanks.")))
    fixed: dict[str, Json] = {
        "tools": (LIST, READ),
        "options": CompletionsOptions(extra_body={"chat_template_kwargs": {"x": 1}}),
    }
    before, again, after = (wire().build(Call(prompt=p, **fixed)) for p in (first, first, second))

    encoded = msgspec.json.encode(before.body)
    assert msgspec.json.encode(again.body) == encoded
    assert msgspec.json.encode(after.body).startswith(encoded.removesuffix(b"]}"))
    assert before.prefix_fp == again.prefix_fp != after.prefix_fp
    assert before.prefix_fp is not None
    assert len(before.prefix_fp) == 16


# Messages


def test_user_files_become_parts_of_the_message() -> None:
    sound = PromptFile("audio/wav; codecs=1", b"RIFF", "a.wav")
    (message,) = messages_of(
        user("Look.", PromptFile("image/png", PNG, "dot.png"), PromptFile("application/pdf", PDF, "a.pdf"), sound)
    )
    assert message["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()}},
        {
            "type": "file",
            "file": {
                "filename": "a.pdf",
                "file_data": "data:application/pdf;base64," + base64.b64encode(PDF).decode(),
            },
        },
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF").decode(), "format": "wav"}},
    ]


def test_parallel_tool_results_with_images_stay_contiguous() -> None:
    built = messages_of(
        user("Look at all."),
        assistant("One moment.", "I look.", call("a"), call("b", "list_chats", "{}"), call("c")),
        tool(result("a", "first", media=image())),
        tool(result("b", "two")),
        tool(result("c", "", media=image("image/jpeg"))),
        user("And?"),
    )
    assert [message["role"] for message in built] == ["user", "assistant", "tool", "tool", "tool", "user", "user"]
    assert built[1]["content"] == "One moment.\n\nI look."
    assert [message["tool_call_id"] for message in built[2:5]] == ["a", "b", "c"]
    assert [message["content"] for message in built[2:5]] == [
        "first\n\n(see the image below)",
        "two",
        "(see the image below)",
    ]
    kinds = [part["type"] for part in built[5]["content"]]
    assert kinds == ["text", "image_url", "text", "image_url"]
    assert built[5]["content"][3]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert built[6] == {"role": "user", "content": "And?"}


def test_image_behind_the_last_tool_message_is_not_lost() -> None:
    built = messages_of(user("Look."), assistant(call("a")), tool(result("a", media=image())))
    assert [message["role"] for message in built] == ["user", "assistant", "tool", "user"]


def test_image_for_a_model_that_sees_none_becomes_a_sentence() -> None:
    asked = Call(prompt=Prompt((user("Look."), assistant(call("a")), tool(result("a", "dot.png", media=image())))))
    built = body_of(asked, caps=Capabilities())["messages"]
    assert [message["role"] for message in built] == ["user", "assistant", "tool"]
    assert "cannot see images" in built[2]["content"]


def test_provider_executed_parts_become_nothing_and_text() -> None:
    built = body_of(Call(prompt=prompts("completions")["provider tools"]))["messages"]
    assert built[1] == {"role": "assistant", "content": "Rooks https://example.org/rooks\n\nThey are birds."}


@pytest.mark.parametrize(
    "messages",
    [
        (assistant(call("a")),),
        (assistant(call("a")), user("Wait."), tool(result("a"))),
        (assistant(call("a"), call("a")), tool(result("a"), result("a"))),
        (assistant(call("a")), tool(result("a"), result("a"))),
        (tool(result("a")),),
    ],
    ids=["no result", "late result", "one id for two calls", "two results", "no call"],
)
def test_prompt_that_no_server_would_take_is_not_sent(messages: tuple[PromptMessage, ...]) -> None:
    with pytest.raises(PromptInvalid):
        messages_of(user("Hi."), *messages)


def test_call_without_text_has_null_content_and_its_input_as_text() -> None:
    (_, message, _) = messages_of(user("Go."), assistant(call("a", input='{"n": 1e2}')), tool(result("a")))
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "read_file", "arguments": '{"n": 1e2}'}}],
    }


def test_message_of_reasoning_alone_is_not_sent() -> None:
    built = messages_of(user("Go."), assistant(PromptReasoning("Hm.", {"reasoning_field": "reasoning"})), user("And?"))
    assert [message["role"] for message in built] == ["user", "user"]


def thought(field: str, text: str = "Hm.", **meta: Json) -> PromptReasoning:
    return PromptReasoning(text, {"reasoning_field": field, **meta})


OLD_TURN = (
    user("Read it."),
    assistant(thought("reasoning_content", "old"), call("a")),
    tool(result("a")),
    assistant(thought("reasoning_content", "older"), "Read."),
)
NEW_TURN = (user("Again."), assistant(thought("reasoning_content", "new"), call("b")), tool(result("b")))


@pytest.mark.parametrize(
    ("replay", "expected"),
    [("auto", ["new"]), ("always", ["old", "older", "new"]), ("never", [])],
)
def test_reasoning_is_echoed_only_as_configured(replay: Json, expected: list[str]) -> None:
    built = messages_of(*OLD_TURN, *NEW_TURN, options=CompletionsOptions(replay_reasoning=replay))
    assert [m["reasoning_content"] for m in built if "reasoning_content" in m] == expected


def test_reasoning_without_calls_is_not_echoed_by_default() -> None:
    built = messages_of(user("Hi."), assistant(thought("reasoning"), "Hello."))
    assert "reasoning" not in built[1]


def test_reasoning_goes_back_in_the_field_it_came_from() -> None:
    details = [{"type": "reasoning.text", "text": "Hm.", "index": 0}, {"type": "reasoning.encrypted", "data": "x"}]
    late = [{"type": "reasoning.encrypted", "data": "y"}]
    always = CompletionsOptions(replay_reasoning="always")
    plain = messages_of(
        user("Hi."), assistant(thought("reasoning", "a"), thought("reasoning", "b"), "x"), options=always
    )
    detailed = messages_of(
        user("Hi."),
        assistant(
            thought("reasoning_details", reasoning_details=details),
            "x",
            thought("reasoning_details", "", reasoning_details=late),
        ),
        options=always,
    )
    tagged = messages_of(user("Hi."), assistant(thought("content"), "x"), options=always)
    unknown = messages_of(user("Hi."), assistant(PromptReasoning("Hm."), "x"), options=always)

    assert plain[1] == {"role": "assistant", "content": "x", "reasoning": "ab"}
    assert detailed[1] == {"role": "assistant", "content": "x", "reasoning_details": details + late}
    assert tagged[1] == {"role": "assistant", "content": "<think>Hm.</think>\n\nx"}
    assert unknown[1] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("fields", [{"is_native": False}, {"is_whole": False}])
def test_reasoning_of_others_and_of_interrupted_steps_is_not_echoed(fields: Json) -> None:
    message = assistant(thought("reasoning_content"), call("a"), **fields)
    built = messages_of(user("Hi."), message, tool(result("a")), options=CompletionsOptions(replay_reasoning="always"))
    assert "reasoning_content" not in built[1]


def test_plain_history_has_no_reasoning_and_no_signatures() -> None:
    signed = call("a", meta={"extra_content": {"google": {"thought_signature": "s"}}})
    built = messages_of(user("Hi."), assistant(thought("reasoning"), signed), tool(result("a")), plain_history=True)
    assert built[1].keys() == {"role", "content", "tool_calls"}
    assert "extra_content" not in built[1]["tool_calls"][0]


def test_extra_content_of_calls_is_always_echoed() -> None:
    extra = {"google": {"thought_signature": "s"}}
    built = messages_of(
        user("Hi."),
        assistant(call("a", meta={"extra_content": extra})),
        tool(result("a")),
        user("And?"),
        options=CompletionsOptions(replay_reasoning="never"),
    )
    assert built[1]["tool_calls"][0]["extra_content"] == extra


GOOGLE_URL = "https://generativelanguage.googleapis.com/v1beta/openai"


@pytest.mark.parametrize(("provider_type", "base_url"), [("google", ""), ("openai_compat", GOOGLE_URL)])
def test_google_gets_a_stand_in_for_lost_signatures_of_the_current_turn(provider_type: str, base_url: str) -> None:
    def built(meta: Meta | None) -> list[Json]:
        prompt = Prompt(
            (
                user("Hi."),
                assistant(call("old")),
                tool(result("old")),
                user("Again."),
                assistant(call("a", meta=meta), call("b")),
                tool(result("a"), result("b")),
            )
        )
        body = sent(wire(provider_type, base_url=base_url).build(Call(prompt=prompt)))
        sent_calls = [made for message in body["messages"] for made in message.get("tool_calls", ())]
        return [made.get("extra_content", {}).get("google", {}).get("thought_signature") for made in sent_calls]

    assert built(None) == [None, "skip_thought_signature_validator", None]
    assert built({"extra_content": {"google": {"thought_signature": "s"}}}) == [None, "s", None]


# Streams


def test_stream_of_openai_becomes_these_parts() -> None:
    answer = Answer(
        reasoning="Look first.",
        text="I look.",
        calls=(FakeCall("read_file", '{"a":1}', id="x"), FakeCall("list_chats", "{}", id="y")),
        citations=(("https://example.org", "Example"),),
        usage=FakeUsage(prompt=100, completion=20, cached=60, written=10, reasoning=5),
    )
    usage = Usage(input=30, cache_read=60, cache_write=10, output=20, reasoning=5, total=120, context_tokens=100)
    assert folded(events(answer, Style(), model="m")) == [
        ResponseStarted("chatcmpl-1", "m", "req_1"),
        ReasoningStart("reasoning-0"),
        ReasoningDelta("reasoning-0", "Look fi"),
        ReasoningDelta("reasoning-0", "rst."),
        ReasoningEnd("reasoning-0", {"reasoning_field": "reasoning_content"}),
        TextStart("text-1"),
        TextDelta("text-1", "I look."),
        Source("source-1", "url", "https://example.org", "Example"),
        ToolInputStart("x", "read_file"),
        ToolInputDelta("x", '{"a":1}'),
        ToolInputEnd("x"),
        ToolInputStart("y", "list_chats"),
        ToolInputDelta("y", "{}"),
        UsageUpdate(usage),
        TextEnd("text-1"),
        ToolInputEnd("y"),
        ToolCall("x", "read_file", '{"a":1}'),
        ToolCall("y", "list_chats", "{}"),
        Finish(FinishReason.TOOL_CALLS, usage),
    ]


ANSWER = Answer(
    reasoning="Let me think about it.",
    text="The answer is here: 42.",
    calls=(
        FakeCall("read_file", '{"path": "a b c"}', id="call_0", signature="s"),
        FakeCall("list_chats", '{"deep": {"n": [1, 2]}}', id="call_1"),
    ),
    usage=FakeUsage(prompt=100, completion=20, cached=60),
)

DIALECTS: dict[str, Style] = {
    "openai": Style(),
    "usage in the finish chunk": Style(usage="finish chunk"),
    "usage before an empty finish chunk": Style(usage="before finish"),
    "cumulative usage": Style(usage="cumulative"),
    "usage in the choice": Style(usage="choice"),
    "usage of groq": Style(usage="groq"),
    "usage of deepseek": Style(usage_names="deepseek"),
    "no indexes": Style(indexes="missing"),
    "no indexes, ids on every piece": Style(indexes="missing", ids="every"),
    "no indexes and no ids": Style(indexes="missing", ids="missing"),
    "no indexes, no ids, names on every piece": Style(indexes="missing", ids="missing", names="every"),
    "every index is zero": Style(indexes="zero"),
    "late names": Style(names="late"),
    "names on every piece": Style(names="every", ids="every"),
    "arguments as objects": Style(arguments="object"),
    "no ids": Style(ids="missing"),
    "reasoning": Style(reasoning="reasoning"),
    "reasoning details": Style(reasoning="reasoning_details"),
    "think tags": Style(reasoning="think tags"),
    "think tags, one character a chunk": Style(reasoning="think tags", piece_chars=1),
    "no done": Style(end="eof"),
    "no finish reason": Style(finish="missing"),
    "no finish reason and no done": Style(finish="missing", end="eof"),
}


@pytest.mark.parametrize("style", DIALECTS.values(), ids=DIALECTS.keys())
def test_every_dialect_says_the_same(style: Style) -> None:
    parts = folded(events(ANSWER, style, model="m"), think_tags=style.reasoning == "think tags")

    assert reasoning_of(parts) == ANSWER.reasoning
    assert text_of(parts) == ANSWER.text
    calls = calls_of(parts)
    assert [made.name for made in calls] == ["read_file", "list_chats"]
    assert [msgspec.json.decode(made.input) for made in calls] == [
        msgspec.json.decode(asked.arguments) for asked in ANSWER.calls
    ]
    assert [made.id for made in calls] == ["call_0", "call_1"]
    assert calls[0].meta == {"extra_content": {"google": {"thought_signature": "s"}}}
    finish = finish_of(parts)
    assert finish.reason is FinishReason.TOOL_CALLS
    assert (finish.usage.input, finish.usage.cache_read, finish.usage.output) == (40, 60, 20)
    assert finish.usage.context_tokens == 100
    shown = {made.id: "" for made in calls}
    for part in parts:
        if isinstance(part, ToolInputDelta):
            shown[part.id] += part.json
    assert list(shown.values()) == [made.input for made in calls]


def test_whole_answer_of_a_server_that_ignores_stream_says_the_same() -> None:
    fold = CompletionsFold("Some Server")
    fold.start("req_1")
    parts = list(fold.whole(msgspec.json.encode(document(replace(ANSWER, citations=(("u", "t"),)), "m"))))

    assert (reasoning_of(parts), text_of(parts)) == (ANSWER.reasoning, ANSWER.text)
    assert [(made.id, made.input) for made in calls_of(parts)] == [(c.id, c.arguments) for c in ANSWER.calls]
    assert finish_of(parts).reason is FinishReason.TOOL_CALLS
    assert finish_of(parts).usage.input == 40


@pytest.mark.parametrize("body", [b"[]", b"{}", b"not json", b'{"choices": []}', b'"text"'])
def test_document_that_is_no_answer_is_an_error_to_try_again(body: bytes) -> None:
    parts = list(CompletionsFold("Some Server").whole(body))
    assert error_of(parts).retryable
    assert len(parts) == 1


def test_error_envelope_with_status_200_is_an_error() -> None:
    parts = list(CompletionsFold("Some Server").whole(b'{"error": {"message": "No.", "code": "invalid_api_key"}}'))
    assert error_of(parts).kind is ErrorKind.AUTH


@pytest.mark.parametrize("end", ["done", "eof"])
def test_stream_cut_at_any_event_is_truncated_until_its_finish_reason(end: Any) -> None:
    answer = Answer(reasoning="Let me think.", text="The answer is 42.")
    scripted = events(answer, Style(usage="before finish", end=end), model="m")
    finish_at = len(scripted) - (1 if end == "done" else 0)
    for count in range(len(scripted) + 1):
        parts = folded(scripted[:count])
        terminal = [part for part in parts if isinstance(part, Finish | StreamError)]
        assert terminal == parts[-1:]
        if count < finish_at:
            assert error_of(parts).retryable
            assert error_of(parts).kind is ErrorKind.TIMEOUT
            assert error_of(parts).request_id == "req_1"
        else:
            assert finish_of(parts).reason is FinishReason.STOP


def test_stream_cut_within_calls_is_truncated_unless_all_of_them_parse() -> None:
    scripted = events(replace(ANSWER, text="", reasoning=""), Style(), model="m")
    outcomes = []
    for count in range(len(scripted)):
        parts = folded(scripted[:count])
        if isinstance(parts[-1], StreamError):
            assert calls_of(parts) == []
            outcomes.append(0)
        else:
            assert all(msgspec.json.decode(made.input) for made in calls_of(parts))
            outcomes.append(len(calls_of(parts)))
    assert set(outcomes) == {0, 1, 2}


def test_usage_is_kept_when_the_last_chunk_has_none() -> None:
    used = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    parts = folded([chunk({"content": "a"}, usage=used), chunk({}, "stop", usage=None), chunk({}, usage=zeros)])
    assert finish_of(parts).usage == Usage(input=7, output=3, total=10, context_tokens=7)


def test_missing_usage_is_not_reported_as_zero() -> None:
    assert finish_of(folded(events(ANSWER, Style(usage="missing"), model="m"))).usage == Usage()


def test_reasoning_that_is_counted_beside_the_completion_becomes_part_of_the_output() -> None:
    used = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 22,
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    assert finish_of(folded([chunk({"content": "a"}, "stop", usage=used)])).usage.output == 12


@pytest.mark.parametrize(
    ("said", "reason", "detail"),
    [
        ("stop", FinishReason.STOP, None),
        ("length", FinishReason.LENGTH, None),
        ("content_filter", FinishReason.CONTENT_FILTER, None),
        ("insufficient_system_resource", FinishReason.OTHER, "insufficient_system_resource"),
    ],
)
def test_finish_reasons_are_translated(said: str, reason: FinishReason, detail: str | None) -> None:
    finish = finish_of(folded([chunk({"content": "a"}), chunk({}, said)]))
    assert (finish.reason, finish.detail) == (reason, detail)


def test_calls_decide_the_reason_whatever_the_server_says() -> None:
    whole = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}
    parts = folded([chunk(whole), chunk({}, "stop")])
    assert calls_of(parts) == [ToolCall("a", "f", "{}")]
    assert finish_of(parts).reason is FinishReason.TOOL_CALLS


def test_call_cut_by_the_output_limit_is_not_made() -> None:
    half = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":'}}]}
    parts = folded([chunk(half), chunk({}, "length")])
    assert calls_of(parts) == []
    assert finish_of(parts).reason is FinishReason.LENGTH


def test_calls_come_in_order_of_their_index() -> None:
    def entry(index: int, text: str, **fields: Json) -> ScriptedEvent:
        return chunk({"tool_calls": [{"index": index, **fields, "function": {"arguments": text, "name": f"f{index}"}}]})

    parts = folded([entry(1, '{"b"', id="b"), entry(0, '{"a":1}', id="a"), entry(1, ":2}"), chunk({}, "tool_calls")])
    assert calls_of(parts) == [ToolCall("a", "f0", '{"a":1}'), ToolCall("b", "f1", '{"b":2}')]


def test_empty_entries_and_legacy_function_calls_are_understood() -> None:
    empty = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "", "arguments": ""}}]})
    parts = folded(
        [
            empty,
            chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
            chunk({"function_call": {"arguments": ":1}"}}, "function_call"),
        ]
    )
    assert calls_of(parts) == [ToolCall("call_0", "f", '{"a":1}')]


def test_call_that_never_gets_a_name_is_an_error_to_try_again() -> None:
    nameless = {"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]}
    parts = folded([chunk(nameless), chunk({}, "tool_calls")])
    assert error_of(parts).retryable


def test_name_in_pieces_is_put_together() -> None:
    first = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read_"}}]}
    second = {"tool_calls": [{"index": 0, "function": {"name": "file", "arguments": "{}"}}]}
    assert calls_of(folded([chunk(first), chunk(second), chunk({}, "tool_calls")]))[0].name == "read_file"


def test_refusal_is_text_that_says_so_and_a_filtered_step() -> None:
    parts = folded(events(Answer(refusal="I cannot help."), Style(), model="m"))
    (end,) = (part for part in parts if isinstance(part, TextEnd))
    assert (text_of(parts), end.refusal) == ("I cannot help.", True)
    assert finish_of(parts).reason is FinishReason.CONTENT_FILTER


def test_text_and_reasoning_close_when_the_other_starts() -> None:
    parts = folded([chunk({"reasoning": "a"}), chunk({"content": "b"}), chunk({"reasoning": "c"}, "stop")])
    kinds = [type(part).__name__ for part in parts[1:-1]]
    assert kinds == [
        *("ReasoningStart", "ReasoningDelta", "ReasoningEnd"),
        *("TextStart", "TextDelta", "TextEnd"),
        *("ReasoningStart", "ReasoningDelta", "ReasoningEnd"),
    ]


def test_reasoning_details_are_put_together_and_late_ones_kept() -> None:
    encrypted = {"type": "reasoning.encrypted", "data": "x", "id": "rs_1"}
    scripted = events(Answer(reasoning="Think about it."), Style(reasoning="reasoning_details"), model="m")
    parts = folded([*scripted[:-3], chunk({"content": "Done."}), chunk({"reasoning_details": [encrypted]}, "stop")])
    first, last = (part.meta for part in parts if isinstance(part, ReasoningEnd))

    assert first == {
        "reasoning_field": "reasoning_details",
        "reasoning_details": [
            {
                "type": "reasoning.text",
                "text": "Think about it.",
                "format": "anthropic-claude-v1",
                "index": 0,
                "signature": "c2ln",
            }
        ],
    }
    assert last == {"reasoning_field": "reasoning_details", "reasoning_details": [encrypted]}
    assert sum(isinstance(part, TextStart) for part in parts) == 1


def test_merging_details_again_changes_nothing() -> None:
    merged = merge_details(
        [
            {"type": "reasoning.text", "text": "a", "index": 0},
            {"type": "reasoning.text", "text": "b", "index": 0},
            {"type": "reasoning.summary", "summary": "c", "index": 1},
            {"type": "reasoning.encrypted", "data": "d", "index": 2},
            {"type": "reasoning.encrypted", "data": "e", "index": 2},
        ]
    )
    assert [item.get("text") or item.get("summary") or item["data"] for item in merged] == ["ab", "c", "d", "e"]
    assert merge_details(merged) == merged


def test_content_as_a_list_is_text_and_thinking() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Yes."},
    ]
    parts = folded([chunk({"content": content}, "stop")])
    assert (reasoning_of(parts), text_of(parts)) == ("Hm.", "Yes.")


def test_same_source_is_given_once() -> None:
    cited = {"annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}, {"type": "file"}]}
    parts = folded([chunk(cited), chunk(cited, "stop")])
    assert [part for part in parts if isinstance(part, Source)] == [Source("source-1", "url", "u")]


def test_chunk_of_filter_results_alone_starts_nothing() -> None:
    azure: ScriptedEvent = ("", {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
    parts = folded([azure, chunk({"content": "a"}, "stop")])
    assert parts[0] == ResponseStarted("c1", "m", "req_1")


def test_answers_beside_the_first_are_ignored() -> None:
    other: ScriptedEvent = ("", {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}]})
    parts = folded([chunk({"content": "a"}), other, chunk({}, "stop")])
    assert (text_of(parts), finish_of(parts).reason) == ("a", FinishReason.STOP)


@pytest.mark.parametrize(
    ("event", "kind", "retryable"),
    [
        (error_event("The model is overloaded.", code="overloaded_error"), ErrorKind.OVERLOADED, True),
        (error_event("Upstream failed.", code=502), ErrorKind.TIMEOUT, True),
        (error_event("Slow down.", code="rate_limit_exceeded", named=True), ErrorKind.RATE_LIMIT, True),
        (("", {"error": "This model's maximum context length is 10 tokens."}), ErrorKind.CONTEXT_OVERFLOW, False),
        (("", {"object": "error", "message": "Boom.", "code": 500}), ErrorKind.GENERIC, True),
        (("error", "something broke"), ErrorKind.GENERIC, False),
        (("", "{not json"), ErrorKind.GENERIC, True),
        (("", '{"choices": 7}'), ErrorKind.GENERIC, True),
        (("", b"\xff\xfe".decode("latin-1")), ErrorKind.GENERIC, True),
    ],
)
def test_error_within_a_stream_is_classified(event: ScriptedEvent, kind: ErrorKind, retryable: bool) -> None:
    error = error_of(folded([chunk({"content": "a"}), event]))
    assert (error.kind, error.retryable, error.request_id) == (kind, retryable, "req_1")


def test_done_without_anything_before_it_is_no_answer() -> None:
    assert error_of(folded([("", "[DONE]")])).kind is ErrorKind.TIMEOUT


def test_done_ends_text_without_a_finish_reason() -> None:
    assert finish_of(folded([chunk({"content": "a"}), ("", "[DONE]")])).reason is FinishReason.OTHER


# Think tags


@given(
    st.lists(st.tuples(st.booleans(), st.text("ab<>/think \n", max_size=12)), max_size=5),
    st.integers(min_value=1, max_value=9),
)
def test_think_tags_are_found_wherever_chunks_are_cut(blocks: list[tuple[bool, str]], size: int) -> None:
    text = "".join(f"<think>{inner}</think>" if is_reasoning else inner for is_reasoning, inner in blocks)

    def split(pieces: Iterable[str]) -> tuple[str, str]:
        tags = ThinkTags()
        found = [found for piece in pieces for found in tags.split(piece)] + tags.rest()
        assert all(piece for _, piece in found)
        return "".join(t for is_r, t in found if is_r), "".join(t for is_r, t in found if not is_r)

    assert split(text[i : i + size] for i in range(0, len(text), size)) == split([text])


def test_unclosed_think_tag_is_reasoning_to_the_end() -> None:
    parts = folded([chunk({"content": "<think>Hm. </thi"}, "length")], think_tags=True)
    assert (reasoning_of(parts), text_of(parts)) == ("Hm. </thi", "")
