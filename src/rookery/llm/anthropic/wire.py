"""The Anthropic Messages wire. `request` builds requests, with the history from `messages`; `stream` is the fold."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from rookery.llm.anthropic import request
from rookery.llm.anthropic.request import NEW_VERSION, OLD_VERSION, AnthropicOptions
from rookery.llm.anthropic.stream import AnthropicFold
from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.types import Call, Capabilities, Wire
from rookery.llm.wire import Request

__all__ = ["DEFAULT_BASE_URL", "AnthropicFormat", "AnthropicOptions", "default_version"]

DEFAULT_BASE_URL: Final = "https://api.anthropic.com"


def default_version(base_url: str) -> str:
    """Return the version of the API: the newest for Anthropic itself, and the first for gateways, which lag behind."""
    return NEW_VERSION if urlsplit(base_url).hostname == urlsplit(DEFAULT_BASE_URL).hostname else OLD_VERSION


class AnthropicFormat:
    """The wire, configured for one provider row and model. `provider` is the display name for errors."""

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
        # The base URL of a gateway often ends with `/v1`, as OpenAI's clients require.
        self._path = "/messages" if urlsplit(base_url).path.rstrip("/").endswith("/v1") else "/v1/messages"

    def build(self, call: Call, previous: EncodedRequest | None = None) -> Request:
        """Build the request. Raise `PromptInvalid` if the prompt breaks the rules of this wire."""
        return request.build(
            self._model, self._caps, call, version=self._version, path=self._path, previous=previous or EncodedRequest()
        )

    def fold(self, call: Call) -> AnthropicFold:
        return AnthropicFold(self._provider)
