"""The table of transitions: the states in which each is allowed, and the states that it may lead to.

The store checks the state before a transition against the keys, and the state after it against the values. A pair that
is not in the table is refused. Tests derive all legal and illegal cases from it.
"""

from __future__ import annotations

from enum import StrEnum

from rookery.domain.chat.states import EXISTING, STATUS_OF, State, Status

N, W, E0, E1 = State.N, State.W, State.E0, State.E1
R0, R1, I0, I1, A0, A1 = State.R0, State.R1, State.I0, State.I1, State.A0, State.A1
XW, XE0, XE1, INVALID = State.XW, State.XE0, State.XE1, State.INVALID


class Transition(StrEnum):
    """The transitions. Logs, metrics, docs and the user interface use the same names."""

    CREATE_CHAT = "create_chat"
    SET_ARCHIVED = "set_archived"
    SEND_MESSAGE_QUEUE = "send_message(queue)"
    SEND_MESSAGE_STEER = "send_message(steer)"
    SEND_MESSAGE_INTERRUPT = "send_message(interrupt)"
    EDIT_MESSAGE = "edit_message"
    REQUEST_COMPACTION = "request_compaction"
    DELETE_QUEUED_MESSAGE = "delete_queued_message"
    CLEAR_QUEUE = "clear_queue"
    EDIT_QUEUED_MESSAGE = "edit_queued_message"
    REORDER_QUEUE = "reorder_queue"
    PROMOTE_QUEUED_MESSAGE = "promote_queued_message"
    INTERRUPT = "interrupt"
    RETRY_TURN = "retry_turn"
    WAKE_PARENT = "wake_parent"
    COMPLETE_REQUIRES_ACTION = "complete_requires_action"
    ANSWER_APPROVALS = "answer_approvals"
    RECORD_GENERATION_ATTEMPT = "record_generation_attempt"
    RECORD_RETRY_STATE = "record_retry_state"
    COMMIT_STEP = "commit_step"
    ENTER_REQUIRES_ACTION = "enter_requires_action"
    ASK_APPROVALS = "ask_approvals"
    FINISH_TURN = "finish_turn"
    FINISH_INTERRUPTION = "finish_interruption"
    FINISH_ERROR = "finish_error"
    CANCEL_REQUIRES_ACTION = "cancel_requires_action"
    RECONCILE_INVALID_STATE = "reconcile_invalid_state"
    ACQUIRE = "acquire"
    ABANDON = "abandon"
    GIVE_WAY = "give_way"


class BusyBehavior(StrEnum):
    """The handling of a message that is sent to a busy chat."""

    QUEUE = "queue"
    STEER = "steer"
    INTERRUPT = "interrupt"

    @property
    def transition(self) -> Transition:
        return _SEND[self]


_SEND = {
    BusyBehavior.QUEUE: Transition.SEND_MESSAGE_QUEUE,
    BusyBehavior.STEER: Transition.SEND_MESSAGE_STEER,
    BusyBehavior.INTERRUPT: Transition.SEND_MESSAGE_INTERRUPT,
}

Moves = dict[State, frozenset[State]]


def _moves(**targets: str) -> Moves:
    """Return the moves of keywords such as `R1="R0 R1"`: from R1 to R0 or R1."""
    return {State[source]: frozenset(State[name] for name in names.split()) for source, names in targets.items()}


def _stays(states: frozenset[State]) -> Moves:
    return {state: frozenset({state}) for state in State if state in states}


_SEND_QUEUE = _moves(W="R0", E0="R0", E1="R1", R0="R1", R1="R1", I0="I1", I1="I1", A0="A1", A1="A1")

TABLE: dict[Transition, Moves] = {
    Transition.CREATE_CHAT: _moves(N="R0"),
    Transition.SET_ARCHIVED: _moves(W="XW", XW="W", E0="XE0", XE0="E0", E1="XE1", XE1="E1"),
    Transition.SEND_MESSAGE_QUEUE: _SEND_QUEUE,
    Transition.SEND_MESSAGE_STEER: _SEND_QUEUE,
    Transition.SEND_MESSAGE_INTERRUPT: _moves(
        W="R0", E0="R0", E1="R1", R0="I1", R1="I1", I0="I1", I1="I1", A0="R0", A1="R1"
    ),
    Transition.EDIT_MESSAGE: _moves(W="R0", E0="R0", E1="R0", R0="R0", R1="R0", I0="R0", I1="R0", A0="R0", A1="R0"),
    Transition.REQUEST_COMPACTION: _moves(W="R0", E0="R0", E1="R1"),
    Transition.DELETE_QUEUED_MESSAGE: _moves(E1="E0 E1", R1="R0 R1", I1="I0 I1", A1="A0 A1"),
    Transition.CLEAR_QUEUE: _moves(E1="E0", R1="R0", I1="I0", A1="A0"),
    Transition.EDIT_QUEUED_MESSAGE: _moves(E1="E1", R1="R1", I1="I1", A1="A1"),
    Transition.REORDER_QUEUE: _moves(E1="E1", R1="R1", I1="I1", A1="A1"),
    Transition.PROMOTE_QUEUED_MESSAGE: _moves(E1="R0 R1", R1="I1", I1="I1", A1="R0 R1"),
    Transition.INTERRUPT: _moves(R0="I0", R1="I1", A0="W", A1="R0 R1 E1"),
    Transition.RETRY_TURN: _moves(E0="R0", E1="R1", W="R0"),
    Transition.WAKE_PARENT: _moves(W="R0"),
    Transition.COMPLETE_REQUIRES_ACTION: _moves(A0="R0", A1="R1"),
    Transition.ANSWER_APPROVALS: _moves(A0="R0", A1="R1"),
    Transition.RECORD_GENERATION_ATTEMPT: _moves(R0="R0", R1="R1"),
    Transition.RECORD_RETRY_STATE: _moves(R0="R0", R1="R1"),
    Transition.COMMIT_STEP: _moves(R0="R0", R1="R0 R1"),
    Transition.ENTER_REQUIRES_ACTION: _moves(R0="A0", R1="A1"),
    Transition.ASK_APPROVALS: _moves(R0="A0", R1="A1"),
    Transition.FINISH_TURN: _moves(R0="W", R1="R0 R1"),
    Transition.FINISH_INTERRUPTION: _moves(I0="W", I1="R0 R1 E1"),
    Transition.FINISH_ERROR: _moves(W="E0", R0="E0", R1="E1"),
    Transition.CANCEL_REQUIRES_ACTION: _moves(A0="R0", A1="R1"),
    Transition.RECONCILE_INVALID_STATE: _moves(INVALID="E0 E1"),
    Transition.ACQUIRE: _stays(EXISTING),
    Transition.ABANDON: _stays(EXISTING),
    Transition.GIVE_WAY: _moves(R0="R0", R1="R1"),
}

# The only transitions that may change a chat whose state is INVALID.
ALLOWED_WHEN_INVALID = frozenset({Transition.RECONCILE_INVALID_STATE, Transition.ACQUIRE, Transition.ABANDON})


def is_legal(transition: Transition, source: State, target: State) -> bool:
    return target in TABLE[transition].get(source, frozenset())


# The first part of the sentence that refuses a transition, in the words of the user interface.
_CANNOT: dict[Transition, str] = {
    Transition.CREATE_CHAT: "This chat cannot be created again",
    Transition.SET_ARCHIVED: "This chat cannot be archived",
    Transition.SEND_MESSAGE_QUEUE: "No message can be sent to this chat",
    Transition.SEND_MESSAGE_STEER: "No message can be sent to this chat",
    Transition.SEND_MESSAGE_INTERRUPT: "No message can be sent to this chat",
    Transition.EDIT_MESSAGE: "No message of this chat can be edited",
    Transition.REQUEST_COMPACTION: "This chat cannot be compacted",
    Transition.DELETE_QUEUED_MESSAGE: "No queued message of this chat can be deleted",
    Transition.CLEAR_QUEUE: "The queue of this chat cannot be cleared",
    Transition.EDIT_QUEUED_MESSAGE: "No queued message of this chat can be edited",
    Transition.REORDER_QUEUE: "The queue of this chat cannot be reordered",
    Transition.PROMOTE_QUEUED_MESSAGE: "No queued message of this chat can be sent now",
    Transition.INTERRUPT: "This chat cannot be stopped",
    Transition.RETRY_TURN: "The last turn of this chat cannot be retried",
    Transition.WAKE_PARENT: "This chat cannot be resumed by its subagents",
    Transition.COMPLETE_REQUIRES_ACTION: "This chat accepts no tool results",
    Transition.ANSWER_APPROVALS: "This chat accepts no answers about tool calls",
    Transition.RECORD_GENERATION_ATTEMPT: "No attempt can be counted in this chat",
    Transition.RECORD_RETRY_STATE: "No retry can be recorded in this chat",
    Transition.COMMIT_STEP: "No step can be committed to this chat",
    Transition.ENTER_REQUIRES_ACTION: "This chat cannot wait for tool results",
    Transition.ASK_APPROVALS: "This chat cannot wait for approvals",
    Transition.FINISH_TURN: "The turn of this chat cannot be finished",
    Transition.FINISH_INTERRUPTION: "The interruption of this chat cannot be finished",
    Transition.FINISH_ERROR: "This chat cannot be stopped with an error",
    Transition.CANCEL_REQUIRES_ACTION: "The wait of this chat for tool results cannot be canceled",
    Transition.RECONCILE_INVALID_STATE: "This chat cannot be repaired",
    Transition.ACQUIRE: "This chat cannot be acquired",
    Transition.ABANDON: "This chat cannot be released",
    Transition.GIVE_WAY: "This chat cannot give way to another",
}

_DOING: dict[Status, str] = {
    Status.WAITING: "is idle",
    Status.RUNNING: "is running",
    Status.INTERRUPTING: "is being stopped",
    Status.REQUIRES_ACTION: "waits for tool results or approvals",
    Status.ERROR: "has an error",
}

_QUEUE_UPKEEP = frozenset(transition for transition in Transition if "queue" in transition) - {
    Transition.SEND_MESSAGE_QUEUE
}

# The suggestion at the end of the refusal: by transition, or by status for transitions that are not listed.
_INSTEAD: dict[Transition, str] = {
    Transition.INTERRUPT: "There is nothing to stop; send a message to continue.",
    Transition.COMPLETE_REQUIRES_ACTION: "Reload the chat to see its tool calls.",
    Transition.ANSWER_APPROVALS: "Reload the chat to see its tool calls.",
    Transition.RECONCILE_INVALID_STATE: "Its state is valid.",
} | dict.fromkeys(
    (
        Transition.RECORD_GENERATION_ATTEMPT,
        Transition.RECORD_RETRY_STATE,
        Transition.COMMIT_STEP,
        Transition.ENTER_REQUIRES_ACTION,
        Transition.ASK_APPROVALS,
        Transition.FINISH_TURN,
        Transition.FINISH_INTERRUPTION,
        Transition.FINISH_ERROR,
        Transition.CANCEL_REQUIRES_ACTION,
        Transition.GIVE_WAY,
    ),
    "Discard the work and read the chat again.",
)
_WHEN: dict[Status, str] = {
    Status.WAITING: "Send a message to continue.",
    Status.RUNNING: "Stop it, or wait for the end of its turn.",
    Status.INTERRUPTING: "Wait a moment until it has stopped.",
    Status.REQUIRES_ACTION: "Send the results or answers, or stop it.",
    Status.ERROR: "Send a message to continue, or retry the turn.",
}


def refusal(transition: Transition, state: State) -> str:
    """Return the text for users: why the transition is not possible in this state, and what to do."""
    cannot, status = _CANNOT[transition], STATUS_OF.get(state)
    if state is State.N:
        return f"{cannot}: the chat does not exist. It may have been deleted."
    if transition is Transition.CREATE_CHAT:
        return f"{cannot}: it exists already. Choose another id."
    if status is None:
        return f"{cannot} while its state is damaged. Reconcile it first."
    if state.is_archived:
        return f"{cannot} while it is archived. Unarchive it first."
    if transition in _QUEUE_UPKEEP and not state.has_queue:
        return f"{cannot}: the queue is empty. Reload the chat."
    instead = _INSTEAD.get(transition, _WHEN[status])
    if transition is Transition.INTERRUPT and status is Status.INTERRUPTING:
        instead = _WHEN[status]
    return f"{cannot} while it {_DOING[status]}. {instead}"


def reference_markdown() -> str:
    """Return the table for `docs/reference/transitions.md`: one row per transition, one column per starting state."""
    states = [state for state in State if state is not State.N]
    lines = [
        "# States and transitions",
        "",
        "`make docs` generates this page from `rookery.domain.chat.transitions`. A row is a transition, a column is",
        "the state before it. The cell is the state after it; in an empty cell, the transition is refused. If a cell",
        "has several states, the result ends in 0 if the queue is empty afterwards, and in 1 if it is not. `interrupt`",
        "and `finish_interruption` result in E1 if the owner's account is disabled and messages are queued.",
        "",
        "The letter is the status: W waiting, E error, R running, I interrupting, A requires_action. The digit is the",
        "queue: 0 empty, 1 not empty. A prefix X means archived. INVALID is every other combination of status, queue",
        "and archived. `create_chat` is not in the table: it creates a chat in R0.",
        "",
        "| Transition | " + " | ".join(states) + " |",
        "| --- |" + " --- |" * len(states),
    ]
    for transition, moves in TABLE.items():
        if transition is not Transition.CREATE_CHAT:
            cells = [" ".join(target for target in State if target in moves.get(state, ())) for state in states]
            lines.append(f"| `{transition}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
