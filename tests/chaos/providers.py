"""Two fake providers on real sockets that answer by the plans in the conversation, slowly enough for kills.

They store nothing about chats: an answer depends on the request alone, as with a real model. They refuse what real
servers refuse, and record every refusal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rookery.testing import fake_anthropic, fake_completions
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_anthropic_checks import content_of, find_fault
from rookery.testing.fake_server import FakeServer, Fault, RecordedRequest, Scenario, error_body, failure
from tests.chaos import conversation_plans
from tests.chaos.conversation_plans import Reply, Said
from tests.chaos.schedule import fails_first
from tests.eventually import until

KEY = "sk-chaos"
EVENTS_PER_SECOND = 100.0
MOMENT_SECONDS = 30.0
Refusal = tuple[int, Any] | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a step: its monotonic time and its key."""

    at: float
    key: str


class Providers:
    """`on_request` is called with the key of each requested step, before it is answered.

    The answer to a step with a key in `gates` stops after its first words until the event is set.
    """

    def __init__(self, seed: int, *, has_failures: bool = True) -> None:
        self._seed = seed
        self._has_failures = has_failures
        self._tried: set[str] = set()
        self._brain = FakeAnthropic()
        self._servers = {
            "anthropic": FakeServer(
                api_key=KEY,
                validate=self._refuse_anthropic,
                respond=self._answer_anthropic,
                error_body=fake_anthropic.error_body,
                request_id_header="request-id",
            ),
            "openai_compat": FakeServer(
                api_key=KEY, validate=self._refuse_completions, respond=self._answer_completions
            ),
        }
        self.asked: list[Asked] = []
        self.refusals: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.on_request: Callable[[str], None] = lambda key: None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Mapping[str, str]]:
        """Yield the base URL of each provider by its type."""
        async with (
            self._servers["anthropic"].listening() as anthropic,
            self._servers["openai_compat"].listening() as compatible,
        ):
            yield {"anthropic": anthropic, "openai_compat": f"{compatible}/v1"}

    async def until_asked(self, key: str, *, times: int = 1) -> float:
        """Wait until the step was requested this often."""
        await until(lambda: len(self._times(key)) >= times, timeout=MOMENT_SECONDS)
        return self._times(key)[times - 1]

    def _times(self, key: str) -> list[float]:
        return [asked.at for asked in self.asked if asked.key == key]

    # Refusals

    def _refuse_anthropic(self, request: RecordedRequest) -> Refusal:
        if request.method == "GET":
            return 404, fake_anthropic.error_body(404, "There is no such model.")
        fault = find_fault(request.body, request.headers, issued=self._brain.issued, binds_thinking=True)
        return None if fault is None else (400, fake_anthropic.error_body(400, self._refused(fault)))

    def _refuse_completions(self, request: RecordedRequest) -> Refusal:
        if request.method == "GET":
            return 404, error_body(404, "There is no such model.")
        problem = fake_completions.find_problem(request.body)
        return None if problem is None else (400, error_body(400, self._refused(problem)))

    def _refused(self, fault: str) -> str:
        self.refusals.append(fault)
        return fault

    # Answers

    def _answer_anthropic(self, request: RecordedRequest) -> Scenario:
        said = self._next("anthropic", request, _anthropic_conversation(request.body))
        if isinstance(said, Scenario):
            return said
        calls = [fake_anthropic.Call(tool, {}, id=call_id) for call_id, tool in said.calls]
        answer = fake_anthropic.Answer(
            [fake_anthropic.Thinking("Let me think."), fake_anthropic.Text(said.text), *calls]
        )
        return self._stream(said, self._brain.events(answer, request.body))

    def _answer_completions(self, request: RecordedRequest) -> Scenario:
        said = self._next("openai_compat", request, _completions_conversation(request.body))
        if isinstance(said, Scenario):
            return said
        calls = tuple(fake_completions.FakeCall(tool, "{}", call_id) for call_id, tool in said.calls)
        answer = fake_completions.Answer(text=said.text, calls=calls)
        model = request.body["model"]
        return self._stream(said, fake_completions.events(answer, fake_completions.Style(), model=model))

    def _next(self, server: str, request: RecordedRequest, conversation: Iterator[Said]) -> Reply | Scenario:
        # The bodies of thousands of requests would take too much memory.
        self._servers[server].requests.clear()
        if not _tool_names(request.body) & set(conversation_plans.TOOLS):
            return Reply("", "Worked on it")  # a label or a summary
        reply = conversation_plans.reply(tuple(conversation))
        if reply is None:
            self.refusals.append("a request without a message of a person")
            return Reply("", "Nobody asked.")
        self.asked.append(Asked(time.monotonic(), reply.key))
        self.on_request(reply.key)
        is_first = reply.key not in self._tried
        self._tried.add(reply.key)
        trouble = fails_first(self._seed, reply.key) if is_first and self._has_failures else None
        if trouble == "overloaded":
            return failure(529, "Overloaded")
        if trouble == "reset":
            return Scenario(events=[("ping", {"type": "ping"})], fault=Fault.RESET, after_bytes=10)
        return reply

    def _stream(self, reply: Reply, events: list[Any]) -> Scenario:
        if not reply.key:
            return Scenario(events=events)
        if (gate := self.gates.get(reply.key)) is not None:
            middle = len(events) // 2
            events = [*events[:middle], gate, *events[middle:]]
        return Scenario(events=events, events_per_second=EVENTS_PER_SECOND)


def _tool_names(body: Any) -> set[str]:
    return {tool.get("function", tool).get("name", "") for tool in body.get("tools") or ()}


def _anthropic_conversation(body: Any) -> Iterator[Said]:
    for message in body["messages"]:
        blocks = content_of(message)
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        yield Said(message["role"], text, sum(block["type"] == "tool_use" for block in blocks))


def _completions_conversation(body: Any) -> Iterator[Said]:
    for message in body["messages"]:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
        yield Said(message["role"], text, len(message.get("tool_calls") or ()))
