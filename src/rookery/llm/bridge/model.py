"""A `LanguageModel` over a model of pydantic-ai.

Nothing here imports the library: the first call does, in a thread, because importing it and a provider's package would
block the event loop for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from rookery.domain.chat import tool_call_pairing
from rookery.domain.chat.prompt_parts import Prompt
from rookery.llm.errors import LlmError
from rookery.llm.model import ModelStats, NoStats
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    ProviderError,
    StreamError,
    StreamPart,
    Warnings,
    Wire,
)
from rookery.runtime.clock import Clock, SystemClock
from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import SecretRegistry, hide_secrets, is_secret_name

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

    from rookery.llm.bridge.exchange import Bridged

log = get_logger("llm.bridge")

# Chosen: the silence guard of the loop ends a quiet stream first; this only keeps a dead socket from staying forever.
READ_SECONDS = 660.0


class CannotBuild(LlmError):
    """Raised when there is no model to call, for a reason the administrator can fix: `error` names it."""

    def __init__(self, error: ProviderError) -> None:
        self.error = error
        super().__init__(error.message)


class BridgeModel:
    """One provider row and model. `build` makes the library's model; it may raise `CannotBuild`, and runs in a thread.

    `secrets` are values that must not appear in an error. `keep_open` is called before every call, to hold the
    connections of the provider for the next one.
    """

    wire: Wire = "bridge"

    def __init__(
        self,
        build: Callable[[], Model],
        *,
        provider_id: UUID,
        provider_type: str,
        provider_name: str,
        model: str,
        caps: Capabilities,
        secrets: Iterable[str] = (),
        extra_headers: Mapping[str, str] = {},
        read_seconds: float = READ_SECONDS,
        keep_open: Callable[[Provider[Any]], Awaitable[None]] | None = None,
        clock: Clock | None = None,
        stats: ModelStats | None = None,
    ) -> None:
        self.provider_id = provider_id
        self.provider_type = provider_type
        self.model = model
        self.caps = caps
        self._build = build
        self._provider = provider_name
        self._extra_headers = dict(extra_headers)
        self._read_seconds = read_seconds
        self._keep_open = keep_open
        self._clock = clock or SystemClock()
        self._stats = stats or NoStats()
        self._secrets = _known_secrets(secrets, extra_headers)
        self._bridged: Bridged | None = None
        self._building = asyncio.Lock()

    def __repr__(self) -> str:
        return f"BridgeModel({self.model!r}, provider {self.provider_id})"

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        """See `LanguageModel`. Closing the generator closes the library's stream, and waits at most a second for it."""
        bridged = await self._ready()
        if isinstance(bridged, ProviderError):
            yield StreamError(bridged)
            return
        is_repaired = False
        while True:
            request = bridged.request(call)
            again: Call | None = None
            is_started = False
            async with aclosing(bridged.answer(request)) as answer:
                async for part in answer:
                    if not is_started:
                        if isinstance(part, StreamError):
                            again = self._repaired(call, part.error, is_repaired=is_repaired)
                            if again is not None:
                                break
                        # From here on the consumer has seen output: no second answer may follow.
                        is_started = True
                        if request.warnings:
                            yield Warnings(request.warnings)
                    yield part
                    if isinstance(part, Finish | StreamError):
                        return
            assert again is not None, "Every answer ends with a terminal part."
            call, is_repaired = again, True

    async def _ready(self) -> Bridged | ProviderError:
        async with self._building:
            if self._bridged is None:
                try:
                    self._bridged = await asyncio.to_thread(self._load)
                except CannotBuild as failure:
                    return failure.error
            return self._bridged

    def _load(self) -> Bridged:
        model = self._build()
        from rookery.llm.bridge.exchange import Bridged

        return Bridged(
            model,
            provider=self._provider,
            caps=self.caps,
            headers=self._extra_headers,
            read_seconds=self._read_seconds,
            keep_open=self._keep_open,
            clock=self._clock,
            hide=self._hide,
        )

    def _hide(self, text: str) -> str:
        return hide_secrets(text, self._secrets)

    def _repaired(self, call: Call, error: ProviderError, *, is_repaired: bool) -> Call | None:
        """Return the call with a history that any provider accepts: paired, and without reasoning or opaque data.

        One rung serves all faults: how a library handles a missing signature is unknown here.
        """
        fault = error.replay_fault
        if fault is None:
            return None
        plain = msgspec.structs.replace(
            call,
            prompt=Prompt(tool_call_pairing.repair(call.prompt.messages)),
            plain_history=True,
            drop_stale_thinking=True,
        )
        fields = {"wire": self.wire, "rung": fault, "provider_id": self.provider_id, "model": self.model}
        if is_repaired or plain == call:
            self._stats.replay_unrepaired(self.wire, fault)
            log.warning("replay_unrepaired", **fields)
            return None
        self._stats.replay_repaired(self.wire, fault)
        log.warning("replay_repaired", **fields)
        return plain


def _known_secrets(secrets: Iterable[str], headers: Mapping[str, str]) -> SecretRegistry:
    known = SecretRegistry()
    for value in secrets:
        known.add("api_key", value)
    for name, value in headers.items():
        if is_secret_name(name, value):
            known.add("header", value)
    return known
