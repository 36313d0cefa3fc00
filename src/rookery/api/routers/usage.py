"""Usage and cost: of a chat and its subagents, of the caller, and of all users."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import msgspec
from pydantic import Field
from starlette.responses import Response

from rookery.api import headers
from rookery.api.caller import Caller
from rookery.api.csv_reports import CSV_MEDIA_TYPE, Format, csv_rows, utc
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Role
from rookery.domain.chat.messages import ChatId
from rookery.store.authorized.usage import UsageReport
from rookery.store.models.spending import Period
from rookery.store.models.usage_ledger import Figures, GroupBy

DEFAULT_DAYS = 30


class TokensView(msgspec.Struct, frozen=True):
    """Numbers of tokens. Input excludes tokens read from a cache; output includes reasoning."""

    input: int
    cache_read: int
    cache_write: int
    output: int
    reasoning: int


class FiguresView(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over model calls. Calls without a known price are counted, but not included in the cost."""

    cost_micros: int
    request_count: int
    unpriced_request_count: int
    tokens: TokensView
    runtime_ms: int


class CostView(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a chat with its subagents.

    The keys of `by_model` are the provider's model ids, those of `by_chat` chat ids. The keys of `by_purpose` are
    `turn`, `compaction`, `advisor`, `title`, `label`, `summary` and `replay`.
    """

    total_cost_micros: int
    request_count: int
    unpriced_request_count: int
    tokens: TokensView
    runtime_ms: int
    by_model: dict[str, FiguresView]
    by_chat: dict[str, FiguresView]
    by_purpose: dict[str, FiguresView]


class SpendView(msgspec.Struct, frozen=True):
    """The spending of the caller.

    `limit_micros` is null if the caller has no limit. Calls with the user's own keys do not count.
    """

    period: Period
    spent_micros: int
    limit_micros: int | None


class UsageRow(FiguresView, frozen=True, kw_only=True):
    """The sums of one group.

    `key` is an id for users, providers and chats, else a name or a day. `name` is null if the object is deleted, and
    for chats of other users. Deleted chats are one group with an empty key.
    """

    key: str
    name: str | None


# `from` is a keyword of Python.
UsageReportView = msgspec.defstruct(
    "UsageReportView",
    [("from", datetime), ("to", datetime), ("group_by", GroupBy), ("items", tuple[UsageRow, ...])],
    frozen=True,
)

Start = Annotated[
    datetime | None,
    Field(alias="from", description=("Start of the period, inclusive; 30 days before `to` by default.")),
]
End = Annotated[datetime | None, Field(description="End of the period, exclusive; now by default.")]
OfUser = Annotated[UUID | None, Field(description="Only this user. Administrators and auditors may name other users.")]


def router(services: ApiServices) -> Routes:
    routes = Routes("cost and usage")

    @routes.get("/chats/{chat}/cost", "chats.cost", returns=CostView, errors=(404,), takes=[headers.BREAK_GLASS])
    async def cost(caller: Caller, chat: UUID) -> Response:
        """Return the cost of a chat and its subagents. It is the same for the root and for any of its children."""
        found = await caller.store.usage.family_cost(ChatId(chat))
        total = _figures(found.total)
        return answer(
            CostView(
                total_cost_micros=total.cost_micros,
                request_count=total.request_count,
                unpriced_request_count=total.unpriced_request_count,
                tokens=total.tokens,
                runtime_ms=total.runtime_ms,
                by_model={key: _figures(each) for key, each in found.by_model.items()},
                by_chat={key: _figures(each) for key, each in found.by_chat.items()},
                by_purpose={key: _figures(each) for key, each in found.by_purpose.items()},
            )
        )

    @routes.get("/me/spend", "usage.spend", returns=SpendView)
    async def spend(caller: Caller) -> Response:
        """Return the caller's spending in the current period, and the limit."""
        found = await caller.store.usage.spend(caller.user.id)
        return answer(SpendView(found.period, found.spent_micros, found.limit_micros))

    @routes.get("/usage", "usage.report", returns=UsageReportView, errors=(404,))
    async def report(
        caller: Caller,
        start: Start = None,
        to: End = None,
        group_by: GroupBy = GroupBy.DAY,
        user: OfUser = None,
        format: Format = Format.JSON,
    ) -> Response:
        """Return sums over at most 366 days. Administrators and auditors may get those of all users.

        By `chat`, a chat counts with its subagents, and the 500 most expensive chats are returned.
        """
        end = utc(to, "to") if to is not None else services.clock.now().astimezone(UTC)
        begin = utc(start, "from") if start is not None else end - min(timedelta(days=DEFAULT_DAYS), end - _FIRST)
        found = await _report(caller, group_by, start=begin, end=end, user_id=user)
        rows = tuple(_row(key, figures, found) for key, figures in found.figures.items())
        if format is Format.CSV:
            return _csv(rows, group_by)
        return answer(UsageReportView(begin, end, group_by, rows))

    return routes


_FIRST = datetime.min.replace(tzinfo=UTC)


async def _report(
    caller: Caller, group_by: GroupBy, *, start: datetime, end: datetime, user_id: UUID | None
) -> UsageReport:
    usage = caller.store.usage
    if user_id is None and caller.user.role in (Role.ADMIN, Role.AUDITOR):
        return await usage.usage_of_all(group_by, start=start, end=end)
    return await usage.usage_of(user_id or caller.user.id, group_by, start=start, end=end)


def _figures(figures: Figures) -> FiguresView:
    return FiguresView(
        cost_micros=figures.cost_micros,
        request_count=figures.request_count,
        unpriced_request_count=figures.unpriced_request_count,
        tokens=_tokens(figures),
        runtime_ms=figures.runtime_ms,
    )


def _tokens(figures: Figures) -> TokensView:
    return TokensView(
        figures.input_tokens,
        figures.cache_read_tokens,
        figures.cache_write_tokens,
        figures.output_tokens,
        figures.reasoning_tokens,
    )


def _row(key: str, figures: Figures, found: UsageReport) -> UsageRow:
    view = _figures(figures)
    fields = {name: getattr(view, name) for name in FiguresView.__struct_fields__}
    return UsageRow(key=key, name=found.names.get(key), **fields)


_COLUMNS = (
    "cost_micros",
    "request_count",
    "unpriced_request_count",
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "runtime_ms",
)


def _csv(rows: tuple[UsageRow, ...], group_by: GroupBy) -> Response:
    lines: list[tuple[object, ...]] = [(group_by, "name", *_COLUMNS)]
    for row in rows:
        counted = (row.cost_micros, row.request_count, row.unpriced_request_count)
        lines.append((row.key, row.name, *counted, *msgspec.structs.astuple(row.tokens), row.runtime_ms))
    headers = {"Content-Disposition": 'attachment; filename="usage.csv"'}
    return Response(csv_rows(lines), headers=headers, media_type=CSV_MEDIA_TYPE)
