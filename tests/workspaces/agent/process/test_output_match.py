"""Waits for matching output: the agent stays responsive for any expression, and all output is judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.process import output_match
from rookery.workspaces.agent.process.children import Child, Children
from rookery.workspaces.agent.process.output_match import MatchResult, OutputWaits
from rookery.workspaces.agent.process.processes import Process, ProcessSpec
from rookery.workspaces.agent.server.http import ChatHeaders

PATIENCE_S = 60.0


def running(output: bytes = b"") -> Process:
    process = Process("p1", ProcessSpec("serve", ["serve"], "/", {}, ChatHeaders()), 0.0)
    process.append(output)
    return process


def ended(output: bytes) -> Process:
    process = running(output)
    process.close(0, 1.0)
    return process


def say(process: Process, data: bytes) -> None:
    process.append(data)
    process.wake_readers()


class Reaped(Children):
    """Reaps children in the test, because no agent does it here."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Any] = []

    def spawn(self, *arguments: Any, **fields: Any) -> Child:
        child = super().spawn(*arguments, **fields)
        self.started.append(child._popen)
        return child

    async def reap(self) -> None:
        for popen in self.started:
            await asyncio.to_thread(popen.wait)


@pytest.fixture
async def children() -> AsyncIterator[Reaped]:
    made = Reaped()
    yield made
    await made.reap()


Wait = Callable[..., Coroutine[Any, Any, MatchResult]]


@pytest.fixture
def wait(children: Reaped) -> Wait:
    async def wait(process: Process, pattern: str, *, since: int = 0, wait_s: float = PATIENCE_S) -> MatchResult:
        return await OutputWaits(children).wait(process, pattern, since=since, wait_s=wait_s, gone=asyncio.Event())

    return wait


async def test_wait_is_over_with_the_line_that_matches(wait: Wait) -> None:
    process = running(b"starting\n")

    waiting = asyncio.create_task(wait(process, r"ready in \d+"))
    say(process, "gr\u00fcn\nserver ready".encode())
    say(process, b" in 3")
    say(process, b" ms\n")

    # The last line is matched whenever it has grown: it may be a prompt, which never ends.
    assert (await waiting).line in ("server ready in 3", "server ready in 3 ms")


@pytest.mark.parametrize(
    ("process", "pattern", "since", "line"),
    [
        (running(b"one\ntwo\n"), "two", 0, "two"),  # existing output counts, however short the wait
        (running(b"one\ntwo\n"), "one", 4, None),
        (ended(b"one\nlast words"), "words$", 0, "last words"),
        (ended(b"one\n"), "two", 0, None),
        (ended(b"a\xffb\n"), "a.b", 0, "a\ufffdb"),
    ],
)
async def test_earlier_output_is_matched(
    wait: Wait, process: Process, pattern: str, since: int, line: str | None
) -> None:
    assert await wait(process, pattern, since=since, wait_s=0) == MatchResult(line)


async def test_end_of_the_process_ends_the_wait(wait: Wait) -> None:
    process = running(b"nothing of interest\n")

    waiting = asyncio.create_task(wait(process, "ready"))
    await asyncio.sleep(0)
    process.close(1, 1.0)

    assert await waiting == MatchResult(None)


async def test_endless_expression_is_given_up_and_delays_no_other_request(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_match, "RESULT_S", 0.2)
    process = ended(b"a" * 60 + b"!\n")

    assert await wait(process, r"^(a+)+$", wait_s=0) == MatchResult(is_slow=True)


async def test_expression_without_an_end_ends_by_itself(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed agent cannot end the program."""
    monkeypatch.setattr(output_match, "CPU_SECONDS", 1)
    monkeypatch.setattr(output_match, "RESULT_S", PATIENCE_S)
    process = ended(b"a" * 60 + b"!\n")

    async with asyncio.timeout(PATIENCE_S):
        assert await wait(process, r"^(a+)+$", wait_s=0) == MatchResult(is_slow=True)


@pytest.mark.parametrize("pattern", ["(", "", "x" * 1001, "a\0"])
async def test_invalid_expression_is_refused(wait: Wait, pattern: str) -> None:
    with pytest.raises(AgentError, match="regular expression") as error:
        await wait(running(), pattern)
    assert error.value.status == 400


async def test_client_that_leaves_ends_the_wait_and_its_place_is_free(children: Reaped) -> None:
    waits, gone = OutputWaits(children), asyncio.Event()
    many = [
        asyncio.create_task(waits.wait(running(), "x", since=0, wait_s=PATIENCE_S, gone=gone))
        for _ in range(output_match.MAX_AT_ONCE)
    ]
    await asyncio.sleep(0)
    with pytest.raises(AgentError) as error:
        await waits.wait(running(), "x", since=0, wait_s=0, gone=gone)
    gone.set()
    await asyncio.gather(*many)

    assert error.value.status == 429
    assert (await waits.wait(ended(b"x"), "x", since=0, wait_s=0, gone=asyncio.Event())).line == "x"
