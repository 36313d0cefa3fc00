"""The search indexer: messages are searchable soon after their commit."""

from __future__ import annotations

from rookery.llm.scripted import Say
from tests.eventually import until
from tests.worker.worker_rig import STILL, in_turn, open_house

FIND = "SELECT count(*) FROM chat_message_search WHERE tsv @@ 'kingfisher'::tsquery"


async def test_answer_is_searchable_soon_after_its_commit_without_the_job(database_url: str) -> None:
    async with open_house(database_url, script=in_turn((Say("a kingfisher"),)), config=STILL) as rig:
        chat_id = await rig.ask()
        await rig.rested(chat_id)

        async def is_found() -> bool:
            return bool(await rig.sql(FIND))

        await until(is_found)
