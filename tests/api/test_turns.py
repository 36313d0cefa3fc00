"""Turns, the queue, titles and shares over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from uuid import UUID, uuid4

import httpx2
import pytest

from rookery.api.middleware import ApiMiddleware
from rookery.domain.access.rights import Role
from rookery.llm.scripted import Fail, Say, Scripts, Step, Wait
from rookery.llm.types import ErrorKind
from rookery.models.connector import Connector
from rookery.store.chats import shares
from rookery.store.chats.shares import SharingSettings
from rookery.store.settings import settings
from rookery.testing.clock import FakeClock
from rookery.worker.short_texts import ShortTexts
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig, fields, said, text
from tests.api.more_servers import open_door
from tests.api.roles_rig import child_of
from tests.eventually import until


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


# Turns


async def test_interrupt_stops_what_runs_with_or_without_a_body(chat_rig: ChatRig) -> None:
    first, second = await chat_rig.create(), await chat_rig.create()

    plain = await chat_rig.http.post(f"{CHATS}/{first}/interrupt")
    given = await chat_rig.http.post(f"{CHATS}/{second}/interrupt", json={"cascade": False})

    assert (plain.status_code, plain.json()["status"]) == (200, "interrupting")
    assert (given.status_code, given.json()["status"]) == (200, "interrupting")


async def test_interrupt_of_what_rests_is_refused(chat_rig: ChatRig) -> None:
    for chat in (await chat_rig.waiting(), await chat_rig.failed()):
        refused = await chat_rig.http.post(f"{CHATS}/{chat}/interrupt")
        assert (refused.status_code, refused.json()["code"]) == (409, "not_interruptible")
    bad = await chat_rig.http.post(f"{CHATS}/{await chat_rig.create()}/interrupt", json={"force": True})
    assert list(fields(bad)) == ["force"]


async def test_interrupt_ends_the_wait_for_the_client(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking()

    stopped = await chat_rig.http.post(f"{CHATS}/{chat}/interrupt")

    assert stopped.json()["status"] == "waiting"


async def test_retry_goes_on_after_an_error_and_not_after_an_answer(chat_rig: ChatRig) -> None:
    failed, waiting = await chat_rig.failed(), await chat_rig.waiting()

    again = await chat_rig.http.post(f"{CHATS}/{failed}/retry")
    refused = await chat_rig.http.post(f"{CHATS}/{waiting}/retry")

    assert (again.status_code, again.json()["status"], again.json()["last_error"]) == (200, "running", None)
    assert refused.status_code == 409


async def test_compact_judges_the_state_before_the_content(chat_rig: ChatRig) -> None:
    empty = await chat_rig.create()
    await chat_rig.fail(empty)
    before = await chat_rig.get(empty)

    for chat, code in (
        (await chat_rig.create(), "busy_cannot_compact"),
        (empty, "nothing_to_compact"),
        (await chat_rig.archived(), "chat_archived"),
    ):
        refused = await chat_rig.http.post(f"{CHATS}/{chat}/compact")
        assert (refused.status_code, refused.json()["code"]) == (409, code)
    done = await chat_rig.http.post(f"{CHATS}/{await chat_rig.waiting()}/compact")

    assert (done.status_code, done.json()["status"]) == (200, "running")
    assert await chat_rig.get(empty) == before


async def test_only_an_invalid_chat_is_reconciled(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()

    refused = await chat_rig.http.post(f"{CHATS}/{chat}/reconcile-invalid")
    async with chat_rig.rig.database.api.acquire() as conn, conn.transaction():
        # A state that a newer version, or manual SQL, may have stored.
        await conn.execute("ALTER TABLE chats DROP CONSTRAINT chats_status")
        await conn.execute("UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1", UUID(chat))
        await conn.execute("UPDATE chats SET status = 'asleep' WHERE id = $1", UUID(chat))
    sent = await chat_rig.send(chat, "x")
    mended = await chat_rig.http.post(f"{CHATS}/{chat}/reconcile-invalid")

    assert (refused.status_code, refused.json()["code"]) == (409, "not_invalid")
    assert (sent.status_code, sent.json()["code"]) == (409, "chat_invalid_state")
    assert (mended.status_code, mended.json()["status"], mended.json()["archived"]) == (200, "error", False)


# The queue


async def test_queue_is_listed_in_its_order(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    await chat_rig.queue(chat, "a", "b")

    found = (await chat_rig.http.get(f"{CHATS}/{chat}/queue")).json()

    assert [said(row) for row in found["items"]] == ["a", "b"]
    assert found["queue_version"] > 0
    assert set(found["items"][0]) >= {"id", "content", "model_config_id", "client_id", "created_at", "created_by"}


async def test_queued_messages_are_deleted_one_by_one_or_all(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    first, _, _ = await chat_rig.queue(chat, "a", "b", "c")
    path = f"{CHATS}/{chat}/queue"

    assert (await chat_rig.http.delete(f"{path}/{first}")).status_code == 204
    gone = await chat_rig.http.delete(f"{path}/{first}")
    assert (gone.status_code, gone.json()["code"]) == (404, "queued_message_not_found")
    assert await chat_rig.queued(chat) == ["b", "c"]
    assert (await chat_rig.http.delete(path)).status_code == 204
    empty = await chat_rig.http.delete(path)
    assert (empty.status_code, empty.json()["code"]) == (409, "queue_empty")


async def test_missing_queued_message_is_not_found_while_others_are_queued(chat_rig: ChatRig) -> None:
    """Also for the last message: an empty queue gives the same error."""
    chat = await chat_rig.create()
    first, second = await chat_rig.queue(chat, "a", "b")
    path = f"{CHATS}/{chat}/queue"

    async def answers(gone: int) -> set[tuple[int, str]]:
        asked = [
            await chat_rig.http.delete(f"{path}/{gone}"),
            await chat_rig.http.post(f"{path}/{gone}/promote"),
            await chat_rig.http.post(f"{path}/{gone}/move", json={"before": None}),
            await chat_rig.http.patch(f"{path}/{gone}", json={"content": text("c")}),
        ]
        return {(each.status_code, each.json()["code"]) for each in asked}

    for gone in (first, second):
        assert (await chat_rig.http.delete(f"{path}/{gone}")).status_code == 204
        assert await answers(gone) == {(404, "queued_message_not_found")}


async def test_queued_message_moves_before_another_and_to_the_end(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    first, second, third = await chat_rig.queue(chat, "a", "b", "c")
    path = f"{CHATS}/{chat}/queue"

    moved = await chat_rig.http.post(f"{path}/{third}/move", json={"before": first})
    assert [said(row) for row in moved.json()["items"]] == ["c", "a", "b"]
    ended = await chat_rig.http.post(f"{path}/{third}/move", json={"before": None})
    assert [said(row) for row in ended.json()["items"]] == ["a", "b", "c"]
    await chat_rig.http.delete(f"{path}/{second}")
    for queued, before in ((second, None), (first, second)):
        gone = await chat_rig.http.post(f"{path}/{queued}/move", json={"before": before})
        assert (gone.status_code, gone.json()["code"]) == (404, "queued_message_not_found")
    assert list(fields(await chat_rig.http.post(f"{path}/{first}/move", json={}))) == ["before"]


async def test_queued_message_is_edited_in_parts(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    (queued,) = await chat_rig.queue(chat, "a")
    path = f"{CHATS}/{chat}/queue/{queued}"

    reworded = (await chat_rig.http.patch(path, json={"content": text("b")})).json()
    harder = (await chat_rig.http.patch(path, json={"reasoning_effort": "high"})).json()

    assert said(reworded) == "b"
    assert (said(harder), harder["reasoning_effort"]) == ("b", "high")
    assert (await chat_rig.http.patch(path, json={})).json() == harder
    assert (await chat_rig.http.patch(path, json={"reasoning_effort": None})).json()["reasoning_effort"] is None
    nulls = await chat_rig.http.patch(path, json={"content": None, "model_config_id": None})
    assert sorted(fields(nulls)) == ["content", "model_config_id"]
    assert list(fields(await chat_rig.http.patch(path, json={"content": text(" ")}))) == ["content[0].text"]
    assert list(fields(await chat_rig.http.patch(path, json={"model_config_id": str(uuid4())}))) == ["model_config_id"]
    await chat_rig.rest(chat)
    assert (await chat_rig.http.patch(path, json={"content": text("c")})).status_code in (404, 409)


async def test_promoted_message_runs_at_once_where_nothing_does(chat_rig: ChatRig) -> None:
    failed, asking = await chat_rig.failed("a", "b"), await chat_rig.asking("a", "b")

    for chat, roles in ((failed, ["user"]), (asking, ["tool", "user"])):
        second = (await chat_rig.http.get(f"{CHATS}/{chat}/queue")).json()["items"][1]["id"]
        done = await chat_rig.http.post(f"{CHATS}/{chat}/queue/{second}/promote")
        found = done.json()
        assert done.status_code == 202, done.text
        assert (said(found["message"]), found["chat"]["status"]) == ("b", "running")
        assert [message["role"] for message in found["messages"]] == roles
        assert await chat_rig.queued(chat) == ["a"]


async def test_promoted_message_interrupts_what_runs(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    _, second = await chat_rig.queue(chat, "a", "b")

    done = (await chat_rig.http.post(f"{CHATS}/{chat}/queue/{second}/promote")).json()

    assert (done["message"], done["messages"], done["chat"]["status"]) == (None, [], "interrupting")
    assert await chat_rig.queued(chat) == ["b", "a"]


async def test_change_of_a_queue_and_promotion_at_once_leave_one_of_both(chat_rig: ChatRig) -> None:
    for change in ("delete", "edit", "move"):
        chat = await chat_rig.failed("a")
        (queued,) = (await chat_rig.http.get(f"{CHATS}/{chat}/queue")).json()["items"]
        path = f"{CHATS}/{chat}/queue/{queued['id']}"
        request = {
            "delete": ("DELETE", path, None),
            "edit": ("PATCH", path, {"content": text("b")}),
            "move": ("POST", f"{path}/move", {"before": None}),
        }
        method, target, body = request[change]

        promoted, changed = await asyncio.gather(
            chat_rig.http.post(f"{path}/promote"), chat_rig.http.request(method, target, json=body)
        )

        assert promoted.status_code in (202, 404, 409)
        assert changed.status_code in (200, 204, 404, 409)
        history = await chat_rig.messages(chat)
        assert len([each for each in history if each in ("a", "b")]) == (1 if promoted.status_code == 202 else 0)
        assert await chat_rig.queued(chat) == []


async def test_queue_of_an_archived_chat_does_not_change(chat_rig: ChatRig) -> None:
    path = f"{CHATS}/{await chat_rig.archived()}/queue"

    for refused in (
        await chat_rig.http.delete(path),
        await chat_rig.http.delete(f"{path}/1"),
        await chat_rig.http.post(f"{path}/1/promote"),
        await chat_rig.http.post(f"{path}/1/move", json={"before": None}),
        await chat_rig.http.patch(f"{path}/1", json={"content": text("x")}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "chat_archived")


# Titles


async def test_new_chat_is_named_by_a_model_unless_its_title_was_given(rig: ApiRig, chat_rig: ChatRig) -> None:
    await rig.add_model(name="namer", titles=True)
    words, first = "please compare these two shells for me", "please compare these two shells for…"
    named = await chat_rig.create(words)
    given = await chat_rig.create(words, title=first)

    async def is_named() -> bool:
        return bool((await chat_rig.get(named))["title"] != first)

    await until(is_named)
    await rig.replica.worker.wait_idle()

    assert (await chat_rig.get(given))["title"] == first


async def test_proposed_title_is_not_stored(chat_rig: ChatRig) -> None:
    chat = await chat_rig.waiting()
    before = await chat_rig.get(chat)

    proposed = await chat_rig.http.post(f"{CHATS}/{chat}/title/propose")

    assert proposed.status_code == 200, proposed.text
    assert proposed.json()["title"]
    assert await chat_rig.get(chat) == before


async def test_record_of_a_proposed_title_names_the_last_message_that_it_describes(
    rig: ApiRig, chat_rig: ChatRig
) -> None:
    chief = await rig.add("chief", role=Role.ADMIN)
    assert (await chief.http.put("/api/v1/settings/debug", json={"allow_users": True})).status_code == 200
    chat = await chat_rig.waiting()
    switched = await chat_rig.http.patch(f"{CHATS}/{chat}", json={"debug_mode": "on"})
    assert switched.status_code == 200, switched.text
    last = max(row["id"] for row in (await chat_rig.http.get(f"{CHATS}/{chat}/messages")).json()["items"])

    async def tips() -> list[int | None]:
        runs = (await chat_rig.http.get(f"{CHATS}/{chat}/debug/runs", params={"kind": "title_generation"})).json()
        return [run["history_tip_message_id"] for run in runs["runs"]]

    async def is_recorded() -> bool:
        return bool(await tips())

    await chat_rig.http.post(f"{CHATS}/{chat}/title/propose")
    await until(is_recorded)

    assert await tips() == [last]


async def test_regenerated_title_is_stored_and_moves_no_version(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("Please compare these two shells", title="Old")
    before = await chat_rig.get(chat)

    done = await chat_rig.http.post(f"{CHATS}/{chat}/title/regenerate")

    after = done.json()
    assert done.status_code == 200, done.text
    assert after["title"] != "Old"
    for name in ("snapshot_version", "history_version", "updated_at", "last_activity_at"):
        assert after[name] == before[name]


@dataclass
class Thinker:
    """A server whose titles come from a script, with a fake clock."""

    http: httpx2.AsyncClient
    clock: FakeClock
    steps: list[Step]


@pytest.fixture
async def thinker(chat_rig: ChatRig) -> AsyncIterator[Thinker]:
    application = chat_rig.rig.replica.application
    assert isinstance(application, ApiMiddleware)
    clock, steps = FakeClock(), list[Step]()
    scripts = Scripts({"guide": lambda call: steps})
    connector = Connector(scripts=scripts, clock=clock, tokens_per_second=0)
    texts = ShortTexts(
        application.services.directory, connector, pool=chat_rig.rig.database.api, clock=clock, rng=Random(1)
    )
    try:
        async with (
            open_door(chat_rig.rig, texts=texts) as url,
            httpx2.AsyncClient(base_url=url, headers=chat_rig.http.headers, timeout=20.0) as http,
        ):
            yield Thinker(http, clock, steps)
    finally:
        await connector.close()


async def test_title_that_a_user_writes_meanwhile_stays(chat_rig: ChatRig, thinker: Thinker) -> None:
    chat = await chat_rig.create(title="Old")
    thinker.steps += [Wait(5), Say('{"title": "Thought up"}')]

    asked = asyncio.create_task(thinker.http.post(f"{CHATS}/{chat}/title/regenerate"))
    await thinker.clock.until_waiting("scripted-wait")
    await chat_rig.http.patch(f"{CHATS}/{chat}", json={"title": "Mine"})
    await thinker.clock.fire("scripted-wait")
    done = await asked

    assert (done.status_code, done.json()["title"]) == (200, "Mine")


async def test_title_is_written_even_if_the_client_disconnects(chat_rig: ChatRig, thinker: Thinker) -> None:
    chat = await chat_rig.create(title="Old")
    thinker.steps += [Wait(5), Say('{"title": "Thought up"}')]

    asked = asyncio.create_task(thinker.http.post(f"{CHATS}/{chat}/title/regenerate"))
    await thinker.clock.until_waiting("scripted-wait")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await thinker.clock.fire("scripted-wait")

    async def is_named() -> bool:
        return bool((await chat_rig.get(chat))["title"] == "Thought up")

    await until(is_named)


async def test_model_that_fails_or_babbles_gives_no_title(chat_rig: ChatRig, thinker: Thinker) -> None:
    chat = await chat_rig.create(title="Old")

    thinker.steps[:] = [Fail(ErrorKind.AUTH, "The key is wrong.", retryable=False)]
    failed = await thinker.http.post(f"{CHATS}/{chat}/title/regenerate")
    thinker.steps[:] = [Say("I would rather not.\nAsk me something else, and I may think about it.")]
    babbled = await thinker.http.post(f"{CHATS}/{chat}/title/propose")

    assert (failed.status_code, failed.json()["code"]) == (502, "upstream_failed")
    assert (babbled.status_code, babbled.json()["code"]) == (502, "upstream_failed")
    assert (await chat_rig.get(chat))["title"] == "Old"


async def test_model_that_thinks_too_long_gives_no_title(chat_rig: ChatRig, thinker: Thinker) -> None:
    chat = await chat_rig.create(title="Old")
    thinker.steps += [Wait(100), Say('{"title": "Too late"}')]

    asked = asyncio.create_task(thinker.http.post(f"{CHATS}/{chat}/title/propose"))
    await thinker.clock.until_waiting("scripted-wait")
    await thinker.clock.advance(30)
    late = await asked

    assert (late.status_code, late.json()["code"]) == (504, "upstream_timeout")


async def test_no_model_no_title(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    async with rig.database.api.acquire() as conn:
        await conn.execute("UPDATE model_configs SET enabled = false")
    rig.replica.directory.invalidate()

    refused = await chat_rig.http.post(f"{CHATS}/{chat}/title/propose")

    assert (refused.status_code, refused.json()["code"]) == (400, "no_default_model")


# Shares


async def test_reader_sees_the_chat_until_the_share_ends(chat_rig: ChatRig, ben: Person) -> None:
    chat = await chat_rig.create()
    path = f"{CHATS}/{chat}/acl"
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404

    await chat_rig.share(chat, ben)
    (entry,) = (await chat_rig.http.get(path)).json()["items"]
    assert (entry["user"]["username"], entry["role"], entry["granted_by"]) == ("ben", "read", str(chat_rig.person.id))
    listed = (await ben.http.get(CHATS, params={"q": "source:shared_with_me"})).json()["items"]
    assert [each["id"] for each in listed] == [chat]
    assert (await ben.http.delete(f"{path}/me")).status_code == 204

    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404
    await chat_rig.http.patch(path, json={"everyone": "read"})
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 200
    assert (await chat_rig.http.get(path)).json()["items"][0]["user"] == "everyone"
    await chat_rig.http.patch(path, json={"everyone": None})
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404


async def test_bad_entries_of_a_share_are_refused_by_name(chat_rig: ChatRig, ben: Person) -> None:
    chat = await chat_rig.create()
    path, nobody = f"{CHATS}/{chat}/acl", uuid4()

    for user, role in ((chat_rig.person.id, "read"), (nobody, "read"), (ben.id, "write")):
        refused = await chat_rig.http.patch(path, json={"users": {str(user): role}})
        assert list(fields(refused)) == [f"users.{user}"], refused.text
    unknown = [uuid4(), uuid4(), chat_rig.person.id]
    together = await chat_rig.http.patch(path, json={"users": {str(user): "read" for user in unknown}})
    assert set(fields(together)) == {f"users.{user}" for user in unknown}
    assert list(fields(await chat_rig.http.patch(path, json={"users": {"ben": "read"}}))) == ["users.ben"]
    assert list(fields(await chat_rig.http.patch(path, json={"groups": {}}))) == ["groups"]
    assert (await chat_rig.http.get(path)).json()["items"] == []


async def test_operation_of_root_chats_is_refused_on_a_child_and_names_the_root(rig: ApiRig, chat_rig: ChatRig) -> None:
    root = await chat_rig.create()
    child = await child_of(rig, chat_rig.person, root, model=UUID((await chat_rig.get(root))["last_model_config_id"]))
    path = f"{CHATS}/{child}"

    refused = [
        await chat_rig.http.get(f"{path}/acl"),
        await chat_rig.http.patch(f"{path}/acl", json={"everyone": "read"}),
        await chat_rig.http.patch(path, json={"pin_order": 1}),
        await chat_rig.http.patch(path, json={"archived": True}),
        await chat_rig.http.delete(path),
    ]

    assert {(each.status_code, each.json()["code"]) for each in refused} == {(400, "not_root_chat")}
    assert [root in each.json()["message"] for each in refused] == [True] * 5


async def test_switched_off_sharing_hides_the_chat_at_once(rig: ApiRig, chat_rig: ChatRig, ben: Person) -> None:
    chat = await chat_rig.create()
    await chat_rig.share(chat, ben)
    async with rig.database.api.acquire() as conn:
        await settings.write_setting(conn, shares.SETTING, value=SharingSettings(enabled=False))

    refused = await chat_rig.http.patch(f"{CHATS}/{chat}/acl", json={"everyone": "read"})

    assert (refused.status_code, refused.json()["code"]) == (403, "disabled")
    assert (await ben.http.get(f"{CHATS}/{chat}")).status_code == 404
