"""The JSON views of messages."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import msgspec

from rookery.domain.chat.messages import ChatId, Message, MessageId, Role, StepFigures, Visibility
from rookery.domain.chat.prompt import PromptRow
from rookery.stream import views

ANSWER = Message(
    id=MessageId(7),
    chat_id=ChatId(uuid4()),
    revision=3,
    role=Role.ASSISTANT,
    visibility=Visibility.BOTH,
    compressed=False,
    deleted=False,
    content='[{"type":"text","text":"Done."}]',
    content_version=1,
    created_by=None,
    model_config_id=uuid4(),
    reasoning_effort=None,
    client_id=None,
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
)


def test_answer_tells_why_the_model_stopped_and_how_full_its_context_was() -> None:
    figures = StepFigures(
        input_tokens=90, output_tokens=10, context_tokens=100, context_limit=1000, finish_reason="stop"
    )

    seen = views.message(PromptRow(ANSWER, figures))

    assert (seen.finish_reason, seen.context_tokens) == ("stop", 100)
    assert seen.usage is not None
    assert (seen.usage.input_tokens, seen.usage.output_tokens, seen.usage.context_limit) == (90, 10, 1000)


def test_unknown_figures_are_null() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(views.message(PromptRow(ANSWER, StepFigures()))))

    unknown = ("usage", "context_tokens", "finish_reason", "cost_micros", "runtime_ms", "client_id")
    assert {name: shown[name] for name in unknown} == dict.fromkeys(unknown)


def test_content_that_cannot_be_read_keeps_its_place() -> None:
    seen = views.message(PromptRow(msgspec.structs.replace(ANSWER, content="[{"), StepFigures()))

    assert (seen.id, seen.content, seen.decode_error) == (7, (), True)
