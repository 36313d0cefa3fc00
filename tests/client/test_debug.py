"""`client.debug`, and streams that report changes of debug records."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from rookery.client import Forbidden, Invalid, NotFound, Rookery
from rookery.debug.normalization import NormalizedPart
from tests.api.debug_rig import DebugRecords, said
from tests.client.client_rig import Rig


async def test_records_are_read_page_by_page_and_in_depth(rig: Rig) -> None:
    chat_id = await rig.chat("hello")
    records = DebugRecords(rig.rig.database.api)
    made = [(await records.run(chat_id, [said("Hello.")], minutes=minute))[0] for minute in range(3)]
    debug = rig.client.debug

    page = await debug.list_runs(chat_id, limit=2)
    every = [run.id async for run in debug.iterate_runs(chat_id)]
    run = await debug.get_run(chat_id, made[0])
    step = await debug.get_step(chat_id, run.id, run.steps[0].id)
    attempt = await debug.get_attempt(chat_id, run.id, step.id, 1)
    found = await debug.search_run(chat_id, run.id, "HELLO")

    assert [each.id for each in page.runs] == made[:0:-1]
    assert page.recording.mode == "inherit"
    assert every == made[::-1]
    assert run.summary.step_count == 1
    assert step.request.messages[0].parts[0].text == "Hello."
    assert step.response is not None
    assert step.response.content[0].text == "Hi."
    assert [(place.step_id, place.kind, place.message, place.found) for place in found.places] == [
        (step.id, "message", 0, "Hello")
    ]
    assert attempt.response_body is not None
    assert attempt.response_body.text.startswith("data:")
    assert set(NormalizedPart.__struct_fields__) <= set(type(step.response.content[0]).__struct_fields__)


async def test_two_runs_are_compared(rig: Rig) -> None:
    chat_id = await rig.chat("hello")
    records = DebugRecords(rig.rig.database.api)
    one, _ = await records.run(chat_id, [said("Hello.")])
    other, _ = await records.run(chat_id, [said("Good day.")])

    found = await rig.client.debug.compare_runs(chat_id, one, other)

    assert found.message is not None
    assert found.message.one is not None
    assert (found.message.number, found.message.index, found.message.one.parts[0].text) == (1, 0, "Hello.")
    assert (found.other.run.id, found.other.figures.input_tokens) == (other, 100)


async def test_step_is_replayed_with_changes(rig: Rig) -> None:
    chat_id = await rig.chat("hello")
    model = await rig.rig.add_model("echo", name="echoing")
    run, (step,) = await DebugRecords(rig.rig.database.api).run(
        chat_id, [said("Hello.", "Hi.", "Go on.")], model_config_id=model
    )

    same = await rig.client.debug.replay(chat_id, run, step)
    other = await rig.client.debug.replay(
        chat_id, run, step, model_config_id=model, effort="high", edits={2: "Whistle."}
    )

    assert same.recorded.content[0].text == "Hi."
    assert same.replayed.content[0].text == "Go on."
    assert other.replayed.content[0].text == "Whistle."
    with pytest.raises(Invalid):
        await rig.client.debug.replay(chat_id, run, step, edits={9: "x"})


async def test_records_are_exported_and_deleted(rig: Rig) -> None:
    chat_id = await rig.chat("hello")
    run, _ = await DebugRecords(rig.rig.database.api).run(chat_id, [said("Hello.")])

    document = json.loads(await rig.client.debug.export(chat_id))
    await rig.client.debug.delete(chat_id)

    assert [each["id"] for each in document["runs"]] == [str(run)]
    with pytest.raises(NotFound):
        await rig.client.debug.get_run(chat_id, run)


async def test_mode_of_a_chat_is_changed_where_it_is_allowed(rig: Rig) -> None:
    chat_id = await rig.chat("hello")

    with pytest.raises(Forbidden):
        await rig.client.chats.update(chat_id, debug_mode="on")
    await rig.person.http.put("/api/v1/settings/debug", json={"allow_users": True})
    await rig.client.chats.update(chat_id, debug_mode="on")

    assert (await rig.client.debug.list_runs(chat_id)).recording.is_on


async def test_stream_with_debug_reports_changes_of_records(rig: Rig) -> None:
    chat_id = await rig.chat("hello")
    await DebugRecords(rig.rig.database.api).run(chat_id)

    found: list[dict[str, object]] = []
    async with rig.client.chats.stream(chat_id, debug=True) as live:
        await anext(live)
        await rig.client.debug.delete(chat_id)
        async with asyncio.timeout(20):
            async for change in live:
                found += [dict(event) for event in change.events if event["type"] == "debug_update"]
                if found:
                    break

    assert found == [{"type": "debug_update", "kind": "delete", "run_id": None}]


async def test_blocking_client_has_the_same_records(rig: Rig) -> None:
    chat_id = await rig.chat("hello")
    run, _ = await DebugRecords(rig.rig.database.api).run(chat_id, [said("Hello.")])

    def read() -> list[str]:
        with Rookery(rig.rig.url, token=rig.person.token) as client:
            with pytest.raises(NotFound):
                client.debug.get_run(chat_id, uuid4())
            return [str(each.id) for each in client.debug.iterate_runs(chat_id)]

    assert await asyncio.to_thread(read) == [str(run)]
