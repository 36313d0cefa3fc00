"""The provider check for administrators: a short call with the stored key, and the provider's list of models.

The connections are temporary. Errors contain no text of the provider, because it may quote the key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

import msgspec

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.domain.models.options import KEYLESS, ModelOptions, ProviderType
from rookery.llm.anthropic.wire import default_version
from rookery.llm.complete_answers import generate
from rookery.llm.errors import CallFailed, TransportError
from rookery.llm.http import HttpClients
from rookery.llm.types import ErrorKind, LanguageModel, ProviderError, Usage
from rookery.llm.wire_model import USER_AGENT
from rookery.models import cost
from rookery.models.connector import Connector, make_call
from rookery.models.directory import Directory, ReadyModel, Snapshot
from rookery.models.model_resolution import Choice
from rookery.runtime.secret_str import SecretStr
from rookery.store.models.model_configs import DEFAULT_COMPRESSION_THRESHOLD, ModelConfig
from rookery.store.models.providers import Provider
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource

TEST_SECONDS: Final = 30.0
LIST_SECONDS: Final = 15.0
MAX_LIST_BYTES: Final = 8 * 1024 * 1024
MAX_LISTED: Final = 5000
# Enough for one word and for the reasoning of models that always think.
TEST_TOKENS: Final = 1024
# Chosen: small enough for every common model. It limits nothing in a short call.
UNSAVED_CONTEXT_LIMIT: Final = 128_000
PURPOSE: Final = "test"
# The scripts that are listed as models of the scripted provider.
OFFLINE_SCRIPTS: Final = ("echo", "guide", "tour")


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. `error` is None if the provider answered. `call` is the ledger row if a call was made."""

    latency_ms: int
    error: ProviderError | None = None
    call: Entry | None = None


class ModelListUnavailable(Exception):
    """Raised when there is no list of models. The message is a sentence for users."""


async def try_provider(
    provider_id: UUID, *, user_id: UUID, directory: Directory, connector: Connector, now: datetime
) -> CheckResult:
    """Make a short call to a model of the provider, with the key that a chat of this user would use."""
    snapshot = await directory.snapshot()
    started = time.monotonic()

    def elapsed_ms() -> int:
        return round((time.monotonic() - started) * 1000)

    ready = await _ready(snapshot, provider_id, user_id=user_id, directory=directory)
    if isinstance(ready, ProviderError):
        return CheckResult(latency_ms=elapsed_ms(), error=ready)
    model = await connector.model(ready)
    if isinstance(model, ProviderError):
        return CheckResult(latency_ms=elapsed_ms(), error=model)
    spent, failure = await _ask(ready, model)
    prices = await asyncio.to_thread(ready.prices, now)
    status = CallStatus.FAILED if failure else CallStatus.OK
    entry = ready.usage_entry(spent, owner_id=user_id, chat_id=None, purpose=PURPOSE, status=status)
    entry = msgspec.structs.replace(entry, cost_micros=cost.cost_micros(spent, prices), runtime_ms=elapsed_ms())
    return CheckResult(latency_ms=elapsed_ms(), error=failure, call=entry)


async def _ask(ready: ReadyModel, model: LanguageModel) -> tuple[Usage, ProviderError | None]:
    """Make a short call. Return its usage, and its error; None instead of the error if the model answered."""
    asking = PromptMessage(role=Role.USER, parts=(PromptText("Reply with the word ok."),))
    call = make_call(ready, model, prompt=Prompt((asking,)), max_output_tokens=TEST_TOKENS, may_search=False)
    try:
        async with asyncio.timeout(TEST_SECONDS):
            return (await generate(model, call)).usage, None
    except CallFailed as failed:
        return failed.usage, failed.error
    except TimeoutError:
        message = f"{ready.provider_name} did not answer within {TEST_SECONDS:g} seconds."
        timeout = ProviderError(kind=ErrorKind.TIMEOUT, message=message, retryable=True, provider=ready.provider_name)
        return Usage(), timeout


class TryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a try. `tried` names the address or the model. `models` are the models that the provider lists."""

    tried: str
    latency_ms: int
    models: tuple[str, ...] = ()
    error: ProviderError | None = None


async def try_unsaved(
    provider: Provider, key: SecretStr | None, model: str | None, *, connector: Connector
) -> TryResult:
    """Try a provider that is not stored: list its models, or with `model` make a short call to that one.

    The call is not in the usage ledger, because its provider has no row.
    """
    started = time.monotonic()
    name = provider.display_name or provider.name
    base_url = provider.effective_base_url
    models: tuple[str, ...] = ()
    error: ProviderError | None = None
    if model is None:
        path = _LISTS[provider.type][0](base_url) if base_url is not None and provider.type in _LISTS else ""
        tried = f"GET {base_url}{path}" if path else f"the list of models of {name}"
        try:
            models = await list_models(provider, key, connector=connector)
        except ModelListUnavailable as unavailable:
            error = ProviderError(
                kind=ErrorKind.CONFIG, message=str(unavailable), retryable=False, provider=provider.name
            )
    else:
        tried = f"a short message to the model {model}" + (f" at {base_url}" if base_url is not None else "")
        ready = ReadyModel(
            config=_unsaved_config(provider, model), provider=provider, key=key, key_source=KeySource.CENTRAL
        )
        connected = await connector.model(ready)
        error = connected if isinstance(connected, ProviderError) else (await _ask(ready, connected))[1]
    return TryResult(tried=tried, latency_ms=round((time.monotonic() - started) * 1000), models=models, error=error)


def _unsaved_config(provider: Provider, model: str) -> ModelConfig:
    return ModelConfig(
        id=uuid4(),
        provider_id=provider.id,
        model=model,
        display_name="",
        enabled=True,
        is_default=False,
        deleted=False,
        context_limit=UNSAVED_CONTEXT_LIMIT,
        compression_threshold=DEFAULT_COMPRESSION_THRESHOLD,
        options=ModelOptions(),
        headers_enc=None,
        price_input=None,
        price_output=None,
        price_cache_read=None,
        price_cache_write=None,
        price_cache_write_1h=None,
        created_by=None,
        updated_by=None,
        created_at=provider.created_at,
        updated_at=provider.updated_at,
    )


async def upstream_models(provider_id: UUID, *, directory: Directory, connector: Connector) -> tuple[str, ...]:
    """Return the ids of the models that the provider lists, sorted.

    Raise `ModelListUnavailable` if there is no list.
    """
    snapshot = await directory.snapshot()
    return await list_models(snapshot.providers[provider_id], snapshot.keys.get(provider_id), connector=connector)


async def list_models(provider: Provider, key: SecretStr | None, *, connector: Connector) -> tuple[str, ...]:
    """Return the ids of the models that the provider lists for this key, sorted. Raise `ModelListUnavailable`."""
    name = provider.display_name or provider.name
    if provider.type == ProviderType.SCRIPTED:
        return tuple(name for name in OFFLINE_SCRIPTS if connector.scripts.find(name) is not None)
    if provider.type not in _LISTS:
        raise ModelListUnavailable(
            f"Providers of type {provider.type} have no list of models. Write the id of the model yourself."
        )
    if key is None and provider.type not in KEYLESS:
        raise ModelListUnavailable(
            f"There is no central API key to ask {name} with. Add one, or write the id of the model yourself."
        )
    base_url = provider.effective_base_url
    if base_url is None:
        raise ModelListUnavailable(f"{name} has no base URL. Set it first.")
    path, read = _LISTS[provider.type]
    headers = _headers(provider, None if key is None else key.reveal(), base_url)
    try:
        body = await _get(base_url, path(base_url), headers=headers)
        found = read(body)
    except (TransportError, TimeoutError):
        raise ModelListUnavailable(f"{name} could not be reached at {base_url}. Check its base URL.") from None
    except _Refused as refused:
        what = "Check the API key." if refused.status in (401, 403) else "Check the base URL."
        raise ModelListUnavailable(
            f"{name} answered with status {refused.status} when asked for its models at {base_url}. {what}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ModelListUnavailable(f"{name} answered, but not with a list of models. Check its base URL.") from None
    return tuple(sorted(set(found)))[:MAX_LISTED]


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


async def _get(base_url: str, path: str, *, headers: Mapping[str, str]) -> bytes:
    clients = HttpClients()
    try:
        async with asyncio.timeout(LIST_SECONDS):
            opened = await clients.get(base_url, path, headers=headers)
            try:
                body = await opened.read(MAX_LIST_BYTES)
            finally:
                opened.close()
    finally:
        await clients.close()
    if opened.status != 200:
        raise _Refused(opened.status)
    return body


async def _ready(
    snapshot: Snapshot, provider_id: UUID, *, user_id: UUID, directory: Directory
) -> ReadyModel | ProviderError:
    """Return the model to call: the default one if it belongs to this provider, else the oldest enabled one."""
    configs = [
        config
        for config in snapshot.configs.values()
        if config.provider_id == provider_id and config.enabled and not config.deleted
    ]
    if not configs:
        return ProviderError(
            kind=ErrorKind.CONFIG,
            message="There is no enabled model of this provider to try. Add one first.",
            retryable=False,
            provider=snapshot.providers[provider_id].name,
        )
    chosen = min(configs, key=lambda config: (not config.is_default, config.created_at))
    return await directory.ready(Choice(chosen.id), owner_id=user_id)


def _headers(provider: Provider, key: str | None, base_url: str) -> dict[str, str]:
    headers = {"user-agent": USER_AGENT, "accept": "application/json"}
    headers.update((name.lower(), value) for name, value in provider.options.headers.items())
    is_anthropic = provider.type == ProviderType.ANTHROPIC
    if is_anthropic:
        headers["anthropic-version"] = provider.options.api_version or default_version(base_url)
    if key is None:
        return headers
    if is_anthropic and provider.options.auth_style != "bearer":
        headers["x-api-key"] = key
    elif provider.type == ProviderType.AZURE_OPENAI:
        headers["api-key"] = key
    elif provider.type == ProviderType.GOOGLE:
        headers["x-goog-api-key"] = key
    else:
        headers["authorization"] = f"Bearer {key}"
    return headers


class _Named(msgspec.Struct, frozen=True):
    id: str


class _Listed(msgspec.Struct, frozen=True):
    data: tuple[_Named, ...]


class _GoogleModel(msgspec.Struct, frozen=True):
    name: str


class _GoogleList(msgspec.Struct, frozen=True):
    models: tuple[_GoogleModel, ...]


def _ids(body: bytes) -> list[str]:
    return [each.id for each in msgspec.json.decode(body, type=_Listed).data]


def _google_ids(body: bytes) -> list[str]:
    return [each.name.removeprefix("models/") for each in msgspec.json.decode(body, type=_GoogleList).models]


def _anthropic_path(base_url: str) -> str:
    # The base URL of a gateway often ends with `/v1`, as OpenAI's clients require.
    return f"{'' if base_url.rstrip('/').endswith('/v1') else '/v1'}/models?limit=1000"


def _openai_path(base_url: str) -> str:
    return "/models"


def _google_path(base_url: str) -> str:
    return "/v1beta/models?pageSize=1000"


_LISTS: Mapping[str, tuple[Callable[[str], str], Callable[[bytes], list[str]]]] = {
    ProviderType.ANTHROPIC: (_anthropic_path, _ids),
    ProviderType.OPENAI: (_openai_path, _ids),
    ProviderType.AZURE_OPENAI: (_openai_path, _ids),
    ProviderType.OPENAI_COMPAT: (_openai_path, _ids),
    ProviderType.OPENROUTER: (_openai_path, _ids),
    ProviderType.GOOGLE: (_google_path, _google_ids),
}
