"""The replay ladder over real sockets: a refused history is repaired once per rung, and only before the first part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptMessage, PromptText
from rookery.llm.http import HttpClients
from rookery.llm.types import (
    Call,
    ErrorKind,
    Finish,
    ReplayFault,
)
from tests.llm.model_rig import (
    CALL,
    DONE,
    HELLO,
    STALE,
    Counted,
    drain,
    error_of,
    model_at,
    recording,
    refusal,
)
from tests.llm.raw_server import RawRequest, answer, serving


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


UNPROVEN = refusal("messages.1.content.0: Invalid `signature` in `thinking` block")
BROKEN = refusal("messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1")
OPEN_CALL = Call(
    prompt=Prompt(
        (
            PromptMessage(role=Role.USER, parts=(PromptText("go"),)),
            PromptMessage(role=Role.ASSISTANT, parts=(PromptCall("c1", "run", Raw(b"{}")),)),
        )
    )
)


@pytest.mark.parametrize(
    ("reply", "fault", "sent"),
    [
        (STALE, ReplayFault.STALE_THINKING, {"drop_stale_thinking": True, "plain_history": False}),
        (UNPROVEN, ReplayFault.UNPROVEN_REASONING, {"drop_stale_thinking": False, "plain_history": True}),
        (
            BROKEN,
            ReplayFault.BROKEN_PAIRS,
            {"plain_history": True, "parts": ["PromptText", "PromptCall", "PromptResult"]},
        ),
    ],
)
async def test_each_rung_repairs_once_and_is_counted(
    clients: HttpClients, reply: bytes, fault: ReplayFault, sent: dict[str, Any]
) -> None:
    seen: list[RawRequest] = []
    stats = Counted()

    async with serving(recording(seen, reply, answer(HELLO + DONE))) as server:
        parts = await drain(model_at(server.url, clients, stats=stats), OPEN_CALL)

    assert isinstance(parts[-1], Finish)
    assert msgspec.json.decode(seen[1].body).items() >= sent.items()
    assert (stats.repaired, stats.unrepaired) == ([("completions", fault)], [])


@pytest.mark.parametrize("reply", [STALE, UNPROVEN, BROKEN])
async def test_second_refusal_on_the_same_rung_surfaces(clients: HttpClients, reply: bytes) -> None:
    seen: list[RawRequest] = []
    stats = Counted()

    async with serving(recording(seen, reply, reply)) as server:
        error = error_of(await drain(model_at(server.url, clients, stats=stats), OPEN_CALL))

    assert (error.kind, error.retryable) == (ErrorKind.GENERIC, False)
    assert len(seen) == 2
    assert stats.unrepaired == stats.repaired == [("completions", error.replay_fault)]


async def test_rungs_can_follow_each_other(clients: HttpClients) -> None:
    seen: list[RawRequest] = []

    async with serving(recording(seen, STALE, UNPROVEN, BROKEN, answer(DONE))) as server:
        parts = await drain(model_at(server.url, clients), OPEN_CALL)

    assert isinstance(parts[-1], Finish)
    assert len(seen) == 4
    assert msgspec.json.decode(seen[3].body)["drop_stale_thinking"] is True


async def test_rung_that_changes_nothing_is_not_tried(clients: HttpClients) -> None:
    seen: list[RawRequest] = []

    async with serving(recording(seen, UNPROVEN)) as server:
        call = msgspec.structs.replace(CALL, plain_history=True)
        error = error_of(await drain(model_at(server.url, clients), call))

    assert error.replay_fault is ReplayFault.UNPROVEN_REASONING
    assert len(seen) == 1


async def test_ladder_is_not_climbed_after_the_first_part(clients: HttpClients) -> None:
    seen: list[RawRequest] = []
    late = b'data: {"error":{"code":"invalid_encrypted_content","message":"no"}}\n\n'

    async with serving(recording(seen, answer(HELLO + late))) as server:
        error_of(await drain(model_at(server.url, clients)))

    assert len(seen) == 1


async def test_ladder_is_climbed_for_an_error_that_opens_the_stream(clients: HttpClients) -> None:
    seen: list[RawRequest] = []
    early = b'data: {"error":{"code":"invalid_encrypted_content","message":"no"}}\n\n'

    async with serving(recording(seen, answer(early), answer(DONE))) as server:
        parts = await drain(model_at(server.url, clients))

    assert isinstance(parts[-1], Finish)
    assert len(seen) == 2


@pytest.mark.parametrize("reply", [answer(b"", status="500 Oops"), answer(b"", status="429 Slow"), answer(HELLO)])
async def test_nothing_else_is_asked_again(clients: HttpClients, reply: bytes) -> None:
    seen: list[RawRequest] = []

    async with serving(recording(seen, reply)) as server:
        error_of(await drain(model_at(server.url, clients)))

    assert len(seen) == 1
