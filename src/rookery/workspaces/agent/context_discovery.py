"""Discovery of context resources: instruction files, skills, kinds of subagents, and MCP configurations.

Only fixed paths are checked: the top level of each root, and its folders of skills and kinds. The files are untrusted:
links that leave their root are refused, only regular files are read, and sizes and numbers are limited.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rookery.workspaces.agent.mcp import config
from rookery.workspaces.agent.mcp.config import BadConfig, ServerConfig

FILE_BYTES = 64 * 1024
TOTAL_BYTES = 2 * 1024 * 1024
MAX_RESOURCES = 500
# At most this many excluded resources are listed. The others are only counted.
MAX_EXCLUDED = 100
MAX_SKILLS_LISTED = 2000
INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md", ".cursorrules")
SKILL_FOLDERS = ("skills", ".agents/skills", ".claude/skills", ".codex/skills")
SKILL_FILE = "SKILL.md"
AGENT_KIND_FOLDER = ".agents/agents"
MAX_AGENT_KINDS_LISTED = 50
MCP_FILE = ".mcp.json"
INSTRUCTION, SKILL, MCP_CONFIG, AGENT_KIND = "instruction_file", "skill", "mcp_config", "agent_kind"

# Mounts that every sandbox has. Other mounts are binds of the template.
_SYSTEM = re.compile(r"/(usr|bin|sbin|lib\w*|opt|etc|proc|sys|dev|run|tmp|boot)(/|$)")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Resource:
    """One resource. `body` is content that the model may see. `servers` may hold secrets and stay in the workspace."""

    kind: str
    source: str
    root: str
    status: str
    size: int = 0
    hash: str = ""
    body: str | None = None
    error: str | None = None
    servers: tuple[ServerConfig, ...] = ()

    def described(self, ordinal: int) -> dict[str, Any]:
        value: dict[str, Any] = {
            "ordinal": ordinal,
            "kind": self.kind,
            "source": self.source,
            "root": self.root,
            "hash": self.hash,
            "size": self.size,
            "status": self.status,
        }
        if self.body is not None:
            value["body"] = self.body
        if self.error is not None:
            value["error"] = self.error
        return value


@dataclass(frozen=True)
class Found:
    """The resources of one search, in order of precedence."""

    resources: tuple[Resource, ...]
    error: str | None

    def servers(self) -> tuple[ServerConfig, ...]:
        """Return the MCP servers. If several have the same name, only the first counts."""
        found: dict[str, ServerConfig] = {}
        for item in self.resources:
            for server in item.servers:
                found.setdefault(server.name, server)
        return tuple(found.values())

    def hash(self) -> str:
        """Return the hash of the resources that are part of prompts: instruction files, skills, kinds of subagents."""
        digest = hashlib.sha256()
        for item in self.resources:
            if item.kind in (INSTRUCTION, SKILL, AGENT_KIND):
                digest.update("\0".join((item.kind, item.source, item.status, item.hash)).encode("utf-8", "replace"))
                digest.update(b"\n")
        return digest.hexdigest()


@dataclass(frozen=True)
class Root:
    """A directory to search. If the source is a single file, `file` is set and `path` is the folder of the file."""

    path: str
    file: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A path that may be a resource, and its real path."""

    kind: str
    path: str
    real: str
    root: Root

    def with_status(
        self, status: str, error: str | None = None, *, size: int = 0, data: bytes | None = None
    ) -> Resource:
        """Return the resource of this candidate.

        The content of an MCP configuration is left out, because it may contain secrets.
        """
        digest = hashlib.sha256(data).hexdigest() if data is not None else ""
        body = data.decode("utf-8", "replace") if data is not None and self.kind != MCP_CONFIG else None
        return Resource(self.kind, self.path, self.root.path, status, size, digest, body, error)


class Discovery:
    """Searches the roots of one workspace. Its methods block, so call them in a thread."""

    def __init__(self, home: str, directory: str, sources: Sequence[str]) -> None:
        self._home = home
        self._directory = directory
        self._sources = sources

    def signature(self) -> tuple[Any, ...]:
        """Return a value that changes whenever a checked path changes."""
        roots, _ = self._roots()
        paths = [place for root in roots for place in _candidate_paths(root)]
        return tuple((kind, path, _path_state(path)) for kind, path in paths) + tuple(
            (root.path, _path_state(root.path)) for root in roots
        )

    def find(self) -> Found:
        roots, problems = self._roots()
        kept, unlisted = _read_all(_unique_candidates(roots))
        if unlisted:
            problems.append(f"{unlisted} more resources are excluded and not listed.")
        return Found(tuple(kept), " ".join(problems) or None)

    def _roots(self) -> tuple[list[Root], list[str]]:
        roots = [Root(os.path.join(self._home, ".rookery")), Root(self._directory)]
        problems: list[str] = []
        for source in self._sources:
            path = self._home + source[1:] if source == "~" or source.startswith("~/") else source
            problem = self._problem_of(source, path)
            if problem is not None:
                problems.append(f"The context source {source[:200]} {problem}.")
            elif os.path.isfile(path):
                roots.append(Root(os.path.dirname(path), path))
            else:
                roots.append(Root(path))
        return _unique_roots(roots), problems

    def _problem_of(self, source: str, path: str) -> str | None:
        if not os.path.isabs(path):
            return "is not absolute and does not begin with ~"
        if ".." in source.split("/"):
            return "has .. in it"
        real = os.path.realpath(path)
        homes = (os.path.realpath(self._home), os.path.realpath(self._directory))
        if any(_is_inside(real, home) for home in homes) or _is_bound(real):
            return None
        return "is outside of the home, the working directory and the binds"


def _unique_roots(roots: list[Root]) -> list[Root]:
    seen: set[str] = set()
    kept = []
    for root in roots:
        real = os.path.realpath(root.file or root.path)
        if real not in seen:
            seen.add(real)
            kept.append(root)
    return kept


def _candidate_paths(root: Root) -> Iterator[tuple[str, str]]:
    """Yield the kind and path of every possible resource, in order of precedence."""
    if root.file is not None:
        yield INSTRUCTION, root.file
        return
    names = _names(root.path)
    for name in INSTRUCTION_FILES:
        if names is None or name in names:
            yield INSTRUCTION, os.path.join(root.path, name)
    for folder in SKILL_FOLDERS:
        skills = os.path.join(root.path, folder)
        for name in sorted(_listed(skills))[:MAX_SKILLS_LISTED]:
            yield SKILL, os.path.join(skills, name, SKILL_FILE)
    kinds = os.path.join(root.path, AGENT_KIND_FOLDER)
    for name in sorted(name for name in _listed(kinds) if name.endswith(".md"))[:MAX_AGENT_KINDS_LISTED]:
        yield AGENT_KIND, os.path.join(kinds, name)
    yield MCP_CONFIG, os.path.join(root.path, MCP_FILE)


def _names(path: str) -> frozenset[str] | None:
    """Return the exact names in a folder on a case-insensitive file system; None on a case-sensitive one."""
    if not os.path.lexists(os.path.join(path, "agents.md")) or not os.path.lexists(os.path.join(path, "AGENTS.md")):
        return None
    return frozenset(_listed(path))


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _path_state(path: str) -> tuple[Any, ...] | None:
    """Return a value that changes when the path, or the target of a link, changes."""
    seen: list[Any] = []
    for follow in (False, True):
        try:
            info = os.stat(path, follow_symlinks=follow)
        except OSError as error:
            seen.append(error.errno)
            continue
        is_folder = stat.S_ISDIR(info.st_mode)
        # Times of a folder are ignored, because they also change with files that are not resources.
        times = () if is_folder else (info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        seen.append((info.st_mode, info.st_dev, info.st_ino, *times))
    return None if seen[0] == errno.ENOENT else tuple(seen)


def _read(item: Candidate) -> Resource:
    """Read one resource. A problem becomes its status, so that it does not affect other resources."""
    if not os.path.exists(item.path):
        return item.with_status("unreadable", "It is a link to a path that does not exist.")
    if not _is_inside(item.real, os.path.realpath(item.root.path)):
        return item.with_status("invalid", "It is a link that leads out of its root.")
    try:
        size, data = _content(item.real)
    except IsADirectoryError:
        return item.with_status("invalid", "It is not a file.")
    except OSError as error:
        return item.with_status("unreadable", f"It cannot be read: {os.strerror(error.errno or 0)}.")
    too_large = len(data) > FILE_BYTES
    if too_large and item.kind == INSTRUCTION:
        data = _cut(data)
        message = f"Only the first {len(data)} of {size} bytes are used."
        return item.with_status("truncated", message, size=size, data=data)
    if too_large:
        return item.with_status("oversize", f"It has {size} bytes. The limit is {FILE_BYTES}.", size=size)
    if item.kind == MCP_CONFIG:
        try:
            servers = config.parse(data, os.path.dirname(item.path))
        except BadConfig as error:
            return item.with_status("invalid", str(error), size=size, data=data)
        return replace(item.with_status("ok", size=size, data=data), servers=servers)
    return item.with_status("ok", size=size, data=data)


def _content(real: str) -> tuple[int, bytes]:
    """Return the size and the first bytes of a regular file. Never wait for a pipe or a device."""
    descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise IsADirectoryError
        return info.st_size, file.read(FILE_BYTES + 1)


def _cut(data: bytes) -> bytes:
    """Return the first FILE_BYTES bytes, or fewer, to cut between two characters."""
    size = FILE_BYTES
    while size > FILE_BYTES - 4 and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size]


def _unique_candidates(roots: list[Root]) -> list[Candidate]:
    """Return the existing candidates in order of precedence, MCP configurations last. Each real file occurs once."""
    seen: set[str] = set()
    found: list[Candidate] = []
    for root in roots:
        for kind, path in _candidate_paths(root):
            if not os.path.lexists(path):
                continue
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                found.append(Candidate(kind, path, real, root))
    return sorted(found, key=lambda item: item.kind == MCP_CONFIG)


def _read_all(found: list[Candidate]) -> tuple[list[Resource], int]:
    """Read resources up to the limits and mark the others as excluded. Also return how many of these are not listed."""
    kept: list[Resource] = []
    count = size = excluded = unlisted = 0
    for item in found:
        resource = _read(item) if count < MAX_RESOURCES else None
        length = len(resource.body.encode("utf-8", "replace")) if resource and resource.body is not None else 0
        if resource is not None and size + length <= TOTAL_BYTES:
            count, size = count + 1, size + length
            kept.append(resource)
        elif excluded < MAX_EXCLUDED:
            excluded += 1
            reason = f"The workspace has more than {MAX_RESOURCES} resources or {TOTAL_BYTES} bytes of them."
            kept.append(item.with_status("excluded", reason))
        else:
            unlisted += 1
    return kept, unlisted


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_bound(path: str) -> bool:
    """Return whether the path is in a bind of the template."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [_OCTAL.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in file]
    except (OSError, IndexError):
        return False
    return any(mount != "/" and not _SYSTEM.match(mount) and _is_inside(path, mount) for mount in mounts)
