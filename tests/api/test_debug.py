"""Debug records over HTTP: pages, runs, steps, attempts, the export, the mode of a chat, deletion and replays."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from rookery.domain.access.rights import Role
from rookery.llm.scripted import CallTool, Fail, Step
from rookery.llm.types import Call, ErrorKind
from rookery.store.models import spending, usage_ledger
from rookery.store.models.spending import SpendSettings
from rookery.store.models.usage_ledger import CallStatus, KeySource
from rookery.store.settings import settings
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig, Json
from tests.api.debug_rig import DebugRecords, said
from tests.api.more_servers import open_door
from tests.api.roles_rig import child_of
from tests.eventually import until
from tests.otlp_collector import exporting, otlp_collector

NOBODY = UUID(int=1)
REASON = {"Rookery-Break-Glass": "The owner asked for help"}


@pytest.fixture
async def model(rig: ApiRig) -> UUID:
    return await rig.add_model("echo")


@pytest.fixture
async def root(rig: ApiRig) -> Person:
    """Another administrator."""
    return await rig.add("chief", role=Role.ADMIN)


@pytest.fixture
def chats(rig: ApiRig, ada: Person, model: UUID) -> ChatRig:
    return ChatRig(rig, ada)


@pytest.fixture
def records(rig: ApiRig) -> DebugRecords:
    return DebugRecords(rig.database.api)


def runs_of(chat: str) -> str:
    return f"{CHATS}/{chat}/debug/runs"


async def get(person: Person, path: str, expected: int = 200, **params: Any) -> Any:
    got = await person.http.get(path, params=params)
    assert got.status_code == expected, got.text
    return got.json()


# Reading


async def test_runs_are_listed_newest_first_in_pages(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat = await chats.create()
    made = [(await records.run(chat, minutes=minute))[0] for minute in range(5)]

    first = await get(ada, runs_of(chat), limit=2)
    second = await get(ada, runs_of(chat), limit=2, cursor=first["next_cursor"])
    third = await get(ada, runs_of(chat), limit=2, cursor=second["next_cursor"])

    assert [run["id"] for page in (first, second, third) for run in page["runs"]] == [str(each) for each in made[::-1]]
    assert third["next_cursor"] is None
    assert first["runs"][0]["summary"] == {
        "first_message": "Hello.",
        "step_count": 0,
        "attempt_count": 0,
        "total_input_tokens": 0,
        "total_output_tokens": 0,
    }


async def test_runs_are_filtered_by_kind_and_status(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat = await chats.create()
    turn, _ = await records.run(chat, is_finished=False)
    title, _ = await records.run(chat, kind="title_generation")

    assert [run["id"] for run in (await get(ada, runs_of(chat), kind="title_generation"))["runs"]] == [str(title)]
    assert [run["id"] for run in (await get(ada, runs_of(chat), status="in_progress"))["runs"]] == [str(turn)]
    assert (await get(ada, runs_of(chat), kind="chat_turn", status="completed"))["runs"] == []


async def test_run_has_its_steps_and_attempts_without_prompts(
    chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat = await chats.create()
    run, (first, second) = await records.run(chat, [said("Hello."), said("Hello.", "Hi.", "Go on.")])

    found = await get(ada, f"{runs_of(chat)}/{run}")

    assert [step["id"] for step in found["steps"]] == [str(first), str(second)]
    assert found["summary"]["step_count"] == 2
    step = found["steps"][1]
    assert (step["number"], step["status"], step["operation"]) == (2, "completed", "stream")
    assert (step["message_count"], step["shared_messages"], step["tool_count"]) == (3, 1, 1)
    assert step["usage"] == {"input_tokens": 100, "output_tokens": 20, "cache_read_tokens": 5000}
    assert step["metadata"]["stream_summary"]["finish_reason"] == "stop"
    assert (step["cost_micros"], step["ttft_ms"], step["error"]) == (117, 250, None)
    (attempt,) = step["attempts"]
    assert attempt["url"] == "https://api.example/v1/messages?key=%5BREDACTED%5D"
    assert (attempt["path"], attempt["response_status"]) == ("/v1/messages", 200)
    assert attempt["request_bytes"] > 0
    assert "Go on." not in json.dumps(found)


async def test_step_has_its_whole_prompt(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat = await chats.create()
    calls = [said("Hello."), said("Hello.", "Hi.", "Go on."), said("Hello.", "Hi.", "Stop.", "Why?", "Enough.")]
    run, steps = await records.run(chat, calls)

    found = [await get(ada, f"{runs_of(chat)}/{run}/steps/{step}") for step in steps]

    texts = [[part["text"] for m in step["request"]["messages"] for part in m["parts"]] for step in found]
    assert texts == [["Hello."], ["Hello.", "Hi.", "Go on."], ["Hello.", "Hi.", "Stop.", "Why?", "Enough."]]
    assert [step["request"]["tools"][0]["name"] for step in found] == ["read_file"] * 3
    assert found[0]["response"]["content"] == [{"type": "text", "text": "Hi.", "text_length": 3}]
    assert found[0]["request"]["options"] == {}


async def test_text_is_found_in_the_first_step_that_has_it(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat = await chats.create()
    calls = [said("Hello."), said("Hello.", "Hi.", "I saw a\nHeron."), said("Hello.", "Hi.", "I saw a\nHeron.", "Ah.")]
    run, steps = await records.run(chat, calls)
    other, _ = await records.run(chat, [said("A heron.")])

    found = await get(ada, f"{runs_of(chat)}/{run}/search", q="a heron")
    answers = await get(ada, f"{runs_of(chat)}/{run}/search", q="hi.")
    elsewhere = await get(ada, f"{runs_of(chat)}/{other}/search", q="saw")

    place = {"step_id": str(steps[1]), "number": 2, "kind": "message", "message": 2, "role": "user"}
    assert found == {"places": [{**place, "before": "I saw ", "found": "a Heron", "after": "."}], "is_complete": True}
    kinds = [(place["number"], place["kind"]) for place in answers["places"]]
    assert kinds == [(1, "output"), (2, "message"), (2, "output"), (3, "output")]
    assert elsewhere == {"places": [], "is_complete": True}


async def test_attempt_has_its_bodies_without_secrets(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.")])

    found = await get(ada, f"{runs_of(chat)}/{run}/steps/{step}/attempts/1")

    assert found["request_headers"]["x-api-key"] == "[REDACTED]"
    assert json.loads(found["request_body"]["text"]) == {"text": "Hello.", "password": "[REDACTED]"}
    assert found["request_body"]["truncated"] is False
    assert found["response_body"]["text"] == 'data: {"text": "Hi."}\n\n'
    assert found["response_body"]["size"] == 23
    assert "none-of-yours" not in json.dumps(found)


async def test_records_of_another_chat_and_unknown_ids_are_not_found(
    chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat, other = await chats.create(), await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.")])
    nothing = uuid4()

    for path in (
        f"{runs_of(other)}/{run}",
        f"{runs_of(other)}/{run}/steps/{step}",
        f"{runs_of(other)}/{run}/steps/{step}/attempts/1",
        f"{runs_of(chat)}/{nothing}",
        f"{runs_of(chat)}/{run}/steps/{nothing}",
        f"{runs_of(chat)}/{nothing}/steps/{step}",
        f"{runs_of(chat)}/{run}/steps/{step}/attempts/2",
        f"{runs_of(str(nothing))}",
    ):
        assert (await get(ada, path, 404))["code"] in ("not_found", "chat_not_found")
    assert (await get(ada, f"{CHATS}/{other}/debug/export", 404, run=run))["code"] == "not_found"
    assert (await get(ada, f"{runs_of(other)}/{run}/search", 404, q="hello"))["code"] == "not_found"
    replay = await ada.http.post(f"{runs_of(other)}/{run}/steps/{step}/replay", json={})
    assert replay.status_code == 404


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("", {"limit": 0}),
        ("", {"limit": 101}),
        ("", {"limit": "many"}),
        ("", {"cursor": "nonsense"}),
        ("", {"cursor": "x" * 300}),
        ("", {"kind": "nonsense"}),
        ("", {"status": "nonsense"}),
        ("", {"before": "1"}),
        ("/not-an-id", {}),
        (f"/{NOBODY}/search", {}),
        (f"/{NOBODY}/search", {"q": " "}),
        (f"/{NOBODY}/search", {"q": "x" * 201}),
        (f"/{NOBODY}/steps/not-an-id", {}),
        (f"/{NOBODY}/steps/{NOBODY}/attempts/0", {}),
        (f"/{NOBODY}/steps/{NOBODY}/attempts/99999999999", {}),
        (f"/{NOBODY}/steps/{NOBODY}/attempts/first", {}),
    ],
)
async def test_bad_parameters_are_refused_by_name(chats: ChatRig, ada: Person, path: str, params: Json) -> None:
    chat = await chats.create()

    refused = await get(ada, runs_of(chat) + path, 400, **params)

    assert refused["code"] == "invalid"
    assert refused["fields"]


async def test_run_of_1000_steps_opens_in_a_second(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat = await chats.create()
    texts = ["Hello."]
    calls: list[Call] = []
    for number in range(1000):
        calls.append(said(*texts))
        texts += [f"answer {number} " + "word " * 50, f"result {number} " + "word " * 50]
    run, steps = await records.run(chat, calls)

    started = time.monotonic()
    found = await get(ada, f"{runs_of(chat)}/{run}")
    opened = time.monotonic()
    last = await get(ada, f"{runs_of(chat)}/{run}/steps/{steps[-1]}")
    ended = time.monotonic()

    assert len(found["steps"]) == 1000
    assert len(last["request"]["messages"]) == 1999
    # About 0.1 s each, also on a busy machine.
    assert opened - started < 1
    assert ended - opened < 1


# Rights beyond the table of rights


async def test_reader_of_a_shared_chat_sees_no_records(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ben: Person
) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.")])
    await chats.share(chat, ben)
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 200

    for path in ("", f"/{run}", f"/{run}/steps/{step}", f"/{run}/steps/{step}/attempts/1"):
        assert (await get(ben, runs_of(chat) + path, 403))["code"] == "owner_only"
    assert (await get(ben, f"{CHATS}/{chat}/debug/export", 403))["code"] == "owner_only"
    assert (await ben.http.delete(f"{CHATS}/{chat}/debug")).status_code == 403
    assert (await ben.http.post(f"{runs_of(chat)}/{run}/steps/{step}/replay", json={})).status_code == 403


async def test_administrator_needs_a_reason_which_the_owner_sees(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, root: Person
) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.")])

    without = await root.http.get(runs_of(chat))
    allowed = [
        (await root.http.get(path, headers=REASON)).status_code
        for path in (
            runs_of(chat),
            f"{runs_of(chat)}/{run}",
            f"{runs_of(chat)}/{run}/steps/{step}",
            f"{CHATS}/{chat}/debug/export",
        )
    ]
    refused = [
        (await root.http.delete(f"{CHATS}/{chat}/debug", headers=REASON)).status_code,
        (await root.http.post(f"{runs_of(chat)}/{run}/steps/{step}/replay", json={}, headers=REASON)).status_code,
    ]

    assert without.status_code == 403
    assert allowed == [200] * 4
    assert refused == [403] * 2
    seen = (await ada.http.get("/api/v1/me/accesses")).json()["items"]
    assert [access["reason"] for access in seen] == [REASON["Rookery-Break-Glass"]] * 4


async def test_records_of_a_subagent_belong_to_the_owner_of_the_root(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, ben: Person, model: UUID
) -> None:
    root_chat = await chats.create()
    child = await child_of(rig, ada, root_chat, model=model)
    run, _ = await records.run(child)
    await chats.share(root_chat, ben)

    assert (await get(ada, f"{runs_of(child)}/{run}"))["root_chat_id"] == root_chat
    await get(ben, f"{runs_of(child)}/{run}", 403)


# Recording


async def recording(person: Person, chat: str) -> Json:
    found: Json = (await get(person, runs_of(chat)))["recording"]
    return found


async def set_mode(person: Person, chat: str, mode: str, status: int = 200) -> Json:
    done = await person.http.patch(f"{CHATS}/{chat}", json={"debug_mode": mode})
    assert done.status_code == status, done.text
    found: Json = done.json()
    return found


async def test_recording_follows_the_chat_then_the_preference_where_it_is_allowed(
    chats: ChatRig, ada: Person, root: Person
) -> None:
    chat = await chats.create()

    first = await recording(ada, chat)
    assert (await set_mode(ada, chat, "on", 403))["code"] == "disabled"
    await root.http.put("/api/v1/settings/debug", json={"allow_users": True})
    await set_mode(ada, chat, "on")
    on = await recording(ada, chat)
    await ada.http.patch("/api/v1/me/settings", json={"debug": True})
    await set_mode(ada, chat, "off")
    off = await recording(ada, chat)
    await set_mode(ada, chat, "inherit")
    inherited = await recording(ada, chat)
    await root.http.put("/api/v1/settings/debug", json={"allow_users": False})
    forbidden = await recording(ada, chat)

    assert first == {"mode": "inherit", "is_on": False, "is_forced": False, "is_allowed": False}
    assert on == {"mode": "on", "is_on": True, "is_forced": False, "is_allowed": True}
    assert off == {"mode": "off", "is_on": False, "is_forced": False, "is_allowed": True}
    assert inherited == {"mode": "inherit", "is_on": True, "is_forced": False, "is_allowed": True}
    assert forbidden == {"mode": "inherit", "is_on": False, "is_forced": False, "is_allowed": False}


async def test_forced_recording_cannot_be_changed(rig: ApiRig, chats: ChatRig, ada: Person, root: Person) -> None:
    chat = await chats.create()

    async with open_door(rig, is_debug_forced=True) as url:
        forced = await ada.http.get(url + runs_of(chat))
        refused = await ada.http.patch(f"{url}{CHATS}/{chat}", json={"debug_mode": "off"})
        settings = await root.http.get(f"{url}/api/v1/settings/debug")

    assert forced.json()["recording"] == {"mode": "inherit", "is_on": True, "is_forced": True, "is_allowed": False}
    assert (refused.status_code, refused.json()["code"]) == (409, "not_ready")
    assert settings.json()["values"]["forced"] is True


async def test_mode_belongs_to_the_root_chat(
    rig: ApiRig, chats: ChatRig, ada: Person, root: Person, model: UUID
) -> None:
    await root.http.put("/api/v1/settings/debug", json={"allow_users": True})
    chat = await chats.create()
    child = await child_of(rig, ada, chat, model=model)

    await set_mode(ada, child, "on", 400)
    await set_mode(ada, chat, "on")

    assert (await recording(ada, child))["is_on"] is True


async def test_mode_changes_with_other_fields_or_not_at_all(chats: ChatRig, ada: Person) -> None:
    chat = await chats.create()

    refused = await ada.http.patch(f"{CHATS}/{chat}", json={"title": "New title", "debug_mode": "on"})

    assert refused.status_code == 403
    assert (await chats.get(chat))["title"] != "New title"


# Deletion and export


async def test_deletion_removes_all_records_of_the_chat_and_no_others(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat, other = await chats.create(), await chats.create()
    await records.run(chat, [said("Hello.")])
    await records.run(chat, is_finished=False)
    kept, _ = await records.run(other, [said("Hello.")])

    done = await ada.http.delete(f"{CHATS}/{chat}/debug")

    assert done.status_code == 204
    assert (await get(ada, runs_of(chat)))["runs"] == []
    assert [run["id"] for run in (await get(ada, runs_of(other)))["runs"]] == [str(kept)]
    left = await rig.database.api.fetchval("SELECT count(*) FROM chat_debug_attempts")
    assert left == 1


async def test_export_is_a_file_with_everything(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat = await chats.create()
    run, _ = await records.run(chat, [said("Hello."), said("Hello.", "Hi.", "Go on.")])
    await records.run(chat, minutes=1)

    whole = await ada.http.get(f"{CHATS}/{chat}/debug/export")
    one = await ada.http.get(f"{CHATS}/{chat}/debug/export", params={"run": str(run)})

    named = whole.headers["content-disposition"]
    assert re.fullmatch(rf'attachment; filename="rookery-debug-chat-{chat[:8]}-\d{{8}}T\d{{6}}Z\.json"', named)
    assert f"rookery-debug-run-{str(run)[:8]}-" in one.headers["content-disposition"]
    document = whole.json()
    assert (document["version"], document["scope"], document["chat_id"]) == (1, "chat", chat)
    assert (document["run_count"], document["limited_to_most_recent"], document["is_complete"]) == (2, 100, True)
    assert document["runs"][1] == one.json()["runs"][0]
    steps = one.json()["runs"][0]["steps"]
    assert steps[1]["request"]["prefix_from"] == 1
    assert steps[1]["request"]["prefix_len"] == 1
    assert [m["parts"][0]["text"] for m in steps[1]["request"]["messages"]] == ["Hi.", "Go on."]
    assert steps[0]["exchanges"][0]["response_body"]["text"].startswith("data:")
    assert "none-of-yours" not in whole.text


async def test_export_that_is_too_large_says_so(
    chats: ChatRig, records: DebugRecords, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookery.api.routers.debug.MAX_EXPORT_BYTES", 3000)
    chat = await chats.create()
    for minute in range(5):
        await records.run(chat, [said("Hello.")], minutes=minute)

    document = (await ada.http.get(f"{CHATS}/{chat}/debug/export")).json()

    assert document["is_complete"] is False
    assert 0 < document["run_count"] < 5
    assert len(document["runs"]) == document["run_count"]


async def add_long_run(records: DebugRecords, chat: str) -> UUID:
    """Write a run whose export is larger than the buffers of a connection."""
    calls = [said(*(f"{step} {number} " + "word " * 1900 for number in range(60))) for step in range(20)]
    run, _ = await records.run(chat, calls)
    return run


class SlowReader:
    """A client that has read the head of an export and reads on when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, head: bytes) -> None:
        self.status = int(head.split()[1])
        self._reader = reader

    async def read_rest(self) -> Json:
        """Return the document. Raises `IncompleteReadError` if the server closes the connection before its end."""
        document = bytearray()
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            document += (await self._reader.readexactly(size + 2))[:-2]
        found: Json = json.loads(document)
        return found


@asynccontextmanager
async def slow_export(rig: ApiRig, person: Person, chat: str) -> AsyncIterator[SlowReader]:
    target = httpx2.URL(rig.url)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (target.host, target.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
        lines = (f"GET {CHATS}/{chat}/debug/export HTTP/1.1", f"Host: {target.host}:{target.port}")
        writer.write("\r\n".join((*lines, f"Authorization: Bearer {person.token}", "", "")).encode())
        try:
            async with asyncio.timeout(20):
                yield SlowReader(reader, await reader.readuntil(b"\r\n\r\n"))
        finally:
            writer.transport.abort()


async def may_export(person: Person, chat: str) -> bool:
    return (await person.http.get(f"{CHATS}/{chat}/debug/export")).status_code == 200


async def test_slow_readers_hold_slots_and_no_connections(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, ben: Person
) -> None:
    cat, pool = await rig.add("cat"), rig.database.api
    theirs = {person.id: await ChatRig(rig, person).create() for person in (ada, ben, cat)}
    for person in (ada, ben):
        await add_long_run(records, theirs[person.id])

    async with slow_export(rig, ada, theirs[ada.id]) as first:
        own = await ada.http.get(f"{CHATS}/{theirs[ada.id]}/debug/export")
        other = await may_export(cat, theirs[cat.id])
        async with slow_export(rig, ben, theirs[ben.id]) as second:
            await until(lambda: pool.get_idle_size() == pool.get_size())
            refused = await cat.http.get(f"{CHATS}/{theirs[cat.id]}/debug/export")
            await until(lambda: pool.get_idle_size() == pool.get_size())
        await until(lambda: may_export(cat, theirs[cat.id]))
        document = await first.read_rest()
    await until(lambda: may_export(ada, theirs[ada.id]))

    assert (first.status, second.status, other) == (200, 200, True)
    for answer in (own, refused):
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_exports")
        assert answer.headers["retry-after"] == "5"
    assert (document["run_count"], document["is_complete"]) == (1, True)
    assert len(document["runs"][0]["steps"]) == 20


async def test_reader_that_stops_is_disconnected_and_its_slot_is_free(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await chats.create()
    await add_long_run(records, chat)
    monkeypatch.setattr("rookery.api.debug_exports.PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr("rookery.api.debug_exports.MIN_BYTES_PER_SECOND", 1e12)

    async with slow_export(rig, ada, chat) as reader:
        await until(lambda: may_export(ada, chat))
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.read_rest()


async def test_export_of_many_runs_is_one_access_of_an_administrator(
    chats: ChatRig, records: DebugRecords, ada: Person, root: Person
) -> None:
    chat = await chats.create()
    for minute in range(5):
        await records.run(chat, [said("Hello."), said("Hello.", "Hi.", "Go on.")], minutes=minute)

    exported = await root.http.get(f"{CHATS}/{chat}/debug/export", headers=REASON)

    assert exported.json()["run_count"] == 5
    assert len((await ada.http.get("/api/v1/me/accesses")).json()["items"]) == 1


# Replay


async def replay(person: Person, chat: str, run: UUID, step: UUID, status: int = 200, **body: Any) -> Json:
    done = await person.http.post(f"{runs_of(chat)}/{run}/steps/{step}/replay", json=body)
    assert done.status_code == status, done.text
    found: Json = done.json()
    return found


async def test_replay_shows_both_answers_and_touches_nothing_else(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, model: UUID
) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Say this.")], model_config_id=model)
    before = await chats.get(chat), await chats.messages(chat)

    found = await replay(ada, chat, run, step)

    assert found["recorded"]["content"] == [{"type": "text", "text": "Hi.", "text_length": 3}]
    assert (found["recorded"]["cost_micros"], found["recorded"]["ttft_ms"]) == (117, 250)
    assert (found["recorded"]["duration_ms"], found["recorded"]["model"]) == (2000, "echo")
    assert "Say this." in found["replayed"]["content"][0]["text"]
    assert found["replayed"]["finish_reason"] == "stop"
    assert found["replayed"]["error"] is None
    assert found["replayed"]["duration_ms"] >= 0
    assert (await chats.get(chat), await chats.messages(chat)) == before
    rows = await rig.database.api.fetch("SELECT purpose, status, owner_id, chat_id FROM model_usage")
    assert [tuple(row) for row in rows] == [("replay", "ok", ada.id, UUID(chat))]
    assert await rig.database.api.fetchval("SELECT count(*) FROM chat_debug_runs") == 1


async def test_replay_is_a_span_of_the_request(chats: ChatRig, records: DebugRecords, ada: Person, model: UUID) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Say this.")], model_config_id=model)
    with otlp_collector() as collector:
        async with exporting(collector):
            await replay(ada, chat, run, step)

    call, request = collector.one("chat echo"), collector.one("POST /api")
    assert (call.trace_id, call.parent_id) == request.id
    assert (call.attributes["rookery.purpose"], call.has_failed) == ("replay", False)
    assert call.attributes["gen_ai.response.finish_reasons"] == ["stop"]


async def test_replay_with_edits_and_another_model(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, model: UUID
) -> None:
    other = await rig.add_model("echo", name="second")
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.", "Hi.", "Go on.")], model_config_id=model)

    found = await replay(
        ada, chat, run, step, model_config_id=str(other), edits=[{"message": 2, "text": "Sing a song."}]
    )

    assert "Sing a song." in found["replayed"]["content"][0]["text"]
    assert found["warnings"] == ["Another model wrote the answers in this prompt, so its reasoning is left out."]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"edits": [{"message": 3, "text": "x"}]}, "edits[0].message"),
        ({"edits": [{"message": -1, "text": "x"}]}, "edits[0].message"),
        ({"edits": [{"message": 0}]}, "edits[0].text"),
        ({"edits": [{"message": 0, "text": "x", "role": "user"}]}, "edits[0].role"),
        ({"effort": "enormous"}, "effort"),
        ({"model_config_id": "none"}, "model_config_id"),
        ({"tools": []}, "tools"),
    ],
)
async def test_bad_changes_of_a_replay_are_refused_and_cost_nothing(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, model: UUID, body: Json, field: str
) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.", "Hi.", "Go on.")], model_config_id=model)

    refused = await replay(ada, chat, run, step, 400, **body)

    assert [each["field"] for each in refused["fields"]] == [field]
    assert await rig.database.api.fetchval("SELECT count(*) FROM model_usage") == 0


async def test_replay_of_an_incomplete_record_is_refused(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, model: UUID
) -> None:
    chat = await chats.create()
    run, steps = await records.run(chat, [said("Hello."), said("Hello.", "Hi.", "Go on.")], model_config_id=model)
    await rig.database.api.execute("UPDATE chat_debug_steps SET replay_form = NULL WHERE id = $1", steps[0])

    first = await replay(ada, chat, run, steps[0], 409)
    second = await replay(ada, chat, run, steps[1], 409)

    assert (first["code"], second["code"]) == ("not_replayable", "not_replayable")


async def test_replay_with_a_model_that_is_gone_needs_another(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, model: UUID
) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.")], model_config_id=uuid4())
    unnamed, (other,) = await records.run(chat, [said("Hello.")])

    refused = await replay(ada, chat, run, step, 400)
    unknown = await replay(ada, chat, unnamed, other, 409)

    assert refused["code"] in ("model_unusable", "invalid")
    assert unknown["code"] == "not_replayable"
    assert (await replay(ada, chat, run, step, model_config_id=str(model)))["replayed"]["error"] is None


async def test_replay_counts_against_the_spend_limit(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, model: UUID
) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.")], model_config_id=model)
    async with rig.database.api.acquire() as conn:
        await settings.write_setting(conn, spending.SETTING, value=SpendSettings(enabled=True, default_limit_micros=1))
        spent = usage_ledger.Entry(
            owner_id=ada.id,
            chat_id=None,
            purpose="turn",
            provider_id=uuid4(),
            model_config_id=None,
            model="m",
            key_source=KeySource.CENTRAL,
            status=CallStatus.OK,
            cost_micros=5,
        )
        await usage_ledger.record_call(conn, spent)
    rig.replica.directory.invalidate()

    assert (await replay(ada, chat, run, step, 409))["code"] == "usage_limit"


async def test_call_that_fails_is_an_answer_with_an_error_and_is_billed(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat = await chats.create()
    with rig.replica.connector.scripts.registered("fails", [Fail(ErrorKind.OVERLOADED, "Too busy.")]):
        model = await rig.add_model("fails", name="failing")
        run, (step,) = await records.run(chat, [said("Hello.")], model_config_id=model)
        found = await replay(ada, chat, run, step)

    assert found["replayed"]["error"]["message"] == "Too busy."
    assert found["replayed"]["error"]["kind"] == "overloaded"
    assert await rig.database.api.fetchval("SELECT status FROM model_usage WHERE purpose = 'replay'") == "failed"


async def test_tools_are_declared_and_calls_of_the_answer_are_only_shown(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    seen: list[Call] = []

    def script(call: Call) -> Sequence[Step]:
        seen.append(call)
        return [CallTool("read_file", {"path": "README.md", "password": "hunter2-hunter2"})]

    chat = await chats.create()
    with rig.replica.connector.scripts.registered("calls", script):
        model = await rig.add_model("calls", name="calling")
        run, (step,) = await records.run(chat, [said("Read it.")], model_config_id=model)
        found = await replay(ada, chat, run, step)

    assert [tool.name for tool in seen[0].tools] == ["read_file"]
    (part,) = [part for part in found["replayed"]["content"] if part["type"] == "tool-call"]
    assert part["tool_name"] == "read_file"
    assert "hunter2" not in part["arguments"]


async def test_replays_are_limited_by_rate(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person, model: UUID
) -> None:
    chat = await chats.create()
    run, (step,) = await records.run(chat, [said("Hello.")], model_config_id=model)

    statuses = [
        (await ada.http.post(f"{runs_of(chat)}/{run}/steps/{step}/replay", json={})).status_code for _ in range(25)
    ]

    assert statuses[0] == 200
    assert statuses[-1] == 429
