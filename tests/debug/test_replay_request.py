"""The replay form: a request can be sent again as it was, without secrets and without media."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.debug import replay_request
from rookery.debug.normalization import Prefix, PromptHashes
from rookery.debug.redaction import Redactor
from rookery.debug.replay_request import Incomplete, ReplayRequest
from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.types import Call, JsonFormat, Tool, WebSearch
from rookery.telemetry.redaction import SecretRegistry

CANARY = "canary-9f8e7d6c5b4a-private"
TOOL = Tool(name="login", description="Log in.", input_schema={"properties": {"password": {"type": "string"}}})


def redactor() -> Redactor:
    secrets = SecretRegistry()
    secrets.add("key", CANARY)
    return Redactor(secrets)


def message(*parts: PromptPart, role: Role = Role.USER, **fields: object) -> PromptMessage:
    return PromptMessage(role=role, parts=parts, **fields)  # type: ignore[arg-type]


def replayed(*calls: Call) -> ReplayRequest:
    """Return the last of the calls of a run, after it was stored."""
    hashes, forms = PromptHashes(), []
    for number, call in enumerate(calls, 1):
        prefix = msgspec.structs.replace(hashes.add(call), step=number - 1 or None)
        packed = replay_request.pack(replay_request.encode(call, redactor(), prefix))
        forms.append((number, replay_request.unpack(packed)))
    return replay_request.decode(forms)


LONG = message(PromptText("word " * 20_000))
ANSWER = message(
    PromptReasoning("Hm.", {"signature": "A" * 500}),
    PromptText("Hi.", {"id": "msg_1"}),
    PromptCall("c1", "read_file", Raw(b'{"path":"a"}'), meta={"id": "fc_1"}),
    role=Role.ASSISTANT,
    finish_reason="tool_calls",
    prefix_fp=b"\x00\x01",
    is_whole=False,
)
RESULT = message(PromptResult("c1", "read_file", "No such file.", is_error=True), role=Role.TOOL)


def test_request_without_media_comes_back_as_it_was() -> None:
    prompt = Prompt((LONG, ANSWER, RESULT))
    call = Call(
        prompt=prompt,
        tools=(TOOL,),
        web_search=WebSearch(max_uses=3),
        tool_choice="login",
        format=JsonFormat("answer", {"type": "object"}),
        max_output_tokens=117,
        effort=Effort.HIGH,
    )

    assert replayed(call) == ReplayRequest(
        prompt=prompt,
        tools=(TOOL,),
        may_search=True,
        tool_choice="login",
        format=JsonFormat("answer", {"type": "object"}),
        max_output_tokens=117,
        effort=Effort.HIGH,
    )


def test_later_step_is_put_together_from_its_prefix() -> None:
    first = Call(prompt=Prompt((LONG,)), tools=(TOOL,))
    second = Call(prompt=Prompt((LONG, ANSWER, RESULT)), tools=(TOOL,))

    request = replayed(first, second)

    assert request.prompt == second.prompt
    assert request.tools == (TOOL,)
    hashes = PromptHashes()
    hashes.add(first)
    small = replay_request.pack(replay_request.encode(second, redactor(), hashes.add(second)))
    assert len(small) < 1000


def test_media_is_left_out_with_a_warning() -> None:
    image = PromptFile("image/png", b"\x89PNG" * 1000, "nest.png")
    seen = PromptResult("c1", "look", "A nest.", media=PromptMedia("image/png", "AAAA" * 1000))

    request = replayed(Call(prompt=Prompt((message(image), message(seen, role=Role.TOOL)))))

    assert request.prompt.messages[0].parts == (
        PromptText("[The file nest.png (image/png, 4000 bytes) is left out of this replay.]"),
    )
    (result,) = request.prompt.messages[1].parts
    assert isinstance(result, PromptResult)
    assert result.text == "A nest.\n[An image (image/png) is left out of this replay.]"
    assert len(request.warnings) == 2


def test_secrets_are_hidden_and_arguments_stay_json() -> None:
    call = PromptCall("c1", "login", Raw(b'{"password":"hunter2-hunter2","note":"%b"}' % CANARY.encode()))

    request = replayed(
        Call(
            prompt=Prompt(
                (
                    message(PromptText(f"My key is {CANARY}.", {"api_key": "hunter2-hunter2"})),
                    message(call, role=Role.ASSISTANT),
                    message(PromptResult("c1", "login", f"Welcome {CANARY}"), role=Role.TOOL),
                )
            ),
            tools=(Tool(name="x", description=CANARY, input_schema={"default": CANARY}),),
        )
    )

    shown = repr(request)
    assert CANARY not in shown
    assert "hunter2" not in shown
    (part,) = request.prompt.messages[1].parts
    assert isinstance(part, PromptCall)
    assert msgspec.json.decode(part.input) == {"password": "[REDACTED]", "note": "[REDACTED:key]"}


def test_missing_step_makes_the_request_incomplete() -> None:
    call = Call(prompt=Prompt((LONG, RESULT)))
    form = replay_request.encode(call, redactor(), Prefix(length=1, step=1))

    with pytest.raises(Incomplete, match="not stored any more"):
        replay_request.decode([(2, form)])
    with pytest.raises(Incomplete):
        replay_request.decode([])


@pytest.mark.parametrize(
    "data", [b"", b"garbage", replay_request.pack(replay_request.ReplayForm(version=99, messages=()))]
)
def test_data_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(Incomplete):
        replay_request.unpack(data)


texts = st.lists(st.text(max_size=5), max_size=5)


@given(st.lists(texts, min_size=1, max_size=6))
def test_any_run_is_put_together_again(steps: list[list[str]]) -> None:
    calls = [Call(prompt=Prompt(tuple(message(PromptText(text)) for text in said))) for said in steps]

    assert replayed(*calls).prompt == calls[-1].prompt
