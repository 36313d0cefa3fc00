"""Which model answers, and whether its owner may still spend: asked before anything is written.

The decisions are those of `llm.resolve`; they are made here for what a request names, and once more under the chat's
lock for what it leaves to the chat.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias
from uuid import UUID

from rookery.api.errors import ApiError
from rookery.api.request_context import Caller
from rookery.api.services import ApiServices
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId, Effort
from rookery.models import resolve
from rookery.models.resolve import Choice, Models, Override
from rookery.store.models import spending
from rookery.store.models.errors import ModelError, ModelUnusable, SpendLimitReached
from rookery.store.models.usage import KeySource

MODELS_SETTING = "models"
OVERRIDES_SETTING = "model_overrides"

May: TypeAlias = Callable[[], Awaitable[object]]

# What is said against a message because of what it names.
REFUSALS = (InvalidInput, ApiError, ModelError)


@asynccontextmanager
async def after(may: May) -> AsyncIterator[None]:
    """Complaints about a body come after those about rights: who lacks one learns nothing else."""
    try:
        yield
    except REFUSALS:
        await may()
        raise


class Chooser:
    """The models as one caller can use them, at one moment, and whether the caller has anything left to spend."""

    __slots__ = ("_limit", "_models")

    def __init__(self, models: Models, limit: SpendLimitReached | None) -> None:
        self._models = models
        self._limit = limit

    def for_new_chat(self, requested: UUID | None, personal: Override | None) -> Choice:
        return self._paid(resolve.for_new_chat(self._models, requested=requested, personal=personal))

    def for_message(self) -> ForMessage:
        return ForMessage(self)

    def named(self, requested: UUID) -> UUID:
        """The model that a message names."""
        self._check(requested)
        return self._paid(Choice(requested)).model_config_id

    def by_last(self, last: UUID) -> UUID:
        """The model of a message that names none."""
        return self._paid(resolve.for_message(self._models, requested=None, last=last)).model_config_id

    @property
    def kept(self) -> list[UUID]:
        """Those that a chat goes on with when it used them last."""
        return [
            model_id
            for model_id, state in self._models.by_id.items()
            if resolve.is_kept(state) and (self._limit is None or state.key is KeySource.USER)
        ]

    def for_edit(self, requested: UUID | None) -> Callable[[UUID | None, UUID], UUID]:
        """By the model of the message as it was, if that can still be used, else as for any message."""
        if requested is not None:
            self._check(requested)

        def choose(original: UUID | None, last: UUID) -> UUID:
            if requested is not None:
                return self.named(requested)
            if original is not None and self._models.is_usable(original):
                return self._paid(Choice(original)).model_config_id
            return self.by_last(last)

        return choose

    def is_usable(self, model_config_id: UUID) -> bool:
        return self._models.is_usable(model_config_id)

    def check(self, requested: UUID, *, current: UUID | None = None) -> None:
        """A model named for later turns; one that is there already may stay though it was switched off."""
        if requested != current:
            self._check(requested)

    def check_spend(self, model_config_id: UUID) -> None:
        self._paid(Choice(model_config_id))

    @property
    def is_spent(self) -> bool:
        return self._limit is not None

    def _check(self, model_config_id: UUID) -> None:
        if reason := self._models.unusable(model_config_id):
            raise ModelUnusable(reason, model_config_id)

    def _paid(self, choice: Choice) -> Choice:
        """Calls on a key of one's own do not count."""
        state = self._models.by_id.get(choice.model_config_id)
        if self._limit is not None and (state is None or state.key is not KeySource.USER):
            raise self._limit
        return choice


class ForMessage:
    """By the model that the chat used last, for a message that names none."""

    __slots__ = ("_chooser",)

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    @property
    def kept(self) -> list[UUID]:
        return self._chooser.kept

    def __call__(self, last: UUID) -> UUID:
        return self._chooser.by_last(last)


async def chooser(parts: ApiServices, caller: Caller) -> Chooser:
    return Chooser(await parts.directory.models(caller.user.id), await _limit(parts, caller))


async def for_new_chat(
    parts: ApiServices, caller: Caller, requested: UUID | None, effort: Effort | None
) -> tuple[UUID, Effort | None]:
    """The model and the effort of a new chat. The caller's own default counts where administrators allow one."""
    personal = None if requested is not None else await _personal(parts, caller)
    choice = (await chooser(parts, caller)).for_new_chat(requested, personal)
    return choice.model_config_id, effort or choice.reasoning_effort


async def check_spend(parts: ApiServices, caller: Caller, chat_id: ChatId) -> None:
    """For what goes on with the chat's own model."""
    found = await chooser(parts, caller)
    if found.is_spent:
        found.check_spend((await caller.store.chats.get(chat_id)).last_model_config_id)


async def _limit(parts: ApiServices, caller: Caller) -> SpendLimitReached | None:
    # Most deployments have no limit, and then nothing is asked: the setting is at hand.
    if await parts.directory.setting(spending.SETTING) is None:
        return None
    return await caller.store.turns.find_spend_limit()


async def _personal(parts: ApiServices, caller: Caller) -> Override | None:
    stored = await parts.directory.setting(MODELS_SETTING)
    if not isinstance(stored, dict) or stored.get("allow_personal_overrides") is not True:
        return None
    own = await parts.directory.user_setting(caller.user.id, OVERRIDES_SETTING)
    override, _ = resolve.read_override(own.get("root") if isinstance(own, dict) else None)
    return override
