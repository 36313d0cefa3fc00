"""The connector: makes a callable model from a model config and its key.

One `Connector` per process owns the connections, the reports of providers, and the caches of chats. Models are cheap
and are made for each step, so that changes of the config take effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from rookery.demo.guide import guide, tour
from rookery.domain.chat.messages import Effort
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.chat.prompt import ModelIdentity
from rookery.domain.models.options import DEFAULT_MAX_OUTPUT_TOKENS, ProviderType
from rookery.llm import reasoning_effort
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.chat_caches import EncodedRequests, ReplayMemory
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.http import CONNECT_SECONDS, HttpClients
from rookery.llm.responses.wire import ResponsesFormat, wire_of
from rookery.llm.scripted import TOKENS_PER_SECOND, ScriptedModel, Scripts, echo
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    JsonFormat,
    LanguageModel,
    ProviderError,
    Purpose,
    Tool,
    Wire,
)
from rookery.llm.wire import WireFormat
from rookery.llm.wire_model import Auth, WireModel
from rookery.llm.wire_stats import ModelStats, NoStats
from rookery.models import call_options, capability_catalog
from rookery.models.directory import ReadyModel
from rookery.models.reported_models import Report, Reports, Source
from rookery.runtime.cache import Cache
from rookery.runtime.clock import Clock, SystemClock
from rookery.runtime.shared_tick import SharedTick
from rookery.store.models.model_configs import ModelConfig
from rookery.store.models.providers import Provider

if TYPE_CHECKING:
    from rookery.llm.bridge.factory import BridgeClients

# The first call to a model that is not in the catalog waits this long for the report of its provider.
FIRST_REPORT_SECONDS: Final = 2.0

_OPENAI_SHAPED: Final = frozenset(
    {ProviderType.OPENAI, ProviderType.AZURE_OPENAI, ProviderType.OPENAI_COMPAT, ProviderType.OPENROUTER}
)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a call. `root_chat_id` is equal to `chat_id` unless the chat is a subagent's chat."""

    owner_id: UUID
    chat_id: UUID
    root_chat_id: UUID
    workspace_id: UUID | None = None

    def headers(self) -> dict[str, str]:
        named = {
            "x-rookery-owner-id": self.owner_id,
            "x-rookery-chat-id": self.root_chat_id,
            "x-rookery-subchat-id": None if self.chat_id == self.root_chat_id else self.chat_id,
            "x-rookery-workspace-id": self.workspace_id,
        }
        return {name: str(value) for name, value in named.items() if value is not None}


def choose_wire(provider_type: str, model: str, *, use_responses_api: bool | None = None) -> Wire:
    """Return the wire for a provider of this type. Types without a native wire use the bridge."""
    if provider_type == ProviderType.ANTHROPIC:
        return "anthropic"
    if provider_type == ProviderType.SCRIPTED:
        return "scripted"
    if provider_type in _OPENAI_SHAPED:
        return wire_of(
            provider_type,
            use_responses_api=use_responses_api,
            completions_only=capability_catalog.is_completions_only(model),
        )
    return "bridge"


def identity_of(provider: Provider, config: ModelConfig) -> ModelIdentity:
    """Return the identity of this config as an author of messages. Deleted configs have an identity as well."""
    wire = choose_wire(provider.type, config.model, use_responses_api=config.options.use_responses_api)
    caps = capability_catalog.capabilities(
        provider.type, config.model, wire=wire, overrides=config.options.capabilities
    )
    return ModelIdentity(provider_id=provider.id, model=config.model, wire=wire, thinking_family=caps.thinking_family)


def default_scripts() -> Scripts:
    """Return the built-in scripts of the scripted model."""
    return Scripts({"guide": guide, "tour": tour, "echo": echo})


class Connector:
    """Makes models. One per process. `stats` receives the events of the wires."""

    def __init__(
        self,
        *,
        clients: HttpClients | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        stats: ModelStats | None = None,
        scripts: Scripts | None = None,
        clock: Clock | None = None,
        tokens_per_second: float = TOKENS_PER_SECOND,
        tick: SharedTick | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._clients = clients or HttpClients(connect_seconds=connect_seconds, tick=tick)
        self._connect_seconds = connect_seconds
        self._stats = stats or NoStats()
        self._tokens_per_second = tokens_per_second
        self._memory = ReplayMemory(clock=self._clock)
        self._encoded_requests = EncodedRequests(clock=self._clock)
        self._reports = Reports(self._clients, clock=self._clock)
        self._bridge_clients: BridgeClients | None = None
        self.scripts = scripts or default_scripts()

    @property
    def caches(self) -> tuple[Cache[Any, Any], ...]:
        return self._encoded_requests.entries, *self._memory.caches

    async def close(self) -> None:
        """Close all connections. Answers that are still streaming end with an error."""
        await self._reports.close()
        if self._bridge_clients is not None:
            await self._bridge_clients.close()
        await self._clients.close()

    async def model(self, ready: ReadyModel) -> LanguageModel | ProviderError:
        """Return the model of this config, or the error that its calls would end with.

        For a model that is not in the catalog, wait briefly for the report of its provider.
        """
        wire = self.wire(ready)
        if wire == "scripted":
            return ScriptedModel(
                ready.config.model,
                self.scripts,
                provider_id=ready.provider.id,
                tokens_per_second=self._tokens_per_second,
                clock=self._clock,
            )
        if wire == "bridge":
            return self._bridged(ready)
        base_url = ready.provider.effective_base_url
        if base_url is None:
            return _no_address(ready)
        report = await self._report(ready, base_url)
        caps = ready.capabilities(wire, None if report is None else report.capabilities)
        return WireModel(
            _format(ready, wire, caps, base_url=base_url),
            self._clients.client(base_url),
            provider_id=ready.provider.id,
            provider_type=ready.provider.type,
            provider_name=ready.provider_name,
            model=ready.config.model,
            caps=caps,
            base_url=base_url,
            auth=_auth(ready),
            extra_headers=ready.provider.options.headers,
            clock=self._clock,
            stats=self._stats,
            memory=self._memory,
            encoded_requests=self._encoded_requests,
            sends_traceparent=ready.provider.send_correlation,
        )

    def wire(self, ready: ReadyModel) -> Wire:
        options = ready.config.options
        return choose_wire(ready.provider.type, ready.config.model, use_responses_api=options.use_responses_api)

    async def refresh(self, ready: ReadyModel) -> Report | None:
        """Fetch the provider's report on this model now. Return None if the provider has no reports."""
        base_url = ready.provider.effective_base_url
        return None if base_url is None else await self._reports.refresh(_source(ready, base_url))

    def reported_window(self, ready: ReadyModel) -> int | None:
        """Return the context window that the provider reported. An old report is fetched again in the background."""
        base_url = ready.provider.effective_base_url
        report = None if base_url is None else self._reports.find(_source(ready, base_url))
        return None if report is None else report.context_limit

    async def _report(self, ready: ReadyModel, base_url: str) -> Report | None:
        source = _source(ready, base_url)
        if capability_catalog.built_in(ready.provider.type, ready.config.model) is not None:
            return self._reports.find(source)
        return await self._reports.first(source, wait_seconds=FIRST_REPORT_SECONDS)

    def _bridged(self, ready: ReadyModel) -> LanguageModel:
        # Imported here, because the bridge is an optional extra.
        from rookery.llm.bridge.factory import BridgeClients, bridge_model

        if self._bridge_clients is None:
            self._bridge_clients = BridgeClients()
        return bridge_model(
            provider_id=ready.provider.id,
            provider_type=ready.provider.type,
            provider_name=ready.provider_name,
            model=ready.config.model,
            caps=ready.capabilities("bridge"),
            key=ready.key,
            base_url=ready.provider.base_url,
            region=ready.provider.options.region,
            extra_headers=ready.provider.options.headers,
            connect_seconds=self._connect_seconds,
            clients=self._bridge_clients,
            clock=self._clock,
            stats=self._stats,
        )


def make_call(
    ready: ReadyModel,
    model: LanguageModel,
    *,
    prompt: Prompt,
    tools: tuple[Tool, ...] = (),
    purpose: Purpose = Purpose.TURN,
    effort: Effort | None = None,
    tool_choice: str = "auto",
    format: JsonFormat | None = None,
    max_output_tokens: int | None = None,
    may_search: bool = True,
    origin: Origin | None = None,
    window_tokens: int | None = None,
    default_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS,
) -> Call:
    """Return a call with all options of the config. The config limits `effort`.

    `default_output_tokens` limits the answer if neither the call nor the config has a limit. `may_search=False` leaves
    out the provider's web search, as in plan mode. `window_tokens` limits the answer to half of the context window, or
    to a quarter if no other limit is set.
    """
    options = ready.config.options
    call = Call(
        prompt=prompt,
        purpose=purpose,
        tools=tools,
        tool_choice=tool_choice,
        format=format,
        max_output_tokens=max_output_tokens,
        effort=reasoning_effort.effective(effort, options.reasoning_effort),
        headers=origin.headers() if origin is not None and ready.provider.send_correlation else {},
        chat_id=None if origin is None else str(origin.chat_id),
        cache_key=None if origin is None else str(origin.root_chat_id),
    )
    full = call_options.with_options(call, options, wire=model.wire)
    full = call_options.with_user(full, ready.user_hash, wire=model.wire)
    limit = full.max_output_tokens or default_output_tokens
    if window_tokens:
        limit = max(min(limit, window_tokens // (4 if full.max_output_tokens is None else 2)), 1)
    return msgspec.structs.replace(
        full,
        max_output_tokens=limit if model.caps.max_output is None else min(limit, model.caps.max_output),
        web_search=full.web_search if may_search else None,
    )


def _format(ready: ReadyModel, wire: Wire, caps: Capabilities, *, base_url: str) -> WireFormat:
    model, name, options = ready.config.model, ready.provider_name, ready.provider.options
    match wire:
        case "anthropic":
            return AnthropicFormat(model, caps, provider=name, base_url=base_url, version=options.api_version)
        case "responses":
            return ResponsesFormat(
                model, caps, provider=name, organization=options.organization, project=options.project
            )
        case "completions":
            return CompletionsFormat(
                model,
                caps,
                provider=name,
                provider_type=ready.provider.type,
                base_url=base_url,
                organization=options.organization,
                project=options.project,
            )
    raise AssertionError(f"{wire} is not a native wire.")


_BEARER: Final = ("authorization", "Bearer ")
# The header of the key by provider type. All other types use a bearer token.
_KEY_HEADERS: Mapping[str, tuple[str, str]] = {
    ProviderType.ANTHROPIC: ("x-api-key", ""),
    ProviderType.AZURE_OPENAI: ("api-key", ""),
}


def _auth(ready: ReadyModel) -> Auth | None:
    if ready.key is None:
        return None
    header, prefix = _KEY_HEADERS.get(ready.provider.type, _BEARER)
    if ready.provider.options.auth_style == "bearer":
        header, prefix = _BEARER
    return Auth(header, ready.key, prefix)


def _source(ready: ReadyModel, base_url: str) -> Source:
    return Source(
        provider_id=ready.provider.id,
        provider_type=ready.provider.type,
        base_url=base_url,
        model=ready.config.model,
        auth=_auth(ready),
        headers=ready.provider.options.headers,
        api_version=ready.provider.options.api_version,
    )


def _no_address(ready: ReadyModel) -> ProviderError:
    name = ready.provider_name
    return ProviderError(
        kind=ErrorKind.CONFIG,
        message=f"{name} has no base URL. Set the address of its API in the settings of this provider.",
        retryable=False,
        provider=name,
    )
