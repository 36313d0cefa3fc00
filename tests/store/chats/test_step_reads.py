"""Reads of a step: behind the fence, in one snapshot, and only rows that changed since the last read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from rookery.domain.chat import history as history_rules
from rookery.domain.chat import parts
from rookery.domain.chat.chat import Chat, Fence
from rookery.domain.chat.errors import StaleFence
from rookery.domain.chat.messages import ChatId, Message, NewMessage, Role, StepFigures, Visibility
from rookery.domain.chat.parts import AgentNotice, ContentError
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.chats import messages, step_reads
from rookery.store.chats.step_reads import HistoryCache, Step
from tests.store.machine.held_bundles import held, updating
from tests.store.machine.machine_rig import FAILED, Rig, assistant, call, calling, make_rig, result, text

FILL = """
    INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
    SELECT $1, CASE WHEN n % 2 = 0 THEN 'user' ELSE 'assistant' END, 'both', '[{"type": "text", "text": "x"}]', 1
      FROM generate_series(1, $2::int) n
"""


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with make_rig(database_url) as made:
        yield made


async def fill(rig: Rig, chat_id: ChatId, count: int) -> None:
    await rig.update(chat_id, lambda tx: tx.conn.execute(FILL, chat_id, count))


async def fence_of(rig: Rig, chat_id: ChatId) -> Fence:
    """Return the fence of the chat's runner. If there is none, acquire the chat."""
    chat = await rig.load(chat_id)
    return await rig.acquire(chat_id) if chat.runner_id is None else rig.fence(chat)


async def load(rig: Rig, chat_id: ChatId, cache: HistoryCache | None = None) -> Step:
    cache = HistoryCache() if cache is None else cache
    return await step_reads.load_step(rig.machine, chat_id, fence=await fence_of(rig, chat_id), cache=cache)


def summary(words: str = "so far") -> tuple[NewMessage, ...]:
    boundary = NewMessage(role=Role.USER, content=text(words), visibility=Visibility.MODEL, compressed=True)
    made = NewMessage(
        role=Role.ASSISTANT,
        content=(call("s", "chat_summarized"),),
        visibility=Visibility.USER,
        compressed=True,
    )
    answered = msgspec.structs.replace(result("s", "chat_summarized"), compressed=True)
    return boundary, made, answered


def said(rows: tuple[PromptRow, ...]) -> list[str]:
    return [parts.plain_text(row.message.parts()) for row in rows]


async def check_same_as_loaded_anew(rig: Rig, chat_id: ChatId, step: Step) -> None:
    """Check that the continued cache equals the stored history."""
    anew = await load(rig, chat_id)
    async with rig.pool.acquire() as conn:
        told = await messages.list_prompt(conn, chat_id)
    assert plain(step.history.prompt) == plain(anew.history.prompt) == plain(told)
    assert plain(step.history.rows)[-len(anew.history.rows) :] == plain(anew.history.rows)
    assert step.history.boundary_id == anew.history.boundary_id


def plain(rows: tuple[PromptRow, ...]) -> list[tuple[object, ...]]:
    fields = Message.__struct_fields__
    return [(*(getattr(row.message, name) for name in fields), row.figures) for row in rows]


# The row and its fence


async def test_step_has_everything_about_the_chat(rig: Rig) -> None:
    server = uuid4()
    chat_id = await rig.create(
        title="Bees", labels={"team": "a"}, mode="explore", plan_mode=True, mcp_server_ids=(server,), client_type="cli"
    )

    step = await load(rig, chat_id)

    assert step.chat == await rig.load(chat_id)
    assert (step.meta.title, step.meta.labels, step.meta.mode) == ("Bees", {"team": "a"}, "explore")
    assert (step.meta.plan_mode, step.meta.mcp_server_ids, step.meta.client_type) == (True, (server,), "cli")
    assert step.meta.dynamic_tools is not None
    assert json.loads(step.meta.dynamic_tools)[0]["name"] == "pick_colour"
    assert step.now >= step.chat.created_at


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", uuid4()),
        ("runner_id", uuid4()),
        ("status", "interrupting"),
        ("history_version", 99),
        ("generation_attempt", 3),
    ],
)
async def test_task_whose_view_is_old_reads_nothing(rig: Rig, field: str, value: object) -> None:
    chat_id = await rig.chat(State.R0)
    stale = msgspec.structs.replace(await rig.acquire(chat_id), **{field: value})
    cache = HistoryCache()

    with pytest.raises(StaleFence) as refusal:
        await step_reads.load_step(rig.machine, chat_id, fence=stale, cache=cache)
    with pytest.raises(StaleFence):
        await step_reads.read_fenced(rig.machine, chat_id, fence=stale)

    assert refusal.value.field == field
    assert cache.stats().rows_fetched == 0


async def test_chat_that_is_gone_is_stale(rig: Rig) -> None:
    fence = await rig.acquire(await rig.chat(State.R0))

    with pytest.raises(StaleFence) as refusal:
        await step_reads.read_fenced(rig.machine, ChatId(uuid4()), fence=fence)

    assert refusal.value.field == "chat"


async def test_archived_chat_is_read_only_by_those_who_may(rig: Rig) -> None:
    chat_id = await rig.chat(State.XW)
    fence = await rig.acquire(chat_id)

    with pytest.raises(StaleFence):
        await step_reads.read_fenced(rig.machine, chat_id, fence=fence)
    allowed = msgspec.structs.replace(fence, allow_archived=True)
    assert (await step_reads.read_fenced(rig.machine, chat_id, fence=allowed)).chat.archived


async def test_reading_waits_for_no_transition_and_sees_one_snapshot(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.acquire(chat_id)

    async with held(updating(rig, chat_id, lambda tx: machine.commit_step(tx, [assistant("not yet")]))) as writing:
        async with asyncio.timeout(5):
            step = await load(rig, chat_id)
        await writing.finish()

    assert said(step.history.rows) == ["hello"]


# The history


async def test_rows_have_their_figures_and_parts_and_views(rig: Rig) -> None:
    chat_id = await rig.create(
        NewMessage(role=Role.SYSTEM, content=text("be kind"), visibility=Visibility.MODEL),
        NewMessage(role=Role.SYSTEM, content=text("a notice"), visibility=Visibility.USER),
        NewMessage(role=Role.USER, content=text("hello"), created_by=rig.user),
    )
    figures = StepFigures(input_tokens=7, finish_reason="stop")
    await rig.commit(chat_id, assistant("hi", figures=figures, model_config_id=rig.model))

    history = (await load(rig, chat_id)).history

    assert said(history.rows) == ["be kind", "a notice", "hello", "hi"]
    assert said(history.prompt) == ["be kind", "hello", "hi"]
    assert said(history.visible) == ["a notice", "hello", "hi"]
    assert history.prompt[-1].figures == figures
    assert history.model_config_ids == {rig.model}


async def test_parts_of_a_kept_row_are_parsed_once(rig: Rig) -> None:
    chat_id, cache = await rig.chat(State.R0), HistoryCache()
    first = (await load(rig, chat_id, cache)).history.rows[0].message
    await rig.commit(chat_id, assistant("more"))

    again = (await load(rig, chat_id, cache)).history.rows[0].message

    assert again is first
    assert again.parts() is first.parts()


async def test_row_that_cannot_be_read_fails_only_who_reads_it(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    statement = FILL.replace('{"type": "text", "text": "x"}', '{"type": "from the future"}')
    await rig.update(chat_id, lambda tx: tx.conn.execute(statement, chat_id, 1))

    rows = (await load(rig, chat_id)).history.rows

    assert len(rows) == 2
    with pytest.raises(ContentError):
        rows[-1].message.parts()


async def test_nothing_is_fetched_when_the_history_did_not_move(rig: Rig) -> None:
    chat_id, cache = await rig.chat(State.R0), HistoryCache()
    first = await load(rig, chat_id, cache)
    await rig.update(chat_id, machine.record_generation_attempt)

    again = await load(rig, chat_id, cache)

    assert (first.fetched, again.fetched) == (1, 0)
    assert again.history is first.history
    assert again.chat.generation_attempt == 1


async def test_epoch_without_a_message_moves_the_version_alone(rig: Rig) -> None:
    chat_id, cache = await rig.chat(State.E0), HistoryCache()
    await rig.update(chat_id, machine.retry_turn)
    await load(rig, chat_id, cache)
    await rig.update(chat_id, lambda tx: machine.finish_error(tx, FAILED))
    await rig.update(chat_id, machine.retry_turn)

    step = await load(rig, chat_id, cache)

    assert step.fetched == 0
    assert step.history.history_version == step.chat.history_version


@pytest.mark.parametrize("length", [10, 10_000])
async def test_step_fetches_only_new_rows_for_any_length_of_the_history(rig: Rig, length: int) -> None:
    chat_id, cache = await rig.chat(State.R0), HistoryCache()
    await fill(rig, chat_id, length)
    first = await load(rig, chat_id, cache)
    assert first.fetched == length + 1

    await rig.commit(chat_id, calling(call("c-1", "execute")))
    second = await load(rig, chat_id, cache)
    await rig.commit(chat_id, result("c-1", "execute"), assistant("done"))
    third = await load(rig, chat_id, cache)

    assert (second.fetched, third.fetched) == (1, 2)
    assert len(third.history.rows) == len(third.history.prompt) == length + 4
    await check_same_as_loaded_anew(rig, chat_id, third)


async def test_compaction_lets_go_of_what_it_stands_for(rig: Rig) -> None:
    chat_id, cache = await rig.chat(State.R0), HistoryCache()
    await fill(rig, chat_id, 50)
    await load(rig, chat_id, cache)
    large = cache.stats().size_bytes
    await rig.commit(chat_id, *summary())
    await rig.commit(chat_id, assistant("on"))

    step = await load(rig, chat_id, cache)

    assert step.fetched == 4
    assert said(step.history.prompt) == ["so far", "on"]
    # The turn began with the last user row; its own rows stay, for the decision.
    assert [row.message.role for row in step.history.rows][:2] == [Role.USER, Role.USER]
    assert cache.stats().size_bytes < large
    await check_same_as_loaded_anew(rig, chat_id, step)


async def test_first_load_of_a_compacted_chat_leaves_out_what_is_summarised(rig: Rig) -> None:
    chat_id = await rig.create(
        NewMessage(role=Role.SYSTEM, content=text("be kind"), visibility=Visibility.MODEL),
        NewMessage(role=Role.USER, content=text("hello"), created_by=rig.user),
    )
    await fill(rig, chat_id, 300)
    await rig.commit(chat_id, *summary())
    await rig.update(chat_id, machine.finish_turn)
    await rig.send(chat_id, "go on")
    await rig.commit(chat_id, assistant("gladly"))

    step = await load(rig, chat_id)

    assert step.fetched == 6
    assert said(step.history.prompt) == ["be kind", "so far", "go on", "gladly"]
    await check_same_as_loaded_anew(rig, chat_id, step)


async def test_turn_that_was_compacted_in_its_middle_keeps_its_rows_for_the_decision(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await rig.commit(chat_id, assistant("one"))
    await rig.commit(chat_id, *summary())

    history = (await load(rig, chat_id)).history

    assert said(history.rows)[:3] == ["hello", "one", "so far"]
    assert said(history.prompt) == ["so far"]


async def test_notices_and_compactions_do_not_hide_the_steps_since_the_last_message_of_a_user(rig: Rig) -> None:
    notice = NewMessage(role=Role.USER, content=(AgentNotice(uuid4(), "Tests", "general", "finished"),))
    chat_id, cache = await rig.chat(State.R0), HistoryCache()
    for rows in ([assistant("one")], [notice], [assistant("two")], summary(), [notice], [assistant("three")]):
        await rig.commit(chat_id, *rows)
        await load(rig, chat_id, cache)

    extended, anew = (await load(rig, chat_id, cache)).history, (await load(rig, chat_id)).history

    assert [history_rules.read(history.rows).steps for history in (extended, anew)] == [3, 3]
    assert [len(history_rules.read(history.rows).compactions) for history in (extended, anew)] == [1, 1]


async def test_decision_finds_the_turn_and_its_open_calls_in_the_rows(rig: Rig) -> None:
    chat_id, cache = await rig.chat(State.R0), HistoryCache()
    await rig.commit(chat_id, assistant("one"))
    await rig.commit(chat_id, *summary())
    await load(rig, chat_id, cache)
    await rig.commit(chat_id, calling(call("c-1", "execute"), call("c-2", "execute")))
    await rig.commit(chat_id, result("c-1", "execute"))

    found = history_rules.read((await load(rig, chat_id, cache)).history.rows)

    assert [open_call.tool_call_id for open_call in found.open_calls] == ["c-2"]
    assert found.steps == 2
    assert found.has_compactable


@pytest.mark.parametrize("before_boundary", [True, False])
async def test_edit_removes_what_it_cut_and_brings_back_what_a_cut_summary_stood_for(
    rig: Rig, before_boundary: bool
) -> None:
    chat_id, cache = await rig.chat(State.R0), HistoryCache()
    await rig.commit(chat_id, assistant("one"))
    await rig.update(chat_id, machine.finish_turn)
    await rig.send(chat_id, "old")
    await rig.commit(chat_id, assistant("two"))
    await rig.commit(chat_id, *summary())
    await rig.update(chat_id, machine.finish_turn)
    await rig.send(chat_id, "new")
    await rig.commit(chat_id, assistant("three"))
    await load(rig, chat_id, cache)
    target = {parts.plain_text(row.parts()): row.id for row in await rig.history(chat_id)}

    cut = target["old" if before_boundary else "new"]
    await rig.update(chat_id, lambda tx: machine.edit_message(tx, cut, content=text("edited"), edited_by=rig.user))
    step = await load(rig, chat_id, cache)

    expected = ["hello", "one", "edited"] if before_boundary else ["so far", "edited"]
    assert said(step.history.prompt) == expected
    await check_same_as_loaded_anew(rig, chat_id, step)


async def test_parsing_many_rows_gives_other_tasks_their_turn(rig: Rig) -> None:
    chat_id = await rig.chat(State.R0)
    await fill(rig, chat_id, 2_000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with rig.pool.acquire() as conn:
        records = await step_reads._fetch_all(conn, chat_id)
    counting = asyncio.ensure_future(count())
    await asyncio.sleep(0)
    before = turns
    await step_reads._parse(records)
    during = turns - before
    counting.cancel()

    assert during == 2_001 // step_reads.ROWS_PER_SLICE


# The cache


def history(chat: Chat, size: int, version: int = 1) -> step_reads.LoadedHistory:
    return step_reads.LoadedHistory(
        chat_id=chat.id, history_version=version, rows=(), prompt=(), boundary_id=None, size_bytes=size
    )


async def test_cache_keeps_those_used_last_and_never_more_than_its_bytes(rig: Rig) -> None:
    one, two, three = [await rig.load(await rig.chat(State.R0)) for _ in range(3)]
    cache = HistoryCache(max_bytes=100_000)
    cache.keep(history(one, 40_000))
    cache.keep(history(two, 40_000))
    cache.find(one.id)

    cache.keep(history(three, 40_000))

    assert [cache.find(chat.id) is not None for chat in (one, two, three)] == [True, False, True]
    assert 80_000 <= cache.stats().size_bytes <= 100_000
    cache.keep(history(one, 100_001, version=2))
    assert cache.find(one.id) is None
    assert cache.stats().chats == 1


async def test_older_history_does_not_replace_a_newer_one(rig: Rig) -> None:
    chat = await rig.load(await rig.chat(State.R0))
    cache = HistoryCache()
    cache.keep(history(chat, 1, version=5))

    cache.keep(history(chat, 1, version=4))

    found = cache.find(chat.id)
    assert found is not None
    assert found.history_version == 5


async def test_chat_that_was_evicted_is_loaded_whole_again(rig: Rig) -> None:
    chat_id, cache = await rig.chat(State.R0), HistoryCache(max_bytes=1)
    await load(rig, chat_id, cache)

    step = await load(rig, chat_id, cache)

    assert step.fetched == 1
    assert (cache.stats().hits, cache.stats().misses) == (0, 2)


# Plans

OLD, OTHERS, EACH = 4_000, 30, 500


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_reads_of_a_step_touch_only_rows_of_their_chat_that_they_return(rig: Rig, mode: str) -> None:
    old = await rig.create()
    await fill(rig, old, OLD)
    await rig.commit(old, *summary())
    seen = (await rig.load(old)).history_version
    await rig.commit(old, assistant("new"))
    newest = await rig.last_id(old)
    for _ in range(OTHERS):
        await fill(rig, await rig.create(), EACH)
    await rig.sql("ANALYZE chat_messages")

    plans = {
        "delta": await explain(rig, step_reads.DELTA, "uuid, bigint", f"'{old}', {seen}", mode),
        "floor": await explain(rig, step_reads.FLOOR, "uuid", f"'{old}'", mode),
        "system": await explain(rig, step_reads.SYSTEM_BELOW, "uuid, bigint", f"'{old}', {newest}", mode),
        "page": await explain(rig, step_reads.PAGE, "uuid, bigint", f"'{old}', {newest}", mode),
    }

    for name, plan in plans.items():
        scans = list(scans_of_messages(plan))
        assert scans, name
        used = {scan.get("Index Name", scan["Node Type"]) for scan in scans} - {"Bitmap Heap Scan"}
        assert used <= {"messages_live", "messages_role", "messages_boundary", "messages_revision"}, name
        touched = sum(
            (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) * scan["Actual Loops"] for scan in scans
        )
        assert touched <= 5, (name, scans)


async def explain(rig: Rig, statement: str, types: str, values: str, mode: str) -> dict[str, Any]:
    async with rig.pool.acquire() as conn, conn.transaction(isolation="repeatable_read", readonly=True):
        await conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
        await conn.execute(f"PREPARE step ({types}) AS {statement}")
        found = await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE step ({values})")
        await conn.execute("DEALLOCATE step")
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return plan


def scans_of_messages(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if node.get("Relation Name") == "chat_messages" or str(node.get("Index Name", "")).startswith("messages_"):
        yield node
    for child in node.get("Plans", []):
        yield from scans_of_messages(child)


# The context of a workspace


async def test_newest_word_about_a_context_is_at_hand_however_old_it_is(rig: Rig) -> None:
    chat_id = await rig.create()
    cache, workspace = HistoryCache(), uuid4()

    def trace(digest: str) -> NewMessage:
        content = (parts.WorkspaceContext(workspace, 1, digest),)
        return NewMessage(role=Role.SYSTEM, visibility=Visibility.USER, content=content)

    before = await load(rig, chat_id, cache)
    await rig.commit(chat_id, trace("a"), assistant("hello"))
    told = await load(rig, chat_id, cache)
    await rig.commit(chat_id, assistant("more"))
    kept = await load(rig, chat_id, cache)
    await rig.commit(chat_id, trace("b"), assistant("and more"))
    replaced = await load(rig, chat_id, cache)

    found = [step.history.traced.hash if step.history.traced else None for step in (before, told, kept, replaced)]
    assert found == [None, "a", "a", "b"]
    anew = (await load(rig, chat_id)).history.traced
    assert anew == replaced.history.traced
