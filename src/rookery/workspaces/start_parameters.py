"""The parameters of a start: resolved from presets, given values, stored values and defaults, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rookery.workspaces import manifest_checks, parameter_values, shared_folders
from rookery.workspaces.drivers.driver_interface import Sandbox
from rookery.workspaces.manifest import Manifest, Parameter
from rookery.workspaces.parameter_values import Value
from rookery.workspaces.template_errors import ParametersInvalid, Problem


class Resolved(msgspec.Struct, frozen=True):
    """Resolved parameters. `stored` is kept with the workspace; `once` is for this start only.

    Secrets and URLs with credentials are masked in both. Their real values are in `secrets` and `once_secrets`.
    """

    stored: dict[str, Value]
    once: dict[str, Value]
    secrets: dict[str, Value]
    once_secrets: dict[str, Value]


def resolve(
    manifest: Manifest,
    given: Mapping[str, object],
    *,
    preset_id: str | None = None,
    stored: Mapping[str, object] | None = None,
    shared_folders: Sequence[str] = (),
) -> Resolved:
    """Return the parameters of a start. Given values come first, then those of the preset, stored values and defaults.

    `stored` is None for a new workspace, else its stored values with decrypted secrets. `shared_folders` are the
    folders of the machine that a parameter may name. Raise `ParametersInvalid` with all problems.
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
    shown, secrets = _split(manifest, kept)
    shown_once, once_secrets = _split(manifest, once)
    return Resolved(shown, shown_once, secrets, once_secrets)


def missing(manifest: Manifest, given: Mapping[str, object], *, preset_id: str | None = None) -> tuple[str, ...]:
    """Return the required parameters of a new workspace that have no value."""
    chosen = _preset(manifest, preset_id, []) | dict(given)
    return tuple(
        each.name
        for each in manifest.parameters
        if each.required and each.default is None and chosen.get(each.name) in (None, "")
    )


def _split(manifest: Manifest, chosen: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the values with masks for secrets and credentials, and the real values of the masked ones."""
    shown, secrets = dict(chosen), dict[str, Value]()
    for name, value in chosen.items():
        masked = parameter_values.MASK if _is_secret(manifest, name) else parameter_values.masked(value)
        if masked != value:
            shown[name], secrets[name] = masked, value
    return shown, secrets


def script_values(manifest: Manifest, chosen: Mapping[str, Value]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values for the environment of scripts, and those for the descriptor with secrets.

    A URL with credentials is in both, without credentials in the environment.
    """
    environment, secrets = dict[str, str](), dict[str, str]()
    for name, value in chosen.items():
        bare = parameter_values.without_credentials(value)
        if not _is_secret(manifest, name):
            environment[name] = parameter_values.text(bare)
        if _is_secret(manifest, name) or bare != value:
            secrets[name] = parameter_values.text(value)
    return environment, secrets


def _is_secret(manifest: Manifest, name: str) -> bool:
    found = manifest.find_parameter(name)
    return found is not None and found.type == "secret"


def fill_path(path: str, chosen: Mapping[str, Value]) -> str | None:
    """Return a path of the manifest with its parameter filled in; None if the parameter has no value."""
    name = manifest_checks.path_parameter(path)
    if name is None:
        return path
    value = chosen.get(name)
    return str(value) if value else None


def fill_sandbox(sandbox: Sandbox, chosen: Mapping[str, Value]) -> Sandbox:
    """Return the sandbox with parameters in its binds filled in. Binds whose parameter has no value are dropped."""
    filled = {
        kind: tuple(path for each in getattr(sandbox, kind) if (path := fill_path(each, chosen)) is not None)
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
    if chosen.get(parameter.name) is None or _is_mask(parameter, chosen[parameter.name], before):
        return _fallback(parameter, before, field, problems)
    try:
        value = parameter_values.convert(chosen[parameter.name], parameter.type)
    except ValueError as error:
        problems.append(Problem(field, str(error)))
        return None
    is_change = stored is not None and value != before
    if is_change and not parameter.mutable and not parameter.ephemeral:
        problems.append(Problem(field, "This cannot be changed after the workspace was created."))
    problems += [Problem(field, detail) for detail in parameter_values.check(value, parameter)]
    return value


def _is_mask(parameter: Parameter, given: object, before: object) -> bool:
    """Return whether the given value is the mask of the stored value."""
    if parameter.type == "secret":
        return given == parameter_values.MASK
    return (
        isinstance(before, str | list)
        and parameter_values.masked(before) != before
        and given == parameter_values.masked(before)
    )


def _fallback(parameter: Parameter, before: object, field: str, problems: list[Problem]) -> Value | None:
    """Return the stored value, or the default if there is none, or if the type of the parameter has changed."""
    if before is not None:
        try:
            return parameter_values.convert(before, parameter.type)
        except ValueError:
            pass
    if parameter.default is None and parameter.required:
        problems.append(Problem(field, "This is required."))
    return parameter.default


def _check_folders(
    manifest: Manifest, chosen: Mapping[str, Value], shared: Sequence[str], problems: list[Problem]
) -> None:
    """Add a problem for each bind parameter whose folder is not a shared folder."""
    for path in (*manifest.sandbox.ro_binds, *manifest.sandbox.rw_binds):
        name = manifest_checks.path_parameter(path)
        value = chosen.get(name) if name is not None else None
        if name is None or value is None:
            continue
        if not shared_folders.is_shared(str(value), shared):
            offered = (
                f"Choose one of {', '.join(shared)} or a folder below it."
                if shared
                else "This server shares none: see workspaces.shared_folders."
            )
            problems.append(Problem(f"parameters.{name}", f"This folder is not shared with workspaces. {offered}"))
