"""The OpenAI Chat Completions wire, for OpenAI itself and for every compatible server.

Start here: `request` builds the request (with `messages`), `stream` reads the response. Differences between servers are
a `Dialect` if they follow from the provider, or an option if only an administrator can know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rookery.llm.completions import request
from rookery.llm.completions.options import CompletionsOptions, dialect_of
from rookery.llm.completions.stream import CompletionsFold
from rookery.llm.encoded_requests import EncodedRequest
from rookery.llm.types import Call, Capabilities, Wire
from rookery.llm.wire import Request

__all__ = ["DEFAULT_BASE_URL", "CompletionsFormat", "CompletionsOptions"]

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"

_NO_OPTIONS = CompletionsOptions()


class CompletionsFormat:
    """The wire of one provider row and model. `provider` is its display name; errors start with it."""

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
        self._headers = _account_headers(organization, project)

    def build(self, call: Call, past: EncodedRequest | None = None) -> Request:
        """Build the request. Raise `PromptInvalid` if calls and results of the prompt do not pair up."""
        options = _options(call)
        return request.build(
            call,
            self._dialect,
            model=self._model,
            caps=self._caps,
            options=options,
            headers={**self._headers, **options.headers},
            past=past,
        )

    def fold(self, call: Call) -> CompletionsFold:
        return CompletionsFold(self._provider, think_tags=_options(call).think_tags)


def _account_headers(organization: str | None, project: str | None) -> Mapping[str, str]:
    named = {"OpenAI-Organization": organization, "OpenAI-Project": project}
    return {name: value for name, value in named.items() if value}


def _options(call: Call) -> CompletionsOptions:
    if call.options is None:
        return _NO_OPTIONS
    assert isinstance(call.options, CompletionsOptions), "These are the options of another wire."
    return call.options
