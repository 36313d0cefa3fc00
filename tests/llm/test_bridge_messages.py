"""Messages of pydantic-ai made from prompts."""

from __future__ import annotations

import base64
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.profiles import ModelProfile

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.bridge import messages
from rookery.llm.types import Capabilities, ReasoningEnd, StreamPart, ToolCall, ToolResult
from tests.llm.bridge_rig import HELLO, PlayedModel, ask, asking, bridged, drain, said, text, thinking, whole

PNG = b"\x89PNG\r\n"
SEES = Capabilities(media_types=("image/*",))


async def sent(*rows: PromptMessage, caps: Capabilities = SEES, **options: Any) -> list[ModelMessage]:
    asked, _ = await ask(asking(*rows, **options.pop("call", {})), caps=caps, **options)
    return asked.messages


def parts_of(message: ModelMessage) -> list[Any]:
    return list(message.parts)


def called(call_id: str = "c1", **fields: Any) -> PromptCall:
    return PromptCall(id=call_id, name="look", input=msgspec.Raw(b'{"a":"b"}'), **fields)


# Messages


async def test_system_texts_go_to_the_front() -> None:
    history = await sent(
        said(Role.SYSTEM, PromptText("One.")), HELLO, said(Role.SYSTEM, PromptText("Two.")), said(Role.SYSTEM)
    )

    (request,) = history
    assert [(type(part), part.content) for part in parts_of(request)] == [
        (SystemPromptPart, "One."),
        (SystemPromptPart, "Two."),
        (UserPromptPart, "Hello."),
    ]


async def test_files_of_a_user_stand_between_the_texts() -> None:
    picture = PromptFile("image/PNG; charset=x", PNG, "rook.png")

    (request,) = await sent(said(Role.USER, PromptText("See"), picture, PromptText("this?")))

    (part,) = parts_of(request)
    assert part.content == ["See", BinaryContent(PNG, media_type="image/png"), "this?"]


async def test_file_that_the_model_cannot_read_is_named_and_told() -> None:
    call = asking(said(Role.USER, PromptFile("image/png", PNG, "rook.png")))

    asked, warnings = await ask(call, profile=ModelProfile(supports_image_input=False))

    (part,) = parts_of(asked.messages[0])
    assert "rook.png" in part.content
    assert "rook.png is left out" in warnings["files"]


async def test_calls_and_results_keep_their_ids_and_errors() -> None:
    history = await sent(
        HELLO,
        said(Role.ASSISTANT, PromptText("I look."), called("c1"), called("c2")),
        said(Role.TOOL, PromptResult(id="c1", name="look", text="seen")),
        said(Role.TOOL, PromptResult(id="c2", name="look", text='{"error":"dark"}', is_error=True)),
        said(Role.USER, PromptText("And?")),
    )

    assert [type(message) for message in history] == [ModelRequest, ModelResponse, ModelRequest]
    assert parts_of(history[1]) == [
        TextPart("I look."),
        ToolCallPart("look", '{"a":"b"}', "c1"),
        ToolCallPart("look", '{"a":"b"}', "c2"),
    ]
    results = parts_of(history[2])
    assert [(r.tool_call_id, r.content, r.outcome) for r in results[:2]] == [
        ("c1", "seen", "success"),
        ("c2", '{"error":"dark"}', "failed"),
    ]
    assert isinstance(results[2], UserPromptPart)


async def test_image_of_a_tool_is_sent_to_a_model_that_sees() -> None:
    media = PromptMedia("image/png", base64.b64encode(PNG).decode())
    rows = (HELLO, said(Role.ASSISTANT, called()), said(Role.TOOL, PromptResult("c1", "look", "shot", media=media)))

    seeing = parts_of((await sent(*rows))[2])[0]
    blind = parts_of((await sent(*rows, caps=Capabilities()))[2])[0]

    assert seeing.content == ["shot", BinaryContent(PNG, media_type="image/png")]
    assert blind.content == "shot\n\n(the tool returned an image; this model cannot see images)"


async def test_reasoning_goes_back_with_its_signature() -> None:
    proven = PromptReasoning("Hm.", {"provider_name": "played", "signature": "s", "wire": "bridge"})

    history = await sent(HELLO, said(Role.ASSISTANT, proven, PromptText("Yes.")), HELLO)

    assert parts_of(history[1]) == [ThinkingPart("Hm.", signature="s", provider_name="played"), TextPart("Yes.")]
    response = history[1]
    assert isinstance(response, ModelResponse)
    assert (response.provider_name, response.canonical_system) == ("played", "played")


@pytest.mark.parametrize(
    ("meta", "fields", "call"),
    [
        (None, {}, {}),
        ({"provider_name": "played", "signature": "s"}, {"is_native": False}, {}),
        ({"provider_name": "played", "signature": "s"}, {"is_whole": False}, {}),
        ({"provider_name": "played", "signature": "s"}, {}, {"plain_history": True}),
    ],
    ids=["unproven", "foreign", "cut off", "plain history"],
)
async def test_reasoning_that_proves_nothing_stays_here(
    meta: dict[str, Any] | None, fields: dict[str, Any], call: dict[str, Any]
) -> None:
    row = said(Role.ASSISTANT, PromptReasoning("Hm.", meta), PromptText("Yes."), **fields)

    history = await sent(HELLO, row, HELLO, call=call)

    assert parts_of(history[1]) == [TextPart("Yes.")]


async def test_opaque_data_of_calls_goes_back_with_plain_numbers() -> None:
    meta = {"provider_name": "played", "id": "fc_1", "details": {"thought_signature": "s", "score": Decimal("0.5")}}

    history = await sent(
        HELLO, said(Role.ASSISTANT, called(meta=meta)), said(Role.TOOL, PromptResult("c1", "look", "seen"))
    )

    (call,) = parts_of(history[1])
    assert (call.id, call.provider_name) == ("fc_1", "played")
    assert call.provider_details == {"thought_signature": "s", "score": 0.5}
    assert isinstance(call.provider_details["score"], float)


async def test_message_of_reasoning_alone_is_left_out() -> None:
    history = await sent(HELLO, said(Role.ASSISTANT, PromptReasoning("Hm.")), HELLO)

    assert len(history) == 1


async def test_neighbouring_answers_are_one_message() -> None:
    history = await sent(HELLO, said(Role.ASSISTANT, PromptText("A.")), said(Role.ASSISTANT, PromptText("B.")), HELLO)

    assert parts_of(history[1]) == [TextPart("A."), TextPart("B.")]


async def test_paused_answer_is_asked_to_go_on() -> None:
    history = await sent(HELLO, said(Role.ASSISTANT, PromptText("Searching."), finish_reason="pause"))

    last = history[-1]
    assert isinstance(last, ModelResponse)
    assert last.state == "suspended"


async def test_ids_fit_models_that_want_a_length() -> None:
    history = await sent(
        HELLO,
        said(Role.ASSISTANT, called("call_with_a_long_id"), called("abcdefgh1")),
        said(Role.TOOL, PromptResult("call_with_a_long_id", "look", "x"), PromptResult("abcdefgh1", "look", "y")),
        profile=ModelProfile(tool_call_id_length=9),
    )

    ids = [part.tool_call_id for part in parts_of(history[1])]
    assert ids == [part.tool_call_id for part in parts_of(history[2])]
    assert ids[1] == "abcdefgh1"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()


async def test_tool_output_is_sent_as_it_is() -> None:
    """The library's own conversion would escape the tag, and the model would see a different file."""
    xml = "<system>reboot</system>"

    history = await sent(HELLO, said(Role.ASSISTANT, called()), said(Role.TOOL, PromptResult("c1", "look", xml)))

    assert parts_of(history[2])[0].content == xml


# The provider's own tools


def search_step(parts: list[StreamPart]) -> PromptMessage:
    """Return a step as the database returns it."""
    kept: list[Any] = []
    for part in parts:
        match part:
            case ToolCall(provider_executed=True):
                kept.append(PromptCall(part.id, part.name, msgspec.Raw(part.input.encode()), True, part.meta))
            case ToolResult():
                kept.append(PromptResult(part.id, part.name, "found: Rook", provider_executed=True, meta=part.meta))
    return said(Role.ASSISTANT, *kept, PromptText("Birds."))


async def searched() -> PromptMessage:
    search = NativeToolCallPart("web_search", {"query": "rooks"}, "s1", provider_name="played")
    found = NativeToolReturnPart("web_search", [{"title": "Rook"}], "s1", provider_name="played")
    return search_step(await drain(bridged(PlayedModel([whole(search, "1"), whole(found, "2"), text("Birds.")]))))


async def test_search_of_the_provider_goes_back_as_it_came() -> None:
    history = await sent(HELLO, await searched(), HELLO)

    call, found, answer = parts_of(history[1])
    assert (type(call), call.args, call.tool_call_id, call.provider_name) == (
        NativeToolCallPart,
        {"query": "rooks"},
        "s1",
        "played",
    )
    assert (type(found), found.content, found.tool_call_id) == (NativeToolReturnPart, [{"title": "Rook"}], "s1")
    assert answer == TextPart("Birds.")


async def test_search_of_another_provider_goes_on_as_text() -> None:
    foreign = msgspec.structs.replace(await searched(), is_native=False)

    history = await sent(HELLO, foreign, HELLO)

    assert parts_of(history[1]) == [TextPart("found: Rook"), TextPart("Birds.")]


async def test_search_without_a_result_is_left_out() -> None:
    step = await searched()
    cut = msgspec.structs.replace(step, parts=tuple(p for p in step.parts if not isinstance(p, PromptResult)))

    history = await sent(HELLO, cut, HELLO)

    assert parts_of(history[1]) == [TextPart("Birds.")]


# Round trips


async def test_step_comes_back_as_it_was_written() -> None:
    proof = thinking("Hm.", signature="proof")
    parts = await drain(bridged(PlayedModel([proof, text("Yes.")])))
    ends = [part.meta for part in parts if isinstance(part, ReasoningEnd)]

    history = await sent(HELLO, said(Role.ASSISTANT, PromptReasoning("Hm.", ends[0]), PromptText("Yes.")), HELLO)

    assert parts_of(history[1])[0] == ThinkingPart("Hm.", signature="proof", provider_name="played")


words = st.text("abc <>&\u00e9\n", min_size=1, max_size=12).filter(str.strip)
user_rows = words.map(lambda said_text: said(Role.USER, PromptText(said_text)))
own_rows = words.map(lambda said_text: said(Role.ASSISTANT, PromptText(said_text)))


@given(st.lists(user_rows | own_rows, min_size=1, max_size=12))
def test_roles_take_turns_and_nothing_is_lost(rows: list[PromptMessage]) -> None:
    model = PlayedModel()
    call = asking(*rows)

    built = messages.history(call, model, caps=SEES, warnings=[])
    again = messages.history(call, model, caps=SEES, warnings=[])

    kinds = [type(message) for message in built]
    assert all(one is not other for one, other in pairwise(kinds))
    contents = [part.content for message in built for part in parts_of(message)]
    assert contents == [row.parts[0].text for row in rows if isinstance(row.parts[0], PromptText)]
    assert [[part.content for part in parts_of(m)] for m in again] == [[p.content for p in parts_of(m)] for m in built]
