"""`rookery admin model`: the models, their prices, and the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

import msgspec

from rookery.cli.admin import provider_input, secrets
from rookery.cli.admin import providers as admin_providers
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models.context_window import LearnedFrom
from rookery.domain.models.options import ProviderType
from rookery.models import capability_catalog, cost, model_resolution, reported_models
from rookery.models.directory import windows_of
from rookery.settings.settings import Settings
from rookery.store.db.pool import Connection
from rookery.store.models import context_windows, model_configs, providers
from rookery.store.models.context_windows import ModelWindow
from rookery.store.models.errors import Unusable
from rookery.store.models.model_configs import ModelConfig, ModelConfigDraft, ModelConfigPatch
from rookery.store.models.providers import Provider

SHOWN = ("id", "model", "display_name", "enabled", "is_default", "context_limit", "compression_threshold")
# The types whose models are in the catalog.
_CATALOGUED = frozenset({ProviderType.ANTHROPIC, ProviderType.OPENAI, ProviderType.AZURE_OPENAI})
_SCRIPTS = ("guide", "echo")
_LEARNED = {
    None: "learned",
    LearnedFrom.PROVIDER: "learned from the provider's refusal",
    LearnedFrom.HALVING: "guessed after a refusal",
}


class NewModel(msgspec.Struct, frozen=True, kw_only=True):
    """The command-line arguments for a new model."""

    provider: str
    model: str
    context_limit: int
    display_name: str
    is_default: bool
    disabled: bool
    compression_threshold: int
    options: Sequence[str]
    prices: Mapping[str, str | None]


async def list_all(settings: Settings, out: Output) -> int:
    async with provider_input.opened(settings, out) as (_, conn):
        found = await _load(conn)
        windows = await context_windows.list_windows(conn)
    if found:
        headers = ("id", "model", "default", "state", "context", "reads", "$/M in", "$/M out", "prices")
        out.table(headers, [_row(config, provider, windows.get(config.id)) for config, provider in found])
    else:
        out.line("There is no model yet. `rookery admin model add PROVIDER MODEL --context-limit TOKENS` adds one.")
    for config, provider in found:
        if windows_of(config, provider.type, windows.get(config.id)).differs:
            name = _name(config, provider)
            out.warning(f"{name}: other sources report another context window. See `rookery admin model show {name}`.")
    out.result({"models": [_document(config, provider, windows.get(config.id)) for config, provider in found]})
    return Exit.OK


async def show(settings: Settings, out: Output, *, reference: str) -> int:
    """Show one model, and the sources of its context window."""
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (_, conn):
            config, provider = _find(await _load(conn), reference)
            window = await context_windows.find_window(conn, config.id)
        known = windows_of(config, provider.type, window)
        out.line(f"{_name(config, provider)} ({_state(config, provider)}), id {config.id}")
        out.table(
            ("context window", "tokens", "since"),
            [
                ("configured", known.configured, None),
                ("listed by this version", known.catalogued, None),
                ("reported by the provider", known.reported, _since(None if window is None else window.reported_at)),
                (_LEARNED[known.learned_from], known.learned, _since(None if window is None else window.learned_at)),
                ("in force", known.effective, None),
            ],
        )
        if known.differs:
            out.warning("One of them differs from the configured value by more than a tenth.")
        if known.learned is not None:
            out.line(f"`rookery admin model forget-window {_name(config, provider)}` removes the learned value.")
        out.result(_document(config, provider, window))
    return outcome.code


async def forget_window(settings: Settings, out: Output, *, reference: str) -> int:
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (database, conn):
            config, provider = _find(await _load(conn), reference)
            is_known = await context_windows.forget(conn, config.id)
            await provider_input.announce(database, "model", config.id)
            window = await context_windows.find_window(conn, config.id)
        name = _name(config, provider)
        removed = f"The learned context window of {name} is removed."
        out.line(removed if is_known else f"{name} has no learned context window.")
        out.result(_document(config, provider, window))
    return outcome.code


async def add(settings: Settings, out: Output, *, new: NewModel) -> int:
    with provider_input.refusals(out) as outcome:
        options = provider_input.parse_options(new.options)
        prices = {name: _price(name, text) for name, text in new.prices.items()}
        async with provider_input.opened(settings, out) as (database, conn):
            provider = await admin_providers.get(conn, new.provider)
            if provider.type == ProviderType.SCRIPTED and new.model not in _SCRIPTS:
                raise InvalidInput("model", f"The scripted provider has {' and '.join(_SCRIPTS)}.")
            draft = ModelConfigDraft(
                provider_id=provider.id,
                model=new.model,
                context_limit=new.context_limit,
                display_name=new.display_name,
                enabled=not new.disabled,
                is_default=new.is_default,
                compression_threshold=new.compression_threshold,
                options=options,
                **prices,
            )
            ring = await secrets.load_checked_ring(settings, conn) if options.get("headers") else None
            config = await model_configs.create_model_config(conn, draft, by=None, ring=ring)
            await provider_input.announce(database, "model", config.id)
        role = ", and is the default" if config.is_default else ""
        out.line(f"Model {_name(config, provider)} is added{role}.")
        _advise(out, config, provider)
        out.result(_document(config, provider))
    return outcome.code


async def make_default(settings: Settings, out: Output, *, reference: str) -> int:
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (database, conn):
            config, provider = _find(await _load(conn), reference)
            patch = ModelConfigPatch(is_default=True)
            config = await model_configs.update_model_config(conn, config.id, patch=patch, by=None)
            await provider_input.announce(database, "model", config.id)
        out.line(f"Model {_name(config, provider)} is the default.")
        if (state := _state(config, provider)) != "ready":
            out.warning(f"It cannot be used yet: {state}.")
        out.result(_document(config, provider))
    return outcome.code


async def remove(settings: Settings, out: Output, *, reference: str) -> int:
    """Remove a model. Chats that used it continue with the default."""
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (database, conn):
            config, provider = _find(await _load(conn), reference)
            await model_configs.delete_model_config(conn, config.id, by=None)
            await provider_input.announce(database, "model", config.id)
            heir = next((pair for pair in await _load(conn) if pair[0].is_default), None)
        out.line(f"Model {_name(config, provider)} is removed.")
        if config.is_default:
            out.line(f"The default is {_name(*heir)} now." if heir else "There is no model left.")
        out.result({"removed": config.id, "default": None if heir is None else heir[0].id})
    return outcome.code


async def _load(conn: Connection) -> list[tuple[ModelConfig, Provider]]:
    by_id = {provider.id: provider for provider in await providers.list_providers(conn, with_deleted=True)}
    return [(config, by_id[config.provider_id]) for config in await model_configs.list_model_configs(conn)]


def _find(found: Sequence[tuple[ModelConfig, Provider]], reference: str) -> tuple[ModelConfig, Provider]:
    """Return the one model with this id, `provider/model`, or name."""
    fitting = [
        (config, provider)
        for config, provider in found
        if reference in (str(config.id), config.model, f"{provider.name}/{config.model}")
    ]
    if not fitting:
        raise Refused(f"There is no model {reference}. `rookery admin model list` shows all models.")
    if len(fitting) > 1:
        ids = ", ".join(str(config.id) for config, _ in fitting)
        raise Refused(f"{reference} names {len(fitting)} models. Name one by its id: {ids}.", code=Exit.USAGE)
    return fitting[0]


def _advise(out: Output, config: ModelConfig, provider: Provider) -> None:
    """Print hints about problems that would otherwise appear later."""
    if (state := _state(config, provider)) != "ready":
        out.line(f"It cannot be used yet: {state}.")
    if provider.type in _CATALOGUED and capability_catalog.built_in(provider.type, config.model) is None:
        asks = " or the provider's own endpoint" if reported_models.has_reports(provider.type) else ""
        out.line(
            f"This version does not know the model. Unless --option capabilities{asks} says that it can, it gets no "
            "reasoning effort, no forced tool choice and no JSON format."
        )
    if _prices(config, provider) is None and provider.type != ProviderType.SCRIPTED:
        out.line("It has no prices, so its calls do not count towards spend limits. Set --price-input and -output.")


def _state(config: ModelConfig, provider: Provider) -> str:
    """Return whether a user without their own keys can use the model, according to the database."""
    if provider.deleted:
        return "its provider is removed"
    if not config.enabled:
        return "disabled"
    if not provider.enabled:
        return "its provider is disabled"
    has_central = provider.api_key_enc is not None or provider.is_env
    match model_resolution.choose_key(provider, has_user_key=False, has_central_key=has_central):
        case Unusable.USER_API_KEY_REQUIRED:
            return "needs a user's own key"
        case Unusable():
            return "its provider has no key"
    return "ready"


def _row(config: ModelConfig, provider: Provider, window: ModelWindow | None) -> tuple[object, ...]:
    prices = _prices(config, provider)
    source = "-" if prices is None else "own" if config.price_input is not None else "list"
    return (
        str(config.id),
        _name(config, provider),
        "yes" if config.is_default else "",
        _state(config, provider),
        config.context_limit,
        windows_of(config, provider.type, window).effective,
        None if prices is None else _plain(prices.input),
        None if prices is None else _plain(prices.output),
        source,
    )


def _since(at: datetime | None) -> str | None:
    return None if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _document(config: ModelConfig, provider: Provider, window: ModelWindow | None = None) -> dict[str, object]:
    prices = _prices(config, provider)
    known = windows_of(config, provider.type, window)
    return {
        **{name: getattr(config, name) for name in SHOWN},
        "window": {
            "effective": known.effective,
            "catalogued": known.catalogued,
            "reported": known.reported,
            "learned": known.learned,
            "learned_from": known.learned_from,
            "differs": known.differs,
        },
        "provider": provider.name,
        "state": _state(config, provider),
        "options": provider_input.shown_options(config.options),
        "prices": prices,
        "prices_are_own": config.price_input is not None,
    }


def _prices(config: ModelConfig, provider: Provider) -> cost.Prices | None:
    return cost.prices_of(config, provider.type, at=datetime.now(UTC))


def _price(name: str, text: str | None) -> Decimal | None:
    try:
        return None if text is None else Decimal(text)
    except InvalidOperation:
        raise InvalidInput(name, "A price is a number of dollars per million tokens, for example 3.75") from None


def _plain(price: Decimal) -> str:
    return f"{price.normalize():f}"


def _name(config: ModelConfig, provider: Provider) -> str:
    return f"{provider.name}/{config.model}"
