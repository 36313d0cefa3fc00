"""The audit log, newest entries first. For administrators and auditors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from rookery.api.caller import Caller
from rookery.api.csv_reports import CSV_MEDIA_TYPE, Format, csv_rows, utc
from rookery.api.request_bodies import AUDIT_WORD, PRINTABLE
from rookery.api.routes import Page, Routes, answer
from rookery.api.services import ApiServices
from rookery.store.authorized.audit_and_replicas import Installation
from rookery.store.people.audit import MAX_LIMIT, Entry, EntryFilter, EntryPage

Word = Annotated[str | None, Field(pattern=AUDIT_WORD, max_length=64)]


def router(services: ApiServices) -> Routes:
    routes = Routes("audit")

    @routes.get("/audit", "audit.list", returns=Page[Entry])
    async def list_entries(
        caller: Caller,
        actor: Annotated[UUID | None, Field(description="The user who acted.")] = None,
        action: Word = None,
        resource_type: Word = None,
        resource_id: Annotated[str | None, Field(pattern=PRINTABLE, max_length=200)] = None,
        start: Annotated[datetime | None, Field(alias="from", description="Start of the period, inclusive.")] = None,
        to: Annotated[datetime | None, Field(description="End of the period, exclusive.")] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50,
        cursor: Annotated[str | None, Field(max_length=200)] = None,
        format: Format = Format.JSON,
    ) -> Response:
        """List the audit log entries that match all given filters.

        `action` is an action or the part before its dot. CSV has no pages.
        """
        wanted = EntryFilter(
            actor_id=actor,
            action=action,
            resource_type=resource_type,
            resource_id=resource_id,
            start=None if start is None else utc(start, "from"),
            end=None if to is None else utc(to, "to"),
        )
        if format is Format.CSV:
            # The first page is read before the response begins, so that a refusal can still be sent as an error.
            first = await caller.store.installation.audit(wanted, limit=MAX_LIMIT)
            lines = _csv(caller.store.installation, wanted, first)
            headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
            return StreamingResponse(lines, headers=headers, media_type=CSV_MEDIA_TYPE)
        page = await caller.store.installation.audit(wanted, limit=limit, cursor=cursor)
        return answer(Page(page.entries, page.next_cursor))

    return routes


async def _csv(installation: Installation, wanted: EntryFilter, page: EntryPage) -> AsyncIterator[bytes]:
    yield csv_rows([Entry.__struct_fields__])
    while True:
        yield csv_rows(msgspec.structs.astuple(entry) for entry in page.entries)
        if page.next_cursor is None:
            return
        page = await installation.audit(wanted, limit=MAX_LIMIT, cursor=page.next_cursor)
