"""Prompts and answers in spans: their form, redaction and limits, and that they are left out by default."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rookery.debug import trace_content
from rookery.debug.trace_content import TraceContent
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptResult,
    PromptText,
)
from rookery.domain.chat.parts import Reasoning, Text, ToolCall
from rookery.llm.types import Call, FinishReason
from rookery.telemetry.redaction import SecretRegistry
from rookery.telemetry.tracing import names
from rookery.testing.fake_completions import Answer, FakeCall, FakeCompletions
from rookery.testing.fake_server import failure
from tests import scripted_tools
from tests.otlp_collector import exporting, otlp_collector
from tests.worker.worker_rig import open_house

SECRET = "hunter2-hunter2-hunter2"


def message(role: Role, *parts: PromptPart) -> PromptMessage:
    return PromptMessage(role=role, parts=parts)


def rendered(call: Call, *answer: Any, secrets: SecretRegistry | None = None) -> dict[str, Any]:
    found = TraceContent(secrets or SecretRegistry())(call, answer, FinishReason.STOP)
    return {name: json.loads(value) if isinstance(value, str) else value for name, value in found.items()}


def test_prompt_and_answer_have_the_form_of_the_conventions() -> None:
    call = Call(
        prompt=Prompt(
            (
                message(Role.SYSTEM, PromptText("Be kind.")),
                message(Role.USER, PromptText("Weather?"), PromptFile("image/png", b"x" * 10, "a.png")),
                message(Role.ASSISTANT, PromptCall("c1", "weather", msgspec.Raw(b'{"city":"Paris"}'))),
                message(Role.TOOL, PromptResult("c1", "weather", "rainy")),
            )
        )
    )

    found = rendered(call, Reasoning("Hm."), Text("Rain."), ToolCall("c2", "sing", args=msgspec.Raw(b'{"song":1}')))

    assert found == {
        names.SYSTEM_INSTRUCTIONS: [{"type": "text", "content": "Be kind."}],
        names.INPUT_MESSAGES: [
            {
                "role": "user",
                "parts": [
                    {"type": "text", "content": "Weather?"},
                    {"type": "file", "mime_type": "image/png", "filename": "a.png", "size": 10},
                ],
            },
            {
                "role": "assistant",
                "parts": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Paris"}}],
            },
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rainy"}]},
        ],
        names.OMITTED_MESSAGES: None,
        names.OUTPUT_MESSAGES: [
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "Hm."},
                    {"type": "text", "content": "Rain."},
                    {"type": "tool_call", "id": "c2", "name": "sing", "arguments": {"song": 1}},
                ],
                "finish_reason": "stop",
            }
        ],
    }


def test_failed_call_has_its_prompt_and_no_answer() -> None:
    found = rendered(Call(prompt=Prompt((message(Role.USER, PromptText("Hi.")),))))

    assert found[names.OUTPUT_MESSAGES] is None
    assert found[names.SYSTEM_INSTRUCTIONS] is None
    assert len(found[names.INPUT_MESSAGES]) == 1


def test_secrets_are_hidden_by_value_pattern_and_key() -> None:
    secrets = SecretRegistry()
    secrets.add("api_key", SECRET)
    prompt = Prompt(
        (
            message(Role.SYSTEM, PromptText(f"Never say {SECRET}.")),
            message(
                Role.USER, PromptText("x" * (trace_content.MAX_SYSTEM_CHARS // 2) + f" sk-abcdefghijklmnop {SECRET}")
            ),
            message(Role.ASSISTANT, PromptCall("c", "login", msgspec.Raw(b'{"password":"swordfish","user":"a"}'))),
            message(Role.TOOL, PromptResult("c", "login", '{"access_token":"swordfish"}')),
        )
    )

    found = json.dumps(rendered(Call(prompt=prompt), Text(f"It is {SECRET}."), secrets=secrets))

    assert SECRET[:8] not in found
    assert "sk-abcdefg" not in found
    assert "swordfish" not in found
    assert found.count("[REDACTED:api_key]") >= 2


def test_long_history_keeps_its_newest_messages() -> None:
    words = [message(Role.USER, PromptText(f"{number} " + "x" * 5_000)) for number in range(100)]

    found = rendered(Call(prompt=Prompt(tuple(words))))

    shown = found[names.INPUT_MESSAGES]
    assert shown[-1]["parts"][0]["content"].startswith("99 ")
    assert len(shown) + found[names.OMITTED_MESSAGES] == 100
    assert len(json.dumps(shown)) <= 2 * trace_content.MAX_MESSAGES_CHARS


@given(st.lists(st.integers(0, 40_000), max_size=30), st.text(max_size=20))
def test_attributes_are_bounded_for_any_content(sizes: list[int], odd: str) -> None:
    parts = tuple(PromptText(odd + "\N{GRINNING FACE}" * (size // 4)) for size in sizes)
    prompt = Prompt((message(Role.SYSTEM, *parts), message(Role.USER, *parts), message(Role.USER, *parts)))

    found = TraceContent(SecretRegistry())(Call(prompt=prompt), tuple(Text(each.text) for each in parts), None)

    for name, value in found.items():
        if isinstance(value, str):
            limit = trace_content.MAX_SYSTEM_CHARS if name == names.SYSTEM_INSTRUCTIONS else 64_000
            # The last message may exceed what is left for it by its markers only.
            assert len(value.encode()) <= limit + 4_096, (name, len(value.encode()))


async def test_content_arrives_with_the_span_of_the_call_and_only_if_it_is_enabled(database_url: str) -> None:
    secrets = SecretRegistry()
    secrets.add("api_key", SECRET)
    threads: set[str] = set()

    class Noted(TraceContent):
        def __call__(self, *args: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().__call__(*args)

    for content in (Noted(secrets), None):
        fake = FakeCompletions()
        fake.enqueue(
            failure(500, "Broken."),
            Answer(calls=[FakeCall("echo", json.dumps({"password": "swordfish", "say": "hi"}))]),
            Answer(text=f"The key is {SECRET}."),
        )
        with otlp_collector() as collector:
            async with (
                exporting(collector, secrets=secrets, content=content),
                fake.listening() as url,
                open_house(database_url, server=url, tools=[scripted_tools.echo()]) as rig,
            ):
                await rig.rested(await rig.ask(f"My key is {SECRET}, and I like birds."))

        everything = b"".join(collector.bodies)
        assert SECRET.encode() not in everything
        assert b"swordfish" not in everything
        failed, called, done = collector.named("chat test")
        if content is None:
            assert b"birds" not in everything
            assert all(names.INPUT_MESSAGES not in span.attributes for span in collector.spans)
            continue
        assert names.OUTPUT_MESSAGES not in failed.attributes
        assert "I like birds" in failed.attributes[names.INPUT_MESSAGES]
        assert json.loads(called.attributes[names.OUTPUT_MESSAGES])[0]["parts"][0]["name"] == "echo"
        assert "[REDACTED:api_key]" in done.attributes[names.OUTPUT_MESSAGES]
        assert not [span for span in collector.named("execute_tool") if "birds" in str(span.attributes)]
    assert threads == {"rookery-otel_0"}
