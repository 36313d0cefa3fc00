"""A `LanguageModel` over a model of pydantic-ai.

The library is imported by the first call, in a thread, because the import would block the event loop for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from rookery.domain.chat import tool_call_pairing
from rookery.domain.chat.model_prompt import Prompt
from rookery.llm.errors import LlmError
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
from rookery.llm.wire_model import ModelStats, NoStats, known_secrets
from rookery.runtime.clock import Clock, SystemClock
from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import hide_secrets

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

    from rookery.llm.bridge.exchange import Bridged

log = get_logger("llm.bridge")

# The silence limit of the loop ends a silent stream earlier. This limit ends a dead socket.
READ_SECONDS = 660.0


class CannotBuild(LlmError):
    """Raised when the model cannot be made. `error` has the reason, which an administrator can fix."""

    def __init__(self, error: ProviderError) -> None:
        self.error = error
        super().__init__(error.message)


class BridgeModel:
    """A model of one provider row. `build` makes the library's model in a thread; it may raise `CannotBuild`.

    `secrets` are values that must not appear in errors. `keep_open` is called before every call, and keeps the
    provider's connections open for the next one.
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
        self._secrets = known_secrets(secrets, extra_headers)
        self._bridged: Bridged | None = None
        self._building = asyncio.Lock()

    def __repr__(self) -> str:
        return f"BridgeModel({self.model!r}, provider {self.provider_id})"

    async def stream(self, call: Call) -> AsyncGenerator[StreamPart, None]:
        """Implement `LanguageModel`.

        Closing the generator closes the library's stream, which takes at most a second.
        """
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
                        # The consumer sees output from here on, so the call cannot be repeated any more.
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
        """Return the call with a history without reasoning and provider data, and with complete pairs of calls.

        There is one repair for all faults. Return None if there is no fault, or if the repair was already tried.
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
