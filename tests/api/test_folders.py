"""Folders of chats over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from rookery.domain.chat import folders as rules
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig
from tests.api.test_agents import spawn

FOLDERS = "/api/v1/folders"


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


async def make(person: Person, name: str, **members: object) -> dict[str, Any]:
    made = await person.http.post(FOLDERS, json={"name": name, **members})
    assert made.status_code == 201, made.text
    assert made.headers["Location"] == f"{FOLDERS}/{made.json()['id']}"
    return dict(made.json())


async def found(person: Person, query: str) -> list[str]:
    answered = await person.http.get(CHATS, params={"q": query})
    assert answered.status_code == 200, answered.text
    return [each["id"] for each in answered.json()["items"]]


async def move(person: Person, chat: str, folder: str | None) -> Any:
    return await person.http.patch(f"{CHATS}/{chat}", json={"folder_id": folder})


async def test_folder_holds_the_chats_that_are_moved_into_it(chat_rig: ChatRig, ada: Person) -> None:
    work, home = await make(ada, "Work", color="blue"), await make(ada, "home")
    inside, outside = await chat_rig.create("in"), await chat_rig.create("out")

    moved = await move(ada, inside, work["id"])
    listed = (await ada.http.get(FOLDERS)).json()["items"]

    assert moved.json()["folder_id"] == work["id"]
    assert [(each["name"], each["color"], each["chats"]) for each in listed] == [
        ("home", "gray", 0),
        ("Work", "blue", 1),
    ]
    assert await found(ada, "folder:work") == await found(ada, f"folder:{work['id']}") == [inside]
    assert await found(ada, "folder:home") == await found(ada, f"folder:{uuid4()}") == []
    await move(ada, inside, home["id"])
    assert (await found(ada, "folder:work"), await found(ada, "folder:home")) == ([], [inside])
    assert (await move(ada, inside, None)).json()["folder_id"] is None
    assert set(await found(ada, "")) == {inside, outside}


async def test_pinned_chat_is_listed_in_its_folder_and_only_there(chat_rig: ChatRig, ada: Person) -> None:
    work = await make(ada, "Work")
    inside, pinned = await chat_rig.create("in"), await chat_rig.create("pinned elsewhere")
    await move(ada, inside, work["id"])
    for chat in (inside, pinned):
        await ada.http.patch(f"{CHATS}/{chat}", json={"pin_order": 1})

    assert await found(ada, "folder:work") == [inside]


async def test_subagent_has_the_folder_of_its_root_and_is_not_moved_alone(chat_rig: ChatRig, ada: Person) -> None:
    work = await make(ada, "Work")
    root = await chat_rig.create()
    child = await spawn(chat_rig, root)

    await move(ada, root, work["id"])
    refused = await move(ada, child, work["id"])

    assert (await chat_rig.get(child))["folder_id"] == work["id"]
    assert [each["folder_id"] for each in (await chat_rig.get(root))["children"]] == [work["id"]]
    assert (refused.status_code, refused.json()["code"]) == (400, "not_root_chat")
    assert (await ada.http.get(FOLDERS)).json()["items"][0]["chats"] == 1


async def test_deleted_folder_leaves_its_chats(chat_rig: ChatRig, ada: Person) -> None:
    work = await make(ada, "Work")
    chat = await chat_rig.create()
    await move(ada, chat, work["id"])

    deleted = await ada.http.delete(f"{FOLDERS}/{work['id']}")

    assert deleted.status_code == 204
    assert (await chat_rig.get(chat))["folder_id"] is None
    assert (await ada.http.delete(f"{FOLDERS}/{work['id']}")).status_code == 404
    assert (await ada.http.patch(f"{FOLDERS}/{work['id']}", json={"name": "x"})).status_code == 404
    assert (await move(ada, chat, work["id"])).json()["fields"][0]["field"] == "folder_id"


async def test_folders_of_a_user_are_hidden_from_other_users(rig: ApiRig, chat_rig: ChatRig, ada: Person) -> None:
    bob = await rig.add("bob")
    work = await make(ada, "Work")
    chat = await chat_rig.create()
    await move(ada, chat, work["id"])
    await ada.http.patch(f"{CHATS}/{chat}/acl", json={"users": {str(bob.id): "read"}})
    foreign = await ChatRig(rig, bob).create()

    assert (await bob.http.get(FOLDERS)).json()["items"] == []
    assert (await bob.http.get(f"{CHATS}/{chat}")).json()["folder_id"] is None
    assert await found(bob, f"folder:{work['id']} source:created_by_me,shared_with_me") == []
    assert (await move(bob, foreign, work["id"])).json()["fields"][0]["field"] == "folder_id"
    assert (await move(bob, chat, None)).status_code == 403
    assert (await bob.http.patch(f"{FOLDERS}/{work['id']}", json={"name": "mine"})).status_code == 404
    assert (await bob.http.delete(f"{FOLDERS}/{work['id']}")).status_code == 404
    assert (await make(bob, "Work"))["id"] != work["id"]


async def test_two_folders_never_have_the_same_name(ada: Person) -> None:
    await make(ada, "Work")
    other = await make(ada, "Other")

    again = await ada.http.post(FOLDERS, json={"name": " wORK "})
    renamed = await ada.http.patch(f"{FOLDERS}/{other['id']}", json={"name": "WORK"})
    kept = await ada.http.patch(f"{FOLDERS}/{other['id']}", json={"name": "OTHER", "color": "red"})

    for refused in (again, renamed):
        assert (refused.status_code, refused.json()["code"]) == (409, "already_exists")
    assert (kept.json()["name"], kept.json()["color"]) == ("OTHER", "red")


async def test_concurrent_requests_cannot_exceed_the_number_of_folders(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_FOLDERS", 3)

    made = await asyncio.gather(*(ada.http.post(FOLDERS, json={"name": f"Folder {n}"}) for n in range(8)))

    assert sorted(each.status_code for each in made) == [201] * 3 + [400] * 5
    assert "at most 3 folders" in next(each for each in made if each.status_code == 400).json()["message"]


async def test_chat_and_user_can_be_deleted_with_their_folder(chat_rig: ChatRig, ada: Person) -> None:
    work = await make(ada, "Work")
    chat = await chat_rig.waiting()
    await move(ada, chat, work["id"])

    archived = await ada.http.patch(f"{CHATS}/{chat}", json={"archived": True})

    assert archived.json()["folder_id"] == work["id"]
    assert (await ada.http.get(FOLDERS)).json()["items"][0]["chats"] == 0
    assert (await ada.http.delete(f"{CHATS}/{chat}")).status_code == 204
    assert (await ada.http.get(FOLDERS)).json()["items"][0]["chats"] == 0
