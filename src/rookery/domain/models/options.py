"""Options of providers and of model configs: their types and ranges, and the provider types that support them.

An unknown option is refused by name, so that a typo is noticed. The wires read `ModelOptions`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import Effort
from rookery.domain.content import value_descriptions

DEFAULT_MAX_OUTPUT_TOKENS = 32_000


class ProviderType(StrEnum):
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    AZURE_OPENAI = "azure_openai"
    OPENAI_COMPAT = "openai_compat"
    OPENROUTER = "openrouter"
    GOOGLE = "google"
    BEDROCK = "bedrock"
    BRIDGE = "bridge"
    SCRIPTED = "scripted"


# Other types have a configured address, or need none.
DEFAULT_BASE_URLS: Mapping[str, str] = {
    ProviderType.ANTHROPIC: "https://api.anthropic.com",
    ProviderType.OPENAI: "https://api.openai.com/v1",
    ProviderType.OPENROUTER: "https://openrouter.ai/api/v1",
    ProviderType.GOOGLE: "https://generativelanguage.googleapis.com",
}
# Types that work without a key: they use credentials of the machine, a local server without keys, or no server.
KEYLESS: frozenset[str] = frozenset(
    {
        ProviderType.BEDROCK,
        ProviderType.GOOGLE,
        ProviderType.BRIDGE,
        ProviderType.OPENAI_COMPAT,
        ProviderType.SCRIPTED,
    }
)

Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Silence: TypeAlias = Annotated[int, Meta(ge=5, le=7200)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Domain: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[^\s/]+(/\S*)?$",
        max_length=253,
        description="a domain such as example.org, with a path if needed, of at most 253 characters",
    ),
]
Place: TypeAlias = Annotated[
    str, Meta(pattern="^(city|region|country|timezone)$", description="'city', 'region', 'country' or 'timezone'")
]


class EffortRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The default effort of a chat, and the highest effort that it may request."""

    default: Effort
    max: Effort


class ThinkingBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    budget_tokens: Annotated[int, Meta(ge=1024, le=2**31)]


class CapabilityOverrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Capabilities that an administrator sets instead of the catalog, named as in `llm.types.Capabilities`."""

    max_output: Count | None = None
    efforts: tuple[Effort, ...] | None = None
    forced_tool_choice: bool | None = None
    sampling: bool | None = None
    json_schema: bool | None = None
    reasoning_model: bool | None = None
    media_types: tuple[Name, ...] | None = None


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All options of models. None means that an option is not set.

    `FAMILIES` maps each provider type to the options that it supports.
    """

    # common
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Count | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    reasoning_effort: EffortRange | None = None
    fallbacks: Annotated[tuple[UUID, ...], Meta(max_length=10)] = ()
    capabilities: CapabilityOverrides | None = None
    # the seconds that the provider may send nothing, before the first byte of an answer and within it
    first_byte_seconds: Silence | None = None
    silence_seconds: Silence | None = None
    # anthropic
    send_reasoning: bool | None = None
    thinking: ThinkingBudget | None = None
    thinking_display: Literal["summarized", "omitted"] | None = None
    disable_parallel_tool_use: bool | None = None
    cache_ttl: Literal["5m", "1h"] | None = None
    context_1m: bool | None = None
    # the provider's own web search
    web_search_enabled: bool | None = None
    web_search_version: (
        Annotated[str, Meta(pattern=r"^web_search_\d{8}$", description="a version such as web_search_20250305")] | None
    ) = None
    web_search_max_uses: Count | None = None
    web_search_user_location: Mapping[Place, Name] | None = None
    web_search_context_size: Literal["low", "medium", "high"] | None = None
    allowed_domains: tuple[Domain, ...] = ()
    blocked_domains: tuple[Domain, ...] = ()
    # openai
    use_responses_api: bool | None = None
    store: bool | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    text_verbosity: Literal["low", "medium", "high"] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Count | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    prompt_cache_key: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    metadata: Annotated[Mapping[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] | None = None
    strict_json_schema: bool | None = None
    logit_bias: Mapping[str, Annotated[int, Meta(ge=-100, le=100)]] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prediction: Mapping[str, Any] | None = None
    # compat
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    include_usage: bool | None = None
    replay_reasoning: Literal["auto", "always", "never"] | None = None
    think_tags: bool | None = None
    extra_body: Mapping[str, Any] | None = None
    headers: Mapping[str, Annotated[str, Meta(max_length=8192)]] | None = None


_COMMON = frozenset(
    {
        "max_output_tokens",
        "temperature",
        "top_p",
        "top_k",
        "presence_penalty",
        "frequency_penalty",
        "reasoning_effort",
        "fallbacks",
        "capabilities",
        "first_byte_seconds",
        "silence_seconds",
    }
)
_ANTHROPIC = frozenset(
    {
        "send_reasoning",
        "thinking",
        "thinking_display",
        "disable_parallel_tool_use",
        "cache_ttl",
        "context_1m",
        "web_search_enabled",
        "web_search_version",
        "web_search_max_uses",
        "web_search_user_location",
        "allowed_domains",
        "blocked_domains",
    }
)
_OPENAI = frozenset(
    {
        "use_responses_api",
        "store",
        "reasoning_summary",
        "text_verbosity",
        "parallel_tool_calls",
        "max_tool_calls",
        "service_tier",
        "prompt_cache_key",
        "metadata",
        "strict_json_schema",
        "logit_bias",
        "top_logprobs",
        "prediction",
        "web_search_enabled",
        "web_search_user_location",
        "web_search_context_size",
        "allowed_domains",
    }
)
_COMPAT = frozenset({"max_tokens_field", "include_usage", "replay_reasoning", "think_tags", "extra_body", "headers"})

FAMILIES: Mapping[ProviderType, frozenset[str]] = {
    ProviderType.ANTHROPIC: _COMMON | _ANTHROPIC,
    ProviderType.OPENAI: _COMMON | _OPENAI,
    ProviderType.AZURE_OPENAI: _COMMON | _OPENAI,
    # Compatible servers may offer the Responses API as well.
    ProviderType.OPENAI_COMPAT: _COMMON | _OPENAI | _COMPAT,
    ProviderType.OPENROUTER: _COMMON | _OPENAI | _COMPAT,
    ProviderType.GOOGLE: _COMMON | {"web_search_enabled"},
    ProviderType.BEDROCK: _COMMON,
    ProviderType.BRIDGE: _COMMON,
    ProviderType.SCRIPTED: _COMMON,
}


class ProviderOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options of a provider. `headers` are sent with every request. They cannot replace authentication headers.

    With `send_user_hash`, the provider can group calls by user without identifying the user. `auth_style` and
    `api_version` are for gateways that use a variant of Anthropic's wire.
    """

    headers: Mapping[str, Annotated[str, Meta(max_length=8192)]] = {}
    organization: Name | None = None
    project: Name | None = None
    region: Name | None = None
    auth_style: Literal["x-api-key", "bearer"] | None = None
    api_version: (
        Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", description="a date such as 2023-06-01")] | None
    ) = None
    send_user_hash: bool = False


_OF_PROVIDER: Mapping[ProviderType, frozenset[str]] = {
    ProviderType.ANTHROPIC: frozenset({"auth_style", "api_version", "send_user_hash"}),
    ProviderType.OPENAI: frozenset({"organization", "project", "send_user_hash"}),
    ProviderType.AZURE_OPENAI: frozenset({"send_user_hash"}),
    ProviderType.OPENAI_COMPAT: frozenset({"send_user_hash"}),
    ProviderType.OPENROUTER: frozenset({"send_user_hash"}),
    ProviderType.BEDROCK: frozenset({"region"}),
}
PROVIDER_FAMILIES: Mapping[ProviderType, frozenset[str]] = {
    type_: _OF_PROVIDER.get(type_, frozenset()) | {"headers"} for type_ in ProviderType
}

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_AUTH_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "host"})
_EFFORTS = list(Effort)


def parse_model_options(type_: ProviderType, raw: Mapping[str, object]) -> ModelOptions:
    """Check and return the options of a model of this provider type. Raises `InvalidInput`, which names the option."""
    options = _parse(ModelOptions, raw, allowed=FAMILIES[type_], of=f"models of {type_} providers")
    if options.allowed_domains and options.blocked_domains:
        raise InvalidInput("options.blocked_domains", "Set allowed_domains or blocked_domains, not both.")
    effort = options.reasoning_effort
    if effort and _EFFORTS.index(effort.default) > _EFFORTS.index(effort.max):
        raise InvalidInput(
            "options.reasoning_effort",
            f"The default effort {effort.default} is above the maximum {effort.max}. Raise the maximum.",
        )
    _check_headers(options.headers or {})
    return options


def parse_provider_options(type_: ProviderType, raw: Mapping[str, object]) -> ProviderOptions:
    options = _parse(ProviderOptions, raw, allowed=PROVIDER_FAMILIES[type_], of=f"{type_} providers")
    _check_headers(options.headers)
    return options


def read_model_options(stored: str | bytes) -> ModelOptions:
    """Return stored options. Options of a newer version are left out, so that older replicas can work."""
    return _read(ModelOptions, stored)


def read_provider_options(stored: str | bytes) -> ProviderOptions:
    return _read(ProviderOptions, stored)


def encode(options: ModelOptions | ProviderOptions) -> str:
    return msgspec.json.encode(options).decode()


S = TypeVar("S", ModelOptions, ProviderOptions)


def _parse(struct: type[S], raw: Mapping[str, object], *, allowed: frozenset[str], of: str) -> S:
    types = {field.name: field.type for field in msgspec.structs.fields(struct)}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in types:
            raise InvalidInput(f"options.{name}", f"There is no option {name!r}.")
        if name not in allowed:
            raise InvalidInput(f"options.{name}", f"Option {name} does not exist for {of}.")
        try:
            values[name] = msgspec.convert(value, type=types[name])
        except msgspec.ValidationError:
            text = f"Option {name} must be {value_descriptions.describe(types[name])}."
            raise InvalidInput(f"options.{name}", text) from None
        _check_storable(name, value)
    return struct(**values)


def _read(struct: type[S], stored: str | bytes) -> S:
    raw = msgspec.json.decode(stored)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        if field.name in raw:
            try:
                values[field.name] = msgspec.convert(raw[field.name], type=field.type)
            except msgspec.ValidationError:
                continue
    return struct(**values)


def _check_storable(name: str, value: object) -> None:
    """Raise `InvalidInput`, which names the option, if JSON or PostgreSQL cannot store the value."""
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise InvalidInput(f"options.{name}", f"Option {name} contains characters that cannot be stored.")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"options.{name}", f"Option {name} is not a finite number.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidInput(f"options.{name}", f"Option {name} has a number that is too large to be stored.")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_storable(name, key)
            _check_storable(name, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_storable(name, item)


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidInput("options.headers", f"Header {name!r:.80} is not a valid header.")
        if name.lower() in _AUTH_HEADERS:
            raise InvalidInput("options.headers", f"The server sets header {name}. Save the key as API key instead.")
