"""Titles of new chats, and the rules for all short texts: model choice, cost and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat import titles
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.messages import Message, NewMessage, Role, Visibility
from rookery.domain.chat.parts import File, Part, Text
from rookery.domain.content.attachments import StoredFile
from rookery.llm.scripted import Count, Fail, Say, Wait
from rookery.llm.types import ErrorKind, Usage
from rookery.store import machine
from rookery.store.chats import chat_rows, files
from rookery.store.chats.files import Origin
from rookery.store.db.hints import WatchKind
from rookery.store.models import usage_ledger
from rookery.store.models.usage_ledger import CallStatus, Entry, KeySource
from rookery.worker import short_texts as worker_titles
from tests.store.machine.machine_rig import assistant
from tests.worker.short_texts_rig import TitlesRig, open_desk, saying

REQUEST = "please fix the login test, it fails since Monday"
FALLBACK = titles.fallback_title(REQUEST)


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[TitlesRig]:
    async with open_desk(database_url) as made:
        yield made


def said(rig: TitlesRig, *content: Part, visibility: Visibility = Visibility.BOTH) -> NewMessage:
    return NewMessage(
        role=Role.USER, content=content or (Text(REQUEST),), created_by=rig.rig.user, visibility=visibility
    )


async def create(rig: TitlesRig, *messages: NewMessage, title: str = FALLBACK) -> tuple[Chat, list[Message]]:
    spec = rig.rig.spec(*(messages or (said(rig),)), title=title)
    created = await rig.rig.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))
    rig.rig.published.clear()
    return created.chat, created.messages


async def generate(rig: TitlesRig, chat: Chat, messages: Sequence[Message], title: str = FALLBACK) -> str | None:
    async with asyncio.timeout(10):
        return await rig.effects.titling.generate_title(chat, title=title, messages=messages)


async def title_of(rig: TitlesRig, chat: Chat) -> str:
    return str((await rig.rig.columns(chat.id))["title"])


async def add_model(rig: TitlesRig, model: str) -> UUID:
    found = await rig.rig.value(
        "INSERT INTO model_configs (provider_id, model, context_limit)"
        " SELECT id, $1, 100000 FROM model_providers LIMIT 1 RETURNING id",
        model,
    )
    assert isinstance(found, UUID)
    rig.directory.invalidate()
    return found


# Titles


async def test_new_chat_gets_a_title_and_those_who_watch_hear_of_it(rig: TitlesRig) -> None:
    chat, messages = await create(rig)

    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)
    await rig.idle()

    assert await title_of(rig, chat) == "Fix the login test"
    assert rig.watched() == [(WatchKind.TITLE_CHANGE, chat.id)]
    assert rig.asked == [("Title", REQUEST)]


async def test_title_moves_neither_versions_nor_the_place_in_the_list(rig: TitlesRig) -> None:
    chat, messages = await create(rig)

    await generate(rig, chat, messages)

    after = await rig.rig.load(chat.id)
    assert (after.snapshot_version, after.history_version, after.updated_at) == (
        chat.snapshot_version,
        chat.history_version,
        chat.updated_at,
    )


async def test_rename_during_generation_wins(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Wait(5), *saying(title="From the model"))]
    chat, messages = await create(rig)
    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)
    await rig.clock.until_waiting("scripted-wait")

    async with rig.rig.pool.acquire() as conn:
        await chat_rows.write_title(conn, chat.id, title="From a person")
    await rig.clock.fire("scripted-wait")
    await rig.idle()

    assert await title_of(rig, chat) == "From a person"
    assert rig.watched() == []


async def test_history_that_moves_on_does_not_cost_the_title(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Wait(5), *saying(title="From the model"))]
    chat, messages = await create(rig)
    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)
    await rig.clock.until_waiting("scripted-wait")

    await rig.rig.commit(chat.id, assistant("Done."))
    await rig.clock.fire("scripted-wait")
    await rig.idle()

    assert await title_of(rig, chat) == "From the model"


@pytest.mark.parametrize("answer", ["one two three four five six seven eight nine", "x" * 81, ""])
async def test_title_that_breaks_the_rules_leaves_the_fallback(rig: TitlesRig, answer: str) -> None:
    rig.answers["Title"] = [saying(title=answer)]
    chat, messages = await create(rig)

    assert await generate(rig, chat, messages) is None
    assert await title_of(rig, chat) == FALLBACK
    assert rig.watched() == []


async def test_first_message_that_was_only_pasted_gets_a_title(rig: TitlesRig) -> None:
    async with rig.rig.pool.acquire() as conn:
        pasted = await files.create_file(
            conn, rig.rig.user, name="p.txt", mime_type="text/plain", data=b"a\nlong  log", origin=Origin.PASTED
        )
    file = File(media_type="text/plain", file_id=pasted.id)
    fallback = titles.fallback_title("a long log")
    chat, messages = await create(rig, said(rig, file), title=fallback)

    assert await generate(rig, chat, messages, fallback) == "Fix the login test"
    assert rig.asked == [("Title", "a long log")]


async def test_pictures_alone_name_nothing(rig: TitlesRig) -> None:
    async with rig.rig.pool.acquire() as conn:
        picture = await files.create_file(conn, rig.rig.user, name="a.png", mime_type="image/png", data=b"png")
    file = File(media_type="image/png", file_id=picture.id)
    chat, messages = await create(rig, said(rig, file), title=titles.EMPTY_TITLE)

    assert await generate(rig, chat, messages, titles.EMPTY_TITLE) is None
    assert rig.asked == []


def test_pasted_text_is_cut_in_bytes_and_characters() -> None:
    one, two = uuid4(), uuid4()
    stored = {
        one: StoredFile(media_type="text/plain", data="ä".encode() * 40_000, is_pasted=True),
        two: StoredFile(media_type="application/json", data=b"{}"),
    }
    content = (File(media_type="text/plain", file_id=one), File(media_type="application/json", file_id=two))

    text = worker_titles.pasted_text(content, stored)

    assert text == "ä" * worker_titles.MAX_PASTED_CHARS + " {}"


async def test_chat_that_has_a_name_keeps_it_unasked(rig: TitlesRig) -> None:
    chat, messages = await create(rig, title="My own name")

    assert await generate(rig, chat, messages, "My own name") is None
    assert rig.asked == []


async def test_second_message_or_an_answer_is_too_late_for_a_title(rig: TitlesRig) -> None:
    chat, messages = await create(rig)
    await rig.rig.commit(chat.id, assistant("Done."))
    answered = await rig.rig.history(chat.id)

    assert await generate(rig, chat, answered) is None
    assert await generate(rig, chat, [*messages, *messages]) is None
    assert rig.asked == []


async def test_rows_for_the_model_only_are_nobodys_turn(rig: TitlesRig) -> None:
    hidden = said(rig, Text("You are in a workspace."), visibility=Visibility.MODEL)
    chat, messages = await create(rig, hidden, said(rig))

    assert await generate(rig, chat, messages) == "Fix the login test"


async def test_titles_can_be_switched_off(rig: TitlesRig) -> None:
    await rig.setting("models", {"generate_titles": False})
    chat, messages = await create(rig)

    assert await generate(rig, chat, messages) is None
    assert rig.asked == []


# Choice of the model


async def test_small_model_is_preferred_to_that_of_the_chat(rig: TitlesRig) -> None:
    small = await add_model(rig, "tiny-haiku")
    chat, messages = await create(rig)

    await generate(rig, chat, messages)

    assert [row["model_config_id"] for row in await rig.ledger()] == [small]


async def test_administrators_choose_the_model(rig: TitlesRig) -> None:
    await add_model(rig, "tiny-haiku")
    chosen = await add_model(rig, "chosen")
    await rig.setting("models", {"title_generation": {"model_config_id": str(chosen)}})
    chat, messages = await create(rig)

    await generate(rig, chat, messages)

    assert [row["model_config_id"] for row in await rig.ledger()] == [chosen]


async def test_model_they_chose_is_not_replaced_when_it_cannot_be_used(rig: TitlesRig) -> None:
    await rig.setting("models", {"title_generation": {"model_config_id": str(uuid4())}})
    chat, messages = await create(rig)

    assert await generate(rig, chat, messages) is None
    assert rig.asked == []


# Cost


async def test_call_is_entered_in_the_ledger_with_its_cost(rig: TitlesRig) -> None:
    await rig.rig.sql("UPDATE model_configs SET price_input = 3, price_output = 15")
    rig.answers["Title"] = [(Count(Usage(input=1000, output=10)), *saying(title="Fix it"))]
    chat, messages = await create(rig)

    await generate(rig, chat, messages)

    (row,) = await rig.ledger()
    assert (row["purpose"], row["status"], row["owner_id"], row["chat_id"]) == ("title", "ok", rig.rig.user, chat.id)
    assert (row["input_tokens"], row["output_tokens"], row["cost_micros"]) == (1000, 10, 3150)


async def test_answer_that_is_no_object_is_paid_for_and_entered(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Say("I would rather not.\nReally."),)]
    chat, messages = await create(rig)

    assert await generate(rig, chat, messages) is None
    (row,) = await rig.ledger()
    assert row["status"] == "failed"
    assert row["output_tokens"] > 0


async def test_used_up_limit_stops_the_call(rig: TitlesRig) -> None:
    await rig.setting("spend", {"enabled": True, "default_limit_micros": 100, "period": "day"})
    chat, messages = await create(rig)
    provider = await rig.rig.value("SELECT id FROM model_providers")
    assert isinstance(provider, UUID)
    spent = Entry(
        owner_id=rig.rig.user,
        chat_id=chat.id,
        purpose="turn",
        provider_id=provider,
        model_config_id=rig.rig.model,
        model="scripted",
        key_source=KeySource.CENTRAL,
        status=CallStatus.OK,
        cost_micros=100,
        at=rig.clock.now(),
    )
    async with rig.rig.pool.acquire() as conn:
        await usage_ledger.record_call(conn, spent)

    assert await generate(rig, chat, messages) is None
    assert rig.asked == []


async def test_limit_that_is_not_used_up_lets_the_call_through(rig: TitlesRig) -> None:
    await rig.setting("spend", {"enabled": True, "default_limit_micros": 100, "period": "day"})
    chat, messages = await create(rig)

    assert await generate(rig, chat, messages) == "Fix the login test"


# Retries


async def test_call_is_made_again_after_a_failure_that_passes(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Fail(ErrorKind.OVERLOADED),), saying(title="Second try")]
    chat, messages = await create(rig)
    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)

    await rig.clock.until_waiting("title-retry")
    (wait,) = rig.clock.waiting("title-retry")
    await rig.clock.fire("title-retry")
    await rig.idle()

    assert 1.0 <= wait.due <= 1.2
    assert await title_of(rig, chat) == "Second try"
    assert [row["status"] for row in await rig.ledger()] == ["failed", "ok"]


async def test_wait_that_does_not_fit_in_the_time_is_not_begun(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Fail(ErrorKind.RATE_LIMIT, retry_after=timedelta(seconds=31)),)]
    chat, messages = await create(rig)

    assert await generate(rig, chat, messages) is None
    assert len(rig.asked) == 1


async def test_tries_end_with_the_time(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Fail(ErrorKind.OVERLOADED),)]
    chat, messages = await create(rig)
    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)

    # Delays of 1 + 2 + 4 + 8 s fit into 30 s; another 16 s do not.
    for _ in range(4):
        await rig.clock.fire("title-retry")
    await rig.idle()

    assert len(rig.asked) == 5
    assert await title_of(rig, chat) == FALLBACK


async def test_call_that_takes_too_long_counts_as_failed(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Wait(60), *saying(title="Too late"))]
    chat, messages = await create(rig)
    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)
    await rig.clock.until_waiting("scripted-wait")

    await rig.clock.advance(30)
    await rig.idle()

    assert await title_of(rig, chat) == FALLBACK
    assert [(row["status"], row["runtime_ms"]) for row in await rig.ledger()] == [("failed", 30_000)]


async def test_call_that_the_shutdown_cuts_off_is_entered_as_interrupted(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Wait(60), *saying(title="Too late"))]
    chat, messages = await create(rig)
    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)
    await rig.clock.until_waiting("scripted-wait")

    closing = asyncio.create_task(rig.inflight.close(5))
    await rig.clock.until_waiting("follow-up-close")
    await rig.clock.advance(5)
    await closing

    assert [row["status"] for row in await rig.ledger()] == ["interrupted"]


async def test_ledger_that_cannot_be_written_does_not_cost_the_title(rig: TitlesRig) -> None:
    chat, messages = await create(rig)
    await rig.rig.sql("ALTER TABLE model_usage RENAME TO model_usage_away")

    assert await generate(rig, chat, messages) == "Fix the login test"


async def test_database_that_is_away_costs_the_title_and_nothing_else(rig: TitlesRig) -> None:
    chat, _ = await create(rig)
    await rig.rig.sql("ALTER TABLE model_configs RENAME TO model_configs_away")

    assert await rig.effects.texts.title(chat, REQUEST) is None


async def test_summary_may_take_two_minutes_over_several_calls(rig: TitlesRig) -> None:
    rig.answers["Summary"] = [(Wait(50), Fail(ErrorKind.OVERLOADED)), saying(summary="All is well.")]
    chat, _ = await create(rig)
    making = asyncio.create_task(rig.effects.texts.summary(chat, [("User", "hello")]))

    await rig.clock.fire("scripted-wait")
    await rig.clock.fire("summary-retry")

    assert await making == "All is well."
    assert rig.clock.now() > datetime(2030, 1, 1, 0, 0, 50, tzinfo=UTC)


# Tries


async def turn(rig: TitlesRig, chat: Chat) -> None:
    """Run a turn of the chat and wait for its effects."""
    await rig.rig.commit(chat.id, assistant("Done."))
    await rig.finish_and_wait(chat.id)


async def test_title_that_failed_is_tried_again_after_the_next_turns_three_times_in_all(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Fail(ErrorKind.AUTH, retryable=False),)]
    chat, messages = await create(rig)
    assert await generate(rig, chat, messages) is None

    for number in range(4):
        if number:
            await rig.rig.send(chat.id, "and now?")
        await turn(rig, chat)

    assert len(rig.asked_for("Title")) == 3
    assert rig.asked_for("Title")[-1] == REQUEST
    assert await title_of(rig, chat) == FALLBACK


async def test_title_that_worked_at_the_second_try_is_the_last(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Fail(ErrorKind.AUTH, retryable=False),), saying(title="Fix the login test")]
    chat, messages = await create(rig)
    await generate(rig, chat, messages)
    assert await title_of(rig, chat) == FALLBACK

    await turn(rig, chat)
    assert await title_of(rig, chat) == "Fix the login test"
    await rig.rig.send(chat.id, "and now?")
    await turn(rig, chat)

    assert len(rig.asked_for("Title")) == 2


async def test_turn_that_ends_while_the_title_is_made_does_not_ask_for_another(rig: TitlesRig) -> None:
    rig.answers["Title"] = [(Wait(5), *saying(title="From the model"))]
    chat, messages = await create(rig)
    rig.effects.titling.start(chat, title=FALLBACK, messages=messages)
    await rig.clock.until_waiting("scripted-wait")

    await rig.rig.commit(chat.id, assistant("Done."))
    await rig.finish(chat.id)
    await rig.clock.fire("scripted-wait")
    await rig.idle()

    assert len(rig.asked_for("Title")) == 1
    assert await title_of(rig, chat) == "From the model"


async def test_title_that_a_user_chose_is_never_replaced(rig: TitlesRig) -> None:
    spec = rig.rig.spec(said(rig), title=FALLBACK, is_named=True)
    created = await rig.rig.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))

    await turn(rig, created.chat)

    assert rig.asked_for("Title") == []
