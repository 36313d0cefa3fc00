"""The cost of a call, computed with exact decimals and rounded up to whole micro-dollars at the end.

Prices are in USD per million tokens, which equals micro-dollars per token. They are from the model config, else from
the price table in the package `genai-prices`. The network is not used.
"""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime, time
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import msgspec

from rookery.llm.types import Usage
from rookery.store.models.model_configs import ModelConfig

# With this precision, no sum of products of 64-bit counts and stored prices is rounded before the end.
_EXACT = Context(prec=100)
_BILLED = ("input", "cache_read", "cache_write", "output")
# The names of provider types in the price table. Other types have no list prices.
_TABLE_NAMES = {
    "anthropic": "anthropic",
    "openai": "openai",
    "azure_openai": "azure",
    "openrouter": "openrouter",
    "google": "google",
    "bedrock": "aws",
}


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in USD per million tokens. An unset cache price is equal to the input price."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    cache_write_1h: Decimal | None = None


def cost_micros(usage: Usage, prices: Prices | None) -> int | None:
    """Return the cost of a call in micro-dollars; None if there are no prices or no reported usage."""
    if prices is None or not any(getattr(usage, name) for name in _BILLED):
        return None
    long_writes = usage.cache_write_1h or 0
    # `cache_write` includes the long cache writes, but some providers report only these.
    short_writes = max((usage.cache_write or 0) - long_writes, 0)
    write_price = prices.input if prices.cache_write is None else prices.cache_write
    items = (
        (usage.input, prices.input),
        (usage.cache_read, prices.input if prices.cache_read is None else prices.cache_read),
        (short_writes, write_price),
        (long_writes, prices.input if prices.cache_write_1h is None else prices.cache_write_1h),
        (usage.output, prices.output),
    )
    total = Decimal(0)
    for count, price in items:
        total = _EXACT.add(total, _EXACT.multiply(Decimal(count or 0), price))
    return int(total.to_integral_value(rounding=ROUND_CEILING, context=_EXACT))


def prices_of(config: ModelConfig, provider_type: str, *, at: datetime) -> Prices | None:
    """Return the prices of the config if it has input and output prices, else the list prices of its model."""
    if config.price_input is None or config.price_output is None:
        return list_prices(provider_type, config.model, day=at.astimezone(UTC).date())
    return Prices(
        input=config.price_input,
        output=config.price_output,
        cache_read=config.price_cache_read,
        cache_write=config.price_cache_write,
        cache_write_1h=config.price_cache_write_1h,
    )


@functools.lru_cache(maxsize=1024)
def list_prices(provider_type: str, model: str, *, day: date) -> Prices | None:
    """Return the list prices of a model on a day; None if the price table does not contain the model.

    If prices depend on the length of the prompt, the first tier is used. The first call takes about 0.2 s.
    """
    found = _listed(provider_type, model)
    if found is None:
        return None
    listed = found.get_prices(datetime.combine(day, time(12), UTC))
    price_in, price_out = _base(listed.input_mtok), _base(listed.output_mtok)
    if price_in is None or price_out is None:
        return None
    return Prices(
        input=price_in,
        output=price_out,
        cache_read=_base(listed.cache_read_mtok),
        cache_write=_base(listed.cache_write_mtok),
        cache_write_1h=_base(listed.cache_write_1h_mtok),
    )


@functools.lru_cache(maxsize=1024)
def list_window(provider_type: str, model: str) -> int | None:
    """Return the context window of a model from the price table; None if the table has none."""
    found = _listed(provider_type, model)
    window = None if found is None else getattr(found, "context_window", None)
    return window if isinstance(window, int) and window > 0 else None


def _listed(provider_type: str, model: str) -> Any | None:
    table_name = _TABLE_NAMES.get(provider_type)
    if table_name is None:
        return None
    from genai_prices import data_snapshot  # imported here, because it takes 0.16 s

    try:
        _, found = data_snapshot.get_snapshot().find_provider_model(model, None, table_name, None)
    except LookupError:
        return None
    return found


def _base(price: Any) -> Decimal | None:
    """Return a price; the first tier if it has tiers."""
    base = getattr(price, "base", price)
    return None if base is None else Decimal(str(base))
