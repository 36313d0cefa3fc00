"""The catalog of capabilities of models by id, from a built-in table.

An administrator's setting overrides the report of the provider's model endpoint, and the report overrides the table.
In the table, the longest matching prefix counts. The defaults are conservative: no thinking parameters, no forced tool
choice, plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rookery.domain.chat.messages import Effort
from rookery.domain.models.options import CapabilityOverrides, ProviderType
from rookery.llm.types import Capabilities, Thinking, Wire

_NONE, _MINIMAL, _LOW, _MEDIUM, _HIGH, _XHIGH, _MAX = Effort
_LOW_TO_HIGH = (_LOW, _MEDIUM, _HIGH)
_LOW_TO_MAX = (*_LOW_TO_HIGH, _XHIGH, _MAX)

_BUDGET = Thinking(budget=True, disabled=True)
_BUDGET_OR_ADAPTIVE = Thinking(adaptive=True, budget=True, disabled=True)
_ADAPTIVE = Thinking(adaptive=True, disabled=True)
_ADAPTIVE_BY_DEFAULT = Thinking(adaptive=True, disabled=True, default_on=True)
_ALWAYS = Thinking(adaptive=True, default_on=True, always_on=True)
_BETWEEN_TOOLS = Thinking(adaptive=True, between_tools=True, default_on=True)


def _claude_4(max_output: int, thinking: Thinking = _BUDGET, **more: Any) -> Capabilities:
    return Capabilities(
        max_output=max_output,
        thinking=thinking,
        thinking_family="claude-4",
        forced_tool_choice=True,
        reasoning_model=True,
        **more,
    )


def _claude_5(thinking: Thinking, *, forced: bool, binds: bool) -> Capabilities:
    # Thinking that is bound to its prefix is valid only for the model that wrote it, so such models have no family.
    return Capabilities(
        max_output=128_000,
        thinking=thinking,
        efforts=_LOW_TO_MAX,
        binds_thinking=binds,
        thinking_family=None if binds else "claude-5",
        forced_tool_choice=forced,
        sampling=False,
        json_schema=True,
        reasoning_model=True,
    )


# Only the names of these models are published. The entry has the features of the whole family, and safe values for the
# rest: no forced tool choice, and no replayed thinking of other models. If the model binds its thinking, it refuses the
# call, and the replay ladder repairs it.
_UNVERIFIED_5 = msgspec.structs.replace(_claude_5(_ALWAYS, forced=False, binds=False), thinking_family=None)

CLAUDE: Mapping[str, Capabilities] = {
    "claude-3": Capabilities(max_output=4_096, forced_tool_choice=True),
    "claude-3-5": Capabilities(max_output=8_192, forced_tool_choice=True),
    "claude-3-7-sonnet": _claude_4(64_000),
    "claude-sonnet-4": _claude_4(64_000),
    "claude-opus-4": _claude_4(32_000),
    "claude-opus-4-1": _claude_4(32_000, json_schema=True),
    "claude-sonnet-4-5": _claude_4(64_000, json_schema=True),
    "claude-haiku-4-5": _claude_4(64_000, json_schema=True),
    "claude-opus-4-5": _claude_4(64_000, json_schema=True, efforts=_LOW_TO_HIGH),
    "claude-sonnet-4-6": _claude_4(128_000, _BUDGET_OR_ADAPTIVE, json_schema=True, efforts=(*_LOW_TO_HIGH, _MAX)),
    "claude-opus-4-6": _claude_4(128_000, _BUDGET_OR_ADAPTIVE, json_schema=True, efforts=(*_LOW_TO_HIGH, _MAX)),
    "claude-opus-4-7": _claude_4(128_000, _ADAPTIVE, json_schema=True, efforts=_LOW_TO_MAX, sampling=False),
    "claude-opus-4-8": _claude_4(128_000, _ADAPTIVE, json_schema=True, efforts=_LOW_TO_MAX, sampling=False),
    "claude-opus-5": _claude_5(_ADAPTIVE_BY_DEFAULT, forced=True, binds=False),
    "claude-sonnet-5": _claude_5(_ADAPTIVE_BY_DEFAULT, forced=True, binds=False),
    "claude-fable-5": _claude_5(_ALWAYS, forced=True, binds=False),
    "claude-mythos-5": _claude_5(_ALWAYS, forced=True, binds=False),
    "claude-fable-5-1": _claude_5(_ALWAYS, forced=False, binds=True),
    "claude-mythos-5-1": _claude_5(_ALWAYS, forced=False, binds=False),
    "claude-opus-5-5": _claude_5(_ALWAYS, forced=False, binds=True),
    "claude-sonnet-5-5": _claude_5(_BETWEEN_TOOLS, forced=False, binds=True),
    "claude-haiku-5-5": _claude_5(_ADAPTIVE_BY_DEFAULT, forced=True, binds=True),
    "claude-fable-5-2": _UNVERIFIED_5,
    "claude-mythos-5-2": _UNVERIFIED_5,
}


def _gpt(max_output: int | None, **more: Any) -> Capabilities:
    return Capabilities(max_output=max_output, forced_tool_choice=True, json_schema=True, **more)


def _reasoning(*efforts: Effort, max_output: int = 128_000) -> Capabilities:
    # Sampling is accepted if reasoning can be switched off; the wire sends it only then.
    return _gpt(max_output, efforts=efforts, reasoning_model=True, sampling=_NONE in efforts)


GPT: Mapping[str, Capabilities] = {
    "gpt-3.5": Capabilities(max_output=4_096, forced_tool_choice=True),
    "gpt-4": Capabilities(max_output=8_192, forced_tool_choice=True),
    "gpt-4-turbo": Capabilities(max_output=4_096, forced_tool_choice=True),
    "gpt-4o": _gpt(16_384),
    "gpt-4.1": _gpt(32_768),
    "gpt-4.5": _gpt(16_384),
    "gpt-5": _reasoning(_MINIMAL, *_LOW_TO_HIGH),
    "gpt-5-chat": _gpt(16_384),
    "gpt-5-codex": _reasoning(*_LOW_TO_HIGH),
    "gpt-5-pro": _reasoning(_HIGH),
    "gpt-5.1": _reasoning(_NONE, *_LOW_TO_HIGH),
    "gpt-5.1-chat": _reasoning(_MEDIUM, max_output=16_384),
    "gpt-5.1-codex": _reasoning(*_LOW_TO_HIGH),
    "gpt-5.2": _reasoning(_NONE, *_LOW_TO_HIGH, _XHIGH),
    "gpt-5.2-chat": _reasoning(_MEDIUM, max_output=16_384),
    "gpt-5.2-pro": _reasoning(_MEDIUM, _HIGH, _XHIGH),
    "gpt-5.3": _reasoning(_NONE, *_LOW_TO_HIGH, _XHIGH),
    "gpt-5.3-chat": _reasoning(_MEDIUM, max_output=16_384),
    "gpt-5.4": _reasoning(_NONE, *_LOW_TO_HIGH, _XHIGH),
    "gpt-5.4-pro": _reasoning(_MEDIUM, _HIGH, _XHIGH),
    "gpt-5.5": _reasoning(_NONE, *_LOW_TO_HIGH, _XHIGH),
    "gpt-5.5-pro": _reasoning(_MEDIUM, _HIGH, _XHIGH),
    "gpt-5.6": _reasoning(_NONE, *_LOW_TO_MAX),
    "gpt-6": _reasoning(_NONE, *_LOW_TO_MAX),
    "gpt-6-astra": _reasoning(*_LOW_TO_MAX),
    "gpt-6.1": _reasoning(_NONE, *_LOW_TO_MAX),
    "gpt-6.1-sol": _reasoning(*_LOW_TO_MAX),
    "o1": _reasoning(*_LOW_TO_HIGH, max_output=100_000),
    "o3": _reasoning(*_LOW_TO_HIGH, max_output=100_000),
    "o4": _reasoning(*_LOW_TO_HIGH, max_output=100_000),
}


def _gemini(*efforts: Effort, always_on: bool = False, max_output: int = 65_536) -> Capabilities:
    return Capabilities(
        max_output=max_output,
        thinking=Thinking(default_on=bool(efforts), always_on=always_on),
        efforts=efforts,
        forced_tool_choice=True,
        json_schema=True,
        reasoning_model=bool(efforts),
    )


# Generates images and accepts no tools.
_IMAGE_MODEL = Capabilities(max_output=32_768)
_FLASH_3 = _gemini(_MINIMAL, *_LOW_TO_HIGH)

GEMINI: Mapping[str, Capabilities] = {
    "gemini-2.0-flash": _gemini(max_output=8_192),
    "gemini-2.5-flash": _gemini(_NONE, *_LOW_TO_HIGH),
    "gemini-2.5-flash-image": _IMAGE_MODEL,
    "gemini-2.5-pro": _gemini(*_LOW_TO_HIGH, always_on=True),
    "gemini-3-flash": _FLASH_3,
    "gemini-3-pro": _gemini(_LOW, _HIGH, always_on=True),
    "gemini-3-pro-image": _IMAGE_MODEL,
    "gemini-3.1-flash-image": _IMAGE_MODEL,
    "gemini-3.1-flash-lite": _FLASH_3,
    "gemini-3.1-flash-lite-image": _IMAGE_MODEL,
    "gemini-3.1-pro": _gemini(*_LOW_TO_HIGH, always_on=True),
    "gemini-3.5-flash": _FLASH_3,
    "gemini-3.6-flash": _FLASH_3,
    "gemini-3.7-flash": _gemini(*_LOW_TO_HIGH),
    "gemini-3.8-flash": _gemini(*_LOW_TO_HIGH),
    "gemini-4-argon": _gemini(*_LOW_TO_HIGH),
    "gemini-flash": _FLASH_3,
}

# Models that the Responses endpoint refuses.
_COMPLETIONS_ONLY = ("gpt-4o-audio", "gpt-4o-mini-audio", "gpt-4o-search", "gpt-4o-mini-search", "gpt-audio")

_TABLES: Mapping[str, tuple[Mapping[str, Capabilities], ...]] = {
    ProviderType.ANTHROPIC: (CLAUDE,),
    ProviderType.BEDROCK: (CLAUDE,),
    ProviderType.OPENAI: (GPT,),
    ProviderType.AZURE_OPENAI: (GPT,),
    ProviderType.OPENROUTER: (CLAUDE, GPT, GEMINI),
    ProviderType.GOOGLE: (GEMINI,),
    ProviderType.BRIDGE: (CLAUDE, GPT, GEMINI),
}

_IMAGES_AND_PDF = ("image/*", "application/pdf")
_WITH_AUDIO = (*_IMAGES_AND_PDF, "audio/wav", "audio/mpeg", "audio/mp3")
_MEDIA_BY_WIRE: Mapping[Wire, tuple[str, ...]] = {
    "anthropic": ("image/*", "text/*", "application/pdf"),
    "responses": _IMAGES_AND_PDF,
    "completions": _WITH_AUDIO,
    "bridge": (),
    "scripted": ("*/*",),
}
# By provider type. For the type `bridge`, by the library's name of the provider, which is before the colon.
_MEDIA_BY_BRIDGED: Mapping[str, tuple[str, ...]] = {
    ProviderType.BEDROCK: ("image/*", "text/*", "application/pdf"),
    ProviderType.GOOGLE: ("*/*",),
    "google-cloud": ("*/*",),
    "anthropic": ("image/*", "text/*", "application/pdf"),
    "openai": _IMAGES_AND_PDF,
}

# The end of a version. A date, a snapshot or a variant may follow, but not the digits of another version. Newer models
# therefore get the defaults, not the entry of an older model. Some providers write `-0` for "no minor version".
_ENDS = re.compile(r"(?![-.](?!0\b)\d{1,2}(?!\d))(?:[-.:@]|$)")


def capabilities(
    provider_type: str,
    model: str,
    *,
    wire: Wire,
    reported: Capabilities | None = None,
    overrides: CapabilityOverrides | None = None,
) -> Capabilities:
    """Return the capabilities of this model on this wire. `reported` is from the provider's model endpoint."""
    found = reported or built_in(provider_type, model) or Capabilities()
    if wire == "completions":
        # On this wire, thinking is only an effort, and signed thinking cannot be replayed.
        found = msgspec.structs.replace(found, thinking=Thinking(), binds_thinking=False, thinking_family=None)
    media = _media_of_bridged(provider_type, model) if wire == "bridge" else _MEDIA_BY_WIRE[wire]
    found = msgspec.structs.replace(found, media_types=media)
    if overrides is None:
        return found
    given = {name: value for name, value in msgspec.structs.asdict(overrides).items() if value is not None}
    return msgspec.structs.replace(found, **given)


def built_in(provider_type: str, model: str) -> Capabilities | None:
    """Return the table's entry with the longest matching prefix; None if there is none."""
    if provider_type == ProviderType.BRIDGE:
        model = model.partition(":")[2] or model
    name = bare_name(model)
    for table in _TABLES.get(provider_type, ()):
        # Some providers write versions with dots: `claude-sonnet-4.5`.
        folded = name.replace(".", "-") if table is CLAUDE else name
        fitting = [prefix for prefix in table if _fits(folded, prefix)]
        if fitting:
            return table[max(fitting, key=len)]
    return None


def _media_of_bridged(provider_type: str, model: str) -> tuple[str, ...]:
    library = model.partition(":")[0] if provider_type == ProviderType.BRIDGE else provider_type
    return _MEDIA_BY_BRIDGED.get(library.removeprefix("gateway/"), ())


def is_completions_only(model: str) -> bool:
    return bare_name(model).startswith(_COMPLETIONS_ONLY)


def bare_name(model: str) -> str:
    """Return the name of the model without the prefix of a gateway: `us.anthropic.claude-...`, `openai/gpt-...`."""
    name = model.lower().rpartition("/")[2]
    return name.rpartition("anthropic.")[2]


def _fits(name: str, prefix: str) -> bool:
    """Return whether a prefix matches up to the end of a version.

    `gpt-4` does not match `gpt-4o`, and `claude-opus-5` does not match `claude-opus-5-9`.
    """
    return name.startswith(prefix) and _ENDS.match(name, len(prefix)) is not None
