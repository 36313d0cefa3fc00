"""The arguments of a pydantic-ai model, made from a call: messages, settings and parameters.

The library silently ignores settings that a model does not support. This module finds them in the library's profile of
the model, and returns a warning for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.native_tools import AbstractNativeTool, WebSearchTool, WebSearchUserLocation
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP
from pydantic_ai.settings import ModelSettings, ThinkingLevel
from pydantic_ai.tools import ToolDefinition

from rookery.domain.chat.messages import Effort
from rookery.llm import reasoning_effort
from rookery.llm.bridge import messages
from rookery.llm.types import Call, CallWarning, Capabilities, Tool, WebSearch

Profile: TypeAlias = Mapping[str, Any]

# The same as on the native Anthropic wire.
_BEYOND_BUDGET = 4096
_SAMPLING = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRequest:
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    warnings: tuple[CallWarning, ...]


def build(
    call: Call, model: Model, *, caps: Capabilities, headers: Mapping[str, str], read_seconds: float
) -> BridgeRequest:
    """Build the request of this call to this model."""
    builder = _RequestBuilder(call, model, caps)
    settings = builder.settings(headers, read_seconds)
    parameters = builder.parameters()
    history = messages.history(call, model, caps=caps, warnings=builder.warnings)
    return BridgeRequest(
        messages=history,
        settings=cast(ModelSettings, settings),
        parameters=parameters,
        warnings=tuple(builder.warnings),
    )


class _RequestBuilder:
    def __init__(self, call: Call, model: Model, caps: Capabilities) -> None:
        self.warnings: list[CallWarning] = []
        self._call = call
        self._model = model
        self._caps = caps
        self._profile = cast(Profile, model.profile)
        self._ignored: frozenset[str] = frozenset(model.unsupported_settings) | frozenset(
            self._profile.get("openai_unsupported_model_settings", ())
        )

    # Settings

    def settings(self, headers: Mapping[str, str], read_seconds: float) -> dict[str, Any]:
        call = self._call
        settings: dict[str, Any] = dict(self._transport(headers, read_seconds))
        settings |= self._thinking()
        settings |= self._limit(settings.get("thinking"))
        settings |= self._sampling()
        settings |= self._tool_choice()
        if self._profile.get("supports_cache", False):
            # Some providers cache only on request. Without this, every step would pay for the whole history.
            settings["cache"] = True
        if call.options is not None:
            self._warn("options", "Options of another kind of provider are left out.", type_="other")
        return settings

    def _transport(self, headers: Mapping[str, str], read_seconds: float) -> Iterator[tuple[str, Any]]:
        # The worker retries, so the library must not.
        if "max_retries" not in self._ignored:
            yield "max_retries", 0
        if "timeout" not in self._ignored:
            yield "timeout", read_seconds
        sent = {**self._call.headers, **headers}
        if not sent:
            return
        if "extra_headers" in self._ignored:
            self._warn("headers", f"Extra headers cannot be sent to {self._model.system}; they were left out.")
            return
        yield "extra_headers", sent

    def _limit(self, thinking: object) -> dict[str, int]:
        asked = self._call.max_output_tokens
        if asked is None:
            return {}
        if self._has_budget() and isinstance(thinking, str):
            # The budget counts as output, so the limit must exceed it by enough for the answer.
            asked = max(asked, ANTHROPIC_THINKING_BUDGET_MAP[cast(ThinkingLevel, thinking)] + _BEYOND_BUDGET)
        return {"max_tokens": min(asked, self._caps.max_output or asked)}

    def _has_budget(self) -> bool:
        """Return whether the call makes a Claude model on Bedrock think with a budget."""
        profile = self._profile
        is_claude = self._model.system == "bedrock" and profile.get("bedrock_thinking_variant") == "anthropic"
        return is_claude and self._asks_to_think() and not profile.get("bedrock_supports_adaptive_thinking", False)

    def _asks_to_think(self) -> bool:
        profile = self._profile
        can_think = profile.get("supports_thinking", False) or profile.get("thinking_always_enabled", False)
        return can_think and self._call.effort not in (None, Effort.NONE)

    def _sampling(self) -> dict[str, float | int]:
        sent: dict[str, float | int] = {}
        for name in _SAMPLING:
            value = getattr(self._call, name)
            if value is None:
                continue
            if self._caps.sampling and name not in self._ignored and not self._is_dropped(name):
                sent[name] = value
            else:
                self._warn(name, f"This model does not accept {name}; it was left out.")
        return sent

    def _is_dropped(self, name: str) -> bool:
        """Return whether the model ignores a sampling setting.

        Claude ignores all of them while it thinks. On Bedrock, most models ignore `top_k`.
        """
        if self._has_budget():
            return True
        return name == "top_k" and self._model.system == "bedrock" and not self._profile.get("bedrock_top_k_variant")

    def _thinking(self) -> dict[str, Any]:
        effort = self._call.effort
        if effort is None:
            return {}
        is_always_on = self._profile.get("thinking_always_enabled", False)
        if not (self._profile.get("supports_thinking", False) or is_always_on):
            if effort is not Effort.NONE:
                self._warn("effort", "This model has no reasoning effort to set.")
            return {}
        if effort is Effort.NONE:
            if is_always_on:
                self._warn("effort", "This model always thinks; it is asked to think as little as it can.")
            return {"thinking": False}
        # If the supported efforts are unknown, the library chooses the nearest one.
        nearest = reasoning_effort.nearest_supported(effort, self._caps.efforts) or effort
        return {"thinking": False if nearest is Effort.NONE else nearest.value}

    def _tool_choice(self) -> dict[str, Any]:
        choice = self._call.tool_choice
        if choice == "auto" or not self._call.tools:
            return {}
        if choice == "none":
            return {"tool_choice": "none"}
        if choice != "required" and choice not in {tool.name for tool in self._call.tools}:
            self._warn("tool_choice", f"There is no tool {choice!r} to force; the model chooses itself.")
            return {}
        if (obstacle := self._cannot_force()) is not None:
            self._warn("tool_choice", f"{obstacle}; the model chooses itself.")
            return {}
        return {"tool_choice": "required" if choice == "required" else [choice]}

    def _cannot_force(self) -> str | None:
        profile = self._profile
        takes_choice = self._model.system != "bedrock" or profile.get("bedrock_supports_tool_choice", False)
        if not takes_choice or not profile.get("supports_forced_tool_choice", True):
            return "This model cannot be forced to use a tool"
        is_asked = self._asks_to_think()
        thinks = is_asked or profile.get("thinking_always_enabled", False)
        if self._call.effort is None:
            thinks = thinks or profile.get("thinking_enabled_by_default", False)
        takes_both = profile.get("supports_forced_tool_choice_with_thinking", True)
        if is_asked and self._model.system in ("bedrock", "anthropic"):
            # The library refuses both together, unless the model itself decides how much it thinks.
            takes_both = takes_both and profile.get("bedrock_supports_adaptive_thinking", False)
        return "This model cannot be forced to use a tool while it thinks" if thinks and not takes_both else None

    # Parameters

    def parameters(self) -> ModelRequestParameters:
        tools = [_definition(tool) for tool in sorted(self._call.tools, key=lambda tool: tool.name)]
        native = self._native_tools()
        output = self._output()
        mode: Literal["native", "text"] = "text" if output is None else "native"
        return ModelRequestParameters(
            function_tools=tools, native_tools=native, output_mode=mode, output_object=output, allow_text_output=True
        )

    def _output(self) -> OutputObjectDefinition | None:
        wanted = self._call.format
        if wanted is None:
            return None
        if not self._profile.get("supports_json_schema_output", False):
            self._warn("format", "This model accepts no JSON schema; it was left out.")
            return None
        if self._call.tools and not self._combines():
            self._warn("format", "This model accepts no JSON schema together with tools; it was left out.")
            return None
        return OutputObjectDefinition(json_schema=dict(wanted.schema), name=wanted.name)

    def _native_tools(self) -> list[AbstractNativeTool]:
        wanted = self._call.web_search
        if wanted is None:
            return []
        if WebSearchTool not in self._profile.get("supported_native_tools", frozenset()):
            self._warn("web_search", "This model has no web search of its own.", type_="unsupported_tool")
            return []
        if self._call.tools and not self._combines():
            text = "This model cannot search the web while it has other tools."
            self._warn("web_search", text, type_="unsupported_tool")
            return []
        search = _web_search(wanted)
        if unsupported := self._model.unsupported_native_tool_settings(search):
            # No search is better than one beyond the allowed domains.
            text = f"The web search of this model does not accept {', '.join(sorted(unsupported))}; it was left out."
            self._warn("web_search", text, type_="unsupported_tool")
            return []
        if wanted.version is not None:
            self._warn("web_search_version", "This provider has one version of its web search, which was used.")
        return [search]

    def _combines(self) -> bool:
        """Return whether tools can be combined with a search or a schema. Only older models of Google forbid it."""
        is_google = self._model.system.startswith("google")
        return not is_google or bool(self._profile.get("google_supports_tool_combination", False))

    def _warn(
        self,
        setting: str,
        message: str,
        *,
        type_: Literal["unsupported_setting", "unsupported_tool", "other"] = "unsupported_setting",
    ) -> None:
        self.warnings.append(CallWarning(type_, setting, message))


def _definition(tool: Tool) -> ToolDefinition:
    schema = dict(tool.input_schema)
    if schema.get("properties") is None:
        schema["properties"] = {}
    # With `strict`, the library would rewrite the schema and refuse inputs that the tool accepts.
    return ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=schema, strict=False)


def _web_search(wanted: WebSearch) -> WebSearchTool:
    place = dict(wanted.user_location or {})
    options: dict[str, Any] = {
        "search_context_size": wanted.context_size,
        "user_location": cast(WebSearchUserLocation, place) if place else None,
        "allowed_domains": list(wanted.allowed_domains) or None,
        "blocked_domains": list(wanted.blocked_domains) or None,
        "max_uses": wanted.max_uses,
    }
    return WebSearchTool(**{name: value for name, value in options.items() if value is not None})
