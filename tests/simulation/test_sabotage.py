"""The simulation is able to fail: whoever breaks the streams is found out, for the right reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from rookery.client.live import LiveChat
from rookery.store.db.hints import ChatHint
from rookery.stream.inbox import Registry
from rookery.stream.outbox import Outbox
from rookery.stream.viewer import StreamLoop
from tests.simulation import follower
from tests.simulation.replicas_rig import Ear, ReplicasRig
from tests.simulation.scenario import run_plays, running_town

LENGTH = 50  # acts in a play
PROFILE = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    max_examples=40,  # the first that fails ends it
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
# A client that never comes to agree is waited for twice: when it is found out, and when that is tried again.
PATIENCE_SECONDS = 2.0


def drop_a_message(patch: pytest.MonkeyPatch) -> None:
    """The newest message of a change is not sent."""
    apply = StreamLoop.apply

    def apply_most(self: StreamLoop, *args: Any, **options: Any) -> list[bytes]:
        events = apply(self, *args, **options)
        newest = [event for event in events if event.startswith(b'{"type":"message",')][-1:]
        return [event for event in events if event not in newest]

    patch.setattr(StreamLoop, "apply", apply_most)


def skip_the_resync(patch: pytest.MonkeyPatch) -> None:
    """Streams do not look again after a time in which nothing was heard; and nothing is heard of any chat."""
    patch.setattr(Registry, "_on_resync", lambda self: None)
    patch.setattr(Ear, "_hear", lambda self, hint: None if isinstance(hint, ChatHint) else self._pass_on(hint))


def lose_a_part(patch: pytest.MonkeyPatch) -> None:
    """The first part of a batch is not shown, if there are others."""
    show = Outbox.show
    patch.setattr(Outbox, "show", lambda self, parts: show(self, parts[1:] if len(parts) > 1 else parts))


def keep_old_parts(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told that another episode begins."""
    apply = StreamLoop.apply

    def apply_most(self: StreamLoop, *args: Any, **options: Any) -> list[bytes]:
        return [event for event in apply(self, *args, **options) if not event.startswith(b'{"type":"preview_reset"')]

    patch.setattr(StreamLoop, "apply", apply_most)


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
    """It says that it holds the newest message, as one would that keeps the last id of every answer it gets."""
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
    """Plays must fail, and one of them for this reason. A second try may go well, which hypothesis calls flaky."""
    patch.setattr(follower, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    with asyncio.Runner() as runner, running_town(database_url, tmp_path, runner) as rig:
        meet(rig)
        with pytest.raises((AssertionError, BaseExceptionGroup)) as failed:
            run_plays(rig, runner, PROFILE, length=LENGTH)

    assert any(symptom in line for line in told(failed.value)), told(failed.value)


def told(error: BaseException) -> list[str]:
    """What an error says, and those inside it and before it."""
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    before = [each for each in (error.__cause__, error.__context__) if each is not None]
    return [str(error), *(line for each in (*inside, *before) for line in told(each))]
