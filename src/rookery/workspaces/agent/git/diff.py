"""The changes in one repository since its last commit. Untracked files are shown as new files."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import Any, NamedTuple

from rookery.workspaces.agent.edit import lines as edit_lines
from rookery.workspaces.agent.edit import unified_diff
from rookery.workspaces.agent.git.command import Git, GitFailed, Settings

MAX_DIFF_BYTES = 3 * 1024 * 1024
MAX_UNTRACKED = 200
MAX_UNTRACKED_BYTES = 1024 * 1024
# Chosen: a scan runs every few seconds and must not read hundreds of megabytes.
MAX_UNTRACKED_TOTAL = 16 * 1024 * 1024
_MAX_LIST_BYTES = 4 * 1024 * 1024
_MAX_STAT_BYTES = 1024 * 1024

_DIFF = (
    "diff",
    "--numstat",
    "--patch",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--ignore-submodules=dirty",
    "--submodule=short",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
    "--inter-hunk-context=0",
    "--find-renames",
)


class Counts(NamedTuple):
    additions: int = 0
    deletions: int = 0
    files: int = 0


class Untracked(NamedTuple):
    """Untracked files in the format of a diff."""

    text: str
    additions: int
    files: int
    omitted: int


async def find_root(git: Git, folder: str) -> str | None:
    """Return the real path of the repository that a folder belongs to; None if it has no working tree."""
    try:
        root = (await git.output(folder, "rev-parse", "--show-toplevel")).rstrip("\n")
    except GitFailed:
        return None
    return await asyncio.to_thread(os.path.realpath, root) if root else None


def is_repository(root: str) -> bool:
    """Return whether a folder is the root of a working tree: `.git` exists, and if it is a file, so does its target."""
    mark = os.path.join(root, ".git")
    try:
        if stat.S_ISDIR(os.stat(mark).st_mode):
            return True
        with open(mark, encoding="utf-8", errors="surrogateescape") as file:
            pointer = file.read(4096)
    except OSError:
        return False
    target = pointer[len("gitdir:") :].strip() if pointer.startswith("gitdir:") else ""
    return bool(target) and os.path.isdir(os.path.join(root, target))


async def describe(git: Git, root: str) -> dict[str, Any]:
    """Return the state of a repository as JSON for the server. Raise `GitFailed` if git gives no result."""
    settings = await git.settings(root)
    branch = await git.run(root, "symbolic-ref", "--short", "--quiet", "HEAD", settings=settings)
    counts, text, size = await _tracked(git, root, settings)
    untracked = await _untracked(git, root, settings)
    size += len(untracked.text.encode("utf-8", "replace"))
    answer: dict[str, Any] = {
        "root": root,
        "diff": text + untracked.text if size <= MAX_DIFF_BYTES else note(size),
        "additions": counts.additions + untracked.additions,
        "deletions": counts.deletions,
        "changed_files": counts.files + untracked.files,
    }
    name = branch.output.decode("utf-8", "replace").strip()
    if branch.code == 0 and name:
        answer["branch"] = name[:1000]
    if settings.origin:
        answer["remote_origin"] = settings.origin
    if untracked.omitted:
        answer["untracked_omitted"] = untracked.omitted
    return answer


def note(size: int) -> str:
    return f"[This diff is not shown: it has {size} bytes. The limit is {MAX_DIFF_BYTES}.]\n"


async def _tracked(git: Git, root: str, settings: Settings) -> tuple[Counts, str, int]:
    base = "HEAD"
    if (await git.run(root, "rev-parse", "--quiet", "--verify", "HEAD", settings=settings)).code != 0:
        # Without a commit, compare with the empty tree, so that files in the index are included.
        base = (await git.output(root, "hash-object", "-t", "tree", "--stdin", settings=settings)).strip()
    limit = MAX_DIFF_BYTES + _MAX_STAT_BYTES
    done = await git.run(root, *_DIFF, base, "--", settings=settings, max_bytes=limit)
    if done.code != 0:
        raise GitFailed(done.errors.decode("utf-8", "replace")[-500:])
    head, _, patch = done.output.partition(b"\n\n")
    size = done.output_bytes - (len(done.output) - len(patch))
    return _counted(head), patch.decode("utf-8", "replace") if size <= MAX_DIFF_BYTES else "", size


def _counted(numstat: bytes) -> Counts:
    additions = deletions = files = 0
    for line in numstat.split(b"\n"):
        added, _, rest = line.partition(b"\t")
        removed, tab, _ = rest.partition(b"\t")
        if not tab:
            continue
        files += 1
        additions += int(added) if added.isdigit() else 0  # "-" for binary files
        deletions += int(removed) if removed.isdigit() else 0
    return Counts(additions, deletions, files)


async def _untracked(git: Git, root: str, settings: Settings) -> Untracked:
    listing = ("ls-files", "--others", "--exclude-standard", "-z")
    done = await git.run(root, *listing, settings=settings, max_bytes=_MAX_LIST_BYTES)
    if done.code != 0:
        raise GitFailed(done.errors.decode("utf-8", "replace")[-500:])
    # A name with a final slash is a nested repository. The last piece is empty or incomplete.
    names = [name for name in done.output.split(b"\0")[:-1] if not name.endswith(b"/")]
    return await asyncio.to_thread(_as_new_files, root, names)


def _as_new_files(root: str, names: list[bytes]) -> Untracked:
    out: list[str] = []
    additions = shown = 0
    room = MAX_UNTRACKED_TOTAL
    for name in names[:MAX_UNTRACKED]:
        found = _content(os.path.join(os.fsencode(root), name), min(room, MAX_UNTRACKED_BYTES))
        if found is None:
            continue
        mode, data = found
        room -= len(data)
        text, lines = _new_file(name, mode, data)
        out.append(text)
        additions += lines
        shown += 1
    return Untracked("".join(out), additions, len(names), len(names) - shown)


def _content(path: bytes, max_bytes: int) -> tuple[str, bytes] | None:
    """Return the mode and the content of a text file or link; None if it is too large, binary or unreadable."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return "120000", os.readlink(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError:
        return None
    if len(data) > max_bytes or b"\0" in data:
        return None
    return "100755" if status.st_mode & stat.S_IXUSR else "100644", data


def _new_file(name: bytes, mode: str, data: bytes) -> tuple[str, int]:
    before, after = _quoted(b"a/" + name), _quoted(b"b/" + name)
    head = f"diff --git {before} {after}\nnew file mode {mode}\n"
    lines = edit_lines.split(data.decode("utf-8", "replace"))
    if not lines:
        return head, 0
    span = "1" if len(lines) == 1 else f"1,{len(lines)}"
    body = "".join(f"+{line}" if line.endswith("\n") else f"+{line}\n{unified_diff.NO_NEWLINE}" for line in lines)
    return f"{head}--- /dev/null\n+++ {after}\n@@ -0,0 +{span} @@\n{body}", len(lines)


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def _quoted(name: bytes) -> str:
    """Return a name in the notation of git: quoted, with escapes, if it has special characters."""
    if all(32 <= byte < 127 and byte not in (34, 92) for byte in name):
        return name.decode("ascii")
    parts = [
        f"\\{_ESCAPES[byte]}" if byte in _ESCAPES else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
        for byte in name
    ]
    return f'"{"".join(parts)}"'
