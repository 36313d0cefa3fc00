"""Runtime settings, in groups. Each group has its own pair of operations, made from `setting_groups`.

Administrators change them, auditors read them, and members see the public keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin
from uuid import UUID

import msgspec
import pydantic
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.responses import Response

from rookery.api.caller import Caller
from rookery.api.errors import BadFields, FieldError
from rookery.api.handler_parameters import InHeader
from rookery.api.request_bodies import Body
from rookery.api.routers.approvals import RulesList
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action, Resource, Role, has_scope
from rookery.domain.chat import approvals
from rookery.domain.chat.approvals import Rule
from rookery.domain.chat.default_prompt import DEFAULT_PROMPT
from rookery.domain.chat.messages import Effort
from rookery.models.directory import Snapshot
from rookery.store.settings.setting_groups import (
    APPROVALS,
    DEBUG,
    GROUPS,
    MAX_NUMBER,
    PROMPTS,
    Group,
    GroupState,
    ModelOverride,
)

T = TypeVar("T")
IfMatch = Annotated[
    str | None,
    InHeader,
    Field(description="The `updated_at` that was read; 412 if the group was changed since."),
]


class OverrideView(msgspec.Struct, frozen=True):
    """A model for one purpose. `usable` is false if the model has been disabled or deleted."""

    model_config_id: UUID
    reasoning_effort: Effort | None
    usable: bool


class OverrideBody(Body):
    model_config_id: UUID
    reasoning_effort: Effort | None = None


class GroupView(msgspec.Struct, Generic[T], frozen=True):
    """A group with its defaults.

    `pinned` are keys that the operator has set in the server's environment; they cannot be changed.
    """

    values: T
    pinned: tuple[str, ...]
    updated_at: datetime | None


def _body_type(kind: Any) -> Any:
    """Return the type of a key for pydantic, with the same range."""
    if get_origin(kind) is Annotated:
        plain, meta = get_args(kind)
        if Rule in get_args(plain):
            return RulesList
        return Annotated[plain, Field(ge=meta.ge, le=MAX_NUMBER if meta.le is None else meta.le)]
    return OverrideBody | None if ModelOverride in get_args(kind) else kind


def _view_type(kind: Any) -> Any:
    return OverrideView | None if ModelOverride in get_args(kind) else kind


def _body_of(group: Group) -> type[Body]:
    # The document shows no defaults: absent keys keep their values.
    fields: Any = {key: (_body_type(kind), Field(default_factory=_absent)) for key, kind in group.types().items()}
    name = f"{group.kind.__name__}Change"
    return pydantic.create_model(
        name, __base__=Body, __doc__=("Any of the keys; absent keys keep their values."), **fields
    )


def _absent() -> None:
    return None


def _values_of(group: Group) -> type[msgspec.Struct]:
    fields: list[Any] = [(key, _view_type(kind) | UnsetType, UNSET) for key, kind in group.types().items()]
    if group is PROMPTS:
        fields.append(("default_system_prompt", str | UnsetType, UNSET))
    if group is DEBUG:
        # The operator's start setting, which overrides the group.
        fields.append(("forced", bool | UnsetType, UNSET))
    made = msgspec.defstruct(f"{group.kind.__name__}Values", fields, frozen=True, kw_only=True)
    made.__doc__ = group.kind.__doc__
    return made


BODIES: Mapping[str, type[Body]] = {name: _body_of(group) for name, group in GROUPS.items()}
VALUES: Mapping[str, type[msgspec.Struct]] = {name: _values_of(group) for name, group in GROUPS.items()}
VIEWS: Mapping[str, Any] = {name: GroupView[values] for name, values in VALUES.items()}  # type: ignore[valid-type]
GroupsView = msgspec.defstruct(
    "GroupsView", [(name, view | UnsetType, UNSET) for name, view in VIEWS.items()], frozen=True, kw_only=True
)


class SettingsView(msgspec.Struct, frozen=True):
    """The groups that the caller may see."""

    groups: GroupsView  # type: ignore[valid-type]


class AffectedView(msgspec.Struct, frozen=True):
    """The number of chats that would be archived, and of archived chats that would be deleted.

    A number of 1,000 means 1,000 or more.
    """

    auto_archive: int
    retention: int


Days = Annotated[int, Field(ge=0, le=3650)]


def router(services: ApiServices) -> Routes:
    routes = Routes("settings")

    @routes.get("/settings", "settings.list", returns=SettingsView)
    async def list_groups(caller: Caller) -> Response:
        """List all groups: with all keys for administrators and auditors, with the public keys for members."""
        snapshot = await services.directory.snapshot()
        found = await _read(caller)
        return answer({"groups": {name: _view(name, state, snapshot, services) for name, state in found.items()}})

    @routes.get("/settings/chats/affected", "settings.affected", returns=AffectedView)
    async def affected(caller: Caller, auto_archive_days: Days = 0, retention_days: Days = 0) -> Response:
        """Count the chats that these periods would affect now, before they are saved."""
        found = await caller.store.settings.count_due(
            auto_archive_days=auto_archive_days, retention_days=retention_days, now=services.clock.now()
        )
        return answer(AffectedView(*found))

    for group in GROUPS.values():
        _add(routes, group, services)
    return routes


def _add(routes: Routes, group: Group, services: ApiServices) -> None:
    name = group.name
    path, body_type = f"/settings/{name}", BODIES[name]

    async def get(caller: Caller) -> Response:
        found = await _read(caller)
        if name not in found:
            found = await caller.store.settings.list()  # raises with the reason, which is a missing scope or role
        return answer(_view(name, found[name], await services.directory.snapshot(), services))

    async def put(caller: Caller, if_match: IfMatch = None) -> Response:
        body = await caller.read(body_type, may=caller.store.settings.require)
        seen = None
        if if_match is not None:
            await caller.store.settings.require()
            seen = _seen(if_match)
        written = await caller.store.settings.write(name, _change(body), seen=seen)
        return answer(_view(name, written, await services.directory.snapshot(), services))

    get.__doc__ = f"Return the settings of the group `{name}`."
    put.__doc__ = (
        f"Change settings of the group `{name}`. 409, without any change, for a key that the server's environment sets."
    )
    routes.get(path, f"settings.get_{name}", returns=VIEWS[name])(get)
    routes.put(path, f"settings.put_{name}", body=body_type, returns=VIEWS[name], errors=(409, 412))(put)


async def _read(caller: Caller) -> dict[str, GroupState]:
    is_staff = caller.user.role in (Role.ADMIN, Role.AUDITOR)
    if is_staff and has_scope(caller.actor, Resource.SETTINGS, Action.READ):
        return await caller.store.settings.list()
    return await caller.store.settings.list_public()


def _change(body: Body) -> dict[str, object]:
    given = {key: getattr(body, key) for key in body.given}
    return {
        key: ModelOverride(value.model_config_id, value.reasoning_effort) if isinstance(value, OverrideBody) else value
        for key, value in given.items()
    }


def _view(name: str, state: GroupState, snapshot: Snapshot, services: ApiServices) -> GroupView[Any]:
    values: dict[str, Any] = {
        key: _override(value, snapshot) if isinstance(value, ModelOverride) else value
        for key, value in state.values.items()
    }
    if name == APPROVALS.name and "rules" in values:
        values["rules"] = approvals.with_problems(values["rules"])
    if name == PROMPTS.name:
        values["default_system_prompt"] = DEFAULT_PROMPT
    if name == DEBUG.name:
        values["forced"] = services.is_debug_forced
    return GroupView(VALUES[name](**values), state.pinned, state.updated_at)


def _override(override: ModelOverride, snapshot: Snapshot) -> OverrideView:
    config = snapshot.configs.get(override.model_config_id)
    is_live = config is not None and config.enabled and not config.deleted
    usable = is_live and config is not None and snapshot.providers[config.provider_id].is_live
    return OverrideView(override.model_config_id, override.reasoning_effort, usable)


def _seen(if_match: str) -> datetime:
    text = if_match.strip().strip('"')
    try:
        seen = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        seen = None
    if seen is None or seen.tzinfo is None:
        raise BadFields([FieldError("If-Match", "Send the `updated_at` of the group, as it was read.")])
    return seen
