"""The Anthropic Messages wire. The builder is in `request` (settings) and `messages` (history), the fold in
`stream`."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from rookery.llm.anthropic import request
from rookery.llm.anthropic.request import NEW_VERSION, OLD_VERSION, AnthropicOptions
from rookery.llm.anthropic.stream import AnthropicFold
from rookery.llm.encoded_requests import EncodedRequest
from rookery.llm.types import Call, Capabilities, Wire
from rookery.llm.wire import Request

__all__ = ["DEFAULT_BASE_URL", "AnthropicFormat", "AnthropicOptions", "default_version"]

DEFAULT_BASE_URL: Final = "https://api.anthropic.com"


def default_version(base_url: str) -> str:
    """Return the newest version for Anthropic itself, the first one for gateways, which lag. Both accept these
    requests."""
    return NEW_VERSION if urlsplit(base_url).hostname == urlsplit(DEFAULT_BASE_URL).hostname else OLD_VERSION


class AnthropicFormat:
    """The wire of one provider row and model. `provider` is its display name; errors start with it."""

    wire: Wire = "anthropic"

    def __init__(
        self,
        model: str,
        caps: Capabilities,
        *,
        provider: str = "Anthropic",
        base_url: str = DEFAULT_BASE_URL,
        version: str | None = None,
    ) -> None:
        self._model = model
        self._caps = caps
        self._provider = provider
        self._version = version or default_version(base_url)
        # Gateways are often configured with the `/v1` that OpenAI's clients want.
        self._path = "/messages" if urlsplit(base_url).path.rstrip("/").endswith("/v1") else "/v1/messages"

    def build(self, call: Call, past: EncodedRequest | None = None) -> Request:
        """Build the request. Raise `PromptInvalid` if the prompt breaks the rules of this wire."""
        return request.build(
            self._model, self._caps, call, version=self._version, path=self._path, past=past or EncodedRequest()
        )

    def fold(self, call: Call) -> AnthropicFold:
        return AnthropicFold(self._provider)
