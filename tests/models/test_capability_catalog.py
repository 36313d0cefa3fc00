"""The catalog, compared with published facts and with an independent table."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.profiles.anthropic import anthropic_model_profile
from pydantic_ai.profiles.openai import openai_model_profile

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.models.options import CapabilityOverrides, EffortRange
from rookery.llm import reasoning_effort
from rookery.llm.types import Capabilities, Thinking, Wire
from rookery.models import capability_catalog

NONE, MINIMAL, LOW, MEDIUM, HIGH, XHIGH, MAX = Effort


def claude(model: str) -> Capabilities:
    return capability_catalog.capabilities("anthropic", model, wire="anthropic")


@pytest.mark.parametrize(
    ("model", "adaptive", "budget"),
    [
        ("claude-sonnet-4-5-20250929", False, True),
        ("claude-opus-4-6", True, True),
        ("claude-sonnet-4-6", True, True),
        ("claude-opus-4-7", True, False),
        ("claude-opus-4-8", True, False),
        ("claude-sonnet-5", True, False),
        ("claude-haiku-5-5", True, False),
        ("claude-opus-5-20260601", True, False),
    ],
)
def test_adaptive_and_budget_thinking_by_generation(model: str, adaptive: bool, budget: bool) -> None:
    thinking = claude(model).thinking

    assert (thinking.adaptive, thinking.budget) == (adaptive, budget)


def test_catalog_lists_models_that_always_think_bind_thinking_and_cannot_be_forced() -> None:
    models = [
        prefix for prefix in capability_catalog.CLAUDE if "-5" in prefix[8:] and prefix.rpartition("-")[0] != "claude-3"
    ]
    five = [model for model in models if claude(model).thinking_family != "claude-4"]

    assert {m for m in five if claude(m).thinking.always_on} == {
        "claude-fable-5",
        "claude-fable-5-1",
        "claude-fable-5-2",
        "claude-mythos-5",
        "claude-mythos-5-1",
        "claude-mythos-5-2",
        "claude-opus-5-5",
    }
    assert {m for m in five if claude(m).binds_thinking} == {
        "claude-fable-5-1",
        "claude-opus-5-5",
        "claude-sonnet-5-5",
        "claude-haiku-5-5",
    }
    assert {m for m in five if not claude(m).forced_tool_choice} == {
        "claude-fable-5-1",
        "claude-fable-5-2",
        "claude-mythos-5-1",
        "claude-mythos-5-2",
        "claude-opus-5-5",
        "claude-sonnet-5-5",
    }
    assert [m for m in capability_catalog.CLAUDE if claude(m).thinking.between_tools] == ["claude-sonnet-5-5"]


# Too old for the other table, or only named in it.
NOT_COMPARED = ("claude-3", "claude-3-5", "claude-fable-5-2", "claude-mythos-5-2")


def test_models_known_by_name_alone_are_asked_for_nothing_that_one_of_the_family_refuses() -> None:
    for model in ("claude-fable-5-2", "claude-mythos-5-2-20261101"):
        caps = claude(model)
        assert (caps.forced_tool_choice, caps.sampling, caps.thinking_family) == (False, False, None)
        assert caps.thinking.budget is False
        assert caps.thinking.always_on


@pytest.mark.parametrize("model", [model for model in capability_catalog.CLAUDE if model not in NOT_COMPARED])
def test_claude_table_agrees_with_an_independent_one(model: str) -> None:
    ours, theirs = claude(model), dict(anthropic_model_profile(model) or {})

    assert ours.thinking.adaptive == theirs.get("anthropic_supports_adaptive_thinking", False)
    assert ours.thinking.budget != theirs.get("anthropic_disallows_budget_thinking", False)
    assert ours.sampling != theirs.get("anthropic_disallows_sampling_settings", False)
    assert ours.binds_thinking == theirs.get("anthropic_binds_thinking_blocks", False)
    assert ours.forced_tool_choice == theirs.get("supports_forced_tool_choice", True)
    assert ours.thinking.always_on == theirs.get("thinking_always_enabled", False)
    assert ours.thinking.between_tools == theirs.get("anthropic_disables_thinking_with_between_tools", False)
    assert bool(ours.efforts) == theirs.get("anthropic_supports_effort", False)
    assert (XHIGH in ours.efforts) == theirs.get("anthropic_supports_xhigh_effort", False)
    assert ours.json_schema == theirs.get("supports_json_schema_output", False)
    if (limit := theirs.get("anthropic_max_output_tokens")) is not None:
        assert ours.max_output == limit


# Names of families, which no model has alone.
FAMILY_NAMES = ("gpt-6", "gpt-6.1")


@pytest.mark.parametrize("model", [model for model in capability_catalog.GPT if model not in FAMILY_NAMES])
def test_gpt_table_agrees_with_an_independent_one(model: str) -> None:
    ours = capability_catalog.capabilities("openai", model, wire="responses")
    theirs: dict[str, Any] = dict(openai_model_profile(model) or {})

    assert ours.reasoning_model == theirs.get("openai_supports_reasoning", False)
    if pinned := theirs.get("openai_reasoning_efforts"):
        assert set(ours.efforts) == {Effort(each) for each in pinned}
    else:
        assert (NONE in ours.efforts) == theirs.get("openai_supports_reasoning_effort_none", False)


@pytest.mark.parametrize(
    ("type_", "model", "same_as"),
    [
        ("openrouter", "anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("bedrock", "eu.anthropic.claude-opus-4-6-v1:0", "claude-opus-4-6"),
        ("anthropic", "claude-sonnet-4-0", "claude-sonnet-4"),
        ("anthropic", "Claude-Opus-5-5@20261001", "claude-opus-5-5"),
    ],
)
def test_model_is_known_under_the_names_gateways_give_it(type_: str, model: str, same_as: str) -> None:
    assert capability_catalog.built_in(type_, model) == capability_catalog.CLAUDE[same_as]


@pytest.mark.parametrize(
    ("type_", "model"),
    [
        ("anthropic", "claude-opus-5-9"),
        ("anthropic", "claude-opus-6"),
        ("anthropic", "claude-instant"),
        ("openai", "gpt-5.9"),
        ("openai", "gpt-7"),
        ("openai", "o10"),
        ("openai_compat", "gpt-5"),
        ("scripted", "claude-opus-5"),
    ],
)
def test_unknown_model_gets_the_conservative_defaults(type_: str, model: str) -> None:
    assert capability_catalog.built_in(type_, model) is None

    caps = capability_catalog.capabilities(type_, model, wire="responses")
    assert (caps.thinking, caps.efforts, caps.forced_tool_choice, caps.json_schema) == (Thinking(), (), False, False)


@pytest.mark.parametrize(
    ("type_", "wire", "accepted", "refused"),
    [
        ("anthropic", "anthropic", ["image/png", "text/markdown; charset=utf-8", "application/pdf"], ["audio/wav"]),
        ("openai", "responses", ["image/png", "application/pdf"], ["text/plain", "audio/wav"]),
        ("openai", "completions", ["image/png", "application/pdf", "audio/wav"], ["text/plain"]),
        ("google", "bridge", ["video/mp4"], []),
        ("bedrock", "bridge", ["text/plain"], ["audio/wav"]),
        ("bridge", "bridge", [], ["image/png", "text/plain"]),
    ],
)
def test_media_depend_on_the_wire(type_: str, wire: Wire, accepted: list[str], refused: list[str]) -> None:
    caps = capability_catalog.capabilities(type_, "m", wire=wire)

    assert all(caps.accepts(media) for media in accepted)
    assert not any(caps.accepts(media) for media in refused)


@pytest.mark.parametrize(
    ("model", "json_schema", "accepted"),
    [
        ("google:gemini-2.5-pro", True, "video/mp4"),
        ("google-cloud:gemini-3.8-flash", True, "audio/wav"),
        ("anthropic:claude-opus-5", True, "text/plain"),
        ("bedrock:eu.anthropic.claude-sonnet-4-5-20250929-v1:0", True, "application/pdf"),
        ("openai:gpt-5.1", True, "image/png"),
        ("gateway/google:gemini-2.5-flash", True, "video/mp4"),
        ("groq:llama-3.3-70b-versatile", False, None),
        ("no-colon", False, None),
    ],
)
def test_bridged_model_is_looked_up_by_its_own_name(model: str, json_schema: bool, accepted: str | None) -> None:
    caps = capability_catalog.capabilities("bridge", model, wire="bridge")

    assert caps.json_schema is json_schema
    assert caps.forced_tool_choice is json_schema
    assert caps.media_types == () if accepted is None else caps.accepts(accepted)


def test_gemini_thinks_as_its_generation_does() -> None:
    def gemini(model: str) -> Capabilities:
        return capability_catalog.capabilities("google", model, wire="bridge")

    assert gemini("gemini-2.0-flash").efforts == ()
    assert Effort.NONE in gemini("gemini-2.5-flash-preview-09-2025").efforts
    assert gemini("gemini-2.5-pro").thinking.always_on
    assert gemini("gemini-3-pro-preview").efforts == (LOW, HIGH)
    assert gemini("gemini-2.5-flash-image").forced_tool_choice is False
    assert gemini("gemini-9-unheard-of").json_schema is False


def test_administrator_wins_over_the_provider_who_wins_over_the_table() -> None:
    reported = Capabilities(max_output=7, sampling=False, efforts=(LOW,))
    overrides = CapabilityOverrides(max_output=9, media_types=("image/png",))

    caps = capability_catalog.capabilities(
        "anthropic", "claude-opus-5", wire="anthropic", reported=reported, overrides=overrides
    )

    assert (caps.max_output, caps.sampling, caps.efforts, caps.media_types) == (9, False, (LOW,), ("image/png",))


def test_thinking_has_no_parameters_on_the_completions_wire() -> None:
    caps = capability_catalog.capabilities("openrouter", "anthropic/claude-opus-5.5", wire="completions")

    assert (caps.thinking, caps.binds_thinking, caps.efforts) == (Thinking(), False, (LOW, MEDIUM, HIGH, XHIGH, MAX))


def test_models_that_only_speak_completions_are_marked() -> None:
    assert capability_catalog.is_completions_only("gpt-4o-search-preview")
    assert not capability_catalog.is_completions_only("gpt-4o")


# Reasoning effort


@pytest.mark.parametrize(
    ("requested", "allowed", "gets"),
    [
        (None, EffortRange(MEDIUM, HIGH), MEDIUM),
        (LOW, EffortRange(MEDIUM, HIGH), LOW),
        (NONE, EffortRange(MEDIUM, HIGH), NONE),
        (MAX, EffortRange(MEDIUM, HIGH), HIGH),
        (MAX, None, None),
        (None, None, None),
    ],
)
def test_effort_of_a_turn(requested: Effort | None, allowed: EffortRange | None, gets: Effort | None) -> None:
    assert reasoning_effort.effective(requested, allowed) == gets


def test_selectable_efforts_go_up_to_the_maximum() -> None:
    assert reasoning_effort.selectable(EffortRange(LOW, MEDIUM)) == (NONE, MINIMAL, LOW, MEDIUM)
    assert reasoning_effort.selectable(None) == ()


def test_effort_that_is_not_on_the_scale_is_invalid() -> None:
    assert reasoning_effort.parse("xhigh") is XHIGH
    assert reasoning_effort.parse(None) is None
    with pytest.raises(InvalidInput) as caught:
        reasoning_effort.parse("extreme")
    assert caught.value.field == "reasoning_effort"


@pytest.mark.parametrize(
    ("effort", "supported", "sent"),
    [
        (MINIMAL, (LOW, HIGH), LOW),
        (MEDIUM, (HIGH, LOW), HIGH),
        (MAX, (LOW, HIGH), HIGH),
        (NONE, (NONE, LOW), NONE),
        (HIGH, (), None),
    ],
)
def test_effort_becomes_the_nearest_supported_at_or_above(
    effort: Effort, supported: tuple[Effort, ...], sent: Effort | None
) -> None:
    assert reasoning_effort.nearest_supported(effort, supported) == sent
