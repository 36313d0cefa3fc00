"""The advisor: when it is offered, what it is sent, how often it answers, and how it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from rookery.domain.chat.prompt_parts import PromptCall, PromptResult
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import CallTool, Fail, Say, Step, Think
from rookery.llm.types import Call, ErrorKind, Purpose
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput
from rookery.testing import FakeAnthropic, FakeCompletions, FakeResponses, fake_anthropic, fake_completions
from rookery.testing.fake_responses_events import FunctionCall, Text
from tests.agents.family_rig import FamilyRig, open_family, texts
from tests.agents.test_family import steps
from tests.eventually import until
from tests.scripted_tools import ScriptedTool
from tests.worker.worker_rig import KEY

ASK = CallTool("advisor", {"question": "Rewrite or patch?"})
ON = {"enabled": True}


def nested(rig: FamilyRig) -> list[Call]:
    return [call for call in rig.worker.calls if call.purpose is Purpose.ADVISOR]


async def asked(rig: FamilyRig, settings: dict[str, Any] = ON, words: str = "hello", **fields: object) -> list[Any]:
    """Run a turn with these settings, and return its results."""
    await rig.worker.set("advisor", settings)
    chat_id = await rig.worker.ask(words, **fields)
    await rig.worker.rested(chat_id)
    return await rig.worker.results(chat_id)


async def test_agent_gets_advice_and_goes_on(database_url: str) -> None:
    parent = steps((Think("two ways"), Say("I could rewrite it."), ASK), (Say("I patch it."),))
    async with open_family(database_url, parent=parent) as rig:
        (advice,) = await asked(rig)

        assert (advice["type"], advice["advice"], advice["remaining_uses"]) == ("advice", "Do it.", 4)
        assert advice["advisor_model"] == "test"
        (call,) = nested(rig)
        told = texts(call)
        assert "I could rewrite it." in told
        assert "two ways" in told
        assert told.endswith("Rewrite or patch?")
        assert "advisor-guidance" not in told
        assert not any(
            isinstance(part, PromptCall | PromptResult) for each in call.prompt.messages for part in each.parts
        )


async def test_guidance_tool_and_exclusive_set_follow_one_switch(database_url: str) -> None:
    async with open_family(database_url, parent=lambda call: (Say("ok"),)) as rig:
        await asked(rig, {"enabled": False})
        without = rig.worker.calls[-1]
        await asked(rig, ON)
        offered = rig.worker.calls[-1]
        await asked(rig, ON, plan_mode=True)
        planning = rig.worker.calls[-1]
        await asked(rig, ON, mode="explore")
        exploring = rig.worker.calls[-1]

        for call in (without, planning, exploring):
            assert "advisor" not in {tool.name for tool in call.tools}
            assert "advisor-guidance" not in texts(call)
        assert "advisor" in {tool.name for tool in offered.tools}
        assert "advisor-guidance" in texts(offered)


async def test_nested_call_has_an_identity_of_its_own_and_no_tools(database_url: str) -> None:
    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),))) as rig:
        await asked(rig)

        (call,) = nested(rig)
        assert (call.tools, call.web_search, call.chat_id, call.cache_key) == ((), None, None, None)
        assert call.max_output_tokens == 16_384


async def test_prompt_and_options_of_the_parent_are_the_same_with_and_without_advice(database_url: str) -> None:
    async with open_family(database_url, parent=steps((CallTool("look"),), (Say("ok"),)), tools=[_look()]) as rig:
        await asked(rig)
        plain = [call for call in rig.worker.calls if call.purpose is Purpose.TURN][-2:]
    parent = steps((ASK,), (CallTool("look"),), (Say("ok"),))
    async with open_family(database_url, parent=parent, tools=[_look()]) as rig:
        await asked(rig)
        first, *_, last = [call for call in rig.worker.calls if call.purpose is Purpose.TURN]

        assert first.options == plain[0].options
        assert (last.options, last.headers, last.max_output_tokens) == (
            first.options,
            first.headers,
            first.max_output_tokens,
        )
        # The prefix grew and changed nowhere.
        assert last.prompt.messages[: len(first.prompt.messages)] == first.prompt.messages


def _look() -> ScriptedTool:
    async def look(ctx: ToolContext, given: ToolCall) -> ToolOutput:
        return ToolOutput("seen")

    return ScriptedTool("look", look)


async def test_uses_of_a_turn_are_counted_from_its_history(database_url: str) -> None:
    parent = steps((ASK,), (ASK,), (Say("ok"),))
    async with open_family(database_url, parent=parent) as rig:
        first, second = await asked(rig, {"enabled": True, "max_uses_per_run": 1})

        assert (first["type"], first["remaining_uses"]) == ("advice", 0)
        assert (second["type"], second["remaining_uses"]) == ("limit_reached", 0)
        assert len(nested(rig)) == 1


async def test_limit_holds_after_the_replica_died(database_url: str) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()

    async def hold(ctx: ToolContext, given: ToolCall) -> ToolOutput:
        reached.set()
        await gate.wait()
        return ToolOutput("held")

    parent = steps((ASK,), (CallTool("hold"),), (ASK,), (Say("ok"),))
    async with open_family(database_url, parent=parent, tools=[ScriptedTool("hold", hold)], workers=2) as rig:
        await rig.worker.set("advisor", {"enabled": True, "max_uses_per_run": 1})
        chat_id = await rig.worker.ask()
        await until(reached.is_set)
        owner = (await rig.worker.chat(chat_id)).worker_id
        rig.worker.replicas.sort(key=lambda each: each.id != owner)
        await rig.worker.crash()
        gate.set()
        await rig.worker.rested(chat_id)

        kinds = [each.get("type") for each in await rig.worker.results(chat_id)]
        assert (kinds[0], kinds[-1]) == ("advice", "limit_reached")


async def test_next_message_of_the_user_gives_the_uses_back(database_url: str) -> None:
    def parent(call: Call) -> Sequence[Step]:
        last = call.prompt.messages[-1]
        return (Say("ok"),) if any(isinstance(part, PromptResult) for part in last.parts) else (ASK,)

    async with open_family(database_url, parent=parent) as rig:
        await rig.worker.set("advisor", {"enabled": True, "max_uses_per_run": 1})
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)
        await rig.worker.send(chat_id, "once more")

        async def twice() -> bool:
            return len(await rig.worker.results(chat_id)) == 2

        await until(twice)
        assert [each["type"] for each in await rig.worker.results(chat_id)] == ["advice", "advice"]


async def test_failed_call_is_an_error_and_does_not_count(database_url: str) -> None:
    tries: list[Call] = []

    def advice(call: Call) -> Sequence[Step]:
        tries.append(call)
        is_first = len(tries) == 1
        return (Fail(ErrorKind.AUTH, retryable=False),) if is_first else (Say("Go."),)

    parent = steps((ASK,), (ASK,), (Say("ok"),))
    async with open_family(database_url, parent=parent, advice=advice) as rig:
        failed, advice_given = await asked(rig, {"enabled": True, "max_uses_per_run": 1})

        assert failed["type"] == "error"
        assert failed["error"]
        assert advice_given["type"] == "advice"


async def test_passing_failure_is_tried_again(database_url: str) -> None:
    tries: list[Call] = []

    def advice(call: Call) -> Sequence[Step]:
        tries.append(call)
        return (Say("Hm"), Fail(ErrorKind.OVERLOADED)) if len(tries) < 3 else (Say("Go."),)

    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),)), advice=advice) as rig:
        (given,) = await asked(rig)

        assert (given["type"], given["advice"], len(tries)) == ("advice", "Go.", 3)
        statuses = await rig.sql(
            "SELECT array_agg(status ORDER BY id) FROM model_usage WHERE purpose = 'advisor'",
        )
        assert statuses == ["failed", "failed", "ok"]


async def test_answer_without_text_names_what_came_instead(database_url: str) -> None:
    parent = steps((ASK,), (Say("ok"),))
    async with open_family(database_url, parent=parent, advice=lambda call: (Think("silence"),)) as rig:
        (failed,) = await asked(rig)

        assert failed["type"] == "error"
        assert "reasoning" in failed["error"]


async def test_advisor_beside_another_tool_runs_neither(database_url: str) -> None:
    tool = _look()
    async with open_family(database_url, parent=steps((ASK, CallTool("look")), (Say("ok"),)), tools=[tool]) as rig:
        refused = await asked(rig)

        assert len(refused) == 2
        assert all("error" in each for each in refused)
        assert tool.runs == []
        assert nested(rig) == []


async def test_blank_question_is_refused_and_a_long_one_is_cut(database_url: str) -> None:
    parent = steps(
        (CallTool("advisor", {"question": "  "}),), (CallTool("advisor", {"question": "x" * 5000}),), (Say("ok"),)
    )
    async with open_family(database_url, parent=parent) as rig:
        refused, given = await asked(rig)

        assert "blank" in refused["error"]
        assert given["type"] == "advice"
        assert texts(nested(rig)[0]).endswith("\n" + "x" * 2000)


async def test_configured_model_answers_with_its_effort(database_url: str) -> None:
    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),))) as rig:
        (given,) = await asked(rig, {"enabled": True, "model_config_id": str(rig.worker.quick)})

        assert given["advisor_model"] == "quick"


async def test_disabled_model_is_replaced_by_the_chats_own(database_url: str) -> None:
    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),))) as rig:
        await rig.sql("UPDATE model_configs SET enabled = false WHERE id = $1", rig.worker.quick)
        (given,) = await asked(rig, {"enabled": True, "model_config_id": str(rig.worker.quick)})

        assert given["advisor_model"] == "test"


async def test_cost_is_counted_under_its_purpose(database_url: str) -> None:
    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),))) as rig:
        await asked(rig)

        purposes = await rig.sql("SELECT array_agg(purpose ORDER BY id) FROM model_usage WHERE purpose <> 'label'")
        assert purposes.count("advisor") == 1


QUESTION = {"question": "Rewrite or patch?"}


def on_anthropic() -> tuple[Any, ProviderType, str]:
    fake, text = FakeAnthropic(api_key=KEY), fake_anthropic.Text
    fake.answer(
        fake_anthropic.Answer([text("I think."), fake_anthropic.Call("advisor", QUESTION)]),
        fake_anthropic.Answer([text("Patch it.")]),
        fake_anthropic.Answer([text("I patch it.")]),
    )
    return fake, ProviderType.ANTHROPIC, "claude-sonnet-4-5"


def on_responses() -> tuple[Any, ProviderType, str]:
    fake = FakeResponses()
    fake.answer(Text(parts=("I think.",)), FunctionCall(name="advisor", arguments=json.dumps(QUESTION)))
    fake.answer(Text(parts=("Patch it.",)))
    fake.answer(Text(parts=("I patch it.",)))
    return fake, ProviderType.OPENAI, "gpt-5"


def on_completions() -> tuple[Any, ProviderType, str]:
    fake = FakeCompletions()
    call = fake_completions.FakeCall("advisor", json.dumps(QUESTION), id="call_1")
    fake.enqueue(
        fake_completions.Answer(text="I think.", calls=[call]),
        fake_completions.Answer(text="Patch it."),
        fake_completions.Answer(text="I patch it."),
    )
    return fake, ProviderType.OPENAI_COMPAT, "test"


@pytest.mark.parametrize("on_wire", [on_anthropic, on_responses, on_completions])
async def test_request_of_every_wire_has_the_question_and_no_tools(database_url: str, on_wire: Any) -> None:
    fake, provider, model = on_wire()
    options: dict[str, Any] = {"provider": provider, "model_name": model}
    async with (
        fake.listening() as url,
        open_family(database_url, parent=lambda call: (), server=url, **options) as rig,
    ):
        await rig.worker.set("advisor", ON)
        chat_id = await rig.worker.ask()
        chat = await rig.worker.rested(chat_id)
        assert chat.last_error is None
        (given,) = await rig.worker.results(chat_id)

        assert (given["type"], given["advice"]) == ("advice", "Patch it.")
        first, second, third = (request.body for request in fake.requests if request.method == "POST")
        assert not second.get("tools")
        assert "previous_response_id" not in second
        assert second.get("store") in (None, False)
        assert "prompt_cache_key" not in second
        assert "Rewrite or patch?" in str(second)
        assert "You advise another agent" in str(second)
        assert "advisor-guidance" not in str(second)
        assert first["tools"] == third["tools"]
