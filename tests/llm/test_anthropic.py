"""Settings, thinking and tools of a Messages request: all rows of the tables."""

from __future__ import annotations

import msgspec
import pytest

from rookery.domain.chat.messages import Effort
from rookery.llm.anthropic.wire import AnthropicFormat, AnthropicOptions, default_version
from rookery.llm.types import (
    Call,
    Capabilities,
    Thinking,
    Tool,
    WebSearch,
)
from tests.llm.anthropic_rig import (
    ADAPTIVE,
    ALWAYS,
    BETWEEN,
    BINDING,
    BUDGET,
    DEFAULT_ON,
    HELLO,
    NO_THINKING,
    NO_XHIGH,
    THINKS,
    UP_TO_HIGH,
    Json,
    body,
    built,
    sent,
    text,
    unmarked,
)
from tests.wire.difficult_prompts import READ, prompts


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


def test_effort_is_left_out_if_the_supported_efforts_are_unknown() -> None:
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
