"""Pages of the chat list: filters, order, cursors. One statement reads all fields of a page.

All pinned chats of the viewer are on the first page, in their order. No later page has them, because moving one pin
renumbers the others. The first page is longer than `limit` only if there are more pins than `limit`. The other chats
follow by last activity, and a cursor is a position in that order. A chat that does not change is neither repeated nor
skipped, even if others change between two pages.

A statement contains only the requested filters. If every filter were always present, the planner could not choose the
right index. Every branch of the statement checks the viewer's rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from rookery.domain.access import rights
from rookery.domain.access.account_names import normal_name
from rookery.domain.access.rights import Action, OwnerActor, Resource, UserActor, Verdict
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.states import Status
from rookery.domain.content import search_query
from rookery.domain.content.search_query import ME, Activity, Archived, ChatQuery, Source
from rookery.store.chats import chat_rows, chat_view_reads, chat_views, read_cursors, search, shares
from rookery.store.chats.chat_view_reads import ViewerChat
from rookery.store.chats.chat_views import ChatListPage, ChatView, SearchMatch
from rookery.store.db import page_cursors
from rookery.store.db.pool import Connection
from rookery.store.people.errors import Forbidden

MAX_LIMIT = 200

FIND_USER = "SELECT id FROM users WHERE lower(username) = $1"
HAS_USER = "SELECT EXISTS (SELECT FROM users WHERE id = $1)"

# A range of the index chats_list, in its order. All pages cost the same.
_OWNED = "chats c WHERE c.parent_chat_id IS NULL AND c.owner_id = {owner}"
_ORIGINS = {
    Source.CREATED_BY_ME: _OWNED.format(owner="$1"),
    # Shared chats are few. Shares are stored for roots only.
    Source.SHARED_WITH_ME: f"""chat_shares mine
              JOIN chats c ON c.id = mine.chat_id
             WHERE mine.user_id = $1 AND c.owner_id <> $1 AND {shares.ENABLED.strip()}""",
}
_AND = "\n               AND "
_RANGE = """
         (SELECT c.id, c.updated_at, NULL::integer
              FROM {origin}
               AND c.archived = {archived}{filters}
             ORDER BY c.updated_at DESC, c.id DESC
             LIMIT $2::bigint + 1)"""
_ARCHIVED = {Archived.NO: "NOT c.archived", Archived.YES: "c.archived", Archived.ANY: "true"}

_PINNED = "chat_pins p JOIN chats c ON c.id = p.chat_id WHERE p.user_id = $1"
_IS_MINE = {
    Source.CREATED_BY_ME: "c.owner_id = $1",
    Source.SHARED_WITH_ME: f"(c.owner_id <> $1 AND {shares.SHARED_DIRECTLY.format(user='$1')})",
}
_IS_UNPINNED = "NOT EXISTS (SELECT FROM chat_pins p WHERE p.chat_id = c.id AND p.user_id = $1)"
_WORKSPACES_NAMED = "SELECT w.id FROM workspaces w WHERE lower(w.name) = lower({name})"
# Only the viewer's own folders: a foreign folder matches nothing.
_IN_FOLDER = """c.owner_id = $1 AND c.id IN (
                   SELECT i.chat_id
                     FROM chat_folder_items i
                     JOIN chat_folders f ON f.id = i.folder_id
                    WHERE f.owner_id = $1 AND {folder})"""
_MODELS_NAMED = """SELECT m.id
                     FROM model_configs m
                    WHERE lower(m.model) = lower({name}) OR lower(m.display_name) = lower({name})"""

_HAS_UNREAD = f"""coalesce(
       (SELECT m.id {read_cursors.NEWEST_ANSWER.format(chat="c.id")})
       > coalesce((SELECT r.last_read_message_id
                     FROM chat_read_cursors r
                    WHERE r.chat_id = c.id AND r.user_id = $1), 0), false)"""

# The stored states that clients show by each word, unless the chat needs its user.
_STATUSES: Mapping[Activity, tuple[Status, ...]] = {
    Activity.IDLE: (Status.WAITING,),
    Activity.WORKING: (Status.RUNNING, Status.INTERRUPTING),
    Activity.FAILED: (Status.ERROR,),
    Activity.NEEDS_YOU: (),
}

# A hit in a subagent's chat finds its root. The planner looks up rare words in the full-text indexes (chats_title,
# search_tsv), and common words among the viewer's chats (chats_owner, chats_root, search_chat).
_FOUND = """found AS MATERIALIZED (
         SELECT hit.root_id, max(hit.message_id) AS message_id
           FROM ({hits}) hit
          GROUP BY hit.root_id),"""
_HITS = """
                 SELECT coalesce(f.root_chat_id, f.id) AS root_id, NULL::bigint AS message_id
                   FROM chats f
                  WHERE to_tsvector('simple', f.title) @@ ({titles})
                    AND {scope}
                  UNION ALL
                 SELECT coalesce(f.root_chat_id, f.id), s.message_id
                   FROM chat_message_search s
                   JOIN chats f ON f.id = s.chat_id
                  WHERE s.tsv IS NOT NULL
                    AND s.tsv @@ ({messages})
                    AND {scope}"""
_SCOPES = {
    Source.CREATED_BY_ME: "f.owner_id = $1",
    Source.SHARED_WITH_ME: """f.id IN (
                        SELECT mine.chat_id FROM chat_shares mine WHERE mine.user_id = $1
                         UNION ALL
                        SELECT k.id
                          FROM chat_shares mine
                          JOIN chats k ON k.root_chat_id = mine.chat_id
                         WHERE mine.user_id = $1)""",
}
MATCHES = f"""
    SELECT m.id, m.chat_id, left(t.text, {search_query.SOURCE_CHARS} + 1)
      FROM chat_messages m
     CROSS JOIN LATERAL {search.TEXT_OF_MESSAGE} t
     WHERE m.id = ANY ($1::bigint[])
"""

_PAGE = """
    WITH {found}
         pinned AS ({pinned}),
         candidates AS (
         SELECT id, updated_at, pin_order FROM pinned {unpinned}),
         page AS (
         SELECT id, row_number() OVER (ORDER BY pin_order NULLS LAST, updated_at DESC, id DESC) AS place
           FROM candidates
          ORDER BY place
          LIMIT greatest($2::bigint, (SELECT count(*) FROM pinned)) + 1),
         members AS (
         SELECT page.id, page.id AS root_id, page.place, {message_id} AS message_id
           FROM page
          UNION ALL
         SELECT c.id, c.root_chat_id, page.place, NULL
           FROM page
           JOIN chats c ON c.root_chat_id = page.id AND {archived})
    {views}
"""
_NONE_PINNED = "SELECT NULL::uuid AS id, NULL::timestamptz AS updated_at, NULL::integer AS pin_order WHERE false"


class ResolvedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query with names resolved. `owner_id` is set for the chats of another user.

    `hides_contents`: the viewer may list these chats but not read them.
    """

    query: ChatQuery
    sources: frozenset[Source]
    owner_id: UUID | None = None
    hides_contents: bool = False
    workspace_id: UUID | None = None
    labels: tuple[tuple[str, str], ...] = ()


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A position in the list of unpinned chats: the sort key of a row. The version changes with the sort key."""

    version: Literal[2]
    updated_at: Annotated[datetime, msgspec.Meta(tz=True)]
    chat_id: UUID


# The position before all rows. The second page starts there if pins fill the first.
_NEWEST = Position(2, datetime(9999, 1, 1, tzinfo=UTC), UUID(int=2**128 - 1))


class Statement(msgspec.Struct, frozen=True):
    sql: str
    arguments: tuple[object, ...]


class _Arguments:
    """The arguments of a statement, numbered in the order of `add`. $1 is the viewer and $2 the limit."""

    def __init__(self, viewer_id: UUID, limit: int) -> None:
        self.values: list[object] = [viewer_id, limit]

    def add(self, value: object) -> str:
        self.values.append(value)
        return f"${len(self.values)}"


async def resolve_query(
    conn: Connection,
    query: ChatQuery,
    *,
    actor: UserActor | OwnerActor,
    workspace_id: UUID | None = None,
    labels: Sequence[tuple[str, str]] = (),
) -> ResolvedQuery:
    """Resolve the owner that the query names. Raises `Forbidden` if the actor may not list that user's chats."""
    wanted = ResolvedQuery(
        query=query,
        sources=query.source or frozenset({Source.CREATED_BY_ME}),
        workspace_id=workspace_id,
        labels=(*query.labels, *labels),
    )
    owner_id = None if query.owner is None else await _owner(conn, query.owner, actor=actor)
    if owner_id is None:
        return wanted
    if owner_id == actor.id:
        return msgspec.structs.replace(wanted, sources=wanted.sources - {Source.SHARED_WITH_ME})
    wanted = msgspec.structs.replace(wanted, owner_id=owner_id, sources=wanted.sources - {Source.CREATED_BY_ME})
    if query.source is not None:
        return wanted
    if query.search or query.title or query.repo or query.branch or wanted.labels:
        # A filter reveals the values that it matches. A viewer who may not see titles may therefore not filter by them.
        raise Forbidden("You cannot search the titles, labels and contents of other users' chats.")
    return msgspec.structs.replace(wanted, hides_contents=True)


async def list_chats(
    conn: Connection,
    wanted: ResolvedQuery,
    *,
    actor: UserActor | OwnerActor,
    limit: int = 50,
    cursor: str | None = None,
) -> ChatListPage:
    """Return a page of root chats. Each has those of its subagents' chats that match the archive filter."""
    page_cursors.check_limit(limit, MAX_LIMIT)
    position = None if cursor is None else page_cursors.decode(cursor, Position)
    statement = build(wanted, viewer_id=actor.id, position=position, limit=limit)
    if statement is None:
        return ChatListPage((), None)
    if wanted.query.search:
        records = await search.fetch_with_custom_plan(conn, statement.sql, *statement.arguments)
    else:
        records = await conn.fetch(statement.sql, *statement.arguments)
    found = chat_view_reads.families(records, actor=actor)
    pinned = 0 if wanted.hides_contents else sum(row.chat.pin_order is not None for row in found)
    rows, end = _cut(found, limit=limit, pinned=pinned)
    chats = await _with_matches(conn, rows, wanted.query.search) if wanted.query.search else [row.chat for row in rows]
    if wanted.hides_contents:
        chats = list(map(chat_views.without_contents, chats))
    return ChatListPage(tuple(chats), None if end is None else page_cursors.encode(end))


def build(wanted: ResolvedQuery, *, viewer_id: UUID, position: Position | None, limit: int) -> Statement | None:
    """Return the statement for a page; None if no chat can be on it."""
    query = wanted.query
    labels = dict(wanted.labels)
    # The query cannot match: chats have no repository yet, or the query asks for two values of one label.
    if query.repo or query.branch or len(labels) < len(set(wanted.labels)):
        return None
    arguments = _Arguments(viewer_id, limit)
    found = _found(wanted, arguments)
    filters = "".join(f"{_AND}{each}" for each in _filters(wanted, labels, arguments))
    pinned = _pinned(wanted) if position is None else None
    unpinned = _unpinned(wanted, filters, arguments, position=position)
    if pinned is None and not unpinned:
        return None
    sql = _PAGE.format(
        found=found,
        pinned=_NONE_PINNED if pinned is None else pinned + filters,
        unpinned="".join(f"\n          UNION ALL {each}" for each in unpinned),
        message_id="(SELECT found.message_id FROM found WHERE found.root_id = page.id)" if found else "NULL::bigint",
        archived=_ARCHIVED[query.archived],
        views=chat_view_reads.VIEWS,
    )
    return Statement(sql, tuple(arguments.values))


async def _owner(conn: Connection, owner: UUID | str, *, actor: UserActor | OwnerActor) -> UUID:
    if owner == actor.id or (isinstance(owner, str) and owner.lower() == ME):
        return actor.id
    by_name: UUID | None = await conn.fetchval(FIND_USER, normal_name(owner)) if isinstance(owner, str) else owner
    if by_name == actor.id:
        return actor.id
    # Check the right first: the later error reveals that there is no such user.
    if rights.judge(actor, Resource.CHAT, Action.LIST_ALL, owner_id=None) is not Verdict.ALLOWED:
        raise Forbidden("Only administrators and auditors can list the chats of other users.")
    if by_name is None or not await conn.fetchval(HAS_USER, by_name):
        raise InvalidInput("q", f"The search term 'owner:{owner}' names a user that does not exist.")
    return by_name


def _found(wanted: ResolvedQuery, arguments: _Arguments) -> str:
    """Return the expression `found`: the viewer's chats that match every full-text search of the query."""
    if not wanted.query.search or not wanted.sources:
        return ""
    texts = [(search.for_titles(text), search.for_messages(text)) for text in wanted.query.search]
    titles, messages = (
        " && ".join(f"websearch_to_tsquery('simple', {arguments.add(text)})" for text in column)
        for column in zip(*texts, strict=True)
    )
    hits = [_HITS.format(titles=titles, messages=messages, scope=_SCOPES[source]) for source in sorted(wanted.sources)]
    return _FOUND.format(hits=" UNION ALL ".join(hits))


def _filters(wanted: ResolvedQuery, labels: dict[str, str], arguments: _Arguments) -> Iterator[str]:
    """Yield the conditions on a chat `c`, except those on its owner, archive state and pin."""
    query = wanted.query
    if query.search:
        yield "c.id IN (SELECT found.root_id FROM found)"
    for text in query.title:
        # Not LIKE, whose patterns have special characters.
        yield f"strpos(lower(c.title), lower({arguments.add(text)})) > 0"
    if labels:
        yield f"c.labels @> {arguments.add(chat_rows.encode_labels(labels))}::jsonb"
    if query.status is not None:
        yield _has_status(query.status, arguments, hides_contents=wanted.hides_contents)
    if query.client is not None:
        yield f"c.client_type = {arguments.add(query.client)}"
    if query.active_after is not None:
        yield f"c.updated_at >= {arguments.add(query.active_after)}"
    if query.active_before is not None:
        yield f"c.updated_at < {arguments.add(query.active_before)}"
    if wanted.workspace_id is not None:
        yield f"c.workspace_id = {arguments.add(wanted.workspace_id)}"
    if query.folder is not None:
        folder = arguments.add(query.folder)
        by_name = f"lower(f.name) = lower({folder})"
        yield _IN_FOLDER.format(folder=f"f.id = {folder}" if isinstance(query.folder, UUID) else by_name)
    if query.workspace is not None:
        yield f"c.workspace_id {_named(_WORKSPACES_NAMED, query.workspace, arguments)}"
    if query.model is not None:
        yield f"c.last_model_config_id {_named(_MODELS_NAMED, query.model, arguments)}"
    # A viewer has no unread answers in chats that the viewer cannot read.
    if query.has_unread is not None and not wanted.hides_contents:
        yield f"{_HAS_UNREAD} = {arguments.add(query.has_unread)}"
    if wanted.owner_id is not None and not wanted.hides_contents:
        yield f"c.owner_id = {arguments.add(wanted.owner_id)}"


def _has_status(wanted: frozenset[Status | Activity], arguments: _Arguments, *, hides_contents: bool) -> str:
    # A viewer who cannot read a chat must not learn which question it asks.
    needs_you = "c.status = 'requires_action'" if hides_contents else f"({chat_view_reads.NEEDS_USER}) IS NOT NULL"
    found = []
    if exact := sorted(each for each in wanted if isinstance(each, Status)):
        found.append(f"c.status = ANY ({arguments.add(exact)}::text[])")
    if shown := sorted(status for each in wanted if isinstance(each, Activity) for status in _STATUSES[each]):
        found.append(f"c.status = ANY ({arguments.add(shown)}::text[]) AND NOT {needs_you}")
    if Activity.NEEDS_YOU in wanted:
        found.append(needs_you)
    return f"({' OR '.join(found)})"


def _named(names: str, wanted: UUID | str, arguments: _Arguments) -> str:
    place = arguments.add(wanted)
    return f"= {place}" if isinstance(wanted, UUID) else f"IN ({names.format(name=place)})"


def _pinned(wanted: ResolvedQuery) -> str | None:
    """Return the query for the viewer's pinned chats; None if the page cannot have any."""
    if wanted.query.pinned is False or not wanted.sources:
        return None
    mine = " OR ".join(_IS_MINE[source] for source in sorted(wanted.sources))
    return f"SELECT c.id, c.updated_at, p.pin_order FROM {_PINNED} AND {_ARCHIVED[wanted.query.archived]} AND ({mine})"


def _unpinned(wanted: ResolvedQuery, filters: str, arguments: _Arguments, *, position: Position | None) -> list[str]:
    """Return one ordered range for each source of chats. With OR, the planner could not use an index for the order."""
    query = wanted.query
    if query.pinned or (wanted.hides_contents and query.has_unread):
        return []
    origins = [_ORIGINS[source] for source in sorted(wanted.sources)]
    if wanted.hides_contents:
        origins = [_OWNED.format(owner=arguments.add(wanted.owner_id))]
    else:
        filters = f"{_AND}{_IS_UNPINNED}{filters}"
    if position is not None:
        at = f"({arguments.add(position.updated_at)}, {arguments.add(position.chat_id)})"
        filters = f"{_AND}(c.updated_at, c.id) < {at}{filters}"
    states = ("false", "true") if query.archived is Archived.ANY else (query.archived.value,)
    return [
        _RANGE.format(origin=origin, archived=archived, filters=filters) for origin in origins for archived in states
    ]


def _cut(found: Sequence[ViewerChat], *, limit: int, pinned: int) -> tuple[Sequence[ViewerChat], Position | None]:
    """Return the rows of the page, and the position of the next page.

    A page has all pins, even if there are more than `limit`.
    """
    size = max(limit, pinned)
    if len(found) <= size:
        return found, None
    last = found[size - 1].chat
    return found[:size], Position(2, last.updated_at, last.id) if size > pinned else _NEWEST


async def _with_matches(conn: Connection, rows: Sequence[ViewerChat], queries: Sequence[str]) -> list[ChatView]:
    """Return the chats, each with the message that the search found."""
    ids = [row.message_id for row in rows if row.message_id is not None]
    records = await conn.fetch(MATCHES, ids) if ids else []
    matches = {
        message_id: SearchMatch(chat_id, message_id, search_query.snippet(search.without_escapes(text), queries))
        for message_id, chat_id, text in records
    }
    return [msgspec.structs.replace(row.chat, match=matches.get(row.message_id, SearchMatch())) for row in rows]
