"""Hidden data: the model's instructions from users, and chats from administrators without a reason."""

from __future__ import annotations

from uuid import uuid4

import httpx2
import pytest

from rookery.domain.access.rights import Role
from rookery.store.chats import search
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig
from tests.api.roles_rig import REASON, child_of

SECRET = "xylophone"
WITH_REASON = {"Rookery-Break-Glass": REASON}


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


@pytest.fixture
async def chief(rig: ApiRig) -> Person:
    return await rig.add("chief", role=Role.ADMIN)


async def stream_until_synced(client: httpx2.AsyncClient, path: str) -> str:
    seen = ""
    async with client.stream("GET", path, headers={"Accept": "text/event-stream"}) as answered:
        assert answered.status_code == 200
        async for line in answered.aiter_lines():
            seen += line
            if '"synced"' in line:
                return seen
    raise AssertionError("The stream ended before it was synced.")


async def hidden_ids(rig: ApiRig, chat: str) -> list[int]:
    found = await rig.database.api.fetch(
        "SELECT id FROM chat_messages WHERE chat_id = $1 AND content::text LIKE '%' || $2 || '%'", chat, SECRET
    )
    return [each["id"] for each in found]


async def test_hidden_messages_are_never_shown(rig: ApiRig, chat_rig: ChatRig, ben: Person) -> None:
    root = await rig.add("chief", role=Role.ADMIN)
    put = await root.http.put("/api/v1/settings/prompts", json={"system_prompt": f"Never say {SECRET} to anybody."})
    assert put.status_code == 200, put.text
    chat = await chat_rig.create("Say hello", system_prompt=f"The other word is {SECRET}.")
    await chat_rig.rest(chat, "Hello.")
    await chat_rig.share(chat, ben)
    async with rig.database.api.acquire() as conn:
        await search.backfill(conn)
    hidden = await hidden_ids(rig, chat)
    assert len(hidden) == 2

    for who in (chat_rig.person, ben):
        for path in (
            "",
            "/messages",
            "/messages?after_id=0",
            f"/messages?around_id={hidden[-1]}",
            "/prompts",
            "/queue",
        ):
            answered = await who.http.get(f"{CHATS}/{chat}{path}")
            assert answered.status_code in (200, 404), answered.text
            assert SECRET not in answered.text, path
        for each in hidden:
            assert (await who.http.get(f"{CHATS}/{chat}/messages/{each}")).status_code == 404
        assert (await who.http.get(f"{CHATS}/{chat}/search", params={"q": SECRET})).json()["items"] == []
        for source in ("created_by_me", "shared_with_me"):
            found = await who.http.get(CHATS, params={"q": f"source:{source} {SECRET}"})
            assert found.json()["items"] == []
        for path in ("/api/v1/prompts", f"/api/v1/prompts?q={SECRET}", CHATS):
            assert SECRET not in (await who.http.get(path)).text
        for tail in ("", "?tail=1000", f"?after_id={hidden[0]}"):
            assert SECRET not in await stream_until_synced(who.http, f"{CHATS}/{chat}/stream{tail}")
        assert (await who.http.get(f"{CHATS}/{chat}/search", params={"q": "hello"})).json()["items"]

    edited = await chat_rig.http.patch(
        f"{CHATS}/{chat}/messages/{hidden[0]}", json={"content": [{"type": "text", "text": "mine"}]}
    )
    assert edited.status_code == 404


async def test_break_glass_is_audited_and_the_owner_sees_it(rig: ApiRig, chat_rig: ChatRig, chief: Person) -> None:
    chat = await chat_rig.create("a private matter")
    model = (await chat_rig.get(chat))["last_model_config_id"]
    child = await child_of(rig, chat_rig.person, chat, model=model)

    refused = await chief.http.get(f"{CHATS}/{chat}")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "private" not in refused.text
    read = await chief.http.get(f"{CHATS}/{chat}/messages", headers={**WITH_REASON, "X-Request-Id": "why-1"})
    assert read.status_code == 200
    assert (await chief.http.get(f"{CHATS}/{child}", headers=WITH_REASON)).status_code == 200

    seen = (await chat_rig.http.get(f"{CHATS}/{chat}/accesses")).json()
    assert seen["next_cursor"] is None
    assert [(each["user"]["username"], each["reason"], each["chat_id"]) for each in seen["items"]] == [
        ("chief", REASON, child),
        ("chief", REASON, chat),
    ]
    logged = (await chief.http.get("/api/v1/audit", params={"action": "chat.break_glass"})).json()["items"]
    assert [(each["resource_id"], each["extra"]["chat_id"]) for each in logged] == [(chat, child), (chat, chat)]
    assert logged[1]["request_id"] == "why-1"


async def test_stream_and_file_under_break_glass_are_audited_once_each(
    rig: ApiRig, chat_rig: ChatRig, chief: Person
) -> None:
    named = {"Content-Type": "text/plain", "Content-Disposition": 'attachment; filename="a.txt"'}
    file = (await chat_rig.http.post("/api/v1/files", content=b"hello", headers=named)).json()["id"]
    chat = await chat_rig.create_with(file)

    async with chief.http.stream("GET", f"{CHATS}/{chat}/stream", headers=WITH_REASON) as stream:
        assert stream.status_code == 200
    assert (await chief.http.get(f"/api/v1/files/{file}", headers=WITH_REASON)).content == b"hello"

    seen = (await chat_rig.http.get(f"{CHATS}/{chat}/accesses")).json()["items"]
    assert [each["chat_id"] for each in seen] == [chat, chat]


@pytest.mark.parametrize("coded", ["utf-8", "latin-1"])
async def test_reason_may_have_letters_of_any_language(chat_rig: ChatRig, chief: Person, coded: str) -> None:
    chat = await chat_rig.create()
    reason = "Prüfung für Łukasz" if coded == "utf-8" else "Prüfung für André"

    read = await chief.http.get(f"{CHATS}/{chat}", headers={b"Rookery-Break-Glass": reason.encode(coded)})

    assert read.status_code == 200
    assert [each["reason"] for each in (await chat_rig.http.get(f"{CHATS}/{chat}/accesses")).json()["items"]] == [
        reason
    ]


@pytest.mark.parametrize("reason", ["", "too short", "x" * 201])
async def test_reason_that_is_none_opens_nothing(chat_rig: ChatRig, chief: Person, reason: str) -> None:
    chat = await chat_rig.create()

    refused = await chief.http.get(f"{CHATS}/{chat}", headers={"Rookery-Break-Glass": reason})

    assert refused.status_code == 400
    assert refused.json()["fields"][0]["field"] == "Rookery-Break-Glass"
    assert (await chat_rig.http.get(f"{CHATS}/{chat}/accesses")).json()["items"] == []


async def test_break_glass_reason_works_for_administrators_only(rig: ApiRig, chat_rig: ChatRig, ben: Person) -> None:
    chat = await chat_rig.create()
    auditor = await rig.add("audrey", role=Role.AUDITOR)

    for who in (ben, auditor):
        refused = await who.http.get(f"{CHATS}/{chat}", headers=WITH_REASON)
        nothing = await who.http.get(f"{CHATS}/{uuid4()}", headers=WITH_REASON)
        assert (refused.status_code, refused.json()["code"]) == (nothing.status_code, nothing.json()["code"])
    assert (await chat_rig.http.get(f"{CHATS}/{chat}/accesses")).json()["items"] == []


@pytest.mark.parametrize(("access", "plain", "with_reason"), [("none", 404, 404), ("full", 200, 200)])
async def test_setting_decides_what_administrators_read(
    chat_rig: ChatRig, chief: Person, access: str, plain: int, with_reason: int
) -> None:
    chat = await chat_rig.create()
    assert (await chief.http.put("/api/v1/settings/chats", json={"admin_access": access})).status_code == 200

    assert (await chief.http.get(f"{CHATS}/{chat}")).status_code == plain
    assert (await chief.http.get(f"{CHATS}/{chat}", headers=WITH_REASON)).status_code == with_reason
    assert (await chat_rig.http.get(f"{CHATS}/{chat}/accesses")).json()["items"] == []
