"""Output of a followed chat with lost connections, failed attempts, and repeated parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rookery.cli.chat.stream_follower import Follower, figures
from rookery.cli.chat.terminal_screen import Screen
from rookery.cli.output import Output
from rookery.client import AsyncRookery, Change
from rookery.client.reducer import View
from rookery.domain.chat.messages import Role
from rookery.llm.scripted import Fail, Say, Wait
from rookery.llm.types import ErrorKind
from rookery.runtime.clock import SystemClock
from rookery.testing import FakeClock
from tests.cli.admin.run.run_rig import Stream
from tests.cli.chat.chat_rig import ChatRig, open_chat_desk
from tests.eventually import until
from tests.faulty_proxy import FaultyProxy

LONG = 3600.0
CHAT = "6f7c1a4e-0000-4000-8000-000000000001"


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[ChatRig]:
    async with open_chat_desk(database_url, tmp_path) as opened:
        yield opened


class Shown:
    """A follower with events from the test."""

    def __init__(self, *, prompts: bool = False, after_id: int = 0) -> None:
        self.stdout, self.stderr = Stream(), Stream()
        out = Output(self.stdout, self.stderr)
        screen = Screen(out, environ={"NO_COLOR": "1"})
        live: Any = AsyncRookery().chats.stream(CHAT)
        self._follower = Follower(live, screen=screen, out=out, clock=SystemClock(), prompts=prompts, after_id=after_id)

    def tell(self, *events: dict[str, Any]) -> Shown:
        self._follower.show(Change(events, View()))
        return self

    @property
    def said(self) -> str:
        return self.stdout.getvalue()

    @property
    def notes(self) -> list[str]:
        return self.stderr.getvalue().splitlines()


def part(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": "message_part", "seq": 1, "role": "assistant", "part": {"type": kind, "text": text}}


def attempt(number: int, *, history: int = 1, reason: str = "attempt") -> dict[str, Any]:
    return {"type": "preview_reset", "history_version": history, "generation_attempt": number, "reason": reason}


def message(number: int, *content: dict[str, Any], role: Role = Role.ASSISTANT, second: int = 0) -> dict[str, Any]:
    at = f"2030-01-01T00:00:{second:02}Z"
    row = {"id": number, "chat_id": CHAT, "role": role, "content": list(content), "created_at": at}
    return {"type": "message", "message": row}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_attempt_that_is_told_again_is_not_shown_again() -> None:
    shown = Shown().tell(attempt(1), part("Good "), part("even"))

    shown.tell(attempt(1, reason="rebase"), part("Good eveni"), part("ng."))

    assert (shown.said, shown.notes) == ("Good evening.", [])


def test_reasoning_and_text_are_counted_apart() -> None:
    shown = Shown().tell(attempt(1), part("Hm.", "reasoning"), part("Yes"))

    shown.tell(attempt(1, reason="lagged"), part("Hm.", "reasoning"), part("Yes, sir."))

    assert (shown.said, shown.notes) == ("Yes, sir.", ["Hm."])


def test_another_attempt_starts_over_and_prints_a_note() -> None:
    shown = Shown().tell(attempt(1), part("Good even"), attempt(2), part("Good night."))

    assert shown.said == "Good even\n\nGood night."
    assert shown.notes == ["The answer was cut off; it starts again."]


def test_committed_message_adds_only_what_was_not_seen() -> None:
    shown = Shown().tell(attempt(1), part("Good even"), message(2, text("Good evening.")))

    assert shown.said == "Good evening."
    shown.tell(message(2, text("Good evening.")))
    assert shown.said == "Good evening."


def test_messages_that_are_known_are_not_shown() -> None:
    assert Shown(after_id=5).tell(message(5, text("old")), message(6, text("new"))).said == "new"


def test_tools_are_timed_by_when_their_messages_were_committed() -> None:
    call = {"type": "tool-call", "tool_call_id": "c", "tool_name": "look", "args": {"at": "it"}}
    result = {"type": "tool-result", "tool_call_id": "c", "tool_name": "look", "result": {"output": "x"}}

    shown = Shown().tell(message(1, call), message(2, result, role=Role.TOOL, second=7))

    assert shown.notes == ['look at="it"', "look done in 7.0 s"]


def test_prompts_are_shown_on_request() -> None:
    asked = message(1, text("one\ntwo"), role=Role.USER)

    assert Shown(prompts=True).tell(asked).notes == ["> one", "> two"]
    assert Shown().tell(asked).notes == []


def test_parts_that_this_version_does_not_know_are_passed_over() -> None:
    shown = Shown().tell(attempt(1), part("?", "hologram"), part("Hello."))
    shown.tell(message(2, {"type": "hologram"}))

    assert shown.said == "Hello."
    assert shown.notes[0].startswith("Message 2 cannot be read")


def test_private_use_characters_come_through_as_they_are() -> None:
    assert Shown().tell(message(1, text("a\ue000\ue001b\ue000"))).said == "a\ue000\ue001b\ue000"


def test_steps_are_added_up() -> None:
    usage = {"input_tokens": 5, "cache_read_tokens": 2, "cache_write_tokens": None, "output_tokens": 3}
    rows: dict[int, dict[str, Any]] = {
        1: {"role": "assistant", "usage": usage, "cost_micros": 1_000_000},
        2: {"role": "user", "usage": None},
        3: {"role": "assistant", "usage": usage, "cost_micros": 1500},
        4: {"role": "assistant", "usage": usage, "cost_micros": None},
    }

    assert figures(View(messages=rows), 2) == "14 tokens in, 6 out, $0.0015, "
    assert figures(View(messages={}), 0) == ""


async def test_lost_connection_is_told_and_the_answer_goes_on_where_it_was(rig: ChatRig) -> None:
    clock = FakeClock()
    with rig.script((Say("Good morning."), Wait(LONG))):
        made = await rig.client.chats.create("hello")
        async with (
            FaultyProxy(rig.rig.url).laid() as proxy,
            AsyncRookery(proxy.url, token=rig.person.token, clock=clock, rng=Random(1)) as client,
            client.chats.stream(made.id) as live,
        ):
            at = rig.terminal(client=client)
            follower = Follower(live, screen=at.screen, out=at.out, clock=at.clock)
            following = asyncio.create_task(follower.to_rest(made.snapshot_version))
            await until(lambda: rig.said == "Good morning.")
            proxy.cut()
            await clock.fire("stream-retry")
            await until(lambda: "Connected again." in rig.notes)
            await rig.client.chats.interrupt(made.id)
            await following

    assert rig.said == "Good morning.\n"
    assert rig.notes == ["Connection lost: the connection was cut. Trying again in 1 s.", "Connected again."]


def test_reason_of_a_loss_is_told_once() -> None:
    def loss(reason: str, seconds: float) -> dict[str, Any]:
        return {"type": "disconnected", "reason": reason, "retry_in_seconds": seconds}

    shown = Shown().tell(loss("This server is about to stop.", 1.0)).tell(loss("Nothing answers", 2.0))

    assert shown.notes == [
        "Connection lost: This server is about to stop. Trying again in 1 s.",
        "Still no connection. Trying again in 2 s.",
    ]


async def test_failed_attempt_is_told_with_the_wait_for_the_next(rig: ChatRig) -> None:
    failing = Fail(ErrorKind.OVERLOADED, "Too much to do.", retry_after=timedelta(seconds=30))
    with rig.script((failing,)):
        made = await rig.client.chats.create("hello")
        at = rig.terminal()
        async with rig.client.chats.stream(made.id) as live:
            follower = Follower(live, screen=at.screen, out=at.out, clock=at.clock)
            following = asyncio.create_task(follower.to_rest(made.snapshot_version))
            await until(lambda: any(note.startswith("Attempt 1 failed") for note in rig.notes))
            await rig.client.chats.interrupt(made.id)
            await following

    assert "Trying again in" in rig.notes[0]
