"""Compaction of long chats: when it happens, its rows, and its failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from rookery.domain.chat import compaction
from rookery.domain.chat.compaction import CARRIED_LEAD_IN, LEAD_IN
from rookery.domain.chat.errors import NothingToCompact, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.model_prompt import PromptText
from rookery.domain.chat.parts import ToolCall, ToolResult
from rookery.domain.chat.states import Status
from rookery.live.part_buffer import EpisodeKey
from rookery.llm.scripted import CallTool, Count, Fail, Pause, Say, Script, Step, Wait
from rookery.llm.types import Call, ErrorKind, Purpose, Usage
from rookery.models import cost
from rookery.store.models import context_windows
from rookery.store.settings.settings import write_user_setting
from rookery.testing import FakeClock
from tests import scripted_tools
from tests.eventually import until
from tests.worker.worker_rig import WorkerRig, in_turn, open_house

OVERFLOW = Fail(ErrorKind.CONTEXT_OVERFLOW, "Too long.", retryable=False)
SUMMARY = "They said hello."


def read(tokens: int) -> Count:
    return Count(Usage(input=tokens, output=10, total=tokens + 10, context_tokens=tokens))


def by_purpose(*turns: Sequence[Step], summary: Sequence[Step] = (Say(SUMMARY),)) -> Script:
    """Return a script: turns use the given scripts in order, and summaries always use the same one."""
    play = in_turn(*turns)

    def script(call: Call) -> Sequence[Step]:
        if call.purpose is Purpose.COMPACTION:
            return summary
        assert callable(play)
        return play(call)

    return script


def purposes(rig: WorkerRig) -> list[str]:
    return [str(call.purpose) for call in rig.calls]


def texts(call: Call) -> str:
    return "\n".join(
        part.text for message in call.prompt.messages for part in message.parts if isinstance(part, PromptText)
    )


async def answered(rig: WorkerRig, words: str = "hello") -> ChatId:
    chat_id = await rig.ask(words)
    await rig.rested(chat_id)
    return chat_id


# Trigger, with a limit of 1000 tokens


@pytest.mark.parametrize(
    ("threshold", "tokens", "is_compacted"),
    [(70, 699, False), (70, 700, True), (0, 1, True), (100, 5000, False)],
)
async def test_threshold_decides(threshold: int, tokens: int, is_compacted: bool, database_url: str) -> None:
    # A paused answer has no message after it, so the next request contains exactly the counted tokens.
    script = by_purpose((read(tokens), Say("hm"), Pause()), (Say("done"),))
    async with open_house(database_url, script=script, context_limit=1_000, threshold=threshold) as rig:
        await answered(rig)

        assert purposes(rig) == (["turn", "compaction", "turn"] if is_compacted else ["turn", "turn"])


async def test_threshold_of_the_user_wins(database_url: str) -> None:
    script = by_purpose((read(700), CallTool("read")), (read(1), Say("done")))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        async with rig.database.api.acquire() as conn:
            await write_user_setting(conn, rig.user, key="compaction_thresholds", value={str(rig.model): 95})
        await answered(rig)

        assert purposes(rig) == ["turn", "turn"]


@pytest.mark.parametrize(("tokens", "is_compacted"), [(1_000, False), (9_000, True)])
async def test_huge_result_is_noticed_before_it_is_sent(tokens: int, is_compacted: bool, database_url: str) -> None:
    # The result has 5,461 tokens: 16 KiB, the limit of every result, at three bytes per token.
    script = by_purpose((read(tokens), CallTool("huge")), (Say("done"),))
    async with open_house(
        database_url, script=script, tools=[scripted_tools.huge(30_000)], context_limit=15_000
    ) as rig:
        await answered(rig)

        assert purposes(rig) == (["turn", "compaction", "turn"] if is_compacted else ["turn", "turn"])


async def test_stricter_limit_of_the_summarising_model_counts(database_url: str) -> None:
    script = by_purpose((read(700), CallTool("read")), (read(1), Say("done")))
    async with open_house(
        database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=100_000
    ) as rig:
        small = await rig.sql(
            "INSERT INTO model_configs (provider_id, model, context_limit)"
            " SELECT provider_id, 'small', 1000 FROM model_configs WHERE id = $1 RETURNING id",
            rig.model,
        )
        await rig.summarise_with(small)
        asked: list[Call] = []

        def summarise(call: Call) -> Sequence[Step]:
            asked.append(call)
            return (Say(SUMMARY),)

        with rig.scripts.registered("small", summarise):
            chat_id = await answered(rig)

        assert [call.purpose for call in asked] == [Purpose.COMPACTION]
        assert purposes(rig) == ["turn", "turn"]
        assert (await rig.story(chat_id))[-1] == ("assistant", "done")


async def test_listed_window_of_the_summarising_model_counts(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "list_window", lambda provider_type, model: 1000 if model == "small" else None)
    script = by_purpose((read(700), CallTool("read")), (read(1), Say("done")))
    async with open_house(
        database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=100_000
    ) as rig:
        small = await rig.sql(
            "INSERT INTO model_configs (provider_id, model, context_limit)"
            " SELECT provider_id, 'small', 100000 FROM model_configs WHERE id = $1 RETURNING id",
            rig.model,
        )
        await rig.summarise_with(small)
        asked: list[Call] = []

        def summarise(call: Call) -> Sequence[Step]:
            asked.append(call)
            return (Say(SUMMARY),)

        with rig.scripts.registered("small", summarise):
            await answered(rig)

        assert [call.purpose for call in asked] == [Purpose.COMPACTION]


async def test_finished_turn_is_never_compacted_unasked(database_url: str) -> None:
    async with open_house(database_url, script=by_purpose((read(5000), Say("long"))), context_limit=1_000) as rig:
        await answered(rig)

        assert purposes(rig) == ["turn"]


# Rows


async def test_three_rows_are_committed_at_once_and_the_turn_goes_on(database_url: str) -> None:
    script = by_purpose((read(900), CallTool("read")), (read(1), Say("done")))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        chat_id = await answered(rig, "please read this for me")

        rows = await rig.rows(chat_id, "role, visibility, compressed, revision, input_tokens")
        assert [row[:3] for row in rows[3:6]] == [
            ("user", "model", True),
            ("assistant", "user", True),
            ("tool", "both", True),
        ]
        assert len({row[3] for row in rows[3:6]}) == 1
        assert [row[4] for row in rows[3:6]] == [None, None, None]
        told = texts(rig.calls[-1])
        assert LEAD_IN + SUMMARY in told
        assert "please read this for me" in told
        assert (await rig.story(chat_id))[3:5] == [("assistant", "chat_summarized!"), ("tool", "chat_summarized=ok")]
        assert await rig.usage(chat_id, "purpose, status, message_id IS NULL") == [
            ("turn", "ok", False),
            ("compaction", "ok", True),
            ("turn", "ok", False),
        ]


async def test_running_summary_is_shown_and_a_crash_leaves_no_boundary(database_url: str) -> None:
    clock = FakeClock()
    script = by_purpose((read(900), CallTool("read")), (read(1), Say("done")), summary=(Say("In short"), Wait(60)))
    async with open_house(
        database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000, clock=clock
    ) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        chat = await rig.chat(chat_id)
        key = EpisodeKey(chat_id, chat.history_version, chat.generation_attempt)
        shown = [getattr(live.part, "tool_name", None) for live in rig.worker.buffer.get_parts(key)]
        assert shown == ["chat_summarized"]

        await rig.crash()
        assert await rig.rows(chat_id, "compressed") == [(False,)] * 3
        rig.script = by_purpose((read(1), Say("done")))
        await rig.add_replica()
        await rig.rested(chat_id)

        assert (await rig.story(chat_id))[-1] == ("assistant", "done")
        assert [compressed for (compressed,) in await rig.rows(chat_id, "compressed")].count(True) == 3


# Failures and manual compaction


async def test_summary_that_does_not_help_ends_the_turn_and_a_manual_one_recovers(database_url: str) -> None:
    full = (read(960), CallTool("read"))
    async with open_house(
        database_url, script=by_purpose(full), tools=[scripted_tools.echo("read")], context_limit=1_000
    ) as rig:
        chat_id = await rig.ask("hello")
        error = await rig.error(chat_id)
        assert error.kind == "config"
        assert "did not bring this chat under its context limit" in error.message
        assert rig.worker.stats.calls.compactions["scripted", "test", "automatic", "error"] == 1

        rig.script = by_purpose((read(10), Say("done")))
        await rig.compact(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[-1] == ("assistant", "done")


async def test_manual_summary_of_a_resting_chat_does_not_revive_it(database_url: str) -> None:
    async with open_house(database_url, script=by_purpose((Say("long story"),)), context_limit=1_000) as rig:
        chat_id = await answered(rig)
        rig.calls.clear()

        await rig.compact(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert purposes(rig) == ["compaction"]
        with pytest.raises(NothingToCompact):
            await rig.compact(chat_id)


async def test_second_request_while_one_runs_is_refused(database_url: str) -> None:
    clock = FakeClock()
    script = by_purpose((Say("long story"),), summary=(Wait(60), Say(SUMMARY)))
    async with open_house(database_url, script=script, clock=clock) as rig:
        chat_id = await answered(rig)
        await rig.compact(chat_id)
        await clock.until_waiting("scripted-wait")

        with pytest.raises(TransitionNotAllowed):
            await rig.compact(chat_id)

        await clock.fire("scripted-wait")
        await rig.rested(chat_id)
        assert (await rig.story(chat_id))[-1] == ("tool", "chat_summarized=ok")


async def test_queued_message_is_answered_after_a_manual_summary(database_url: str) -> None:
    clock = FakeClock()
    script = by_purpose((Say("long story"),), (Say("and on"),), summary=(Wait(60), Say(SUMMARY)))
    async with open_house(database_url, script=script, clock=clock) as rig:
        chat_id = await answered(rig)
        await rig.compact(chat_id)
        await clock.until_waiting("scripted-wait")
        await rig.send(chat_id, "next")

        await clock.fire("scripted-wait")
        await rig.rested(chat_id)

        assert (await rig.story(chat_id))[-2:] == [("user", "next"), ("assistant", "and on")]


async def test_prompt_that_the_provider_finds_too_long_is_summarised_once(database_url: str) -> None:
    script = by_purpose((CallTool("read"),), (OVERFLOW,), (Say("done"),))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")]) as rig:
        chat_id = await answered(rig)

        assert purposes(rig) == ["turn", "turn", "compaction", "turn"]
        assert (await rig.story(chat_id))[-1] == ("assistant", "done")
        assert '"source": "overflow"' in str(await rig.rows(chat_id, "content::text"))


async def test_overflow_of_what_cannot_be_made_shorter_is_final(database_url: str) -> None:
    script = by_purpose((CallTool("read"),), (OVERFLOW,))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")]) as rig:
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert error.kind == "context_overflow"
        assert purposes(rig) == ["turn", "turn", "compaction", "turn"]
        assert "no room" in error.message


async def test_short_message_that_is_refused_as_too_long_is_told_so_without_a_second_call(database_url: str) -> None:
    async with open_house(database_url, script=(OVERFLOW,)) as rig:
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert (error.kind, len(rig.calls)) == ("context_overflow", 1)
        async with rig.database.api.acquire() as conn:
            assert await context_windows.find_window(conn, rig.model) is None


async def test_summariser_that_is_overrun_itself_fails_once(database_url: str) -> None:
    script = by_purpose((read(960), CallTool("read")), summary=(OVERFLOW,))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        chat_id = await rig.ask("hello")

        error = await rig.error(chat_id)

        assert error.kind == "context_overflow"
        # The rungs are whole, trimmed and pieces. They are not repeated.
        assert purposes(rig).count("compaction") <= 3


async def test_failed_summary_ends_the_turn_where_there_is_no_room(database_url: str) -> None:
    script = by_purpose((read(950), CallTool("read")), summary=(Say(" "),))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        chat_id = await rig.ask("hello")

        await rig.error(chat_id)

        assert rig.worker.stats.calls.compactions["scripted", "test", "automatic", "error"] == 1
        # The last row is the mark of the failed turn.
        assert await rig.rows(chat_id, "compressed") == [(False,)] * 4


async def test_turn_goes_on_without_its_summary_while_there_is_room(database_url: str) -> None:
    steps = [(read(900), CallTool("read"))] * 2
    script = by_purpose(*steps, (read(910), Say("done")), summary=(Say(" "),))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        chat_id = await answered(rig)

        assert (await rig.chat(chat_id)).status == Status.WAITING
        # Each step tries again, but the notice is shown once.
        assert purposes(rig) == ["turn", "compaction", "turn", "compaction", "turn"]
        told = [words for role, words in await rig.story(chat_id) if role == "system"]
        assert len(told) == 1
        assert "could not be summarized: The model returned an empty summary." in told[0]
        assert rig.worker.stats.calls.compactions["scripted", "test", "automatic", "error"] == 2


async def test_summary_that_left_little_room_lets_the_turn_go_on(database_url: str) -> None:
    full = (read(900), CallTool("read"))
    script = by_purpose(full, full, (read(910), Say("done")))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        chat_id = await answered(rig)

        assert purposes(rig) == ["turn", "compaction", "turn", "turn"]
        assert compaction.TIGHT in [words for _, words in await rig.story(chat_id)]


async def test_pending_message_is_carried_word_for_word_behind_a_summary_asked_for_from_an_error(
    database_url: str,
) -> None:
    broken = Fail(ErrorKind.AUTH, "No.", retryable=False)
    script = by_purpose((Say("long story"),), (broken,))
    async with open_house(database_url, script=script) as rig:
        chat_id = await answered(rig)
        await rig.send(chat_id, "now do *exactly* this")
        await rig.error(chat_id)
        rig.script = by_purpose((Say("done"),))
        await rig.compact(chat_id)
        await rig.rested(chat_id)

        told = texts(rig.calls[-1])
        assert LEAD_IN + SUMMARY in told
        assert CARRIED_LEAD_IN in told
        assert "now do *exactly* this" in told
        assert (await rig.story(chat_id))[-1] == ("assistant", "done")


async def test_long_message_of_the_running_turn_is_carried_whole(database_url: str) -> None:
    order = "".join(f"{number}. do it\n" for number in range(9_000))
    script = by_purpose((read(90_000), CallTool("read")), (read(1), Say("done")))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")]) as rig:
        await answered(rig, order)

        assert purposes(rig) == ["turn", "compaction", "turn"]
        assert order in texts(rig.calls[-1])


async def test_summary_that_cannot_be_stored_is_shown_counted_and_made_again(database_url: str) -> None:
    script = by_purpose((read(900), CallTool("read")), (read(900), CallTool("read")), (read(1), Say("done")))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        # The database refuses the first boundary.
        for statement in (
            "CREATE SEQUENCE boundaries",
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('boundaries') = 1 THEN RAISE EXCEPTION 'disk full'; END IF; RETURN NEW; END $$",
            "CREATE TRIGGER refuse BEFORE INSERT ON chat_messages FOR EACH ROW"
            " WHEN (NEW.compressed AND NEW.visibility = 'model') EXECUTE FUNCTION refuse()",
        ):
            await rig.sql(statement)
        chat_id = await answered(rig)

        history_version = int(str((await rig.rows(chat_id, "revision"))[2][0]))
        shown = [live.part for live in rig.worker.buffer.get_parts(EpisodeKey(chat_id, history_version, 1))]
        assert [type(part) for part in shown] == [ToolCall, ToolResult]
        assert isinstance(shown[1], ToolResult)
        assert shown[1].is_error
        counted = rig.worker.stats.calls.compactions
        assert counted["scripted", "test", "automatic", "error"] == 1
        assert counted["scripted", "test", "automatic", "success"] == 1
        assert (await rig.story(chat_id))[-1] == ("assistant", "done")


async def test_throttled_summary_is_tried_again(database_url: str) -> None:
    tries: Iterator[Sequence[Step]] = iter([(Fail(ErrorKind.RATE_LIMIT),), (Say(SUMMARY),)])
    turns = by_purpose((read(900), CallTool("read")), (read(1), Say("done")))

    def script(call: Call) -> Sequence[Step]:
        assert callable(turns)
        return next(tries) if call.purpose is Purpose.COMPACTION else turns(call)

    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        chat_id = await answered(rig)

        assert (await rig.story(chat_id))[-1] == ("assistant", "done")
        assert await rig.usage(chat_id) == [
            ("turn", "ok"),
            ("compaction", "failed"),
            ("compaction", "ok"),
            ("turn", "ok"),
        ]


async def test_broken_override_fails_only_turns_that_compact(database_url: str) -> None:
    async with open_house(database_url, script=(read(1), Say("hi")), context_limit=1_000) as rig:
        broken = await rig.sql(
            "INSERT INTO model_configs (provider_id, model, context_limit)"
            " SELECT provider_id, 'nobody', 1000 FROM model_configs WHERE id = $1 RETURNING id",
            rig.model,
        )
        await rig.summarise_with(broken)
        chat_id = await answered(rig)
        assert (await rig.chat(chat_id)).status == Status.WAITING

        await rig.compact(chat_id)
        error = await rig.error(chat_id)

        assert error.kind == "config"


async def test_summary_call_offers_the_same_tools_and_takes_no_calls(database_url: str) -> None:
    script = by_purpose((read(900), CallTool("read")), (read(1), Say("done")))
    async with open_house(database_url, script=script, tools=[scripted_tools.echo("read")], context_limit=1_000) as rig:
        await answered(rig)
        await until(lambda: len(rig.calls) == 3)

        turn, summary, _ = rig.calls
        assert summary.tools == turn.tools
        assert summary.tool_choice == "none"
        assert summary.prompt.messages[: len(turn.prompt.messages)] == turn.prompt.messages
