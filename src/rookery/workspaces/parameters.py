"""From what somebody gives to what a workspace is started with: presets, stored values, defaults, and every rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rookery.workspaces import checks, shared_folders, values
from rookery.workspaces.drivers.protocol import Sandbox
from rookery.workspaces.manifest import Manifest, Parameter
from rookery.workspaces.problems import ParametersInvalid, Problem
from rookery.workspaces.values import Value


class Resolved(msgspec.Struct, frozen=True):
    """`stored` stays with the workspace; `once` is for this start alone."""

    stored: dict[str, Value]
    once: dict[str, Value]

    @property
    def all(self) -> dict[str, Value]:
        return self.stored | self.once


def resolve(
    manifest: Manifest,
    given: Mapping[str, object],
    *,
    preset_id: str | None = None,
    stored: Mapping[str, object] | None = None,
    shared_folders: Sequence[str] = (),
) -> Resolved:
    """Preset values, overlaid by given ones, then stored values (of a start), then defaults.

    `stored` is None for a new workspace. Raises `ParametersInvalid` with every problem. `shared_folders` are the
    folders of the host that a parameter may choose from.
    """
    problems: list[Problem] = []
    chosen = _preset(manifest, preset_id, problems) | dict(given)
    for name in given:
        if manifest.find_parameter(name) is None:
            known = ", ".join(each.name for each in manifest.parameters) or "none"
            problems.append(Problem(f"parameters.{name}", f"There is no such parameter. This template has: {known}."))
    kept: dict[str, Value] = {}
    once: dict[str, Value] = {}
    for parameter in manifest.parameters:
        value = _value(parameter, chosen, stored, problems)
        if value is not None:
            (once if parameter.ephemeral else kept)[parameter.name] = value
    _check_folders(manifest, kept | once, shared_folders, problems)
    if problems:
        raise ParametersInvalid(problems, template=manifest.name)
    return Resolved(kept, once)


def bound(path: str, chosen: Mapping[str, Value]) -> str | None:
    """A path of the manifest with its parameter filled in; None when that has no value."""
    name = checks.bound_parameter(path)
    if name is None:
        return path
    value = chosen.get(name)
    return str(value) if value else None


def bound_sandbox(sandbox: Sandbox, chosen: Mapping[str, Value]) -> Sandbox:
    """The sandbox with the folders that parameters name; a bind whose parameter has no value is left out."""
    filled = {
        kind: tuple(path for each in getattr(sandbox, kind) if (path := bound(each, chosen)) is not None)
        for kind in ("ro_binds", "rw_binds")
    }
    return msgspec.structs.replace(sandbox, **filled)


def _preset(manifest: Manifest, preset_id: str | None, problems: list[Problem]) -> dict[str, object]:
    if preset_id is None:
        return {}
    preset = manifest.find_preset(preset_id)
    if preset is None:
        known = ", ".join(each.id for each in manifest.presets) or "none"
        problems.append(Problem("preset", f"There is no preset {preset_id:.64}. This template has: {known}."))
        return {}
    return dict(preset.parameters)


def _value(
    parameter: Parameter, chosen: Mapping[str, object], stored: Mapping[str, object] | None, problems: list[Problem]
) -> Value | None:
    field = f"parameters.{parameter.name}"
    before = None if stored is None or parameter.ephemeral else stored.get(parameter.name)
    if chosen.get(parameter.name) is None:
        return _fallback(parameter, before, field, problems)
    try:
        value = values.convert(chosen[parameter.name], parameter.type)
    except ValueError as error:
        problems.append(Problem(field, str(error)))
        return None
    is_change = stored is not None and value != before
    if is_change and not parameter.mutable and not parameter.ephemeral:
        problems.append(Problem(field, "This cannot be changed after the workspace was made."))
    problems += [Problem(field, detail) for detail in values.check(value, parameter)]
    return value


def _fallback(parameter: Parameter, before: object, field: str, problems: list[Problem]) -> Value | None:
    """What was stored, unless a newer revision gave the parameter another type; then the default."""
    if before is not None:
        try:
            return values.convert(before, parameter.type)
        except ValueError:
            pass
    if parameter.default is None and parameter.required:
        problems.append(Problem(field, "This is required."))
    return parameter.default


def _check_folders(
    manifest: Manifest, chosen: Mapping[str, Value], shared: Sequence[str], problems: list[Problem]
) -> None:
    """A folder of the host that a parameter names must be one that the operator of this server shares."""
    for path in (*manifest.sandbox.ro_binds, *manifest.sandbox.rw_binds):
        name = checks.bound_parameter(path)
        value = chosen.get(name) if name is not None else None
        if name is None or value is None:
            continue
        if not shared_folders.is_shared(str(value), shared):
            offered = f"Choose one of {', '.join(shared)}, or below." if shared else "None are; see workspaces.md."
            problems.append(Problem(f"parameters.{name}", f"This folder is not shared with workspaces. {offered}"))
