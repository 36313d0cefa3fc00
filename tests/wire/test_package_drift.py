"""Checks that the catalog and the wires match the published packages of providers.

`make test` uses the locked versions, and `make drift` the newest ones; a failing test then names what is new. A known
gap is listed here with its reason, and its test fails when the gap is closed.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from anthropic.types import (
    ContentBlock,
    RawContentBlockDelta,
    RawMessageStreamEvent,
    StopReason,
)
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from anthropic.types.model import Model
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDelta
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.chat_model import ChatModel
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic_ai.models import KnownModelName
from pydantic_ai.profiles.anthropic import anthropic_model_profile
from pydantic_ai.profiles.google import google_model_profile
from pydantic_ai.profiles.openai import openai_model_profile

from rookery.domain.chat.messages import Effort
from rookery.llm.anthropic.stream import STOP_REASONS, AnthropicFold
from rookery.llm.completions.chunks import Delta
from rookery.llm.responses import event_structs as responses_events
from rookery.llm.types import Capabilities, FinishReason
from rookery.llm.wire import Event
from rookery.models import capability_catalog


def literals(annotation: Any) -> set[str]:
    """Return every string that a type allows, at any depth of its unions."""
    annotation = getattr(annotation, "__value__", annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return {value for value in typing.get_args(annotation) if isinstance(value, str)}
    return set().union(*(literals(inner) for inner in typing.get_args(annotation)))


def types_of(union: Any) -> set[str]:
    """Return the `type` of every member of a union of official models."""
    found: set[str] = set()
    for member in typing.get_args(union):
        fields = getattr(member, "model_fields", None)
        found |= types_of(member) if fields is None else literals(fields["type"].annotation)
    return found


# Models

KNOWN = literals(KnownModelName)
CLAUDE = sorted(literals(Model) | {name.removeprefix("anthropic:") for name in KNOWN if name.startswith("anthropic:")})
GPT = sorted(literals(ChatModel) | {name.removeprefix("openai:") for name in KNOWN if name.startswith("openai:")})

GEMINI = sorted({name.removeprefix("google:") for name in KNOWN if name.startswith("google:")})

# These models get the conservative defaults, which work everywhere.
NOT_IN_THE_CATALOG = {
    "claude-mythos-preview": "a preview for few",
    "computer-use-preview": "for computer use only",
    "computer-use-preview-2025-03-11": "for computer use only",
    "gpt-audio-mini": "for speech",
    "gpt-audio-mini-2025-12-15": "for speech",
    "gpt-daybreak-blue-latest": "for a few organisations",
    "gpt-daybreak-red-latest": "for a few organisations",
    "gpt-rosalind-research": "for a few organisations",
    "chatgpt-4o-latest": "retired",
    "codex-mini-latest": "retired",
    "gpt-4-32k": "retired",
    "gpt-4-32k-0314": "retired",
    "gpt-4-32k-0613": "retired",
}


# The profile has only the names of these models, and treats them like older models of their family.
SAFER = {model: {"supports_forced_tool_choice": False} for model in ("claude-fable-5-2", "claude-mythos-5-2")}


def test_every_published_model_is_in_the_catalog_or_known_to_be_missing() -> None:
    missing = {model for model in CLAUDE if capability_catalog.built_in("anthropic", model) is None}
    missing |= {model for model in GPT if capability_catalog.built_in("openai", model) is None}
    missing |= {model for model in GEMINI if capability_catalog.built_in("google", model) is None}

    assert len(CLAUDE) > 15
    assert len(GPT) > 50
    assert len(GEMINI) > 15
    assert len(KNOWN) > 500
    assert missing - NOT_IN_THE_CATALOG.keys() == set(), "add these to the catalog, or say here why not"
    assert NOT_IN_THE_CATALOG.keys() - missing == set(), "these are known by now, or gone"


@pytest.mark.parametrize("model", [model for model in CLAUDE if model not in NOT_IN_THE_CATALOG])
def test_claude_can_what_the_profile_says(model: str) -> None:
    ours = capability_catalog.capabilities("anthropic", model, wire="anthropic")
    theirs: dict[str, Any] = {**(anthropic_model_profile(model) or {}), **SAFER.get(model, {})}

    assert claude_facts(ours) == {
        "adaptive": theirs.get("anthropic_supports_adaptive_thinking", False),
        "budget": not theirs.get("anthropic_disallows_budget_thinking", False),
        "always_on": theirs.get("thinking_always_enabled", False),
        "between_tools": theirs.get("anthropic_disables_thinking_with_between_tools", False),
        "binds_thinking": theirs.get("anthropic_binds_thinking_blocks", False),
        "forced_tool_choice": theirs.get("supports_forced_tool_choice", True),
        "sampling": not theirs.get("anthropic_disallows_sampling_settings", False),
        "json_schema": theirs.get("supports_json_schema_output", False),
        "effort": theirs.get("anthropic_supports_effort", False),
        "xhigh": theirs.get("anthropic_supports_xhigh_effort", False),
        "max": theirs.get("anthropic_supports_effort", False) and theirs.get("anthropic_supports_max_effort", True),
    }
    assert ours.max_output == theirs.get("anthropic_max_output_tokens", ours.max_output)


def claude_facts(caps: Capabilities) -> dict[str, bool]:
    return {
        "adaptive": caps.thinking.adaptive,
        "budget": caps.thinking.budget,
        "always_on": caps.thinking.always_on,
        "between_tools": caps.thinking.between_tools,
        "binds_thinking": caps.binds_thinking,
        "forced_tool_choice": caps.forced_tool_choice,
        "sampling": caps.sampling,
        "json_schema": caps.json_schema,
        "effort": bool(caps.efforts),
        "xhigh": Effort.XHIGH in caps.efforts,
        "max": Effort.MAX in caps.efforts,
    }


@pytest.mark.parametrize("model", GEMINI)
def test_gemini_can_what_the_profile_says(model: str) -> None:
    ours = capability_catalog.capabilities("google", model, wire="bridge")
    theirs: dict[str, Any] = dict(google_model_profile(model) or {})

    if "image" in model:
        assert not theirs["supports_tools"]
        assert (ours.forced_tool_choice, ours.json_schema, ours.efforts) == (False, False, ())
        return
    assert ours.json_schema == theirs["supports_json_schema_output"]
    assert ours.reasoning_model == theirs["supports_thinking"]
    assert ours.thinking.always_on == theirs["thinking_always_enabled"]
    assert ours.forced_tool_choice
    if pinned := theirs.get("google_thinking_levels"):
        assert set(ours.efforts) == {Effort(level.lower()) for level in pinned}
    elif theirs.get("google_supports_thinking_level"):
        assert (Effort.MINIMAL in ours.efforts) == theirs["google_supports_minimal_thinking_level"]


@pytest.mark.parametrize("model", [model for model in GPT if model not in NOT_IN_THE_CATALOG])
def test_gpt_reasons_as_the_profile_says(model: str) -> None:
    ours = capability_catalog.capabilities("openai", model, wire="responses")
    theirs: dict[str, Any] = dict(openai_model_profile(model) or {})

    assert ours.reasoning_model == theirs.get("openai_supports_reasoning", False)
    if pinned := theirs.get("openai_reasoning_efforts"):
        assert set(ours.efforts) == {Effort(effort) for effort in pinned}
    else:
        assert (Effort.NONE in ours.efforts) == theirs.get("openai_supports_reasoning_effort_none", False)


# Events


def test_every_event_of_messages_is_understood() -> None:
    fold = AnthropicFold("Anthropic")
    for name in types_of(RawMessageStreamEvent):
        fold.feed(Event("", b'{"type":"%s"}' % name.encode()))

    assert types_of(RawMessageStreamEvent)
    assert fold.unknown == {}


def test_deltas_and_blocks_of_messages_are_those_that_are_handled() -> None:
    assert types_of(RawContentBlockDelta) == {
        "text_delta",
        "thinking_delta",
        "signature_delta",
        "input_json_delta",
        "citations_delta",
    }
    # Results of provider-executed tools are recognized by the suffix of their type. A `container_upload` is kept
    # unchanged.
    handled = {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "container_upload"}
    assert {name for name in types_of(ContentBlock) if not name.endswith("_tool_result")} == handled


def test_every_reason_of_messages_to_stop_is_mapped() -> None:
    assert literals(StopReason) == STOP_REASONS.keys()


# Events of tools that are never requested, and events that repeat the item events.
IGNORED_EVENTS = (
    "response.audio.",
    "response.code_interpreter_call",
    "response.compaction.",
    "response.custom_tool_call_input.",
    "response.file_search_call.",
    "response.image_generation_call.",
    "response.mcp_call",
    "response.mcp_list_tools.",
    "response.reasoning_summary_part.done",
    "response.shell_call_",
    "response.web_search_call.",
)
ITEMS = {
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "function_call",
    "function_call_output",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "message",
    "program",
    "program_output",
    "reasoning",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
}


def test_every_event_of_responses_is_understood_or_left_out_on_purpose() -> None:
    published = types_of(ResponseStreamEvent)

    unknown = {name for name in published - responses_events.KNOWN_TYPES if not name.startswith(IGNORED_EVENTS)}
    assert unknown == set()
    assert responses_events.KNOWN_TYPES - published == set(), "these events are gone"


def test_items_of_responses_are_those_that_were_thought_about() -> None:
    assert types_of(ResponseOutputItem) == ITEMS


def test_reasons_of_responses_to_be_incomplete_are_known() -> None:
    reasons = literals(IncompleteDetails.model_fields["reason"].annotation)

    # The other reasons become `other`. They belong to features that are never requested.
    assert reasons == {"max_output_tokens", "content_filter", "max_messages", "steered"}


def test_deltas_of_chat_completions_have_the_fields_that_are_read() -> None:
    assert ChoiceDelta.model_fields.keys() - Delta.__struct_fields__ == {"role", "audio"}
    reasons = literals(Choice.model_fields["finish_reason"].annotation)
    assert reasons - {"function_call"} <= {str(reason) for reason in FinishReason}


# Requests

REQUIRED: Mapping[Any, Collection[str]] = {
    MessageCreateParamsStreaming: {"max_tokens", "messages", "model", "stream"},
    ResponseCreateParamsStreaming: {"stream"},
    CompletionCreateParamsStreaming: {"messages", "model", "stream"},
}


@pytest.mark.parametrize("request_type", REQUIRED, ids=["messages", "responses", "completions"])
def test_requests_require_what_they_did(request_type: Any) -> None:
    hints = typing.get_type_hints(request_type, include_extras=True)

    required = {name for name, hint in hints.items() if typing.get_origin(hint) is typing.Required}
    assert required == REQUIRED[request_type]
