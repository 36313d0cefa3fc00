"""Approvals on behalf of an actor: answers to questions, and the approval rules of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.domain.access.rights import Action, Resource
from rookery.domain.chat import approvals as approval_rules
from rookery.domain.chat import parts
from rookery.domain.chat.approvals import Answer, Offers, Rule, Scope
from rookery.domain.chat.errors import ChatNotRoot, InvalidInput
from rookery.domain.chat.messages import ChatId, Message
from rookery.runtime.time_slices import in_pieces
from rookery.store import machine
from rookery.store.authorized.rights import AuthorizedMethods, Grant, How, Via, authz
from rookery.store.chats import approval_rules as chats_approval_rules
from rookery.store.chats import stream_reads
from rookery.store.db.hints import ConfigHint
from rookery.store.machine import Tx
from rookery.store.people import preferences
from rookery.store.people.audit import CHANGED, Event
from rookery.store.people.errors import Disabled

BRAKED = "This call is on hold because it repeats. It can be continued once: answer without `always`."
ROOT_OF = "SELECT coalesce(root_chat_id, id) FROM chats WHERE id = $1"
UNREADABLE = "This version of the server cannot read the stored rules. Replace all of them."


class Approvals(AuthorizedMethods):
    __slots__ = ()

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT, how=How.BUNDLE)
    async def answer(self, at: Grant, chat_id: ChatId, answers: Sequence[Answer]) -> list[Message]:
        """Answer all open questions of a chat together. An answer with `always` creates a rule."""
        kept = {answer.always for answer in answers}
        if Scope.USER in kept:
            # Lock the user before the chat. All transactions that change both use this order.
            await at.conn.execute(preferences.LOCK_USER, at.user_id)
        tx = await at.bundle.open(chat_id)
        asked = await stream_reads.list_questions(at.conn, chat_id) if kept != {None} else {}
        denied = await machine.answer_approvals(tx, answers, answered_by=at.user_id)
        for answer in answers:
            if answer.always is not None:
                await self._remember(at, tx, answer, asked[answer.tool_call_id])
        await at.log(_answered(chat_id, answers))
        return denied

    @authz(Resource.MESSAGE, Action.DRIVE, via=Via.CHAT)
    async def find_question(self, at: Grant, chat_id: ChatId, tool_call_id: str) -> stream_reads.PendingCall | None:
        """Return the call that the chat asks about; None if it does not ask about it, or not any more."""
        return (await stream_reads.list_questions(at.conn, chat_id)).get(tool_call_id)

    async def _remember(self, at: Grant, tx: Tx, answer: Answer, call: stream_reads.PendingCall) -> None:
        try:
            if call.offers is not None and call.offers.brake is not UNSET:
                raise InvalidInput("answers.always", BRAKED)
            if not (await chats_approval_rules.read_settings(at.conn)).allow_always:
                raise Disabled("Remembered answers are disabled by administrators. Answer without `always`.")
            args = parts.json_value(call.args)
            offered = call.offers or Offers()
            rule = await in_pieces(approval_rules.rule_of_answer_sliced(answer, call.tool_name, args, offered))
            if answer.always is Scope.CHAT:
                await chats_approval_rules.add_rule(at.conn, tx.chat.root_chat_id or tx.chat.id, rule)
            else:
                await chats_approval_rules.add_user_rule(at.conn, at.user_id, rule)
                at.tell(ConfigHint(kind="user_prompt", id=str(at.user_id)))
        except msgspec.ValidationError:
            raise tx.bundle.refuse(InvalidInput("answers.always", UNREADABLE)) from None
        except (InvalidInput, Disabled) as error:
            raise tx.bundle.refuse(error) from None

    @authz(Resource.CHAT, Action.READ, via=Via.CHAT)
    async def list_rules(self, at: Grant, chat_id: ChatId) -> tuple[Rule, ...]:
        """Return the rules of the chat's family."""
        try:
            return await chats_approval_rules.list_rules(at.conn, await _root(at, chat_id))
        except msgspec.ValidationError:
            raise InvalidInput("rules", UNREADABLE) from None

    @authz(Resource.CHAT, Action.PATCH, via=Via.CHAT, how=How.WRITE)
    async def write_rules(self, at: Grant, chat_id: ChatId, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """Replace the rules of a root chat, for its whole family."""
        root_id = await _root(at, chat_id)
        if root_id != chat_id:
            raise ChatNotRoot(chat_id, root_id)
        if await chats_approval_rules.write_rules(at.conn, root_id, rules):
            event = Event(
                action="chat.approval_rules",
                resource_type=Resource.CHAT,
                resource_id=str(chat_id),
                diff={"rules": CHANGED},
            )
            await at.log(event)
        return await chats_approval_rules.list_rules(at.conn, root_id)


async def _root(at: Grant, chat_id: ChatId) -> UUID:
    root_id: UUID = await at.conn.fetchval(ROOT_OF, chat_id)
    return root_id


def _answered(chat_id: ChatId, answers: Sequence[Answer]) -> Event:
    """Return the audit event with the decision on each call. It has no arguments, because they are users' content."""
    decisions: dict[str, object] = {
        answer.tool_call_id: str(answer.decision) + (f", always ({answer.always})" if answer.always else "")
        for answer in answers
    }
    return Event(action="approval.answer", resource_type=Resource.CHAT, resource_id=str(chat_id), diff=decisions)
