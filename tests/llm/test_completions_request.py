"""Requests to Chat Completions servers: the fields and messages for each kind of server."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from rookery.domain.chat.messages import Effort
from rookery.domain.chat.model_prompt import Meta, Prompt, PromptFile, PromptMessage, PromptReasoning
from rookery.llm.completions.dialects import CompletionsOptions
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.types import (
    Call,
    Capabilities,
    JsonFormat,
    WebSearch,
)
from rookery.llm.wire import PromptInvalid, Request
from tests.wire.difficult_prompts import (
    LIST,
    PDF,
    PNG,
    READ,
    assistant,
    call,
    image,
    prompts,
    result,
    system,
    tool,
    user,
)

Json = Any

CAPS = Capabilities(media_types=("image/*", "application/pdf", "audio/wav"), json_schema=True)
REASONER = Capabilities(reasoning_model=True, sampling=False, efforts=(Effort.LOW, Effort.HIGH))
HELLO = Prompt((user("Hello."),))


def wire(provider_type: str = "openai_compat", caps: Capabilities = CAPS, *, base_url: str = "") -> CompletionsFormat:
    return CompletionsFormat("some-model", caps, provider="Some Server", provider_type=provider_type, base_url=base_url)


def sent(request: Request) -> Json:
    """Return the body as the server decodes it."""
    return msgspec.json.decode(msgspec.json.encode(request.body))


def body_of(asked: Call, provider_type: str = "openai_compat", caps: Capabilities = CAPS) -> Json:
    return sent(wire(provider_type, caps).build(asked))


def messages_of(*messages: PromptMessage, options: CompletionsOptions | None = None, **fields: Json) -> Json:
    return body_of(Call(prompt=Prompt(messages), options=options, **fields))["messages"]


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
        "effort",
        "temperature",
        "top_k",
        "format",
        "web_search",
    ]
    assert not request.body.keys() & {"temperature", "top_k", "reasoning_effort", "response_format"}


@pytest.mark.parametrize(
    ("provider_type", "effort", "is_sent"),
    [
        ("openai", None, False),
        ("openai", Effort.HIGH, False),
        ("openai", Effort.NONE, True),
        ("azure_openai", Effort.LOW, False),
        ("openai_compat", Effort.HIGH, True),
        ("openrouter", Effort.HIGH, True),
    ],
)
def test_openais_models_sample_only_while_they_do_not_reason(
    provider_type: str, effort: Effort | None, is_sent: bool
) -> None:
    reasoner = Capabilities(reasoning_model=True, sampling=True, efforts=(Effort.NONE, Effort.LOW, Effort.HIGH))

    request = wire(provider_type, reasoner).build(Call(prompt=HELLO, temperature=0.5, top_p=0.9, effort=effort))

    assert (request.body.keys() >= {"temperature", "top_p"}) is is_sent
    assert [warning.setting for warning in request.warnings] == ([] if is_sent else ["temperature", "top_p"])


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
