"""The actors of the state model, and the actions that each can try after its last observation."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import Transition
from tests.domain.chat.state_model_values import Action, Call, Chat, Deadline, Fence, Kind, Result, Row, Tool

GONE = 999
T = Transition


class Attempt(Struct, frozen=True):
    """One bundle that an actor tries: its label, its transitions and its fence."""

    name: str
    actions: tuple[Action, ...]
    fence: Fence | None = None

    @property
    def transition(self) -> Transition:
        return self.actions[0].transition


class User(Struct, frozen=True):
    """A user, with the last state of the chat that the user has seen."""

    name: str
    seen: Chat

    def attempts(self, turn: int) -> Iterator[Attempt]:
        """Return all actions of a user. `turn` makes texts unique."""
        seen, text = self.seen, f"{self.name}-{turn}"
        for archived in (True, False):
            yield _one(T.SET_ARCHIVED, f"archived={archived}", archived=archived)
        for transition in (T.SEND_MESSAGE_QUEUE, T.SEND_MESSAGE_STEER, T.SEND_MESSAGE_INTERRUPT):
            yield _one(transition, text=text)
        users = [index for index, row in enumerate(seen.history) if row.kind is Kind.USER and row.live]
        for name, target in {"first": users[0], "last": users[-1], "hidden": 0, "gone": GONE}.items():
            yield _one(T.EDIT_MESSAGE, name, target=target, text=text)
        if (other := _last_of(seen, Kind.ASSISTANT)) is not None:
            yield _one(T.EDIT_MESSAGE, "assistant's", target=other, text=text)
        for transition in (T.REQUEST_COMPACTION, T.RETRY_TURN, T.INTERRUPT, T.CLEAR_QUEUE, T.RECONCILE_INVALID_STATE):
            yield _one(transition)
        yield _one(T.WAKE_PARENT, text=text)
        yield from self._queue_attempts(text)
        yield from self._result_attempts()

    def _queue_attempts(self, text: str) -> Iterator[Attempt]:
        queue = self.seen.queue
        ids = tuple(queued.id for queued in queue)
        places = {"head": ids[0], "tail": ids[-1]} if len(ids) > 1 else {"only": (*ids, GONE)[0]}
        for place, target in places.items():
            yield _one(T.DELETE_QUEUED_MESSAGE, place, target=target)
            yield _one(T.EDIT_QUEUED_MESSAGE, place, target=target, text=text)
            yield _one(T.PROMOTE_QUEUED_MESSAGE, place, target=target)
        if queue:
            yield _one(T.EDIT_QUEUED_MESSAGE, "unchanged", target=ids[0], text=queue[0].text)
        yield _one(T.REORDER_QUEUE, "as seen", order=ids)
        if len(ids) > 1:
            yield _one(T.REORDER_QUEUE, "reversed", order=ids[::-1])

    def _result_attempts(self) -> Iterator[Attempt]:
        asked = tuple(Result(call.id) for call in self.seen.client_calls)
        stray = Result("stray")
        yield _one(T.COMPLETE_REQUIRES_ACTION, "as asked", results=asked)
        yield _one(T.COMPLETE_REQUIRES_ACTION, "unexpected", results=(*asked, stray))
        yield _one(T.COMPLETE_REQUIRES_ACTION, "broken", results=(replace(stray, valid_json=False), *asked))
        if asked:
            yield _one(T.COMPLETE_REQUIRES_ACTION, "missing", results=asked[1:])
            yield _one(T.COMPLETE_REQUIRES_ACTION, "twice", results=(*asked, asked[0]))
        yield from self._answer_attempts(stray)

    def _answer_attempts(self, stray: Result) -> Iterator[Attempt]:
        yes = tuple(Result(call) for call in self.seen.asked)
        yield _one(T.ANSWER_APPROVALS, "yes", results=yes)
        if yes:
            yield _one(T.ANSWER_APPROVALS, "no", results=(*yes[1:], replace(yes[0], valid_json=False)))
            yield _one(T.ANSWER_APPROVALS, "missing", results=yes[1:])
            yield _one(T.ANSWER_APPROVALS, "twice", results=(*yes, yes[0]))
            yield _one(T.ANSWER_APPROVALS, "unexpected", results=(*yes, stray))


class Worker(Struct, frozen=True):
    """A runner with the chat as it was loaded. Until it has acquired the chat, it can do nothing else."""

    name: str
    seen: Chat
    owner: tuple[str, str] | None = None

    def attempts(self, turn: int) -> Iterator[Attempt]:
        yield _one(T.ACQUIRE, owner=(self.name, f"{self.name}-{turn}"))
        if self.owner is None:
            return
        fence = Fence(owner=self.owner, status=self.seen.status, history_version=self.seen.history_version)
        yield _one(T.ABANDON, fence=replace(fence, allow_archived=True))
        yield from self._running_attempts(replace(fence, status=Status.RUNNING), turn)
        if self.seen.status == Status.WAITING:
            yield _one(T.FINISH_ERROR, "not admitted", fence=fence)
        stopping = replace(fence, status=Status.INTERRUPTING)
        for name, rows in {"": (), "partial": (_says("part"),), "partial call": (_calls(turn, Tool.LOCAL),)}.items():
            yield _one(T.FINISH_INTERRUPTION, name, rows=rows, fence=stopping)
        yield _one(T.CANCEL_REQUIRES_ACTION, fence=replace(fence, status=Status.REQUIRES_ACTION))

    def _running_attempts(self, fence: Fence, turn: int) -> Iterator[Attempt]:
        """Return the actions on a running chat. The fence of actions after a model call includes the attempt."""
        counted = replace(fence, attempt=self.seen.attempt)
        yield _one(T.GIVE_WAY, fence=fence)
        yield _one(T.RECORD_GENERATION_ATTEMPT, fence=fence)
        yield _one(T.RECORD_RETRY_STATE, text="overloaded", fence=fence)
        for deadline in Deadline:
            yield _one(T.ENTER_REQUIRES_ACTION, deadline, deadline=deadline, fence=fence)
        for limit in (None, *Deadline):
            yield _one(T.ASK_APPROVALS, limit or "open end", deadline=limit, fence=fence)
        steps = dict(self._steps(turn))
        for name, rows in steps.items():
            yield _one(T.COMMIT_STEP, name, rows=rows, fence=counted)
        summary = _one(T.COMMIT_STEP, "summary", rows=SUMMARY, consume_compaction=True, fence=counted)
        yield summary
        yield _one(T.COMMIT_STEP, "nothing", fence=counted)
        finish, fail = _one(T.FINISH_TURN, fence=counted), _one(T.FINISH_ERROR, fence=counted)
        yield finish
        yield _one(T.FINISH_TURN, "undecided", fence=fence)
        yield fail
        yield Attempt("summary + finish_turn", summary.actions + finish.actions, counted)
        rows = next(iter(steps.values()))
        step = Action(transition=T.COMMIT_STEP, rows=rows)
        yield Attempt("commit_step + finish_error", (step, *fail.actions), counted)

    def _steps(self, turn: int) -> Iterator[tuple[str, tuple[Row, ...]]]:
        """Return the steps that can be committed. Open calls are settled first, as in the real worker."""
        calls = self.seen.open_calls
        local = tuple(call for call in calls if call.tool is Tool.LOCAL)
        if local:
            yield "results", tuple(Row(Kind.TOOL, answers=call.id) for call in local)
        if calls:
            yield "beside open calls", (_says("more"),)
            return
        yield "answer", (_says("done"),)
        yield "local call", (_calls(turn, Tool.LOCAL),)
        yield "client call", (_calls(turn, Tool.CLIENT),)
        yield "both calls", (_calls(turn, Tool.LOCAL, Tool.CLIENT),)
        yield "provider's call", (_calls(turn, Tool.PROVIDER),)


Actor = User | Worker
SUMMARY = (Row(Kind.SUMMARY, text="so far"), Row(Kind.NOTE, text="compacted"))


def after(actor: Actor, attempt: Attempt, outcome: Chat) -> Actor:
    """Return the actor after its attempt was committed, with the resulting state as its view."""
    if isinstance(actor, Worker) and attempt.transition is T.ACQUIRE:
        return Worker(actor.name, outcome, attempt.actions[0].owner)
    return replace(actor, seen=outcome)


def _one(transition: Transition, name: str = "", *, fence: Fence | None = None, **arguments: object) -> Attempt:
    label = f"{transition} {name}".strip()
    return Attempt(label, (Action(transition=transition, **arguments),), fence)  # type: ignore[arg-type]


def _says(text: str) -> Row:
    return Row(Kind.ASSISTANT, text=text)


def _calls(turn: int, *tools: Tool) -> Row:
    return Row(Kind.ASSISTANT, calls=tuple(Call(f"call-{turn}-{number}", tool) for number, tool in enumerate(tools)))


def _last_of(chat: Chat, kind: Kind) -> int | None:
    places = [index for index, row in enumerate(chat.history) if row.kind is kind and row.live]
    return places[-1] if places else None
