"""`rookery admin provider`: model providers and their keys."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.cli.admin import provider_input, secrets
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.domain.models.options import KEYLESS, ProviderType
from rookery.runtime.secret_str import SecretStr
from rookery.settings.settings import Settings
from rookery.store.db.pool import Connection
from rookery.store.models import model_configs, preset_providers, providers
from rookery.store.models.providers import Provider, ProviderDraft, ProviderPatch

SHOWN = ("id", "name", "type", "display_name", "enabled", "source", "central_key_enabled", "allow_user_key")


class NewProvider(msgspec.Struct, frozen=True, kw_only=True):
    """The command-line arguments for a new provider."""

    type: str
    name: str
    display_name: str
    base_url: str | None
    options: Sequence[str]
    key_stdin: bool
    no_key: bool
    no_central_key: bool
    allow_user_key: bool
    no_fallback: bool
    send_correlation: bool


async def list_all(settings: Settings, out: Output) -> int:
    async with provider_input.opened(settings, out) as (_, conn):
        found = await providers.list_providers(conn)
        counts = await _count_models(conn)
    if found:
        rows = [_row(provider, counts[provider.id]) for provider in found]
        out.table(("name", "type", "base url", "key", "models", "state"), rows)
    else:
        out.line("There is no provider yet. `rookery admin provider add TYPE NAME` adds one.")
    out.result({"providers": [_document(provider, models=counts[provider.id]) for provider in found]})
    return Exit.OK


def ask_key(new: NewProvider) -> SecretStr | None:
    """Return the central key of a new provider, read from stdin or from a prompt; None if it has none."""
    if not new.no_central_key:
        return provider_input.read_key(new.type, new.name, from_stdin=new.key_stdin, none=new.no_key)
    if new.key_stdin:
        raise Refused("--key-stdin sets the central key, which contradicts --no-central-key.", code=Exit.USAGE)
    return None


async def add(settings: Settings, out: Output, *, new: NewProvider, key: SecretStr | None) -> int:
    with provider_input.refusals(out) as outcome:
        if key is not None:
            out.secrets.add("key", key.reveal())
        draft = ProviderDraft(
            type=ProviderType(new.type),
            name=new.name,
            display_name=new.display_name,
            base_url=new.base_url,
            options=provider_input.parse_options(new.options),
            send_correlation=new.send_correlation,
            api_key=key,
            central_key_enabled=not new.no_central_key,
            allow_user_key=new.allow_user_key,
            allow_central_fallback=False if new.no_fallback else UNSET,
        )
        async with provider_input.opened(settings, out) as (database, conn):
            is_sealed = key is not None or bool(draft.options.get("headers"))
            ring = await secrets.load_checked_ring(settings, conn) if is_sealed else None
            provider = await providers.create_provider(conn, draft, ring=ring)
            await provider_input.announce(database, "provider", provider.id)
        out.line(f"Provider {provider.name} is added. Add a model to it:")
        out.line(f"  rookery admin model add {provider.name} MODEL --context-limit TOKENS")
        out.result(_document(provider, models=0))
    return outcome.code


def ask_new_key(name: str, *, from_stdin: bool) -> SecretStr:
    """Return the new key, read from stdin or from a prompt. Raises `Refused` if no key is given."""
    if not from_stdin and (sys.stdin is None or not sys.stdin.isatty()):
        raise Refused("There is no terminal to ask for the key. Pipe it in with --key-stdin.", code=Exit.USAGE)
    # A type that needs a key is assumed, because the provider's type is in the database, which is not open yet.
    key = provider_input.read_key(ProviderType.ANTHROPIC, name, from_stdin=from_stdin, none=False)
    assert key is not None, "a key that is needed is given or refused"
    return key


async def set_key(settings: Settings, out: Output, *, name: str, key: SecretStr) -> int:
    """Replace the central key. Running turns use the new key from their next step on."""
    with provider_input.refusals(out) as outcome:
        out.secrets.add("key", key.reveal())
        async with provider_input.opened(settings, out) as (database, conn):
            provider = await get(conn, name)
            if not provider.is_env and not provider.central_key_enabled:
                raise Refused(f"Provider {name} uses only keys of users; it has no central key to change.")
            if provider.type == ProviderType.SCRIPTED:
                raise Refused(f"Provider {name} is scripted, and needs no key.")
            ring = await secrets.load_checked_ring(settings, conn)
            patch = ProviderPatch(api_key=key)
            changed = await providers.update_provider(conn, provider.id, patch=patch, ring=ring)
            models = (await _count_models(conn))[changed.id]
            await provider_input.announce(database, "provider", changed.id)
        out.line(f"Provider {name} has a new key.")
        out.result(_document(changed, models=models))
    return outcome.code


async def remove(settings: Settings, out: Output, *, name: str, yes: bool) -> int:
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (database, conn):
            provider = await get(conn, name)
            models = (await _count_models(conn))[provider.id]
            if not yes and not provider.is_env and (models or provider.allow_user_key):
                raise Refused(
                    f"This also removes {models} model(s) of {name} and every key that users saved for it. Add --yes "
                    "to confirm."
                )
            await providers.delete_provider(conn, provider.id)
            await provider_input.announce(database, "provider", provider.id)
        out.line(f"Provider {name} is removed, with {models} model(s) and every key for it.")
        out.result({"removed": provider.id, "name": name, "models": models})
    return outcome.code


async def get(conn: Connection, name: str) -> Provider:
    """Return the provider with this name. The error for an unknown name tells how to list the providers."""
    provider = await providers.find_provider_named(conn, name)
    if provider is None:
        raise Refused(f"There is no provider {name}. `rookery admin provider list` shows all providers.")
    return provider


async def _count_models(conn: Connection) -> Counter[UUID]:
    return Counter(config.provider_id for config in await model_configs.list_model_configs(conn))


def _row(provider: Provider, models: int) -> tuple[object, ...]:
    state = "enabled" if provider.enabled else "disabled"
    return provider.name, provider.type, provider.effective_base_url, _describe_keys(provider), models, state


def _describe_keys(provider: Provider) -> str:
    """Describe the keys in use. For a key from the environment, name the variable that the server reads.

    The environment of this process may differ from the server's, so it is not examined.
    """
    words = [_describe_central_key(provider)] if provider.central_key_enabled else []
    return " or ".join([*words, "users' own"] if provider.allow_user_key else words)


def _describe_central_key(provider: Provider) -> str:
    if provider.is_env:
        variables = [preset.key_variable for preset in preset_providers.PRESETS if preset.type == provider.type]
        return ", ".join(variables)
    if provider.api_key_enc is not None:
        return "stored"
    return "none needed" if provider.type in KEYLESS else "missing"


def _document(provider: Provider, *, models: int) -> dict[str, object]:
    return {
        **{name: getattr(provider, name) for name in SHOWN},
        "allow_central_fallback": provider.allow_central_fallback,
        "send_correlation": provider.send_correlation,
        "base_url": provider.effective_base_url,
        "has_key": provider.api_key_enc is not None,
        "options": provider_input.shown_options(provider.options),
        "models": models,
    }
