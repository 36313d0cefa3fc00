"""A model of pydantic-ai that streams given events, and helpers for the tests of the bridge.

It uses the library's own stream and parts manager, so it sends what real models send. Only the provider is missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptPart, PromptText
from rookery.llm.bridge.factory import BridgeClients, bridge_model
from rookery.llm.bridge.model import BridgeModel
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    LanguageModel,
    ProviderError,
    ReasoningEnd,
    ReasoningStart,
    StreamError,
    StreamPart,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputEnd,
    ToolInputStart,
    Warnings,
)
from rookery.runtime.secret_str import SecretStr
from tests.llm.model_rig import Counted

KEY = "very-secret-key-0123456789"
ID = UUID("00000000-0000-4000-8000-000000000001")

# One move of a model: events for the library's parts manager, an exception to raise, or an event to wait for.
Move: TypeAlias = Any


@dataclass
class Played(StreamedResponse):
    """The stream of a `PlayedModel`."""

    model: PlayedModel
    moves: Iterable[Move]

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for move in self.moves:
            if isinstance(move, Exception):
                raise move
            if isinstance(move, Waiting):
                await move.until()
                continue
            for event in move(self._parts_manager):
                yield event
            self._usage = self.model.usage
        end = self.model.end
        self.finish_reason = end.get("finish_reason", "stop")
        self.provider_details = end.get("provider_details", {"finish_reason": "stop"})
        self.state = end.get("state", "complete")
        self._usage = self.model.usage

    async def close_stream(self) -> None:
        self.model.closed.append("stream")

    @property
    def model_name(self) -> str:
        return "played-1"

    @property
    def provider_name(self) -> str | None:
        return self.model.provider_name

    @property
    def provider_url(self) -> str | None:
        return "https://played.example"

    @property
    def timestamp(self) -> datetime:
        return datetime.now(UTC)


@dataclass
class Waiting:
    until: Callable[[], Any]


@dataclass
class Asked:
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters


class PlayedModel(Model):
    """Streams one list of moves per request, and records the requests. `end` is called at the end of the stream."""

    def __init__(
        self,
        *answers: Iterable[Move],
        profile: ModelProfile | None = None,
        usage: RequestUsage | None = None,
        end: Mapping[str, Any] | None = None,
        system: str = "played",
        ignores: frozenset[Any] = frozenset(),
    ) -> None:
        super().__init__(profile=profile)
        self.unsupported_settings = ignores  # type: ignore[misc]  # one class plays all models here
        self.answers = list(answers)
        self.usage = usage or RequestUsage(input_tokens=10, output_tokens=3)
        self.end: Mapping[str, Any] = end or {}
        self.asked: list[Asked] = []
        self.closed: list[str] = []
        self.provider_name: str | None = system

    @property
    def model_name(self) -> str:
        return "played-1"

    @property
    def system(self) -> str:
        return self.provider_name or "played"

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        raise AssertionError("The bridge streams, always.")

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse, None]:
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        self.asked.append(Asked(messages, model_settings or {}, parameters))
        moves = self.answers.pop(0)
        first = next(iter(moves), None) if isinstance(moves, list) else None
        if isinstance(first, Refusing):
            raise first.error
        del settings
        try:
            yield Played(model_request_parameters=parameters, model=self, moves=moves)
        finally:
            self.closed.append("context")


@dataclass
class Refusing:
    """A model that refuses the request before any stream."""

    error: Exception


def text(content: str, part: str = "text") -> Any:
    return lambda manager: manager.handle_text_delta(vendor_part_id=part, content=content)


def thinking(content: str | None = None, *, signature: str | None = None, part: str = "thinking") -> Any:
    name = "played" if signature else None
    return lambda manager: manager.handle_thinking_delta(
        vendor_part_id=part, content=content, signature=signature, provider_name=name
    )


def tool(name: str | None = None, args: Any = None, *, call_id: str | None = None, part: str = "call") -> Any:
    return lambda manager: manager.handle_tool_call_delta_events(
        vendor_part_id=part, tool_name=name, args=args, tool_call_id=call_id
    )


def whole(part: Any, place: str) -> Any:
    """Return a part that arrives as a whole."""
    return lambda manager: [manager.handle_part(vendor_part_id=place, part=part)]


def bridged(
    model: Model | Callable[[], Model],
    *,
    caps: Capabilities = Capabilities(),  # noqa: B008 - frozen
    stats: Counted | None = None,
    secrets: Iterable[str] = (KEY,),
    headers: Mapping[str, str] = {},
) -> BridgeModel:
    return BridgeModel(
        (lambda: model) if isinstance(model, Model) else model,
        provider_id=ID,
        provider_type="bridge",
        provider_name="Played",
        model="played:played-1",
        caps=caps,
        secrets=secrets,
        extra_headers=headers,
        stats=stats,
    )


def said(role: Role, *parts: PromptPart, **fields: Any) -> PromptMessage:
    return PromptMessage(role=role, parts=parts, **fields)


HELLO = said(Role.USER, PromptText("Hello."))


def asking(*messages: PromptMessage, **fields: Any) -> Call:
    return Call(prompt=Prompt(messages or (HELLO,)), **fields)


async def drain(model: LanguageModel, call: Call | None = None) -> list[StreamPart]:
    """Return all parts. Check the contract of `stream()`, and that no part contains the key."""
    parts = [part async for part in model.stream(call or asking())]
    check(parts)
    return parts


def check(parts: list[StreamPart]) -> None:
    """Check the contract of `stream()`."""
    assert [type(part) in (Finish, StreamError) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(type(part) is not Warnings for part in parts[1:])
    started = [part.id for part in parts if isinstance(part, TextStart | ReasoningStart | ToolInputStart)]
    assert len(set(started)) == len(started)
    if isinstance(parts[-1], Finish):
        ended = [part.id for part in parts if isinstance(part, TextEnd | ReasoningEnd | ToolInputEnd)]
        assert sorted(ended) == sorted(started)
    inputs_ended: set[str] = set()
    for part in parts:
        if isinstance(part, ToolInputEnd):
            inputs_ended.add(part.id)
        if isinstance(part, ToolCall):
            assert part.id in inputs_ended
    assert KEY not in repr(parts)


def finish_of(parts: list[StreamPart]) -> Finish:
    last = parts[-1]
    assert isinstance(last, Finish), last
    return last


def error_of(parts: list[StreamPart]) -> ProviderError:
    last = parts[-1]
    assert isinstance(last, StreamError), last
    assert last.error.message.endswith(".")
    return last.error


def warnings_of(parts: list[StreamPart]) -> dict[str, str]:
    first = parts[0]
    return {item.setting: item.message for item in first.items} if isinstance(first, Warnings) else {}


_NO_CAPS = Capabilities()


async def ask(call: Call, *, caps: Capabilities = _NO_CAPS, **options: Any) -> tuple[Asked, dict[str, str]]:
    """Return the request to a model, and the warnings."""
    model = PlayedModel([text("Yes.")], **options)
    parts = await drain(bridged(model, caps=caps), call)
    return model.asked[0], warnings_of(parts)


def model_at(
    url: str | None,
    clients: BridgeClients | None = None,
    *,
    model: str = "openai-chat:gpt-4o",
    provider_type: str = "bridge",
    key: SecretStr | None = SecretStr(KEY + "\n"),  # noqa: B008 - immutable
) -> BridgeModel:
    return bridge_model(
        provider_id=ID,
        provider_type=provider_type,
        provider_name="Fake",
        model=model,
        caps=Capabilities(),
        key=key,
        base_url=url,
        clients=clients,
    )
