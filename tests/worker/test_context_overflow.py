"""Chats longer than their model's window, against servers that refuse them with the messages of real providers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from rookery.domain.chat import context_overflow, parts
from rookery.domain.chat.compaction import LEAD_IN
from rookery.domain.chat.messages import ChatId, NewMessage, Role, Visibility
from rookery.domain.chat.model_prompt import PromptText
from rookery.domain.chat.parts import File, Text, ToolResult
from rookery.domain.chat.states import Status
from rookery.domain.models.context_window import Learned, LearnedFrom
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import Count, Fail, Say, Wait
from rookery.llm.types import Call, ErrorKind, Purpose, Usage
from rookery.loop.tool import ToolOutput
from rookery.store import machine
from rookery.store.chats import files
from rookery.store.machine import ChatSpec
from rookery.store.models import context_windows, model_configs
from rookery.store.models.model_configs import ModelConfigPatch
from rookery.testing import FakeClock, fake_anthropic
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import Answer, FakeCompletions
from rookery.testing.fake_responses import FakeResponses, say
from rookery.testing.fake_server import RecordedRequest
from rookery.tools.step_tools import PlainToolbox, StepTools
from tests.eventually import until
from tests.worker.worker_rig import KEY, WorkerRig, in_turn, open_house

# The windows of the fake models; each case defines the bytes per token.
WINDOW = 8_000
DONE = "All done."
QUESTION = "What does the second clause say?"
WIRES = ("anthropic", "responses", "completions")


@dataclass(frozen=True)
class Server:
    """A fake provider that answers every request with the same text, unless the request is too long."""

    url: str
    requests: Sequence[RecordedRequest]


@asynccontextmanager
async def serving(wire: str, *, bytes_per_token: float = 4.0, answers: int = 120) -> AsyncIterator[Server]:
    limits: dict[str, Any] = {"window_tokens": WINDOW, "bytes_per_token": bytes_per_token}
    fake: FakeAnthropic | FakeResponses | FakeCompletions
    match wire:
        case "anthropic":
            fake = FakeAnthropic(api_key=KEY, **limits)
            fake.answer(*[fake_anthropic.Answer([fake_anthropic.Text(DONE)])] * answers)
        case "responses":
            fake = FakeResponses(is_strict=False, **limits)
            for _ in range(answers):
                fake.answer(say(DONE))
        case _:
            fake = FakeCompletions(**limits)
            fake.enqueue(*[Answer(text=DONE)] * answers)
    async with fake.listening() as url:
        yield Server(url, fake.requests)


@asynccontextmanager
async def at(wire: str, server: Server, database_url: str, *, context_limit: int = WINDOW) -> AsyncIterator[WorkerRig]:
    async with open_house(
        database_url,
        server=server.url,
        provider=ProviderType.ANTHROPIC if wire == "anthropic" else ProviderType.OPENAI_COMPAT,
        options={"use_responses_api": True} if wire == "responses" else {},
        context_limit=context_limit,
    ) as rig:
        yield rig


def long_text(size: int, word: str) -> str:
    return f"FIRST {word} " + f"{word} " * (size // (len(word) + 1)) + f"{word} LAST"


async def begin(rig: WorkerRig, *said: tuple[Role, str]) -> ChatId:
    """Return a chat with this history. The last message is the user's and waits for an answer."""
    messages = tuple(
        NewMessage(
            role=role,
            content=(Text(words),),
            created_by=rig.user if role is Role.USER else None,
            model_config_id=rig.model,
        )
        for role, words in said
    )
    spec = ChatSpec(owner_id=rig.user, title="A chat", model_config_id=rig.model, messages=messages)
    return (await rig.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id


def history(tokens: int, *, bytes_per_token: float) -> list[tuple[Role, str]]:
    """Return ten turns with this many tokens in total."""
    size = int(tokens * bytes_per_token / 20)
    turns = [(Role.USER, long_text(size, "asked")), (Role.ASSISTANT, long_text(size, "answered"))]
    return turns * 10


async def model_windows_of(rig: WorkerRig) -> context_windows.ModelWindow:
    async with rig.database.api.acquire() as conn:
        known = await context_windows.find_window(conn, rig.model)
    assert known is not None
    return known


CASES = {
    "a history of 2 windows": (2, 0),
    "a history of 10 windows": (10, 0),
    "a message of 3 windows": (0, 3),
    "a message of 3 windows behind a history of 2": (2, 3),
}


@pytest.mark.parametrize("factor", [1, 10], ids=["right limit", "limit 10 times too high"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wire", WIRES)
async def test_chat_that_is_too_long_ends_in_an_answer(wire: str, case: str, factor: int, database_url: str) -> None:
    windows, message_windows = CASES[case]
    bytes_per_token = 2.5 if factor == 10 else 4.0
    asked = long_text(int(message_windows * WINDOW * bytes_per_token), "clause") if message_windows else QUESTION
    before = history(windows * WINDOW, bytes_per_token=bytes_per_token) if windows else []
    async with (
        serving(wire, bytes_per_token=bytes_per_token) as server,
        at(wire, server, database_url, context_limit=factor * WINDOW) as rig,
    ):
        chat_id = await begin(rig, *before, (Role.USER, asked))

        chat = await rig.rested(chat_id)

        assert (chat.status, chat.last_error) == (Status.WAITING, None), chat.last_error
        assert (await rig.story(chat_id))[-1] == ("assistant", DONE)
        bodies = [request.raw for request in server.requests]
        assert len(set(bodies)) == len(bodies) < 60
        last = bodies[-1].decode()
        if message_windows:
            assert "FIRST clause" in last
            assert "clause LAST" in last
            assert "bytes were left out here" in last
        else:
            assert QUESTION in last
        if before:
            assert LEAD_IN[:40] in last
            assert "answered LAST" not in last


@pytest.mark.parametrize("wire", ["anthropic", "completions"])
async def test_window_that_a_provider_names_is_remembered_for_all_chats_and_replicas(
    wire: str, database_url: str
) -> None:
    async with (
        serving(wire, bytes_per_token=3.0) as server,
        at(wire, server, database_url, context_limit=10 * WINDOW) as rig,
    ):
        await rig.rested(await begin(rig, (Role.USER, long_text(4 * 3 * WINDOW, "clause"))))
        known = await model_windows_of(rig)
        assert (known.learned_tokens, known.learned_from) == (WINDOW, "provider")

        await rig.add_replica()
        await rig.crash()
        before = len(server.requests)
        assert (await model_windows_of(rig)).learned_tokens == WINDOW
        chat_id = await begin(rig, *history(10 * WINDOW, bytes_per_token=3.0), (Role.USER, QUESTION))
        await rig.rested(chat_id)

        # The first request is refused, and no later request exceeds the window.
        sizes = [len(request.raw) / 3.0 for request in server.requests[before:] if request.method == "POST"]
        assert all(size < WINDOW for size in sizes[1:]), sizes
        assert (await rig.story(chat_id))[-1] == ("assistant", DONE)


async def test_changed_config_forgets_what_was_learned(database_url: str) -> None:
    async with open_house(database_url) as rig, rig.database.api.acquire() as conn:
        learned = Learned(5_000, LearnedFrom.PROVIDER)
        for patch, is_kept in [
            (ModelConfigPatch(display_name="Other"), True),
            (ModelConfigPatch(compression_threshold=50), True),
            (ModelConfigPatch(context_limit=123_456), False),
            (ModelConfigPatch(options={"temperature": 0.5}), False),
        ]:
            await context_windows.learn(conn, rig.model, learned)
            await model_configs.update_model_config(conn, rig.model, patch=patch, by=None)
            assert (await context_windows.find_window(conn, rig.model) is not None) is is_kept


async def test_replica_that_takes_over_in_the_middle_goes_on_and_does_not_ask_the_same(database_url: str) -> None:
    clock = FakeClock()
    sent: list[Call] = []
    is_dead = False

    def script(call: Call) -> Sequence[Any]:
        sent.append(call)
        if call.purpose is Purpose.COMPACTION:
            return (Say("In short."),) if is_dead else (Wait(60), Say("In short."))
        if context_overflow.estimate_tokens(call.prompt.messages) > 20_000:
            return (Fail(ErrorKind.CONTEXT_OVERFLOW, "Too long.", retryable=False),)
        return (Say(DONE),)

    async with open_house(database_url, script=script, clock=clock) as rig:
        chat_id = await begin(rig, *history(30_000, bytes_per_token=3.0), (Role.USER, QUESTION))
        await clock.until_waiting("scripted-wait")
        await rig.crash()
        is_dead = True
        await rig.add_replica()
        await rig.rested(chat_id)

        turns = [call for call in sent if call.purpose is Purpose.TURN]
        assert [context_overflow.estimate_tokens(call.prompt.messages) > 20_000 for call in turns] == [True, False]
        assert (await rig.story(chat_id))[-1] == ("assistant", DONE)


async def test_each_rung_is_stored_with_the_summary_and_counted(database_url: str) -> None:
    async with (
        serving("completions", bytes_per_token=3.0) as server,
        at("completions", server, database_url) as rig,
    ):
        asked = long_text(3 * 3 * WINDOW, "clause")
        chat_id = await begin(rig, *history(2 * WINDOW, bytes_per_token=3.0), (Role.USER, asked))
        await rig.rested(chat_id)

        *_, told = [
            parts.json_value(part.result)
            for message in await rig.messages(chat_id)
            for part in message.parts()
            if isinstance(part, ToolResult) and isinstance(part.result, Raw) and part.tool_name == "chat_summarized"
        ]
        assert told["source"] == "overflow"
        assert told["rungs"][-1] == "spilled"
        assert told["spilled"] == [{"bytes": len(asked), "path": None}]
        counted = rig.worker.stats.calls.rungs
        assert {rung for _, _, rung, result in counted if result == "success"} >= set(told["rungs"])
        assert rig.worker.stats.calls.compactions["openai_compat", "test", "overflow", "success"] >= 1


async def test_message_that_is_too_long_is_kept_where_the_model_can_read_it(database_url: str) -> None:
    kept: dict[str, str] = {}

    class Box:
        async def open(self, step: Any, *, mode: Any, stack: Any) -> StepTools:
            return replace(await PlainToolbox().open(step, mode=mode, stack=stack), keep_result=keep)

    async def keep(call_id: str, token: UUID, output: ToolOutput) -> str | None:
        kept[call_id] = str(output.value)
        return f"/home/me/.rookery/results/{call_id}"

    def script(call: Call) -> Sequence[Any]:
        is_long = context_overflow.estimate_tokens(call.prompt.messages) > 20_000
        return (Fail(ErrorKind.CONTEXT_OVERFLOW, "Too long.", retryable=False),) if is_long else (Say(DONE),)

    async with open_house(database_url, script=script, toolbox=Box()) as rig:
        asked = long_text(200_000, "clause")
        chat_id = await rig.ask(asked)
        await rig.rested(chat_id)

        ((name, text),) = kept.items()
        assert text == asked
        told = "\n".join(
            part.text
            for message in rig.calls[-1].prompt.messages
            for part in message.parts
            if isinstance(part, PromptText)
        )
        assert f"All of it is in the file /home/me/.rookery/results/{name}" in told
        assert (await rig.story(chat_id))[0] == ("user", asked)


async def test_instructions_that_fill_the_window_end_the_turn_with_what_to_do(database_url: str) -> None:
    def script(call: Call) -> Sequence[Any]:
        return (Fail(ErrorKind.CONTEXT_OVERFLOW, "Too long.", retryable=False),)

    async with open_house(database_url, script=script) as rig:
        system = NewMessage(role=Role.SYSTEM, content=(Text("rule " * 20_000),), visibility=Visibility.MODEL)
        user = NewMessage(role=Role.USER, content=(Text(QUESTION),), created_by=rig.user)
        spec = ChatSpec(owner_id=rig.user, title="A chat", model_config_id=rig.model, messages=(system, user))
        chat_id = (await rig.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id

        error = await rig.error(chat_id)

        assert error.kind == "context_overflow"
        assert "larger window" in error.message
        assert len(rig.calls) == 1


NO_NUMBER = "Your input exceeds the context window of this model."


@pytest.mark.parametrize(
    ("media_type", "status", "learned"),
    [("application/pdf", 400, None), (None, 413, None), (None, 400, 50_000)],
    ids=["a document", "a limit of bytes", "text"],
)
async def test_window_is_only_guessed_from_a_text_that_the_model_itself_refused(
    media_type: str | None, status: int, learned: int | None, database_url: str
) -> None:
    script = in_turn(
        (Fail(ErrorKind.CONTEXT_OVERFLOW, NO_NUMBER, retryable=False, status=status),),
        (Say("In short."),),
        (Say(DONE),),
    )
    async with open_house(database_url, script=script) as rig:
        content: tuple[parts.Part, ...] = (Text(long_text(150_000, "clause")),)
        if media_type is not None:
            async with rig.database.api.acquire() as conn:
                stored = await files.create_file(conn, rig.user, name="a.pdf", mime_type=media_type, data=b"%PDF-1.7")
            content = (*content, File(media_type, file_id=stored.id))
        first = NewMessage(role=Role.USER, content=(Text("Hello."),), created_by=rig.user)
        answer = NewMessage(role=Role.ASSISTANT, content=(Text("Hi."),), model_config_id=rig.model)
        last = NewMessage(role=Role.USER, content=content, created_by=rig.user)
        chat_id = await rig.ask(messages=(first, answer, last))
        chat = await rig.rested(chat_id)

        assert (chat.status, (await rig.story(chat_id))[-1]) == (Status.WAITING, ("assistant", DONE))
        async with rig.database.api.acquire() as conn:
            known = await context_windows.find_window(conn, rig.model)
        assert (None if known is None else known.learned_tokens) == learned


async def test_wrong_guess_is_corrected_by_an_answer_that_read_more(database_url: str) -> None:
    script = (Count(Usage(input=30_000, context_tokens=30_000)), Say(DONE))
    async with open_house(database_url, script=script) as rig:
        async with rig.database.api.acquire() as conn:
            await context_windows.learn(conn, rig.model, Learned(25_000, LearnedFrom.HALVING))
        rig.forget()

        await rig.rested(await rig.ask())

        async def is_corrected() -> bool:
            return (await model_windows_of(rig)).learned_tokens == 60_000

        await until(is_corrected)


async def test_refusal_by_another_summariser_says_nothing_about_the_history(database_url: str) -> None:
    """The chat's model accepts the history. Only the summarizing model refuses it."""
    asked: list[Call] = []

    def summariser(call: Call) -> Sequence[Any]:
        asked.append(call)
        is_long = context_overflow.estimate_tokens(call.prompt.messages) > 10_000
        return (Fail(ErrorKind.CONTEXT_OVERFLOW, NO_NUMBER, retryable=False),) if is_long else (Wait(60), Say("Brief."))

    clock = FakeClock()
    async with open_house(database_url, script=(Say(DONE),), clock=clock) as rig:
        other = await rig.sql(
            "INSERT INTO model_configs (provider_id, model, context_limit)"
            " SELECT provider_id, 'small', 100000 FROM model_configs WHERE id = $1 RETURNING id",
            rig.model,
        )
        with rig.scripts.registered("small", summariser):
            await rig.summarise_with(other)
            chat_id = await begin(rig, *history(20_000, bytes_per_token=3.0), (Role.USER, QUESTION))
            await rig.rested(chat_id)
            await rig.compact(chat_id)
            await clock.until_waiting("scripted-wait")

            assert len(asked) > 1
            assert await rig.sql("SELECT refused_tokens FROM chats WHERE id = $1", chat_id) is None
