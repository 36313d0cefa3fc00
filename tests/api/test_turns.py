"""Turns, the queue, titles and shares over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from uuid import UUID, uuid4

import httpx2
import pytest

from rookery.api.middleware import Edge
from rookery.llm.scripted import Fail, Say, Scripts, Step, Wait
from rookery.llm.types import ErrorKind
from rookery.models.connect import Connector
from rookery.store.chats import shares
from rookery.store.chats.shares import SharingSettings
from rookery.testing.clock import FakeClock
from rookery.worker.titles import ShortTexts
from tests.api.api_rig import House, Person
from tests.api.chat_rig import CHATS, Talk, fields, said, text
from tests.api.more_servers import open_door
from tests.api.roles_rig import child_of
from tests.eventually import until


@pytest.fixture
async def talk(house: House, ada: Person) -> Talk:
    await house.add_model()
    return Talk(house, ada)


# Turns


async def test_interrupt_stops_what_runs_with_or_without_a_body(talk: Talk) -> None:
    first, second = await talk.create(), await talk.create()

    plain = await talk.http.post(f"{CHATS}/{first}/interrupt")
    given = await talk.http.post(f"{CHATS}/{second}/interrupt", json={"cascade": False})

    assert (plain.status_code, plain.json()["status"]) == (200, "interrupting")
    assert (given.status_code, given.json()["status"]) == (200, "interrupting")


async def test_interrupt_of_what_rests_is_refused(talk: Talk) -> None:
    for chat in (await talk.waiting(), await talk.failed()):
        refused = await talk.http.post(f"{CHATS}/{chat}/interrupt")
        assert (refused.status_code, refused.json()["code"]) == (409, "not_interruptible")
    bad = await talk.http.post(f"{CHATS}/{await talk.create()}/interrupt", json={"force": True})
    assert list(fields(bad)) == ["force"]


async def test_interrupt_ends_the_wait_for_the_client(talk: Talk) -> None:
    chat = await talk.asking()

    stopped = await talk.http.post(f"{CHATS}/{chat}/interrupt")

    assert stopped.json()["status"] == "waiting"


async def test_retry_goes_on_after_an_error_and_not_after_an_answer(talk: Talk) -> None:
    failed, waiting = await talk.failed(), await talk.waiting()

    again = await talk.http.post(f"{CHATS}/{failed}/retry")
    refused = await talk.http.post(f"{CHATS}/{waiting}/retry")

    assert (again.status_code, again.json()["status"], again.json()["last_error"]) == (200, "running", None)
    assert refused.status_code == 409


async def test_compact_judges_the_state_before_the_content(talk: Talk) -> None:
    empty = await talk.create()
    await talk.fail(empty)
    before = await talk.get(empty)

    for chat, code in (
        (await talk.create(), "busy_cannot_compact"),
        (empty, "nothing_to_compact"),
        (await talk.archived(), "chat_archived"),
    ):
        refused = await talk.http.post(f"{CHATS}/{chat}/compact")
        assert (refused.status_code, refused.json()["code"]) == (409, code)
    done = await talk.http.post(f"{CHATS}/{await talk.waiting()}/compact")

    assert (done.status_code, done.json()["status"]) == (200, "running")
    assert await talk.get(empty) == before


async def test_only_an_invalid_chat_is_reconciled(talk: Talk) -> None:
    chat = await talk.create()

    refused = await talk.http.post(f"{CHATS}/{chat}/reconcile-invalid")
    async with talk.house.database.api.acquire() as conn, conn.transaction():
        # What a newer version, or somebody with SQL, may leave behind.
        await conn.execute("ALTER TABLE chats DROP CONSTRAINT chats_status")
        await conn.execute("UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1", UUID(chat))
        await conn.execute("UPDATE chats SET status = 'asleep' WHERE id = $1", UUID(chat))
    sent = await talk.send(chat, "x")
    mended = await talk.http.post(f"{CHATS}/{chat}/reconcile-invalid")

    assert (refused.status_code, refused.json()["code"]) == (409, "not_invalid")
    assert (sent.status_code, sent.json()["code"]) == (409, "chat_invalid_state")
    assert (mended.status_code, mended.json()["status"], mended.json()["archived"]) == (200, "error", False)


# The queue


async def test_queue_is_listed_in_its_order(talk: Talk) -> None:
    chat = await talk.create()
    await talk.queue(chat, "a", "b")

    found = (await talk.http.get(f"{CHATS}/{chat}/queue")).json()

    assert [said(row) for row in found["items"]] == ["a", "b"]
    assert found["queue_version"] > 0
    assert set(found["items"][0]) >= {"id", "content", "model_config_id", "client_id", "created_at", "created_by"}


async def test_queued_messages_are_deleted_one_by_one_or_all(talk: Talk) -> None:
    chat = await talk.create()
    first, _, _ = await talk.queue(chat, "a", "b", "c")
    path = f"{CHATS}/{chat}/queue"

    assert (await talk.http.delete(f"{path}/{first}")).status_code == 204
    gone = await talk.http.delete(f"{path}/{first}")
    assert (gone.status_code, gone.json()["code"]) == (404, "queued_message_not_found")
    assert await talk.queued(chat) == ["b", "c"]
    assert (await talk.http.delete(path)).status_code == 204
    empty = await talk.http.delete(path)
    assert (empty.status_code, empty.json()["code"]) == (409, "queue_empty")


async def test_queued_message_that_is_gone_is_not_found_whatever_else_is_queued(talk: Talk) -> None:
    """The last one, too: an empty queue is no other answer than one without this message."""
    chat = await talk.create()
    first, second = await talk.queue(chat, "a", "b")
    path = f"{CHATS}/{chat}/queue"

    async def answers(gone: int) -> set[tuple[int, str]]:
        asked = [
            await talk.http.delete(f"{path}/{gone}"),
            await talk.http.post(f"{path}/{gone}/promote"),
            await talk.http.post(f"{path}/{gone}/move", json={"before": None}),
            await talk.http.patch(f"{path}/{gone}", json={"content": text("c")}),
        ]
        return {(each.status_code, each.json()["code"]) for each in asked}

    for gone in (first, second):
        assert (await talk.http.delete(f"{path}/{gone}")).status_code == 204
        assert await answers(gone) == {(404, "queued_message_not_found")}


async def test_queued_message_moves_before_another_and_to_the_end(talk: Talk) -> None:
    chat = await talk.create()
    first, second, third = await talk.queue(chat, "a", "b", "c")
    path = f"{CHATS}/{chat}/queue"

    moved = await talk.http.post(f"{path}/{third}/move", json={"before": first})
    assert [said(row) for row in moved.json()["items"]] == ["c", "a", "b"]
    ended = await talk.http.post(f"{path}/{third}/move", json={"before": None})
    assert [said(row) for row in ended.json()["items"]] == ["a", "b", "c"]
    await talk.http.delete(f"{path}/{second}")
    for queued, before in ((second, None), (first, second)):
        gone = await talk.http.post(f"{path}/{queued}/move", json={"before": before})
        assert (gone.status_code, gone.json()["code"]) == (404, "queued_message_not_found")
    assert list(fields(await talk.http.post(f"{path}/{first}/move", json={}))) == ["before"]


async def test_queued_message_is_edited_in_parts(talk: Talk) -> None:
    chat = await talk.create()
    (queued,) = await talk.queue(chat, "a")
    path = f"{CHATS}/{chat}/queue/{queued}"

    reworded = (await talk.http.patch(path, json={"content": text("b")})).json()
    harder = (await talk.http.patch(path, json={"reasoning_effort": "high"})).json()

    assert said(reworded) == "b"
    assert (said(harder), harder["reasoning_effort"]) == ("b", "high")
    assert (await talk.http.patch(path, json={})).json() == harder
    assert (await talk.http.patch(path, json={"reasoning_effort": None})).json()["reasoning_effort"] is None
    nulls = await talk.http.patch(path, json={"content": None, "model_config_id": None})
    assert sorted(fields(nulls)) == ["content", "model_config_id"]
    assert list(fields(await talk.http.patch(path, json={"content": text(" ")}))) == ["content[0].text"]
    assert list(fields(await talk.http.patch(path, json={"model_config_id": str(uuid4())}))) == ["model_config_id"]
    await talk.rest(chat)
    assert (await talk.http.patch(path, json={"content": text("c")})).status_code in (404, 409)


async def test_promoted_message_runs_at_once_where_nothing_does(talk: Talk) -> None:
    failed, asking = await talk.failed("a", "b"), await talk.asking("a", "b")

    for chat, roles in ((failed, ["user"]), (asking, ["tool", "user"])):
        second = (await talk.http.get(f"{CHATS}/{chat}/queue")).json()["items"][1]["id"]
        done = await talk.http.post(f"{CHATS}/{chat}/queue/{second}/promote")
        found = done.json()
        assert done.status_code == 202, done.text
        assert (said(found["message"]), found["chat"]["status"]) == ("b", "running")
        assert [message["role"] for message in found["messages"]] == roles
        assert await talk.queued(chat) == ["a"]


async def test_promoted_message_interrupts_what_runs(talk: Talk) -> None:
    chat = await talk.create()
    _, second = await talk.queue(chat, "a", "b")

    done = (await talk.http.post(f"{CHATS}/{chat}/queue/{second}/promote")).json()

    assert (done["message"], done["messages"], done["chat"]["status"]) == (None, [], "interrupting")
    assert await talk.queued(chat) == ["b", "a"]


async def test_change_of_a_queue_and_promotion_at_once_leave_one_of_both(talk: Talk) -> None:
    for change in ("delete", "edit", "move"):
        chat = await talk.failed("a")
        (queued,) = (await talk.http.get(f"{CHATS}/{chat}/queue")).json()["items"]
        path = f"{CHATS}/{chat}/queue/{queued['id']}"
        request = {
            "delete": ("DELETE", path, None),
            "edit": ("PATCH", path, {"content": text("b")}),
            "move": ("POST", f"{path}/move", {"before": None}),
        }
        method, target, body = request[change]

        promoted, changed = await asyncio.gather(
            talk.http.post(f"{path}/promote"), talk.http.request(method, target, json=body)
        )

        assert promoted.status_code in (202, 404, 409)
        assert changed.status_code in (200, 204, 404, 409)
        history = await talk.messages(chat)
        assert len([each for each in history if each in ("a", "b")]) == (1 if promoted.status_code == 202 else 0)
        assert await talk.queued(chat) == []


async def test_queue_of_an_archived_chat_does_not_change(talk: Talk) -> None:
    path = f"{CHATS}/{await talk.archived()}/queue"

    for refused in (
        await talk.http.delete(path),
        await talk.http.delete(f"{path}/1"),
        await talk.http.post(f"{path}/1/promote"),
        await talk.http.post(f"{path}/1/move", json={"before": None}),
        await talk.http.patch(f"{path}/1", json={"content": text("x")}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "chat_archived")


# Titles


async def test_new_chat_is_named_by_a_model_unless_its_title_was_given(house: House, talk: Talk) -> None:
    await house.add_model(name="namer", titles=True)
    words, first = "please compare these two shells for me", "please compare these two shells for…"
    named = await talk.create(words)
    given = await talk.create(words, title=first)

    async def is_named() -> bool:
        return bool((await talk.get(named))["title"] != first)

    await until(is_named)
    await house.replica.worker.wait_idle()

    assert (await talk.get(given))["title"] == first


async def test_proposed_title_is_not_stored(talk: Talk) -> None:
    chat = await talk.waiting()
    before = await talk.get(chat)

    proposed = await talk.http.post(f"{CHATS}/{chat}/title/propose")

    assert proposed.status_code == 200, proposed.text
    assert proposed.json()["title"]
    assert await talk.get(chat) == before


async def test_regenerated_title_is_stored_and_moves_no_version(talk: Talk) -> None:
    chat = await talk.create("Please compare these two shells", title="Old")
    before = await talk.get(chat)

    done = await talk.http.post(f"{CHATS}/{chat}/title/regenerate")

    after = done.json()
    assert done.status_code == 200, done.text
    assert after["title"] != "Old"
    for name in ("snapshot_version", "history_version", "updated_at", "last_activity_at"):
        assert after[name] == before[name]


@dataclass
class Thinker:
    """A server whose titles come from a script, at the pace of a clock that the test turns."""

    http: httpx2.AsyncClient
    clock: FakeClock
    steps: list[Step]


@pytest.fixture
async def thinker(talk: Talk) -> AsyncIterator[Thinker]:
    application = talk.house.replica.application
    assert isinstance(application, Edge)
    clock, steps = FakeClock(), list[Step]()
    scripts = Scripts({"guide": lambda call: steps})
    connector = Connector(scripts=scripts, clock=clock, tokens_per_second=0)
    texts = ShortTexts(application.parts.directory, connector, pool=talk.house.database.api, clock=clock, rng=Random(1))
    try:
        async with (
            open_door(talk.house, texts=texts) as url,
            httpx2.AsyncClient(base_url=url, headers=talk.http.headers, timeout=20.0) as http,
        ):
            yield Thinker(http, clock, steps)
    finally:
        await connector.close()


async def test_title_that_somebody_writes_meanwhile_stays(talk: Talk, thinker: Thinker) -> None:
    chat = await talk.create(title="Old")
    thinker.steps += [Wait(5), Say('{"title": "Thought up"}')]

    asked = asyncio.create_task(thinker.http.post(f"{CHATS}/{chat}/title/regenerate"))
    await thinker.clock.until_waiting("scripted-wait")
    await talk.http.patch(f"{CHATS}/{chat}", json={"title": "Mine"})
    await thinker.clock.fire("scripted-wait")
    done = await asked

    assert (done.status_code, done.json()["title"]) == (200, "Mine")


async def test_title_is_written_though_nobody_waits_for_it(talk: Talk, thinker: Thinker) -> None:
    chat = await talk.create(title="Old")
    thinker.steps += [Wait(5), Say('{"title": "Thought up"}')]

    asked = asyncio.create_task(thinker.http.post(f"{CHATS}/{chat}/title/regenerate"))
    await thinker.clock.until_waiting("scripted-wait")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await thinker.clock.fire("scripted-wait")

    async def is_named() -> bool:
        return bool((await talk.get(chat))["title"] == "Thought up")

    await until(is_named)


async def test_model_that_fails_or_babbles_gives_no_title(talk: Talk, thinker: Thinker) -> None:
    chat = await talk.create(title="Old")

    thinker.steps[:] = [Fail(ErrorKind.AUTH, "The key is wrong.", retryable=False)]
    failed = await thinker.http.post(f"{CHATS}/{chat}/title/regenerate")
    thinker.steps[:] = [Say("I would rather not.\nAsk me something else, and I may think about it.")]
    babbled = await thinker.http.post(f"{CHATS}/{chat}/title/propose")

    assert (failed.status_code, failed.json()["code"]) == (502, "upstream_failed")
    assert (babbled.status_code, babbled.json()["code"]) == (502, "upstream_failed")
    assert (await talk.get(chat))["title"] == "Old"


async def test_model_that_thinks_too_long_gives_no_title(talk: Talk, thinker: Thinker) -> None:
    chat = await talk.create(title="Old")
    thinker.steps += [Wait(100), Say('{"title": "Too late"}')]

    asked = asyncio.create_task(thinker.http.post(f"{CHATS}/{chat}/title/propose"))
    await thinker.clock.until_waiting("scripted-wait")
    await thinker.clock.advance(30)
    late = await asked

    assert (late.status_code, late.json()["code"]) == (504, "upstream_timeout")


async def test_no_model_no_title(house: House, talk: Talk) -> None:
    chat = await talk.create()
    async with house.database.api.acquire() as conn:
        await conn.execute("UPDATE model_configs SET enabled = false")
    house.replica.directory.invalidate()

    refused = await talk.http.post(f"{CHATS}/{chat}/title/propose")

    assert (refused.status_code, refused.json()["code"]) == (400, "no_default_model")


# Shares


async def test_reader_sees_the_chat_until_the_share_ends(talk: Talk, ben: Person) -> None:
    chat = await talk.create()
    path = f"{CHATS}/{chat}/acl"
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404

    await talk.share(chat, ben)
    (entry,) = (await talk.http.get(path)).json()["items"]
    assert (entry["user"]["username"], entry["role"], entry["granted_by"]) == ("ben", "read", str(talk.person.id))
    listed = (await ben.http.get(CHATS, params={"q": "source:shared_with_me"})).json()["items"]
    assert [each["id"] for each in listed] == [chat]
    assert (await ben.http.delete(f"{path}/me")).status_code == 204

    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404
    await talk.http.patch(path, json={"everyone": "read"})
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 200
    assert (await talk.http.get(path)).json()["items"][0]["user"] == "everyone"
    await talk.http.patch(path, json={"everyone": None})
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404


async def test_bad_entries_of_a_share_are_refused_by_name(talk: Talk, ben: Person) -> None:
    chat = await talk.create()
    path, nobody = f"{CHATS}/{chat}/acl", uuid4()

    for user, role in ((talk.person.id, "read"), (nobody, "read"), (ben.id, "write")):
        refused = await talk.http.patch(path, json={"users": {str(user): role}})
        assert list(fields(refused)) == [f"users.{user}"], refused.text
    unknown = [uuid4(), uuid4(), talk.person.id]
    together = await talk.http.patch(path, json={"users": {str(user): "read" for user in unknown}})
    assert set(fields(together)) == {f"users.{user}" for user in unknown}
    assert list(fields(await talk.http.patch(path, json={"users": {"ben": "read"}}))) == ["users.ben"]
    assert list(fields(await talk.http.patch(path, json={"groups": {}}))) == ["groups"]
    assert (await talk.http.get(path)).json()["items"] == []


async def test_what_only_a_root_has_is_refused_on_a_child_by_the_name_of_the_root(house: House, talk: Talk) -> None:
    root = await talk.create()
    child = await child_of(house, talk.person, root, model=UUID((await talk.get(root))["last_model_config_id"]))
    path = f"{CHATS}/{child}"

    refused = [
        await talk.http.get(f"{path}/acl"),
        await talk.http.patch(f"{path}/acl", json={"everyone": "read"}),
        await talk.http.patch(path, json={"pin_order": 1}),
        await talk.http.patch(path, json={"archived": True}),
        await talk.http.delete(path),
    ]

    assert {(each.status_code, each.json()["code"]) for each in refused} == {(400, "not_root_chat")}
    assert [root in each.json()["message"] for each in refused] == [True] * 5


async def test_switched_off_sharing_hides_the_chat_at_once(house: House, talk: Talk, ben: Person) -> None:
    chat = await talk.create()
    await talk.share(chat, ben)
    async with house.database.api.acquire() as conn:
        await shares.write_sharing_settings(conn, SharingSettings(enabled=False))

    refused = await talk.http.patch(f"{CHATS}/{chat}/acl", json={"everyone": "read"})

    assert (refused.status_code, refused.json()["code"]) == (403, "disabled")
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404
