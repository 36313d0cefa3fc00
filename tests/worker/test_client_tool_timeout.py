"""Tools that the client executes: the chat waits for their results until a deadline."""

from __future__ import annotations

import msgspec

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import ToolCall
from rookery.domain.chat.states import Status
from rookery.llm.scripted import CallTool, Say
from rookery.store import machine
from rookery.testing import FakeClock
from tests import scripted_tools
from tests.worker.worker_rig import WorkerRig, in_turn, open_house

PICK = msgspec.json.encode([{"name": "pick", "description": "Pick one.", "input_schema": {"type": "object"}}]).decode()
SCRIPT = ((CallTool("pick"),), (Say("picked"),))


async def waiting_chat(rig: WorkerRig) -> ChatId:
    chat_id = await rig.ask("hello", dynamic_tools=PICK)
    await rig.until_status(chat_id, Status.REQUIRES_ACTION)
    return chat_id


async def submit(rig: WorkerRig, chat_id: ChatId, output: str) -> None:
    calls = [
        part.tool_call_id
        for message in await rig.messages(chat_id)
        for part in message.parts()
        if isinstance(part, ToolCall) and part.tool_name == "pick"
    ]
    results = [SubmittedResult(call_id, output) for call_id in calls]
    await rig.machine.chat(chat_id).update(
        lambda tx: machine.complete_requires_action(tx, results, submitted_by=rig.user)
    )


async def set_deadline(rig: WorkerRig, chat_id: ChatId, value: str) -> None:
    """Set the deadline relative to the clock of the database."""

    async def change(tx: machine.Tx) -> None:
        await tx.conn.execute(f"UPDATE chats SET requires_action_deadline_at = {value} WHERE id = $1", chat_id)

    await rig.machine.chat(chat_id).update(change)


async def test_result_of_the_client_lets_the_turn_go_on(database_url: str) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT)) as rig:
        chat_id = await waiting_chat(rig)

        await submit(rig, chat_id, '{"picked": 1}')
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[1:] == [
            ("assistant", "pick!"),
            ("tool", "pick=ok"),
            ("assistant", "picked"),
        ]
        assert rig.calls[0].tools[0].name == "pick"


async def test_waiting_chat_is_labelled(database_url: str) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT)) as rig:
        chat_id = await waiting_chat(rig)

        await rig.worker._inflight.wait_idle()

        assert await rig.sql("SELECT last_turn_summary FROM chats WHERE id = $1", chat_id) == "Waiting for input"


async def test_local_calls_run_before_the_client_is_asked(database_url: str) -> None:
    read = scripted_tools.echo("read")
    script = in_turn((CallTool("pick"), CallTool("read")), (Say("done"),))
    async with open_house(database_url, script=script, tools=[read]) as rig:
        chat_id = await waiting_chat(rig)

        assert (await rig.story(chat_id))[1:] == [("assistant", "pick! read!"), ("tool", "read=ok")]


async def test_deadline_that_passes_answers_for_the_client(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=in_turn(*SCRIPT), clock=clock) as rig:
        chat_id = await waiting_chat(rig)
        await clock.until_waiting("action-deadline")
        (timer,) = clock.waiting("action-deadline")
        assert 290 < timer.due - clock.monotonic() <= 300
        await set_deadline(rig, chat_id, "clock_timestamp() - interval '1 second'")

        await clock.fire("action-deadline")
        await rig.rested(chat_id)

        assert (await rig.results(chat_id))[0]["reason"] == "action_timed_out"
        assert (await rig.story(chat_id))[-1] == ("assistant", "picked")


async def test_deadline_that_was_moved_is_respected(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=in_turn(*SCRIPT), clock=clock) as rig:
        chat_id = await waiting_chat(rig)
        await clock.until_waiting("action-deadline")
        await set_deadline(rig, chat_id, "clock_timestamp() + interval '1 hour'")

        await clock.fire("action-deadline")
        await clock.until_waiting("action-deadline")

        (timer,) = clock.waiting("action-deadline")
        assert timer.due - clock.monotonic() > 3500
        assert (await rig.chat(chat_id)).status == Status.REQUIRES_ACTION


async def test_result_that_comes_first_wins(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=in_turn(*SCRIPT), clock=clock) as rig:
        chat_id = await waiting_chat(rig)
        await clock.until_waiting("action-deadline")
        await set_deadline(rig, chat_id, "clock_timestamp() - interval '1 second'")
        await submit(rig, chat_id, '{"picked": 1}')

        await clock.advance(400)
        await rig.rested(chat_id)

        assert await rig.results(chat_id) == [{"picked": 1}]


async def test_chat_without_a_deadline_does_not_wait(database_url: str) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT)) as rig:
        chat_id = await waiting_chat(rig)
        await rig.crash()
        # A restored backup could contain this state. The current schema does not allow it.
        await rig.sql("ALTER TABLE chats DROP CONSTRAINT chats_deadline")
        await set_deadline(rig, chat_id, "NULL")

        await rig.add_replica()
        await rig.rested(chat_id)

        assert (await rig.results(chat_id))[0]["reason"] == "action_deadline_missing"


async def test_chat_whose_client_tools_are_gone_is_not_stuck(database_url: str) -> None:
    async with open_house(database_url, script=in_turn(*SCRIPT)) as rig:
        chat_id = await waiting_chat(rig)
        await rig.crash()
        await rig.sql("UPDATE chats SET dynamic_tools = '[]' WHERE id = $1", chat_id)
        await set_deadline(rig, chat_id, "clock_timestamp() - interval '1 second'")

        await rig.add_replica()
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[-1] == ("tool", "pick=error")


async def test_time_for_the_client_is_a_setting(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=in_turn(*SCRIPT), clock=clock) as rig:
        await rig.set("chats", {"dynamic_tool_timeout_seconds": 20})
        await waiting_chat(rig)

        await clock.until_waiting("action-deadline")

        (timer,) = clock.waiting("action-deadline")
        assert 10 < timer.due - clock.monotonic() <= 20
