"""The OpenAI Chat Completions wire, for OpenAI itself and for every server that speaks it too.

Start here: `completions_request` builds what is sent (with `completions_messages`), `completions_stream` reads what
comes back. What servers do differently is a `Dialect`, where it follows from the provider, or an option, where only
a person can know.
"""

from __future__ import annotations

from rookery.llm import completions_request
from rookery.llm.completions_options import CompletionsOptions, dialect_of
from rookery.llm.completions_stream import CompletionsFold
from rookery.llm.types import Call, Capabilities, Wire
from rookery.llm.wire import Request

_NO_OPTIONS = CompletionsOptions()


class Completions:
    """The wire of one provider row and model. `provider` is how people call the provider, for messages."""

    wire: Wire = "completions"

    def __init__(
        self, model: str, provider: str, *, provider_type: str, caps: Capabilities, base_url: str = ""
    ) -> None:
        self._model = model
        self._provider = provider
        self._caps = caps
        self._dialect = dialect_of(provider_type, caps, base_url=base_url)

    def build(self, call: Call) -> Request:
        return completions_request.build(
            call, self._dialect, model=self._model, caps=self._caps, options=_options(call)
        )

    def fold(self, call: Call) -> CompletionsFold:
        return CompletionsFold(self._provider, think_tags=_options(call).think_tags)


def _options(call: Call) -> CompletionsOptions:
    if call.options is None:
        return _NO_OPTIONS
    assert isinstance(call.options, CompletionsOptions), "These are the options of another wire."
    return call.options
