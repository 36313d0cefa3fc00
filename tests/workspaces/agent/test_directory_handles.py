"""File tools while a command in the workspace replaces parts of the path with symbolic links."""

from __future__ import annotations

import ctypes
import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from rookery.workspaces.agent import directory_handles, file_lines, file_replace, paths
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.process import spill_file
from tests.workspaces.agent.agent_rig import Rig

REFUSE_LINKS = {"X-Rookery-Links": "refuse"}
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    folder = tmp_path / "plans"
    folder.mkdir()
    (folder / "plan.md").write_text("plan")
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "plan.md").write_text("precious")
    return folder


def swap(folder: Path, target: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(target)


def test_write_follows_no_link_that_took_the_place_of_a_directory(plans: Path, elsewhere: Path) -> None:
    real = paths.resolve(str(plans / "plan.md"))
    swap(plans, elsewhere)

    with pytest.raises(AgentError, match="replaced by a symbolic link") as caught:
        file_replace.stage(real, b"hostile")

    assert (caught.value.status, caught.value.code) == (409, "changed_on_disk")
    assert (elsewhere / "plan.md").read_text() == "precious"
    assert [path.name for path in elsewhere.iterdir()] == ["plan.md"]


def test_write_replaces_no_link_that_took_the_place_of_the_file(plans: Path, elsewhere: Path) -> None:
    real = paths.resolve(str(plans / "plan.md"))
    (plans / "plan.md").unlink()
    (plans / "plan.md").symlink_to(elsewhere / "plan.md")

    with pytest.raises(AgentError, match="replaced by a symbolic link"):
        file_replace.stage(real, b"hostile")

    assert (elsewhere / "plan.md").read_text() == "precious"


def test_write_stays_in_the_directory_that_was_opened(plans: Path, elsewhere: Path) -> None:
    staged = file_replace.stage(paths.resolve(str(plans / "plan.md")), b"new")
    swap(plans, elsewhere)

    file_replace.commit([staged])

    assert (elsewhere / "plan.md").read_text() == "precious"
    assert (plans.with_name("moved") / "plan.md").read_bytes() == b"new"


def test_edit_of_a_directory_swapped_for_another_is_refused(plans: Path, elsewhere: Path) -> None:
    version = file_replace.version_of((plans / "plan.md").stat())
    plans.rename(plans.with_name("moved"))
    elsewhere.rename(plans)
    staged = file_replace.stage(str(plans / "plan.md"), b"new", version=version)

    with pytest.raises(AgentError, match="changed on disk"):
        file_replace.check_unchanged([staged])
    file_replace.discard([staged])

    assert (plans / "plan.md").read_text() == "precious"
    assert [path.name for path in plans.iterdir()] == ["plan.md"]


def test_missing_directories_are_made_below_real_ones_only(plans: Path, elsewhere: Path) -> None:
    (plans / "a").symlink_to(elsewhere)

    with pytest.raises(AgentError, match="replaced by a symbolic link"):
        file_replace.stage(str(plans / "a" / "b" / "c.txt"), b"x")
    file_replace.commit([file_replace.stage(str(plans / "d" / "e" / "f.txt"), b"x")])

    assert [path.name for path in elsewhere.iterdir()] == ["plan.md"]
    assert (plans / "d" / "e" / "f.txt").read_bytes() == b"x"


def test_results_are_not_kept_or_deleted_behind_a_link(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / ".rookery").mkdir()
    (tmp_path / ".rookery" / "results").symlink_to(elsewhere)

    with pytest.raises(AgentError, match="symbolic link"):
        spill_file.new_file(str(tmp_path), "call")

    assert [path.name for path in elsewhere.iterdir()] == ["plan.md"]


def test_descriptors_are_closed_after_every_outcome(plans: Path, elsewhere: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (plans / "link").symlink_to(elsewhere)
    (plans / "a").touch()
    (plans / "b").touch()

    file_replace.commit([file_replace.stage(str(plans / "a"), b"x"), file_replace.stage(str(plans / "b"), b"x")])
    file_replace.discard([file_replace.stage(str(plans / "c"), b"x")])
    for path in (plans / "link" / "x", plans):
        with pytest.raises(AgentError):
            file_replace.stage(str(path), b"x")
    for path in (plans / "missing", plans, plans / "plan.md" / "below"):
        with pytest.raises(AgentError):
            directory_handles.open_regular(str(path))

    assert len(os.listdir("/proc/self/fd")) == before


def test_links_are_followed_if_the_request_allows_it(plans: Path, elsewhere: Path) -> None:
    (plans / "link").symlink_to("../elsewhere/plan.md")

    assert "precious" in file_lines.read(str(plans / "link"), file_lines.Window())["content"]
    with pytest.raises(AgentError, match="symbolic link"):
        directory_handles.open_regular(str(plans / "link"), links=False)


async def test_requests_that_refuse_links_neither_read_nor_write_through_them(rig: Rig) -> None:
    (rig.directory / "real").mkdir()
    (rig.directory / "real" / "a.txt").write_text("old\n")
    (rig.directory / "folder").symlink_to("real")
    path = str(rig.directory / "folder" / "a.txt")
    url = f"/v1/files?path={quote(path)}"
    edit = {"files": [{"path": path, "edits": [{"old_text": "old", "new_text": "new"}]}]}

    refused = [
        await rig.ask("PUT", url, data=io.BytesIO(b"new"), headers=REFUSE_LINKS),
        await rig.ask("GET", url, headers=REFUSE_LINKS),
        await rig.ask("POST", "/v1/files/edit", json=edit, headers=REFUSE_LINKS),
    ]
    allowed = await rig.ask("GET", url)

    assert [(each.status, each.json["code"]) for each in refused] == [(409, "link")] * 3
    assert (allowed.status, allowed.body) == (200, b"old\n")


async def test_no_write_lands_elsewhere_while_a_directory_is_swapped_all_the_time(rig: Rig) -> None:
    plans, elsewhere = rig.directory / "plans", rig.directory / "elsewhere"
    plans.mkdir()
    elsewhere.mkdir()
    url = f"/v1/files?path={quote(str(plans / 'plan.md'))}"

    with _swapping(plans, elsewhere) as count:
        seen: Counter[int] = Counter()
        while seen.total() < 200 or count() < 200 or (len(seen) < 2 and seen.total() < 5000):
            seen[(await rig.ask("PUT", url, data=io.BytesIO(b"x"), headers=REFUSE_LINKS)).status] += 1

    assert seen.keys() == {200, 409}
    assert list(elsewhere.iterdir()) == []


@contextmanager
def _swapping(folder: Path, target: Path) -> Iterator[Callable[[], int]]:
    """Exchange the directory with a link and back, as a hostile command would; yield a counter of the exchanges."""
    stop, done = threading.Event(), [0]
    link = folder.with_name("link")
    link.symlink_to(target)

    def run() -> None:
        while not stop.is_set():
            _exchange(folder, link)
            done[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        stop.set()
        thread.join()


def _exchange(one: Path, other: Path) -> None:
    """Swap two names in one step, so that neither is ever missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")
