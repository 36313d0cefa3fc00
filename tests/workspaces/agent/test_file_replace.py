"""Replacing files together, when system calls fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rookery.workspaces.agent import file_replace, paths
from rookery.workspaces.agent.errors import AgentError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class FailingRename:
    """Renames like the system, and fails at the given call."""

    def __init__(self, refuse: Path) -> None:
        self.refuse = refuse.name

    def __call__(self, folder: int, source: str, target: str) -> None:
        if target == self.refuse:
            raise OSError(errno.EBUSY, "busy")
        file_replace.replace(folder, source, target)


def test_failing_rename_restores_the_files_before_it(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for path in files:
        path.write_text(f"old {path.name}")
        path.chmod(0o751)
    staged = [file_replace.stage(str(path), b"new") for path in files]

    with pytest.raises(AgentError, match="Nothing was changed") as caught:
        file_replace.commit(staged, rename=FailingRename(files[1]))

    assert caught.value.status == 500
    assert [path.read_text() for path in files] == ["old a", "old b", "old c"]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o751] * 3
    assert names(tmp_path) == ["a", "b", "c"]


def test_failing_rename_of_one_file_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    staged = [file_replace.stage(str(path), b"new")]

    with pytest.raises(AgentError, match="Nothing was changed"):
        file_replace.commit(staged, rename=FailingRename(path))

    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_file_that_another_writer_changed_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    staged = file_replace.stage(str(path), b"new", version=file_replace.version_of(path.stat()))
    path.write_text("somebody else's")

    with pytest.raises(AgentError, match="changed on disk") as caught:
        file_replace.check_unchanged([staged])

    assert caught.value.status == 409


def test_long_names_leave_room_for_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)

    file_replace.commit([file_replace.stage(str(path), b"x")])

    assert path.read_bytes() == b"x"


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.ENOENT, 404),
        (errno.EACCES, 403),
        (errno.EROFS, 403),
        (errno.EISDIR, 400),
        (errno.ENOTDIR, 400),
        (errno.ELOOP, 400),
        (errno.ENOSPC, 507),
        (errno.EDQUOT, 507),
        (errno.EIO, 500),
    ],
)
def test_refusals_of_the_system_have_a_status(number: int, status: int) -> None:
    refused = paths.refusal(OSError(number, "no"), "/x")

    assert refused.status == status
    assert refused.message.startswith("/x ")


def test_forty_links_are_followed_and_forty_one_are_not(tmp_path: Path) -> None:
    (tmp_path / "l0").write_text("x")
    for n in range(1, 42):
        (tmp_path / f"l{n}").symlink_to(f"l{n - 1}" if n % 2 else tmp_path / f"l{n - 1}")

    assert paths.resolve(str(tmp_path / "l40")) == str(tmp_path / "l0")
    with pytest.raises(AgentError, match="more than 40 symbolic links"):
        paths.resolve(str(tmp_path / "l41"))


def test_missing_tail_is_kept_behind_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")

    assert paths.resolve(str(tmp_path / "link" / "a" / "b")) == str(tmp_path / "real" / "a" / "b")
    assert paths.resolve(f"{tmp_path}/link/../x/./y") == str(tmp_path / "x" / "y")
    with pytest.raises(AgentError, match="symbolic links"):
        paths.resolve(str(tmp_path / "loop"))
