"""Every option of a model config changes the request of its wire, or is listed as ignored by the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.models import options as models_options
from rookery.domain.models.options import FAMILIES, ModelOptions, ProviderType
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.types import Call, JsonFormat, Tool, Wire
from rookery.llm.wire import Request
from rookery.models import call_options, capability_catalog
from tests.store.models.test_model_configs import GOOD

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
PROMPT = Prompt(
    (
        PromptMessage(role=Role.USER, parts=(PromptText("Hi."),)),
        PromptMessage(
            role=Role.ASSISTANT,
            parts=(PromptReasoning("A greeting.", meta={"reasoning_field": "reasoning_content"}), PromptText("Hi.")),
            is_native=True,
            is_whole=True,
        ),
        PromptMessage(role=Role.USER, parts=(PromptText("Hello."),)),
        PromptMessage(
            role=Role.ASSISTANT,
            parts=(
                PromptReasoning("Hm.", meta={"signature": "s"}),
                PromptCall(id="c1", name="look", input=msgspec.Raw(b'{"a":"b"}')),
            ),
            is_native=True,
            is_whole=True,
        ),
        PromptMessage(role=Role.TOOL, parts=(PromptResult(id="c1", name="look", text="seen"),)),
    )
)
CALL = Call(prompt=PROMPT, tools=(Tool(name="look", description="Look.", input_schema=SCHEMA),))
TYPES: dict[Wire, tuple[ProviderType, ...]] = {
    "anthropic": (ProviderType.ANTHROPIC,),
    "responses": (ProviderType.OPENAI,),
    "completions": (ProviderType.OPENAI, ProviderType.OPENAI_COMPAT),
}
MODELS = ("claude-sonnet-4-5", "claude-sonnet-4-6", "claude-opus-5-5", "gpt-4o", "gpt-5.2")
CASES = [
    (wire, name)
    for wire, types in TYPES.items()
    for name in sorted(frozenset().union(*(FAMILIES[type_] for type_ in types)) - call_options.DECIDED_BEFORE)
]


def requests(wire: Wire, options: ModelOptions) -> Iterator[tuple[Request, object]]:
    """Return requests of several models with and without effort, because some options have an effect only with some."""
    for type_ in TYPES[wire]:
        for model in MODELS:
            if (known := capability_catalog.built_in("openrouter", model)) is None:
                continue
            caps = capability_catalog.capabilities(type_, model, wire=wire, reported=known)
            for effort in (None, Effort.NONE, Effort.HIGH):
                for format in (None, JsonFormat("answer", SCHEMA)):
                    call = msgspec.structs.replace(CALL, effort=effort, format=format)
                    yield build(wire, type_, call_options.with_options(call, options, wire=wire), model, caps)


def build(wire: Wire, type_: ProviderType, call: Call, model: str, caps: Any) -> tuple[Request, object]:
    """Return the request, and the setting that decides how its answer is read."""
    if wire == "anthropic":
        return AnthropicFormat(model, caps).build(call), None
    if wire == "responses":
        return ResponsesFormat(model, caps).build(call), None
    return CompletionsFormat(model, caps, provider_type=type_).build(call), getattr(call.options, "think_tags", None)


@pytest.mark.parametrize(("wire", "name"), CASES)
def test_option_is_sent_or_listed_as_not_taken(wire: Wire, name: str) -> None:
    base: dict[str, object] = {}
    if name in call_options.WEB_SEARCH and name != "web_search_enabled":
        base["web_search_enabled"] = True
    elif name == "max_tokens_field":
        base["max_output_tokens"] = 4096  # without a limit, the field is missing
    without = msgspec.convert(base, ModelOptions)
    with_it = msgspec.convert({**base, name: GOOD[name]}, ModelOptions)

    shows = list(requests(wire, without)) != list(requests(wire, with_it))

    assert shows is (name not in call_options.NOT_SENT[wire])


@pytest.mark.parametrize("wire", TYPES)
def test_list_of_options_not_taken_names_only_options_there_are(wire: Wire) -> None:
    assert call_options.NOT_SENT[wire] <= set(ModelOptions.__struct_fields__)


def test_options_of_the_call_take_precedence_over_the_config() -> None:
    call = msgspec.structs.replace(CALL, max_output_tokens=64, temperature=0.0)
    options = models_options.parse_model_options(ProviderType.ANTHROPIC, {"temperature": 1, "top_k": 5})

    applied = call_options.with_options(call, options, wire="anthropic")

    assert (applied.max_output_tokens, applied.temperature, applied.top_k) == (64, 0.0, 5)


def test_scripted_models_take_the_common_options_alone() -> None:
    applied = call_options.with_options(CALL, ModelOptions(temperature=0.5), wire="scripted")

    assert (applied.options, applied.temperature, applied.max_output_tokens) == (None, 0.5, None)
