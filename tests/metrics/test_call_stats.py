"""Counters of model calls, and the limit of their labels."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from rookery.llm.scripted import ScriptedModel, Scripts
from rookery.llm.types import LanguageModel
from rookery.models import call_stats
from rookery.models.call_stats import CallStats
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource

OWNER = UUID(int=1)


def model(name: str = "m") -> LanguageModel:
    return ScriptedModel(name, Scripts({}), provider_id=OWNER)


def row(status: CallStatus = CallStatus.OK, **figures: int | None) -> Entry:
    return Entry(
        owner_id=OWNER,
        chat_id=None,
        purpose="turn",
        provider_id=uuid4(),
        model_config_id=None,
        model="m",
        key_source=KeySource.USER,
        status=status,
        **figures,  # type: ignore[arg-type]
    )


def test_answered_call_is_a_step_with_its_tokens_and_cost() -> None:
    calls = CallStats()

    calls.call_ended(model(), row(input_tokens=10, output_tokens=0, cost_micros=7, runtime_ms=1500))

    assert calls.steps == {("scripted", "m", "turn"): 1}
    # Zero differs from "not reported".
    assert dict(calls.tokens) == {("scripted", "m", "turn", "input"): 10, ("scripted", "m", "turn", "output"): 0}
    assert calls.cost_micros == {("scripted", "m", "turn"): 7}
    assert calls.call_seconds["scripted", "m", "turn", "ok"].total == pytest.approx(1.5)


@pytest.mark.parametrize("status", [CallStatus.FAILED, CallStatus.INTERRUPTED])
def test_call_without_an_answer_is_no_step_but_is_paid_for(status: CallStatus) -> None:
    calls = CallStats()

    calls.call_ended(model(), row(status, input_tokens=10, cost_micros=7))

    assert not calls.steps
    assert calls.tokens.total() == 10
    assert calls.cost_micros.total() == 7
    assert ("scripted", "m", "turn", str(status)) in calls.call_seconds


def test_names_of_models_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_stats, "MAX_MODELS", 3)
    calls = CallStats()

    for number in range(10):
        calls.first_part(model(f"m{number}"), seconds=0.1)

    names = [name for (_, name), _ in calls.first_part_seconds.items()]
    assert names == ["m0", "m1", "m2", "other"]
    assert calls.first_part_seconds["scripted", "other"].count == 7


def test_summary_by_a_model_that_is_not_at_hand_is_counted_as_other() -> None:
    calls = CallStats()

    calls.compacted(None, "automatic", result="error")

    assert calls.compactions == {("other", "other", "automatic", "error"): 1}
