"""`rookery admin template`: list, push, enable and remove workspace templates."""

from __future__ import annotations

from pathlib import Path

from rookery.app import workspaces
from rookery.cli.admin import provider_input
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.domain.access.rights import Resource, SystemActor, SystemName
from rookery.runtime.clock import SystemClock
from rookery.settings.settings import Settings
from rookery.store.db.pool import Connection
from rookery.store.people import audit
from rookery.store.people.audit import Event
from rookery.store.people.errors import AccessError
from rookery.store.workspaces import templates
from rookery.store.workspaces.templates import Template, TemplatePatch
from rookery.workspaces import manifest as manifests
from rookery.workspaces import network_levels, shared_folders
from rookery.workspaces import templates as folders
from rookery.workspaces.manifest import Manifest
from rookery.workspaces.operation_requests import as_push
from rookery.workspaces.template_errors import TemplateInvalid

ADVICE = "`rookery admin template push DIR` adds one; the server adds its own at its next start."


async def list_all(settings: Settings, out: Output) -> int:
    async with provider_input.opened(settings, out) as (_, conn):
        found = await templates.list_templates(conn)
    if found:
        out.table(("name", "driver", "state", "from", "revision"), [_row(each) for each in found])
    else:
        out.line(f"There is no template yet. {ADVICE}")
    out.result({"templates": [_document(each) for each in found]})
    return Exit.OK


async def show(settings: Settings, out: Output, *, name: str) -> int:
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (_, conn):
            found = await _get(conn, name)
        manifest = manifests.decode(found.manifest)
        out.line(f"{found.name}: {manifest.description or 'without a description'}")
        out.line(f"{_state(found)}, driver {manifest.driver}, revision {found.revision}")
        out.line(f"network {manifest.sandbox.network} {', '.join(manifest.sandbox.hosts)}".rstrip())
        if (less := _network_for(settings, manifest)) is not None:
            out.line(f"its workspaces get the network {less}, the most that drivers.local.network_max allows here")
        for parameter in manifest.parameters:
            needed = "required" if parameter.required else f"default {parameter.default!r}"
            out.line(f"  {parameter.name} ({parameter.type}, {needed}): {parameter.description}")
        out.result({"template": _document(found) | {"readme": found.readme, "manifest": found.manifest}})
        return Exit.OK
    return outcome.code


async def push(settings: Settings, out: Output, *, folder: Path) -> int:
    """Push a template. The folder is checked before the database is opened, because most mistakes are in the folder."""
    with provider_input.refusals(out) as outcome:
        try:
            packed = folders.pack(folders.read_folder(folder))
            shared_folders.check_template(packed.manifest, settings.workspaces_shared_folders)
        except TemplateInvalid as error:
            for problem in error.problems:
                out.error(str(problem))
            number = len(error.problems)
            raise Refused(
                f"{folder} has {number} problem{'s'[: number - 1]}; nothing was stored.", code=Exit.USAGE
            ) from None
        name = packed.manifest.name
        async with provider_input.opened(settings, out) as (database, conn):
            is_new = await templates.push_template(conn, as_push(packed))
            if is_new:
                await _log(conn, "template.push", name)
                await provider_input.announce(database, "template", name)
        told = "is pushed" if is_new else "was already up to date"
        out.line(f"Template {name} {told} (revision {packed.revision[:12]}).")
        if (less := _network_for(settings, packed.manifest)) is not None:
            out.line(f"Its workspaces get the network {less}, the most that drivers.local.network_max allows here.")
        out.result({"name": name, "revision": packed.revision, "changed": is_new})
        return Exit.OK
    return outcome.code


async def change(settings: Settings, out: Output, *, name: str, patch: TemplatePatch, told: str) -> int:
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (database, conn):
            await _get(conn, name)
            changed = await templates.update_template(conn, name, patch)
            await _log(conn, "template.update", name)
            await provider_input.announce(database, "template", name)
        out.line(f"Template {name} is {told}.")
        out.result({"template": _document(changed)})
        return Exit.OK
    return outcome.code


async def remove(settings: Settings, out: Output, *, name: str) -> int:
    with provider_input.refusals(out) as outcome:
        async with provider_input.opened(settings, out) as (database, conn):
            try:
                await templates.delete_template(conn, name)
            except AccessError as error:
                raise Refused(str(error)) from None
            await _log(conn, "template.delete", name)
            await provider_input.announce(database, "template", name)
        out.line(f"Template {name} is removed.")
        out.result({"name": name})
        return Exit.OK
    return outcome.code


async def _get(conn: Connection, name: str) -> Template:
    found = await templates.find_template(conn, name)
    if found is None:
        raise Refused(f"There is no template {name}. `rookery admin template list` shows all templates.")
    return found


async def _log(conn: Connection, action: str, name: str) -> None:
    event = Event(action=action, resource_type=Resource.TEMPLATE, resource_id=name)
    await audit.record(conn, event, actor=SystemActor(SystemName.CLI), now=SystemClock().now())


def _network_for(settings: Settings, manifest: Manifest) -> str | None:
    """Return the network of workspaces if it is lower than their template requests."""
    asked, most = manifest.sandbox.network, workspaces.local_config(settings).network_max
    granted = asked if manifest.driver != "local" else network_levels.lowered(asked, most)
    return granted if granted != asked else None


def _row(template: Template) -> tuple[str, ...]:
    source = "Rookery" if template.shipped else "you"
    return template.name, manifests.decode(template.manifest).driver, _state(template), source, template.revision[:12]


def _state(template: Template) -> str:
    if not template.enabled:
        return "disabled"
    return "deprecated" if template.deprecated else "enabled"


def _document(template: Template) -> dict[str, object]:
    return {
        "name": template.name,
        "revision": template.revision,
        "enabled": template.enabled,
        "deprecated": template.deprecated,
        "agents_allowed": template.agents_allowed,
        "shipped": template.shipped,
    }
