"""Titles that a model writes at the user's request: only returned, or stored."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec
from starlette.responses import Response

from rookery.api import model_choice
from rookery.api.caller import Caller
from rookery.api.errors import ApiError
from rookery.api.rate_limits import Limit
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action
from rookery.domain.chat import titles
from rookery.domain.chat.messages import ChatId, Role
from rookery.domain.chat.parts import ContentError, plain_text
from rookery.domain.chat.prompt import PromptRow
from rookery.llm.errors import CallFailed, NoObject
from rookery.runtime.clock import DeadlineExceeded
from rookery.store.authorized.chat_changes import TitledChat
from rookery.store.chats.chat_views import ChatView
from rookery.titles.generate import TITLE_INPUT
from rookery.worker.short_texts import NoTitle, Subject

# The number of messages from each end of the chat.
MESSAGES_READ = 50
MAX_CHARS_PER_MESSAGE = 2000

_SPEAKERS = {Role.USER: "User", Role.ASSISTANT: "Assistant"}


class TitleView(msgspec.Struct, frozen=True):
    """A proposed title. It is empty if the chat has no text."""

    title: str


def router(services: ApiServices) -> Routes:
    routes = Routes("titles")

    @routes.post("/chats/{chat}/title/propose", "titles.propose", returns=TitleView, errors=(404, 409, 502, 504))
    async def propose(caller: Caller, chat: UUID) -> Response:
        """Propose a title from the messages so far. Nothing is stored."""
        titled = await _admit(services, caller, ChatId(chat))
        return answer(TitleView(await _propose(services, caller, titled)))

    @routes.post("/chats/{chat}/title/regenerate", "titles.regenerate", returns=ChatView, errors=(404, 409, 502, 504))
    async def regenerate(caller: Caller, chat: UUID) -> Response:
        """Set a title made from the messages so far, unless the chat is renamed meanwhile."""
        titled = await _admit(services, caller, ChatId(chat))
        # The title is written even if the client disconnects, because the handler is not canceled.
        title = await _propose(services, caller, titled)
        if title:
            await caller.store.turns.write_title(ChatId(chat), title, seen_title=titled.title)
        return answer(await caller.store.chats.get(ChatId(chat)))

    return routes


async def _admit(services: ApiServices, caller: Caller, chat_id: ChatId) -> TitledChat:
    caller.take(Limit.TITLE)
    titled = await caller.store.turns.find_titled(chat_id)
    async with model_choice.rights_first(caller.may(chat_id, Action.DRIVE)):
        await model_choice.check_spend(services, caller, chat_id)
    return titled


async def _propose(services: ApiServices, caller: Caller, titled: TitledChat) -> str:
    said, about = await _transcript(caller, titled.chat.id)
    if not said:
        return ""
    try:
        return await services.texts.propose_title(titled.chat, said, about=about)
    except (CallFailed, NoObject, NoTitle) as error:
        raise ApiError(502, "upstream_failed", str(error)) from None
    except (TimeoutError, DeadlineExceeded):
        raise ApiError(504, "upstream_timeout", "The model took too long to find a title. Try again.") from None


async def _transcript(caller: Caller, chat_id: ChatId) -> tuple[str, Subject]:
    """Return texts of the user and the model from the start and the end of the chat, and the messages they are from."""
    newest = await caller.store.messages.list(chat_id, limit=MESSAGES_READ)
    oldest = await caller.store.messages.list(chat_id, limit=MESSAGES_READ, after_id=0) if newest.has_more else None
    rows = {row.message.id: row for row in (*(oldest.items if oldest else ()), *reversed(newest.items))}
    said = titles.transcript(list(_turns(rows.values())), per_turn=MAX_CHARS_PER_MESSAGE, limit=TITLE_INPUT)
    return said, Subject(history_tip_message_id=max(rows, default=None))


def _turns(rows: Iterable[PromptRow]) -> Iterable[tuple[str, str]]:
    for row in rows:
        who = _SPEAKERS.get(row.message.role)
        if who is None:
            continue
        try:
            parts = row.message.parts()
        except ContentError:
            continue
        yield who, titles.title_text(parts) if row.message.role is Role.USER else plain_text(parts)
