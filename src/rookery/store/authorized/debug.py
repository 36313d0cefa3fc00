"""Debug records on behalf of an actor. They show more than the chat, so readers of a shared chat may not see them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.db.pool import Connection
from rookery.store.debug import record_reads, recording_state
from rookery.store.debug.export import ExportedRun, list_exported
from rookery.store.debug.record_reads import RunPage
from rookery.store.debug.record_rows import (
    AttemptRow,
    AttemptSummaryRow,
    DebugMode,
    ReplayRow,
    RequestRow,
    RunKind,
    RunRow,
    RunStatus,
    SearchedStep,
    StepRow,
    StepSummaryRow,
)
from rookery.store.debug.run_comparison import ComparedRun, FirstDifference, find_difference, read_compared
from rookery.store.people import preferences
from rookery.store.people.errors import Missing

MAX_SEARCHED_STEPS = 200


class DebugRecordNotFound(Missing):
    """Raised if the record does not exist, belongs to another chat, or was deleted since it was listed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"There is no such {what} of this chat. It may have been deleted.")


class RecordingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide whether the model calls of a chat are recorded, besides the start settings."""

    mode: DebugMode
    is_allowed: bool
    is_preferred: bool


class RunList(msgspec.Struct, frozen=True):
    page: RunPage
    recording: RecordingFacts


class RunDetail(msgspec.Struct, frozen=True):
    """A run with its steps and their attempts, without prompts, answers and bodies."""

    run: RunRow
    steps: Sequence[StepSummaryRow]
    attempts: Sequence[AttemptSummaryRow]


class StepDetail(msgspec.Struct, frozen=True):
    """A step, with the requests of all steps up to it. Its own request is assembled from these."""

    step: StepRow
    requests: Sequence[RequestRow]
    attempts: Sequence[AttemptSummaryRow]


class RecordedCall(msgspec.Struct, frozen=True):
    """A recorded call that can be made again: the step, and the replay forms of the steps up to it."""

    run: RunRow
    step: StepRow
    forms: Sequence[ReplayRow]


class RunPair(msgspec.Struct, frozen=True):
    """Two runs of a chat, and the first message in which their prompts differ."""

    one: ComparedRun
    other: ComparedRun
    difference: FirstDifference | None


class Debug(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.CHAT, Action.INSPECT, via=Via.CHAT)
    async def list_runs(
        self,
        at: Grant,
        chat_id: ChatId,
        *,
        limit: int = 50,
        cursor: str | None = None,
        kind: RunKind | None = None,
        status: RunStatus | None = None,
    ) -> RunList:
        """Return a page of the chat's runs, the newest first, and whether the chat is recorded."""
        page = await record_reads.list_runs(at.conn, chat_id, limit=limit, cursor=cursor, kind=kind, status=status)
        assert at.owner_id is not None
        recording = RecordingFacts(
            mode=await recording_state.find_mode(at.conn, at.root_id or chat_id),
            is_allowed=await preferences.may_users_record(at.conn),
            is_preferred=(await preferences.read(at.conn, at.owner_id)).debug,
        )
        return RunList(page, recording)

    @authz(Resource.CHAT, Action.INSPECT, via=Via.CHAT)
    async def get_run(self, at: Grant, chat_id: ChatId, run_id: UUID) -> RunDetail:
        steps, attempts = (
            await record_reads.list_steps(at.conn, run_id),
            await record_reads.list_attempts(at.conn, run_id),
        )
        # The run is read last, here and below. If it no longer exists by then, its steps may be missing as well.
        return RunDetail(await _run(at.conn, chat_id, run_id), steps, attempts)

    @authz(Resource.CHAT, Action.INSPECT, via=Via.CHAT)
    async def get_step(self, at: Grant, chat_id: ChatId, run_id: UUID, step_id: UUID) -> StepDetail:
        step = await _step(at.conn, run_id, step_id)
        requests = await record_reads.list_requests(at.conn, run_id, last_number=step.step_number)
        attempts = await record_reads.list_attempts(at.conn, run_id)
        await _run(at.conn, chat_id, run_id)
        return StepDetail(step, requests, [attempt for attempt in attempts if attempt.step_id == step_id])

    @authz(Resource.CHAT, Action.INSPECT, via=Via.CHAT)
    async def search_run(self, at: Grant, chat_id: ChatId, run_id: UUID, *, query: str) -> list[SearchedStep]:
        """Return the steps of a run that may contain the query, in order, at most `MAX_SEARCHED_STEPS`."""
        steps = await record_reads.search_steps(at.conn, run_id, query, limit=MAX_SEARCHED_STEPS)
        await _run(at.conn, chat_id, run_id)
        return steps

    @authz(Resource.CHAT, Action.INSPECT, via=Via.CHAT)
    async def compare_runs(self, at: Grant, chat_id: ChatId, run_id: UUID, other_id: UUID) -> RunPair:
        """Return two runs of the chat, with the hashes of their prompts."""
        one = await read_compared(at.conn, await _run(at.conn, chat_id, run_id))
        other = await read_compared(at.conn, await _run(at.conn, chat_id, other_id))
        return RunPair(one, other, await find_difference(at.conn, one, other))

    @authz(Resource.CHAT, Action.INSPECT, via=Via.CHAT)
    async def get_attempt(self, at: Grant, chat_id: ChatId, run_id: UUID, step_id: UUID, *, number: int) -> AttemptRow:
        await _step(at.conn, run_id, step_id)
        found = await record_reads.find_attempt(at.conn, step_id, number)
        await _run(at.conn, chat_id, run_id)
        if found is None:
            raise DebugRecordNotFound("attempt")
        return found

    @authz(Resource.CHAT, Action.INSPECT, via=Via.CHAT)
    async def export(self, at: Grant, chat_id: ChatId, run_id: UUID | None) -> list[ExportedRun]:
        """Return one run, or the most recent runs. Their steps are read later, each on a connection of its own.

        All of this is one access, so an administrator's access is logged once.
        """
        runs = await list_exported(at.conn, chat_id, run_id, acquire=self._context.acquire)
        if run_id is not None and not runs:
            raise DebugRecordNotFound("run")
        return runs

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT)
    async def get_replay(self, at: Grant, chat_id: ChatId, run_id: UUID, step_id: UUID) -> RecordedCall:
        """Return a recorded call. Only the owner may make it again, because it uses the owner's keys and budget."""
        step = await _step(at.conn, run_id, step_id)
        forms = await record_reads.list_replay_forms(at.conn, run_id, last_number=step.step_number)
        return RecordedCall(await _run(at.conn, chat_id, run_id), step, forms)

    @authz(Resource.CHAT, Action.PATCH, via=Via.CHAT, how=How.WRITE)
    async def delete_all(self, at: Grant, chat_id: ChatId) -> int:
        """Delete all records of the chat. Return the number of runs. A running run is not recorded further."""
        deleted = await recording_state.delete_all(at.conn, chat_id)
        at.tell(*recording_state.removed_hints(chat_id))
        return deleted


async def _run(conn: Connection, chat_id: ChatId, run_id: UUID) -> RunRow:
    run = await record_reads.find_run(conn, chat_id, run_id)
    if run is None:
        raise DebugRecordNotFound("run")
    return run


async def _step(conn: Connection, run_id: UUID, step_id: UUID) -> StepRow:
    step = await record_reads.find_step(conn, run_id, step_id)
    if step is None:
        raise DebugRecordNotFound("step")
    return step
