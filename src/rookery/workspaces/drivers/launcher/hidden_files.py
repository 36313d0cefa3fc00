"""Mounts that hide files of the server in the trees that a sandbox sees.

A mount over the file itself is not enough: it is removed when a new file is renamed over the old one, for example a
renewed certificate. Instead, an empty directory in memory covers the directory of the file. All other entries of the
directory are bound or linked in it again. Files that are created in the directory later are not visible.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rookery.workspaces.drivers.launcher.launch_plan import LaunchError

MAX_LINKS = 40  # the limit of the kernel
MAX_SIBLINGS = 1000  # chosen: bubblewrap accepts 9000 arguments


class Bound(NamedTuple):
    """A tree of the machine: its real path, and its path in the sandbox."""

    source: str
    target: str


class Walk(NamedTuple):
    """The resolution of a path: the real paths of its links, and the final path, which need not exist."""

    links: list[str]
    end: str


class Cover(NamedTuple):
    """A covered directory: its path in the sandbox, and the entries that are restored in it."""

    target: str
    links: list[tuple[str, str]]  # text of the link, target
    binds: list[tuple[str, str]]  # source, target


def walk(path: str) -> Walk:
    links: list[str] = []
    rest, at = path.split("/"), "/"
    while rest:
        name = rest.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, name)
        try:
            text = os.readlink(here)
        except OSError:
            at = here  # not a link, or not accessible
            continue
        links.append(here)
        if len(links) > MAX_LINKS:
            raise LaunchError(f"{path!r:.200}, which the server's settings name, leads through too many links")
        rest = [*text.split("/"), *rest]
        if text.startswith("/"):
            at = "/"
    return Walk(links, at)


def overlaps(path: str, hidden: str) -> bool:
    """Return whether a tree contains a path of the server or lies in it, under any of their names."""
    found = walk(hidden)
    real = walk(path).end
    for name in (hidden, *found.links, found.end):
        if any(within(name, one) or within(one, name) for one in (path, real)):
            return True
    if _other_names(found.end, [real, *_mounts_below(real)]):
        return True
    # The tree may be, or be in, the same directory under another name.
    return any(_is_same(above, found.end) for above in _with_parents(real))


def covers(bounds: Sequence[Bound], hidden: Iterable[str], uid: int | None) -> list[Cover]:
    """Return the directories to cover in these trees, so that a process of this user sees no hidden file."""
    kept, removed = _entries(bounds, hidden)
    directories = sorted({os.path.dirname(path) for path in (*kept, *removed)})
    made: list[Cover] = []
    for bound in bounds:
        if any(within(bound.source, gone) for gone in removed):
            raise LaunchError(
                f"workspaces need {bound.target}, which the server's settings name as its own; move one of them",
                "driver_unavailable",
            )
        for directory in directories:
            if not within(directory, bound.source) or any(within(directory, gone) for gone in removed):
                continue
            if _may_enter(bound.source, directory, uid):
                made.append(_cover(directory, bound.target + directory[len(bound.source) :], removed))
    if sum(len(cover.binds) + len(cover.links) for cover in made) > MAX_SIBLINGS:
        worst = max(made, key=lambda cover: len(cover.binds) + len(cover.links)).target
        raise LaunchError(
            f"{worst} holds a file that the server's settings name, and too much besides to hide it; move that file "
            "to a directory of its own",
            "driver_unavailable",
        )
    return made


def _entries(bounds: Sequence[Bound], hidden: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the links in the paths of hidden files, and the real paths to hide."""
    sources = [bound.source for bound in bounds]
    places = [*sources, *(mount for source in sources for mount in _mounts_below(source))]
    kept: set[str] = set()
    removed: set[str] = set()
    for path in dict.fromkeys(hidden):
        found = walk(path)
        kept.update(found.links)
        for end in (found.end, *_other_names(found.end, places), *_hard_links(found.end, sources)):
            # A path that does not exist yet is hidden by its first missing directory.
            while not os.path.lexists(os.path.dirname(end)):
                end = os.path.dirname(end)
            removed.add(end)
    return kept, removed


def _other_names(end: str, places: Iterable[str]) -> list[str]:
    """Return the other paths of a file in directories that are mounted several times."""
    above = {(found.st_dev, found.st_ino): path for path in _with_parents(end) if (found := _stat(path)) is not None}
    names = []
    for place in places:
        found = _stat(place)
        same = above.get((found.st_dev, found.st_ino)) if found is not None else None
        if same is not None and same != place:
            names.append(place + end[len(same.rstrip("/")) :])
    return names


def _hard_links(end: str, sources: Iterable[str]) -> Iterator[str]:
    """Yield the other names of a file with hard links. The search of all trees takes about a second."""
    found = _stat(end)
    if found is None or not stat.S_ISREG(found.st_mode) or found.st_nlink < 2:
        return
    for source in sources:
        for folder, _, files in os.walk(source):
            for name in files:
                path = os.path.join(folder, name)
                other = _stat(path) if path != end else None
                if other is not None and os.path.samestat(other, found):
                    yield path


def _cover(directory: str, target: str, removed: set[str]) -> Cover:
    made = Cover(target, [], [])
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return made  # without permission to list it, no entry is restored
    for name in names:
        path, place = os.path.join(directory, name), os.path.join(target, name)
        found = _stat(path)
        if path in removed or found is None:
            continue
        if stat.S_ISLNK(found.st_mode):
            made.links.append((os.readlink(path), place))
        elif stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
            made.binds.append((path, place))
    return made


def _may_enter(source: str, directory: str, uid: int | None) -> bool:
    """Return whether the workspace's user can enter the directory. Otherwise its entries need not be hidden."""
    if not os.path.isdir(directory):
        return False
    if uid is None:
        return os.access(directory, os.X_OK)
    path = directory
    while True:
        found = os.stat(path)
        bit = stat.S_IXUSR if found.st_uid == uid else stat.S_IXGRP if found.st_gid == uid else stat.S_IXOTH
        if not found.st_mode & bit:
            return False
        if path == source:
            return True
        path = os.path.dirname(path)


def _mounts_below(path: str) -> list[str]:
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    # Special characters, such as spaces, are written as octal escapes.
    points = (os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1")) for line in lines)
    return [point for point in points if point != path and within(point, path)]


def _with_parents(path: str) -> Iterator[str]:
    while True:
        yield path
        if path == "/":
            return
        path = os.path.dirname(path)


def _is_same(path: str, other: str) -> bool:
    one, two = _stat(path), _stat(other)
    return one is not None and two is not None and os.path.samestat(one, two)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def within(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")
