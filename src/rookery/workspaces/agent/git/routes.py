"""`/v1/git/watch` and `/v1/git/scan`: the repositories that a chat has worked in, and their changes.

The list consists of the repositories of all paths that the chat or its subagents touched, and the repository of the
working directory. A watcher receives a repository when its state differs from the one that was sent last. An empty list
is a keep-alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from rookery.workspaces.agent.errors import invalid
from rookery.workspaces.agent.git import diff
from rookery.workspaces.agent.git.command import Git, GitFailed
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import Agent

INTERVAL_S = 5.0
MIN_INTERVAL_S = 1.0
MAX_REPOSITORIES = 32
# Chosen: with JSON escapes, a message is smaller than the 8 MiB that the server reads.
MAX_MESSAGE_BYTES = 7 * 1024 * 1024
SCANS_AT_ONCE = 2
_MAX_KNOWN = 256


class Snapshot(NamedTuple):
    """The state of a repository, with the hash and the size of its JSON."""

    state: dict[str, Any]
    digest: str
    size: int


class Scanner:
    """Scans repositories. A repository has one running scan at a time; callers that wait share the next scan."""

    def __init__(self, agent: Agent) -> None:
        self._git = Git(agent.children, agent.config)
        self._monotonic = agent.clock.monotonic
        self._log = agent.log
        self._running = asyncio.Semaphore(SCANS_AT_ONCE)
        self._locks: dict[str, asyncio.Lock] = {}
        self._last: OrderedDict[str, tuple[float, Snapshot | None]] = OrderedDict()
        self._roots: dict[str, str] = {}

    async def roots_of(self, paths: list[str]) -> list[str]:
        """Return the repositories that contain these paths, in order and without duplicates."""
        candidates = await asyncio.to_thread(_candidate_roots, paths)
        roots: dict[str, None] = {}
        for folder in candidates:
            if folder not in self._roots:
                root = await diff.find_root(self._git, folder)
                if root is None:
                    continue
                if len(self._roots) >= _MAX_KNOWN:
                    self._roots.clear()
                self._roots[folder] = root
            roots[self._roots[folder]] = None
        return list(roots)

    async def snapshot(self, root: str) -> Snapshot | None:
        """Return the state of a repository from a scan that began after this call; None if git gives no result."""
        requested_at = self._monotonic()
        async with self._locks.setdefault(root, asyncio.Lock()):
            began, known = self._last.get(root, (-1.0, None))
            if began >= requested_at:
                return known
            async with self._running:
                began = self._monotonic()
                try:
                    state = await diff.describe(self._git, root)
                    seen: Snapshot | None = await asyncio.to_thread(_snapshot, state)
                except GitFailed as error:
                    self._log(f"git: {root}: {error}")
                    seen = None
            self._last[root] = (began, seen)
            self._last.move_to_end(root)
            while len(self._last) > MAX_REPOSITORIES:
                self._last.popitem(last=False)
            return seen


class GitRoutes:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._scanner: Scanner | None = None
        self._watchers: dict[str, set[Callable[[], None]]] = {}

    async def scan(self, request: Request) -> Response:
        chat_id = _chat_id((await request.json()).get("chat_id"))
        for wake in tuple(self._watchers.get(chat_id, ())):
            wake()
        repositories = await self._scan_chat(chat_id, None)
        return Response.json(_message(repositories))

    async def watch(self, request: Request) -> Response:
        chat_id = _chat_id(request.query.get("chat_id"))
        return Response.streamed(self._messages(chat_id, request.gone), content_type="application/x-ndjson")

    async def _messages(self, chat_id: str, gone: asyncio.Event) -> AsyncIterator[bytes]:
        woken = asyncio.Event()
        leaving = asyncio.ensure_future(gone.wait())
        leaving.add_done_callback(lambda _: woken.set())
        # Subscribe before the paths are read, so that no touch is missed.
        unsubscribe = self._agent.touched.subscribe(lambda chats, _: woken.set() if chat_id in chats else None)
        self._watchers.setdefault(chat_id, set()).add(woken.set)
        sent: dict[str, str] = {}
        try:
            while not gone.is_set():
                woken.clear()
                began = self._agent.clock.monotonic()
                message = _message(await self._scan_chat(chat_id, sent))
                yield json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(woken.wait(), INTERVAL_S)
                early = began + MIN_INTERVAL_S - self._agent.clock.monotonic()
                if early > 0 and not gone.is_set():
                    await asyncio.wait({leaving}, timeout=early)
        finally:
            leaving.cancel()
            unsubscribe()
            self._watchers[chat_id].discard(woken.set)
            if not self._watchers[chat_id]:
                del self._watchers[chat_id]

    async def _scan_chat(self, chat_id: str, sent: dict[str, str] | None) -> list[dict[str, Any]]:
        """Return the repositories of the chat. With `sent`, return only those that have changed, and update it."""
        if self._scanner is None:
            self._scanner = Scanner(self._agent)
        scanner = self._scanner
        newest_first = [self._agent.config.directory, *reversed(self._agent.touched.paths(chat_id))]
        roots = (await scanner.roots_of(newest_first))[:MAX_REPOSITORIES]
        # Repositories that were sent and no longer exist are reported once.
        gone = [root for root in sent or () if root not in roots and not diff.is_repository(root)]
        snapshots = await asyncio.gather(*(scanner.snapshot(root) for root in roots))
        changed: list[dict[str, Any]] = [_removed(root) for root in gone]
        room = MAX_MESSAGE_BYTES
        for snapshot in snapshots:
            if snapshot is None:
                continue
            root = snapshot.state["root"]
            if sent is not None:
                if sent.get(root) == snapshot.digest:
                    continue
                sent[root] = snapshot.digest
            fits = snapshot.size <= room
            changed.append(
                snapshot.state if fits else {**snapshot.state, "diff": diff.note(len(snapshot.state["diff"]))}
            )
            room -= snapshot.size if fits else 0
        for root in gone:
            if sent is not None:
                del sent[root]
        return changed


def register(router: Router, agent: Agent) -> None:
    routes = GitRoutes(agent)
    router.add("GET", "/v1/git/watch", routes.watch, query=["chat_id"])
    router.add("POST", "/v1/git/scan", routes.scan)


def _chat_id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise invalid("chat_id", "is required")
    return value


def _message(repositories: list[dict[str, Any]]) -> dict[str, Any]:
    scanned_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"type": "changes", "scanned_at": scanned_at, "repositories": repositories}


def _removed(root: str) -> dict[str, Any]:
    return {"root": root, "diff": "", "additions": 0, "deletions": 0, "changed_files": 0, "removed": True}


def _snapshot(state: dict[str, Any]) -> Snapshot:
    encoded = json.dumps(state, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace")
    return Snapshot(state, hashlib.sha256(encoded).hexdigest(), len(encoded))


def _candidate_roots(paths: list[str]) -> list[str]:
    """Return the nearest folder with `.git` above each path, without duplicates."""
    known: dict[str, str | None] = {}
    found: dict[str, None] = {}
    for path in paths:
        passed: list[str] = []
        folder = os.path.realpath(path)
        while folder not in known:
            passed.append(folder)
            if os.path.lexists(os.path.join(folder, ".git")):
                known[folder] = folder if diff.is_repository(folder) else None
            elif folder == "/":
                known[folder] = None
            else:
                folder = os.path.dirname(folder)
        for each in passed:
            known[each] = known[folder]
        root = known[folder]
        if root is not None:
            found[root] = None
    return list(found)
