"""What moves a chat: creating, sending, editing, stopping, retrying, compacting, tool results, and the queue.

Each method checks the right and runs its transition in one transaction, the lock being taken after the check: somebody
without the right never makes a chat wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from rookery.chat import parts
from rookery.chat.chats import Chat
from rookery.chat.errors import FileUnavailable, InvalidInput, QueueChanged, QueuedMessageNotFound
from rookery.chat.messages import (
    ChatId,
    Effort,
    Message,
    MessageId,
    NewMessage,
    NewQueuedMessage,
    QueuedMessage,
    QueuedMessageId,
)
from rookery.chat.parts import Part as ContentPart
from rookery.chat.rights import Action, OwnerActor, Relation, Resource
from rookery.chat.toolcalls import SubmittedResult
from rookery.chat.transitions import BusyBehavior
from rookery.store import idempotency, machine, shares
from rookery.store.access_errors import Forbidden
from rookery.store.audit import Event
from rookery.store.authz import Grant, How, Part, Via, authz
from rookery.store.machine import ChatSpec, Created, Edited, Promoted, Sent, Tx, backlog

T = TypeVar("T")

FOREIGN_FILES = f"""
    SELECT f.id
      FROM chat_files f
     WHERE f.id = ANY ($1::uuid[])
       AND f.owner_id <> $2
       AND NOT EXISTS (SELECT FROM chat_file_links l JOIN chats c ON c.id = l.chat_id
                        WHERE l.file_id = f.id
                          AND (c.owner_id = $2 OR {shares.SHARED_WITH.format(user="$2")}))
"""
CHOOSE = """
    UPDATE chats
       SET plan_mode = coalesce($2, plan_mode), mcp_server_ids = coalesce($3, mcp_server_ids)
     WHERE id = $1
"""
BUSY_BELOW = """
    WITH RECURSIVE below AS (
         SELECT id, created_at, status FROM chats WHERE parent_chat_id = $1
          UNION ALL
         SELECT c.id, c.created_at, c.status FROM chats c JOIN below b ON c.parent_chat_id = b.id)
    SELECT id
      FROM below
     WHERE status IN ('running', 'requires_action')
     ORDER BY created_at, id
"""


class Done(msgspec.Struct, frozen=True):
    """The chat as the transition left it."""

    chat: Chat


class SentTo(msgspec.Struct, frozen=True):
    sent: Sent
    chat: Chat


class EditedIn(msgspec.Struct, frozen=True):
    edited: Edited
    chat: Chat


class PromotedIn(msgspec.Struct, frozen=True):
    promoted: Promoted
    chat: Chat


class Replayed(msgspec.Struct, frozen=True):
    """The request was answered before; `answer` is that answer as it was encoded."""

    answer: bytes


class Queue(msgspec.Struct, frozen=True):
    items: tuple[QueuedMessage, ...]
    queue_version: int


class Turns(Part):
    __slots__ = ()

    @authz(Resource.CHAT, Action.CREATE, how=How.BUNDLE)
    async def create(
        self,
        at: Grant,
        spec: ChatSpec,
        *,
        request: idempotency.Request | None = None,
        encode: Callable[[Created], bytes] | None = None,
    ) -> Created | Replayed:
        """Create a chat of one's own. People create roots; children are made on behalf of their root's owner.

        With a `request` the answer that `encode` makes is stored with the chat, and given again to a repeat.
        """
        if spec.owner_id != at.user_id:
            raise Forbidden("A chat is created by its owner.")
        if spec.parent_chat_id is not None and not isinstance(at.actor, OwnerActor):
            raise InvalidInput("parent_chat_id", "Only an agent creates chats inside another.")
        if request is not None and request.user_id != at.user_id:
            raise Forbidden("An idempotency key belongs to whoever sends it.")
        if request is not None and (answer := await idempotency.find_answer(at.conn, request, now=at.now)) is not None:
            return Replayed(answer)
        await _check_files(at, *(message.content for message in spec.messages))
        created = await machine.create_chat(at.bundle, spec)
        if request is not None:
            assert encode is not None, "a stored answer has to be encoded"
            await idempotency.store_answer(at.conn, request, answer=encode(created), now=at.now)
        return created

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def send(
        self,
        at: Grant,
        chat_id: ChatId,
        message: NewQueuedMessage,
        *,
        busy: BusyBehavior = BusyBehavior.QUEUE,
        plan_mode: bool | None = None,
        mcp_server_ids: Sequence[UUID] | None = None,
    ) -> SentTo:
        """Send a message; plan mode and servers, where given, are the chat's from then on."""
        _check_author(at, message.created_by)
        await _check_files(at, message.content)
        tx = await at.bundle.open(chat_id)
        sent = await machine.send_message(tx, message, busy)
        is_repeat = sent.repeats is not None
        if not is_repeat and (plan_mode is not None or mcp_server_ids is not None):
            servers = None if mcp_server_ids is None else list(mcp_server_ids)
            await at.conn.execute(CHOOSE, chat_id, plan_mode, servers)
        return SentTo(sent, tx.chat)

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def edit(
        self,
        at: Grant,
        chat_id: ChatId,
        message_id: MessageId,
        *,
        content: tuple[ContentPart, ...],
        model_config_id: UUID | None = None,
        reasoning_effort: Effort | None = None,
        suffix: Sequence[NewMessage] = (),
    ) -> EditedIn:
        await _check_files(at, content)
        tx = await at.bundle.open(chat_id)
        edited = await machine.edit_message(
            tx,
            message_id,
            content=content,
            edited_by=at.user_id,
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
            suffix=suffix,
        )
        return EditedIn(edited, tx.chat)

    @authz(Resource.CHAT, Action.INTERRUPT, via=Via.CHAT, how=How.BUNDLE)
    async def interrupt(self, at: Grant, chat_id: ChatId, *, cascade: bool = True) -> Done:
        """Stop the chat and, with `cascade`, whatever its subagents do."""
        tx = await at.bundle.open(chat_id)
        await machine.interrupt(tx)
        if cascade:
            for record in await at.conn.fetch(BUSY_BELOW, chat_id):
                child = await at.bundle.open(record["id"])
                # It may have come to rest while its lock was waited for.
                if child.chat.status in ("running", "requires_action"):
                    await machine.interrupt(child)
        await _log_foreign(at, chat_id, "chat.interrupt")
        return Done(tx.chat)

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def retry(self, at: Grant, chat_id: ChatId) -> Done:
        tx = await at.bundle.open(chat_id)
        await machine.retry_turn(tx)
        return Done(tx.chat)

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def compact(self, at: Grant, chat_id: ChatId) -> Done:
        """Order a summary. The state is judged before the content."""
        tx = await at.bundle.open(chat_id)
        await machine.request_compaction(tx)
        await machine.require_compactable(tx)
        return Done(tx.chat)

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def submit_results(
        self, at: Grant, chat_id: ChatId, results: Sequence[SubmittedResult], *, model_config_id: UUID | None = None
    ) -> list[Message]:
        tx = await at.bundle.open(chat_id)
        return await machine.complete_requires_action(
            tx, results, submitted_by=at.user_id, model_config_id=model_config_id
        )

    @authz(Resource.CHAT, Action.INTERRUPT, via=Via.CHAT, how=How.BUNDLE)
    async def reconcile(self, at: Grant, chat_id: ChatId) -> Done:
        """Bring a chat out of a state that should not exist."""
        tx = await at.bundle.open(chat_id)
        await machine.reconcile_invalid_state(tx)
        await _log_foreign(at, chat_id, "chat.reconcile")
        return Done(tx.chat)

    # The queue

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def delete_queued(self, at: Grant, chat_id: ChatId, queued_id: QueuedMessageId) -> QueuedMessage:
        return await machine.delete_queued_message(await at.bundle.open(chat_id), queued_id)

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def clear_queue(self, at: Grant, chat_id: ChatId) -> list[QueuedMessage]:
        return await machine.clear_queue(await at.bundle.open(chat_id))

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def promote_queued(self, at: Grant, chat_id: ChatId, queued_id: QueuedMessageId) -> PromotedIn:
        tx = await at.bundle.open(chat_id)
        return PromotedIn(await machine.promote_queued_message(tx, queued_id), tx.chat)

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def move_queued(
        self, at: Grant, chat_id: ChatId, queued_id: QueuedMessageId, *, before: QueuedMessageId | None
    ) -> Queue:
        """Put a queued message before another, or at the end."""
        tx = await at.bundle.open(chat_id)
        moved = await _moved(tx, queued_id, before=before)
        try:
            queue = await machine.reorder_queue(tx, moved)
        except QueueChanged:
            raise QueuedMessageNotFound(queued_id) from None
        return Queue(tuple(queue), tx.chat.queue_version)

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def edit_queued(
        self,
        at: Grant,
        chat_id: ChatId,
        queued_id: QueuedMessageId,
        *,
        content: tuple[ContentPart, ...],
        model_config_id: UUID | None = None,
        reasoning_effort: Effort | None = None,
    ) -> QueuedMessage:
        await _check_files(at, content)
        return await machine.edit_queued_message(
            await at.bundle.open(chat_id),
            queued_id,
            content=content,
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
        )


async def _moved(tx: Tx, queued_id: QueuedMessageId, *, before: QueuedMessageId | None) -> list[QueuedMessageId]:
    """The order after the move. Of a row that is not there the transition says so, as for any state."""
    order = [row.id for row in await backlog.list_queue(tx)]
    for named in (queued_id, before):
        if named is not None and named not in order and order:
            raise tx.bundle.refuse(QueuedMessageNotFound(named))
    if before == queued_id or queued_id not in order:
        return order
    order.remove(queued_id)
    order.insert(len(order) if before is None else order.index(before), queued_id)
    return order


async def _check_files(at: Grant, *contents: Sequence[ContentPart]) -> None:
    """Refuse files the author may not read, as if they were not there."""
    named = frozenset().union(*(parts.file_ids(content) for content in contents))
    if not named:
        return
    foreign = [record["id"] for record in await at.conn.fetch(FOREIGN_FILES, list(named), at.user_id)]
    if foreign:
        raise FileUnavailable(sorted(foreign))


def _check_author(at: Grant, created_by: UUID) -> None:
    if created_by != at.user_id:
        raise Forbidden("A message is sent by its author.")


async def _log_foreign(at: Grant, chat_id: ChatId, action: str) -> None:
    if at.relation is not Relation.OWNER:
        await at.log(Event(action=action, resource_type=Resource.CHAT, resource_id=str(chat_id)))
