"""The users of local workspaces. Tests that need root run as root; an unprivileged server has no choice of users."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from rookery.workspaces.drivers.driver_interface import Sandbox
from rookery.workspaces.drivers.launcher import directory_setup, tree_removal, workspace_users
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError
from rookery.workspaces.drivers.launcher.workspace_users import STATE, Users
from rookery.workspaces.drivers.workspace_paths import Layout
from tests.workspaces.drivers.driver_rig import spec
from tests.workspaces.drivers.test_local import LocalRig, local_rig

assert local_rig is not None  # the fixture
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
LOW, HIGH = 1_900_000_000, 1_900_000_009


def place(data_dir: Path, name: str, *, owner: int | None = None) -> Layout:
    found = Layout.of(data_dir, name)
    found.home.mkdir(parents=True)
    if owner is not None:
        os.chown(found.home, owner, owner)
    return found


def make(data_dir: Path, chosen: Users, name: str, **options: bool) -> int:
    """Make a workspace with its user, as a start leaves it."""
    at = Layout.of(data_dir, name)
    at.directory.mkdir(parents=True)
    uid = chosen.choose(at.directory, writes_shared=options.get("writes_shared", False))
    assert uid is not None
    directory_setup.fill(at.directory, [], None, owner=uid)
    return uid


@as_root
def test_each_workspace_has_a_user_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    chosen = Users(tmp_path, (LOW, HIGH))

    first, second = make(tmp_path, chosen, "a"), make(tmp_path, chosen, "b")

    assert (first, second) == (LOW, LOW + 1)
    assert Users(tmp_path, (LOW, HIGH)).choose(Layout.of(tmp_path, "a").directory, writes_shared=False) == first


@as_root
def test_user_of_a_deleted_workspace_is_not_given_again_before_all_others_were(tmp_path: Path) -> None:
    chosen = Users(tmp_path, (LOW, LOW + 2))
    for name in ("a", "b"):
        make(tmp_path, chosen, name)
    _remove(tmp_path, "a")

    assert make(tmp_path, chosen, "c") == LOW + 2
    assert make(tmp_path, chosen, "d") == LOW


@as_root
def test_user_whose_files_may_be_in_shared_folders_is_never_given_again(tmp_path: Path) -> None:
    chosen = Users(tmp_path, (LOW, LOW + 1))
    assert make(tmp_path, chosen, "a", writes_shared=True) == LOW
    assert make(tmp_path, chosen, "b") == LOW + 1
    chosen.choose(Layout.of(tmp_path, "b").directory, writes_shared=True)
    _remove(tmp_path, "a")
    _remove(tmp_path, "b")

    with pytest.raises(LaunchError, match=r"All 2 users of drivers\.local\.uid_range are in use"):
        make(tmp_path, chosen, "c")


@as_root
def test_full_range_is_reported_and_no_user_is_reused(tmp_path: Path) -> None:
    chosen = Users(tmp_path, (LOW, LOW))
    make(tmp_path, chosen, "a")

    with pytest.raises(LaunchError, match="Make the range larger"):
        make(tmp_path, chosen, "b")


@as_root
@pytest.mark.parametrize("content", [None, b"", b"{", b'{"next": "x"}'])
def test_lost_record_assigns_no_user_that_is_in_use(tmp_path: Path, content: bytes | None) -> None:
    chosen = Users(tmp_path, (LOW, HIGH))
    make(tmp_path, chosen, "a")
    if content is None:
        (tmp_path / STATE).unlink()
    else:
        (tmp_path / STATE).write_bytes(content)

    assert make(tmp_path, chosen, "b") == LOW + 1


@as_root
def test_workspace_that_is_being_deleted_still_has_its_user(tmp_path: Path) -> None:
    chosen = Users(tmp_path, (LOW, LOW + 1))
    make(tmp_path, chosen, "a")
    Layout.of(tmp_path, "a").directory.rename(tmp_path / "workspaces" / ".gone-a")

    assert make(tmp_path, chosen, "b") == LOW + 1


@as_root
def test_replicas_that_choose_at_once_choose_different_users(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda name: make(tmp_path, Users(tmp_path, (LOW, HIGH)), str(name)), range(10)))

    assert sorted(made) == list(range(LOW, HIGH + 1))


@as_root
def test_workspaces_that_write_to_shared_folders_run_as_the_user_that_the_settings_name(tmp_path: Path) -> None:
    chosen = Users(tmp_path, (LOW, HIGH), shared=4711)

    assert make(tmp_path, chosen, "a", writes_shared=True) == 4711
    assert make(tmp_path, chosen, "b") == LOW


@as_root
def test_files_of_an_older_version_are_given_to_the_new_user_without_following_links(tmp_path: Path) -> None:
    old = place(tmp_path, "a", owner=65534)
    outside = tmp_path / "outside"
    outside.write_text("the server's")
    (old.home / "deep" / "er").mkdir(parents=True)
    (old.home / "deep" / "er" / "file").write_text("mine")
    (old.home / "link").symlink_to(outside)
    for path in (old.home, *old.home.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)

    uid = Users(tmp_path, (LOW, HIGH)).choose(old.directory, writes_shared=False)
    directory_setup.fill(old.directory, [], None, owner=uid)

    assert {path.lstat().st_uid for path in (old.home, *old.home.rglob("*"))} == {LOW}
    assert outside.stat().st_uid == 0


@as_root
def test_deep_tree_is_given_with_few_open_files(tmp_path: Path) -> None:
    home = place(tmp_path, "a").home
    at = os.open(home, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("directory", dir_fd=at)
        below = os.open("directory", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below

    directory_setup.change_owner(home, LOW)

    try:
        assert os.fstat(at).st_uid == LOW
        assert home.stat().st_uid == LOW
    finally:
        os.close(at)
        # pytest removes old directories recursively, and would fail on this one.
        tree_removal.remove(home)


@as_root
async def test_start_takes_over_a_workspace_of_an_older_version(local_rig: LocalRig) -> None:
    ws = await local_rig.start()
    await local_rig.run(ws, "mkdir ~/old && echo mine > ~/old/file && ln -s /etc ~/old/link")
    await local_rig.driver.stop(ws, 1)
    directory_setup.change_owner(local_rig.path(ws) / "home", 65534)
    directory_setup.change_owner(local_rig.path(ws) / "run", 65534)

    again = msgspec.structs.replace(ws, generation=2)
    await local_rig.start(again)
    code, output = await local_rig.run(again, "cat ~/old/file && echo more >> ~/old/file && touch ~/new")

    assert (code, output) == (0, "mine\n")
    owner = (local_rig.path(ws) / "home").stat().st_uid
    assert workspace_users.DEFAULT_RANGE[0] <= owner <= workspace_users.DEFAULT_RANGE[1]
    assert {path.lstat().st_uid for path in (local_rig.path(ws) / "home").rglob("*")} == {owner}
    assert os.stat("/etc").st_uid == 0


@as_root
async def test_running_workspace_of_an_older_version_answers_until_it_is_started_again(local_rig: LocalRig) -> None:
    """An upgraded server continues with the sandboxes it finds."""
    older = local_rig.another_driver(uid_range=(65533, 65533))
    ws = spec()
    await older.start(ws, print)
    local_rig._started.append(ws)

    assert (local_rig.path(ws) / "home").stat().st_uid == 65533
    assert (await local_rig.driver.probe(ws)).answers
    assert await local_rig.run(ws, "echo still") == (0, "still\n")


@as_root
async def test_shared_folder_s_user_is_the_kernel_s_user(local_rig: LocalRig, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    os.chown(folder, 4711, 4711)
    local_rig.driver = local_rig.another_driver(uid=4711)
    ws = await local_rig.start(sandbox=Sandbox(network="none", rw_binds=(str(folder),)))

    assert await local_rig.run(ws, f"touch {folder}/made") == (0, "")
    assert (folder / "made").stat().st_uid == 4711


@as_root
def test_range_outside_of_a_container_s_users_falls_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_users, "_mapped", lambda path: [(0, 65535)])
    chosen = Users(tmp_path, (LOW, HIGH))

    assert chosen.choose(place(tmp_path, "a").directory, writes_shared=False) == workspace_users.NOBODY
    assert chosen.check_uid == workspace_users.NOBODY
    problem = chosen.problem()
    assert problem is not None
    assert "set drivers.local.uid_range" in problem
    assert "0-65535" in problem
    assert Users(tmp_path, (10_000, 60_000)).problem() is None


@pytest.mark.parametrize(
    ("mapped", "fits"),
    [
        ([(0, 4_294_967_294)], True),
        ([(0, 99), (100, 200)], True),
        ([(0, 120)], False),
        ([(0, 120), (122, 300)], False),
        ([(120, 300)], False),
        ([], False),
    ],
)
def test_range_must_be_mapped_without_a_gap(mapped: list[tuple[int, int]], fits: bool) -> None:
    assert workspace_users._holds(mapped, (100, 200)) is fits


@pytest.mark.skipif(os.geteuid() == 0, reason="root chooses")
def test_server_that_is_a_normal_user_has_workspaces_of_that_user(tmp_path: Path) -> None:
    chosen = Users(tmp_path, (LOW, HIGH))

    assert chosen.choose(place(tmp_path, "a").directory, writes_shared=False) is None
    assert chosen.check_uid is None
    assert chosen.problem() is None


def _remove(data_dir: Path, name: str) -> None:
    shutil.rmtree(Layout.of(data_dir, name).directory)
