"""The comparison of two recorded runs over HTTP."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptMessage, PromptResult, PromptText
from rookery.llm.types import Call, Tool, Usage
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig
from tests.api.debug_rig import TOOL, DebugRecords, answered, said


@pytest.fixture
async def chats(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model("echo")
    return ChatRig(rig, ada)


@pytest.fixture
def records(rig: ApiRig) -> DebugRecords:
    return DebugRecords(rig.database.api)


async def compare(person: Person, chat: str, run: UUID, other: UUID, expected: int = 200) -> Any:
    got = await person.http.get(f"{CHATS}/{chat}/debug/runs/{run}/compare", params={"other": str(other)})
    assert got.status_code == expected, got.text
    return got.json()


async def test_runs_are_compared_by_prompts_tokens_cost_and_time(
    chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat = await chats.create()
    one, _ = await records.run(chat, [said("Hello."), said("Hello.", "Hi.", "Go on.")])
    other, steps = await records.run(
        chat,
        [said("Hello."), said("Hello.", "Good day.", "Go on."), said("Hello.", "Good day.", "Go on.", "Yes.", "More.")],
        parts=answered("Hi.", Usage(input=300, output=7)),
        minutes=1,
    )

    found = await compare(ada, chat, one, other)

    assert [found[side]["run"]["id"] for side in ("one", "other")] == [str(one), str(other)]
    left, right = found["one"]["figures"], found["other"]["figures"]
    assert (left["step_count"], left["input_tokens"], left["output_tokens"], left["cost_micros"]) == (2, 200, 40, 234)
    assert (left["cache_read_tokens"], left["ttft_ms"], left["duration_ms"]) == (10_000, 250, 9000)
    assert (right["step_count"], right["input_tokens"], right["cost_micros"]) == (3, 900, 351)
    message = found["message"]
    assert (message["number"], message["index"]) == (2, 1)
    assert [message[side]["parts"][0]["text"] for side in ("one", "other")] == ["Hi.", "Good day."]
    assert [(pair["same_messages"], pair["changed"], pair["has_same_answer"]) for pair in found["steps"]] == [
        (1, [], True),
        (1, [], True),
        (None, None, None),
    ]
    assert found["steps"][2]["one"] is None
    assert found["steps"][2]["other"]["id"] == str(steps[2])
    assert found["tools"] is None


async def test_prompt_that_only_goes_on_differs_where_the_shorter_one_ends(
    chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat = await chats.create()
    one, _ = await records.run(chat, [said("Hello.")])
    other, _ = await records.run(chat, [said("Hello.", "Hi.", "Go on.")])

    message = (await compare(ada, chat, one, other))["message"]

    assert (message["number"], message["index"], message["one"]) == (1, 1, None)
    assert message["other"]["parts"][0]["text"] == "Hi."


async def test_changed_settings_and_tools_are_named(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    chat, call = await chats.create(), said("Hello.")
    write = Tool(name="write_file", description="Write a file.", input_schema={})
    changed = msgspec.structs.replace(
        call,
        effort=Effort.HIGH,
        temperature=0.5,
        tools=(msgspec.structs.replace(TOOL, description="Read a whole file."), write),
    )
    one, _ = await records.run(chat, [call])
    other, _ = await records.run(chat, [changed], model="parrot", parts=answered("Good day."))

    found = await compare(ada, chat, one, other)

    assert found["message"] is None
    assert found["steps"][0]["changed"] == ["model", "tools", "effort", "temperature"]
    assert found["steps"][0]["has_same_answer"] is False
    assert found["tools"] == {"number": 1, "only_one": [], "only_other": ["write_file"], "changed": ["read_file"]}


async def test_ids_of_tool_calls_are_no_difference(chats: ChatRig, records: DebugRecords, ada: Person) -> None:
    def call(call_id: str, result: str) -> Call:
        parts = (
            PromptMessage(role=Role.USER, parts=(PromptText("Read it."),)),
            PromptMessage(
                role=Role.ASSISTANT, parts=(PromptCall(id=call_id, name="read_file", input=msgspec.Raw(b"{}")),)
            ),
            PromptMessage(role=Role.TOOL, parts=(PromptResult(id=call_id, name="read_file", text=result),)),
            PromptMessage(role=Role.USER, parts=(PromptText("Go on."),)),
        )
        return Call(prompt=Prompt(parts), tools=(TOOL,))

    chat = await chats.create()
    one, _ = await records.run(chat, [call("a", "same")])
    same, _ = await records.run(chat, [call("b", "same")])
    other, _ = await records.run(chat, [call("c", "other")])

    assert (await compare(ada, chat, one, same))["message"] is None
    assert (await compare(ada, chat, one, other))["message"]["index"] == 2


async def test_step_without_a_recorded_prompt_is_not_compared(
    rig: ApiRig, chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat = await chats.create()
    calls = [said("Hello."), said("Hello.", "Hi.", "Go on.")]
    one, steps = await records.run(chat, calls)
    other, _ = await records.run(chat, calls)
    await rig.database.api.execute("UPDATE chat_debug_steps SET normalized_request = '{}' WHERE id = $1", steps[0])

    found = await compare(ada, chat, one, other)

    assert [pair["same_messages"] for pair in found["steps"]] == [None, None]
    assert found["message"] is None


async def test_run_is_compared_with_another_run_of_the_chat_only(
    chats: ChatRig, records: DebugRecords, ada: Person, ben: Person
) -> None:
    chat, elsewhere = await chats.create(), await chats.create()
    one, _ = await records.run(chat, [said("Hello.")])
    other, _ = await records.run(chat, [said("Hello.")])
    foreign, _ = await records.run(elsewhere, [said("Hello.")])

    assert (await compare(ada, chat, one, one, 400))["fields"][0]["field"] == "other"
    assert (await compare(ada, chat, one, foreign, 404))["code"] == "not_found"
    assert (await compare(ben, chat, one, other, 404))["code"] == "chat_not_found"


async def test_runs_of_1000_steps_are_compared_with_two_seconds_of_processor_time(
    chats: ChatRig, records: DebugRecords, ada: Person
) -> None:
    chat = await chats.create()
    texts, calls = ["Hello."], list[Call]()
    for number in range(1000):
        calls.append(said(*texts))
        texts += [f"answer {number} " + "word " * 50, f"result {number} " + "word " * 50]
    one, _ = await records.run(chat, calls)
    other, _ = await records.run(chat, [*calls[:-1], said(*texts[:-3], "another end")])

    started = time.process_time()
    found = await compare(ada, chat, one, other)
    seconds = time.process_time() - started

    print(f"{seconds:.2f} s")
    assert (found["message"]["number"], found["message"]["index"]) == (1000, 1998)
    assert seconds < 2
