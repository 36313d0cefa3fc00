"""Calls that the output limit cut off, on every native wire: they never run and get an error result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.llm.http import HttpClients
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.types import Capabilities, FinishReason
from rookery.llm.wire_model import Auth, WireModel
from rookery.runtime.secret_str import SecretStr
from rookery.testing import fake_anthropic, fake_completions
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import FakeCall, FakeCompletions
from rookery.testing.fake_responses import Ending, FakeResponses, FunctionCall, say
from rookery.testing.fake_server import FakeServer
from tests.loop.loop_rig import PROVIDER_ID
from tests.loop.test_real_sockets import KEY, Turn, anthropic_at, completions_at

# The arguments of an answer's calls. The limit is reached in the last one.
WHOLE = '{"path": "a"}'
CUTS = ["", '{"path": "b']


@pytest.fixture
async def clients() -> AsyncIterator[HttpClients]:
    clients = HttpClients()
    yield clients
    await clients.close()


def responses_at(url: str, clients: HttpClients) -> WireModel:
    caps = Capabilities()
    return WireModel(
        ResponsesFormat("gpt-test", caps),
        clients.client(url),
        provider_id=PROVIDER_ID,
        provider_type="openai",
        provider_name="Fake",
        model="gpt-test",
        caps=caps,
        base_url=f"{url}/v1",
        auth=Auth("authorization", SecretStr(KEY), "Bearer "),
    )


def on_anthropic(calls: list[str]) -> FakeServer:
    server = FakeAnthropic(api_key=KEY)
    asked = [fake_anthropic.Call("read", arguments) for arguments in calls]
    server.answer(
        fake_anthropic.Answer([fake_anthropic.Text("I look."), *asked], stop_reason="max_tokens"),
        fake_anthropic.Answer([fake_anthropic.Text("Sorry.")]),
    )
    return server


def on_completions(calls: list[str]) -> FakeCompletions:
    server = FakeCompletions(api_key=KEY)
    asked = tuple(FakeCall("read", arguments) for arguments in calls)
    server.enqueue(
        fake_completions.Answer(text="I look.", calls=asked, finish_reason="length"),
        fake_completions.Answer(text="Sorry."),
    )
    return server


def on_responses(calls: list[str]) -> FakeServer:
    server = FakeResponses(api_key=KEY)
    asked = [FunctionCall(name="read", arguments=arguments) for arguments in calls]
    server.answer(say("I look."), *asked, ending=Ending(incomplete="max_output_tokens"))
    server.answer(say("Sorry."))
    return server


def on_responses_without_status(calls: list[str]) -> FakeServer:
    """Return events of a compatible server that does not report whether an item is complete."""
    server = FakeResponses(api_key=KEY)
    asked = [FunctionCall(name="read", arguments=arguments) for arguments in calls]
    events = server.answer(say("I look."), *asked, ending=Ending(incomplete="max_output_tokens"))
    events[:] = [(name, _without_status(payload)) for name, payload in events]
    server.answer(say("Sorry."))
    return server


def _without_status(payload: dict[str, Any]) -> dict[str, Any]:
    item = payload.get("item")
    bare = {key: value for key, value in item.items() if key != "status"} if item else None
    return payload if bare is None else {**payload, "item": bare}


WIRES: dict[
    str, tuple[Callable[[list[str]], FakeServer | FakeCompletions], Callable[[str, HttpClients], WireModel]]
] = {
    "anthropic": (on_anthropic, anthropic_at),
    "completions": (on_completions, completions_at),
    "responses": (on_responses, responses_at),
    "responses without status": (on_responses_without_status, responses_at),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("cut", CUTS, ids=["before the input", "in the input"])
@pytest.mark.parametrize("whole", [0, 1, 2])
async def test_a_call_cut_off_is_answered_and_whole_ones_before_it_run(
    wire: str, cut: str, whole: int, clients: HttpClients
) -> None:
    make_server, connect = WIRES[wire]
    server = make_server([WHOLE] * whole + [cut])

    async with server.listening() as url:
        turn = Turn(connect(url, clients), "Look.")
        outcome = await turn.step()
        told = [part for part in turn.rows[-1].message.parts() if isinstance(part, parts.ToolResult)]
        await turn.run_tools(outcome)
        last = await turn.step()

    *before, struck = outcome.local_calls
    assert outcome.finish_reason is FinishReason.TOOL_CALLS
    assert outcome.cut_calls == {struck.tool_call_id}
    assert [call.args for call in before] == [Raw(WHOLE.encode())] * whole
    assert [result.tool_call_id for result in told] == [struck.tool_call_id]
    assert isinstance(told[0].result, Raw)
    assert "output limit" in parts.json_value(told[0].result)["error"]
    (answer,) = last.content
    assert isinstance(answer, parts.Text)
    assert answer.text == "Sorry."


# Without OpenAI itself, which marks the last item as incomplete.
@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "responses"])
async def test_a_call_that_was_whole_when_the_limit_struck_is_run(wire: str, clients: HttpClients) -> None:
    make_server, connect = WIRES[wire]
    server = make_server([WHOLE])

    async with server.listening() as url:
        outcome = await Turn(connect(url, clients), "Look.").step()

    assert outcome.cut_calls == frozenset()
    assert [call.args for call in outcome.local_calls] == [Raw(WHOLE.encode())]
