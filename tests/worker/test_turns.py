"""Whole turns: a message goes in, and the worker brings it to its end."""

from __future__ import annotations

from rookery.chat.states import Status
from rookery.llm.scripted import Say
from tests.worker.house import open_house


async def test_message_is_answered(database_url: str) -> None:
    async with open_house(database_url, script=(Say("Good morning."),)) as house:
        chat_id = await house.ask("hello")

        chat = await house.rested(chat_id)

        assert chat.status == Status.WAITING
        assert await house.story(chat_id) == [("user", "hello"), ("assistant", "Good morning.")]
