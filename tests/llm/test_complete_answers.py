"""Complete answers and objects, from a model with given answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.complete_answers import add_usage, closed_schema, generate, generate_object, object_name
from rookery.llm.errors import CallFailed, NoObject, classify
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    FinishReason,
    ReasoningDelta,
    ResponseStarted,
    StreamError,
    StreamPart,
    TextDelta,
    Tool,
    ToolCall,
    Usage,
    UsageUpdate,
    Wire,
)

CALL = Call(
    prompt=Prompt((PromptMessage(role=Role.USER, parts=(PromptText("Name it."),)),)),
    tools=(Tool(name="other", description="", input_schema={"type": "object"}),),
)
NATIVE = Capabilities(json_schema=True)
FORCED = Capabilities(forced_tool_choice=True)
PLAIN = Capabilities()


class Inner(BaseModel):
    words: list[str]


class Title(BaseModel):
    title: str = Field(max_length=10)
    inner: Inner | None = None
    counts: dict[str, int] = {}


class Talker:
    """A model that gives the next of its answers to each call, and records the calls."""

    provider_id = UUID(int=1)
    provider_type = "openai_compat"
    model = "talker-1"
    wire: Wire = "completions"

    def __init__(self, caps: Capabilities, *answers: Sequence[StreamPart]) -> None:
        self.caps = caps
        self.calls: list[Call] = []
        self._answers = list(answers)

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        self.calls.append(call)
        for part in self._answers.pop(0):
            yield part


def said(text: str, reason: FinishReason = FinishReason.STOP) -> list[StreamPart]:
    return [TextDelta("0", text), Finish(reason, Usage(input=10, output=3))]


def called(arguments: str, name: str = "Title") -> list[StreamPart]:
    return [ToolCall("c1", name, arguments), Finish(FinishReason.TOOL_CALLS, Usage(input=10, output=5))]


def failed(status: int, text: str = "no such parameter") -> list[StreamPart]:
    return [UsageUpdate(Usage(input=4)), StreamError(classify("Talker", status, text=text))]


def texts(call: Call) -> list[tuple[Role, str]]:
    return [
        (message.role, part.text)
        for message in call.prompt.messages
        for part in message.parts
        if isinstance(part, PromptText)
    ]


async def test_generate_gathers_text_reasoning_calls_and_ids() -> None:
    usage = Usage(input=1, output=2)
    parts: list[StreamPart] = [
        ResponseStarted("resp", "talker-1-2026", "req"),
        ReasoningDelta("0", "hm"),
        TextDelta("1", "Hello "),
        TextDelta("1", "there"),
        ToolCall("c1", "run", "{}"),
        UsageUpdate(Usage(input=1)),
        Finish(FinishReason.TOOL_CALLS, usage, detail="why"),
    ]

    response = await generate(Talker(PLAIN, parts), CALL)

    assert (response.text, response.reasoning) == ("Hello there", "hm")
    assert [call.name for call in response.calls] == ["run"]
    assert (response.reason, response.usage, response.detail) == (FinishReason.TOOL_CALLS, usage, "why")
    assert (response.response_id, response.model, response.request_id) == ("resp", "talker-1-2026", "req")


async def test_generate_raises_the_error_with_the_usage_known_so_far() -> None:
    with pytest.raises(CallFailed) as caught:
        await generate(Talker(PLAIN, failed(529)), CALL)

    assert caught.value.error.kind is ErrorKind.OVERLOADED
    assert caught.value.usage == Usage(input=4)


async def test_model_with_formats_is_asked_for_the_format() -> None:
    model = Talker(NATIVE, said('{"title":"Ducks"}'))

    result = await generate_object(model, CALL, Title)

    assert result.value == Title(title="Ducks")
    assert (result.tries, result.finish_reason) == (1, FinishReason.STOP)
    sent = model.calls[0]
    assert sent.format is not None
    assert (sent.format.name, sent.tools) == ("Title", ())
    assert sent.prompt == CALL.prompt


async def test_model_with_forced_choice_is_made_to_call_the_tool() -> None:
    model = Talker(FORCED, called('{"title":"Ducks"}'))

    result = await generate_object(model, CALL, Title)

    assert result.value.title == "Ducks"
    sent = model.calls[0]
    assert ([tool.name for tool in sent.tools], sent.tool_choice, sent.format) == (["Title"], "Title", None)
    assert sent.prompt == CALL.prompt


async def test_model_without_forced_choice_is_asked_to_call_the_tool() -> None:
    model = Talker(PLAIN, called('{"title":"Ducks"}'))

    await generate_object(model, CALL, Title)

    sent = model.calls[0]
    assert ([tool.name for tool in sent.tools], sent.tool_choice) == (["Title"], "auto")
    assert "calling the tool Title" in texts(sent)[-1][1]


@pytest.mark.parametrize(
    "text",
    [
        '{"title":"Ducks"}',
        '  {"title": "Ducks"}\n',
        'Here it is:\n```json\n{"title":"Ducks"}\n```\nAnything else?',
        'Sure! {"title":"Ducks"} {and more}',
    ],
)
async def test_object_is_found_in_text_however_it_is_wrapped(text: str) -> None:
    result = await generate_object(Talker(PLAIN, said(text)), CALL, Title)

    assert result.value.title == "Ducks"
    assert result.tries == 1


async def test_server_that_refuses_formats_and_tools_is_asked_in_plain_words() -> None:
    model = Talker(NATIVE, failed(400), failed(422), said('{"title":"Ducks"}'))

    result = await generate_object(model, CALL, Title)

    assert result.tries == 1
    assert result.usage == Usage(input=4 + 4 + 10, output=3)
    plain = model.calls[2]
    assert (plain.tools, plain.format) == ((), None)
    assert '"additionalProperties": false' in texts(plain)[-1][1]


@pytest.mark.parametrize(("status", "text"), [(404, "invalid model"), (401, ""), (529, ""), (413, "too large")])
async def test_other_errors_are_not_answered_with_another_strategy(status: int, text: str) -> None:
    model = Talker(NATIVE, failed(status, text))

    with pytest.raises(CallFailed):
        await generate_object(model, CALL, Title)

    assert len(model.calls) == 1


@pytest.mark.parametrize("status", [400, 422])
async def test_server_that_refuses_the_temperature_is_asked_the_same_without(status: int) -> None:
    refused = failed(status, "Unsupported value: 'temperature' does not support 0 with this model.")
    model = Talker(NATIVE, refused, said("no object"), said('{"title": "x"}'))

    result = await generate_object(model, msgspec.structs.replace(CALL, temperature=0.0), Title)

    assert result.value.title == "x"
    assert [call.temperature for call in model.calls] == [0.0, None, None]
    assert all(call.format is not None for call in model.calls)
    assert result.usage.input == 4 + 10 + 10


async def test_temperature_that_was_not_sent_is_not_left_out() -> None:
    model = Talker(PLAIN, failed(400, "temperature"), failed(400, "temperature"))

    with pytest.raises(CallFailed):
        await generate_object(model, CALL, Title)

    assert len(model.calls) == 2


async def test_answer_with_faults_is_shown_them_and_may_repair_itself() -> None:
    model = Talker(NATIVE, said('{"title":"Ducks and more ducks"}'), said('{"title":"Ducks"}'))

    result = await generate_object(model, CALL, Title)

    assert (result.value.title, result.tries) == ("Ducks", 2)
    assert result.usage == Usage(input=20, output=6)
    (_, _), (role, answer), (_, faults) = texts(model.calls[1])
    assert (role, answer) == (Role.ASSISTANT, '{"title":"Ducks and more ducks"}')
    assert "title: String should have at most 10 characters" in faults


async def test_second_useless_answer_gives_it_up_with_all_usage() -> None:
    model = Talker(FORCED, called('{"title":7}'), said("I would rather not."))

    with pytest.raises(NoObject) as caught:
        await generate_object(model, CALL, Title)

    assert caught.value.raw_text == "I would rather not."
    assert caught.value.usage == Usage(input=20, output=8)
    assert caught.value.finish_reason is FinishReason.STOP
    assert len(model.calls) == 2


async def test_empty_answer_is_repaired_like_any_other() -> None:
    model = Talker(NATIVE, said(""), said('{"title":"Ducks"}'))

    result = await generate_object(model, CALL, Title)

    assert result.tries == 2
    assert texts(model.calls[1])[1] == (Role.ASSISTANT, "(no answer)")


async def test_refusal_by_policy_is_not_argued_with() -> None:
    model = Talker(NATIVE, said("", FinishReason.CONTENT_FILTER))

    with pytest.raises(NoObject) as caught:
        await generate_object(model, CALL, Title)

    assert caught.value.finish_reason is FinishReason.CONTENT_FILTER
    assert len(model.calls) == 1


async def test_error_in_the_repair_reports_the_usage_of_both_tries() -> None:
    model = Talker(NATIVE, said("no"), failed(500))

    with pytest.raises(CallFailed) as caught:
        await generate_object(model, CALL, Title)

    assert caught.value.usage == Usage(input=14, output=3)


def test_schema_is_closed_everywhere_but_where_it_says_otherwise() -> None:
    schema = closed_schema(Title)

    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Inner"]["additionalProperties"] is False
    assert schema["properties"]["counts"]["additionalProperties"] == {"type": "integer"}


def test_name_of_a_generic_class_is_one_that_providers_take() -> None:
    odd = type("List[Title]" + "x" * 80, (Title,), {"__module__": __name__})

    assert object_name(odd) == ("List_Title_" + "x" * 80)[:64]


def test_usage_adds_up_and_unreported_numbers_stay_unreported() -> None:
    total = add_usage(Usage(input=1, context_tokens=5), Usage(input=2, output=3, context_tokens=7))

    assert total == Usage(input=3, output=3, context_tokens=7)
