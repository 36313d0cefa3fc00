"""A fake provider whose answers the test defines word by word."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rookery.testing.fake_completions import Answer, FakeCompletions, Style, events
from rookery.testing.fake_server import RecordedRequest, Scenario, ScriptedEvent
from tests.browser.browser_user import Visitor
from tests.browser.faulty_connection import EventLoopThread

_MODEL = "actor"


class Cue:
    """A position in an answer at which the model waits until the test continues."""

    def __init__(self, backstage: EventLoopThread) -> None:
        self.event = asyncio.Event()
        self._backstage = backstage

    def give(self) -> None:
        self._backstage.call(self.event.set)


class ModelScript:
    """Answers each prompt with the answer set for it. Other calls of the server (titles, labels) get one word."""

    def __init__(self, backstage: EventLoopThread) -> None:
        self._backstage = backstage
        self._fake = _Fake(style=Style(piece_chars=4))
        self._url = ""

    @contextmanager
    def on_stage(self) -> Iterator[ModelScript]:
        listening = self._fake.listening()
        self._url = self._backstage.run(_entered(listening))
        try:
            yield self
        finally:
            self._backstage.run(listening.__aexit__(None, None, None))

    def plays(self, prompt: str, *steps: Answer | Scenario | Sequence[Answer | Cue]) -> None:
        """Set the answer to this message. A step may consist of several pieces with cues between them."""
        self._fake.roles.setdefault(prompt, deque()).extend(self._scenario(step) for step in steps)

    def left(self, prompt: str) -> int:
        """Return how many of the steps for this message the model has not been asked for yet."""
        return len(self._fake.roles[prompt])

    def cue(self) -> Cue:
        return Cue(self._backstage)

    def config(self, admin: Visitor) -> str:
        """Return the id of the model config, which is created at the first call."""
        for config in admin.ask("GET", "/model-configs")["items"]:
            if config["model"] == _MODEL:
                return str(config["id"])
        provider = {"type": "openai_compat", "name": _MODEL, "base_url": f"{self._url}/v1"}
        made = admin.ask("POST", "/model-providers", provider)
        body = {"provider_id": made["id"], "model": _MODEL, "context_limit": 100_000}
        return str(admin.ask("POST", "/model-configs", body)["id"])

    def _scenario(self, step: Answer | Scenario | Sequence[Answer | Cue]) -> Scenario:
        if isinstance(step, Scenario):
            return step
        return self._script([step] if isinstance(step, Answer) else step)

    def _script(self, pieces: Sequence[Answer | Cue]) -> Scenario:
        """Return one stream of all pieces. Only the last piece ends the stream."""
        told: list[ScriptedEvent] = []
        last = max(index for index, piece in enumerate(pieces) if isinstance(piece, Answer))
        for index, piece in enumerate(pieces):
            if isinstance(piece, Cue):
                told.append(piece.event)
            else:
                whole = events(piece, self._fake.style, model=_MODEL)
                told.extend(whole if index == last else whole[:-_ENDING])
        return Scenario(events=told)


# The chunk with the reason, the usage and the mark of the end.
_ENDING = 3


class _Fake(FakeCompletions):
    def __init__(self, *, style: Style) -> None:
        super().__init__(style=style)
        self.roles: dict[str, deque[Scenario]] = {}

    def _respond(self, request: RecordedRequest) -> Scenario | None:
        role = self.roles.get(_prompt(request.body["messages"]))
        if role:
            return role.popleft()
        self.enqueue(Answer(text="Understood."))
        return super()._respond(request)


def _prompt(messages: Sequence[Any]) -> str:
    """Return the user's last message. Notices of the server have the same role and are skipped."""
    said = (_text(each["content"]) for each in reversed(messages) if each["role"] == "user")
    return next((text for text in said if not text.startswith("<notice>")), "")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


async def _entered(listening: Any) -> str:
    url: str = await listening.__aenter__()
    return url
