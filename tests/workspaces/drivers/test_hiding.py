"""Files of the server are hidden in the trees that a sandbox sees, whatever their names and whenever they appear."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from rookery.workspaces.drivers.launcher import bwrap_arguments, hidden_files, source_access
from rookery.workspaces.drivers.launcher.hidden_files import Bound, Cover
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError

DATA = "/no-such-data"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "etc").mkdir(parents=True)
    (made / "etc" / "key").write_text("secret")
    (made / "etc" / "other").write_text("seen")
    (made / "etc" / "folder").mkdir()
    (made / "etc" / "link").symlink_to("other")
    return made


def covers(tree: Path, *hidden: Path | str, uid: int | None = None) -> list[Cover]:
    return hidden_files.covers([Bound(str(tree), "/seen")], [str(path) for path in hidden], uid)


def seen(covers: list[Cover]) -> set[str]:
    return {place for cover in covers for _, place in (*cover.links, *cover.binds)}


def test_directory_of_a_hidden_file_is_replaced_by_what_else_is_in_it(tree: Path) -> None:
    (made,) = covers(tree, tree / "etc" / "key")

    assert made.target == "/seen/etc"
    assert made.links == [("other", "/seen/etc/link")]
    assert made.binds == [(f"{tree}/etc/{name}", f"/seen/etc/{name}") for name in ("folder", "other")]


def test_files_elsewhere_change_no_mounts(tree: Path, tmp_path: Path) -> None:
    assert covers(tree, tmp_path / "key", "/etc/shadow", tmp_path / "tree-beside" / "key") == []


def test_file_that_is_named_by_links_is_hidden_where_it_is(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to("tree/etc")

    assert "/seen/etc/key" not in seen(covers(tree, tmp_path / "one" / "key"))
    assert [cover.target for cover in covers(tree, tmp_path / "one" / "key")] == ["/seen/etc"]


def test_directory_with_a_link_to_a_hidden_file_shows_nothing_that_appears_in_it_later(tree: Path) -> None:
    """As orchestrators replace secrets: a new directory appears beside the old one, and the link is changed to it."""
    mounted = tree / "tls"
    (mounted / "..one").mkdir(parents=True)
    (mounted / "..one" / "tls.key").write_text("secret")
    (mounted / "..data").symlink_to("..one")
    (mounted / "tls.key").symlink_to("..data/tls.key")

    made = covers(tree, mounted / "tls.key")

    assert {cover.target for cover in made} == {"/seen/tls", "/seen/tls/..one"}
    assert "/seen/tls/..one/tls.key" not in seen(made)


@pytest.mark.parametrize("missing", ["etc/later", "etc/not/yet/there"])
def test_file_that_does_not_exist_yet_has_a_directory_that_does_not_change(tree: Path, missing: str) -> None:
    assert [cover.target for cover in covers(tree, tree / missing)] == ["/seen/etc"]


def test_second_name_of_a_hidden_file_is_hidden_too(tree: Path) -> None:
    (tree / "deep").mkdir()
    os.link(tree / "etc" / "key", tree / "deep" / "copy")

    made = covers(tree, tree / "etc" / "key")

    assert {cover.target for cover in made} == {"/seen/etc", "/seen/deep"}
    assert not {"/seen/deep/copy", "/seen/etc/key"} & seen(made)


def test_second_name_outside_leads_to_the_one_in_the_tree(tree: Path, tmp_path: Path) -> None:
    os.link(tree / "etc" / "key", tmp_path / "named")

    assert "/seen/etc/key" not in seen(covers(tree, tmp_path / "named"))
    assert [cover.target for cover in covers(tree, tmp_path / "named")] == ["/seen/etc"]


def test_odd_names_are_hidden_like_others(tree: Path) -> None:
    odd = os.fsdecode(b"a key\n\xff --bind $(x)")
    (tree / "etc" / odd).write_text("secret")

    made = covers(tree, tree / "etc" / odd)

    assert [cover.target for cover in made] == ["/seen/etc"]
    assert f"/seen/etc/{odd}" not in seen(made)


def test_hidden_directory_inside_a_hidden_directory_is_covered_once(tree: Path) -> None:
    assert [cover.target for cover in covers(tree, tree / "etc", tree / "etc" / "key")] == ["/seen"]


def test_outer_directory_comes_before_the_one_in_it(tree: Path) -> None:
    (tree / "key").write_text("secret")

    assert [cover.target for cover in covers(tree, tree / "etc" / "key", tree / "key")] == ["/seen", "/seen/etc"]


def test_tree_that_is_itself_the_server_s_is_not_bound(tree: Path) -> None:
    with pytest.raises(LaunchError, match="move one of them"):
        covers(tree, tree)


def test_directory_that_is_too_full_to_be_replaced_is_refused(tree: Path) -> None:
    for number in range(hidden_files.MAX_SIBLINGS):
        (tree / "etc" / str(number)).touch()

    with pytest.raises(LaunchError, match="a directory of its own"):
        covers(tree, tree / "etc" / "key")


def test_path_of_endless_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(LaunchError, match="too many links"):
        hidden_files.walk(str(tmp_path / "loop"))


def test_directory_that_the_workspace_cannot_enter_is_left_alone(tree: Path) -> None:
    (tree / "etc").chmod(0o700)

    assert covers(tree, tree / "etc" / "key", uid=54321) == []
    (tree / "etc").chmod(0o711)
    assert [cover.target for cover in covers(tree, tree / "etc" / "key", uid=54321)] == ["/seen/etc"]


@pytest.mark.parametrize(
    ("bind", "own"),
    [
        ("shared", "shared/keys/tls.key"),  # contains it
        ("shared", "shared/keys"),
        ("shared/keys", "shared/keys/tls.key"),
        ("shared/keys/tls.key", "shared/keys/tls.key"),
        ("shared/keys", "shared"),  # lies in it
        ("shared", "shared/not/there/yet"),
        ("shared", "by-link/tls.key"),
        ("shared", "shared/outward"),  # a user with write access there could change the link
    ],
)
def test_bind_over_files_of_the_server_is_refused(tmp_path: Path, bind: str, own: str) -> None:
    (tmp_path / "shared" / "keys").mkdir(parents=True)
    (tmp_path / "shared" / "keys" / "tls.key").write_text("secret")
    (tmp_path / "elsewhere").write_text("secret")
    (tmp_path / "shared" / "outward").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "by-link").symlink_to(tmp_path / "shared" / "keys")

    problem = bwrap_arguments.problem_of_bind(str(tmp_path / bind), [DATA, str(tmp_path / own)])

    assert problem == "holds, or lies in, a file that the settings of the server name"


def test_bind_beside_files_of_the_server_is_allowed(tmp_path: Path) -> None:
    for name in ("shared", "shared-keys"):
        (tmp_path / name).mkdir()

    assert bwrap_arguments.problem_of_bind(str(tmp_path / "shared"), [DATA, str(tmp_path / "shared-keys")]) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("bind", ["shared", "shared/again", "shared/again/inner"])
def test_directory_that_is_mounted_a_second_time_is_known_by_both_names(tmp_path: Path, bind: str) -> None:
    """In a separate process, whose mounts end with it."""
    keys, again = tmp_path / "keys", tmp_path / "shared" / "again"
    for directory in (keys / "inner", again):
        directory.mkdir(parents=True)
    (keys / "inner" / "tls.key").write_text("secret")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            source_access._call(libc.unshare, source_access.CLONE_NEWNS)
            source_access._mount(libc, None, "/", None, source_access.MS_REC | source_access.MS_PRIVATE, None)
            source_access._mount(libc, str(keys), str(again), None, source_access.MS_BIND, None)
            own = [DATA, str(keys / "inner" / "tls.key")]
            problem = bwrap_arguments.problem_of_bind(str(tmp_path / bind), own)
            status = 0 if problem is not None and "holds, or lies in" in problem else 2
        finally:
            os._exit(status)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
