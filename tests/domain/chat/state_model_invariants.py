"""The invariants of every chat of the state model."""

from __future__ import annotations

from rookery.domain.chat.states import State, Status
from tests.domain.chat.state_model import BUSY
from tests.domain.chat.state_model_values import Chat, Kind, Tool


def violations(chat: Chat) -> list[str]:
    """Return the invariants that this chat violates."""
    truths = {
        "the state is valid": chat.state is not State.INVALID,
        "waiting has no queue": chat.status != Status.WAITING or not chat.queue,
        "archived only while idle": not (chat.archived and chat.status in BUSY),
        "an error is told exactly in the status error": chat.last_error == (chat.status == Status.ERROR),
        "a deadline exists only in requires_action": not chat.deadline or chat.status == Status.REQUIRES_ACTION,
        "only a question has no deadline": chat.status != Status.REQUIRES_ACTION or bool(chat.deadline or chat.asked),
        "requires_action has an open client call or a question": chat.status != Status.REQUIRES_ACTION
        or bool(chat.asked or chat.client_calls),
        "what is asked about is open": set(chat.asked) <= {call.id for call in chat.open_calls},
        "questions exist only in requires_action": not chat.asked or chat.status == Status.REQUIRES_ACTION,
        "an order to compact exists only while running": not chat.compaction or chat.status == Status.RUNNING,
        "only an order to compact can say resume": chat.compaction or not chat.compaction_resume,
        "busy exactly while runnable_since is set": (chat.status in BUSY) == (chat.runnable_since is not None),
        "no part is newer than the whole": chat.snapshot
        >= max(chat.history_version, chat.queue_version, chat.retry_state_version, chat.touched),
        "the history version is its newest revision or a later epoch": chat.history_version
        >= max(row.revision for row in chat.history),
        "the queue fits": len(chat.queue) <= chat.max_queue,
        "queue ids are unique": len({queued.id for queued in chat.queue}) == len(chat.queue),
        "revisions of live rows ascend": _ascends([row.revision for row in chat.history if not row.deleted]),
        "every user row follows answered calls": _answered_before_users(chat),
        "no call has two results": _answered_once(chat),
        "an owner can be leased, nobody cannot": chat.owner is not None or not chat.leased,
    }
    return [sentence for sentence, is_true in truths.items() if not is_true]


def _ascends(numbers: list[int]) -> bool:
    return numbers == sorted(numbers)


def _answered_before_users(chat: Chat) -> bool:
    waiting: set[str] = set()
    for row in chat.history:
        if row.deleted:
            continue
        if row.kind is Kind.USER and waiting:
            return False
        waiting |= {call.id for call in row.calls if call.tool is not Tool.PROVIDER}
        waiting.discard(row.answers)
    return True


def _answered_once(chat: Chat) -> bool:
    answers = [row.answers for row in chat.history if row.answers and not row.deleted]
    return len(answers) == len(set(answers))
