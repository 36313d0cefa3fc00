"""Idempotency keys in memory, in the file, and after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.workspaces.agent import journal as journals
from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.journal import Attempt, Journal
from rookery.workspaces.agent.server.http import Response


class JournalRig:
    """A journal with a clock that the test moves, and that the test can reopen as after a restart."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal"
        self.seconds = 1_000_000.0
        self.logged: list[str] = []
        self.runs: list[str] = []
        self.journal = self.open()

    def open(self) -> Journal:
        journal = Journal(self.path, Clock(now=lambda: self.seconds), self.logged.append)
        journal.load()
        return journal

    def restart(self) -> None:
        self.journal.close()
        self.journal = self.open()

    def work(self, name: str, *, answer: Any = None) -> Callable[[Attempt], Any]:
        async def run(attempt: Attempt) -> Response:
            self.runs.append(name)
            return Response.json(answer if answer is not None else {"name": name})

        return run

    async def do(self, key: str, body: str = "body", **given: Any) -> Response:
        return await self.journal.once(key, "write", body, self.work(key), **given)


@pytest.fixture
def desk(tmp_path: Path) -> JournalRig:
    return JournalRig(tmp_path)


async def test_same_key_runs_once_and_gives_the_same_answer(desk: JournalRig) -> None:
    first = await desk.do("a")
    second = await desk.do("a")

    assert desk.runs == ["a"]
    assert first.body == second.body
    assert "idempotent-replay" not in first.headers
    assert second.headers["idempotent-replay"] == "1"


async def test_same_key_with_another_body_or_kind_is_refused(desk: JournalRig) -> None:
    await desk.do("a")

    with pytest.raises(AgentError) as other_body:
        await desk.do("a", "another")
    with pytest.raises(AgentError) as other_kind:
        await desk.journal.once("a", "edit", "body", desk.work("a"))

    assert other_body.value.status == other_kind.value.status == 422
    assert desk.runs == ["a"]


async def test_second_caller_joins_the_first_while_it_runs(desk: JournalRig) -> None:
    gate = asyncio.Event()

    async def slow(attempt: Attempt) -> Response:
        desk.runs.append("slow")
        await gate.wait()
        return Response.json({"ok": True})

    callers = [asyncio.create_task(desk.journal.once("a", "write", "body", slow)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()
    answers = await asyncio.gather(*callers)

    assert desk.runs == ["slow"]
    assert len({answer.body for answer in answers}) == 1


async def test_failed_effect_may_be_tried_again(desk: JournalRig) -> None:
    async def fail(attempt: Attempt) -> Response:
        raise AgentError(507, "full", "The disk is full.")

    with pytest.raises(AgentError):
        await desk.journal.once("a", "write", "body", fail)
    desk.restart()
    answer = await desk.do("a", "body")

    assert answer.status == 200
    assert desk.runs == ["a"]


async def test_finished_effect_is_replayed_after_a_restart(desk: JournalRig) -> None:
    first = await desk.do("a")

    desk.restart()
    second = await desk.do("a")

    assert desk.runs == ["a"]
    assert second.body == first.body


async def test_effect_cut_off_by_a_restart_runs_again_with_its_note(desk: JournalRig) -> None:
    async def die(attempt: Attempt) -> Response:
        attempt.note({"result": "abc"})
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await desk.journal.once("a", "edit", "body", die)
    desk.restart()
    found = []

    async def look(attempt: Attempt) -> Response:
        found.append(attempt.earlier_note)
        return Response.json({})

    await desk.journal.once("a", "edit", "body", look)

    assert found == [{"result": "abc"}]


async def test_effect_that_cannot_be_repeated_stays_lost(desk: JournalRig) -> None:
    async def start(attempt: Attempt) -> Response:
        attempt.defer()
        return Response.json({"id": "p1"})

    await desk.journal.once("a", "process", "body", start)
    desk.restart()

    for _ in range(2):
        with pytest.raises(AgentError) as error:
            await desk.journal.once(
                "a", "process", "body", desk.work("a"), lost=lambda: AgentError(410, "process_lost", "Lost.")
            )
        assert error.value.status == 410
    assert desk.runs == []


async def test_deferred_effect_is_done_when_it_is_finished(desk: JournalRig) -> None:
    async def start(attempt: Attempt) -> Response:
        attempt.defer()
        return Response.json({"id": "p1"})

    await desk.journal.once("a", "process", "body", start)
    desk.journal.finish("a", {"exit_code": 3})
    desk.restart()
    again = await desk.journal.once("a", "process", "body", desk.work("a"))

    assert json.loads(again.body) == {"id": "p1"}
    assert desk.journal.finished("process") == [{"exit_code": 3}]
    assert desk.runs == []


async def test_keys_are_forgotten_after_a_day(desk: JournalRig) -> None:
    await desk.do("a")
    desk.seconds += journals.MAX_AGE_S + 1
    await desk.do("b")

    desk.restart()
    await desk.do("a")
    await desk.do("b")

    assert desk.runs == ["a", "b", "a"]


async def test_the_newest_4096_keys_are_kept_and_the_file_stays_small(desk: JournalRig) -> None:
    count = journals.MAX_ENTRIES
    for number in range(2 * count + 10):
        await desk.do(f"k{number}")

    desk.restart()
    desk.runs.clear()
    await desk.do(f"k{count + 10}")
    await desk.do("k0")

    assert desk.runs == ["k0"]
    assert len(desk.path.read_bytes().splitlines()) <= 2 * count + 8


async def test_answers_together_stay_within_their_bytes(desk: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MAX_ANSWER_BYTES", 10_000)
    for number in range(20):
        await desk.journal.once(f"k{number}", "write", "body", desk.work(f"k{number}", answer={"text": "x" * 1000}))
    desk.runs.clear()

    await desk.do("k19")
    await desk.do("k0")

    assert desk.runs == ["k0"]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b'"text"',
        b"{}",
        b'{"line":"done","key":"never started","status":200,"body":"{}","data":null}',
        b'{"line":"started","key":7,"kind":"write","hash":"h","at":1}',
        b'{"line":"started","key":"","kind":"write","hash":"h","at":1}',
        b'{"line":"started","key":"x","kind":"write","hash":"h","at":"soon"}',
        b'{"line":"note","key":"a","note":[]}',
        b'{"line":"done","key":"a","status":"ok","body":"{}","data":null}',
        b'{"line":"done","key":"a","status":200,"body":null,"data":null}',
        b'{"line":"done","key":"a","status":200,"body":"{}","data":"text"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
async def test_line_that_makes_no_sense_is_skipped(desk: JournalRig, line: bytes) -> None:
    await desk.do("a")
    with desk.path.open("ab") as file:
        file.write(line + b"\n")
    await desk.do("b")

    desk.restart()
    await desk.do("a")
    await desk.do("b")

    assert desk.runs == ["a", "b"]
    assert any("skipped" in line for line in desk.logged)


Step = tuple[str, str]
STEPS = st.lists(
    st.tuples(st.sampled_from(["do", "fail", "cut", "restart", "tear"]), st.sampled_from("abc")), max_size=30
)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 60))
def test_no_key_is_executed_twice_after_any_crash(steps: list[Step], torn: int) -> None:
    """Compared with a model: done stays done, failed and interrupted effects run again, a torn last line loses at most
    itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(JournalRig(Path(folder)), steps, torn))


async def _play(desk: JournalRig, steps: list[Step], torn: int) -> None:
    done: set[str] = set()
    for act, key in steps:
        if act == "restart":
            desk.restart()
        elif act == "tear":
            with desk.path.open("ab") as file:
                line = {"line": "done", "key": key, "status": 200, "body": "{}", "data": None}
                file.write(json.dumps(line).encode()[:-torn])
            desk.restart()
        else:
            before = len(desk.runs)
            with contextlib.suppress(AgentError, asyncio.CancelledError):
                await desk.journal.once(key, "write", "body", _ending(desk, act))
            ran = len(desk.runs) > before
            assert ran == (key not in done)
            if act == "do":
                done.add(key)
    desk.journal.close()


def _ending(desk: JournalRig, act: str) -> Callable[[Attempt], Any]:
    async def run(attempt: Attempt) -> Response:
        desk.runs.append(act)
        if act == "fail":
            raise AgentError(400, "no", "No.")
        if act == "cut":
            raise asyncio.CancelledError
        return Response.json({})

    return run


async def test_note_of_another_thread_is_in_a_file_that_is_rewritten_meanwhile(
    desk: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting: list[threading.Thread] = []
    begun, rename = asyncio.Event(), os.replace

    async def run(attempt: Attempt) -> Response:
        noting.append(threading.Thread(target=attempt.note, args=({"is": "known"},)))
        begun.set()
        await asyncio.Event().wait()
        return Response()

    def renamed(source: Path, target: Path) -> None:
        # Between writing the new file and renaming it: a line written to the old one now would be lost.
        noting[0].start()
        noting[0].join(0.2)
        rename(source, target)

    interrupted = asyncio.create_task(desk.journal.once("slow", "edit", "body", run))
    await begun.wait()
    monkeypatch.setattr(journals, "_SPARE_LINES", 0)
    monkeypatch.setattr(os, "replace", renamed)
    await desk.do("quick")
    noting[0].join()
    monkeypatch.undo()
    interrupted.cancel()
    desk.restart()

    assert desk.journal.interrupted("edit") == [{"is": "known"}]
