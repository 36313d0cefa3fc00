"""Preparation of a step, and the end of the turn if something cannot be read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import compaction
from rookery.domain.chat.messages import MessageId, NewMessage, NewQueuedMessage, Role, StepFigures
from rookery.domain.chat.model_prompt import PromptText
from rookery.domain.chat.parts import File, Text
from rookery.domain.chat.prompt import PromptBuilder, PromptRow
from rookery.domain.chat.states import Status
from rookery.domain.chat.system_blocks import Mode
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import CallTool, Say
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    FinishReason,
    GeneratedFile,
    LanguageModel,
    ProviderError,
    StreamPart,
    Usage,
    Wire,
)
from rookery.loop.tool import Attachment, ToolOutput
from rookery.models import cost
from rookery.models.directory import ReadyModel
from rookery.runtime.clock import DeadlineExceeded
from rookery.store import machine
from rookery.store.chats import files
from rookery.store.chats.step_reads import LoadedHistory, Step
from rookery.store.settings.settings import write_user_setting
from rookery.tools.step_tools import PlainToolbox, StepTools, ToolsUnavailable
from rookery.worker.step_preparation import PromptCache, assessed_rows
from tests import scripted_tools
from tests.domain.chat.prompt_rows import CHAT, CLAUDE, EVERYTHING, WRITERS, boundary, row, system, user
from tests.eventually import until
from tests.worker.worker_rig import WorkerRig, in_turn, open_house


class Failing:
    """A toolbox that fails to open this many times. It counts what it has opened and closed."""

    def __init__(self, times: int, error: Callable[[], Exception]) -> None:
        self.times = times
        self.opened = 0
        self.tasks: list[tuple[object, object]] = []
        self._error = error

    async def open(self, step: Step, *, mode: Mode, stack: AsyncExitStack) -> StepTools:
        self.opened += 1
        await stack.enter_async_context(self._connection())
        if self.opened <= self.times:
            raise self._error()
        return await PlainToolbox().open(step, mode=mode, stack=stack)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[None]:
        opener = asyncio.current_task()
        try:
            yield
        finally:
            self.tasks.append((opener, asyncio.current_task()))


FAILURES: dict[str, Callable[[], Exception]] = {
    "tools": lambda: ToolsUnavailable("The calendar cannot be reached."),
    "a refused connection": lambda: ConnectionRefusedError("nobody there"),
    "a deadline": lambda: DeadlineExceeded("mcp-connect", 10),
    "a bug": lambda: KeyError("name"),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_two_failures_to_prepare_are_forgiven(what: str, database_url: str) -> None:
    toolbox = Failing(2, FAILURES[what])
    async with open_house(database_url, script=(Say("hi"),), toolbox=toolbox) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert await rig.story(chat_id) == [("user", "hello"), ("assistant", "hi")]


@pytest.mark.parametrize("what", FAILURES)
async def test_three_failures_to_prepare_end_the_turn(what: str, database_url: str) -> None:
    toolbox = Failing(1000, FAILURES[what])
    async with open_house(database_url, script=(Say("hi"),), toolbox=toolbox) as rig:
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert toolbox.opened == 3
        assert not error.retryable
        assert rig.calls == []


async def test_connections_of_a_try_are_closed_by_the_task_that_opened_them(database_url: str) -> None:
    toolbox = Failing(1, FAILURES["tools"])
    async with open_house(database_url, script=(Say("hi"),), toolbox=toolbox) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await rig.worker.wait_idle()

        assert len(toolbox.tasks) == toolbox.opened
        assert all(opener is closer for opener, closer in toolbox.tasks)


async def test_database_that_is_away_is_nobodys_failed_turn(database_url: str) -> None:
    toolbox = Failing(4, lambda: asyncpg.ConnectionDoesNotExistError("gone"))
    async with open_house(database_url, script=(Say("hi"),), toolbox=toolbox) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert rig.worker.stats.task_retries["generation"] == 4


async def test_table_of_windows_is_loaded_beside_the_event_loop_for_a_model_with_its_own_prices(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    loop_thread = threading.get_ident()

    def list_window(provider_type: str, model: str) -> None:
        if model == "test":
            looks.append(threading.get_ident() == loop_thread)

    monkeypatch.setattr(cost, "list_window", list_window)
    async with open_house(database_url, script=(Say("hi"),)) as rig:
        await rig.sql("UPDATE model_configs SET price_input = 1, price_output = 2 WHERE id = $1", rig.model)
        rig.forget()
        await rig.rested(await rig.ask())

    assert looks[0] is False


async def test_window_that_a_provider_reports_again_after_another_one_is_stored(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []
    async with open_house(database_url, script=(Say("hi"),)) as rig:
        for tokens in (50_000, 60_000, 50_000):
            monkeypatch.setattr(rig.replicas[0].connector, "reported_window", lambda ready, reported=tokens: reported)
            await rig.rested(await rig.ask())
            stored.append(
                await rig.sql("SELECT reported_tokens FROM model_windows WHERE model_config_id = $1", rig.model)
            )

    assert stored == [50_000, 60_000, 50_000]


async def test_disabled_model_ends_the_turn_at_once(database_url: str) -> None:
    toolbox = Failing(0, FAILURES["tools"])
    async with open_house(database_url, script=(Say("hi"),), toolbox=toolbox) as rig:
        await rig.sql("UPDATE model_configs SET enabled = false WHERE id = $1", rig.model)
        rig.forget()
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert (error.kind, toolbox.opened) == ("config", 0)


async def test_deleted_model_gives_way_to_the_default(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),)) as rig:
        await rig.sql("UPDATE model_configs SET deleted = true WHERE id = $1", rig.model)
        rig.forget()
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert chat.last_model_config_id == rig.quick


async def test_unreadable_history_ends_the_turn(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),), workers=0) as rig:
        chat_id = await rig.ask("hello")
        # A newer version could have written this.
        await rig.sql("ALTER TABLE chat_messages DISABLE TRIGGER USER")
        await rig.sql("UPDATE chat_messages SET content_version = 99 WHERE chat_id = $1", chat_id)
        await rig.sql("ALTER TABLE chat_messages ENABLE TRIGGER USER")

        await rig.add_replica()
        error = await rig.error(chat_id)

        assert "cannot be read" in error.message


async def test_prompt_says_what_the_user_always_wants_said(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),)) as rig:
        async with rig.database.api.acquire() as conn:
            await write_user_setting(conn, rig.user, key="custom_prompt", value="Always rhyme.")
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        assert "Always rhyme." in _told(rig.calls[0])


def _told(call: Call) -> str:
    return "\n".join(
        part.text for message in call.prompt.messages for part in message.parts if isinstance(part, PromptText)
    )


async def test_files_of_messages_reach_the_model(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),)) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        async with rig.database.api.acquire() as conn:
            stored = await files.create_file(conn, rig.user, name="a.png", mime_type="image/png", data=b"PNG!")
        content = (Text("look"), File("image/png", file_id=stored.id))
        message = NewQueuedMessage(content=content, created_by=rig.user)
        await rig.machine.chat(chat_id).update(lambda tx: machine.send_message(tx, message, BusyBehavior.QUEUE))
        await until(lambda: len(rig.calls) == 2)

        assert any(getattr(part, "data", None) == b"PNG!" for part in rig.calls[1].prompt.messages[-1].parts)


async def test_long_history_is_prepared_and_answered(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),), workers=0) as rig:
        rows = [
            NewMessage(
                role=Role.USER if number % 2 == 0 else Role.ASSISTANT,
                content=(Text(f"message {number}"),),
                created_by=rig.user if number % 2 == 0 else None,
            )
            for number in range(601)
        ]
        spec = machine.ChatSpec(owner_id=rig.user, title="long", model_config_id=rig.model, messages=tuple(rows))
        created = await rig.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))

        await rig.add_replica()
        await rig.rested(created.chat.id)

        (call,) = rig.calls
        assert _told(call).count("message ") == 601


# Files that steps make


async def _attach(rig: WorkerRig, count: int) -> tuple[Attachment, ...]:
    async with rig.database.api.acquire() as conn:
        made = [
            await files.create_file(conn, rig.user, name=f"{number}.txt", mime_type="text/plain", data=b"x")
            for number in range(count)
        ]
    # Plain UUIDs, which tools may have from a source other than the driver.
    return tuple(Attachment(UUID(bytes=file.id.bytes), "text/plain", file.name) for file in made)


@pytest.mark.parametrize(("count", "linked"), [(2, 2), (51, 0)])
async def test_attachments_of_tools_are_linked_as_far_as_the_chat_can_have_them(
    count: int, linked: int, database_url: str
) -> None:
    tool = scripted_tools.ScriptedTool("make", lambda *_: made())

    async def made() -> ToolOutput:
        return ToolOutput("made", attachments=await _attach(rig, count))

    script = in_turn((CallTool("make"),), (Say("there"),))
    async with open_house(database_url, script=script, tools=[tool]) as rig:
        chat_id = await rig.ask("hello")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert len(tool.runs) == 1
        assert await rig.sql("SELECT count(*) FROM chat_file_links WHERE chat_id = $1", chat_id) == linked
        assert (await rig.story(chat_id))[-1] == ("assistant", "there")


class _Painter:
    """A model that generates an image, which scripts cannot do."""

    wire: Wire = "scripted"
    provider_type = "scripted"
    model = "test"
    caps = Capabilities(media_types=("*/*",))

    def __init__(self, size: int) -> None:
        self.provider_id = uuid4()
        self._size = size

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        yield GeneratedFile("f1", "image/png", b"P" * self._size)
        yield Finish(FinishReason.STOP, Usage(input=1, output=1, total=2))


@pytest.mark.parametrize(("size", "is_stored"), [(1000, True), (files.MAX_FILE_BYTES + 1, False)])
async def test_picture_that_a_model_made_is_a_file_of_the_chat(
    size: int, is_stored: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(database_url) as rig:
        connect = rig.replicas[0].connector.model

        async def painter(ready: ReadyModel) -> LanguageModel | ProviderError:
            return _Painter(size) if ready.config.id == rig.model else await connect(ready)

        monkeypatch.setattr(rig.replicas[0].connector, "model", painter)
        chat_id = await rig.ask("a bird, please")

        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        ((part,),) = [message.parts() for message in await rig.messages(chat_id) if message.role is Role.ASSISTANT]
        assert isinstance(part, File)
        assert (part.file_id is not None, part.data is None) == (is_stored, is_stored)
        linked = await rig.sql(
            "SELECT f.name FROM chat_files f JOIN chat_file_links l ON l.file_id = f.id WHERE l.chat_id = $1", chat_id
        )
        assert linked == ("generated.png" if is_stored else None)


ROOM = 100_000
HALF = 40_000
ONE, TWO, THREE = UUID(int=1), UUID(int=2), UUID(int=3)

FIGURES = st.sampled_from(
    [
        StepFigures(),
        StepFigures(),
        StepFigures(request_id="r"),
        StepFigures(input_tokens=90),
        StepFigures(total_tokens=5),
    ]
)
ROWS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), FIGURES), max_size=12)


def builder() -> PromptBuilder:
    return PromptBuilder(WRITERS[CLAUDE], EVERYTHING)


def test_builder_is_taken_by_one_step_only() -> None:
    cache, kept = PromptCache(), builder()
    cache.keep(ONE, kept, history_bytes=10)

    assert cache.take(ONE) is kept
    assert cache.take(ONE) is None
    assert cache.entries.size_bytes == 0


def test_builders_used_last_are_kept_within_the_room_there_is() -> None:
    cache = PromptCache(max_bytes=ROOM)
    for chat_id in (ONE, TWO):
        cache.keep(chat_id, builder(), history_bytes=HALF)
    first = cache.take(ONE)
    assert first is not None
    cache.keep(ONE, first, history_bytes=HALF + 100)

    cache.keep(THREE, builder(), history_bytes=HALF)

    assert cache.entries.size_bytes <= ROOM
    assert [cache.take(chat_id) is not None for chat_id in (ONE, TWO, THREE)] == [True, False, True]


def test_builder_larger_than_all_room_is_not_kept() -> None:
    cache = PromptCache(max_bytes=ROOM)
    cache.keep(ONE, builder(), history_bytes=HALF)

    cache.keep(ONE, builder(), history_bytes=ROOM)

    assert len(cache.entries) == 0


@given(
    before=st.integers(0, 2),
    has_boundary=st.booleans(),
    after=ROWS,
    threshold=st.sampled_from([0, 50, 100]),
    limit=st.sampled_from([None, 20, 100, 1000]),
)
def test_rows_between_those_that_count_make_no_difference_to_the_assessment(
    before: int, has_boundary: bool, after: list[tuple[str, StepFigures]], threshold: int, limit: int | None
) -> None:
    rows: list[PromptRow] = [system(number + 1, "Be brief.") for number in range(before)]
    if has_boundary:
        rows.append(boundary(10, "What was said so far."))
    for number, (role, figures) in enumerate(after, start=11):
        rows.append(
            user(number, "Go on.") if role == "user" else row(number, Role(role), (Text("Yes."),), figures=figures)
        )
    history = LoadedHistory(
        chat_id=CHAT,
        history_version=1,
        rows=tuple(rows),
        prompt=tuple(rows),
        boundary_id=MessageId(10) if has_boundary else None,
        size_bytes=0,
    )
    asked: dict[str, Any] = {"files": {}, "threshold_percent": threshold, "limit_tokens": limit}

    assert compaction.assess(assessed_rows(history), **asked) == compaction.assess(rows, **asked)


def test_long_chat_is_assessed_by_a_few_rows() -> None:
    rows = [user(number, "Go on.") for number in range(1, 1000)]
    rows[990] = row(991, Role.ASSISTANT, (Text("Yes."),), figures=StepFigures(input_tokens=5))
    history = LoadedHistory(
        chat_id=CHAT, history_version=1, rows=tuple(rows), prompt=tuple(rows), boundary_id=None, size_bytes=0
    )

    assert assessed_rows(history) == tuple(rows[990:])
