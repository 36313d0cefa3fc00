"""Metrics of models: calls, tokens, cost, retries, summaries, and faults of the wires.

The label `provider` is the type of the provider; `model` is the configured name.
"""

from __future__ import annotations

from typing import get_args

from rookery.llm.types import ReplayFault, Wire
from rookery.llm.wire_stats import ModelCounters
from rookery.metrics.families import Family, counter, every, histogram
from rookery.models.call_stats import CallStats

WIRES = get_args(Wire)
MODEL = ("provider", "model")

CALLS: tuple[Family[CallStats], ...] = (
    counter("steps_total", "Model calls that were answered.", lambda calls: calls.steps, labels=(*MODEL, "purpose")),
    counter("empty_responses_total", "Empty responses of models.", lambda calls: calls.empty_responses),
    histogram("message_count", "Messages in a prompt.", lambda calls: calls.message_count, labels=MODEL),
    histogram(
        "prompt_size_bytes", "Size of a prompt: the sum of its parts.", lambda calls: calls.prompt_bytes, labels=MODEL
    ),
    histogram(
        "ttft_seconds",
        "Time from the request to the first part of the response.",
        lambda calls: calls.first_part_seconds,
        labels=MODEL,
    ),
    histogram(
        "model_call_seconds",
        "Time of model calls, including failed ones.",
        lambda calls: calls.call_seconds,
        labels=(*MODEL, "purpose", "outcome"),
    ),
    counter(
        "tokens_total",
        "Tokens as providers count them; output includes reasoning, input excludes cached tokens.",
        lambda calls: calls.tokens,
        labels=(*MODEL, "purpose", "type"),
    ),
    counter(
        "cost_micros_total",
        "Cost of model calls in millionths of a US dollar; calls without a known price add nothing.",
        lambda calls: calls.cost_micros,
        labels=(*MODEL, "purpose"),
    ),
    counter(
        "stream_retries_total",
        "Steps that failed with a transient error and were retried.",
        lambda calls: calls.retries,
        labels=(*MODEL, "kind"),
    ),
    counter(
        "compaction_total",
        "Summaries of histories, by trigger; canceled ones are not counted.",
        lambda calls: calls.compactions,
        labels=(*MODEL, "source", "result"),
    ),
    counter(
        "overflow_rungs_total",
        "Compactions by method (whole, trimmed, pieces, spilled) with the result success, and requests for a summary "
        "that were refused as too long, with the result too_long.",
        lambda calls: calls.rungs,
        labels=(*MODEL, "rung", "result"),
    ),
)

FAULTS: tuple[Family[ModelCounters], ...] = (
    counter(
        "replay_repairs_total",
        "Histories that a provider refused at first, and accepted after a repair.",
        lambda counters: counters.counts().repairs,
        labels=("wire", "rung"),
        known=every(WIRES, ReplayFault),
    ),
    counter(
        "replay_unrepaired_total",
        "Histories that a provider refused even after a repair.",
        lambda counters: counters.counts().unrepaired,
        labels=("wire", "rung"),
        known=every(WIRES, ReplayFault),
    ),
    counter(
        "prefix_breaks_total",
        "Requests whose beginning differs from the previous request, so that the provider's cache misses.",
        lambda counters: counters.counts().prefix_breaks,
        labels=("wire",),
        known=WIRES,
    ),
    counter(
        "unknown_events_total",
        "Provider events that were ignored because their type is unknown.",
        lambda counters: counters.counts().unknown_events,
        labels=("wire", "type"),
    ),
)
