"""Effects of outcomes: labels, summaries, hints and pushes, and late results that are dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from rookery.domain.chat import parts, titles
from rookery.domain.chat.messages import Message, NewMessage, Role, Visibility
from rookery.domain.chat.next_action import TurnEnd
from rookery.domain.chat.parts import FileReference, Text, ToolResult
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import Fail, Wait
from rookery.llm.types import ErrorKind
from rookery.store import machine
from rookery.store.chats.step_reads import ParsedMessage
from rookery.store.db.hints import WatchKind
from rookery.titles import generate
from rookery.worker import turn_end_effects
from rookery.worker.config import WorkerConfig
from rookery.worker.turn_end_effects import PushKind
from tests.eventually import until
from tests.store.machine.machine_rig import FAILED, assistant, call, calling
from tests.worker.short_texts_rig import LONG, TitlesRig, open_desk, saying


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[TitlesRig]:
    async with open_desk(database_url) as made:
        yield made


async def test_finished_turn_gets_a_label_then_a_hint_and_a_push(rig: TitlesRig) -> None:
    chat_id = await rig.answered(title="Login")

    chat = await rig.finish_and_wait(chat_id)

    assert await rig.label(chat_id) == "Login test fixed"
    assert (WatchKind.SUMMARY_CHANGE, chat_id) in rig.watched()
    (push,) = rig.pushes.sent
    assert (push.kind, push.owner_id, push.chat_id, push.text) == (
        PushKind.FINISHED,
        chat.owner_id,
        chat_id,
        "Login test fixed",
    )
    (asked,) = rig.asked_for("Label")
    assert "Title: Login" in asked
    assert "It is fixed now" in asked


async def test_label_moves_no_version_of_the_chat(rig: TitlesRig) -> None:
    chat_id = await rig.answered()

    chat = await rig.finish_and_wait(chat_id)

    after = await rig.rig.load(chat_id)
    assert (after.snapshot_version, after.history_version) == (chat.snapshot_version, chat.history_version)
    assert after.updated_at == chat.updated_at


async def test_late_label_never_overwrites_a_newer_turn_and_is_not_pushed(rig: TitlesRig) -> None:
    rig.answers["Label"] = [(Wait(5), *saying(label="Old news only")), saying(label="New turn done")]
    chat_id = await rig.answered("Short.")
    await rig.finish(chat_id)
    await rig.clock.until_waiting("scripted-wait")

    await rig.rig.send(chat_id, "go on")
    await rig.rig.commit(chat_id, assistant("Done, too."))
    await rig.finish(chat_id)
    await until(lambda: rig.pushes.sent)
    await rig.clock.fire("scripted-wait")
    await rig.idle()

    assert await rig.label(chat_id) == "New turn done"
    assert [push.text for push in rig.pushes.sent] == ["New turn done"]
    assert rig.watched() == [(WatchKind.SUMMARY_CHANGE, chat_id)]
    assert [row["status"] for row in await rig.ledger()] == ["ok", "ok"]


async def test_late_label_stays_away_from_a_chat_that_is_at_work_again(rig: TitlesRig) -> None:
    rig.answers["Label"] = [(Wait(5), *saying(label="Old news only"))]
    chat_id = await rig.answered("Short.")
    await rig.finish(chat_id)
    await rig.clock.until_waiting("scripted-wait")

    await rig.rig.send(chat_id, "go on")
    await rig.clock.fire("scripted-wait")
    await rig.idle()

    assert await rig.label(chat_id) is None
    assert rig.pushes.sent == []


async def test_late_summary_never_overwrites_that_of_a_newer_turn(rig: TitlesRig) -> None:
    rig.answers["Summary"] = [(Wait(5), *saying(summary="The old one.")), saying(summary="The new one.")]
    chat_id = await rig.answered()
    await rig.finish(chat_id)
    await rig.clock.until_waiting("scripted-wait")

    await rig.rig.send(chat_id, "go on")
    await rig.rig.commit(chat_id, assistant(LONG))
    await rig.finish(chat_id)
    await until(lambda: len(rig.asked_for("Summary")) == 2 and len(rig.inflight) == 1)
    await rig.clock.fire("scripted-wait")
    await rig.idle()

    assert await rig.summary(chat_id) == "The new one."


@pytest.mark.parametrize("babble", ["One", "The agent is done now", "Word after word after word again"])
async def test_label_that_breaks_the_rules_is_replaced(rig: TitlesRig, babble: str) -> None:
    rig.answers["Label"] = [saying(label=babble)]
    chat_id = await rig.answered()

    await rig.finish_and_wait(chat_id)

    assert await rig.label(chat_id) == titles.FINISHED_LABEL
    assert [push.text for push in rig.pushes.sent] == [titles.FINISHED_LABEL]


async def test_failing_model_leaves_the_fallback_label_and_a_row_in_the_ledger(rig: TitlesRig) -> None:
    rig.answers["Label"] = [(Fail(ErrorKind.AUTH, retryable=False),)]
    chat_id = await rig.answered("Short.")

    await rig.finish_and_wait(chat_id)

    assert await rig.label(chat_id) == titles.FINISHED_LABEL
    assert [(row["purpose"], row["status"]) for row in await rig.ledger()] == [("label", "failed")]


async def test_turn_without_words_gets_the_fallback_without_asking(rig: TitlesRig) -> None:
    chat_id = await rig.rig.create()
    await rig.rig.commit(chat_id, calling(call("c1", provider_executed=True)))

    await rig.finish_and_wait(chat_id)

    assert await rig.label(chat_id) == titles.FINISHED_LABEL
    assert rig.asked == []


async def test_words_of_an_earlier_turn_are_not_this_turns(rig: TitlesRig) -> None:
    chat_id = await rig.answered()
    await rig.finish_and_wait(chat_id)
    rig.asked.clear()
    await rig.rig.send(chat_id, "and silently?")
    await rig.rig.commit(chat_id, calling(call("c1", provider_executed=True)))

    await rig.finish_and_wait(chat_id)

    assert await rig.label(chat_id) == titles.FINISHED_LABEL
    assert rig.asked_for("Label") == []


async def test_turn_at_the_step_limit_says_so_without_asking(rig: TitlesRig) -> None:
    chat_id = await rig.answered("Short.")

    await rig.finish_and_wait(chat_id, TurnEnd.MAX_STEPS)

    assert await rig.label(chat_id) == turn_end_effects.STEP_LIMIT_LABEL
    assert rig.asked == []


async def test_turn_that_stopped_for_a_decision_is_described_as_waiting(rig: TitlesRig) -> None:
    chat_id = await rig.answered("Here is the plan.")

    await rig.finish_and_wait(chat_id, TurnEnd.STOP_AFTER_TOOL)

    (asked,) = rig.asked_for("Label")
    assert "waits for the user" in asked


async def test_failing_push_delays_nothing_and_the_label_stays(rig: TitlesRig) -> None:
    rig.pushes.error = ConnectionError("the push service is down")
    chat_id = await rig.answered()

    await rig.finish_and_wait(chat_id)
    await rig.turn(chat_id, "Done again.")

    assert await rig.label(chat_id) == "Login test fixed"
    assert rig.pushes.sent == []


async def test_hanging_push_holds_up_nothing_and_ends_at_its_limit(rig: TitlesRig) -> None:
    chat_id = await rig.answered("Short.")
    rig.pushes.gate.clear()
    await rig.finish(chat_id)
    await until(lambda: rig.pushes.begun == 1)

    await rig.rig.send(chat_id, "go on")
    await rig.rig.commit(chat_id, assistant("Done, too."))
    await rig.finish(chat_id)
    await until(lambda: rig.pushes.begun == 2)
    await rig.clock.advance(600)
    await rig.idle()

    assert await rig.label(chat_id) == "Login test fixed"
    assert rig.pushes.sent == []


async def test_hanging_model_holds_up_neither_the_next_step_nor_its_label(rig: TitlesRig) -> None:
    rig.answers["Label"] = [(Wait(1000),), saying(label="New turn done")]
    chat_id = await rig.answered("Short.")
    await rig.finish(chat_id)
    await rig.clock.until_waiting("scripted-wait")

    await rig.rig.send(chat_id, "go on")
    await rig.rig.commit(chat_id, assistant("Done, too."))
    await rig.finish(chat_id)
    await until(lambda: rig.pushes.sent)

    assert await rig.label(chat_id) == "New turn done"
    assert len(rig.inflight) == 1


async def test_broken_publisher_does_not_cost_the_push(rig: TitlesRig) -> None:
    chat_id = await rig.answered()
    chat = await rig.finish(chat_id)
    rig.rig.published.failing = True

    await rig.idle()

    assert [push.snapshot_version for push in rig.pushes.sent] == [chat.snapshot_version]


async def test_queued_message_that_takes_over_clears_the_label(rig: TitlesRig) -> None:
    chat_id = await rig.answered()
    await rig.set_label(chat_id, "Something older")
    await rig.rig.send(chat_id, "next", BusyBehavior.QUEUE)

    await rig.finish_and_wait(chat_id)

    assert await rig.label(chat_id) is None
    assert rig.watched() == [(WatchKind.SUMMARY_CHANGE, chat_id)]
    assert (rig.asked, rig.pushes.sent) == ([], [])


async def test_failed_turn_clears_the_label_and_pushes_the_error(rig: TitlesRig) -> None:
    chat_id = await rig.rig.create()
    await rig.set_label(chat_id, "Something older")

    await rig.fail(chat_id, FAILED)
    await rig.idle()

    assert await rig.label(chat_id) is None
    assert [(push.kind, push.text) for push in rig.pushes.sent] == [(PushKind.FAILED, FAILED.message)]
    assert rig.watched() == [(WatchKind.SUMMARY_CHANGE, chat_id)]


async def test_error_that_was_retried_meanwhile_is_not_pushed(rig: TitlesRig) -> None:
    chat_id = await rig.rig.create()
    await rig.rig.update(chat_id, lambda tx: machine.finish_error(tx, FAILED))
    failed = await rig.rig.load(chat_id)
    await rig.rig.update(chat_id, machine.retry_turn)

    rig.effects.turn_failed(failed, FAILED)
    await rig.idle()

    assert rig.pushes.sent == []


async def test_chat_that_waits_for_its_client_is_labelled_so(rig: TitlesRig) -> None:
    chat_id = await rig.rig.create()
    await rig.rig.commit(chat_id, calling(call("c1")))
    await rig.rig.update(chat_id, lambda tx: machine.enter_requires_action(tx, timeout_seconds=60))
    rig.rig.published.clear()

    rig.effects.action_required(await rig.rig.load(chat_id))
    await rig.idle()

    assert await rig.label(chat_id) == titles.WAITING_LABEL
    assert rig.watched() == [(WatchKind.SUMMARY_CHANGE, chat_id)]


@pytest.mark.parametrize("is_promoted", [True, False])
async def test_interrupted_turn_is_labeled_unless_the_next_has_begun(rig: TitlesRig, is_promoted: bool) -> None:
    chat_id = await rig.rig.create()
    await rig.set_label(chat_id, "Something older")

    rig.effects.interrupted(await rig.rig.load(chat_id), is_promoted=is_promoted)
    await rig.idle()

    assert await rig.label(chat_id) == (None if is_promoted else titles.STOPPED_LABEL)
    assert rig.pushes.sent == []


async def test_subagents_report_becomes_the_summary_of_its_chat_and_nothing_else(rig: TitlesRig) -> None:
    root = await rig.rig.create()
    child = await rig.rig.child(root)
    report = "# Report\n\nThe **clock** was wrong. It is set. Tests pass. Nothing is open.\n\nMore."
    await rig.rig.commit(child, assistant(report))

    await rig.finish_and_wait(child)

    assert await rig.summary(child) == "The clock was wrong. It is set. Tests pass."
    assert await rig.label(child) is None
    assert rig.watched() == [(WatchKind.SUMMARY_CHANGE, child)]
    assert (rig.asked, rig.pushes.sent) == ([], [])


async def test_subagents_errors_and_interruptions_leave_no_trace(rig: TitlesRig) -> None:
    root = await rig.rig.create()
    child = await rig.rig.child(root)
    await rig.set_label(child, "Kept as it is")

    chat = await rig.fail(child, FAILED)
    rig.effects.interrupted(chat, is_promoted=False)
    rig.effects.action_required(chat)
    await rig.idle()

    assert await rig.label(child) == "Kept as it is"
    assert (rig.watched(), rig.pushes.sent) == ([], [])


async def test_summary_is_made_after_the_first_turn_and_then_after_every_third(rig: TitlesRig) -> None:
    chat_id = await rig.answered()
    await rig.finish_and_wait(chat_id)

    counts = [len(rig.asked_for("Summary"))]
    for _ in range(6):
        await rig.turn(chat_id)
        counts.append(len(rig.asked_for("Summary")))

    assert counts == [1, 1, 1, 2, 2, 2, 3]
    assert await rig.summary(chat_id) == "The login test was fixed."


async def test_summary_reads_both_sides_and_is_announced(rig: TitlesRig) -> None:
    chat_id = await rig.answered()

    await rig.finish_and_wait(chat_id)

    (read,) = rig.asked_for("Summary")
    assert read.startswith("User: hello\n\nAssistant: The login test failed")
    assert rig.watched() == [(WatchKind.SUMMARY_CHANGE, chat_id)] * 2


async def test_short_chat_gets_no_summary(rig: TitlesRig) -> None:
    chat_id = await rig.answered("Short.")

    await rig.finish_and_wait(chat_id)

    assert rig.asked_for("Summary") == []


@pytest.mark.parametrize("answer", [saying(summary="x" * 1001), (Fail(ErrorKind.AUTH, retryable=False),)])
async def test_failed_summary_keeps_the_old_one_and_is_made_up_for(rig: TitlesRig, answer: tuple[Fail, ...]) -> None:
    chat_id = await rig.answered()
    await rig.finish_and_wait(chat_id)
    rig.answers["Summary"] = [answer, saying(summary="The new one.")]
    found = []

    for _ in range(4):
        await rig.turn(chat_id)
        found.append(await rig.summary(chat_id))

    assert found == ["The login test was fixed."] * 3 + ["The new one."]


async def test_write_waits_for_a_database_that_is_away_for_a_moment(rig: TitlesRig) -> None:
    chat_id = await rig.rig.create()
    await rig.set_label(chat_id, "Something older")
    chat = await rig.rig.load(chat_id)
    await rig.rig.sql("ALTER TABLE chats RENAME TO chats_away")

    rig.effects.interrupted(chat, is_promoted=False)
    await rig.clock.until_waiting("effect-retry")
    await rig.rig.sql("ALTER TABLE chats_away RENAME TO chats")
    await rig.clock.fire("effect-retry")
    await rig.idle()

    assert await rig.label(chat_id) == titles.STOPPED_LABEL


@pytest.mark.parametrize(("waited", "is_given_up"), [(2.0, False), (3.5, True)])
async def test_write_that_takes_longer_than_was_set_is_dropped(
    database_url: str, waited: float, is_given_up: bool
) -> None:
    async with open_desk(database_url, WorkerConfig(watch_publish_seconds=3.0)) as rig:
        chat_id = await rig.rig.create()
        await rig.set_label(chat_id, "Something older")
        chat = await rig.rig.load(chat_id)
        await rig.rig.sql("ALTER TABLE chats RENAME TO chats_away")
        rig.effects.interrupted(chat, is_promoted=False)
        await rig.clock.until_waiting("effect-retry")

        await rig.clock.advance(waited)
        if is_given_up:
            await rig.idle()
        assert (len(rig.inflight) == 0) is is_given_up
        await rig.rig.sql("ALTER TABLE chats_away RENAME TO chats")


async def test_chat_that_is_deleted_meanwhile_is_no_error(rig: TitlesRig) -> None:
    rig.answers["Label"] = [(Wait(5), *saying(label="Login test fixed"))]
    chat_id = await rig.answered("Short.")
    await rig.finish(chat_id)
    await rig.clock.until_waiting("scripted-wait")

    await rig.rig.machine.bundle(lambda bundle: machine.delete_family(bundle, chat_id))
    await rig.clock.fire("scripted-wait")
    await rig.idle()

    assert rig.pushes.sent == []
    assert [(row["chat_id"], row["status"]) for row in await rig.ledger()] == [(None, "ok")]


async def test_summary_is_due_again_once_a_compaction_took_turns_away(rig: TitlesRig) -> None:
    chat_id = await rig.answered()
    boundary = NewMessage(
        role=Role.USER, content=(Text("The story so far."),), visibility=Visibility.MODEL, compressed=True
    )
    await rig.rig.commit(chat_id, boundary)
    await rig.rig.commit(chat_id, assistant("And on."))
    step = await rig.load(chat_id)
    long_ago, soon = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=1)

    assert turn_end_effects.is_summary_due(None, step.history)
    assert turn_end_effects.is_summary_due(long_ago, step.history)
    assert not turn_end_effects.is_summary_due(soon, step.history)


async def test_conversation_tells_turns_and_what_was_compacted(rig: TitlesRig) -> None:
    quoted = FileReference("a.py", 1, 2, "print()")
    first = NewMessage(role=Role.USER, content=(Text("look at"), quoted), created_by=rig.rig.user)
    hidden = NewMessage(role=Role.USER, content=(Text("for the model"),), visibility=Visibility.MODEL)
    summary = ToolResult("s1", "chat_summarized", result=parts.json_raw({"summary": "It began."}))
    chat_id = await rig.rig.create(first)
    await rig.rig.commit(chat_id, assistant("One."), hidden)
    await rig.rig.commit(chat_id, assistant("Two."))
    await rig.rig.commit(chat_id, NewMessage(role=Role.TOOL, content=(summary,), compressed=True))
    await rig.rig.commit(chat_id, assistant("Three."))

    told = turn_end_effects.conversation((await rig.load(chat_id)).history.rows)

    assert told == [
        ("User", "look at a.py: print()"),
        ("Assistant", "One.\n\nTwo."),
        ("Summary of what came before", "It began."),
        ("Assistant", "Three."),
    ]


async def test_of_a_long_chat_only_its_two_ends_are_read(rig: TitlesRig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (await rig.load(await rig.answered("Word."))).history.rows[-1]
    assert isinstance(first.message, ParsedMessage)
    rows = [
        PromptRow(
            msgspec.structs.replace(
                first.message,
                role=Role.USER if number % 3 == 0 else Role.ASSISTANT,
                parsed=(Text(f"{number} " + "word " * 20),),
            )
        )
        for number in range(3000)
    ]
    whole = turn_end_effects.conversation(rows, limit=10**9)
    speech, read = turn_end_effects._speech, list[Message]()

    def note(message: Message) -> tuple[str, str]:
        read.append(message)
        return speech(message)

    monkeypatch.setattr(turn_end_effects, "_speech", note)

    ends = turn_end_effects.conversation(rows)

    assert len(whole) == 2000
    assert len(read) < 500
    assert [speech for speech in whole if speech in ends] == ends
    # The text is the same except for the number of omitted characters.
    read_whole, read_ends = (
        titles.transcript(turns, per_turn=generate.SUMMARY_PER_TURN, limit=generate.SUMMARY_INPUT)
        for turns in (whole, ends)
    )
    assert read_whole[:10_000] == read_ends[:10_000]
    assert read_whole[-5000:] == read_ends[-5000:]


async def test_row_that_cannot_be_read_is_passed_over(rig: TitlesRig) -> None:
    chat_id = await rig.answered("Readable.")
    rows = (await rig.load(chat_id)).history.rows
    unreadable = msgspec.structs.replace(rows[-1].message, content="{", parsed=None)

    told = turn_end_effects.conversation((*rows, PromptRow(unreadable, rows[-1].figures)))

    assert told[-1] == ("Assistant", "Readable.")


async def test_long_history_is_summarised_as_well(rig: TitlesRig) -> None:
    chat_id = await rig.rig.create(client_type="ui")
    await rig.rig.commit(chat_id, *(assistant(f"Step {number} went well.") for number in range(250)))

    await rig.finish_and_wait(chat_id)

    assert await rig.summary(chat_id) == "The login test was fixed."


async def test_nothing_is_started_once_the_process_stops(rig: TitlesRig) -> None:
    chat_id = await rig.answered()
    await rig.inflight.close(0)

    await rig.finish_and_wait(chat_id)

    assert await rig.label(chat_id) is None
    assert rig.asked == []


# Chats with labels and summaries


@pytest.mark.parametrize(
    ("client_type", "wanted", "is_made"),
    [
        ("ui", None, True),
        ("cli", None, True),
        ("api", None, False),
        ("api", True, True),
        ("ui", False, False),
    ],
)
async def test_labels_and_summaries_are_made_for_people_or_when_asked_for(
    rig: TitlesRig, client_type: str, wanted: bool | None, is_made: bool
) -> None:
    chat_id = await rig.answered(client_type=client_type, generate_summaries=wanted)

    await rig.finish_and_wait(chat_id)

    # Two background tasks write them, in any order.
    assert sorted(name for name, _ in rig.asked if name != "Title") == (["Label", "Summary"] if is_made else [])
    assert await rig.label(chat_id) == ("Login test fixed" if is_made else titles.FINISHED_LABEL)
    assert (await rig.summary(chat_id) is not None) is is_made


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE users SET status = 'disabled' WHERE id = (SELECT owner_id FROM chats WHERE id = $1)",
        "DELETE FROM chats WHERE id = $1",
    ],
)
async def test_no_model_is_called_for_a_text_that_is_not_shown(rig: TitlesRig, statement: str) -> None:
    chat_id = await rig.answered()
    step = await rig.load(chat_id)
    await rig.rig.update(chat_id, machine.finish_turn)
    chat = await rig.rig.load(chat_id)
    await rig.rig.sql(statement, chat_id)

    rig.effects.turn_finished(chat, step.meta, step.history, reason=TurnEnd.COMPLETE, is_promoted=False)
    await rig.idle()

    assert [name for name, _ in rig.asked if name != "Title"] == []


async def test_labels_and_summaries_are_counted_under_their_own_purpose(rig: TitlesRig) -> None:
    chat_id = await rig.answered()

    await rig.finish_and_wait(chat_id)

    assert sorted(row["purpose"] for row in await rig.ledger() if row["purpose"] != "title") == ["label", "summary"]
