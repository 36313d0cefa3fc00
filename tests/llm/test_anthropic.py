"""The Messages wire as pure functions: what is sent for which call, and what is read from which event."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rookery.chat.messages import Effort
from rookery.chat.prompt_parts import Prompt, PromptCall, PromptFile, PromptReasoning, PromptResult, PromptText
from rookery.llm.anthropic import AnthropicFormat, AnthropicOptions, PromptInvalid, default_version
from rookery.llm.anthropic_stream import AnthropicFold
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
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
    Thinking,
    Tool,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
    UsageUpdate,
    WebSearch,
)
from rookery.llm.wire import Event, Request
from tests.wire.fixtures import (
    PNG,
    READ,
    assistant,
    call,
    image,
    prompts,
    result,
    searched,
    system,
    tool,
    user,
)

Json = Any

LADDER = (Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH, Effort.MAX)
ADAPTIVE = Capabilities(
    thinking=Thinking(adaptive=True, disabled=True),
    efforts=LADDER,
    forced_tool_choice=True,
    thinking_family="claude",
)
DEFAULT_ON = Capabilities(thinking=Thinking(adaptive=True, disabled=True, default_on=True), efforts=LADDER)
BETWEEN = Capabilities(thinking=Thinking(adaptive=True, between_tools=True, default_on=True), efforts=LADDER)
ALWAYS = Capabilities(thinking=Thinking(adaptive=True, always_on=True, default_on=True), efforts=LADDER)
NO_XHIGH = Capabilities(thinking=Thinking(adaptive=True), efforts=(Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.MAX))
UP_TO_HIGH = Capabilities(thinking=Thinking(adaptive=True), efforts=(Effort.LOW, Effort.MEDIUM, Effort.HIGH))
BUDGET = Capabilities(thinking=Thinking(budget=True), forced_tool_choice=True)
NO_THINKING = Capabilities(forced_tool_choice=True)
BINDING = Capabilities(thinking=DEFAULT_ON.thinking, efforts=LADDER, binds_thinking=True)

HELLO = Prompt((user("Hello."),))
THINKS = {"type": "adaptive", "display": "summarized"}


def built(
    prompt: Prompt | None = None, *, caps: Capabilities = ADAPTIVE, version: str | None = None, **fields: Any
) -> Request:
    return AnthropicFormat("claude-test", caps, version=version).build(Call(prompt=prompt or HELLO, **fields))


def sent(request: Request) -> Json:
    """The body as the provider reads it."""
    return msgspec.json.decode(msgspec.json.encode(request.body))


def body(prompt: Prompt | None = None, **fields: Any) -> Json:
    return sent(built(prompt, **fields))


def unmarked(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: unmarked(child) for key, child in value.items() if key != "cache_control"}
    return [unmarked(child) for child in value] if isinstance(value, list) else value


def said(*messages: Any, **fields: Any) -> list[Json]:
    """The messages of the request for this prompt, without cache marks."""
    found: list[Json] = unmarked(body(Prompt(messages), **fields)["messages"])
    return found


def text(value: str) -> Json:
    return {"type": "text", "text": value}


# Request


def test_whole_request_is_as_written_here() -> None:
    request = built(prompts("anthropic")["thinking"], tools=(READ,), effort=Effort.HIGH)

    assert request.path == "/v1/messages"
    assert request.headers == {"anthropic-version": "2026-10-21"}
    assert request.warnings == ()
    mark = {"cache_control": {"type": "ephemeral"}}
    assert sent(request) == {
        "model": "claude-test",
        "max_tokens": 32_000,
        "stream": True,
        "thinking": THINKS,
        "output_config": {"effort": "high"},
        "tool_choice": {"type": "auto"},
        "tools": [
            {
                "name": "read_file",
                "description": "Read a file of the workspace.",
                "input_schema": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}},
                    "required": ["path"],
                },
                **mark,
            }
        ],
        "system": [{**text("Be brief."), **mark}],
        "messages": [
            {"role": "user", "content": [text("Read it.")]},
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "thinking",
                        "thinking": "I should look at the file first.",
                        "signature": "c2lnbmF0dXJl",
                    },
                    text("I will look."),
                    {"type": "tool_use", "id": "call_1", "name": "read_file", "input": {"path": "README.md"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "# Rookery", **mark}],
            },
            {"role": "assistant", "content": [text("It is the readme.")]},
            {"role": "user", "content": [{**text("Thanks."), **mark}]},
        ],
    }


@pytest.mark.parametrize(
    ("base_url", "version", "path"),
    [
        ("https://api.anthropic.com", "2026-10-21", "/v1/messages"),
        ("https://api.anthropic.com/", "2026-10-21", "/v1/messages"),
        ("https://gateway.example/anthropic", "2023-06-01", "/v1/messages"),
        ("https://gateway.example/v1", "2023-06-01", "/messages"),
        ("https://gateway.example/v1/", "2023-06-01", "/messages"),
        ("https://api.anthropic.com.example", "2023-06-01", "/v1/messages"),
    ],
)
def test_version_and_path_follow_the_base_url(base_url: str, version: str, path: str) -> None:
    request = AnthropicFormat("m", ADAPTIVE, base_url=base_url).build(Call(prompt=HELLO))

    assert default_version(base_url) == version
    assert (request.headers["anthropic-version"], request.path) == (version, path)


@pytest.mark.parametrize(
    ("asked", "most", "budget", "expected"),
    [
        (None, None, None, 32_000),
        (500, None, None, 500),
        (None, 8_192, None, 8_192),
        (500, 8_192, None, 500),
        (500, None, 10_000, 14_096),
        (None, None, 10_000, 32_000),
    ],
)
def test_max_tokens_is_clamped_and_holds_the_budget(
    asked: int | None, most: int | None, budget: int | None, expected: int
) -> None:
    caps = msgspec.structs.replace(BUDGET, max_output=most)

    made = body(caps=caps, max_output_tokens=asked, options=AnthropicOptions(budget_tokens=budget))

    assert made["max_tokens"] == expected


def test_budget_gives_way_to_what_the_model_can_say_at_all() -> None:
    made = body(caps=msgspec.structs.replace(BUDGET, max_output=20_000), effort=Effort.MAX)

    assert (made["max_tokens"], made["thinking"]["budget_tokens"]) == (20_000, 15_904)


@pytest.mark.parametrize(
    ("caps", "effort", "budget", "thinking", "sent_effort", "warns"),
    [
        (ADAPTIVE, None, None, None, None, False),
        (DEFAULT_ON, None, None, THINKS, None, False),
        (ADAPTIVE, None, 5000, THINKS, None, False),
        (BUDGET, None, None, None, None, False),
        (BUDGET, None, 5000, {"type": "enabled", "budget_tokens": 5000}, None, False),
        (BUDGET, None, 10, {"type": "enabled", "budget_tokens": 1024}, None, False),
        (NO_THINKING, None, None, None, None, False),
        (NO_THINKING, None, 5000, None, None, True),
        (ADAPTIVE, Effort.NONE, None, {"type": "disabled"}, None, False),
        (BETWEEN, Effort.NONE, None, {"type": "between_tools"}, None, False),
        (ALWAYS, Effort.NONE, None, None, "low", True),
        (BUDGET, Effort.NONE, None, {"type": "disabled"}, None, False),
        (NO_THINKING, Effort.NONE, None, None, None, False),
        (ADAPTIVE, Effort.MINIMAL, None, THINKS, "low", False),
        (ADAPTIVE, Effort.LOW, None, THINKS, "low", False),
        (ADAPTIVE, Effort.MEDIUM, None, THINKS, "medium", False),
        (ADAPTIVE, Effort.HIGH, None, THINKS, "high", False),
        (ADAPTIVE, Effort.XHIGH, None, THINKS, "xhigh", False),
        (NO_XHIGH, Effort.XHIGH, None, THINKS, "max", False),
        (UP_TO_HIGH, Effort.XHIGH, None, THINKS, "high", False),
        (ADAPTIVE, Effort.MAX, None, THINKS, "max", False),
        (UP_TO_HIGH, Effort.MAX, None, THINKS, "high", False),
        (BUDGET, Effort.MINIMAL, None, {"type": "enabled", "budget_tokens": 1024}, None, False),
        (BUDGET, Effort.LOW, None, {"type": "enabled", "budget_tokens": 4096}, None, False),
        (BUDGET, Effort.MEDIUM, None, {"type": "enabled", "budget_tokens": 8192}, None, False),
        (BUDGET, Effort.HIGH, None, {"type": "enabled", "budget_tokens": 16384}, None, False),
        (BUDGET, Effort.XHIGH, None, {"type": "enabled", "budget_tokens": 32000}, None, False),
        (BUDGET, Effort.MAX, None, {"type": "enabled", "budget_tokens": 32000}, None, False),
        (NO_THINKING, Effort.HIGH, None, None, None, True),
    ],
)
def test_thinking_follows_the_table(
    caps: Capabilities, effort: Effort | None, budget: int | None, thinking: Json, sent_effort: str | None, warns: bool
) -> None:
    request = built(caps=caps, effort=effort, options=AnthropicOptions(budget_tokens=budget))

    made = sent(request)
    assert made.get("thinking") == thinking
    assert made.get("output_config", {}).get("effort") == sent_effort
    assert bool(request.warnings) is warns


def test_effort_is_left_out_where_nobody_knows_which_are_taken() -> None:
    request = built(caps=Capabilities(thinking=Thinking(adaptive=True)), effort=Effort.HIGH)

    assert sent(request)["thinking"] == THINKS
    assert "output_config" not in sent(request)
    assert [note.setting for note in request.warnings] == ["effort"]


def test_display_of_thinking_is_an_option() -> None:
    options = AnthropicOptions(thinking_display="omitted", budget_tokens=2000)

    assert body(caps=DEFAULT_ON, options=options)["thinking"] == {"type": "adaptive", "display": "omitted"}
    assert body(caps=BUDGET, options=options)["thinking"]["display"] == "omitted"


@pytest.mark.parametrize(
    ("caps", "version", "is_sent"),
    [
        (NO_THINKING, "2023-06-01", True),
        (BUDGET, "2023-06-01", True),
        (NO_THINKING, "2026-10-21", False),
        (msgspec.structs.replace(NO_THINKING, sampling=False), "2023-06-01", False),
        (DEFAULT_ON, "2023-06-01", False),
    ],
)
def test_sampling_is_sent_only_where_it_is_taken(caps: Capabilities, version: str, is_sent: bool) -> None:
    request = built(caps=caps, version=version, temperature=0.0, top_p=0.9, top_k=40)

    found = {key: value for key, value in sent(request).items() if key in ("temperature", "top_p", "top_k")}
    assert found == ({"temperature": 0.0, "top_p": 0.9, "top_k": 40} if is_sent else {})
    assert [note.setting for note in request.warnings] == ([] if is_sent else ["temperature", "top_p", "top_k"])


def test_penalties_are_left_out_with_a_warning() -> None:
    request = built(presence_penalty=0.5, frequency_penalty=0.5)

    assert [note.setting for note in request.warnings] == ["presence_penalty", "frequency_penalty"]


@pytest.mark.parametrize(
    ("choice", "caps", "effort", "expected", "warns"),
    [
        ("auto", ADAPTIVE, None, {"type": "auto"}, False),
        ("none", ADAPTIVE, None, {"type": "none"}, False),
        ("required", ADAPTIVE, None, {"type": "any"}, False),
        ("read_file", ADAPTIVE, None, {"type": "tool", "name": "read_file"}, False),
        ("nobody", ADAPTIVE, None, {"type": "auto"}, True),
        ("required", DEFAULT_ON, None, {"type": "auto"}, True),
        ("read_file", DEFAULT_ON, None, {"type": "auto"}, True),
        ("required", BUDGET, None, {"type": "any"}, False),
        ("required", BUDGET, Effort.LOW, {"type": "auto"}, True),
    ],
)
def test_forced_choice_degrades_where_the_model_refuses_it(
    choice: str, caps: Capabilities, effort: Effort | None, expected: Json, warns: bool
) -> None:
    request = built(caps=caps, tools=(READ,), tool_choice=choice, effort=effort)

    assert sent(request)["tool_choice"] == expected
    assert bool(request.warnings) is warns


def test_parallel_calls_can_be_switched_off() -> None:
    options = AnthropicOptions(disable_parallel_tool_use=True)

    assert body(tools=(READ,), options=options)["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


def test_tools_stand_by_name_with_complete_schemas_and_search_comes_last() -> None:
    bare = Tool(name="a_tool", description="d", input_schema={"type": "object", "properties": None, "required": []})

    made = unmarked(body(tools=(READ, bare), web_search=WebSearch(max_uses=2)))["tools"]

    assert [one["name"] for one in made] == ["a_tool", "read_file", "web_search"]
    assert made[0]["input_schema"] == {"type": "object", "properties": {}}
    assert made[2] == {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (WebSearch(allowed_domains=("a.org",)), {"type": "web_search_20250305", "allowed_domains": ["a.org"]}),
        (WebSearch(blocked_domains=("b.org",)), {"type": "web_search_20250305", "blocked_domains": ["b.org"]}),
        (
            WebSearch(allowed_domains=("a.org",), blocked_domains=("b.org",)),
            {"type": "web_search_20250305", "allowed_domains": ["a.org"]},
        ),
        (
            WebSearch(user_location={"city": "Bonn"}),
            {"type": "web_search_20250305", "user_location": {"type": "approximate", "city": "Bonn"}},
        ),
        (
            WebSearch(version="web_search_20260209"),
            {"type": "web_search_20260209", "allowed_callers": ["direct"]},
        ),
    ],
)
def test_web_search_is_defined_as_configured(search: WebSearch, expected: Json) -> None:
    made = unmarked(body(web_search=search))["tools"]

    assert made == [{"name": "web_search", **expected}]


def test_betas_are_sorted_and_joined() -> None:
    options = AnthropicOptions(context_1m=True, user_hash="abc")

    request = built(caps=BINDING, drop_stale_thinking=True, options=options)

    assert request.headers["anthropic-beta"] == "context-1m-2025-08-07,thinking-binding-controls-2026-08-01"
    assert sent(request)["metadata"] == {"user_id": "abc"}


# Messages


def test_results_come_before_everything_else_a_user_says() -> None:
    made = said(
        user("Look."),
        assistant(call("call_1"), call("call_2")),
        tool(result("call_1")),
        user("Wait."),
        tool(result("call_2", "no", is_error=True)),
        user("Go on."),
    )

    assert made[-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "# Rookery"},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "no", "is_error": True},
        text("Wait."),
        text("Go on."),
    ]


def test_image_of_a_result_stands_before_its_text() -> None:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
    }

    with_text = said(user("Look."), assistant(call("call_1")), tool(result("call_1", "dot.png", media=image())))
    alone = said(user("Look."), assistant(call("call_1")), tool(result("call_1", "", media=image())))
    other = said(user("Look."), assistant(call("call_1")), tool(result("call_1", "dot", media=image("image/bmp"))))

    assert with_text[-1]["content"][0]["content"] == [picture, text("dot.png")]
    assert alone[-1]["content"][0]["content"] == [picture]
    assert other[-1]["content"][0]["content"] == "dot"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (PromptFile("image/jpg", b"j", "a"), {"type": "base64", "media_type": "image/jpeg", "data": "ag=="}),
        (PromptFile("application/pdf", b"p", "a"), {"type": "base64", "media_type": "application/pdf", "data": "cA=="}),
        (
            PromptFile("text/markdown; charset=utf-8", b"# hi", "a.md"),
            {"type": "text", "media_type": "text/plain", "data": "# hi"},
        ),
    ],
)
def test_files_have_the_source_of_their_type(file: PromptFile, expected: Json) -> None:
    assert said(user(file))[0]["content"][0]["source"] == expected


def test_file_no_block_exists_for_is_named_and_files_of_answers_are_left_out() -> None:
    named = said(user(PromptFile("audio/wav", b"w", "song.wav")))
    answered = said(user("a"), assistant(PromptFile("image/png", PNG), "b"), user("c"))

    assert named[0]["content"] == [text('<attachment-omitted name="song wav" type="audio/wav"/>')]
    assert answered[1]["content"] == [text("b")]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Report (final)_v2.pdf", "Report (final) v2 pdf"),
        ("a  b\n[c]-d", "a b [c]-d"),
        ("日本語", "Document"),
        (None, "Document"),
    ],
)
def test_titles_of_documents_keep_only_what_is_allowed(name: str | None, title: str) -> None:
    assert said(user(PromptFile("application/pdf", b"p", name)))[0]["content"][0]["title"] == title


def test_empty_texts_and_empty_messages_are_left_out() -> None:
    made = said(user("Hello.", "  \n"), assistant(" ", PromptReasoning("unproven")), user("?"))

    assert made == [{"role": "user", "content": [text("Hello."), text("?")]}]


def test_neighbouring_answers_merge_unless_one_is_signed() -> None:
    signed = PromptReasoning("hm", {"signature": "s"})
    merged = said(user("a"), assistant("b"), assistant("c"), user("d"))
    apart = said(user("a"), assistant("b"), assistant(signed, "c"), assistant("d"), user("e"))

    assert [len(one["content"]) for one in merged] == [1, 2, 1]
    assert [one["role"] for one in apart] == ["user", "assistant", "assistant", "assistant", "user"]


def test_only_proven_reasoning_of_whole_native_answers_is_replayed() -> None:
    proven = PromptReasoning("hm", {"signature": "s"})
    redacted = PromptReasoning("", {"redacted_data": "r"})
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "r"}]

    def replayed(**fields: Any) -> Json:
        made = said(user("a"), assistant(proven, redacted, PromptReasoning("no"), "b", **fields), user("c"))
        return made[1]["content"][:-1]

    assert replayed() == blocks
    assert replayed(is_native=False) == []
    assert replayed(is_whole=False) == []


def test_reasoning_can_be_kept_from_the_provider() -> None:
    proven = PromptReasoning("hm", {"signature": "s"})

    made = said(user("a"), assistant(proven, "b"), user("c"), options=AnthropicOptions(send_reasoning=False))

    assert made[1]["content"] == [text("b")]


def test_request_starts_with_the_user() -> None:
    made = said(assistant("Hi."), user("Hello."))

    assert [one["role"] for one in made] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((), id="nothing"),
        pytest.param((system("Be brief."),), id="only system"),
        pytest.param((user("a"), assistant("b")), id="ends with an answer"),
        pytest.param((user("a"), assistant(call("c1"))), id="open call"),
        pytest.param((user("a"), assistant(call("c1")), user("b")), id="call without result"),
        pytest.param(
            (user("a"), assistant(searched("anthropic")[0], call("c1"), finish_reason="pause")),
            id="open call at a pause",
        ),
        pytest.param((user("a"), tool(result("c1"))), id="result without call"),
        pytest.param(
            (user("a"), assistant(call("c1"), call("c1")), tool(result("c1")), tool(result("c1"))), id="same id twice"
        ),
        pytest.param(
            (user("a"), assistant(call("c1")), tool(result("c1")), assistant(call("c1")), tool(result("c1"))),
            id="id used again",
        ),
    ],
)
def test_prompt_that_no_server_takes_is_not_sent(messages: tuple[Any, ...]) -> None:
    with pytest.raises(PromptInvalid):
        built(Prompt(messages))


def test_unknown_block_is_sent_back_as_it_came() -> None:
    raw = {"type": "crystal", "b": [1, 2.5], "a": {"y": 1, "x": None}}
    kept = PromptReasoning("", {"raw": raw})

    assert said(user("a"), assistant(kept, "b"), user("c"))[1]["content"][0] == raw
    assert said(user("a"), assistant(kept, "b"), user("c"), plain_history=True)[1]["content"] == [text("b")]


# Provider-executed pairs


SEARCHED = searched("anthropic")
RAW_CALL = SEARCHED[0].meta["raw"] if SEARCHED[0].meta else None
RAW_RESULT = SEARCHED[1].meta["raw"] if SEARCHED[1].meta else None
FOUND = text("Rooks https://example.org/rooks")


def test_pair_in_one_answer_is_sent_as_it_came() -> None:
    made = said(user("a"), assistant(*SEARCHED, "b"), user("c"))

    assert made[1]["content"] == [RAW_CALL, RAW_RESULT, text("b")]


def test_pair_over_two_answers_is_sent_as_it_came() -> None:
    made = said(user("a"), assistant(SEARCHED[0], finish_reason="pause"), assistant(SEARCHED[1], "b"), user("c"))

    assert made[1]["content"] == [RAW_CALL, RAW_RESULT, text("b")]


def test_pair_over_more_answers_is_none() -> None:
    made = said(
        user("a"), assistant(SEARCHED[0], "b"), user("c"), assistant("d"), user("e"), assistant(SEARCHED[1]), user("f")
    )

    assert [one["content"] for one in made] == [
        [text("a")], [text("b")], [text("c")], [text("d")], [text("e")], [FOUND], [text("f")]
    ]  # fmt: skip


def test_call_without_result_is_removed_and_its_empty_message_too() -> None:
    assert said(user("a"), assistant(SEARCHED[0]), user("b")) == [{"role": "user", "content": [text("a"), text("b")]}]


def test_result_without_call_becomes_text() -> None:
    assert said(user("a"), assistant(SEARCHED[1]), user("b"))[1]["content"] == [FOUND]


def test_result_without_call_and_text_is_removed() -> None:
    silent = msgspec.structs.replace(SEARCHED[1], text=" ")

    assert said(user("a"), assistant(silent, "b"), user("c"))[1]["content"] == [text("b")]


def test_result_of_an_unreadable_call_becomes_text() -> None:
    broken = PromptCall("srvtoolu_1", "web_search", Raw("{}"), True, {"raw": {**(RAW_CALL or {}), "input": '{"que'}})

    assert said(user("a"), assistant(broken, SEARCHED[1], "b"), user("c"))[1]["content"] == [FOUND, text("b")]


def test_second_pair_with_the_same_id_is_none() -> None:
    made = said(user("a"), assistant(*SEARCHED), user("b"), assistant(*SEARCHED), user("c"))

    assert made[1]["content"] == [RAW_CALL, RAW_RESULT]
    assert made[3]["content"] == [FOUND]


def test_call_of_a_paused_answer_stays_open_at_the_end() -> None:
    paused = assistant("b", SEARCHED[0], finish_reason="pause")

    assert said(user("a"), paused)[-1] == {"role": "assistant", "content": [text("b"), RAW_CALL]}
    assert said(user("a"), paused, user("c"))[1]["content"] == [text("b")]


def test_call_beside_local_calls_stays_open_for_the_next_response() -> None:
    made = said(user("a"), assistant(SEARCHED[0], call("call_1")), tool(result("call_1")))
    later = said(
        user("a"), assistant(SEARCHED[0], call("call_1")), tool(result("call_1")), assistant(SEARCHED[1]), user("b")
    )

    assert made[1]["content"][0] == RAW_CALL
    assert later[1]["content"][0] == RAW_CALL
    assert later[3]["content"] == [RAW_RESULT]


def test_call_of_an_interrupted_answer_does_not_stay_open() -> None:
    made = said(user("a"), assistant(SEARCHED[0], call("call_1"), is_whole=False), tool(result("call_1")))

    assert [block["type"] for block in made[1]["content"]] == ["tool_use"]


def test_newest_signed_answer_loses_only_orphan_calls() -> None:
    signed = PromptReasoning("hm", {"signature": "s"})

    orphan_call = said(user("a"), assistant(signed, SEARCHED[0], "b"), user("c"))
    orphan_result = said(user("a"), assistant(signed, SEARCHED[1], "b"), user("c"))

    assert [block["type"] for block in orphan_call[1]["content"]] == ["thinking", "text"]
    assert orphan_result[1]["content"] == [text("b")]


def test_plain_history_has_neither_reasoning_nor_what_the_provider_executed() -> None:
    made = said(*prompts("anthropic")["provider tools"].messages, plain_history=True)

    assert made[1]["content"] == [text("They are birds.")]


def test_paused_answer_of_which_nothing_is_left_is_continued_by_a_word() -> None:
    made = said(user("a"), assistant("b", SEARCHED[0], finish_reason="pause"), plain_history=True)

    assert made[-1] == {"role": "user", "content": [text("Continue.")]}


# Cache marks


def marked(value: Json, path: str = "") -> list[str]:
    if isinstance(value, dict):
        here = [path] if "cache_control" in value else []
        return here + [found for key, child in value.items() for found in marked(child, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for number, child in enumerate(value) for found in marked(child, f"{path}.{number}")]
    return []


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("text chat", [".tools.0", ".system.0", ".messages.0.content.0", ".messages.2.content.0"]),
        ("several system messages", [".tools.0", ".system.1", ".messages.0.content.0"]),
        ("files", [".tools.0", ".messages.0.content.2"]),
        ("tools", [".tools.0", ".system.0", ".messages.0.content.0", ".messages.2.content.0"]),
        ("parallel tools with image results", [".tools.0", ".messages.0.content.0", ".messages.2.content.2"]),
        ("thinking", [".tools.0", ".system.0", ".messages.2.content.0", ".messages.4.content.0"]),
    ],
)
def test_cache_marks_are_at_the_stated_places(name: str, places: list[str]) -> None:
    assert marked(body(prompts("anthropic")[name], tools=(READ,))) == places


def test_mark_of_a_paused_answer_avoids_thinking_and_empty_results() -> None:
    signed = PromptReasoning("hm", {"signature": "s"})
    made = body(
        Prompt(
            (
                user("a"),
                assistant(call("call_1")),
                tool(result("call_1", "")),
                assistant(SEARCHED[0], signed, finish_reason="pause"),
            )
        )
    )

    assert marked(made) == [".messages.3.content.0"]


def test_how_long_the_cache_lives_is_an_option() -> None:
    for_an_hour = body(options=AnthropicOptions(cache_ttl="1h"))

    assert for_an_hour["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


# Prefixes


def test_second_request_starts_with_the_bytes_of_the_first() -> None:
    first = built(Prompt((system("s"), user("a"))), tools=(READ,))
    second = built(Prompt((system("s"), user("a"), assistant("b"), user("c"))), tools=(READ,))

    head = msgspec.json.encode(unmarked(sent(first))).removesuffix(b"]}")
    assert msgspec.json.encode(unmarked(sent(second))).startswith(head)
    assert msgspec.json.encode(second.body) == msgspec.json.encode(
        built(Prompt((system("s"), user("a"), assistant("b"), user("c"))), tools=(READ,)).body
    )


def thought(fingerprint: bytes | None, overlay: str = "s", *, caps: Capabilities = BINDING, **fields: Any) -> Request:
    """A second request whose first answer carries thinking, given after the prefix of this fingerprint."""
    answer = assistant(PromptReasoning("hm", {"signature": "s"}), "b", prefix_fp=fingerprint)
    return built(Prompt((system(overlay), user("a"), answer, user("c"))), caps=caps, tools=(READ,), **fields)


def test_unchanged_prefix_is_sent_without_ado() -> None:
    first = built(Prompt((system("s"), user("a"))), caps=BINDING, tools=(READ,))

    second = thought(first.prefix_fp)

    assert "block_binding" not in sent(second)["thinking"]
    assert "anthropic-beta" not in second.headers
    assert second.warnings == ()


def test_changed_overlay_on_a_binding_model_drops_stale_thinking_at_once() -> None:
    first = built(Prompt((system("s"), user("a"))), caps=BINDING, tools=(READ,))

    second = thought(first.prefix_fp, "another overlay")

    assert sent(second)["thinking"] == {**THINKS, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert second.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    assert [note.setting for note in second.warnings] == ["thinking"]


def test_changed_overlay_on_another_model_changes_nothing() -> None:
    first = built(Prompt((system("s"), user("a"))), caps=DEFAULT_ON, tools=(READ,))

    second = thought(first.prefix_fp, "another overlay", caps=DEFAULT_ON)

    assert sent(second)["thinking"] == THINKS


def test_unknown_prefix_is_not_a_changed_one() -> None:
    assert "block_binding" not in sent(thought(None))["thinking"]


def test_stale_thinking_is_left_out_where_thinking_is_switched_off() -> None:
    request = thought(None, drop_stale_thinking=True, effort=Effort.NONE)

    made = sent(request)
    assert made["thinking"] == {"type": "disabled"}
    assert "anthropic-beta" not in request.headers
    assert [block["type"] for block in made["messages"][1]["content"]] == ["text"]


def test_fingerprint_sees_everything_but_cache_marks() -> None:
    prompt = Prompt((system("s"), user("a")))
    plain = built(prompt, tools=(READ,)).prefix_fp

    assert plain is not None
    assert len(plain) == 16
    assert built(prompt, tools=(READ,), options=AnthropicOptions(cache_ttl="1h"), effort=Effort.LOW).prefix_fp == plain
    changed = [
        built(prompt),
        built(Prompt((system("t"), user("a"))), tools=(READ,)),
        built(Prompt((system("s"), user("b"))), tools=(READ,)),
        AnthropicFormat("other", ADAPTIVE).build(Call(prompt=prompt, tools=(READ,))),
    ]
    assert len({plain, *(request.prefix_fp for request in changed)}) == 5


def test_fingerprint_sees_who_said_what() -> None:
    asked = built(Prompt((user("a"), assistant("b"), user("c"))))
    told = built(Prompt((user("a"), user("b"), user("c"))))

    assert asked.prefix_fp != told.prefix_fp


def test_kept_blocks_have_the_same_bytes_however_the_database_orders_their_keys() -> None:
    one = {"type": "crystal", "b": {"y": 1, "x": 2}, "a": 1}
    other = {"a": 1, "b": {"x": 2, "y": 1}, "type": "crystal"}

    first, second = (
        built(Prompt((user("a"), assistant(PromptReasoning("", {"raw": raw}), "b"), user("c")))) for raw in (one, other)
    )

    assert msgspec.json.encode(first.body) == msgspec.json.encode(second.body)
    assert first.prefix_fp == second.prefix_fp


# Stream


def event(name: str, **fields: Any) -> Event:
    return Event(name, msgspec.json.encode({"type": name, **fields}))


def folded(events: Sequence[Event]) -> list[StreamPart]:
    fold = AnthropicFold("Anthropic")
    fold.start("req_1")
    return [part for one in events for part in fold.feed(one)]


def block(index: int, start: Json, *deltas: Json) -> list[Event]:
    return [
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


START = event(
    "message_start", message={"id": "msg_1", "model": "claude-x", "usage": {"input_tokens": 3, "output_tokens": 1}}
)
STOP = event("message_stop")


def ending(reason: str | None = "end_turn", **fields: Any) -> list[Event]:
    return [event("message_delta", delta={"stop_reason": reason, **fields}, usage={"output_tokens": 9}), STOP]


def test_text_is_folded() -> None:
    made = folded([START, *block(0, text(""), {"type": "text_delta", "text": "Hi"}), *ending()])

    first = Usage(input=3, output=1, total=4, context_tokens=3)
    last = Usage(input=3, output=9, total=12, context_tokens=3)
    assert made == [
        ResponseStarted("msg_1", "claude-x", "req_1"),
        UsageUpdate(first),
        TextStart("0"),
        TextDelta("0", "Hi"),
        TextEnd("0"),
        UsageUpdate(last),
        Finish(FinishReason.STOP, last, {"stop_reason": "end_turn"}),
    ]


def test_thinking_is_folded_with_its_whole_signature() -> None:
    made = folded(
        block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "ab"},
            {"type": "signature_delta", "signature": "cd"},
        )
    )

    assert made == [ReasoningStart("0"), ReasoningDelta("0", "hm"), ReasoningEnd("0", {"signature": "abcd"})]


def test_redacted_thinking_is_reasoning_without_text() -> None:
    made = folded(block(0, {"type": "redacted_thinking", "data": "zzz"}))

    assert made == [ReasoningStart("0", {"redacted_data": "zzz"}), ReasoningEnd("0", {"redacted_data": "zzz"})]


@pytest.mark.parametrize(
    ("start", "pieces", "expected"),
    [
        ({}, ["", '{"a":', " 1}"], '{"a": 1}'),
        ({}, [""], "{}"),
        ({"a": 1}, [], '{"a":1}'),
        ({}, ['{"a":'], '{"a":'),
    ],
)
def test_input_of_a_call_is_what_the_model_wrote(start: Json, pieces: list[str], expected: str) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]

    made = folded(block(0, {"type": "tool_use", "id": "toolu_1", "name": "read", "input": start}, *deltas))

    shown = [ToolInputDelta("toolu_1", piece) for piece in pieces if piece]
    assert made == [
        ToolInputStart("toolu_1", "read"),
        *shown,
        ToolInputEnd("toolu_1"),
        ToolCall("toolu_1", "read", expected),
    ]


def test_search_of_the_provider_is_folded_with_raw_blocks_and_sources() -> None:
    found = {"type": "web_search_result", "url": "https://a.org", "title": "A", "encrypted_content": "x"}
    result_block = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [found, found]}
    citation = {"type": "web_search_result_location", "url": "https://a.org", "title": "A", "cited_text": "a"}
    document = {"type": "char_location", "document_title": "Report", "document_index": 0, "cited_text": "a"}

    made = folded(
        [
            *block(
                0,
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"query":"a"}'},
            ),
            *block(1, result_block),
            *block(
                2,
                text(""),
                {"type": "citations_delta", "citation": citation},
                {"type": "citations_delta", "citation": document},
            ),
        ]
    )

    raw = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "a"}}
    shown = b'[{"type":"web_search_result","url":"https://a.org","title":"A"}'
    assert made == [
        ToolInputStart("srv_1", "web_search", True),
        ToolInputDelta("srv_1", '{"query":"a"}'),
        ToolInputEnd("srv_1"),
        ToolCall("srv_1", "web_search", '{"query":"a"}', True, {"raw": raw}),
        Source("source_1", "url", "https://a.org", "A"),
        ToolResult("srv_1", "web_search", Raw(shown + b"," + shown[1:] + b"]"), False, {"raw": result_block}),
        TextStart("2"),
        Source("source_2", "document", "", "Report"),
        TextEnd("2"),
    ]


def test_search_that_was_cut_off_keeps_its_text_as_input_and_is_not_sent_back() -> None:
    start = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}

    made = folded(block(0, start, {"type": "input_json_delta", "partial_json": '{"que'}))[-1]

    assert isinstance(made, ToolCall)
    assert made.meta == {"raw": {**start, "input": '{"que'}}
    back = PromptCall(made.id, made.name, Raw("{}"), True, made.meta)
    assert said(user("a"), assistant(back, "b", finish_reason="pause"))[1]["content"] == [text("b")]


def test_failed_search_is_an_error_result() -> None:
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}

    made = folded(block(0, {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": failed}))

    (only,) = made
    assert isinstance(only, ToolResult)
    assert (only.name, only.is_error, bytes(only.output)) == ("web_search", True, b'{"error":"max_uses_exceeded"}')


def test_unknown_block_is_kept_with_what_its_deltas_add() -> None:
    made = folded(
        block(
            0,
            {"type": "crystal", "content": "a", "seen": [1]},
            {"type": "crystal_delta", "content": "b", "seen": [2], "clear": True},
        )
    )

    raw = {"type": "crystal", "content": "ab", "seen": [1, 2], "clear": True}
    assert made == [ReasoningStart("0"), ReasoningEnd("0", {"raw": raw})]


def test_unknown_events_are_ignored_and_counted() -> None:
    fold = AnthropicFold("Anthropic")

    parts = [*fold.feed(event("aurora", value=1)), *fold.feed(event("ping")), *fold.feed(event("aurora"))]

    assert (parts, fold.unknown) == ([], {"aurora": 2})


def test_unknown_deltas_and_deltas_of_no_block_are_ignored() -> None:
    made = folded(
        [
            event("content_block_delta", index=7, delta={"type": "text_delta", "text": "lost"}),
            *block(0, text(""), {"type": "sparkle_delta", "glow": 1}),
        ]
    )

    assert made == [TextStart("0"), TextEnd("0")]


def test_event_without_a_name_is_told_by_its_type() -> None:
    named = [START, *block(0, text(""), {"type": "text_delta", "text": "Hi"}), *ending()]

    assert folded([Event("", one.data) for one in named]) == folded(named)
    assert folded([Event("", b"[DONE]")]) == []


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("pause_turn", FinishReason.PAUSE),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("sunset", FinishReason.OTHER),
    ],
)
def test_stop_reasons_are_translated(reason: str, expected: FinishReason) -> None:
    last = folded([START, *ending(reason)])[-1]

    assert isinstance(last, Finish)
    assert last.reason is expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("end_turn", FinishReason.TOOL_CALLS),
        ("pause_turn", FinishReason.TOOL_CALLS),
        ("max_tokens", FinishReason.TOOL_CALLS),
        ("refusal", FinishReason.CONTENT_FILTER),
    ],
)
def test_local_call_decides_the_reason_except_for_refusals(reason: str, expected: FinishReason) -> None:
    called = block(0, {"type": "tool_use", "id": "t", "name": "read", "input": {}})

    last = folded([START, *called, *ending(reason)])[-1]

    assert isinstance(last, Finish)
    assert last.reason is expected


def test_refusal_says_category_and_explanation() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "This could do harm."}

    last = folded([START, *ending("refusal", stop_details=details)])[-1]

    assert isinstance(last, Finish)
    assert last.meta == {"stop_reason": "refusal", "category": "cyber"}
    assert last.detail == "This could do harm."


def test_usage_of_several_passes_is_billed_from_the_end_and_measured_at_the_start() -> None:
    start = {
        "input_tokens": 2,
        "cache_read_input_tokens": 139956,
        "cache_creation_input_tokens": 7770,
        "cache_creation": {"ephemeral_5m_input_tokens": 7000, "ephemeral_1h_input_tokens": 770},
        "output_tokens": 1,
    }
    end = {
        "input_tokens": 4,
        "cache_read_input_tokens": 287682,
        "cache_creation_input_tokens": 15556,
        "output_tokens": 4996,
        "output_tokens_details": {"thinking_tokens": 100},
        "server_tool_use": {"web_search_requests": 2},
    }

    last = folded(
        [
            event("message_start", message={"usage": start}),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage=end),
            STOP,
        ]
    )[-1]

    assert isinstance(last, Finish)
    assert last.usage == Usage(
        input=4,
        cache_read=287682,
        cache_write=15556,
        cache_write_1h=770,
        output=4996,
        reasoning=100,
        total=4 + 287682 + 15556 + 4996,
        web_searches=2,
        context_tokens=147728,
    )


def test_listed_passes_tell_what_the_last_one_read() -> None:
    passes = [
        {"type": "message", "input_tokens": 5, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 0},
        {"type": "message", "input_tokens": 6, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 1},
        {"type": "compaction", "input_tokens": 999},
    ]

    last = folded([START, event("message_delta", delta={}, usage={"output_tokens": 7, "iterations": passes})])[-1]

    assert isinstance(last, UsageUpdate)
    assert last.usage.context_tokens == 27


def test_events_without_usage_leave_it_unknown() -> None:
    made = folded(
        [event("message_start", message={"id": "m"}), event("message_delta", delta={"stop_reason": "end_turn"}), STOP]
    )

    assert made == [
        ResponseStarted("m", None, "req_1"),
        Finish(FinishReason.STOP, Usage(), {"stop_reason": "end_turn"}),
    ]


def test_block_that_ends_twice_ends_once() -> None:
    made = folded([*block(0, text("Hi")), event("content_block_stop", index=0)])

    assert made == [TextStart("0"), TextDelta("0", "Hi"), TextEnd("0")]


def test_all_zero_usage_is_no_usage() -> None:
    started = folded([event("message_start", message={"usage": {"input_tokens": 0, "output_tokens": 0}})])

    assert started[-1] == UsageUpdate(Usage())


@pytest.mark.parametrize(
    ("code", "kind", "is_retryable"),
    [
        ("overloaded_error", ErrorKind.OVERLOADED, True),
        ("rate_limit_error", ErrorKind.RATE_LIMIT, True),
        ("api_error", ErrorKind.GENERIC, True),
        ("authentication_error", ErrorKind.AUTH, False),
        ("something_new", ErrorKind.GENERIC, False),
    ],
)
def test_error_in_the_stream_goes_through_the_table(code: str, kind: ErrorKind, is_retryable: bool) -> None:
    last = folded([START, event("error", error={"type": code, "message": "No."})])[-1]

    assert isinstance(last, StreamError)
    assert (last.error.kind, last.error.retryable, last.error.detail) == (kind, is_retryable, "No.")
    assert last.error.request_id == "req_1"


WHOLE_STREAM = [
    START,
    event("ping"),
    *block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"}),
    *block(1, text(""), {"type": "text_delta", "text": "Hi"}),
    *block(2, {"type": "tool_use", "id": "t", "name": "read", "input": {}}),
    *ending("tool_use"),
]


@pytest.mark.parametrize("length", range(len(WHOLE_STREAM)))
def test_stream_cut_at_any_event_is_a_retryable_error(length: int) -> None:
    fold = AnthropicFold("Anthropic")

    parts = [part for one in WHOLE_STREAM[:length] for part in fold.feed(one)]
    parts += fold.end()

    terminal = [part for part in parts if isinstance(part, Finish | StreamError)]
    assert len(terminal) == 1
    assert isinstance(parts[-1], StreamError)
    assert (parts[-1].error.kind, parts[-1].error.retryable) == (ErrorKind.TIMEOUT, True)
    assert parts[-1].error.detail == "stream closed before the response completed"


def test_end_without_a_stop_reason_is_a_cut() -> None:
    last = folded([START, STOP])[-1]

    assert isinstance(last, StreamError)
    assert last.error.retryable


def test_blocks_that_nobody_closed_are_closed_before_the_end() -> None:
    open_text = event("content_block_start", index=0, content_block=text("Hi"))

    made = folded([START, open_text, *ending()])

    assert made[2:4] == [TextStart("0"), TextDelta("0", "Hi")]
    assert TextEnd("0") in made
    assert isinstance(made[-1], Finish)


@pytest.mark.parametrize(
    "broken",
    [
        Event("content_block_delta", b'{"index": '),
        Event("content_block_delta", b'{"index": "0", "delta": {"type": "text_delta"}}'),
        Event("content_block_start", b'{"index": 0, "content_block": []}'),
        Event("message_delta", b"[]"),
        Event("", b"<html>"),
        Event("message_start", b"\xff"),
    ],
)
def test_event_that_cannot_be_read_ends_the_stream(broken: Event) -> None:
    (only,) = folded([broken])

    assert isinstance(only, StreamError)
    assert (only.error.kind, only.error.retryable) == (ErrorKind.GENERIC, True)


def test_whole_message_is_read_like_a_stream() -> None:
    message = {
        "type": "message",
        "id": "msg_1",
        "model": "claude-x",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {**text("Hi"), "citations": [{"url": "https://a.org", "title": "A"}, None]},
            {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 9},
    }

    made = list(AnthropicFold("Anthropic").whole(msgspec.json.encode(message)))

    assert ReasoningEnd("0", {"signature": "s"}) in made
    assert TextDelta("1", "Hi") in made
    assert [part for part in made if isinstance(part, Source)] == [Source("source_1", "url", "https://a.org", "A")]
    assert ToolCall("t", "read", '{"path":"a"}') in made
    assert isinstance(made[-1], Finish)
    assert made[-1].reason is FinishReason.TOOL_CALLS
    assert made[-1].usage == Usage(input=3, output=9, total=12, context_tokens=3)


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', ErrorKind.OVERLOADED),
        (b"{}", ErrorKind.GENERIC),
        (b"nonsense", ErrorKind.GENERIC),
    ],
)
def test_whole_answer_that_is_no_message_is_an_error(document: bytes, kind: ErrorKind) -> None:
    (only,) = AnthropicFold("Anthropic").whole(document)

    assert isinstance(only, StreamError)
    assert only.error.kind is kind


def test_results_of_other_wires_are_sent_as_text() -> None:
    foreign = PromptResult(
        "ws_1", "web_search", "found", provider_executed=True, meta={"raw": {"type": "web_search_call"}}
    )

    assert said(user("a"), assistant(foreign, PromptText("b")), user("c"))[1]["content"] == [text("found"), text("b")]
