"""The idempotency journal: records the effect of each idempotency key, in memory and in a file that survives restarts.

A "started" line is written before an effect and a "done" line after it, so a restart in between loses no key. A written
line is in the kernel's buffers: it survives the death of the agent, but not a power loss. Any program of the workspace
may write to the file, so invalid lines are skipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rookery.workspaces.agent.clock import Clock
from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.server.http import MAX_KEY_CHARS, Response

MAX_ENTRIES = 4096
MAX_AGE_S = 24 * 3600.0
# Chosen: 4096 process views would take 128 MiB. The oldest responses are dropped first.
MAX_ANSWER_BYTES = 32 * 1024 * 1024
# The file is rewritten when it has this many more lines than entries.
_SPARE_LINES = 3 * MAX_ENTRIES
_MAX_FILE_BYTES = 4 * MAX_ANSWER_BYTES

Run = Callable[["Attempt"], Awaitable[Response]]


def hash_of(*parts: str | bytes) -> str:
    """Return a hash of the parts of a request. Each part is hashed with its length, so the borders of parts count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


class Entry:
    """The record of one key."""

    def __init__(self, key: str, kind: str, body_hash: str, at: float) -> None:
        self.key = key
        self.kind = kind
        self.body_hash = body_hash
        self.at = at
        self.note: Mapping[str, Any] | None = None
        self.answer: tuple[int, bytes] | None = None
        self.data: Mapping[str, Any] | None = None
        self.running: asyncio.Future[Response] | None = None
        self.deferred = False
        self.size = 0  # bytes kept for the replay

    @property
    def busy(self) -> bool:
        return self.running is not None or self.deferred

    def settle(self, answer: tuple[int, bytes], data: Mapping[str, Any] | None) -> None:
        self.answer = answer
        self.data = data
        self.size = len(answer[1]) + (len(_encode(data)) if data else 0)

    def lines(self) -> Iterator[dict[str, Any]]:
        yield {"line": "started", "key": self.key, "kind": self.kind, "hash": self.body_hash, "at": self.at}
        if self.note is not None:
            yield {"line": "note", "key": self.key, "note": self.note}
        if self.answer is not None and not self.deferred:
            status, body = self.answer
            yield {"line": "done", "key": self.key, "status": status, "body": body.decode(), "data": self.data}


class Attempt:
    """One run of an effect. `earlier_note` is the note of a run that a restart interrupted."""

    def __init__(self, journal: Journal | None, entry: Entry | None, earlier_note: Mapping[str, Any] | None) -> None:
        self._journal = journal
        self._entry = entry
        self.earlier_note = earlier_note

    @property
    def key(self) -> str | None:
        return self._entry.key if self._entry is not None else None

    def note(self, value: Mapping[str, Any]) -> None:
        """Write a note before the effect. After a restart it shows whether the effect has happened. Thread-safe."""
        if self._journal is not None and self._entry is not None:
            self._journal.note(self._entry, value)

    def defer(self) -> None:
        """Let the effect continue after the response. `Journal.finish` then writes the "done" line."""
        if self._entry is not None:
            self._entry.deferred = True


class Journal:
    """A file with the idempotency keys of the past 24 hours. Only the most recently started agent writes it."""

    def __init__(self, path: Path, clock: Clock, log: Callable[[str], None]) -> None:
        self._path = path
        self._clock = clock
        self._log = log
        self._entries: dict[str, Entry] = {}
        self._bytes = 0
        self._lines = 0
        self._file_bytes = 0
        self._descriptor = -1
        # Notes come from worker threads, and a concurrent rewrite of the file must include them.
        self._writing = threading.RLock()

    def load(self) -> None:
        """Read the lines of earlier runs, and rewrite the file without invalid, old and dropped entries."""
        try:
            with open(self._path, "rb") as file:
                data = file.read(_MAX_FILE_BYTES)
        except FileNotFoundError:
            data = b""
        skipped = sum(not self._read(line) for line in data.split(b"\n") if line)
        if skipped:
            self._log(f"journal: skipped {skipped} invalid lines")
        self._forget_old()
        self._rewrite()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def once(
        self,
        key: str | None,
        kind: str,
        body_hash: str,
        run: Run,
        *,
        lost: Callable[[], AgentError] | None = None,
    ) -> Response:
        """Run an effect once for its key. A repeated request joins the running effect or gets the recorded response.

        Without a key the effect always runs. A failed effect is dropped, so its key may be used again. If a restart
        interrupted the effect, it runs again with `Attempt.earlier_note`; if `lost` is given, that error is raised
        instead.
        """
        if key is None:
            return await run(Attempt(None, None, None))
        entry = self._entries.get(key)
        if entry is not None and (entry.kind, entry.body_hash) != (kind, body_hash):
            message = "This idempotency key was used for another request. Use a new key for a new request."
            raise AgentError(422, "key_reused", message)
        if entry is not None and entry.running is not None:
            return _replayed(await asyncio.shield(entry.running))
        if entry is not None and entry.answer is not None:
            return _replayed(Response(entry.answer[0], entry.answer[1], {"content-type": "application/json"}))
        if entry is not None and lost is not None:
            raise lost()
        if entry is None:
            self._forget_old(room=1)
            entry = Entry(key, kind, body_hash, self._clock.now())
            self.append(next(entry.lines()))
            self._entries[key] = entry
        return await self._run(entry, run)

    async def _run(self, entry: Entry, run: Run) -> Response:
        outcome: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        entry.running = outcome
        try:
            response = await run(Attempt(self, entry, entry.note))
        except Exception as error:
            self._drop(entry)
            outcome.set_exception(error)
            outcome.exception()  # mark it as retrieved: maybe no other request has joined
            raise
        except BaseException:
            outcome.cancel()
            raise
        finally:
            entry.running = None
        outcome.set_result(response)
        if response.status >= 400:
            self._drop(entry)
        elif entry.deferred:
            entry.answer = (response.status, response.body)
        else:
            entry.settle((response.status, response.body), None)
            self._done(entry)
        return response

    def finish(self, key: str, data: Mapping[str, Any]) -> None:
        """Record the end of a deferred effect. `finished` returns `data`, even after a restart."""
        entry = self._entries.get(key)
        if entry is not None and entry.deferred and entry.answer is not None:
            entry.deferred = False
            entry.settle(entry.answer, data)
            self._done(entry)

    def finished(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the data of all finished effects of a kind, oldest first."""
        entries = [entry for entry in self._entries.values() if entry.kind == kind]
        return [entry.data for entry in entries if entry.answer is not None and entry.data is not None]

    def interrupted(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the notes of all effects of a kind that a restart interrupted."""
        entries = [entry for entry in self._entries.values() if entry.kind == kind and not entry.busy]
        return [entry.note for entry in entries if entry.answer is None and entry.note is not None]

    def note(self, entry: Entry, value: Mapping[str, Any]) -> None:
        """Store the note of an attempt. `interrupted` returns it after a restart. Thread-safe."""
        with self._writing:
            entry.note = value
            self.append({"line": "note", "key": entry.key, "note": value})

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one line completely or not at all. Thread-safe."""
        data = _encode(value)
        with self._writing:
            try:
                written = os.write(self._descriptor, data)
                if written != len(data):
                    os.ftruncate(self._descriptor, self._file_bytes)
                    raise OSError("the line was written only in part")
            except OSError as error:
                message = f"The workspace agent cannot write its journal, so nothing was done: {error}."
                raise AgentError(507, "journal", message) from error
            self._file_bytes += len(data)
            self._lines += 1

    def _done(self, entry: Entry) -> None:
        self._bytes += entry.size
        try:
            self.append(list(entry.lines())[-1])
        except AgentError as error:
            self._log(error.message)  # the effect has happened; only a restart would forget it
        self._forget_old()
        if self._lines > len(self._entries) + _SPARE_LINES or self._file_bytes > _MAX_FILE_BYTES:
            self._rewrite()

    def _drop(self, entry: Entry) -> None:
        self._entries.pop(entry.key, None)
        try:
            self.append({"line": "dropped", "key": entry.key})
        except AgentError as error:
            self._log(error.message)

    def _forget_old(self, room: int = 0) -> None:
        """Drop the oldest entries until `room` new entries fit into the limits.

        Running entries and the newest entry are kept.
        """
        oldest = self._clock.now() - MAX_AGE_S
        newest = next(reversed(self._entries.values()), None)
        count, size, gone = len(self._entries) + room, self._bytes, []
        for entry in self._entries.values():
            full = count > MAX_ENTRIES or size > MAX_ANSWER_BYTES
            if entry is newest or (not full and entry.at >= oldest):
                break
            if not entry.busy:
                gone.append(entry.key)
                count, size = count - 1, size - entry.size
        for key in gone:
            del self._entries[key]
        self._bytes = size

    def _read(self, data: bytes) -> bool:
        """Apply one line of the file. Return whether it is valid."""
        try:
            value = json.loads(data)
            key, line = value["key"], value["line"]
            if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS:
                return False
            if line == "started":
                self._read_started(key, value)
            elif line == "dropped":
                self._entries.pop(key, None)
            elif line == "note" and isinstance(value["note"], dict):
                self._entries[key].note = value["note"]
            elif line == "done":
                self._read_done(self._entries[key], value)
            else:
                return False
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        return True

    def _read_started(self, key: str, value: Mapping[str, Any]) -> None:
        entry = Entry(key, str(value["kind"]), str(value["hash"]), float(value["at"]))
        self._entries.setdefault(key, entry)

    def _read_done(self, entry: Entry, value: Mapping[str, Any]) -> None:
        status, body, data = int(value["status"]), value["body"].encode(), value["data"]
        if not 200 <= status < 300 or not (data is None or isinstance(data, dict)):
            raise ValueError("not an answer")
        if entry.answer is None:
            entry.settle((status, body), data)
            self._bytes += entry.size

    def _rewrite(self) -> None:
        """Replace the file by one with only the current entries."""
        with self._writing:
            self._rewrite_alone()

    def _rewrite_alone(self) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        data = b"".join(_encode(line) for entry in self._entries.values() for line in entry.lines())
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.replace(temporary, self._path)
        except OSError as error:
            os.close(descriptor)
            self._log(f"journal: the file could not be rewritten: {error}")
            if self._descriptor < 0:
                raise
            return
        self.close()
        self._descriptor = descriptor
        self._file_bytes = len(data)
        self._lines = data.count(b"\n")


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _replayed(response: Response) -> Response:
    return Response(response.status, response.body, {**response.headers, "idempotent-replay": "1"})
