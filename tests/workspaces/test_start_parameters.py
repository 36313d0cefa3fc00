"""Resolving parameters: the order of their sources, and all rules together."""

from __future__ import annotations

import time

import pytest

from rookery.workspaces import manifest, parameter_values, start_parameters
from rookery.workspaces.template_errors import ParametersInvalid, TemplateInvalid

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
        start_parameters.resolve(TEMPLATE, given, **options)  # type: ignore[arg-type]
    return {each.field: each.detail for each in caught.value.problems}


def test_given_values_win_over_the_preset_and_that_over_defaults() -> None:
    made = start_parameters.resolve(TEMPLATE, {"repo": "https://x", "depth": "7", "token": "t"}, preset_id="big")

    assert made.stored == {"repo": "https://x", "depth": 7, "size": "large"}
    assert made.once == {"token": "t"}


def test_start_takes_stored_values_and_changes_only_mutable_ones() -> None:
    stored = {"repo": "https://x", "depth": 7, "size": "large"}

    made = start_parameters.resolve(TEMPLATE, {"depth": 9, "verbose": "true", "size": "large"}, stored=stored)

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
    made = start_parameters.resolve(TEMPLATE, {}, stored={"repo": "https://x", "depth": "deep"})

    assert made.stored["depth"] == 1


@pytest.mark.parametrize(
    ("value", "shown"), [(True, "true"), (3, "3"), (2.5, "2.5"), ("a b", "a b"), (["a", "b"], '["a","b"]')]
)
def test_values_as_scripts_see_them(value: parameter_values.Value, shown: str) -> None:
    assert parameter_values.text(value) == shown


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
    made = start_parameters.resolve(SHARING, {"folder": folder}, shared_folders=["/srv/projects"])

    assert start_parameters.fill_sandbox(SHARING.sandbox, made.stored).rw_binds == (folder,)
    assert start_parameters.fill_path(SHARING.directory, made.stored) == folder


@pytest.mark.parametrize("folder", ["/", "/srv", "/srv/projects2", "/srv/projects/../x", "srv/projects", "~/x"])
def test_other_folders_of_the_host_are_refused(folder: str) -> None:
    with pytest.raises(ParametersInvalid) as caught:
        start_parameters.resolve(SHARING, {"folder": folder}, shared_folders=["/srv/projects"])

    assert [each.field for each in caught.value.problems] == ["parameters.folder"]


# Secrets

SECRETIVE = manifest.parse(
    """
    name = "s"
    [[parameters]]
    name = "key"
    type = "secret"
    required = true
    min = 4
    mutable = true
    [[parameters]]
    name = "once"
    type = "secret"
    ephemeral = true
    [[parameters]]
    name = "repo"
    mutable = true
    [[parameters]]
    name = "mirrors"
    type = "list(string)"
    """
)


def test_secrets_and_credentials_of_urls_are_kept_apart_from_what_is_shown() -> None:
    made = start_parameters.resolve(
        SECRETIVE,
        {
            "key": "hunter2",
            "once": "123",
            "repo": "https://me:pw@git.example/a.git",
            "mirrors": ["https://tok@a.example/", "b"],
        },
    )

    assert made.stored == {
        "key": "***",
        "repo": "https://***@git.example/a.git",
        "mirrors": ["https://***@a.example/", "b"],
    }
    assert made.once == {"once": "***"}
    assert made.secrets["key"] == "hunter2"
    assert made.secrets["repo"] == "https://me:pw@git.example/a.git"
    assert made.once_secrets == {"once": "123"}


def test_scripts_get_secrets_by_the_descriptor_and_addresses_without_credentials() -> None:
    environment, handed = start_parameters.script_values(
        SECRETIVE, {"key": "hunter2", "repo": "https://me:pw@git.example/a.git", "mirrors": ["b"]}
    )

    assert environment == {"repo": "https://git.example/a.git", "mirrors": '["b"]'}
    assert handed == {"key": "hunter2", "repo": "https://me:pw@git.example/a.git"}


def test_mask_that_is_given_back_leaves_the_value_as_it_is() -> None:
    stored = {"key": "hunter2", "repo": "https://me:pw@git.example/a.git"}

    same = start_parameters.resolve(SECRETIVE, {"key": "***", "repo": "https://***@git.example/a.git"}, stored=stored)
    changed = start_parameters.resolve(SECRETIVE, {"key": "other", "repo": "https://git.example/b.git"}, stored=stored)

    assert same.secrets == stored
    assert changed.secrets == {"key": "other"}
    assert changed.stored["repo"] == "https://git.example/b.git"


@pytest.mark.parametrize(
    "given", [{}, {"key": "***"}, {"key": "abc"}, {"key": 7}, {"key": "a\0bcd"}, {"key": "x" * 40_000}]
)
def test_wrong_secrets_are_refused_without_being_repeated(given: dict[str, object]) -> None:
    with pytest.raises(ParametersInvalid) as caught:
        start_parameters.resolve(SECRETIVE, given)

    (problem,) = caught.value.problems
    assert problem.field == "parameters.key"
    assert "xxx" not in problem.detail


@pytest.mark.parametrize(
    ("url", "shown", "bare"),
    [
        ("https://u:p@h/x", "https://***@h/x", "https://h/x"),
        ("https://token@h/x", "https://***@h/x", "https://h/x"),
        ("git+https://u:p@h/x", "git+https://***@h/x", "git+https://h/x"),
        ("https://u:p@ss@h/x", "https://***@h/x", "https://h/x"),
        ("ssh://git@h/x", "ssh://git@h/x", "ssh://git@h/x"),
        ("ssh://git:pw@h/x", "ssh://git:***@h/x", "ssh://git@h/x"),
        ("git@h:x/y", "git@h:x/y", "git@h:x/y"),
        ("https://h/x@y", "https://h/x@y", "https://h/x@y"),
        ("https://h?next=a@b", "https://h?next=a@b", "https://h?next=a@b"),
        ("--index https://u:p@h/simple pkg", "--index https://***@h/simple pkg", "--index https://h/simple pkg"),
        ("https://u:p/w?x#y@h/x", "https://***@h/x", "https://h/x"),
        ("x_https://u:p@h/x", "x_https://***@h/x", "x_https://h/x"),
        ("", "", ""),
    ],
)
def test_user_info_of_urls_is_found(url: str, shown: str, bare: str) -> None:
    assert (parameter_values.masked(url), parameter_values.without_credentials(url)) == (shown, bare)
    assert parameter_values.masked(parameter_values.without_credentials(url)) == bare


@pytest.mark.parametrize("unit", [":", "@", ":@", "a:", "://", "a://", "a+", "http://"])
def test_urls_are_searched_in_time_that_grows_with_their_length_only(unit: str) -> None:
    values = [f"http://{unit * (parameter_values.MAX_TEXT_BYTES // len(unit) - 8)}{end}" for end in ("", " ")]

    began = time.thread_time()
    for value in values:
        parameter_values.masked(value)

    # A search of the whole rest for every colon takes a second.
    assert time.thread_time() - began < 0.2


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('type = "secret"\ndefault = "x"', "parameters[0].default"),
        ('type = "secret"\noptions = ["x"]', "parameters[0].options"),
        ('default = "https://u:p@h/"', "parameters[0].default"),
    ],
)
def test_template_holds_no_secrets(text: str, field: str) -> None:
    with pytest.raises(TemplateInvalid) as caught:
        manifest.parse(f'name = "t"\n[[parameters]]\nname = "a"\n{text}')
    assert [each.field for each in caught.value.problems] == [field]


def test_preset_holds_no_secrets() -> None:
    text = 'name = "t"\n[[parameters]]\nname = "a"\ntype = "secret"\n[[presets]]\nid = "p"\nparameters = { a = "x" }'
    with pytest.raises(TemplateInvalid, match="secrets"):
        manifest.parse(text)


def test_pattern_of_an_administrator_cannot_stall_the_server_with_a_members_value() -> None:
    made = manifest.parse('name = "a"\n[[parameters]]\nname = "word"\nregex = "(a+)+b"\n')
    started = time.thread_time()
    with pytest.raises(ParametersInvalid, match=r"must match \(a\+\)\+b"):
        start_parameters.resolve(made, {"word": "a" * 8000})
    with pytest.raises(ParametersInvalid, match="at most 8192 characters"):
        start_parameters.resolve(made, {"word": "a" * 9000})
    assert time.thread_time() - started < 1.0


def test_stored_pattern_that_is_not_supported_any_more_names_the_administrator() -> None:
    stored = manifest.decode({"name": "a", "parameters": [{"name": "word", "regex": "(?=a)a"}]})
    with pytest.raises(ParametersInvalid, match="Ask an administrator"):
        start_parameters.resolve(stored, {"word": "a"})


@pytest.mark.parametrize(
    ("given", "preset", "expected"),
    [
        ({}, None, ("repo",)),
        ({"repo": ""}, None, ("repo",)),
        ({"repo": None}, "big", ("repo",)),
        ({"repo": "https://x"}, None, ()),
        ({"repo": 7}, "unknown", ()),
    ],
)
def test_missing_parameters_are_the_required_ones_without_a_value(
    given: dict[str, object], preset: str | None, expected: tuple[str, ...]
) -> None:
    assert start_parameters.missing(TEMPLATE, given, preset_id=preset) == expected
