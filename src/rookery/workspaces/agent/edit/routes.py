"""`POST /v1/files/edit`: edits of several files. Either all are applied, or no file is changed.

All results are computed in memory first, and all problems are reported together. Then new content is written to
temporary files, the files are checked for concurrent changes, and the temporary files are renamed. If a rename fails,
the earlier renames are undone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rookery.workspaces.agent import directory_handles, file_replace, journal, paths
from rookery.workspaces.agent.disk_limit import Disk
from rookery.workspaces.agent.edit import edit, unified_diff
from rookery.workspaces.agent.edit.edit import Applied, Edit
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.file_replace import Staged, Version
from rookery.workspaces.agent.journal import Attempt
from rookery.workspaces.agent.server.http import Request, Response
from rookery.workspaces.agent.server.routing import Router
from rookery.workspaces.agent.shared_state import Agent

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_FILES = 200
# Chosen: with JSON escapes, a response is smaller than the 8 MiB that the server reads.
MAX_DIFF_BYTES = 3 * 1024 * 1024
_MAX_MESSAGE_CHARS = 16 * 1024
_MAX_FIELD_CHARS = 1000
UNCHANGED = "Nothing was changed."


class FileEdits(NamedTuple):
    """All edits of one file. `shown` is the path as the caller wrote it."""

    shown: str
    path: str
    edits: list[Edit]


class Target(NamedTuple):
    """A file to edit, by its real path."""

    wanted: FileEdits
    real: str


class Computed(NamedTuple):
    """The result of one file. `data` is None if an earlier attempt has already written it."""

    target: Target
    version: Version
    before: bytes
    data: bytes | None
    answer: dict[str, Any]


class Editor:
    def __init__(self, agent: Agent, disk: Disk) -> None:
        self._agent = agent
        self._disk = disk

    async def edit(self, request: Request) -> Response:
        body = await request.json(MAX_BODY_BYTES)
        include_diff = body.get("include_diff", True) is not False
        wanted = parse(body.get("files"))

        async def run(attempt: Attempt) -> Response:
            targets = await asyncio.to_thread(_resolve_all, wanted, links=request.follows_links)
            async with self._agent.locks.hold(target.real for target in targets):
                computed = await asyncio.to_thread(self._make, targets, attempt, include_diff)
            for target in targets:
                self._agent.touched.record(request.chat, target.real)
            return Response.json({"ok": True, "files": [one.answer for one in computed]})

        key = request.idempotency_key
        digest = journal.hash_of(json.dumps(body, sort_keys=True)) if key is not None else ""
        return await self._agent.journal.once(key, "edit", digest, run)

    def _make(self, targets: Sequence[Target], attempt: Attempt, include_diff: bool) -> list[Computed]:
        """Compute and write all files in one thread. Switching threads would take longer than most of the work."""
        computed = _compute_all(targets, attempt.earlier_note, include_diff)
        # Written before the first rename. After a crash, the hashes show which files were already replaced.
        attempt.note({"results": {one.target.real: _result(one) for one in computed}})
        self._write(computed)
        return computed

    def _write(self, computed: Sequence[Computed]) -> None:
        changed = [(one, one.data) for one in computed if one.data is not None and one.data != one.before]
        self._disk.require(sum(len(data) - len(one.before) for one, data in changed))
        staged: list[Staged] = []
        try:
            for one, data in changed:
                staged.append(file_replace.stage(one.target.real, data, version=one.version))
            file_replace.check_unchanged(staged)
        except AgentError as error:
            file_replace.discard(staged)
            raise _unchanged(error) from error
        file_replace.commit(staged)


def register(router: Router, agent: Agent, disk: Disk) -> None:
    router.add("POST", "/v1/files/edit", Editor(agent, disk).edit)


def parse(files: object) -> list[FileEdits]:
    """Return the edits of a request by file, in order. Entries with the same path are merged."""
    if not isinstance(files, list) or not files:
        raise AgentError(400, "invalid", f"files must be a list with at least one entry. {UNCHANGED}")
    if len(files) > MAX_FILES:
        raise AgentError(400, "invalid", f"files has more than {MAX_FILES} entries. {UNCHANGED}")
    merged: dict[str, FileEdits] = {}
    for index, entry in enumerate(files):
        where = f"files[{index}]"
        if not isinstance(entry, dict):
            raise _malformed(where, "must be an object with path and edits")
        shown = entry.get("path")
        if not isinstance(shown, str) or not shown.strip():
            raise _malformed(f"{where}.path", "must not be blank")
        try:
            path = paths.absolute(shown.strip())
        except AgentError as error:
            raise _malformed(f"{where}.path", f"cannot be used: {error.message.rstrip('.')}") from None
        edits = entry.get("edits")
        if not isinstance(edits, list) or not edits:
            raise _malformed(f"{where}.edits", "must be a list with at least one edit")
        parsed = [_parse_edit(value, f"{where}.edits[{at}]") for at, value in enumerate(edits)]
        merged.setdefault(path, FileEdits(shown, path, [])).edits.extend(parsed)
    return list(merged.values())


def _parse_edit(value: object, where: str) -> Edit:
    if not isinstance(value, dict):
        raise _malformed(where, "must be an object with old_text and new_text")
    texts = []
    for name, alias in (("old_text", "search"), ("new_text", "replace")):
        text = value.get(name, value.get(alias))
        if not isinstance(text, str):
            raise _malformed(f"{where}.{name}", "must be text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _malformed(f"{where}.{name}", "is not valid Unicode (half of a surrogate pair)") from None
        texts.append(text)
    flags = []
    for name in ("replace_all", "exact"):
        flag = value.get(name)
        if flag is not None and not isinstance(flag, bool):
            raise _malformed(f"{where}.{name}", "must be true or false")
        flags.append(flag is True)
    return Edit(texts[0], texts[1], flags[0], flags[1])


def _malformed(where: str, detail: str) -> AgentError:
    return AgentError(400, "invalid", f"{where} {detail}. {UNCHANGED}", fields=[(where, detail)])


def _unchanged(error: AgentError) -> AgentError:
    message = error.message if UNCHANGED.rstrip(".") in error.message else f"{error.message} {UNCHANGED}"
    return AgentError(error.status, error.code, message, error.detail, error.fields)


def _resolve_all(wanted: Sequence[FileEdits], *, links: bool) -> list[Target]:
    targets: dict[str, Target] = {}
    for one in wanted:
        try:
            real = directory_handles.resolved(one.path, links=links)
        except AgentError as error:
            raise _unchanged(error) from error
        if real in targets:
            raise _same_file(targets[real].wanted.shown, one.shown)
        targets[real] = Target(one, real)
    return list(targets.values())


def _same_file(first: str, second: str) -> AgentError:
    message = f"{first} and {second} are the same file. Put its edits in one entry, under one path. {UNCHANGED}"
    return AgentError(400, "same_file", message)


def _compute_all(targets: Sequence[Target], found: Mapping[str, Any] | None, include_diff: bool) -> list[Computed]:
    """Compute the result of every file. Raise one error for all failures, with the highest status among them."""
    results = found.get("results") if found is not None else None
    known = results if isinstance(results, dict) else {}
    computed: list[Computed] = []
    failures: list[tuple[str, AgentError]] = []
    inodes: dict[tuple[int, int], str] = {}
    room = MAX_DIFF_BYTES if include_diff else 0
    for target in targets:
        try:
            one = _compute(target, known.get(target.real), room)
        except AgentError as error:
            failures.append((target.wanted.shown, error))
            continue
        inode = (one.version.device, one.version.inode)
        if inode in inodes:
            raise _same_file(inodes[inode], target.wanted.shown)
        inodes[inode] = target.wanted.shown
        room -= len(one.answer["diff"])
        computed.append(one)
    if failures:
        raise _all_failures(failures)
    return computed


def _compute(target: Target, known: object, room: int) -> Computed:
    wanted = target.wanted
    version, before = _read(target)
    if isinstance(known, dict) and known.get("hash") == _hash(before) and isinstance(known.get("answer"), dict):
        return Computed(target, version, before, None, known["answer"])
    text = before.decode("utf-8", "surrogateescape")
    try:
        after, applied = edit.apply(text, wanted.edits)
    except edit.EditFailed as failed:
        which = f"edit {failed.index + 1} of {len(wanted.edits)}: " if len(wanted.edits) > 1 else ""
        raise AgentError(400, "edit_failed", f"{which}{failed.message}") from None
    data = after.encode("utf-8", "surrogateescape")
    if len(data) > MAX_FILE_BYTES:
        raise AgentError(413, "too_large", f"the result would be larger than {MAX_FILE_BYTES} bytes.")
    return Computed(target, version, before, data, _answer(wanted, text, after, applied, room))


def _answer(wanted: FileEdits, text: str, after: str, applied: Sequence[Applied], room: int) -> dict[str, Any]:
    shown = ""
    if room > 0:
        shown = (
            unified_diff.unified(wanted.shown, text, after)
            .encode("utf-8", "surrogateescape")
            .decode("utf-8", "replace")
        )
        if len(shown) > room:
            shown = f"--- {wanted.shown}\n+++ {wanted.shown}\n[this diff is not shown]\n"
    edits = [{"matches": one.matches, "pass": one.pass_number} for one in applied]
    return {"path": wanted.shown, "diff": shown, "edits": edits}


def _read(target: Target) -> tuple[Version, bytes]:
    # The path is already real. A link in it has appeared since, and is refused.
    descriptor = directory_handles.open_regular(target.real, links=False)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if status.st_size > MAX_FILE_BYTES:
            message = f"it has {status.st_size} bytes; at most {MAX_FILE_BYTES} can be edited. Use sed or a script."
            raise AgentError(413, "too_large", message)
        try:
            # A read without a size would allocate a large buffer each time. If the file grows meanwhile, the version
            # check before the rename fails.
            data = file.read(status.st_size + 1)
        except OSError as error:
            raise paths.refusal(error, target.wanted.shown) from error
    return file_replace.version_of(status), data


def _all_failures(failures: Sequence[tuple[str, AgentError]]) -> AgentError:
    worst = max((error for _, error in failures), key=lambda error: error.status)
    sentences = [
        error.message if error.message.startswith(path) else f"{path}: {error.message}" for path, error in failures
    ]
    message = "\n".join(sentences)[:_MAX_MESSAGE_CHARS]
    fields = [(path[:_MAX_FIELD_CHARS], error.message[:_MAX_FIELD_CHARS]) for path, error in failures]
    return AgentError(worst.status, worst.code, f"{message} {UNCHANGED}", fields=fields)


def _result(one: Computed) -> dict[str, Any]:
    return {"hash": _hash(one.before if one.data is None else one.data), "answer": one.answer}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
