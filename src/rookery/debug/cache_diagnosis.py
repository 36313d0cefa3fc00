"""The cache diagnosis: finds why the provider's cache did not serve a step, by comparing it with the previous step.
Pure.

Providers cache prompts by prefix: tools first, then the messages in order. All tokens after the first difference are
charged at the full price.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from rookery.llm.types import Usage
from rookery.models import cost
from rookery.models.cost import Prices

# Providers keep a prefix for at least this long after its last use.
CACHE_SECONDS = 300
# Providers cache in blocks and do not cache short prompts. A smaller difference cannot be explained.
BLOCK_TOKENS = 1024
_SERVED_SHARE = 0.8


class CacheReason(StrEnum):
    """The reason why the cache did not serve tokens of the previous step; `none` if it served all of them."""

    NONE = "none"
    FIRST_STEP = "first_step"
    MODEL_CHANGED = "model_changed"
    TOOLS_CHANGED = "tools_changed"
    MESSAGES_CHANGED = "messages_changed"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


class CacheDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a diagnosis. `broke_at` is the index of the first message that differs from the previous step; None
    if no message differs.

    `uncached_tokens` were part of the previous step and were sent again without the cache; in a first step, these are
    all tokens that did not come from the cache. `cost_micros` is their price.
    """

    reason: CacheReason
    broke_at: int | None = None
    uncached_tokens: int = 0
    cost_micros: int | None = None


class CachedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a step. `shared_messages` and `has_same_tools` compare it with the previous step of the run."""

    usage: Usage
    provider: str | None
    model: str | None
    message_count: int
    shared_messages: int
    has_same_tools: bool
    started_at: datetime
    finished_at: datetime


def diagnose(step: CachedStep, previous: CachedStep | None, *, prices: Prices | None = None) -> CacheDiagnosis | None:
    """Compare a step with the previous one of its run. Return None if the provider reports nothing about its cache."""
    usage = step.usage
    if usage.cache_read is None and usage.cache_write is None:
        return None
    if previous is None:
        return _diagnosis(CacheReason.FIRST_STEP, None, paid_tokens(usage), usage, prices)
    broke_at = _break(step, previous)
    missed = max(0, prompt_tokens(previous.usage) - (usage.cache_read or 0))
    # The previous prompt may have been longer than this one, for example before a compaction.
    missed = min(missed, paid_tokens(usage))
    expected = min(prompt_tokens(previous.usage), prompt_tokens(usage))
    if missed < BLOCK_TOKENS or (usage.cache_read or 0) >= _SERVED_SHARE * expected:
        return CacheDiagnosis(reason=CacheReason.NONE, broke_at=broke_at)
    return _diagnosis(_reason(step, previous, broke_at), broke_at, missed, usage, prices)


def prompt_tokens(usage: Usage) -> int:
    """Return the length of the prompt, cached or not."""
    return paid_tokens(usage) + (usage.cache_read or 0)


def paid_tokens(usage: Usage) -> int:
    """Return the tokens of the prompt that did not come from the cache."""
    return (usage.input or 0) + max(usage.cache_write or 0, usage.cache_write_1h or 0)


def _break(step: CachedStep, previous: CachedStep) -> int | None:
    if _is_other_model(step, previous) or not step.has_same_tools:
        return 0
    return step.shared_messages if step.shared_messages < previous.message_count else None


def _reason(step: CachedStep, previous: CachedStep, broke_at: int | None) -> CacheReason:
    if _is_other_model(step, previous):
        return CacheReason.MODEL_CHANGED
    if not step.has_same_tools:
        return CacheReason.TOOLS_CHANGED
    if broke_at is not None:
        return CacheReason.MESSAGES_CHANGED
    pause = step.started_at - previous.finished_at
    return CacheReason.EXPIRED if pause >= timedelta(seconds=CACHE_SECONDS) else CacheReason.UNKNOWN


def _is_other_model(step: CachedStep, previous: CachedStep) -> bool:
    return (step.provider, step.model) != (previous.provider, previous.model)


def _diagnosis(
    reason: CacheReason, broke_at: int | None, tokens: int, usage: Usage, prices: Prices | None
) -> CacheDiagnosis:
    return CacheDiagnosis(
        reason=reason, broke_at=broke_at, uncached_tokens=tokens, cost_micros=_price(tokens, usage, prices)
    )


def _price(tokens: int, usage: Usage, prices: Prices | None) -> int | None:
    """Return the price of some of the paid tokens of a prompt, at the average price of all of them."""
    paid = paid_tokens(usage)
    whole = cost.cost_micros(msgspec.structs.replace(usage, cache_read=None, output=None), prices)
    return None if whole is None or paid == 0 else -(-whole * tokens // paid)
