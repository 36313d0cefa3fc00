"""The cost of recording: a turn does not wait for the database because of it, however slow debug statements are."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from rookery.llm.scripted import Say
from tests.debug import stored_records
from tests.machine_load import slowdown
from tests.worker.worker_rig import Records, WorkerRig, open_house

SLOW = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(5); RETURN NULL; END $$;
"""
TABLES = ("runs", "steps", "attempts", "state")
TURNS = 15


async def slow_down(rig: WorkerRig) -> None:
    """Let every statement that writes debug records take five seconds."""
    await rig.sql(SLOW)
    for table in TABLES:
        await rig.sql(
            f"CREATE TRIGGER slow BEFORE INSERT OR UPDATE OR DELETE ON chat_debug_{table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION slow()"
        )


async def first_word_seconds(rig: WorkerRig) -> float:
    """Return the time from a message to the call of the model, in a new chat."""
    called = asyncio.Event()

    def script(call: object) -> tuple[Say, ...]:
        called.set()
        return (Say("done"),)

    rig.script = script
    started = time.perf_counter()
    chat_id = await rig.ask("hello")
    await called.wait()
    seconds = time.perf_counter() - started
    await rig.rested(chat_id)
    return seconds


async def test_first_word_does_not_wait_for_slow_debug_statements(database_url: str) -> None:
    async with open_house(database_url, records=Records(is_forced=False)) as rig:
        debug = rig.replicas[0].debug
        assert debug is not None
        policy = debug.recordings.policy
        await slow_down(rig)
        times: dict[bool, list[float]] = {False: [], True: []}
        await first_word_seconds(rig)
        for _ in range(TURNS):
            # Both in turn, so that the load of the machine affects both.
            for is_forced in (False, True):
                policy.is_forced = is_forced
                times[is_forced].append(await first_word_seconds(rig))
        opened = len(debug.recorder.open_runs) + len(debug.writer)
        policy.is_forced = False

        assert opened > 0, "the writer is behind"
        assert median(times[True]) - median(times[False]) < 0.005 * slowdown()
        assert max(times[True]) < 4.0


async def test_turn_ends_although_its_record_cannot_be_written(database_url: str) -> None:
    async with open_house(database_url, script=(Say("done"),), records=Records()) as rig:
        for table in ("attempts", "steps", "runs", "state"):
            await rig.sql(f"DROP TABLE chat_debug_{table} CASCADE")
        # The step reads the state of its chat, so an empty table stands for it.
        await rig.sql("CREATE TABLE chat_debug_state (chat_id uuid, mode text, floor bigint, delete_from bigint)")
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)
        await stored_records.settled(rig)

        assert (await rig.story(chat_id))[-1] == ("assistant", "done")
