"""The factory of pydantic-ai models: makes the model for a provider row, with the row's key and address.

The library's provider objects hold connections, so they are kept between calls, one per key and address. This module
imports the library only when a model is made.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from rookery.domain.models.options import DEFAULT_BASE_URLS, ProviderType
from rookery.llm import error_bodies
from rookery.llm.bridge.model import READ_SECONDS, BridgeModel, CannotBuild
from rookery.llm.http import CONNECT_SECONDS
from rookery.llm.types import Capabilities, ErrorKind, ProviderError
from rookery.llm.wire_model import ModelStats
from rookery.runtime.clock import Clock
from rookery.runtime.secret_str import SecretStr
from rookery.telemetry.redaction import SecretRegistry, hide_secrets

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

EXTRA = "rookery[bridge]"
# More providers and keys than a deployment uses at a time.
MAX_KEPT = 64
# The library's names of provider types. In a `bridge` row, the name is part of the model's name: `groq:llama-3.3-70b`.
_KINDS: Mapping[str, str] = {ProviderType.GOOGLE: "google", ProviderType.BEDROCK: "bedrock"}
_GOOGLE_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
_ACCESS_KEY_STARTS = ("AKIA", "ASIA")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The address and credentials of a provider. `kind` is the library's name of the provider."""

    kind: str
    key: SecretStr | None
    base_url: str | None
    region: str | None
    read_seconds: float
    connect_seconds: float


class BridgeClients:
    """The library's provider objects of a process. Models without it open new connections for every call."""

    def __init__(self, *, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: OrderedDict[Target, Provider[Any]] = OrderedDict()
        self._entered: set[int] = set()
        # Needed because models are made in threads.
        self._lock = threading.Lock()

    def provider(self, target: Target, make: Callable[[], Provider[Any]]) -> Provider[Any]:
        with self._lock:
            if target not in self._kept:
                self._kept[target] = make()
            self._kept.move_to_end(target)
            return self._kept[target]

    async def keep_open(self, provider: Provider[Any]) -> None:
        """Keep the provider's connections open until the provider is evicted or `close` is called."""
        with self._lock:
            is_known = any(kept is provider for kept in self._kept.values())
            is_new = is_known and id(provider) not in self._entered
            if is_new:
                self._entered.add(id(provider))
            evicted = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - self._max_kept)]
        if is_new:
            await provider.__aenter__()
        for each in evicted:
            await self._exit(each)

    async def close(self) -> None:
        with self._lock:
            kept, self._kept = list(self._kept.values()), OrderedDict()
        for provider in kept:
            await self._exit(provider)

    async def _exit(self, provider: Provider[Any]) -> None:
        if id(provider) in self._entered:
            self._entered.discard(id(provider))
            await provider.__aexit__(None, None, None)


def bridge_model(
    *,
    provider_id: UUID,
    provider_type: str,
    provider_name: str,
    model: str,
    caps: Capabilities,
    key: SecretStr | None,
    base_url: str | None = None,
    region: str | None = None,
    extra_headers: Mapping[str, str] = {},
    read_seconds: float = READ_SECONDS,
    connect_seconds: float = CONNECT_SECONDS,
    clients: BridgeClients | None = None,
    clock: Clock | None = None,
    stats: ModelStats | None = None,
) -> BridgeModel:
    """Return the model of one provider row. This is cheap and never raises; the first call reports invalid settings.

    `provider_name` is the display name. Without a key, the library uses the credentials of the machine.
    """
    # A pasted key often ends with a line break.
    plain_key = None if key is None else key.reveal().strip()
    secrets = () if plain_key is None else (plain_key, *plain_key.split(":"))

    def hide(text: str) -> str:
        known = SecretRegistry()
        for value in secrets:
            known.add("api_key", value)
        return hide_secrets(text, known)

    def build() -> Model:
        try:
            return _build(
                provider_type,
                model,
                key=SecretStr(plain_key) if plain_key else None,
                base_url=base_url,
                region=region,
                read_seconds=read_seconds,
                connect_seconds=connect_seconds,
                clients=clients,
            )
        except _Unusable as unusable:
            detail = None if unusable.detail is None else error_bodies.clean_detail(unusable.detail, hide)
            message = unusable.message.replace("{provider}", provider_name)
            raise CannotBuild(
                ProviderError(
                    kind=unusable.kind, message=message, retryable=False, provider=provider_name, detail=detail
                )
            ) from None

    return BridgeModel(
        build,
        provider_id=provider_id,
        provider_type=provider_type,
        provider_name=provider_name,
        model=model,
        caps=caps,
        secrets=secrets,
        extra_headers=extra_headers,
        read_seconds=read_seconds,
        keep_open=None if clients is None else clients.keep_open,
        clock=clock,
        stats=stats,
    )


class _Unusable(Exception):
    def __init__(self, message: str, *, kind: ErrorKind = ErrorKind.CONFIG, detail: str | None = None) -> None:
        self.message = message
        self.kind = kind
        self.detail = detail
        super().__init__(message)


def _build(
    provider_type: str,
    model: str,
    *,
    key: SecretStr | None,
    base_url: str | None,
    region: str | None,
    read_seconds: float,
    connect_seconds: float,
    clients: BridgeClients | None,
) -> Model:
    kind, name = _kind_and_name(provider_type, model, key=key)
    if base_url is not None and base_url.rstrip("/") == DEFAULT_BASE_URLS.get(provider_type):
        base_url = None
    target = Target(
        kind=kind,
        key=key,
        base_url=base_url,
        region=region,
        read_seconds=read_seconds,
        connect_seconds=connect_seconds,
    )
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
    except ImportError as error:
        raise _Unusable(
            f"{{provider}} needs the package pydantic-ai, which is not installed. Install {EXTRA}.", detail=str(error)
        ) from None
    try:
        provider = (
            _make_recorded_provider(target)
            if clients is None
            else clients.provider(target, lambda: _make_recorded_provider(target))
        )
        return infer_model(f"{kind}:{name}", provider_factory=lambda _: provider)
    except ImportError as error:
        raise _Unusable(
            f"{{provider}} needs a package that is not installed. Install {EXTRA}, or the package named in the detail.",
            detail=str(error),
        ) from None
    except _Unusable:
        raise
    except UserError as error:
        _explain_refusal(target, str(error))
    except Exception as error:
        # The packages for providers have their own exceptions for invalid credentials or settings.
        _explain_refusal(target, f"{type(error).__name__}: {error}")


def _kind_and_name(provider_type: str, model: str, *, key: SecretStr | None) -> tuple[str, str]:
    if provider_type == ProviderType.GOOGLE and key is None and not any(map(os.environ.get, _GOOGLE_KEYS)):
        # Credentials of the machine work only with Google Cloud. The other endpoint requires a key.
        return "google-cloud", model
    if provider_type in _KINDS:
        return _KINDS[provider_type], model
    if provider_type != ProviderType.BRIDGE:
        return provider_type.replace("_", "-"), model
    kind, colon, name = model.partition(":")
    if not colon or not kind or not name:
        raise _Unusable("Name the models of {provider} as provider:model, such as groq:llama-3.3-70b-versatile.")
    return kind, name


def _explain_refusal(target: Target, text: str) -> NoReturn:
    if target.key is None:
        raise _Unusable("There is no API key for {provider}. Set one.", kind=ErrorKind.MISSING_KEY, detail=text)
    raise _Unusable("{provider} cannot be used with these settings. Check the provider and the model.", detail=text)


def _make_recorded_provider(target: Target) -> Provider[Any]:
    from rookery.llm.bridge.exchange import record_responses

    provider = _make_provider(target)
    record_responses(provider)
    return provider


def _make_provider(target: Target) -> Provider[Any]:
    from pydantic_ai.providers import infer_provider_class

    try:
        cls = infer_provider_class(target.kind)
    except ValueError:
        raise _Unusable(
            f"The provider {target.kind!r} is unknown. Check the name of the model of {{provider}}."
        ) from None
    if target.kind == "bedrock":
        return _without_retries(cls(**_bedrock_options(target)))
    takes = inspect.signature(cls.__init__).parameters
    options: dict[str, Any] = {}
    if target.key is not None and "api_key" in takes:
        options["api_key"] = target.key.reveal()
    if target.base_url is None:
        return cls(**options)
    if "base_url" in takes:
        return cls(**options, **{"base_url": target.base_url})
    if "api_host" in takes:
        return cls(**options, **{"api_host": urlsplit(target.base_url).netloc})
    return _at_address(cls(**options), target.base_url, kind=target.kind)


def _at_address(provider: Provider[Any], base_url: str, *, kind: str) -> Provider[Any]:
    """Change the address of a provider whose constructor does not accept one."""
    client = provider.client
    if hasattr(client, "base_url"):
        client.base_url = base_url
        return provider
    if hasattr(client, "_client_wrapper"):
        # The Cohere package accepts an address only when its client is made, which the library does.
        client._client_wrapper._base_url = base_url
        if provider.base_url == base_url:
            return provider
    raise _Unusable(f"Providers of the kind {kind} have a fixed address. Remove the base URL of {{provider}}.")


def _bedrock_options(target: Target) -> dict[str, Any]:
    """Return the options of the provider. The key is a Bedrock API key, or `id:secret` or `id:secret:session token`."""
    options: dict[str, Any] = {
        "region_name": target.region or _region_in(target.base_url),
        "base_url": target.base_url,
        "aws_read_timeout": target.read_seconds,
        "aws_connect_timeout": target.connect_seconds,
    }
    if target.key is None:
        return options
    key = target.key.reveal()
    if not key.startswith(_ACCESS_KEY_STARTS):
        return {**options, "api_key": key}
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return {**options, **dict(zip(names, key.split(":", 2), strict=False))}


def _region_in(base_url: str | None) -> str | None:
    """Return the region in an address such as `bedrock-runtime.eu-central-1.amazonaws.com`."""
    host = urlsplit(base_url or "").hostname or ""
    pieces = host.split(".")
    is_usual = len(pieces) > 3 and pieces[0].startswith("bedrock-runtime") and "amazonaws" in pieces
    return pieces[1] if is_usual else None


def _without_retries(provider: Provider[Any]) -> Provider[Any]:
    """Disable the retries of the AWS package, which cannot be disabled per request."""
    service = "bedrock-runtime"
    provider.client.meta.events.unregister(f"needs-retry.{service}", unique_id=f"retry-config-{service}")
    return provider
