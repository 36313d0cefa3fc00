"""The advisor: its conditions, its prompt, its limit per turn, and its failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from rookery.agents.advisor import DEADLINE_SECONDS
from rookery.domain.chat import parts
from rookery.domain.chat.advisor_prompt import INSTRUCTIONS
from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.model_prompt import PromptCall, PromptResult
from rookery.domain.chat.states import Status
from rookery.domain.models.options import ProviderType
from rookery.live.part_buffer import EpisodeKey, EpisodeNotFound
from rookery.llm.scripted import CallTool, Count, Fail, Say, Step, Think, Wait
from rookery.llm.types import Call, ErrorKind, Purpose, Usage
from rookery.loop.config import LoopConfig
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput
from rookery.testing import FakeAnthropic, FakeClock, FakeCompletions, FakeResponses, fake_anthropic, fake_completions
from rookery.testing.fake_responses_events import FunctionCall, Text
from rookery.testing.fake_server import RecordedRequest, Scenario
from tests.agents.family_rig import FamilyRig, open_family, texts
from tests.agents.test_subagent_operations import steps
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


async def test_advisor_beside_a_tool_of_the_client_runs_neither_and_asks_no_client(database_url: str) -> None:
    pick = json.dumps([{"name": "pick", "description": "Picks.", "input_schema": {"type": "object"}}])
    async with open_family(database_url, parent=steps((ASK, CallTool("pick")), (Say("ok"),))) as rig:
        await rig.worker.set("advisor", ON)
        chat_id = await rig.worker.ask(dynamic_tools=pick)
        chat = await rig.worker.until_status(chat_id, Status.WAITING, Status.REQUIRES_ACTION)

        assert chat.status == Status.WAITING
        assert "pick" in {tool.name for tool in rig.worker.calls[0].tools}
        assert [said for role, said in await rig.worker.story(chat_id) if role == "tool"] == [
            "advisor=error",
            "pick=error",
        ]


async def test_calls_are_counted_by_the_type_of_their_result(database_url: str) -> None:
    tries: list[Call] = []

    def advice(call: Call) -> Sequence[Step]:
        tries.append(call)
        return (Fail(ErrorKind.AUTH, retryable=False),) if len(tries) == 1 else (Say("Go."),)

    async with open_family(database_url, parent=steps((ASK,), (ASK,), (ASK,), (Say("ok"),)), advice=advice) as rig:
        await asked(rig, {"enabled": True, "max_uses_per_run": 1})

        assert rig.advisor_stats.calls == {"error": 1, "advice": 1, "limit_reached": 1}
        # The counters of model calls and their durations count the nested calls as well.
        outcomes = [(purpose, status) for (_, _, purpose, status), _ in rig.call_stats.call_seconds.items()]
        assert sorted(outcomes) == [("advisor", "failed"), ("advisor", "ok")]
        assert [purpose for _, _, purpose in rig.call_stats.steps] == ["advisor"]


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


async def test_configured_model_is_read_from_the_database_and_not_from_the_cache(database_url: str) -> None:
    def parent(call: Call) -> Sequence[Step]:
        return (Say("ok"),) if is_after_result(call) else (ASK,)

    async with open_family(database_url, parent=parent) as rig:
        (first,) = await asked(rig, {"enabled": True, "model_config_id": str(rig.worker.quick)})

        # Without a hint, and sooner than the cache of models expires.
        await rig.sql(
            "UPDATE model_configs SET display_name = 'Q2', updated_at = now() WHERE id = $1", rig.worker.quick
        )
        (renamed,) = await told_in_a_new_chat(rig)
        await rig.sql("UPDATE model_configs SET enabled = false WHERE id = $1", rig.worker.quick)
        (replaced,) = await told_in_a_new_chat(rig)
        await rig.sql("UPDATE model_configs SET enabled = true WHERE id = $1", rig.worker.quick)
        provider = await rig.sql("SELECT provider_id FROM model_configs WHERE id = $1", rig.worker.quick)
        await rig.sql("UPDATE model_providers SET enabled = false WHERE id = $1", provider)
        (without_provider,) = await told_in_a_new_chat(rig)

        advised = [each["advisor_model"] for each in (first, renamed, replaced, without_provider)]
        assert advised == ["quick", "Q2", "test", "test"]


def is_after_result(call: Call) -> bool:
    return any(isinstance(part, PromptResult) for part in call.prompt.messages[-1].parts)


async def told_in_a_new_chat(rig: FamilyRig) -> list[Any]:
    chat_id = await rig.worker.ask()
    await rig.worker.rested(chat_id)
    return await rig.worker.results(chat_id)


async def test_model_that_cannot_be_read_is_replaced_and_the_effort_is_that_of_the_chats_model(
    database_url: str,
) -> None:
    options = {"reasoning_effort": {"default": "low", "max": "high"}}
    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),)), options=options) as rig:
        settings = {"enabled": True, "model_config_id": "the best one", "reasoning_effort": "high"}
        (given,) = await asked(rig, settings)

        assert given["advisor_model"] == "test"
        assert nested(rig)[0].effort == "low"


@pytest.mark.parametrize("limit", [{"max_uses_per_run": -1}, {"max_output_tokens": "many"}])
async def test_limit_that_cannot_be_read_turns_the_advisor_off(database_url: str, limit: dict[str, Any]) -> None:
    async with open_family(database_url, parent=lambda call: (Say("ok"),)) as rig:
        await asked(rig, {"enabled": True, **limit})

        (call,) = rig.worker.calls
        assert "advisor" not in {tool.name for tool in call.tools}


async def test_turn_fails_if_the_configured_model_has_no_key(database_url: str) -> None:
    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),))) as rig:
        provider = await rig.sql("SELECT provider_id FROM model_configs WHERE id = $1", rig.worker.quick)
        await rig.sql("UPDATE model_providers SET type = 'openai' WHERE id = $1", provider)
        await rig.worker.set("advisor", {"enabled": True, "model_config_id": str(rig.worker.quick)})

        error = await rig.worker.error(await rig.worker.ask())

        assert error.message.startswith("The advisor's model cannot be used: ")
        assert rig.worker.calls == []


async def test_limit_of_the_model_counts_if_it_is_smaller(database_url: str) -> None:
    options = {"max_output_tokens": 1000}
    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),)), options=options) as rig:
        await asked(rig)

        assert nested(rig)[0].max_output_tokens == 1000


async def test_reached_spend_limit_is_told_with_its_reason(database_url: str) -> None:
    # The first call of the turn uses up what the limit allows.
    parent = steps((Count(Usage(input=1000, output=1000)), ASK), (Say("ok"),))
    async with open_family(database_url, parent=parent) as rig:
        await rig.sql("UPDATE model_configs SET price_input = 1, price_output = 1 WHERE id = $1", rig.worker.model)
        await rig.worker.set("spend", {"enabled": True, "default_limit_micros": 1500, "period": "month"})
        (told,) = await asked(rig)

        assert (told["type"], told["remaining_uses"]) == ("limit_reached", 5)
        assert "limit" in told["reason"]
        assert nested(rig) == []


# A provider that is slow


async def test_slow_advice_is_shown_live_and_a_new_try_replaces_it(database_url: str) -> None:
    tries: list[Call] = []

    def advice(call: Call) -> Sequence[Step]:
        tries.append(call)
        return (Say("Half an idea"), Fail(ErrorKind.OVERLOADED)) if len(tries) == 1 else (Say("Go."), Wait(3600.0))

    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),)), advice=advice) as rig:
        await rig.worker.set("advisor", ON)
        chat_id = await rig.worker.ask()

        async def texts_shown() -> list[str]:
            """The text of each try: a reset begins the next one."""
            chat = await rig.worker.chat(chat_id)
            key = EpisodeKey(chat_id, chat.history_version, chat.generation_attempt)
            shown = [""]
            with suppress(EpisodeNotFound):
                for live in rig.worker.worker.buffer.get_parts(key):
                    if isinstance(live.part, parts.ToolResult):
                        shown += [""] if live.part.result_reset else []
                        shown[-1] += live.part.result_delta or ""
            return shown

        async def is_shown() -> bool:
            return await texts_shown() == ["Half an idea", "Go."]

        await until(is_shown)


async def test_user_stops_a_slow_advisor_and_what_it_sent_is_billed(database_url: str) -> None:
    def advice(call: Call) -> Sequence[Step]:
        return (Say("Well"), Wait(3600.0))

    async with open_family(database_url, parent=steps((ASK,), (Say("ok"),)), advice=advice) as rig:
        await rig.worker.set("advisor", ON)
        chat_id = await rig.worker.ask()
        await until(lambda: bool(nested(rig)))
        await rig.worker.interrupt(chat_id)
        chat = await rig.worker.until_status(chat_id, Status.WAITING)

        assert chat.last_error is None
        assert (await rig.worker.story(chat_id))[-1] == ("tool", "advisor=error")

        async def billed() -> bool:
            return bool(await rig.sql("SELECT status = 'interrupted' FROM model_usage WHERE purpose = 'advisor'"))

        await until(billed)


async def test_silent_advisor_ends_at_its_deadline_and_the_agent_goes_on(database_url: str) -> None:
    clock = FakeClock()
    parent = steps((ASK,), (Say("I go on alone."),))
    loop = LoopConfig(first_byte_seconds=10 * DEADLINE_SECONDS, stream_silence_seconds=10 * DEADLINE_SECONDS)

    def advice(call: Call) -> Sequence[Step]:
        return (Wait(10 * DEADLINE_SECONDS),)

    async with open_family(database_url, parent=parent, advice=advice, clock=clock, loop=loop) as rig:
        await rig.worker.set("advisor", ON)
        chat_id = await rig.worker.ask()
        await until(lambda: bool(nested(rig)))

        await clock.fire("tool")
        await rig.worker.rested(chat_id)

        (told,) = await rig.worker.results(chat_id)
        assert told["error"] == "advisor did not finish within 15 min and was stopped."
        assert (await rig.worker.story(chat_id))[-1] == ("assistant", "I go on alone.")


# The request of each wire


QUESTION = {"question": "Rewrite or patch?"}
LOOK = {"path": "/a"}
# An administrator may let the provider store and cache what chats send.
SHARING = {"store": True, "prompt_cache_key": "ours"}


def on_anthropic() -> tuple[Any, dict[str, Any]]:
    fake, text = FakeAnthropic(api_key=KEY), fake_anthropic.Text
    fake.answer(
        fake_anthropic.Answer([text("I look."), fake_anthropic.Call("look", LOOK)]),
        fake_anthropic.Answer([text("I think."), fake_anthropic.Call("advisor", QUESTION)]),
        fake_anthropic.Answer([text("Patch it.")]),
        fake_anthropic.Answer([text("I patch it.")]),
    )
    search = {"web_search_enabled": True}
    return fake, {"provider": ProviderType.ANTHROPIC, "model_name": "claude-sonnet-4-5", "options": search}


def on_responses() -> tuple[Any, dict[str, Any]]:
    fake = FakeResponses()
    fake.answer(Text(parts=("I look.",)), FunctionCall(name="look", arguments=json.dumps(LOOK)))
    fake.answer(Text(parts=("I think.",)), FunctionCall(name="advisor", arguments=json.dumps(QUESTION)))
    fake.answer(Text(parts=("Patch it.",)))
    fake.answer(Text(parts=("I patch it.",)))
    options = {**SHARING, "web_search_enabled": True}
    return fake, {"provider": ProviderType.OPENAI, "model_name": "gpt-5", "options": options}


def on_completions() -> tuple[Any, dict[str, Any]]:
    fake = FakeCompletions()
    look = fake_completions.FakeCall("look", json.dumps(LOOK), id="call_0")
    ask = fake_completions.FakeCall("advisor", json.dumps(QUESTION), id="call_1")
    fake.enqueue(
        fake_completions.Answer(text="I look.", calls=[look]),
        fake_completions.Answer(text="I think.", calls=[ask]),
        fake_completions.Answer(text="Patch it."),
        fake_completions.Answer(text="I patch it."),
    )
    return fake, {"provider": ProviderType.OPENAI_COMPAT, "model_name": "test", "options": SHARING}


SYSTEM = "You are an agent."
NOTE = '[parent used look, input {"path":"/a"}, got: seen]'
CACHED = {"cache_control": {"type": "ephemeral"}}


def anthropic_request() -> dict[str, Any]:
    def said(role: str, text: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text, **more}]}

    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 16_384,
        "stream": True,
        "system": [
            {"type": "text", "text": SYSTEM},
            {"type": "text", "text": INSTRUCTIONS, **CACHED},
        ],
        "messages": [
            said("user", "fix it"),
            said("assistant", "I look."),
            said("user", NOTE, **CACHED),
            said("assistant", "I think."),
            said("user", "Rewrite or patch?", **CACHED),
        ],
    }


def responses_request() -> dict[str, Any]:
    def said(role: str, text: str) -> dict[str, Any]:
        content: Any = text if role == "assistant" else [{"type": "input_text", "text": text}]
        return {"type": "message", "role": role, "content": content}

    return {
        "model": "gpt-5",
        "stream": True,
        "store": False,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 16_384,
        "reasoning": {"summary": "auto"},
        "input": [
            said("developer", SYSTEM),
            said("developer", INSTRUCTIONS),
            said("user", "fix it"),
            said("assistant", "I look."),
            said("user", NOTE),
            said("assistant", "I think."),
            said("user", "Rewrite or patch?"),
        ],
    }


def completions_request() -> dict[str, Any]:
    return {
        "model": "test",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16_384,
        "messages": [
            {"role": "system", "content": f"{SYSTEM}\n\n{INSTRUCTIONS}"},
            {"role": "user", "content": "fix it"},
            {"role": "assistant", "content": "I look."},
            {"role": "user", "content": NOTE},
            {"role": "assistant", "content": "I think."},
            {"role": "user", "content": "Rewrite or patch?"},
        ],
    }


WIRES = [
    pytest.param(on_anthropic, anthropic_request, id="anthropic"),
    pytest.param(on_responses, responses_request, id="responses"),
    pytest.param(on_completions, completions_request, id="completions"),
]


async def ask_on_wire(rig: FamilyRig) -> ChatId:
    await rig.worker.set("advisor", ON)
    first = NewMessage(role=Role.SYSTEM, content=(parts.Text(SYSTEM),))
    asked = NewMessage(role=Role.USER, content=(parts.Text("fix it"),), created_by=rig.worker.user)
    return await rig.worker.ask(messages=(first, asked))


@pytest.mark.parametrize(("on_wire", "expected"), WIRES)
async def test_request_of_every_wire_is_exactly_the_specified_prompt(
    database_url: str, on_wire: Any, expected: Any
) -> None:
    fake, options = on_wire()
    async with (
        fake.listening() as url,
        open_family(database_url, parent=lambda call: (), server=url, tools=[_look()], **options) as rig,
    ):
        chat_id = await ask_on_wire(rig)
        chat = await rig.worker.rested(chat_id)
        assert chat.last_error is None
        advice = (await rig.worker.results(chat_id))[-1]

        assert (advice["type"], advice["advice"]) == ("advice", "Patch it.")
        first, before, nested_call, after = (request for request in fake.requests if request.method == "POST")
        assert nested_call.body == expected()
        assert not [name for name in nested_call.headers if name.startswith("x-rookery")]
        # The options of the chat are the same before and after the nested call.
        told = {"messages", "input"}
        assert _without(before.body, told) == _without(after.body, told) == _without(first.body, told)
        assert after.body["tools"]
        assert after.body.get("prompt_cache_key") == options["options"].get("prompt_cache_key")


def _without(body: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


async def test_nested_call_leaves_the_memory_of_the_chat_alone(database_url: str) -> None:
    fake = FakeAnthropic(api_key=KEY, binds_thinking=False)
    asking, advising = asyncio.Event(), asyncio.Event()

    def held(answer: fake_anthropic.Answer, gate: asyncio.Event) -> Scenario:
        """The answer without its last event until the gate opens."""
        *events, last = fake.events(answer, {"model": "claude-sonnet-4-5", "messages": []})
        return Scenario(events=[*events, gate, last])

    thinking, text = fake_anthropic.Thinking("two ways"), fake_anthropic.Text
    fake.answer(
        held(fake_anthropic.Answer([thinking, text("Hm."), fake_anthropic.Call("advisor", QUESTION)]), asking),
        held(fake_anthropic.Answer([text("Patch it.")]), advising),
        fake_anthropic.Answer([text("I patch it.")]),
    )

    def memory(rig: FamilyRig) -> list[dict[Any, Any]]:
        """Every entry of every cache of the model clients, by identity."""
        caches = rig.worker.replicas[0].connector.caches
        return [{key: (id(entry.value), entry.size_bytes) for key, entry in each._entries.items()} for each in caches]

    async with (
        fake.listening() as url,
        open_family(
            database_url,
            parent=lambda call: (),
            server=url,
            provider=ProviderType.ANTHROPIC,
            model_name="claude-sonnet-4-5",
        ) as rig,
    ):
        chat_id = await ask_on_wire(rig)
        await until(lambda: len(posts(fake)) == 1)
        before = memory(rig)
        asking.set()
        await until(lambda: len(posts(fake)) == 2)
        during = memory(rig)
        advising.set()
        chat = await rig.worker.rested(chat_id)

        assert chat.last_error is None
        assert any(before)
        assert during == before
        first, _, last = (request.body for request in posts(fake))
        # The prefix of the chat is still the cached one, and its thinking is still replayed.
        assert last["messages"][: len(first["messages"]) - 1] == first["messages"][:-1]
        assert [block["type"] for block in last["messages"][1]["content"]] == ["thinking", "text", "tool_use"]


def posts(fake: FakeAnthropic) -> list[RecordedRequest]:
    return [request for request in fake.requests if request.method == "POST"]
