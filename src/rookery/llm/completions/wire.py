"""The OpenAI Chat Completions wire, for OpenAI and every compatible server.

`request` builds requests, with the history from `messages`; `stream` is the fold. A difference between servers is part
of the `Dialect` if it follows from the provider, or an option if only an administrator can know it.
"""

from __future__ import annotations

from typing import Final

from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.completions import request
from rookery.llm.completions.dialects import CompletionsOptions, dialect_of
from rookery.llm.completions.stream import CompletionsFold
from rookery.llm.types import Call, Capabilities, Wire
from rookery.llm.wire import Request, openai_account_headers

__all__ = ["DEFAULT_BASE_URL", "CompletionsFormat", "CompletionsOptions"]

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"

_NO_OPTIONS = CompletionsOptions()


class CompletionsFormat:
    """The wire, configured for one provider row and model. `provider` is the display name for errors."""

    wire: Wire = "completions"

    def __init__(
        self,
        model: str,
        caps: Capabilities,
        *,
        provider: str = "OpenAI",
        provider_type: str = "openai",
        base_url: str = DEFAULT_BASE_URL,
        organization: str | None = None,
        project: str | None = None,
    ) -> None:
        self._model = model
        self._caps = caps
        self._provider = provider
        self._dialect = dialect_of(provider_type, caps, base_url=base_url)
        self._headers = openai_account_headers(organization, project)

    def build(self, call: Call, previous: EncodedRequest | None = None) -> Request:
        """Build the request. Raise `PromptInvalid` if the prompt has a call without result or a result without call."""
        options = _options(call)
        return request.build(
            call,
            self._dialect,
            model=self._model,
            caps=self._caps,
            options=options,
            headers={**self._headers, **options.headers},
            previous=previous,
        )

    def fold(self, call: Call) -> CompletionsFold:
        return CompletionsFold(self._provider, think_tags=_options(call).think_tags)


def _options(call: Call) -> CompletionsOptions:
    if call.options is None:
        return _NO_OPTIONS
    assert isinstance(call.options, CompletionsOptions), "These are the options of another wire."
    return call.options
