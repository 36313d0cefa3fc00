from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.api.house import House, Person

CHATS = "/api/v1/chats"


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


@pytest.fixture
async def model(house: House) -> UUID:
    return await house.add_model()


async def create(person: Person, words: str = "Say hello", **members: object) -> dict[str, Any]:
    made = await person.http.post(CHATS, json={"content": text(words), **members})
    assert made.status_code == 201, made.text
    chat: dict[str, Any] = made.json()
    return chat


async def test_created_chat_runs_and_is_where_its_location_says(ada: Person, model: UUID) -> None:
    made = await ada.http.post(CHATS, json={"content": text("Sort the books by colour, then by size, please")})

    assert made.status_code == 201, made.text
    chat = made.json()
    assert made.headers["location"] == f"{CHATS}/{chat['id']}"
    assert (chat["status"], chat["my_role"], chat["owner"]["username"]) == ("running", "owner", "ada")
    assert chat["title"] == "Sort the books by colour, then..."
    assert (chat["last_model_config_id"], chat["client_type"]) == (str(model), "api")
    assert (chat["files"], chat["dynamic_tools"], chat["children"]) == ([], [], [])
    assert (await ada.http.get(made.headers["location"])).json() == chat
