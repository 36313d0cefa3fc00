"""Exploration of the state model: abstractions that make it finite, and walks over all reachable states."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count

from msgspec import Struct

from tests.domain.chat import state_model, state_model_actors
from tests.domain.chat.state_model_actors import Actor, Attempt, User, Worker
from tests.domain.chat.state_model_values import Chat, Kind, Refusal, Row

SMALL_QUEUE = 2


class Edge(Struct, frozen=True, eq=False):
    """One attempt on one chat, its outcome, and the difference between the actor's view and the chat."""

    source: Node
    attempt: Attempt
    outcome: Chat | Refusal
    view: Hashable = None


class Node(Struct, frozen=True, eq=False):
    """A chat that the walk has reached, and the edge to it."""

    chat: Chat
    parent: Edge | None = None
    depth: int = 0

    def child(self, edge: Edge) -> Node:
        assert isinstance(edge.outcome, Chat)
        return Node(edge.outcome, edge, self.depth + 1)


def first_chat() -> Chat:
    return state_model.create(Row(Kind.SYSTEM, text="be kind"), Row(Kind.USER, text="hello"), max_queue=SMALL_QUEUE)


def kind_of(chat: Chat) -> tuple[Hashable, ...]:
    """Return all properties that determine the future of a chat, except the views of actors."""
    return (
        *outline_of(chat),
        chat.retry_state,
        chat.attempt > 0,
        next(row.kind for row in reversed(chat.history) if row.live) is Kind.ASSISTANT,
        chat.compactable,
        Chat(history=chat.history[: _last_user(chat)]).compactable,
    )


def outline_of(chat: Chat) -> tuple[Hashable, ...]:
    """Return a coarser kind: state, queue, owner and open calls."""
    return (
        chat.status,
        chat.archived,
        tuple(queued.steer for queued in chat.queue),
        chat.owner and chat.owner[0],
        tuple(call.tool for call in chat.open_calls),
        chat.deadline,
        bool(chat.asked),
        chat.compaction,
        chat.compaction_resume,
    )


def _last_user(chat: Chat) -> int:
    return max(index for index, row in enumerate(chat.history) if row.kind is Kind.USER and row.live)


def view_of(actor: Actor, chat: Chat) -> Hashable:
    """Return the relation between the actor's view and the current chat."""
    seen = actor.seen
    if isinstance(actor, Worker):
        if actor.owner is None:
            return None
        return (
            actor.owner == chat.owner,
            seen.history_version == chat.history_version,
            seen.attempt == chat.attempt,
            seen.status == chat.status,
        )
    ids = [queued.id for queued in chat.queue]
    return (
        tuple(ids.index(queued.id) if queued.id in ids else -1 for queued in seen.queue),
        chat.history[_last_user(seen)].deleted,
        seen.client_calls == chat.client_calls,
        seen.asked == chat.asked,
    )


def everything_one_can_do(start: Node, kind: Callable[[Chat], Hashable]) -> Iterator[Edge]:
    """Yield every edge between chats of different kinds, by actors with a current view."""
    turns = count(1)
    known = {kind(start.chat)}
    frontier = deque([start])
    while frontier:
        node = frontier.popleft()
        for actor in (User("ada", node.chat), Worker("w1", node.chat, node.chat.owner)):
            view = view_of(actor, node.chat)
            for attempt in actor.attempts(next(turns)):
                edge = _try(node, attempt, view)
                yield edge
                if isinstance(edge.outcome, Chat) and (reached := kind(edge.outcome)) not in known:
                    known.add(reached)
                    frontier.append(node.child(edge))


def interleavings(start: Node, pair: tuple[Actor, Actor], *, length: int) -> Iterator[Edge]:
    """Yield every order of every two scripts of up to `length` attempts, by two actors that saw the chat at the
    start.
    """
    turns = count((start.depth + 1) * 100_000)
    known: set[Hashable] = set()
    frontier = deque([(start, pair, (length, length))])
    while frontier:
        node, pair, left = frontier.popleft()
        for who in (0, 1):
            if not left[who]:
                continue
            view = view_of(pair[who], node.chat)
            for attempt in pair[who].attempts(next(turns)):
                edge = _try(node, attempt, view)
                yield edge
                if isinstance(edge.outcome, Refusal):
                    continue
                moved = state_model_actors.after(pair[who], attempt, edge.outcome)
                then, rest = (
                    ((moved, pair[1]), (left[0] - 1, left[1]))
                    if who == 0
                    else ((pair[0], moved), (left[0], left[1] - 1))
                )
                key = (kind_of(edge.outcome), *(view_of(actor, edge.outcome) for actor in then), rest)
                if any(rest) and key not in known:
                    known.add(key)
                    frontier.append((node.child(edge), then, rest))


def _try(node: Node, attempt: Attempt, view: Hashable) -> Edge:
    return Edge(node, attempt, state_model.apply(node.chat, *attempt.actions, fence=attempt.fence), view)


def first_of_each(edges: Iterable[Edge], kind: Callable[[Edge], Hashable]) -> list[Edge]:
    found: dict[Hashable, Edge] = {}
    for edge in edges:
        found.setdefault(kind(edge), edge)
    return list(found.values())
