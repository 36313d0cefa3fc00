"""Counters of model calls by model and purpose: durations, tokens, cost and retries."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from rookery.llm.types import LanguageModel
from rookery.store.models.usage_ledger import CallStatus, Entry
from rookery.telemetry.histogram import Histograms, exponential
from rookery.telemetry.tracing import names, spans

# Limit of the label values, because administrators may configure many models over months.
MAX_MODELS = 200
OTHER_MODEL = "other"

FIRST_PART_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# The type of the provider and the configured name of the model.
ModelKey: TypeAlias = tuple[str, str]


class CallStats:
    """Counts model calls and their results. One per process. Keys are label values.

    `steps` counts the calls that were answered, for any purpose.
    """

    def __init__(self) -> None:
        self.message_count = Histograms[ModelKey](exponential(1, 2, 11))
        self.prompt_bytes = Histograms[ModelKey](exponential(1024, 4, 10))
        self.first_part_seconds = Histograms[ModelKey](FIRST_PART_BOUNDS)
        self.call_seconds = Histograms[tuple[str, str, str, str]](exponential(0.01, 2, 16))  # by purpose and outcome
        self.steps: Counter[tuple[str, str, str]] = Counter()  # by purpose
        self.tokens: Counter[tuple[str, str, str, str]] = Counter()  # by purpose and type
        self.cost_micros: Counter[tuple[str, str, str]] = Counter()  # by purpose
        self.retries: Counter[tuple[str, str, str]] = Counter()  # by kind of error
        self.compactions: Counter[tuple[str, str, str, str]] = Counter()  # by source and result
        self.rungs: Counter[tuple[str, str, str, str]] = Counter()  # by rung and result
        self.empty_responses = 0
        self._models: set[ModelKey] = set()

    # Reported by the loop (`StepStats`)

    def step_started(self, model: LanguageModel, *, messages: int, prompt_bytes: int) -> None:
        key = self._key(model)
        self.message_count.observe(key, messages)
        self.prompt_bytes.observe(key, prompt_bytes)

    def first_part(self, model: LanguageModel, *, seconds: float) -> None:
        key = self._key(model)
        self.first_part_seconds.observe(key, seconds)
        spans.record(names.TIME_TO_FIRST_CHUNK, seconds, _attributes(key))

    def empty_response(self, model: LanguageModel) -> None:
        self.empty_responses += 1

    # Reported by the worker

    def call_ended(self, model: LanguageModel, row: Entry) -> None:
        """Count a finished call. `row` is its row of the usage ledger."""
        key, purpose = self._key(model), str(row.purpose)
        self.call_seconds.observe((*key, purpose, str(row.status)), row.runtime_ms / 1000)
        if row.status is CallStatus.OK:
            self.steps[*key, purpose] += 1
        used = {
            "input": row.input_tokens,
            "output": row.output_tokens,
            "reasoning": row.reasoning_tokens,
            "cache_read": row.cache_read_tokens,
            "cache_write": row.cache_write_tokens,
        }
        for kind, count in used.items():
            if count is not None:
                self.tokens[*key, purpose, kind] += count
        if row.cost_micros is not None:
            self.cost_micros[*key, purpose] += row.cost_micros
        if spans.is_on():
            _export(key, row)

    def retried(self, model: LanguageModel, kind: str) -> None:
        """Count a retry of a step after a temporary failure."""
        self.retries[*self._key(model), kind] += 1

    def compacted(self, model: LanguageModel | None, source: str, *, result: str) -> None:
        """Count a compaction. `model` is the summarizing model; None if it is unknown."""
        key = (OTHER_MODEL, OTHER_MODEL) if model is None else self._key(model)
        self.compactions[*key, source, result] += 1

    def rung_taken(self, model: LanguageModel, rung: str, *, result: str) -> None:
        """Count an overflow rung that succeeded, or a request of a rung that was too long."""
        self.rungs[*self._key(model), rung, result] += 1

    def _key(self, model: LanguageModel) -> ModelKey:
        key = (str(model.provider_type), model.model)
        if key in self._models:
            return key
        if len(self._models) >= MAX_MODELS:
            return key[0], OTHER_MODEL
        self._models.add(key)
        return key


def _export(key: ModelKey, row: Entry) -> None:
    """Record the call in the metrics of the conventions, which count cached tokens as input."""
    attributes = {**_attributes(key), names.PURPOSE: str(row.purpose)}
    outcome = {} if row.status is CallStatus.OK else {names.ERROR_TYPE: str(row.status)}
    spans.record(names.OPERATION_DURATION, row.runtime_ms / 1000, {**attributes, **outcome})
    given = [each for each in (row.input_tokens, row.cache_read_tokens, row.cache_write_tokens) if each is not None]
    if given:
        spans.record(names.TOKEN_USAGE, sum(given), {**attributes, names.TOKEN_TYPE: "input"})
    if row.output_tokens is not None:
        spans.record(names.TOKEN_USAGE, row.output_tokens, {**attributes, names.TOKEN_TYPE: "output"})


def _attributes(key: ModelKey) -> dict[str, str]:
    provider_type, model = key
    return {
        names.OPERATION: names.CHAT,
        names.PROVIDER: names.provider_name(provider_type),
        names.REQUEST_MODEL: model,
    }
