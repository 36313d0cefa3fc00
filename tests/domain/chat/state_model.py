"""The state machine of a chat as a small executable model: the effect of each transition, on plain values."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rookery.domain.chat.states import State, Status
from rookery.domain.chat.transitions import Transition
from tests.domain.chat.state_model_values import (
    MAX_QUEUE,
    Action,
    Chat,
    Deadline,
    Fence,
    Kind,
    Queued,
    Refusal,
    Row,
    Tool,
)

BUSY = frozenset({Status.RUNNING, Status.INTERRUPTING, Status.REQUIRES_ACTION})


class _Refused(Exception):
    def __init__(self, error: str, detail: str = "") -> None:
        self.refusal = Refusal(error, detail)


Step = Callable[[Chat, Action], Chat]
_STEPS: dict[Transition, tuple[frozenset[State], Step]] = {}


def create(*rows: Row, max_queue: int = MAX_QUEUE) -> Chat:
    """N -> R0: a chat without owner, with version 1 and rows of revision 1."""
    return _insert(Chat(max_queue=max_queue), *rows)


def apply(chat: Chat | None, *actions: Action, fence: Fence | None = None) -> Chat | Refusal:
    """Run one bundle. If one of its transitions is refused, nothing is changed."""
    if chat is None:
        return Refusal("StaleFence" if fence else "ChatNotFound")
    if fence is not None and not fence.holds(chat):
        return Refusal("StaleFence")
    chat = replace(chat, snapshot=chat.snapshot + 1)
    try:
        for action in actions:
            chat = _run(chat, action)
    except _Refused as refused:
        return refused.refusal
    return chat


def _run(chat: Chat, action: Action) -> Chat:
    sources, step = _STEPS[action.transition]
    state = chat.state
    if state is State.INVALID and state not in sources:
        raise _Refused("InvalidState")
    if state not in sources:
        raise _Refused("ChatArchived" if chat.archived else "TransitionNotAllowed")
    after = step(chat, action)
    if after.status not in (chat.status, Status.REQUIRES_ACTION):
        # Every way out of waiting for a person ends the question; a status from elsewhere does not by itself.
        after = replace(after, asked=())
    if after.status not in BUSY:
        return replace(after, runnable_since=None)
    return replace(after, runnable_since=after.snapshot) if chat.status not in BUSY else after


def _starts_in(transition: Transition, states: str) -> Callable[[Step], Step]:
    def register(step: Step) -> Step:
        _STEPS[transition] = (frozenset(State[name] for name in states.split()), step)
        return step

    return register


# What effects are made of


def _insert(chat: Chat, *rows: Row) -> Chat:
    """Change the history: set its version, restart the count of attempts, and clear the retry state."""
    for row in rows:
        if row.answers and _has_result(chat, row.answers):
            # Only a bundle can get here: the second of its transitions brings a result that the first one gave.
            raise _Refused("InvariantViolation")
        chat = replace(chat, history=(*chat.history, replace(row, revision=chat.snapshot)))
    return _fresh_epoch(chat) if rows else chat


def _has_result(chat: Chat, call_id: str) -> bool:
    """Return whether the latest live row that names the call is its result."""
    for row in reversed(chat.history):
        if row.live and (row.answers == call_id or any(call.id == call_id for call in row.calls)):
            return row.answers == call_id
    return False


def _fresh_epoch(chat: Chat) -> Chat:
    return _retry(replace(chat, history_version=chat.snapshot, attempt=0), None)


def _retry(chat: Chat, value: str | None) -> Chat:
    if chat.retry_state == value:
        return chat
    return replace(chat, retry_state=value, retry_state_version=chat.snapshot)


def _requeue(chat: Chat, queue: tuple[Queued, ...]) -> Chat:
    if chat.queue == queue:
        return chat
    return replace(chat, queue=queue, queue_version=chat.snapshot)


def _append(chat: Chat, text: str, *, steer: bool = False) -> Chat:
    chat, queued = _new_queued(chat, text, steer=steer)
    return _requeue(chat, (*chat.queue, queued))


def _prepend(chat: Chat, text: str) -> Chat:
    chat, queued = _new_queued(chat, text)
    return _requeue(chat, (queued, *chat.queue))


def _new_queued(chat: Chat, text: str, *, steer: bool = False) -> tuple[Chat, Queued]:
    if len(chat.queue) >= chat.max_queue:
        raise _Refused("QueueFull")
    number = chat.queued_so_far + 1
    return replace(chat, queued_so_far=number), Queued(number, text, steer)


def _close(chat: Chat, reason: str, *, only_client: bool = False) -> Chat:
    """Answer open calls with synthetic results, each in a separate row."""
    calls = chat.client_calls if only_client else chat.open_calls
    return _insert(chat, *(Row(Kind.CLOSURE, answers=call.id, reason=reason) for call in calls))


def _say(chat: Chat, text: str, reason: str) -> Chat:
    """Insert a user row, after results for all open calls."""
    return _insert(_close(chat, reason), Row(Kind.USER, text=text))


def _pop(chat: Chat) -> tuple[Chat, str]:
    head, *rest = chat.queue
    return _requeue(chat, tuple(rest)), head.text


def _run_on(chat: Chat) -> Chat:
    """Set the chat to `running`: clear the reason of the wait, and a compaction request of the previous turn."""
    return _touch(replace(_drop_compaction(chat), status=Status.RUNNING, last_error=False, deadline=None))


def _rest(chat: Chat) -> Chat:
    """Set the chat to rest, and clear the retry state, because there is no further attempt."""
    return _touch(_retry(replace(_drop_compaction(chat), status=Status.WAITING, deadline=None), None))


def _stop(chat: Chat) -> Chat:
    return _touch(replace(_drop_compaction(chat), status=Status.INTERRUPTING))


def _touch(chat: Chat) -> Chat:
    return replace(chat, touched=chat.snapshot)


def _drop_compaction(chat: Chat) -> Chat:
    return replace(chat, compaction=False, compaction_resume=False)


def _disown(chat: Chat) -> Chat:
    return replace(chat, owner=None, leased=False)


def _find(chat: Chat, queued_id: int) -> Queued:
    for queued in chat.queue:
        if queued.id == queued_id:
            return queued
    raise _Refused("QueuedMessageNotFound")


# Users


@_starts_in(Transition.SET_ARCHIVED, "W XW E0 XE0 E1 XE1")
def _set_archived(chat: Chat, action: Action) -> Chat:
    if chat.archived == action.archived:
        raise _Refused("TransitionNotAllowed")
    return replace(chat, archived=action.archived)


@_starts_in(Transition.SEND_MESSAGE_QUEUE, "W E0 E1 R0 R1 I0 I1 A0 A1")
@_starts_in(Transition.SEND_MESSAGE_STEER, "W E0 E1 R0 R1 I0 I1 A0 A1")
def _send(chat: Chat, action: Action) -> Chat:
    steer = action.transition is Transition.SEND_MESSAGE_STEER
    match chat.state:
        case State.W | State.E0:
            return _run_on(_say(chat, action.text, "new_user_message"))
        case State.E1:
            # Popped before the append: a full queue still takes the message that drains it.
            chat, head = _pop(chat)
            return _run_on(_append(_say(chat, head, "queued_message"), action.text, steer=steer))
        case _:
            return _touch(_append(chat, action.text, steer=steer))


@_starts_in(Transition.SEND_MESSAGE_INTERRUPT, "W E0 E1 R0 R1 I0 I1 A0 A1")
def _send_interrupting(chat: Chat, action: Action) -> Chat:
    """Send a message that runs next, before all queued messages."""
    match chat.state:
        case State.R0 | State.R1:
            return _stop(_prepend(chat, action.text))
        case State.I0 | State.I1:
            return _touch(_prepend(chat, action.text))
        case State.A0 | State.A1:
            return _run_on(_say(chat, action.text, "interrupted_by_message"))
        case _:
            return _run_on(_say(chat, action.text, "new_user_message"))


@_starts_in(Transition.EDIT_MESSAGE, "W E0 E1 R0 R1 I0 I1 A0 A1")
def _edit_message(chat: Chat, action: Action) -> Chat:
    """Delete the target and all later rows, start a turn with the replacement, and clear the queue."""
    if not 0 <= action.target < len(chat.history):
        raise _Refused("MessageNotFound")
    target = chat.history[action.target]
    if not target.live or target.kind is Kind.SYSTEM:
        raise _Refused("MessageNotFound")
    if target.kind is not Kind.USER:
        raise _Refused("EditTargetNotUser")
    kept, cut = chat.history[: action.target], chat.history[action.target :]
    gone = tuple(row if row.deleted else replace(row, deleted=True, revision=chat.snapshot) for row in cut)
    chat = _say(replace(chat, history=kept + gone), action.text, "message_edited")
    return _run_on(_requeue(_insert(chat, *action.rows), ()))


@_starts_in(Transition.REQUEST_COMPACTION, "W E0 E1")
def _request_compaction(chat: Chat, action: Action) -> Chat:
    if not chat.compactable:
        raise _Refused("NothingToCompact")
    resume = chat.status == Status.ERROR
    return replace(_disown(_fresh_epoch(_run_on(chat))), compaction=True, compaction_resume=resume)


@_starts_in(Transition.RETRY_TURN, "E0 E1 W")
def _retry_turn(chat: Chat, action: Action) -> Chat:
    if chat.state is State.W:
        # Notices of the system stand between; they are nobody's words.
        last = next((row.kind for row in reversed(chat.history) if row.live and row.kind is not Kind.SYSTEM), None)
        if last not in (Kind.USER, Kind.TOOL, Kind.CLOSURE):
            raise _Refused("TransitionNotAllowed")
    return _disown(_fresh_epoch(_run_on(chat)))


@_starts_in(Transition.WAKE_PARENT, "W")
def _wake_parent(chat: Chat, action: Action) -> Chat:
    """Start a turn with a notice about a subagent."""
    return _run_on(_say(chat, action.text, "new_user_message"))


@_starts_in(Transition.DELETE_QUEUED_MESSAGE, "E1 R1 I1 A1")
def _delete_queued(chat: Chat, action: Action) -> Chat:
    gone = _find(chat, action.target)
    return _requeue(chat, tuple(queued for queued in chat.queue if queued is not gone))


@_starts_in(Transition.CLEAR_QUEUE, "E1 R1 I1 A1")
def _clear_queue(chat: Chat, action: Action) -> Chat:
    return _requeue(chat, ())


@_starts_in(Transition.EDIT_QUEUED_MESSAGE, "E1 R1 I1 A1")
def _edit_queued(chat: Chat, action: Action) -> Chat:
    edited = _find(chat, action.target)
    return _requeue(
        chat, tuple(replace(queued, text=action.text) if queued is edited else queued for queued in chat.queue)
    )


@_starts_in(Transition.REORDER_QUEUE, "E1 R1 I1 A1")
def _reorder_queue(chat: Chat, action: Action) -> Chat:
    if sorted(action.order) != sorted(queued.id for queued in chat.queue):
        raise _Refused("QueueChanged")
    return _requeue(chat, tuple(_find(chat, queued_id) for queued_id in action.order))


@_starts_in(Transition.PROMOTE_QUEUED_MESSAGE, "E1 R1 I1 A1")
def _promote(chat: Chat, action: Action) -> Chat:
    chosen = _find(chat, action.target)
    others = tuple(queued for queued in chat.queue if queued is not chosen)
    if chat.state in (State.E1, State.A1):
        return _run_on(_say(_requeue(chat, others), chosen.text, "queued_message"))
    return _stop(_requeue(chat, (chosen, *others)))


@_starts_in(Transition.INTERRUPT, "R0 R1 A0 A1")
def _interrupt(chat: Chat, action: Action) -> Chat:
    if chat.status == Status.RUNNING:
        return _stop(chat)
    return _end_turn(_close(chat, "interrupted_by_user"))


def _end_turn(chat: Chat) -> Chat:
    """End the turn: run the first queued message, or rest."""
    if not chat.queue:
        return _rest(chat)
    chat, head = _pop(chat)
    return _run_on(_say(chat, head, "queued_message"))


@_starts_in(Transition.COMPLETE_REQUIRES_ACTION, "A0 A1")
def _complete(chat: Chat, action: Action) -> Chat:
    if chat.asked:
        raise _Refused("TransitionNotAllowed")
    seen: set[str] = set()
    for result in action.results:
        if result.call in seen:
            raise _Refused("ToolResultRejected", "duplicate")
        seen.add(result.call)
        if not result.valid_json:
            raise _Refused("ToolResultRejected", "invalid_json")
    pending = {call.id for call in chat.client_calls}
    if pending - seen:
        raise _Refused("ToolResultRejected", "missing")
    if seen - pending:
        raise _Refused("ToolResultRejected", "unexpected")
    answers = (Row(Kind.TOOL, answers=result.call) for result in action.results)
    return _run_on(_insert(chat, *answers, *action.rows))


@_starts_in(Transition.ANSWER_APPROVALS, "A0 A1")
def _answer(chat: Chat, action: Action) -> Chat:
    """Answer exactly the open questions. Denied calls are closed; approved calls stay open for the worker."""
    if not chat.asked:
        raise _Refused("TransitionNotAllowed")
    given = [result.call for result in action.results]
    if len(given) > len(set(given)):
        raise _Refused("ApprovalRejected", "duplicate")
    if set(chat.asked) - set(given):
        raise _Refused("ApprovalRejected", "missing")
    if set(given) - set(chat.asked):
        raise _Refused("ApprovalRejected", "unexpected")
    refused = [each.call for each in action.results if not each.valid_json]
    denied = (Row(Kind.CLOSURE, answers=call, reason="denied_by_user") for call in refused)
    approved = tuple(each.call for each in action.results if each.valid_json)
    chat = replace(chat, approved=tuple(sorted((*chat.approved, *approved))))
    return _run_on(_fresh_epoch(_insert(chat, *denied)))


@_starts_in(Transition.RECONCILE_INVALID_STATE, "INVALID")
def _reconcile(chat: Chat, action: Action) -> Chat:
    chat = _drop_compaction(_close(chat, "invalid_state", only_client=True))
    return _touch(replace(chat, status=Status.ERROR, last_error=True, archived=False, deadline=None))


# Workers


@_starts_in(Transition.ACQUIRE, "W E0 E1 R0 R1 I0 I1 A0 A1 XW XE0 XE1 INVALID")
def _acquire(chat: Chat, action: Action) -> Chat:
    return replace(chat, owner=action.owner, leased=True)


@_starts_in(Transition.ABANDON, "W E0 E1 R0 R1 I0 I1 A0 A1 XW XE0 XE1 INVALID")
def _abandon(chat: Chat, action: Action) -> Chat:
    if chat.owner is None:
        raise _Refused("TransitionNotAllowed")
    return _disown(chat)


@_starts_in(Transition.GIVE_WAY, "R0 R1")
def _give_way(chat: Chat, action: Action) -> Chat:
    return _abandon(chat, action)


@_starts_in(Transition.RECORD_GENERATION_ATTEMPT, "R0 R1")
def _record_attempt(chat: Chat, action: Action) -> Chat:
    return _retry(replace(chat, attempt=chat.attempt + 1), None)


@_starts_in(Transition.RECORD_RETRY_STATE, "R0 R1")
def _record_retry(chat: Chat, action: Action) -> Chat:
    return _retry(chat, action.text)


@_starts_in(Transition.COMMIT_STEP, "R0 R1")
def _commit_step(chat: Chat, action: Action) -> Chat:
    """Commit a step. Steering rows follow it, unless a call is still open."""
    if not action.rows:
        raise _Refused("InvalidInput")
    # The summary of a chat that was at rest ends the turn. Steering rows wait for `finish_turn`, which starts a turn
    # for them; in the history they would rest unheard.
    ends_turn = action.consume_compaction and chat.compaction and not chat.compaction_resume
    chat = _insert(chat, *action.rows)
    if action.consume_compaction:
        chat = _drop_compaction(chat)
    if not chat.open_calls and not ends_turn:
        heard = tuple(Row(Kind.USER, text=queued.text) for queued in chat.queue if queued.steer)
        chat = _insert(_requeue(chat, tuple(queued for queued in chat.queue if not queued.steer)), *heard)
    return _touch(chat)


@_starts_in(Transition.ENTER_REQUIRES_ACTION, "R0 R1")
def _enter(chat: Chat, action: Action) -> Chat:
    if not chat.client_calls:
        raise _Refused("TransitionNotAllowed")
    return _touch(replace(_drop_compaction(chat), status=Status.REQUIRES_ACTION, deadline=action.deadline))


@_starts_in(Transition.ASK_APPROVALS, "R0 R1")
def _ask(chat: Chat, action: Action) -> Chat:
    """Ask about all calls that the server would run."""
    asked = tuple(call.id for call in chat.open_calls if call.tool is Tool.LOCAL)
    if not asked:
        raise _Refused("TransitionNotAllowed")
    approved = tuple(each for each in chat.approved if each not in asked)
    chat = replace(_drop_compaction(chat), asked=asked, approved=approved)
    return _touch(replace(chat, status=Status.REQUIRES_ACTION, deadline=action.deadline))


@_starts_in(Transition.FINISH_TURN, "R0 R1")
def _finish_turn(chat: Chat, action: Action) -> Chat:
    return _end_turn(chat)


@_starts_in(Transition.FINISH_INTERRUPTION, "I0 I1")
def _finish_interruption(chat: Chat, action: Action) -> Chat:
    return _end_turn(_close(_insert(chat, *action.rows), "interrupted"))


@_starts_in(Transition.FINISH_ERROR, "W R0 R1")
def _finish_error(chat: Chat, action: Action) -> Chat:
    return _touch(_retry(replace(_drop_compaction(chat), status=Status.ERROR, last_error=True), None))


@_starts_in(Transition.CANCEL_REQUIRES_ACTION, "A0 A1")
def _cancel(chat: Chat, action: Action) -> Chat:
    if chat.asked and chat.deadline is Deadline.PASSED:
        closed = (Row(Kind.CLOSURE, answers=call, reason="approval_timed_out") for call in chat.asked)
        return _run_on(_insert(chat, *closed))
    if chat.asked or not chat.client_calls or chat.deadline is Deadline.AHEAD:
        raise _Refused("TransitionNotAllowed")
    reason = "action_timed_out" if chat.deadline else "action_deadline_missing"
    return _run_on(_close(chat, reason, only_client=True))
