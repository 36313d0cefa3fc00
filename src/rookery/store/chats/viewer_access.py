"""Access checks for viewers of streams: one query for many viewers, by the rules of `domain.access.rights`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from rookery.domain.access import rights
from rookery.domain.access.rights import Action, AdminAccess, ChatFacts, Role, UserActor, Verdict
from rookery.store.chats import shares
from rookery.store.db.pool import Connection

CHECK = f"""
    SELECT u.role,
           u.status = 'active' AND (
             EXISTS (SELECT FROM sessions s
                      WHERE s.id = w.credential_id AND s.user_id = w.user_id AND s.expires_at > $4)
             OR EXISTS (SELECT FROM api_tokens t
                         WHERE t.id = w.credential_id AND t.user_id = w.user_id AND t.expires_at > $4)) AS is_logged_in,
           c.owner_id,
           c.id IS NOT NULL AND {shares.SHARED_WITH.format(user="w.user_id")} AS is_shared,
           (SELECT value ->> 'admin_access' FROM settings WHERE key = 'chats') AS admin_access
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) WITH ORDINALITY AS w (user_id, credential_id, chat_id, place)
      LEFT JOIN users u ON u.id = w.user_id
      LEFT JOIN chats c ON c.id = w.chat_id
     ORDER BY w.place
"""


class ViewerAccess(StrEnum):
    KEPT = "kept"
    LOGGED_OUT = "logged_out"  # the session or token has ended, or the user is disabled
    WITHDRAWN = "withdrawn"  # the user may no longer read the chat
    DELETED = "deleted"  # the chat no longer exists


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """The viewer of a stream. Without a chat, it is the stream of the chat list.

    `has_reason`: an administrator gave a reason to read the chat.
    """

    user_id: UUID
    credential_id: UUID
    chat_id: UUID | None = None
    has_reason: bool = False


async def check_viewers(conn: Connection, viewers: Sequence[Viewer], *, now: datetime) -> list[ViewerAccess]:
    """Return the access that each viewer has now, in the given order."""
    records = await conn.fetch(
        CHECK,
        [each.user_id for each in viewers],
        [each.credential_id for each in viewers],
        [each.chat_id for each in viewers],
        now,
    )
    return [_access(each, *record) for each, record in zip(viewers, records, strict=True)]


def _access(
    viewer: Viewer,
    role: str | None,
    is_logged_in: bool | None,
    owner_id: UUID | None,
    is_shared: bool,
    admin_access: str | None,
) -> ViewerAccess:
    if not is_logged_in:
        return ViewerAccess.LOGGED_OUT
    if viewer.chat_id is None:
        return ViewerAccess.KEPT
    if owner_id is None:
        return ViewerAccess.DELETED
    access = AdminAccess(admin_access) if admin_access in set(AdminAccess) else AdminAccess.BREAK_GLASS
    actor = UserActor(viewer.user_id, Role(role) if role in set(Role) else Role.MEMBER)
    facts = ChatFacts(owner_id, is_shared, access)
    verdict = rights.judge_chat(actor, Action.READ, facts=facts, has_reason=viewer.has_reason)
    return ViewerAccess.KEPT if verdict is Verdict.ALLOWED else ViewerAccess.WITHDRAWN
