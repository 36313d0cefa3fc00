"""Settings and parameters of requests to pydantic-ai models, and warnings about those that cannot be sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.profiles import ModelProfile

from rookery.domain.chat.messages import Effort
from rookery.llm.completions.dialects import CompletionsOptions
from rookery.llm.types import Capabilities, JsonFormat, Tool, WebSearch
from tests.llm.bridge_rig import Asked, PlayedModel, ask, asking, bridged, drain, text, warnings_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
LOOK = Tool(name="look", description="Look.", input_schema=SCHEMA)
THINKS = ModelProfile(supports_thinking=True)


# Settings


async def test_settings_are_sent() -> None:
    call = asking(
        max_output_tokens=5000, temperature=0.5, top_p=0.9, top_k=40, presence_penalty=0.1, frequency_penalty=0.2
    )

    asked, warnings = await ask(call, caps=Capabilities(max_output=4000))

    assert warnings == {}
    assert asked.settings == {
        "max_retries": 0,
        "timeout": 660.0,
        "max_tokens": 4000,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }


async def test_settings_that_the_model_ignores_are_told() -> None:
    call = asking(top_k=40, temperature=0.5, headers={"x-trace": "1"})
    ignores: frozenset[Any] = frozenset({"top_k", "extra_headers", "timeout", "max_retries"})

    asked, warnings = await ask(call, ignores=ignores)

    assert asked.settings == {"temperature": 0.5}
    assert set(warnings) == {"top_k", "headers"}


async def test_model_without_sampling_gets_none() -> None:
    asked, warnings = await ask(asking(temperature=0.5), caps=Capabilities(sampling=False))

    assert "temperature" not in asked.settings
    assert warnings == {"temperature": "This model does not accept temperature; it was left out."}


async def test_headers_are_sent_and_those_of_the_provider_win() -> None:
    model = PlayedModel([text("Yes.")])

    await drain(bridged(model, headers={"x-team": "rooks"}), asking(headers={"x-team": "crows", "x-trace": "1"}))

    assert model.asked[0].settings["extra_headers"] == {"x-team": "rooks", "x-trace": "1"}


async def test_cache_is_asked_for_where_it_must_be() -> None:
    asked, _ = await ask(asking(), profile=ModelProfile(supports_cache=True))

    assert asked.settings["cache"] is True


async def test_options_of_another_wire_are_told() -> None:
    _, warnings = await ask(asking(options=CompletionsOptions()))

    assert set(warnings) == {"options"}


@pytest.mark.parametrize(
    ("effort", "efforts", "thinking_level"),
    [
        (Effort.NONE, (), False),
        (Effort.HIGH, (), "high"),
        (Effort.MINIMAL, (Effort.LOW, Effort.HIGH), "low"),
        (Effort.MAX, (Effort.LOW, Effort.HIGH), "high"),
    ],
)
async def test_effort_is_the_nearest_the_model_has(
    effort: Effort, efforts: tuple[Effort, ...], thinking_level: object
) -> None:
    asked, warnings = await ask(asking(effort=effort), caps=Capabilities(efforts=efforts), profile=THINKS)

    assert asked.parameters.thinking == thinking_level
    assert warnings == {}


async def test_effort_of_a_model_that_does_not_think_is_told() -> None:
    asked, warnings = await ask(asking(effort=Effort.HIGH))
    _, unasked = await ask(asking(effort=Effort.NONE))

    assert "thinking" not in asked.settings
    assert set(warnings) == {"effort"}
    assert unasked == {}


async def test_model_that_always_thinks_cannot_be_told_not_to() -> None:
    asked, warnings = await ask(asking(effort=Effort.NONE), profile=ModelProfile(thinking_always_enabled=True))

    assert asked.parameters.thinking is False
    assert set(warnings) == {"effort"}


# Tools and formats


async def test_tools_are_sent_by_name_with_their_schemas() -> None:
    bare = Tool(name="go", description="Go.", input_schema={"type": "object"})

    asked, _ = await ask(asking(tools=(LOOK, bare)))

    sent_tools = [(t.name, t.description, t.parameters_json_schema) for t in asked.parameters.function_tools]
    assert sent_tools == [("go", "Go.", {"type": "object", "properties": {}}), ("look", "Look.", SCHEMA)]
    assert "tool_choice" not in asked.settings


@pytest.mark.parametrize(("choice", "sent_as"), [("none", "none"), ("required", "required"), ("look", ["look"])])
async def test_tool_choice(choice: str, sent_as: object) -> None:
    asked, warnings = await ask(asking(tools=(LOOK,), tool_choice=choice))

    assert asked.settings["tool_choice"] == sent_as
    assert warnings == {}


@pytest.mark.parametrize(
    ("profile", "fields"),
    [
        (ModelProfile(supports_forced_tool_choice=False), {}),
        (ModelProfile(supports_forced_tool_choice_with_thinking=False, thinking_always_enabled=True), {}),
        (ModelProfile(supports_forced_tool_choice_with_thinking=False, thinking_enabled_by_default=True), {}),
        (
            ModelProfile(supports_forced_tool_choice_with_thinking=False, supports_thinking=True),
            {"effort": Effort.HIGH},
        ),
    ],
)
async def test_model_that_cannot_be_forced_chooses_itself(profile: ModelProfile, fields: dict[str, Any]) -> None:
    asked, warnings = await ask(asking(tools=(LOOK,), tool_choice="required", **fields), profile=profile)

    assert "tool_choice" not in asked.settings
    assert "tool_choice" in warnings


async def test_tool_is_not_forced_on_bedrock_while_a_model_thinks() -> None:
    profile: Any = {"bedrock_supports_tool_choice": True, "supports_thinking": True}
    call = asking(tools=(LOOK,), tool_choice="required")

    calm, _ = await ask(call, profile=profile, system="bedrock")
    thinking, warnings = await ask(msgspec.structs.replace(call, effort=Effort.HIGH), profile=profile, system="bedrock")
    unable, told = await ask(call, profile=ModelProfile(), system="bedrock")

    assert calm.settings["tool_choice"] == "required"
    assert "tool_choice" not in thinking.settings
    assert set(warnings) == {"tool_choice"}
    assert "tool_choice" not in unable.settings
    assert set(told) == {"tool_choice"}


@pytest.mark.parametrize(("variant", "is_sent"), [("anthropic", True), (None, False)])
async def test_top_k_is_sent_on_bedrock_to_the_families_that_take_it(variant: str | None, is_sent: bool) -> None:
    profile: Any = {"bedrock_top_k_variant": variant}

    asked, warnings = await ask(asking(top_k=40), profile=profile, system="bedrock")

    assert ("top_k" in asked.settings, "top_k" in warnings) == (is_sent, not is_sent)


async def test_claude_on_bedrock_thinks_within_its_limit_and_without_sampling() -> None:
    profile: Any = {
        "bedrock_thinking_variant": "anthropic",
        "bedrock_top_k_variant": "anthropic",
        "supports_thinking": True,
    }
    call = asking(max_output_tokens=9000, temperature=0.5, effort=Effort.HIGH)

    thinking, warnings = await ask(call, profile=profile, system="bedrock")
    calm, none = await ask(msgspec.structs.replace(call, effort=None), profile=profile, system="bedrock")

    assert thinking.settings["max_tokens"] == 16384 + 4096
    assert "temperature" not in thinking.settings
    assert set(warnings) == {"temperature"}
    assert (calm.settings["max_tokens"], calm.settings["temperature"], none) == (9000, 0.5, {})


async def test_tool_that_does_not_exist_cannot_be_forced() -> None:
    asked, warnings = await ask(asking(tools=(LOOK,), tool_choice="jump"))

    assert "tool_choice" not in asked.settings
    assert "'jump'" in warnings["tool_choice"]


async def test_json_format_is_native_output() -> None:
    call = asking(format=JsonFormat("answer", SCHEMA))

    asked, warnings = await ask(call, profile=ModelProfile(supports_json_schema_output=True))

    assert warnings == {}
    assert asked.parameters.output_mode == "native"
    assert asked.parameters.output_object is not None
    assert (asked.parameters.output_object.name, asked.parameters.output_object.json_schema) == ("answer", SCHEMA)


async def test_json_format_of_a_model_without_it_is_told() -> None:
    asked, warnings = await ask(asking(format=JsonFormat("answer", SCHEMA)))

    assert asked.parameters.output_mode == "text"
    assert set(warnings) == {"format"}


class Searching(PlayedModel):
    """A model with a web search that does not support a list of blocked domains."""

    @classmethod
    def supported_native_tools(cls) -> Any:
        return frozenset({WebSearchTool})

    def unsupported_native_tool_settings(self, native_tool: Any) -> frozenset[str]:
        return frozenset({"blocked_domains"}) if native_tool.blocked_domains else frozenset()


async def search_with(search: WebSearch, **fields: Any) -> tuple[Asked, dict[str, str]]:
    model = Searching([text("Yes.")], system=fields.pop("system", "played"))
    parts = await drain(bridged(model), asking(web_search=search, **fields))
    return model.asked[0], warnings_of(parts)


async def test_web_search_is_a_native_tool() -> None:
    search = WebSearch(allowed_domains=("a.example",), max_uses=3, user_location={"city": "Bonn"}, context_size="low")

    asked, warnings = await search_with(search, tools=(LOOK,))

    assert warnings == {}
    assert asked.parameters.native_tools == [
        WebSearchTool(
            allowed_domains=["a.example"], max_uses=3, user_location={"city": "Bonn"}, search_context_size="low"
        )
    ]


async def test_web_search_that_cannot_be_restricted_is_switched_off() -> None:
    asked, warnings = await search_with(WebSearch(blocked_domains=("b.example",)))

    assert asked.parameters.native_tools == []
    assert "blocked_domains" in warnings["web_search"]


async def test_web_search_of_a_model_without_one_is_told() -> None:
    asked, warnings = await ask(asking(web_search=WebSearch()))

    assert asked.parameters.native_tools == []
    assert set(warnings) == {"web_search"}


async def test_google_searches_only_without_other_tools() -> None:
    alone, none = await search_with(WebSearch(), system="google")
    beside, told = await search_with(WebSearch(), system="google", tools=(LOOK,))

    assert len(alone.parameters.native_tools) == 1
    assert none == {}
    assert beside.parameters.native_tools == []
    assert set(told) == {"web_search"}
