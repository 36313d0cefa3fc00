"""The values of the state model: a chat, its rows, the transitions, and the refusals."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from rookery.domain.chat.states import State, Status, classify
from rookery.domain.chat.transitions import Transition

MAX_QUEUE = 20


class Kind(StrEnum):
    """The kind of a history row. A compaction inserts a SUMMARY for the model and a NOTE for users."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    CLOSURE = "closure"
    SUMMARY = "summary"
    NOTE = "note"


class Tool(StrEnum):
    """The executor of a call."""

    LOCAL = "local"
    CLIENT = "client"
    PROVIDER = "provider"


class Deadline(StrEnum):
    """The deadline of `requires_action`, by the database clock."""

    PASSED = "passed"
    AHEAD = "ahead"


class Call(Struct, frozen=True):
    id: str
    tool: Tool = Tool.LOCAL


class Row(Struct, frozen=True):
    """A row of the history. Its id is its position: rows are never removed, only marked as deleted."""

    kind: Kind
    text: str = ""
    calls: tuple[Call, ...] = ()
    answers: str = ""
    reason: str = ""
    revision: int = 0
    deleted: bool = False

    @property
    def live(self) -> bool:
        return not self.deleted and self.kind not in (Kind.SUMMARY, Kind.NOTE)


class Queued(Struct, frozen=True):
    id: int
    text: str
    steer: bool = False


class Chat(Struct, frozen=True, kw_only=True, dict=True):
    """A chat's execution state. `owner` is the pair (worker, runner); `leased` means that its heartbeat is recent.

    `asked` are the calls that wait for the user's decision, and `approved` the calls that the user has approved.
    """

    status: str = Status.RUNNING
    archived: bool = False
    queue: tuple[Queued, ...] = ()
    history: tuple[Row, ...] = ()
    owner: tuple[str, str] | None = None
    leased: bool = False
    last_error: bool = False
    retry_state: str | None = None
    deadline: Deadline | None = None
    asked: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()
    compaction: bool = False
    compaction_resume: bool = False
    snapshot: int = 1
    history_version: int = 0
    queue_version: int = 0
    retry_state_version: int = 0
    attempt: int = 0
    touched: int = 1
    runnable_since: int | None = 1
    queued_so_far: int = 0
    max_queue: int = MAX_QUEUE

    @cached_property
    def state(self) -> State:
        return classify(self.status, archived=self.archived, queue_len=len(self.queue))

    @cached_property
    def open_calls(self) -> tuple[Call, ...]:
        """The calls of the turn without a result, except those that the provider runs."""
        found: dict[str, Call] = {}
        for row in self.history:
            if not row.live:
                continue
            if row.kind is Kind.USER:
                found.clear()
            for call in row.calls:
                if call.tool is not Tool.PROVIDER:
                    found[call.id] = call
            found.pop(row.answers, None)
        return tuple(found.values())

    @property
    def client_calls(self) -> tuple[Call, ...]:
        return tuple(call for call in self.open_calls if call.tool is Tool.CLIENT)

    @property
    def compactable(self) -> bool:
        """Whether there is a live assistant row after the newest boundary."""
        for row in reversed(self.history):
            if row.kind is Kind.SUMMARY and not row.deleted:
                return False
            if row.kind is Kind.ASSISTANT and row.live:
                return True
        return False


class Result(Struct, frozen=True):
    """A client's result of a call. As an answer to a question, an invalid result is a denial."""

    call: str
    valid_json: bool = True


class Action(Struct, frozen=True, kw_only=True):
    """A transition with its arguments. Each transition uses only some of them."""

    transition: Transition
    text: str = ""
    archived: bool = False
    target: int = 0
    order: tuple[int, ...] = ()
    results: tuple[Result, ...] = ()
    rows: tuple[Row, ...] = ()
    consume_compaction: bool = False
    deadline: Deadline | None = Deadline.PASSED
    owner: tuple[str, str] = ("", "")


class Fence(Struct, frozen=True, kw_only=True):
    """The versions that a worker's task has read."""

    owner: tuple[str, str]
    status: str
    history_version: int
    attempt: int | None = None
    allow_archived: bool = False

    def holds(self, chat: Chat) -> bool:
        return (
            (chat.owner, chat.status, chat.history_version) == (self.owner, self.status, self.history_version)
            and self.attempt in (None, chat.attempt)
            and (self.allow_archived or not chat.archived)
        )


class Refusal(Struct, frozen=True):
    """The name of the error, and its other specified properties."""

    error: str
    detail: str = ""
