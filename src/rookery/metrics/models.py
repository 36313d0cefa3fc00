"""What is counted about models: calls, tokens, cost, retries, summaries, and what the wires had to put up with.

`provider` is the type of the provider, `model` the configured name.
"""

from __future__ import annotations

from typing import get_args

from rookery.llm.stats import ModelCounters
from rookery.llm.types import ReplayFault, Wire
from rookery.metrics.families import Family, counter, every, histogram
from rookery.models.call_stats import CallStats

WIRES = get_args(Wire)
MODEL = ("provider", "model")

CALLS: tuple[Family[CallStats], ...] = (
    counter("steps_total", "Calls that a model answered.", lambda calls: calls.steps, labels=(*MODEL, "purpose")),
    counter("empty_responses_total", "Answers that said nothing.", lambda calls: calls.empty_responses),
    histogram("message_count", "Messages in a prompt.", lambda calls: calls.message_count, labels=MODEL),
    histogram(
        "prompt_size_bytes", "Size of a prompt: the sum of its parts.", lambda calls: calls.prompt_bytes, labels=MODEL
    ),
    histogram(
        "ttft_seconds",
        "Time from the request to the first part of the answer.",
        lambda calls: calls.first_part_seconds,
        labels=MODEL,
    ),
    histogram(
        "model_call_seconds",
        "Time of calls of models, however they ended.",
        lambda calls: calls.call_seconds,
        labels=(*MODEL, "purpose", "outcome"),
    ),
    counter(
        "tokens_total",
        "Tokens as providers count them; output includes reasoning, input excludes what was cached.",
        lambda calls: calls.tokens,
        labels=(*MODEL, "purpose", "type"),
    ),
    counter(
        "cost_micros_total",
        "Cost of calls in millionths of a US dollar; calls without a known price add nothing.",
        lambda calls: calls.cost_micros,
        labels=(*MODEL, "purpose"),
    ),
    counter(
        "stream_retries_total",
        "Steps that failed in a way that passes, and were tried again.",
        lambda calls: calls.retries,
        labels=(*MODEL, "kind"),
    ),
    counter(
        "compaction_total",
        "Summaries of histories, by who wanted them; those that were cancelled are not counted.",
        lambda calls: calls.compactions,
        labels=(*MODEL, "source", "result"),
    ),
    counter(
        "overflow_rungs_total",
        "Ways in which chats were made shorter (whole, trimmed, pieces, spilled), and requests for that which were "
        "refused as too long.",
        lambda calls: calls.rungs,
        labels=(*MODEL, "rung", "result"),
    ),
)

FAULTS: tuple[Family[ModelCounters], ...] = (
    counter(
        "replay_repairs_total",
        "Histories that a provider refused, and took after a repair.",
        lambda counters: counters.counts().repairs,
        labels=("wire", "rung"),
        known=every(WIRES, ReplayFault),
    ),
    counter(
        "replay_unrepaired_total",
        "Histories that a provider refused in spite of a repair.",
        lambda counters: counters.counts().unrepaired,
        labels=("wire", "rung"),
        known=every(WIRES, ReplayFault),
    ),
    counter(
        "prefix_breaks_total",
        "Requests that did not begin like the one before: the provider's cache misses.",
        lambda counters: counters.counts().prefix_breaks,
        labels=("wire",),
        known=WIRES,
    ),
    counter(
        "unknown_events_total",
        "Events of providers that were ignored because nobody knows their type.",
        lambda counters: counters.counts().unknown_events,
        labels=("wire", "type"),
    ),
)
