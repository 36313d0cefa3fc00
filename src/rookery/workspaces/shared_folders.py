"""The shared folders: folders of the machine that templates may bind (setting `workspaces.shared_folders`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from rookery.workspaces import manifest_checks
from rookery.workspaces.manifest import Manifest
from rookery.workspaces.template_errors import Problem, TemplateInvalid

SETTING = "workspaces.shared_folders"


def is_shared(folder: str, shared: Sequence[str]) -> bool:
    path = PurePosixPath(folder)
    # Python treats two leading slashes as another root; Linux does not.
    if not path.is_absolute() or ".." in path.parts or folder.startswith("//"):
        return False
    return any(path.is_relative_to(each) for each in shared)


def problem_of(folder: str, shared: Sequence[str]) -> str | None:
    """Return why this folder may not be bound, as a sentence; None if it may."""
    if is_shared(folder, shared):
        return None
    listed = f"It lists {', '.join(shared)}" if shared else "It lists none"
    return f"The bind {folder!r:.200} is not in a folder that the setting {SETTING} lists. {listed}."


def parameters_of(manifest: Manifest) -> frozenset[str]:
    """Return the names of the parameters that name a folder to bind."""
    binds = (*manifest.sandbox.ro_binds, *manifest.sandbox.rw_binds)
    return frozenset(name for path in binds if (name := manifest_checks.path_parameter(path)) is not None)


def why_unusable(manifest: Manifest, shared: Sequence[str]) -> str | None:
    """Return why no workspace of the template can start: it needs a folder, and none is shared. None if it can."""
    needed = parameters_of(manifest)
    if shared or not any(each.required and each.name in needed for each in manifest.parameters):
        return None
    return (
        "This server shares no folders with workspaces. Start it with `ROOKERY_WORKSPACES_SHARED_FOLDERS=/path/of/a/"
        "folder` to share one."
    )


def check_template(manifest: Manifest, shared: Sequence[str]) -> None:
    """Raise `TemplateInvalid` if the template binds folders that are not shared.

    Binds with a parameter are checked when the parameter has a value.
    """
    problems = []
    for kind in ("ro_binds", "rw_binds"):
        for number, path in enumerate(getattr(manifest.sandbox, kind)):
            if manifest_checks.path_parameter(path) is None and (problem := problem_of(path, shared)) is not None:
                problems.append(Problem(f"sandbox.{kind}[{number}]", problem))
    if problems:
        raise TemplateInvalid(problems)
