"""Transitions on behalf of an actor: create, send, edit, stop, retry, compact, tool results, and the queue.

Each method checks the right and runs its transition in one transaction. The chat is locked after the check, or by the
same statement, so that a caller without the right never locks it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from rookery.domain.access.rights import Action, OwnerActor, Relation, Resource
from rookery.domain.chat import parts
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import (
    ChatNotFound,
    InvalidInput,
    QueueChanged,
    QueuedMessageNotFound,
    TooManySubagents,
    TransitionNotAllowed,
)
from rookery.domain.chat.messages import (
    ChatId,
    Effort,
    Message,
    MessageId,
    NewMessage,
    NewQueuedMessage,
    QueuedMessage,
    QueuedMessageId,
    is_id,
)
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import Part as ContentPart
from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.store import machine
from rookery.store.authorized import files
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authorized_by, authz
from rookery.store.chats import chat_rows, chat_view_reads, chat_views, messages, subagents
from rookery.store.chats.chat_views import ChatView
from rookery.store.chats.subagents import NewSubagent
from rookery.store.db import idempotency
from rookery.store.db.hints import MiscHint, WatchKind, nudge_topic
from rookery.store.machine import ChatSpec, Created, Edited, Promoted, Sent, Tx, queue_rows, single_statement
from rookery.store.machine.bundle import CHAT_COLUMNS
from rookery.store.mcp import servers as mcp_servers
from rookery.store.models import spending
from rookery.store.models.errors import ModelUnusable, SpendLimitReached, Unusable
from rookery.store.people.audit import Event
from rookery.store.people.errors import Forbidden
from rookery.store.workspaces import workspaces


class Choose(Protocol):
    """Chooses the model that answers, given the chat's last model. It keeps the models in `kept`."""

    @property
    def kept(self) -> Collection[UUID]: ...

    def __call__(self, last: UUID) -> UUID: ...


# Checked when the chat is created, because an administrator may have disabled the model since it was chosen.
MODEL_IS_LIVE = """
    SELECT m.enabled, m.deleted, p.enabled AND NOT p.deleted
      FROM model_configs m
      JOIN model_providers p ON p.id = m.provider_id
     WHERE m.id = $1
"""
TITLED = f"SELECT {CHAT_COLUMNS}, title FROM chats WHERE id = $1"
MODEL_OF = "SELECT model_config_id FROM chat_messages WHERE chat_id = $1 AND id = $2"
# The rows that one send inserted; rows of one transaction have the same revision. The message itself is always
# returned. If it is deleted, its revision is that of the deletion.
INSERTED_WITH = f"""
    SELECT {messages.COLUMNS}, {messages.FIGURES}
      FROM chat_messages m
     WHERE m.chat_id = $1
       AND (m.id = $2 OR (m.revision = (SELECT sent.revision FROM chat_messages sent WHERE sent.id = $2)
                          AND m.id < $2
                          AND NOT m.deleted
                          AND m.visibility IN ('user', 'both')))
     ORDER BY m.id
"""
CHOOSE = """
    UPDATE chats
       SET plan_mode = coalesce($2, plan_mode), mcp_server_ids = coalesce($3, mcp_server_ids)
     WHERE id = $1
"""
PARENT_STATUS = "SELECT status FROM chats WHERE id = $1"
# The parent cannot be stopped before the message is sent. Its row is locked before that of the child, as everywhere.
LOCK_PARENT = f"{PARENT_STATUS} FOR SHARE"
PARENT_STOPPED = "The chat was stopped, so it starts no more subagents."
SENDER_STOPPED = "The main chat was stopped, so it sends no more messages to subagents."
BUSY_BELOW = """
    WITH RECURSIVE below AS (
         SELECT id, created_at, status, queue_len FROM chats WHERE parent_chat_id = $1
          UNION ALL
         SELECT c.id, c.created_at, c.status, c.queue_len FROM chats c JOIN below b ON c.parent_chat_id = b.id)
    SELECT id
      FROM below
     WHERE status IN ('running', 'requires_action') OR (status = 'interrupting' AND queue_len > 0)
     ORDER BY created_at, id
"""


class CreatedChat(Created, frozen=True):
    """A new chat. `view` is the chat as its owner sees it."""

    view: ChatView


class ChangedChat(msgspec.Struct, frozen=True):
    """The chat after the transition. `view` is the chat as the caller sees it."""

    chat: Chat
    view: ChatView


class SendResult(msgspec.Struct, frozen=True):
    """The result of a send. If it repeats an earlier send, `inserted` are the rows of the earlier send."""

    sent: Sent
    chat: Chat
    inserted: Sequence[Message] = ()


class EditResult(msgspec.Struct, frozen=True):
    edited: Edited
    chat: Chat


class PromoteResult(msgspec.Struct, frozen=True):
    promoted: Promoted
    chat: Chat


class TitledChat(msgspec.Struct, frozen=True):
    """A chat and its title."""

    chat: Chat
    title: str


class Spawned(msgspec.Struct, frozen=True):
    """Title and status of a subagent's chat."""

    title: str
    status: str


class Replayed(msgspec.Struct, frozen=True):
    """The stored, encoded answer to a request that is repeated."""

    answer: bytes


class Queue(msgspec.Struct, frozen=True):
    items: tuple[QueuedMessage, ...]
    queue_version: int


class Turns(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.CHAT, Action.CREATE, how=How.BUNDLE)
    async def create(
        self,
        at: Grant,
        spec: ChatSpec,
        *,
        request: idempotency.Request | None = None,
        encode: Callable[[CreatedChat], bytes] | None = None,
        mcp_server_ids: Sequence[UUID] | None = None,
    ) -> CreatedChat | Replayed:
        """Create a chat that belongs to the caller. Users create root chats; agents create subagents' chats.

        Without `mcp_server_ids`, a root chat gets the MCP servers that new chats use by default.
        With a `request`, the encoded answer is stored with the chat, and a repeat gets it again.
        """
        if spec.owner_id != at.user_id:
            raise Forbidden("A chat can be created only by its owner.")
        if spec.parent_chat_id is not None and not isinstance(at.actor, OwnerActor):
            raise InvalidInput("parent_chat_id", "Only an agent can create a subagent's chat.")
        if request is not None and request.user_id != at.user_id:
            raise Forbidden("The idempotency key belongs to another user.")
        if request is not None and (answer := await idempotency.find_answer(at.conn, request, now=at.now)) is not None:
            return Replayed(answer)
        await _check_model(at, spec.model_config_id)
        if spec.workspace_id is not None:
            await workspaces.check_own(at.conn, spec.workspace_id, at.user_id)
        if spec.parent_chat_id is None:
            chosen = await mcp_servers.choose_for_chat(
                at.conn, at.user_id, mcp_server_ids, workspace_id=spec.workspace_id
            )
            spec = msgspec.structs.replace(spec, mcp_server_ids=chosen)
        copies = await files.copy_foreign_files(at, None, *(message.content for message in spec.messages))
        own = [msgspec.structs.replace(each, content=copies.replace_in(each.content)) for each in spec.messages]
        made = await machine.create_chat(at.bundle, msgspec.structs.replace(spec, messages=tuple(own)))
        await copies.log(at, made.chat.id)
        created = CreatedChat(made.chat, made.messages, await _view(at, made.chat.id))
        if request is not None:
            assert encode is not None, "a stored answer has to be encoded"
            await idempotency.store_answer(at.conn, request, answer=encode(created), now=at.now)
        return created

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def spawn(self, at: Grant, parent_id: ChatId, spec: ChatSpec, terms: NewSubagent) -> Spawned:
        """Create a subagent's chat below its parent. A repeated call returns the chat that the first call created.

        Only a root chat can have subagents, and the number of its unarchived subagents is limited.
        """
        if at.root_id is not None and at.root_id != parent_id:
            raise InvalidInput("parent_chat_id", "A subagent cannot start subagents.")
        if (spec.parent_chat_id, spec.root_chat_id) != (parent_id, parent_id):
            raise InvalidInput("parent_chat_id", "A subagent's chat belongs to the chat that starts it.")
        await subagents.lock_children(at.conn, parent_id)
        known = await subagents.find_subagents(at.conn, [terms.chat_id], root_id=parent_id)
        if (child := known.get(terms.chat_id)) is not None:
            return Spawned(child.title, child.status)
        if await subagents.count_children(at.conn, parent_id) >= subagents.MAX_CHILDREN:
            raise TooManySubagents(subagents.MAX_CHILDREN)
        await _check_model(at, spec.model_config_id)
        made = await machine.create_chat(at.bundle, spec)
        # The creation holds a share lock of the parent. A parent that was stopped meanwhile gets no subagent.
        if await at.conn.fetchval(PARENT_STATUS, parent_id) != Status.RUNNING:
            raise TransitionNotAllowed(Transition.CREATE_CHAT, State.N, PARENT_STOPPED, cause="stopped")
        await subagents.insert(at.conn, terms)
        return Spawned(spec.title, made.chat.status)

    @authz(Resource.CHAT, Action.CREATE, how=How.WRITE)
    async def find_answer(self, at: Grant, request: idempotency.Request) -> Replayed | None:
        """Return the stored answer to a repeated creation. Call it before the request is validated."""
        if request.user_id != at.user_id:
            raise Forbidden("The idempotency key belongs to another user.")
        answer = await idempotency.find_answer(at.conn, request, now=at.now)
        return None if answer is None else Replayed(answer)

    @authz(Resource.CHAT, Action.CREATE)
    async def find_spend_limit(self, at: Grant) -> SpendLimitReached | None:
        """Return the error for model calls if the caller's spend limit is reached; otherwise None."""
        try:
            await spending.check_spend(at.conn, at.user_id, now=at.now)
        except SpendLimitReached as reached:
            return reached
        return None

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT)
    async def find_sent(self, at: Grant, chat_id: ChatId, client_id: str) -> SendResult | None:
        """Return the result of a repeated send. Call it before the request is validated."""
        sent = await machine.find_sent(at.conn, chat_id, client_id=client_id)
        if sent is None:
            return None
        record = await at.conn.fetchrow(TITLED, chat_id)
        if record is None:
            raise ChatNotFound(chat_id)
        return await _sent_before(at, sent, Chat(*record[:-1]))

    async def _send_fast(
        self, chat_id: ChatId, message: NewQueuedMessage, *, busy: BusyBehavior, choose: Choose | None
    ) -> SendResult | None:
        """Send by a single statement, if the chat is at rest and belongs to the caller. Otherwise return None.

        The statement checks the owner, so it has no effect on a chat of another user.
        """
        owner_id = self._context.owner_of_own(Resource.MESSAGE, frozenset({Action.DRIVE}))
        has_model = message.model_config_id is not None or choose is not None
        if owner_id is None or message.created_by != owner_id or not has_model or parts.file_ids(message.content):
            return None
        kept: Collection[UUID] = ()
        if choose is not None:
            message, kept = msgspec.structs.replace(message, model_config_id=None), choose.kept
        done = await single_statement.send_at_rest(
            self._context.machine, chat_id, message, owner_id=owner_id, busy=busy, kept=kept
        )
        return None if done is None else SendResult(Sent([done.message]), done.chat, [done.message])

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE, locks_own=True)
    async def _send_locked(
        self,
        at: Grant,
        chat_id: ChatId,
        message: NewQueuedMessage,
        *,
        busy: BusyBehavior,
        plan_mode: bool | None,
        mcp_server_ids: Sequence[UUID] | None,
        choose: Choose | None,
    ) -> SendResult:
        _check_author(at, message.created_by)
        copies = await files.copy_foreign_files(at, chat_id, message.content)
        message = msgspec.structs.replace(message, content=copies.replace_in(message.content))
        tx = await at.bundle.open(chat_id)
        if choose is not None:
            message = msgspec.structs.replace(message, model_config_id=choose(tx.chat.last_model_config_id))
        sent = await machine.send_message(tx, message, busy)
        if sent.repeats is not None:
            await copies.undo(at)
            return await _sent_before(at, sent, tx.chat)
        await copies.log(at, chat_id)
        if plan_mode is not None or mcp_server_ids is not None:
            servers = None
            if mcp_server_ids is not None:
                servers = await mcp_servers.change_for_chat(at.conn, chat_id, mcp_server_ids)
            await at.conn.execute(CHOOSE, chat_id, plan_mode, servers)
        return SendResult(sent, tx.chat, sent.inserted)

    @authorized_by(_send_locked)
    async def send(
        self,
        chat_id: ChatId,
        message: NewQueuedMessage,
        *,
        busy: BusyBehavior = BusyBehavior.QUEUE,
        plan_mode: bool | None = None,
        mcp_server_ids: Sequence[UUID] | None = None,
        choose: Choose | None = None,
    ) -> SendResult:
        """Send a message. `plan_mode` and `mcp_server_ids`, if given, are stored with the chat.

        `choose` gets the chat's last model and returns the model, under the lock.
        """
        if plan_mode is None and mcp_server_ids is None:
            sent = await self._send_fast(chat_id, message, busy=busy, choose=choose)
            if sent is not None:
                return sent
        return await self._send_locked(
            chat_id, message, busy=busy, plan_mode=plan_mode, mcp_server_ids=mcp_server_ids, choose=choose
        )

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def send_to_subagent(
        self, at: Grant, chat_id: ChatId, message: NewQueuedMessage, *, busy: BusyBehavior, parent_id: ChatId
    ) -> SendResult:
        """Send a message of the parent's agent to its subagent. A parent that was stopped meanwhile sends none."""
        _check_author(at, message.created_by)
        if await at.conn.fetchval(LOCK_PARENT, parent_id) != Status.RUNNING:
            raise TransitionNotAllowed(busy.transition, State.N, SENDER_STOPPED, cause="stopped")
        tx = await at.bundle.open(chat_id)
        if tx.chat.parent_chat_id != parent_id:
            raise ChatNotFound(chat_id)
        sent = await machine.send_message(tx, message, busy)
        if sent.repeats is not None:
            return await _sent_before(at, sent, tx.chat)
        return SendResult(sent, tx.chat, sent.inserted)

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
        choose: Callable[[UUID | None, UUID], UUID] | None = None,
    ) -> EditResult:
        """Edit a message. `choose` gets the models of message and chat and returns the model, under the lock."""
        copies = await files.copy_foreign_files(at, chat_id, content)
        tx = await at.bundle.open(chat_id)
        if choose is not None:
            original = await at.conn.fetchval(MODEL_OF, chat_id, message_id) if is_id(message_id) else None
            model_config_id = choose(original, tx.chat.last_model_config_id)
        edited = await machine.edit_message(
            tx,
            message_id,
            content=copies.replace_in(content),
            edited_by=at.user_id,
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
            suffix=suffix,
        )
        await copies.log(at, chat_id)
        return EditResult(edited, tx.chat)

    @authz(Resource.CHAT, Action.INTERRUPT, via=Via.CHAT, how=How.BUNDLE)
    async def interrupt(self, at: Grant, chat_id: ChatId, *, cascade: bool = True) -> ChangedChat:
        """Stop the chat and, with `cascade`, its subagents. If subagents are busy, the chat itself may be at rest.

        Messages in the queues of the subagents are deleted. Otherwise the subagents would continue with them.
        """
        tx = await at.bundle.open(chat_id)
        busy = await at.conn.fetch(BUSY_BELOW, chat_id) if cascade else []
        if busy and tx.state in (State.W, State.E0, State.E1):
            await subagents.hold_wake(at.conn, chat_id)
        else:
            await machine.interrupt(tx)
        if cascade:
            for record in busy:
                child = await at.bundle.open(record["id"])
                # The subagent may have finished while this transaction waited for the lock.
                if child.chat.status not in ("running", "requires_action", "interrupting"):
                    continue
                if child.chat.queue_len:
                    await machine.clear_queue(child)
                if child.chat.status != "interrupting":
                    await machine.interrupt(child)
        await _log_foreign(at, chat_id, "chat.interrupt")
        return await _changed(at, tx)

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def retry(self, at: Grant, chat_id: ChatId) -> ChangedChat:
        tx = await at.bundle.open(chat_id)
        await machine.retry_turn(tx)
        return await _changed(at, tx)

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def nudge(self, at: Grant, chat_id: ChatId) -> ChangedChat:
        """End the model call, the retry delay or the tool calls for which the running turn waits. The turn continues.

        Nothing is stored. If the wait has already ended, the nudge has no effect.
        """
        tx = await at.bundle.open(chat_id)
        if tx.chat.status != Status.RUNNING:
            why = "The chat is not running, so there is nothing to try again."
            raise TransitionNotAllowed(Transition.RETRY_TURN, tx.state, why, cause="not_running")
        at.tell(MiscHint(topic=nudge_topic(chat_id), data={"history_version": tx.chat.history_version}))
        return await _changed(at, tx)

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def compact(self, at: Grant, chat_id: ChatId) -> ChangedChat:
        """Request a compaction. The state is checked before the content."""
        tx = await at.bundle.open(chat_id)
        await machine.request_compaction(tx)
        await machine.require_compactable(tx)
        return await _changed(at, tx)

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def submit_results(
        self, at: Grant, chat_id: ChatId, results: Sequence[SubmittedResult], *, model_config_id: UUID | None = None
    ) -> list[Message]:
        tx = await at.bundle.open(chat_id)
        return await machine.complete_requires_action(
            tx, results, submitted_by=at.user_id, model_config_id=model_config_id
        )

    @authz(Resource.CHAT, Action.INTERRUPT, via=Via.CHAT, how=How.BUNDLE)
    async def reconcile(self, at: Grant, chat_id: ChatId) -> ChangedChat:
        """Repair a chat in an invalid state."""
        tx = await at.bundle.open(chat_id)
        await machine.reconcile_invalid_state(tx)
        await _log_foreign(at, chat_id, "chat.reconcile")
        return await _changed(at, tx)

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT)
    async def find_titled(self, at: Grant, chat_id: ChatId) -> TitledChat:
        record = await at.conn.fetchrow(TITLED, chat_id)
        if record is None:
            raise ChatNotFound(chat_id)
        return TitledChat(Chat(*record[:-1]), record[-1])

    @authz(Resource.CHAT, Action.DRIVE, via=Via.CHAT, how=How.WRITE)
    async def write_title(self, at: Grant, chat_id: ChatId, title: str, *, seen_title: str) -> bool:
        """Set a generated title, unless the title has changed meanwhile."""
        if title == seen_title or not await chat_rows.write_title(at.conn, chat_id, title=title, seen_title=seen_title):
            return False
        at.tell_watchers(chat_id, WatchKind.TITLE_CHANGE)
        return True

    # The queue

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def delete_queued(self, at: Grant, chat_id: ChatId, queued_id: QueuedMessageId) -> QueuedMessage:
        tx = await at.bundle.open(chat_id)
        _require_queue(tx, queued_id)
        return await machine.delete_queued_message(tx, queued_id)

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def clear_queue(self, at: Grant, chat_id: ChatId) -> list[QueuedMessage]:
        return await machine.clear_queue(await at.bundle.open(chat_id))

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def promote_queued(self, at: Grant, chat_id: ChatId, queued_id: QueuedMessageId) -> PromoteResult:
        tx = await at.bundle.open(chat_id)
        _require_queue(tx, queued_id)
        return PromoteResult(await machine.promote_queued_message(tx, queued_id), tx.chat)

    @authz(Resource.QUEUE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def move_queued(
        self, at: Grant, chat_id: ChatId, queued_id: QueuedMessageId, *, before: QueuedMessageId | None
    ) -> Queue:
        """Move a queued message before another one, or to the end."""
        tx = await at.bundle.open(chat_id)
        _require_queue(tx, queued_id)
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
        content: tuple[ContentPart, ...] | None = None,
        model_config_id: UUID | None = None,
        reasoning_effort: Effort | UnsetType | None = UNSET,
    ) -> QueuedMessage:
        """Change the given fields of a queued message. An effort of None removes the effort."""
        copies = await files.copy_foreign_files(at, chat_id, content or ())
        tx = await at.bundle.open(chat_id)
        _require_queue(tx, queued_id)
        said = content if content is not None else await _queued_content(tx, queued_id)
        edited = await machine.edit_queued_message(
            tx,
            queued_id,
            content=copies.replace_in(said),
            model_config_id=model_config_id,
            reasoning_effort=reasoning_effort,
        )
        await copies.log(at, chat_id)
        return edited


async def _sent_before(at: Grant, sent: Sent, chat: Chat) -> SendResult:
    """Return the result of the first send, with the current chat."""
    records = [] if sent.repeats is None else await at.conn.fetch(INSERTED_WITH, chat.id, sent.repeats)
    return SendResult(sent, chat, [messages.prompt_row(record).message for record in records])


def _require_queue(tx: Tx, queued_id: QueuedMessageId) -> None:
    """Raise `QueuedMessageNotFound` if the queue is empty.

    For an archived or invalid chat, the transition reports the reason.
    """
    state = tx.chat.state
    if not state.has_queue and not state.is_archived and state is not State.INVALID:
        raise tx.bundle.refuse(QueuedMessageNotFound(queued_id))


async def _moved(tx: Tx, queued_id: QueuedMessageId, *, before: QueuedMessageId | None) -> list[QueuedMessageId]:
    """Return the order after the move. If the message is missing, the transition reports it."""
    order = [row.id for row in await queue_rows.list_queue(tx)]
    for named in (queued_id, before):
        if named is not None and named not in order and order:
            raise tx.bundle.refuse(QueuedMessageNotFound(named))
    if before == queued_id or queued_id not in order:
        return order
    order.remove(queued_id)
    order.insert(len(order) if before is None else order.index(before), queued_id)
    return order


async def _queued_content(tx: Tx, queued_id: QueuedMessageId) -> tuple[ContentPart, ...]:
    """Return the content of a queued message. If the message is missing, the transition reports it."""
    return next((row.parts() for row in await queue_rows.list_queue(tx) if row.id == queued_id), ())


async def _changed(at: Grant, tx: Tx) -> ChangedChat:
    return ChangedChat(tx.chat, await _view(at, tx.chat.id))


async def _view(at: Grant, chat_id: ChatId) -> ChatView:
    """Return the chat as the caller sees it. An administrator may stop a chat without the right to read it."""
    seen = await chat_view_reads.find_chat(at.conn, chat_id, actor=at.actor)
    if seen is None:
        raise ChatNotFound(chat_id)
    if not seen.is_reader:
        return chat_views.without_contents(seen.chat)
    return await chat_view_reads.with_single_members(at.conn, seen.chat)


async def _check_model(at: Grant, model_config_id: UUID) -> None:
    record = await at.conn.fetchrow(MODEL_IS_LIVE, model_config_id)
    if record is None or record[1]:
        raise ModelUnusable(Unusable.UNKNOWN, model_config_id)
    if not record[0]:
        raise ModelUnusable(Unusable.DISABLED, model_config_id)
    if not record[2]:
        raise ModelUnusable(Unusable.PROVIDER_DISABLED, model_config_id)


def _check_author(at: Grant, created_by: UUID) -> None:
    if created_by != at.user_id:
        raise Forbidden("A message can be sent only by its author.")


async def _log_foreign(at: Grant, chat_id: ChatId, action: str) -> None:
    if at.relation is not Relation.OWNER:
        await at.log(Event(action=action, resource_type=Resource.CHAT, resource_id=str(chat_id)))
