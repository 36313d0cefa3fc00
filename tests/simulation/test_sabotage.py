"""The simulation can fail: sabotage of the streams is detected, for the right reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from rookery.client.live_streams import LiveChat
from rookery.store.db.hints import ChatHint
from rookery.stream.hint_inbox import Registry
from rookery.stream.outbox import Outbox
from rookery.stream.viewer import ClientView
from tests.simulation import follower
from tests.simulation.replicas_rig import HintFilter, ReplicasRig
from tests.simulation.scenario import run_scenarios, running_replicas

LENGTH = 50  # actions in a scenario
PROFILE = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    max_examples=40,  # the first failing scenario ends the run
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
# A client that never agrees is waited for twice: when it is detected, and when hypothesis repeats it.
PATIENCE_SECONDS = 2.0


def drop_a_message(patch: pytest.MonkeyPatch) -> None:
    """Do not send the newest message of a change."""
    apply = ClientView.apply

    def apply_most(self: ClientView, *args: Any, **options: Any) -> list[bytes]:
        events = apply(self, *args, **options)
        newest = [event for event in events if event.startswith(b'{"type":"message",')][-1:]
        return [event for event in events if event not in newest]

    patch.setattr(ClientView, "apply", apply_most)


def skip_the_resync(patch: pytest.MonkeyPatch) -> None:
    """Drop all hints about chats, and do not resynchronize streams."""
    patch.setattr(Registry, "_on_resync", lambda self: None)
    patch.setattr(HintFilter, "_hear", lambda self, hint: None if isinstance(hint, ChatHint) else self._pass_on(hint))


def lose_a_part(patch: pytest.MonkeyPatch) -> None:
    """Drop the first part of a batch with several parts."""
    show = Outbox.show
    patch.setattr(Outbox, "show", lambda self, parts: show(self, parts[1:] if len(parts) > 1 else parts))


def keep_old_parts(patch: pytest.MonkeyPatch) -> None:
    """Do not announce the start of another episode."""
    apply = ClientView.apply

    def apply_most(self: ClientView, *args: Any, **options: Any) -> list[bytes]:
        return [event for event in apply(self, *args, **options) if not event.startswith(b'{"type":"preview_reset"')]

    patch.setattr(ClientView, "apply", apply_most)


@pytest.mark.parametrize(
    ("sabotage", "symptom"),
    [
        (drop_a_message, "the client differs in ['messages'"),
        (skip_the_resync, "does not come to show what is stored"),
        (lose_a_part, "comes after 0"),
        (keep_old_parts, "parts of another episode are still shown"),
    ],
)
def test_sabotage_is_noticed(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sabotage: Callable[[pytest.MonkeyPatch], None],
    symptom: str,
) -> None:
    sabotage(monkeypatch)
    expect(symptom, monkeypatch, database_url, tmp_path)


def test_client_that_resumes_at_the_wrong_message_is_noticed(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client claims to have the newest message, like one that stores the last id of every response."""
    towns: list[ReplicasRig] = []

    def where(self: LiveChat) -> dict[str, Any]:
        chat_id = self._frames._path.split("/")[-2]
        truths = next(found for key, found in towns[0].truths.items() if str(key) == chat_id)
        return {**self._query, "after_id": max(truths[max(truths)].view.messages)}

    monkeypatch.setattr(LiveChat, "_where", where)

    expect("the client differs in ['messages'", monkeypatch, database_url, tmp_path, meet=towns.append)


def expect(
    symptom: str,
    patch: pytest.MonkeyPatch,
    database_url: str,
    tmp_path: Path,
    *,
    meet: Callable[[ReplicasRig], None] = lambda _: None,
) -> None:
    """Run scenarios, of which one must fail for this reason. A repetition may pass, which hypothesis calls flaky."""
    patch.setattr(follower, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    with asyncio.Runner() as runner, running_replicas(database_url, tmp_path, runner) as rig:
        meet(rig)
        with pytest.raises((AssertionError, BaseExceptionGroup)) as failed:
            run_scenarios(rig, runner, PROFILE, length=LENGTH)

    assert any(symptom in line for line in told(failed.value)), told(failed.value)


def told(error: BaseException) -> list[str]:
    """Return the text of an error and of all errors inside and before it."""
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    before = [each for each in (error.__cause__, error.__context__) if each is not None]
    return [str(error), *(line for each in (*inside, *before) for line in told(each))]
