"""Linking the files that content names, under the chat's lock."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from rookery.domain.chat.errors import FileCapExceeded, FileUnavailable
from rookery.store.machine.bundle import Tx

MAX_FILES_PER_CHAT = 50

# Existing files are linked, the others reported; files linked before do not count again. The outer SELECT sees the
# links from before the INSERT, hence the sum.
_LINK_FILES = """
    WITH wanted AS (SELECT DISTINCT unnest($2::uuid[]) AS file_id),
         linked AS (
           INSERT INTO chat_file_links (chat_id, file_id)
           SELECT $1, f.id FROM chat_files f JOIN wanted w ON w.file_id = f.id
               ON CONFLICT DO NOTHING
           RETURNING file_id)
    SELECT array(SELECT file_id FROM wanted EXCEPT SELECT id FROM chat_files) AS missing,
           (SELECT count(*) FROM chat_file_links WHERE chat_id = $1) + (SELECT count(*) FROM linked) AS total
"""


async def link_files(tx: Tx, file_ids: frozenset[UUID]) -> None:
    """Link files to the chat, all or nothing: a refusal rolls back the message."""
    try:
        record = await tx.conn.fetchrow(_LINK_FILES, tx.chat.id, list(file_ids))
    except asyncpg.ForeignKeyViolationError as error:
        # Purged between the check and the link.
        raise FileUnavailable(sorted(file_ids)) from error
    assert record is not None
    missing, total = record
    if missing:
        raise FileUnavailable(sorted(missing))
    if total > MAX_FILES_PER_CHAT:
        raise FileCapExceeded(MAX_FILES_PER_CHAT)
