"""The git scan: stores the state of a chat's repositories after a turn that used the workspace. Best effort."""

from __future__ import annotations

from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.chat import Chat
from rookery.runtime.clock import Clock
from rookery.store.authorized.store import Store
from rookery.store.chats.diffs import DiffStatus
from rookery.workspaces.agent_messages import Count, Repository
from rookery.workspaces.connection import ChatWorkspace

SCAN_SECONDS = 10.0
# The maximum of the database column; an agent may report any number.
_MAX_COUNT = 2**31 - 1


async def note_diffs(chat: Chat, workspace: ChatWorkspace, store: Store, *, clock: Clock) -> None:
    """Scan the repositories and store the result, which lists and badges read. The caller logs errors."""
    conn = await workspace.conn()
    message = await conn.scan_git(chat.id, seconds=SCAN_SECONDS)
    now = clock.now()
    found = [
        DiffStatus(
            each.root,
            each.branch,
            each.remote_origin,
            _bounded(each.additions),
            _bounded(each.deletions),
            _bounded(each.changed_files),
            now,
        )
        for each in message.repositories
        if not each.removed
    ]
    await store.as_actor(OwnerActor(chat.owner_id)).contexts.write_diffs(chat.id, found, _removed(message.repositories))


def _removed(repositories: tuple[Repository, ...]) -> list[str]:
    return [each.root for each in repositories if each.removed]


def _bounded(count: Count) -> int:
    return min(count, _MAX_COUNT)
