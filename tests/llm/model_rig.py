"""The driver with the smallest wire and a raw server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.http import HttpClients
from rookery.llm.types import (
    Call,
    CallWarning,
    Capabilities,
    Finish,
    LanguageModel,
    ProviderError,
    ReplayFault,
    StreamError,
    StreamPart,
    Wire,
)
from rookery.llm.wire_model import Auth, WireModel
from rookery.runtime.secret_str import SecretStr
from tests.llm.raw_server import Connection, Handler, RawRequest, answer, answering, serving
from tests.llm.text_wire import WordsFormat

KEY = "very-secret-key-0123456789"
ID = UUID("00000000-0000-4000-8000-000000000001")
CALL = Call(prompt=Prompt((PromptMessage(role=Role.USER, parts=(PromptText("hello"),)),)))
HELLO = b'data: {"text":"hello"}\n\n'
DONE = b'data: {"done":2}\n\n'
WARNING = CallWarning("unsupported_setting", "top_k", "This wire has no top_k.")


@dataclass
class Counted:
    repaired: list[tuple[Wire, ReplayFault]] = field(default_factory=list)
    unrepaired: list[tuple[Wire, ReplayFault]] = field(default_factory=list)
    broken: list[Wire] = field(default_factory=list)
    unknown: list[tuple[Wire, dict[str, int]]] = field(default_factory=list)

    def replay_repaired(self, wire: Wire, rung: ReplayFault) -> None:
        self.repaired.append((wire, rung))

    def replay_unrepaired(self, wire: Wire, rung: ReplayFault) -> None:
        self.unrepaired.append((wire, rung))

    def prefix_broke(self, wire: Wire) -> None:
        self.broken.append(wire)

    def unknown_events(self, wire: Wire, by_type: Mapping[str, int]) -> None:
        self.unknown.append((wire, dict(by_type)))


def model_at(
    url: str,
    clients: HttpClients,
    *,
    wire: Wire = "completions",
    warnings: tuple[CallWarning, ...] = (),
    auth: Auth | None = Auth("Authorization", SecretStr(KEY + "\n"), "Bearer "),  # noqa: B008 - frozen
    extra_headers: Mapping[str, str] = {},
    stats: Counted | None = None,
) -> WireModel:
    return WireModel(
        WordsFormat(wire=wire, warnings=warnings),
        clients.client(url),
        provider_id=ID,
        provider_type="openai_compat",
        provider_name="Words",
        model="words-1",
        caps=Capabilities(),
        base_url=url + "/v1/",
        auth=auth,
        extra_headers=extra_headers,
        new_id=lambda: ID,
        stats=stats,
    )


async def drain(model: LanguageModel, call: Call = CALL) -> list[StreamPart]:
    """Return all parts. Check the contract of `stream()`, and that no part contains the key."""
    parts = [part async for part in model.stream(call)]
    assert [type(part) in (Finish, StreamError) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert KEY not in repr(parts)
    return parts


async def ask(reply: bytes, clients: HttpClients) -> list[StreamPart]:
    async with serving(answering(reply)) as server:
        return await drain(model_at(server.url, clients))


def error_of(parts: list[StreamPart]) -> ProviderError:
    last = parts[-1]
    assert isinstance(last, StreamError)
    assert last.error.message.endswith(".")
    return last.error


def recording(seen: list[RawRequest], *replies: bytes) -> Handler:
    """Answer each request with the next reply, and record the requests."""
    left = list(replies)

    async def handle(connection: Connection) -> None:
        while True:
            seen.append(await connection.read_request())
            await connection.send(left.pop(0))

    return handle


def refusal(text: str, code: str = "invalid_request_error") -> bytes:
    body = msgspec.json.encode({"error": {"type": code, "message": text}})
    return answer(body, status="400 Bad Request", content_type="application/json")


STALE = refusal("messages.1: thinking blocks are bound to a different conversation")
