"""Reading and writing files through a real agent."""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from rookery.workspaces.agent import disk_limit as disks
from rookery.workspaces.agent.config import Config
from tests.eventually import until
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import Answer, Rig


def at(path: object) -> str:
    return f"/v1/files?path={quote(str(path))}"


async def put(rig: Rig, path: object, data: bytes, *, key: str | None = None) -> Answer:
    return await rig.ask("PUT", at(path), data=io.BytesIO(data), key=key)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_bytes_are_read_in_part_and_as_a_whole(rig: Rig) -> None:
    path = rig.directory / "ü.html"
    path.write_bytes(b"0123456789")

    whole = await rig.ask("GET", at(path))

    assert (whole.status, whole.body) == (200, b"0123456789")
    assert (whole.headers["content-type"], whole.headers["content-length"]) == ("text/html", "10")
    assert (await rig.ask("GET", at(path) + "&offset=3&limit=4")).body == b"3456"
    assert (await rig.ask("GET", at(path) + "&offset=8&limit=99")).body == b"89"
    assert (await rig.ask("GET", at(path) + "&offset=99")).body == b""
    assert (await rig.ask("GET", at(path) + "&offset=-1")).status == 400
    assert (await rig.ask("GET", at(path) + "&offset=1&tail=2")).status == 400


async def test_unreadable_file_has_its_status(rig: Rig) -> None:
    pipe = rig.directory / "pipe"
    os.mkfifo(pipe)

    answers = [await rig.ask("GET", at(path)) for path in ("x/y", rig.directory / "no", rig.directory, pipe)]

    assert [answer.status for answer in answers] == [400, 404, 400, 400]
    assert answers[1].json["message"] == f"{rig.directory / 'no'} does not exist."


async def test_clients_that_leave_early_leave_no_file_open(rig: Rig) -> None:
    path = rig.directory / "large"
    path.write_bytes(b"x" * 8 * 1024 * 1024)
    assert rig.process is not None
    descriptors = Path(f"/proc/{rig.process.pid}/fd")
    request = f"GET {at(path)} HTTP/1.1\r\nauthorization: Bearer {rigs.TOKEN}\r\nx-rookery-generation: 1\r\n\r\n"
    await rig.get("/v1/health")
    before = len(names(descriptors))

    for patience in range(20):
        reader, writer = await asyncio.open_unix_connection(rig.socket)
        writer.write(request.encode())
        await writer.drain()
        if patience % 2:
            await reader.readexactly(10)
        writer.close()

    await until(lambda: len(names(descriptors)) <= before, timeout=rigs.PATIENCE_S)


async def test_lines_are_returned_with_status_200_for_every_problem(rig: Rig) -> None:
    path = rig.directory / "f"
    path.write_text("a\nb\nc\n")

    assert (await rig.get(f"/v1/files/lines?path={path}&offset=2&limit=1"))["content"] == "2\tb"
    assert (await rig.get(f"/v1/files/lines?path={path}&offset=0&max_bytes=1"))["content"] == "1\ta"
    for wrong in ("f", "", f"{path}x", str(rig.directory)):
        answer = await rig.get(f"/v1/files/lines?path={wrong}")
        assert not answer["ok"]
        assert answer["error"]


async def test_far_line_of_a_large_log_is_read(rig: Rig) -> None:
    path = rig.directory / "log"
    line = b"x" * 79 + b"\n"
    with path.open("wb") as file:
        for _ in range(512):
            file.write(line * 1024)
    assert path.stat().st_size == 40 * 1024 * 1024

    answer = await rig.get(f"/v1/files/lines?path={path}&offset=500000&limit=3")

    assert answer["content"].startswith("500000\txxx")
    assert (answer["lines_read"], answer["next_offset"], answer["total_lines"]) == (3, 500003, 524288)


async def test_write_makes_parents_and_keeps_modes_and_links(rig: Rig) -> None:
    path = rig.directory / "a" / "b" / "run.sh"

    first = await put(rig, path, b"one")
    path.chmod(0o750)
    (rig.directory / "link").symlink_to("a/b/run.sh")
    (rig.directory / "dangling").symlink_to("a/new")
    second = await put(rig, rig.directory / "link", b"second")
    third = await put(rig, rig.directory / "dangling", b"")

    assert [answer.json for answer in (first, second, third)] == [
        {"ok": True, "bytes": 3, "created": True},
        {"ok": True, "bytes": 6, "created": False},
        {"ok": True, "bytes": 0, "created": True},
    ]
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o750
    assert (rig.directory / "link").is_symlink()
    assert (rig.directory / "a" / "new").read_bytes() == b""
    assert (rig.directory / "a" / "new").stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert names(path.parent) == ["run.sh"]


async def test_write_refuses_what_it_cannot_replace(rig: Rig) -> None:
    (rig.directory / "file").write_text("x")

    answers = [
        await put(rig, rig.directory, b""),
        await put(rig, rig.directory / "file" / "below", b""),
        await put(rig, "relative", b""),
        await put(rig, rig.directory / "big", b"x" * (16 * 1024 * 1024 + 1)),
    ]

    assert [answer.status for answer in answers] == [400, 400, 400, 413]
    assert names(rig.directory) == ["file"]


async def test_broken_upload_leaves_the_old_file(rig: Rig) -> None:
    path = rig.directory / "f"
    path.write_text("old")
    _, writer = await asyncio.open_unix_connection(rig.socket)
    head = f"PUT {at(path)} HTTP/1.1\r\nauthorization: Bearer {rigs.TOKEN}\r\nx-rookery-generation: 1\r\n"
    writer.write(f"{head}content-length: 1000\r\n\r\nnew".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()

    async def is_left() -> bool:
        return (await put(rig, rig.directory / "other", b"")).status == 200

    await until(is_left)
    assert path.read_text() == "old"
    assert names(rig.directory) == ["f", "other"]


async def test_full_disk_leaves_the_old_file_until_there_is_room() -> None:
    async with rigs.rig({"limits": {"disk_mb": 2}}) as rig:
        await rig.start()
        path, ballast = rig.directory / "f", rig.home / "ballast"
        path.write_text("old")
        ballast.write_bytes(os.urandom(1536 * 1024))

        written = await put(rig, path, b"x" * 1024 * 1024)
        edits = [{"old_text": "old", "new_text": "x" * 1024 * 1024}]
        body = json.dumps({"files": [{"path": str(path), "edits": edits}]}).encode()
        edited = await rig.ask("POST", "/v1/files/edit", data=io.BytesIO(body))
        old = path.read_text()
        ballast.unlink()
        again = await put(rig, path, b"x" * 1024 * 1024)

        assert (written.status, written.code) == (507, "disk_limit")
        assert (edited.status, edited.code) == (507, "disk_limit")
        assert old == "old"
        assert again.status == 200
        assert names(rig.directory) == ["f"]


async def test_resolving_follows_links_and_keeps_a_missing_tail(rig: Rig) -> None:
    (rig.home / "link").symlink_to(rig.directory)

    answer = await rig.get(f"/v1/files/resolve?path={rig.home}/link/new/file")

    assert answer == {"path": f"{rig.directory}/new/file"}


async def test_listing_has_folders_first_and_says_when_it_is_cut(rig: Rig) -> None:
    for name in ("b", "a"):
        (rig.directory / name).write_text("12")
    (rig.directory / "z").mkdir()
    (rig.directory / "to-z").symlink_to("z")
    (rig.directory / "broken").symlink_to("nowhere")

    listing = await rig.post("/v1/files/list", {"path": str(rig.directory)})
    by_parts = await rig.post("/v1/files/list", {"base": "home", "parts": ["project"]})

    shown = [(entry["name"], entry["is_dir"]) for entry in listing["entries"]]
    assert shown == [("to-z", True), ("z", True), ("a", False), ("b", False), ("broken", False)]
    assert listing["entries"][2]["size"] == 2
    assert listing["entries"][2]["path"] == str(rig.directory / "a")
    assert not listing["truncated"]
    assert by_parts == listing
    for n in range(2000):
        (rig.directory / f"n{n}").touch()
    many = await rig.post("/v1/files/list", {"path": str(rig.directory)})
    assert (len(many["entries"]), many["truncated"]) == (2000, True)


async def test_listing_refuses_what_it_does_not_understand(rig: Rig) -> None:
    bodies = [{"base": "etc"}, {"parts": ["a/b"]}, {"parts": "x"}, {"path": "x"}, {"path": 3}, {"path": "/\x00"}]

    assert [(await rig.ask("POST", "/v1/files/list", json=body)).status for body in bodies] == [400] * len(bodies)


async def test_write_with_a_key_happens_once(rig: Rig) -> None:
    path = rig.directory / "f"

    first = await put(rig, path, b"one", key="k1")
    path.write_bytes(b"changed since")
    again = await put(rig, path, b"one", key="k1")
    other = await put(rig, path, b"two", key="k1")

    assert again.json == first.json
    assert again.headers["idempotent-replay"] == "1"
    assert other.status == 422
    assert path.read_bytes() == b"changed since"


async def test_write_that_a_crash_cut_off_is_done_again(rig: Rig) -> None:
    path = rig.directory / "f"
    await put(rig, path, b"one", key="k1")
    rig.kill()
    forget_the_end(rig)
    path.write_bytes(b"half")
    await rig.start()

    answer = await put(rig, path, b"one", key="k1")

    assert answer.status == 200
    assert path.read_bytes() == b"one"


def forget_the_end(rig: Rig) -> None:
    """Leave the journal as a crash right after the effect would."""
    journal = rig.run_dir / "journal"
    kept = [line for line in journal.read_text().splitlines() if '"line":"done"' not in line]
    journal.write_text("".join(f"{line}\n" for line in kept))


async def test_disk_is_looked_at_by_itself_and_the_log_says_when_it_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "WATCH_S", 0.01)
    disk = disks.Disk(Config(generation=1, home=str(tmp_path), directory=str(tmp_path), disk_mb=1), lambda: 0.0)
    told: list[str] = []
    watching = asyncio.create_task(disk.watch(told.append))
    try:
        ballast = tmp_path / "ballast"
        ballast.write_bytes(os.urandom(1000 * 1024))
        await until(lambda: told)
        assert disk.used >= 0.9 * disk.limit
        ballast.unlink()
        await until(lambda: disk.used < 100_000)
    finally:
        watching.cancel()
    assert "bytes are used" in told[0]
