"""The agent's reports about repositories over its socket, with real git."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import Rig

ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=ENV, check=True, capture_output=True, text=True)
    return done.stdout


def repository(folder: Path, **files: str) -> Path:
    """A repository on the branch `main` with one commit of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


async def scan(rig: Rig, chat: str = "c1") -> list[dict[str, Any]]:
    answer = await rig.post("/v1/git/scan", {"chat_id": chat})
    assert answer["type"] == "changes"
    return list(answer["repositories"])


@contextlib.asynccontextmanager
async def watch(rig: Rig, chat: str = "c1") -> AsyncIterator[AsyncIterator[list[dict[str, Any]]]]:
    """Yield the repositories of one message after the other."""
    headers = {"authorization": f"Bearer {rigs.TOKEN}", "x-rookery-generation": "1"}
    timeout = aiohttp.ClientTimeout(total=rigs.PATIENCE_S)
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(rig.socket), timeout=timeout) as session,
        session.get(f"http://agent/v1/git/watch?chat_id={chat}", headers=headers) as response,
    ):
        assert response.status == 200

        async def messages() -> AsyncIterator[list[dict[str, Any]]]:
            async for line in response.content:
                yield json.loads(line)["repositories"]

        yield messages()


async def touch(rig: Rig, path: Path, text: str, *, chat: str, ancestors: list[str] | None = None) -> None:
    answer = await rig.ask("PUT", f"/v1/files?path={path}", data=text.encode(), chat=chat, ancestors=ancestors)
    assert answer.status == 200


async def test_scan_shows_changed_and_untracked_files(rig: Rig) -> None:
    root = repository(rig.directory, a="1\n2\n3\n", gone="x\n", **{".gitignore": "*.log\n"})
    git(root, "remote", "add", "origin", "https://me:secret@example.com/x.git")
    (root / "a").write_text("1\ntwo\n3\n")
    (root / "gone").unlink()
    (root / "new ü.txt").write_text("n1\nn2")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("a")
    (root / "ignored.log").write_text("no")

    (found,) = await scan(rig)

    assert found["root"] == str(root)
    assert (found["branch"], found["remote_origin"]) == ("main", "https://example.com/x.git")
    assert (found["additions"], found["deletions"], found["changed_files"]) == (1 + 2 + 1 + 1, 2, 5)
    assert "-2\n+two\n" in found["diff"]
    assert "deleted file mode 100644" in found["diff"]
    assert 'diff --git "a/new \\303\\274.txt" "b/new \\303\\274.txt"\nnew file mode 100644\n' in found["diff"]
    assert "@@ -0,0 +1,2 @@\n+n1\n+n2\n\\ No newline at end of file\n" in found["diff"]
    assert "diff --git a/run.sh b/run.sh\nnew file mode 100755\n" in found["diff"]
    assert "ignored" not in found["diff"]
    shutil.copytree(root, root.parent / "copy", symlinks=True)
    git(root.parent / "copy", "checkout", "-q", "--", ".")
    git(root.parent / "copy", "clean", "-qfd")
    (root.parent / "patch").write_text(found["diff"])
    git(root.parent / "copy", "apply", "../patch")
    assert (root.parent / "copy" / "new ü.txt").read_text() == "n1\nn2"
    assert os.access(root.parent / "copy" / "run.sh", os.X_OK)


async def test_repository_without_commits_shows_what_is_there(rig: Rig) -> None:
    git(rig.directory, "init", "-q", "-b", "trunk")
    (rig.directory / "added").write_text("1\n")
    (rig.directory / "untracked").write_text("2\n")
    git(rig.directory, "add", "added")

    (found,) = await scan(rig)

    assert (found["branch"], found["additions"], found["changed_files"]) == ("trunk", 2, 2)


async def test_folder_outside_of_repositories_is_ignored(rig: Rig) -> None:
    await touch(rig, rig.home / "elsewhere" / "f", "x", chat="c1")

    assert await scan(rig) == []


async def test_malicious_repository_runs_nothing(rig: Rig) -> None:
    root = repository(
        rig.directory, a="1\n", b="1\n", **{".gitattributes": "* filter=evil diff=evil\nb filter=worse\n"}
    )
    marker = rig.home / "ran"
    program = rig.home / "program.sh"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {marker}\ncat\n')
    program.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.worse.process",
        "core.sshCommand",
    ):
        git(root, "config", key, str(program))
    git(root, "config", "filter.evil.required", "true")
    hooks = root / ".git" / "hooks"
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit"):
        shutil.copy(program, hooks / hook)
    (root / "a").write_text("2\n")
    (root / "b").write_text("2\n")
    (root / "c").write_text("3\n")

    (found,) = await scan(rig)

    assert not marker.exists(), marker.read_text()
    assert (found["additions"], found["deletions"], found["changed_files"]) == (3, 2, 3)
    assert "-1\n+2\n" in found["diff"]
    with contextlib.suppress(subprocess.CalledProcessError):
        git(root, "diff", "HEAD")
    assert marker.exists()  # the trap itself works


async def test_driver_that_cannot_be_overruled_hides_the_repository(rig: Rig) -> None:
    root = repository(rig.directory, a="1\n", **{".gitattributes": "* filter=x=y\n"})
    with (root / ".git" / "config").open("a") as config:
        config.write(f'[filter "x=y"]\n\tclean = touch {rig.home}/ran\n')
    (root / "a").write_text("2\n")

    assert await scan(rig) == []
    assert not (rig.home / "ran").exists()


async def test_huge_diff_is_a_note_with_counts(rig: Rig) -> None:
    root = repository(rig.directory, a="x" * 63 + "\n")
    (root / "a").write_text("".join(f"{n:063}\n" for n in range(65536)))

    (found,) = await scan(rig)

    assert len(found["diff"]) < 200
    assert "bytes" in found["diff"]
    size = int("".join(part for part in found["diff"].split(" bytes")[0].split()[-1] if part.isdigit()))
    assert size > 4 * 1024 * 1024
    assert (found["additions"], found["deletions"], found["changed_files"]) == (65536, 1, 1)


async def test_untracked_files_have_limits(rig: Rig) -> None:
    root = repository(rig.directory)
    for n in range(205):
        (root / f"n{n:03}").write_text("x\n")
    (root / "binary").write_bytes(b"\0" * 10)
    (root / "large").write_bytes(b"x" * (1024 * 1024 + 1))
    repository(root / "nested", f="x")

    (found,) = await scan(rig)

    # Sorted, "binary" and "large" are among the first 200.
    assert (found["changed_files"], found["untracked_omitted"], found["additions"]) == (207, 9, 198)
    assert "nested" not in found["diff"]


async def test_edit_of_a_child_appears_with_its_root_and_idle_repositories_do_not(rig: Rig) -> None:
    root = repository(rig.directory, a="1\n")
    other = repository(rig.home / "other", b="1\n")
    async with watch(rig, "root") as messages:
        (first,) = await anext(messages)
        await touch(rig, other / "b", "2\n", chat="child", ancestors=["root"])
        second = await anext(messages)
        await scan(rig, "root")
        third = await anext(messages)
        (root / "a").write_text("changed behind the agent's back\n")
        later = await anext(messages)
        while not later:
            later = await anext(messages)
    (unrelated,) = await scan(rig, "stranger")

    assert (first["root"], first["diff"]) == (str(root), "")
    assert [(found["root"], found["additions"]) for found in second] == [(str(other), 1)]
    assert third == []  # a heartbeat
    assert [found["root"] for found in later] == [str(root)]
    assert unrelated["root"] == str(root)


async def test_scan_wakes_watchers(rig: Rig) -> None:
    root = repository(rig.directory, a="1\n")
    async with watch(rig) as messages:
        await anext(messages)
        (root / "a").write_text("2\n")
        await scan(rig)
        async with asyncio.timeout(rigs.PATIENCE_S):
            (found,) = await anext(messages)

    assert found["additions"] == 1


@pytest.mark.parametrize("how", ["folder", "mark", "pointer"])
async def test_removed_repository_is_said_once(rig: Rig, how: str) -> None:
    main = repository(rig.home / "main", a="1\n")
    tree = rig.home / "tree"
    git(main, "worktree", "add", "-q", str(tree))
    await touch(rig, tree / "a", "2\n", chat="c1")
    async with watch(rig) as messages:
        (before,) = await anext(messages)
        if how == "folder":
            shutil.rmtree(tree)
        elif how == "mark":
            (tree / ".git").unlink()
        else:
            shutil.rmtree(main / ".git" / "worktrees")
        await scan(rig)
        after = await anext(messages)
        while not after:
            after = await anext(messages)
        await scan(rig)
        last = await anext(messages)

    assert before["root"] == str(tree)
    assert [(found["root"], found["removed"]) for found in after] == [(str(tree), True)]
    assert last == []


async def test_watch_needs_a_chat(rig: Rig) -> None:
    assert (await rig.ask("GET", "/v1/git/watch")).status == 400
    assert (await rig.ask("POST", "/v1/git/scan", json={})).status == 400
