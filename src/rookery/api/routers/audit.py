"""The audit log: who did what to what, newest first. For administrators and auditors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from rookery.api import csv_reports
from rookery.api.csv_reports import Format
from rookery.api.query_times import utc
from rookery.api.request_context import CallerDep
from rookery.api.routes import Page, Routes, answer
from rookery.api.services import ApiServices
from rookery.store.authorized.reports import Reports
from rookery.store.people.audit import MAX_LIMIT, Entry, EntryFilter, EntryPage

Word = Annotated[str | None, Query(pattern=r"^[a-z_]+(\.[a-z_]+)?$", max_length=64)]


def router(parts: ApiServices) -> APIRouter:
    routes = Routes("audit")

    @routes.get("/audit", "audit.list", returns=Page[Entry])
    async def list_entries(
        caller: CallerDep,
        actor: Annotated[UUID | None, Query(description="Who did it.")] = None,
        action: Word = None,
        resource_type: Word = None,
        resource_id: Annotated[str | None, Query(pattern=r"^[\x20-\x7e]+$", max_length=200)] = None,
        start: Annotated[datetime | None, Query(alias="from", description="The first moment.")] = None,
        to: Annotated[datetime | None, Query(description="The moment after the last.")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
        cursor: Annotated[str | None, Query(max_length=200)] = None,
        format: Format = Format.JSON,
    ) -> Response:
        """Entries that fit all of what is given. `action` is one, or the part before its dot. CSV has no pages."""
        wanted = EntryFilter(
            actor_id=actor,
            action=action,
            resource_type=resource_type,
            resource_id=resource_id,
            start=None if start is None else utc(start, "from"),
            end=None if to is None else utc(to, "to"),
        )
        if format is Format.CSV:
            # The first page is read before the answer begins: a refusal must still be one.
            first = await caller.store.reports.audit(wanted, limit=MAX_LIMIT)
            lines = _csv(caller.store.reports, wanted, first)
            headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
            return StreamingResponse(lines, headers=headers, media_type=csv_reports.MEDIA_TYPE)
        page = await caller.store.reports.audit(wanted, limit=limit, cursor=cursor)
        return answer(Page(page.entries, page.next_cursor))

    return routes.router


async def _csv(reports: Reports, wanted: EntryFilter, page: EntryPage) -> AsyncIterator[bytes]:
    yield csv_reports.rows([Entry.__struct_fields__])
    while True:
        yield csv_reports.rows(msgspec.structs.astuple(entry) for entry in page.entries)
        if page.next_cursor is None:
            return
        page = await reports.audit(wanted, limit=MAX_LIMIT, cursor=page.next_cursor)
