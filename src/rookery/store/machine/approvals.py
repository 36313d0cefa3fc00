"""Transitions for approvals: ask about tool calls, and apply the answers. Between the two, the chat is parked.

Questions and approvals are rows of `chat_approvals`; their key is the replay token of the call. If the chat leaves
`requires_action` without an answer, a trigger deletes the unanswered questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from rookery.domain.chat import approvals, elicitation, open_tool_calls, parts, repetition_brake
from rookery.domain.chat.approvals import Answer, Decision, Offers
from rookery.domain.chat.elicitation import Elicitation, Given
from rookery.domain.chat.errors import InvalidInput, TransitionNotAllowed
from rookery.domain.chat.messages import ChatId, Message
from rookery.domain.chat.open_tool_calls import CloseReason, OpenCall
from rookery.domain.chat.transitions import Transition
from rookery.store.machine import message_rows, open_calls, transition_update
from rookery.store.machine.bundle import Tx, transition

_ASK = """
    INSERT INTO chat_approvals (chat_id, token, offers)
    VALUES ($1, $2, $3)
        ON CONFLICT (chat_id, token) DO UPDATE
       SET offers = excluded.offers, asked_at = clock_timestamp(), approved_by = NULL, approved_at = NULL
"""
_APPROVE = """
    UPDATE chat_approvals
       SET approved_by = $3, approved_at = clock_timestamp()
     WHERE chat_id = $1 AND token = ANY ($2::uuid[])
"""


class Question(msgspec.Struct, frozen=True):
    """A tool call that a user has to approve before it runs. `offers` are the rules that an answer may create."""

    call: OpenCall
    offers: Offers = Offers()

    def token(self, chat_id: ChatId) -> UUID:
        return open_tool_calls.replay_token(chat_id, self.call.message_id, self.call.tool_call_id)


_OPEN_QUESTIONS = """
    SELECT jsonb_object_agg(token, question) FROM chat_tool_runs WHERE chat_id = $1 AND question IS NOT NULL
"""
# The next run of the call finds the answer. Without an answer, the call has been closed.
_ANSWER = "UPDATE chat_tool_runs SET question = NULL, answer = $2 WHERE token = $1"


@transition
async def ask_approvals(tx: Tx, questions: Sequence[Question], *, timeout_seconds: float | None = None) -> None:
    """Park the chat until a user has answered the questions about these open calls.

    Without a timeout, there is no deadline.
    """
    tx.require(Transition.ASK_APPROVALS)
    opened = set(await open_calls.turn_calls(tx))
    if not questions or any(question.call not in opened for question in questions):
        raise TransitionNotAllowed(
            Transition.ASK_APPROVALS, tx.state, "No open tool call needs an approval.", cause="no_open_calls"
        )
    await tx.conn.executemany(
        _ASK, [(tx.chat.id, question.token(tx.chat.id), parts.to_jsonb(question.offers)) for question in questions]
    )
    await tx.settle(
        Transition.ASK_APPROVALS,
        "status = 'requires_action', awaits_approval = true,"
        " requires_action_deadline_at = clock_timestamp() + make_interval(secs => $2),"
        f" {transition_update.DROP_COMPACTION}, {transition_update.TOUCH}",
        timeout_seconds,
    )


@transition
async def answer_approvals(tx: Tx, answers: Sequence[Answer], *, answered_by: UUID) -> list[Message]:
    """Store the answers and set the chat to `running`. Returns the results that are written for denied calls.

    There must be exactly one answer for each question. Approved calls stay open: the worker finds their approval and
    runs them. The history version changes even if no row is written, so attempts are counted from zero.
    """
    tx.require(Transition.ANSWER_APPROVALS)
    if not tx.chat.awaits_approval:
        raise TransitionNotAllowed(
            Transition.ANSWER_APPROVALS,
            tx.state,
            "This chat has no open question. It waits for tool results of its client.",
            cause="no_questions",
        )
    asked = {call.tool_call_id: call for call in await open_calls.asked_calls(tx)}
    approvals.check_answers(tuple(asked), answers)
    braked = await open_calls.braked_tokens(tx)
    elicited = await _open_questions(tx)
    denied, approved = [], []
    for answer in answers:
        call = asked[answer.tool_call_id]
        token = open_tool_calls.replay_token(tx.chat.id, call.message_id, call.tool_call_id)
        asked_by = elicited.get(token)
        if asked_by is not None:
            await _answer(tx, token, asked_by, answer)
        elif answer.responses is not None:
            raise InvalidInput(elicitation.FIELD, "This call has no question that takes values.")
        if answer.decision is Decision.APPROVE:
            approved.append(token)
            continue
        if asked_by is not None:
            note = elicitation.declined(asked_by.server, answer.reason)
        else:
            denied_by = repetition_brake.stopped_by_user if token in braked else approvals.denied_by_user
            note = denied_by(answer.reason)
        denied += message_rows.closures(
            tx,
            [call],
            CloseReason.DENIED_BY_USER,
            note=note,
            comment=answer.reason.strip(),
            created_by=answered_by,
        )
    if approved:
        await tx.conn.execute(_APPROVE, tx.chat.id, approved, answered_by)
    inserted = await message_rows.insert(tx, denied) if denied else []
    await tx.settle(
        Transition.ANSWER_APPROVALS,
        f"{transition_update.RUN}, history_version = snapshot_version, generation_attempt = 0",
    )
    return inserted


async def _open_questions(tx: Tx) -> dict[UUID, Elicitation]:
    stored = await tx.conn.fetchval(_OPEN_QUESTIONS, tx.chat.id)
    return {} if stored is None else _elicitations.decode(parts.unescape(stored))


async def _answer(tx: Tx, token: UUID, asked: Elicitation, answer: Answer) -> None:
    """Store the user's answer for the next run of the call, or delete the question if the user declined."""
    if answer.always is not None:
        raise InvalidInput("answers.always", "A server's question is answered once, without `always`.")
    kept = None
    if answer.decision is Decision.APPROVE:
        kept = parts.to_jsonb(Given(elicitation.check(asked, answer.responses)))
    await tx.conn.execute(_ANSWER, token, kept)


_elicitations = msgspec.json.Decoder(dict[UUID, Elicitation])
