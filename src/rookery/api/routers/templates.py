"""Workspace templates: users list them, administrators push and manage them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.errors import BadFields, FieldError
from rookery.api.request_bodies import Body, rule
from rookery.api.routes import Items, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action, Resource, Role, has_scope
from rookery.domain.chat.messages import check_storable
from rookery.store.workspaces.templates import MAX_ARCHIVE_BYTES, Template, TemplatePatch
from rookery.workspaces import manifest as manifests
from rookery.workspaces import shared_folders, templates
from rookery.workspaces.operation_requests import as_push
from rookery.workspaces.parameter_values import Value
from rookery.workspaces.template_errors import Problem, TemplateInvalid

ARCHIVE_SECONDS = 120.0


class ParameterView(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a template's workspaces. `ephemeral` parameters are given again at every start.

    `suggestions` are values that a form may offer: the shared folders, if the parameter names a folder of the machine.
    """

    name: str
    type: str
    required: bool
    default: Value | None
    mutable: bool
    ephemeral: bool
    display_name: str
    description: str
    options: tuple[Value, ...]
    regex: str | None
    min: float | None
    max: float | None
    suggestions: tuple[str, ...]


class PresetView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    default: bool
    description: str
    parameters: dict[str, Value]


class TemplateView(msgspec.Struct, frozen=True, kw_only=True):
    """A template.

    `revision` and `readme` are present only if a single template is read. Access lists are present only for
    administrators.

    `network` is the requested network: none, hosts, public or host. `granted_network` is the network that its
    workspaces get; the server's settings may lower it. `hosts` are the hosts that can be reached with the network
    `hosts`. `unavailable` is the reason why workspaces of the template cannot be started on this server, and the
    remedy; null if they can be started.
    """

    name: str
    display_name: str
    description: str
    icon: str
    driver: str
    network: str
    granted_network: str
    hosts: tuple[str, ...]
    unavailable: str | None
    parameters: tuple[ParameterView, ...]
    presets: tuple[PresetView, ...]
    agents_allowed: bool
    deprecated: bool
    enabled: bool
    shipped: bool
    updated_at: datetime
    revision: str | UnsetType = UNSET
    readme: str | UnsetType = UNSET
    allowed_users: tuple[UUID, ...] | UnsetType = UNSET
    allowed_roles: tuple[str, ...] | UnsetType = UNSET


class TemplatePatchBody(Body):
    """The fields to change; absent fields keep their values.

    If `allowed_users` and `allowed_roles` are both empty, all users may use the template.
    """

    enabled: bool = True
    deprecated: bool = False
    agents_allowed: bool = True
    allowed_users: Annotated[list[UUID], Field(max_length=200)] = Field(default_factory=list)
    allowed_roles: Annotated[list[Role], Field(max_length=3)] = Field(default_factory=list)


# A name that the database cannot store is refused.
TemplateName = Annotated[str, rule(partial(check_storable, "template"))]


def router(services: ApiServices) -> Routes:
    routes = Routes("templates")
    view = partial(_view, services)

    async def single(caller: Caller, template: Template) -> TemplateView:
        problems = await services.workspaces.availability.problems()
        return view(caller, template, problems, is_single=True)

    @routes.get("/templates", "templates.list", returns=Items[TemplateView])
    async def list_templates(caller: Caller) -> Response:
        """List the templates that the caller may use, by name. Administrators and auditors see all."""
        found = await (caller.store.templates.list_all() if _is_staff(caller) else caller.store.templates.list())
        problems = await services.workspaces.availability.problems()
        return answer(Items(tuple(view(caller, each, problems) for each in found)))

    @routes.get("/templates/{template}", "templates.get", returns=TemplateView, errors=(404,))
    async def get(caller: Caller, template: TemplateName) -> Response:
        """Return one template with its README."""
        return answer(await single(caller, await caller.store.templates.get(template)))

    @routes.put(
        "/templates/{template}",
        "templates.push",
        returns=TemplateView,
        raw_body="application/x-tar",
        errors=(408, 413),
    )
    async def push(caller: Caller, template: TemplateName) -> Response:
        """Push a template: a tar archive of its folder, gzipped or not, as the body.

        All problems are reported together.

        Running workspaces do not change. Their next start uses the new revision, unless the template sets
        `update_on_start` to false.
        """
        await caller.store.templates.require()
        seconds = max(ARCHIVE_SECONDS, caller.read_seconds)
        data = await caller.read_bytes(limit=MAX_ARCHIVE_BYTES, seconds=seconds)
        packed = await asyncio.to_thread(_packed, data, template, services.workspaces.parts.shared_folders)
        return answer(await single(caller, await caller.store.templates.push(as_push(packed))))

    @routes.patch(
        "/templates/{template}", "templates.update", returns=TemplateView, body=TemplatePatchBody, errors=(404,)
    )
    async def update(caller: Caller, template: TemplateName) -> Response:
        """Set the users who may use a template, and enable or disable it."""
        body = await caller.read(TemplatePatchBody, may=lambda: caller.store.templates.require(template))
        given = {name: getattr(body, name) for name in body.given}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        changed = await caller.store.templates.update(template, TemplatePatch(**(given | lists)))
        return answer(await single(caller, changed))

    @routes.delete("/templates/{template}", "templates.delete", errors=(404, 409))
    async def delete(caller: Caller, template: TemplateName) -> Response:
        """Delete a template that no workspace uses."""
        await caller.store.templates.delete(template)
        return nothing()

    return routes


def _packed(data: bytes, name: str, shared: Sequence[str]) -> templates.Packed:
    try:
        packed = templates.pack(templates.read_archive(data))
        if packed.manifest.name != name:
            raise TemplateInvalid(
                [
                    Problem(
                        "name",
                        (f"The manifest has the name {packed.manifest.name}, but the address has the name {name}."),
                    )
                ]
            )
        shared_folders.check_template(packed.manifest, shared)
    except TemplateInvalid as error:
        raise BadFields([FieldError(each.field, each.detail) for each in error.problems]) from None
    return packed


def _is_staff(caller: Caller) -> bool:
    is_staff = caller.user.role in (Role.ADMIN, Role.AUDITOR)
    return is_staff and has_scope(caller.actor, Resource.TEMPLATE, Action.READ)


def _view(
    services: ApiServices, caller: Caller, template: Template, problems: Mapping[str, str], *, is_single: bool = False
) -> TemplateView:
    manifest = manifests.decode(template.manifest)
    is_staff = _is_staff(caller)
    shared = tuple(services.workspaces.parts.shared_folders)
    folders = shared_folders.parameters_of(manifest)
    return TemplateView(
        name=template.name,
        display_name=manifest.display_name or template.name,
        description=manifest.description,
        icon=manifest.icon,
        driver=manifest.driver,
        network=manifest.sandbox.network,
        granted_network=services.workspaces.service.granted_network(manifest),
        hosts=manifest.sandbox.hosts,
        unavailable=problems.get(manifest.driver) or shared_folders.why_unusable(manifest, shared),
        parameters=tuple(
            ParameterView(**msgspec.structs.asdict(each), suggestions=shared if each.name in folders else ())
            for each in manifest.parameters
        ),
        presets=tuple(PresetView(**msgspec.structs.asdict(each)) for each in manifest.presets),
        agents_allowed=template.agents_allowed,
        deprecated=template.deprecated,
        enabled=template.enabled,
        shipped=template.shipped,
        updated_at=template.updated_at,
        revision=template.revision if is_single else UNSET,
        readme=template.readme if is_single else UNSET,
        allowed_users=template.allowed_users if is_staff else UNSET,
        allowed_roles=template.allowed_roles if is_staff else UNSET,
    )
