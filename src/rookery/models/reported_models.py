"""Reports of providers' model endpoints, fetched at most once a day and never waited for long.

A report overrides the built-in table: endpoints report limits and accepted settings, but not how a model behaves.
Nothing here fails a call: a failed fetch is logged, and the table is used alone.
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
from rookery.llm.model import USER_AGENT, Auth
from rookery.llm.response_stream import media_type
from rookery.llm.types import Capabilities, Thinking
from rookery.models import catalog
from rookery.runtime.clock import Clock
from rookery.telemetry.log import get_logger

log = get_logger("models.reported_models")

FRESH_SECONDS = 86_400.0
# Chosen: an unreachable provider is asked again soon, but not for every call.
RETRY_SECONDS = 600.0
ASK_SECONDS = 10.0
MAX_BYTES = 1_048_576
MAX_MODELS = 1000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report. `context_limit` is the context window, if the endpoint reports it."""

    capabilities: Capabilities
    context_limit: int | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint to ask about a model. `auth` and `headers` are not part of the key of a report."""

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
    """One per process. Reports are fetched by tasks of this object, one at a time for each model."""

    def __init__(self, clients: HttpClients, *, clock: Clock, ask_seconds: float = ASK_SECONDS) -> None:
        self._clients = clients
        self._clock = clock
        self._ask_seconds = ask_seconds
        # The time of the next fetch, and the report. A failed fetch keeps the previous report.
        self._known: OrderedDict[Key, tuple[float, Report | None]] = OrderedDict()
        self._asking: dict[Key, asyncio.Task[Report | None]] = {}

    def find(self, source: Source) -> Report | None:
        """Return the current report. If it is missing or old, a fetch is started, and this does not wait for it."""
        if not is_asked(source.provider_type):
            return None
        key = _key(source)
        due, report = self._known.get(key, (float("-inf"), None))
        if self._clock.monotonic() >= due:
            self._start(source)
        return report

    async def first(self, source: Source, *, wait_seconds: float) -> Report | None:
        """Return the report; if there is none, wait a limited time for the running fetch."""
        report = self.find(source)
        task = self._asking.get(_key(source))
        if report is not None or task is None:
            return report
        return await self._waited(source, task, wait_seconds)

    async def refresh(self, source: Source, *, wait_seconds: float = ASK_SECONDS) -> Report | None:
        """Fetch now and wait a limited time for the report; return the previous one if it does not arrive."""
        if not is_asked(source.provider_type):
            return None
        return await self._waited(source, self._start(source), wait_seconds)

    async def settled(self) -> None:
        """Wait until no fetch is running."""
        while self._asking:
            await asyncio.wait(list(self._asking.values()))

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _waited(self, source: Source, task: asyncio.Task[Report | None], wait_seconds: float) -> Report | None:
        # Not `wait_for`: a caller that stops waiting must not cancel a fetch that others wait for.
        await asyncio.wait((task,), timeout=wait_seconds)
        return self._known.get(_key(source), (0.0, None))[1]

    def _start(self, source: Source) -> asyncio.Task[Report | None]:
        key = _key(source)
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._ask(key, source), name=f"model report {source.model}")
            task.add_done_callback(lambda done: self._done(key, done))
        return task

    def _done(self, key: Key, task: asyncio.Task[Report | None]) -> None:
        del self._asking[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.exception("model_report_crashed", error, model=key[-1])

    async def _ask(self, key: Key, source: Source) -> Report | None:
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
            async with asyncio.timeout(self._ask_seconds):
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


def is_asked(provider_type: str) -> bool:
    """Return whether providers of this type report anything about their models."""
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
    # Gateways are often configured with the `/v1` that OpenAI's clients want.
    start = "" if source.base_url.rstrip("/").endswith("/v1") else "/v1"
    return f"{start}/models/{quote(source.model, safe='')}"


def read_anthropic(source: Source, body: bytes) -> Report:
    info = _decode_info(body)
    known = catalog.built_in(source.provider_type, source.model)
    caps = known or Capabilities()
    said: dict[str, object] = {}
    if info.max_tokens:
        said["max_output"] = info.max_tokens
    able = info.capabilities or _Abilities()
    if able.thinking is not None:
        thinking = _thinking(able.thinking, caps.thinking)
        said |= {"thinking": thinking, "reasoning_model": able.thinking.supported}
        if known is None and thinking.adaptive and not thinking.budget:
            # True so far for every model that decides how long it thinks.
            said["sampling"] = False
    if able.effort is not None:
        said["efforts"] = _efforts(able.effort)
    if able.structured_outputs is not None:
        said["json_schema"] = able.structured_outputs.supported
    return Report(capabilities=msgspec.structs.replace(caps, **said), context_limit=info.max_input_tokens or None)


def _thinking(said: _Thinks, known: Thinking) -> Thinking:
    if not said.supported:
        return Thinking()
    types = said.types
    adaptive, disabled = types.adaptive.supported, types.disabled.supported
    between_tools = types.between_tools.supported
    # Not reported, but implied: thinking that can neither be switched off nor placed between tools is always on.
    always_on = adaptive and not disabled and not between_tools
    return Thinking(
        adaptive=adaptive,
        budget=types.enabled.supported,
        disabled=disabled,
        between_tools=between_tools and not disabled,
        default_on=known.default_on or always_on,
        always_on=always_on,
    )


def _efforts(said: _Efforts) -> tuple[Effort, ...]:
    if not said.supported:
        return ()
    return tuple(effort for effort in _ANTHROPIC_EFFORTS if (getattr(said, effort.value) or _NO).supported)


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
    """Merge the reports of several hosts. A request goes to a host that supports it, so the best value of each
    counts."""
    endpoints = _decode_endpoints(body).data.endpoints
    known = catalog.built_in(source.provider_type, source.model) or Capabilities()
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


# OpenAI's endpoint lists its models without capabilities; the others have no endpoint or use another wire.
_ENDPOINTS: Mapping[str, tuple[Callable[[Source], str], Callable[[Source, bytes], Report]]] = {
    ProviderType.ANTHROPIC: (_anthropic_path, read_anthropic),
    ProviderType.OPENROUTER: (_openrouter_path, read_openrouter),
}
