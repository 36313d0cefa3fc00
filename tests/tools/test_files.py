"""read_file, write_file and edit_files over a real agent, and the limits while planning."""

from __future__ import annotations

import os
import struct
import zlib

import pytest

from rookery.tools.registry import Column
from tests.tools.tools_rig import ToolsRig


def png(width: int = 1, height: int = 1) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


async def test_file_is_written_read_and_edited(rig: ToolsRig) -> None:
    path = f"{rig.home}/notes/a.md"

    written = await rig.run("write_file", path=f" {path} ", content="one\ntwo\n")
    read = await rig.run("read_file", path=path)
    edited = await rig.run("edit_files", files=[{"path": path, "edits": [{"old_text": "two", "new_text": "2"}]}])

    assert written.value == {"ok": True, "bytes": 8, "created": True}
    assert read.value["content"].splitlines() == ["1\tone", "2\ttwo"]
    assert (read.value["total_lines"], read.value["lines_read"]) == (2, 2)
    assert "+2" in edited.value["files"][0]["diff"]
    assert edited.value["files"][0]["edits"] == [{"matches": 1, "pass": 1}]


async def test_long_file_is_read_in_pieces(rig: ToolsRig) -> None:
    path = rig.home / "log"
    path.write_text("".join(f"line {number} {'x' * 40}\n" for number in range(5000)))

    first = await rig.run("read_file", path=str(path))
    rest = await rig.run("read_file", path=str(path), offset=first.value["next_offset"], limit=3)

    assert len(first.value["content"].encode()) <= 32 * 1024
    assert rest.value["content"].startswith(f"{first.value['next_offset']}\tline")
    assert rest.value["lines_read"] == 3


@pytest.mark.parametrize(
    ("path", "words"),
    [("notes.md", "not absolute"), ("/nowhere/at/all", "all"), ("", "not absolute")],
)
async def test_path_that_cannot_be_read_is_an_error_in_words(rig: ToolsRig, path: str, words: str) -> None:
    done = await rig.run("read_file", path=path)

    assert words in done.error
    assert "http" not in done.error


EDITS = [{"old_text": "x", "new_text": "y"}]
BAD_PATHS = {
    "relative": ("notes.md", "absolute"),
    "a directory": ("HOME/folder", "director"),
    "missing": ("HOME/missing", "does not exist"),
    "a link to nothing": ("HOME/dangling", "does not exist"),
    "links in a circle": ("HOME/circle", "symbolic links"),
    "below a file": ("HOME/binary/x", "not a directory"),
    "a pipe": ("HOME/pipe", "not a regular file"),
    "the kernel's": ("/proc/version", "/proc/version"),
}


@pytest.mark.parametrize("kind", BAD_PATHS)
async def test_bad_path_is_an_error_in_words_for_every_tool_and_changes_nothing(rig: ToolsRig, kind: str) -> None:
    given, words = BAD_PATHS[kind]
    (rig.home / "folder").mkdir(exist_ok=True)
    (rig.home / "binary").write_bytes(b"\0x")
    for name, target in (("dangling", "nowhere"), ("circle", "circle")):
        (rig.home / name).unlink(missing_ok=True)
        (rig.home / name).symlink_to(target)
    if not (rig.home / "pipe").exists():
        os.mkfifo(rig.home / "pipe")
    path, before = given.replace("HOME", str(rig.home)), sorted(os.listdir(rig.home))
    told = {
        "read_file": await rig.run("read_file", path=path),
        "edit_files": await rig.run("edit_files", files=[{"path": path, "edits": EDITS}]),
        # A missing file, or the missing target of a link, is created.
        "write_file": await rig.run("write_file", path=path, content="x") if "does not" not in words else None,
    }
    if kind == "the kernel's":
        del told["read_file"]

    for tool, done in told.items():
        if done is not None:
            assert words in done.error, tool
            assert "http" not in done.error
    assert sorted(os.listdir(rig.home)) == before


async def test_image_is_shown_to_the_model(rig: ToolsRig) -> None:
    (rig.home / "pic.png").write_bytes(png())

    done = await rig.run("read_file", path=f"{rig.home}/pic.png")

    assert done.result.result.is_media
    assert done.value["mime_type"] == "image/png"


async def test_image_that_is_damaged_or_none_is_told_as_such(rig: ToolsRig) -> None:
    (rig.home / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (rig.home / "text.png").write_text("not a picture\n")

    broken = await rig.run("read_file", path=f"{rig.home}/broken.png")
    text = await rig.run("read_file", path=f"{rig.home}/text.png")

    assert "damaged" in broken.error
    assert "not a picture" in text.value["content"]


async def test_other_names_of_the_two_texts_are_taken_and_not_advertised(rig: ToolsRig) -> None:
    path = rig.home / "a"
    path.write_text("red green\n")
    edits = [{"search": "red", "replace": "blue"}, {"old_text": "green", "new_text": "gold", "search": "ignored"}]

    done = await rig.run("edit_files", files=[{"path": str(path), "edits": edits}])

    assert not done.is_error, done.value
    assert path.read_text() == "blue gold\n"
    spec = rig.setup().tools.find_spec("edit_files")
    assert spec is not None
    assert "search" not in str(spec.input_schema)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "`files` is empty"),
        ([{"path": "/a", "edits": []}], "files[0].edits"),
        ([{"path": " ", "edits": [{"old_text": "a", "new_text": "b"}]}], "files[0].path"),
        ([{"path": "a", "edits": [{"old_text": "a", "new_text": "b"}]}], "not absolute"),
    ],
)
async def test_edit_without_substance_changes_nothing_and_says_so(rig: ToolsRig, files: object, words: str) -> None:
    done = await rig.run("edit_files", files=files)

    assert words in done.error
    assert "Nothing was changed" in done.error


async def test_edit_that_matches_nowhere_carries_the_agents_words(rig: ToolsRig) -> None:
    path = rig.home / "a"
    path.write_text("one\n")

    done = await rig.run("edit_files", files=[{"path": str(path), "edits": [{"old_text": "two", "new_text": "2"}]}])

    assert "not found" in done.error.lower()
    assert path.read_text() == "one\n"


async def test_two_parallel_edits_of_one_file_both_survive(rig: ToolsRig) -> None:
    path = rig.home / "a"
    path.write_text("".join(f"line {number}\n" for number in range(20)))
    calls = [
        rig.call(
            "edit_files", files=[{"path": str(path), "edits": [{"old_text": f"line {n}\n", "new_text": f"L{n}\n"}]}]
        )
        for n in range(10, 20)
    ]

    done = await rig.run_all(*calls)

    assert [each.is_error for each in done] == [False] * 10
    assert [f"L{n}" in path.read_text() for n in range(10, 20)] == [True] * 10


async def test_write_run_again_is_the_write_of_the_first_time(rig: ToolsRig) -> None:
    path = rig.home / "a"

    first = await rig.run("write_file", call_id="same", path=str(path), content="x")
    path.write_text("changed since")
    again = await rig.run("write_file", call_id="same", path=str(path), content="x")

    assert again.value == first.value
    assert path.read_text() == "changed since"


# Plans


async def test_plan_turn_takes_the_plan_file_and_no_other(rig: ToolsRig) -> None:
    rig.column = Column.ROOT_PLAN

    plan = await rig.run("write_file", path=rig.plan_path, content="# Plan\n")
    other = await rig.run("write_file", path=f"{rig.home}/code.py", content="x")
    near = await rig.run("write_file", path=f"{rig.home}/plan.md", content="x")
    loose = await rig.run("write_file", path="~/plan.md", content="x")
    edit = await rig.run(
        "edit_files",
        files=[
            {"path": rig.plan_path, "edits": [{"old_text": "Plan", "new_text": "P"}]},
            {"path": f"{rig.home}/code.py", "edits": [{"old_text": "a", "new_text": "b"}]},
        ],
    )

    assert not plan.is_error, plan.value
    for refused in (other, near, loose, edit):
        assert rig.plan_path in refused.error
    assert (rig.home / ".rookery/plans").joinpath(f"PLAN-{rig.chat_id}.md").read_text() == "# Plan\n"
    assert not (rig.home / "code.py").exists()


async def test_plan_file_that_leads_elsewhere_is_refused(rig: ToolsRig) -> None:
    rig.column = Column.ROOT_PLAN
    target = rig.home / "precious"
    target.write_text("keep")
    os.makedirs(os.path.dirname(rig.plan_path))
    os.symlink(target, rig.plan_path)

    done = await rig.run("write_file", path=rig.plan_path, content="gone")

    assert "leads to" in done.error
    assert target.read_text() == "keep"


async def test_plan_folder_that_leads_elsewhere_is_refused(rig: ToolsRig) -> None:
    rig.column = Column.ROOT_PLAN
    (rig.home / "elsewhere").mkdir()
    (rig.home / ".rookery").mkdir()
    os.symlink(rig.home / "elsewhere", rig.home / ".rookery/plans")

    done = await rig.run("write_file", path=rig.plan_path, content="gone")

    assert done.is_error
    assert list((rig.home / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("path", ["plan.md", "PLAN.md", "~/plan.md", "{home}/plan.md", "{home}/Plan.MD"])
async def test_plan_in_an_odd_place_is_led_to_the_right_one(rig: ToolsRig, path: str) -> None:
    done = await rig.run("write_file", path=path.format(home=rig.home), content="x")

    assert rig.plan_path in done.error


async def test_plan_of_a_project_is_a_file_like_any_other(rig: ToolsRig) -> None:
    done = await rig.run("write_file", path=f"{rig.home}/project/docs/plan.md", content="x")

    assert not done.is_error, done.value


# Without a workspace


async def test_chat_without_a_workspace_is_told_what_to_do(rig: ToolsRig) -> None:
    rig.directory.binding = None

    done = await rig.run("read_file", path="/a")

    assert "create_workspace" in done.error


async def test_workspace_restarted_between_two_calls_is_used_without_an_error(rig: ToolsRig) -> None:
    await rig.run("write_file", path=f"{rig.home}/a", content="kept\n")

    rig.agent.kill()
    await rig.agent.start(generation=2)
    done = await rig.run("read_file", path=f"{rig.home}/a")

    assert "kept" in done.value["content"]
