"""Edits of files through a real agent: all of them or none."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rookery.workspaces.agent import file_replace
from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.edit import routes
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.journal import Attempt, Journal
from rookery.workspaces.agent.server.http import Response
from tests.workspaces.agent.agent_rig import Answer, Rig
from tests.workspaces.agent.test_files import forget_the_end, names


def change(old: str, new: str, **more: bool) -> dict[str, Any]:
    return {"old_text": old, "new_text": new, **more}


async def edit(rig: Rig, *files: tuple[object, list[dict[str, Any]]], key: str | None = None) -> Answer:
    body = {"files": [{"path": str(path), "edits": edits} for path, edits in files], "include_diff": True}
    return await rig.ask("POST", "/v1/files/edit", json=body, key=key)


async def test_edits_of_two_files_answer_with_their_diffs(rig: Rig) -> None:
    one, two = rig.directory / "one", rig.directory / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"\tx\r\nna\xefve\r\n")
    two.chmod(0o755)

    answer = await edit(rig, (one, [change("a", "A"), change("b", "b")]), (two, [change("  x\n", "  y\n")]))

    assert answer.json == {
        "ok": True,
        "files": [
            {
                "path": str(one),
                "diff": f"--- {one}\n+++ {one}\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n",
                "edits": [{"matches": 1, "pass": 1}, {"matches": 1, "pass": 1}],
            },
            {
                "path": str(two),
                "diff": f"--- {two}\n+++ {two}\n@@ -1,2 +1,2 @@\n-\tx\r\n+\ty\r\n na\ufffdve\r\n",
                "edits": [{"matches": 1, "pass": 3}],
            },
        ],
    }
    assert two.read_bytes() == b"\ty\r\nna\xefve\r\n"
    assert two.stat().st_mode & 0o777 == 0o755
    assert names(rig.directory) == ["one", "two"]


async def test_every_failing_file_is_named_and_none_is_changed(rig: Rig) -> None:
    one, two = rig.directory / "one", rig.directory / "two"
    one.write_text("a\n")
    two.write_text("b\n")

    answer = await edit(
        rig,
        (one, [change("a", "A")]),
        (two, [change("b", "c"), change("nothing", "x")]),
        (rig.directory / "missing", [change("a", "b")]),
    )

    assert answer.status == 404
    message = answer.json["message"]
    assert f"{two}: edit 2 of 2: old_text was not found" in message
    assert f"{rig.directory / 'missing'} does not exist." in message
    assert message.endswith("Nothing was changed.")
    assert len(answer.json["fields"]) == 2
    assert (one.read_text(), two.read_text()) == ("a\n", "b\n")


async def test_failing_match_alone_is_400(rig: Rig) -> None:
    path = rig.directory / "f"
    path.write_text("x\nx\n")

    answer = await edit(rig, (path, [change("x", "y")]))

    assert (answer.status, answer.code) == (400, "edit_failed")
    assert "occurs 2 times (lines 1, 2)" in answer.json["message"]


async def test_entries_of_one_path_are_merged_and_aliases_understood(rig: Rig) -> None:
    path = rig.directory / "f"
    path.write_text("a\n")

    answer = await edit(
        rig,
        (path, [{"search": "a", "replace": "b"}]),
        (f"{rig.directory}/./x/../f", [change("b", "c")]),
    )

    assert [len(file["edits"]) for file in answer.json["files"]] == [2]
    assert path.read_text() == "c\n"


@pytest.mark.parametrize("link", [os.symlink, os.link])
async def test_two_paths_of_one_file_are_refused(rig: Rig, link: Any) -> None:
    path = rig.directory / "f"
    path.write_text("a\n")
    link(path, rig.directory / "other")

    answer = await edit(rig, (path, [change("a", "b")]), (rig.directory / "other", [change("a", "c")]))

    assert (answer.status, answer.code) == (400, "same_file")
    assert path.read_text() == "a\n"


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ([], "files must be a list"),
        ("x", "files must be a list"),
        ([{"path": " ", "edits": [{"old_text": "a", "new_text": "b"}]}], "files[0].path must not be blank"),
        ([{"path": "/x", "edits": []}], "files[0].edits must be a list with at least one edit"),
        ([{"path": "x", "edits": [{"old_text": "a", "new_text": "b"}]}], "files[0].path cannot be used: 'x' is a"),
        ([{"path": "/x", "edits": [{"old_text": "a"}]}], "files[0].edits[0].new_text must be text"),
        ([{"path": "/x", "edits": [{"old_text": "a", "new_text": "\ud800"}]}], "is not valid Unicode"),
        ([{"path": "/x", "edits": [{"old_text": "a", "new_text": "b", "exact": 1}]}], "exact must be true or false"),
    ],
)
def test_malformed_edit_names_its_place_and_says_that_nothing_changed(files: object, where: str) -> None:
    with pytest.raises(AgentError) as caught:
        routes.parse(files)

    assert caught.value.status == 400
    assert where in caught.value.message
    assert caught.value.message.endswith("Nothing was changed.")


async def test_fifty_parallel_edits_of_one_file_all_arrive(rig: Rig) -> None:
    path = rig.directory / "f"
    path.write_text("".join(f"line {n:02}\n" for n in range(50)))
    (rig.directory / "link").symlink_to("f")

    answers = await asyncio.gather(
        *(
            edit(rig, (rig.directory / ("link" if n % 2 else "f"), [change(f"line {n:02}", f"LINE {n:02}")]))
            for n in range(50)
        )
    )

    assert [answer.status for answer in answers] == [200] * 50
    assert path.read_text() == "".join(f"LINE {n:02}\n" for n in range(50))


async def test_edit_with_a_key_happens_once(rig: Rig) -> None:
    path = rig.directory / "f"
    path.write_text("a\n")

    answers = await asyncio.gather(*(edit(rig, (path, [change("a", "aa")]), key="k1") for _ in range(5)))

    assert path.read_text() == "aa\n"
    assert len({answer.body for answer in answers}) == 1
    assert sum("idempotent-replay" in answer.headers for answer in answers) == 4


async def test_edit_that_a_crash_cut_off_is_not_made_twice(rig: Rig) -> None:
    one, two = rig.directory / "one", rig.directory / "two"
    one.write_text("a\n")
    two.write_text("a\n")
    first = await edit(rig, (one, [change("a", "aa")]), (two, [change("a", "ab")]), key="k1")
    rig.kill()
    forget_the_end(rig)
    two.write_text("a\n")  # as if the crash came between the two renames
    await rig.start()

    again = await edit(rig, (one, [change("a", "aa")]), (two, [change("a", "ab")]), key="k1")

    assert again.json == first.json
    assert (one.read_text(), two.read_text()) == ("aa\n", "ab\n")


class Died(BaseException):
    """Simulates the death of the process."""


async def test_new_hashes_are_in_the_journal_before_the_first_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("a\n")
    wanted = routes.parse([{"path": str(path), "edits": [change("a", "aa")]}])
    targets = [routes.Target(one, one.path) for one in wanted]
    editor = routes.Editor(mock.Mock(), mock.Mock())

    def die(*_: object) -> None:
        raise Died

    async def run(attempt: Attempt) -> Response:
        editor._make(targets, attempt, True)
        return Response()

    monkeypatch.setattr(file_replace, "commit", die)
    journal = Journal(tmp_path / "journal", Clock(), print)
    journal.load()
    with pytest.raises(Died):
        await journal.once("k1", "edit", "body", run)
    journal.close()
    after = Journal(tmp_path / "journal", Clock(), print)
    after.load()
    (noted,) = after.interrupted("edit")
    after.close()

    assert noted["results"][str(path)]["hash"] == hashlib.sha256(b"aa\n").hexdigest()


async def test_refused_edit_may_be_tried_again_with_its_key(rig: Rig) -> None:
    path = rig.directory / "f"

    refused = await edit(rig, (path, [change("a", "b")]), key="k1")
    path.write_text("a\n")
    made = await edit(rig, (path, [change("a", "b")]), key="k1")

    assert (refused.status, made.status) == (404, 200)
