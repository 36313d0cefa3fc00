"""The OpenAI Responses wire, and the choice between the two wires of OpenAI.

`request` builds requests; `stream` is the fold.
"""

from __future__ import annotations

from typing import Final

from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.responses import request
from rookery.llm.responses.request import ResponsesOptions
from rookery.llm.responses.stream import ResponsesFold
from rookery.llm.types import Call, Capabilities, Wire
from rookery.llm.wire import Request, openai_account_headers

__all__ = ["DEFAULT_BASE_URL", "ResponsesFormat", "ResponsesOptions", "wire_of"]

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"

_OPENAI: Final = frozenset({"openai", "azure_openai"})


def wire_of(provider_type: str, *, use_responses_api: bool | None = None, completions_only: bool = False) -> Wire:
    """Return the wire for a provider with an OpenAI-compatible API.

    `use_responses_api` is the setting of the model config; None if it is not set. `completions_only` is from the
    catalog; it applies only to OpenAI's own servers.
    """
    if provider_type in _OPENAI:
        return "completions" if use_responses_api is False or completions_only else "responses"
    return "responses" if use_responses_api else "completions"


class ResponsesFormat:
    """The wire, configured for one provider row and model. `provider` is the display name for errors."""

    wire: Wire = "responses"

    def __init__(
        self,
        model: str,
        caps: Capabilities,
        *,
        provider: str = "OpenAI",
        organization: str | None = None,
        project: str | None = None,
    ) -> None:
        self._model = model
        self._caps = caps
        self._provider = provider
        self._headers = openai_account_headers(organization, project)

    def build(self, call: Call, previous: EncodedRequest | None = None) -> Request:
        """Build the request.

        Raise `PromptInvalid` if the prompt has a call without output or an output without call.
        """
        return request.build(
            self._model, self._caps, call, headers=self._headers, previous=previous or EncodedRequest()
        )

    def fold(self, call: Call) -> ResponsesFold:
        return ResponsesFold(self._provider)
