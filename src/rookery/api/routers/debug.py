"""Debug records of a chat: its runs, their steps and attempts, as a list, one by one, or as a file; and replays."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Annotated
from uuid import UUID

import msgspec
from pydantic import Field, StrictInt
from starlette.responses import Response

from rookery.api import headers, model_choice
from rookery.api.caller import Caller
from rookery.api.debug_exports import ExportResponse, ExportSlots
from rookery.api.errors import ApiError
from rookery.api.rate_limits import Limit
from rookery.api.request_bodies import Body
from rookery.api.routes import Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.debug import record_views
from rookery.debug.export import MAX_EXPORT_BYTES, Export, ExportView, file_name
from rookery.debug.record_views import AttemptView, RunDetailView, RunListView, StepView
from rookery.debug.replay import NotReplayable, Replay, ReplayChange
from rookery.debug.run_comparison import ComparisonView, compare
from rookery.debug.step_search import MAX_PLACES, Place, find_places
from rookery.domain.access.rights import Action
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId, Effort
from rookery.store.authorized.debug import MAX_SEARCHED_STEPS
from rookery.store.debug.record_reads import MAX_LIMIT
from rookery.store.debug.record_rows import RunKind, RunStatus

MAX_EDITS = 100
MAX_QUERY_CHARS = 200


class Edit(Body):
    """A new text for a message of the prompt, which is named by its index."""

    message: Annotated[StrictInt, Field(ge=0)]
    text: Annotated[str, Field(max_length=500_000)]


class ReplayBody(Body):
    """The changes of a replay. Without changes, the recorded call is repeated exactly."""

    model_config_id: UUID | None = None
    effort: Effort | None = None
    edits: Annotated[list[Edit], Field(max_length=MAX_EDITS)] = Field(default_factory=list)


class PlacesView(msgspec.Struct, frozen=True, kw_only=True):
    """The places where a searched text was found, in order. If `is_complete` is false, there may be more."""

    places: tuple[Place, ...]
    is_complete: bool


def router(services: ApiServices) -> Routes:
    routes = Routes("debug")
    slots = ExportSlots()

    @routes.get(
        "/chats/{chat}/debug/runs", "debug.list_runs", returns=RunListView, errors=(404,), takes=[headers.BREAK_GLASS]
    )
    async def list_runs(
        caller: Caller,
        chat: UUID,
        kind: RunKind | None = None,
        status: RunStatus | None = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50,
        cursor: Annotated[str | None, Field(max_length=200)] = None,
    ) -> Response:
        """List the recorded runs of a chat, the newest first, and whether the chat is recorded now."""
        found = await caller.store.debug.list_runs(ChatId(chat), limit=limit, cursor=cursor, kind=kind, status=status)
        return answer(
            RunListView(
                runs=tuple(record_views.run(row) for row in found.page.runs),
                next_cursor=found.page.next_cursor,
                recording=record_views.recording(found.recording, is_forced=services.is_debug_forced),
            )
        )

    @routes.get(
        "/chats/{chat}/debug/runs/{run}",
        "debug.get_run",
        returns=RunDetailView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def get_run(caller: Caller, chat: UUID, run: UUID) -> Response:
        """Return a run with its steps and their attempts, without prompts and bodies."""
        return answer(record_views.run_detail(await caller.store.debug.get_run(ChatId(chat), run)))

    @routes.get(
        "/chats/{chat}/debug/runs/{run}/search",
        "debug.search_run",
        returns=PlacesView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def search_run(
        caller: Caller, chat: UUID, run: UUID, q: Annotated[str, Field(max_length=MAX_QUERY_CHARS)]
    ) -> Response:
        """Find a text in the prompts, answers and errors of a run.

        A message is found in the first step that has it. Case and kinds of white space do not matter.
        """
        if not q.strip():
            raise InvalidInput("q", "q must not be blank.")
        steps = await caller.store.debug.search_run(ChatId(chat), run, query=q)
        places = await asyncio.to_thread(find_places, steps, q)
        is_complete = len(steps) < MAX_SEARCHED_STEPS and len(places) < MAX_PLACES
        return answer(PlacesView(places=tuple(places), is_complete=is_complete))

    @routes.get(
        "/chats/{chat}/debug/runs/{run}/compare",
        "debug.compare_runs",
        returns=ComparisonView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def compare_runs(
        caller: Caller, chat: UUID, run: UUID, other: Annotated[UUID, Field(description="Another run of the chat.")]
    ) -> Response:
        """Compare a run with another one of the chat: tokens, cost, time, and where their prompts begin to differ."""
        if run == other:
            raise InvalidInput("other", "other must be another run.")
        pair = await caller.store.debug.compare_runs(ChatId(chat), run, other)
        return answer(await asyncio.to_thread(compare, pair))

    @routes.get(
        "/chats/{chat}/debug/runs/{run}/steps/{step}",
        "debug.get_step",
        returns=StepView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def get_step(caller: Caller, chat: UUID, run: UUID, step: UUID) -> Response:
        """Return a step with its whole prompt, its tools and its answer."""
        found = await caller.store.debug.get_step(ChatId(chat), run, step)
        # Assembling the prompts of a long run takes milliseconds.
        return answer(await asyncio.to_thread(record_views.step, found))

    @routes.get(
        "/chats/{chat}/debug/runs/{run}/steps/{step}/attempts/{number}",
        "debug.get_attempt",
        returns=AttemptView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
    )
    async def get_attempt(
        caller: Caller, chat: UUID, run: UUID, step: UUID, number: Annotated[int, Field(ge=1, lt=2**31)]
    ) -> Response:
        """Return an HTTP exchange with its headers and bodies, without secrets."""
        return answer(
            record_views.attempt(await caller.store.debug.get_attempt(ChatId(chat), run, step, number=number))
        )

    @routes.get(
        "/chats/{chat}/debug/export",
        "debug.export",
        returns=ExportView,
        errors=(404,),
        takes=[headers.BREAK_GLASS],
        gives=[headers.FILE_NAME],
    )
    async def export(caller: Caller, chat: UUID, run: UUID | None = None) -> Response:
        """Return the records of one run, or of the most recent runs of the chat, as a file.

        429 `too_many_exports` while the caller has an export in progress, or the server has two.
        """
        now, chat_id = services.clock.now(), ChatId(chat)
        with ExitStack() as held:
            held.enter_context(slots.taken(caller.user.id))
            runs = await caller.store.debug.export(chat_id, run)
            document = Export(runs, chat_id, run, exported_at=now, max_bytes=MAX_EXPORT_BYTES)
            name = file_name(chat_id, run, now)
            return ExportResponse(document.pieces(), file_name=name, held=held.pop_all())

    @routes.delete("/chats/{chat}/debug", "debug.delete", errors=(404,))
    async def delete(caller: Caller, chat: UUID) -> Response:
        """Delete all records of a chat permanently. The chat itself does not change."""
        await caller.store.debug.delete_all(ChatId(chat))
        return nothing()

    @routes.post(
        "/chats/{chat}/debug/runs/{run}/steps/{step}/replay",
        "debug.replay",
        returns=Replay,
        body=ReplayBody,
        errors=(404, 409),
    )
    async def replay(caller: Caller, chat: UUID, run: UUID, step: UUID) -> Response:
        """Make a recorded model call again, as it was or with changes, and return both answers.

        No tool runs and the chat does not change. The call is billed to the owner under the purpose `replay`. A failed
        call is an answer with an error. 409 `not_replayable` if the record does not have the whole request.
        """
        caller.take(Limit.REPLAY)
        may = caller.may(chat, Action.DRIVE)
        body = await caller.read(ReplayBody, may=may)
        recorded = await caller.store.debug.get_replay(ChatId(chat), run, step)
        wanted = body.model_config_id or recorded.step.model_config_id or recorded.run.model_config_id
        if wanted is None:
            raise ApiError(409, "not_replayable", "The record does not name its model. Choose one.")
        async with model_choice.rights_first(may):
            model_config_id = (await model_choice.chooser(services, caller)).named(wanted)
        change = ReplayChange(
            effort=body.effort if "effort" in body.given else msgspec.UNSET,
            edits={edit.message: edit.text for edit in body.edits},
        )
        try:
            return answer(
                await services.replayer.replay(recorded, model_config_id, owner_id=caller.user.id, change=change)
            )
        except NotReplayable as error:
            raise ApiError(409, "not_replayable", str(error)) from None

    return routes
