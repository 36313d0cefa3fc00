"""The invariants of a run. Each function returns a list of violations, which is empty if the invariant holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.chaos.conversation_plans import BOOK, POST, Plan, answered_names
from tests.chaos.run_results import Accepted, ChatRecord, Result, Run

# Acquisitions and counted attempts (docs/decisions/0019-lazy-commits.md). They do not change the history.
LAZY_COMMITS = 2


def every_message_is_answered_once(run: Run) -> Iterator[str]:
    sent = _sent(run)
    for chat in run.chats:
        answered = Counter(answered_names(row.text for row in chat.rows if row.role == "assistant"))
        for message in sent[chat.id]:
            if answered[message.name] != 1:
                yield f"{chat.id}: {message.name} was answered {answered[message.name]} times"


def every_message_is_there_once(run: Run) -> Iterator[str]:
    """No message is lost or duplicated, and there is none that no user sent."""
    accepted = _sent(run)
    for chat in run.chats:
        found = Counter(_names(chat))
        sent = {message.name for message in accepted[chat.id]}
        for name in sorted(sent | set(found)):
            if found[name] != (name in sent):
                yield f"{chat.id}: {name} was {'accepted' if name in sent else 'not sent'} and is there {found[name]}x"


def messages_stay_in_order(run: Run) -> Iterator[str]:
    """Messages are in the order in which they were sent, except for those that steer or interrupt."""
    accepted = _sent(run)
    for chat in run.chats:
        sent = accepted[chat.id]
        overtaking = {message.name for message in sent if message.overtakes}
        order = [message.name for message in sent if not message.overtakes]
        found = [name for name in dict.fromkeys(_names(chat)) if name not in overtaking]
        if [name for name in found if name in order] != [name for name in order if name in found]:
            yield f"{chat.id}: sent as {order}, stored as {found}"


def ids_and_revisions_rise(run: Run) -> Iterator[str]:
    for chat in run.chats:
        for before, after in pairwise(chat.rows):
            if after.id <= before.id or after.revision < before.revision:
                yield (
                    f"{chat.id}: message {after.id} (revision {after.revision}) stands behind "
                    f"{before.id} (revision {before.revision})"
                )
        newest = max((row.revision for row in chat.rows), default=0)
        if not newest <= chat.history_version <= chat.snapshot_version:
            yield f"{chat.id}: revision {newest}, history {chat.history_version}, snapshot {chat.snapshot_version}"


def versions_never_fall(run: Run) -> Iterator[str]:
    """Observed versions never decrease. A crash of the database may undo lazy commits."""
    for chat_id, seen in run.versions.items():
        for before, after in pairwise(seen):
            undone = before[0] - after[0]
            if after[1] < before[1] or undone > LAZY_COMMITS or (undone > 0 and not run.database_crashes):
                yield f"{chat_id}: versions {before} became {after}"


def committed_messages_stay(run: Run) -> Iterator[str]:
    """Every observed message exists unchanged at the end, because no message is edited in these runs."""
    rows = {(chat.id, row.id): row for chat in run.chats for row in chat.rows}
    for seen in run.sightings:
        row = rows.get((seen.chat_id, seen.row_id))
        if row is None:
            yield f"{seen.chat_id}: message {seen.row_id} was committed and is gone"
        elif (row.revision, row.digest) != (seen.revision, seen.digest):
            yield f"{seen.chat_id}: message {seen.row_id} has changed"


def calls_and_results_pair_up(run: Run) -> Iterator[str]:
    """Every call has one result after it and before any other message. No result is without a call."""
    for chat in run.chats:
        is_open: dict[str, int] = {}
        closed: set[str] = set()
        for row in chat.rows:
            if row.role in ("user", "assistant") and is_open:
                yield f"{chat.id}: {sorted(is_open)} open when message {row.id} came"
                is_open.clear()
            for call in row.calls:
                if call.id in closed or call.id in is_open:
                    yield f"{chat.id}: {call.id} was called again in message {row.id}"
                is_open[call.id] = row.id
            for result in row.results:
                if is_open.pop(result.call_id, None) is None:
                    yield f"{chat.id}: message {row.id} has a result for {result.call_id}, which waits for none"
                closed.add(result.call_id)
        if is_open:
            yield f"{chat.id}: {sorted(is_open)} never got a result"


def no_chat_is_stuck(run: Run) -> Iterator[str]:
    for chat in run.chats:
        if chat.status != "waiting" or chat.queued or chat.error is not None:
            yield f"{chat.id}: {chat.status}, {chat.queued} queued, error {chat.error}"


def effects_happen_once(run: Run) -> Iterator[str]:
    """A call of a ledger or token tool has at most one effect. A call that reports success has exactly that effect."""
    times = Counter(effect.call_id for effect in run.effects)
    for call_id, count in times.items():
        if count > 1:
            yield f"{call_id} happened {count} times"
    numbers = {effect.call_id: effect.number for effect in run.effects}
    for chat in run.chats:
        results = {result.call_id: result for row in chat.rows for result in row.results}
        for call in (call for row in chat.rows for call in row.calls):
            result = results.get(call.id)
            if call.tool in (POST, BOOK) and result is not None and not _is_told(result, numbers.get(call.id)):
                yield f"{chat.id}: {call.id} tells of effect {result.number}, which was {numbers.get(call.id)}"


def replays_bring_the_same_token(run: Run) -> Iterator[str]:
    for call_id, tokens in run.tokens.items():
        if len(tokens) > 1:
            yield f"{call_id} was run with {len(tokens)} tokens"


def providers_refuse_nothing(run: Run) -> Iterator[str]:
    """A real provider would have accepted every request."""
    yield from run.refusals


def _sent(run: Run) -> defaultdict[str, list[Accepted]]:
    """Return the accepted messages by chat, in their order. A long run has thousands of chats."""
    sent = defaultdict[str, list[Accepted]](list)
    for message in run.accepted:
        sent[message.chat_id].append(message)
    return sent


def _is_told(result: Result, number: int | None) -> bool:
    # An error means that the outcome is unknown or that the user interrupted the call, so the effect may have happened.
    return result.is_error or (number is not None and result.number == number)


def _names(chat: ChatRecord) -> list[str]:
    return [plan.name for row in chat.rows if row.role == "user" for plan in Plan.find_all(row.text)]


INVARIANTS: tuple[Callable[[Run], Iterator[str]], ...] = (
    every_message_is_answered_once,
    every_message_is_there_once,
    messages_stay_in_order,
    ids_and_revisions_rise,
    versions_never_fall,
    committed_messages_stay,
    calls_and_results_pair_up,
    no_chat_is_stuck,
    effects_happen_once,
    replays_bring_the_same_token,
    providers_refuse_nothing,
)


def find_faults(run: Run) -> list[str]:
    return [f"{check.__name__}: {fault}" for check in INVARIANTS for fault in check(run)]
