"""Counters and memory of the driver: unknown events, broken prefixes, and stale thinking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat import parts as content
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptReasoning, PromptText
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.chat_caches import ENTRY_BYTES, ReplayMemory
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.http import HttpClients
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.types import Call, Capabilities, ReplayFault, ResponseStarted, Wire
from rookery.llm.wire import WireFormat
from rookery.llm.wire_model import Auth, WireModel
from rookery.llm.wire_stats import MAX_EVENT_TYPES, ModelCounters, NoStats
from rookery.runtime.secret_str import SecretStr
from rookery.testing import fake_anthropic as fake
from rookery.testing.fake_anthropic import Answer, FakeAnthropic
from tests.llm.model_rig import CALL, DONE, Counted, drain, model_at
from tests.llm.raw_server import answer, answering, serving
from tests.wire.anthropic_rig import BINDING, KEY, Chat
from tests.wire.difficult_prompts import READ, user

KEY_OF_CHAT = ("chat", UUID(int=1), "m")


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


# Unknown events


async def test_unknown_events_are_counted_by_type_once_per_answer(clients: HttpClients) -> None:
    events = b'data: {"kind":"new"}\n\ndata: {"kind":"new"}\n\ndata: {"kind":"newer"}\n\n' + DONE
    stats = Counted()

    async with serving(answering(answer(events))) as server:
        await drain(model_at(server.url, clients, stats=stats))

    assert stats.unknown == [("completions", {"new": 2, "newer": 1})]


async def test_unknown_events_of_a_broken_answer_count_too(clients: HttpClients) -> None:
    stats = Counted()

    async with serving(answering(answer(b'data: {"kind":"new"}\n\n'))) as server:
        await drain(model_at(server.url, clients, stats=stats))

    assert stats.unknown == [("completions", {"new": 1})]


@pytest.mark.parametrize(
    ("wire", "event"),
    [
        (AnthropicFormat("m", Capabilities()), b'event: new\ndata: {"type":"new"}'),
        (ResponsesFormat("m", Capabilities()), b'data: {"type":"new","sequence_number":1}'),
        (CompletionsFormat("m", Capabilities()), b'data: {"object":"new","id":"1"}'),
    ],
)
async def test_every_wire_ignores_and_counts_what_it_does_not_know(
    wire: WireFormat, event: bytes, clients: HttpClients
) -> None:
    stats = ModelCounters()

    async with serving(answering(answer(event + b"\n\n"))) as server:
        await drain(model_of(wire, server.url, clients, stats=stats))

    assert stats.counts().unknown_events == {(wire.wire, "new"): 1}


def test_types_of_unknown_events_are_bounded_in_number_and_length() -> None:
    stats = ModelCounters()

    for number in range(MAX_EVENT_TYPES + 50):
        stats.unknown_events("anthropic", {f"type-{number}\x1b": 1})
    stats.unknown_events("anthropic", {"x" * 10_000: 1})

    counted = stats.counts().unknown_events
    assert len(counted) == MAX_EVENT_TYPES + 1
    assert counted["anthropic", "other"] == 51
    assert all("\x1b" not in name and len(name) <= 80 for _, name in counted)


def test_counters_add_up_by_label() -> None:
    stats = ModelCounters()
    for each in (stats, NoStats()):
        each.replay_repaired("anthropic", ReplayFault.STALE_THINKING)
        each.replay_repaired("anthropic", ReplayFault.STALE_THINKING)
        each.replay_unrepaired("responses", ReplayFault.BROKEN_PAIRS)
        each.prefix_broke("completions")
        each.unknown_events("completions", {"a": 2})

    counts = stats.counts()

    assert counts.repairs == {("anthropic", ReplayFault.STALE_THINKING): 2}
    assert counts.unrepaired == {("responses", ReplayFault.BROKEN_PAIRS): 1}
    assert counts.prefix_breaks == {"completions": 1}
    assert counts.unknown_events == {("completions", "a"): 2}


# Prefixes


FORMATS: dict[Wire, WireFormat] = {
    "anthropic": AnthropicFormat("m", Capabilities()),
    "responses": ResponsesFormat("m", Capabilities()),
    "completions": CompletionsFormat("m", Capabilities()),
}


def said(text: str, prefix_fp: bytes | None, *, is_native: bool = True) -> PromptMessage:
    return PromptMessage(
        role=Role.ASSISTANT, parts=(PromptText(text),), prefix_fp=prefix_fp, finish_reason="stop", is_native=is_native
    )


def system(text: str) -> PromptMessage:
    return PromptMessage(role=Role.SYSTEM, parts=(PromptText(text),))


@pytest.mark.parametrize("wire", FORMATS)
def test_request_knows_whether_it_begins_with_what_the_newest_answer_was_given_for(wire: Wire) -> None:
    made = FORMATS[wire]
    first = made.build(Call(prompt=Prompt((system("Be brief."), user("Hi."))), tools=(READ,)))
    answered = said("Hello.", first.prefix_fp)

    same = made.build(Call(prompt=Prompt((system("Be brief."), user("Hi."), answered, user("And?"))), tools=(READ,)))
    changed = made.build(Call(prompt=Prompt((system("Plan."), user("Hi."), answered, user("And?"))), tools=(READ,)))
    without_tools = made.build(Call(prompt=Prompt((system("Be brief."), user("Hi."), answered, user("And?")))))

    assert first.broken_prefix is None
    assert same.broken_prefix is None
    assert changed.broken_prefix == without_tools.broken_prefix == first.prefix_fp


@pytest.mark.parametrize("wire", FORMATS)
def test_break_is_told_while_it_is_news_and_not_for_answers_of_others(wire: Wire) -> None:
    made = FORMATS[wire]
    old = said("Hello.", b"0123456789abcdef")
    history = (user("Hi."), old, user("And?"))
    after_break = made.build(Call(prompt=Prompt(history)))

    going_on = made.build(Call(prompt=Prompt((*history, said("Yes.", after_break.prefix_fp), user("Go on.")))))
    foreign = made.build(Call(prompt=Prompt((user("Hi."), said("Hello.", b"x" * 16, is_native=False), user("And?")))))

    assert after_break.broken_prefix == b"0123456789abcdef"
    assert going_on.broken_prefix is None
    assert foreign.broken_prefix is None


async def test_break_is_counted_once_though_the_request_is_tried_again(clients: HttpClients) -> None:
    stats = ModelCounters()
    prompt = Prompt((user("Hi."), said("Hello.", b"x" * 16), user("And?")))
    call = Call(prompt=prompt, chat_id="chat")

    async with serving(answering(answer(b"", status="503 Service Unavailable"))) as server:
        model = model_of(FORMATS["completions"], server.url, clients, stats=stats)
        for _ in range(3):
            await drain(model, call)
        await drain(model, msgspec.structs.replace(call, chat_id=None))

    assert stats.counts().prefix_breaks == {"completions": 2}


async def test_answer_tells_the_fingerprint_it_is_to_be_stored_with(clients: HttpClients) -> None:
    chunk = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    async with serving(answering(answer(chunk))) as server:
        parts = await drain(model_of(FORMATS["completions"], server.url, clients), CALL)

    assert parts[0] == ResponseStarted("c", None, None, FORMATS["completions"].build(CALL).prefix_fp)


# Stale thinking


def model_of(
    wire: WireFormat,
    url: str,
    clients: HttpClients,
    *,
    stats: ModelCounters | None = None,
    memory: ReplayMemory | None = None,
) -> WireModel:
    return WireModel(
        wire,
        clients.client(url),
        provider_id=UUID(int=1),
        provider_type="anthropic",
        provider_name="Fake",
        model="m",
        caps=Capabilities(),
        base_url=url,
        auth=Auth("x-api-key", SecretStr(KEY)),
        stats=stats,
        memory=memory,
    )


def drops(server: FakeAnthropic) -> list[bool]:
    return ["block_binding" in request.body.get("thinking", {}) for request in server.requests]


async def test_changed_overlay_sends_drop_block_at_once_and_for_the_rest_of_the_chat(clients: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    thinks = Answer([fake.Thinking("hm"), fake.Text("Yes.")])
    server.answer(thinks, thinks, thinks)
    stats, memory = ModelCounters(), ReplayMemory()
    chat = Chat()

    async with server.listening() as base_url:
        model = model_of(
            AnthropicFormat("m", BINDING, base_url=base_url), base_url, clients, stats=stats, memory=memory
        )
        for overlay in ("Be brief.", "Plan first.", "Plan first."):
            chat.add(Role.USER, content.Text("And?"))
            parts = await drain(model, msgspec.structs.replace(chat.call(overlay), chat_id="chat"))
            chat.commit(parts)

    assert drops(server) == [False, True, True]
    assert stats.counts().prefix_breaks == {"anthropic": 1}
    assert stats.counts().repairs == {}


async def test_rung_a_is_climbed_once_per_chat_though_nothing_in_its_rows_tells(clients: HttpClients) -> None:
    server = FakeAnthropic(api_key=KEY)
    server.answer(Answer([fake.Thinking("hm"), fake.Text("Hi.")]), *[Answer([fake.Text("Yes.")])] * 3)
    stats, memory = ModelCounters(), ReplayMemory()

    async with server.listening() as base_url:
        model = model_of(
            AnthropicFormat("m", BINDING, base_url=base_url), base_url, clients, stats=stats, memory=memory
        )
        first = await drain(model, Call(prompt=Prompt((user("Hello."),)), tools=(READ,)))
        signature = next(signature for signature in server.issued)
        thought = PromptReasoning("hm", {"signature": signature})
        answered = PromptMessage(role=Role.ASSISTANT, parts=(thought, PromptText("Hi.")), finish_reason="stop")
        moved = Call(prompt=Prompt((user("Something else."), answered, user("And?"))), tools=(READ,), chat_id="chat")
        await drain(model, moved)
        await drain(model, moved)
        await drain(model, msgspec.structs.replace(moved, chat_id="another chat"))

    assert first
    assert drops(server) == [False, False, True, True, False, True]
    assert stats.counts().repairs == {("anthropic", ReplayFault.STALE_THINKING): 2}


def test_memory_forgets_the_chats_that_were_not_seen_for_longest() -> None:
    memory = ReplayMemory(max_bytes=2 * ENTRY_BYTES)
    for name in ("a", "b"):
        memory.remember_stale_thinking((name, UUID(int=1), "m"))
    assert memory.has_stale_thinking(("a", UUID(int=1), "m"))

    memory.remember_stale_thinking(("c", UUID(int=1), "m"))

    known = [name for name in ("a", "b", "c") if memory.has_stale_thinking((name, UUID(int=1), "m"))]
    assert known == ["a", "c"]
    assert len(memory) == 2


def test_memory_keeps_models_of_a_chat_apart_and_breaks_bounded() -> None:
    memory = ReplayMemory(max_bytes=3 * ENTRY_BYTES)
    memory.remember_stale_thinking(KEY_OF_CHAT)

    assert not memory.has_stale_thinking(("chat", UUID(int=1), "other"))
    assert not memory.has_stale_thinking(("chat", UUID(int=2), "m"))
    assert [memory.is_new_break(KEY_OF_CHAT, fp) for fp in (b"1", b"1", b"2", b"2")] == [True, False, True, False]
    for number in range(10):
        memory.is_new_break((str(number), UUID(int=1), "m"), b"1")
    assert len(memory) == 4
