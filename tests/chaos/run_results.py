"""The results of a run as plain values: the input of the invariants, which their tests can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    tool: str


@dataclass(frozen=True, slots=True)
class Result:
    """`number` is the number of the effect that the tool reported; None if it reported none."""

    call_id: str
    is_error: bool = False
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message of a history."""

    id: int
    revision: int
    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRecord:
    """A chat at the end of a run. `rows` are by id."""

    id: str
    status: str = "waiting"
    error: str | None = None
    queued: int = 0
    snapshot_version: int = 1
    history_version: int = 1
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that the server accepted, in the order of sending.

    With `overtakes`, the message steers or interrupts, and may precede messages that were sent earlier.
    """

    chat_id: str
    name: str
    overtakes: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of a tool on the effect server. `token` is the replay token of the request, if any."""

    number: int
    call_id: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """A committed message that was observed during the run."""

    chat_id: str
    row_id: int
    revision: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All results of a run."""

    chats: Sequence[ChatRecord]
    accepted: Sequence[Accepted]
    effects: Sequence[Effect] = ()
    tokens: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sightings: Sequence[Sighting] = ()
    versions: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    refusals: Sequence[str] = ()
    database_crashes: int = 0
    """`tokens`: by call id, every token it was ever run with. `versions`: by chat, (snapshot, history) as seen in time.
    `refusals`: what the providers found wrong with requests."""
