"""Reports of providers about their models, fetched from their model endpoints at most once a day.

A report overrides the limits and accepted settings of the catalog. A failed fetch is logged and never fails a call; the
catalog is then used alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import quote
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import Effort
from rookery.domain.models.options import ProviderType
from rookery.llm.anthropic.wire import default_version
from rookery.llm.errors import TransportError
from rookery.llm.http import HttpClients
from rookery.llm.response_stream import media_type
from rookery.llm.types import Capabilities, Thinking
from rookery.llm.wire_model import USER_AGENT, Auth
from rookery.models import capability_catalog
from rookery.runtime.clock import Clock
from rookery.telemetry.log import get_logger

log = get_logger("models.reported_models")

FRESH_SECONDS = 86_400.0
# The interval between fetches after a failure.
RETRY_SECONDS = 600.0
FETCH_SECONDS = 10.0
MAX_BYTES = 1_048_576
MAX_MODELS = 1000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report on one model. `context_limit` is the context window, if the provider reports it."""

    capabilities: Capabilities
    context_limit: int | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint with the report on a model. `auth` and `headers` are not part of the cache key."""

    provider_id: UUID
    provider_type: str
    base_url: str
    model: str
    auth: Auth | None = None
    headers: Mapping[str, str] = {}
    api_version: str | None = None

    def __repr__(self) -> str:
        return f"Source({self.provider_type}, {self.model!r}, provider {self.provider_id})"

    def request_headers(self) -> dict[str, str]:
        headers = {"user-agent": USER_AGENT, "accept": "application/json"}
        if self.provider_type == ProviderType.ANTHROPIC:
            headers["anthropic-version"] = self.api_version or default_version(self.base_url)
        headers.update((name.lower(), value) for name, value in self.headers.items())
        if self.auth is not None:
            headers[self.auth.header.lower()] = self.auth.value()
        return headers


Key: TypeAlias = tuple[UUID, str, str, str]


class Reports:
    """The reports of a process. They are fetched in background tasks, one at a time per model."""

    def __init__(self, clients: HttpClients, *, clock: Clock, fetch_seconds: float = FETCH_SECONDS) -> None:
        self._clients = clients
        self._clock = clock
        self._fetch_seconds = fetch_seconds
        # The time of the next fetch and the report. After a failed fetch, the previous report is kept.
        self._known: OrderedDict[Key, tuple[float, Report | None]] = OrderedDict()
        self._fetches: dict[Key, asyncio.Task[Report | None]] = {}

    def find(self, source: Source) -> Report | None:
        """Return the current report. If it is missing or old, start a fetch without waiting for it."""
        if not has_reports(source.provider_type):
            return None
        key = _key(source)
        due, report = self._known.get(key, (float("-inf"), None))
        if self._clock.monotonic() >= due:
            self._start(source)
        return report

    async def first(self, source: Source, *, wait_seconds: float) -> Report | None:
        """Return the report. If there is none, wait this long for the running fetch."""
        report = self.find(source)
        task = self._fetches.get(_key(source))
        if report is not None or task is None:
            return report
        return await self._wait_for(source, task, wait_seconds)

    async def refresh(self, source: Source, *, wait_seconds: float = FETCH_SECONDS) -> Report | None:
        """Fetch the report now. Return the previous one if the new one does not arrive in time."""
        if not has_reports(source.provider_type):
            return None
        return await self._wait_for(source, self._start(source), wait_seconds)

    async def wait_idle(self) -> None:
        """Wait until no fetch is running."""
        while self._fetches:
            await asyncio.wait(list(self._fetches.values()))

    async def close(self) -> None:
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for(self, source: Source, task: asyncio.Task[Report | None], wait_seconds: float) -> Report | None:
        # Unlike `wait_for`, this does not cancel the fetch, for which other callers may wait.
        await asyncio.wait((task,), timeout=wait_seconds)
        return self._known.get(_key(source), (0.0, None))[1]

    def _start(self, source: Source) -> asyncio.Task[Report | None]:
        key = _key(source)
        task = self._fetches.get(key)
        if task is None:
            task = self._fetches[key] = asyncio.create_task(
                self._refresh(key, source), name=f"model report {source.model}"
            )
            task.add_done_callback(lambda done: self._done(key, done))
        return task

    def _done(self, key: Key, task: asyncio.Task[Report | None]) -> None:
        del self._fetches[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.exception("model_report_crashed", error, model=key[-1])

    async def _refresh(self, key: Key, source: Source) -> Report | None:
        report = await self._fetch(source)
        old = self._known.get(key, (0.0, None))[1]
        wait = RETRY_SECONDS if report is None else FRESH_SECONDS
        self._known[key] = (self._clock.monotonic() + wait, report or old)
        self._known.move_to_end(key)
        while len(self._known) > MAX_MODELS:
            self._known.popitem(last=False)
        return report

    async def _fetch(self, source: Source) -> Report | None:
        path, read = _ENDPOINTS[source.provider_type]
        fields = {"provider_id": source.provider_id, "model": source.model}
        try:
            async with asyncio.timeout(self._fetch_seconds):
                opened = await self._clients.get(source.base_url, path(source), headers=source.request_headers())
                try:
                    body = await opened.read(MAX_BYTES + 1)
                finally:
                    opened.close()
        except (TransportError, TimeoutError) as error:
            log.info("model_report_failed", **fields, reason=str(error) or type(error).__name__)
            return None
        if opened.status != 200 or media_type(opened) != "application/json" or len(body) > MAX_BYTES:
            log.info("model_report_failed", **fields, status=opened.status, media_type=media_type(opened))
            return None
        try:
            return read(source, body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.info("model_report_failed", **fields, reason=str(error))
            return None


def has_reports(provider_type: str) -> bool:
    """Return whether providers of this type report on their models."""
    return provider_type in _ENDPOINTS


def _key(source: Source) -> Key:
    return (source.provider_id, source.provider_type, source.base_url, source.model)


# Anthropic


class _Supported(msgspec.Struct, frozen=True):
    supported: bool = False


_NO = _Supported()


class _ThinkingTypes(msgspec.Struct, frozen=True):
    adaptive: _Supported = _NO
    enabled: _Supported = _NO
    disabled: _Supported = _NO
    between_tools: _Supported = _NO


class _Thinks(msgspec.Struct, frozen=True):
    supported: bool = False
    types: _ThinkingTypes = _ThinkingTypes()


class _Efforts(msgspec.Struct, frozen=True):
    supported: bool = False
    low: _Supported = _NO
    medium: _Supported = _NO
    high: _Supported = _NO
    xhigh: _Supported | None = None
    max: _Supported = _NO


class _Abilities(msgspec.Struct, frozen=True):
    thinking: _Thinks | None = None
    effort: _Efforts | None = None
    structured_outputs: _Supported | None = None


class _ModelInfo(msgspec.Struct, frozen=True):
    id: str
    max_tokens: int | None = None
    max_input_tokens: int | None = None
    capabilities: _Abilities | None = None


_decode_info = msgspec.json.Decoder(_ModelInfo).decode
_ANTHROPIC_EFFORTS = (Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH, Effort.MAX)


def _anthropic_path(source: Source) -> str:
    # The base URL of a gateway often ends with `/v1`, as OpenAI's clients require.
    start = "" if source.base_url.rstrip("/").endswith("/v1") else "/v1"
    return f"{start}/models/{quote(source.model, safe='')}"


def read_anthropic(source: Source, body: bytes) -> Report:
    info = _decode_info(body)
    known = capability_catalog.built_in(source.provider_type, source.model)
    caps = known or Capabilities()
    stated: dict[str, object] = {}
    if info.max_tokens:
        stated["max_output"] = info.max_tokens
    reported = info.capabilities or _Abilities()
    if reported.thinking is not None:
        thinking = _thinking(reported.thinking, caps.thinking)
        stated |= {"thinking": thinking, "reasoning_model": reported.thinking.supported}
        if known is None and thinking.adaptive and not thinking.budget:
            # So far, every model that decides how long it thinks refuses sampling settings.
            stated["sampling"] = False
    if reported.effort is not None:
        stated["efforts"] = _efforts(reported.effort)
    if reported.structured_outputs is not None:
        stated["json_schema"] = reported.structured_outputs.supported
    return Report(capabilities=msgspec.structs.replace(caps, **stated), context_limit=info.max_input_tokens or None)


def _thinking(stated: _Thinks, known: Thinking) -> Thinking:
    if not stated.supported:
        return Thinking()
    types = stated.types
    adaptive, disabled = types.adaptive.supported, types.disabled.supported
    between_tools = types.between_tools.supported
    # This is not reported: thinking that cannot be switched off or limited to the time between tools is always on.
    always_on = adaptive and not disabled and not between_tools
    return Thinking(
        adaptive=adaptive,
        budget=types.enabled.supported,
        disabled=disabled,
        between_tools=between_tools and not disabled,
        default_on=known.default_on or always_on,
        always_on=always_on,
    )


def _efforts(stated: _Efforts) -> tuple[Effort, ...]:
    if not stated.supported:
        return ()
    return tuple(effort for effort in _ANTHROPIC_EFFORTS if (getattr(stated, effort.value) or _NO).supported)


# OpenRouter


class _Endpoint(msgspec.Struct, frozen=True):
    context_length: float | None = None
    max_completion_tokens: float | None = None
    supported_parameters: tuple[str, ...] = ()


class _Endpoints(msgspec.Struct, frozen=True):
    endpoints: tuple[_Endpoint, ...] = ()


class _OpenRouterModel(msgspec.Struct, frozen=True):
    data: _Endpoints


_decode_endpoints = msgspec.json.Decoder(_OpenRouterModel).decode


def _openrouter_path(source: Source) -> str:
    return f"/models/{quote(source.model, safe='/:')}/endpoints"


def read_openrouter(source: Source, body: bytes) -> Report:
    """Merge the reports of several hosts. OpenRouter sends a request to a host that supports it, so the best value of
    each field is used."""
    endpoints = _decode_endpoints(body).data.endpoints
    known = capability_catalog.built_in(source.provider_type, source.model) or Capabilities()
    if not endpoints:
        return Report(capabilities=known)
    takes = {name for endpoint in endpoints for name in endpoint.supported_parameters}
    longest = max((int(endpoint.max_completion_tokens or 0) for endpoint in endpoints), default=0)
    reasons = "reasoning" in takes or "reasoning_effort" in takes
    return Report(
        capabilities=msgspec.structs.replace(
            known,
            max_output=longest or known.max_output,
            efforts=(known.efforts or (Effort.LOW, Effort.MEDIUM, Effort.HIGH)) if reasons else (),
            reasoning_model=reasons,
            forced_tool_choice="tool_choice" in takes,
            json_schema="structured_outputs" in takes,
            sampling="temperature" in takes,
        ),
        context_limit=max((int(endpoint.context_length or 0) for endpoint in endpoints), default=0) or None,
    )


# OpenAI lists its models without capabilities. The other types have no endpoint or use the bridge.
_ENDPOINTS: Mapping[str, tuple[Callable[[Source], str], Callable[[Source, bytes], Report]]] = {
    ProviderType.ANTHROPIC: (_anthropic_path, read_anthropic),
    ProviderType.OPENROUTER: (_openrouter_path, read_openrouter),
}
