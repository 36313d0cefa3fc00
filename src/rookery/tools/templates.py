"""The tools list_templates and read_template: the templates from which the chat's owner may create workspaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rookery.domain.content import front_matter, invisible_characters
from rookery.loop.tool import Tool, ToolContext, ToolOutput
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.people.errors import Missing
from rookery.store.workspaces.templates import Signals, Template
from rookery.telemetry.log import get_logger
from rookery.tools import template_ranking
from rookery.tools.step_workspace import Refused, make_tool, step_of
from rookery.tools.template_ranking import Facts
from rookery.workspaces import manifest as manifests
from rookery.workspaces import network_levels
from rookery.workspaces.manifest import Parameter, Preset

log = get_logger("tools.templates")

README_CHARS = 8000
DESCRIPTION_CHARS = 300


class ListTemplates(msgspec.Struct):
    query: (
        Annotated[str, Meta(description="Words of a name, such as a language. Without it all are listed.")] | None
    ) = None
    page: int = 1


class ReadTemplate(msgspec.Struct):
    template_id: Annotated[str, Meta(description="The id as list_templates gives it.")]


def tools() -> list[Tool]:
    return [
        make_tool(
            "list_templates",
            "List the templates that a workspace can be made from, the most fitting first, with a recommendation where "
            "one is clear. Follow next_step.",
            arguments=ListTemplates,
            handler=list_templates,
            read_only=True,
        ),
        make_tool(
            "read_template",
            "Read a template: what it is for, and its parameters and presets for create_workspace.",
            arguments=ReadTemplate,
            handler=read_template,
            read_only=True,
        ),
    ]


async def list_templates(ctx: ToolContext, given: ListTemplates) -> ToolOutput:
    store = step_of(ctx).admin.store
    usable = [each for each in await store.templates.list() if is_offered(each)]
    signals: Mapping[str, Signals] | None
    try:
        signals = await store.templates.signals()
    except DATABASE_ERRORS as error:
        log.warning("template_signals_unknown", chat_id=ctx.chat_id, error=str(error) or type(error).__name__)
        signals = None
    return ToolOutput(
        template_ranking.shortlist(
            [_facts(each) for each in usable],
            query=given.query,
            page=given.page,
            signals=signals,
            now=ctx.clock.now(),
        )
    )


async def read_template(ctx: ToolContext, given: ReadTemplate) -> ToolOutput:
    template_id = given.template_id.strip()
    if not template_id:
        raise Refused("The template_id is blank. Use list_templates to find one.")
    admin = step_of(ctx).admin
    try:
        template = await admin.service.get_template(admin.store, template_id, for_agent=True)
    except Missing as error:
        raise no_template(template_id) from error
    manifest = manifests.decode(template.manifest)
    value: dict[str, Any] = {
        "template": _without_empty(
            {
                "id": template.name,
                "name": template.name,
                "revision": template.revision,
                "display_name": manifest.display_name,
                "description": invisible_characters.clean(manifest.description),
                "network": (network := admin.service.granted_network(manifest)),
                "reaches": network_levels.WORDS[network],
                "hosts": list(manifest.sandbox.hosts) if network == "hosts" else [],
                "readme": _readme(template.readme),
            }
        ),
        "parameters": [_parameter(each) for each in manifest.parameters],
    }
    if manifest.presets:
        value["presets"] = [_preset(each) for each in manifest.presets]
    return ToolOutput(value)


def is_offered(template: Template) -> bool:
    """Return whether a chat may use the template. The store checks the rights of the owner."""
    return template.enabled and not template.deprecated and template.agents_allowed


def no_template(template_id: str) -> Refused:
    return Refused(
        f"There is no template {template_id} that a chat may use. Use list_templates to see the available ones."
    )


def _facts(template: Template) -> Facts:
    manifest = manifests.decode(template.manifest)
    return Facts(template.name, manifest.display_name, manifest.description, template.readme)


def _readme(text: str) -> str:
    cleaned = invisible_characters.clean_markdown(front_matter.split(text[: template_ranking.MAX_README_CHARS])[1])
    return cleaned[:README_CHARS]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    value = {
        "display_name": parameter.display_name,
        "description": invisible_characters.clean(parameter.description)[:DESCRIPTION_CHARS],
        "mutable": parameter.mutable,
        "ephemeral": parameter.ephemeral,
        "options": list(parameter.options),
        "validation_regex": parameter.regex,
        "validation_min": parameter.min,
        "validation_max": parameter.max,
    }
    described = {
        "name": parameter.name,
        "type": parameter.type,
        "required": parameter.required,
        **_without_empty(value),
    }
    # This filter differs from the others, because zero and false are valid defaults.
    return described if parameter.default is None else {**described, "default": _plain(parameter.default)}


def _preset(preset: Preset) -> dict[str, Any]:
    values = [{"name": name, "value": _plain(value)} for name, value in preset.parameters.items()]
    described = {"id": preset.id, "name": preset.name, "default": preset.default, "parameters": values}
    return {**described, "description": preset.description} if preset.description else described


def _plain(value: object) -> object:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _without_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item not in ("", None, False, [])}
