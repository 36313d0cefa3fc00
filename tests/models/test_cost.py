"""Costs against hand-computed decimals."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from math import ceil
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.models.options import ModelOptions
from rookery.llm.types import Usage
from rookery.models import cost
from rookery.models.cost import Prices, cost_micros
from rookery.store.models.model_configs import ModelConfig

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SONNET = Prices(
    input=Decimal(3),
    output=Decimal(15),
    cache_read=Decimal("0.3"),
    cache_write=Decimal("3.75"),
    cache_write_1h=Decimal(6),
)


@pytest.mark.parametrize(
    ("usage", "micros"),
    [
        (Usage(input=1_000_000), 3_000_000),
        (Usage(output=1), 15),
        # 100*3 + 1001*0.3 + (500-200)*3.75 + 200*6 + 10*15 = 300 + 300.3 + 1125 + 1200 + 150
        (Usage(input=100, cache_read=1001, cache_write=500, cache_write_1h=200, output=10, reasoning=9), 3076),
        (Usage(cache_read=1), 1),  # 0.3 is rounded up
        (Usage(cache_read=10), 3),  # exactly 3, so nothing is rounded
        (Usage(cache_write=200, cache_write_1h=200), 1200),
        (Usage(cache_write=1, cache_write_1h=2), 12),  # a provider that counts the long cache writes separately
    ],
)
def test_cost_is_the_hand_computed_decimal_rounded_up(usage: Usage, micros: int) -> None:
    assert cost_micros(usage, SONNET) == micros


def test_unset_cache_prices_are_those_of_input() -> None:
    plain = Prices(input=Decimal(2), output=Decimal(10))

    assert cost_micros(Usage(input=1, cache_read=10, cache_write=100, cache_write_1h=50, output=1000), plain) == 10_222


def test_free_is_zero_and_not_the_same_as_unpriced() -> None:
    free = Prices(input=Decimal(0), output=Decimal(0), cache_read=Decimal(0))

    assert cost_micros(Usage(input=10, cache_read=5, output=10), free) == 0
    assert cost_micros(Usage(input=10, output=10), None) is None
    assert cost_micros(Usage(), SONNET) is None
    assert cost_micros(Usage(input=0, output=0, total=0), SONNET) is None


counts = st.integers(min_value=0, max_value=2**60)
amounts = st.decimals(min_value=0, max_value=999_999, places=12)


@given(counts, counts, counts, amounts, amounts, amounts)
def test_no_digit_is_lost_however_large_the_numbers(
    a: int, b: int, c: int, price_a: Decimal, price_b: Decimal, price_c: Decimal
) -> None:
    usage = Usage(input=a, cache_read=b, output=c)
    prices = Prices(input=price_a, cache_read=price_b, output=price_c)
    exact = a * Fraction(price_a) + b * Fraction(price_b) + c * Fraction(price_c)

    assert cost_micros(usage, prices) == (ceil(exact) if a or b or c else None)


def config(model: str, **prices: Decimal) -> ModelConfig:
    stored: dict[str, Decimal | None] = dict.fromkeys(
        ("price_input", "price_output", "price_cache_read", "price_cache_write", "price_cache_write_1h")
    )
    return ModelConfig(
        id=uuid4(),
        provider_id=uuid4(),
        model=model,
        display_name="",
        enabled=True,
        is_default=False,
        deleted=False,
        context_limit=1,
        compression_threshold=70,
        options=ModelOptions(),
        headers_enc=None,
        **{**stored, **prices},
        created_by=None,
        updated_by=None,
        created_at=NOW,
        updated_at=NOW,
    )


def test_prices_of_the_config_win_as_a_whole_over_the_list() -> None:
    own = cost.prices_of(
        config("claude-sonnet-4-5", price_input=Decimal(1), price_output=Decimal(2)), "anthropic", at=NOW
    )
    listed = cost.prices_of(config("claude-sonnet-4-5"), "anthropic", at=NOW)

    assert own == Prices(input=Decimal(1), output=Decimal(2))
    assert listed is not None
    assert (listed.input, listed.output, listed.cache_read) == (Decimal(3), Decimal(15), Decimal("0.3"))
    assert cost.prices_of(config("nobody-knows-this"), "anthropic", at=NOW) is None


@pytest.mark.parametrize(
    ("type_", "model", "known"),
    [
        ("openai", "gpt-5", True),
        ("azure_openai", "gpt-5", True),
        ("google", "gemini-2.5-pro", True),
        ("openrouter", "anthropic/claude-sonnet-4.5", True),
        ("openai_compat", "gpt-5", False),
        ("scripted", "echo", False),
    ],
)
def test_list_prices_are_there_for_the_providers_that_publish_them(type_: str, model: str, known: bool) -> None:
    found = cost.list_prices(type_, model, day=date(2026, 11, 1))

    assert (found is not None) is known
    assert found is None or all(price is None or price >= 0 for price in msgspec.structs.astuple(found))


def test_price_table_is_loaded_only_when_asked_and_without_the_network() -> None:
    script = """
import socket, sys
from datetime import date
from rookery.models import cost
assert "genai_prices" not in sys.modules
def refuse(*_args, **_kwargs): raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
assert cost.list_prices("anthropic", "claude-opus-4-5", day=date(2026, 11, 1)) is not None
import threading
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
