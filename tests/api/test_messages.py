from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from rookery.api import message_bodies as answers
from rookery.api.routers import chats
from rookery.domain.chat.messages import ChatId
from rookery.store.models import usage_ledger
from rookery.store.models.spending import SETTING, SpendSettings
from rookery.store.models.usage_ledger import CallStatus, KeySource
from rookery.store.settings import settings
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CALL_ID, CHATS, ChatRig, fields, said, text
from tests.api.more_servers import open_door


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


# Sending, by state of the chat


@pytest.mark.parametrize("busy", ["queue", "interrupt", "steer"])
async def test_message_to_a_chat_at_rest_is_inserted_and_runs(chat_rig: ChatRig, busy: str) -> None:
    chat = await chat_rig.waiting()

    answer = (await chat_rig.send(chat, "Go on", busy_behavior=busy)).json()

    assert (answer["queued"], answer["queued_message"]) == (False, None)
    assert [said(message) for message in answer["messages"]] == ["Go on"]
    assert answer["message"] == answer["messages"][-1]
    assert (answer["chat"]["status"], answer["chat"]["queue_len"], answer["warnings"]) == ("running", 0, [])
    assert (await chat_rig.get(chat))["snapshot_version"] == answer["chat"]["snapshot_version"]


@pytest.mark.parametrize("busy", ["queue", "interrupt"])
async def test_message_to_a_failed_chat_runs(chat_rig: ChatRig, busy: str) -> None:
    chat = await chat_rig.failed()

    answer = (await chat_rig.send(chat, "Again", busy_behavior=busy)).json()

    assert (answer["queued"], answer["chat"]["status"]) == (False, "running")
    assert (await chat_rig.get(chat))["last_error"] is None


async def test_message_to_a_failed_chat_with_a_queue_lets_the_head_run(chat_rig: ChatRig) -> None:
    chat = await chat_rig.failed("First", "Second")

    answer = (await chat_rig.send(chat, "Third", busy_behavior="queue")).json()

    assert (answer["queued"], answer["message"]) == (True, None)
    assert said(answer["queued_message"]) == "Third"
    assert [said(message) for message in answer["messages"]] == ["First"]
    assert await chat_rig.queued(chat) == ["Second", "Third"]
    assert answer["chat"]["status"] == "running"


async def test_interrupting_message_to_a_failed_chat_runs_before_its_queue(chat_rig: ChatRig) -> None:
    chat = await chat_rig.failed("First", "Second")

    answer = (await chat_rig.send(chat, "Now", busy_behavior="interrupt")).json()

    assert (answer["queued"], said(answer["message"])) == (False, "Now")
    assert await chat_rig.queued(chat) == ["First", "Second"]
    assert answer["chat"]["status"] == "running"


async def test_message_to_a_running_chat_waits(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()

    answer = (await chat_rig.send(chat, "Later")).json()

    assert (answer["queued"], answer["messages"], answer["chat"]["status"]) == (True, [], "running")
    assert await chat_rig.queued(chat) == ["Later"]


async def test_interrupting_message_stops_a_running_chat_and_is_the_head_of_its_queue(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    await chat_rig.send(chat, "Later")

    answer = (await chat_rig.send(chat, "Stop that", busy_behavior="interrupt")).json()
    again = (await chat_rig.send(chat, "And that", busy_behavior="interrupt")).json()

    assert (answer["queued"], answer["chat"]["status"]) == (True, "interrupting")
    assert (again["queued"], again["chat"]["status"]) == (True, "interrupting")
    assert await chat_rig.queued(chat) == ["And that", "Stop that", "Later"]


async def test_steering_message_is_marked(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()

    answer = (await chat_rig.send(chat, "By the way", busy_behavior="steer")).json()

    assert answer["queued_message"]["steer"] is True


@pytest.mark.parametrize("queued", [(), ("First",)])
async def test_message_to_a_chat_that_waits_for_its_client_waits_too(
    chat_rig: ChatRig, queued: tuple[str, ...]
) -> None:
    chat = await chat_rig.asking(*queued)

    answer = (await chat_rig.send(chat, "Later")).json()

    assert (answer["queued"], answer["messages"], answer["chat"]["status"]) == (True, [], "requires_action")


async def test_interrupting_message_closes_calls_of_the_client(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking()

    answer = (await chat_rig.send(chat, "Never mind", busy_behavior="interrupt")).json()

    closing, own = answer["messages"]
    assert closing["role"] == "tool"
    assert (closing["content"][0]["tool_call_id"], closing["content"][0]["is_error"]) == (CALL_ID, True)
    assert said(own) == "Never mind"
    assert (answer["queued"], answer["message"]["id"], answer["chat"]["status"]) == (False, own["id"], "running")


async def test_interrupting_message_runs_before_a_queue_that_waited_for_the_client(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking("First")

    answer = (await chat_rig.send(chat, "Second", busy_behavior="interrupt")).json()

    assert [message["role"] for message in answer["messages"]] == ["tool", "user"]
    assert (said(answer["message"]), answer["queued_message"]) == ("Second", None)
    assert (answer["queued"], answer["chat"]["status"]) == (False, "running")
    assert await chat_rig.queued(chat) == ["First"]


@pytest.mark.parametrize("busy", ["queue", "interrupt", "steer"])
async def test_archived_chat_takes_no_message(chat_rig: ChatRig, busy: str) -> None:
    refused = await chat_rig.send(await chat_rig.archived(), "Hello?", busy_behavior=busy)

    assert (refused.status_code, refused.json()["code"]) == (409, "chat_archived")


async def test_21st_queued_message_is_refused_except_after_an_error(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    await chat_rig.queue(chat, *(str(n) for n in range(20)))

    refused = await chat_rig.send(chat, "20")
    await chat_rig.fail(chat)
    taken = await chat_rig.send(chat, "20")

    assert (refused.status_code, refused.json()["code"], refused.json()["max"]) == (429, "queue_full", 20)
    assert (taken.status_code, taken.json()["chat"]["queue_len"]) == (200, 20)


# Repeats


async def test_repeated_send_is_answered_as_the_first(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking()

    first = (await chat_rig.send(chat, "Once", client_id="c1", busy_behavior="interrupt")).json()
    again = (await chat_rig.send(chat, "Once", client_id="c1", busy_behavior="interrupt")).json()

    assert first["message"]["client_id"] == "c1"
    assert {**again, "chat": None} == {**first, "chat": None}
    assert (await chat_rig.messages(chat)).count("Once") == 1


@pytest.mark.parametrize("is_busy", [True, False])
async def test_repeated_send_is_answered_though_its_model_is_gone(
    rig: ApiRig, chat_rig: ChatRig, is_busy: bool
) -> None:
    chat = await (chat_rig.create() if is_busy else chat_rig.waiting())
    model = (await chat_rig.get(chat))["last_model_config_id"]
    first = (await chat_rig.send(chat, "Once", client_id="c1", model_config_id=model)).json()
    async with rig.database.api.acquire() as conn:
        await conn.execute("UPDATE model_configs SET enabled = false")
    rig.replica.directory.invalidate()

    again = await chat_rig.send(chat, "Once", client_id="c1", model_config_id=model)
    other = await chat_rig.send(chat, "Twice", client_id="c2", model_config_id=model)

    assert (again.status_code, {**again.json(), "chat": None}) == (200, {**first, "chat": None})
    assert other.status_code == 400


async def test_idempotency_key_stands_in_for_the_client_id(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    body, key = {"content": text("Once")}, {"Idempotency-Key": "k1"}

    first = await chat_rig.http.post(f"{CHATS}/{chat}/messages", json=body, headers=key)
    again = await chat_rig.http.post(f"{CHATS}/{chat}/messages", json=body, headers=key)
    long = await chat_rig.http.post(f"{CHATS}/{chat}/messages", json=body, headers={"Idempotency-Key": "k" * 65})

    assert first.json()["queued_message"] == again.json()["queued_message"]
    assert list(fields(long)) == ["client_id"]
    assert await chat_rig.queued(chat) == ["Once"]


async def test_repeats_at_once_make_one_message(chat_rig: ChatRig) -> None:
    chat = await chat_rig.waiting()

    answers = await asyncio.gather(*(chat_rig.send(chat, "Once", client_id="c1") for _ in range(8)))

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["message"]["id"] for answer in answers}) == 1
    assert (await chat_rig.messages(chat)).count("Once") == 1


async def test_message_committed_before_a_server_failed_is_answered_by_another(
    rig: ApiRig, chat_rig: ChatRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await chat_rig.waiting()
    message, new = {"content": text("Once"), "client_id": "c1"}, {"content": text("New")}
    key = {"Idempotency-Key": "k1"}

    def fail(*_: object) -> None:
        raise RuntimeError("right behind the commit")

    with monkeypatch.context() as patch:
        patch.setattr(answers, "sent", fail)
        patch.setattr(chats, "_created", fail)
        lost = [
            await chat_rig.http.post(f"{CHATS}/{chat}/messages", json=message),
            await chat_rig.http.post(CHATS, json=new, headers=key),
        ]
    async with open_door(rig) as url:
        sent = await chat_rig.http.post(f"{url}{CHATS}/{chat}/messages", json=message)
        made = await chat_rig.http.post(f"{url}{CHATS}", json=new, headers=key)

    assert [each.status_code for each in lost] == [500, 500]
    assert (sent.status_code, said(sent.json()["message"])) == (200, "Once")
    assert (await chat_rig.messages(chat)).count("Once") == 1
    assert (made.status_code, made.headers["idempotency-replayed"]) == (201, "true")
    assert await chat_rig.count("chats") == 2


# Models


async def test_message_uses_the_chats_model_while_it_is_there(rig: ApiRig, chat_rig: ChatRig) -> None:
    other = await rig.add_model(name="second")
    chat = await chat_rig.create(model_config_id=str(other))
    await chat_rig.rest(chat)

    kept = (await chat_rig.send(chat, "One")).json()["message"]["model_config_id"]
    await chat_rig.rest(chat)
    async with rig.database.api.acquire() as conn:
        await conn.execute("UPDATE model_configs SET enabled = false WHERE id = $1", other)
        default = await conn.fetchval("SELECT id FROM model_configs WHERE is_default")
    rig.replica.directory.invalidate()
    replaced = (await chat_rig.send(chat, "Two")).json()["message"]["model_config_id"]

    assert (kept, replaced) == (str(other), str(default))


async def test_send_with_a_bad_member_stores_nothing(chat_rig: ChatRig) -> None:
    chat = await chat_rig.waiting()
    nobody = "11111111-1111-4111-8111-111111111111"

    refused = await chat_rig.send(chat, " ", busy_behavior="shout", client_id="", colour=1)
    no_model = await chat_rig.send(chat, "x", model_config_id=nobody)
    no_server = await chat_rig.send(chat, "x", mcp_server_ids=[nobody])

    assert set(fields(refused)) == {"content[0].text", "busy_behavior", "client_id", "colour"}
    assert list(fields(no_model)) == ["model_config_id"]
    assert list(fields(no_server)) == ["mcp_server_ids"]
    assert (await chat_rig.get(chat))["status"] == "waiting"


async def test_send_changes_plan_mode_and_effort_of_the_chat(chat_rig: ChatRig) -> None:
    chat = await chat_rig.waiting()

    await chat_rig.send(chat, "Think first", plan_mode=True, reasoning_effort="high")

    found = await chat_rig.get(chat)
    assert (found["plan_mode"], found["last_reasoning_effort"]) == (True, "high")


# Listing


async def test_pages_of_messages_follow_the_rules_of_listing(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("0")
    for n in range(1, 6):
        await chat_rig.say(chat, str(n))
    path = f"{CHATS}/{chat}/messages"

    async def page(**query: Any) -> tuple[list[str], dict[str, Any]]:
        found = (await chat_rig.http.get(path, params=query)).json()
        return [said(message) for message in found["items"]], found

    newest, whole = await page(limit=2)
    ids = {said(message): message["id"] for message in (await page())[1]["items"]}
    assert newest == ["5", "4"]
    assert (whole["has_more"], whole["queued_messages"]) == (True, [])
    assert whole["snapshot_version"] >= whole["history_version"] > 0
    assert (await page(before_id=ids["2"]))[0] == ["1", "0"]
    after, found = await page(after_id=ids["1"], limit=3)
    assert after == ["2", "3", "4"]
    assert (found["has_more"], "queued_messages" in found) == (True, False)
    assert (await page(after_id=ids["1"], before_id=ids["4"]))[0] == ["3", "2"]
    around, found = await page(around_id=ids["2"], limit=3)
    assert around == ["3", "2", "1"]
    assert (found["has_more"], found["has_newer"]) == (True, True)


async def test_bad_places_in_a_history_are_refused(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"after_id": 5, "before_id": 5}, "after_id"),
        ({"after_id": -1}, "after_id"),
        ({"before_id": -1}, "before_id"),
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"before_id": "x"}, "before_id"),
        ({"around_id": 1, "after_id": 1}, "around_id"),
        ({"page": 1}, "page"),
    )

    for query, field in cases:
        assert list(fields(await chat_rig.http.get(f"{CHATS}/{chat}/messages", params=query))) == [field]


async def test_poller_walks_a_burst_without_gaps(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("start")
    async with chat_rig.rig.database.api.acquire() as conn, conn.transaction():
        await conn.execute("UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1", UUID(chat))
        await conn.execute(
            """
            INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)
            SELECT $1, 'assistant', 'both', jsonb_build_array(jsonb_build_object('type', 'text', 'text', i::text)), 1
              FROM generate_series(1, 300) i
            """,
            UUID(chat),
        )

    walked: list[str] = []
    after_id, has_more = 0, True
    while has_more:
        query = {"after_id": after_id, "limit": 50}
        found = (await chat_rig.http.get(f"{CHATS}/{chat}/messages", params=query)).json()
        walked += [said(message) for message in found["items"]]
        after_id, has_more = found["items"][-1]["id"], found["has_more"]

    assert walked == ["start", *(str(n) for n in range(1, 301))]


async def test_message_that_is_hidden_or_elsewhere_is_not_found(chat_rig: ChatRig) -> None:
    chat, other = await chat_rig.create("Here"), await chat_rig.create("There")
    (message,) = (await chat_rig.http.get(f"{CHATS}/{chat}/messages")).json()["items"]
    async with chat_rig.rig.database.api.acquire() as conn:
        hidden = await conn.fetchval(
            "SELECT min(id) FROM chat_messages WHERE chat_id = $1 AND visibility = 'model'", UUID(chat)
        )

    assert (await chat_rig.http.get(f"{CHATS}/{chat}/messages/{message['id']}")).json() == message
    for place in (f"{other}/messages/{message['id']}", f"{chat}/messages/{hidden}", f"{chat}/messages/{2**63}"):
        refused = await chat_rig.http.get(f"{CHATS}/{place}")
        assert (refused.status_code, refused.json()["code"]) == (404, "message_not_found"), place


# Editing


async def test_edit_cuts_the_history_and_the_queue_and_runs(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("First")
    await chat_rig.rest(chat, "Answer")
    await chat_rig.send(chat, "Second")
    (queued,) = await chat_rig.queue(chat, "Third")
    first, answer, second = (await chat_rig.http.get(f"{CHATS}/{chat}/messages", params={"after_id": 0})).json()[
        "items"
    ]

    edited = await chat_rig.http.patch(f"{CHATS}/{chat}/messages/{first['id']}", json={"content": text("Better")})

    found = edited.json()
    assert edited.status_code == 200, edited.text
    assert found["deleted_message_ids"] == [first["id"], answer["id"], second["id"]]
    assert found["deleted_queued_ids"] == [queued]
    assert [said(message) for message in found["messages"]] == ["Better"]
    assert (found["message"], found["chat"]["status"]) == (found["messages"][0], "running")
    assert await chat_rig.messages(chat) == ["Better"]
    assert await chat_rig.queued(chat) == []


async def test_only_messages_of_the_user_are_edited(chat_rig: ChatRig) -> None:
    chat, other = await chat_rig.waiting(), await chat_rig.create("There")
    asked, answered = (await chat_rig.http.get(f"{CHATS}/{chat}/messages", params={"after_id": 0})).json()["items"]
    (foreign,) = (await chat_rig.http.get(f"{CHATS}/{other}/messages")).json()["items"]

    async def edit(message_id: int) -> Any:
        return await chat_rig.http.patch(f"{CHATS}/{chat}/messages/{message_id}", json={"content": text("x")})

    assert list(fields(await edit(answered["id"]))) == ["message_id"]
    assert (await edit(foreign["id"])).json()["code"] == "message_not_found"
    assert (await edit(asked["id"])).status_code == 200
    assert (await edit(asked["id"])).json()["code"] == "message_not_found"
    archived = await chat_rig.archived()
    (first, *_) = (await chat_rig.http.get(f"{CHATS}/{archived}/messages", params={"after_id": 0})).json()["items"]
    refused = await chat_rig.http.patch(f"{CHATS}/{archived}/messages/{first['id']}", json={"content": text("x")})
    assert (refused.status_code, refused.json()["code"]) == (409, "chat_archived")


async def test_edit_falls_back_when_the_model_of_the_message_is_gone(rig: ApiRig, chat_rig: ChatRig) -> None:
    other = await rig.add_model(name="second")
    chat = await chat_rig.create(model_config_id=str(other))
    (asked,) = (await chat_rig.http.get(f"{CHATS}/{chat}/messages")).json()["items"]
    path = f"{CHATS}/{chat}/messages"

    kept = (await chat_rig.http.patch(f"{path}/{asked['id']}", json={"content": text("x")})).json()["message"]
    async with rig.database.api.acquire() as conn:
        await conn.execute("UPDATE model_configs SET enabled = false WHERE id = $1", other)
        default = await conn.fetchval("SELECT id FROM model_configs WHERE is_default")
    rig.replica.directory.invalidate()
    moved = (await chat_rig.http.patch(f"{path}/{kept['id']}", json={"content": text("y")})).json()["message"]

    assert (kept["model_config_id"], moved["model_config_id"]) == (str(other), str(default))


# Results of the client's tools


def result(output: object = "found", call: str = CALL_ID) -> dict[str, object]:
    return {"tool_call_id": call, "output": output}


async def test_results_let_the_chat_run_on(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking()

    done = await chat_rig.http.post(
        f"{CHATS}/{chat}/tool-results",
        content=b'{"results": [{"tool_call_id": "call-1", "output": {"n": 1.50}, "is_error": false}]}',
        headers={"Content-Type": "application/json"},
    )

    assert done.status_code == 204, done.text
    newest = (await chat_rig.http.get(f"{CHATS}/{chat}/messages", params={"limit": 1})).json()["items"][0]
    assert (newest["role"], newest["content"][0]["result"]) == ("tool", {"n": 1.5})
    assert (await chat_rig.get(chat))["status"] == "running"


async def test_results_must_be_those_that_are_awaited(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking()
    cases: tuple[tuple[list[Any], str], ...] = (
        ([], "invalid"),
        ([{"tool_call_id": CALL_ID}], "invalid"),
        ([result(), result()], "tool_result_duplicate"),
        ([result(call="other")], "tool_result_missing"),
        ([result(), result(call="other")], "tool_result_unexpected"),
    )

    for results, code in cases:
        refused = await chat_rig.http.post(f"{CHATS}/{chat}/tool-results", json={"results": results})

        assert (refused.status_code, refused.json()["code"]) == (400, code)
        assert (await chat_rig.get(chat))["status"] == "requires_action"


async def test_results_are_refused_if_the_chat_does_not_wait_for_them(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()

    refused = await chat_rig.http.post(f"{CHATS}/{chat}/tool-results", json={"results": [result(), result()]})

    assert (refused.status_code, refused.json()["code"]) == (409, "not_waiting_for_results")


async def test_of_two_submissions_at_once_one_is_taken(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking()

    answers = await asyncio.gather(
        *(chat_rig.http.post(f"{CHATS}/{chat}/tool-results", json={"results": [result(n)]}) for n in range(2))
    )

    assert sorted(answer.status_code for answer in answers) == [204, 409]


async def test_results_may_be_larger_than_other_bodies_up_to_4_mib(chat_rig: ChatRig) -> None:
    chat = await chat_rig.asking()

    refused = await chat_rig.http.post(
        f"{CHATS}/{chat}/tool-results", json={"results": [result("x" * 4 * 1024 * 1024)]}
    )
    taken = await chat_rig.http.post(f"{CHATS}/{chat}/tool-results", json={"results": [result("x" * 2 * 1024 * 1024)]})

    assert (refused.status_code, taken.status_code) == (413, 204)


# Prompts and search


async def test_prompts_are_the_users_texts_newest_first(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("First")
    await chat_rig.rest(chat, "Answer")
    await chat_rig.send(chat, "Second")
    other = await chat_rig.create("Elsewhere")

    own = (await chat_rig.http.get(f"{CHATS}/{chat}/prompts")).json()["items"]
    every = (await chat_rig.http.get("/api/v1/prompts")).json()["items"]

    assert [prompt["text"] for prompt in own] == ["Second", "First"]
    assert next((prompt["chat_id"], prompt["text"]) for prompt in every) == (other, "Elsewhere")
    assert len((await chat_rig.http.get(f"{CHATS}/{chat}/prompts", params={"limit": 1})).json()["items"]) == 1
    assert (await chat_rig.http.get(f"{CHATS}/{chat}/prompts", params={"limit": 2000})).status_code == 200
    assert list(fields(await chat_rig.http.get(f"{CHATS}/{chat}/prompts", params={"limit": 2001}))) == ["limit"]


# Spending


async def test_used_up_limit_stops_everything_that_costs(rig: ApiRig, chat_rig: ChatRig) -> None:
    chat, queued, asked = await chat_rig.waiting(), await chat_rig.failed("Next"), await chat_rig.waiting()
    (first, _) = (await chat_rig.http.get(f"{CHATS}/{asked}/messages", params={"after_id": 0})).json()["items"]
    (waiting,) = (await chat_rig.http.get(f"{CHATS}/{queued}/queue")).json()["items"]
    async with rig.database.api.acquire() as conn:
        await settings.write_setting(conn, SETTING, value=SpendSettings(enabled=True, default_limit_micros=10))
        provider_id, model_id = (await conn.fetch("SELECT provider_id, id FROM model_configs"))[0]
        entry = usage_ledger.Entry(
            owner_id=chat_rig.person.id,
            chat_id=ChatId(UUID(chat)),
            purpose="chat",
            provider_id=provider_id,
            model_config_id=model_id,
            model="guide",
            key_source=KeySource.AMBIENT,
            status=CallStatus.OK,
            cost_micros=25,
        )
        await usage_ledger.record_call(conn, entry)
    rig.replica.directory.invalidate()

    for method, path, body in (
        ("POST", CHATS, {"content": text("x")}),
        ("POST", f"{CHATS}/{chat}/messages", {"content": text("x")}),
        ("PATCH", f"{CHATS}/{asked}/messages/{first['id']}", {"content": text("x")}),
        ("POST", f"{CHATS}/{queued}/queue/{waiting['id']}/promote", None),
        ("POST", f"{CHATS}/{chat}/compact", None),
        ("POST", f"{CHATS}/{chat}/title/propose", None),
        ("POST", f"{CHATS}/{chat}/title/regenerate", None),
    ):
        refused = await chat_rig.http.request(method, path, json=body)
        found = refused.json()
        assert (refused.status_code, found["code"]) == (409, "usage_limit"), (path, refused.text)
        assert (found["spent_micros"], found["limit_micros"]) == (25, 10)
        assert found["resets_at"].endswith("Z")
    assert (await chat_rig.get(chat))["status"] == "waiting"
