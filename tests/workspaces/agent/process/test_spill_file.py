"""The spill file of a command: when it exists, what it contains, and what prevents it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rookery.workspaces.agent import directory_handles
from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.disk_limit import Disk
from rookery.workspaces.agent.process import spill_file
from rookery.workspaces.agent.process.output import VIEW_BYTES, Output
from rookery.workspaces.agent.process.spill_file import SpillFile
from tests.workspaces.agent.agent_rig import Rig


class Command:
    """The output of a command, without a command."""

    def __init__(self, home: Path, *, name: str = "call_1", room: int = 10**9) -> None:
        self.output = Output()
        self.claimed = 0
        self.room = room
        self.spill = SpillFile(str(home), name, self.claim)

    def claim(self, growth: int) -> bool:
        self.claimed += growth
        return self.claimed <= self.room

    def print(self, data: bytes) -> None:
        self.spill.take(self.output, data)
        self.output.append(data)

    def view(self) -> str:
        return self.output.view(ended=True, spilled=self.spill.spilled).text


def test_output_that_a_view_shows_leaves_no_file(tmp_path: Path) -> None:
    command = Command(tmp_path)

    command.print(b"x\n" * (VIEW_BYTES // 2))
    command.spill.finish(command.output)

    assert command.spill.spilled is None
    assert not (tmp_path / spill_file.FOLDER).exists()


def test_longer_output_is_complete_in_the_file_that_the_marker_names(tmp_path: Path) -> None:
    command = Command(tmp_path)
    pieces = [b"%07d\n" % number * 100 for number in range(1000)]

    for piece in pieces:
        command.print(piece)
    command.spill.finish(command.output)

    path = tmp_path / ".rookery/results/call_1"
    assert path.read_bytes() == b"".join(pieces)
    assert f"all of it is in {path} ...]" in command.view()
    assert len(command.view().encode()) <= VIEW_BYTES
    assert path.stat().st_mode & 0o777 == 0o600


def test_first_piece_may_be_larger_than_all_buffers(tmp_path: Path) -> None:
    command = Command(tmp_path)

    command.print(b"a" * 10)
    command.print(b"b" * 1_000_000)

    assert (tmp_path / ".rookery/results/call_1").read_bytes() == b"a" * 10 + b"b" * 1_000_000


def test_lines_too_long_for_a_view_make_a_file(tmp_path: Path) -> None:
    command = Command(tmp_path)

    command.print(b"x" * 5000 + b"\n")
    command.spill.finish(command.output)

    path = tmp_path / ".rookery/results/call_1"
    assert path.read_bytes() == b"x" * 5000 + b"\n"
    assert command.view().endswith(f" ... [line truncated; all of it is in {path}]\n")


def test_many_long_lines_leave_room_for_one_marker_that_names_the_file(tmp_path: Path) -> None:
    command = Command(tmp_path)

    # With its file named in every line, it would be too long for a view.
    command.print((b"x" * 2040 + b"\n") * 14 + b"y" * 2100 + b"\n" + b"z" * 1900 + b"\n")
    command.spill.finish(command.output)

    assert len(command.view().encode()) <= VIEW_BYTES
    assert f"all of it is in {tmp_path / '.rookery/results/call_1'}" in command.view()


def test_file_ends_at_its_limit_and_the_marker_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_file, "MAX_BYTES", 50_000)
    command = Command(tmp_path)

    for _ in range(100):
        command.print(b"y" * 999 + b"\n")
    command.spill.finish(command.output)

    assert (tmp_path / ".rookery/results/call_1").stat().st_size == 50_000
    assert "the first 50000 bytes are in" in command.view()


@pytest.mark.parametrize("room", [0, 40_000])
def test_full_disk_leaves_what_fitted_and_never_stops_the_command(tmp_path: Path, room: int) -> None:
    command = Command(tmp_path, room=room)

    for _ in range(100):
        command.print(b"z" * 999 + b"\n")
    command.spill.finish(command.output)

    spilled = command.spill.spilled
    assert command.output.total == 100_000
    assert (spilled is None) == (room == 0)
    assert spilled is None or (spilled.size <= room and not spilled.is_complete)
    assert [path.stat().st_size for path in tmp_path.glob(".rookery/results/*")] == ([spilled.size] if spilled else [])


def test_folder_that_cannot_be_made_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / ".rookery").write_text("in the way")
    command = Command(tmp_path)

    command.print((b"x" * 99 + b"\n") * 1000)

    assert command.spill.spilled is None
    assert "bytes omitted ...]" in command.view()


def test_call_of_the_same_name_gets_a_file_of_its_own(tmp_path: Path) -> None:
    first, second = Command(tmp_path), Command(tmp_path)

    first.print(b"1" * 40_000)
    second.print(b"2" * 40_000)

    assert first.spill.spilled is not None
    assert second.spill.spilled is not None
    assert second.spill.spilled.path == first.spill.spilled.path + "-2"
    assert Path(first.spill.spilled.path).read_bytes() == b"1" * 40_000


def test_oldest_files_make_room_and_nothing_else_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_file, "MAX_KEPT_FILES", 3)
    folder = tmp_path / ".rookery/results"
    (folder / "inner").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_text("keep me")
    (folder / "link").symlink_to(outside)
    for number in range(5):
        (folder / f"old{number}").write_text("x")
        os.utime(folder / f"old{number}", (number, number))

    with directory_handles.directory(str(folder)) as handle:
        spill_file.delete_oldest(handle)

    assert sorted(path.name for path in folder.iterdir()) == ["inner", "link", "old3", "old4"]
    assert outside.read_text() == "keep me"


def test_claim_of_the_disk_counts_and_never_walks(tmp_path: Path) -> None:
    disk = Disk(Config(generation=1, home=str(tmp_path), directory=str(tmp_path), disk_mb=1), lambda: 0.0)

    assert disk.claim(1_000_000)
    assert not disk.claim(1_000_000)
    assert disk.claim(10_000)


async def test_result_of_another_tool_is_kept_once_under_its_name(rig: Rig) -> None:
    async def put(name: str, data: bytes, key: str) -> object:
        answer = await rig.ask("PUT", f"/v1/results?name={name}", data=data, key=key)
        return answer.json.get("path", answer.json.get("code")), answer.headers.get("idempotent-replay")

    first, again = await put("call_9", b"all of it", "k1"), await put("call_9", b"all of it", "k1")
    other = await put("call_9", b"another", "k2")
    bad = await put("..%2Fescape", b"x", "k3")

    folder = rig.home / ".rookery/results"
    assert first == (f"{folder}/call_9", None)
    assert again == (f"{folder}/call_9", "1")
    assert other == (f"{folder}/call_9-2", None)
    assert bad == ("invalid", None)
    assert sorted(path.name for path in folder.iterdir()) == ["call_9", "call_9-2"]

    # The file of a command also survives a restart of the agent; an invalid name counts as absent.
    body = {"command": "seq 1 20000"}
    named = await rig.post("/v1/processes", body, headers={"x-rookery-result": "call_10"}, key="p1")
    unnamed = await rig.post("/v1/processes", body, headers={"x-rookery-result": "../call"})
    shown, plain = await rig.output(named["id"]), await rig.output(unnamed["id"])
    assert shown["file"] == f"{folder}/call_10"
    assert (folder / "call_10").read_text().endswith("\n20000\n")
    assert f"in {folder}/call_10 ...]" in shown["output"]
    assert "file" not in plain
    rig.kill()
    await rig.disconnect()
    await rig.start()
    assert (await rig.output(named["id"]))["file"] == shown["file"]
