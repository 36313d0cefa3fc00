"""Replays of the state model in a real database: the same transitions, and the resulting rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import asyncpg
from msgspec import Struct

from rookery.domain.chat import open_tool_calls
from rookery.domain.chat.approvals import Answer, Decision
from rookery.domain.chat.chat import Fence, RetryState
from rookery.domain.chat.errors import ApprovalRejected, ChatError, ToolResultRejected
from rookery.domain.chat.fair_share import WaitingChat
from rookery.domain.chat.messages import ChatId, MessageId, NewMessage, QueuedMessageId, Role, Visibility
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import ToolCall
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior, Transition
from rookery.store import machine
from rookery.store.db.hints import ChatHint, Hint, OwnershipHint
from rookery.store.machine import Machine, Tx
from tests.domain.chat import state_model_values as values
from tests.domain.chat.state_model import BUSY
from tests.domain.chat.state_model_actors import Attempt
from tests.domain.chat.state_model_values import Action, Call, Deadline, Kind, Queued, Refusal, Row, Tool
from tests.store.machine.machine_rig import CLIENT_TOOL, FAILED, Rig, call, calling, result, text

T = Transition
LONG_AWAY = 3600.0
TOOL_NAMES = {Tool.LOCAL: "read_file", Tool.CLIENT: CLIENT_TOOL, Tool.PROVIDER: "web_search"}
TOOLS = {name: tool for tool, name in TOOL_NAMES.items()}

_OBSERVE = """
    SELECT c.*,
           c.requires_action_deadline_at <= clock_timestamp() AS deadline_passed,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(m.id, m.revision, m.role, m.visibility, m.compressed, m.deleted,
                   m.content) ORDER BY m.id), '[]') FROM chat_messages m WHERE m.chat_id = c.id) AS messages,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(q.id, q.steer, q.content) ORDER BY q.position, q.id), '[]')
              FROM chat_queued_messages q WHERE q.chat_id = c.id) AS queue,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(a.token, a.approved_at IS NOT NULL)), '[]')
              FROM chat_approvals a WHERE a.chat_id = c.id) AS questions,
           EXISTS (SELECT FROM chat_heartbeats h JOIN replicas r ON r.id = c.worker_id
                    WHERE h.chat_id = c.id AND h.runner_id = c.runner_id
                      AND h.heartbeat_at > clock_timestamp() - lease_ttl()) AS leased
      FROM chats c
     WHERE c.id = $1
"""


class Ledger:
    """A publisher that stores hints by chat: those that were not checked yet, and all announced versions."""

    def __init__(self) -> None:
        self.hints: dict[UUID, list[ChatHint | OwnershipHint]] = {}
        self.versions: dict[UUID, list[int]] = {}

    def publish(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            if isinstance(hint, ChatHint | OwnershipHint):
                self.hints.setdefault(hint.chat_id, []).append(hint)
            if isinstance(hint, ChatHint):
                self.versions.setdefault(hint.chat_id, []).append(hint.snapshot_version)

    def take(self, chat_id: UUID) -> list[ChatHint | OwnershipHint]:
        return self.hints.pop(chat_id, [])


class Copy(Struct):
    """A real chat that corresponds to a chat of the model: their ids, and the last times."""

    chat_id: ChatId
    message_ids: list[int]
    queue_ids: dict[int, int]
    queue: tuple[int, ...] = ()
    updated_at: datetime | None = None
    runnable_since: datetime | None = None
    updated_version: int = 1
    runnable_version: int = 1


class ReplayRig:
    """A database with a machine, in which the actors of the model have real ids."""

    def __init__(self, rig: Rig, workers: Sequence[str]) -> None:
        self.rig = rig
        self.ledger = Ledger()
        self.machine = Machine(rig.pool, self.ledger)
        self._names = {uuid_of(name): name for name in workers}

    async def prepare(self) -> None:
        async with self.rig.pool.acquire() as conn:
            await conn.executemany(
                "INSERT INTO replicas (id, host_id, hostname, pid, version, schema_version)"
                " VALUES ($1, 'h', 'h', 1, '0', 1)",
                [(worker,) for worker in self._names],
            )

    async def create(self, *rows: Row) -> Copy:
        spec = self.rig.spec(*(self._message(row) for row in rows))
        created = await self.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))
        return Copy(created.chat.id, [message.id for message in created.messages], {})

    # Doing

    async def attempt(self, copy: Copy, attempt: Attempt) -> Refusal | None:
        """Run the bundle on the real chat. Return the refusal, or None if it was committed."""

        async def run(tx: Tx) -> None:
            for action in attempt.actions:
                await self._perform(tx, copy, action)

        fence = self._fence(attempt.fence) if attempt.fence else None
        try:
            await self.machine.chat(copy.chat_id).update(run, fence=fence)
        except ChatError as error:
            problem = error.problem if isinstance(error, ToolResultRejected | ApprovalRejected) else ""
            return Refusal(type(error).__name__, problem)
        return None

    async def _perform(self, tx: Tx, copy: Copy, action: Action) -> None:
        queued_id = QueuedMessageId(copy.queue_ids.get(action.target, 0))
        rows = [self._message(row) for row in action.rows]
        match action.transition:
            case T.SET_ARCHIVED:
                await machine.set_archived(tx, action.archived)
            case T.SEND_MESSAGE_QUEUE | T.SEND_MESSAGE_STEER | T.SEND_MESSAGE_INTERRUPT:
                busy = next(busy for busy in BusyBehavior if busy.transition is action.transition)
                await machine.send_message(tx, self.rig.message(action.text), busy)
            case T.EDIT_MESSAGE:
                ids = copy.message_ids
                target = MessageId(ids[action.target] if action.target < len(ids) else 0)
                await machine.edit_message(tx, target, content=text(action.text), edited_by=self.rig.user, suffix=rows)
            case T.REQUEST_COMPACTION:
                await machine.request_compaction(tx)
                await machine.require_compactable(tx)
            case T.RETRY_TURN:
                await machine.retry_turn(tx)
            case T.WAKE_PARENT:
                await machine.wake_parent(tx, NewMessage(role=Role.USER, content=text(action.text)))
            case T.DELETE_QUEUED_MESSAGE:
                await machine.delete_queued_message(tx, queued_id)
            case T.CLEAR_QUEUE:
                await machine.clear_queue(tx)
            case T.EDIT_QUEUED_MESSAGE:
                await machine.edit_queued_message(tx, queued_id, content=text(action.text))
            case T.REORDER_QUEUE:
                await machine.reorder_queue(tx, [QueuedMessageId(copy.queue_ids.get(each, 0)) for each in action.order])
            case T.PROMOTE_QUEUED_MESSAGE:
                await machine.promote_queued_message(tx, queued_id)
            case T.INTERRUPT:
                await machine.interrupt(tx)
            case T.COMPLETE_REQUIRES_ACTION:
                results = [SubmittedResult(each.call, "{}" if each.valid_json else "{") for each in action.results]
                await machine.complete_requires_action(tx, results, submitted_by=self.rig.user, suffix=rows)
            case T.ANSWER_APPROVALS:
                answers = [
                    Answer(tool_call_id=each.call, decision=Decision.APPROVE if each.valid_json else Decision.DENY)
                    for each in action.results
                ]
                await machine.answer_approvals(tx, answers, answered_by=self.rig.user)
            case T.RECONCILE_INVALID_STATE:
                await machine.reconcile_invalid_state(tx)
            case _:
                await self._work(tx, action, rows)

    async def _work(self, tx: Tx, action: Action, rows: Sequence[NewMessage]) -> None:
        match action.transition:
            case T.ACQUIRE:
                worker, runner = action.owner
                await machine.acquire(tx, worker_id=uuid_of(worker), runner_id=self.name(runner))
            case T.ABANDON:
                await machine.abandon(tx)
            case T.GIVE_WAY:
                # To itself: the model has one chat, and the call for workers is then about that one.
                itself = WaitingChat(tx.chat.id, tx.chat.snapshot_version, datetime.now(UTC))
                await machine.give_way(tx, to=itself)
            case T.RECORD_GENERATION_ATTEMPT:
                await machine.record_generation_attempt(tx)
            case T.RECORD_RETRY_STATE:
                await machine.record_retry_state(tx, _retry(action.text))
            case T.COMMIT_STEP:
                await machine.commit_step(tx, rows, consume_compaction=action.consume_compaction)
            case T.ENTER_REQUIRES_ACTION:
                seconds = 0.0 if action.deadline is Deadline.PASSED else LONG_AWAY
                await machine.enter_requires_action(tx, timeout_seconds=seconds)
            case T.ASK_APPROVALS:
                limit = {None: None, Deadline.PASSED: 0.0, Deadline.AHEAD: LONG_AWAY}[action.deadline]
                local = [each for each in await machine.open_calls.turn_calls(tx) if each.tool_name != CLIENT_TOOL]
                await machine.ask_approvals(tx, [machine.Question(each) for each in local], timeout_seconds=limit)
            case T.FINISH_TURN:
                await machine.finish_turn(tx)
            case T.FINISH_INTERRUPTION:
                await machine.finish_interruption(tx, rows)
            case T.FINISH_ERROR:
                await machine.finish_error(tx, FAILED)
            case T.CANCEL_REQUIRES_ACTION:
                await machine.cancel_requires_action(tx)
            case _:
                raise AssertionError(f"no way to do {action.transition}")

    def _fence(self, fence: values.Fence) -> Fence:
        worker, runner = fence.owner
        return Fence(
            worker_id=uuid_of(worker),
            runner_id=self.name(runner),
            status=Status(fence.status),
            history_version=fence.history_version,
            generation_attempt=fence.attempt,
            allow_archived=fence.allow_archived,
        )

    def name(self, name: str) -> UUID:
        self._names.setdefault(uuid_of(name), name)
        return uuid_of(name)

    def _message(self, row: Row) -> NewMessage:
        match row.kind:
            case Kind.SYSTEM:
                return NewMessage(role=Role.SYSTEM, visibility=Visibility.MODEL, content=text(row.text))
            case Kind.USER:
                return NewMessage(role=Role.USER, content=text(row.text), created_by=self.rig.user)
            case Kind.TOOL:
                return result(row.answers)
            case Kind.SUMMARY:
                content = text(row.text)
                return NewMessage(role=Role.USER, visibility=Visibility.MODEL, compressed=True, content=content)
            case Kind.NOTE:
                content = text(row.text)
                return NewMessage(role=Role.ASSISTANT, visibility=Visibility.USER, compressed=True, content=content)
            case Kind.ASSISTANT if row.calls:
                return calling(*(_call(each) for each in row.calls))
            case Kind.ASSISTANT:
                return NewMessage(role=Role.ASSISTANT, content=text(row.text))
            case Kind.CLOSURE:
                raise AssertionError("closures are the machine's own")

    # Looking

    async def observe(self, copy: Copy, expected: values.Chat) -> values.Chat:
        """Return the real chat as a value of the model. Ids of new queue rows are assigned by their position in
        `expected`.
        """
        async with self.rig.pool.acquire() as conn:
            found = await conn.fetchrow(_OBSERVE, copy.chat_id)
        assert found is not None
        messages, queue = json.loads(found["messages"]), json.loads(found["queue"])
        ids = [message[0] for message in messages]
        assert ids[: len(copy.message_ids)] == copy.message_ids, "the history only grows at its end"
        copy.message_ids = ids
        self._learn_queue_ids(copy, [each[0] for each in queue], expected)
        known = {real: modelled for modelled, real in copy.queue_ids.items()}
        self._learn_times(copy, found)
        asked, approved = _questions(copy.chat_id, messages, dict(json.loads(found["questions"])))
        return values.Chat(
            status=found["status"],
            archived=found["archived"],
            queue=tuple(Queued(known.get(each[0], -1), each[2][0]["text"], each[1]) for each in queue),
            history=tuple(_row(*message[1:]) for message in messages),
            owner=self._owner(found),
            leased=found["leased"],
            last_error=found["last_error"] is not None,
            retry_state=found["retry_state"] and json.loads(found["retry_state"])["error"],
            deadline={True: Deadline.PASSED, False: Deadline.AHEAD, None: None}[found["deadline_passed"]],
            asked=asked,
            approved=approved,
            compaction=found["compaction_requested_at"] is not None,
            compaction_resume=found["compaction_resume"],
            snapshot=found["snapshot_version"],
            history_version=found["history_version"],
            queue_version=found["queue_version"],
            retry_state_version=found["retry_state_version"],
            attempt=found["generation_attempt"],
            touched=copy.updated_version,
            runnable_since=copy.runnable_version if found["runnable_since"] else None,
            queued_so_far=expected.queued_so_far,
            max_queue=expected.max_queue,
        )

    def _owner(self, found: asyncpg.Record) -> tuple[str, str] | None:
        if found["worker_id"] is None:
            return None
        return self._names[found["worker_id"]], self._names[found["runner_id"]]

    @staticmethod
    def _learn_queue_ids(copy: Copy, ids: list[int], expected: values.Chat) -> None:
        known = set(copy.queue_ids.values())
        for real, queued in zip(ids, expected.queue, strict=False):
            if real not in known and queued.id not in copy.queue_ids:
                copy.queue_ids[queued.id] = real
        places = {real: modelled for modelled, real in copy.queue_ids.items()}
        copy.queue = tuple(places[real] for real in ids if real in places)

    @staticmethod
    def _learn_times(copy: Copy, found: asyncpg.Record) -> None:
        """Map times to the versions at which they changed, to compare them."""
        if copy.updated_at not in (None, found["updated_at"]):
            copy.updated_version = found["snapshot_version"]
        if found["runnable_since"] and copy.runnable_since != found["runnable_since"] and copy.updated_at is not None:
            copy.runnable_version = found["snapshot_version"]
        copy.updated_at, copy.runnable_since = found["updated_at"], found["runnable_since"]

    def check_hints(self, copy: Copy, before: values.Chat, after: values.Chat) -> None:
        """Check that there is exactly one hint per commit, with the final values, and a request for workers if the chat
        has no owner.
        """
        hints = self.ledger.take(copy.chat_id)
        if before.snapshot == after.snapshot:
            assert hints == []
            return
        update, *calls = hints
        assert isinstance(update, ChatHint)
        assert (update.snapshot_version, update.history_version, update.queue_version, update.retry_state_version) == (
            after.snapshot,
            after.history_version,
            after.queue_version,
            after.retry_state_version,
        )
        assert (update.status, update.archived, update.generation_attempt) == (
            after.status,
            after.archived,
            after.attempt,
        )
        owner = (uuid_of(after.owner[0]), uuid_of(after.owner[1])) if after.owner else (None, None)
        assert (update.worker_id, update.runner_id) == owner
        is_parked = bool(after.asked) and after.deadline is None
        is_free = after.status in BUSY and not after.leased and not is_parked
        assert [type(each) for each in calls] == [OwnershipHint] * is_free


def _row(
    revision: int, role: str, visibility: str, compressed: bool, deleted: bool, content: list[dict[str, object]]
) -> Row:
    """Return a stored message as a row of the model. Content that the model does not have gets a shape that it never
    uses.
    """
    kind, part = Kind(role), content[0]
    words = str(part.get("text", ""))
    if compressed:
        kind = {"model": Kind.SUMMARY, "user": Kind.NOTE}[visibility]
    if role == "assistant" and part["type"] == "tool-call":
        calls = tuple(Call(str(each["tool_call_id"]), TOOLS[str(each["tool_name"])]) for each in content)
        return Row(kind, calls=calls, revision=revision, deleted=deleted)
    if role != "tool":
        return Row(kind, text=words, revision=revision, deleted=deleted)
    answers, outcome = str(part["tool_call_id"]), part["result"]
    if not part.get("is_error"):
        return Row(Kind.TOOL, answers=answers, revision=revision, deleted=deleted)
    assert isinstance(outcome, dict)
    return Row(Kind.CLOSURE, answers=answers, reason=outcome["reason"], revision=revision, deleted=deleted)


def _questions(
    chat_id: ChatId,
    messages: Sequence[Sequence[Any]],
    found: dict[str, bool],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the calls that wait for a decision, in order, and the approved calls."""
    named = [
        (str(open_tool_calls.replay_token(chat_id, message[0], str(part["tool_call_id"]))), str(part["tool_call_id"]))
        for message in messages
        for part in message[6]
        if part["type"] == "tool-call"
    ]
    asked = tuple(name for token, name in named if found.get(token) is False)
    return asked, tuple(sorted(name for token, name in named if found.get(token)))


def _call(each: Call) -> ToolCall:
    return call(each.id, TOOL_NAMES[each.tool], provider_executed=each.tool is Tool.PROVIDER)


def _retry(error: str) -> RetryState:
    return RetryState(attempt=1, delay_ms=1000, error=error, retrying_at=datetime(2030, 1, 1, tzinfo=UTC))


def uuid_of(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)
