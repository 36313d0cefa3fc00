"""Resolving parameters: the order of their sources, and every rule at once."""

from __future__ import annotations

import pytest

from rookery.workspaces import manifest, parameters, values
from rookery.workspaces.problems import ParametersInvalid

TEMPLATE = manifest.parse(
    """
    name = "t"
    [[parameters]]
    name = "repo"
    required = true
    regex = "https://.+"
    [[parameters]]
    name = "depth"
    type = "number"
    default = 1
    min = 0
    max = 100
    mutable = true
    [[parameters]]
    name = "size"
    options = ["small", "large"]
    default = "small"
    [[parameters]]
    name = "token"
    ephemeral = true
    [[parameters]]
    name = "verbose"
    type = "bool"
    mutable = true
    [[presets]]
    id = "big"
    parameters = { size = "large", depth = 50 }
    """
)


def problems(given: dict[str, object], **options: object) -> dict[str, str]:
    with pytest.raises(ParametersInvalid) as caught:
        parameters.resolve(TEMPLATE, given, **options)  # type: ignore[arg-type]
    return {each.field: each.detail for each in caught.value.problems}


def test_given_values_win_over_the_preset_and_that_over_defaults() -> None:
    made = parameters.resolve(TEMPLATE, {"repo": "https://x", "depth": "7", "token": "t"}, preset_id="big")

    assert made.stored == {"repo": "https://x", "depth": 7, "size": "large"}
    assert made.once == {"token": "t"}


def test_start_takes_stored_values_and_changes_only_mutable_ones() -> None:
    stored = {"repo": "https://x", "depth": 7, "size": "large"}

    made = parameters.resolve(TEMPLATE, {"depth": 9, "verbose": "true", "size": "large"}, stored=stored)

    assert made.stored == {"repo": "https://x", "depth": 9, "size": "large", "verbose": True}
    assert problems({"size": "small", "repo": "https://y"}, stored=stored).keys() == {
        "parameters.size",
        "parameters.repo",
    }


def test_every_problem_is_reported_together() -> None:
    found = problems({"dept": 1, "depth": 101, "size": "huge", "verbose": "maybe"}, preset_id="none")

    assert found.keys() == {
        "parameters.dept",
        "parameters.depth",
        "parameters.size",
        "parameters.verbose",
        "parameters.repo",
        "preset",
    }
    assert found["parameters.repo"] == "This is required."


def test_value_whose_type_changed_with_a_revision_falls_back_to_the_default() -> None:
    made = parameters.resolve(TEMPLATE, {}, stored={"repo": "https://x", "depth": "deep"})

    assert made.stored["depth"] == 1


@pytest.mark.parametrize(
    ("value", "shown"), [(True, "true"), (3, "3"), (2.5, "2.5"), ("a b", "a b"), (["a", "b"], '["a","b"]')]
)
def test_values_as_scripts_see_them(value: values.Value, shown: str) -> None:
    assert values.text(value) == shown


SHARING = manifest.parse(
    """
    name = "host"
    directory = "$ROOKERY_PARAM_folder"
    [sandbox]
    rw_binds = ["$ROOKERY_PARAM_folder"]
    [[parameters]]
    name = "folder"
    required = true
    """
)


@pytest.mark.parametrize("folder", ["/srv/projects", "/srv/projects/a"])
def test_shared_folder_is_bound(folder: str) -> None:
    made = parameters.resolve(SHARING, {"folder": folder}, shared_folders=["/srv/projects"])

    assert parameters.bound_sandbox(SHARING.sandbox, made.all).rw_binds == (folder,)
    assert parameters.bound(SHARING.directory, made.all) == folder


@pytest.mark.parametrize("folder", ["/", "/srv", "/srv/projects2", "/srv/projects/../x", "srv/projects", "~/x"])
def test_other_folders_of_the_host_are_refused(folder: str) -> None:
    with pytest.raises(ParametersInvalid) as caught:
        parameters.resolve(SHARING, {"folder": folder}, shared_folders=["/srv/projects"])

    assert [each.field for each in caught.value.problems] == ["parameters.folder"]
