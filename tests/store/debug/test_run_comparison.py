"""The first message in which the prompts of two runs differ, found by hashes of what each step stores."""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.domain.chat.states import State
from rookery.store.debug import record_reads, run_comparison
from rookery.store.debug.run_comparison import ComparedRun, FirstDifference
from tests.api.debug_rig import DebugRecords, said
from tests.store.machine.machine_rig import Rig, make_rig

Texts = list[str]
PROMPTS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=4)


async def compare(
    rig: Rig, one: list[Texts], other: list[Texts]
) -> tuple[ComparedRun, ComparedRun, FirstDifference | None]:
    records, chat_id = DebugRecords(rig.pool), await rig.chat(State.R0)
    made = [(await records.run(chat_id, [said(*texts) for texts in prompts]))[0] for prompts in (one, other)]
    async with rig.pool.acquire() as conn:
        found = [await record_reads.find_run(conn, chat_id, run_id) for run_id in made]
        left, right = [await run_comparison.read_compared(conn, run) for run in found if run is not None]
        return left, right, await run_comparison.find_difference(conn, left, right)


def expected(one: list[Texts], other: list[Texts]) -> tuple[int, int, str | None, str | None] | None:
    for number, (left, right) in enumerate(zip(one, other, strict=False), 1):
        for index in range(max(len(left), len(right))):
            texts = [prompt[index] if index < len(prompt) else None for prompt in (left, right)]
            if texts[0] != texts[1]:
                return number, index, texts[0], texts[1]
    return None


def text_of(message: msgspec.Raw | None) -> str | None:
    if message is None:
        return None
    text: str = msgspec.json.decode(message)["parts"][0]["text"]
    return text


@given(one=PROMPTS, other=PROMPTS)
@settings(max_examples=60)
def test_first_message_that_differs_is_found_through_shared_prefixes(
    shared_database_url: str, one: list[Texts], other: list[Texts]
) -> None:
    async def check() -> None:
        async with make_rig(shared_database_url) as rig:
            left, right, found = await compare(rig, one, other)
            shown = found and (found.number, found.index, text_of(found.one), text_of(found.other))
            assert shown == expected(one, other)
            for compared, prompts in ((left, one), (right, other)):
                assert [len(compared.prompts[n].messages) for n in sorted(compared.prompts)] == [*map(len, prompts)]

    asyncio.run(check())
