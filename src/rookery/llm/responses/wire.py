"""The OpenAI Responses wire, and the choice between OpenAI's two wires for a provider.

The builder is in `request`, the fold in `stream`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rookery.llm.encoded_requests import EncodedRequest
from rookery.llm.responses import request
from rookery.llm.responses.request import ResponsesOptions
from rookery.llm.responses.stream import ResponsesFold
from rookery.llm.types import Call, Capabilities, Wire
from rookery.llm.wire import Request

__all__ = ["DEFAULT_BASE_URL", "ResponsesFormat", "ResponsesOptions", "wire_of"]

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"

_OPENAI: Final = frozenset({"openai", "azure_openai"})


def wire_of(provider_type: str, *, use_responses_api: bool | None = None, completions_only: bool = False) -> Wire:
    """Choose the wire for a provider of an OpenAI-shaped type.

    `use_responses_api` is the setting of the model config, None if it is not set. `completions_only` is the catalog's
    entry for OpenAI's own models; it does not apply to models of the same name on other servers.
    """
    if provider_type in _OPENAI:
        return "completions" if use_responses_api is False or completions_only else "responses"
    return "responses" if use_responses_api else "completions"


class ResponsesFormat:
    """The wire of one provider row and model. `provider` is its display name; errors start with it."""

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
        self._headers = _account_headers(organization, project)

    def build(self, call: Call, past: EncodedRequest | None = None) -> Request:
        """Build the request. Raise `PromptInvalid` if calls and outputs of the prompt do not pair up."""
        return request.build(self._model, self._caps, call, headers=self._headers, past=past or EncodedRequest())

    def fold(self, call: Call) -> ResponsesFold:
        return ResponsesFold(self._provider)


def _account_headers(organization: str | None, project: str | None) -> Mapping[str, str]:
    named = {"OpenAI-Organization": organization, "OpenAI-Project": project}
    return {name: value for name, value in named.items() if value}
