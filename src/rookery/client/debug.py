"""Debug records of a chat: the requests and answers of its model calls, and replays of recorded calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from uuid import UUID

from msgspec import UNSET, UnsetType

from rookery.client.content import ChatRef, Effort, given
from rookery.client.http import Http, path
from rookery.client.models import (
    DebugAttempt,
    DebugComparison,
    DebugPlaces,
    DebugRun,
    DebugRunDetail,
    DebugRunPage,
    DebugStep,
    Replay,
)

# The server ends a replay after 300 seconds.
REPLAY_SECONDS = 330.0
EXPORT_SECONDS = 300.0


class AsyncDebug:
    """`client.debug`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list_runs(
        self,
        chat_id: ChatRef,
        *,
        kind: str | None = None,
        status: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> DebugRunPage:
        """Return one page of recorded runs, the newest first, and whether the chat is recorded now."""
        query = {"kind": kind, "status": status, "limit": limit, "cursor": cursor}
        return await self._http.read(DebugRunPage, path("chats", chat_id, "debug", "runs"), query)

    async def iterate_runs(
        self, chat_id: ChatRef, *, kind: str | None = None, status: str | None = None
    ) -> AsyncIterator[DebugRun]:
        """Iterate over all recorded runs, loaded page by page."""
        cursor: str | None = None
        while True:
            page = await self.list_runs(chat_id, kind=kind, status=status, cursor=cursor)
            for run in page.runs:
                yield run
            cursor = page.next_cursor
            if cursor is None:
                return

    async def get_run(self, chat_id: ChatRef, run_id: UUID | str) -> DebugRunDetail:
        """Return a run with its steps and their attempts, without prompts and bodies."""
        return await self._http.read(DebugRunDetail, path("chats", chat_id, "debug", "runs", run_id))

    async def search_run(self, chat_id: ChatRef, run_id: UUID | str, query: str) -> DebugPlaces:
        """Find a text in the prompts, answers and errors of a run. A message is found in the first step that has it."""
        return await self._http.read(
            DebugPlaces, path("chats", chat_id, "debug", "runs", run_id, "search"), {"q": query}
        )

    async def compare_runs(self, chat_id: ChatRef, run_id: UUID | str, other_id: UUID | str) -> DebugComparison:
        """Compare a run with another one of the chat: tokens, cost, time, and where their prompts begin to differ."""
        return await self._http.read(
            DebugComparison, path("chats", chat_id, "debug", "runs", run_id, "compare"), {"other": other_id}
        )

    async def get_step(self, chat_id: ChatRef, run_id: UUID | str, step_id: UUID | str) -> DebugStep:
        """Return a step with its whole prompt, its tools and its answer."""
        return await self._http.read(DebugStep, _step(chat_id, run_id, step_id))

    async def get_attempt(self, chat_id: ChatRef, run_id: UUID | str, step_id: UUID | str, number: int) -> DebugAttempt:
        """Return an HTTP exchange with its headers and bodies, without secrets."""
        return await self._http.read(DebugAttempt, _step(chat_id, run_id, step_id) + path("attempts", number))

    async def export(self, chat_id: ChatRef, *, run_id: UUID | str | None = None) -> bytes:
        """Return the records of one run, or of the most recent runs, as a JSON file."""
        answer = await self._http.send(
            "GET",
            path("chats", chat_id, "debug", "export"),
            query={"run": run_id},
            timeout_seconds=EXPORT_SECONDS,
        )
        return answer.body

    async def delete(self, chat_id: ChatRef) -> None:
        """Delete all records of a chat permanently. The chat itself does not change."""
        await self._http.send("DELETE", path("chats", chat_id, "debug"))

    async def replay(
        self,
        chat_id: ChatRef,
        run_id: UUID | str,
        step_id: UUID | str,
        *,
        model_config_id: UUID | str | UnsetType = UNSET,
        effort: Effort | UnsetType | None = UNSET,
        edits: Mapping[int, str] | None = None,
    ) -> Replay:
        """Make a recorded call again and return both answers. No tool runs, and the chat does not change.

        `edits` are new texts by the index of their message in the prompt. The call is billed. It is not repeated if the
        connection breaks.
        """
        body = given(model_config_id=model_config_id, effort=effort)
        if edits:
            body["edits"] = [{"message": index, "text": text} for index, text in edits.items()]
        place = _step(chat_id, run_id, step_id) + path("replay")
        return await self._http.write(Replay, "POST", place, body=body, timeout_seconds=REPLAY_SECONDS)


def _step(chat_id: ChatRef, run_id: UUID | str, step_id: UUID | str) -> str:
    return path("chats", chat_id, "debug", "runs", run_id, "steps", step_id)
