"""The provider check for administrators: a short call with the stored key, and the provider's list of models.

The connections are temporary. Errors contain no text of the provider, because it may quote the key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import Role
from rookery.domain.chat.prompt_parts import Prompt, PromptMessage, PromptText
from rookery.domain.models.options import KEYLESS, ProviderType
from rookery.llm.anthropic.wire import default_version
from rookery.llm.complete_answers import generate
from rookery.llm.errors import CallFailed, TransportError
from rookery.llm.http import HttpClients
from rookery.llm.model import USER_AGENT
from rookery.llm.types import ErrorKind, ProviderError, Usage
from rookery.models import cost
from rookery.models.connect import Connector, make_call
from rookery.models.directory import Directory, ReadyModel, Snapshot
from rookery.models.resolve import Choice
from rookery.store.models.providers import Provider
from rookery.store.models.usage import CallStatus, Entry

TEST_SECONDS: Final = 30.0
LIST_SECONDS: Final = 15.0
MAX_LIST_BYTES: Final = 8 * 1024 * 1024
MAX_LISTED: Final = 5000
# Enough for one word and for the reasoning of models that always think.
TEST_TOKENS: Final = 1024
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
    model = ready if isinstance(ready, ProviderError) else await connector.model(ready)
    if isinstance(ready, ProviderError) or isinstance(model, ProviderError):
        error = ready if isinstance(ready, ProviderError) else model
        assert isinstance(error, ProviderError)
        return CheckResult(latency_ms=elapsed_ms(), error=error)
    asking = PromptMessage(role=Role.USER, parts=(PromptText("Reply with the word ok."),))
    call = make_call(ready, model, prompt=Prompt((asking,)), max_output_tokens=TEST_TOKENS, may_search=False)
    spent, failure = Usage(), None
    try:
        async with asyncio.timeout(TEST_SECONDS):
            spent = (await generate(model, call)).usage
    except CallFailed as failed:
        spent, failure = failed.usage, failed.error
    except TimeoutError:
        failure = ProviderError(
            kind=ErrorKind.TIMEOUT,
            message=f"{ready.provider_name} did not answer within {TEST_SECONDS:g} seconds.",
            retryable=True,
            provider=ready.provider_name,
        )
    prices = await asyncio.to_thread(ready.prices, now)
    status = CallStatus.FAILED if failure else CallStatus.OK
    entry = ready.usage_entry(spent, owner_id=user_id, chat_id=None, purpose=PURPOSE, status=status)
    entry = msgspec.structs.replace(entry, cost_micros=cost.cost_micros(spent, prices), runtime_ms=elapsed_ms())
    return CheckResult(latency_ms=elapsed_ms(), error=failure, call=entry)


async def upstream_models(provider_id: UUID, *, directory: Directory, connector: Connector) -> tuple[str, ...]:
    """Return the ids of the models that the provider lists, sorted.

    Raise `ModelListUnavailable` if there is no list.
    """
    snapshot = await directory.snapshot()
    provider = snapshot.providers[provider_id]
    name = provider.display_name or provider.name
    if provider.type == ProviderType.SCRIPTED:
        return tuple(name for name in OFFLINE_SCRIPTS if connector.scripts.find(name) is not None)
    if provider.type not in _LISTS:
        raise ModelListUnavailable(
            f"Providers of type {provider.type} have no list of models. Write the id of the model yourself."
        )
    key = snapshot.keys.get(provider_id)
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
        raise ModelListUnavailable(f"{name} could not be reached. Check its base URL.") from None
    except _Refused as refused:
        raise ModelListUnavailable(f"{name} answered with status {refused.status} when asked for its models.") from None
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
