"""Cache diagnosis: the first message that broke the prefix, the tokens that were paid again, and their price."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.debug.cache_diagnosis import CacheDiagnosis, CachedStep, CacheReason, diagnose
from rookery.llm.types import Usage
from rookery.models.cost import Prices

THEN = datetime(2030, 1, 1, tzinfo=UTC)
PRICES = Prices(input=Decimal(3), output=Decimal(15), cache_read=Decimal("0.3"), cache_write=Decimal("3.75"))


def step(after_seconds: int = 0, **fields: Any) -> CachedStep:
    at = THEN + timedelta(seconds=after_seconds)
    values = {
        "usage": Usage(input=100, cache_read=0, cache_write=20_000, output=50),
        "provider": "nest",
        "model": "wren-1",
        "message_count": 10,
        "shared_messages": 10,
        "has_same_tools": True,
        "started_at": at,
        "finished_at": at,
        **fields,
    }
    return CachedStep(**values)


FIRST = step()
SERVED = Usage(input=50, cache_read=20_000, cache_write=400, output=10)
PAID = Usage(input=500, cache_read=0, cache_write=20_000, output=10)


@pytest.mark.parametrize(
    ("second", "reason", "broke_at"),
    [
        (step(usage=SERVED, message_count=12), CacheReason.NONE, None),
        (step(usage=PAID, model="wren-2"), CacheReason.MODEL_CHANGED, 0),
        (step(usage=PAID, provider="loft"), CacheReason.MODEL_CHANGED, 0),
        (step(usage=PAID, has_same_tools=False), CacheReason.TOOLS_CHANGED, 0),
        (step(usage=PAID, shared_messages=3), CacheReason.MESSAGES_CHANGED, 3),
        (step(usage=PAID, shared_messages=0), CacheReason.MESSAGES_CHANGED, 0),
        (step(301, usage=PAID), CacheReason.EXPIRED, None),
        (step(299, usage=PAID), CacheReason.UNKNOWN, None),
        # A volatile last message breaks the prefix where it costs nothing.
        (step(usage=SERVED, shared_messages=9), CacheReason.NONE, 9),
    ],
)
def test_reason_and_place_of_the_break(second: CachedStep, reason: CacheReason, broke_at: int | None) -> None:
    found = diagnose(second, FIRST, prices=PRICES)

    assert found is not None
    assert (found.reason, found.broke_at) == (reason, broke_at)
    assert (found.uncached_tokens > 0) == (reason is not CacheReason.NONE)


def test_tokens_that_were_paid_again_have_their_price() -> None:
    found = diagnose(step(usage=PAID, shared_messages=3), FIRST, prices=PRICES)

    # 20,100 of 20,500 tokens, which cost 500 x 3 + 20,000 x 3.75 micro-dollars.
    assert found == CacheDiagnosis(
        reason=CacheReason.MESSAGES_CHANGED, broke_at=3, uncached_tokens=20_100, cost_micros=75_008
    )


def test_first_step_counts_everything_that_did_not_come_from_the_cache() -> None:
    assert diagnose(FIRST, None, prices=PRICES) == CacheDiagnosis(
        reason=CacheReason.FIRST_STEP, uncached_tokens=20_100, cost_micros=75_300
    )


def test_provider_without_a_report_about_its_cache_has_no_diagnosis() -> None:
    assert diagnose(step(usage=Usage(input=20_000, output=3)), FIRST, prices=PRICES) is None


def test_short_prompts_are_not_cached_and_need_no_reason() -> None:
    short = step(usage=Usage(input=900, cache_read=0, cache_write=0))

    found = diagnose(step(usage=Usage(input=1000, cache_read=0), shared_messages=0), short)

    assert found == CacheDiagnosis(reason=CacheReason.NONE, broke_at=0)


def test_shorter_prompt_after_a_compaction_counts_no_more_than_it_sent() -> None:
    found = diagnose(step(usage=Usage(input=3000, cache_read=0), shared_messages=1, message_count=2), FIRST)

    assert found == CacheDiagnosis(reason=CacheReason.MESSAGES_CHANGED, broke_at=1, uncached_tokens=3000)


counts = st.none() | st.integers(0, 10**6)
usages = st.builds(Usage, input=counts, cache_read=counts, cache_write=counts, cache_write_1h=counts, output=counts)


@given(usages, usages, st.integers(0, 10), st.integers(0, 10), st.booleans(), st.none() | st.just(PRICES))
def test_numbers_are_never_more_than_the_step_paid(
    usage: Usage, before: Usage, shared: int, count: int, same: bool, prices: Prices | None
) -> None:
    second = step(usage=usage, shared_messages=min(shared, count), has_same_tools=same, message_count=count)

    for previous in (step(usage=before, message_count=count), None):
        found = diagnose(second, previous, prices=prices)

        if found is not None:
            paid = (usage.input or 0) + max(usage.cache_write or 0, usage.cache_write_1h or 0)
            assert 0 <= found.uncached_tokens <= paid
            assert found.cost_micros is None or 0 <= found.cost_micros <= 4 * paid
